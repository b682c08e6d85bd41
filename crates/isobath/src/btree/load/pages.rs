//! Pages that are built beside a tree: taken a few at a time, written while nothing names them, and
//! listed under a token so that a recovery frees them unless a record has confirmed that.

use super::super::Tree;
use super::super::smo::Modification;
use crate::buffer::Reservation;
use crate::context::WriteContext;
use crate::error::StorageError;
use crate::log::LogReservation;
use crate::log::record::Token;
use crate::node::Image;
use crate::page::PageId;
use crate::small;

/// Pages reserved at a time.
const RESERVED: u32 = 16;
/// Pages that are listed before it is looked which of them are on the drive.
const LISTED: usize = 1 << 14;
/// Pages that begin to be written together.
const BEGUN: usize = 256;

/// A reserved page, and log space for it.
pub(super) struct Page<'c> {
    reservation: Reservation,
    room: LogReservation<'c>,
}

/// The supply of pages that are built.
pub(super) struct Pages<'c, C: WriteContext> {
    ctx: &'c C,
    tree: Tree,
    token: Token,
    reservation: Option<Reservation>,
    /// Pages that were written, which may be in memory alone.
    unflushed: Vec<PageId>,
    /// How many of them there may be before it is looked which are.
    listed: usize,
    /// They begin to be written at once.
    begins_early: bool,
}

impl<'c, C: WriteContext> Pages<'c, C> {
    /// Pages for `tree` that belong to `token`.
    pub(super) fn new(ctx: &'c C, tree: Tree, token: Token) -> Self {
        Pages {
            ctx,
            tree,
            token,
            reservation: None,
            unflushed: Vec::new(),
            listed: small::listed_pages(LISTED),
            begins_early: false,
        }
    }

    /// Those that were written and may be in memory alone.
    pub(super) fn take_unflushed(&mut self) -> Vec<PageId> {
        std::mem::take(&mut self.unflushed)
    }

    /// Has pages begin to be written as they are built, before all others, so that the end has less
    /// to wait for: for few of them.
    pub(super) fn begin_early(&mut self) {
        self.begins_early = true;
    }

    /// The same, with such pages of an earlier supply.
    pub(super) fn with_unflushed(mut self, pages: Vec<PageId>) -> Self {
        self.unflushed = pages;
        self
    }

    /// Makes sure that a page can be taken.
    pub(super) fn reserve(&mut self) -> Result<Page<'c>, StorageError> {
        let room = self.ctx.reserve_for_structure()?;
        if let Some(reservation) = self.reservation.take() {
            if reservation.len() > 0 {
                return Ok(Page { reservation, room });
            }
            self.ctx.release(reservation);
        }
        // Nothing is held while waiting for pages to be written.
        drop(room);
        self.ctx.admit()?;
        let reservation = self.ctx.reserve(RESERVED)?;
        match self.ctx.reserve_for_structure() {
            Ok(room) => {
                let ids: Vec<PageId> = reservation.ids().collect();
                self.ctx.add_provisional(self.token, &ids);
                Ok(Page { reservation, room })
            }
            Err(stop) => {
                self.ctx.release(reservation);
                Err(stop)
            }
        }
    }

    /// Writes one finished page, which nothing names yet.
    pub(super) fn write(&mut self, page: Page<'c>, image: Box<Image>) -> PageId {
        let Page {
            mut reservation,
            room: _reservation,
        } = page;
        let page = reservation.take(self.ctx.pool());
        let id = page.id();
        self.reservation = Some(reservation);
        Modification::new(self.tree)
            .page(page, image)
            .apply_private(self.ctx);
        // Only now it is dirty: before, it would look as if it were on the drive.
        self.unflushed.push(id);
        let listed = self.unflushed.len();
        let begun = small::listed_pages(BEGUN);
        if self.begins_early && listed.is_multiple_of(begun) {
            self.ctx.begin_flush(&self.unflushed[listed - begun..]);
        }
        if listed > self.listed {
            self.ctx.forget_flushed(&mut self.unflushed);
            self.listed = self.listed.max(2 * self.unflushed.len());
        }
        id
    }
}

impl<C: WriteContext> Drop for Pages<'_, C> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            let ids: Vec<PageId> = reservation.ids().collect();
            if !ids.is_empty() {
                self.ctx.cancel_provisional(None, &ids);
            }
            self.ctx.release(reservation);
        }
    }
}
