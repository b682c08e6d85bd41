//! The log's memory: bytes that were appended and are not on the drive yet.

#![allow(unsafe_code)]

use isobath_io::AlignedBuf;

/// A ring of bytes; an LSN modulo its size is a position in it.
pub(super) struct Ring {
    base: *mut u8,
    mask: u64,
    /// Owns the memory; never touched while the ring lives.
    _memory: AlignedBuf,
}

// SAFETY: the memory is the ring's own. A writer of a range has taken it
// alone (`InFlightLsns`), and a reader of it has seen its mark cleared.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// A ring of `bytes`, a power of two.
    pub(super) fn new(bytes: u64) -> Ring {
        assert!(bytes.is_power_of_two() && bytes >= 4096);
        let mut memory = AlignedBuf::new(bytes as usize);
        Ring {
            base: memory.as_mut_ptr(),
            mask: bytes - 1,
            _memory: memory,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.mask + 1
    }

    /// The whole memory, for registration with a channel.
    pub(super) fn region(&self) -> (*mut u8, usize) {
        (self.base, self.bytes() as usize)
    }

    /// Gives the memory back; for the ring's last user.
    pub(super) fn discard(&self) {
        // SAFETY: the memory is the ring's own, a multiple of a page long, and its bytes are not
        // needed. A failure leaves it taken until the ring is dropped.
        unsafe {
            libc::madvise(self.base.cast(), self.bytes() as usize, libc::MADV_DONTNEED);
        }
    }

    /// Copies `bytes` to where `lsn` lies.
    ///
    /// # Safety
    ///
    /// The range was taken by the caller, is not marked complete yet, and what
    /// it held a lap ago is on the drive.
    #[inline]
    pub(super) unsafe fn write(&self, lsn: u64, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= self.bytes());
        let at = (lsn & self.mask) as usize;
        let first = bytes.len().min(self.bytes() as usize - at);
        // SAFETY: both parts lie within the memory; no other thread accesses the
        // range, by contract.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), first);
            if first < bytes.len() {
                let rest = &bytes[first..];
                std::ptr::copy_nonoverlapping(rest.as_ptr(), self.base, rest.len());
            }
        }
    }

    /// The memory of `[start, end)`, in at most two pieces: (LSN, first byte, length).
    pub(super) fn pieces(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, *const u8, u64)> {
        debug_assert!(end - start <= self.bytes());
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let position = at & self.mask;
            let count = (self.bytes() - position).min(end - at);
            let lsn = at;
            at += count;
            // SAFETY: `position` lies within the memory.
            Some((
                lsn,
                unsafe { self.base.add(position as usize) }.cast_const(),
                count,
            ))
        })
    }
}
