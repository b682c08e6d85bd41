//! Places that tasks read, kept from reuse during that, and places that become obsolete.

use crate::buffer::PagePlace;
use crate::canary::{self, Canary};
use crate::page::{Lsn, PageId};
use crate::pagestore::PageStore;
use crate::runtime::Worker;
use crate::shared::Address;

impl PageStore {
    /// The address of chunk `id`, whose segment is kept from reuse until [`PageStore::unpin`];
    /// `None` if there is no such chunk.
    pub(crate) fn pin_chunk(&self, worker: &Worker, id: PageId) -> Option<Address> {
        loop {
            let mut space = self.space.lock();
            // Under the lock: a segment is freed under it, after its last word changed.
            match self.lower.buffer.pool.mapping.place(id) {
                PagePlace::Stored(address) => {
                    space.pin(address.segment());
                    return Some(address);
                }
                // By a task that takes the id for that of a page; it will be stored again.
                PagePlace::Loading(_) if !canary::is_on(Canary::TrustPageIds) => {
                    drop(space);
                    self.lower.buffer.await_load(worker, id);
                }
                _ => return None,
            }
        }
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self, address: Address) {
        let mut space = self.space.lock();
        space.unpin(address.segment());
        let spare = space.spare_segments();
        drop(space);
        self.clean_if_few(spare);
    }

    /// Ends pins of segments.
    pub(crate) fn unpin_all(&self, segments: impl Iterator<Item = u32>) {
        let mut space = self.space.lock();
        segments.for_each(|segment| space.unpin(segment));
        let spare = space.spare_segments();
        drop(space);
        self.clean_if_few(spare);
    }

    /// The page at `address`, if that is one, becomes obsolete once the record at `record` is
    /// durable.
    pub(crate) fn free_after(&self, record: Lsn, address: Address) {
        if address.is_none() {
            return;
        }
        if record < self.lower.log.durable() || canary::is_on(Canary::FreeEarly) {
            self.invalidate(address);
        } else {
            self.defer_free(record, std::iter::once(address));
        }
    }

    /// Invalidates the copy at `address`, which no log record names.
    pub(crate) fn invalidate(&self, address: Address) {
        let mut space = self.space.lock();
        space.invalidate(address);
        let spare = space.spare_segments();
        drop(space);
        self.clean_if_few(spare);
    }
}
