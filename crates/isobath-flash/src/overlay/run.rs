//! An immutable sorted run.

use super::io::Io;
use super::{SCAN_RECORDS, Shape};

/// Records in key order, which begins at `start` and wraps: the merge that consumes them from the
/// front was there when they were sealed. What is left is a circular interval of keys.
#[derive(Debug, Clone)]
pub(super) struct Run {
    shape: Shape,
    pub(super) serial: u32,
    /// First key of the order.
    start: u32,
    keys: Vec<u32>,
    versions: Vec<u32>,
    /// Records that the merge has consumed.
    front: usize,
    /// A bit per key of the tree: whether the run has it.
    bits: Vec<u64>,
    /// Pages by number; empty before [`Run::write`], and a page that was freed is not read again.
    pages: Vec<u32>,
    freed: usize,
}

/// Places of keys in an order that begins at `start`.
fn turned(key: u32, start: u32, shape: Shape) -> u32 {
    match key >= start {
        true => key - start,
        false => key + (shape.records - start),
    }
}

impl Run {
    /// A run of records (key, version) in any order, not on the volume yet. Of a key that comes
    /// twice the first is taken.
    pub(super) fn new(shape: Shape, serial: u32, start: u32, mut records: Vec<(u32, u32)>) -> Run {
        records.sort_by_key(|&(key, _)| turned(key, start, shape));
        records.dedup_by_key(|record| record.0);
        let mut bits = vec![0; (shape.records as usize).div_ceil(64)];
        for &(key, _) in &records {
            bits[key as usize / 64] |= 1 << (key % 64);
        }
        let (keys, versions) = records.into_iter().unzip();
        Run {
            shape,
            serial,
            start,
            keys,
            versions,
            front: 0,
            bits,
            pages: Vec::new(),
            freed: 0,
        }
    }

    /// Writes the run unless it is on the volume.
    pub(super) fn write(&mut self, io: &mut Io) {
        if self.pages.is_empty() {
            self.pages = (0..self.shape.pages(self.keys.len()))
                .map(|_| io.take())
                .collect();
            self.pages.iter().for_each(|&page| io.write(page));
        }
    }

    /// Pages that are not freed, whether they are written or not.
    pub(super) fn live_pages(&self) -> u32 {
        self.shape.pages(self.keys.len()) - self.freed as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.front == self.keys.len()
    }

    /// The records that are left.
    pub(super) fn left(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let keys = self.keys[self.front..].iter().copied();
        keys.zip(self.versions[self.front..].iter().copied())
    }

    /// Consumes the records of `keys`, which lie at the front if there are any, and frees the pages
    /// that have no others. Counts the pages read.
    pub(super) fn consume(
        &mut self,
        keys: &std::ops::Range<u32>,
        io: &mut Io,
        mut each: impl FnMut(u32, u32),
    ) {
        let first = self.front;
        while self.front < self.keys.len() && keys.contains(&self.keys[self.front]) {
            let key = self.keys[self.front];
            self.bits[key as usize / 64] &= !(1 << (key % 64));
            each(key, self.versions[self.front]);
            self.front += 1;
        }
        if self.front > first {
            let per_page = self.shape.per_leaf as usize;
            io.merge_reads += ((self.front - 1) / per_page - first / per_page + 1) as u64;
            let whole = match self.is_empty() {
                true => self.pages.len(),
                false => self.front / per_page,
            };
            self.free(whole, io);
        }
    }

    /// Frees all pages, if the run was written, after they were read for a merge.
    pub(super) fn discard(&mut self, io: &mut Io) {
        io.merge_reads += (self.pages.len() - self.freed) as u64;
        self.free(self.pages.len(), io);
    }

    fn free(&mut self, end: usize, io: &mut Io) {
        while self.freed < end {
            io.release(self.pages[self.freed]);
            self.freed += 1;
        }
    }

    /// Records before `key` in the run's order.
    fn rank(&self, key: u32) -> usize {
        let place = turned(key, self.start, self.shape);
        self.keys
            .partition_point(|&other| turned(other, self.start, self.shape) < place)
    }

    fn has(&self, key: u32) -> bool {
        self.bits[key as usize / 64] >> (key % 64) & 1 == 1
    }

    /// What the run's filter says.
    pub(super) fn may_have(&self, key: u32, false_positives: f64) -> bool {
        self.has(key) || hash(key, self.serial) < false_positives
    }

    /// The version of `key`, read from its page. Without one, the filter says "maybe" with
    /// probability `false_positives`, and the page where it would be is read.
    pub(super) fn get(&self, key: u32, false_positives: f64, io: &mut Io) -> Option<u32> {
        if !self.may_have(key, false_positives) {
            return None;
        }
        let has = self.has(key);
        let at = self.rank(key);
        if !has && (at < self.front || at >= self.keys.len()) {
            return None;
        }
        io.read(self.pages[at / self.shape.per_leaf as usize], 1);
        has.then(|| self.versions[at])
    }

    /// Pages that a scan from `key` on reads from the device: at least the one where it begins.
    pub(super) fn scan(&self, key: u32, io: &Io) -> u32 {
        let end = (key + SCAN_RECORDS - 1).min(self.shape.records - 1);
        let first = self.rank(key).max(self.front);
        let last = self.rank(end).min(self.keys.len() - 1);
        let per_page = self.shape.per_leaf as usize;
        match first <= last {
            true => {
                let pages = &self.pages[first / per_page..=last / per_page];
                pages.iter().filter(|&&page| !io.is_cached(page)).count() as u32
            }
            false => 0,
        }
    }
}

/// A number in [0, 1) for a key and a run.
pub(super) fn hash(key: u32, serial: u32) -> f64 {
    let mixed = (u64::from(serial) << 32 | u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}
