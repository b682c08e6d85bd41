//! A sealed overlay, and those that become one.

use std::ops::Bound;
use std::sync::Arc;

use super::Filter;
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Tree;

/// A place in the rounds that merges make through the keys: round and key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Position {
    pub(crate) round: u64,
    pub(crate) key: Vec<u8>,
}

/// A tree of puts and tombstones that no commit changes. What merges have passed of it counts no
/// more: the base has it. [Trims](super::Trim) free its pages.
pub(crate) struct Run {
    pub(crate) tree: Tree,
    records: AtomicU64,
    /// Where merges were when it was sealed: one round later all of it is merged.
    pub(crate) start: Position,
    /// Records that merges have passed.
    passed: AtomicU64,
    /// None while it is not built since the store was opened, and of very large runs: any key may
    /// be there.
    pub(crate) filter: OnceLock<Filter>,
}

impl Run {
    pub(crate) fn new(tree: Tree, records: u64, start: Position) -> Run {
        Run {
            tree,
            records: AtomicU64::new(records),
            start,
            passed: AtomicU64::new(0),
            filter: OnceLock::new(),
        }
    }

    /// Whether it may have `key`, for readers at `position`.
    pub(crate) fn may_have(&self, key: &[u8], position: &Position) -> bool {
        !self.has_merged(key, position)
            && self.filter.get().is_none_or(|filter| filter.may_have(key))
    }

    /// Whether merges that have come to `position` have merged what it has of `key`.
    pub(crate) fn has_merged(&self, key: &[u8], position: &Position) -> bool {
        let round = self.start.round + u64::from(*key < self.start.key[..]);
        (round, key) < (position.round, &position.key[..])
    }

    /// Where a walk that has come to `key`, which is merged, goes on: the bound with which the keys
    /// begin that are not; `None` if no more follow.
    pub(crate) fn past_merged(
        &self,
        key: &[u8],
        position: &Position,
        is_forward: bool,
    ) -> Option<Bound<Vec<u8>>> {
        // The merged keys are those from `start` up to `position`, which may be in the next round.
        let is_behind_start = *key >= self.start.key[..];
        let goes_on = match is_forward {
            true => !is_behind_start || position.round == self.start.round,
            false => is_behind_start,
        };
        (goes_on && !self.is_merged_at(position)).then(|| match is_forward {
            true => Bound::Included(position.key.clone()),
            false => Bound::Excluded(self.start.key.clone()),
        })
    }

    /// Whether merges that have come to `position` have merged all of it.
    pub(crate) fn is_merged_at(&self, position: &Position) -> bool {
        let end = (self.start.round + 1, &self.start.key);
        (position.round, &position.key) >= end
    }

    /// How many records it has had.
    pub(crate) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// It has got so many more.
    pub(crate) fn add(&self, records: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
    }

    /// It has had so many, as was counted.
    pub(crate) fn set_records(&self, records: u64) {
        self.records.store(records, Ordering::Relaxed);
    }

    /// How many of them merges have passed, or another run has.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Merges have passed so many of its records, or another run has them.
    pub(crate) fn pass(&self, records: u64) {
        self.passed.fetch_add(records, Ordering::Relaxed);
    }

    /// How many of its records are to be merged.
    pub(crate) fn unmerged(&self) -> u64 {
        self.records().saturating_sub(self.passed())
    }
}

/// Runs that become one.
pub(crate) struct Combining {
    /// Newer than those that it is made of, and older than all others that are newer than these. So
    /// it may have any part of their records.
    pub(crate) into: Arc<Run>,
    /// From new to old.
    pub(crate) from: Vec<Arc<Run>>,
    /// The key from which on their records are to be copied.
    pub(crate) next: Vec<u8>,
    /// The key up to which they were freed that were copied, and how many were copied since.
    pub(crate) freed: Vec<u8>,
    pub(crate) copied: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageId;
    use crate::types::TreeId;

    fn position(round: u64, key: &[u8]) -> Position {
        let key = key.to_vec();
        Position { round, key }
    }

    #[test]
    fn what_is_merged_is_the_interval_from_the_start_to_the_position() {
        let tree = Tree {
            root: PageId(1),
            id: TreeId(1),
        };
        let keys: Vec<[u8; 1]> = (0..12).map(|key| [key]).collect();
        for start in 0..12_u8 {
            for passed in 0..16_u8 {
                let run = Run::new(tree, 0, position(3, &[start]));
                let at = start + passed;
                let position = position(3 + u64::from(at / 12), &[at % 12]);
                let is_merged = |key: u8| (key + 12 - start) % 12 < passed;
                for key in &keys {
                    assert_eq!(run.has_merged(key, &position), is_merged(key[0]));
                }
                assert_eq!(run.is_merged_at(&position), passed >= 12);
                for key in (0..12).filter(|key| is_merged(*key)) {
                    for is_forward in [true, false] {
                        let next = match is_forward {
                            true => (key..12).find(|key| !is_merged(*key)),
                            false => (0..key).rev().find(|key| !is_merged(*key)),
                        };
                        let found = run.past_merged(&[key], &position, is_forward);
                        let found = found.and_then(|bound| match bound {
                            Bound::Included(key) => Some(key[0]),
                            Bound::Excluded(key) => key[0].checked_sub(1),
                            Bound::Unbounded => None,
                        });
                        assert_eq!(
                            found.filter(|key| *key < 12),
                            next,
                            "{start} {passed} {key}"
                        );
                    }
                }
            }
        }
    }
}
