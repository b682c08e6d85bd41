//! The records of a run, in groups, and the clients that use them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use isobath::{Durability, Error, Store, Tree};

use super::actor::Actor;
use super::data::{Universe, key_bytes};
use super::passing::Passing;
use super::plan::Scenario;
use super::recorder::Recorder;
use crate::history::{Key, Outcome, Version, Write};
use crate::random::Random;

/// Records that the counted tree has at most.
const ENDS: u64 = 16;
/// Records that a tree has at most that comes and goes.
const PASSING: u64 = 20;

/// All records, by who writes them.
pub(crate) struct Records {
    scenario: Scenario,
    pub(crate) universe: Arc<Universe>,
    /// Those of each client.
    pub(crate) own: Vec<Vec<Key>>,
    shared: Vec<Key>,
    counters: Vec<Key>,
    /// Index of the tree whose records are counted, if there is one.
    pub(crate) ends: Option<usize>,
    /// Index of the first tree that comes and goes; the others follow it.
    passing: usize,
    /// Large values that clients add.
    to_grow: Vec<Vec<Key>>,
}

impl Records {
    pub(crate) fn new(scenario: &Scenario, random: &mut Random) -> Records {
        let mut universe = Universe::default();
        for index in 0..scenario.trees {
            universe.add_tree(&format!("t{index}"));
        }
        let mut group = |kind, owner, count| -> Vec<Key> {
            let mut keys = Vec::new();
            for number in 0..count {
                let tree = random.below(scenario.trees as u64) as usize;
                let bytes = key_bytes(kind, owner, number, random);
                keys.push(universe.add_key(tree, bytes));
            }
            keys
        };
        let own = (0..scenario.actors).map(|actor| group(b'o', actor, scenario.own_keys));
        let own = own.collect();
        let shared = group(b's', 0, scenario.shared_keys);
        let counters = group(b'c', 0, scenario.counters);
        let mut to_grow = Vec::new();
        for grower in 0..scenario.more.growers {
            let numbers = (0..scenario.operations.min(400)).rev();
            let key = |number| key_bytes(b'g', grower, number, random);
            let keys: Vec<Vec<u8>> = numbers.map(key).collect();
            let keys = keys.into_iter().map(|key| universe.add_key(0, key));
            to_grow.push(keys.collect());
        }
        let mut fill = |universe: &mut Universe, tree, kind, owner, count| {
            for number in 0..count {
                let bytes = key_bytes(kind, owner, number, random);
                universe.add_key(tree, bytes);
            }
        };
        let ends = (scenario.more.calls > 0).then(|| universe.add_tree("ends"));
        if let Some(tree) = ends {
            fill(&mut universe, tree, b'e', 0, ENDS);
        }
        let passing = universe.trees.len();
        for nth in 0..scenario.more.passing {
            let name = match nth {
                0 => "passing".to_owned(),
                _ => format!("passing{nth}"),
            };
            let tree = universe.add_tree(&name);
            fill(&mut universe, tree, b'p', nth as u64, PASSING);
        }
        Records {
            scenario: scenario.clone(),
            universe: Arc::new(universe),
            own,
            shared,
            counters,
            ends,
            passing,
            to_grow,
        }
    }

    pub(crate) fn keys_of(&self, tree: usize) -> Vec<Key> {
        self.universe.trees[tree].keys.values().copied().collect()
    }

    /// The trees that stay, made if there are none yet.
    pub(crate) fn open_trees(
        &self,
        store: &Store,
        recorder: &Recorder,
        known: &BTreeMap<Key, Version>,
    ) -> Result<Vec<Tree>, Error> {
        let durable = self.scenario.durability == Durability::Synced;
        let trees = self.universe.trees[..self.passing].iter();
        let opened = trees.map(|tree| {
            if known.contains_key(&tree.existence) {
                return store.tree(&tree.name);
            }
            let write = Write::put(tree.existence, recorder.version());
            recorder.creating(write.key, write.version);
            let at = recorder.begin_writes(&[write], durable);
            let made = store.create_tree(&tree.name);
            if made.is_ok() {
                recorder.created_as(write.key, tree_id(store, &tree.name));
                recorder.end(at, Outcome::Committed);
            }
            made
        });
        opened.collect()
    }

    /// The client `number` of round `round`.
    pub(crate) fn actor(
        &self,
        number: usize,
        round: u64,
        store: &Store,
        trees: &[Tree],
        recorder: &Arc<Recorder>,
        known: &BTreeMap<Key, Version>,
    ) -> Actor {
        let scenario = &self.scenario;
        let from_last = self.own.len() - 1 - number;
        Actor {
            store: store.clone(),
            trees: trees.to_vec(),
            recorder: Arc::clone(recorder),
            random: Random::new(scenario.seed ^ (number as u64 + 1) << 32 ^ (round + 1) << 56),
            own: self.own[number].clone(),
            shared: self.shared.clone(),
            counters: self.counters.clone(),
            durable: scenario.durability == Durability::Synced,
            transactions: scenario.transactions,
            passing: (number < scenario.more.passing)
                .then(|| self.passing_tree(self.passing + number, known)),
            large_values: scenario.large_values,
            drops: scenario.drops,
            more: scenario.more.clone(),
            // Only the last clients add.
            to_grow: self.to_grow.get(from_last).cloned().unwrap_or_default(),
            visited: BTreeMap::new(),
            ends: self.ends.map(|tree| (tree, self.keys_of(tree))),
            held: Vec::new(),
        }
    }

    fn passing_tree(&self, index: usize, known: &BTreeMap<Key, Version>) -> Passing {
        let tree = &self.universe.trees[index];
        let keys = tree.keys.values();
        Passing {
            index,
            exists: known.contains_key(&tree.existence),
            present: keys
                .filter_map(|key| Some((*key, *known.get(key)?)))
                .collect(),
        }
    }
}

/// Runs a client; a panic of it is a violation. Counts it in `ended`.
pub(crate) fn work(actor: Actor, operations: u64, ended: &AtomicUsize) {
    let recorder = Arc::clone(&actor.recorder);
    let work = std::panic::AssertUnwindSafe(|| actor.run(operations));
    if let Err(panic) = std::panic::catch_unwind(work) {
        recorder.violate(format!("a client panicked: {}", message(&*panic)));
    }
    ended.fetch_add(1, Ordering::Relaxed);
}

/// The message of a panic.
pub(crate) fn message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

/// The number that the store gave the tree `name`.
pub(crate) fn tree_id(store: &Store, name: &str) -> Option<u32> {
    let trees = store.trees().ok()?;
    let found = trees.iter().find(|tree| tree.name == name);
    found.map(|tree| tree.id)
}
