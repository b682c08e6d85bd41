//! Counts of completed operations: each client counts for itself, other threads read the counts and
//! sum them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::latencies::{Counts, LATENCY_NS_MAX, LATENCY_NS_MIN};
use super::workload::{Mix, OPERATIONS, Operation};

/// The results of one client, or of all together, during the measurement.
pub(super) struct Results {
    /// Keys or records processed, per operation.
    pub(super) operations: [u64; OPERATIONS],
    /// Calls, per operation; a get-many or scan is one.
    pub(super) calls: [u64; OPERATIONS],
    /// Latencies of calls in nanoseconds, per operation.
    pub(super) latency_ns: [Histogram<u64>; OPERATIONS],
}

impl Results {
    /// Operations that wrote.
    pub(super) fn written(&self) -> u64 {
        let writing = Operation::ALL.into_iter().filter(|o| o.writes());
        writing.map(|o| self.operations[o as usize]).sum()
    }

    /// Histograms of operations that the mix does not have stay small.
    pub(super) fn new(mix: &Mix) -> Results {
        let of = |operation: Operation| match mix.has(operation) {
            true => histogram(LATENCY_NS_MAX),
            false => histogram(LATENCY_NS_MIN * 2),
        };
        Results {
            operations: [0; OPERATIONS],
            calls: [0; OPERATIONS],
            latency_ns: Operation::ALL.map(of),
        }
    }

    /// Latencies of all operations together.
    pub(super) fn all_latencies(&self) -> Histogram<u64> {
        let mut all = histogram(LATENCY_NS_MAX);
        for one in &self.latency_ns {
            // None has wider bounds, so this cannot fail.
            let _ = all.add(one);
        }
        all
    }

    pub(super) fn add(&mut self, other: &Results) {
        for at in 0..OPERATIONS {
            self.operations[at] += other.operations[at];
            self.calls[at] += other.calls[at];
            // Both histograms have the same bounds, so this cannot fail.
            let _ = self.latency_ns[at].add(&other.latency_ns[at]);
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "the bounds are constants that the library accepts"
)]
fn histogram(longest_ns: u64) -> Histogram<u64> {
    // A lower bound above 1 would be the width of all short buckets.
    Histogram::new_with_bounds(1, longest_ns, 2).expect("valid bounds")
}

/// One client's counts that other threads read while it runs; no two clients share a cache line.
#[repr(align(128))]
pub(super) struct Shown {
    processed: AtomicU64,
    written: AtomicU64,
    latencies: Counts,
}

impl Shown {
    pub(super) fn new() -> Shown {
        Shown {
            processed: AtomicU64::new(0),
            written: AtomicU64::new(0),
            latencies: Counts::new(),
        }
    }

    /// Keys processed so far, warm-up included.
    pub(super) fn processed(&self) -> u64 {
        self.processed.load(Ordering::Relaxed)
    }

    /// Bytes of keys and values written so far, warm-up included.
    pub(super) fn bytes_written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Latencies of the timed calls that were measured so far.
    pub(super) fn latencies(&self) -> &Counts {
        &self.latencies
    }
}

/// Latencies that a client keeps to itself before it shows them.
const KEPT: usize = 32;
/// For how long it keeps them, and its progress, to itself at most, unless an operation takes
/// longer.
const KEPT_TIME: Duration = Duration::from_millis(5);
/// Bits of a latency that is kept beside its operation: more than [`LATENCY_NS_MAX`] has.
const KEPT_BITS: u32 = 56;

/// What one client has done. Histograms and what other threads look at are touched once for many
/// operations: with a hundred clients they are in no processor's cache any more when a client comes
/// back to them.
pub(super) struct Tally<'s> {
    shared: &'s Shown,
    /// Whether progress is shown after each operation: if few are timed, the next that is may be
    /// far.
    at_once: bool,
    results: Results,
    done: u64,
    written: u64,
    /// Operations and latencies that are not in a histogram yet.
    kept: [u64; KEPT],
    len: usize,
    /// When it was shown last.
    shown: Option<Instant>,
}

impl<'s> Tally<'s> {
    /// Of a client that times one of `latency_every` operations of this mix.
    pub(super) fn new(mix: &Mix, latency_every: u32, shared: &'s Shown) -> Tally<'s> {
        Tally {
            shared,
            at_once: latency_every > 1,
            results: Results::new(mix),
            done: 0,
            written: 0,
            kept: [0; KEPT],
            len: 0,
            shown: None,
        }
    }

    /// Counts an operation, measured or not.
    pub(super) fn count(&mut self, processed: u64, bytes: u64) {
        self.done += processed;
        self.written += bytes;
    }

    /// Counts an operation of the measured time.
    pub(super) fn measure(&mut self, operation: Operation, processed: u64) {
        self.results.operations[operation as usize] += processed;
        self.results.calls[operation as usize] += 1;
    }

    /// Takes an operation's latency, where its beginning and end are known.
    pub(super) fn time(&mut self, operation: Operation, span: Option<(Instant, Instant)>) {
        let at = operation as usize;
        if let Some((due, now)) = span {
            let ns = now.saturating_duration_since(due).as_nanos();
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            let ns = ns.clamp(LATENCY_NS_MIN, LATENCY_NS_MAX);
            // `show` makes room before there is none.
            self.kept[self.len] = (at as u64) << KEPT_BITS | ns;
            self.len += 1;
        }
    }

    /// Publishes the kept counts, if they are many, or old at this time.
    pub(super) fn show(&mut self, now: Option<Instant>) {
        if self.at_once {
            self.show_progress();
        }
        let Some(now) = now else { return };
        let is_old = |shown| now.saturating_duration_since(shown) >= KEPT_TIME;
        if self.len == KEPT || self.shown.is_none_or(is_old) {
            self.shown = Some(now);
            self.show_all();
        }
    }

    fn show_progress(&self) {
        self.shared.processed.store(self.done, Ordering::Relaxed);
        self.shared.written.store(self.written, Ordering::Relaxed);
    }

    fn show_all(&mut self) {
        for kept in &self.kept[..self.len] {
            let (at, ns) = (kept >> KEPT_BITS, kept & ((1 << KEPT_BITS) - 1));
            self.results.latency_ns[at as usize].saturating_record(ns);
            self.shared.latencies.add(ns);
        }
        self.len = 0;
        self.show_progress();
    }

    /// Publishes everything; the results.
    pub(super) fn end(mut self) -> Results {
        self.show_all();
        self.results
    }
}

#[cfg(test)]
mod tests {
    use super::super::latencies::Total;
    use super::*;

    #[test]
    fn what_is_counted_is_shown_in_time_and_kept_whole() {
        let mix: Mix = "get,update".parse().unwrap();
        let shown = Shown::new();
        let nothing = Total::of([shown.latencies()]);
        let mut tally = Tally::new(&mix, 1, &shown);
        let mut rng = fastrand::Rng::with_seed(4);
        let mut now = Instant::now();
        let (mut done, mut bytes) = (0, 0);
        let (mut last_shown, mut hidden) = (None, 0);
        let (mut longest, mut all_ns) = (0, 0);
        for at in 0..2000u64 {
            let ns = rng.u64(100_000..200_000) * if at % 10 == 0 { 20 } else { 1 };
            let end = now + Duration::from_nanos(ns);
            let operation = [Operation::Get, Operation::Update][(at % 2) as usize];
            tally.count(3, at);
            tally.measure(operation, 3);
            tally.time(operation, Some((now, end)));
            tally.show(Some(end));
            (done, bytes, now) = (done + 3, bytes + at, end);
            (longest, all_ns) = (longest.max(ns), all_ns + ns);
            if shown.processed() == done {
                assert_eq!(shown.bytes_written(), bytes);
                (last_shown, hidden) = (Some(end), 0);
            } else {
                hidden += 1;
                let age = last_shown.map(|shown| end - shown);
                assert!(
                    age.is_some_and(|age| age < KEPT_TIME) && hidden < KEPT,
                    "{at}"
                );
            }
        }
        let results = tally.end();
        assert_eq!((shown.processed(), shown.bytes_written()), (done, bytes));
        let (get, update) = (Operation::Get as usize, Operation::Update as usize);
        assert_eq!((results.operations[get], results.calls[get]), (3000, 1000));
        assert_eq!(
            (results.latency_ns[get].len(), results.written()),
            (1000, 3000)
        );
        assert_eq!(results.latency_ns[update].len(), 1000);
        // Histograms have two significant digits, and what is shown a sixteenth of an octave.
        let near = |found: f64, right: f64, within: f64| (found / right - 1.0).abs() < within;
        let all = results.all_latencies();
        assert!(near(all.max() as f64, longest as f64, 0.01));
        assert!(near(all.mean(), all_ns as f64 / 2000.0, 0.01));
        let median = Total::of([shown.latencies()]).quantile_us_since(&nothing, 0.5);
        let right = all.value_at_quantile(0.5) as f64 / 1000.0;
        assert!(near(median.unwrap(), right, 0.05), "{median:?} {right}");
    }

    #[test]
    fn clients_are_summed() {
        let mix = Mix::get();
        let mut total = Results::new(&mix);
        for client in 1..=3u64 {
            let shown = Shown::new();
            let mut tally = Tally::new(&mix, 1, &shown);
            for _ in 0..client {
                let now = Instant::now();
                tally.measure(Operation::Get, 8);
                tally.time(Operation::Get, Some((now, now)));
                tally.show(Some(now));
            }
            total.add(&tally.end());
        }
        let get = Operation::Get as usize;
        assert_eq!((total.calls[get], total.operations[get]), (6, 48));
        assert_eq!(total.latency_ns[get].len(), 6);
    }

    #[test]
    fn short_latencies_have_two_digits_too() {
        let mut latencies = histogram(LATENCY_NS_MAX);
        for ns in [70, 205, 330, 1010, 15_000] {
            latencies.record(ns).unwrap();
            let found = latencies.highest_equivalent(ns) as f64;
            assert!(found / (ns as f64) < 1.01, "{ns} ns is told as {found}");
        }
    }
}
