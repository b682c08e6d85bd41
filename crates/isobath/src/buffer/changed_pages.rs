//! Which pages of the mapping table the next checkpoint has to write.

use crate::page::{HEADER_SIZE, PAGE_SIZE, PageId};
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire};

/// Words in one page.
const FULL_PAGE: u64 = ((PAGE_SIZE - HEADER_SIZE) / 8) as u64;

/// Words that a page of an array, such as the mapping table, holds on the volume.
#[inline(always)]
pub(crate) fn words_per_page() -> u64 {
    crate::small::words_per_page(FULL_PAGE)
}

/// Which pages of the checkpointed mapping table have changed since they were
/// written: a bit each.
pub(crate) struct ChangedMapPages(Vec<AtomicU64>);

impl ChangedMapPages {
    /// For `capacity` page ids.
    pub(crate) fn new(capacity: u64) -> ChangedMapPages {
        let pages = capacity.div_ceil(words_per_page());
        let mut bits = Vec::new();
        bits.resize_with(pages.div_ceil(64) as usize, || AtomicU64::new(0));
        ChangedMapPages(bits)
    }

    /// The word of `id` was changed.
    pub(crate) fn mark(&self, id: PageId) {
        let page = id.0 / words_per_page();
        self.mark_page(page);
    }

    /// Page `page` of the table is to be written again.
    pub(crate) fn mark_page(&self, page: u64) {
        if let Some(word) = self.0.get((page / 64) as usize) {
            // Orders the change before the task that clears the bit.
            word.fetch_or(1 << (page % 64), AcqRel);
        }
    }

    /// Whether page `page` of the table is to be written.
    #[cfg(test)]
    pub(crate) fn is_marked(&self, page: u64) -> bool {
        self.0[(page / 64) as usize].load(Acquire) & 1 << (page % 64) != 0
    }

    /// Clears the bit of `page`; whether it was set.
    pub(crate) fn take(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        self.0.get((page / 64) as usize).is_some_and(|word| {
            word.load(Acquire) & bit != 0 && word.fetch_and(!bit, AcqRel) & bit != 0
        })
    }
}
