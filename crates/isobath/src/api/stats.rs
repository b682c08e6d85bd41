//! Statistics of a store.

use std::path::Path;

use crate::Error;
use crate::engine::{Engine, publish};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Whether a number of [`Stats`] is a counter or a gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatKind {
    /// Rises while the store is open, from 0.
    Counter,
    /// Rises and falls, or stays.
    Gauge,
}

/// One number of [`Stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Its name, as in [`Stats`] and wherever statistics are shown.
    pub name: &'static str,
    /// Its meaning, in a sentence.
    pub help: &'static str,
    /// Its kind.
    pub kind: StatKind,
    /// The number.
    pub value: u64,
}

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ident,)+) => {
        /// Counters since the store was opened, and gauges of now. Sizes are bytes. Printed, it is
        /// one name and number per line; [`Stats::to_openmetrics`] makes a page for Prometheus of
        /// it, with the same names.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Full segments by the share of them that is obsolete: bin i counts i·10% to
            /// (i+1)·10%.
            pub segment_emptiness: [u64; 10],
            /// Which I/O backend is in use, and what was refused.
            pub backend: String,
        }

        impl Stats {
            /// Every number, but for the histogram `segment_emptiness`.
            pub fn numbers(&self) -> impl Iterator<Item = Stat> {
                [$(Stat {
                    name: stringify!($name),
                    help: concat!($($doc),+).trim_ascii(),
                    kind: StatKind::$kind,
                    value: self.$name,
                },)+]
                .into_iter()
            }

            /// The number of this name, to be set.
            fn number_mut(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)+
                    _ => None,
                }
            }
        }
    };
}

stats! {
    /// Frames of the buffer pool, 4 KiB each.
    pool_frames: Gauge,
    /// Frames that were never used or are free now, as far as no worker holds them.
    pool_free_frames: Gauge,
    /// Frames that are dirty or being written now.
    dirty_pages: Gauge,
    /// Pages read from the volume.
    page_reads: Counter,
    /// Pages written to the volume because they changed.
    page_writes: Counter,
    /// Pages and chunks that the cleaner moved.
    relocations: Counter,
    /// Segments that the cleaner emptied.
    segments_cleaned: Counter,
    /// Bytes read from the volume.
    bytes_read: Counter,
    /// Bytes written to the volume, for whatever reason.
    bytes_written: Counter,
    /// Bytes of keys and values that users inserted or removed.
    user_bytes_written: Counter,
    /// Of `bytes_written`, those of chunks of large values.
    value_bytes_written: Counter,
    /// Of `bytes_written`, those of segment summaries.
    summary_bytes_written: Counter,
    /// Of `bytes_written`, those of pages and chunks that the cleaner moved.
    cleaning_bytes_written: Counter,
    /// Of `bytes_written`, those of checkpoints.
    checkpoint_bytes_written: Counter,
    /// Of `bytes_written`, zeros in space that the volume has grown by.
    growth_bytes_written: Counter,
    /// Checkpoints written.
    checkpoints: Counter,
    /// Trees that have overlays.
    overlaid_trees: Gauge,
    /// Bytes of changes in the memory of overlays.
    overlay_bytes: Gauge,
    /// Runs of overlays.
    runs: Gauge,
    /// Runs that were sealed.
    sealed_runs: Counter,
    /// Runs that were merged as a whole.
    merged_runs: Counter,
    /// Runs that became one with their neighbour.
    combined_runs: Counter,
    /// Bytes of log that opening had to apply; 0 after a clean close.
    recovered_log_bytes: Gauge,
    /// Nanoseconds that this took.
    recovery_ns: Gauge,
    /// Pages that left the pool.
    evictions: Counter,
    /// Segments of the volume.
    segments: Gauge,
    /// Segments that hold nothing.
    free_segments: Gauge,
    /// Bytes of a segment.
    segment_bytes: Gauge,
    /// Bytes on the volume of pages and chunks that are current.
    live_bytes: Gauge,
    /// Bytes of all pages and chunks that exist, written yet or not.
    allocated_bytes: Gauge,
    /// Bytes that they may take before the volume has to grow.
    capacity_bytes: Gauge,
    /// Bytes of the volume.
    volume_bytes: Gauge,
    /// Page ids in use or free for reuse: 8 bytes of memory each.
    page_ids: Gauge,
    /// Commits that changed something, single operations included while a
    /// snapshot is open or the log is kept.
    commits: Counter,
    /// Commits that failed because of other transactions.
    conflicts: Counter,
    /// Of `commits`, those of transactions larger than memory may hold, which became runs of their
    /// trees.
    large_commits: Counter,
    /// Bytes of changes that transactions wrote to temporary files, merging included; no part of
    /// `bytes_written`.
    spilled_bytes: Counter,
    /// Snapshots and transactions that are open now.
    open_snapshots: Gauge,
    /// Old values that they may still read.
    versions: Gauge,
    /// Bytes that those take.
    version_bytes: Gauge,
    /// Bytes that they may take before the oldest snapshots fail.
    version_bytes_limit: Gauge,
    /// Snapshots and transactions that failed for that reason.
    snapshots_aborted: Counter,
    /// Times that a change or a write waited for other writes, for cleaning or for space.
    stalls: Counter,
    /// Nanoseconds of all those waits together.
    stall_ns: Counter,
    /// Nanoseconds of the longest one.
    stall_ns_max: Gauge,
    /// Of `stalls`, those for the volume to grow.
    growth_stalls: Counter,
    /// Nanoseconds of these together.
    growth_stall_ns: Counter,
    /// Bytes of records and stamps that were logged; 0 without a log.
    log_bytes: Counter,
    /// Bytes of the log that were written, in whole blocks of 4 KiB; part of `bytes_written`
    /// where the log lies on the store's own volume.
    log_bytes_written: Counter,
    /// Commits that were logged; divided by `log_flushes`, the commits that share a flush.
    log_commits: Counter,
    /// Durable writes of the log.
    log_flushes: Counter,
    /// Nanoseconds of all of them together, each from its submission to its completion.
    log_flush_ns: Counter,
    /// Nanoseconds of the longest one.
    log_flush_ns_max: Gauge,
    /// Corrupt pages that the cleaner came upon and left in place.
    corrupt_pages: Counter,
    /// Segments whose summary the cleaner could not read, and rebuilt.
    unreadable_summaries: Counter,
    /// Worker threads.
    workers: Gauge,
}

impl Stats {
    pub(crate) fn of(engine: &Engine) -> Stats {
        let counters = &engine.shared.counters;
        let transactions = &engine.transactions;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let volume = engine.shared.volume().ok();
        let backend = volume.as_ref().map_or_else(|| "closed".to_owned(), backend);
        let log = engine.log.counters();
        let space = engine.pagestore.usage();
        let overlaid = engine.buffer.pool.overlays.all();
        let levels: Vec<_> = overlaid.iter().map(|overlaid| overlaid.levels()).collect();
        Stats {
            pool_frames: u64::from(engine.buffer.pool.frames.count()),
            pool_free_frames: engine.buffer.free_frames() as u64,
            dirty_pages: engine.buffer.pool.dirty.unwritten() as u64,
            page_reads: read(&counters.page_reads),
            page_writes: read(&counters.page_writes),
            relocations: read(&counters.relocated),
            segments_cleaned: read(&counters.segments_cleaned),
            bytes_read: read(&counters.bytes_read),
            bytes_written: read(&counters.bytes_written),
            user_bytes_written: read(&counters.user_bytes),
            cleaning_bytes_written: read(&counters.cleaning_bytes),
            value_bytes_written: read(&counters.value_bytes),
            summary_bytes_written: read(&counters.summary_bytes),
            commits: read(&transactions.counters.commits),
            conflicts: read(&transactions.counters.conflicts),
            large_commits: read(&transactions.counters.large_commits),
            spilled_bytes: read(&transactions.counters.spilled_bytes),
            open_snapshots: transactions.snapshots.active(),
            versions: transactions.versions.count(),
            version_bytes: transactions.versions.bytes(),
            version_bytes_limit: transactions.versions.limit(),
            snapshots_aborted: read(&transactions.counters.snapshots_aborted),
            checkpoint_bytes_written: read(&counters.checkpoint_bytes),
            growth_bytes_written: read(&counters.growth_bytes),
            checkpoints: read(&counters.checkpoints),
            overlaid_trees: overlaid.len() as u64,
            overlay_bytes: levels.iter().map(|levels| levels.memory_bytes()).sum(),
            runs: levels.iter().map(|levels| levels.runs.len() as u64).sum(),
            sealed_runs: read(&counters.sealed_runs),
            merged_runs: read(&counters.merged_runs),
            combined_runs: read(&counters.combined_runs),
            recovered_log_bytes: read(&counters.recovered_bytes),
            recovery_ns: read(&counters.recovery_ns),
            stalls: read(&counters.stalls),
            stall_ns: read(&counters.stall_ns),
            stall_ns_max: read(&counters.stall_ns_max),
            growth_stalls: read(&counters.growth_stalls),
            growth_stall_ns: read(&counters.growth_stall_ns),
            evictions: read(&counters.evictions),
            segments: u64::from(space.segments),
            free_segments: u64::from(space.free_segments),
            segment_bytes: u64::from(space.segment_bytes),
            segment_emptiness: space.emptiness,
            live_bytes: space.live_bytes,
            allocated_bytes: engine.pagestore.allocated_bytes(),
            capacity_bytes: engine.pagestore.capacity_bytes(),
            volume_bytes: volume.map_or(0, |volume| volume.len()),
            page_ids: engine.pagestore.high_water(),
            log_bytes: log.bytes,
            log_bytes_written: log.bytes_written,
            log_commits: log.commits,
            log_flushes: log.flushes,
            log_flush_ns: log.flush_ns,
            log_flush_ns_max: log.flush_ns_max,
            corrupt_pages: read(&counters.corrupt_pages),
            unreadable_summaries: read(&counters.unreadable_summaries),
            workers: engine.shared.config.workers as u64,
            backend,
        }
    }
}

impl Stats {
    /// One name and value per line.
    pub(crate) fn to_text(engine: &Engine) -> String {
        format!(
            "{FORMAT}\npid {}\n{}",
            std::process::id(),
            Stats::of(engine)
        )
    }

    /// Reads the text of `to_text`, and the process that wrote it. Unknown names are left out,
    /// missing ones are 0.
    fn from_text(text: &str) -> Option<(Stats, u32)> {
        let mut lines = text.lines();
        if lines.next() != Some(FORMAT) {
            return None;
        }
        let mut stats = Stats::default();
        let mut pid = None;
        for (name, value) in lines.filter_map(|line| line.split_once(' ')) {
            if name == "backend" {
                stats.backend = value.to_owned();
                continue;
            }
            let value: u64 = value.parse().ok()?;
            if name == "pid" {
                pid = u32::try_from(value).ok();
            } else if let Some(bin) = name.strip_prefix("segment_emptiness.") {
                *stats
                    .segment_emptiness
                    .get_mut(bin.parse::<usize>().ok()?)? = value;
            } else if let Some(number) = stats.number_mut(name) {
                *number = value;
            }
        }
        Some((stats, pid?))
    }

    /// The statistics of a store that another process (or this one) has open for writing, as of a
    /// moment ago, without opening it: `path` is the store's first file or device.
    ///
    /// # Errors
    ///
    /// [`Error::NotPublished`] if no such file exists, no process has the store open for
    /// writing, or its owner does not publish statistics.
    pub fn of_store_in_use(path: &Path) -> Result<Stats, Error> {
        let missing = |reason: &'static str| Error::NotPublished {
            path: path.to_owned(),
            reason,
        };
        let file = publish::file_of(path).ok_or_else(|| missing("there is no such file"))?;
        let unused = "no process of yours has it open for writing, or that one does not publish its statistics";
        let text = std::fs::read_to_string(file).map_err(|_| missing(unused))?;
        match Stats::from_text(&text) {
            None => Err(missing("another version of Isobath publishes them")),
            // The file of a process that was killed stays.
            Some((_, pid)) if !Path::new(&format!("/proc/{pid}")).exists() => Err(missing(unused)),
            Some((stats, _)) => Ok(stats),
        }
    }
}

impl std::fmt::Display for Stats {
    /// One name and number per line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for number in self.numbers() {
            writeln!(f, "{} {}", number.name, number.value)?;
        }
        for (bin, segments) in self.segment_emptiness.iter().enumerate() {
            writeln!(f, "segment_emptiness.{bin} {segments}")?;
        }
        writeln!(f, "backend {}", self.backend)
    }
}

impl Stats {
    /// All numbers as a text of the OpenMetrics format, which Prometheus and others read: the
    /// number `x` is the metric `isobath_x` (of a counter, the sample `isobath_x_total`). Every
    /// sample gets `labels`, such as the store's name; their names have letters, digits and
    /// underscores only.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let page = store.stats().to_openmetrics(&[("store", "fruit")]);
    /// assert!(page.contains("isobath_page_writes_total{store=\"fruit\"} "));
    /// assert!(page.ends_with("# EOF\n"));
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    #[must_use]
    pub fn to_openmetrics(&self, labels: &[(&str, &str)]) -> String {
        let mut page = String::new();
        for number in self.numbers() {
            let Stat { name, value, .. } = number;
            let (kind, suffix) = match number.kind {
                StatKind::Counter => ("counter", "_total"),
                StatKind::Gauge => ("gauge", ""),
            };
            head(&mut page, name, kind, number.help);
            page += &format!("isobath_{name}{suffix}{} {value}\n", braces(labels, &[]));
        }
        let name = "segment_emptiness";
        let help = "Full segments by the share of them that is obsolete, from this share on.";
        head(&mut page, name, "gauge", help);
        for (bin, segments) in self.segment_emptiness.iter().enumerate() {
            let from = format!("0.{bin}");
            let labels = braces(labels, &[("from", &from)]);
            page += &format!("isobath_{name}{labels} {segments}\n");
        }
        let help = "Which I/O backend is in use, and what was refused.";
        head(&mut page, "backend", "info", help);
        let labels = braces(labels, &[("backend", &self.backend)]);
        page + &format!("isobath_backend_info{labels} 1\n# EOF\n")
    }
}

/// The lines before the samples of a metric.
fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    *page += &format!("# TYPE isobath_{name} {kind}\n");
    // A unit has to be the end of the name.
    for unit in ["bytes", "ns"] {
        if name
            .strip_suffix(unit)
            .is_some_and(|rest| rest.ends_with('_'))
        {
            *page += &format!("# UNIT isobath_{name} {unit}\n");
        }
    }
    *page += &format!("# HELP isobath_{name} {}\n", escaped(help));
}

/// Labels in braces; nothing if there are none.
fn braces(labels: &[(&str, &str)], more: &[(&str, &str)]) -> String {
    let all: Vec<String> = labels
        .iter()
        .chain(more)
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", all.join(",")),
    }
}

/// Text as it may stand in a label or a help line.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The first line of published statistics.
const FORMAT: &str = "isobath statistics 1";

/// The backend in use, and the refused ones, in words.
fn backend(volume: &isobath_io::Volume) -> String {
    let report = volume.backend_report();
    let direct = if report.direct {
        "O_DIRECT"
    } else {
        "buffered"
    };
    let mut words = format!("{}, {direct}", report.backend);
    for note in &report.notes {
        words.push_str("; ");
        words.push_str(note);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics of which every number differs.
    fn sample() -> Stats {
        let mut stats = Stats {
            segment_emptiness: [3; 10],
            backend: "pread, O_DIRECT; a \"note\"".into(),
            ..Stats::default()
        };
        let names: Vec<&str> = stats.numbers().map(|number| number.name).collect();
        for (at, name) in names.iter().enumerate() {
            *stats.number_mut(name).unwrap() = at as u64 + 1;
        }
        stats
    }

    #[test]
    fn published_text_reads_back_with_every_number() {
        let stats = sample();
        let text = format!("{FORMAT}\npid 7\nunknown 5\n{stats}");
        assert_eq!(Stats::from_text(&text), Some((stats, 7)));
        assert_eq!(Stats::from_text("isobath statistics 9\npid 7\n"), None);
        assert_eq!(Stats::from_text(&text.replace("pid 7\n", "")), None);
        assert_eq!(Stats::from_text(&text[..20]), None);
    }

    /// Name and value of every sample of a page, its suffix removed. Fails where the page breaks a
    /// rule of the format.
    fn samples(page: &str) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let mut family = (String::new(), String::new());
        let body = page.strip_suffix("# EOF\n").expect("the end is marked");
        let mut families = std::collections::HashSet::new();
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(families.insert(name.to_owned()), "{name} twice");
                family = (name.to_owned(), kind.to_owned());
                continue;
            }
            if let Some(rest) = line.strip_prefix("# UNIT ") {
                let (name, unit) = rest.split_once(' ').unwrap();
                assert_eq!(name, family.0);
                assert!(name.ends_with(&format!("_{unit}")), "{line}");
                continue;
            }
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let help = rest.strip_prefix(&family.0).unwrap();
                assert!(help.len() > 10 && help.starts_with(' '), "{line}");
                continue;
            }
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            assert!(labels.ends_with('}'), "{line}");
            let suffix = match family.1.as_str() {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            assert_eq!(name, format!("{}{suffix}", family.0), "{line}");
            let short = family.0.strip_prefix("isobath_").unwrap();
            let allowed = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(short.chars().all(allowed), "{line}");
            found.push((short.to_owned(), value.parse().unwrap()));
        }
        found
    }

    #[test]
    fn all_texts_have_the_same_names_and_numbers() {
        let stats = sample();
        let named: Vec<(String, u64)> = stats
            .numbers()
            .map(|number| (number.name.to_owned(), number.value))
            .collect();
        let printed: Vec<(String, u64)> = stats
            .to_string()
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .filter(|(name, _)| !name.contains('.'))
            .collect();
        assert_eq!(printed, named);
        for labels in [&[][..], &[("store", "a\\b\"c\nd")]] {
            let page = stats.to_openmetrics(labels);
            let mut found = samples(&page);
            assert_eq!(found.pop(), Some(("backend".into(), 1)));
            let bins = found.split_off(found.len() - 10);
            assert!(
                bins.iter()
                    .all(|bin| *bin == ("segment_emptiness".into(), 3))
            );
            assert_eq!(found, named);
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serialized_statistics_have_the_same_names() {
        let stats = sample();
        let value = serde_json::to_value(&stats).unwrap();
        let object = value.as_object().unwrap();
        for number in stats.numbers() {
            assert_eq!(object[number.name], number.value);
        }
        assert_eq!(object.len(), stats.numbers().count() + 2);
    }
}
