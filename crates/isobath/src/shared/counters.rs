//! Counters of the whole engine since it was opened.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters of the whole engine since it was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) page_reads: AtomicU64,
    pub(crate) page_writes: AtomicU64,
    pub(crate) relocated: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) cleaning_bytes: AtomicU64,
    pub(crate) user_bytes: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) segments_cleaned: AtomicU64,
    pub(crate) corrupt_pages: AtomicU64,
    pub(crate) unreadable_summaries: AtomicU64,
    pub(crate) summary_bytes: AtomicU64,
    pub(crate) checkpoint_bytes: AtomicU64,
    pub(crate) growth_bytes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) sealed_runs: AtomicU64,
    pub(crate) merged_runs: AtomicU64,
    pub(crate) combined_runs: AtomicU64,
    pub(crate) recovered_bytes: AtomicU64,
    pub(crate) recovery_ns: AtomicU64,
    pub(crate) value_bytes: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) stall_ns: AtomicU64,
    pub(crate) stall_ns_max: AtomicU64,
    pub(crate) growth_stalls: AtomicU64,
    pub(crate) growth_stall_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// The same for growth of the volume.
    pub(crate) fn stalled_by_growth(&self, time: std::time::Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&self.growth_stalls, 1);
        Counters::add(&self.growth_stall_ns, ns);
        self.stalled(time);
    }

    /// A change, or a write, waited this long for others' writes, for cleaning or for space.
    pub(crate) fn stalled(&self, time: std::time::Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&self.stalls, 1);
        Counters::add(&self.stall_ns, ns);
        self.stall_ns_max.fetch_max(ns, Ordering::Relaxed);
    }
}
