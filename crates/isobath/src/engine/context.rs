//! The two ways to run a tree operation: as a task, which can wait, and on any
//! thread, as long as everything is in memory.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::{Engine, WorkerState};
use crate::Error;
use crate::buffer::{Buffer, BufferPool, Exclusive, Reservation, Restart};
use crate::context::{ReadContext, WriteContext};
use crate::log::record::Token;
use crate::log::{Log, LogReservation};
use crate::page::{Lsn, PageId};
use crate::types::TreeId;

/// Other ready tasks from which on a lookup lets them run whenever it waits for
/// memory: going round fewer of them takes longer than a miss.
const MIN_TURNS: usize = 4;

/// The buffer pool, for lookups: these would otherwise load the engine's reference to it each time.
pub(crate) struct PoolHandle(Arc<Buffer>);

impl PoolHandle {
    pub(crate) fn of(engine: &Engine) -> PoolHandle {
        PoolHandle(Arc::clone(&engine.buffer))
    }
}

impl Deref for PoolHandle {
    type Target = BufferPool;

    #[inline(always)]
    fn deref(&self) -> &BufferPool {
        &self.0.pool
    }
}

/// A task of a worker: waits by yielding.
pub(crate) struct TaskContext<'l> {
    pub(crate) local: &'l WorkerState,
}

impl ReadContext for TaskContext<'_> {
    type Error = Error;

    fn pool(&self) -> &BufferPool {
        &self.local.pool
    }

    fn resolve(&self, why: Restart) -> Result<(), Error> {
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
        self.local
            .engine
            .buffer
            .read_ahead(&self.local.worker, pages)
    }

    fn leaf_records(&self, tree: TreeId) -> Option<usize> {
        self.local
            .engine
            .buffer
            .leaf_records(&self.local.worker, tree)
    }

    fn note_leaf_records(&self, tree: TreeId, records: usize) {
        let local = self.local;
        local
            .engine
            .buffer
            .note_leaf_records(&local.worker, tree, records);
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
        &self.local.engine.log
    }

    fn writer(&self) -> usize {
        self.local.worker.index
    }

    fn reserve_for_structure(&self) -> Result<LogReservation<'_>, Error> {
        let local = self.local;
        local.engine.log_tasks.reserve_for_structure(&local.worker)
    }

    fn admit(&self) -> Result<(), Error> {
        let engine = &self.local.engine;
        engine.shared.writable()?;
        let limit = || engine.buffer.dirty_limit(engine.pagestore.stored());
        let is_full = || engine.buffer.pool.dirty.unwritten() > limit();
        while is_full() && self.local.worker.in_task() {
            let since = Instant::now();
            let is_over = || !is_full() || engine.shared.is_poisoned();
            let waited = engine
                .buffer
                .wait_for_fewer_dirty(&self.local.worker, is_over);
            if waited {
                engine.shared.counters.stalled(since.elapsed());
            }
            engine.shared.writable()?;
        }
        Ok(())
    }

    fn reserve(&self, pages: u32) -> Result<Reservation, Error> {
        let (pagestore, reserved) = (&self.local.engine.pagestore, u64::from(pages));
        pagestore.reserve_pages(&self.local.worker, reserved)?;
        self.take_reserved(pages)
            .inspect_err(|_| pagestore.release_pages(reserved))
    }

    fn release(&self, unused: Reservation) {
        let pages = self.release_taken(unused);
        self.local.engine.pagestore.release_pages(pages);
    }

    fn end(&self, page: &Exclusive<'_>) {
        self.local.engine.pagestore.end_page(page);
    }

    fn free(&self, page: Exclusive<'_>, record: Lsn) {
        let local = self.local;
        local
            .engine
            .pagestore
            .free_page(&local.worker, page, record);
    }

    fn add_provisional(&self, token: Token, ids: &[PageId]) {
        let local = self.local;
        local
            .engine
            .pagestore
            .log_provisional(&local.worker, token, ids);
    }

    fn cancel_provisional(&self, token: Option<Token>, ids: &[PageId]) {
        let local = self.local;
        let _ = local
            .engine
            .pagestore
            .log_free(&local.worker, token.as_slice(), ids);
    }

    fn confirmed(&self, tokens: &[Token], ended: &[PageId]) {
        self.local
            .engine
            .pagestore
            .confirm_allocations(tokens, ended);
    }

    fn flush_older_than(&self, lsn: Lsn) -> Result<(), Error> {
        if self.local.engine.log.is_on() {
            let local = self.local;
            local.engine.buffer.flush_older_than(&local.worker, lsn)?;
        }
        Ok(())
    }
}

impl TaskContext<'_> {
    /// [`WriteContext::reserve`] for pages whose space the caller has reserved,
    /// and keeps where this fails.
    pub(crate) fn take_reserved(&self, pages: u32) -> Result<Reservation, Error> {
        let engine = &self.local.engine;
        let mut taken = Vec::with_capacity(pages as usize);
        for _ in 0..pages {
            match engine.pagestore.allocate_id(&engine.buffer.pool.mapping) {
                Ok(id) => taken.push((
                    self.local.engine.buffer.wait_for_frame(&self.local.worker),
                    id,
                )),
                Err(error) => {
                    self.release_taken(Reservation::new(taken));
                    return Err(error);
                }
            }
        }
        // The last one is used first: ids ascend where they are new, and so do those of pages made one after another.
        taken.reverse();
        Ok(Reservation::new(taken))
    }

    /// Gives frames and ids back; how many pages are still reserved for them.
    pub(crate) fn release_taken(&self, unused: Reservation) -> u64 {
        let engine = &self.local.engine;
        let unused = unused.into_unused();
        let pages = unused.len() as u64;
        for (frame, id) in unused {
            self.local
                .engine
                .buffer
                .release_frame(&self.local.worker, frame);
            let mapping = &engine.buffer.pool.mapping;
            engine.pagestore.unallocate_id(mapping, id);
        }
        pages
    }
}

/// The operation needs something that only a worker has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeedsWorker;

impl From<Error> for NeedsWorker {
    /// The worker will meet the error again, and report it.
    fn from(_: Error) -> NeedsWorker {
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

impl WorkerState {
    /// Waits, in a task, until page `id` is worth looking at again; see [`Buffer::load_page`](crate::buffer::Buffer::load_page).
    ///
    /// # Errors
    ///
    /// [`Error::CorruptPage`] or [`Error::PageRead`] where the page cannot be read, [`Error::ReaderOverrun`].
    pub(crate) fn load_page(&self, id: PageId) -> Result<(), Error> {
        let engine = &self.engine;
        let loaded = engine.buffer.load_page(&self.worker, id);
        loaded.map_err(|unread| {
            engine
                .opening
                .judge_read(unread.page, unread.address, unread.error)
        })
    }
}
