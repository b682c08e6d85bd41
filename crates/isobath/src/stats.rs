//! What a store says of itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Engine;

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
    /// Worker threads.
    pub workers: u64,
    /// Which I/O backend is in use, and what was refused.
    pub backend: String,
}

impl Stats {
    pub(crate) fn of(engine: &Engine) -> Stats {
        let counters = &engine.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let volume = engine.volume().ok();
        let backend = volume.as_ref().map_or_else(|| "closed".to_owned(), backend);
        let log = engine.log.counters();
        let space = engine.space.lock();
        Stats {
            pool_frames: u64::from(engine.pool.frames.count()),
            pool_free_frames: engine.free_frames.lock().len() as u64,
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
            checkpoint_bytes_written: read(&counters.checkpoint_bytes),
            checkpoints: read(&counters.checkpoints),
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
            workers: engine.config.workers as u64,
            backend,
        }
    }
}

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
