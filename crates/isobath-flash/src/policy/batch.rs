//! Sorting batches of pages.

use super::PageWrite;

/// Batches below this are sorted by comparing.
const SMALL: usize = 128;
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;

/// Sorts batches of pages by an integer key, and keeps the memory for it.
///
/// A sort buffer is sorted for every few thousand pages written, and comparing would cost more than
/// all the rest of a simulated write; here it is a few passes of a radix sort over keys and
/// positions.
#[derive(Debug, Clone, Default)]
pub(super) struct BatchSorter {
    /// Key in the high half, position in the low half.
    keys: Vec<u64>,
    spare: Vec<u64>,
    pages: Vec<PageWrite>,
}

impl BatchSorter {
    /// Sorts `batch` by `key`, ascending or descending; equal keys keep their order either way.
    pub(super) fn sort(
        &mut self,
        batch: &mut [PageWrite],
        descending: bool,
        mut key: impl FnMut(&PageWrite) -> u64,
    ) {
        if batch.len() < 2 {
            return;
        }
        let (mut least, mut most) = (u64::MAX, 0);
        for page in batch.iter() {
            let key = key(page);
            least = least.min(key);
            most = most.max(key);
        }
        let range = most - least;
        if batch.len() < SMALL || range > u64::from(u32::MAX) {
            let relative = |page: &PageWrite| {
                let key = key(page);
                if descending { most - key } else { key }
            };
            return batch.sort_by_cached_key(relative);
        }
        self.keys.clear();
        self.keys.extend(batch.iter().enumerate().map(|(at, page)| {
            let key = key(page);
            let relative = if descending { most - key } else { key - least };
            relative << 32 | at as u64
        }));
        let mut shift = 32;
        while shift == 32 || range >> (shift - 32) > 0 {
            self.pass(shift);
            shift += DIGIT_BITS;
        }
        self.pages.clear();
        self.pages.extend_from_slice(batch);
        for (page, &key) in batch.iter_mut().zip(&self.keys) {
            *page = self.pages[key as u32 as usize];
        }
    }

    /// One stable pass over the digit at `shift`.
    fn pass(&mut self, shift: u32) {
        let digit = |key: u64| (key >> shift) as usize % DIGITS;
        let mut starts = [0u32; DIGITS];
        for &key in &self.keys {
            starts[digit(key)] += 1;
        }
        let mut before = 0;
        for start in &mut starts {
            (*start, before) = (before, before + *start);
        }
        self.spare.resize(self.keys.len(), 0);
        for &key in &self.keys {
            let start = &mut starts[digit(key)];
            self.spare[*start as usize] = key;
            *start += 1;
        }
        std::mem::swap(&mut self.keys, &mut self.spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Cause, History};
    use crate::rng::Rng;

    fn batch(n: u64, key: impl FnMut(u64) -> u64) -> Vec<PageWrite> {
        let page = |(token, history)| PageWrite {
            token,
            bytes: 1,
            cause: Cause::User,
            history: History(history),
            rate: 0.0,
        };
        (0..n).zip((0..n).map(key)).map(page).collect()
    }

    #[test]
    fn sorts_as_the_standard_library_does_and_keeps_equal_pages_in_order() {
        let mut rng = Rng::new(5);
        let mut sorter = BatchSorter::default();
        for n in [0, 1, 2, 100, 128, 3000] {
            for bits in [0, 1, 5, 11, 12, 30, 32, 33, 63] {
                let base = rng.bits() >> 1;
                let pages = batch(n, |_| base + (rng.bits() >> 1 >> (63 - bits)));
                let (mut up, mut down) = (pages.clone(), pages.clone());
                sorter.sort(&mut up, false, |page| page.history.0);
                sorter.sort(&mut down, true, |page| page.history.0);
                let mut expected = pages.clone();
                expected.sort_by_key(|page| page.history);
                assert_eq!(up, expected, "n {n} bits {bits}");
                expected = pages;
                expected.sort_by_key(|page| std::cmp::Reverse(page.history));
                assert_eq!(down, expected, "n {n} bits {bits}");
            }
        }
    }
}
