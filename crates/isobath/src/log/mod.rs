//! The write-ahead log: one LSN space, appended to by every worker without
//! waiting, flushed by any (docs/decisions/0014).

#![allow(dead_code)] // until commits and recovery use it

pub(crate) mod record;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::page::Lsn;
use record::Kind;

/// The LSN space, and the gate before page writes.
pub(crate) struct Log {
    next: AtomicU64,
}

impl Log {
    /// A log that keeps nothing: it gives out LSNs, and every page may be written.
    pub(crate) fn off(next: Lsn) -> Log {
        Log {
            next: AtomicU64::new(next.0.next_multiple_of(8).max(8)),
        }
    }

    /// Whether anything is kept.
    pub(crate) fn is_on(&self) -> bool {
        false
    }

    /// Appends one record whose body is `parts`, one after another, and calls
    /// `stamp` with its LSN before the record counts as complete: whoever reads
    /// the log's complete end finds every page below it stamped.
    ///
    /// `writer` is the worker; no two threads append with the same one at a
    /// time. Never waits: the caller has room (see the engine's `log_room`).
    pub(crate) fn append(
        &self,
        writer: usize,
        kind: Kind,
        parts: &[&[u8]],
        stamp: impl FnOnce(Lsn),
    ) -> Lsn {
        let _ = (writer, kind, parts);
        let lsn = Lsn(self.next.fetch_add(8, Ordering::Relaxed));
        stamp(lsn);
        lsn
    }

    /// A position in the log without a record: above every LSN given before,
    /// and nobody else's.
    pub(crate) fn stamp(&self, writer: usize) -> Lsn {
        let _ = writer;
        Lsn(self.next.fetch_add(8, Ordering::Relaxed))
    }

    /// Every record that starts below this is durable.
    pub(crate) fn durable(&self) -> Lsn {
        self.next()
    }

    /// Whether a page whose newest change is `lsn` may be written to the volume:
    /// the record is durable.
    pub(crate) fn may_write(&self, lsn: Lsn) -> bool {
        lsn < self.durable()
    }

    /// Every record that starts below this has been copied and its pages stamped.
    pub(crate) fn complete(&self) -> Lsn {
        self.next()
    }

    /// The LSN that the next record will get at least.
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.next.load(Ordering::Acquire))
    }
}
