//! Lists and logs provisional allocations: pages and chunks that nothing reachable names until a
//! record confirms their token.

use crate::canary::{self, Canary};
use crate::log::record::{Copied, Kind, Mapped, Token, free_body};
use crate::log::{LogReservation, ReservationClass};
use crate::page::{Lsn, PageId};
use crate::pagestore::PageStore;
use crate::runtime::Worker;
use crate::shared::Address;

impl PageStore {
    /// All that is provisionally allocated: token and pages.
    pub(crate) fn provisional(&self) -> Vec<(Token, Vec<PageId>)> {
        self.provisional.list()
    }

    /// `pages` belong to `token` until a record confirms it. They are listed
    /// before the record that says so is appended.
    pub(crate) fn add_provisional(&self, token: Token, pages: &[PageId]) {
        if !canary::is_on(Canary::ForgetProvisional) {
            self.provisional.add(token, pages);
        }
    }

    /// The record that confirms or cancels `tokens`, and frees the pages `ended`,
    /// has been appended. Called before it counts as complete: no checkpoint that
    /// starts behind the record may still hold them open.
    pub(crate) fn confirm_allocations(&self, tokens: &[Token], ended: &[PageId]) {
        let ended = match canary::is_on(Canary::KeepProvisionalOfFreedPages) {
            true => &[],
            false => ended,
        };
        let tokens = match canary::is_on(Canary::KeepConfirmed) {
            true => &[],
            false => tokens,
        };
        self.provisional.confirm(tokens, ended);
    }

    /// Notes that `pages`, which no copy exists of yet, belong to `token`.
    pub(crate) fn log_provisional(&self, worker: &Worker, token: Token, pages: &[PageId]) {
        self.add_provisional(token, pages);
        if !self.lower.log.is_on() || canary::is_on(Canary::ForgetProvisional) {
            return;
        }
        let provisional: Vec<Mapped> = pages
            .iter()
            .map(|&page| Mapped {
                what: Copied::Provisional,
                page,
                version: Lsn(0),
                address: Address::NONE,
                seq: 0,
            })
            .collect();
        self.lower.buffer.log_copies(worker, token, &provisional);
    }

    /// Reserves log space for a free record. Without it the store is poisoned, and nothing is
    /// written any more.
    pub(crate) fn reserve_for_free(
        &self,
        worker: &Worker,
        tokens: usize,
        pages: usize,
    ) -> Option<LogReservation<'_>> {
        let bytes = 8 * (tokens + pages + 1) as u64;
        let log = &self.lower.log_tasks;
        log.reserve(worker, bytes, ReservationClass::System).ok()
    }

    /// Appends a free record: freed pages without a copy, cancelled tokens. The
    /// mapping table does not name them. May wait for log space.
    pub(crate) fn log_free(&self, worker: &Worker, tokens: &[Token], pages: &[PageId]) -> Lsn {
        let _reservation = self.reserve_for_free(worker, tokens.len(), pages.len());
        self.append_free(worker, tokens, pages)
    }

    /// Appends a free record: freed chunks or pages, cancelled tokens. The
    /// caller has reserved log space for it.
    pub(crate) fn append_free(&self, worker: &Worker, tokens: &[Token], pages: &[PageId]) -> Lsn {
        let body = if self.lower.log.is_on() {
            free_body(tokens, pages)
        } else {
            Vec::new()
        };
        let late = canary::is_on(Canary::MarkLate);
        let mark = || {
            pages
                .iter()
                .for_each(|&page| self.lower.buffer.changes.mark(page))
        };
        if !late {
            mark();
        }
        let confirm = |_| self.confirm_allocations(tokens, pages);
        let log = &self.lower.log;
        let record = log.append(worker.index, Kind::Free, &[&body], confirm);
        if late {
            // As if others ran for a while.
            (0..3_000).for_each(|_| worker.yield_now());
            mark();
        }
        record
    }
}
