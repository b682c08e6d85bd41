//! The dirty page table: dirty frames in the order of their oldest changes, so that where a recovery has to start, and what
//! a checkpoint waits for, is found without a look at the frames that are clean.
//!
//! An entry is a frame and its oldest change, as its header says it. A frame has one entry from when it turns dirty until a
//! write of it has started:
//!
//! | step | under | order |
//! | --- | --- | --- |
//! | `changed`: the frame is entered, or moved to an older change | the exclusive latch | before the change's record counts as complete, or its commit as applied |
//! | `start_write`: the entry is removed | the shared latch, by the writer that has won | after the floor of that writer holds the change |
//! | `free_page`: the entry is removed | the exclusive latch | after the record of the page's end |
//! | `write_failed`: the frame is entered again | none | before the frame is dirty; the floor of the failed batch stays |
//!
//! So a change that is in no copy is, at any time, complete nowhere or not applied, or in this table, or in a floor, and
//! moves through them in this order. A checkpoint reads them in the same order. Both latches matter: with the entry
//! removed after the latch was released, a second change by the same record would enter what the writer then removes.
//!
//! Each frame has its place in one shard, so that reading one shard after another misses no change.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included};

use isobath_flash::policy::History;

use super::FrameId;
use super::frame_state::{Changed, FrameHeader, Freed, NotStarted, Oldest};
use crate::canary::{self, Canary};
use crate::page::{Lsn, PageId};
use crate::pagestore::Address;
use crate::sync::modelled::Ordering::{AcqRel, Acquire};
use crate::sync::modelled::{AtomicUsize, Mutex};

/// Loom explores the accesses of all of them, and looks at one frame.
const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };
/// Entries that are counted at a time: changes of other frames wait meanwhile.
const COUNTED_AT_ONCE: usize = 256;

/// Dirty frames by their oldest changes.
pub(crate) struct DirtyPageTable {
    shards: [Shard; SHARDS],
    /// Pages that were freed while a copy of them was being written, and perhaps pages that are being freed now.
    freed_in_write: AtomicUsize,
}

/// Some of the frames. On a cache line of its own.
#[repr(align(128))]
struct Shard(Mutex<BTreeSet<(Lsn, FrameId)>>);

impl Shard {
    fn count_older(&self, before: Lsn) -> usize {
        let mut count = 0;
        let mut from = Included((Lsn(0), 0));
        // Bound: each round but the last begins behind `COUNTED_AT_ONCE` entries more.
        loop {
            let entries = self.0.lock();
            let range = entries.range((from, Excluded((before, 0))));
            let (counted, last) = range
                .take(COUNTED_AT_ONCE)
                .fold((0, None), |(counted, _), entry| (counted + 1, Some(*entry)));
            count += counted;
            match last {
                Some(last) if counted == COUNTED_AT_ONCE => from = Excluded(last),
                _ => return count,
            }
        }
    }
}

impl DirtyPageTable {
    pub(crate) fn new() -> DirtyPageTable {
        DirtyPageTable {
            shards: std::array::from_fn(|_| Shard(Mutex::new(BTreeSet::new()))),
            freed_in_write: AtomicUsize::new(0),
        }
    }

    fn shard(&self, frame: FrameId) -> &Mutex<BTreeSet<(Lsn, FrameId)>> {
        &self.shards[frame as usize % SHARDS].0
    }

    // ---- what it says -------------------------------------------------------

    /// The oldest change of all dirty frames.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        let shards = self.shards.iter();
        shards
            .filter_map(|shard| shard.0.lock().first().map(|(oldest, _)| *oldest))
            .min()
    }

    /// Whether some dirty frame has a change older than `before`.
    pub(crate) fn has_older(&self, before: Lsn) -> bool {
        self.oldest().is_some_and(|oldest| oldest < before)
    }

    /// How many dirty frames have a change older than `before`. A frame that is written and changed again beside this may
    /// count twice.
    pub(crate) fn count_older(&self, before: Lsn) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.count_older(before))
            .sum()
    }

    /// Whether some page that was freed is still being written.
    pub(crate) fn has_freed_in_write(&self) -> bool {
        self.freed_in_write.load(Acquire) > 0
    }

    // ---- the ways of a frame that enter it, or remove it ----------------------

    /// See [`FrameHeader::changed`]. For who holds the latch exclusively.
    #[inline]
    pub(super) fn changed(
        &self,
        frame: FrameId,
        header: &FrameHeader,
        record: Lsn,
        version: Lsn,
    ) -> Changed {
        let change = header.changed(record, version);
        match change.oldest {
            Oldest::Kept => {}
            Oldest::First => {
                self.shard(frame).lock().insert((record, frame));
            }
            Oldest::Lowered(before) => {
                let mut entries = self.shard(frame).lock();
                entries.remove(&(before, frame));
                entries.insert((record, frame));
            }
        }
        change
    }

    /// See [`FrameHeader::start_write`].
    pub(crate) fn start_write(
        &self,
        frame: FrameId,
        header: &FrameHeader,
        (page, history): (PageId, History),
        hold: impl FnOnce(Lsn),
        copy: impl FnOnce(),
    ) -> Result<Lsn, NotStarted> {
        header.start_write(page, history, hold, |oldest| {
            self.remove(frame, oldest);
            copy();
        })
    }

    /// See [`FrameHeader::write_failed`]. The store is poisoned and writes no more, so an entry too many is no harm.
    pub(crate) fn write_failed(
        &self,
        frame: FrameId,
        header: &FrameHeader,
    ) -> Result<bool, Address> {
        self.shard(frame)
            .lock()
            .insert((header.last_oldest_change(), frame));
        header.write_failed()
    }

    /// See [`FrameHeader::free_page`].
    pub(crate) fn free_page(&self, frame: FrameId, header: &FrameHeader) -> Freed {
        // Before the page is freed: the end of its write may count it as written at once.
        self.freed_in_write.fetch_add(1, AcqRel);
        let freed = header.free_page();
        if let Some(oldest) = freed.oldest_change {
            self.remove(frame, oldest);
        }
        if !freed.is_written {
            self.freed_in_write.fetch_sub(1, AcqRel);
        }
        freed
    }

    /// Writes of `count` pages have ended that were freed meanwhile, and their places are to be freed.
    pub(crate) fn freed_pages_written(&self, count: usize) {
        self.freed_in_write.fetch_sub(count, AcqRel);
    }

    /// Removes the entry of a frame before a write of it has started.
    pub(crate) fn remove_early(&self, frame: FrameId, header: &FrameHeader) {
        debug_assert!(canary::sings(Canary::LeaveTableEarly));
        self.shard(frame)
            .lock()
            .remove(&(header.last_oldest_change(), frame));
    }

    fn remove(&self, frame: FrameId, oldest: Lsn) {
        let was_there = self.shard(frame).lock().remove(&(oldest, frame));
        debug_assert!(
            was_there || canary::sings(Canary::LeaveTableEarly),
            "the dirty page table has every dirty frame"
        );
    }
}

#[cfg(not(loom))]
#[cfg(test)]
#[path = "dirty_table_tests.rs"]
mod tests;
