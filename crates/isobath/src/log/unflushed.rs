//! Chunks of large values that the log names before they are flushed: flushes of the log that hold
//! such records flush the volume, too. So a commit waits for one round of flushes.

use super::flush::Flush;
use crate::page::Lsn;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes of chunks that may wait for a flush of the log before one is requested: what a recovery
/// reads to verify them.
const MAX_BYTES: u64 = 16 << 20;

/// The records of chunks that were not flushed.
#[derive(Default)]
pub(super) struct Unflushed {
    /// Behind the start of the newest of them.
    newest: AtomicU64,
    /// Bytes of their chunks since the last flush that covers them began.
    bytes: AtomicU64,
}

impl Unflushed {
    /// The record at `lsn` names `bytes` bytes of chunks, whose writes have ended. Called before
    /// the record is complete.
    pub(super) fn add(&self, lsn: Lsn, bytes: u64) {
        self.newest.fetch_max(lsn.0 + 1, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of chunks that no flush covers which has begun; about, beside one that begins.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a flush ought to begin although no task waits for one.
    pub(super) fn is_much(&self) -> bool {
        self.bytes() >= MAX_BYTES
    }

    /// Whether `flush`, which was just taken, may hold such a record. All records in it are
    /// complete.
    pub(super) fn is_in(&self, flush: Flush) -> bool {
        let is_in = self.newest.load(Ordering::SeqCst) > flush.start;
        if is_in {
            self.bytes.store(0, Ordering::Relaxed);
        }
        is_in
    }
}
