//! What a serializable transaction has read, and whether that still holds.
//!
//! A transaction that commits publishes its own changes first and looks at what
//! it has read afterwards, so of two that read what the other changes, at least
//! one sees the other.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::TreeStatus;
use super::snapshots::Registered;
use super::versions::{CommitNumber, Versions, is_range};
use crate::Error;
use crate::btree::TreeId;
use crate::canary::{self, Canary};

/// Keys and ranges that are remembered one by one, per tree; beyond that the
/// whole tree counts as read.
const MAX_ENTRIES: usize = 1 << 16;

type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// What was read of one tree.
struct TreeReads {
    tree: TreeId,
    name: Arc<str>,
    status: Arc<TreeStatus>,
    keys: BTreeSet<Vec<u8>>,
    ranges: Vec<OwnedBounds>,
    /// Everything counts as read.
    all: bool,
}

/// Everything that a transaction has read.
#[derive(Default)]
pub(crate) struct ReadSet {
    trees: Vec<TreeReads>,
}

/// How a read set names a tree.
#[derive(Clone, Copy)]
pub(crate) struct TreeRead<'t> {
    pub(crate) tree: TreeId,
    pub(crate) name: &'t Arc<str>,
    pub(crate) status: &'t Arc<TreeStatus>,
}

impl ReadSet {
    fn of(&mut self, read: TreeRead<'_>) -> &mut TreeReads {
        let at = self.trees.iter().position(|t| t.tree == read.tree);
        let at = at.unwrap_or_else(|| {
            self.trees.push(TreeReads {
                tree: read.tree,
                name: Arc::clone(read.name),
                status: Arc::clone(read.status),
                keys: BTreeSet::new(),
                ranges: Vec::new(),
                all: false,
            });
            self.trees.len() - 1
        });
        &mut self.trees[at]
    }

    /// Adds a key, whether it had a value or not.
    pub(crate) fn add_key(&mut self, tree: TreeRead<'_>, key: &[u8]) {
        let reads = self.of(tree);
        if !reads.all && !reads.keys.contains(key) {
            reads.keys.insert(key.to_vec());
            reads.limit();
        }
    }

    /// Adds a range of keys, those without values included.
    pub(crate) fn add_range(
        &mut self,
        tree: TreeRead<'_>,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
    ) {
        let bounds = (
            lower.as_ref().map(Vec::as_slice),
            upper.as_ref().map(Vec::as_slice),
        );
        // A range that holds no key says nothing, and is not to be joined to one that does: its end may lie before
        // its start.
        if !is_range(bounds) {
            return;
        }
        let reads = self.of(tree);
        if reads.all {
            return;
        }
        // A scan goes on where its last batch ended.
        if let Some(last) = reads.ranges.last_mut() {
            if adjoins(&last.1, &lower) {
                last.1 = upper;
                return;
            }
            if adjoins(&upper, &last.0) {
                last.0 = lower;
                return;
            }
        }
        reads.ranges.push((lower, upper));
        reads.limit();
    }

    /// Fails if anything that was read has changed since `snapshot`, or is being
    /// changed by a commit other than `own`.
    pub(crate) fn validate(
        &self,
        versions: &Versions,
        snapshot: &Registered,
        own: Option<CommitNumber>,
    ) -> Result<(), Error> {
        self.validate_beside(versions, snapshot, own, &[])
    }

    /// As [`ReadSet::validate`], for a commit that has the trees `rewritten` to itself.
    pub(crate) fn validate_beside(
        &self,
        versions: &Versions,
        snapshot: &Registered,
        own: Option<CommitNumber>,
        rewritten: &[TreeId],
    ) -> Result<(), Error> {
        let at = snapshot.lsn;
        for reads in &self.trees {
            let conflict = |key: Vec<u8>| Error::Conflict {
                tree: reads.name.to_string(),
                key,
            };
            if reads.status.loaded() > at && !rewritten.contains(&reads.tree) {
                return Err(conflict(Vec::new()));
            }
            for key in &reads.keys {
                if versions.is_changed(reads.tree, key, at, own) {
                    return Err(conflict(key.clone()));
                }
            }
            let all = (Bound::Unbounded, Bound::Unbounded);
            let ranges = reads.ranges.iter().map(|(lower, upper)| {
                (
                    lower.as_ref().map(Vec::as_slice),
                    upper.as_ref().map(Vec::as_slice),
                )
            });
            let skips = canary::is_on(Canary::SkipRangeValidation);
            for bounds in ranges.chain(reads.all.then_some(all)).filter(|_| !skips) {
                if let Some(key) = versions.changed_within(reads.tree, bounds, at, own) {
                    return Err(conflict(key));
                }
            }
        }
        Ok(())
    }
}

impl TreeReads {
    fn limit(&mut self) {
        if self.keys.len() + self.ranges.len() > MAX_ENTRIES {
            self.all = true;
            self.keys.clear();
            self.ranges.clear();
        }
    }
}

/// Whether a range that ends with `end` and one that starts with `start` are one.
fn adjoins(end: &Bound<Vec<u8>>, start: &Bound<Vec<u8>>) -> bool {
    match (end, start) {
        (Bound::Included(end), Bound::Excluded(start))
        | (Bound::Excluded(end), Bound::Included(start)) => end == start,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::Log;
    use crate::log::Tracker;
    use crate::page::Lsn;
    use crate::txn::snapshots::Snapshots;
    use crate::txn::versions::{KeyRef, OldValue};

    #[test]
    fn reads_conflict_with_later_changes_and_with_nothing_else() {
        let log = Log::off(Lsn(800));
        let (versions, tracker) = (Versions::new(1 << 20), Tracker::new(1, 1));
        let snapshot = Snapshots::new().begin(&log, &tracker, || Err(()));
        let snapshot = snapshot.unwrap();
        let (name, status) = (Arc::from("t"), Arc::new(TreeStatus::default()));
        let tree = TreeRead {
            tree: TreeId(4),
            name: &name,
            status: &status,
        };
        let mut reads = ReadSet::default();
        reads.add_key(tree, b"k");
        reads.add_range(
            tree,
            Bound::Included(b"p".to_vec()),
            Bound::Included(b"q".to_vec()),
        );
        reads.add_range(
            tree,
            Bound::Excluded(b"q".to_vec()),
            Bound::Excluded(b"s".to_vec()),
        );
        assert_eq!(reads.trees[0].ranges.len(), 1);
        let change = |key: &[u8], tree: u32, lsn: u64| {
            let by = versions.commit_number();
            versions.add(KeyRef::new(TreeId(tree), key), (OldValue::Absent, 0), by);
            versions.stamp_commit_lsn(KeyRef::new(TreeId(tree), key), by, lsn);
        };
        let is_valid = || reads.validate(&versions, &snapshot, None).is_ok();
        change(b"k", 4, 792);
        change(b"k", 5, 808);
        change(b"o", 4, 816);
        change(b"s", 4, 824);
        assert!(is_valid());
        change(b"rr", 4, 832);
        assert!(!is_valid());
        let number = versions.commit_number();
        assert!(matches!(
            reads.validate(&versions, &snapshot, Some(number)),
            Err(Error::Conflict { tree, key }) if tree == "t" && key == b"rr"
        ));
    }

    fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
        prop_oneof![
            Just(Bound::Unbounded),
            (0..8_u8).prop_map(|key| Bound::Included(vec![key])),
            (0..8_u8).prop_map(|key| Bound::Excluded(vec![key])),
        ]
    }

    proptest! {
        /// A key conflicts exactly if one of the ranges, each taken for itself, holds it.
        #[test]
        fn ranges_in_any_order_count_as_each_of_them_does(
            ranges in prop::collection::vec((bound(), bound()), 1..8),
        ) {
            let log = Log::off(Lsn(800));
            let tracker = Tracker::new(1, 1);
            let snapshot = Snapshots::new().begin(&log, &tracker, || Err(())).unwrap();
            let (name, status) = (Arc::from("t"), Arc::new(TreeStatus::default()));
            let tree = TreeRead { tree: TreeId(4), name: &name, status: &status };
            let mut reads = ReadSet::default();
            for (lower, upper) in &ranges {
                reads.add_range(tree, lower.clone(), upper.clone());
            }
            for key in 0..8_u8 {
                let versions = Versions::new(1 << 20);
                let by = versions.commit_number();
                versions.add(KeyRef::new(TreeId(4), &[key]), (OldValue::Absent, 0), by);
                let holds = |(lower, upper): &(Bound<Vec<u8>>, Bound<Vec<u8>>)| {
                    let starts = match lower {
                        Bound::Unbounded => true,
                        Bound::Included(lower) => lower[0] <= key,
                        Bound::Excluded(lower) => lower[0] < key,
                    };
                    starts && match upper {
                        Bound::Unbounded => true,
                        Bound::Included(upper) => key <= upper[0],
                        Bound::Excluded(upper) => key < upper[0],
                    }
                };
                let conflicts = reads.validate(&versions, &snapshot, None).is_err();
                prop_assert_eq!(conflicts, ranges.iter().any(holds), "key {}", key);
            }
        }
    }

    #[test]
    fn very_many_reads_become_the_whole_tree() {
        let (name, status) = (Arc::from("t"), Arc::new(TreeStatus::default()));
        let tree = TreeRead {
            tree: TreeId(4),
            name: &name,
            status: &status,
        };
        let mut reads = ReadSet::default();
        for n in 0..=MAX_ENTRIES as u64 {
            reads.add_key(tree, &n.to_le_bytes());
        }
        assert!(reads.trees[0].all && reads.trees[0].keys.is_empty());
    }
}
