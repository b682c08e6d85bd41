//! What makes changes transactions: which commits are in flight, which snapshots are open, what
//! keys had before, which commits may change what, and the commit itself.
//!
//! The parts, in the order in which a commit meets them:
//!
//! - [`locks`]: a commit locks its keys, in one order for all, and keeps
//!   them until its changes are in the pages.
//! - The [`Tracker`]: a commit in flight occupies a slot from before its record is
//!   appended until it is fully applied. Below the *watermark* all commits are
//!   applied; a snapshot begins there and sees exactly those.
//! - [`versions`]: what keys had before commits that an open snapshot must not
//!   see. Added before the leaf changes; readers read the leaf first, then ask. Their
//!   order is [`stamped_map`]'s.
//! - [`snapshots`]: which snapshots are open, so which versions are needed.
//! - [`serializable`]: what a serializable transaction has read, as [`key_ranges`].
//! - [`tree_status`]: of a tree, whether commits may change it now.
//! - [`commit`]: the protocol.
//!
//! - [`unseen`]: changes that are in the leaves and that are not visible yet.
//! - [`visible`]: what a reader sees of a record that it has read.
//!
//! If commits are seen once they are durable ([`Transactions::is_late`]), every commit
//! adds versions, and operations outside transactions read what is below the
//! watermark, as snapshots do. Elsewhere they read the pages as they are; what a commit has
//! changed there only in part they wait for ([`visible::Seen::InParts`]); and
//! while no snapshot is open a commit adds no versions: it is *blind*. A
//! snapshot that begins waits for the blind commits in flight; the others know
//! of it.

mod admission;
mod change;
pub(crate) mod commit;
mod copies;
mod key_ranges;
pub(crate) mod large;
pub(crate) mod locks;
pub(crate) mod reserved_task;
pub(crate) mod serializable;
pub(crate) mod snapshots;
mod stamped_map;
mod tree_ids;
pub(crate) mod tree_status;
pub(crate) mod unseen;
pub(crate) mod versions;
pub(crate) mod visible;

use std::sync::Arc;

use crate::btree::{Descriptor, TreeId};
use crate::canary::{self, Canary};
use crate::context::{TaskParts, TaskWorker};
use crate::extent::{self, Extent};
use crate::log::record::Token;
use crate::log::{Log, Tracker};
use crate::page::Lsn;
use crate::shared::{Config, Counters, Durability};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use copies::Copies;
use locks::Locks;
use snapshots::{KeptOut, Registered, Snapshots};
pub(crate) use tree_ids::catalog_change;
pub(crate) use tree_status::TreeStatus;
use unseen::{Unseen, UnseenRecords, UnseenTrees};
use versions::{KeyRef, Versions};

/// Bytes of large values on the volume that snapshots may keep in however small a store.
const MIN_OLD_VALUES: u64 = 64 << 20;

/// Versions that a commit collects beside its own work, at least.
const MIN_COLLECT: usize = 8;
/// Versions that are collected between two looks at other tasks.
const COLLECT_STEP: usize = 256;

/// The state that all transactions of a store share.
pub(crate) struct Transactions {
    pub(crate) tracker: Arc<Tracker>,
    pub(crate) snapshots: Snapshots,
    pub(crate) versions: Versions,
    pub(crate) locks: Locks,
    /// Large values that no reader can reach any more, to be freed by some task.
    unfreed_values: Mutex<Vec<Dead>>,
    /// Large values of which no try to free them has succeeded.
    unreadable: Mutex<Vec<Dead>>,
    has_dead: AtomicBool,
    pub(crate) unseen: Unseen,
    /// A large commit is between its slot and its visibility.
    has_turn: AtomicBool,
    /// Others see a commit once it is durable; otherwise they see it once it is applied.
    pub(crate) is_late: bool,
    pub(crate) copies: Copies,
    pub(crate) counters: TransactionCounters,
}

/// Until this is dropped no other large commit has a slot. Of two that have one each could wait for
/// the other, whose bound is below its own record.
pub(crate) struct LargeTurn<'t>(&'t AtomicBool);

impl Drop for LargeTurn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A large value to be freed.
pub(crate) struct Dead {
    pub(crate) extent: Extent,
    /// The token of its chunks.
    pub(crate) token: Token,
    /// How often freeing it was tried.
    pub(crate) tries: u8,
}

impl Dead {
    /// A value that no commit has named.
    pub(crate) fn uncommitted(extent: Extent) -> Dead {
        Dead {
            extent,
            token: extent.token(),
            tries: 0,
        }
    }
}

/// Times that tasks try again to free a large value whose list of chunks cannot be read, before
/// that is left to [`Transactions::gc`].
const FREEING_TRIES: u8 = 3;

/// Counters since the store was opened.
#[derive(Default)]
pub(crate) struct TransactionCounters {
    pub(crate) commits: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) large_commits: AtomicU64,
    pub(crate) spilled_bytes: AtomicU64,
    pub(crate) snapshots_aborted: AtomicU64,
}

/// The number by which locks and versions know a key. Two keys may have the
/// same one, which costs a needless wait and nothing else.
pub(crate) fn key_hash(tree: TreeId, key: &[u8]) -> u64 {
    u64::from(tree.0) << 32 | u64::from(crc32c::crc32c_append(tree.0, key))
}

impl Transactions {
    pub(crate) fn new(config: &Config, log: &Log, tracker: &Arc<Tracker>) -> Transactions {
        Transactions {
            tracker: Arc::clone(tracker),
            snapshots: Snapshots::new(),
            versions: Versions::new(config.version_bytes),
            locks: Locks::new(),
            unfreed_values: Mutex::new(Vec::new()),
            unreadable: Mutex::new(Vec::new()),
            has_dead: AtomicBool::new(false),
            unseen: Unseen::new(),
            has_turn: AtomicBool::new(false),
            is_late: config.durability == Durability::Synced && log.is_on(),
            copies: Copies::default(),
            counters: TransactionCounters::default(),
        }
    }

    /// Everything below this is committed and applied.
    pub(crate) fn watermark(&self, log: &Log) -> Lsn {
        Lsn(self.tracker.watermark(log))
    }

    /// For a bulk load that is about to link its records, the keys from `from` on: no reader sees
    /// them until what this returns is dropped. `None` if a load is seen before it is durable.
    pub(crate) fn begin_load(&self, tree: TreeId, from: &[u8]) -> Option<UnseenTrees<'_>> {
        let records = || UnseenRecords::From(from.into());
        let hide = || self.unseen.hide(vec![(tree, records())]);
        (self.is_late && !canary::is_on(Canary::ShowEarly)).then(hide)
    }

    /// For a large commit that is about to give `trees`, which it has closed, their runs: readers
    /// wait for what they have read there until this is dropped. `None` if single reads may be ahead
    /// of snapshots.
    pub(crate) fn begin_swap(
        &self,
        trees: impl Iterator<Item = TreeId>,
    ) -> Option<UnseenTrees<'_>> {
        let all = trees.map(|tree| (tree, UnseenRecords::All));
        let hide = || self.unseen.hide(all.collect());
        (self.is_late && !canary::is_on(Canary::ShowRunsEarly)).then(hide)
    }

    /// Waits until no other large commit has a slot. The caller has none, and no log space.
    ///
    /// # Errors
    ///
    /// [`crate::error::StorageError::Poisoned`].
    pub(crate) fn await_turn(
        &self,
        local: &TaskWorker,
    ) -> Result<LargeTurn<'_>, crate::error::StorageError> {
        while self.has_turn.swap(true, Ordering::SeqCst) {
            local.parts.shared.writable()?;
            local.worker.yield_now();
        }
        Ok(LargeTurn(&self.has_turn))
    }

    /// Waits until all that is in the log now is durable, and seen.
    pub(crate) fn await_durable(
        &self,
        local: &TaskWorker,
    ) -> Result<(), crate::error::StorageError> {
        let log = &local.parts.log;
        let end = log.next();
        local
            .parts
            .log_tasks
            .wait_durable(&local.worker, Lsn(end.0 - 8))?;
        while self.watermark(log) < end {
            local.parts.shared.writable()?;
            local.worker.yield_now();
        }
        Ok(())
    }

    /// The commit at `lsn`, which has changed `keys`, is to be seen: drops its versions unless a
    /// snapshot needs them.
    pub(crate) fn release<'k>(&self, keys: impl Iterator<Item = KeyRef<'k>>, lsn: Lsn) {
        let horizon = self.snapshots.horizon(&self.tracker);
        for of in keys {
            if let Some(dead) = self.versions.release(of, lsn.0, horizon) {
                self.defer_free(as_dead(&dead));
            }
        }
    }

    /// As [`Transactions::collect`], also of those that their commits have not released yet.
    pub(crate) fn collect_recent(&self) {
        let horizon = self.snapshots.horizon(&self.tracker);
        let mut dead = Vec::new();
        self.versions.collect_recent(horizon, &mut dead);
        self.defer_free(dead.iter().filter_map(as_dead));
    }

    /// Drops all versions that no snapshot needs, for there is no space for them.
    fn collect_all(&self) {
        let horizon = self.snapshots.exact_horizon(&self.tracker);
        let mut dead = Vec::new();
        self.versions.collect_recent(horizon, &mut dead);
        while self.versions.gc(horizon, COLLECT_STEP, &mut dead) {}
        self.defer_free(dead.iter().filter_map(as_dead));
    }

    /// Drops versions that no snapshot needs and their commits have released, at most `most` of
    /// them; whether some are left that could go. What is below the watermark but not below the
    /// reported one stays.
    pub(crate) fn gc_versions(&self, most: usize) -> bool {
        if !self.versions.has_queued() {
            return false;
        }
        let horizon = self.snapshots.horizon(&self.tracker);
        let mut dead = Vec::new();
        let left = self.versions.gc(horizon, most, &mut dead);
        self.defer_free(dead.iter().filter_map(as_dead));
        left
    }

    /// Bytes of large values on the volume that only snapshots may read, beyond which the oldest
    /// snapshots fail: as many as everything else takes.
    pub(crate) fn old_values_limit(&self, allocated: u64) -> u64 {
        let others = allocated.saturating_sub(self.versions.volume_bytes());
        others.max(MIN_OLD_VALUES)
    }

    /// Frees space in the version store: collects versions, and where that is not enough fails the
    /// oldest snapshots.
    pub(crate) fn make_room(&self, parts: &TaskParts) {
        // Bound: each round fails a snapshot or is the last.
        while self.lacks_room(parts) {
            self.watermark(&parts.log);
            self.collect_all();
            if !self.lacks_room(parts) || !self.abort_oldest() {
                return;
            }
        }
    }

    /// Whether the version store is full.
    fn lacks_room(&self, parts: &TaskParts) -> bool {
        let allocated = parts.pagestore.allocated_bytes();
        self.versions.is_full(self.old_values_limit(allocated))
    }

    fn abort_oldest(&self) -> bool {
        let aborted = self.snapshots.abort_oldest();
        self.counters
            .snapshots_aborted
            .fetch_add(u64::from(aborted), Ordering::Relaxed);
        aborted
    }

    /// The volume is full: frees large values that only the oldest snapshot reads, which fails.
    /// `false` if there are none of these.
    pub(crate) fn free_old_values(&self, local: &TaskWorker) -> bool {
        let log = &local.parts.log;
        self.watermark(log);
        self.collect_all();
        let lacks = !self.has_dead() && self.versions.volume_bytes() > 0;
        let aborted = lacks && self.abort_oldest();
        if aborted {
            self.collect_all();
        }
        let found = self.has_dead();
        self.free_dead(local);
        found || aborted
    }

    /// Aborts every snapshot but `own`, for what they would need is more than the version store
    /// holds, and keeps new ones out until what this returns is dropped. Waits for those that are
    /// being opened, which none of them does for long.
    ///
    /// # Errors
    ///
    /// [`crate::error::StorageError::Poisoned`].
    pub(crate) fn keep_snapshots_out(
        &self,
        local: &TaskWorker,
        own: Option<&Registered>,
    ) -> Result<KeptOut<'_>, crate::error::StorageError> {
        let wait = || {
            local.parts.shared.writable()?;
            local.worker.yield_now();
            Ok::<(), crate::error::StorageError>(())
        };
        let kept_out = self.snapshots.close(wait)?;
        loop {
            let aborted = self.snapshots.abort_others(own);
            Counters::add(&self.counters.snapshots_aborted, aborted);
            if !self.snapshots.others(own) {
                return Ok(kept_out);
            }
            wait()?;
        }
    }

    /// Leaves large values that are not read any more to the next task.
    pub(crate) fn defer_free(&self, dead: impl IntoIterator<Item = Dead>) {
        let mut dead = dead.into_iter().peekable();
        if dead.peek().is_some() {
            self.unfreed_values.lock().extend(dead);
            self.has_dead.store(true, Ordering::Release);
        }
    }

    /// Whether there are large values to free.
    pub(crate) fn has_dead(&self) -> bool {
        self.has_dead.load(Ordering::Acquire)
    }

    /// Frees the large values that were left to a task.
    pub(crate) fn free_dead(&self, local: &TaskWorker) {
        if !self.has_dead() {
            return;
        }
        let dead = {
            let mut unfreed_values = self.unfreed_values.lock();
            self.has_dead.store(false, Ordering::Release);
            std::mem::take(&mut *unfreed_values)
        };
        for dead in dead {
            self.free(local, dead);
        }
    }

    /// Frees a large value that no commit has named.
    pub(crate) fn free_uncommitted(&self, local: &TaskWorker, extent: Extent) {
        self.free(local, Dead::uncommitted(extent));
    }

    /// As [`Self::free_uncommitted`], by the value's descriptor.
    pub(crate) fn free_large(&self, local: &TaskWorker, descriptor: &Descriptor) {
        // One that makes no sense was reported when it was read.
        if let Some(extent) = Extent::decode(descriptor.bytes()) {
            self.free_uncommitted(local, extent);
        }
    }

    /// Frees a large value that nothing names any more.
    fn free(&self, local: &TaskWorker, dead: Dead) {
        // What took it out of its tree has happened, whatever becomes of this. Where
        // its list of chunks cannot be read now, later tasks try again; a value
        // that stays unreadable keeps its space, and `check` finds it.
        if extent::free_with_token(local, dead.extent, dead.token).is_ok() {
            return;
        }
        let tries = dead.tries + 1;
        if tries <= FREEING_TRIES {
            self.defer_free([Dead { tries, ..dead }]);
        } else {
            self.unreadable.lock().push(Dead { tries: 0, ..dead });
        }
    }

    /// Drops every version that no snapshot needs, and frees what that frees, with what could not
    /// be freed before.
    pub(crate) fn gc(&self, local: &TaskWorker) {
        self.watermark(&local.parts.log);
        self.collect_recent();
        while self.gc_versions(COLLECT_STEP) {
            local.worker.yield_now();
        }
        let again = std::mem::take(&mut *self.unreadable.lock());
        self.defer_free(again);
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
