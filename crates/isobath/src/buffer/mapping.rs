//! The mapping table: one atomic word per page id, in one virtual range that
//! never moves (vmcache's idea with indirection; see docs/decisions/0003).
//!
//! A word says where the page is now. The task that relocates a page changes this
//! one word, so no parent is ever searched.

use crate::page::PageId;
use crate::shared::{Address, ReservedWords};
use crate::sync::atomic::{AtomicU64, Ordering};

/// A frame's index in the pool.
pub(crate) type FrameId = u32;

const TAG_MASK: u64 = 3;
const TAG_FREE: u64 = 0;
const TAG_RESIDENT: u64 = 1;
const TAG_STORED: u64 = 2;
const TAG_LOADING: u64 = 3;

/// The place of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PagePlace {
    /// The id belongs to no page.
    Free,
    /// In this frame, readable.
    Resident(FrameId),
    /// On the volume only.
    Stored(Address),
    /// Being read into this frame.
    Loading(FrameId),
}

impl PagePlace {
    #[inline(always)]
    pub(crate) fn to_word(self) -> u64 {
        match self {
            PagePlace::Free => TAG_FREE,
            PagePlace::Resident(frame) => u64::from(frame) << 2 | TAG_RESIDENT,
            PagePlace::Stored(address) => address.to_raw() << 2 | TAG_STORED,
            PagePlace::Loading(frame) => u64::from(frame) << 2 | TAG_LOADING,
        }
    }

    #[inline(always)]
    pub(crate) fn from_word(word: u64) -> PagePlace {
        match word & TAG_MASK {
            TAG_FREE => PagePlace::Free,
            TAG_RESIDENT => PagePlace::Resident((word >> 2) as FrameId),
            TAG_STORED => PagePlace::Stored(Address::from_raw(word >> 2)),
            _ => PagePlace::Loading((word >> 2) as FrameId),
        }
    }
}

/// One atomic word per page id; untouched parts of the range cost no memory.
pub(crate) struct MappingTable(ReservedWords);

impl MappingTable {
    /// Reserves address space for `capacity` page ids, all [`PagePlace::Free`].
    ///
    /// # Errors
    ///
    /// The system's error where that much address space is refused.
    pub(crate) fn reserve(capacity: u64) -> std::io::Result<MappingTable> {
        ReservedWords::reserve(capacity).map(MappingTable)
    }

    /// Number of page ids that fit.
    pub(crate) fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    /// Gives the memory back: every id is free from now on.
    pub(crate) fn discard(&self) {
        self.0.discard();
    }

    /// The word of `id`; page 0, which is never a page, for ids past the table.
    #[inline(always)]
    fn word(&self, id: PageId) -> &AtomicU64 {
        self.0.at(id.0)
    }

    /// The present place of `id`.
    #[inline(always)]
    pub(crate) fn place(&self, id: PageId) -> PagePlace {
        PagePlace::from_word(self.word(id).load(Ordering::Acquire))
    }

    /// Starts loading the word of `id` into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: PageId) {
        crate::node::prefetch(std::ptr::from_ref(self.word(id)).cast());
    }

    /// Sets where `id` is; for the task that holds its frame exclusively, or owns the id.
    pub(crate) fn set(&self, id: PageId, place: PagePlace) {
        debug_assert!(id.0 != 0 && id.0 < self.capacity());
        self.word(id).store(place.to_word(), Ordering::Release);
    }

    /// Makes `id` free and the head of a list of free ids that goes on at `next`.
    pub(crate) fn set_free(&self, id: PageId, next: PageId) {
        debug_assert!(id.0 != 0 && id.0 < self.capacity());
        self.word(id)
            .store(next.0 << 2 | TAG_FREE, Ordering::Release);
    }

    /// The id that follows the free id `id` in its list.
    pub(crate) fn next_free(&self, id: PageId) -> PageId {
        let word = self.word(id).load(Ordering::Acquire);
        debug_assert!(word & TAG_MASK == TAG_FREE);
        PageId(word >> 2)
    }

    /// Changes where `id` is from exactly `from` to `to`; `false` if it was
    /// elsewhere.
    pub(crate) fn replace(&self, id: PageId, from: PagePlace, to: PagePlace) -> bool {
        self.word(id)
            .compare_exchange(
                from.to_word(),
                to.to_word(),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }
}
