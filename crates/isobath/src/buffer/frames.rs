//! The pool's memory: an array of 4 KiB frames and an array of one header per
//! frame, both in huge pages if the system gives them.
//!
//! Both are reserved at the pool's limit and take memory as they are touched. Frames are
//! used in ascending order, so the memory taken is that of the frames used so far.

#![allow(unsafe_code)]

use std::sync::Arc;

use isobath_io::HUGE_PAGE;

use super::frame_state::FrameHeader;
use super::mapping::FrameId;
use crate::node::{Words, prefetch};
use crate::page::PAGE_SIZE;
use crate::small;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Bytes of memory that one frame costs: the page and its header.
pub(crate) const FRAME_COST: usize = PAGE_SIZE + std::mem::size_of::<FrameHeader>();

/// Headers that are looked at before other tasks have a turn: some 50 µs.
const FRAMES_AT_ONCE: u32 = 1 << 14;

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

    /// Gives the memory back; the bytes are zero from now on.
    fn discard(&self) {
        // Whole pages; what is rounded up lies in the mapping, behind the region's end.
        let len = self.len.next_multiple_of(PAGE_SIZE);
        // SAFETY: the range lies in the mapping, which nothing else uses. All access goes through
        // atomics, for which zero is a value like others. A failure leaves the memory taken until
        // the region is dropped.
        unsafe {
            libc::madvise(self.base.cast(), len, libc::MADV_DONTNEED);
        }
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

/// The bytes of all frames, mapped until the last owner drops them.
pub(super) struct Pages(Region);

// SAFETY: as for `Frames`.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// The bytes of `frame`.
    #[inline(always)]
    pub(super) fn words(&self, frame: FrameId) -> &Words {
        assert!((frame as usize) < self.0.len / PAGE_SIZE);
        // SAFETY: within the region; every bit pattern is valid for atomics.
        unsafe { &*self.0.base.add(frame as usize * PAGE_SIZE).cast::<Words>() }
    }
}

/// The frames and their headers.
pub(crate) struct Frames {
    pages: Arc<Pages>,
    /// The first frame's bytes: that of `pages`, at hand.
    base: *mut u8,
    headers: Region,
    count: u32,
    /// Frames below this were used; the others' memory was never touched.
    used: AtomicU32,
}

// SAFETY: the regions are fixed; all access goes through atomics, or through
// I/O into frames that their latch keeps to one owner.
unsafe impl Send for Frames {}
// SAFETY: as above.
unsafe impl Sync for Frames {}

impl Frames {
    /// Reserves `count` frames. Zero bytes are a free frame's header: its latch is held
    /// exclusively.
    ///
    /// # Errors
    ///
    /// The system's error where the address space is refused.
    pub(crate) fn map(count: u32) -> std::io::Result<Frames> {
        let pages = Arc::new(Pages(Region::map(count as usize * PAGE_SIZE)?));
        let headers = Region::map(count as usize * std::mem::size_of::<FrameHeader>())?;
        Ok(Frames {
            base: pages.0.base,
            pages,
            headers,
            count,
            used: AtomicU32::new(0),
        })
    }

    /// Number of frames, from the first on, that were ever used. What looks at all frames looks at
    /// these: a frame that was used before something else happened is among them after that.
    #[inline]
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// The frames that were ever used, as [`Frames::used`] has them. After so many of them that a
    /// worker's other tasks should have a turn, `pause` runs, which may yield: what needs all
    /// frames at one moment cannot use this.
    pub(crate) fn each_used(&self, mut pause: impl FnMut()) -> impl Iterator<Item = FrameId> {
        let at_once = small::frames_at_once(FRAMES_AT_ONCE);
        (0..self.used()).inspect(move |frame| {
            if frame % at_once == at_once - 1 {
                pause();
            }
        })
    }

    /// Takes up to `most` frames into use that never were; for one caller at a time.
    pub(super) fn use_more(&self, most: u32) -> std::ops::Range<FrameId> {
        let from = self.used.load(Ordering::Relaxed);
        let to = self.count.min(from.saturating_add(most));
        self.used.store(to, Ordering::Release);
        from..to
    }

    /// The frames' bytes, to share.
    pub(super) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// Gives the headers' memory back. From here on every latch is held exclusively, so that
    /// nothing that was read without a latch counts.
    pub(crate) fn discard_headers(&self) {
        self.headers.discard();
    }

    /// Gives the pages' memory back, after [`Frames::discard_headers`]: a reader that sees a page's
    /// bytes gone sees that its latch is held. No frame is lent any more.
    pub(crate) fn discard_pages(&self) {
        self.pages.0.discard();
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
        // SAFETY: within the region; zero bytes are a valid header.
        unsafe { &*self.headers.base.cast::<FrameHeader>().add(frame as usize) }
    }

    /// The bytes of `frame`.
    #[inline(always)]
    pub(crate) fn words(&self, frame: FrameId) -> &Words {
        assert!(frame < self.count);
        // SAFETY: within the region; every bit pattern is valid for atomics.
        unsafe { &*self.base.add(frame as usize * PAGE_SIZE).cast::<Words>() }
    }

    /// Where `frame`'s bytes are, for I/O. The caller owns the frame: it holds
    /// its latch exclusively until the I/O completed.
    #[inline]
    pub(crate) fn pointer(&self, frame: FrameId) -> *mut u8 {
        assert!(frame < self.count);
        // SAFETY: within the region.
        unsafe { self.base.add(frame as usize * PAGE_SIZE) }
    }

    /// The bytes of these frames, to register with a channel: base and length in bytes.
    pub(crate) fn region(&self, frames: std::ops::Range<FrameId>) -> (*mut u8, usize) {
        assert!(frames.start <= frames.end && frames.end <= self.count);
        // SAFETY: within the region.
        let base = unsafe { self.base.add(frames.start as usize * PAGE_SIZE) };
        (base, frames.len() * PAGE_SIZE)
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
            prefetch(self.headers.base.add(frame * 64));
            let page = self.base.add(frame * PAGE_SIZE);
            for line in lines.start..lines.end.min(PAGE_SIZE / 64) {
                prefetch(page.add(64 * line));
            }
        }
    }
}
