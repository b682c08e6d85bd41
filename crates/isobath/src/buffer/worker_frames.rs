//! Free frames that a worker keeps for itself.

use crate::buffer::FrameId;
use crate::runtime::WorkerState;
use crate::shared::Counters;

impl WorkerState {
    // ---- frames -------------------------------------------------------------

    /// A free frame, its latch held exclusively; `None` while every frame is in use.
    pub(crate) fn acquire_frame(&self) -> Option<FrameId> {
        if let Some(frame) = self.free.borrow_mut().pop() {
            return Some(frame);
        }
        self.replenish(1);
        self.free.borrow_mut().pop()
    }

    /// Puts a frame back whose latch is held exclusively and which is in no
    /// replacement queue. The worker keeps a batch; the frames beyond that, as
    /// after the drop of a tree, go to the shared free list.
    pub(crate) fn release_frame(&self, frame: FrameId) {
        let mut free = self.free.borrow_mut();
        if free.len() < self.batch {
            free.push(frame);
        } else {
            self.engine.buffer.free_frames.lock().give(frame);
        }
    }

    /// Brings the worker's free frames up to a batch: from those that were
    /// never used, then from its own partition, then from the others'.
    pub(crate) fn replenish(&self, least: usize) {
        let mut free = self.free.borrow_mut();
        let want = self.batch;
        if free.len() >= want {
            return;
        }
        {
            let missing = want - free.len();
            let mut global = self.engine.buffer.free_frames.lock();
            global.take(&self.engine.buffer.pool.frames, missing, &mut free);
        }
        let before = free.len();
        let workers = self.engine.buffer.partitions.len();
        // A worker that holds less than its share takes from one that holds more.
        let share = self.engine.buffer.pool.frames.count() as usize / workers / 2;
        for step in 0..workers {
            if free.len() >= want || (step > 0 && free.len() >= least) {
                break;
            }
            let at = (self.worker.index + step) % workers;
            let Some(mut partition) = self.engine.buffer.partitions[at].try_lock() else {
                continue;
            };
            if step == 0 && partition.len() < share && workers > 1 {
                continue;
            }
            let missing = want - free.len();
            partition.evict(&self.engine.buffer.pool, missing, &mut free);
        }
        if free.len() < least {
            // No other worker had one: the own partition after all, however small.
            let missing = want - free.len();
            self.engine.buffer.partitions[self.worker.index]
                .lock()
                .evict(&self.engine.buffer.pool, missing, &mut free);
        }
        Counters::add(
            &self.engine.shared.counters.evictions,
            (free.len() - before) as u64,
        );
    }

    pub(crate) fn wake_frame_waiters(&self) -> bool {
        if self.frame_waiters.borrow().is_empty() {
            return false;
        }
        self.replenish(1);
        let available = self.free.borrow().len();
        let mut waiters = self.frame_waiters.borrow_mut();
        let count = available.min(waiters.len());
        for task in waiters.drain(..count) {
            self.worker.make_ready(task);
        }
        count > 0
    }
}
