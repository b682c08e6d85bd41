//! Tasks that wait until old changes are on the drive: checkpoints, bulk loads, backups.

use crate::Error;
use crate::canary::{self, Canary};
use crate::engine::Engine;
use crate::page::Lsn;
use crate::runtime::WorkerState;

/// How long a task waits for old changes to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Until they are.
    Written,
    /// Until then, or until the log has no space for the records of pages that are written: a checkpoint that waited on
    /// would wait for itself.
    LogIsShort,
}

impl Until {
    /// Whether there is nothing to wait for although old changes are not written.
    fn is_over(self, engine: &Engine) -> bool {
        self == Until::LogIsShort
            && engine.log.area_is_short_for_system()
            && !engine.shared.is_recovering()
            && !canary::sings(Canary::CheckpointWaitsForItself)
    }
}

impl WorkerState {
    /// Waits until every change that is older than `before` is in a copy on
    /// the drive that a durable record names.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn flush_older_than(&self, before: Lsn) -> Result<(), Error> {
        self.flush_older_until(before, Until::Written).map(drop)
    }

    /// The same, as long as the log has space for the records of the pages to write; `false` where it has none: then only
    /// a checkpoint, of what is written by now, makes some.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn flush_older_for_checkpoint(&self, before: Lsn) -> Result<bool, Error> {
        self.flush_older_until(before, Until::LogIsShort)
    }

    fn flush_older_until(&self, before: Lsn, until: Until) -> Result<bool, Error> {
        let engine = &self.engine;
        loop {
            if !self.flush_older(before, until)? {
                return Ok(false);
            }
            // Copies may still be in flight, or their records.
            let pause = || self.worker.yield_now();
            while engine.buffer.count_older(before, pause) == 0 {
                engine.shared.writable()?;
                let complete = engine.log.contiguous_lsn();
                if engine.buffer.oldest_unflushed(complete, pause) >= before.min(complete) {
                    return Ok(true);
                }
                self.wait_durable(engine.log.newest_record())?;
                self.worker.yield_now();
            }
            // A commit that was logged before has changed a page since.
        }
    }

    /// Waits until no dirty page has a change older than `before`; `false` if that was over before.
    fn flush_older(&self, before: Lsn, until: Until) -> Result<bool, Error> {
        let engine = &self.engine;
        debug_assert!(self.worker.in_task(), "only tasks wait");
        loop {
            engine.shared.writable()?;
            // Every counted frame eventually increments this.
            let cleaned = engine.buffer.pool.dirty.written_back();
            let left = engine
                .buffer
                .count_older(before, || self.worker.yield_now());
            if left == 0 {
                return Ok(true);
            }
            if until.is_over(engine) {
                return Ok(false);
            }
            // Writers write however few pages are dirty while a task waits here.
            let target = cleaned + left;
            let changes = &engine.buffer.changes;
            changes.wait_for_written(&self.worker, target as u64, || {
                engine.workers.notify_all();
                engine.buffer.pool.dirty.written_back() >= target
                    || engine.shared.is_poisoned()
                    || until.is_over(engine)
            });
        }
    }
}
