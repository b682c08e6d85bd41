//! The reads of a serializable transaction, and their validation.
//!
//! A transaction that commits publishes its own changes first and looks at what
//! it has read afterwards, so of two that read what the other changes, at least
//! one sees the other.
//!
//! It visits what has changed since, and not what was read. Most of that is visited before the
//! commit has a slot, while all others go on ([`Validation::advance`]); what is left for
//! [`Validation::run`], for which commits of others wait, is what has come in the last
//! [`MAX_BEHIND`] bytes of log: less than a millisecond for a thousand ranges.

use std::ops::Bound;
use std::sync::Arc;

use super::TreeStatus;
use super::key_ranges::{KeyRanges, SortedRanges};
use super::snapshots::Registered;
use super::versions::{CommitNumber, Versions};
use crate::btree::TreeId;
use crate::context::TaskWorker;
use crate::error::TransactionError;
use crate::log::Log;

/// Ranges, single keys among them, that are remembered one by one, per tree; beyond that the
/// whole tree counts as read.
const MAX_RANGES: usize = 1 << 16;
/// LSNs, which are bytes of the log, that a validation may be behind when the commits of others
/// begin to wait for it.
const MAX_BEHIND: u64 = 16 << 10;
/// How often a validation tries to catch up.
const MAX_ADVANCES: usize = 4;
/// Changes that it looks at between two looks at other tasks.
const STEPS_BETWEEN_PAUSES: usize = 256;

/// The reads of one tree.
struct TreeReads {
    tree: TreeId,
    name: Arc<str>,
    status: Arc<TreeStatus>,
    ranges: KeyRanges,
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
                ranges: KeyRanges::default(),
                all: false,
            });
            self.trees.len() - 1
        });
        &mut self.trees[at]
    }

    /// Adds a key, whether it had a value or not.
    pub(crate) fn add_key(&mut self, tree: TreeRead<'_>, key: &[u8]) {
        self.of(tree).add(|ranges| ranges.add_key(key));
    }

    /// Adds a range of keys, those without values included.
    pub(crate) fn add_range(
        &mut self,
        tree: TreeRead<'_>,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
    ) {
        self.of(tree).add(|ranges| ranges.add(lower, upper));
    }

    /// The validation of all that was read at `snapshot`.
    pub(crate) fn validation<'r>(&'r self, snapshot: &'r Registered) -> Validation<'r> {
        let trees = self.trees.iter();
        Validation {
            trees: trees.map(|reads| (reads, reads.ranges.sorted())).collect(),
            snapshot,
            reached: snapshot.lsn,
        }
    }
}

impl TreeReads {
    fn add(&mut self, add: impl FnOnce(&mut KeyRanges)) {
        if self.all {
            return;
        }
        add(&mut self.ranges);
        if self.ranges.len() > MAX_RANGES {
            self.all = true;
            self.ranges.clear();
            self.ranges.add(Bound::Unbounded, Bound::Unbounded);
        }
    }
}

/// Whether what was read still holds.
pub(crate) struct Validation<'r> {
    trees: Vec<(&'r TreeReads, SortedRanges<'r>)>,
    snapshot: &'r Registered,
    /// No commit whose LSN is below this has changed what was read.
    reached: u64,
}

impl Validation<'_> {
    /// Catches up with the log, as far as that is possible beside other commits.
    ///
    /// # Errors
    ///
    /// As for [`Validation::run`].
    pub(crate) fn advance(
        &mut self,
        local: &TaskWorker,
        versions: &Versions,
        own_trees: &[TreeId],
    ) -> Result<(), TransactionError> {
        let mut steps = 0_usize;
        self.catch_up(&local.parts.log, versions, own_trees, &mut || {
            steps += 1;
            if steps.is_multiple_of(STEPS_BETWEEN_PAUSES) {
                local.worker.yield_now();
            }
        })
    }

    fn catch_up(
        &mut self,
        log: &Log,
        versions: &Versions,
        own_trees: &[TreeId],
        pause: &mut dyn FnMut(),
    ) -> Result<(), TransactionError> {
        for _ in 0..MAX_ADVANCES {
            // Read first: a version that this does not find is added later, and gets its LSN later
            // still.
            let end = log.next().0;
            if end.saturating_sub(self.reached) <= MAX_BEHIND {
                break;
            }
            self.pass(versions, None, own_trees, pause)?;
            self.reached = end;
        }
        Ok(())
    }

    /// Validates the rest, for a commit that has the trees `own_trees` to itself. The caller has
    /// published its own changes, by the number `own`, and no commit that publishes from now on
    /// gets an LSN before it.
    ///
    /// # Errors
    ///
    /// [`TransactionError::Conflict`] if anything that was read has changed since the snapshot, or
    /// is being changed by a commit other than `own`.
    pub(crate) fn run(
        &self,
        versions: &Versions,
        own: Option<CommitNumber>,
        own_trees: &[TreeId],
    ) -> Result<(), TransactionError> {
        self.pass(versions, own, own_trees, &mut || ())
    }

    fn pass(
        &self,
        versions: &Versions,
        own: Option<CommitNumber>,
        own_trees: &[TreeId],
        pause: &mut dyn FnMut(),
    ) -> Result<(), TransactionError> {
        for (reads, ranges) in &self.trees {
            let conflict = |key: Vec<u8>| TransactionError::Conflict {
                tree: reads.name.to_string(),
                key,
            };
            if reads.status.loaded() > self.snapshot.lsn && !own_trees.contains(&reads.tree) {
                return Err(conflict(Vec::new()));
            }
            let since = (self.reached, own);
            if let Some(key) = versions.changed_within(reads.tree, ranges, since, pause) {
                return Err(conflict(key));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::big_endian_bytes, reason = "keys in their order")]
mod tests {
    use proptest::prelude::*;

    use super::*;
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
        assert_eq!(reads.trees[0].ranges.len(), 2);
        let change = |key: &[u8], tree: u32, lsn: u64| {
            let by = versions.commit_number();
            versions.add(KeyRef::new(TreeId(tree), key), (OldValue::Absent, 0), by);
            versions.stamp_commit_lsn(KeyRef::new(TreeId(tree), key), by, lsn);
        };
        let is_valid = || is_valid(&reads, &snapshot, &versions);
        change(b"k", 4, 792);
        change(b"k", 5, 808);
        change(b"o", 4, 816);
        change(b"s", 4, 824);
        assert!(is_valid());
        change(b"rr", 4, 832);
        assert!(!is_valid());
        let number = versions.commit_number();
        assert!(matches!(
            reads.validation(&snapshot).run(&versions, Some(number), &[]),
            Err(TransactionError::Conflict { tree, key }) if tree == "t" && key == b"rr"
        ));
    }

    fn is_valid(reads: &ReadSet, snapshot: &Registered, versions: &Versions) -> bool {
        reads.validation(snapshot).run(versions, None, &[]).is_ok()
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
                let conflicts = !is_valid(&reads, &snapshot, &versions);
                prop_assert_eq!(conflicts, ranges.iter().any(holds), "key {}", key);
            }
        }
    }

    const TREE: TreeId = TreeId(4);

    fn change(versions: &Versions, log: &Log, key: &[u8]) {
        let (of, by) = (KeyRef::new(TREE, key), versions.commit_number());
        versions.add(of, (OldValue::Absent, 0), by);
        let lsn = log.stamp(0).0;
        versions.stamp_commit_lsn(of, by, lsn);
        versions.release(of, lsn, 0);
    }

    fn reads_of(ranges: u32) -> ReadSet {
        let (name, status) = (Arc::from("t"), Arc::new(TreeStatus::default()));
        let tree = TreeRead {
            tree: TREE,
            name: &name,
            status: &status,
        };
        let mut reads = ReadSet::default();
        for n in 0..ranges {
            let key = |at: u32| (100 * n + at).to_be_bytes().to_vec();
            reads.add_range(tree, Bound::Included(key(0)), Bound::Excluded(key(50)));
        }
        reads
    }

    /// Old versions cost nothing, and new ones outside of what was read no more than there are of
    /// them, or ranges.
    #[test]
    fn a_validation_visits_what_has_changed_and_not_what_was_read() {
        let (log, tracker) = (Log::off(Lsn(800)), Tracker::new(1, 1));
        let (versions, snapshots) = (Versions::new(1 << 40), Snapshots::new());
        let reads = reads_of(2000);
        assert_eq!(reads.trees[0].ranges.len(), 2000);
        (0..200_000_u32).for_each(|n| change(&versions, &log, &n.to_be_bytes()));
        let snapshot = snapshots.begin(&log, &tracker, || Err(())).unwrap();
        assert!(is_valid(&reads, &snapshot, &versions));
        let visited = versions.visited();
        assert!(visited < 2000, "{visited}");
        (0..100_u32).for_each(|n| change(&versions, &log, &(1070 + 100 * n).to_be_bytes()));
        assert!(is_valid(&reads, &snapshot, &versions));
        let visited = versions.visited() - visited;
        assert!(visited < 100 * 200, "{visited}");
        change(&versions, &log, &1010_u32.to_be_bytes());
        assert!(!is_valid(&reads, &snapshot, &versions));
    }

    /// Other commits wait only for the end of a validation, which passes over keys that it has seen
    /// before.
    #[test]
    fn a_validation_catches_up_beside_other_commits() {
        let (log, tracker) = (Log::off(Lsn(800)), Tracker::new(1, 1));
        let (versions, snapshots) = (Versions::new(1 << 40), Snapshots::new());
        let reads = reads_of(500);
        let snapshot = snapshots.begin(&log, &tracker, || Err(())).unwrap();
        let gap = |n: u32| (100 * (n % 500) + 70).to_be_bytes();
        (0..10_000).for_each(|n| change(&versions, &log, &gap(n)));
        let catch_up = |at_pause: &mut dyn FnMut(u32)| {
            let mut validation = reads.validation(&snapshot);
            let mut pauses = 0;
            let caught_up = validation.catch_up(&log, &versions, &[], &mut || {
                pauses += 1;
                at_pause(pauses);
            });
            assert!(caught_up.is_ok());
            (validation, pauses)
        };
        // At its last pause it has seen everything once.
        let (_, last) = catch_up(&mut |_| ());
        assert!(last >= 499, "{last}");
        for (late, is_within) in [(70_u32, false), (20, true)] {
            let (validation, _) = catch_up(&mut |pause| {
                if pause == last {
                    change(&versions, &log, &late.to_be_bytes());
                }
            });
            let before = versions.visited();
            assert_eq!(validation.run(&versions, None, &[]).is_err(), is_within);
            let visited = versions.visited() - before;
            assert!(visited < 1000, "{visited}");
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
        for n in 0..=MAX_RANGES as u64 {
            reads.add_key(tree, &n.to_le_bytes());
        }
        assert!(reads.trees[0].all && reads.trees[0].ranges.len() == 1);
    }
}
