//! Freeing many pages of trees by their ids, without reading those that are not in memory.
//!
//! A structure modification latches the pages that it frees. Here they are too many for that:
//! nothing reachable names them any more, and readers that are still on their way through them find
//! that a page which named another has gone first.

use crate::buffer::{Exclusive, PagePlace};
use crate::log::record::Token;
use crate::page::{Lsn, PageId};
use crate::pagestore::PageStore;
use crate::runtime::Worker;
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

impl PageStore {
    /// Frees `pages`, in this order, as the durable record at `record` says. Until this returns no
    /// checkpoint may begin behind the record: the caller is in a slot of the tracker, or has noted
    /// that pages end with it.
    pub(crate) fn end_pages(&self, worker: &Worker, record: Lsn, pages: &[PageId]) {
        for (at, &id) in pages.iter().enumerate() {
            // Bound: what keeps the page is the load or the write of another task.
            let taken = loop {
                match self.take_page(id) {
                    Ok(taken) => break taken,
                    Err(()) => worker.yield_now(),
                }
            };
            self.free_taken(worker, id, taken, record);
            if at % TOGETHER == TOGETHER - 1 {
                worker.yield_now();
            }
        }
    }

    /// Frees pages that belong to `token` and that nothing has named, and cancels the token.
    pub(crate) fn discard_pages(&self, worker: &Worker, token: Token, pages: Vec<PageId>) {
        let mut left = pages;
        // Bound: each round frees a page, or waits for another task that keeps one. What a poisoned
        // store keeps a recovery frees.
        while !left.is_empty() && self.lower.shared.writable().is_ok() {
            let _reservation = self.reserve_for_free(worker, 0, TOGETHER);
            let freeing = self.begin_freeing();
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
            let record = self.append_free(worker, &[], &ids);
            drop(freeing);
            for (id, page) in taken {
                self.free_taken(worker, id, Some(page), record);
            }
            left.append(&mut kept);
            worker.yield_now();
        }
        self.log_free(worker, &[token], &[]);
    }

    /// Takes a page out of the mapping table; `Err` if another task keeps it now, `None` if there
    /// is none.
    fn take_page(&self, id: PageId) -> Result<Option<Taken<'_>>, ()> {
        let pool = &self.lower.buffer.pool;
        match pool.mapping.place(id) {
            PagePlace::Free => Ok(None),
            PagePlace::Loading(_) => Err(()),
            // The cleaner may be moving it: only one of the two gets the word.
            from @ PagePlace::Stored(address) => {
                match pool.mapping.replace(id, from, PagePlace::Free) {
                    true => {
                        self.lower.buffer.changes.mark(id);
                        Ok(Some(Taken::Stored(address)))
                    }
                    false => Err(()),
                }
            }
            PagePlace::Resident(_) => {
                let page = pool.read_untouched(id).map_err(drop)?;
                let page = page.exclusive().map_err(drop)?;
                self.end_page(&page);
                Ok(Some(Taken::Resident(page)))
            }
        }
    }

    fn free_taken(&self, worker: &Worker, id: PageId, taken: Option<Taken<'_>>, record: Lsn) {
        match taken {
            Some(Taken::Resident(page)) => self.free_page(worker, page, record),
            Some(Taken::Stored(address)) => {
                self.free_after(record, address);
                self.free_id(&self.lower.buffer.pool.mapping, id, address);
            }
            None => {}
        }
    }

    /// Says in the mapping table that `page` is gone; before the record that says so counts as
    /// complete.
    pub(crate) fn end_page(&self, page: &Exclusive<'_>) {
        self.lower
            .buffer
            .pool
            .mapping
            .set(page.id(), PagePlace::Free);
        self.lower.buffer.changes.mark(page.id());
    }

    /// Frees a page that no reachable page names any more, as the log record at `record` says;
    /// after [`PageStore::end_page`].
    pub(crate) fn free_page(&self, worker: &Worker, page: Exclusive<'_>, record: Lsn) {
        let pool = &self.lower.buffer.pool;
        let id = page.id();
        // No changed page holds the log at the record: a checkpoint that starts behind it has to
        // find this.
        assert!(
            pool.mapping.place(id) == PagePlace::Free,
            "a page ends with its record"
        );
        // The latch is never released: the frame leaves as a free frame does.
        let frame = page.leak();
        let freed = pool.frames.header(frame).free_page();
        if !freed.is_written {
            self.free_after(record, freed.address);
        }
        if freed.was_dirty {
            self.lower.buffer.frames_written_back(1, || self.stored());
        }
        self.free_id(&pool.mapping, id, freed.address);
        if !freed.is_written {
            self.lower.buffer.retire_unlisted(worker, frame);
        }
    }
}
