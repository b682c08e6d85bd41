//! The bytes of a frame, reached only through relaxed atomic words.
//!
//! A writer may change a page while optimistic readers look at it. Both sides
//! therefore go through 64-bit relaxed atomic accesses: what a reader sees may
//! be torn, but it is never undefined, and validation of the latch's version
//! throws it away. Offsets are masked or checked, so that a torn offset can
//! never lead outside the page.

use std::cmp::Ordering;

use crate::page::PAGE_SIZE;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::bytes::{AtomicU64, point};

const WORDS: usize = PAGE_SIZE / 8;

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

/// The 4 KiB of one frame as 512 atomic words, little-endian.
#[repr(transparent)]
pub(crate) struct Words([AtomicU64; WORDS]);

impl Words {
    /// A zeroed page outside the pool.
    pub(crate) fn zeroed() -> Box<Words> {
        Box::new(Words(std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// The aligned word that contains byte `at`; `at` wraps at the page's end.
    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        u64::from_le(self.0[index & (WORDS - 1)].load(Relaxed))
    }

    #[inline(always)]
    fn set_word(&self, index: usize, value: u64) {
        self.0[index & (WORDS - 1)].store(value.to_le(), Relaxed);
    }

    /// The eight bytes at any `at`, as a little-endian number; bytes past the
    /// page's end wrap to its start and mean nothing.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn u64_at(&self, at: usize) -> u64 {
        point();
        let (index, shift) = (at >> 3, (at & 7) * 8);
        let low = self.word(index);
        if shift == 0 {
            low
        } else {
            low >> shift | self.word(index + 1) << (64 - shift)
        }
    }

    /// Copies `into.len()` bytes from `at`; `false`, and nothing copied, where
    /// they would pass the page's end.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, into: &mut [u8]) -> bool {
        if at + into.len() > PAGE_SIZE {
            return false;
        }
        let mut from = at;
        let mut chunks = into.chunks_exact_mut(8);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&self.u64_at(from).to_le_bytes());
            from += 8;
        }
        let tail = chunks.into_remainder();
        if !tail.is_empty() {
            let length = tail.len();
            tail.copy_from_slice(&self.u64_at(from).to_le_bytes()[..length]);
        }
        true
    }

    /// Appends `length` bytes from `at` to `into`; `false` if they would
    /// pass the page's end.
    #[inline]
    pub(crate) fn append_to(&self, at: usize, length: usize, into: &mut Vec<u8>) -> bool {
        let start = into.len();
        if at + length > PAGE_SIZE {
            return false;
        }
        into.resize(start + length, 0);
        self.copy_out(at, &mut into[start..])
    }

    /// Compares the `length` bytes at `at` with `other`, as byte strings;
    /// `None` if they would pass the page's end.
    #[inline]
    pub(crate) fn compare(&self, at: usize, length: usize, other: &[u8]) -> Option<Ordering> {
        if at + length > PAGE_SIZE {
            return None;
        }
        let common = length.min(other.len());
        let mut done = 0;
        while done < common {
            let step = (common - done).min(8);
            let mut theirs = [0; 8];
            theirs[..step].copy_from_slice(&other[done..done + step]);
            let keep = u64::MAX >> (64 - 8 * step);
            let ours = (self.u64_at(at + done) & keep).swap_bytes();
            let theirs = u64::from_le_bytes(theirs).swap_bytes();
            if ours != theirs {
                return Some(ours.cmp(&theirs));
            }
            done += step;
        }
        Some(length.cmp(&other.len()))
    }

    /// Copies the whole page out.
    pub(crate) fn load_all(&self, into: &mut [u8; PAGE_SIZE]) {
        // Eight words a round, so that a round costs little beside their copies.
        let (lines, _) = into.as_chunks_mut::<64>();
        for (line, words) in lines.iter_mut().zip(self.0.as_chunks::<8>().0) {
            point();
            for (bytes, word) in line.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *bytes = u64::from_le(word.load(Relaxed)).to_le_bytes();
            }
        }
    }

    /// Overwrites the whole page. The caller holds the latch exclusively.
    pub(crate) fn store_all(&self, from: &[u8; PAGE_SIZE]) {
        for (index, chunk) in from.chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            if index.is_multiple_of(8) {
                point();
            }
            self.set_word(index, u64::from_le_bytes(word));
        }
    }

    /// Overwrites `bytes.len()` bytes at `at`. The caller holds the latch
    /// exclusively; the range lies within the page.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE_SIZE);
        let mut done = 0;
        while done < bytes.len() {
            let position = at + done;
            let within = position & 7;
            let step = (8 - within).min(bytes.len() - done);
            let mut word = [0; 8];
            word[within..within + step].copy_from_slice(&bytes[done..done + step]);
            let mask = (u64::MAX >> (64 - 8 * step)) << (8 * within);
            let index = position >> 3;
            point();
            let old = if step == 8 {
                0
            } else {
                self.word(index) & !mask
            };
            self.set_word(index, old | u64::from_le_bytes(word));
            done += step;
        }
    }

    /// Writes a `u16` at `at`, a multiple of 2, under the exclusive latch.
    #[inline]
    pub(crate) fn put_u16(&self, at: usize, value: u16) {
        self.write(at, &value.to_le_bytes());
    }

    /// Writes a `u64` at `at`, a multiple of 8, under the exclusive latch.
    #[inline(always)]
    pub(crate) fn set_u64_aligned(&self, at: usize, value: u64) {
        debug_assert!(at & 7 == 0 && at < PAGE_SIZE);
        self.set_word(at >> 3, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_byte_array(
            ops in prop::collection::vec((0usize..PAGE_SIZE, prop::collection::vec(any::<u8>(), 0..200), 0usize..PAGE_SIZE), 1..20),
        ) {
            let words = Words::zeroed();
            let mut model = [0u8; PAGE_SIZE];
            for (at, bytes, to) in ops {
                let bytes = &bytes[..bytes.len().min(PAGE_SIZE - at)];
                words.write(at, bytes);
                model[at..at + bytes.len()].copy_from_slice(bytes);
                let length = bytes.len().min(PAGE_SIZE - to);
                let mut out = vec![0; length];
                prop_assert!(words.copy_out(to, &mut out));
                prop_assert_eq!(&out[..], &model[to..to + length]);
                prop_assert_eq!(words.compare(to, length, bytes), Some(model[to..to + length].cmp(bytes)));
            }
            let mut all = [0; PAGE_SIZE];
            words.load_all(&mut all);
            prop_assert_eq!(&all[..], &model[..]);
        }
    }

    #[test]
    fn torn_offsets_stay_inside_the_page() {
        let words = Words::zeroed();
        assert!(!words.copy_out(PAGE_SIZE - 3, &mut [0; 4]));
        assert_eq!(words.compare(PAGE_SIZE, 1, b"x"), None);
        assert_eq!(words.u64_at(PAGE_SIZE - 1), 0);
    }
}
