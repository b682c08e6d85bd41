//! A worker's own part of the buffer, with its free frames.

use std::cell::RefCell;
use std::time::Duration;

use super::leaf_records::LeafRecords;
use super::long_read::LongReads;
use super::page_miss::{FailedRead, Loads, PageWaiter, Unsound};
use super::registered::Registered;
use crate::buffer::{Buffer, FrameId};
use crate::runtime::{TaskId, Worker};
use crate::shared::Counters;

/// How long a worker sleeps at most while tasks wait for free frames.
const FRAME_RETRY_INTERVAL: Duration = Duration::from_micros(200);

/// A worker's own part of the buffer.
pub(super) struct FramesOfWorker {
    /// Free frames that it keeps.
    free: RefCell<Vec<FrameId>>,
    /// How many of them.
    batch: usize,
    pub(super) loads: RefCell<Loads>,
    pub(super) long_reads: RefCell<LongReads>,
    pub(super) leaf_records: LeafRecords,
    /// Tasks that wait for a free frame.
    pub(super) frame_waiters: RefCell<Vec<TaskId>>,
    /// Tasks that wait for pages that other workers load.
    pub(super) page_waiters: RefCell<Vec<PageWaiter>>,
    /// Failed page reads that their tasks have not received yet.
    pub(super) failures: RefCell<Vec<FailedRead>>,
    pub(super) unsound: RefCell<Unsound>,
    registered: Registered,
}

impl FramesOfWorker {
    /// That of one of `workers`, which read `depth` pages at a time, in a pool of `frames`.
    pub(super) fn new(frames: usize, workers: usize, depth: u32) -> FramesOfWorker {
        let batch = (frames / (workers * 32)).clamp(4, 64);
        FramesOfWorker {
            free: RefCell::new(Vec::with_capacity(2 * batch)),
            batch,
            loads: RefCell::new(Loads::new(depth as usize)),
            long_reads: RefCell::new(LongReads::new(frames / workers)),
            leaf_records: LeafRecords::default(),
            frame_waiters: RefCell::new(Vec::new()),
            page_waiters: RefCell::new(Vec::new()),
            failures: RefCell::new(Vec::new()),
            unsound: RefCell::default(),
            registered: Registered::new(frames as u32),
        }
    }
}

impl Buffer {
    /// A free frame, its latch held exclusively; `None` while every frame is in use.
    pub(crate) fn acquire_frame(&self, worker: &Worker) -> Option<FrameId> {
        if let Some(frame) = self.own(worker).free.borrow_mut().pop() {
            return Some(frame);
        }
        self.replenish(worker, 1);
        self.own(worker).free.borrow_mut().pop()
    }

    /// Puts a frame back whose latch is held exclusively and which is in no
    /// replacement queue. The worker keeps a batch; the frames beyond that, as
    /// after the drop of a tree, go to the shared free list.
    pub(crate) fn release_frame(&self, worker: &Worker, frame: FrameId) {
        let own = self.own(worker);
        let mut free = own.free.borrow_mut();
        if free.len() < own.batch {
            free.push(frame);
        } else {
            self.lender.free().lock().give(frame);
        }
    }

    /// Brings the worker's free frames up to a batch: from those that were
    /// never used, then from its own partition, then from the others'.
    fn replenish(&self, worker: &Worker, least: usize) {
        let own = self.own(worker);
        let mut free = own.free.borrow_mut();
        let want = own.batch;
        if free.len() >= want {
            return;
        }
        {
            let missing = want - free.len();
            let mut global = self.lender.free().lock();
            global.take(&self.pool.frames, missing, &mut free);
        }
        let before = free.len();
        let workers = self.partitions.len();
        // A worker that holds less than its share takes from one that holds more.
        let share = self.page_frames() / workers / 2;
        for step in 0..workers {
            if free.len() >= want || (step > 0 && free.len() >= least) {
                break;
            }
            let at = (worker.index + step) % workers;
            let Some(mut partition) = self.partitions[at].try_lock() else {
                continue;
            };
            if step == 0 && partition.len() < share && workers > 1 {
                continue;
            }
            let missing = want - free.len();
            partition.evict(&self.pool, missing, &mut free);
        }
        if free.len() < least {
            // No other worker had one: the own partition after all, however small.
            let missing = want - free.len();
            self.partitions[worker.index]
                .lock()
                .evict(&self.pool, missing, &mut free);
        }
        let evicted = (free.len() - before) as u64;
        if evicted > 0 {
            Counters::add(&self.shared.counters.evictions, evicted);
            self.pool.overlays.note_full_pool();
        }
    }

    /// Wakes tasks that wait for frames, as many as there are free ones.
    fn wake_frame_waiters(&self, worker: &Worker) -> bool {
        let own = self.own(worker);
        if own.frame_waiters.borrow().is_empty() {
            return false;
        }
        self.replenish(worker, 1);
        let available = own.free.borrow().len();
        let mut waiters = own.frame_waiters.borrow_mut();
        let count = available.min(waiters.len());
        for task in waiters.drain(..count) {
            worker.make_ready(task);
        }
        count > 0
    }

    /// A free frame, its latch held exclusively; waits for one.
    pub(crate) fn wait_for_frame(&self, worker: &Worker) -> FrameId {
        loop {
            if let Some(frame) = self.acquire_frame(worker) {
                return frame;
            }
            self.own(worker)
                .frame_waiters
                .borrow_mut()
                .push(worker.task_id());
            worker.suspend();
        }
    }

    /// Takes back the frame of a freed page that no replacement queue holds,
    /// because the page was freed before its first write had ended.
    pub(crate) fn retire_unlisted(&self, worker: &Worker, frame: FrameId) {
        if self.pool.frames.header(frame).take_unlisted() {
            self.release_frame(worker, frame);
        }
    }

    /// A worker's step: keeps free frames ready, wakes tasks that wait for frames or for pages that
    /// others have read.
    pub(crate) fn poll(&self, worker: &Worker) -> bool {
        let own = self.own(worker);
        if own.free.borrow().len() < own.batch / 2 {
            self.replenish(worker, 0);
        }
        let woke = self.wake_frame_waiters(worker);
        let woke = self.wake_page_waiters(worker) || woke;
        self.register_used(worker, &own.registered);
        woke
    }

    /// How long a worker may sleep.
    ///
    /// Frames become free in many ways, on any worker: a page written, a latch
    /// released, a frame that the replacement strategy passes over now and takes
    /// on its next round. So waiters for a frame poll at an interval instead of being woken.
    pub(crate) fn max_wait(&self, worker: &Worker) -> Option<Duration> {
        (!self.own(worker).frame_waiters.borrow().is_empty()).then_some(FRAME_RETRY_INTERVAL)
    }

    /// Free frames that the worker keeps for itself.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn frames_kept(&self, worker: &Worker) -> usize {
        self.own(worker).free.borrow().len()
    }

    /// Counts of the tasks that wait here, by reason.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(crate) fn waits(&self) -> [(usize, &'static str); 1] {
        [(self.dirty_waiters.waiters(), "fewer dirty pages")]
    }

    /// Describes the waits of the worker's tasks, to explain a standstill.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn describe(&self, worker: &Worker) -> String {
        let own = self.own(worker);
        format!(
            "{} wait for frames, {} for pages read elsewhere, {} frames free",
            own.frame_waiters.borrow().len(),
            own.page_waiters.borrow().len(),
            own.free.borrow().len(),
        )
    }
}
