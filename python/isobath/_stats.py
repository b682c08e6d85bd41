"""Statistics as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Counts of a tree: exact for a small one, otherwise estimated from some of its leaves."""

    is_exact: bool
    levels: int
    leaf_pages: int
    inner_pages: int
    records: int
    key_bytes: int
    value_bytes: int
    large_values: int
    large_value_bytes: int
    bytes: int
    leaf_fill: float
    #: Records of the tree's overlays in memory, removals included.
    memory_records: int
    #: Runs of its overlays.
    runs: int
    #: Their records that are to be merged, removals included.
    run_records: int
    #: Bytes of their pages.
    run_bytes: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `Store.check`; a sound store has no problems."""

    trees: int
    pages: int
    records: int
    value_chunks: int
    bytes_verified: int
    #: A sentence each.
    problems: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of `Store.compact`, in bytes."""

    bytes_before: int
    bytes_after: int
    bytes_discarded: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the store was opened, and gauges of now. Sizes are bytes."""

    #: Frames of the buffer pool, 4 KiB each.
    pool_frames: int
    #: Frames that were never used or are free now, as far as no worker holds them.
    pool_free_frames: int
    #: Frames that are dirty or being written now.
    dirty_pages: int
    #: Pages read from the volume.
    page_reads: int
    #: Pages written to the volume because they changed.
    page_writes: int
    #: Pages and chunks that the cleaner moved.
    relocations: int
    #: Segments that the cleaner emptied.
    segments_cleaned: int
    #: Bytes read from the volume.
    bytes_read: int
    #: Bytes written to the volume, for whatever reason.
    bytes_written: int
    #: Bytes of keys and values that users inserted or removed.
    user_bytes_written: int
    #: Of `bytes_written`, those of chunks of large values.
    value_bytes_written: int
    #: Of `bytes_written`, those of segment summaries.
    summary_bytes_written: int
    #: Of `bytes_written`, those of pages and chunks that the cleaner moved.
    cleaning_bytes_written: int
    #: Of `bytes_written`, those of checkpoints.
    checkpoint_bytes_written: int
    #: Of `bytes_written`, zeros in space that the volume has grown by.
    growth_bytes_written: int
    #: Checkpoints written.
    checkpoints: int
    #: Trees that have overlays.
    overlaid_trees: int
    #: Bytes of changes in the memory of overlays.
    overlay_bytes: int
    #: Runs of overlays.
    runs: int
    #: Runs that were sealed.
    sealed_runs: int
    #: Runs that were merged as a whole.
    merged_runs: int
    #: Runs that became one with their neighbour.
    combined_runs: int
    #: Bytes of log that opening had to apply; 0 after a clean close.
    recovered_log_bytes: int
    #: Nanoseconds that this took.
    recovery_ns: int
    #: Pages that left the pool.
    evictions: int
    #: Segments of the volume.
    segments: int
    #: Segments that hold nothing.
    free_segments: int
    #: Bytes of one of these segments.
    segment_bytes: int
    #: Bytes on the volume of pages and chunks that are current.
    live_bytes: int
    #: Bytes of all pages and chunks that exist, written yet or not.
    allocated_bytes: int
    #: Bytes that they may take before the volume has to grow.
    capacity_bytes: int
    #: Bytes of the volume.
    volume_bytes: int
    #: Page ids in use or free for reuse: 8 bytes of memory each.
    page_ids: int
    #: Commits that changed something, single operations included while a snapshot is open or the
    #: log is kept.
    commits: int
    #: Commits that failed because of other transactions.
    conflicts: int
    #: Of `commits`, those of transactions larger than memory may hold, which rewrote the leaves
    #: that they changed.
    large_commits: int
    #: Bytes of changes that transactions wrote to temporary files, merging included; no part of
    #: `bytes_written`.
    spilled_bytes: int
    #: Snapshots and transactions that are open now.
    open_snapshots: int
    #: Old values that they may still read.
    versions: int
    #: Bytes that those take.
    version_bytes: int
    #: Bytes that they may take before the oldest snapshots fail.
    version_bytes_limit: int
    #: Snapshots and transactions that failed for that reason.
    snapshots_aborted: int
    #: Times that a change or a write waited for other writes, for cleaning or for space.
    stalls: int
    #: Nanoseconds of all those waits together.
    stall_ns: int
    #: Nanoseconds of the longest one.
    stall_ns_max: int
    #: Of `stalls`, those for the volume to grow.
    growth_stalls: int
    #: Nanoseconds of these together.
    growth_stall_ns: int
    #: Bytes of records and stamps that were logged; 0 without a log.
    log_bytes: int
    #: Bytes of the log that were written, in whole blocks of 4 KiB; part of `bytes_written` where
    #: the log lies on the store's own volume.
    log_bytes_written: int
    #: Commits that were logged; divided by `log_flushes`, the commits that share a flush.
    log_commits: int
    #: Durable writes of the log.
    log_flushes: int
    #: Nanoseconds of all of them together, each from its submission to its completion.
    log_flush_ns: int
    #: Nanoseconds of the longest one.
    log_flush_ns_max: int
    #: Corrupt pages that the cleaner came upon and left in place.
    corrupt_pages: int
    #: Segments whose summary the cleaner could not read, and rebuilt.
    unreadable_summaries: int
    #: Worker threads.
    workers: int
    #: Full segments by the share of them that is obsolete: bin i counts 10 i % to 10 (i + 1) %.
    segment_emptiness: list[int]
    #: Which I/O backend is in use, and what was refused.
    backend: str
