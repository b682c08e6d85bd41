//! stats --watch: a store that another process has open, as it works.

use std::thread;
use std::time::{Duration, Instant};

use isobath::Stats;
use isobath_lab::Monitor;
use serde_json::json;

use crate::args::{GlobalArgs, StatsArgs};
use crate::failure::Failure;
use crate::output::{Output, count, size};
use crate::progress::Progress;

/// Lines after which the header comes again.
const LINES_PER_HEADER: u64 = 20;

/// Prints the changes of each interval until the store is closed, `--count` lines were printed,
/// or Ctrl-C.
pub(crate) fn watch(
    args: &StatsArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    check_interval(args.every)?;
    let Some(path) = args.store.store.first() else {
        return Err(Failure::Usage("no store was named".into()));
    };
    let progress = Progress::in_order(global, &[])?;
    let before = Stats::of_store_in_use(path)?;
    let is_wide = out.width() >= WIDE;
    let header = if is_wide { WIDE_HEADER } else { NARROW_HEADER };
    // Closing removes the published file: there is nothing more to see.
    let now = || Stats::of_store_in_use(path).ok();
    let print = |before: &Stats, now: &Stats, time, with_header, out: &mut Output| {
        let change = Change::between(before, now, time);
        if out.json() {
            return out.document(&change.to_json(now));
        }
        if with_header {
            out.line(header)?;
        }
        out.line(&change.to_line(now, is_wide))
    };
    let has_ended = each_interval((args.every, args.count), &progress, before, now, print, out)?;
    match has_ended && !out.json() {
        true => out.line(&format!("{} is no longer in use", path.display())),
        false => Ok(()),
    }
}

/// Refuses an interval without length, before anything is opened.
pub(super) fn check_interval(every: Duration) -> Result<(), Failure> {
    match every.is_zero() {
        true => Err(Failure::Usage("--every must be above 0".into())),
        false => Ok(()),
    }
}

/// Prints what has changed in each interval, the first of so many lines with a header, until there
/// is nothing more to see, which it answers, so many lines were printed, or Ctrl-C.
pub(super) fn each_interval<S>(
    (every, most): (Duration, Option<u64>),
    progress: &Progress,
    mut before: S,
    now: impl Fn() -> Option<S>,
    print: impl Fn(&S, &S, Duration, bool, &mut Output) -> Result<(), Failure>,
    out: &mut Output,
) -> Result<bool, Failure> {
    let mut printed = 0;
    while most.is_none_or(|most| printed < most) {
        let began = Instant::now();
        if !sleep(every, progress) {
            break;
        }
        let Some(now) = now() else {
            return Ok(true);
        };
        print(
            &before,
            &now,
            began.elapsed(),
            printed % LINES_PER_HEADER == 0,
            out,
        )?;
        out.flush()?;
        before = now;
        printed += 1;
    }
    Ok(false)
}

/// Sleeps in short steps; `false` if the user asked to stop.
fn sleep(time: Duration, progress: &Progress) -> bool {
    let until = Instant::now() + time;
    loop {
        if progress.cancelled() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Columns of a line with the amplification by cause.
const WIDE: usize = 136;
const WIDE_HEADER: &str = "    user/s   reads/s  writes/s    WA-A = pages + values + cleaning + checkpoint + summaries + growth +   log   \
     fill  free stalls longest";
const NARROW_HEADER: &str =
    "    user/s   reads/s  writes/s   WA-A most by          fill  free stalls longest";

/// The change between two readings.
struct Change {
    seconds: f64,
    user_bytes: u64,
    page_reads: u64,
    page_writes: u64,
    stalls: u64,
    causes: Causes,
}

/// Bytes written by cause.
pub(super) struct Causes(pub(super) [(&'static str, u64); 7]);

impl Causes {
    /// Since the store was opened.
    pub(super) fn of(stats: &Stats) -> Causes {
        let page_bytes = stats.page_writes * isobath::PAGE_SIZE as u64;
        Causes([
            ("pages", page_bytes),
            ("values", stats.value_bytes_written),
            ("cleaning", stats.cleaning_bytes_written),
            ("checkpoint", stats.checkpoint_bytes_written),
            ("summaries", stats.summary_bytes_written),
            ("growth", stats.growth_bytes_written),
            ("log", stats.log_bytes_written),
        ])
    }

    fn since(&self, before: &Causes) -> Causes {
        let mut causes = self.0;
        for (cause, before) in causes.iter_mut().zip(&before.0) {
            cause.1 = cause.1.saturating_sub(before.1);
        }
        Causes(causes)
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|cause| cause.1).sum()
    }

    /// WA-A: bytes written per byte of the user's, in all and by cause; none if the user wrote
    /// nothing.
    pub(super) fn amplification(&self, user_bytes: u64) -> Option<(f64, [f64; 7])> {
        let per_byte = |bytes: u64| bytes as f64 / user_bytes as f64;
        (user_bytes > 0).then(|| {
            (
                per_byte(self.total()),
                self.0.map(|cause| per_byte(cause.1)),
            )
        })
    }
}

impl Change {
    fn between(before: &Stats, now: &Stats, time: Duration) -> Change {
        let since = |number: fn(&Stats) -> u64| number(now).saturating_sub(number(before));
        Change {
            seconds: time.as_secs_f64(),
            user_bytes: since(|s| s.user_bytes_written),
            page_reads: since(|s| s.page_reads),
            page_writes: since(|s| s.page_writes),
            stalls: since(|s| s.stalls),
            causes: Causes::of(now).since(&Causes::of(before)),
        }
    }

    fn per_second(&self, number: u64) -> u64 {
        (number as f64 / self.seconds).round() as u64
    }

    fn to_line(&self, now: &Stats, is_wide: bool) -> String {
        let amplification = match self.causes.amplification(self.user_bytes) {
            Some((total, parts)) if is_wide => {
                let [pages, values, cleaning, checkpoint, summaries, growth, log] = parts;
                format!(
                    "{total:>7.2} = {pages:>5.2} + {values:>6.2} + {cleaning:>8.2} + {checkpoint:>10.2} + {summaries:>9.2} + {growth:>6.2} + {log:>5.2}  "
                )
            }
            Some((total, parts)) => {
                let most = (0..parts.len()).max_by(|&a, &b| parts[a].total_cmp(&parts[b]));
                let most = most.map_or_else(String::new, |most| {
                    format!("{} {:.2}", self.causes.0[most].0, parts[most])
                });
                format!("{total:>6.2} {most:16}")
            }
            None if is_wide => format!("{:>7}{:70}  ", "-", ""),
            None => format!("{:>6} {:16}", "-", ""),
        };
        format!(
            "{:>10} {:>9} {:>9} {amplification} {:>4} {:>5} {:>6} {:>4} ms",
            size(self.per_second(self.user_bytes)),
            count(self.per_second(self.page_reads)),
            count(self.per_second(self.page_writes)),
            format!("{:.0}%", 100.0 * fill(now)),
            now.free_segments,
            self.stalls,
            now.stall_ns_max / 1_000_000
        )
    }

    fn to_json(&self, now: &Stats) -> serde_json::Value {
        let mut document = json!({
            "seconds": self.seconds,
            "user_bytes_per_s": self.user_bytes as f64 / self.seconds,
            "page_reads_per_s": self.page_reads as f64 / self.seconds,
            "page_writes_per_s": self.page_writes as f64 / self.seconds,
            "stalls": self.stalls,
            "stall_ms_max": now.stall_ns_max as f64 / 1e6,
            "fill_ratio": fill(now),
            "free_segments": now.free_segments,
            "segment_emptiness": now.segment_emptiness,
            "wa_a_ratio": self.causes.amplification(self.user_bytes).map(|wa| wa.0),
        });
        for (cause, bytes) in self.causes.0 {
            document[format!("{cause}_bytes_written")] = bytes.into();
        }
        document
    }
}

/// Live bytes over bytes of all segments.
pub(super) fn fill(stats: &Stats) -> f64 {
    stats.live_bytes as f64 / (stats.segments * stats.segment_bytes).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_wider_than_their_terminal() {
        let mut change = Change {
            seconds: 1.0,
            user_bytes: 1023 << 20,
            page_reads: 9_999_999,
            page_writes: 9_999_999,
            stalls: 99_999,
            causes: Causes([("checkpoint", 1 << 36); 7]),
        };
        for user_bytes in [0, change.user_bytes] {
            change.user_bytes = user_bytes;
            for (is_wide, header, most) in [(false, NARROW_HEADER, 80), (true, WIDE_HEADER, WIDE)] {
                let line = change.to_line(&Stats::default(), is_wide);
                assert!(line.chars().count() <= most, "{line}");
                assert!(header.chars().count() <= most, "{header}");
            }
        }
    }

    #[test]
    fn amplification_adds_up() {
        let causes = Causes([
            ("pages", 100),
            ("values", 0),
            ("cleaning", 50),
            ("checkpoint", 10),
            ("summaries", 0),
            ("growth", 0),
            ("log", 40),
        ]);
        let (total, parts) = causes.amplification(20).expect("the user wrote");
        assert!((total - 10.0).abs() < 1e-12);
        assert!((parts.iter().sum::<f64>() - total).abs() < 1e-12);
        assert!(causes.amplification(0).is_none());
        assert_eq!(causes.since(&causes).total(), 0);
    }
}
