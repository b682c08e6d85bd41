//! The services that a tree asks of its caller. A task on a worker can wait; an ordinary thread can
//! only read pages in memory.

mod task;

pub(crate) use task::{InlineContext, OldValues, PoolHandle, TaskContext, TaskParts, TaskWorker};

use crate::buffer::{BufferPool, Exclusive, Reservation, Restart};
use crate::error::StorageError;
use crate::log::record::Token;
use crate::log::{Log, LogReservation};
use crate::node::Block;
use crate::page::{Lsn, PageId};
use crate::types::TreeId;

/// A place to read pages from.
///
/// A read attempt that meets a [`Restart`] releases everything and passes it
/// to [`ReadContext::resolve`]; when that returns `Ok`, it starts over.
pub(crate) trait ReadContext {
    /// Why an operation ends early: an error, or "hand this to a worker".
    type Error: From<StorageError>;

    /// The pages.
    fn pool(&self) -> &BufferPool;

    /// Makes it worth trying again: reads the page, lets others run. The
    /// caller holds no latch, guard or borrow.
    fn resolve(&self, why: Restart) -> Result<(), Self::Error>;

    /// Starts reading pages that will be needed soon, neighbours with one I/O, as far as frames,
    /// buffers and queue depth allow, without waiting for them; `false` if some are not read.
    fn read_ahead(&self, pages: &[PageId]) -> bool;

    /// About how many records a leaf of `tree` has, as far as that is known.
    fn leaf_records(&self, _tree: TreeId) -> Option<usize> {
        None
    }

    /// A leaf of `tree` has so many records.
    fn note_leaf_records(&self, _tree: TreeId, _records: usize) {}

    /// Whether there are others to run in the time that a cache miss takes.
    fn interleaves(&self) -> bool {
        false
    }

    /// Lets the others run once. Holds nothing but optimistic reads.
    fn next_turn(&self) {}
}

/// A place to change pages; only tasks have one.
pub(crate) trait WriteContext: ReadContext<Error = StorageError> {
    /// The log.
    fn log(&self) -> &Log;

    /// The log writer's number: the worker's index.
    fn writer(&self) -> usize;

    /// Reserves log space for one structure modification, to be held until it is
    /// logged. Called holding nothing: waits while the log has none.
    fn reserve_for_structure(&self) -> Result<LogReservation<'_>, StorageError>;

    /// Called before a change, holding nothing: waits while too many pages are
    /// dirty, and refuses while the store is poisoned or read-only.
    fn admit(&self) -> Result<(), StorageError>;

    /// Takes `pages` free frames and page ids, waiting for frames where none
    /// is free; fails where the volume has no space for more pages. The caller
    /// holds nothing.
    fn reserve(&self, pages: u32) -> Result<Reservation, StorageError>;

    /// A block of the pool, or of other memory where it has none to lend; does not wait.
    fn lend(&self) -> Block;

    /// Gives back what a reservation did not use.
    fn release(&self, unused: Reservation);

    /// Says in the mapping table that `page` is gone. Called before the record
    /// that says so counts as complete: no checkpoint that starts behind the record
    /// may still store the page's word.
    fn end(&self, page: &Exclusive<'_>);

    /// Frees a page that no reachable page names any more, as the log record at
    /// `record` says; after [`WriteContext::end`].
    fn free(&self, page: Exclusive<'_>, record: Lsn);

    /// Notes that the reserved pages `ids` belong to `token`: unless a record
    /// confirms the token, a recovery frees them.
    fn add_provisional(&self, token: Token, ids: &[PageId]);

    /// Takes [`WriteContext::add_provisional`] back for pages that were not used, or for
    /// all that is left of `token`.
    fn cancel_provisional(&self, token: Option<Token>, ids: &[PageId]);

    /// The record that confirms `tokens`, and frees the pages `ended`, has been
    /// appended; called before it counts as complete.
    fn confirmed(&self, tokens: &[Token], ended: &[PageId]);

    /// Whether the changes are those of a commit that has many.
    fn is_one_of_many(&self) -> bool {
        false
    }

    /// Waits until these pages, which no other task changes, are in copies on the volume, so that a
    /// record can name them.
    fn flush_pages(&self, pages: Vec<PageId>) -> Result<(), StorageError>;

    /// Has these pages begin to be written, before all others, and waits for nothing.
    fn begin_flush(&self, pages: &[PageId]);

    /// Forgets those of `pages` for which [`WriteContext::flush_pages`] would not wait.
    fn forget_flushed(&self, pages: &mut Vec<PageId>);
}
