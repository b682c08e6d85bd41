//! What a transaction is going to change.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::large_changes::{InMemory, LargeChanges, SpilledChanges};
use super::not_kept::NotKept;
use super::spill::{self, MAX_RUNS, Spilled};
use super::writes::Writes;
use crate::api::tree::{Tree, TreeState};
use crate::btree::{Direction, Stretch, Stretches, ValueRef};
use crate::extent::{DESCRIPTOR_BYTES, Extent};
use crate::sort::SortError;
use crate::sync::HashSet;
use crate::txn::commit::{Change, change_bytes};
use crate::txn::versions::{Bounds, is_range};

/// Of the memory that changes may take, what removed stretches may: one part in this many.
const STRETCHES_SHARE: u64 = 4;

/// What a key is going to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    Removed,
    Inline(Box<[u8]>),
    Extent(Extent),
}

impl Write {
    fn bytes(&self, key: &[u8]) -> u64 {
        let value = match self {
            Write::Removed => 0,
            Write::Inline(value) => value.len(),
            Write::Extent(_) => DESCRIPTOR_BYTES,
        };
        change_bytes(key.len(), value)
    }
}

/// What a transaction changes in one tree.
///
/// Of a key that it writes, what it wrote last counts. Of the others those in `removed` are
/// removed, as far as its snapshot has them: stretches take the place of keys where all of a range
/// goes.
pub(super) struct TreeWrites {
    pub(super) state: Arc<TreeState>,
    /// Those in memory.
    pub(super) writes: Writes,
    /// Keys that the transaction gave a value and removed again, all before the first savepoint;
    /// `writes` may have them still. Its reads need not pass those that stretches have. Another
    /// transaction that has changed one is in conflict with it, also where the snapshot does not
    /// have the key.
    withdrawn: BTreeSet<Vec<u8>>,
    /// Shared with the savepoints since which nothing was added.
    pub(super) removed: Arc<Removed>,
}

/// Stretches of keys that are removed.
#[derive(Clone, Default)]
pub(super) struct Removed {
    pub(super) stretches: Stretches,
    /// What removing their records one by one would take in the log, at most.
    bytes: u64,
}

/// How to undo the writes of one key since a savepoint: tree, key, what the write set had there.
struct Undo {
    tree: usize,
    key: Arc<[u8]>,
    before: Option<Write>,
}

impl Undo {
    /// What it takes, beside the bytes of its key and value.
    const OVERHEAD: u64 = 160;

    fn bytes(&self) -> u64 {
        let before = self.before.as_ref();
        Undo::OVERHEAD + before.map_or(self.key.len() as u64, |before| before.bytes(&self.key))
    }
}

/// A savepoint.
struct Saved {
    number: u64,
    /// What was removed of each tree then.
    removed: Vec<Arc<Removed>>,
    /// Length of `undo` then, if nothing was spilled since; 0 else.
    undo: usize,
    /// How many runs have what was spilled before.
    runs: usize,
}

/// The changes of one tree: those in memory, and those that were spilled.
#[derive(Clone, Copy, Default)]
pub(super) struct Own<'w> {
    memory: Option<&'w TreeWrites>,
    /// With the tree's place there.
    spilled: Option<(&'w Spilled, usize)>,
}

/// Changes within a range, by ascending keys, and the key up to which they are all, where there may
/// be more.
pub(super) type Within = (Vec<(Vec<u8>, Write)>, Option<Vec<u8>>);

impl<'w> Own<'w> {
    pub(super) fn is_empty(&self) -> bool {
        self.memory.is_none()
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Cow<'w, Write>>, SortError> {
        let Some(memory) = self.memory else {
            return Ok(None);
        };
        if let Some(write) = memory.writes.get(key) {
            return Ok(Some(Cow::Borrowed(write)));
        }
        if let Some((spilled, tree)) = self.spilled
            && let Some(write) = spilled.get(tree, key)?
        {
            return Ok(Some(Cow::Owned(write)));
        }
        let is_removed = memory.removed.stretches.covers(key);
        Ok(is_removed.then_some(Cow::Owned(Write::Removed)))
    }

    /// Whether stretches are removed.
    pub(super) fn has_stretches(&self) -> bool {
        let of = |memory: &TreeWrites| !memory.removed.stretches.is_empty();
        self.memory.is_some_and(of)
    }

    /// The first piece of `whole` in which all records of the snapshot are removed, or in which
    /// only those are that [`Own::within`] has; whether it is one of the former.
    pub(super) fn piece(&self, whole: &Stretch, direction: Direction) -> (bool, Stretch) {
        match self.memory {
            Some(memory) => memory.removed.stretches.piece(whole, direction),
            None => (false, whole.clone()),
        }
    }

    /// Whether it is certain at little cost that no single key within `bounds` was changed.
    pub(super) fn has_none_within(&self, bounds: Bounds<'_>) -> bool {
        let Some(memory) = self.memory.filter(|_| is_range(bounds)) else {
            return true;
        };
        memory.writes.range(bounds).next().is_none()
            && (self.spilled).is_none_or(|(spilled, tree)| spilled.has_none_within(tree, bounds))
    }

    /// The changes of single keys within `bounds`, in ascending order; about `most` of them, from
    /// the end at which `direction` begins.
    pub(super) fn within(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        most: usize,
    ) -> Result<Within, SortError> {
        let Some(memory) = self.memory.filter(|_| is_range(bounds)) else {
            return Ok((Vec::new(), None));
        };
        let (memory, mut cut) = in_memory(&memory.writes, bounds, direction, most);
        let Some((spilled, tree)) = self.spilled else {
            return Ok((memory, cut));
        };
        let (lists, cut_there) = spilled.within(tree, bounds, direction, most)?;
        cut = match (cut, cut_there, direction) {
            (Some(a), Some(b), Direction::Forward) => Some(a.min(b)),
            (Some(a), Some(b), Direction::Reverse) => Some(a.max(b)),
            (a, b, _) => a.or(b),
        };
        let mut all: BTreeMap<Vec<u8>, Write> = lists.into_iter().flatten().collect();
        all.extend(memory);
        if let Some(cut) = &cut {
            all.retain(|key, _| match direction {
                Direction::Forward => key <= cut,
                Direction::Reverse => key >= cut,
            });
        }
        Ok((all.into_iter().collect(), cut))
    }
}

/// Up to `most` writes within `bounds`, ascending, from where `direction` begins; the last of
/// these, where there are more.
fn in_memory(writes: &Writes, bounds: Bounds<'_>, direction: Direction, most: usize) -> Within {
    let mut range = writes.range(bounds);
    let owned = |(key, write): (&[u8], &Write)| (key.to_vec(), write.clone());
    match direction {
        Direction::Forward => {
            let list: Vec<_> = range.by_ref().take(most).map(owned).collect();
            let cut = range.next().and(list.last()).map(|(key, _)| key.clone());
            (list, cut)
        }
        Direction::Reverse => {
            let mut list: Vec<_> = range.by_ref().rev().take(most).map(owned).collect();
            let cut = range.next().and(list.last()).map(|(key, _)| key.clone());
            list.reverse();
            (list, cut)
        }
    }
}

/// All changes of one transaction.
#[derive(Default)]
pub(super) struct WriteSet {
    trees: Vec<TreeWrites>,
    bytes: u64,
    /// Since the first savepoint; of each key one between two savepoints.
    undo: Vec<Undo>,
    undo_bytes: u64,
    /// Keys that can be undone to the last savepoint.
    saved: HashSet<(usize, Arc<[u8]>)>,
    /// Savepoints that can be gone back to.
    savepoints: Vec<Saved>,
    next_savepoint: u64,
    /// Bytes of stretches that only savepoints have.
    saved_bytes: u64,
    /// What was too much for memory, older than what is there now.
    spilled: Option<Spilled>,
    /// Large values that were written and are not wanted any more.
    dead: Vec<Extent>,
}

impl WriteSet {
    /// Bytes that the changes take in the log.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_spilled() && self.trees.iter().all(TreeWrites::is_empty)
    }

    /// Whether single keys in memory have changes.
    pub(super) fn has_single_writes(&self) -> bool {
        self.trees.iter().any(|tree| !tree.writes.is_empty())
    }

    /// Whether changes are in the temporary file.
    fn is_spilled(&self) -> bool {
        self.runs() > 0
    }

    /// Whether one record of `limit` bytes cannot have all changes.
    pub(super) fn is_large(&self, limit: u64) -> bool {
        let removed: u64 = self.trees.iter().map(|tree| tree.removed.bytes).sum();
        self.is_spilled() || self.bytes + removed > limit
    }

    fn runs(&self) -> usize {
        self.spilled.as_ref().map_or(0, Spilled::runs)
    }

    /// The changes of one tree.
    pub(super) fn of(&self, tree: &Tree) -> Own<'_> {
        let at = self.position(&tree.state);
        at.map_or_else(Own::default, |at| Own {
            memory: Some(&self.trees[at]),
            spilled: self.spilled.as_ref().map(|spilled| (spilled, at)),
        })
    }

    fn position(&self, state: &Arc<TreeState>) -> Option<usize> {
        let same = |other: &TreeWrites| other.state.tree == state.tree;
        self.trees.iter().position(same)
    }

    /// The place of a tree that is changed.
    fn place_of(&mut self, tree: &Tree) -> usize {
        self.position(&tree.state).unwrap_or_else(|| {
            self.trees.push(TreeWrites {
                state: Arc::clone(&tree.state),
                writes: Writes::default(),
                withdrawn: BTreeSet::new(),
                removed: Arc::default(),
            });
            self.trees.len() - 1
        })
    }

    /// Removes all that `stretch` has for this transaction: the records that are visible there have
    /// `keys`.
    pub(super) fn remove_all(
        &mut self,
        tree: &Tree,
        stretch: Stretch,
        keys: &[Vec<u8>],
        limit: u64,
        directory: &Path,
    ) -> Result<(), NotKept> {
        let at = self.place_of(tree);
        let in_log = |key: &[u8]| change_bytes(key.len(), 0);
        let is_kept = Arc::strong_count(&self.trees[at].removed) > 1;
        let taken = self.trees[at].removed.stretches.bytes() as u64;
        let copied = if is_kept { taken } else { 0 };
        if taken + copied + self.saved_bytes > limit / STRETCHES_SHARE {
            // Stretches would take too much memory. Keys can be spilled.
            let put =
                |key: &Vec<u8>| self.put(tree, key[..].into(), Write::Removed, limit, directory);
            return keys.iter().try_for_each(put);
        }
        let bytes: u64 = keys.iter().map(|key| in_log(key)).sum();
        if self.may_withdraw() {
            let within = self.trees[at].writes.range(stretch.bounds());
            let own: Vec<Vec<u8>> = within.map(|(key, _)| key.to_vec()).collect();
            for key in own {
                let write = self.trees[at].writes.remove(&key);
                self.bytes -= write.as_ref().map_or(0, |write| write.bytes(&key));
                let withdrawn = &mut self.trees[at].withdrawn;
                // Of the others, which were removed without having been given a value, the snapshot
                // has the records.
                if write != Some(Write::Removed) || withdrawn.contains(&key) {
                    self.bytes += in_log(&key);
                    withdrawn.insert(key);
                }
                self.give_up(write);
            }
        } else {
            for key in keys {
                let spilled = self.spilled.as_ref();
                if self.trees[at].writes.contains_key(key)
                    || spilled.is_some_and(|spilled| spilled.may_have(at, key))
                {
                    self.put(tree, key[..].into(), Write::Removed, limit, directory)?;
                }
            }
        }
        self.saved_bytes += copied;
        let removed = Arc::make_mut(&mut self.trees[at].removed);
        removed.stretches.add(stretch);
        removed.bytes += bytes;
        Ok(())
    }

    /// The trees of which stretches are removed, and these.
    pub(super) fn stretches(&self) -> impl Iterator<Item = (&Arc<TreeState>, &Stretches)> {
        let all = self
            .trees
            .iter()
            .map(|tree| (&tree.state, &tree.removed.stretches));
        all.filter(|(_, stretches)| !stretches.is_empty())
    }

    /// Has single removals say what stretches do, of those of `keys` that were not written.
    pub(super) fn remove_each(&mut self, state: &Arc<TreeState>, keys: Vec<Vec<u8>>) {
        let Some(at) = self.position(state) else {
            return;
        };
        let writes = &mut self.trees[at].writes;
        for key in keys {
            if !writes.contains_key(&key) {
                writes.insert(key, Write::Removed);
            }
        }
    }

    /// Has single removals say what was withdrawn.
    pub(super) fn name_withdrawn(&mut self) {
        for tree in &mut self.trees {
            for key in &tree.withdrawn {
                if !tree.writes.contains_key(key) {
                    tree.writes.insert(&key[..], Write::Removed);
                }
            }
        }
    }

    /// Whether stretches may take the place of changes: none is in the file, and none has to be
    /// restored.
    fn may_withdraw(&self) -> bool {
        self.savepoints.is_empty() && !self.is_spilled()
    }

    /// Adds a change. Where those in memory, or what savepoints keep, take more than `limit` bytes
    /// with it, they go to a temporary file in `directory` first. One that is refused is given up,
    /// and all else is as before.
    pub(super) fn put(
        &mut self,
        tree: &Tree,
        key: Cow<'_, [u8]>,
        write: Write,
        limit: u64,
        directory: &Path,
    ) -> Result<(), NotKept> {
        let at = self.place_of(tree);
        let before = self.trees[at].writes.get(&key);
        let is_new = before.is_none();
        let mut kept = before.map_or(0, |before| before.bytes(&key));
        let mut shared = self.shared(at, &key);
        let undo_bytes = self.undo_bytes + Undo::OVERHEAD + kept.max(key.len() as u64);
        if self.bytes - kept + write.bytes(&key) > limit || shared.is_some() && undo_bytes > limit {
            if let Err(error) = self.spill(directory) {
                self.give_up(Some(write));
                return Err(error);
            }
            // Nothing is in memory now that a savepoint could be gone back to.
            (kept, shared) = (0, self.shared(at, &key));
        }
        self.bytes = self.bytes - kept + write.bytes(&key);
        let is_removal = write == Write::Removed;
        let may_withdraw = self.may_withdraw();
        let TreeWrites {
            writes, withdrawn, ..
        } = &mut self.trees[at];
        if may_withdraw && is_new && withdrawn.contains(&*key) {
            self.bytes -= change_bytes(key.len(), 0);
        }
        if may_withdraw && is_removal && writes.get(&key).is_some_and(|old| *old != Write::Removed)
        {
            withdrawn.insert(key.to_vec());
        }
        let before = writes.insert(key, write);
        let Some((tree, key)) = shared else {
            self.give_up(before);
            return Ok(());
        };
        self.saved.insert((tree, Arc::clone(&key)));
        let undo = Undo { tree, key, before };
        self.undo_bytes += undo.bytes();
        self.undo.push(undo);
        Ok(())
    }

    /// How the undo list names a key that it has to have, and does not yet.
    fn shared(&self, at: usize, key: &[u8]) -> Option<(usize, Arc<[u8]>)> {
        let last = self.savepoints.last()?;
        if last.runs < self.runs() {
            return None;
        }
        let shared: (usize, Arc<[u8]>) = (at, key.into());
        (!self.saved.contains(&shared)).then_some(shared)
    }

    /// Moves all changes in memory to a temporary file, those between two savepoints apart from the
    /// others. Where that fails they are in memory as before.
    fn spill(&mut self, directory: &Path) -> Result<(), NotKept> {
        let newest = self.runs();
        let first = self.savepoints.partition_point(|s| s.runs < newest);
        let mut layers: Vec<BTreeMap<Vec<u8>, Write>> = Vec::new();
        let kept_apart = self.savepoints.len() - first;
        if kept_apart > 0 && newest + kept_apart >= MAX_RUNS {
            return Err(NotKept::TooManySavepoints {
                limit: MAX_RUNS as u64,
            });
        }
        for at in (first..self.savepoints.len()).rev() {
            let mut layer = BTreeMap::new();
            while self.undo.len() > self.savepoints[at].undo {
                let Some(undo) = self.undo.pop() else { break };
                let writes = &mut self.trees[undo.tree].writes;
                let since = match undo.before {
                    Some(before) => writes.insert(&undo.key[..], before),
                    None => writes.remove(&undo.key[..]),
                };
                if let Some(since) = since {
                    layer.insert(spill::place(undo.tree, &undo.key), since);
                }
            }
            layers.push(layer);
        }
        layers.reverse();
        // What is left is older than the first savepoint, as what was withdrawn.
        self.name_withdrawn();
        if let Err(error) = self.spill_layers(directory, first, &layers) {
            self.take_back(first, layers);
            return Err(error.into());
        }
        for tree in &mut self.trees {
            tree.writes.clear();
            tree.withdrawn.clear();
        }
        (self.bytes, self.undo_bytes) = (0, 0);
        self.saved.clear();
        let kept = self.savepoints.last().map_or(0, |last| last.runs);
        match &mut self.spilled {
            Some(spilled) => Ok(spilled.merge(kept, &mut self.dead)?),
            None => Ok(()),
        }
    }

    /// Makes the changes between savepoints, from the one at `first` on, what they were before they
    /// were taken apart.
    fn take_back(&mut self, first: usize, layers: Vec<BTreeMap<Vec<u8>, Write>>) {
        for (saved, layer) in self.savepoints[first..].iter_mut().zip(layers) {
            saved.undo = self.undo.len();
            self.saved.clear();
            for (place, write) in layer {
                let (tree, key) = spill::parts(&place);
                let before = self.trees[tree].writes.insert(key, write);
                let key: Arc<[u8]> = key.into();
                self.saved.insert((tree, Arc::clone(&key)));
                self.undo.push(Undo { tree, key, before });
            }
        }
        // What was withdrawn is named now, and is what some of these have replaced.
        let all = self.trees.iter().flat_map(|tree| tree.writes.iter());
        self.bytes = all.map(|(key, write)| write.bytes(key)).sum();
        self.undo_bytes = self.undo.iter().map(Undo::bytes).sum();
    }

    fn spill_layers(
        &mut self,
        directory: &Path,
        first: usize,
        layers: &[BTreeMap<Vec<u8>, Write>],
    ) -> Result<(), SortError> {
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(Spilled::new(directory.to_path_buf())?),
        };
        let before = spilled.runs();
        let base = self.trees.iter().enumerate();
        let base = base.flat_map(|(tree, of)| {
            let writes = of.writes.iter();
            writes.map(move |(key, write)| (tree, key, write))
        });
        let mut counts = Vec::with_capacity(layers.len());
        let mut written = spilled.add(base);
        for layer in layers {
            counts.push(spilled.runs());
            let writes = layer.iter().map(|(place, write)| {
                let (tree, key) = spill::parts(place);
                (tree, key, write)
            });
            written = written.and_then(|()| spilled.add(writes));
        }
        if let Err(error) = written {
            // What these have is still in memory.
            spilled.truncate(before, &mut Vec::new());
            return Err(error);
        }
        if layers.is_empty() {
            spilled.join();
        }
        for (saved, runs) in self.savepoints[first..].iter_mut().zip(counts) {
            (saved.undo, saved.runs) = (0, runs);
        }
        Ok(())
    }

    fn give_up(&mut self, write: Option<Write>) {
        if let Some(Write::Extent(extent)) = write {
            self.dead.push(extent);
        }
    }

    /// Bytes that were written to the temporary file since this was asked last.
    pub(super) fn take_spilled_bytes(&mut self) -> u64 {
        self.spilled.as_mut().map_or(0, Spilled::take_written)
    }

    /// Large values that are to be freed.
    pub(super) fn take_dead(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.dead)
    }

    pub(super) fn savepoint(&mut self) -> u64 {
        let (undo, runs) = (self.undo.len(), self.runs());
        if let Some(last) = self.savepoints.last()
            && (last.undo, last.runs) == (undo, runs)
            && self.is_removed_as(last)
        {
            // Nothing was written since.
            return last.number;
        }
        self.saved.clear();
        let number = self.next_savepoint;
        self.next_savepoint += 1;
        let removed = self.trees.iter().map(|tree| Arc::clone(&tree.removed));
        let removed = removed.collect();
        self.savepoints.push(Saved {
            number,
            removed,
            undo,
            runs,
        });
        number
    }

    /// Whether no stretch was removed since a savepoint.
    fn is_removed_as(&self, saved: &Saved) -> bool {
        let mut trees = self.trees.iter().enumerate();
        trees.all(|(at, tree)| match saved.removed.get(at) {
            Some(removed) => Arc::ptr_eq(&tree.removed, removed),
            None => tree.removed.stretches.is_empty(),
        })
    }

    /// Has trees removed what they had then, at the last savepoint.
    fn restore_removed(&mut self) {
        let Some(saved) = self.savepoints.last() else {
            return;
        };
        for (at, tree) in self.trees.iter_mut().enumerate() {
            tree.removed = saved.removed.get(at).cloned().unwrap_or_default();
        }
        let bytes = |removed: &Arc<Removed>| removed.stretches.bytes() as u64;
        let all = self.savepoints.iter().flat_map(|saved| &saved.removed);
        self.saved_bytes = self.saved_bytes.min(all.map(bytes).sum());
    }

    /// Undoes all since a savepoint; `false` if it is not one.
    pub(super) fn rollback_to(&mut self, number: u64) -> bool {
        let Some(at) = self.savepoints.iter().position(|s| s.number == number) else {
            return false;
        };
        self.savepoints.truncate(at + 1);
        self.restore_removed();
        let (length, runs) = (self.savepoints[at].undo, self.savepoints[at].runs);
        if runs < self.runs() {
            self.abandon_memory();
            if let Some(spilled) = &mut self.spilled {
                spilled.truncate(runs, &mut self.dead);
            }
            return true;
        }
        self.saved.clear();
        while self.undo.len() > length {
            let Some(undo) = self.undo.pop() else { break };
            self.undo_bytes -= undo.bytes();
            let writes = &mut self.trees[undo.tree].writes;
            let key = undo.key;
            self.bytes += undo.before.as_ref().map_or(0, |before| before.bytes(&key));
            let undone = match undo.before {
                Some(before) => writes.insert(&key[..], before),
                None => writes.remove(&key[..]),
            };
            self.bytes -= undone.as_ref().map_or(0, |undone| undone.bytes(&key));
            self.give_up(undone);
        }
        true
    }

    /// The transaction has committed: what it wrote belongs to the trees. What a
    /// savepoint kept is given up.
    pub(super) fn forget(&mut self) {
        self.trees.clear();
        self.spilled = None;
        for undo in std::mem::take(&mut self.undo) {
            self.give_up(undo.before);
        }
    }

    /// The transaction has ended without a commit: all that it wrote is given up.
    pub(super) fn abandon(&mut self) {
        self.abandon_memory();
        self.trees.clear();
        if let Some(mut spilled) = self.spilled.take() {
            spilled.truncate(0, &mut self.dead);
        }
    }

    /// Gives up all that is in memory.
    fn abandon_memory(&mut self) {
        for at in 0..self.trees.len() {
            for write in std::mem::take(&mut self.trees[at].writes).into_values() {
                self.give_up(Some(write));
            }
        }
        for undo in std::mem::take(&mut self.undo) {
            self.give_up(undo.before);
        }
        (self.bytes, self.undo_bytes) = (0, 0);
        self.saved.clear();
    }

    /// All changes of a transaction that is too large for one record, as its commit takes them.
    pub(super) fn large(&mut self) -> Result<LargeChanges<'_>, SortError> {
        // No savepoint is gone back to any more.
        self.savepoints.clear();
        self.name_withdrawn();
        for undo in std::mem::take(&mut self.undo) {
            self.give_up(undo.before);
        }
        let mut dead = Vec::new();
        let spilled = match &mut self.spilled {
            Some(spilled) => {
                let mut merge = spilled.sorted(&mut self.dead)?;
                let next = spilled.next_of(&mut merge, &mut dead)?;
                let spilled = &*spilled;
                Some(SpilledChanges {
                    spilled,
                    merge,
                    next,
                })
            }
            None => None,
        };
        let in_file = spilled.as_ref().map(|spilled| spilled.spilled.trees());
        let in_file = in_file.unwrap_or_default();
        let is_touched = |at: &usize| !self.trees[*at].is_empty() || in_file.contains(at);
        Ok(LargeChanges {
            touched: (0..self.trees.len()).filter(is_touched).collect(),
            memory: self
                .trees
                .iter()
                .map(|tree| InMemory::peekable(Box::new(tree.writes.iter())))
                .collect(),
            trees: &self.trees,
            spilled,
            dead,
            user_bytes: 0,
        })
    }

    /// Large values that are given up with the commit.
    pub(super) fn bury(&mut self, dead: Vec<Extent>) {
        self.dead.extend(dead);
    }

    /// Bytes of keys and values.
    pub(super) fn user_bytes(&self) -> u64 {
        let all = self.trees.iter().flat_map(|tree| tree.writes.iter());
        all.map(|(key, write)| user_bytes(key, write)).sum()
    }

    /// All changes, by tree and key, as a commit takes them.
    pub(super) fn changes(&self) -> Vec<Encoded<'_>> {
        let all = self.trees.iter().flat_map(|tree| {
            let writes = tree.writes.iter();
            writes.map(move |(key, write)| (&*tree.state, key, write))
        });
        all.map(|(state, key, write)| Encoded {
            state,
            key,
            write,
            descriptor: match write {
                Write::Extent(extent) => extent.encode(),
                Write::Removed | Write::Inline(_) => [0; DESCRIPTOR_BYTES],
            },
        })
        .collect()
    }
}

impl TreeWrites {
    /// Whether there is nothing in memory.
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.removed.stretches.is_empty()
    }
}

/// Bytes of a key and its value.
fn user_bytes(key: &[u8], write: &Write) -> u64 {
    let value = match write {
        Write::Removed => 0,
        Write::Inline(value) => value.len() as u64,
        Write::Extent(extent) => extent.length,
    };
    key.len() as u64 + value
}

/// A change with its descriptor, if its value is a large one.
pub(super) struct Encoded<'w> {
    state: &'w TreeState,
    key: &'w [u8],
    write: &'w Write,
    descriptor: [u8; DESCRIPTOR_BYTES],
}

impl Encoded<'_> {
    pub(super) fn change(&self) -> Change<'_> {
        let value = match self.write {
            Write::Removed => None,
            Write::Inline(value) => Some(ValueRef::inline(value)),
            Write::Extent(_) => Some(ValueRef::extent(&self.descriptor)),
        };
        self.state.change(self.key, value)
    }
}

#[cfg(test)]
#[path = "write_set_tests.rs"]
mod tests;
