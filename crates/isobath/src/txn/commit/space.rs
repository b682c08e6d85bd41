//! Space that a commit reserves before it changes anything: pages, and log for the leaves that it
//! may split.

use super::{Commit, CurrentValue};
use crate::canary::{self, Canary};
use crate::context::TaskContext;
use crate::error::TransactionError;
use crate::txn::versions::OldValue;

/// Pages that one insert may take at most: its leaf split twice.
const PAGES_PER_INSERT: u64 = 2;
/// And those above the leaves, of all inserts of a commit: some splits, and a
/// new root.
const PAGES_PER_COMMIT: u64 = 12;

/// A leaf with less free space than this many times what a commit adds to it counts as full: others
/// may add to it first.
const FULL_FACTOR: usize = 3;

/// Leaves that a commit may split.
pub(super) struct Splits {
    /// How many may still be.
    pub(super) count: u64,
    /// The changes that may, if these are not all.
    which: Option<Vec<bool>>,
}

impl Splits {
    fn of_all(count: u64) -> Splits {
        Splits { count, which: None }
    }

    /// The change at `at` is applied, `left` are not; how many leaves may still be split.
    pub(super) fn applied(&mut self, at: usize, left: usize) -> u64 {
        self.count = match &self.which {
            Some(which) => self.count - u64::from(which[at]),
            None => self.count.min(left as u64),
        };
        self.count
    }
}

impl Commit<'_, '_> {
    /// Without a log a single change that fails has not happened: it needs no reservation.
    pub(super) fn pages_to_reserve(&self, peeked: &[CurrentValue]) -> u64 {
        if self.changes.len() > 1 || self.local.parts.log.is_on() {
            self.worst_pages(peeked)
        } else {
            0
        }
    }

    /// Pages that applying may take.
    fn worst_pages(&self, peeked: &[CurrentValue]) -> u64 {
        match self.growing(peeked) {
            0 => 0,
            growing => PAGES_PER_COMMIT + growing * PAGES_PER_INSERT,
        }
    }

    /// Changes that may split a leaf: none is a removal, nor replaces a value by one that is no
    /// longer.
    fn growing(&self, peeked: &[CurrentValue]) -> u64 {
        self.each_growing(peeked).filter(|grows| *grows).count() as u64
    }

    /// Of each change, whether it may split a leaf.
    fn each_growing(&self, peeked: &[CurrentValue]) -> impl Iterator<Item = bool> {
        let changes = self.changes.iter().zip(peeked);
        changes.map(|(change, peeked)| match (change.value, &peeked.old) {
            // It goes to a memory.
            _ if peeked.overlays != 0 => false,
            (None, _) => false,
            (Some(_), OldValue::Absent) => true,
            (Some(new), _) => new.bytes.len() > peeked.length,
        })
    }

    /// Of each change, whether the commit has to reserve log space for a split that it may cause.
    /// If all that grow are more than the log has space for now, the leaves are looked at: the
    /// changes of one that is full may split it once; what more they split takes less than is
    /// reserved for their bytes. Waits until the log has grown if these are too many for it, too.
    ///
    /// # Errors
    ///
    /// [`TransactionError::TransactionTooLarge`] if the log has no space for these once it has
    /// grown, either.
    pub(super) fn splits(
        &self,
        peeked: &[CurrentValue],
        bytes: u64,
    ) -> Result<Splits, TransactionError> {
        let log = &self.local.parts.log;
        let growing = self.growing(peeked);
        let limit = log.split_limit_now();
        if growing <= limit || canary::is_on(Canary::SplitBeyondLog) {
            return Ok(Splits::of_all(growing.min(limit)));
        }
        let ctx = TaskContext { local: self.local };
        let mut may_split = vec![false; self.changes.len()];
        let mut count = 0;
        // The leaf of the changes before, what they add, and the last of them, if they may split
        // it.
        let (mut last, mut added, mut splits) = (None, 0, None);
        let changes = self.changes.iter().zip(self.each_growing(peeked));
        for (at, (change, _)) in changes.enumerate().filter(|(_, (_, grows))| *grows) {
            let tree = change.tree;
            let (leaf, free) = tree.leaf_space(&ctx, change.key)?;
            if last != Some((tree.id, leaf)) {
                (last, added, splits) = (Some((tree.id, leaf)), 0, None);
            }
            added += change.key.len() + change.value.map_or(0, |value| value.bytes.len());
            if free < FULL_FACTOR * added {
                match splits.replace(at) {
                    Some(before) => may_split[before] = false,
                    None => count += 1,
                }
                may_split[at] = true;
            }
            if count > log.split_limit() {
                break;
            }
        }
        let log_tasks = &self.local.parts.log_tasks;
        if !log_tasks.wait_to_split(&self.local.worker, count)? {
            // Transactions are committed in another way then, and nothing else has so many changes.
            let limit = log.transaction_limit_now().min(bytes);
            return Err(TransactionError::TransactionTooLarge { bytes, limit });
        }
        Ok(Splits {
            count,
            which: Some(may_split),
        })
    }
}
