//! Allocates page ids. Free ids form a list that runs through their own words of the mapping table,
//! so they cost no other memory.

use crate::buffer::{MappingTable, PagePlace};
use crate::page::PageId;

/// Free runs of consecutive ids that are remembered as runs.
const MAX_RUNS: usize = 4096;
/// Once one id in this many is free, pieces are used before new ids are.
const FREE_SHARE: u64 = 4;

/// The allocator of page ids; its owner locks it.
pub(crate) struct PageIds {
    /// The lowest id that was never used.
    next: u64,
    /// First of the list of single free ids; 0 ends it.
    head: PageId,
    listed: u64,
    /// Free runs of several ids, for values of several chunks: (first, count).
    runs: Vec<(u64, u64)>,
}

impl PageIds {
    /// All ids from `next` on are free, and none below.
    pub(crate) fn new(next: u64) -> PageIds {
        PageIds {
            next: next.max(PageId::FIRST_FREE.0),
            head: PageId(0),
            listed: 0,
            runs: Vec::new(),
        }
    }

    /// The lowest id that was never used; every page's id is below it.
    pub(crate) fn high_water(&self) -> u64 {
        self.next
    }

    /// Ids below the high-water mark that no page has.
    pub(crate) fn free_count(&self) -> u64 {
        self.listed + self.runs.iter().map(|run| run.1).sum::<u64>()
    }

    /// An unused id; `None` once the table's address space is used up.
    pub(crate) fn allocate(&mut self, mapping: &MappingTable) -> Option<PageId> {
        if self.head.0 != 0 {
            let id = self.head;
            self.head = mapping.next_free(id);
            self.listed -= 1;
            return Some(id);
        }
        if let Some(run) = self.runs.last_mut() {
            let id = run.0;
            *run = (run.0 + 1, run.1 - 1);
            if run.1 == 0 {
                self.runs.pop();
            }
            return Some(PageId(id));
        }
        self.extend(mapping, 1)
    }

    /// `count` consecutive unused ids; the first of them.
    pub(crate) fn allocate_run(&mut self, mapping: &MappingTable, count: u64) -> Option<PageId> {
        if count == 1 {
            return self.allocate(mapping);
        }
        if let Some(at) = self.runs.iter().position(|run| run.1 >= count) {
            let run = &mut self.runs[at];
            let id = run.0;
            *run = (run.0 + count, run.1 - count);
            if run.1 == 0 {
                self.runs.swap_remove(at);
            }
            return Some(PageId(id));
        }
        self.extend(mapping, count)
    }

    /// Up to `count` consecutive unused ids: the first, and how many. Fewer than
    /// asked for where much is free in pieces, unless `whole` forbids it.
    pub(crate) fn allocate_some(
        &mut self,
        mapping: &MappingTable,
        count: u64,
        whole: bool,
    ) -> Option<(PageId, u64)> {
        let fits = self.runs.iter().any(|run| run.1 >= count);
        // Ids cost memory without end, pieces only an index chunk.
        if fits || whole || count == 1 || self.free_count() < self.next / FREE_SHARE {
            return Some((self.allocate_run(mapping, count)?, count));
        }
        match self.runs.iter().map(|run| run.1).max() {
            Some(longest) => Some((self.allocate_run(mapping, longest)?, longest)),
            None => Some((self.allocate(mapping)?, 1)),
        }
    }

    /// Frees every id below the high-water mark that the mapping table says is
    /// free; for a new allocator.
    pub(crate) fn adopt_free(&mut self, mapping: &MappingTable) {
        let mut end = self.next;
        while end > PageId::FIRST_FREE.0 {
            let is_free = |id: u64| mapping.place(PageId(id)) == PagePlace::Free;
            let mut first = end;
            while first > PageId::FIRST_FREE.0 && is_free(first - 1) {
                first -= 1;
            }
            if first < end {
                self.free_run(mapping, PageId(first), end - first);
            }
            end = first.max(PageId::FIRST_FREE.0 + 1) - 1;
        }
    }

    fn extend(&mut self, mapping: &MappingTable, count: u64) -> Option<PageId> {
        let first = self.next;
        if first + count > mapping.capacity() {
            return None;
        }
        self.next = first + count;
        Some(PageId(first))
    }

    /// Takes back an id whose page is gone.
    pub(crate) fn free(&mut self, mapping: &MappingTable, id: PageId) {
        mapping.set_free(id, self.head);
        self.head = id;
        self.listed += 1;
    }

    /// Takes back `count` ids from `first` on.
    pub(crate) fn free_run(&mut self, mapping: &MappingTable, first: PageId, count: u64) {
        if count > 1 && self.runs.len() < MAX_RUNS {
            for id in first.0..first.0 + count {
                mapping.set_free(PageId(id), PageId(0));
            }
            self.runs.push((first.0, count));
        } else {
            for id in (first.0..first.0 + count).rev() {
                self.free(mapping, PageId(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn no_id_is_given_twice(ops in prop::collection::vec((any::<bool>(), 1u64..6, any::<prop::sample::Index>()), 1..200)) {
            let mapping = MappingTable::reserve(1 << 16).expect("address space");
            let mut ids = PageIds::new(0);
            let mut used: Vec<(u64, u64)> = Vec::new();
            let mut all = BTreeSet::new();
            for (allocate, count, pick) in ops {
                if allocate || used.is_empty() {
                    let (first, count) = ids.allocate_some(&mapping, count, count % 2 == 0).expect("room");
                    let first = first.0;
                    for id in first..first + count {
                        prop_assert!(id >= PageId::FIRST_FREE.0 && all.insert(id));
                        mapping.set(PageId(id), PagePlace::Loading(1));
                    }
                    used.push((first, count));
                } else {
                    let (first, count) = used.swap_remove(pick.index(used.len()));
                    (first..first + count).for_each(|id| { all.remove(&id); });
                    ids.free_run(&mapping, PageId(first), count);
                }
                prop_assert_eq!(ids.high_water() - 1, all.len() as u64 + ids.free_count());
            }
            let mut reopened = PageIds::new(ids.high_water());
            for id in 1..ids.high_water() {
                if !all.contains(&id) {
                    mapping.set(PageId(id), PagePlace::Free);
                }
            }
            reopened.adopt_free(&mapping);
            prop_assert_eq!(reopened.free_count(), ids.free_count());
            while reopened.free_count() > 0 {
                let id = reopened.allocate(&mapping).expect("some are free").0;
                prop_assert!(id < ids.high_water() && all.insert(id));
            }
        }
    }
}
