//! The two ways to run a tree operation: as a task, which can wait, and on any
//! thread, as long as everything is in memory.

use std::ops::Deref;
use std::sync::Arc;

use super::{ReadContext, WriteContext};
use crate::buffer::{Buffer, BufferPool, Exclusive, Reservation, Restart};
use crate::error::StorageError;
use crate::log::record::Token;
use crate::log::{Log, LogReservation};
use crate::node::Block;
use crate::page::{Lsn, PageId};
use crate::pagestore::{LowerParts, PageStore};
use crate::recovery::Opening;
use crate::runtime::Worker;
use crate::types::TreeId;

/// Other ready tasks from which on a lookup lets them run whenever it waits for
/// memory: going round fewer of them takes longer than a miss.
const MIN_TURNS: usize = 4;

/// The buffer pool, for lookups: these would otherwise load the store's reference to it each time.
pub(crate) struct PoolHandle(Arc<Buffer>);

impl PoolHandle {
    pub(crate) fn of(buffer: &Arc<Buffer>) -> PoolHandle {
        PoolHandle(Arc::clone(buffer))
    }
}

impl Deref for PoolHandle {
    type Target = BufferPool;

    #[inline(always)]
    fn deref(&self) -> &BufferPool {
        &self.0.pool
    }
}

/// The parts that tasks use to read and change trees and large values; those below the page store
/// as if they were its own.
#[derive(Clone)]
pub(crate) struct TaskParts {
    pub(crate) lower: LowerParts,
    pub(crate) pagestore: Arc<PageStore>,
    pub(crate) opening: Arc<Opening>,
}

impl Deref for TaskParts {
    type Target = LowerParts;

    #[inline(always)]
    fn deref(&self) -> &LowerParts {
        &self.lower
    }
}

/// The owner of large values that only snapshots read.
pub(crate) trait OldValues {
    /// The volume is full: frees some of them, and fails their snapshots; `false` if there are
    /// none.
    fn give_way(&self, local: &TaskWorker) -> bool;
}

/// A worker, with what its tasks use.
pub(crate) struct TaskWorker {
    /// Dropped before the parts: its channel waits for the reads that are in flight, into frames
    /// and buffers of theirs.
    pub(crate) worker: Worker,
    pub(crate) pool: PoolHandle,
    pub(crate) parts: TaskParts,
    pub(crate) old_values: Arc<dyn OldValues>,
}

/// A task of a worker: waits by yielding.
pub(crate) struct TaskContext<'l> {
    pub(crate) local: &'l TaskWorker,
}

impl ReadContext for TaskContext<'_> {
    type Error = StorageError;

    fn pool(&self) -> &BufferPool {
        &self.local.pool
    }

    fn resolve(&self, why: Restart) -> Result<(), StorageError> {
        match why {
            // The writer that interfered has finished.
            Restart::Changed => Ok(()),
            Restart::Latched => {
                self.local.worker.yield_now();
                Ok(())
            }
            Restart::NotResident(page) => self.local.load_page(page),
            Restart::NeedPages(_) => Ok(()),
        }
    }

    fn read_ahead(&self, pages: &[PageId]) -> bool {
        let TaskWorker { worker, parts, .. } = self.local;
        parts.buffer.read_ahead(worker, pages)
    }

    fn leaf_records(&self, tree: TreeId) -> Option<usize> {
        let TaskWorker { worker, parts, .. } = self.local;
        parts.buffer.leaf_records(worker, tree)
    }

    fn note_leaf_records(&self, tree: TreeId, records: usize) {
        let TaskWorker { worker, parts, .. } = self.local;
        parts.buffer.note_leaf_records(worker, tree, records);
    }

    #[inline]
    fn interleaves(&self) -> bool {
        self.local.worker.ready_tasks() >= MIN_TURNS
    }

    fn next_turn(&self) {
        self.local.worker.yield_now();
    }
}

impl WriteContext for TaskContext<'_> {
    fn log(&self) -> &Log {
        &self.local.parts.log
    }

    fn writer(&self) -> usize {
        self.local.worker.index
    }

    fn reserve_for_structure(&self) -> Result<LogReservation<'_>, StorageError> {
        let local = self.local;
        local.parts.log_tasks.reserve_for_structure(&local.worker)
    }

    fn admit(&self) -> Result<(), StorageError> {
        let TaskWorker { worker, parts, .. } = self.local;
        parts.shared.writable()?;
        let limit = || parts.buffer.dirty_limit(parts.pagestore.stored());
        let is_full = || parts.buffer.pool.dirty.unwritten() > limit();
        while is_full() && worker.in_task() {
            let since = crate::runtime::clock::wall();
            let is_over = || !is_full() || parts.shared.is_poisoned();
            if parts.buffer.wait_for_fewer_dirty(worker, is_over) {
                parts.shared.counters.stalled(since.elapsed());
            }
            parts.shared.writable()?;
        }
        Ok(())
    }

    fn reserve(&self, pages: u32) -> Result<Reservation, StorageError> {
        let (pagestore, reserved) = (&self.local.parts.pagestore, u64::from(pages));
        pagestore.reserve_pages(&self.local.worker, reserved)?;
        self.take_reserved(pages)
            .inspect_err(|_| pagestore.release_pages(reserved))
    }

    fn lend(&self) -> Block {
        let TaskWorker { worker, parts, .. } = self.local;
        parts.buffer.lend(worker)
    }

    fn release(&self, unused: Reservation) {
        let pages = self.release_taken(unused);
        self.local.parts.pagestore.release_pages(pages);
    }

    fn end(&self, page: &Exclusive<'_>) {
        self.local.parts.pagestore.end_page(page);
    }

    fn free(&self, page: Exclusive<'_>, record: Lsn) {
        let local = self.local;
        local.parts.pagestore.free_page(&local.worker, page, record);
    }

    fn add_provisional(&self, token: Token, ids: &[PageId]) {
        let TaskWorker { worker, parts, .. } = self.local;
        parts.pagestore.log_provisional(worker, token, ids);
    }

    fn cancel_provisional(&self, token: Option<Token>, ids: &[PageId]) {
        let TaskWorker { worker, parts, .. } = self.local;
        parts.pagestore.log_free(worker, token.as_slice(), ids);
    }

    fn confirmed(&self, tokens: &[Token], ended: &[PageId]) {
        let pagestore = &self.local.parts.pagestore;
        pagestore.confirm_allocations(tokens, ended);
    }

    fn flush_pages(&self, pages: Vec<PageId>) -> Result<(), StorageError> {
        let TaskWorker { worker, parts, .. } = self.local;
        match parts.log.is_on() {
            true => parts.buffer.flush_pages(worker, pages),
            false => Ok(()),
        }
    }

    fn begin_flush(&self, pages: &[PageId]) {
        let parts = &self.local.parts;
        if parts.log.is_on() {
            parts.buffer.begin_flush(pages);
        }
    }

    fn forget_flushed(&self, pages: &mut Vec<PageId>) {
        let parts = &self.local.parts;
        match parts.log.is_on() {
            true => parts.buffer.forget_flushed(pages),
            false => pages.clear(),
        }
    }
}

impl TaskContext<'_> {
    /// Waits until all changes before `lsn` are durable on the volume, if there is a log.
    pub(crate) fn flush_older_than(&self, lsn: Lsn) -> Result<(), StorageError> {
        let TaskWorker { worker, parts, .. } = self.local;
        match parts.log.is_on() {
            true => parts.buffer.flush_older_than(worker, lsn),
            false => Ok(()),
        }
    }

    /// [`WriteContext::reserve`] for pages whose space the caller has reserved,
    /// and keeps if this fails.
    pub(crate) fn take_reserved(&self, pages: u32) -> Result<Reservation, StorageError> {
        let TaskWorker { worker, parts, .. } = self.local;
        let mut taken = Vec::with_capacity(pages as usize);
        for _ in 0..pages {
            match parts.pagestore.allocate_id(&parts.buffer.pool.mapping) {
                Ok(id) => taken.push((parts.buffer.wait_for_frame(worker), id)),
                Err(error) => {
                    self.release_taken(Reservation::new(taken));
                    return Err(error);
                }
            }
        }
        // The last one is used first: new ids ascend, and so do those of pages made one after
        // another.
        taken.reverse();
        Ok(Reservation::new(taken))
    }

    /// Gives frames and ids back; how many pages are still reserved for them.
    pub(crate) fn release_taken(&self, unused: Reservation) -> u64 {
        let TaskWorker { worker, parts, .. } = self.local;
        let unused = unused.into_unused();
        let pages = unused.len() as u64;
        for (frame, id) in unused {
            parts.buffer.release_frame(worker, frame);
            parts
                .pagestore
                .unallocate_id(&parts.buffer.pool.mapping, id);
        }
        pages
    }
}

/// The operation needs something that only a worker has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeedsWorker;

impl From<StorageError> for NeedsWorker {
    /// The worker will meet the error again, and report it.
    fn from(_: StorageError) -> NeedsWorker {
        NeedsWorker
    }
}

/// Any thread: reads what is in memory.
pub(crate) struct InlineContext<'e> {
    pool: &'e BufferPool,
    patience: std::cell::Cell<u32>,
}

/// Times that an inline read starts over before it is handed to a worker.
const PATIENCE: u32 = 64;

impl<'e> InlineContext<'e> {
    pub(crate) fn new(pool: &'e BufferPool) -> Self {
        InlineContext {
            pool,
            patience: std::cell::Cell::new(PATIENCE),
        }
    }
}

impl ReadContext for InlineContext<'_> {
    type Error = NeedsWorker;

    fn pool(&self) -> &BufferPool {
        self.pool
    }

    fn resolve(&self, why: Restart) -> Result<(), NeedsWorker> {
        let patience = self.patience.get();
        match why {
            Restart::NotResident(_) | Restart::NeedPages(_) => Err(NeedsWorker),
            Restart::Changed | Restart::Latched if patience == 0 => Err(NeedsWorker),
            Restart::Changed | Restart::Latched => {
                self.patience.set(patience - 1);
                crate::sync::spin_loop();
                Ok(())
            }
        }
    }

    fn read_ahead(&self, _pages: &[PageId]) -> bool {
        false
    }
}

impl TaskWorker {
    /// Waits, in a task, until page `id` is worth looking at again; see
    /// [`Buffer::load_page`](crate::buffer::Buffer::load_page).
    ///
    /// # Errors
    ///
    /// [`StorageError::CorruptPage`] or [`StorageError::PageRead`] if the page cannot be read,
    /// [`StorageError::ReaderOverrun`].
    pub(crate) fn load_page(&self, id: PageId) -> Result<(), StorageError> {
        let parts = &self.parts;
        let loaded = parts.buffer.load_page(&self.worker, id);
        loaded.map_err(|unread| {
            parts
                .opening
                .judge_read(unread.page, unread.address, unread.error)
        })
    }
}
