//! The changes of a large transaction, as its commit takes them.

use std::iter::Peekable;

use super::spill::{self, Spilled};
use super::write_set::{TreeWrites, Write};
use crate::Record;
use crate::btree::{self, ValueKind};
use crate::error::TransactionError;
use crate::extent::Extent;
use crate::sort::Merge;
use crate::txn::large::LargeTree;

/// The changes of a large transaction, by tree and key: those in memory, which are newer, and those
/// in runs.
pub(super) struct LargeChanges<'w> {
    pub(super) trees: &'w [TreeWrites],
    /// The places of those that have changes.
    pub(super) touched: Vec<usize>,
    pub(super) memory: Vec<Peekable<InMemory<'w>>>,
    pub(super) spilled: Option<SpilledChanges<'w>>,
    /// Large values that no tree is going to name.
    pub(super) dead: Vec<Extent>,
    /// Bytes of the keys and values that were passed.
    pub(super) user_bytes: u64,
}

/// The changes of a tree that are in memory.
pub(super) type InMemory<'w> = Box<dyn Iterator<Item = (&'w [u8], &'w Write)> + Send + 'w>;

/// What runs have.
pub(super) struct SpilledChanges<'w> {
    pub(super) spilled: &'w Spilled,
    pub(super) merge: Merge,
    pub(super) next: Option<Record>,
}

impl SpilledChanges<'_> {
    /// The next key, if it is one of the tree at `tree`.
    fn key(&self, tree: usize) -> Option<&[u8]> {
        let (of, key) = spill::parts(&self.next.as_ref()?.0);
        (of == tree).then_some(key)
    }

    fn take(&mut self, dead: &mut Vec<Extent>) -> Result<Option<btree::Change>, TransactionError> {
        let following = self.spilled.next_of(&mut self.merge, dead)?;
        let taken = std::mem::replace(&mut self.next, following);
        Ok(taken.map(spill::change_of))
    }
}

/// The large value that a change names.
fn extent_of(change: &btree::Change) -> Option<Extent> {
    match &change.value {
        Some((ValueKind::Extent, descriptor)) => Extent::decode(descriptor),
        _ => None,
    }
}

/// What a key is going to have, as a commit takes it.
fn change_of(key: &[u8], write: &Write) -> btree::Change {
    let value = match write {
        Write::Removed => None,
        Write::Inline(value) => Some((ValueKind::Inline, value.to_vec())),
        Write::Extent(extent) => Some((ValueKind::Extent, extent.encode().to_vec())),
    };
    btree::Change {
        key: key.to_vec(),
        value,
    }
}

impl<'w> LargeChanges<'w> {
    /// The trees that have changes.
    pub(super) fn trees(&self) -> Vec<LargeTree<'w>> {
        let tree = |at: &usize| {
            let TreeWrites { state, removed, .. } = &self.trees[*at];
            LargeTree {
                tree: state.tree,
                name: &state.name,
                status: &state.status,
                removed: &removed.stretches,
            }
        };
        self.touched.iter().map(tree).collect()
    }

    /// The next change of the tree at `at` of [`LargeChanges::trees`].
    pub(super) fn next(&mut self, at: usize) -> Result<Option<btree::Change>, TransactionError> {
        let tree = self.touched[at];
        let memory = &mut self.memory[tree];
        let in_memory = memory.peek().map(|(key, _)| *key);
        let in_run = self.spilled.as_ref().and_then(|spilled| spilled.key(tree));
        let (is_run_first, is_same) = match (in_memory, in_run) {
            (Some(memory), Some(run)) => (run < memory, run == memory),
            (None, Some(_)) => (true, false),
            (_, None) => (false, false),
        };
        let mut taken = None;
        if (is_run_first || is_same)
            && let Some(spilled) = &mut self.spilled
        {
            taken = spilled.take(&mut self.dead)?;
        }
        if !is_run_first {
            self.dead.extend(taken.as_ref().and_then(extent_of));
            taken = memory.next().map(|(key, write)| change_of(key, write));
        }
        if let Some(change) = &taken {
            let value = change
                .value
                .as_ref()
                .map_or(0, |(_, bytes)| bytes.len() as u64);
            let value = extent_of(change).map_or(value, |extent| extent.length);
            self.user_bytes += change.key.len() as u64 + value;
        }
        Ok(taken)
    }
}
