//! Page-aligned memory for direct I/O.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Bytes of a huge page: from this size on a buffer is aligned to one, and the kernel advised to
/// use them.
pub const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory that direct I/O accepts: aligned to 4 KiB; to 2 MiB, with huge pages advised, from
/// 2 MiB up. It never moves: the address stays the same when the value itself is moved.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer exclusively owns its memory, like a `Box<[u8]>`.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access gives out `&[u8]` only (and raw pointers, whose use is the caller's
// `unsafe`).
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes. Large ones take physical memory only when touched.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX`. Aborts, like `Vec`, when there is no memory.
    pub fn new(len: usize) -> AlignedBuf {
        let layout = Self::layout(len);
        if len == 0 {
            return AlignedBuf {
                ptr: NonNull::dangling(),
                len,
            };
        }
        // SAFETY: `layout` has a non-zero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else {
            handle_alloc_error(layout)
        };
        if len >= HUGE_PAGE && !cfg!(miri) {
            // SAFETY: the range was just allocated and is page-aligned at its start; advice changes
            // no contents. A refusal only costs speed.
            unsafe { libc::madvise(raw.cast(), len & !(HUGE_PAGE - 1), libc::MADV_HUGEPAGE) };
        }
        AlignedBuf { ptr, len }
    }

    fn layout(len: usize) -> Layout {
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { 4096 };
        match Layout::from_size_align(len, align) {
            Ok(layout) => layout,
            Err(_) => panic!("a buffer of {len} bytes exceeds the address space"),
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The contents.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `ptr` owns `len` initialised bytes (or is dangling with `len` 0), shared like
        // `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The contents, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusive like `self`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// The address, to write to (an [`Io`](crate::Io) that reads).
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The address, to read from (an [`Io`](crate::Io) that writes).
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `new` with this very layout, and not freed before.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) };
        }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes at {:p})", self.len, self.ptr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_stable() {
        for len in [0, 1, 512, 4096, 65536, HUGE_PAGE, 3 * HUGE_PAGE + 4096] {
            let mut buf = AlignedBuf::new(len);
            let align = if len >= HUGE_PAGE { HUGE_PAGE } else { 4096 };
            if len > 0 {
                assert_eq!(buf.as_ptr() as usize % align, 0);
            }
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(0xa5);
            let address = buf.as_ptr();
            let moved = Box::new(buf);
            assert_eq!(moved.as_ptr(), address);
            assert!(moved.iter().all(|b| *b == 0xa5));
        }
    }
}
