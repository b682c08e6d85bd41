//! Trees that come and go, each with a client that makes, fills, loads and drops it.

use std::collections::BTreeMap;
use std::sync::Arc;

use isobath::{Error, Tree};

use super::actor::{Actor, LARGE};
use super::data::value;
use super::recorder::Meaning;
use super::records::tree_id;
use crate::history::{Key, Level, Outcome, Version, Write};

/// A tree that comes and goes.
pub(crate) struct Passing {
    pub(crate) index: usize,
    pub(crate) exists: bool,
    pub(crate) present: BTreeMap<Key, Version>,
}

impl Actor {
    pub(crate) fn pass(&mut self) -> bool {
        let Some(mut passing) = self.passing.take() else {
            return true;
        };
        let go_on = if !passing.exists {
            self.create(&mut passing)
        } else if self.random.chance(12) {
            self.drop_tree(&mut passing)
        } else if self.random.chance(self.more.loads) {
            self.load(&mut passing)
        } else if self.more.deletes && self.random.chance(30) {
            self.take_last(&mut passing)
        } else {
            self.fill(&mut passing)
        };
        self.passing = Some(passing);
        go_on
    }

    fn create(&mut self, passing: &mut Passing) -> bool {
        let universe = Arc::clone(&self.recorder.universe);
        let tree = &universe.trees[passing.index];
        let version = self.recorder.version();
        self.recorder.creating(tree.existence, version);
        let write = Write::put(tree.existence, version);
        let at = self.begin_single(&[write]);
        match self.store.create_tree(&tree.name) {
            Ok(_) => {
                passing.exists = true;
                passing.present.clear();
                let id = tree_id(&self.store, &tree.name);
                self.recorder.created_as(tree.existence, id);
                self.recorder.end(at, Outcome::Committed);
                true
            }
            Err(error) => {
                // Whether the tree is there now is for recovery to say.
                let refused = self.recorder.meaning(&error, "creating a tree");
                self.recorder.end_with(at, refused);
                refused == Meaning::Refused
            }
        }
    }

    /// One operation that removes the tree and all its records.
    fn drop_tree(&mut self, passing: &mut Passing) -> bool {
        let universe = Arc::clone(&self.recorder.universe);
        let tree = &universe.trees[passing.index];
        let mut removed = vec![tree.existence];
        if self.more.visits > 0 {
            // Others may have put any.
            removed.extend(tree.keys.values());
        } else {
            removed.extend(passing.present.keys());
        }
        let writes: Vec<Write> = removed
            .into_iter()
            .map(|key| Write::removal(key, self.recorder.version()))
            .collect();
        let at = self.begin_single(&writes);
        match self.store.drop_tree(&tree.name) {
            Ok(()) => {
                passing.exists = false;
                passing.present.clear();
                self.recorder.end(at, Outcome::Committed);
                true
            }
            Err(error) => {
                let refused = self.recorder.meaning(&error, "dropping a tree");
                self.recorder.end_with(at, refused);
                refused == Meaning::Refused
            }
        }
    }

    fn fill(&mut self, passing: &mut Passing) -> bool {
        let universe = Arc::clone(&self.recorder.universe);
        let keys: Vec<Key> = universe.trees[passing.index]
            .keys
            .values()
            .copied()
            .collect();
        let key = self.random.one_of(&keys);
        let version = self.recorder.version();
        let tree = match self.open_passing(passing) {
            Ok(tree) => tree,
            Err(go_on) => return go_on,
        };
        let write = Write::put(key, version);
        let length = self.passing_length();
        let bytes = value(version, length);
        let at = self.begin_single(&[write]);
        match tree.insert(universe.record(key).1, &bytes) {
            Ok(()) => {
                passing.present.insert(key, version);
                self.recorder.end(at, Outcome::Committed);
                true
            }
            Err(error) => {
                // It may be there, and then a drop removes it too.
                passing.present.insert(key, version);
                self.failed(at, &error, "filling a tree")
            }
        }
    }

    /// Removes the last record, so that a load may come there.
    fn take_last(&mut self, passing: &mut Passing) -> bool {
        let universe = Arc::clone(&self.recorder.universe);
        let keys = &universe.trees[passing.index].keys;
        let mut present = keys.values().rev();
        let Some(&key) = present.find(|key| passing.present.contains_key(key)) else {
            return true;
        };
        let tree = match self.open_passing(passing) {
            Ok(tree) => tree,
            Err(go_on) => return go_on,
        };
        let at = self.begin_single(&[Write::removal(key, self.recorder.version())]);
        match tree.remove(universe.record(key).1) {
            Ok(existed) => {
                passing.present.remove(&key);
                if !existed {
                    self.recorder.found_nothing(at, key);
                }
                self.recorder.end(at, Outcome::Committed);
                true
            }
            Err(error) => self.failed(at, &error, "removing the last record"),
        }
    }

    /// Uses the tree of another client, which may drop it at any time. Handles are kept:
    /// those of a tree that is gone must say so.
    pub(crate) fn visit(&mut self) -> bool {
        let universe = Arc::clone(&self.recorder.universe);
        let first = universe.trees.len() - self.more.passing;
        let index = first + self.random.below(self.more.passing as u64) as usize;
        let kept = self.visited.get(&index).cloned();
        let tree = match kept.filter(|_| self.random.chance(70)) {
            Some(tree) => tree,
            None => match self.store.tree(&universe.trees[index].name) {
                Ok(tree) => {
                    self.visited.insert(index, tree.clone());
                    tree
                }
                Err(Error::NoSuchTree { .. }) => return true,
                Err(error) => return self.recorder.meaning(&error, "visiting") != Meaning::Over,
            },
        };
        let keys: Vec<Key> = universe.trees[index].keys.values().copied().collect();
        let key = self.random.one_of(&keys);
        let bytes = universe.record(key).1;
        let what = self.random.below(100);
        let at = if what < 30 {
            self.recorder.begin(Level::Single)
        } else {
            let version = self.recorder.version();
            let present = what < 80;
            self.begin_single(&[Write {
                key,
                version,
                present,
            }])
        };
        let done = match what {
            0..30 => tree.get(bytes).map(|found| {
                self.recorder.found(at, key, found.as_deref());
            }),
            30..80 => {
                let version = self.recorder.writes_of(at)[0].version;
                let length = self.passing_length();
                tree.insert(bytes, &value(version, length))
            }
            _ => tree.remove(bytes).map(|existed| {
                if !existed {
                    self.recorder.found_nothing(at, key);
                }
            }),
        };
        self.answered(at, done, "visiting")
    }

    fn passing_length(&mut self) -> usize {
        if self.drops && self.random.chance(50) {
            self.random.one_of(&LARGE)
        } else {
            self.length()
        }
    }

    /// The tree, or whether to go on without it.
    fn open_passing(&self, passing: &Passing) -> Result<Tree, bool> {
        let name = &self.recorder.universe.trees[passing.index].name;
        match self.store.tree(name) {
            Ok(tree) => Ok(tree),
            Err(Error::NoSuchTree { .. }) => {
                let what = format!("the tree {name} was made and is gone");
                self.recorder.violate(what);
                Err(false)
            }
            Err(error) => Err(self.recorder.meaning(&error, "opening a tree") != Meaning::Over),
        }
    }

    /// Loads some of the records beyond the last one, all at once.
    fn load(&mut self, passing: &mut Passing) -> bool {
        let universe = Arc::clone(&self.recorder.universe);
        let keys = &universe.trees[passing.index].keys;
        let present = |key: &Key| passing.present.contains_key(key);
        let last = keys.iter().rev().find(|(_, key)| present(key));
        let last = last.map(|(bytes, _)| bytes);
        let mut writes = Vec::new();
        let mut records = Vec::new();
        for (bytes, &key) in keys {
            if last.is_none_or(|last| bytes > last) && self.random.chance(70) {
                let version = self.recorder.version();
                let length = self.passing_length();
                records.push((bytes, value(version, length)));
                writes.push(Write::put(key, version));
            }
        }
        if records.is_empty() {
            return true;
        }
        let tree = match self.open_passing(passing) {
            Ok(tree) => tree,
            Err(go_on) => return go_on,
        };
        // Loads are durable when a later commit is, or the store was closed.
        let at = self.recorder.begin_writes(&writes, false);
        // Where others put records, `load` may have to insert them one by one, which is not atomic.
        let is_sorting = self.ends.is_some() && self.random.chance(40);
        let loaded = match is_sorting && self.more.visits == 0 {
            true => tree.load(records),
            false => tree.bulk_load(records),
        };
        passing
            .present
            .extend(writes.iter().map(|write| (write.key, write.version)));
        self.answered(at, loaded, "loading")
    }
}
