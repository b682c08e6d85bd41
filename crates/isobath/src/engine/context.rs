//! The two ways to run a tree operation: as a task, which can wait, and on any
//! thread, as long as everything is in memory.

use std::time::Instant;

use super::Engine;
use crate::Error;
use crate::buffer::{BufferPool, Exclusive, Place, Reservation, Restart};
use crate::canary::{self, Canary};
use crate::context::{ReadContext, WriteContext};
use crate::log::record::Token;
use crate::log::{Log, LogReservation};
use crate::page::{Lsn, PageId};
use crate::runtime::WorkerState;
use crate::shared::Address;
use crate::types::TreeId;

/// Other ready tasks from which on a lookup lets them run whenever it waits for
/// memory: going round fewer of them takes longer than a miss.
const MIN_TURNS: usize = 4;

/// A task of a worker: waits by yielding.
pub(crate) struct TaskContext<'l> {
    pub(crate) local: &'l WorkerState,
}

impl ReadContext for TaskContext<'_> {
    type Error = Error;

    fn pool(&self) -> &BufferPool {
        &self.local.engine.pool
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
        self.local.read_ahead(pages)
    }

    fn leaf_records(&self, tree: TreeId) -> Option<usize> {
        self.local.leaf_records.of(tree)
    }

    fn note_leaf_records(&self, tree: TreeId, records: usize) {
        self.local.leaf_records.note(tree, records);
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
        self.local.reserve_for_structure()
    }

    fn admit(&self) -> Result<(), Error> {
        let engine = &self.local.engine;
        engine.writable()?;
        let is_full = || engine.pool.dirty.unwritten() > engine.dirty_limit();
        while is_full() && self.local.worker.in_task() {
            let since = Instant::now();
            let waited = engine.dirty_waiters.wait(&self.local.worker, 0, || {
                !is_full() || engine.poison.get().is_some()
            });
            if waited {
                engine.counters.stalled(since.elapsed());
            }
            engine.writable()?;
        }
        Ok(())
    }

    fn reserve(&self, pages: u32) -> Result<Reservation, Error> {
        self.local.reserve_pages(u64::from(pages))?;
        self.take_reserved(pages).inspect_err(|_| {
            self.local.engine.release_pages(u64::from(pages));
        })
    }

    fn release(&self, unused: Reservation) {
        let pages = self.release_taken(unused);
        self.local.engine.release_pages(pages);
    }

    fn end(&self, page: &Exclusive<'_>) {
        let engine = &self.local.engine;
        engine.pool.mapping.set(page.id(), Place::Free);
        engine.changes.mark(page.id());
    }

    fn free(&self, page: Exclusive<'_>, record: Lsn) {
        let engine = &self.local.engine;
        let id = page.id();
        // No changed page holds the log where the record is: a checkpoint that starts behind it has to find this.
        assert!(
            engine.pool.mapping.place(id) == Place::Free,
            "a page ends with its record"
        );
        // The latch is never released: the frame leaves as a free frame does.
        let frame = page.leak();
        let freed = engine.pool.frames.header(frame).free_page();
        if !freed.is_written {
            self.local.kill_after(record, freed.address);
        }
        if freed.was_dirty {
            engine.frames_written_back(1);
        }
        engine.free_id(id, freed.address);
        if !freed.is_written {
            self.local.retire_unlisted(frame);
        }
    }

    fn add_provisional(&self, token: Token, ids: &[PageId]) {
        self.local.log_provisional(token, ids);
    }

    fn cancel_provisional(&self, token: Option<Token>, ids: &[PageId]) {
        let _ = self.local.log_free(token.as_slice(), ids);
    }

    fn confirmed(&self, tokens: &[Token], ended: &[PageId]) {
        self.local.engine.confirm_allocations(tokens, ended);
    }

    fn flush_older_than(&self, lsn: Lsn) -> Result<(), Error> {
        if self.local.engine.log.is_on() {
            self.local.flush_older_than(lsn)?;
        }
        Ok(())
    }
}

impl TaskContext<'_> {
    /// [`WriteContext::reserve`] for pages whose space the caller has reserved,
    /// and keeps where this fails.
    pub(crate) fn take_reserved(&self, pages: u32) -> Result<Reservation, Error> {
        let mut taken = Vec::with_capacity(pages as usize);
        for _ in 0..pages {
            match self.local.engine.allocate_id() {
                Ok(id) => taken.push((self.local.wait_for_frame(), id)),
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
            self.local.release_frame(frame);
            engine.ids.lock().free(&engine.pool.mapping, id);
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
    engine: &'e Engine,
    patience: std::cell::Cell<u32>,
}

/// Times that an inline read starts over before it is handed to a worker.
const PATIENCE: u32 = 64;

impl<'e> InlineContext<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        InlineContext {
            engine,
            patience: std::cell::Cell::new(PATIENCE),
        }
    }
}

impl ReadContext for InlineContext<'_> {
    type Error = NeedsWorker;

    fn pool(&self) -> &BufferPool {
        &self.engine.pool
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
    /// A free frame, its latch held exclusively; waits for one.
    pub(crate) fn wait_for_frame(&self) -> crate::buffer::FrameId {
        loop {
            if let Some(frame) = self.acquire_frame() {
                return frame;
            }
            self.frame_waiters.borrow_mut().push(self.worker.task_id());
            self.worker.suspend();
        }
    }

    /// The page at `address`, if that is one, becomes obsolete once the record at `record` is durable.
    pub(crate) fn kill_after(&self, record: Lsn, address: Address) {
        if address.is_none() {
            return;
        }
        if record < self.engine.log.durable() || canary::sings(Canary::FreeEarly) {
            self.invalidate(address);
        } else {
            self.engine.defer_free(record, std::iter::once(address));
        }
    }

    /// What was at `address` is there no longer, and no log record says that it is.
    pub(crate) fn invalidate(&self, address: Address) {
        let mut space = self.engine.space.lock();
        let freed = space.invalidate(address);
        let spare = space.spare_segments();
        drop(space);
        self.after_space_change(freed, spare);
    }

    /// Takes back the frame of a freed page that no replacement queue holds,
    /// because the page was freed before its first write had ended.
    pub(crate) fn retire_unlisted(&self, frame: crate::buffer::FrameId) {
        if self.engine.pool.frames.header(frame).take_unlisted() {
            self.release_frame(frame);
        }
    }
}
