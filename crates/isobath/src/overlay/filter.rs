//! A blocked Bloom filter: which keys a run may have. A block is one cache line.

use crate::sync::atomic::Ordering;
use crate::sync::bytes::AtomicU64;

/// Bits that a key sets, all in one block.
const SET: u32 = 6;
const BLOCK_BITS: u64 = 512;
const BLOCK_WORDS: usize = (BLOCK_BITS / 64) as usize;

/// The keys of a run, about: it says `true` of each of them, and of some in a hundred others.
pub(crate) struct Filter {
    blocks: Vec<[AtomicU64; BLOCK_WORDS]>,
}

impl Filter {
    /// Bits per key.
    pub(crate) const BITS: u64 = 10;

    /// Of up to `keys` keys.
    pub(crate) fn new(keys: u64) -> Filter {
        let blocks = (keys * Filter::BITS).div_ceil(BLOCK_BITS).max(1);
        Filter {
            blocks: (0..blocks).map(|_| Default::default()).collect(),
        }
    }

    /// Adds a key. Who is to find it there takes its [`Levels`](super::Levels) afterwards.
    pub(crate) fn add(&self, key: &[u8]) {
        let (block, bits) = self.place(key);
        for bit in bits {
            self.blocks[block][bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
    }

    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        let (block, mut bits) = self.place(key);
        let word = |bit: usize| self.blocks[block][bit / 64].load(Ordering::Relaxed);
        bits.all(|bit| word(bit) & 1 << (bit % 64) != 0)
    }

    /// The block of a key, and the bits there.
    fn place(&self, key: &[u8]) -> (usize, impl Iterator<Item = usize> + use<>) {
        let hash = hash(key);
        let blocks = self.blocks.len() as u128;
        let block = ((u128::from(hash) * blocks) >> 64) as usize;
        let mut rest = mix(hash ^ 0x9e37_79b9_7f4a_7c15);
        let bits = (0..SET).map(move |_| {
            let bit = rest % BLOCK_BITS;
            rest /= BLOCK_BITS;
            bit as usize
        });
        (block, bits)
    }
}

fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

fn hash(key: &[u8]) -> u64 {
    let mut hash = key.len() as u64;
    for part in key.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        hash = mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ u64::from_le_bytes(bytes));
    }
    mix(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_forgets_none_and_refuses_most_others() {
        let key = |n: u64| [&b"key"[..], &n.to_le_bytes()].concat();
        let filter = Filter::new(10_000);
        (0..10_000).for_each(|n| filter.add(&key(n)));
        assert!((0..10_000).all(|n| filter.may_have(&key(n))));
        let wrong = (10_000..110_000).filter(|n| filter.may_have(&key(*n)));
        assert!(wrong.count() < 3_000);
    }
}
