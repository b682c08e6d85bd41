//! What makes changes transactions: who commits now, which snapshots are open,
//! what keys had before, who may change what, and the commit itself.
//!
//! The parts, in the order in which a commit meets them:
//!
//! - [`locks`]: a commit locks its keys, in one order for everybody, and keeps
//!   them until its changes are in the pages.
//! - [`tracker`]: a commit in flight occupies a slot from before its record is
//!   appended until it is fully applied. Below the *watermark* all commits are
//!   applied; a snapshot begins there and sees exactly those.
//! - [`versions`]: what keys had before commits that an open snapshot must not
//!   see. Added before the leaf changes; readers read the leaf first, then ask.
//! - [`snapshots`]: which snapshots are open, so which versions are needed.
//! - [`serializable`]: what a serializable transaction has read.
//! - [`gate`]: of a tree, whether commits may change it now.
//! - [`commit`]: the protocol.
//!
//! Operations outside transactions read the pages as they are. What a commit has
//! changed there only in part they wait for ([`Transactions::read_one`]).
//!
//! While no snapshot is open a commit adds no versions: it is *blind*. A
//! snapshot that begins waits for the blind commits in flight; the others know
//! of it.

pub(crate) mod commit;
pub(crate) mod gate;
pub(crate) mod locks;
pub(crate) mod prepaid;
pub(crate) mod serializable;
pub(crate) mod snapshots;
pub(crate) mod tracker;
pub(crate) mod versions;

use crate::btree::{Descriptor, TreeId};
use crate::engine::{Config, Engine, Local};
use crate::extent::{self, Extent};
use crate::log::Log;
use crate::log::record::Token;
use crate::page::Lsn;
use crate::sync::HashSet;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use gate::Gate;
use locks::Locks;
use snapshots::{Registered, Snapshots};
use tracker::Tracker;
use versions::Versions;

/// Versions that a commit collects beside its own work, at least.
const COLLECT_LEAST: usize = 8;
/// Versions that are collected between two looks at other tasks.
const COLLECT_STEP: usize = 256;

/// The state that all transactions of a store share.
pub(crate) struct Transactions {
    pub(crate) tracker: Tracker,
    pub(crate) snapshots: Snapshots,
    pub(crate) versions: Versions,
    pub(crate) locks: Locks,
    /// Large values that nobody can read any more, to be freed by some task.
    graveyard: Mutex<Vec<Dead>>,
    /// Large values of which no try to free them has succeeded.
    unreadable: Mutex<Vec<Dead>>,
    has_dead: AtomicBool,
    applying: Applying,
    /// Numbers of the keys of commits that failed half-way: what the pages have of
    /// them is for the next recovery to complete.
    torn: Mutex<HashSet<u64>>,
    pub(crate) counters: TransactionCounters,
}

/// How many commits are on their way into the pages of which a single read could
/// see a part: those of several keys, and serializable ones.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Applying(AtomicU64);

/// A commit that is being applied, until this is dropped.
pub(crate) struct BeingApplied<'t>(&'t AtomicU64);

impl Drop for BeingApplied<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A large value to be freed.
pub(crate) struct Dead {
    pub(crate) extent: Extent,
    /// What its chunks belong to.
    pub(crate) token: Token,
    /// How often freeing it was tried.
    pub(crate) tries: u8,
}

impl Dead {
    /// A value that no commit has named.
    pub(crate) fn unborn(extent: Extent) -> Dead {
        Dead {
            extent,
            token: extent.token(),
            tries: 0,
        }
    }
}

/// Times that tasks try again to free a large value whose list of chunks cannot be read, before that is left to
/// [`Transactions::settle`].
const FREEING_TRIES: u8 = 3;

/// Counters since the store was opened.
#[derive(Default)]
pub(crate) struct TransactionCounters {
    pub(crate) commits: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) expelled: AtomicU64,
}

/// The number by which locks and versions know a key. Two keys may have the
/// same one, which costs a needless wait and nothing else.
pub(crate) fn key_number(tree: TreeId, key: &[u8]) -> u64 {
    u64::from(tree.0) << 32 | u64::from(crc32c::crc32c_append(tree.0, key))
}

impl Transactions {
    pub(crate) fn new(config: &Config) -> Transactions {
        Transactions {
            tracker: Tracker::new(config.workers, config.tasks),
            snapshots: Snapshots::new(),
            versions: Versions::new(config.version_bytes),
            locks: Locks::new(),
            graveyard: Mutex::new(Vec::new()),
            unreadable: Mutex::new(Vec::new()),
            has_dead: AtomicBool::new(false),
            applying: Applying::default(),
            torn: Mutex::new(HashSet::default()),
            counters: TransactionCounters::default(),
        }
    }

    /// Opens a snapshot; `wait` is called while blind commits end, and says when to
    /// give up.
    pub(crate) fn begin<E>(
        &self,
        log: &Log,
        wait: impl FnMut() -> Result<(), E>,
    ) -> Result<std::sync::Arc<Registered>, E> {
        self.snapshots.begin(log, &self.tracker, wait)
    }

    /// Everything below this is committed and applied.
    pub(crate) fn watermark(&self, log: &Log) -> Lsn {
        Lsn(self.tracker.watermark(log))
    }

    /// Where replaying commits would have to start, were the pages as they are now.
    pub(crate) fn oldest_unapplied(&self, log: &Log) -> Lsn {
        self.watermark(log)
    }

    /// Says that such a commit, its keys locked, is about to be applied.
    pub(crate) fn begin_applying(&self) -> BeingApplied<'_> {
        self.applying.0.fetch_add(1, Ordering::SeqCst);
        BeingApplied(&self.applying.0)
    }

    /// Whether what was just read of some keys can be of a commit that is only
    /// half applied.
    #[inline]
    pub(crate) fn is_applying(&self) -> bool {
        self.applying.0.load(Ordering::SeqCst) > 0
    }

    /// Whether what was just read of `key` can be of a commit that is only half
    /// applied.
    #[inline]
    pub(crate) fn is_half_applied(&self, tree: TreeId, key: &[u8]) -> bool {
        let number = || key_number(tree, key);
        self.is_applying() && (self.locks.is_locked(number()) || self.is_torn(number()))
    }

    fn is_torn(&self, number: u64) -> bool {
        self.torn.lock().contains(&number)
    }

    /// A commit of several keys has failed half-way, and will stay so.
    pub(crate) fn tear(&self, numbers: impl Iterator<Item = u64>) {
        std::mem::forget(self.begin_applying());
        self.torn.lock().extend(numbers);
    }

    /// Refuses what was read of `key` if a commit that changes it has failed
    /// half-way.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Poisoned`].
    #[inline]
    pub(crate) fn check_whole(
        &self,
        engine: &Engine,
        tree: TreeId,
        key: &[u8],
    ) -> Result<(), crate::Error> {
        if self.is_applying() && self.is_torn(key_number(tree, key)) {
            return engine.writable();
        }
        Ok(())
    }

    /// Reads `key` by `read` for an operation outside transactions. Where a commit is
    /// changing the key, waits for that and reads again with nobody changing it, so
    /// that whatever is read later sees the whole of that commit, too.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::check_whole`], and those of `read`.
    #[inline]
    pub(crate) fn read_one<T>(
        &self,
        local: &Local,
        tree: TreeId,
        key: &[u8],
        mut read: impl FnMut() -> Result<T, crate::Error>,
    ) -> Result<T, crate::Error> {
        let found = read()?;
        if !self.is_half_applied(tree, key) {
            return Ok(found);
        }
        let _locked = self.locks.one(local, key_number(tree, key));
        self.check_whole(&local.engine, tree, key)?;
        read()
    }

    /// For an operation outside transactions that has read many keys: waits for
    /// the rest of the commits whose changes it may have seen.
    pub(crate) fn await_rest(&self, local: &Local) {
        if self.is_applying() {
            // A store that is poisoned meanwhile stays as it is, half applied.
            let _ = self.tracker.drain(false, || {
                local.engine.writable()?;
                local.worker.yield_now();
                Ok::<(), crate::Error>(())
            });
        }
    }

    /// Drops versions that no snapshot needs, at most `most` of them; whether
    /// some are left that could go.
    pub(crate) fn collect(&self, log: &Log, most: usize) -> bool {
        if self.versions.is_empty() {
            return false;
        }
        let horizon = self.snapshots.horizon(log, &self.tracker);
        let mut dead = Vec::new();
        let left = self.versions.collect(horizon, most, &mut dead);
        self.bury(dead.iter().filter_map(as_dead));
        left
    }

    /// Makes room in the version store: collects, and where that is not enough
    /// fails the oldest snapshots.
    pub(crate) fn make_room(&self, engine: &Engine) {
        // Bound: each round fails a snapshot or is the last.
        while self.versions.is_full(engine.old_values_limit()) {
            while self.collect(&engine.log, COLLECT_STEP) {}
            if !self.versions.is_full(engine.old_values_limit()) || !self.expel_oldest() {
                return;
            }
        }
    }

    fn expel_oldest(&self) -> bool {
        let expelled = self.snapshots.expel_oldest();
        self.counters
            .expelled
            .fetch_add(u64::from(expelled), Ordering::Relaxed);
        expelled
    }

    /// The volume is full: frees large values that only the oldest snapshot reads, which fails. `false` where there are
    /// none of these.
    pub(crate) fn free_old_values(&self, local: &Local) -> bool {
        let log = &local.engine.log;
        while self.collect(log, COLLECT_STEP) {}
        let lacks = !self.has_dead() && self.versions.volume_bytes() > 0;
        let expelled = lacks && self.expel_oldest();
        while expelled && self.collect(log, COLLECT_STEP) {}
        let found = self.has_dead();
        self.free_dead(local);
        found || expelled
    }

    /// Has every snapshot but `own` fail: what they would need is more than the
    /// version store holds.
    pub(crate) fn expel_others(&self, own: Option<&Registered>) {
        let expelled = self.snapshots.expel_others(own);
        self.counters
            .expelled
            .fetch_add(expelled, Ordering::Relaxed);
    }

    /// Leaves large values that nobody reads any more to the next task.
    pub(crate) fn bury(&self, dead: impl IntoIterator<Item = Dead>) {
        let mut dead = dead.into_iter().peekable();
        if dead.peek().is_some() {
            self.graveyard.lock().extend(dead);
            self.has_dead.store(true, Ordering::Release);
        }
    }

    /// Whether there are large values to free.
    pub(crate) fn has_dead(&self) -> bool {
        self.has_dead.load(Ordering::Acquire)
    }

    /// Frees the large values that were left to a task.
    pub(crate) fn free_dead(&self, local: &Local) {
        if !self.has_dead() {
            return;
        }
        let dead = {
            let mut graveyard = self.graveyard.lock();
            self.has_dead.store(false, Ordering::Release);
            std::mem::take(&mut *graveyard)
        };
        for dead in dead {
            self.free(local, dead);
        }
    }

    /// Frees a large value that no commit has named.
    pub(crate) fn free_unborn(&self, local: &Local, extent: Extent) {
        self.free(local, Dead::unborn(extent));
    }

    /// As [`Self::free_unborn`], by the value's descriptor.
    pub(crate) fn free_large(&self, local: &Local, descriptor: &Descriptor) {
        // One that makes no sense was reported when it was read.
        if let Some(extent) = Extent::decode(descriptor.bytes()) {
            self.free_unborn(local, extent);
        }
    }

    /// Frees a large value that nothing names any more.
    fn free(&self, local: &Local, dead: Dead) {
        // What took it out of its tree has happened, whatever becomes of this. Where
        // its list of chunks cannot be read now, later tasks try again; a value
        // that stays unreadable keeps its room, and `check` finds it.
        if extent::free_promised(local, dead.extent, dead.token).is_ok() {
            return;
        }
        let tries = dead.tries + 1;
        if tries <= FREEING_TRIES {
            self.bury([Dead { tries, ..dead }]);
        } else {
            self.unreadable.lock().push(Dead { tries: 0, ..dead });
        }
    }

    /// Drops every version that no snapshot needs, and frees what that frees, with what could not be freed before.
    pub(crate) fn settle(&self, local: &Local) {
        while self.collect(&local.engine.log, COLLECT_STEP) {
            local.worker.yield_now();
        }
        let again = std::mem::take(&mut *self.unreadable.lock());
        self.bury(again);
        // Bound: each round is a try of what is left.
        while self.has_dead() {
            self.free_dead(local);
        }
    }
}

fn as_dead(&(descriptor, token): &(Descriptor, Token)) -> Option<Dead> {
    // One that makes no sense was reported when its commit read it.
    let extent = Extent::decode(descriptor.bytes())?;
    Some(Dead {
        extent,
        token,
        tries: 0,
    })
}
