//! What a reader sees of records whose leaf it has read: one judgement, for all ways of reading.
//!
//! Leaves have the newest state. A commit that readers must not see yet leaves behind what its keys
//! had. Writers and readers keep to these orders, so that a reader that has met a change in a leaf
//! also meets its note, or the change is visible:
//!
//! | a commit | a reader |
//! | --- | --- |
//! | adds the versions of its keys | reads the leaf |
//! | notes the keys ([`Unseen`](super::unseen::Unseen)) | looks for a note of its key |
//! | changes the leaves | reads the reported watermark |
//! | gives the versions its LSN | looks for a version at or above that |
//! | waits until the watermark has passed it, and reports that | |
//! | takes the note back, then releases the versions | |
//!
//! A version that a reader has missed was released, so its commit was visible when the reader
//! looked, and the leaf was right then. A snapshot looks for versions at or above its own LSN, and
//! at no note of a key: what it needs stays until it ends, or is aborted. It asks for that last
//! (`Registered::check`).
//!
//! The other changes leave no versions for readers outside transactions:
//!
//! - A commit *in parts* counts itself before it changes a leaf, and its keys stay locked until all
//!   of it is applied. A reader of one key waits for the lock, a scan for the commits in flight. If
//!   it fails half-way its keys stay noted, and readers refuse them.
//! - Readers leave out the records of a bulk load, snapshots too: their tree stays as it was if the
//!   load fails.
//! - Readers wait for a large commit; snapshots are kept from its trees (`TreeStatus::loaded`).

use super::unseen::UnseenRecords;
use super::versions::{Bounds, KeyRef, OldValue, Older};
use super::{Transactions, key_hash};
use crate::btree::{Direction, TreeId, ValueKind};
use crate::context::TaskWorker;
use crate::error::StorageError as Error;
use crate::shared::Shared;

/// A reader of one tree.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'t> {
    transactions: &'t Transactions,
    tree: TreeId,
    /// The LSN of its snapshot; `None` outside transactions.
    snapshot: Option<u64>,
}

/// What a reader sees of a record whose leaf it has read. A snapshot waits for nothing.
pub(crate) enum Seen {
    /// What it has read.
    Leaf,
    /// This.
    Older(OldValue),
    /// It is to read the leaf again once the key is unlocked.
    InParts,
    /// It is to read the leaf again once a large commit is visible, whose it may be.
    InTree,
}

impl Transactions {
    /// A reader of `tree`, in the snapshot at this LSN if there is one.
    #[inline]
    pub(crate) fn reader(&self, tree: TreeId, snapshot: Option<u64>) -> Reader<'_> {
        Reader {
            transactions: self,
            tree,
            snapshot,
        }
    }

    /// Reads `key` in a task, outside transactions: `read` reads its leaf, or makes the result of
    /// an older value. If a commit changes the key and leaves no version, waits for that and reads
    /// again while no commit changes it, so that whatever is read later sees the whole of that
    /// commit, too.
    ///
    /// # Errors
    ///
    /// Those of `read`; [`Error::Poisoned`] if the commit has failed half-way, or may never be
    /// visible.
    pub(crate) fn read_one<T, E: From<Error>>(
        &self,
        local: &TaskWorker,
        tree: TreeId,
        key: &[u8],
        mut read: impl FnMut(Option<OldValue>) -> Result<T, E>,
    ) -> Result<T, E> {
        let reader = self.reader(tree, None);
        let mut locked = None;
        let mut last = None;
        // Bound: each round but two has found another version, or waits for a large commit.
        loop {
            let found = read(None)?;
            local.worker.preemption_point();
            match reader.judge(key) {
                Seen::Older(old) => match read(Some(old.clone())) {
                    // Its version, and with it a large value, may have gone in between.
                    Err(_) if last.as_ref() != Some(&old) => last = Some(old),
                    other => return other,
                },
                Seen::InParts if locked.is_none() => {
                    locked = Some(self.locks.one(&local.worker, key_hash(tree, key)));
                    reader.check(&local.parts.shared, key)?;
                }
                Seen::InTree => reader.await_tree(local)?,
                // It is this reader that has locked it.
                Seen::InParts | Seen::Leaf => return Ok(found),
            }
        }
    }
}

impl Reader<'_> {
    /// Judges what was just read of `key` from its leaf.
    #[inline]
    pub(crate) fn judge(&self, key: &[u8]) -> Seen {
        if self.snapshot.is_none() && !self.transactions.unseen.is_any() {
            return Seen::Leaf;
        }
        self.judge_beside_others(key)
    }

    fn judge_beside_others(&self, key: &[u8]) -> Seen {
        let transactions = self.transactions;
        let (unseen, versions) = (&transactions.unseen, &transactions.versions);
        let hidden = unseen.records(self.tree, |records| records.from().map(|from| from <= key));
        let (older, in_parts) = match self.snapshot {
            Some(at) => (versions.find(self.tree, key, at), false),
            // First: a later commit may have kept what the large one has written.
            None if hidden == Some(None) => return Seen::InTree,
            None => {
                let of = KeyRef::new(self.tree, key);
                let reported = || transactions.tracker.reported();
                let older = unseen.has(of.number).then(reported);
                let older = older.and_then(|at| versions.find_of(of, at));
                let is_locked = || transactions.locks.is_locked(of.number);
                let in_parts =
                    unseen.is_in_parts() && (is_locked() || unseen.has_failed_at(of.number));
                (older, in_parts)
            }
        };
        match older {
            Some(old) => Seen::Older(old),
            None if hidden.flatten() == Some(true) => Seen::Older(OldValue::Absent),
            None if in_parts => Seen::InParts,
            None => Seen::Leaf,
        }
    }

    /// Makes what was just read of `key` from its leaf, the kind and the bytes, into what is to be
    /// seen; `None` if [`Transactions::read_one`] has to read it.
    #[inline]
    pub(crate) fn seen(
        &self,
        key: &[u8],
        found: Option<ValueKind>,
        bytes: &mut Vec<u8>,
    ) -> Option<Option<ValueKind>> {
        match self.judge(key) {
            Seen::Leaf => Some(found),
            Seen::Older(old) => Some(old.take(bytes)),
            Seen::InParts | Seen::InTree => None,
        }
    }

    /// Whether the leaves, which were read for `bounds` before this is asked, have there what is to
    /// be seen. In a store whose commits are seen once they are applied a scan shows the leaves as
    /// they are, unless a commit has failed half-way.
    pub(crate) fn sees_leaves(&self, bounds: Bounds<'_>) -> bool {
        let transactions = self.transactions;
        let unseen = &transactions.unseen;
        match self.snapshot {
            None => !unseen.is_any() || (!transactions.is_late && !unseen.has_failed()),
            Some(at) => {
                !transactions
                    .versions
                    .is_changed_within(self.tree, bounds, at)
                    && self.loaded_from().is_none()
            }
        }
    }

    /// What is to be seen of keys within `bounds` in place of what the leaves have, which were read
    /// before: in a scan's direction the first of them, at least some and about `most`.
    pub(crate) fn older_within(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        most: usize,
    ) -> Older {
        let transactions = self.transactions;
        let at = match self.snapshot {
            Some(at) => at,
            None if transactions.is_late && transactions.unseen.is_any() => {
                transactions.tracker.reported()
            }
            None => return Older::default(),
        };
        let versions = &transactions.versions;
        versions.within(self.tree, bounds, (at, direction, most))
    }

    /// The key from which on the records of the leaves, which were read before, are a bulk load's
    /// that is not to be seen.
    pub(crate) fn loaded_from(&self) -> Option<Box<[u8]>> {
        let from = |records: &UnseenRecords| records.from().map(Box::from);
        self.transactions.unseen.records(self.tree, from).flatten()
    }

    /// Refuses what was read of `key` if it may be of a commit that has failed half-way.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn check(&self, shared: &Shared, key: &[u8]) -> Result<(), Error> {
        let unseen = &self.transactions.unseen;
        if self.snapshot.is_none()
            && unseen.has_failed()
            && unseen.has_failed_at(key_hash(self.tree, key))
        {
            return shared.writable();
        }
        Ok(())
    }

    /// Whether leaves that were read may have a part of a commit that [`Reader::await_others`]
    /// waits for.
    #[inline]
    pub(crate) fn has_met_others(&self) -> bool {
        let unseen = &self.transactions.unseen;
        self.snapshot.is_none()
            && unseen.is_any()
            && (unseen.is_in_parts() || unseen.has_tree(self.tree))
    }

    /// Waits for the commits in parts that are in flight, and until a large one of the tree is
    /// visible.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if one of them may never be visible. If commits are seen once they are
    /// applied, [`Reader::check`] refuses the records of one that has failed instead.
    pub(crate) fn await_others(&self, local: &TaskWorker) -> Result<(), Error> {
        if self.transactions.unseen.is_in_parts() {
            let ended = self.transactions.tracker.drain(false, || {
                local.parts.shared.writable()?;
                local.worker.yield_now();
                Ok::<(), Error>(())
            });
            if self.transactions.is_late {
                ended?;
            }
        }
        self.await_tree(local)
    }

    fn await_tree(&self, local: &TaskWorker) -> Result<(), Error> {
        while self.transactions.unseen.has_tree(self.tree) {
            // Where a write has failed it may stay so.
            local.parts.shared.writable()?;
            local.worker.yield_now();
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "visible_tests.rs"]
mod tests;
