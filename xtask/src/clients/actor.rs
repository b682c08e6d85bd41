//! Clients of a simulated store: tasks that read and write and record it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use isobath::{Error, Snapshot, Store, Tree};

use super::data::value;
use super::passing::Passing;
use super::plan::More;
use super::recorder::{Meaning, Recorder};
use crate::history::{Key, Level, Outcome, Read, Write};
use crate::random::Random;

/// Lengths of values: in the leaf, and in one or several chunks.
const LENGTHS: [usize; 8] = [12, 12, 20, 60, 400, 1000, 1100, 1500];
pub(crate) const LARGE: [usize; 4] = [4000, 9000, 30_000, 70_000];

/// One client.
pub(crate) struct Actor {
    pub(crate) store: Store,
    pub(crate) trees: Vec<Tree>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) random: Random,
    /// Records that only this client writes.
    pub(crate) own: Vec<Key>,
    /// Records that all clients write without reading.
    pub(crate) shared: Vec<Key>,
    /// Records that are only ever changed by transactions that read them first.
    pub(crate) counters: Vec<Key>,
    /// Acknowledged operations outside transactions survive crashes.
    pub(crate) durable: bool,
    /// Of a hundred operations, those that are transactions.
    pub(crate) transactions: u64,
    /// A tree that this client alone makes, fills and drops, and its records.
    pub(crate) passing: Option<Passing>,
    pub(crate) large_values: bool,
    /// Much of the work is about the passing tree.
    pub(crate) drops: bool,
    pub(crate) more: More,
    /// Large values that this client only adds, and the trees of others that it has visited.
    pub(crate) to_grow: Vec<Key>,
    pub(crate) visited: BTreeMap<usize, Tree>,
    /// The tree whose records are counted: its number, and its keys.
    pub(crate) ends: Option<(usize, Vec<Key>)>,
    /// Snapshots that it looks at now and then, and their numbers in the history.
    pub(crate) held: Vec<(usize, Snapshot)>,
}

impl Actor {
    /// Works until it has done `operations` or is stopped.
    pub(crate) fn run(mut self, operations: u64) {
        for _ in 0..operations {
            self.recorder.rest();
            if self.recorder.is_stopped() || !self.hold_snapshots() || !self.step() {
                break;
            }
        }
        for (at, _) in self.held.drain(..) {
            self.recorder.end(at, Outcome::Committed);
        }
    }

    /// One operation; `false` if there is no point in another one.
    fn step(&mut self) -> bool {
        if let Some(key) = self.to_grow.pop() {
            let length = self.random.one_of(&[3000, 4000, 6000]);
            return self.add(key, length);
        }
        if self.passing.is_none() && self.more.visits > 0 && self.random.chance(self.more.visits) {
            return self.visit();
        }
        if self.drops && self.passing.is_some() && self.random.chance(50) {
            return self.pass();
        }
        if self.ends.is_some() && self.random.chance(self.more.calls) {
            return self.call();
        }
        if self.random.chance(self.transactions) {
            return if self.random.chance(85) {
                self.transact()
            } else {
                self.look_back()
            };
        }
        match self.random.below(100) {
            0..34 => {
                let key = self.random.one_of(&self.own);
                self.write(key)
            }
            34..46 => {
                let key = self.random.one_of(&self.shared);
                self.write(key)
            }
            46..66 => {
                let key = self.any_key();
                self.get(key)
            }
            66..70 => self.scan(),
            70..80 if self.passing.is_some() => self.pass(),
            _ => {
                let key = self.random.one_of(&self.own);
                self.write(key)
            }
        }
    }

    pub(crate) fn any_key(&mut self) -> Key {
        match self.random.below(3) {
            0 => self.random.one_of(&self.own),
            1 => self.random.one_of(&self.counters),
            _ => self.random.one_of(&self.shared),
        }
    }

    pub(crate) fn length(&mut self) -> usize {
        if self.large_values && self.random.chance(6) {
            self.random.one_of(&LARGE)
        } else if self.more.wide {
            self.random.one_of(&LENGTHS[4..6])
        } else {
            self.random.one_of(&LENGTHS)
        }
    }

    /// Begins an operation outside transactions that writes.
    pub(crate) fn begin_single(&self, writes: &[Write]) -> usize {
        self.recorder.begin_writes(writes, self.durable)
    }

    /// Ends an operation; whether to go on.
    pub(crate) fn answered<T, E: Into<Error>>(
        &self,
        at: usize,
        done: Result<T, E>,
        doing: &str,
    ) -> bool {
        match done {
            Ok(_) => {
                self.recorder.end(at, Outcome::Committed);
                true
            }
            Err(error) => self.failed(at, &error.into(), doing),
        }
    }

    /// Ends an operation that failed; whether to go on.
    pub(crate) fn failed(&self, at: usize, error: &Error, doing: &str) -> bool {
        let meaning = self.recorder.meaning(error, doing);
        self.recorder.end_with(at, meaning);
        meaning != Meaning::Over
    }

    /// Puts or removes a record.
    fn write(&mut self, key: Key) -> bool {
        let version = self.recorder.version();
        let present = self.random.chance(75);
        let write = Write {
            key,
            version,
            present,
        };
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let tree = self.trees[tree].clone();
        let length = self.length();
        let at = self.begin_single(&[write]);
        let (done, doing) = if !present {
            let done = tree.remove(bytes).map(|existed| {
                if !existed {
                    self.recorder.found_nothing(at, key);
                }
            });
            (done, "removing")
        } else if length > 5000 && self.random.chance(50) {
            (
                self.stream(&tree, bytes, &value(version, length)),
                "streaming",
            )
        } else {
            (tree.insert(bytes, &value(version, length)), "inserting")
        };
        self.answered(at, done, doing)
    }

    fn add(&mut self, key: Key, length: usize) -> bool {
        let version = self.recorder.version();
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let at = self.begin_single(&[Write::put(key, version)]);
        self.answered(
            at,
            self.trees[tree].insert(bytes, &value(version, length)),
            "adding",
        )
    }

    /// Writes a value in parts.
    fn stream(&mut self, tree: &Tree, key: &[u8], bytes: &[u8]) -> Result<(), Error> {
        let part = 1 + self.random.below(bytes.len() as u64) as usize;
        let mut writer = tree.writer(key)?;
        for part in bytes.chunks(part) {
            writer.append(part)?;
        }
        writer.finish()
    }

    /// Takes a snapshot, looks at one that it holds, or gives one back.
    fn hold_snapshots(&mut self) -> bool {
        let most = self.more.held_snapshots;
        if most == 0 || !self.random.chance(20) {
            return true;
        }
        if self.held.len() < most && self.random.chance(50) {
            let at = self.recorder.begin(Level::Snapshot);
            return match self.store.snapshot() {
                Ok(snapshot) => {
                    self.held.push((at, snapshot));
                    true
                }
                Err(error) => self.failed(at, &error.into(), "opening a snapshot"),
            };
        }
        if self.held.is_empty() {
            return true;
        }
        let index = self.random.below(self.held.len() as u64) as usize;
        let key = self.any_key();
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let (at, snapshot) = &self.held[index];
        let found = snapshot.get(&self.trees[tree], bytes);
        match found {
            Ok(found) => {
                self.recorder.found(*at, key, found.as_deref());
                if self.random.chance(20) {
                    let (at, _) = self.held.remove(index);
                    self.recorder.end(at, Outcome::Committed);
                }
                true
            }
            Err(error) => {
                let meaning = self.recorder.meaning(&error, "reading a held snapshot");
                let (at, _) = self.held.remove(index);
                self.recorder.end(at, Outcome::Aborted);
                meaning != Meaning::Over
            }
        }
    }

    fn get(&mut self, key: Key) -> bool {
        self.read_one(key).map_or_else(|goes_on| goes_on, |_| true)
    }

    /// Consecutive records of a tree, whether they exist or not.
    pub(crate) fn some_range(&mut self, tree: usize) -> Vec<(Vec<u8>, Key)> {
        let universe = Arc::clone(&self.recorder.universe);
        let keys = &universe.trees[tree].keys;
        let from = self.random.below(keys.len() as u64) as usize;
        let count = self.random.skewed(60) as usize;
        let part = keys.iter().skip(from).take(count);
        part.map(|(bytes, &key)| (bytes.clone(), key)).collect()
    }

    /// Reads a range of one tree, in either direction.
    fn scan(&mut self) -> bool {
        let index = self.random.below(self.trees.len() as u64) as usize;
        let part = self.some_range(index);
        let (Some(first), Some(end)) = (part.first(), part.last()) else {
            return true;
        };
        let begin = self.recorder.tick();
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let bounds = (Bound::Included(&first.0[..]), Bound::Included(&end.0[..]));
        let tree = &self.trees[index];
        let mut order = Vec::new();
        let reverse = self.random.chance(30);
        let take = |key: &[u8], value: &[u8]| {
            order.push(key.to_vec());
            found.insert(key.to_vec(), value.to_vec());
            true
        };
        let scanned = if reverse {
            tree.scan_reverse(bounds, take)
        } else {
            tree.scan(bounds, take)
        };
        if let Err(error) = scanned {
            return self.recorder.meaning(&error, "scanning") != Meaning::Over;
        }
        if reverse {
            order.reverse();
        }
        if !order.is_sorted_by(|a, b| a < b) {
            self.recorder.violate("a scan is out of order".to_owned());
        }
        let mut reads = Vec::with_capacity(part.len());
        for (bytes, key) in part {
            let value = found.remove(&bytes);
            if let Some(seen) = self.recorder.seen(key, value.as_deref()) {
                reads.push(Read { key, seen });
            }
        }
        if let Some(foreign) = found.keys().next() {
            let shown = String::from_utf8_lossy(foreign).into_owned();
            let what = format!("a scan found the key {shown:?}, which was never written");
            self.recorder.violate(what);
        }
        self.recorder.scanned(begin, &reads);
        true
    }
}
