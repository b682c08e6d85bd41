//! Transactions and snapshots of a worker's thread.

use std::collections::BTreeMap;

use isobath::{Error, Isolation, Transaction as Running, TransactionOptions};

use super::client::{Client, Held, Stop, wrong};
use super::mode::Wait;
use super::world::{
    self, ACCOUNTS, ACCOUNTS_SUM, COUNTERS, PAIRS, ZERO, length, main_key, shared_key,
};
use crate::crash::journal::now;
use crate::data::{value, version_of};
use crate::history::{Level, Transaction, Version, Write};

/// A transaction's writes.
#[derive(Default)]
struct Written {
    /// Own records; 0 for one that it removed.
    own: BTreeMap<u64, Version>,
    /// By how much shared numbers go up, from [`ZERO`].
    shared: BTreeMap<u64, Version>,
}

impl Client<'_> {
    pub(super) fn transact(&mut self) -> Result<(), Stop> {
        let serializable = self.random.chance(50);
        let (level, isolation) = if serializable {
            (Level::Serializable, Isolation::Serializable)
        } else {
            (Level::Snapshot, Isolation::Snapshot)
        };
        let wait = self
            .random
            .one_of(&[Wait::Synced, Wait::Buffered, Wait::None]);
        let mut noted = Transaction::new(level, now());
        noted.durable = wait == Wait::Synced;
        let options = TransactionOptions::new()
            .isolation(isolation)
            .durability(wait.durability());
        let mut running = self.common.store.begin_with(options)?;
        let mut written = Written::default();
        for _ in 0..self.random.skewed(8) {
            self.change_own(&mut running, &mut written)?;
        }
        if self.random.chance(30) {
            self.undo(&mut running, &mut written)?;
        }
        if self.random.chance(60) {
            self.change_shared(&mut running, &mut written, serializable)?;
        }
        if self.random.chance(25) {
            self.look_around(&running, &written)?;
        }
        if self.random.chance(10) {
            running.rollback();
            return Ok(());
        }
        // One value that only this transaction writes: by it one knows whether it
        // has survived.
        let mark = self.own();
        let version = self.version();
        running.insert(&self.common.main, &main_key(mark), &value(version, 0))?;
        written.own.insert(mark, version);
        noted.writes = writes(self.common.world, &written);
        self.ask(&mut noted, |_| Ok(running.commit()?))
    }

    /// Reads and changes an own record.
    fn change_own(&mut self, running: &mut Running, written: &mut Written) -> Result<(), Stop> {
        let record = self.own();
        let key = main_key(record);
        let main = &self.common.main;
        let before = written.own.get(&record).copied();
        let before = before.unwrap_or_else(|| self.expected(record));
        if self.random.chance(50) {
            let found = running.get(main, &key)?;
            self.is(record, before, found.as_deref())?;
        }
        if self.random.chance(25) {
            let existed = running.remove(main, &key)?;
            if existed != (before != 0) {
                return wrong(format!("removing main/{record} says {existed}"));
            }
            // A record that is not there is not written.
            written.own.insert(record, 0);
            return Ok(());
        }
        let version = self.version();
        let bytes = value(version, length(&mut self.random));
        if self.random.chance(10) {
            let mut writer = running.writer(main, &key)?;
            for part in bytes.chunks(9000) {
                writer.append(part)?;
            }
            writer.finish()?;
        } else {
            running.insert(main, &key, &bytes)?;
        }
        written.own.insert(record, version);
        Ok(())
    }

    /// Changes records behind a savepoint, and takes that back.
    fn undo(&mut self, running: &mut Running, written: &mut Written) -> Result<(), Stop> {
        let savepoint = running.savepoint();
        let mut lost = Written {
            own: written.own.clone(),
            ..Written::default()
        };
        for _ in 0..self.random.skewed(6) {
            self.change_own(running, &mut lost)?;
        }
        running.rollback_to(savepoint)?;
        for &record in lost.own.keys() {
            let expected = written.own.get(&record).copied();
            let expected = expected.unwrap_or_else(|| self.expected(record));
            let found = running.get(&self.common.main, &main_key(record))?;
            self.is(record, expected, found.as_deref())?;
        }
        Ok(())
    }

    /// Moves something between accounts, counts, and, in serializable transactions
    /// alone, takes from a pair.
    fn change_shared(
        &mut self,
        running: &mut Running,
        written: &mut Written,
        serializable: bool,
    ) -> Result<(), Stop> {
        if self.random.chance(70) {
            let from = COUNTERS + self.random.below(ACCOUNTS);
            let to = COUNTERS + self.random.below(ACCOUNTS);
            let amount = 1 + self.random.below(5);
            if from != to {
                self.add(running, written, from, ZERO - amount)?;
                self.add(running, written, to, ZERO + amount)?;
            }
        }
        if self.random.chance(50) {
            let counter = self.random.below(COUNTERS);
            self.add(running, written, counter, ZERO + 1)?;
        }
        if serializable && self.random.chance(50) {
            let pair = COUNTERS + ACCOUNTS + 2 * self.random.below(PAIRS);
            let both = self.number(running, pair)? + self.number(running, pair + 1)?;
            let one = pair + self.random.below(2);
            if both > 2 * ZERO {
                let most = (both - 2 * ZERO).min(60);
                let amount = 1 + self.random.below(most);
                self.add(running, written, one, ZERO - amount)?;
            } else {
                self.add(running, written, one, ZERO + 100)?;
            }
        }
        Ok(())
    }

    fn number(&self, running: &Running, at: u64) -> Result<u64, Stop> {
        let found = running.get(&self.common.shared, &shared_key(at))?;
        match found.as_deref().and_then(version_of) {
            Some(number) => Ok(number),
            None => wrong(format!("shared/{at} is no number: {found:?}")),
        }
    }

    fn add(
        &self,
        running: &mut Running,
        written: &mut Written,
        at: u64,
        change: Version,
    ) -> Result<(), Stop> {
        let number = self.number(running, at)? + change - ZERO;
        running.insert(&self.common.shared, &shared_key(at), &value(number, 0))?;
        let sum = written.shared.entry(at).or_insert(ZERO);
        *sum = *sum + change - ZERO;
        Ok(())
    }

    /// Scans in a transaction: it sees its own writes.
    fn look_around(&mut self, running: &Running, written: &Written) -> Result<(), Stop> {
        let window = self.window();
        let (lower, upper) = (main_key(window.start), main_key(window.end - 1));
        let bounds = lower.as_slice()..=upper.as_slice();
        let main = &self.common.main;
        let mut found = Vec::new();
        if self.random.chance(50) {
            for record in running.range(main, bounds)? {
                found.push(record?);
            }
        } else {
            running.scan_reverse(main, bounds, |key, bytes| {
                found.push((key.to_vec(), bytes.to_vec()));
                true
            })?;
            found.reverse();
        }
        self.whole(window, &found, &written.own)
    }

    /// Opens a snapshot, looks through it again, or gives it up.
    pub(super) fn hold(&mut self) -> Result<(), Stop> {
        let Some(held) = self.held.take() else {
            let snapshot = self.common.store.snapshot()?;
            let own: Vec<u64> = (0..20).map(|_| self.own()).collect();
            let own = own.into_iter().map(|r| (r, self.expected(r))).collect();
            let shared = &self.common.shared;
            let numbers = Self::numbers(|key| snapshot.get(shared, key))?;
            self.judge_numbers(&numbers)?;
            self.held = Some(Held {
                snapshot,
                own,
                numbers,
            });
            return Ok(());
        };
        match self.look_through(&held) {
            // Old values take space, and loads leave none.
            Err(Stop::Store(Error::SnapshotTooOld)) => return Ok(()),
            other => other?,
        }
        if self.random.chance(70) {
            self.held = Some(held);
        }
        Ok(())
    }

    fn look_through(&self, held: &Held) -> Result<(), Stop> {
        let shared = &self.common.shared;
        let numbers = Self::numbers(|key| held.snapshot.get(shared, key))?;
        if numbers != held.numbers {
            return wrong("a snapshot has changed: the shared numbers");
        }
        let keys: Vec<_> = held.own.iter().map(|(r, _)| main_key(*r)).collect();
        let found = held.snapshot.get_many(&self.common.main, &keys)?;
        for ((record, expected), found) in held.own.iter().zip(found) {
            self.is(*record, *expected, found.as_deref())?;
        }
        Ok(())
    }

    /// Checks the invariant of the shared numbers.
    fn judge_numbers(&mut self, numbers: &[u64]) -> Result<(), Stop> {
        let (counters, rest) = numbers.split_at(COUNTERS as usize);
        let (accounts, pairs) = rest.split_at(ACCOUNTS as usize);
        let sum: u64 = accounts
            .iter()
            .fold(0, |sum, a| sum.wrapping_add(*a).wrapping_sub(ZERO));
        if sum != ACCOUNTS_SUM {
            return wrong(format!("the accounts' sum is {sum}: {accounts:x?}"));
        }
        if pairs.chunks(2).any(|pair| pair[0] + pair[1] < 2 * ZERO) {
            return wrong(format!("a pair is negative: {pairs:x?}"));
        }
        let back = counters
            .iter()
            .zip(&self.counters)
            .any(|(now, then)| now < then);
        if back {
            let then = &self.counters;
            return wrong(format!("counters went back: {counters:x?} after {then:x?}"));
        }
        self.counters = counters.to_vec();
        Ok(())
    }
}

fn writes(world: world::World, written: &Written) -> Vec<Write> {
    let own = written.own.iter().map(|(&record, &version)| Write {
        key: world::key(record),
        version,
        present: version != 0,
    });
    let shared = written.shared.iter().map(|(&at, &version)| Write {
        key: world::key(world.shared(at)),
        version,
        present: true,
    });
    own.chain(shared).collect()
}
