//! The records of a stress store, and which client may write which.
//!
//! Every record has a number. Those of the tree `main` and of the scratch trees
//! belong to owners, each of which one thread is, so that this thread knows at
//! all times what they must be. Those of the tree `shared` are numbers that
//! transactions of all threads change.

use std::path::{Path, PathBuf};

use crate::crash::Problem;
use crate::history::{Key, Version};
use crate::random::Random;

/// Owners of records; the threads of a round share them out.
pub(super) const OWNERS: u64 = 16;
/// Records of a scratch tree.
pub(super) const SCRATCH: u64 = 400;
/// Records behind all others of the tree `main`, for bulk loads; owner 0's.
pub(super) const TAIL: u64 = 400;
/// Shared numbers: counters go up by one, accounts keep their sum, and the sum of
/// a pair is never negative where serializable transactions change it.
pub(super) const COUNTERS: u64 = 8;
pub(super) const ACCOUNTS: u64 = 24;
pub(super) const PAIRS: u64 = 4;
pub(super) const SHARED: u64 = COUNTERS + ACCOUNTS + 2 * PAIRS;
/// The version that stands for 0 in a shared number, and in a change of one.
pub(super) const ZERO: Version = 1 << 32;
/// Digits that a key of `main` begins with.
const DIGITS: usize = 9;
/// Bytes that a record takes, about.
const RECORD_BYTES: u64 = 1000;

/// All records that can exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct World {
    /// Records of `main` without its tail.
    pub(super) spread: u64,
}

impl World {
    pub(super) fn of_bytes(bytes: u64) -> World {
        let records = (bytes / RECORD_BYTES).clamp(64 * OWNERS, 1 << 31);
        World {
            spread: records.next_multiple_of(OWNERS),
        }
    }

    /// Records of `main`.
    pub(super) fn main(&self) -> u64 {
        self.spread + TAIL
    }

    /// All numbers.
    pub(super) fn records(&self) -> u64 {
        self.shared(SHARED)
    }

    /// The record of a scratch tree; the one at [`SCRATCH`] stands for the tree.
    pub(super) fn scratch(&self, owner: u64, at: u64) -> u64 {
        self.main() + owner * (SCRATCH + 1) + at
    }

    /// The shared record `at`.
    pub(super) fn shared(&self, at: u64) -> u64 {
        self.scratch(OWNERS, 0) + at
    }

    /// The place of a record among the shared ones.
    pub(super) fn shared_at(&self, record: u64) -> Option<u64> {
        record.checked_sub(self.shared(0))
    }

    /// The client that owns a record of `main`.
    pub(super) fn owner(&self, record: u64) -> u64 {
        if record < self.spread {
            record % OWNERS
        } else {
            0
        }
    }

    /// The records at the beginning: three of four of those that are spread, and
    /// the shared ones.
    pub(super) fn first(&self) -> Vec<Version> {
        let mut first = vec![0; self.records() as usize];
        for record in 0..self.spread {
            if !mixed(record).is_multiple_of(4) {
                first[record as usize] = record + 1;
            }
        }
        for at in 0..SHARED {
            first[self.shared(at) as usize] = ZERO + start_of(at);
        }
        first
    }

    /// A record as a message names it.
    pub(super) fn describe(&self, record: u64) -> String {
        if record < self.main() {
            return format!("main/{record}");
        }
        if let Some(at) = self.shared_at(record) {
            return format!("shared/{at}");
        }
        let at = record - self.main();
        let (owner, at) = (at / (SCRATCH + 1), at % (SCRATCH + 1));
        if at == SCRATCH {
            return format!("tree {}", scratch_name(owner));
        }
        format!("{}/{at}", scratch_name(owner))
    }
}

/// A shared number's first value.
fn start_of(at: u64) -> u64 {
    match at {
        ..COUNTERS => 0,
        _ => 100,
    }
}

/// The sum of all accounts, always.
pub(super) const ACCOUNTS_SUM: u64 = ACCOUNTS * 100;

fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// The key of a record of `main`.
pub(super) fn main_key(record: u64) -> Vec<u8> {
    let mut key = format!("{record:0DIGITS$}").into_bytes();
    let padding = [0, 0, 0, 5, 30, 200][(mixed(record) / 4 % 6) as usize];
    key.resize(key.len() + padding, b'-');
    key
}

/// The record of `main` that has this key.
pub(super) fn main_record(key: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(key.get(..DIGITS)?).ok()?;
    let record = digits.parse().ok()?;
    (main_key(record) == key).then_some(record)
}

/// The key of the record `at` of a scratch tree.
pub(super) fn scratch_key(at: u64) -> Vec<u8> {
    format!("s{at:05}").into_bytes()
}

/// The record of a scratch tree that has this key.
pub(super) fn scratch_at(key: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(key.strip_prefix(b"s")?).ok()?;
    let at = digits.parse().ok()?;
    (at < SCRATCH && scratch_key(at) == key).then_some(at)
}

pub(super) fn scratch_name(owner: u64) -> String {
    format!("scratch-{owner}")
}

/// The key of a shared record.
pub(super) fn shared_key(at: u64) -> Vec<u8> {
    format!("{at:03}").into_bytes()
}

/// Bytes of a new value.
pub(super) fn length(random: &mut Random) -> usize {
    let length = match random.below(1000) {
        0..4 => 20_000 + random.below(200_000),
        4..100 => 1_000 + random.below(4_000),
        _ => 12 + random.below(500),
    };
    length as usize
}

pub(super) fn key(record: u64) -> Key {
    // Below 2^32: a world has at most 2^31 records and some thousand.
    Key(record as u32)
}

/// The file that says what the store must hold when a round begins.
fn path(directory: &Path) -> PathBuf {
    directory.join("expected")
}

pub(super) fn save(directory: &Path, expected: &[Version]) -> Result<(), Problem> {
    let bytes: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
    let saved = std::fs::write(path(directory), bytes);
    saved.map_err(|error| format!("the expected state: {error}"))
}

pub(super) fn load(directory: &Path) -> Result<Vec<Version>, Problem> {
    let bytes = std::fs::read(path(directory));
    let bytes = bytes.map_err(|error| format!("the expected state: {error}"))?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words.iter().map(|w| Version::from_le_bytes(*w)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_records_name_each_other_in_order() {
        let world = World::of_bytes(0);
        let keys: Vec<_> = (0..world.main()).map(main_key).collect();
        assert!(keys.is_sorted_by(|one, next| one < next));
        for (record, key) in (0..).zip(&keys) {
            assert_eq!(main_record(key), Some(record));
        }
        assert_eq!(main_record(b"000000000x"), None);
        assert_eq!(scratch_at(&scratch_key(7)), Some(7));
        let first = world.first();
        assert_eq!(first.len() as u64, world.records());
        let accounts = COUNTERS..COUNTERS + ACCOUNTS;
        let sum: u64 = accounts
            .map(|at| first[world.shared(at) as usize] - ZERO)
            .sum();
        assert_eq!(sum, ACCOUNTS_SUM);
    }
}
