//! Tasks that wait until old changes are on the drive: checkpoints, bulk loads, backups.

use super::Buffer;
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::page::Lsn;
use crate::runtime::Worker;

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
