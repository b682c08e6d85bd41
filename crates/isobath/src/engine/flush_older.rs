//! Tasks that wait until old changes are on the drive: checkpoints, bulk loads, backups.

use super::{Engine, WorkerState};
use crate::Error;
use crate::buffer::flag;
use crate::canary::{self, Canary};
use crate::page::Lsn;
use crate::sched::TaskRef;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::{Acquire, Relaxed};

/// Tasks that wait for old changes to be written.
#[derive(Default)]
pub(crate) struct FlushWaiters {
    /// Each with how many frames must have been written back, since the store was
    /// opened, before it looks again.
    tasks: Mutex<Vec<(usize, TaskRef)>>,
    /// How many wait, for reading without the lock.
    count: AtomicUsize,
}

impl FlushWaiters {
    /// Whether writers are to write however few pages are dirty.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Wakes those who wait for no more than `cleaned` frames.
    fn wake(&self, cleaned: usize) {
        let mut waiters = self.tasks.lock();
        waiters.retain(|(target, task)| {
            let waits = *target > cleaned;
            if !waits {
                task.unpark();
            }
            waits
        });
        self.count.store(waiters.len(), Relaxed);
    }
}

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
            && !engine.recovering.load(Acquire)
            && !canary::sings(Canary::CheckpointWaitsForItself)
    }
}

impl Engine {
    /// Dirty frames with a change older than `before`.
    fn count_older(&self, before: Lsn) -> usize {
        (0..self.pool.frames.used())
            .filter(|&frame| {
                let header = self.pool.frames.header(frame);
                let flags = header.flags.load(Acquire);
                flags & flag::DIRTY != 0
                    && flags & flag::FREED == 0
                    && header.oldest_lsn.load(Acquire) < before.0
            })
            .count()
    }

    /// Writing has failed, or waits for space in the log: wakes all waiters for old pages.
    pub(super) fn wake_flush_waiters(&self) {
        self.flush_waiters.wake(usize::MAX);
    }

    /// Lists `task` among those to wake when as many frames as `target` have turned
    /// clean; `false` if they have, or none will, or `until` says that this has waited for enough.
    fn wait_for_written_back(&self, target: usize, task: TaskRef, until: Until) -> bool {
        let mut waiters = self.flush_waiters.tasks.lock();
        let written = self.pool.dirty.written_back() >= target;
        if written || self.poison.get().is_some() || until.is_over(self) {
            return false;
        }
        waiters.push((target, task));
        self.flush_waiters.count.store(waiters.len(), Relaxed);
        true
    }

    /// Frames were written back: wakes the waiters that these may have been enough for.
    pub(super) fn flush_progress(&self) {
        // The lock orders this after the count, which a waiter reads under it.
        self.flush_waiters.wake(self.pool.dirty.written_back());
    }
}

impl WorkerState {
    /// Waits until no page that has ended is still being written: only then its
    /// last place dies.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn wait_for_ended_pages(&self) -> Result<(), Error> {
        let frames = &self.engine.pool.frames;
        let both = flag::FREED | flag::WRITING;
        let is_written = |frame| frames.header(frame).flags.load(Acquire) & both == both;
        while (0..frames.used()).any(is_written) {
            self.engine.writable()?;
            self.worker.yield_now();
        }
        Ok(())
    }

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
    pub(super) fn flush_older_for_checkpoint(&self, before: Lsn) -> Result<bool, Error> {
        self.flush_older_until(before, Until::LogIsShort)
    }

    fn flush_older_until(&self, before: Lsn, until: Until) -> Result<bool, Error> {
        let engine = &self.engine;
        loop {
            if !self.flush_older(before, until)? {
                return Ok(false);
            }
            // Copies may still be in flight, or their records.
            while engine.count_older(before) == 0 {
                engine.writable()?;
                let complete = engine.log.contiguous_lsn();
                if engine.oldest_unflushed(complete) >= before.min(complete) {
                    return Ok(true);
                }
                self.wait_durable(engine.newest_record())?;
                self.worker.yield_now();
            }
            // A commit that was logged before has changed a page since.
        }
    }

    /// Waits until no dirty page has a change older than `before`; `false` if that was over before.
    fn flush_older(&self, before: Lsn, until: Until) -> Result<bool, Error> {
        let engine = &self.engine;
        loop {
            engine.writable()?;
            // Every counted frame eventually increments this.
            let cleaned = engine.pool.dirty.written_back();
            let left = engine.count_older(before);
            if left == 0 {
                return Ok(true);
            }
            if until.is_over(engine) {
                return Ok(false);
            }
            let Some(task) = self.worker.current_task() else {
                return Err(Error::Closed);
            };
            if !engine.wait_for_written_back(cleaned + left, task, until) {
                continue;
            }
            for handle in &engine.worker_handles {
                handle.notify();
            }
            self.worker.park();
        }
    }
}
