//! Addresses that become free once a record is durable: until then a recovery may still read them.

use std::collections::VecDeque;

use crate::canary::{self, Canary};
use crate::page::Lsn;
use crate::pagestore::PageStore;
use crate::shared::Address;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicUsize;
use crate::sync::atomic::Ordering::Relaxed;

/// Addresses to free, each with the record that has to be durable before.
#[derive(Default)]
pub(crate) struct PendingFrees {
    /// About in the order of their records.
    queue: Mutex<VecDeque<(Lsn, Address)>>,
    /// How many there are, for reading without the lock.
    count: AtomicUsize,
}

impl PageStore {
    /// Frees `addresses` once the record at `record` is durable.
    pub(crate) fn defer_free(&self, record: Lsn, addresses: impl Iterator<Item = Address>) {
        let mut pending = self.pending_frees.queue.lock();
        let before = pending.len();
        pending.extend(
            addresses
                .filter(|address| !address.is_none())
                .map(|address| (record, address)),
        );
        let added = pending.len() - before;
        self.pending_frees.count.fetch_add(added, Relaxed);
    }

    /// Whether addresses wait for records to become durable.
    pub(crate) fn has_pending_frees(&self) -> bool {
        self.pending_frees.count.load(Relaxed) > 0
    }

    /// How many addresses wait for that.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(crate) fn pending_frees(&self) -> usize {
        self.pending_frees.count.load(Relaxed)
    }

    /// Frees the addresses whose records are durable by now; whether there were any.
    pub(crate) fn drain_pending_frees(&self) -> bool {
        if !self.has_pending_frees() {
            return false;
        }
        let durable = self.lower.log.durable();
        let Some(mut pending) = self.pending_frees.queue.try_lock() else {
            return false;
        };
        let mut dead: Vec<Address> = Vec::new();
        while let Some(&(record, address)) = pending.front()
            && (record < durable || canary::is_on(Canary::ReuseSegmentsAtOnce))
        {
            pending.pop_front();
            dead.push(address);
        }
        drop(pending);
        if dead.is_empty() {
            return false;
        }
        let count = dead.len();
        let mut space = self.space.lock();
        dead.into_iter().for_each(|dead| space.invalidate(dead));
        // Under the lock: what finds none pending and locks afterwards finds all of them free.
        self.pending_frees.count.fetch_sub(count, Relaxed);
        let spare = space.spare_segments();
        drop(space);
        self.clean_if_few(spare);
        true
    }
}
