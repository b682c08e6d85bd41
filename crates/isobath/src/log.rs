//! The one gate through which every change of a page goes.
//!
//! Until there is a write-ahead log, this hands out LSNs and answers
//! [`Log::may_write`] with yes; the callers already keep the log's rules: a
//! record is appended before the latches of its pages are released, and a
//! structure modification is one record that lists all its pages.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::buffer::Exclusive;
use crate::page::Lsn;

/// What a log record says; the payloads come with the write-ahead log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// One record of a leaf was inserted, replaced or removed.
    Record,
    /// Pages were split, merged, or made root.
    Structure,
}

/// The LSN space, and the gate before page writes.
pub(crate) struct Log {
    next: AtomicU64,
}

impl Log {
    /// A log whose next LSN is `next`.
    pub(crate) fn new(next: Lsn) -> Log {
        Log {
            next: AtomicU64::new(next.0),
        }
    }

    /// Records one change over `pages`, all of them held exclusively and
    /// already changed in memory, and stamps them with its LSN.
    pub(crate) fn append(&self, change: Change, pages: &mut [&mut Exclusive<'_>]) -> Lsn {
        let _ = change;
        let lsn = Lsn(self.next.fetch_add(1, Ordering::Relaxed));
        for page in pages {
            page.changed(lsn);
        }
        lsn
    }

    /// A number that no page change and no other call ever gets.
    pub(crate) fn stamp(&self) -> Lsn {
        Lsn(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a page whose newest change is `lsn` may be written to the volume.
    pub(crate) fn may_write(&self, lsn: Lsn) -> bool {
        lsn.0 < self.next.load(Ordering::Acquire)
    }

    /// The LSN that the next change will get.
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.next.load(Ordering::Acquire))
    }
}
