//! The model's blocks: durable ones, and those in a volatile cache.

use std::collections::{BTreeMap, BTreeSet};

use super::Chance;

type Block = Box<[u8]>;

/// Blocks that were never written are zeros.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    durable: BTreeMap<u64, Block>,
    cache: BTreeMap<u64, Block>,
    spoiled: BTreeSet<u64>,
}

impl Disk {
    pub(super) fn spoil(&mut self, block: u64) {
        self.spoiled.insert(block);
    }

    /// Copies blocks from `first` on to `to`; false if one cannot be read.
    pub(super) fn read(&self, first: u64, to: &mut [u8], block_bytes: usize) -> bool {
        for (block, bytes) in (first..).zip(to.chunks_mut(block_bytes)) {
            if self.spoiled.contains(&block) {
                return false;
            }
            match self.cache.get(&block).or_else(|| self.durable.get(&block)) {
                Some(data) => bytes.copy_from_slice(data),
                None => bytes.fill(0),
            }
        }
        true
    }

    pub(super) fn write(&mut self, first: u64, data: &[u8], block_bytes: usize, durable: bool) {
        for (block, bytes) in (first..).zip(data.chunks(block_bytes)) {
            self.spoiled.remove(&block);
            match durable {
                true => {
                    self.cache.remove(&block);
                    self.durable.insert(block, bytes.into());
                }
                false => {
                    self.cache.insert(block, bytes.into());
                }
            }
        }
    }

    /// Writes some of the blocks, as a drive does whose power goes.
    pub(super) fn write_partly(
        &mut self,
        first: u64,
        data: &[u8],
        block_bytes: usize,
        chance: &mut Chance,
    ) {
        for (block, bytes) in (first..).zip(data.chunks(block_bytes)) {
            if chance.below(2) == 0 {
                self.write(block, bytes, block_bytes, false);
            }
        }
    }

    pub(super) fn flush(&mut self) {
        self.durable.append(&mut self.cache);
    }

    /// Each cached block survives or not.
    pub(super) fn lose_power(&mut self, chance: &mut Chance) {
        for (block, data) in std::mem::take(&mut self.cache) {
            if chance.below(2) == 0 {
                self.durable.insert(block, data);
            }
        }
    }
}
