//! The page store's tasks in each worker: those that write dirty pages back, and the cleaner.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::PageStore;
use crate::runtime::{TaskId, Worker};

/// Tasks that write dirty pages back, per worker.
pub(crate) const WRITERS: usize = 3;
/// Tasks that write pages, per worker: those and the cleaner.
pub(crate) const WRITING_TASKS: usize = WRITERS + 1;

/// One worker's state for its tasks.
pub(super) struct WorkerSpace {
    /// Parked writers and the cleaner, to be woken when there is work.
    idle_writers: RefCell<Vec<TaskId>>,
    idle_cleaner: Cell<Option<TaskId>>,
    /// Next dirty shard to write from.
    dirty_cursor: Cell<usize>,
}

impl WorkerSpace {
    /// For worker `index`.
    pub(super) fn new(index: usize) -> WorkerSpace {
        WorkerSpace {
            idle_writers: RefCell::new(Vec::new()),
            idle_cleaner: Cell::new(None),
            dirty_cursor: Cell::new(index),
        }
    }
}

impl PageStore {
    /// The places of the worker's writers among the tasks that write.
    pub(crate) fn writer_slots(worker: &Worker) -> Range<usize> {
        let first = worker.index * WRITING_TASKS;
        first..first + WRITERS
    }

    /// The cleaner's place among the tasks that write.
    pub(super) fn cleaner_slot(worker: &Worker) -> usize {
        worker.index * WRITING_TASKS + WRITERS
    }

    /// The dirty shard that the worker's next batch is from.
    pub(super) fn next_dirty_shard(&self, worker: &Worker) -> usize {
        let cursor = &self.own.of(worker).dirty_cursor;
        cursor.replace(cursor.get().wrapping_add(1))
    }

    /// Parks the task, a writer, until there is work.
    pub(super) fn park_writer(&self, worker: &Worker) {
        let idle = &self.own.of(worker).idle_writers;
        idle.borrow_mut().push(worker.task_id());
        worker.suspend();
    }

    /// Parks the task, the cleaner, until there is work.
    pub(super) fn park_cleaner(&self, worker: &Worker) {
        let idle = &self.own.of(worker).idle_cleaner;
        idle.set(Some(worker.task_id()));
        worker.suspend();
    }

    /// How many of the worker's writers are parked, to explain why nothing happens.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn idle_writers(&self, worker: &Worker) -> usize {
        self.own.of(worker).idle_writers.borrow().len()
    }

    /// Part of a worker's step: readies tasks that have something to do, or have to end because the
    /// store is `stopping`, and frees what may be used again.
    pub(crate) fn poll(&self, worker: &Worker, stopping: bool) -> bool {
        let own = self.own.of(worker);
        let mut woke = false;
        let mut idle = own.idle_writers.borrow_mut();
        if !idle.is_empty() && (stopping || self.writes_wanted()) {
            idle.drain(..).for_each(|task| worker.make_ready(task));
            woke = true;
        }
        drop(idle);
        if (stopping || self.cleaner_is_wanted())
            && let Some(task) = own.idle_cleaner.take()
        {
            worker.make_ready(task);
            woke = true;
        }
        woke |= self.drain_pending_frees();
        if self.lower.shared.awaits_space() {
            self.look_at_stall();
        }
        woke
    }
}
