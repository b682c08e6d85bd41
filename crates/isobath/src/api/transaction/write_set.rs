//! What a transaction is going to change.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::spill::{self, MAX_RUNS, Spilled};
use crate::Error;
use crate::api::tree::{Tree, TreeState};
use crate::btree::{self, Direction, ValueKind, ValueRef};
use crate::extent::{DESCRIPTOR_BYTES, Extent};
use crate::sort::Merge;
use crate::sync::HashSet;
use crate::txn::commit::{Change, change_bytes};
use crate::txn::large::LargeTree;
use crate::txn::versions::{Bounds, is_range};

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

pub(super) type TreeWrites = BTreeMap<Vec<u8>, Write>;

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

/// Changes within a range, by ascending keys, and the key up to which they are all, where there may be more.
pub(super) type Within = (Vec<(Vec<u8>, Write)>, Option<Vec<u8>>);

impl<'w> Own<'w> {
    pub(super) fn is_empty(&self) -> bool {
        self.memory.is_none()
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Cow<'w, Write>>, Error> {
        if let Some(write) = self.memory.and_then(|writes| writes.get(key)) {
            return Ok(Some(Cow::Borrowed(write)));
        }
        match self.spilled {
            None => Ok(None),
            Some((spilled, tree)) => Ok(spilled.get(tree, key)?.map(Cow::Owned)),
        }
    }

    /// The changes within `bounds`, in ascending order; from where some were spilled about `most`, from the end at which
    /// `direction` begins.
    pub(super) fn within(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        most: usize,
    ) -> Result<Within, Error> {
        let memory = within(self.memory, bounds).into_iter();
        let memory = memory.map(|(key, write)| (key.to_vec(), write.clone()));
        let Some((spilled, tree)) = self.spilled.filter(|_| is_range(bounds)) else {
            return Ok((memory.collect(), None));
        };
        let (lists, cut) = spilled.within(tree, bounds, direction, most)?;
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

/// All changes of one transaction.
#[derive(Default)]
pub(super) struct WriteSet {
    trees: Vec<(Arc<TreeState>, TreeWrites)>,
    bytes: u64,
    /// Since the first savepoint; of each key one between two savepoints.
    undo: Vec<Undo>,
    undo_bytes: u64,
    /// Keys that can be undone to the last savepoint.
    saved: HashSet<(usize, Arc<[u8]>)>,
    /// Savepoints that can be gone back to.
    savepoints: Vec<Saved>,
    next_savepoint: u64,
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
        !self.is_spilled() && self.trees.iter().all(|(_, writes)| writes.is_empty())
    }

    /// Whether the changes are more than memory may hold.
    pub(super) fn is_spilled(&self) -> bool {
        self.runs() > 0
    }

    fn runs(&self) -> usize {
        self.spilled.as_ref().map_or(0, Spilled::runs)
    }

    /// The changes of one tree.
    pub(super) fn of(&self, tree: &Tree) -> Own<'_> {
        let at = self.position(&tree.state);
        at.map_or_else(Own::default, |at| Own {
            memory: Some(&self.trees[at].1),
            spilled: self.spilled.as_ref().map(|spilled| (spilled, at)),
        })
    }

    fn position(&self, state: &Arc<TreeState>) -> Option<usize> {
        let same = |(other, _): &(Arc<TreeState>, _)| other.tree == state.tree;
        self.trees.iter().position(same)
    }

    /// Adds a change. Where those in memory, or what savepoints keep, take more than `limit` bytes with it, they go to a temporary
    /// file in `directory` first. One that is refused is given up, and all else is as before.
    pub(super) fn put(
        &mut self,
        tree: &Tree,
        key: &[u8],
        write: Write,
        limit: u64,
        directory: &Path,
    ) -> Result<(), Error> {
        let at = self.position(&tree.state).unwrap_or_else(|| {
            self.trees
                .push((Arc::clone(&tree.state), TreeWrites::new()));
            self.trees.len() - 1
        });
        let before = self.trees[at].1.get(key);
        let mut kept = before.map_or(0, |before| before.bytes(key));
        let mut shared = self.shared(at, key);
        let undo_bytes = self.undo_bytes + Undo::OVERHEAD + kept.max(key.len() as u64);
        if self.bytes - kept + write.bytes(key) > limit || shared.is_some() && undo_bytes > limit {
            if let Err(error) = self.spill(directory) {
                self.give_up(Some(write));
                return Err(error);
            }
            // Nothing is in memory now that a savepoint could be gone back to.
            (kept, shared) = (0, self.shared(at, key));
        }
        self.bytes = self.bytes - kept + write.bytes(key);
        let writes = &mut self.trees[at].1;
        let before = match writes.get_mut(key) {
            Some(place) => Some(std::mem::replace(place, write)),
            None => writes.insert(key.to_vec(), write),
        };
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

    /// Moves all changes in memory to a temporary file, those between two savepoints apart from the others. Where that fails they
    /// are in memory as before.
    fn spill(&mut self, directory: &Path) -> Result<(), Error> {
        let newest = self.runs();
        let first = self.savepoints.partition_point(|s| s.runs < newest);
        let mut layers: Vec<BTreeMap<Vec<u8>, Write>> = Vec::new();
        let kept_apart = self.savepoints.len() - first;
        if kept_apart > 0 && newest + kept_apart >= MAX_RUNS {
            return Err(Error::TooManySavepoints {
                limit: MAX_RUNS as u64,
            });
        }
        for at in (first..self.savepoints.len()).rev() {
            let mut layer = BTreeMap::new();
            while self.undo.len() > self.savepoints[at].undo {
                let Some(undo) = self.undo.pop() else { break };
                let writes = &mut self.trees[undo.tree].1;
                let since = match undo.before {
                    Some(before) => writes.insert(undo.key.to_vec(), before),
                    None => writes.remove(&undo.key[..]),
                };
                if let Some(since) = since {
                    layer.insert(spill::place(undo.tree, &undo.key), since);
                }
            }
            layers.push(layer);
        }
        layers.reverse();
        if let Err(error) = self.spill_layers(directory, first, &layers) {
            self.take_back(first, layers);
            return Err(error);
        }
        self.trees.iter_mut().for_each(|(_, writes)| writes.clear());
        (self.bytes, self.undo_bytes) = (0, 0);
        self.saved.clear();
        let kept = self.savepoints.last().map_or(0, |last| last.runs);
        match &mut self.spilled {
            Some(spilled) => spilled.merge(kept, &mut self.dead),
            None => Ok(()),
        }
    }

    /// Makes the changes between savepoints, from the one at `first` on, what they were before they were taken apart.
    fn take_back(&mut self, first: usize, layers: Vec<BTreeMap<Vec<u8>, Write>>) {
        for (saved, layer) in self.savepoints[first..].iter_mut().zip(layers) {
            saved.undo = self.undo.len();
            self.saved.clear();
            for (place, write) in layer {
                let (tree, key) = spill::parts(&place);
                let before = self.trees[tree].1.insert(key.to_vec(), write);
                let key: Arc<[u8]> = key.into();
                self.saved.insert((tree, Arc::clone(&key)));
                self.undo.push(Undo { tree, key, before });
            }
        }
    }

    fn spill_layers(
        &mut self,
        directory: &Path,
        first: usize,
        layers: &[BTreeMap<Vec<u8>, Write>],
    ) -> Result<(), Error> {
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            none => none.insert(Spilled::new(directory.to_path_buf())?),
        };
        let before = spilled.runs();
        let base = self.trees.iter().enumerate();
        let base = base.flat_map(|(tree, (_, writes))| {
            let writes = writes.iter();
            writes.map(move |(key, write)| (spill::place(tree, key), write))
        });
        let mut counts = Vec::with_capacity(layers.len());
        let mut written = spilled.add(base);
        for layer in layers {
            counts.push(spilled.runs());
            let writes = layer.iter().map(|(place, write)| (place.clone(), write));
            written = written.and_then(|()| spilled.add(writes));
        }
        if let Err(error) = written {
            // What these have is still in memory.
            spilled.truncate(before, &mut Vec::new());
            return Err(error);
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
        {
            // Nothing was written since.
            return last.number;
        }
        self.saved.clear();
        let number = self.next_savepoint;
        self.next_savepoint += 1;
        self.savepoints.push(Saved { number, undo, runs });
        number
    }

    /// Undoes all since a savepoint; `false` if it is not one.
    pub(super) fn rollback_to(&mut self, number: u64) -> bool {
        let Some(at) = self.savepoints.iter().position(|s| s.number == number) else {
            return false;
        };
        self.savepoints.truncate(at + 1);
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
            let writes = &mut self.trees[undo.tree].1;
            let key = undo.key;
            self.bytes += undo.before.as_ref().map_or(0, |before| before.bytes(&key));
            let undone = match undo.before {
                Some(before) => writes.insert(key.to_vec(), before),
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
            for (_, write) in std::mem::take(&mut self.trees[at].1) {
                self.give_up(Some(write));
            }
        }
        for undo in std::mem::take(&mut self.undo) {
            self.give_up(undo.before);
        }
        (self.bytes, self.undo_bytes) = (0, 0);
        self.saved.clear();
    }

    /// All changes of a transaction of which some were spilled, as its commit takes them.
    pub(super) fn large(&mut self, directory: &Path) -> Result<LargeChanges<'_>, Error> {
        // No savepoint is gone back to any more.
        self.savepoints.clear();
        for undo in std::mem::take(&mut self.undo) {
            self.give_up(undo.before);
        }
        self.spill(directory)?;
        let Some(spilled) = &mut self.spilled else {
            return Err(Error::Closed);
        };
        let touched = spilled.trees();
        let mut merge = spilled.sorted(&mut self.dead)?;
        let mut dead = Vec::new();
        let next = spilled.next_of(&mut merge, &mut dead)?;
        Ok(LargeChanges {
            trees: &self.trees,
            touched,
            spilled,
            merge,
            next,
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
        let all = self.trees.iter().flat_map(|(_, writes)| writes);
        all.map(|(key, write)| user_bytes(key, write)).sum()
    }

    /// All changes, by tree and key, as a commit takes them.
    pub(super) fn changes(&self) -> Vec<Encoded<'_>> {
        let all = self.trees.iter().flat_map(|(state, writes)| {
            writes
                .iter()
                .map(move |(key, write)| (&**state, &key[..], write))
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

/// The changes of a large transaction, by tree and key.
pub(super) struct LargeChanges<'w> {
    trees: &'w [(Arc<TreeState>, TreeWrites)],
    /// The places of those that have changes.
    touched: Vec<usize>,
    spilled: &'w Spilled,
    merge: Merge,
    next: Option<(Vec<u8>, Write)>,
    /// Large values that no tree is going to name.
    pub(super) dead: Vec<Extent>,
    /// Bytes of the keys and values that were passed.
    pub(super) user_bytes: u64,
}

impl<'w> LargeChanges<'w> {
    /// The trees that have changes.
    pub(super) fn trees(&self) -> Vec<LargeTree<'w>> {
        let tree = |at: &usize| {
            let state = &self.trees[*at].0;
            LargeTree {
                tree: state.tree,
                name: &state.name,
                status: &state.status,
            }
        };
        self.touched.iter().map(tree).collect()
    }

    /// The next change of the tree at `at` of [`LargeChanges::trees`].
    pub(super) fn next(&mut self, at: usize) -> Result<Option<btree::Change>, Error> {
        let tree = self.touched[at];
        let is_of = |next: &mut (Vec<u8>, Write)| spill::parts(&next.0).0 == tree;
        let Some((place, write)) = self.next.take_if(is_of) else {
            return Ok(None);
        };
        self.next = self.spilled.next_of(&mut self.merge, &mut self.dead)?;
        let key = spill::parts(&place).1.to_vec();
        self.user_bytes += user_bytes(&key, &write);
        let value = match write {
            Write::Removed => None,
            Write::Inline(value) => Some((ValueKind::Inline, value.into_vec())),
            Write::Extent(extent) => Some((ValueKind::Extent, extent.encode().to_vec())),
        };
        Ok(Some(btree::Change { key, value }))
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

/// The writes within `bounds`, in ascending order.
fn within<'w>(writes: Option<&'w TreeWrites>, bounds: Bounds<'_>) -> Vec<(&'w [u8], &'w Write)> {
    match writes {
        Some(writes) if is_range(bounds) => writes
            .range::<[u8], _>(bounds)
            .map(|(key, write)| (&key[..], write))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::ops::Bound;

    use super::*;
    use crate::{Options, Store};

    const LIMIT: u64 = 3000;

    type Model = BTreeMap<Vec<u8>, u32>;

    struct Rig {
        writes: WriteSet,
        trees: Vec<Tree>,
        /// Takes the place of the temporary file while that is broken.
        other: Arc<File>,
        is_broken: bool,
        /// A linear congruential generator.
        state: u64,
    }

    impl Rig {
        fn new(seed: u64) -> (Store, Rig) {
            let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1)).unwrap();
            let tree = |name| store.create_tree(name).unwrap();
            let rig = Rig {
                writes: WriteSet::default(),
                trees: vec![tree("a"), tree("b")],
                // Nothing can be written to what is open for reading.
                other: Arc::new(File::open("/dev/null").unwrap()),
                is_broken: false,
                state: seed,
            };
            (store, rig)
        }

        fn below(&mut self, end: u64) -> u64 {
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.state >> 33) % end
        }

        fn put(&mut self, place: &[u8], number: u32) -> Result<(), Error> {
            let mut value = vec![0; 20 + number as usize % 100];
            value[..4].copy_from_slice(&number.to_le_bytes());
            let write = match number % 5 {
                0 => Write::Removed,
                _ => Write::Inline(value.into()),
            };
            let tree = self.trees[usize::from(place[0])].clone();
            let directory = std::env::temp_dir();
            self.writes
                .put(&tree, &place[1..], write, LIMIT, &directory)
        }

        /// Breaks the temporary file, or mends it, where there is one.
        fn toggle(&mut self) {
            let (swapped, other) = (&mut self.is_broken, &mut self.other);
            if let Some(spilled) = &mut self.writes.spilled {
                spilled.swap_file(other);
                *swapped = !*swapped;
            }
        }

        fn check(&self, model: &Model) {
            for (at, tree) in self.trees.iter().enumerate() {
                let own = self.writes.of(tree);
                let (mut found, cut) = own
                    .within(
                        (Bound::Unbounded, Bound::Unbounded),
                        Direction::Forward,
                        10_000,
                    )
                    .unwrap();
                assert!(cut.is_none());
                for (key, write) in found.drain(..) {
                    let place = [&[at as u8], &key[..]].concat();
                    let number = model[&place];
                    match write {
                        Write::Removed => assert!(number.is_multiple_of(5)),
                        Write::Inline(value) => assert_eq!(value[..4], number.to_le_bytes()),
                        Write::Extent(_) => panic!("none was written"),
                    }
                    assert!(own.get(&key).unwrap().is_some());
                }
            }
            let counted = self.trees.iter().map(|tree| {
                let all = (Bound::Unbounded, Bound::Unbounded);
                let own = self.writes.of(tree);
                own.within(all, Direction::Reverse, 10_000).unwrap().0.len()
            });
            assert_eq!(counted.sum::<usize>(), model.len());
        }
    }

    #[test]
    fn what_cannot_be_written_stays_in_memory_with_its_savepoints() {
        let (mut refused, mut spilled) = (0, 0);
        for seed in 0..30 {
            let (store, mut rig) = Rig::new(seed);
            let mut model = Model::new();
            let mut kept: Vec<(u64, Model)> = Vec::new();
            for number in 0..1500 {
                match rig.below(60) {
                    0..3 => kept.push((rig.writes.savepoint(), model.clone())),
                    3 if !kept.is_empty() && !rig.is_broken => {
                        let at = rig.below(kept.len() as u64) as usize;
                        assert!(rig.writes.rollback_to(kept[at].0));
                        model = kept[at].1.clone();
                        kept.truncate(at + 1);
                    }
                    4 => rig.toggle(),
                    5 if !rig.is_broken => rig.check(&model),
                    _ => {
                        let place = vec![rig.below(2) as u8, rig.below(150) as u8];
                        match rig.put(&place, number) {
                            Ok(()) => drop(model.insert(place, number)),
                            Err(error) => {
                                assert!(rig.is_broken && matches!(error, Error::Sort { .. }));
                                refused += 1;
                            }
                        }
                    }
                }
                assert!(rig.writes.bytes() <= LIMIT && rig.writes.undo_bytes <= LIMIT);
            }
            if rig.is_broken {
                rig.toggle();
            }
            rig.check(&model);
            spilled += usize::from(rig.writes.is_spilled());
            store.close().unwrap();
        }
        assert!(refused > 100 && spilled > 10, "{refused} {spilled}");
    }

    #[test]
    fn the_space_of_merged_runs_is_used_again() {
        let (store, mut rig) = Rig::new(1);
        let count = 40_000u32;
        for number in 0..count {
            let place = [&[0], format!("{number:08}").as_bytes()].concat();
            rig.put(&place, number).unwrap();
        }
        let spilled = rig.writes.spilled.as_mut().unwrap();
        let (file, written) = (spilled.file_bytes(), spilled.take_written());
        // Of each tier up to seven runs and the one that is being made of eight.
        assert!(
            file * 2 < written && spilled.runs() < 50,
            "{file} {written}"
        );
        store.close().unwrap();
    }

    #[test]
    fn a_scan_reads_some_bytes_of_many_runs_ahead() {
        let (store, mut rig) = Rig::new(1);
        let tree = rig.trees[0].clone();
        let (runs, records) = (200_u32, 100_u32);
        for run in 0..runs {
            rig.writes.savepoint();
            for record in 0..records {
                let key = (record * runs + run).swap_bytes().to_le_bytes();
                let write = Write::Inline(vec![1; 1_000].into());
                let directory = std::env::temp_dir();
                (rig.writes.put(&tree, &key, write, 60_000, &directory)).unwrap();
            }
        }
        let own = rig.writes.of(&tree);
        let (spilled, at) = own.spilled.unwrap();
        assert!(spilled.runs() > 100, "{} runs", spilled.runs());
        for direction in [Direction::Forward, Direction::Reverse] {
            let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
            let mut found = 0;
            // Bound: each round finds some.
            loop {
                let bounds = (
                    lower.as_ref().map(Vec::as_slice),
                    upper.as_ref().map(Vec::as_slice),
                );
                let (lists, _) = spilled.within(at, bounds, direction, 256).unwrap();
                let ahead: usize = lists.iter().map(Vec::len).sum();
                assert!(ahead <= 6_000, "{ahead} records of 1,000 bytes");
                let (writes, cut) = own.within(bounds, direction, 256).unwrap();
                found += writes.len();
                match (cut, direction) {
                    (None, _) => break,
                    (Some(cut), Direction::Forward) => lower = Bound::Excluded(cut),
                    (Some(cut), Direction::Reverse) => upper = Bound::Excluded(cut),
                }
            }
            assert_eq!(found, (runs * records) as usize);
        }
        drop(rig);
        store.close().unwrap();
    }
}
