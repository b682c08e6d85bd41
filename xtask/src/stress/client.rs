//! One thread of a worker: its operations, and the answers that it expects.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::{Arc, PoisonError, RwLock};

use isobath::{Error, Snapshot, Store, Tree};

use super::mode::Mode;
use super::watch::Watch;
use super::world::{
    self, OWNERS, World, length, main_key, main_record, scratch_key, scratch_name, shared_key,
};
use crate::crash::Problem;
use crate::crash::journal::{Journal, now};
use crate::data::{value, version_of};
use crate::history::{Level, Transaction, Version, Write};
use crate::random::Random;

/// Most records of one look at many.
const MANY: u64 = 40;

/// Why a step ended early.
pub(super) enum Stop {
    /// The store has refused something.
    Store(Error),
    /// Something is not as it must be.
    Wrong(Problem),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Store(error.into())
    }
}

pub(super) fn wrong<T>(problem: impl Into<Problem>) -> Result<T, Stop> {
    Err(Stop::Wrong(problem.into()))
}

/// Everything that the threads of a worker share.
pub(super) struct Common {
    pub(super) store: Store,
    pub(super) main: Tree,
    pub(super) shared: Tree,
    pub(super) world: World,
    pub(super) mode: Mode,
    /// The store's versions when the round began.
    pub(super) base: Vec<Version>,
    /// Held by every client that may change the store; a check excludes them.
    pub(super) gate: RwLock<()>,
    pub(super) watch: Arc<Watch>,
    /// The threads' steps, each as often as it is listed.
    pub(super) steps: Vec<Step>,
    /// Steps that are left out.
    pub(super) without: Vec<String>,
}

/// How often of a hundred times, its name, and what it does.
pub(super) type Step = (usize, &'static str, fn(&mut Client<'_>) -> Result<(), Stop>);

const STEPS: &[Step] = &[
    (24, "write", |client| client.write_one()),
    (6, "swap", |client| client.swap_one()),
    (6, "read", |client| client.read_one()),
    (8, "many", |client| client.read_many()),
    (6, "scan", |client| client.scan()),
    (30, "transaction", |client| client.transact()),
    (4, "streamed-write", |client| client.stream()),
    (4, "streamed-read", |client| client.read_stream()),
    (5, "snapshot", |client| client.hold()),
    (6, "scratch", |client| client.scratch()),
    (1, "tail", |client| client.tail()),
];

/// All steps but some.
pub(super) fn steps_without(names: &[String]) -> Vec<Step> {
    let steps = STEPS
        .iter()
        .filter(|step| names.iter().all(|n| n != step.1));
    steps
        .flat_map(|step| std::iter::repeat_n(*step, step.0))
        .collect()
}

/// A snapshot that is kept open for a while.
pub(super) struct Held {
    pub(super) snapshot: Snapshot,
    /// Own records and what they were.
    pub(super) own: Vec<(u64, Version)>,
    /// The shared numbers.
    pub(super) numbers: Vec<u64>,
}

pub(super) struct Client<'c> {
    pub(super) common: &'c Common,
    pub(super) thread: u64,
    pub(super) journal: Journal,
    pub(super) random: Random,
    pub(super) next: Version,
    /// Changes of its own records since the round began.
    pub(super) changed: BTreeMap<u64, Version>,
    pub(super) held: Option<Held>,
    /// The counters as they were seen last.
    pub(super) counters: Vec<u64>,
}

impl Client<'_> {
    /// Takes one step of any kind.
    pub(super) fn step(&mut self) -> Result<(), Problem> {
        let common = self.common;
        common.watch.idle(self.thread);
        let _gate = common.gate.read().unwrap_or_else(PoisonError::into_inner);
        let steps = &common.steps;
        let (_, what, step) = self.random.one_of(steps);
        common.watch.at(self.thread, what);
        match step(self) {
            Ok(()) => Ok(()),
            Err(Stop::Store(error)) if self.may_refuse(&error) => Ok(()),
            Err(Stop::Store(error)) => Err(format!("{what}: {error}")),
            Err(Stop::Wrong(problem)) => Err(format!("{what}: {problem}")),
        }
    }

    /// Whether a sound store may answer so, and changes nothing then.
    fn may_refuse(&self, error: &Error) -> bool {
        let full = self.common.mode.full && matches!(error, Error::VolumeFull { .. });
        full || error.is_retryable()
    }

    fn owners(&self) -> Vec<u64> {
        let threads = self.common.mode.threads;
        let owners = 0..OWNERS;
        owners.filter(|o| o % threads == self.thread).collect()
    }

    pub(super) fn owns(&self, record: u64) -> bool {
        self.common.world.owner(record) % self.common.mode.threads == self.thread
    }

    /// One of its own records of `main`.
    pub(super) fn own(&mut self) -> u64 {
        let owner = self.random.one_of(&self.owners());
        let each = self.common.world.spread / OWNERS;
        // Some are used much more than others.
        let at = if self.random.chance(30) {
            self.random.below(each.min(40))
        } else {
            self.random.below(each)
        };
        owner + OWNERS * at
    }

    pub(super) fn version(&mut self) -> Version {
        self.next += 1;
        self.next
    }

    /// The expected version of one of its own records; 0 without a value.
    pub(super) fn expected(&self, record: u64) -> Version {
        let changed = self.changed.get(&record).copied();
        changed.unwrap_or_else(|| self.common.base[record as usize])
    }

    /// Compares the value read of an own record.
    pub(super) fn same(&self, record: u64, found: Option<&[u8]>) -> Result<(), Stop> {
        self.is(record, self.expected(record), found)
    }

    pub(super) fn is(
        &self,
        record: u64,
        expected: Version,
        found: Option<&[u8]>,
    ) -> Result<(), Stop> {
        let version = found.map_or(Some(0), version_of);
        if version == Some(expected) {
            return Ok(());
        }
        let name = self.common.world.describe(record);
        match version {
            Some(version) => wrong(format!("{name} is {version:#x}, not {expected:#x}")),
            None => wrong(format!("{name} has bytes that was never written")),
        }
    }

    /// Notes the request, makes it, and notes the answer.
    pub(super) fn ask(
        &mut self,
        noted: &mut Transaction,
        work: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Stop> {
        let journal = |error: std::io::Error| Stop::Wrong(format!("the journal: {error}"));
        // A removal that finds nothing logs nothing, and so makes nothing durable.
        let changes = |write: &Write| write.present || self.expected(u64::from(write.key.0)) != 0;
        noted.durable &= noted.writes.iter().any(changes);
        self.journal.ask(noted).map_err(journal)?;
        let done = work(self);
        if let Err(error) = &done
            && !self.may_refuse(error)
        {
            return done.map_err(Stop::Store);
        }
        self.journal.answer(done.is_ok()).map_err(journal)?;
        done?;
        for write in &noted.writes {
            let record = u64::from(write.key.0);
            if self.common.world.shared_at(record).is_none() {
                let version = if write.present { write.version } else { 0 };
                self.changed.insert(record, version);
            }
        }
        Ok(())
    }

    /// An operation outside transactions, as durable as the store's are.
    pub(super) fn single(&self, writes: Vec<Write>) -> Transaction {
        let mut noted = Transaction::new(Level::Single, now());
        noted.durable = self.common.mode.durability == super::mode::Wait::Synced;
        noted.writes = writes;
        noted
    }

    /// The write of a new value, or of none, to a record.
    pub(super) fn write_of(&mut self, record: u64, present: bool) -> Write {
        Write {
            key: world::key(record),
            version: self.version(),
            present,
        }
    }

    fn write_one(&mut self) -> Result<(), Stop> {
        let record = self.own();
        let present = self.random.chance(75);
        let write = self.write_of(record, present);
        let bytes = value(write.version, length(&mut self.random));
        let existed = self.expected(record) != 0;
        let mut removed = existed;
        let mut noted = self.single(vec![write]);
        let done = self.ask(&mut noted, |client| {
            let key = main_key(record);
            if present {
                return client.common.main.insert(&key, &bytes);
            }
            removed = client.common.main.remove(&key)?;
            Ok(())
        });
        if removed != existed {
            return wrong(format!("removing main/{record} says {removed}"));
        }
        if let Err(Stop::Store(Error::VolumeFull { .. })) = done {
            return self.make_room();
        }
        done
    }

    /// Replaces what a record has, if it has that still: as only its owner changes it, it has.
    fn swap_one(&mut self) -> Result<(), Stop> {
        let record = self.own();
        let present = self.random.chance(75);
        let write = self.write_of(record, present);
        let new = present.then(|| value(write.version, length(&mut self.random)));
        let key = main_key(record);
        let main = self.common.main.clone();
        let old = main.get(&key)?;
        self.same(record, old.as_deref())?;
        let by_update = self.random.chance(50);
        let mut found = old.clone();
        let mut noted = self.single(vec![write]);
        self.ask(&mut noted, |_| {
            if by_update {
                let changed = main.update(&key, |now| {
                    found = now.map(<[u8]>::to_vec);
                    new.clone()
                });
                return changed.map(drop);
            }
            if let Err(other) = main.compare_and_swap(&key, old.as_deref(), new.as_deref())? {
                found = other.current;
            }
            Ok(())
        })?;
        if found == old {
            return Ok(());
        }
        wrong(format!(
            "main/{record} changed between two looks of its owner"
        ))
    }

    /// Removes some records where the volume is full.
    fn make_room(&mut self) -> Result<(), Stop> {
        for _ in 0..4 {
            let record = self.own();
            let write = self.write_of(record, false);
            let mut noted = self.single(vec![write]);
            self.ask(&mut noted, |client| {
                client.common.main.remove(&main_key(record)).map(|_| ())
            })?;
        }
        Ok(())
    }

    fn read_one(&mut self) -> Result<(), Stop> {
        let record = self.own();
        let (main, key) = (&self.common.main, main_key(record));
        if self.random.chance(30) {
            let contained = main.contains(&key)?;
            if contained != (self.expected(record) != 0) {
                return wrong(format!("main/{record}: contained says {contained}"));
            }
            return Ok(());
        }
        let found = main.get(&key)?;
        self.same(record, found.as_deref())
    }

    fn read_many(&mut self) -> Result<(), Stop> {
        let count = self.random.skewed(MANY);
        let records: Vec<u64> = (0..count).map(|_| self.own()).collect();
        let keys: Vec<Vec<u8>> = records.iter().map(|r| main_key(*r)).collect();
        let main = self.common.main.clone();
        let found = match self.random.below(3) {
            0 => main.get_many(&keys)?,
            1 => {
                let mut found = vec![None; keys.len()];
                main.get_each(&keys, |at, value| found[at] = value.map(<[u8]>::to_vec))?;
                found
            }
            _ => {
                let one_by_one = move || keys.iter().map(|key| main.get(key)).collect();
                let joined = self.common.store.spawn(one_by_one).join();
                let found: Result<Vec<_>, Error> =
                    joined.map_err(|_| Stop::Wrong("a task panicked".to_owned()))?;
                found?
            }
        };
        for (record, found) in records.iter().zip(found) {
            self.same(*record, found.as_deref())?;
        }
        Ok(())
    }

    /// A part of `main`: from a record, and how many.
    pub(super) fn window(&mut self) -> std::ops::Range<u64> {
        let most = self.common.world.main();
        let begin = self.random.below(most);
        begin..(begin + self.random.skewed(2000)).min(most)
    }

    fn scan(&mut self) -> Result<(), Stop> {
        let window = self.window();
        let (lower, upper) = (main_key(window.start), main_key(window.end - 1));
        let bounds = lower.as_slice()..=upper.as_slice();
        let main = &self.common.main;
        let mut found = Vec::new();
        let mut note = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            true
        };
        match self.random.below(5) {
            0 => main.scan(bounds, note)?,
            1 => {
                main.scan_reverse(bounds, note)?;
                found.reverse();
            }
            2 => {
                let limit = (window.end - window.start) as usize;
                main.scan_first(bounds, limit, |key, value| {
                    let _ = note(key, value);
                })?;
            }
            3 => {
                for record in main.range(bounds) {
                    found.push(record?);
                }
            }
            _ => {
                // From both ends until they meet.
                let mut range = main.range(bounds);
                let mut behind = Vec::new();
                while let Some(first) = range.next() {
                    found.push(first?);
                    if let Some(last) = range.next_back() {
                        behind.push(last?);
                    }
                }
                found.extend(behind.into_iter().rev());
            }
        }
        self.whole(window, &found, &BTreeMap::new())
    }

    /// Whether a scan of a part of `main` found all own records, in order, and
    /// nothing that was never written. `over` are writes that its transaction made.
    pub(super) fn whole(
        &self,
        window: std::ops::Range<u64>,
        found: &[(Vec<u8>, Vec<u8>)],
        over: &BTreeMap<u64, Version>,
    ) -> Result<(), Stop> {
        if !found.is_sorted_by(|one, next| one.0 < next.0) {
            return wrong("records out of order");
        }
        let mut versions = BTreeMap::new();
        for (key, bytes) in found {
            let known = main_record(key).filter(|record| window.contains(record));
            let (Some(record), Some(version)) = (known, version_of(bytes)) else {
                let key = String::from_utf8_lossy(key);
                return wrong(format!(
                    "{key:?} does not belong here, or was never written"
                ));
            };
            versions.insert(record, version);
        }
        for record in window.filter(|record| self.owns(*record)) {
            let expected = over.get(&record).copied();
            let expected = expected.unwrap_or_else(|| self.expected(record));
            let seen = versions.get(&record).copied().unwrap_or(0);
            if seen != expected {
                return wrong(format!("main/{record} is {seen:#x}, not {expected:#x}"));
            }
        }
        Ok(())
    }

    fn stream(&mut self) -> Result<(), Stop> {
        let record = self.own();
        let write = self.write_of(record, true);
        let bytes = value(write.version, self.random.skewed(300_000) as usize);
        let mut writer = self.common.main.writer(&main_key(record))?;
        let part = 1 + self.random.below(50_000) as usize;
        for part in bytes.chunks(part) {
            writer.append(part)?;
        }
        if self.random.chance(20) {
            return Ok(());
        }
        let mut noted = self.single(vec![write]);
        self.ask(&mut noted, |_| writer.finish())
    }

    fn read_stream(&mut self) -> Result<(), Stop> {
        let record = self.own();
        let Some(mut reader) = self.common.main.reader(&main_key(record))? else {
            return self.same(record, None);
        };
        let mut bytes = Vec::new();
        if let Err(error) = reader.read_to_end(&mut bytes) {
            // Only its owner replaces it.
            return wrong(format!("main/{record}: {error}"));
        }
        self.same(record, Some(&bytes))
    }

    /// Loads the records behind all others of `main`, or removes them.
    fn tail(&mut self) -> Result<(), Stop> {
        let world = self.common.world;
        if !self.owns(world.spread) {
            return Ok(());
        }
        let mut there = (world.spread..world.main()).filter(|r| self.expected(*r) != 0);
        if let Some(record) = there.next() {
            let records: Vec<u64> = std::iter::once(record).chain(there).collect();
            for record in records {
                let write = self.write_of(record, false);
                let mut noted = self.single(vec![write]);
                self.ask(&mut noted, |client| {
                    client.common.main.remove(&main_key(record)).map(|_| ())
                })?;
            }
            return Ok(());
        }
        let tree = self.common.main.clone();
        self.load(&tree, world.spread, world.main(), main_key)
    }

    /// Loads the records from `first` to before `end` into the end of a tree.
    pub(super) fn load(
        &mut self,
        tree: &Tree,
        first: u64,
        end: u64,
        key: impl Fn(u64) -> Vec<u8>,
    ) -> Result<(), Stop> {
        let end = first + 1 + self.random.below(end - first);
        let writes = (first..end).map(|record| self.write_of(record, true));
        let mut noted = Transaction::new(Level::Single, now());
        noted.writes = writes.collect();
        noted.durable = self.single(Vec::new()).durable;
        let lengths: Vec<usize> = (first..end).map(|_| length(&mut self.random)).collect();
        let records: Vec<(Vec<u8>, Vec<u8>)> = noted
            .writes
            .iter()
            .zip(lengths)
            .map(|(write, length)| (key(u64::from(write.key.0)), value(write.version, length)))
            .collect();
        let mut loaded = records.len() as u64;
        self.ask(&mut noted, |_| {
            loaded = tree.bulk_load(records)?;
            Ok(())
        })?;
        if loaded == end - first {
            Ok(())
        } else {
            wrong(format!("loaded {loaded} records of {}", end - first))
        }
    }

    /// Does something with a scratch tree: makes it, fills it, compares it, drops it.
    fn scratch(&mut self) -> Result<(), Stop> {
        let owner = self.random.one_of(&self.owners());
        let name = scratch_name(owner);
        let world = self.common.world;
        let (first, end) = (
            world.scratch(owner, 0),
            world.scratch(owner, world::SCRATCH),
        );
        let store = &self.common.store;
        let mut existence = Write {
            key: world::key(end),
            version: 1,
            present: true,
        };
        if self.expected(end) == 0 {
            if !matches!(store.tree(&name), Err(Error::NoSuchTree { .. })) {
                return wrong(format!("{name} was dropped, and is there"));
            }
            let mut noted = self.single(vec![existence]);
            return self.ask(&mut noted, |_| store.create_tree(&name).map(|_| ()));
        }
        let tree = store.tree(&name)?;
        let key = |record: u64| scratch_key(record - first);
        let there: Vec<u64> = (first..end).filter(|r| self.expected(*r) != 0).collect();
        let behind = there.last().map_or(first, |last| last + 1);
        match self.random.below(14) {
            10..12 => self.pop(&tree, first, &there),
            12..14 if !there.is_empty() => self.remove_some(&tree, first, &there),
            0..3 if behind < end => self.load(&tree, behind, end, key),
            3..6 => {
                let record = first + self.random.below(end - first);
                let present = self.random.chance(40);
                let write = self.write_of(record, present);
                let bytes = value(write.version, length(&mut self.random));
                let mut noted = self.single(vec![write]);
                self.ask(&mut noted, |_| {
                    if present {
                        return tree.insert(&key(record), &bytes);
                    }
                    tree.remove(&key(record)).map(|_| ())
                })
            }
            6 => {
                existence.present = false;
                let mut writes = vec![existence];
                writes.extend(there.iter().map(|r| Write {
                    key: world::key(*r),
                    version: 0,
                    present: false,
                }));
                let mut noted = self.single(writes);
                self.ask(&mut noted, |_| match store.drop_tree(&name) {
                    // The rest of it has no name any more.
                    Err(Error::VolumeFull { .. }) if store.tree(&name).is_err() => Ok(()),
                    other => other,
                })
            }
            _ => {
                let mut found = tree.range(..).collect::<Result<Vec<_>, _>>()?;
                let back: Vec<_> = tree.range(..).rev().collect::<Result<_, _>>()?;
                if !back.iter().rev().eq(&found) {
                    return wrong(format!("{name} differs from behind"));
                }
                if found.len() != there.len() {
                    let (found, there) = (found.len(), there.len());
                    return wrong(format!("{name} has {found} records, not {there}"));
                }
                for (record, (found, bytes)) in there.iter().zip(found.drain(..)) {
                    if found != key(*record) {
                        return wrong(format!("{name} has a key that was never written"));
                    }
                    self.same(*record, Some(&bytes))?;
                }
                Ok(())
            }
        }
    }

    /// Takes the first or the last record of a scratch tree, whose records are `there`.
    fn pop(&mut self, tree: &Tree, first: u64, there: &[u64]) -> Result<(), Stop> {
        let is_first = self.random.chance(50);
        let end = if is_first {
            there.first()
        } else {
            there.last()
        };
        let writes = end.map(|record| self.write_of(*record, false));
        let mut noted = self.single(writes.into_iter().collect());
        let mut popped = None;
        self.ask(&mut noted, |_| {
            popped = match is_first {
                true => tree.pop_first()?,
                false => tree.pop_last()?,
            };
            Ok(())
        })?;
        let expected = end.map(|record| scratch_key(record - first));
        if popped.as_ref().map(|record| &record.0) == expected.as_ref() {
            return Ok(());
        }
        let popped = popped.map(|record| String::from_utf8_lossy(&record.0).into_owned());
        wrong(format!("{popped:?} was popped instead of {end:?}"))
    }

    /// Removes some consecutive records of a scratch tree at once.
    fn remove_some(&mut self, tree: &Tree, first: u64, there: &[u64]) -> Result<(), Stop> {
        // So few that one commit takes them.
        let from = self.random.below(there.len() as u64) as usize;
        let count = self.random.skewed(60) as usize;
        let part = &there[from..(from + count).min(there.len())];
        let writes = part.iter().map(|record| self.write_of(*record, false));
        let writes = writes.collect();
        let mut noted = self.single(writes);
        let (lower, upper) = (part[0], part[part.len() - 1]);
        let (lower, upper) = (scratch_key(lower - first), scratch_key(upper - first));
        let mut removed = 0;
        self.ask(&mut noted, |_| {
            removed = tree.remove_range(&lower[..]..=&upper[..])?;
            Ok(())
        })?;
        if removed == part.len() as u64 {
            return Ok(());
        }
        wrong(format!("{removed} records of {} were removed", part.len()))
    }

    /// All shared numbers, as `get` finds them.
    pub(super) fn numbers(
        get: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, Error>,
    ) -> Result<Vec<u64>, Stop> {
        let mut numbers = Vec::new();
        for at in 0..world::SHARED {
            let bytes = get(&shared_key(at))?;
            match bytes.as_deref().and_then(version_of) {
                Some(number) => numbers.push(number),
                None => return wrong(format!("shared/{at} is no number: {bytes:?}")),
            }
        }
        Ok(numbers)
    }
}
