//! The shared record of a run: its history, and its problems.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isobath::Error;

use super::data::{Universe, version_of};
use super::plan::{Faults, Scenario};
use super::records::Records;
use super::state::Created;
use crate::history::{History, Key, Level, Outcome, Read, Seen, Transaction, Version, Write};
use crate::processes::journal::{Journal, Note, now};

/// The meaning of an error for the operation that got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It had no effect.
    Refused,
    /// It may have had one.
    Open,
    /// The same, and nothing can be changed any more.
    Over,
}

/// State shared by every client of one run.
pub(crate) struct Recorder {
    pub(crate) universe: Arc<Universe>,
    faults: Faults,
    /// The store has a log.
    logs: bool,
    /// The tree whose records are counted.
    ends: Option<usize>,
    /// Several clients use the trees that come and go.
    shared_trees: bool,
    /// The clients are threads of a process that may be killed.
    is_real: bool,
    state: Mutex<RecorderState>,
    /// Clients are to end.
    stop: AtomicBool,
    next_version: AtomicU64,
    /// Clients are to rest before their next operation.
    pauses: AtomicBool,
    resting: AtomicUsize,
    /// Errors that were expected, by what they were.
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

struct RecorderState {
    history: History,
    /// Where a process that may be killed notes all of this.
    journal: Option<Journal>,
    violations: Vec<String>,
    created: Created,
    /// Removals that have not been answered.
    open: BTreeMap<u64, Removals>,
    /// By how many records at least and at most the counted tree has grown.
    balance: (i64, i64),
}

/// The removals of one operation: each of these records, by itself.
struct Removals {
    begin: u64,
    keys: Vec<(Key, Version)>,
}

impl Removals {
    fn transactions(&self) -> impl Iterator<Item = Transaction> + '_ {
        self.keys.iter().map(|&(key, version)| {
            let mut single = Transaction::new(Level::Single, self.begin);
            single.writes.push(Write::removal(key, version));
            single
        })
    }
}

impl RecorderState {
    fn tick(&mut self) -> u64 {
        match self.journal {
            Some(_) => self.history.tick_at(now()),
            None => self.history.tick(),
        }
    }

    fn note(&mut self, note: impl FnOnce(&RecorderState) -> Note) {
        if let Some(mut journal) = self.journal.take() {
            if let Err(error) = journal.note(&note(self)) {
                self.violations.push(format!("the journal: {error}"));
            }
            self.journal = Some(journal);
        }
    }

    /// Notes the present state of an operation.
    fn note_work(&mut self, at: usize) {
        self.note(|state| Note::Work(at as u64, vec![state.history.transactions[at].clone()]));
    }

    /// Adds an operation that has ended.
    fn push(&mut self, transaction: Transaction) {
        self.history.transactions.push(transaction);
        self.note_work(self.history.transactions.len() - 1);
    }
}

impl Recorder {
    pub(crate) fn new(
        records: &Records,
        scenario: &Scenario,
        initial: BTreeMap<Key, Version>,
        first_version: Version,
        journal: Option<Journal>,
    ) -> Arc<Recorder> {
        let history = History::starting_with(initial).shown_late(scenario.shows_late());
        Arc::new(Recorder {
            universe: Arc::clone(&records.universe),
            faults: scenario.faults.clone(),
            logs: scenario.log,
            ends: records.ends,
            is_real: journal.is_some(),
            shared_trees: scenario.more.visits > 0,
            state: Mutex::new(RecorderState {
                history,
                journal,
                violations: Vec::new(),
                created: BTreeMap::new(),
                open: BTreeMap::new(),
                balance: (0, 0),
            }),
            stop: AtomicBool::new(false),
            next_version: AtomicU64::new(first_version),
            pauses: AtomicBool::new(false),
            resting: AtomicUsize::new(0),
            counts: Mutex::new(BTreeMap::new()),
        })
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn version(&self) -> Version {
        self.next_version.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn versions_so_far(&self) -> Version {
        self.next_version.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Makes clients pause before their next operation, or go on.
    pub(crate) fn pause(&self, pauses: bool) {
        self.pauses.store(pauses, Ordering::Relaxed);
    }

    /// Clients that rest.
    pub(crate) fn resting(&self) -> usize {
        self.resting.load(Ordering::Relaxed)
    }

    /// Called by a client between two operations.
    pub(crate) fn rest(&self) {
        if !self.pauses.load(Ordering::Relaxed) {
            return;
        }
        self.resting.fetch_add(1, Ordering::Relaxed);
        while self.pauses.load(Ordering::Relaxed) && !self.is_stopped() {
            isobath::yield_now();
        }
        self.resting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes something in the journal of a process.
    pub(crate) fn note(&self, note: Note) {
        self.state().note(|_| note);
    }

    pub(crate) fn is_real(&self) -> bool {
        self.is_real
    }

    /// Reads a value that was found, and notes which.
    pub(crate) fn found(&self, at: usize, key: Key, value: Option<&[u8]>) {
        if let Some(seen) = self.seen(key, value) {
            self.read(at, key, seen);
        }
    }

    pub(crate) fn violate(&self, what: String) {
        self.stop();
        self.state().violations.push(what);
    }

    /// Operations that have begun.
    pub(crate) fn begun(&self) -> usize {
        self.state().history.transactions.len()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The history so far, with all that operations may have removed which have not been answered.
    pub(crate) fn history(&self) -> History {
        let state = self.state();
        let mut history = state.history.clone();
        let open = state.open.values().flat_map(Removals::transactions);
        history.transactions.extend(open);
        history
    }

    // ---- transactions ------------------------------------------------------------

    pub(crate) fn begin(&self, level: Level) -> usize {
        let mut state = self.state();
        let begin = state.tick();
        state
            .history
            .transactions
            .push(Transaction::new(level, begin));
        state.history.transactions.len() - 1
    }

    /// Asks for an operation outside transactions that writes.
    pub(crate) fn begin_writes(&self, writes: &[Write], durable: bool) -> usize {
        let at = self.begin(Level::Single);
        let mut state = self.state();
        let transaction = &mut state.history.transactions[at];
        transaction.writes = writes.to_vec();
        transaction.durable = durable;
        state.note_work(at);
        at
    }

    /// Asks for an operation outside transactions that writes what depends on what it reads.
    pub(crate) fn begin_change(&self, write: Write, durable: bool) -> usize {
        let at = self.begin(Level::Serializable);
        self.write(at, write);
        self.ask(at, durable);
        at
    }

    /// An operation has read this and changed nothing.
    pub(crate) fn only_read(&self, at: usize, key: Key, seen: Seen) {
        let mut state = self.state();
        let transaction = &mut state.history.transactions[at];
        transaction.level = Level::Single;
        transaction.writes.clear();
        transaction.reads.push(Read { key, seen });
    }

    /// Begins an operation that may remove any of `keys`; until it is answered it may have removed
    /// each.
    pub(crate) fn open_removals(&self, keys: impl Iterator<Item = Key>) -> u64 {
        let keys = keys.map(|key| (key, self.version())).collect();
        let number = self.version();
        let mut state = self.state();
        let begin = state.tick();
        let removals = Removals { begin, keys };
        state.note(|_| Note::Work(number, removals.transactions().collect()));
        state.open.insert(number, removals);
        number
    }

    /// When the operation began that is still open.
    pub(crate) fn removals_began(&self, number: u64) -> u64 {
        self.state().open.get(&number).map_or(0, |open| open.begin)
    }

    /// The operation is answered, and its removals are noted.
    pub(crate) fn close_removals(&self, number: u64) {
        let mut state = self.state();
        state.open.remove(&number);
        state.note(|_| Note::Work(number, Vec::new()));
    }

    /// It is answered: some of the records that it may have removed are gone, whichever these are.
    pub(crate) fn close_some_removed(&self, number: u64) {
        let mut state = self.state();
        let end = state.tick();
        let Some(removals) = state.open.remove(&number) else {
            return;
        };
        for mut single in removals.transactions() {
            single.end = end;
            state.push(single);
        }
        state.note(|_| Note::Work(number, Vec::new()));
    }

    /// One operation has found this record and removed it.
    pub(crate) fn removed(&self, begin: u64, read: Read, version: Version, durable: bool) {
        let mut state = self.state();
        let mut change = Transaction::new(Level::Serializable, begin);
        change.asked = begin;
        change.end = state.tick();
        change.outcome = Outcome::Committed;
        change.durable = durable;
        change.reads.push(read);
        change.writes.push(Write::removal(read.key, version));
        state.push(change);
    }

    // ---- the tree whose records are counted --------------------------------------

    /// The tree has so many records more, at least and at most.
    pub(crate) fn grown(&self, least: i64, most: i64) {
        let balance = &mut self.state().balance;
        *balance = (balance.0 + least, balance.1 + most);
    }

    /// The same for a change of `key`, if that is one of the tree's.
    pub(crate) fn grown_by(&self, key: Key, least: i64, most: i64) {
        if Some(self.universe.record(key).0) == self.ends {
            self.grown(least, most);
        }
    }

    /// A transaction has committed, or it may have: it has read what it has changed of the tree.
    pub(crate) fn grown_by_transaction(&self, at: usize, is_certain: bool) {
        let mut state = self.state();
        let transaction = &state.history.transactions[at];
        let is_counted = |key: Key| Some(self.universe.record(key).0) == self.ends;
        let was_there = |key: Key| {
            let mut reads = transaction.reads.iter();
            reads.any(|read| read.key == key && read.seen != Seen::Absent)
        };
        let writes = transaction.writes.iter().filter(|w| is_counted(w.key));
        let sum: i64 = writes
            .map(|w| i64::from(w.present) - i64::from(was_there(w.key)))
            .sum();
        let (least, most) = match is_certain {
            true => (sum, sum),
            false => (sum.min(0), sum.max(0)),
        };
        state.balance = (state.balance.0 + least, state.balance.1 + most);
    }

    /// By how many records the tree has grown, at least and at most.
    pub(crate) fn balance(&self) -> (i64, i64) {
        self.state().balance
    }

    /// The removal of a record found none: it was a read.
    pub(crate) fn found_nothing(&self, at: usize, key: Key) {
        let mut state = self.state();
        let transaction = &mut state.history.transactions[at];
        transaction.writes.clear();
        transaction.reads.push(Read {
            key,
            seen: Seen::Absent,
        });
    }

    pub(crate) fn read(&self, at: usize, key: Key, seen: Seen) {
        let reads = &mut self.state().history.transactions[at].reads;
        reads.push(Read { key, seen });
    }

    /// A write inside a transaction; one that it made before is replaced.
    pub(crate) fn write(&self, at: usize, write: Write) {
        let mut state = self.state();
        let transaction = &mut state.history.transactions[at];
        if let Some(old) = transaction.writes.iter_mut().find(|w| w.key == write.key) {
            let replaced = (old.key, old.version);
            *old = write;
            transaction.replaced.push(replaced);
        } else {
            transaction.writes.push(write);
        }
    }

    /// Puts the writes of a transaction back to what they were (a savepoint).
    pub(crate) fn restore_writes(&self, at: usize, writes: &[Write]) {
        let mut state = self.state();
        let transaction = &mut state.history.transactions[at];
        let now = std::mem::replace(&mut transaction.writes, writes.to_vec());
        // Their replacements are undone.
        transaction
            .replaced
            .retain(|(_, version)| !writes.iter().any(|w| w.version == *version));
        for write in now {
            if !writes.iter().any(|w| w.version == write.version) {
                transaction.replaced.push((write.key, write.version));
            }
        }
    }

    pub(crate) fn writes_of(&self, at: usize) -> Vec<Write> {
        self.state().history.transactions[at].writes.clone()
    }

    pub(crate) fn ask(&self, at: usize, durable: bool) {
        let mut state = self.state();
        let now = state.tick();
        let transaction = &mut state.history.transactions[at];
        transaction.asked = now;
        transaction.durable = durable;
        state.note_work(at);
    }

    pub(crate) fn end(&self, at: usize, outcome: Outcome) {
        let mut state = self.state();
        let now = state.tick();
        let transaction = &mut state.history.transactions[at];
        transaction.outcome = outcome;
        if outcome != Outcome::Unknown {
            transaction.asked = transaction.asked.min(now);
            transaction.end = now;
        }
        state.note_work(at);
    }

    pub(crate) fn end_with(&self, at: usize, meaning: Meaning) {
        let outcome = match meaning {
            Meaning::Refused => Outcome::Aborted,
            Meaning::Open | Meaning::Over => Outcome::Unknown,
        };
        self.end(at, outcome);
    }

    /// Reads of a scan outside transactions: each one an operation of its own.
    pub(crate) fn scanned(&self, begin: u64, reads: &[Read]) {
        let mut state = self.state();
        let end = state.tick();
        for &read in reads {
            let mut single = Transaction::new(Level::Single, begin);
            single.end = end;
            single.outcome = Outcome::Committed;
            single.reads.push(read);
            state.push(single);
        }
    }

    pub(crate) fn tick(&self) -> u64 {
        self.state().tick()
    }

    /// The tree is being made: if it is there from now on, this write made it.
    pub(crate) fn creating(&self, existence: Key, version: Version) {
        let mut state = self.state();
        let made = state.created.entry(existence).or_default();
        made.push((version, None));
        state.note(|_| Note::Made(existence, version, None));
    }

    /// The tree that was being made is there, as the store's tree `id`.
    pub(crate) fn created_as(&self, existence: Key, id: Option<u32>) {
        let mut state = self.state();
        if let Some(last) = state.created.entry(existence).or_default().last_mut() {
            last.1 = id;
            let version = last.0;
            state.note(|_| Note::Made(existence, version, id));
        }
    }

    pub(crate) fn created(&self) -> Created {
        self.state().created.clone()
    }

    pub(crate) fn known_created(&self, created: Created) {
        self.state().created = created;
    }

    // ---- answers -----------------------------------------------------------------

    /// Decodes a value read under `key`; a value that is not whole is a violation.
    pub(crate) fn seen(&self, key: Key, value: Option<&[u8]>) -> Option<Seen> {
        let Some(bytes) = value else {
            return Some(Seen::Absent);
        };
        let version = version_of(bytes);
        if version.is_none() {
            let record = self.universe.describe(key);
            self.violate(format!(
                "{record} has {} bytes that was never written",
                bytes.len()
            ));
        }
        version.map(Seen::Version)
    }

    /// The meaning of an error under the faults of this run; an error that no fault explains is a
    /// violation.
    pub(crate) fn meaning(&self, error: &Error, doing: &str) -> Meaning {
        let (name, meaning) = self.classify(error);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(name).or_default() += 1;
        drop(counts);
        meaning.unwrap_or_else(|| {
            if !self.is_stopped() {
                self.violate(format!("{doing} failed without a reason: {error}"));
            }
            Meaning::Open
        })
    }

    fn classify(&self, error: &Error) -> (&'static str, Option<Meaning>) {
        let failing = self.faults.io.is_some() || self.faults.power || self.is_stopped();
        match error {
            Error::VolumeFull { .. } => ("full", self.faults.full.then_some(Meaning::Refused)),
            Error::Conflict { .. } => ("conflict", Some(Meaning::Refused)),
            Error::TreeDropped { .. } => ("dropped", self.shared_trees.then_some(Meaning::Refused)),
            // Of what others have put, or of what was there when it could not be read, the client
            // knows nothing.
            Error::LoadOrder { .. } => (
                "not above",
                (self.shared_trees || self.faults.corruption.is_some()).then_some(Meaning::Refused),
            ),
            Error::NeedsLog { .. } => ("needs a log", (!self.logs).then_some(Meaning::Refused)),
            Error::SnapshotTooOld => ("snapshot too old", Some(Meaning::Refused)),
            Error::Poisoned { .. } | Error::Closed => (
                "poisoned",
                (failing || self.faults.corruption.is_some()).then_some(Meaning::Over),
            ),
            Error::Io(_) | Error::PageRead { .. } | Error::Volume(_) => {
                ("io", failing.then_some(Meaning::Open))
            }
            Error::CorruptPage { .. } | Error::Structure { .. } => {
                ("corrupt", self.faults.corruption.map(|_| Meaning::Open))
            }
            _ => ("other", None),
        }
    }
}
