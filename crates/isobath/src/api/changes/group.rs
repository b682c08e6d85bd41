//! Transactions that are given out as one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::feed::State;
use super::{Change, Names};
use crate::api::tree::Tree;
use crate::btree::TreeId;
use crate::canary::{self, Canary};
use crate::error::Error;
use crate::page::Lsn;

/// Most bytes of keys and values that a group holds. Trees that would have more are read from a
/// snapshot instead.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// Bytes of memory that each change has beside its key and value, roughly.
const CHANGE_BYTES: usize = 100;

/// What [`Group::close`] gives: the changes, whether they are all of the store, and where the
/// records of replaced trees are.
pub(super) type Closed = (Vec<Change>, bool, Option<State>);

/// The changes of one transaction, or of as many as it takes until all of them are known.
#[derive(Default)]
pub(super) struct Group {
    /// `None` where a later one has taken a change's place.
    changes: Vec<Option<(TreeId, Change)>>,
    bytes: usize,
    /// Trees whose records the log does not have, from these keys on.
    replaced: BTreeMap<TreeId, Vec<u8>>,
    /// Large values that are gone: the changes that have them. A later change of the same key takes
    /// the place of each.
    missing: HashMap<(TreeId, Vec<u8>), usize>,
    /// The last record of which something is read from the snapshot, which has to be behind it.
    last_replaced: Lsn,
    is_whole: bool,
    /// A snapshot, from which the replaced trees are read.
    pub(super) state: Option<State>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("changes", &self.changes.len())
            .field("missing", &self.missing.len())
            .field("replaced", &self.replaced)
            .field("last_replaced", &self.last_replaced)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// All records of all trees. The snapshot has to have what is before `at`, which may be durable
    /// and not visible yet.
    pub(super) fn of_all(names: &Names, at: Lsn) -> Group {
        let is_kept = !canary::is_on(Canary::StreamOldState);
        Group {
            last_replaced: Lsn(if is_kept { at.0 - 1 } else { 0 }),
            replaced: names.keys().map(|&id| (id, Vec::new())).collect(),
            is_whole: true,
            ..Group::default()
        }
    }

    /// Whether the change that the record at `lsn` has made of a key is read from a snapshot.
    pub(super) fn leaves_out(&mut self, tree: TreeId, key: &[u8], lsn: Lsn) -> bool {
        let from = self.replaced.get(&tree);
        let is_left_out = self.is_whole || from.is_some_and(|from| key >= &from[..]);
        // Durable commits are seen by snapshots a little later.
        if is_left_out && !canary::is_on(Canary::StreamOldState) {
            self.last_replaced = lsn;
        }
        is_left_out
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn create_tree(&mut self, id: TreeId, tree: Arc<str>) {
        if self.is_whole {
            self.replaced.insert(id, Vec::new());
        }
        self.bytes += CHANGE_BYTES;
        self.changes
            .push(Some((TreeId(0), Change::Create { tree })));
    }

    pub(super) fn drop_tree(&mut self, id: TreeId, tree: Arc<str>) {
        self.forget(id, &[]);
        self.replaced.remove(&id);
        self.bytes += CHANGE_BYTES;
        self.changes.push(Some((TreeId(0), Change::Drop { tree })));
    }

    pub(super) fn remove(&mut self, id: TreeId, tree: &Arc<str>, key: &[u8]) {
        self.supersede(id, key);
        let (tree, key) = (Arc::clone(tree), key.to_vec());
        self.bytes += CHANGE_BYTES + key.len();
        self.changes.push(Some((id, Change::Remove { tree, key })));
    }

    /// `value` is `None` if it is gone.
    pub(super) fn put(&mut self, id: TreeId, tree: &Arc<str>, key: &[u8], value: Option<Vec<u8>>) {
        self.supersede(id, key);
        if value.is_none() && !canary::is_on(Canary::StreamGoneValues) {
            self.missing.insert((id, key.to_vec()), self.changes.len());
        }
        let (tree, key, value) = (Arc::clone(tree), key.to_vec(), value.unwrap_or_default());
        self.bytes += CHANGE_BYTES + key.len() + value.len();
        self.changes
            .push(Some((id, Change::Put { tree, key, value })));
    }

    /// A later change of the key makes it unimportant which value was missing.
    fn supersede(&mut self, id: TreeId, key: &[u8]) {
        if !self.missing.is_empty()
            && let Some(at) = self.missing.remove(&(id, key.to_vec()))
        {
            self.changes[at] = None;
        }
    }

    /// The record at `lsn` has given the tree other records from `lower` on.
    pub(super) fn replace(&mut self, id: TreeId, lower: &[u8], lsn: Lsn) {
        let from = self.replaced.entry(id).or_insert_with(|| lower.to_vec());
        if lower < &from[..] {
            *from = lower.to_vec();
        }
        self.last_replaced = lsn;
        self.forget(id, lower);
    }

    /// Forgets the changes of a tree's keys from `lower` on.
    fn forget(&mut self, id: TreeId, lower: &[u8]) {
        let is_theirs = |change: &Change| match change {
            Change::Put { key, .. } | Change::Remove { key, .. } => &key[..] >= lower,
            _ => false,
        };
        for slot in &mut self.changes {
            if slot
                .as_ref()
                .is_some_and(|(of, change)| *of == id && is_theirs(change))
            {
                *slot = None;
            }
        }
        self.missing
            .retain(|(of, key), _| *of != id || &key[..] < lower);
    }

    pub(super) fn is_large(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// Has all trees that it changes read from a snapshot behind `lsn`.
    pub(super) fn replace_all(&mut self, lsn: Lsn) {
        let changed = self.changes.iter().flatten().map(|(id, _)| *id);
        let mut trees: Vec<TreeId> = changed.filter(|id| *id != TreeId(0)).collect();
        trees.sort_unstable();
        trees.dedup();
        for id in trees {
            self.replace(id, &[], lsn);
        }
        // No value is missing any more, which had a place here.
        self.changes.retain(Option::is_some);
        self.bytes = 0;
    }

    /// Whether a snapshot is to be opened.
    pub(super) fn needs_state(&self) -> bool {
        let replaces = self.is_whole || !self.replaced.is_empty();
        let is_behind = |state: &State| state.reached > self.last_replaced;
        replaces && !self.state.as_ref().is_some_and(is_behind)
    }

    /// Whether all is known, once the log was read up to `next`.
    pub(super) fn is_complete(&self, next: Lsn) -> bool {
        let is_read = self
            .state
            .as_ref()
            .is_none_or(|state| state.reached <= next);
        self.missing.is_empty() && !self.needs_state() && is_read
    }

    /// The changes. The group itself, without a snapshot, if a tree that it has to read was dropped
    /// since that was opened: the log says so.
    pub(super) fn close(
        mut self,
        names: &Names,
        tree_of: impl Fn(&State, &str, TreeId) -> Result<Option<Tree>, Error>,
    ) -> Result<Result<Closed, Group>, Error> {
        let mut changes: Vec<Change> = Vec::new();
        let mut state = self.state.take();
        if let Some(state) = &mut state {
            for (id, from) in &self.replaced {
                let Some((name, _)) = names.get(id) else {
                    continue;
                };
                let Some(tree) = tree_of(state, name, *id)? else {
                    return Ok(Err(self));
                };
                state.trees.insert(Arc::clone(name), tree);
                changes.push(Change::Replace {
                    tree: Arc::clone(name),
                    from: from.clone(),
                });
            }
        }
        let kept = self.changes.drain(..).flatten().map(|(_, change)| change);
        let is_whole = self.is_whole;
        let kept: Vec<Change> = kept.filter(|_| !is_whole).chain(changes).collect();
        Ok(Ok((kept, is_whole, state)))
    }
}
