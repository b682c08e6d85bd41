//! Calls within transactions, and those that remove record by record.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use isobath::Tree;

use super::actor::Actor;
use super::transact::{Running, Step, Stop};
use crate::history::{Key, Read, Write};

/// Records of the counted tree, with their values.
type Records = BTreeMap<Vec<u8>, Vec<u8>>;

impl Actor {
    /// Takes records out of the counted tree one by one.
    pub(crate) fn extract(&mut self) -> bool {
        let (tree, part) = self.counted_range();
        let (Some(first), Some(end)) = (part.first(), part.last()) else {
            return true;
        };
        let keys: BTreeMap<&[u8], Key> = part.iter().map(|(b, key)| (&b[..], *key)).collect();
        let open = self.recorder.open_removals(keys.values().copied());
        let begin = self.recorder.tick();
        let bounds = (Bound::Included(&first.0[..]), Bound::Included(&end.0[..]));
        let is_odd = self.random.chance(50);
        for record in tree.extract_if(bounds, |_, value| !is_odd || value.len() % 2 == 1) {
            let (bytes, value) = match record {
                Ok(record) => record,
                Err(error) => return self.removal_failed(open, part.len(), &error, "extracting"),
            };
            let key = keys.get(&bytes[..]).copied();
            let seen = key.and_then(|key| self.recorder.seen(key, Some(&value)));
            let (Some(key), Some(seen)) = (key, seen) else {
                let what = "what was extracted was never there";
                self.recorder.violate(what.to_owned());
                return false;
            };
            let version = self.recorder.version();
            self.recorder
                .removed(begin, Read { key, seen }, version, self.durable);
            self.recorder.grown(-1, -1);
        }
        self.recorder.close_removals(open);
        true
    }

    /// A call within a transaction.
    pub(crate) fn call_in(&mut self, running: &mut Running) -> Step {
        match self.random.below(14) {
            0..3 => {
                let (_, key) = self.counted();
                self.look(running, key)?;
                match self.random.chance(60) {
                    true => self.put(running, key),
                    false => self.take(running, key),
                }
            }
            3..6 => self.change_in(running),
            6..8 => self.pop_in(running),
            8..11 => self.remove_some_in(running),
            _ => {
                let key = self.counted().1;
                let found = self.every_way(&running.transaction, key);
                let found =
                    found.map_err(|error| Stop::Error(error, "reading in a transaction"))?;
                self.saw(running, key, found.as_deref())
            }
        }
    }

    /// Removes what a transaction sees of a range: as many as it has seen before.
    fn remove_some_in(&mut self, running: &mut Running) -> Step {
        let (tree, part) = self.counted_range();
        let all = self.ends.as_ref().map_or(0, |(_, keys)| keys.len());
        let (Some(first), Some(end)) = (part.first(), part.last()) else {
            return Ok(());
        };
        if running.read_only {
            return Ok(());
        }
        let bounds = (Bound::Included(&first.0[..]), Bound::Included(&end.0[..]));
        let mut found = self.scan_in(running, &tree, bounds)?;
        let there = found.len() as u64;
        let transaction = &mut running.transaction;
        let removed = match self.random.below(4) {
            0 if part.len() == all => transaction.clear(&tree),
            1 => transaction.retain(&tree, bounds, |_, _| false),
            2 => transaction
                .extract_if(&tree, bounds, |_, _| true)
                .and_then(|records| records.map(|record| record.map(|_| 1)).sum()),
            _ => transaction.remove_range(&tree, bounds),
        };
        let removed = removed.map_err(|error| Stop::Error(error, "removing a range"))?;
        if removed != there {
            let what = format!("a transaction saw {there} records and removed {removed}");
            self.recorder.violate(what);
            return Err(Stop::Wrong);
        }
        for (bytes, key) in &part {
            let value = found.remove(bytes);
            self.saw(running, *key, value.as_deref())?;
            if value.is_none() {
                continue;
            }
            self.removes(running, *key);
        }
        Ok(())
    }

    /// A transaction has removed a record that it saw.
    fn removes(&self, running: &mut Running, key: Key) {
        let write = Write::removal(key, self.recorder.version());
        self.recorder.write(running.at, write);
        running.mine.insert(key, write);
    }

    /// Reads a range in a transaction.
    fn scan_in(
        &self,
        running: &Running,
        tree: &Tree,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<Records, Stop> {
        let mut found = Records::new();
        let scanned = running.transaction.scan(tree, bounds, |key, value| {
            found.insert(key.to_vec(), value.to_vec());
            true
        });
        scanned.map_err(|error| Stop::Error(error, "scanning in a transaction"))?;
        Ok(found)
    }

    /// Takes the first or the last record that a transaction sees.
    fn pop_in(&mut self, running: &mut Running) -> Step {
        let (tree, _) = self.counted_range();
        if running.read_only {
            return Ok(());
        }
        let mut found = self.scan_in(running, &tree, (Bound::Unbounded, Bound::Unbounded))?;
        let (_, keys) = self.ends.clone().unwrap_or_default();
        let universe = Arc::clone(&self.recorder.universe);
        let is_first = self.random.chance(50);
        let popped = match is_first {
            true => running.transaction.pop_first(&tree),
            false => running.transaction.pop_last(&tree),
        };
        let popped = popped.map_err(|error| Stop::Error(error, "popping in a transaction"))?;
        for &key in &keys {
            let seen = found.get(universe.record(key).1).cloned();
            self.saw(running, key, seen.as_deref())?;
        }
        let expected = if is_first {
            found.pop_first()
        } else {
            found.pop_last()
        };
        if popped != expected {
            let what = format!(
                "a transaction pops {:?} and sees {:?} there",
                popped.map(|record| record.0),
                expected.map(|record| record.0)
            );
            self.recorder.violate(what);
            return Err(Stop::Wrong);
        }
        let is_it = |key: &&Key| {
            popped
                .as_ref()
                .is_some_and(|p| universe.record(**key).1 == p.0)
        };
        if let Some(key) = keys.iter().find(is_it) {
            self.removes(running, *key);
        }
        Ok(())
    }

    /// Changes what a transaction sees of a record, in one call.
    fn change_in(&mut self, running: &mut Running) -> Step {
        if running.read_only {
            return Ok(());
        }
        let (_, key) = self.counted();
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let tree = self.trees[tree].clone();
        let (write, new) = self.a_write(key, 65);
        let failed = |error| Stop::Error(error, "changing in a transaction");
        let found = if self.random.chance(50) {
            let mut found = None;
            let changed = running.transaction.update(&tree, bytes, |old| {
                found = old.map(<[u8]>::to_vec);
                new.clone()
            });
            changed.map_err(failed)?;
            found
        } else {
            let found = running.transaction.get(&tree, bytes).map_err(failed)?;
            let (old, new) = (found.as_deref(), new.as_deref());
            let swapped = running.transaction.compare_and_swap(&tree, bytes, old, new);
            if swapped.map_err(failed)?.is_err() {
                let record = universe.describe(key);
                let what = format!("a transaction does not swap what it sees of {record}");
                self.recorder.violate(what);
                return Err(Stop::Wrong);
            }
            found
        };
        self.saw(running, key, found.as_deref())?;
        if write.present || found.is_some() {
            self.recorder.write(running.at, write);
            running.mine.insert(key, write);
        }
        Ok(())
    }
}
