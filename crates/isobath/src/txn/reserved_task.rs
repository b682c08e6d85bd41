//! Changing pages whose space was reserved beforehand, so that a change that is
//! in the log cannot meet a full volume.

use std::cell::Cell;

use crate::buffer::{BufferPool, Exclusive, Reservation, Restart};
use crate::context::{ReadContext, TaskContext, TaskWorker, WriteContext};
use crate::error::StorageError as Error;
use crate::log::record::Token;
use crate::log::{Log, LogReservation};
use crate::node::Block;
use crate::page::{Lsn, PageId};

/// A task with some pages reserved ahead; it releases those that it did not use when
/// this is dropped.
pub(crate) struct ReservedTask<'l> {
    task: TaskContext<'l>,
    pages: Cell<u64>,
    /// Beyond what user data may take.
    from_reserve: bool,
    /// Changes that the commit has.
    changes: usize,
}

/// Changes from which on a commit has many.
const MANY: usize = 1024;

impl<'l> ReservedTask<'l> {
    /// Reserves space for `pages` new pages of a commit with so many changes, beyond what user data
    /// may take if `from_reserve` says so.
    ///
    /// # Errors
    ///
    /// [`Error::VolumeFull`].
    pub(crate) fn reserve_from(
        local: &'l TaskWorker,
        pages: u64,
        from_reserve: bool,
        changes: usize,
    ) -> Result<ReservedTask<'l>, Error> {
        if from_reserve {
            local.parts.pagestore.reserve_beyond_limit(pages);
        } else if pages > 0 {
            local.parts.pagestore.reserve_pages(&local.worker, pages)?;
        }
        Ok(ReservedTask {
            task: TaskContext { local },
            pages: Cell::new(pages),
            from_reserve,
            changes,
        })
    }
}

impl Drop for ReservedTask<'_> {
    fn drop(&mut self) {
        let pages = self.pages.get();
        if pages > 0 {
            self.task.local.parts.pagestore.release_pages(pages);
        }
    }
}

impl ReadContext for ReservedTask<'_> {
    type Error = Error;

    fn pool(&self) -> &BufferPool {
        self.task.pool()
    }

    fn resolve(&self, why: Restart) -> Result<(), Error> {
        self.task.resolve(why)
    }

    fn read_ahead(&self, pages: &[PageId]) -> bool {
        self.task.read_ahead(pages)
    }
}

impl WriteContext for ReservedTask<'_> {
    fn log(&self) -> &Log {
        self.task.log()
    }

    fn writer(&self) -> usize {
        self.task.writer()
    }

    fn admit(&self) -> Result<(), Error> {
        self.task.admit()
    }

    fn reserve(&self, pages: u32) -> Result<Reservation, Error> {
        let wanted = u64::from(pages);
        // More than the worst case that was reserved has to be reserved now.
        let missing = wanted.saturating_sub(self.pages.get());
        if missing > 0 {
            let local = self.task.local;
            let pagestore = &local.parts.pagestore;
            match pagestore.reserve_pages(&local.worker, missing) {
                Err(Error::VolumeFull { .. }) if self.from_reserve => {
                    pagestore.reserve_beyond_limit(missing);
                }
                reserved => reserved?,
            }
            self.pages.set(self.pages.get() + missing);
        }
        let reserved = self.task.take_reserved(pages)?;
        self.pages.set(self.pages.get() - wanted);
        Ok(reserved)
    }

    fn lend(&self) -> Block {
        self.task.lend()
    }

    fn release(&self, unused: Reservation) {
        let back = self.task.release_taken(unused);
        self.pages.set(self.pages.get() + back);
    }

    fn end(&self, page: &Exclusive<'_>) {
        self.task.end(page);
    }

    fn free(&self, page: Exclusive<'_>, record: Lsn) {
        self.task.free(page, record);
    }

    fn reserve_for_structure(&self) -> Result<LogReservation<'_>, Error> {
        self.task.reserve_for_structure()
    }

    fn add_provisional(&self, token: Token, ids: &[PageId]) {
        self.task.add_provisional(token, ids);
    }

    fn cancel_provisional(&self, token: Option<Token>, ids: &[PageId]) {
        self.task.cancel_provisional(token, ids);
    }

    fn confirmed(&self, tokens: &[Token], ended: &[PageId]) {
        self.task.confirmed(tokens, ended);
    }

    fn is_one_of_many(&self) -> bool {
        self.changes >= MANY
    }

    fn flush_pages(&self, pages: Vec<PageId>) -> Result<(), Error> {
        self.task.flush_pages(pages)
    }

    fn begin_flush(&self, pages: &[PageId]) {
        self.task.begin_flush(pages);
    }

    fn forget_flushed(&self, pages: &mut Vec<PageId>) {
        self.task.forget_flushed(pages);
    }
}
