//! Upserts in leaves: written whole, or as deltas.

use super::io::{DELTA_UNIT, Io};
use super::{Design, Model, OverlayParams, Shape};

/// Header of a delta on the volume.
const DELTA_HEADER_BYTES: u32 = 32;

/// What write-back writes of a leaf.
#[derive(Debug, Clone, Copy)]
enum WriteBack {
    Whole,
    /// All records changed since the leaf was written whole, until they are more than this.
    Cumulative(u32),
    /// A delta more, until there are this many.
    Chained(usize),
}

/// A leaf's state. Bit i of a mask is the leaf's record i.
#[derive(Debug, Clone, Default)]
struct Leaf {
    /// Records that changed in memory since the last write-back.
    changed: u128,
    /// Records that the deltas have.
    in_deltas: u128,
    deltas: Vec<Vec<u32>>,
}

#[derive(Debug)]
pub(super) struct Leaves {
    shape: Shape,
    write_back: WriteBack,
    record_bytes: u32,
    units_per_leaf: u32,
    leaves: Vec<Leaf>,
    deltas: u64,
    /// Versions by record: in the leaf on the volume, in its deltas, in memory.
    base: Vec<u32>,
    delta: Vec<u32>,
    memory: Vec<u32>,
}

impl Leaves {
    pub(super) fn new(params: &OverlayParams, shape: Shape, io: &mut Io) -> Leaves {
        let units_per_leaf = params.page_bytes / io.unit_bytes;
        for _ in 0..shape.leaves * units_per_leaf {
            let unit = io.take();
            io.write(unit);
        }
        let versions = || vec![0; shape.records as usize];
        Leaves {
            shape,
            write_back: match params.design {
                Design::Cumulative { share } => {
                    WriteBack::Cumulative((share * f64::from(shape.per_leaf)) as u32)
                }
                Design::Chained { deltas } => WriteBack::Chained(deltas as usize),
                _ => WriteBack::Whole,
            },
            record_bytes: params.record_bytes,
            units_per_leaf,
            leaves: vec![Leaf::default(); shape.leaves as usize],
            deltas: 0,
            base: versions(),
            delta: versions(),
            memory: versions(),
        }
    }

    /// Brings a leaf into memory, and writes back the one that leaves.
    fn fetch(&mut self, leaf: u32, io: &mut Io) {
        let reads = 1 + self.leaves[leaf as usize].deltas.len() as u64;
        if let Some(left) = io.read(leaf, reads)
            && self.leaves[left as usize].changed != 0
        {
            self.write_back(left, io);
        }
    }

    /// Units of a delta of these records.
    fn delta_units(&self, records: u128) -> u32 {
        let bytes = DELTA_HEADER_BYTES + records.count_ones() * self.record_bytes;
        bytes.div_ceil(DELTA_UNIT)
    }

    fn write_back(&mut self, at: u32, io: &mut Io) {
        let leaf = &self.leaves[at as usize];
        let all = leaf.changed | leaf.in_deltas;
        let (is_whole, mask) = match self.write_back {
            WriteBack::Whole => (true, all),
            WriteBack::Cumulative(most) => (all.count_ones() > most, all),
            WriteBack::Chained(most) => {
                let units = leaf.deltas.iter().map(Vec::len).sum::<usize>() as u32
                    + self.delta_units(leaf.changed);
                let is_whole = leaf.deltas.len() >= most || 2 * units > self.units_per_leaf;
                (is_whole, leaf.changed)
            }
        };
        let units = self.delta_units(mask);
        let leaf = &mut self.leaves[at as usize];
        let is_replaced = is_whole || matches!(self.write_back, WriteBack::Cumulative(_));
        if is_replaced {
            self.deltas -= leaf.deltas.len() as u64;
            let old = leaf.deltas.drain(..).flatten();
            old.for_each(|unit| io.release(unit));
        }
        let first = at * self.shape.per_leaf;
        let of = |mask: u128| (0..u128::BITS).filter(move |bit| mask >> bit & 1 == 1);
        for key in of(leaf.changed).map(|bit| (first + bit) as usize) {
            self.delta[key] = self.memory[key];
        }
        leaf.changed = 0;
        if is_whole {
            for key in of(all).map(|bit| (first + bit) as usize) {
                self.base[key] = self.delta[key];
            }
            leaf.in_deltas = 0;
            let units = at * self.units_per_leaf..(at + 1) * self.units_per_leaf;
            units.for_each(|unit| io.write(unit));
            return;
        }
        leaf.in_deltas = all;
        let units: Vec<u32> = (0..units).map(|_| io.take()).collect();
        units.iter().for_each(|&unit| io.write(unit));
        leaf.deltas.push(units);
        self.deltas += 1;
    }
}

impl Model for Leaves {
    fn update(&mut self, key: u32, version: u32, _is_new: bool, io: &mut Io) {
        let leaf = key / self.shape.per_leaf;
        self.fetch(leaf, io);
        self.leaves[leaf as usize].changed |= 1 << (key % self.shape.per_leaf);
        self.memory[key as usize] = version;
    }

    fn lookup(&mut self, key: u32, io: &mut Io) -> u32 {
        let leaf = key / self.shape.per_leaf;
        self.fetch(leaf, io);
        let (leaf, bit) = (&self.leaves[leaf as usize], key % self.shape.per_leaf);
        let has = |mask: u128| mask >> bit & 1 == 1;
        let versions = match (has(leaf.changed), has(leaf.in_deltas)) {
            (true, _) => &self.memory,
            (false, true) => &self.delta,
            (false, false) => &self.base,
        };
        versions[key as usize]
    }

    fn scan(&self, key: u32, io: &Io) -> u32 {
        let leaves = self.shape.scanned_leaves(key);
        let missing = leaves.filter(|&leaf| !io.is_cached(leaf));
        missing
            .map(|leaf| 1 + self.leaves[leaf as usize].deltas.len() as u32)
            .sum()
    }

    fn parts(&self) -> f64 {
        self.deltas as f64 / f64::from(self.shape.leaves)
    }
}
