//! Many open transactions, stepped in an order drawn from a seed, against plain
//! copies of the map: every read, every conflict, every outcome is predicted.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use common::{Random, assert_sound, parameter, perhaps_logged, tiny, value};
use isobath::{
    Isolation, Savepoint, Simulation, Transaction, TransactionError, TransactionOptions, Tree,
};
use isobath_io::{FaultDevice, FaultPlan};

type Map = BTreeMap<Vec<u8>, u64>;

const TREES: usize = 2;
const KEYS: u64 = 60;
const LENGTHS: [usize; 6] = [0, 20, 300, 1000, 3000, 40_000];

fn value_of(tag: u64) -> Vec<u8> {
    value(tag, LENGTHS[(tag % 6) as usize])
}

fn key(n: u64) -> Vec<u8> {
    let mut key = format!("key{n:03}").into_bytes();
    key.resize(key.len() + (n % 5 * 60) as usize, b'k');
    key
}

/// What a transaction is going to change in each tree.
type Writes = [BTreeMap<Vec<u8>, Option<u64>>; TREES];

/// The change at a moment: tree and key.
type Changes = Vec<(usize, Vec<u8>)>;

struct Open {
    transaction: Transaction,
    serializable: bool,
    /// Commits before it began.
    began: usize,
    view: [Map; TREES],
    writes: Writes,
    /// What it has read for sure, and whether it has read anything of a tree.
    keys_read: BTreeSet<(usize, Vec<u8>)>,
    ranges_read: Vec<(usize, Vec<u8>, Vec<u8>)>,
    has_read: [bool; TREES],
    savepoints: Vec<(Savepoint, Writes)>,
}

impl Open {
    fn map(&self, tree: usize) -> Map {
        let mut map = self.view[tree].clone();
        for (key, tag) in &self.writes[tree] {
            match tag {
                Some(tag) => map.insert(key.clone(), *tag),
                None => map.remove(key),
            };
        }
        map
    }

    fn note_key(&mut self, tree: usize, key: &[u8]) {
        if !self.writes[tree].contains_key(key) {
            self.keys_read.insert((tree, key.to_vec()));
            self.has_read[tree] = true;
        }
    }
}

/// What [`Transaction::retain`] keeps.
fn is_kept(key: &[u8]) -> bool {
    key.iter().map(|byte| u32::from(*byte)).sum::<u32>() % 3 > 0
}

impl Open {
    fn read_range(&mut self, tree: usize, from: Vec<u8>, to: Vec<u8>) {
        self.has_read[tree] = true;
        self.ranges_read.push((tree, from, to));
    }

    /// The operations that change what they read.
    fn read_and_change(
        &mut self,
        handle: &Tree,
        tree: usize,
        (from, to): (Vec<u8>, Vec<u8>),
        tag: u64,
    ) {
        let map = self.map(tree);
        let bounds = (Bound::Included(&from[..]), Bound::Included(&to[..]));
        let within = || map.range(from.clone()..=to.clone());
        let transaction = &mut self.transaction;
        let found = |record: Option<(&Vec<u8>, &u64)>| {
            record.map(|(key, tag)| (key.clone(), value_of(*tag)))
        };
        let removed: Vec<Vec<u8>> = match tag % 7 {
            0 | 1 => {
                let is_first = tag.is_multiple_of(7);
                let (popped, wanted) = match is_first {
                    true => (transaction.pop_first(handle), map.iter().next()),
                    false => (transaction.pop_last(handle), map.iter().next_back()),
                };
                assert!(popped.unwrap() == found(wanted), "a popped record differs");
                let end = wanted.map(|(key, _)| key.clone());
                let (low, high) = match (is_first, end.clone()) {
                    (true, Some(end)) => (Vec::new(), end),
                    (false, Some(end)) => (end, vec![255]),
                    (_, None) => (Vec::new(), vec![255]),
                };
                self.read_range(tree, low, high);
                end.into_iter().collect()
            }
            2 => {
                let gone: Vec<_> = within().map(|(key, _)| key.clone()).collect();
                let count = transaction.remove_range(handle, bounds).unwrap();
                assert_eq!(count, gone.len() as u64);
                self.read_range(tree, from, to);
                gone
            }
            3 => {
                let gone = within().filter(|(key, _)| !is_kept(key));
                let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
                let keep = |key: &[u8], value: &[u8]| {
                    assert!(value == value_of(map[key]), "a retained value differs");
                    is_kept(key)
                };
                let count = transaction.retain(handle, bounds, keep).unwrap();
                assert_eq!(count, gone.len() as u64);
                self.read_range(tree, from, to);
                gone
            }
            4 => {
                let extracted = transaction.extract_if(handle, bounds, |key, _| !is_kept(key));
                let extracted: Vec<_> = extracted.unwrap().take(3).map(Result::unwrap).collect();
                let wanted = within().filter(|(key, _)| !is_kept(key)).take(3);
                let wanted: Vec<_> = wanted.filter_map(|record| found(Some(record))).collect();
                assert!(extracted == wanted, "an extracted record differs");
                match extracted.last() {
                    Some((last, _)) if extracted.len() == 3 => {
                        self.read_range(tree, from, last.clone());
                    }
                    _ => self.read_range(tree, from, to),
                }
                extracted.into_iter().map(|(key, _)| key).collect()
            }
            5 => {
                let old = map.get(&from).map(|tag| value_of(*tag));
                let new = tag.is_multiple_of(2).then(|| value_of(tag));
                let update = |seen: Option<&[u8]>| {
                    assert!(seen == old.as_deref(), "an updated value differs");
                    new.clone()
                };
                transaction.update(handle, &from, update).unwrap();
                self.note_key(tree, &from);
                if new.is_some() || old.is_some() {
                    self.writes[tree].insert(from, new.map(|_| tag));
                }
                Vec::new()
            }
            _ => {
                let current = map.get(&from).map(|tag| value_of(*tag));
                let old = (!tag.is_multiple_of(3)).then(|| current.clone()).flatten();
                let new = value_of(tag);
                let swapped =
                    transaction.compare_and_swap(handle, &from, old.as_deref(), Some(&new));
                self.note_key(tree, &from);
                match swapped.unwrap() {
                    Ok(()) => {
                        assert!(old == current);
                        self.writes[tree].insert(from, Some(tag));
                    }
                    Err(error) => assert!(error.current == current && old != current),
                }
                Vec::new()
            }
        };
        self.writes[tree].extend(removed.into_iter().map(|key| (key, None)));
    }
}

struct World {
    random: Random,
    trees: Vec<Tree>,
    state: [Map; TREES],
    commits: Vec<Changes>,
    open: Vec<Open>,
    tag: u64,
    conflicts: u64,
}

impl World {
    fn tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    fn begin(&mut self, simulation: &Simulation) {
        let serializable = self.random.below(3) == 0;
        let isolation = if serializable {
            Isolation::Serializable
        } else {
            Isolation::Snapshot
        };
        let options = TransactionOptions::new().isolation(isolation);
        self.open.push(Open {
            transaction: simulation.store().begin_with(options).unwrap(),
            serializable,
            began: self.commits.len(),
            view: self.state.clone(),
            writes: Default::default(),
            keys_read: BTreeSet::new(),
            ranges_read: Vec::new(),
            has_read: [false; TREES],
            savepoints: Vec::new(),
        });
    }

    fn changed_since(&self, began: usize) -> BTreeSet<&(usize, Vec<u8>)> {
        self.commits[began..].iter().flatten().collect()
    }

    fn commit(&mut self, at: usize) {
        let open = self.open.swap_remove(at);
        let changed = self.changed_since(open.began);
        let writes: Changes = (0..TREES)
            .flat_map(|tree| open.writes[tree].keys().map(move |key| (tree, key.clone())))
            .collect();
        // A record that it has inserted and removed again may be no change.
        let is_nothing = |(tree, key): &(usize, Vec<u8>)| {
            open.writes[*tree][key].is_none() && !open.view[*tree].contains_key(key)
        };
        let (nothing, real): (Changes, Changes) = writes.iter().cloned().partition(is_nothing);
        let loses = real.iter().any(|write| changed.contains(write));
        let may_lose = nothing.iter().any(|write| changed.contains(write));
        let read_key = open.keys_read.iter().any(|read| changed.contains(read));
        let read_range = changed.iter().any(|(tree, key)| {
            let covers = |(of, from, to): &(usize, Vec<u8>, Vec<u8>)| {
                of == tree && (from..=to).contains(&key)
            };
            open.ranges_read.iter().any(covers)
        });
        let must_fail = loses || open.serializable && (read_key || read_range);
        let may_fail = may_lose
            || changed
                .iter()
                .any(|(tree, _)| open.serializable && open.has_read[*tree]);
        match open.transaction.commit() {
            Ok(()) => {
                assert!(real.is_empty() || !must_fail, "it should have failed");
                for (tree, key) in &real {
                    match open.writes[*tree][key] {
                        Some(tag) => self.state[*tree].insert(key.clone(), tag),
                        None => self.state[*tree].remove(key),
                    };
                }
                if !writes.is_empty() {
                    self.commits.push(real);
                    self.commits.push(nothing);
                }
            }
            Err(TransactionError::Conflict { .. }) => {
                assert!(must_fail || may_fail, "nothing it knows of has changed");
                self.conflicts += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A single operation, or a read outside transactions.
    fn operation(&mut self) {
        let tree = self.random.below(TREES as u64) as usize;
        let key = key(self.random.below(KEYS));
        match self.random.below(3) {
            0 => {
                let existed = self.trees[tree].remove(&key).unwrap();
                assert_eq!(existed, self.state[tree].remove(&key).is_some());
                if existed {
                    self.commits.push(vec![(tree, key)]);
                }
            }
            1 => {
                let tag = self.tag();
                self.trees[tree].insert(&key, &value_of(tag)).unwrap();
                self.state[tree].insert(key.clone(), tag);
                self.commits.push(vec![(tree, key)]);
            }
            _ => {
                let found = self.trees[tree].get(&key).unwrap();
                assert_eq!(found, self.state[tree].get(&key).map(|tag| value_of(*tag)));
            }
        }
    }

    fn step(&mut self, at: usize) {
        let tree = self.random.below(TREES as u64) as usize;
        let number = self.random.below(KEYS);
        let what = self.random.below(130);
        let tag = self.tag();
        let up_to = number + self.random.below(20);
        let (handle, open) = (&self.trees[tree], &mut self.open[at]);
        let (from, to) = (key(number), key(up_to));
        match what {
            0..25 => {
                open.transaction
                    .insert(handle, &from, &value_of(tag))
                    .unwrap();
                open.writes[tree].insert(from, Some(tag));
            }
            25..37 => {
                open.note_key(tree, &from);
                let existed = open.transaction.remove(handle, &from).unwrap();
                assert_eq!(existed, open.map(tree).contains_key(&from));
                if existed {
                    open.writes[tree].insert(from, None);
                }
            }
            37..60 => {
                open.note_key(tree, &from);
                let found = open.transaction.get(handle, &from).unwrap();
                assert_eq!(found, open.map(tree).get(&from).map(|tag| value_of(*tag)));
                let there = open.transaction.contains(handle, &from).unwrap();
                assert_eq!(there, found.is_some());
            }
            60..66 => {
                let keys: Vec<_> = (number..=up_to).map(key).collect();
                keys.iter().for_each(|key| open.note_key(tree, key));
                let map = open.map(tree);
                let expected: Vec<_> = keys
                    .iter()
                    .map(|key| map.get(key).map(|tag| value_of(*tag)))
                    .collect();
                assert_eq!(open.transaction.get_many(handle, &keys).unwrap(), expected);
            }
            66..84 => {
                let bounds = (Bound::Included(&from[..]), Bound::Included(&to[..]));
                let range = open.transaction.range(handle, bounds).unwrap();
                let found: Vec<_> = if what.is_multiple_of(2) {
                    range.map(Result::unwrap).collect()
                } else {
                    let mut back: Vec<_> = range.rev().map(Result::unwrap).collect();
                    back.reverse();
                    back
                };
                let map = open.map(tree);
                let expected: Vec<_> = map
                    .range(from.clone()..=to.clone())
                    .map(|(key, tag)| (key.clone(), value_of(*tag)))
                    .collect();
                assert!(found == expected, "a range differs");
                open.has_read[tree] = true;
                open.ranges_read.push((tree, from, to));
            }
            84..88 => {
                let mut left = 3;
                let mut found = Vec::new();
                open.transaction
                    .scan_reverse(handle, ..&to[..], |key, value| {
                        found.push((key.to_vec(), value.to_vec()));
                        left -= 1;
                        left > 0
                    })
                    .unwrap();
                let map = open.map(tree);
                let expected: Vec<_> = map
                    .range(..to)
                    .rev()
                    .take(3)
                    .map(|(key, tag)| (key.clone(), value_of(*tag)))
                    .collect();
                assert!(found == expected, "a scan differs");
                open.has_read[tree] = true;
            }
            100.. => open.read_and_change(handle, tree, (from, to), tag),
            88..94 => {
                let savepoint = open.transaction.savepoint();
                open.savepoints.push((savepoint, open.writes.clone()));
            }
            _ => {
                if !open.savepoints.is_empty() {
                    let at = (tag % open.savepoints.len() as u64) as usize;
                    open.savepoints.truncate(at + 1);
                    let (savepoint, writes) = &open.savepoints[at];
                    open.transaction.rollback_to(*savepoint).unwrap();
                    open.writes = writes.clone();
                }
            }
        }
    }
}

fn run(seed: u64, steps: u64) -> u64 {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=40));
    let volume = isobath::Volume::from_device(device);
    let simulation = Simulation::new(volume, &perhaps_logged(tiny(2, 8), seed), seed).unwrap();
    let trees = (0..TREES).map(|n| {
        simulation
            .store()
            .create_tree(&format!("tree {n}"))
            .unwrap()
    });
    let mut world = World {
        trees: trees.collect(),
        random: Random::new(seed),
        state: Default::default(),
        commits: Vec::new(),
        open: Vec::new(),
        tag: 0,
        conflicts: 0,
    };
    for _ in 0..steps {
        let _ = simulation.store();
        let open = world.open.len() as u64;
        match world.random.below(40) {
            0..3 if open < 10 => world.begin(&simulation),
            3..5 if open > 0 => {
                let at = world.random.below(open) as usize;
                world.commit(at);
            }
            5 if open > 0 => {
                let at = world.random.below(open) as usize;
                drop(world.open.swap_remove(at));
            }
            6..9 => world.operation(),
            _ if open > 0 => {
                let at = world.random.below(open) as usize;
                world.step(at);
            }
            _ => {}
        }
    }
    let World {
        state,
        conflicts,
        open,
        trees,
        ..
    } = world;
    drop(open);
    for (tree, map) in trees.iter().zip(&state) {
        let found: Vec<_> = tree.range(..).map(Result::unwrap).collect();
        let expected: Vec<_> = map
            .iter()
            .map(|(key, tag)| (key.clone(), value_of(*tag)))
            .collect();
        assert!(found == expected, "the end differs");
    }
    let stats = simulation.store().stats();
    assert_eq!(
        (stats.versions, stats.version_bytes, stats.open_snapshots),
        (0, 0, 0)
    );
    assert_sound(simulation.store(), None);
    drop(trees);
    simulation.close().unwrap();
    conflicts
}

#[test]
fn interleaved_transactions_agree_with_copies_of_the_map() {
    let seeds = parameter("ISOBATH_MODEL_SEEDS", 12);
    let conflicts: u64 = (0..seeds)
        .map(|seed| {
            println!("seed {seed}");
            run(seed, 1500)
        })
        .sum();
    assert!(conflicts > seeds * 5, "hardly any conflicts: {conflicts}");
}
