//! The pool's memory: an array of 4 KiB frames and an array of one header per
//! frame, both in huge pages where the system gives them.

#![allow(unsafe_code)]

use isobath_io::HUGE_PAGE;

use super::latch::Latch;
use super::mapping::FrameId;
use super::words::Words;
use crate::page::PAGE_SIZE;
use crate::sync::atomic::{AtomicU8, AtomicU64};

/// What the pool knows of one frame; a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct FrameHeader {
    pub(crate) latch: Latch,
    /// The page in the frame; meaningful while the latch's version holds.
    pub(crate) page_id: AtomicU64,
    /// Raw [`crate::pagestore::Address`] of the newest complete copy on the
    /// volume; 0 if the page was never written.
    pub(crate) address: AtomicU64,
    /// LSN of the newest change; what `may_write` is asked about.
    pub(crate) lsn: AtomicU64,
    /// LSN of the oldest change that no complete copy on the volume contains.
    pub(crate) oldest_lsn: AtomicU64,
    /// Workers, one bit each, with tasks that wait for this frame's load.
    pub(crate) waiters: AtomicU64,
    /// The page's write history in the cleaning policy's encoding, for MDC its
    /// u_p2 (paper 003, section 5.2.2).
    pub(crate) history: AtomicU64,
    /// Accesses seen since the replacement strategy last looked, saturating.
    pub(crate) touched: AtomicU8,
    /// Bits of [`flag`].
    pub(crate) flags: AtomicU8,
}

#[cfg(not(loom))] // loom's atomics are larger
const _: () = assert!(std::mem::size_of::<FrameHeader>() == 64);

/// Bits of [`FrameHeader::flags`]; changed under the latch or by the one task
/// that owns the transition.
pub(crate) mod flag {
    /// The frame holds changes that no write has copied yet.
    pub(crate) const DIRTY: u8 = 1;
    /// A write of an earlier copy is in flight.
    pub(crate) const WRITING: u8 = 2;
    /// The frame is in the queue of frames to write, for this page or for one
    /// that it held before.
    pub(crate) const QUEUED: u8 = 4;
    /// The page was freed while a write was in flight.
    pub(crate) const FREED: u8 = 8;
    /// The frame of a new page, which no replacement queue holds before its
    /// first write.
    pub(crate) const UNLISTED: u8 = 16;
}

/// Bytes of memory that one frame costs: the page and its header.
pub(crate) const FRAME_COST: usize = PAGE_SIZE + std::mem::size_of::<FrameHeader>();

/// An anonymous mapping, zeroed, aligned to 2 MiB, advised to use huge pages.
struct Region {
    base: *mut u8,
    raw: *mut libc::c_void,
    raw_len: usize,
    len: usize,
}

impl Region {
    fn map(len: usize) -> std::io::Result<Region> {
        let raw_len = len + HUGE_PAGE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                raw_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let skip = raw.cast::<u8>().align_offset(HUGE_PAGE);
        // SAFETY: `skip` is below HUGE_PAGE, so `base..base + len` lies in the mapping.
        let base = unsafe { raw.cast::<u8>().add(skip) };
        // Below a huge page the advice would only round memory use up.
        if len >= HUGE_PAGE {
            // SAFETY: the range was just mapped. Failure leaves small pages, which work.
            unsafe {
                libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE);
            }
        }
        Ok(Region {
            base,
            raw,
            raw_len,
            len,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this base and length.
        unsafe {
            libc::munmap(self.raw, self.raw_len);
        }
    }
}

/// The frames and their headers.
pub(crate) struct Frames {
    pages: Region,
    headers: Region,
    count: u32,
}

// SAFETY: the regions are fixed; all access goes through atomics, or through
// I/O into frames that their latch keeps to one owner.
unsafe impl Send for Frames {}
// SAFETY: as above.
unsafe impl Sync for Frames {}

impl Frames {
    /// Maps `count` frames; every latch is held exclusively, as a free frame's is.
    ///
    /// # Errors
    ///
    /// The system's error where the memory is refused.
    pub(crate) fn map(count: u32) -> std::io::Result<Frames> {
        let pages = Region::map(count as usize * PAGE_SIZE)?;
        let headers = Region::map(count as usize * std::mem::size_of::<FrameHeader>())?;
        for frame in 0..count as usize {
            // SAFETY: within the region; zero bytes are valid for the other fields.
            unsafe {
                let header = headers.base.cast::<FrameHeader>().add(frame);
                (&raw mut (*header).latch).write(Latch::new_exclusive());
            }
        }
        Ok(Frames {
            pages,
            headers,
            count,
        })
    }

    /// Number of frames.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The header of `frame`.
    #[inline(always)]
    pub(crate) fn header(&self, frame: FrameId) -> &FrameHeader {
        assert!(frame < self.count);
        // SAFETY: within the region, initialised by `map`.
        unsafe { &*self.headers.base.cast::<FrameHeader>().add(frame as usize) }
    }

    /// The bytes of `frame`.
    #[inline(always)]
    pub(crate) fn words(&self, frame: FrameId) -> &Words {
        assert!(frame < self.count);
        // SAFETY: within the region; every bit pattern is valid for atomics.
        unsafe {
            &*self
                .pages
                .base
                .add(frame as usize * PAGE_SIZE)
                .cast::<Words>()
        }
    }

    /// Where `frame`'s bytes are, for I/O. The caller owns the frame: it holds
    /// its latch exclusively until the I/O completed.
    #[inline]
    pub(crate) fn pointer(&self, frame: FrameId) -> *mut u8 {
        assert!(frame < self.count);
        // SAFETY: within the region.
        unsafe { self.pages.base.add(frame as usize * PAGE_SIZE) }
    }

    /// The whole array of pages, to register with a channel: base and length in bytes.
    pub(crate) fn region(&self) -> (*mut u8, usize) {
        (self.pages.base, self.pages.len)
    }

    /// Starts loading the header and these cache lines of `frame`, at most a
    /// page's, into the cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, frame: FrameId, lines: std::ops::Range<usize>) {
        let frame = if frame < self.count {
            frame as usize
        } else {
            0
        };
        // SAFETY: both pointers lie within their regions.
        unsafe {
            super::prefetch(self.headers.base.add(frame * 64));
            let page = self.pages.base.add(frame * PAGE_SIZE);
            for line in lines.start..lines.end.min(PAGE_SIZE / 64) {
                super::prefetch(page.add(64 * line));
            }
        }
    }
}
