//! Clients' transactions.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use isobath::{Durability, Error, Isolation, Transaction, TransactionOptions};

use super::actor::Actor;
use super::data::{value, version_of};
use super::recorder::Meaning;
use crate::history::{Key, Level, Outcome, Seen, Write};

/// A transaction that runs, and its record.
pub(crate) struct Running {
    pub(crate) transaction: Transaction,
    /// Its number in the history.
    pub(crate) at: usize,
    pub(crate) read_only: bool,
    /// Its own writes, which its reads see.
    pub(crate) mine: BTreeMap<Key, Write>,
}

/// Why a transaction ends before it was to.
pub(crate) enum Stop {
    /// It failed with this.
    Error(Error, &'static str),
    /// Something was wrong, and recorded.
    Wrong,
}

pub(crate) type Step = Result<(), Stop>;

impl Actor {
    /// One transaction; `false` if there is no point in another one.
    pub(crate) fn transact(&mut self) -> bool {
        let level = if self.random.chance(50) {
            Level::Snapshot
        } else {
            Level::Serializable
        };
        let read_only = self.random.chance(15);
        let durability = self.durability();
        let options = TransactionOptions::new()
            .isolation(match level {
                Level::Serializable => Isolation::Serializable,
                _ => Isolation::Snapshot,
            })
            .durability(durability)
            .read_only(read_only);
        let at = self.recorder.begin(level);
        let transaction = match self.store.begin_with(options) {
            Ok(transaction) => transaction,
            Err(error) => return self.failed(at, &error.into(), "beginning"),
        };
        let mut running = Running {
            transaction,
            at,
            read_only,
            mine: BTreeMap::new(),
        };
        match self.work(&mut running) {
            Ok(()) => self.finish(running, durability),
            Err(Stop::Error(error, doing)) => {
                drop(running);
                let meaning = self.recorder.meaning(&error, doing);
                // It never asked for its commit.
                self.recorder.end(at, Outcome::Aborted);
                meaning != Meaning::Over
            }
            Err(Stop::Wrong) => false,
        }
    }

    fn finish(&mut self, running: Running, durability: Durability) -> bool {
        let at = running.at;
        match self.random.below(100) {
            0..6 => running.transaction.rollback(),
            6..10 => drop(running.transaction),
            _ => {
                let durable = durability == Durability::Synced;
                self.recorder.ask(at, durable);
                return match running.transaction.commit() {
                    Ok(()) => {
                        self.recorder.grown_by_transaction(at, true);
                        self.recorder.end(at, Outcome::Committed);
                        true
                    }
                    Err(error) => {
                        let meaning = self.recorder.meaning(&error.into(), "committing");
                        if meaning != Meaning::Refused {
                            self.recorder.grown_by_transaction(at, false);
                        }
                        self.recorder.end_with(at, meaning);
                        meaning != Meaning::Over
                    }
                };
            }
        }
        self.recorder.end(at, Outcome::Aborted);
        true
    }

    fn work(&mut self, running: &mut Running) -> Step {
        for _ in 0..1 + self.random.skewed(10) {
            if self.random.chance(40) {
                isobath::yield_now();
            }
            if self.recorder.is_stopped() {
                return Err(Stop::Wrong);
            }
            if self.ends.is_some() && self.random.chance(self.more.calls / 2) {
                self.call_in(running)?;
                continue;
            }
            match self.random.below(100) {
                0..30 => {
                    let key = self.any_key();
                    self.look(running, key)?;
                }
                30..60 => {
                    let key = self.random.one_of(&self.counters);
                    self.look(running, key)?;
                    if self.more.deletes && self.random.chance(25) {
                        self.take(running, key)?;
                    } else {
                        self.put(running, key)?;
                    }
                }
                60..72 => {
                    let key = self.random.one_of(&self.own);
                    self.put(running, key)?;
                }
                72..78 => {
                    let key = self.random.one_of(&self.shared);
                    self.put(running, key)?;
                }
                78..84 => {
                    let key = self.random.one_of(&self.own);
                    self.take(running, key)?;
                }
                84..93 => self.survey(running)?,
                _ => self.change_mind(running)?,
            }
        }
        Ok(())
    }

    pub(crate) fn look(&mut self, running: &mut Running, key: Key) -> Step {
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let found = running
            .transaction
            .get(&self.trees[tree], bytes)
            .map_err(|error| Stop::Error(error, "getting in a transaction"))?;
        self.saw(running, key, found.as_deref())
    }

    /// Records a read, or compares it with the transaction's own write.
    pub(crate) fn saw(&self, running: &Running, key: Key, found: Option<&[u8]>) -> Step {
        let Some(seen) = self.recorder.seen(key, found) else {
            return Err(Stop::Wrong);
        };
        let Some(mine) = running.mine.get(&key) else {
            self.recorder.read(running.at, key, seen);
            return Ok(());
        };
        let wanted = if mine.present {
            Seen::Version(mine.version)
        } else {
            Seen::Absent
        };
        if seen == wanted {
            return Ok(());
        }
        let record = self.recorder.universe.describe(key);
        let what = format!("a transaction wrote {wanted:?} to {record} and reads {seen:?}");
        self.recorder.violate(what);
        Err(Stop::Wrong)
    }

    pub(crate) fn put(&mut self, running: &mut Running, key: Key) -> Step {
        let write = Write::put(key, self.recorder.version());
        let bytes = value(write.version, self.length());
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, name) = universe.record(key);
        let tree = &self.trees[tree];
        let streams = bytes.len() > 5000 && self.random.chance(50);
        let done = if streams {
            let part = 1 + self.random.below(bytes.len() as u64) as usize;
            stream(&mut running.transaction, tree, name, bytes.chunks(part))
        } else {
            running.transaction.insert(tree, name, &bytes)
        };
        if running.read_only && matches!(done, Err(Error::ReadOnlyTransaction)) {
            return Ok(());
        }
        done.map_err(|error| Stop::Error(error, "writing in a transaction"))?;
        self.recorder.write(running.at, write);
        running.mine.insert(key, write);
        Ok(())
    }

    pub(crate) fn take(&mut self, running: &mut Running, key: Key) -> Step {
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, name) = universe.record(key);
        let existed = match running.transaction.remove(&self.trees[tree], name) {
            Ok(existed) => existed,
            Err(Error::ReadOnlyTransaction) if running.read_only => return Ok(()),
            Err(error) => return Err(Stop::Error(error, "removing in a transaction")),
        };
        if !existed {
            return self.saw(running, key, None);
        }
        let write = Write::removal(key, self.recorder.version());
        self.recorder.write(running.at, write);
        running.mine.insert(key, write);
        Ok(())
    }

    /// Reads a range, in either direction, or many keys at once.
    fn survey(&mut self, running: &mut Running) -> Step {
        let universe = Arc::clone(&self.recorder.universe);
        let index = self.random.below(self.trees.len() as u64) as usize;
        let part = self.some_range(index);
        let (Some(first), Some(end)) = (part.first(), part.last()) else {
            return Ok(());
        };
        let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let tree = &self.trees[index];
        let reads = &running.transaction;
        let bounds = (Bound::Included(&first.0[..]), Bound::Included(&end.0[..]));
        let mut take = |key: &[u8], value: &[u8]| {
            found.insert(key.to_vec(), value.to_vec());
            true
        };
        let done = match self.random.below(3) {
            0 => reads.scan(tree, bounds, take),
            1 => reads.scan_reverse(tree, bounds, take),
            _ => {
                let keys: Vec<&[u8]> = part.iter().map(|(bytes, _)| &bytes[..]).collect();
                reads.get_many(tree, &keys).map(|values| {
                    for (key, value) in keys.iter().zip(values) {
                        value.map(|value| take(key, &value));
                    }
                })
            }
        };
        done.map_err(|error| Stop::Error(error, "scanning in a transaction"))?;
        for (bytes, key) in &part {
            self.saw(running, *key, found.remove(bytes).as_deref())?;
        }
        if let Some((foreign, value)) = found.into_iter().next() {
            let shown = String::from_utf8_lossy(&foreign).into_owned();
            let name = &universe.trees[index].name;
            let version = version_of(&value);
            let what =
                format!("a scan of {name} found {shown:?} ({version:?}), which was never written");
            self.recorder.violate(what);
            return Err(Stop::Wrong);
        }
        Ok(())
    }

    /// Writes something and goes back to before it.
    fn change_mind(&mut self, running: &mut Running) -> Step {
        if running.read_only {
            return Ok(());
        }
        let savepoint = running.transaction.savepoint();
        let (before, mine) = (self.recorder.writes_of(running.at), running.mine.clone());
        for _ in 0..1 + self.random.below(3) {
            let key = self.random.one_of(&self.own);
            if self.random.chance(70) {
                self.put(running, key)?;
            } else {
                self.take(running, key)?;
            }
        }
        if self.random.chance(30) {
            return Ok(());
        }
        running
            .transaction
            .rollback_to(savepoint)
            .map_err(|error| Stop::Error(error, "going back to a savepoint"))?;
        self.recorder.restore_writes(running.at, &before);
        running.mine = mine;
        Ok(())
    }

    /// When commits are acknowledged.
    fn durability(&mut self) -> Durability {
        match self.random.below(10) {
            0..6 => Durability::Synced,
            6..8 => Durability::Buffered { window_ms: 3 },
            _ => Durability::None,
        }
    }

    /// A read-only snapshot that is looked at twice.
    pub(crate) fn look_back(&mut self) -> bool {
        let at = self.recorder.begin(Level::Snapshot);
        let snapshot = match self.store.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => return self.failed(at, &error.into(), "opening a snapshot"),
        };
        let universe = Arc::clone(&self.recorder.universe);
        for _ in 0..2 + self.random.skewed(12) {
            let key = self.any_key();
            let (tree, bytes) = universe.record(key);
            match snapshot.get(&self.trees[tree], bytes) {
                Ok(found) => {
                    self.recorder.found(at, key, found.as_deref());
                }
                Err(error) => {
                    let meaning = self.recorder.meaning(&error, "reading a snapshot");
                    self.recorder.end(at, Outcome::Aborted);
                    return meaning != Meaning::Over;
                }
            }
            if self.random.chance(50) {
                isobath::yield_now();
            }
        }
        self.recorder.end(at, Outcome::Committed);
        true
    }
}

fn stream<'p>(
    transaction: &mut Transaction,
    tree: &isobath::Tree,
    key: &[u8],
    parts: impl Iterator<Item = &'p [u8]>,
) -> Result<(), Error> {
    let mut writer = transaction.writer(tree, key)?;
    for part in parts {
        writer.append(part)?;
    }
    writer.finish()
}
