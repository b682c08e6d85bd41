//! What a store says of itself.

use std::path::Path;

use crate::Error;
use crate::engine::{Engine, publish};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters since the store was opened, and gauges of now. Sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames of the buffer pool, 4 KiB each.
    pub pool_frames: u64,
    /// Frames that were never used or are free now, as far as no worker holds them.
    pub pool_free_frames: u64,
    /// Frames that are dirty or being written now.
    pub dirty_pages: u64,
    /// Pages read from the volume.
    pub page_reads: u64,
    /// Pages written to the volume because they changed.
    pub page_writes: u64,
    /// Pages and chunks that the cleaner moved.
    pub relocations: u64,
    /// Segments that the cleaner emptied.
    pub segments_cleaned: u64,
    /// Bytes read from the volume.
    pub bytes_read: u64,
    /// Bytes written to the volume, for whatever reason.
    pub bytes_written: u64,
    /// Bytes of keys and values that users inserted or removed.
    pub user_bytes_written: u64,
    /// Of `bytes_written`, those of chunks of large values.
    pub value_bytes_written: u64,
    /// Of `bytes_written`, those of segment summaries.
    pub summary_bytes_written: u64,
    /// Of `bytes_written`, those of pages and chunks that the cleaner moved.
    pub cleaning_bytes_written: u64,
    /// Of `bytes_written`, those of checkpoints.
    pub checkpoint_bytes_written: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Bytes of log that opening had to apply; 0 after a clean close.
    pub recovered_log_bytes: u64,
    /// Nanoseconds that this took.
    pub recovery_ns: u64,
    /// Pages that left the pool.
    pub evictions: u64,
    /// Segments of the volume.
    pub segments: u64,
    /// Segments that hold nothing.
    pub free_segments: u64,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Full segments by the share of them that is dead: bin i counts i·10% to (i+1)·10%.
    pub segment_emptiness: [u64; 10],
    /// Bytes on the volume of pages and chunks that are current.
    pub live_bytes: u64,
    /// Bytes of all pages and chunks that exist, written yet or not.
    pub allocated_bytes: u64,
    /// Bytes that they may take before the volume has to grow.
    pub capacity_bytes: u64,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Page ids in use or free for reuse: 8 bytes of memory each.
    pub page_ids: u64,
    /// Commits that changed something, single operations included while a
    /// snapshot is open or the log is kept.
    pub commits: u64,
    /// Commits that failed because of other transactions.
    pub conflicts: u64,
    /// Snapshots and transactions that are open now.
    pub open_snapshots: u64,
    /// Old values that they may still read.
    pub versions: u64,
    /// Bytes that those take.
    pub version_bytes: u64,
    /// Bytes that they may take before the oldest snapshots fail.
    pub version_bytes_limit: u64,
    /// Snapshots and transactions that failed for that reason.
    pub snapshots_expelled: u64,
    /// Times that a change or a write waited for other writes or for cleaning.
    pub stalls: u64,
    /// Nanoseconds of all those waits together.
    pub stall_ns: u64,
    /// Nanoseconds of the longest one.
    pub stall_ns_max: u64,
    /// Bytes of records and stamps that were logged; 0 without a log.
    pub log_bytes: u64,
    /// Bytes of the log that were written, in whole blocks of 4 KiB; part of `bytes_written`
    /// where the log lies on the store's own volume.
    pub log_bytes_written: u64,
    /// Commits that were logged; divided by `log_flushes`, the commits that share a flush.
    pub log_commits: u64,
    /// Durable writes of the log.
    pub log_flushes: u64,
    /// Nanoseconds of all of them together, each from its submission to its completion.
    pub log_flush_ns: u64,
    /// Nanoseconds of the longest one.
    pub log_flush_ns_max: u64,
    /// Damaged pages that the cleaner came upon and left in place.
    pub damaged_pages: u64,
    /// Segments whose summary the cleaner could not read, and rebuilt.
    pub unreadable_summaries: u64,
    /// Worker threads.
    pub workers: u64,
    /// Which I/O backend is in use, and what was refused.
    pub backend: String,
}

impl Stats {
    pub(crate) fn of(engine: &Engine) -> Stats {
        let counters = &engine.counters;
        let transactions = &engine.transactions;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let volume = engine.volume().ok();
        let backend = volume.as_ref().map_or_else(|| "closed".to_owned(), backend);
        let log = engine.log.counters();
        let space = engine.space.lock();
        Stats {
            pool_frames: u64::from(engine.pool.frames.count()),
            pool_free_frames: engine.free_frames.lock().len(&engine.pool.frames) as u64,
            dirty_pages: engine.pool.dirty.unwritten() as u64,
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
            open_snapshots: transactions.snapshots.active(),
            versions: transactions.versions.count(),
            version_bytes: transactions.versions.bytes(),
            version_bytes_limit: transactions.versions.limit(),
            snapshots_expelled: read(&transactions.counters.expelled),
            checkpoint_bytes_written: read(&counters.checkpoint_bytes),
            checkpoints: read(&counters.checkpoints),
            recovered_log_bytes: read(&counters.recovered_bytes),
            recovery_ns: read(&counters.recovery_ns),
            stalls: read(&counters.stalls),
            stall_ns: read(&counters.stall_ns),
            stall_ns_max: read(&counters.stall_ns_max),
            evictions: read(&counters.evictions),
            segments: u64::from(space.segments()),
            free_segments: u64::from(space.free_segments()),
            segment_bytes: u64::from(space.segment_bytes()),
            segment_emptiness: space.emptiness_histogram(),
            live_bytes: space.live_bytes(),
            allocated_bytes: read(&engine.allocated_bytes),
            capacity_bytes: read(&engine.capacity_bytes),
            volume_bytes: volume.map_or(0, |volume| volume.len()),
            page_ids: engine.ids.lock().high_water(),
            log_bytes: log.bytes,
            log_bytes_written: log.bytes_written,
            log_commits: log.commits,
            log_flushes: log.flushes,
            log_flush_ns: log.flush_ns,
            log_flush_ns_max: log.flush_ns_max,
            damaged_pages: read(&counters.damaged_pages),
            unreadable_summaries: read(&counters.unreadable_summaries),
            workers: engine.config.workers as u64,
            backend,
        }
    }
}

impl Stats {
    /// Every number by its name, but for the histogram.
    fn numbers(&mut self) -> [(&'static str, &mut u64); 36] {
        [
            ("pool_frames", &mut self.pool_frames),
            ("pool_free_frames", &mut self.pool_free_frames),
            ("dirty_pages", &mut self.dirty_pages),
            ("page_reads", &mut self.page_reads),
            ("page_writes", &mut self.page_writes),
            ("relocations", &mut self.relocations),
            ("segments_cleaned", &mut self.segments_cleaned),
            ("bytes_read", &mut self.bytes_read),
            ("bytes_written", &mut self.bytes_written),
            ("user_bytes_written", &mut self.user_bytes_written),
            ("value_bytes_written", &mut self.value_bytes_written),
            ("summary_bytes_written", &mut self.summary_bytes_written),
            ("cleaning_bytes_written", &mut self.cleaning_bytes_written),
            (
                "checkpoint_bytes_written",
                &mut self.checkpoint_bytes_written,
            ),
            ("checkpoints", &mut self.checkpoints),
            ("evictions", &mut self.evictions),
            ("segments", &mut self.segments),
            ("free_segments", &mut self.free_segments),
            ("segment_bytes", &mut self.segment_bytes),
            ("live_bytes", &mut self.live_bytes),
            ("allocated_bytes", &mut self.allocated_bytes),
            ("capacity_bytes", &mut self.capacity_bytes),
            ("volume_bytes", &mut self.volume_bytes),
            ("page_ids", &mut self.page_ids),
            ("stalls", &mut self.stalls),
            ("stall_ns", &mut self.stall_ns),
            ("stall_ns_max", &mut self.stall_ns_max),
            ("log_bytes", &mut self.log_bytes),
            ("log_bytes_written", &mut self.log_bytes_written),
            ("log_commits", &mut self.log_commits),
            ("log_flushes", &mut self.log_flushes),
            ("log_flush_ns", &mut self.log_flush_ns),
            ("log_flush_ns_max", &mut self.log_flush_ns_max),
            ("damaged_pages", &mut self.damaged_pages),
            ("unreadable_summaries", &mut self.unreadable_summaries),
            ("workers", &mut self.workers),
        ]
    }

    /// One name and value per line.
    pub(crate) fn to_text(engine: &Engine) -> String {
        let mut stats = Stats::of(engine);
        let histogram = stats.segment_emptiness;
        let mut text = format!("{FORMAT}\npid {}\n", std::process::id());
        for (name, value) in stats.numbers() {
            text += &format!("{name} {value}\n");
        }
        for (bin, value) in histogram.iter().enumerate() {
            text += &format!("segment_emptiness.{bin} {value}\n");
        }
        text + &format!("backend {}\n", stats.backend)
    }

    /// What `to_text` wrote, and the process that wrote it. Unknown names are left out, missing ones are 0.
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
            } else if let Some((_, number)) = stats.numbers().into_iter().find(|n| n.0 == name) {
                *number = value;
            }
        }
        Some((stats, pid?))
    }

    /// The statistics of a store that another process (or this one) has open for writing, as of a moment ago, without
    /// opening it: `path` is the store's first file or device.
    ///
    /// # Errors
    ///
    /// [`Error::NotPublished`] where no such file exists, nobody has the store open for writing, or its owner does not
    /// publish statistics.
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

/// The first line of published statistics.
const FORMAT: &str = "isobath statistics 1";

/// The backend in use, and what was refused, in words.
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

    #[test]
    fn published_text_reads_back_with_every_number() {
        let mut stats = Stats {
            segment_emptiness: [3; 10],
            backend: "pread, O_DIRECT; a note".into(),
            ..Stats::default()
        };
        let mut text = format!("{FORMAT}\npid 7\nunknown 5\n");
        for (at, (name, value)) in stats.numbers().into_iter().enumerate() {
            *value = at as u64 + 1;
            text += &format!("{name} {value}\n");
        }
        (0..10).for_each(|bin| text += &format!("segment_emptiness.{bin} 3\n"));
        text += &format!("backend {}\n", stats.backend);
        assert_eq!(Stats::from_text(&text), Some((stats, 7)));
        assert_eq!(Stats::from_text("isobath statistics 9\npid 7\n"), None);
        assert_eq!(Stats::from_text(&text.replace("pid 7\n", "")), None);
        assert_eq!(Stats::from_text(&text[..20]), None);
    }
}
