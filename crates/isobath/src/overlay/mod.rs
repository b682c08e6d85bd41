//! Overlays: the newest records of large trees, above the leaves.
//!
//! A tree has no overlays, or a *base* that only merges change. Then every change goes to the
//! *memory* of its overlays, an ordered map. A full memory is *sealed*: written as a *run*, a tree
//! that never changes, whose records are puts and tombstones. Merges move the records of runs into
//! the base, range by range, round and round.
//!
//! - A tree's [`Levels`] are its memory, the memory that is being sealed, its runs from new to old,
//!   and the base. A change of these makes new `Levels`.
//! - A reader takes the `Levels` once, before it reads anything else, and asks its parts from new
//!   to old. What moves down stays in the part where it was while someone has these `Levels`. So no
//!   reader validates, and the base may be newer than the rest.
//! - `Levels` say how far merges have come. What a run has [merged](Run::has_merged) the base has, so
//!   no reader looks for it in the run. *Trims* free these pages, of the oldest run first, once no
//!   reader has `Levels` from before: it may have read the base already.
//! - Of a key the newer record is always in the newer part: writers of a key have its lock, and
//!   take the `Levels` under it.
//! - A memory holds the log from its first record on ([`Overlays::floor`]).
//!
//! This part has the state alone. `levels` reads and changes it, `merging` seals and merges.

mod candidates;
mod filter;
mod levels;
mod memory;
mod pace;
mod run;
mod trim;

pub(crate) use candidates::KeptOut;
pub(crate) use filter::Filter;
pub(crate) use levels::Levels;
pub(crate) use memory::{Memory, Put};
pub(crate) use pace::Pace;
pub(crate) use run::{Combining, Position, Run};
pub(crate) use trim::{Passed, Trim, Trims};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use candidates::{Candidates, NEVER, NOW, ONCE_FULL};
use levels::Versions;

use crate::canary::{self, Canary};
use crate::error::StorageError as Error;
use crate::page::Lsn;
use crate::small;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, bytes};
use crate::types::{Tree, TreeId};

/// Share of its bytes from which on a memory is to be sealed, in sixteenths: the rest is for
/// writers beside that.
const SEALED_AT: u64 = 11;
/// Bytes that each tree's may take at least, whatever the others have.
const MIN_MEMORY: u64 = 64 << 10;
/// Share of the log's area behind a memory's first record from which on it is to be sealed: one
/// part in this many.
const LOG_SHARE: u64 = 4;
/// And from which on writers wait for that.
const LOG_LIMIT_SHARE: u64 = 2;
/// Runs from which on some of them become one.
const MAX_RUNS: usize = 12;
const SMALL_MAX_RUNS: usize = 3;
/// How many become one: of pairs each record would be copied twice.
const COMBINED_RUNS: usize = 4;
const SMALL_COMBINED_RUNS: usize = 2;
/// With this many times [`MAX_RUNS`] merges go on and writers wait for that. What is in memory then
/// is sealed nevertheless, so that it lets go of the log.
const LIMIT_SHARE: usize = 2;
/// Runs that a tree can have.
pub(crate) const MAX_TREE_RUNS: usize = 28;
const _: () = assert!(LIMIT_SHARE * MAX_RUNS + 3 <= MAX_TREE_RUNS);
/// Share of the base's records that are to be merged from which on merges go on, and that with
/// which writers wait, in hundredths.
const MERGED_AT: u64 = 12;
const MERGE_LIMIT: u64 = 18;
/// Part of a memory's bytes that filters may take beside it: one in this many.
const FILTER_SHARE: u64 = 4;

/// A tree with overlays.
pub(crate) struct Overlaid {
    pub(crate) tree: Tree,
    /// No other of the store has it.
    pub(crate) serial: u64,
    levels: Mutex<Versions>,
    /// A record of the base or of a run may have a large value, which commits have to find before
    /// they replace it.
    has_large: AtomicBool,
    /// If none of the base may have one, as far as was looked: how far.
    pub(crate) looked: Mutex<Option<Vec<u8>>>,
    /// A change since the tree got overlays had one.
    puts_large: AtomicBool,
    /// Commits wait, for the tree is about to have no overlays.
    pub(crate) is_leaving: AtomicBool,
    /// The tree has overlays for one piece of work, and then leaves them, unless they pay.
    is_temporary: AtomicBool,
    /// The tree is to have no overlays: the volume has no space for their memory, or they were
    /// temporary.
    leaves: AtomicBool,
    /// How often it could not, and why the last time.
    not_left: Mutex<(u64, Option<Error>)>,
    /// A task changes which runs there are: it seals, combines, retires or leaves.
    busy: AtomicBool,
    /// A task merges.
    merging: AtomicBool,
    /// That task begins no merge.
    holds_merges: AtomicBool,
    pub(crate) trims: Mutex<Trims>,
    pub(crate) combining: Mutex<Option<Combining>>,
    /// The LSN before which runs have all changes, as the catalog says.
    sealed_before: AtomicU64,
    /// The LSN from which on no commit changes a leaf.
    from: AtomicU64,
    /// How fast commits may come.
    pub(crate) pace: Pace,
    /// About how many records the base has; 0 where that is not known.
    base_records: AtomicU64,
    /// And how many leaves.
    base_leaves: AtomicU64,
    /// Why the memory could not be sealed, or runs not be merged of which there are too many.
    pub(crate) failed: Mutex<Option<Error>>,
    /// A merge has failed, or another change of the runs. A run that is added, or a writer that is
    /// told so, has them tried again.
    pub(crate) merge_failed: AtomicBool,
    pub(crate) upkeep_failed: AtomicBool,
}

/// With what a tree's overlays begin.
pub(crate) struct Initial {
    /// From new to old.
    pub(crate) runs: Vec<Arc<Run>>,
    /// A record of the base or of a run may have a large value.
    pub(crate) has_large: bool,
    /// The tree has them for one piece of work.
    pub(crate) is_temporary: bool,
    /// Runs have all changes of the tree before it.
    pub(crate) sealed_before: Lsn,
    /// No commit from this LSN on changes a leaf of the tree: the largest one while some may.
    pub(crate) from: Lsn,
}

/// Until this is dropped no other task does what its maker says.
pub(crate) struct Busy<'o>(&'o AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Busy<'_> {
    /// Sets `flag` until what this returns is dropped; `None` if it is set already.
    pub(crate) fn begin(flag: &AtomicBool) -> Option<Busy<'_>> {
        let was = flag.swap(true, Ordering::SeqCst);
        (!was).then(|| Busy(flag))
    }
}

impl Overlaid {
    fn new(tree: Tree, serial: u64, initial: Initial) -> Overlaid {
        let Initial {
            runs,
            has_large,
            is_temporary,
            sealed_before,
            from,
        } = initial;
        let levels = Levels {
            number: 0,
            memory: Arc::default(),
            sealing: None,
            runs,
            position: Arc::default(),
        };
        Overlaid {
            tree,
            serial,
            levels: Mutex::new(Versions::new(levels)),
            trims: Mutex::default(),
            combining: Mutex::default(),
            sealed_before: AtomicU64::new(sealed_before.0),
            from: AtomicU64::new(from.0),
            pace: Pace::default(),
            has_large: AtomicBool::new(has_large),
            looked: Mutex::default(),
            puts_large: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            is_temporary: AtomicBool::new(is_temporary),
            leaves: AtomicBool::new(false),
            not_left: Mutex::default(),
            busy: AtomicBool::new(false),
            merging: AtomicBool::new(false),
            holds_merges: AtomicBool::new(false),
            base_records: AtomicU64::new(0),
            base_leaves: AtomicU64::new(0),
            failed: Mutex::default(),
            merge_failed: AtomicBool::new(false),
            upkeep_failed: AtomicBool::new(false),
        }
    }

    /// The parts as they are now.
    pub(crate) fn levels(&self) -> Arc<Levels> {
        Arc::clone(&self.levels.lock().current)
    }

    /// Whether some reader has `Levels` with a number below `number`. Once none has, none will.
    pub(crate) fn has_readers_before(&self, number: u64) -> bool {
        self.forget_unused();
        let levels = self.levels.lock();
        let oldest = levels.former.front().unwrap_or(&levels.current);
        oldest.number < number
    }

    /// Whether there are former `Levels` that no reader has.
    pub(crate) fn has_unused(&self) -> bool {
        self.levels.lock().has_unused()
    }

    /// Lets go of the former `Levels` that no reader has.
    pub(crate) fn forget_unused(&self) {
        let unused = self.levels.lock().take_unused();
        // Here, without the lock: a memory gives back many frames.
        drop(unused);
    }

    /// Gives the tree other parts; `None` leaves them as they are. The caller is busy with it, or
    /// merges, if only the position changes. The number of those that it has then.
    pub(crate) fn change(&self, change: impl FnOnce(&Levels) -> Option<Levels>) -> u64 {
        let mut levels = self.levels.lock();
        let number = levels.current.number;
        let Some(new) = change(&levels.current) else {
            return number;
        };
        let number = number + 1;
        let new = Arc::new(Levels { number, ..new });
        let former = std::mem::replace(&mut levels.current, new);
        levels.former.push_back(former);
        drop(levels);
        self.forget_unused();
        number
    }

    /// Whether so many records are to be merged that merges go on.
    pub(crate) fn has_backlog(&self, overlays: &Overlays) -> bool {
        let levels = self.levels();
        let runs = levels.runs.len();
        // They are combined before, if that is possible.
        if runs >= overlays.limit_runs() {
            return true;
        }
        let unmerged = levels.unmerged();
        if overlays.is_small() {
            // So that simulations merge often.
            return runs > 1 && unmerged > 0;
        }
        let limits = self.max_unmerged(overlays);
        limits.is_some_and(|(from, limit)| unmerged > if runs > 1 { from } else { limit })
    }

    /// Records that may be to be merged before merges go on, and before writers wait. Unknown
    /// before the base is measured, and where all is merged soon.
    fn max_unmerged(&self, overlays: &Overlays) -> Option<(u64, u64)> {
        if self.is_temporary() {
            return None;
        }
        let base = self.base_records();
        let filtered = overlays.max_filtered();
        let most = |hundredths| base.saturating_mul(hundredths).min(filtered * 100) / 100;
        let limit = base
            .saturating_mul(MERGE_LIMIT)
            .min(filtered * (MERGE_LIMIT * 100 / MERGED_AT))
            / 100;
        (base > 0).then(|| (most(MERGED_AT), limit))
    }

    /// All that has failed is tried again.
    pub(crate) fn forget_failures(&self) {
        *self.failed.lock() = None;
        self.merge_failed.store(false, Ordering::SeqCst);
        self.upkeep_failed.store(false, Ordering::SeqCst);
    }

    /// Whether the tree has them for one piece of work, and then leaves them.
    pub(crate) fn is_temporary(&self) -> bool {
        self.is_temporary.load(Ordering::SeqCst)
    }

    /// The tree keeps them. The catalog says so from the next change of its runs on.
    pub(crate) fn keep(&self, overlays: &Overlays) {
        self.is_temporary.store(false, Ordering::SeqCst);
        self.set_pace(overlays);
    }

    /// Has the tree leave its overlays.
    pub(crate) fn end_soon(&self) {
        self.upkeep_failed.store(false, Ordering::SeqCst);
        self.leaves.store(true, Ordering::SeqCst);
    }

    /// Whether it is to leave them, and may succeed.
    pub(crate) fn is_to_leave(&self) -> bool {
        self.leaves.load(Ordering::SeqCst) && !self.upkeep_failed.load(Ordering::SeqCst)
    }

    /// It could not leave them; it is tried again once someone asks for it again, or, if they are
    /// temporary, once more is sealed.
    pub(crate) fn note_not_left(&self, error: &Error) {
        let mut not_left = self.not_left.lock();
        *not_left = (not_left.0 + 1, Some(error.clone()));
        self.leaves.store(self.is_temporary(), Ordering::SeqCst);
    }

    /// How often it could not leave them, and why the last time.
    pub(crate) fn not_left(&self) -> (u64, Option<Error>) {
        self.not_left.lock().clone()
    }

    /// Whether a task changes which runs there are.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst)
    }

    /// Whether a task merges.
    pub(crate) fn is_merging(&self) -> bool {
        self.merging.load(Ordering::SeqCst)
    }

    /// How many records the base has, about; 0 where that is not known.
    pub(crate) fn base_records(&self) -> u64 {
        self.base_records.load(Ordering::Relaxed)
    }

    /// How many leaves the base has, about; 0 where that is not known.
    pub(crate) fn base_leaves(&self) -> u64 {
        self.base_leaves.load(Ordering::Relaxed)
    }

    /// The base has about so many records and leaves.
    pub(crate) fn measured(&self, records: f64, leaves: f64) {
        let at_least_one = |count: f64| (count.round() as u64).max(1);
        self.base_leaves
            .store(at_least_one(leaves), Ordering::Relaxed);
        self.base_records
            .store(at_least_one(records), Ordering::Relaxed);
    }

    /// Has commits come as what is to be merged demands. Called when that has changed.
    pub(crate) fn set_pace(&self, overlays: &Overlays) {
        let levels = self.levels();
        let share = |used: u64, from: u64, limit: u64| {
            let used = used.saturating_sub(from) as f64;
            used / limit.saturating_sub(from).max(1) as f64
        };
        let runs = levels.runs.len();
        let (from, limit) = (overlays.max_runs(), overlays.limit_runs());
        let by_runs = share(runs as u64, from as u64, limit as u64);
        let by_records = match self.max_unmerged(overlays) {
            None => 0.0,
            Some((from, limit)) => share(levels.unmerged(), from, limit),
        };
        self.pace.set_backlog(by_runs.max(by_records));
    }

    /// Makes the caller the one task that changes which runs there are, if no other is. Merges go
    /// on.
    pub(crate) fn begin_work(&self) -> Option<Busy<'_>> {
        Busy::begin(&self.busy)
    }

    /// Makes the caller the one task that merges, if no other is. A merge takes the runs that there
    /// are when it begins; a run that is added meanwhile would count as merged by it. So who adds
    /// one is the task that merges, too, for that moment.
    pub(crate) fn begin_merge(&self) -> Option<Busy<'_>> {
        Busy::begin(&self.merging)
    }

    /// Has the task that merges begin no merge from now on; called by one that is busy. Of this
    /// and [`Overlaid::begin_merge`], either this finds that merge or its task finds this.
    pub(crate) fn hold_merges(&self) -> Option<Busy<'_>> {
        Busy::begin(&self.holds_merges)
    }

    /// Whether another task has merges wait.
    pub(crate) fn holds_merges(&self) -> bool {
        self.holds_merges.load(Ordering::SeqCst)
    }

    /// The LSN before which runs have all changes, as the catalog says.
    pub(crate) fn sealed_before(&self) -> Lsn {
        Lsn(self.sealed_before.load(Ordering::SeqCst))
    }

    /// The catalog says that runs have all changes before `lsn`.
    pub(crate) fn set_sealed_before(&self, lsn: Lsn) {
        self.sealed_before.store(lsn.0, Ordering::SeqCst);
    }

    /// No commit from `lsn` on changes a leaf: those that did not know of the overlays have ended.
    pub(crate) fn are_from(&self, lsn: Lsn) {
        self.from.store(lsn.0, Ordering::SeqCst);
    }

    /// Whether all that commits have changed in leaves is in copies on the drive, since a recovery
    /// would begin at `log_start`.
    pub(crate) fn leaves_are_durable(&self, log_start: Lsn) -> bool {
        log_start.0 >= self.from.load(Ordering::SeqCst) || canary::is_on(Canary::SealBeforeLeaves)
    }

    /// Whether some record may have a large value.
    pub(crate) fn has_large(&self) -> bool {
        self.has_large.load(Ordering::SeqCst) || self.puts_large.load(Ordering::SeqCst)
    }

    /// What `failed` stands for is not tried again before something changes; writers that wait for
    /// merges are told.
    pub(crate) fn note_failure(&self, failed: &AtomicBool, error: &Error, overlays: &Overlays) {
        failed.store(true, Ordering::SeqCst);
        if self.levels().runs.len() >= overlays.limit_runs() {
            *self.failed.lock() = Some(error.clone());
        }
    }

    /// A change has a large value. Said before the key is unlocked.
    pub(crate) fn note_large(&self) {
        if canary::is_on(Canary::LargeUnsaid) {
            return;
        }
        self.puts_large.store(true, Ordering::SeqCst);
    }

    /// The base and the runs have no large values: only changes since can have some.
    pub(crate) fn found_none_large(&self) {
        self.has_large.store(false, Ordering::SeqCst);
    }

    /// Whether its memories hold so much of the log that writers wait until they are sealed.
    pub(crate) fn holds_log(&self, next: Lsn, area: u64) -> bool {
        area > 0 && next.0.saturating_sub(self.floor()) > area / LOG_LIMIT_SHARE
    }

    /// The LSN of the oldest record that is in a memory alone.
    fn floor(&self) -> u64 {
        let levels = self.levels();
        let sealing = levels.sealing.as_ref().map_or(u64::MAX, |old| old.first());
        levels.memory.first().min(sealing)
    }
}

/// The trees of a store that have overlays.
#[derive(Default)]
pub(crate) struct Overlays {
    /// How many trees have them.
    any: bytes::AtomicU64,
    trees: Mutex<BTreeMap<TreeId, Arc<Overlaid>>>,
    serials: AtomicU64,
    /// Whether trees get overlays: none does before a page had to leave the pool.
    begins: bytes::AtomicU64,
    /// Bytes that all memories may take that are not being sealed.
    memory_bytes: AtomicU64,
    /// Everything is small, for simulations.
    is_small: AtomicBool,
    /// A tree leaves its overlays for space, or what they took is not free yet.
    frees_space: AtomicBool,
    candidates: Arc<Mutex<Candidates>>,
}

/// Whether a commit may go on.
pub(crate) enum Admission {
    Granted,
    Later,
    /// The memory cannot be sealed.
    Refused(Error),
}

impl Overlays {
    /// Trees get overlays if `begins`; a memory may take so many bytes.
    pub(crate) fn configure(&self, begins: bool, memory_bytes: u64) {
        let small = small::overlay_bytes();
        let state = match (begins, small) {
            (false, _) => NEVER,
            (true, None) => ONCE_FULL,
            (true, Some(_)) => NOW,
        };
        self.begins.store(state, Ordering::SeqCst);
        self.is_small.store(small.is_some(), Ordering::SeqCst);
        let bytes = small.unwrap_or(memory_bytes);
        self.memory_bytes.store(bytes, Ordering::SeqCst);
    }

    /// All memories take no more than this.
    pub(crate) fn limit_memory(&self, bytes: u64) {
        self.memory_bytes.fetch_min(bytes, Ordering::SeqCst);
    }

    /// Whether everything is small, for simulations.
    pub(crate) fn is_small(&self) -> bool {
        self.is_small.load(Ordering::Relaxed)
    }

    /// Runs of a tree from which on some of them become one.
    pub(crate) fn max_runs(&self) -> usize {
        match self.is_small() {
            true => SMALL_MAX_RUNS,
            false => MAX_RUNS,
        }
    }

    /// How many become one.
    pub(crate) fn combined_runs(&self) -> usize {
        match self.is_small() {
            true => SMALL_COMBINED_RUNS,
            false => COMBINED_RUNS,
        }
    }

    /// Runs of a tree from which on merges go on and its writers wait for that.
    pub(crate) fn limit_runs(&self) -> usize {
        LIMIT_SHARE * self.max_runs()
    }

    /// The overlays of `tree`, if it has some.
    #[inline]
    pub(crate) fn of(&self, tree: TreeId) -> Option<Arc<Overlaid>> {
        match self.is_any() {
            true => self.trees.lock().get(&tree).cloned(),
            false => None,
        }
    }

    /// Whether some tree has overlays.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire) > 0
    }

    /// Whether some tree has overlays, or may get some now.
    #[inline]
    pub(crate) fn may_have_some(&self) -> bool {
        self.is_any() || self.do_begin()
    }

    /// Whether some tree has a run.
    #[cfg(test)]
    pub(crate) fn has_runs(&self) -> bool {
        let all = self.all();
        all.iter()
            .any(|overlaid| !overlaid.levels().runs.is_empty())
    }

    /// All trees that have overlays.
    pub(crate) fn all(&self) -> Vec<Arc<Overlaid>> {
        match self.is_any() {
            true => self.trees.lock().values().cloned().collect(),
            false => Vec::new(),
        }
    }

    /// Gives `tree` overlays that begin so, unless it has some.
    pub(crate) fn insert(&self, tree: Tree, initial: Initial) {
        let serial = 1 + self.serials.fetch_add(1, Ordering::SeqCst);
        let new = || Arc::new(Overlaid::new(tree, serial, initial));
        let mut trees = self.trees.lock();
        trees.entry(tree.id).or_insert_with(new);
        self.any.store(trees.len() as u64, Ordering::SeqCst);
    }

    /// The tree has no overlays any more: all of them are in its base.
    pub(crate) fn remove(&self, tree: TreeId) {
        let mut trees = self.trees.lock();
        trees.remove(&tree);
        self.any.store(trees.len() as u64, Ordering::SeqCst);
    }

    /// What a commit asks in its slot: the serial number of the tree's overlays, 0 without some;
    /// `None` where commits have to wait.
    #[inline]
    pub(crate) fn state(&self, tree: TreeId) -> Option<u64> {
        match self.of(tree) {
            None => Some(0),
            Some(overlaid) if overlaid.is_leaving.load(Ordering::SeqCst) => None,
            Some(overlaid) => Some(overlaid.serial),
        }
    }

    /// The log is needed from here on: the oldest record that is in a memory alone. To be asked
    /// after the commits in flight were looked at: a commit is in its slot until its records are in
    /// the memory.
    pub(crate) fn floor(&self) -> Lsn {
        if canary::is_on(Canary::CheckpointPastMemory) {
            return Lsn(u64::MAX);
        }
        let floors = self.all();
        let floors = floors.iter().map(|overlaid| overlaid.floor());
        Lsn(floors.min().unwrap_or(u64::MAX))
    }

    /// No tree has overlays any more, for the store is closed.
    pub(crate) fn discard(&self) {
        let trees = std::mem::take(&mut *self.trees.lock());
        self.any.store(0, Ordering::SeqCst);
        drop(trees);
    }

    /// Bytes that the memories of all trees may take, with those that are being sealed; of those of
    /// temporary overlays, what they have.
    pub(crate) fn max_in_memory(&self) -> u64 {
        let most = self.max_in_one();
        let of = |overlaid: &Arc<Overlaid>| match overlaid.is_temporary() {
            false => most,
            true => overlaid.levels().memory_bytes().min(most),
        };
        self.all().iter().map(of).sum()
    }

    /// Bytes that the memories of one tree may take.
    pub(crate) fn max_in_one(&self) -> u64 {
        2 * self.memory_bytes()
    }

    /// Whether a tree leaves its overlays for space, or what they took is not free yet.
    pub(crate) fn frees_space(&self) -> bool {
        self.frees_space.load(Ordering::SeqCst)
    }

    /// A tree leaves its overlays for space, until what this returns is dropped.
    pub(crate) fn begin_to_free(&self) -> Option<Busy<'_>> {
        Busy::begin(&self.frees_space)
    }

    /// Has all trees leave their overlays: the volume has no space for them.
    pub(crate) fn leave_for_space(&self) {
        self.all().iter().for_each(|tree| tree.end_soon());
    }

    /// Whether `tree` has overlays.
    pub(crate) fn has(&self, tree: TreeId) -> bool {
        self.is_any() && self.trees.lock().contains_key(&tree)
    }

    /// Records of a tree that may be to be merged so that the filters of runs, which have about
    /// twice as many, take no more than a quarter of a memory.
    fn max_filtered(&self) -> u64 {
        self.memory_bytes() * 8 / Filter::BITS / FILTER_SHARE / 2
    }

    /// Whether a run has no filter, and is not so large that it takes more memory than all others.
    pub(crate) fn is_to_be_filtered(&self, run: &Run) -> bool {
        run.filter.get().is_none() && run.records() <= 2 * self.max_filtered()
    }

    /// When a commit of so many changes of `tree` may begin, if not now: writers are slowed down
    /// before they have to wait.
    pub(crate) fn begin(&self, tree: TreeId, changes: u64, now: Instant) -> Option<Instant> {
        let overlaid = self.of(tree)?;
        let most = self.memory_bytes();
        let bytes = self.used(&overlaid.levels().memory);
        let sealed_at = most * SEALED_AT / 16;
        let rest = most.saturating_sub(sealed_at).max(1);
        let memory = bytes.saturating_sub(sealed_at) as f64 / rest as f64;
        let used = memory.max(overlaid.pace.backlog()).min(1.0);
        overlaid.pace.begin(changes, used, now)
    }

    /// Bytes that the memory of a tree may take.
    fn memory_bytes(&self) -> u64 {
        let trees = self.any.load(Ordering::Relaxed).max(1);
        let share = self.memory_bytes.load(Ordering::Relaxed) / trees;
        match self.is_small() {
            true => share,
            false => share.max(MIN_MEMORY),
        }
    }

    /// Bytes of a memory that count against what it may take. In simulations some hundred records
    /// fill it, whatever blocks these are in.
    fn used(&self, memory: &Memory) -> u64 {
        match self.is_small() {
            true => memory.record_bytes(),
            false => memory.bytes(),
        }
    }

    /// Whether a memory of `bytes` whose first record is at `first` is to be sealed. The log's next
    /// record is at `next`, its area has `area` bytes.
    pub(crate) fn is_to_be_sealed(&self, memory: &Memory, next: Lsn, area: u64) -> bool {
        let behind = next.0.saturating_sub(memory.first());
        self.used(memory) * 16 >= self.memory_bytes() * SEALED_AT
            || memory.bytes() > 0 && area > 0 && behind > area / LOG_SHARE
    }

    /// Whether a commit to `trees` may begin: the memories have space for it, and do not hold too
    /// much of the log. Not asked for commits to the catalog, which sealing needs.
    pub(crate) fn admit(
        &self,
        trees: impl Iterator<Item = TreeId>,
        next: Lsn,
        area: u64,
    ) -> Admission {
        let most = self.memory_bytes();
        let mut full = trees.filter_map(|tree| self.of(tree));
        let full = full.find(|overlaid| {
            let levels = overlaid.levels();
            self.used(&levels.memory) >= most || levels.runs.len() >= self.limit_runs()
        });
        let holds = |overlaid: &Arc<Overlaid>| overlaid.holds_log(next, area);
        let full = full.or_else(|| self.all().into_iter().find(holds));
        let Some(overlaid) = full else {
            return Admission::Granted;
        };
        let failed = overlaid.failed.lock().take();
        failed.map_or(Admission::Later, |error| {
            overlaid.forget_failures();
            Admission::Refused(error)
        })
    }
}
