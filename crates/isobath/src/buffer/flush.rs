//! Tasks that wait until changes are on the drive: checkpoints and backups for old ones, loads and
//! merges for their own pages.

use super::{Buffer, FrameId, PagePlace};
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::page::{Lsn, PageId};
use crate::runtime::{Patience, Worker};

/// How long a task waits for old changes to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Until they are.
    Written,
    /// Until then, or until the log has no space for the records of pages that are written: a
    /// checkpoint that waited on would wait for itself.
    LogIsShort,
}

impl Buffer {
    /// Waits until every change that is older than `before` is in a copy on
    /// the drive that a durable record names.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn flush_older_than(
        &self,
        worker: &Worker,
        before: Lsn,
    ) -> Result<(), StorageError> {
        self.flush_older_until(worker, before, Until::Written)
            .map(drop)
    }

    /// The same, as long as the log has space for the records of the pages to write; `false` if it
    /// has none: then only a checkpoint, of what is written by now, makes some.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn flush_older_for_checkpoint(
        &self,
        worker: &Worker,
        before: Lsn,
    ) -> Result<bool, StorageError> {
        self.flush_older_until(worker, before, Until::LogIsShort)
    }

    /// Waits until these pages, which no other task changes, are in copies on the drive that
    /// records of the log name, whatever else is dirty. A record that is logged then is durable no
    /// earlier than those.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn flush_pages(
        &self,
        worker: &Worker,
        mut pages: Vec<PageId>,
    ) -> Result<(), StorageError> {
        let mut patience = Patience::default();
        // Bound: writers take what is written first until no page is left.
        loop {
            self.shared.writable()?;
            self.forget_flushed(&mut pages);
            if pages.is_empty() {
                return Ok(());
            }
            self.begin_flush(&pages);
            patience.wait(worker);
        }
    }

    /// Has these pages be written before all others, and waits for nothing. If others are to be
    /// written so already, the caller asks again later.
    pub(crate) fn begin_flush(&self, pages: &[PageId]) {
        // The others are in writers' hands already.
        let is_queued = |frame: &FrameId| self.pool.frames.header(*frame).is_queued();
        let frames = pages.iter().filter_map(|&page| self.resident(page));
        self.pool.dirty.write_first(frames.filter(is_queued));
        self.workers.notify_all();
    }

    /// Forgets those of `pages` that are in copies on the drive which records of the log name.
    pub(crate) fn forget_flushed(&self, pages: &mut Vec<PageId>) {
        // The record of a copy is logged before its frame says that it is clean. A frame that has
        // another page by now is looked at for nothing.
        let is_dirty = |frame| !self.pool.frames.header(frame).is_clean();
        pages.retain(|&page| self.resident(page).is_some_and(is_dirty));
    }

    /// The frame that has `page`, if one has.
    fn resident(&self, page: PageId) -> Option<FrameId> {
        match self.pool.mapping.place(page) {
            PagePlace::Resident(frame) => Some(frame),
            _ => None,
        }
    }

    fn flush_older_until(
        &self,
        worker: &Worker,
        before: Lsn,
        until: Until,
    ) -> Result<bool, StorageError> {
        loop {
            if !self.flush_older(worker, before, until)? {
                return Ok(false);
            }
            // Copies may still be in flight, or their records.
            let pause = || worker.yield_now();
            while self.count_older(before, pause) == 0 {
                self.shared.writable()?;
                let complete = self.log.contiguous_lsn();
                if self.oldest_unflushed(complete, pause) >= before.min(complete) {
                    return Ok(true);
                }
                self.log_tasks.wait_all_durable(worker)?;
                worker.yield_now();
            }
            // A commit that was logged before has changed a page since.
        }
    }

    /// Waits until no dirty page has a change older than `before`; `false` if that was over before.
    fn flush_older(
        &self,
        worker: &Worker,
        before: Lsn,
        until: Until,
    ) -> Result<bool, StorageError> {
        debug_assert!(worker.in_task(), "only tasks wait");
        loop {
            self.shared.writable()?;
            // Every counted frame eventually increments this.
            let cleaned = self.pool.dirty.written_back();
            let left = self.count_older(before, || worker.yield_now());
            if left == 0 {
                return Ok(true);
            }
            if self.is_over(until) {
                return Ok(false);
            }
            // Writers write however few pages are dirty while a task waits here.
            let target = cleaned + left;
            let changes = &self.changes;
            changes.wait_for_written(worker, target as u64, || {
                self.workers.notify_all();
                self.pool.dirty.written_back() >= target
                    || self.shared.is_poisoned()
                    || self.is_over(until)
            });
        }
    }

    /// Whether there is nothing to wait for although old changes are not written.
    fn is_over(&self, until: Until) -> bool {
        until == Until::LogIsShort
            && self.log.area_is_short_for_system()
            && !self.shared.is_recovering()
            && !canary::is_on(Canary::CheckpointWaitsForItself)
    }
}
