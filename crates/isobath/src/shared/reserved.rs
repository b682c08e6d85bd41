//! Arrays of atomic words in a virtual range that never moves and costs memory
//! only where it was touched.

#![allow(unsafe_code)]

use crate::sync::atomic::AtomicU64;

/// `capacity` zeroed atomic words.
pub(crate) struct ReservedWords {
    words: *const AtomicU64,
    capacity: u64,
}

// SAFETY: a fixed array of atomics; the pointer is never reassigned.
unsafe impl Send for ReservedWords {}
// SAFETY: as above, every access is atomic.
unsafe impl Sync for ReservedWords {}

impl ReservedWords {
    /// Reserves address space for `capacity` words, all zero.
    ///
    /// # Errors
    ///
    /// The system's error where that much address space is refused.
    pub(crate) fn reserve(capacity: u64) -> std::io::Result<ReservedWords> {
        let bytes = usize::try_from(capacity * 8).map_err(std::io::Error::other)?;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(ReservedWords {
            words: base.cast(),
            capacity,
        })
    }

    /// Number of words.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Gives the memory back; all words are zero from now on.
    pub(crate) fn discard(&self) {
        let bytes = (self.capacity * 8) as usize;
        // SAFETY: the range was mapped by `reserve` with this length, and zero is a value like
        // others. A failure leaves the memory taken until self is dropped.
        unsafe {
            libc::madvise(self.words.cast_mut().cast(), bytes, libc::MADV_DONTNEED);
        }
    }

    /// The word at `index`; word 0 for an index past the end, which only a
    /// torn optimistic read can produce.
    #[inline(always)]
    pub(crate) fn at(&self, index: u64) -> &AtomicU64 {
        let index = if index < self.capacity { index } else { 0 };
        // SAFETY: `index` is below `capacity`, and the mapping lives as long as self.
        unsafe { &*self.words.add(index as usize) }
    }
}

impl Drop for ReservedWords {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `reserve` with this length.
        unsafe {
            libc::munmap(self.words.cast_mut().cast(), (self.capacity * 8) as usize);
        }
    }
}
