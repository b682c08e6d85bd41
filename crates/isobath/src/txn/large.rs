//! What a transaction that is too large for one log record asks of others: its trees are closed to
//! them, and what it has read and changed is validated. Its changes become runs of its trees
//! (`merging/large.rs`, docs/decisions/0033-large-transactions.md).

use super::commit::CommitContext;
use super::copies::WithoutBackup;
use super::tree_status::Closed;
use super::versions::OldValue;
use super::{Transactions, TreeStatus};
use crate::btree::{Change, Direction, Stretches, Tree};
use crate::canary::{self, Canary};
use crate::context::{TaskContext, TaskWorker, WriteContext};
use crate::error::{StorageError, TransactionError};
use crate::runtime::Patience;

/// Versions that are looked at together.
const VALIDATED_AT_ONCE: usize = 256;

/// A tree that the transaction changes.
#[derive(Clone, Copy)]
pub(crate) struct LargeTree<'a> {
    pub(crate) tree: Tree,
    pub(crate) name: &'a str,
    pub(crate) status: &'a TreeStatus,
    /// Keys that are removed where the transaction's snapshot has them, unless a change says what
    /// they are going to have.
    pub(crate) removed: &'a Stretches,
}

impl LargeTree<'_> {
    fn conflict(&self, key: &[u8]) -> TransactionError {
        TransactionError::Conflict {
            tree: self.name.to_owned(),
            key: key.to_vec(),
        }
    }

    pub(crate) fn dropped(&self) -> TransactionError {
        TransactionError::TreeDropped {
            name: self.name.to_owned(),
        }
    }
}

/// Gives the next change of the tree at this index, by ascending keys, each key once.
pub(crate) type NextChange<'s> = dyn FnMut(usize) -> Result<Option<Change>, TransactionError> + 's;

/// A large commit on its way.
pub(crate) struct LargeCommit<'a> {
    transactions: &'a Transactions,
    local: &'a TaskWorker,
    trees: &'a [LargeTree<'a>],
    context: CommitContext<'a>,
    /// Entries of 8 bytes that the record may have.
    most: usize,
}

impl<'a> LargeCommit<'a> {
    /// Of `trees`.
    pub(crate) fn new(
        transactions: &'a Transactions,
        local: &'a TaskWorker,
        trees: &'a [LargeTree<'a>],
        context: CommitContext<'a>,
    ) -> Result<LargeCommit<'a>, TransactionError> {
        TaskContext { local }.admit()?;
        Ok(LargeCommit {
            transactions,
            local,
            trees,
            context,
            most: (local.parts.log.record_limit() / 8) as usize,
        })
    }

    /// The transaction's snapshot and reads.
    pub(crate) fn context(&self) -> CommitContext<'a> {
        self.context
    }

    /// Keeps backups from copying the store; waited for before the first tree is closed.
    pub(crate) fn begin_large(&self) -> Result<WithoutBackup<'a>, StorageError> {
        let copies = &self.transactions.copies;
        copies.begin_large(&self.local.parts.shared, &self.local.worker)
    }

    /// Closes all trees, in one order for all commits, and waits for the commits in flight.
    pub(crate) fn close(&self) -> Result<Vec<(usize, Closed<'a>)>, TransactionError> {
        let mut patience = Patience::default();
        let mut wait = || {
            self.local.parts.shared.writable()?;
            patience.wait(&self.local.worker);
            Ok::<(), TransactionError>(())
        };
        let mut order: Vec<usize> = (0..self.trees.len()).collect();
        order.sort_unstable_by_key(|&at| self.trees[at].tree.id);
        let mut closed = Vec::with_capacity(order.len());
        for at in order {
            let tree = &self.trees[at];
            let own = tree.status.close_to_load(&mut wait)?;
            closed.push((at, own.ok_or_else(|| tree.dropped())?));
        }
        if !canary::is_on(Canary::LargeBesideCommits) {
            self.transactions.tracker.drain(false, &mut wait)?;
        }
        let snapshot = self.context.snapshot;
        for tree in self.trees {
            if snapshot.is_some_and(|own| own.lsn < tree.status.loaded()) {
                return Err(tree.conflict(&[]));
            }
        }
        Ok(closed)
    }

    /// The record can name so many chunks and large values.
    pub(crate) fn check_entries(&self, count: usize) -> Result<(), TransactionError> {
        if count > self.most {
            let (bytes, limit) = (8 * count as u64, 8 * self.most as u64);
            return Err(TransactionError::TransactionTooLarge { bytes, limit });
        }
        Ok(())
    }

    /// First committer wins: no commit has changed the key since the snapshot; as the tree is
    /// closed none will.
    pub(crate) fn validate_write(
        &self,
        tree: &LargeTree<'_>,
        key: &[u8],
    ) -> Result<(), TransactionError> {
        let Some(snapshot) = self.context.snapshot else {
            return Ok(());
        };
        let versions = &self.transactions.versions;
        if versions.is_changed(tree.tree.id, key, snapshot.lsn, None)
            && !canary::is_on(Canary::SkipWriteValidation)
        {
            return Err(tree.conflict(key));
        }
        Ok(())
    }

    /// The same of the stretches that are removed: no record that the snapshot has there was
    /// changed.
    pub(crate) fn validate_removed(&self, tree: &LargeTree<'_>) -> Result<(), TransactionError> {
        let Some(snapshot) = self.context.snapshot else {
            return Ok(());
        };
        let versions = &self.transactions.versions;
        let is_skipped = canary::is_on(Canary::SkipWriteValidation);
        for stretch in tree.removed.iter().filter(|_| !is_skipped) {
            let mut rest = Some(stretch);
            // Bound: each round passes some versions, or is the last.
            while let Some(stretch) = rest.take() {
                let wanted = (snapshot.lsn, Direction::Forward, VALIDATED_AT_ONCE);
                let changed = versions.within(tree.tree.id, stretch.bounds(), wanted);
                let mut found = changed.found.iter();
                if let Some((key, _)) = found.find(|(_, old)| *old != OldValue::Absent) {
                    return Err(tree.conflict(key));
                }
                if let Some(cut) = &changed.cut {
                    let passed = stretch.up_to(cut, Direction::Forward);
                    rest = stretch.past(&passed, Direction::Forward);
                }
            }
        }
        Ok(())
    }

    /// Whether a record of a stretch that is removed, which is valid, was there for the snapshot:
    /// what others have inserted since stays.
    pub(crate) fn was_there(&self, tree: &LargeTree<'_>, key: &[u8]) -> bool {
        let versions = &self.transactions.versions;
        let at = self.context.snapshot.map(|snapshot| snapshot.lsn);
        at.is_none_or(|at| versions.find(tree.tree.id, key, at) != Some(OldValue::Absent))
    }
}

#[cfg(test)]
#[path = "large_tests.rs"]
mod tests;
