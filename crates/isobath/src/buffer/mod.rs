//! The buffer pool: pages in frames, found through the mapping table, guarded
//! by latches.
//!
//! Nothing here waits. A page that is not resident, a latch that is taken, a
//! version that moved on are answered with [`Restart`]; the caller lets go of
//! everything, has its context resolve the reason (read the page, yield), and
//! starts over. So no task ever yields with a latch in hand.

pub(crate) mod blocks;
mod dirty;
mod frame_state;
#[cfg(all(test, loom))]
mod frame_state_loom;
mod frames;
mod free;
mod guards;
mod latch;
#[cfg(all(test, loom))]
mod latch_loom;
pub(crate) mod leaf_records;
pub(crate) mod long_read;
#[cfg(test)]
mod long_read_tests;
mod mapping;
pub(crate) mod page_miss;
#[cfg(test)]
mod page_miss_tests;
mod read_buffers;
mod replacement;
mod words;

pub(crate) use blocks::Stretch;
pub(crate) use dirty::DirtyQueue;
pub(crate) use frame_state::{FrameHeader, NotStarted};
pub(crate) use frames::{FRAME_COST, Frames};
pub(crate) use free::FreeFrames;
pub(crate) use guards::{Exclusive, Optimistic, Reservation};
pub(crate) use latch::Version;
pub(crate) use mapping::{FrameId, MappingTable, Place};
pub(crate) use read_buffers::{ReadBuffer, ReadBuffers, SharedBuffer};
pub(crate) use replacement::Partition;
pub(crate) use words::Words;

use crate::page::PageId;

/// Why an attempt on pages has to start over, holding nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Restart {
    /// Something read optimistically has changed: start over at once.
    Changed,
    /// A latch is taken: let others run first.
    Latched,
    /// The page is not in memory: have it read first.
    NotResident(PageId),
    /// The attempt needs this many frames and page ids reserved beforehand.
    NeedPages(u32),
}

/// Starts loading the cache line at `address`. Any address is harmless.
#[inline(always)]
#[allow(unsafe_code)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Frames and mapping table: all that a read needs.
pub(crate) struct BufferPool {
    pub(crate) frames: Frames,
    pub(crate) mapping: MappingTable,
    pub(crate) dirty: DirtyQueue,
}

impl BufferPool {
    /// A pool of `frame_count` frames over room for `page_capacity` page ids.
    ///
    /// # Errors
    ///
    /// The system's error where memory or address space is refused.
    pub(crate) fn new(frame_count: u32, page_capacity: u64) -> std::io::Result<BufferPool> {
        Ok(BufferPool {
            frames: Frames::map(frame_count)?,
            mapping: MappingTable::reserve(page_capacity)?,
            dirty: DirtyQueue::new(),
        })
    }

    /// Gives the memory back, once the store is closed: readers that do not know that yet find every latch taken
    /// and every page id free.
    pub(crate) fn discard(&self) {
        self.frames.discard();
        self.mapping.discard();
    }

    /// An optimistic hold on page `id`; counts as an access for the replacement
    /// strategy.
    #[inline(always)]
    pub(crate) fn read(&self, id: PageId) -> Result<Optimistic<'_>, Restart> {
        let hold = self.read_untouched(id)?;
        self.frames.header(hold.parts().0).touch();
        Ok(hold)
    }

    /// As [`BufferPool::read`], for pages of a long scan, which must not push
    /// others out.
    #[inline(always)]
    pub(crate) fn read_untouched(&self, id: PageId) -> Result<Optimistic<'_>, Restart> {
        match self.mapping.place(id) {
            Place::Resident(frame) => {
                let header = self.frames.header(frame);
                let version = header.latch().optimistic().ok_or(Restart::Latched)?;
                // The frame may have been given to another page since the word was read.
                if header.page() != id {
                    return Err(Restart::Changed);
                }
                Ok(Optimistic::new(self, frame, version))
            }
            Place::Stored(_) | Place::Loading(_) => Err(Restart::NotResident(id)),
            // Only a stale pointer leads to a free id: its page was freed since.
            Place::Free => Err(Restart::Changed),
        }
    }

    /// Queues `frame`, which is dirty, to be written, unless it is queued.
    pub(crate) fn queue(&self, frame: FrameId) {
        let header = self.frames.header(frame);
        if header.enter_queue() {
            self.dirty.push(frame, header.page());
        }
    }

    /// Starts loading what a read of `id` needs: its frame's header and these
    /// cache lines of the page. Waits for the mapping word.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: PageId, lines: std::ops::Range<usize>) {
        if let Place::Resident(frame) = self.mapping.place(id) {
            self.frames.prefetch(frame, lines);
        }
    }
}
