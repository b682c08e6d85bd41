//! Reading everything that a store has.

use std::collections::BTreeMap;

use isobath::{Error, Store};

use super::data::{Universe, version_of};
use crate::history::{Key, Version};

/// Which writes made the trees: their versions, and the numbers that the store gave
/// them, as far as it said so.
pub(crate) type Created = BTreeMap<Key, Vec<(Version, Option<u32>)>>;

/// Which write made the tree that exists with the number `id`: the last one that got this number (a
/// number that a crash took back is given again), else the last one that got no answer.
fn maker(created: &Created, existence: Key, id: u32) -> Option<Version> {
    let made = created.get(&existence)?;
    let numbered = made.iter().rev().find(|(_, known)| *known == Some(id));
    let unnumbered = || made.iter().rev().find(|(_, known)| known.is_none());
    numbered.or_else(unnumbered).map(|(version, _)| *version)
}

/// All records of a store.
pub(crate) struct State {
    pub(crate) records: BTreeMap<Key, Version>,
    /// The trees that are there: each with its number.
    pub(crate) trees: Vec<(Key, u32)>,
    /// Records that could not be read, and why.
    pub(crate) unreadable: Vec<(Key, Error)>,
    pub(crate) problems: Vec<String>,
}

/// Reads all trees of `store` by scans, and each record that is missing or
/// behind corruption by its key. A tree that exists was made by its write in `created`.
pub(crate) fn read(store: &Store, universe: &Universe, created: &Created) -> State {
    let mut state = find(store, universe);
    state.made_by(universe, created);
    state
}

/// The same without saying which writes made the trees.
pub(crate) fn find(store: &Store, universe: &Universe) -> State {
    let mut state = State {
        records: BTreeMap::new(),
        trees: Vec::new(),
        unreadable: Vec::new(),
        problems: Vec::new(),
    };
    for index in 0..universe.trees.len() {
        state.read_tree(store, universe, index);
    }
    match store.trees() {
        Ok(trees) => {
            for found in trees {
                if !universe.trees.iter().any(|tree| tree.name == found.name) {
                    let what = format!("there is a tree {:?} that was never made", found.name);
                    state.problems.push(what);
                }
            }
        }
        Err(error) => {
            let first = universe.trees[0].existence;
            state.unreadable.push((first, error));
        }
    }
    state
}

impl State {
    /// Adds the trees, made by their writes in `created`.
    pub(crate) fn made_by(&mut self, universe: &Universe, created: &Created) {
        for &(existence, id) in &self.trees {
            match maker(created, existence, id) {
                Some(version) => drop(self.records.insert(existence, version)),
                None => {
                    let tree = universe.describe(existence);
                    self.problems
                        .push(format!("{tree} is there, which was never made"));
                }
            }
        }
    }

    fn read_tree(&mut self, store: &Store, universe: &Universe, index: usize) {
        let keys = &universe.trees[index];
        let tree = match store.tree(&keys.name) {
            Ok(tree) => tree,
            Err(Error::NoSuchTree { .. }) => return,
            Err(error) => {
                self.unreadable.push((keys.existence, error.clone()));
                let all = keys.keys.values();
                self.unreadable.extend(all.map(|&key| (key, error.clone())));
                return;
            }
        };
        let listed = store.trees().unwrap_or_default();
        let id = listed.iter().find(|found| found.name == keys.name);
        self.trees
            .extend(id.map(|found| (keys.existence, found.id)));
        let mut scanned = BTreeMap::new();
        let mut foreign = Vec::new();
        let whole = tree.scan(.., |bytes, value| {
            match keys.keys.get(bytes) {
                Some(&key) => {
                    scanned.insert(key, version_of(value));
                }
                None => foreign.push(String::from_utf8_lossy(bytes).into_owned()),
            }
            true
        });
        for key in foreign {
            let what = format!("{} has the key {key:?}, which was never written", keys.name);
            self.problems.push(what);
        }
        for (bytes, &key) in &keys.keys {
            let found = match tree.get(bytes) {
                Ok(found) => found.map(|value| version_of(&value)),
                Err(error) => {
                    self.unreadable.push((key, error));
                    continue;
                }
            };
            if whole.is_ok() && scanned.get(&key) != found.as_ref() {
                let what = format!(
                    "{}: a scan finds {:?}, a lookup {found:?}",
                    universe.describe(key),
                    scanned.get(&key)
                );
                self.problems.push(what);
            }
            match found {
                None => {}
                Some(Some(version)) => {
                    self.records.insert(key, version);
                }
                Some(None) => {
                    let what = format!(
                        "{} has bytes that was never written",
                        universe.describe(key)
                    );
                    self.problems.push(what);
                }
            }
        }
    }
}
