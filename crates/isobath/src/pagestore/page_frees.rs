//! Freeing many pages of trees by their ids, without reading those that are not in memory.
//!
//! A structure modification latches the pages that it frees. Here they are too many for that: nothing reachable names them any more,
//! and readers that are still on their way through them find that a page which named another has gone first.

use crate::buffer::{Exclusive, Place};
use crate::context::WriteContext;
use crate::engine::TaskContext;
use crate::log::record::Token;
use crate::page::{Lsn, PageId};
use crate::runtime::WorkerState;
use crate::shared::Address;

/// Pages that go between two looks at other tasks, and with one record.
const TOGETHER: usize = 64;

/// A page that was taken out of the mapping table.
enum Taken<'e> {
    /// It was in memory.
    Resident(Exclusive<'e>),
    /// It was here on the volume.
    Stored(Address),
}

impl WorkerState {
    /// Frees `pages`, in this order, as the durable record at `record` says. Until this returns no checkpoint may begin behind the
    /// record: the caller is in a slot of the tracker, or has noted that pages end with it.
    pub(crate) fn end_pages(&self, record: Lsn, pages: &[PageId]) {
        for (at, &id) in pages.iter().enumerate() {
            // Bound: what keeps the page is the load or the write of another task.
            let taken = loop {
                match self.take_page(id) {
                    Ok(taken) => break taken,
                    Err(()) => self.worker.yield_now(),
                }
            };
            self.free_taken(id, taken, record);
            if at % TOGETHER == TOGETHER - 1 {
                self.worker.yield_now();
            }
        }
    }

    /// Frees pages that belong to `token` and that nothing has named, and cancels the token.
    pub(crate) fn discard_pages(&self, token: Token, pages: Vec<PageId>) {
        let mut left = pages;
        // Bound: each round frees a page, or waits for another task that keeps one. What a poisoned store keeps a recovery frees.
        while !left.is_empty() && self.engine.shared.writable().is_ok() {
            let _reservation = self.reserve_for_free(0, TOGETHER);
            let freeing = self.engine.pagestore.begin_freeing();
            let mut taken = Vec::with_capacity(TOGETHER);
            let mut kept = Vec::new();
            while taken.len() < TOGETHER
                && let Some(id) = left.pop()
            {
                match self.take_page(id) {
                    Ok(Some(page)) => taken.push((id, page)),
                    Ok(None) => {}
                    Err(()) => kept.push(id),
                }
            }
            let ids: Vec<PageId> = taken.iter().map(|(id, _)| *id).collect();
            let record = self.append_free(&[], &ids);
            drop(freeing);
            for (id, page) in taken {
                self.free_taken(id, Some(page), record);
            }
            left.append(&mut kept);
            self.worker.yield_now();
        }
        let _ = self.log_free(&[token], &[]);
    }

    /// Takes a page out of the mapping table; `Err` where another task keeps it now, `None` where there is none.
    fn take_page(&self, id: PageId) -> Result<Option<Taken<'_>>, ()> {
        let pool = &self.engine.buffer.pool;
        match pool.mapping.place(id) {
            Place::Free => Ok(None),
            Place::Loading(_) => Err(()),
            // The cleaner may be moving it: only one of the two gets the word.
            from @ Place::Stored(address) => match pool.mapping.replace(id, from, Place::Free) {
                true => {
                    self.engine.checkpoints.mark(id);
                    Ok(Some(Taken::Stored(address)))
                }
                false => Err(()),
            },
            Place::Resident(_) => {
                let page = pool.read_untouched(id).map_err(drop)?;
                let page = page.exclusive().map_err(drop)?;
                TaskContext { local: self }.end(&page);
                Ok(Some(Taken::Resident(page)))
            }
        }
    }

    fn free_taken(&self, id: PageId, taken: Option<Taken<'_>>, record: Lsn) {
        match taken {
            Some(Taken::Resident(page)) => TaskContext { local: self }.free(page, record),
            Some(Taken::Stored(address)) => {
                self.engine.pagestore.free_after(record, address);
                let engine = &self.engine;
                engine
                    .pagestore
                    .free_id(&engine.buffer.pool.mapping, id, address);
            }
            None => {}
        }
    }
}
