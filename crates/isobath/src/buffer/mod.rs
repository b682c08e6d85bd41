//! The buffer pool: pages in frames, found through the mapping table, guarded
//! by latches.
//!
//! Nothing here waits. A page that is not resident, a latch that is taken, a
//! version that moved on are answered with [`Restart`]; the caller lets go of
//! everything, has its context resolve the reason (read the page, yield), and
//! starts over. So no task ever yields with a latch in hand.

mod blocks;
mod changed_pages;
mod changes;
mod dirty;
mod dirty_limits;
mod flush;
mod frame_state;
#[cfg(all(test, loom))]
mod frame_state_loom;
mod frames;
mod free;
mod guards;
mod latch;
#[cfg(all(test, loom))]
mod latch_loom;
mod leaf_records;
mod lent;
mod long_read;
#[cfg(test)]
mod long_read_tests;
mod mapping;
mod page_miss;
#[cfg(test)]
mod page_miss_tests;
mod read_buffers;
mod registered;
mod replacement;
mod worker_frames;

pub(crate) use blocks::Stretch;
pub(crate) use changed_pages::words_per_page;
pub(crate) use changes::ChangeTracker;
pub(crate) use dirty::DirtyQueue;
pub(crate) use dirty_limits::{STAGING_BYTES, Stored};
pub(crate) use frame_state::{FrameHeader, NotStarted};
pub(crate) use frames::{FRAME_COST, Frames};
pub(crate) use free::FreeFrames;
pub(crate) use guards::{Exclusive, Optimistic, Reservation};
pub(crate) use latch::Version;
pub(crate) use mapping::{FrameId, MappingTable, PagePlace};
pub(crate) use read_buffers::{ReadBuffer, ReadBuffers, SharedBuffer};
pub(crate) use replacement::Partition;

use std::sync::Arc;

use isobath_io::IoError;

use crate::log::{Log, LogTasks};
use crate::overlay::Overlays;
use crate::page::{PAGE_SIZE, PageId};
use crate::runtime::{PerWorker, WaitQueue, Worker, WorkerPool};
use crate::shared::{Address, Shared};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicBool;
use crate::types::TreeId;
use lent::Lender;
use worker_frames::FramesOfWorker;

/// Why an attempt on pages has to start over, holding nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Restart {
    /// Something read optimistically has changed: start over at once.
    Changed,
    /// A latch is taken: let others run first.
    Latched,
    /// The page is not in memory: have it read first.
    NotResident(PageId),
    /// The attempt needs this many frames and page ids reserved beforehand.
    NeedPages(u32),
}

/// Frames and mapping table: all that a read needs.
pub(crate) struct BufferPool {
    pub(crate) frames: Frames,
    pub(crate) mapping: MappingTable,
    pub(crate) dirty: DirtyQueue,
    /// Records above the pages.
    pub(crate) overlays: Overlays,
}

impl BufferPool {
    /// A pool of `frame_count` frames over room for `page_capacity` page ids.
    ///
    /// # Errors
    ///
    /// The system's error where memory or address space is refused.
    pub(crate) fn new(frame_count: u32, page_capacity: u64) -> std::io::Result<BufferPool> {
        Ok(BufferPool {
            frames: Frames::map(frame_count)?,
            mapping: MappingTable::reserve(page_capacity)?,
            dirty: DirtyQueue::new(),
            overlays: Overlays::default(),
        })
    }

    /// An optimistic hold on page `id`; counts as an access for the replacement
    /// strategy.
    #[inline(always)]
    pub(crate) fn read(&self, id: PageId) -> Result<Optimistic<'_>, Restart> {
        let hold = self.read_untouched(id)?;
        self.frames.header(hold.parts().0).touch();
        Ok(hold)
    }

    /// As [`BufferPool::read`], for pages of a long scan, which must not push
    /// others out.
    #[inline(always)]
    pub(crate) fn read_untouched(&self, id: PageId) -> Result<Optimistic<'_>, Restart> {
        match self.mapping.place(id) {
            PagePlace::Resident(frame) => {
                let header = self.frames.header(frame);
                let version = header.latch().optimistic().ok_or(Restart::Latched)?;
                // The frame may have been given to another page since the word was read.
                if header.page() != id {
                    return Err(Restart::Changed);
                }
                Ok(Optimistic::new(self, frame, version))
            }
            PagePlace::Stored(_) | PagePlace::Loading(_) => Err(Restart::NotResident(id)),
            // Only a stale pointer leads to a free id: its page was freed since.
            PagePlace::Free => Err(Restart::Changed),
        }
    }

    /// Queues `frame`, which is dirty, to be written, unless it is queued.
    pub(crate) fn queue(&self, frame: FrameId) {
        let header = self.frames.header(frame);
        if header.enter_queue() {
            self.dirty.push(frame, header.page());
        }
    }

    /// Starts loading what a read of `id` needs: its frame's header and these
    /// cache lines of the page. Waits for the mapping word.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: PageId, lines: std::ops::Range<usize>) {
        if let PagePlace::Resident(frame) = self.mapping.place(id) {
            self.frames.prefetch(frame, lines);
        }
    }
}

/// The pool, and what workers share to find room in it.
pub(crate) struct Buffer {
    pub(crate) pool: BufferPool,
    pub(crate) changes: Arc<ChangeTracker>,
    /// Per worker: the replacement queues of the pages that it has read or made.
    partitions: Vec<Mutex<Partition>>,
    lender: Arc<Lender>,
    /// Per worker: some page that its tasks wait for was loaded elsewhere.
    page_news: Vec<AtomicBool>,
    read_buffers: ReadBuffers,
    /// Tasks that wait for fewer dirty pages.
    dirty_waiters: Arc<WaitQueue>,
    own: PerWorker<FramesOfWorker>,
    shared: Arc<Shared>,
    workers: Arc<WorkerPool>,
    log: Arc<Log>,
    log_tasks: Arc<LogTasks>,
}

impl Buffer {
    /// `pool`, for these workers, of whose tasks `writers` write pages.
    pub(crate) fn new(
        pool: BufferPool,
        shared: &Arc<Shared>,
        workers: &Arc<WorkerPool>,
        log: &Arc<Log>,
        log_tasks: &Arc<LogTasks>,
        writers: usize,
    ) -> Buffer {
        let frames = pool.frames.count() as usize;
        let count = workers.count();
        let depth = shared.config.depth;
        let lender = Lender::new(Arc::clone(pool.frames.pages()), shared.config.lent_frames);
        let dirty_waiters = Arc::new(WaitQueue::new());
        let waiters = Arc::clone(&dirty_waiters);
        shared.on_poison(move || waiters.wake_all());
        Buffer {
            changes: ChangeTracker::new(
                pool.mapping.capacity(),
                writers,
                log_tasks.flush_waiters(),
            ),
            pool,
            partitions: (0..count)
                .map(|_| Mutex::new(Partition::new(frames / count)))
                .collect(),
            lender: Arc::new(lender),
            page_news: (0..count).map(|_| AtomicBool::new(false)).collect(),
            read_buffers: ReadBuffers::default(),
            dirty_waiters,
            own: PerWorker::new(workers, |_| FramesOfWorker::new(frames, count, depth)),
            shared: Arc::clone(shared),
            workers: Arc::clone(workers),
            log: Arc::clone(log),
            log_tasks: Arc::clone(log_tasks),
        }
    }

    #[inline]
    fn own<'w>(&'w self, worker: &'w Worker) -> &'w FramesOfWorker {
        self.own.of(worker)
    }

    /// About how many records a leaf of `tree` has, as far as the worker knows.
    pub(crate) fn leaf_records(&self, worker: &Worker, tree: TreeId) -> Option<usize> {
        self.own(worker).leaf_records.of(tree)
    }

    /// The worker has seen a leaf of `tree` with so many records.
    pub(crate) fn note_leaf_records(&self, worker: &Worker, tree: TreeId, records: usize) {
        self.own(worker).leaf_records.note(tree, records);
    }

    /// A read of one page or of several that this has started has ended.
    pub(crate) fn completed(&self, worker: &Worker, token: u64, result: Result<(), IoError>) {
        if token & long_read::LONG_READ != 0 {
            self.long_read_completed(worker, token as u32, result);
        } else {
            self.load_completed(worker, token as u32, result);
        }
    }

    /// Gives the memory back, once the store is closed, whatever handles remain: readers that do
    /// not know that yet find every latch taken and every page id free.
    pub(crate) fn release(&self) {
        let BufferPool {
            frames,
            mapping,
            overlays,
            ..
        } = &self.pool;
        frames.discard_headers();
        // No reader finds records in memory from here on, and none is missed: pages are latched.
        overlays.discard();
        // One that has some already keeps all.
        if self.lender.lent() == 0 {
            frames.discard_pages();
        }
        mapping.discard();
        let release = |own: &FramesOfWorker| own.long_reads.borrow_mut().release();
        self.own.for_each_ended(release);
    }

    /// The stored address of the page in `frame`; none before its first write.
    pub(crate) fn stored_address(&self, frame: FrameId) -> Address {
        self.pool.frames.header(frame).address()
    }

    /// The mapping word of `id` to store: a resident page is where its frame says.
    pub(crate) fn stored_word(&self, id: PageId) -> u64 {
        loop {
            let place = self.pool.mapping.place(id);
            let frame = match place {
                PagePlace::Resident(frame) | PagePlace::Loading(frame) => frame,
                PagePlace::Stored(_) => return place.to_word(),
                PagePlace::Free => return 0,
            };
            // The frame may pass to another page, and back, between two looks; its
            // latch's word would not stay the same.
            let latch = self.pool.frames.header(frame).latch();
            let before = latch.word();
            let address = self.stored_address(frame);
            if self.pool.mapping.place(id) == place && latch.word() == before {
                return if address.is_none() {
                    0
                } else {
                    PagePlace::Stored(address).to_word()
                };
            }
            crate::sync::spin_loop();
        }
    }

    /// Whether `id` is a page, not a chunk of a large value, that was written before.
    pub(crate) fn is_stored_page(&self, id: PageId) -> bool {
        let address = match self.pool.mapping.place(id) {
            PagePlace::Free => return false,
            PagePlace::Stored(address) => address,
            PagePlace::Resident(frame) | PagePlace::Loading(frame) => self.stored_address(frame),
        };
        !address.is_none() && address.length() as usize == PAGE_SIZE
    }

    /// Puts a page that was read or made by worker `index` into its replacement queues.
    pub(crate) fn admit(&self, index: usize, frame: FrameId, page: PageId) {
        self.partitions[index].lock().admit(frame, page);
    }

    /// Frames that hold no page, beside those that workers keep for themselves.
    pub(crate) fn free_frames(&self) -> usize {
        self.lender.free().lock().len(&self.pool.frames)
    }

    /// Frames in replacement queues.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn queued_frames(&self) -> usize {
        let queued = self.partitions.iter().map(|queue| queue.lock().len());
        queued.sum()
    }

    /// Read-ahead buffers of readers of large values.
    pub(crate) fn read_buffers(&self) -> &ReadBuffers {
        &self.read_buffers
    }

    /// Whether tasks wait for fewer dirty pages.
    #[inline]
    pub(crate) fn awaits_fewer_dirty(&self) -> bool {
        self.dirty_waiters.has_waiters()
    }

    /// Has the task wait for fewer dirty pages, unless `is_over`; whether it has waited.
    pub(crate) fn wait_for_fewer_dirty(&self, worker: &Worker, is_over: impl Fn() -> bool) -> bool {
        self.dirty_waiters.wait(worker, 0, is_over)
    }
}
