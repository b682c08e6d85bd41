//! Calls of a store, its trees and transactions beyond plain reads and writes.
//!
//! Those that insert or remove what they find use a tree of their own whose records are counted:
//! each is inserted by a call that finds it missing, and removed by one that says so. So the number
//! of its records follows from the answers (`Run::balances`), as well as each record's history.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use isobath::{Error, Transaction, TransactionOptions, Tree, WriteBatch};

use super::actor::Actor;
use super::data::value;
use super::recorder::Meaning;
use crate::history::{Key, Level, Outcome, Read, Seen, Write};

/// Waits in a task for what runs in another one.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => isobath::yield_now(),
        }
    }
}

impl Actor {
    /// One call; `false` if there is no point in another operation.
    pub(crate) fn call(&mut self) -> bool {
        match self.random.below(100) {
            0..18 => self.update(),
            18..36 => self.swap(),
            36..54 => self.pop(),
            54..60 => self.remove_some(),
            60..62 => self.extract(),
            62..66 => self.remove_one(),
            66..80 => self.read_some(),
            80..83 => self.write_batch(),
            83..85 => self.insert_later(),
            85..88 => self.retry(),
            88..92 => self.look_closely(),
            _ => self.upkeep(),
        }
    }

    /// The counted tree, and one of its records.
    pub(crate) fn counted(&mut self) -> (usize, Key) {
        let (tree, keys) = self.ends.as_ref().map_or((0, &self.own), |(t, k)| (*t, k));
        (tree, self.random.one_of(keys))
    }

    /// Some consecutive records of the counted tree.
    pub(crate) fn counted_range(&mut self) -> (Tree, Vec<(Vec<u8>, Key)>) {
        let (tree, _) = self.counted();
        (self.trees[tree].clone(), self.some_range(tree))
    }

    pub(crate) fn a_write(&mut self, key: Key, present: u64) -> (Write, Option<Vec<u8>>) {
        let write = Write {
            key,
            version: self.recorder.version(),
            present: self.random.chance(present),
        };
        let bytes = write.present.then(|| value(write.version, self.length()));
        (write, bytes)
    }

    /// A change has found this, and made `write` of it.
    fn changed(&self, at: usize, write: Write, found: Option<&[u8]>) -> bool {
        let Some(seen) = self.recorder.seen(write.key, found) else {
            return false;
        };
        if seen == Seen::Absent && !write.present {
            self.recorder.only_read(at, write.key, seen);
        } else {
            let grown = i64::from(write.present) - i64::from(seen != Seen::Absent);
            self.recorder.read(at, write.key, seen);
            self.recorder.grown_by(write.key, grown, grown);
        }
        self.recorder.end(at, Outcome::Committed);
        true
    }

    /// A change that inserts or removes `write` has failed.
    fn change_failed(&self, at: usize, write: Write, error: &Error, doing: &str) -> bool {
        let meaning = self.recorder.meaning(error, doing);
        if meaning != Meaning::Refused {
            match write.present {
                true => self.recorder.grown_by(write.key, 0, 1),
                false => self.recorder.grown_by(write.key, -1, 0),
            }
        }
        self.recorder.end_with(at, meaning);
        meaning != Meaning::Over
    }

    fn update(&mut self) -> bool {
        let key = match self.random.chance(70) {
            true => self.counted().1,
            false => self.random.one_of(&self.counters),
        };
        let (write, new) = self.a_write(key, 65);
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let at = self.recorder.begin_change(write, self.durable);
        let mut found = None;
        let done = self.trees[tree].update(bytes, |value| {
            found = value.map(<[u8]>::to_vec);
            new.clone()
        });
        match done {
            Ok(_) => self.changed(at, write, found.as_deref()),
            Err(error) => self.change_failed(at, write, &error, "updating"),
        }
    }

    /// Reads a record; the error says whether to go on.
    pub(super) fn read_one(&mut self, key: Key) -> Result<Option<Vec<u8>>, bool> {
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let at = self.recorder.begin(Level::Single);
        match self.trees[tree].get(bytes) {
            Ok(found) => {
                self.recorder.found(at, key, found.as_deref());
                self.recorder.end(at, Outcome::Committed);
                Ok(found)
            }
            Err(error) => Err(self.failed(at, &error, "getting")),
        }
    }

    fn swap(&mut self) -> bool {
        let (tree, key) = self.counted();
        let old = match self.random.chance(60) {
            true => match self.read_one(key) {
                Ok(found) => found,
                Err(go_on) => return go_on,
            },
            false => None,
        };
        let (write, new) = self.a_write(key, if old.is_none() { 95 } else { 40 });
        let universe = Arc::clone(&self.recorder.universe);
        let bytes = universe.record(key).1;
        let at = self.recorder.begin_change(write, self.durable);
        match self.trees[tree].compare_and_swap(bytes, old.as_deref(), new.as_deref()) {
            Ok(Ok(())) => self.changed(at, write, old.as_deref()),
            Ok(Err(other)) => {
                if other.current == old {
                    let record = universe.describe(key);
                    let what = format!("{record} has the expected value and was not swapped");
                    self.recorder.violate(what);
                }
                if let Some(seen) = self.recorder.seen(key, other.current.as_deref()) {
                    self.recorder.only_read(at, key, seen);
                }
                self.recorder.end(at, Outcome::Committed);
                true
            }
            Err(error) => self.change_failed(at, write, &error, "swapping"),
        }
    }

    /// An operation that may have removed any number up to `most` of the counted records has
    /// failed.
    pub(crate) fn removal_failed(
        &self,
        open: u64,
        most: usize,
        error: &Error,
        doing: &str,
    ) -> bool {
        let meaning = self.recorder.meaning(error, doing);
        match meaning {
            Meaning::Refused => self.recorder.close_removals(open),
            // It stays open: each may be gone, now or later.
            Meaning::Open | Meaning::Over => self.recorder.grown(-(most as i64), 0),
        }
        meaning != Meaning::Over
    }

    fn pop(&mut self) -> bool {
        let Some((tree, keys)) = self.ends.clone() else {
            return true;
        };
        let universe = Arc::clone(&self.recorder.universe);
        let open = self.recorder.open_removals(keys.iter().copied());
        let popped = match self.random.chance(50) {
            true => self.trees[tree].pop_first(),
            false => self.trees[tree].pop_last(),
        };
        match popped {
            Ok(Some((bytes, value))) => {
                let begin = self.recorder.removals_began(open);
                let key = universe.trees[tree].keys.get(&bytes).copied();
                let seen = key.and_then(|key| self.recorder.seen(key, Some(&value)));
                let (Some(key), Some(seen)) = (key, seen) else {
                    let what = "what was taken from the end of a tree was never there";
                    self.recorder.violate(what.to_owned());
                    return false;
                };
                let version = self.recorder.version();
                self.recorder
                    .removed(begin, Read { key, seen }, version, self.durable);
                self.recorder.close_removals(open);
                self.recorder.grown(-1, -1);
                true
            }
            Ok(None) => {
                let begin = self.recorder.removals_began(open);
                let seen = Seen::Absent;
                let reads: Vec<Read> = keys.iter().map(|&key| Read { key, seen }).collect();
                self.recorder.scanned(begin, &reads);
                self.recorder.close_removals(open);
                true
            }
            Err(error) => self.removal_failed(open, 1, &error, "popping"),
        }
    }

    /// Removes a range, or everything.
    fn remove_some(&mut self) -> bool {
        let (tree, part) = self.counted_range();
        let all = self.ends.as_ref().map_or(0, |(_, keys)| keys.len());
        let (Some(first), Some(end)) = (part.first(), part.last()) else {
            return true;
        };
        let keys = part.iter().map(|(_, key)| *key);
        let open = self.recorder.open_removals(keys);
        let bounds = (Bound::Included(&first.0[..]), Bound::Included(&end.0[..]));
        let removed = match self.random.below(3) {
            0 if part.len() == all => tree.clear(),
            1 => tree.retain(bounds, |_, _| false),
            _ => tree.remove_range(bounds),
        };
        match removed {
            Ok(count) => {
                if count > part.len() as u64 {
                    let what = format!("{count} records of {} were removed", part.len());
                    self.recorder.violate(what);
                }
                self.recorder.close_some_removed(open);
                self.recorder.grown(-(count as i64), -(count as i64));
                true
            }
            Err(error) => self.removal_failed(open, part.len(), &error, "removing a range"),
        }
    }

    /// Removes one record of the counted tree, by a future now and then.
    fn remove_one(&mut self) -> bool {
        let (tree, key) = self.counted();
        let (write, _) = self.a_write(key, 0);
        let universe = Arc::clone(&self.recorder.universe);
        let bytes = universe.record(key).1;
        let tree = &self.trees[tree];
        let at = self.begin_single(&[write]);
        let removed = match self.random.chance(50) {
            true => tree.remove(bytes),
            false => wait(tree.remove_async(bytes)),
        };
        match removed {
            Ok(existed) => {
                let grown = -i64::from(existed);
                self.recorder.grown(grown, grown);
                if !existed {
                    self.recorder.found_nothing(at, key);
                }
                self.recorder.end(at, Outcome::Committed);
                true
            }
            Err(error) => self.change_failed(at, write, &error, "removing"),
        }
    }

    /// Reads of any tree, by any call.
    fn read_some(&mut self) -> bool {
        let index = self.random.below(self.trees.len() as u64) as usize;
        let part = self.some_range(index);
        let (Some(first), Some(end)) = (part.first(), part.last()) else {
            return true;
        };
        let begin = self.recorder.tick();
        let tree = self.trees[index].clone();
        let bounds = (Bound::Included(&first.0[..]), Bound::Included(&end.0[..]));
        let found = match self.random.below(3) {
            0 => self.by_keys(&tree, &part),
            1 => self.by_range(&tree, bounds, part.len()),
            _ => self.at_ends(&tree, bounds, &part),
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.recorder.meaning(&error, "reading") != Meaning::Over,
        };
        let keys: BTreeMap<&[u8], Key> = part.iter().map(|(b, key)| (&b[..], *key)).collect();
        let mut reads = Vec::new();
        for (bytes, value) in found {
            let key = keys.get(&bytes[..]).copied();
            let seen = key.and_then(|key| Some((key, self.recorder.seen(key, value.as_deref())?)));
            match seen {
                Some((key, seen)) => reads.push(Read { key, seen }),
                None => {
                    let shown = String::from_utf8_lossy(&bytes).into_owned();
                    let what = format!("a read found {shown:?}, which was never written");
                    self.recorder.violate(what);
                }
            }
        }
        self.recorder.scanned(begin, &reads);
        true
    }

    /// Each key of `part`, with the value found.
    fn by_keys(&mut self, tree: &Tree, part: &[(Vec<u8>, Key)]) -> Result<Found, Error> {
        let keys: Vec<&[u8]> = part.iter().map(|(bytes, _)| &bytes[..]).collect();
        let named = |values: Vec<Option<Vec<u8>>>| {
            let keys = keys.iter().map(|key| key.to_vec());
            keys.zip(values).collect()
        };
        let one = self.random.one_of(&keys);
        match self.random.below(7) {
            0 => tree.get_many(&keys).map(named),
            1 => wait(tree.get_many_async(&keys)).map(named),
            2 => {
                let mut values = vec![None; keys.len()];
                tree.get_each(&keys, |at, value| values[at] = value.map(<[u8]>::to_vec))?;
                Ok(named(values))
            }
            3 => {
                let mut value = Vec::new();
                let there = tree.get_into(one, &mut value)?;
                Ok(vec![(one.to_vec(), there.then_some(value))])
            }
            4 => Ok(vec![(one.to_vec(), wait(tree.get_async(one))?)]),
            5 => {
                let Some(mut reader) = tree.reader(one)? else {
                    return Ok(vec![(one.to_vec(), None)]);
                };
                // A value that is replaced during the read cannot be read to its end.
                let read = match one.last().is_some_and(|byte| byte % 2 == 0) {
                    true => {
                        let length = reader.len();
                        let rest = reader.read_at(length / 2, length as usize);
                        let first = reader.read_at(0, (length / 2) as usize);
                        first.and_then(|first| Ok([first, rest?].concat())).ok()
                    }
                    false => {
                        let mut value = Vec::new();
                        let read = std::io::Read::read_to_end(&mut reader, &mut value);
                        read.ok().map(|_| value)
                    }
                };
                Ok(read.map_or_else(Vec::new, |value| vec![(one.to_vec(), Some(value))]))
            }
            _ => {
                let there = match self.random.below(4) {
                    0 => tree.contains(one)?,
                    1 => tree.contains_key(one)?,
                    2 => wait(tree.contains_async(one))?,
                    _ => wait(tree.contains_key_async(one))?,
                };
                // The answer does not say which value it was.
                Ok(if there {
                    Vec::new()
                } else {
                    vec![(one.to_vec(), None)]
                })
            }
        }
    }

    /// Counts the records within `bounds`.
    fn by_range(
        &mut self,
        tree: &Tree,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        most: usize,
    ) -> Result<Found, Error> {
        let mut found: Found = Vec::new();
        match self.random.below(5) {
            0 => tree.scan_first(bounds, most, |key, value| {
                found.push((key.to_vec(), Some(value.to_vec())));
            })?,
            1 => {
                let mut range = tree.range(bounds);
                while let Some(record) = range.next() {
                    let (key, value) = record?;
                    found.push((key, Some(value)));
                    if let Some(record) = range.next_back() {
                        let (key, value) = record?;
                        found.push((key, Some(value)));
                    }
                }
            }
            2 => {
                let within = |key: &[u8]| std::ops::RangeBounds::<[u8]>::contains(&bounds, key);
                for record in tree.iter() {
                    let (key, value) = record?;
                    if within(&key) {
                        found.push((key, Some(value)));
                    }
                }
            }
            3 => {
                let Bound::Included(first) = bounds.0 else {
                    return Ok(found);
                };
                for record in tree.prefix(first) {
                    let (key, value) = record?;
                    if key == first {
                        found.push((key, Some(value)));
                    }
                }
            }
            _ => {
                let mut keys = Vec::new();
                tree.visit_keys(bounds, self.random.chance(50), |key, _| {
                    keys.push(key.to_vec());
                    true
                })?;
                let count = tree.count(bounds)?;
                for key in tree.keys(bounds) {
                    let (key, _) = key?;
                    if !std::ops::RangeBounds::<[u8]>::contains(&bounds, &key[..]) {
                        let what = "a key outside its range was found";
                        self.recorder.violate(what.to_owned());
                    }
                }
                if keys.len() > most || count > most as u64 {
                    let what = format!("{} and {count} of {most} keys were found", keys.len());
                    self.recorder.violate(what);
                }
            }
        }
        Ok(found)
    }

    /// The first or the last record within `bounds`, and that nothing is before or behind it.
    fn at_ends(
        &mut self,
        tree: &Tree,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        part: &[(Vec<u8>, Key)],
    ) -> Result<Found, Error> {
        let is_first = self.random.chance(50);
        let end = match self.random.below(3) {
            0 if is_first => tree.first()?,
            0 => tree.last()?,
            1 => {
                if tree.is_empty()? {
                    let absent = part.iter().map(|(bytes, _)| (bytes.clone(), None));
                    return Ok(absent.collect());
                }
                return Ok(Vec::new());
            }
            _ if is_first => tree.range(bounds).next().transpose()?,
            _ => tree.range(bounds).next_back().transpose()?,
        };
        let beyond = |bytes: &Vec<u8>| match &end {
            Some((key, _)) if is_first => bytes < key,
            Some((key, _)) => bytes > key,
            None => true,
        };
        let absent = part.iter().filter(|(bytes, _)| beyond(bytes));
        let mut found: Found = absent.map(|(bytes, _)| (bytes.clone(), None)).collect();
        if let Some((key, value)) = end
            && part.iter().any(|(bytes, _)| *bytes == key)
        {
            found.push((key, Some(value)));
        }
        Ok(found)
    }

    /// Changes records of several trees at once, whatever they have.
    fn write_batch(&mut self) -> bool {
        let mut batch = WriteBatch::new();
        let mut writes: BTreeMap<Key, Write> = BTreeMap::new();
        let universe = Arc::clone(&self.recorder.universe);
        for _ in 0..1 + self.random.below(6) {
            let key = match self.random.chance(60) {
                true => self.random.one_of(&self.own),
                false => self.random.one_of(&self.shared),
            };
            if writes.contains_key(&key) {
                continue;
            }
            let (write, new) = self.a_write(key, 75);
            let (tree, bytes) = universe.record(key);
            match new {
                Some(new) => batch.insert(&self.trees[tree], bytes, new),
                None => batch.remove(&self.trees[tree], bytes),
            }
            writes.insert(key, write);
        }
        debug_assert_eq!(batch.len(), writes.len());
        let writes: Vec<Write> = writes.into_values().collect();
        let at = self.begin_single(&writes);
        self.answered(at, self.store.write(&batch), "writing a batch")
    }

    /// Puts a record by a future.
    fn insert_later(&mut self) -> bool {
        let key = self.random.one_of(&self.own);
        let (write, new) = self.a_write(key, 100);
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let at = self.begin_single(&[write]);
        let tree = &self.trees[tree];
        self.answered(
            at,
            wait(tree.insert_async(bytes, new.unwrap_or_default())),
            "inserting by a future",
        )
    }

    /// A transaction that is repeated until it has no conflict.
    fn retry(&mut self) -> bool {
        let key = self.random.one_of(&self.counters);
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let tree = self.trees[tree].clone();
        let recorder = Arc::clone(&self.recorder);
        let durable = self.durable;
        let length = self.length();
        let attempt = std::cell::Cell::new(None);
        let begins = || {
            if let Some(before) = attempt.take() {
                recorder.end(before, Outcome::Aborted);
            }
            let at = recorder.begin(Level::Snapshot);
            attempt.set(Some(at));
            at
        };
        // The first attempt begins before its closure runs.
        let first = std::cell::Cell::new(Some(begins()));
        let done = self.store.transact(TransactionOptions::new(), |running| {
            let at = first.take().unwrap_or_else(&begins);
            let found = running.get(&tree, bytes)?;
            if let Some(seen) = recorder.seen(key, found.as_deref()) {
                recorder.read(at, key, seen);
            }
            let write = Write::put(key, recorder.version());
            running.insert(&tree, bytes, value(write.version, length))?;
            recorder.write(at, write);
            recorder.ask(at, durable);
            Ok::<(), Error>(())
        });
        let at = attempt.take().unwrap_or_default();
        self.answered(at, done, "repeating a transaction")
    }

    /// Reads a record of a snapshot in every way.
    fn look_closely(&mut self) -> bool {
        let at = self.recorder.begin(Level::Snapshot);
        let snapshot = match self.store.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => return self.failed(at, &error.into(), "opening a snapshot"),
        };
        for _ in 0..1 + self.random.below(3) {
            let key = match self.random.chance(50) {
                true => self.counted().1,
                false => self.any_key(),
            };
            match self.every_way(&snapshot, key) {
                Ok(found) => {
                    self.recorder.found(at, key, found.as_deref());
                }
                Err(error) => {
                    let meaning = self.recorder.meaning(&error, "reading a snapshot");
                    self.recorder.end(at, Outcome::Aborted);
                    return meaning != Meaning::Over;
                }
            }
        }
        self.recorder.end(at, Outcome::Committed);
        true
    }

    /// Reads a record in `transaction` in every way, and checks that all agree.
    pub(crate) fn every_way(
        &mut self,
        transaction: &Transaction,
        key: Key,
    ) -> Result<Option<Vec<u8>>, Error> {
        let universe = Arc::clone(&self.recorder.universe);
        let (tree, bytes) = universe.record(key);
        let tree = self.trees[tree].clone();
        let found = transaction.get(&tree, bytes)?;
        let (way, other) = match self.random.below(8) {
            0 => {
                let mut value = Vec::new();
                let there = transaction.get_into(&tree, bytes, &mut value)?;
                ("get_into", there.then_some(value))
            }
            1 => {
                let there = transaction.contains(&tree, bytes)?;
                ("contains", found.clone().filter(|_| there))
            }
            2 => {
                let there = transaction.contains_key(&tree, bytes)?;
                ("contains_key", found.clone().filter(|_| there))
            }
            3 => {
                let mut read = None;
                if let Some(mut reader) = transaction.reader(&tree, bytes)? {
                    let mut value = Vec::new();
                    std::io::Read::read_to_end(&mut reader, &mut value)
                        .map_err(|_| Error::SnapshotTooOld)?;
                    read = Some(value);
                }
                ("reader", read)
            }
            4 => {
                let mut records = transaction.prefix(&tree, bytes)?;
                let first = records.next().transpose()?;
                ("prefix", first.filter(|r| r.0 == bytes).map(|r| r.1))
            }
            5 => {
                let bounds = (Bound::Included(bytes), Bound::Included(bytes));
                let counted = transaction.count(&tree, bounds)?;
                let lengths: Result<Vec<_>, _> = transaction.keys(&tree, bounds)?.collect();
                let lengths: Vec<u64> = lengths?.into_iter().map(|(_, length)| length).collect();
                let agrees = lengths.len() as u64 == counted
                    && lengths.first().copied() == found.as_ref().map(|value| value.len() as u64);
                ("keys", found.clone().filter(|_| agrees))
            }
            6 => {
                let mut there = None;
                for record in transaction.iter(&tree)? {
                    let (key, value) = record?;
                    if key == bytes {
                        there = Some(value);
                    }
                }
                ("iter", there)
            }
            _ => {
                let bounds = (Bound::Included(bytes), Bound::Unbounded);
                let first = transaction.range(&tree, bounds)?.next().transpose()?;
                ("range", first.filter(|r| r.0 == bytes).map(|r| r.1))
            }
        };
        if found != other {
            let record = universe.describe(key);
            let what = format!(
                "{record} has {:?} bytes by get and {:?} by {way}",
                found.as_ref().map(Vec::len),
                other.as_ref().map(Vec::len)
            );
            self.recorder.violate(what);
        }
        Ok(found)
    }

    /// Maintenance of a store.
    fn upkeep(&mut self) -> bool {
        let (tree, _) = self.counted();
        let tree = self.trees[tree].clone();
        let (doing, done) = match self.random.below(8) {
            0 | 1 => ("compacting", self.store.compact().map(drop)),
            2 => ("a checkpoint", self.store.checkpoint()),
            3..6 => match self.store.discard_free_segments() {
                // Not every file system knows holes.
                Err(Error::Io(_)) if self.recorder.is_real() => ("discarding", Ok(())),
                done => ("discarding", done.map(drop)),
            },
            6 => {
                let text = self.store.stats().to_openmetrics(&[]);
                debug_assert!(text.ends_with("# EOF\n"), "{text}");
                ("listing trees", self.store.trees().map(drop))
            }
            _ => {
                let stats = tree.stats().map(drop);
                (
                    "sampling",
                    stats.and_then(|()| tree.estimate_len().map(drop)),
                )
            }
        };
        match done {
            Ok(()) => true,
            Err(error) => self.recorder.meaning(&error, doing) != Meaning::Over,
        }
    }
}

/// Keys, and the value found of each.
type Found = Vec<(Vec<u8>, Option<Vec<u8>>)>;
