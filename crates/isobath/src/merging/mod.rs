//! The work on overlays: which trees get some, sealing, merging, and getting rid of them.
//!
//! Two system tasks do it for all trees, while there is some to do. One merges
//! ([`Merging::run_merges`]): it changes the base, and how far merges have come. The other one
//! changes which runs there are ([`Merging::run`]): it seals, combines and retires; sealing comes
//! first, since writers wait for it. It is *busy* with a tree while it works on it. A run is added
//! between two merges. Other tasks have a tree leave its overlays ([`Merging::leave`]), or load
//! beside them: they are busy with it, and hold merges.
//!
//! Commits to the catalog are a part of this work. So they never wait for a memory, and others
//! leave half of the log's area for them ([`Overlays::admit`](crate::overlay::Overlays::admit)).

mod combine;
mod large;
mod leave;
mod listing;
mod merge;
mod seal;
mod trim;

pub(crate) use leave::Does;
pub(crate) use listing::{decode, list_unlisted, unlisted};

use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::btree::{Cursor, Direction, MaxPages, Tree, ValueKind};
use crate::buffer::PagePlace;
use crate::context::{TaskContext, TaskWorker};
use crate::error::StorageError as Error;
use crate::overlay::{Filter, Initial, MAX_TREE_RUNS, Overlaid};
use crate::page::{Lsn, PAGE_SIZE};
use crate::pagestore::LowerParts;
use crate::runtime::{Patience, PerWorker, TaskId, Worker};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use crate::trace;
use crate::txn::{Transactions, TreeStatus, catalog_change};
use crate::types::{CATALOG, OVERLAID};

/// How often the worker of a task looks for work at least.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often if nothing was logged since it slept last.
const LOOK_IF_IDLE: Duration = Duration::from_millis(100);
/// Part of a volume's limit that a memory may take at most: one in this many.
const LIMIT_SHARE: u64 = 64;
/// Pages that are read to estimate the size of a tree.
const SAMPLED: MaxPages = MaxPages {
    leaves: 16,
    inner: 64,
};
/// Records per leaf, on average, up to which changes of a tree stay in its leaves.
const MIN_RECORDS_PER_LEAF: f64 = 3.0;
/// Part of all pages and chunks for which the volume has to have room as well where a tree gets
/// overlays: one in this many.
const ROOM_SHARE: u64 = 4;
/// Leaves that are looked at for large values between two looks at other work.
const LOOKED_AT: usize = 8192;
/// Leaves that are read between two looks at other tasks.
const LEAVES_PER_TURN: usize = 32;

/// The work on overlays of a store.
pub(crate) struct Merging {
    runs: SystemTask,
    merges: SystemTask,
    /// Others that have the tasks begin nothing: opening, checks, and closing.
    pauses: AtomicUsize,
    /// Where the log ended when the worker slept last.
    slept_at: PerWorker<Cell<Lsn>>,
    /// What is freed once no reader has it, from old to new.
    retired: Mutex<Vec<trim::Retired>>,
    /// A task frees, or combines runs.
    freeing: AtomicBool,
    /// Segments that the volume had when a tree had to leave its overlays for want of space.
    left_at: AtomicU32,
    lower: LowerParts,
}

/// One of the two system tasks.
struct SystemTask {
    /// Parked, to be woken when there is work.
    idle: PerWorker<Cell<Option<TaskId>>>,
    is_working: AtomicBool,
}

impl SystemTask {
    fn new(lower: &LowerParts) -> SystemTask {
        SystemTask {
            idle: PerWorker::new(&lower.workers, |_| Cell::new(None)),
            is_working: AtomicBool::new(false),
        }
    }

    fn is_idle(&self, worker: &Worker) -> bool {
        self.idle.of(worker).get().is_some()
    }

    /// Does `work` while there is some, until the workers stop.
    fn live(
        &self,
        local: &TaskWorker,
        is_due: impl Fn() -> bool,
        work: impl Fn() -> Result<(), Error>,
    ) {
        while !local.parts.workers.is_stopping() {
            self.is_working.store(true, Ordering::SeqCst);
            // What is due is asked once more: of this and of closing, one sees the other.
            let done = is_due().then(&work);
            self.is_working.store(false, Ordering::SeqCst);
            match done {
                Some(Ok(())) => local.worker.yield_now(),
                Some(Err(error)) => {
                    let error = error.to_string();
                    trace::tell!(warn, "overlays", error = error.as_str());
                    local.worker.yield_now();
                }
                None => {
                    let idle = self.idle.of(&local.worker);
                    idle.set(Some(local.worker.task_id()));
                    local.worker.suspend();
                }
            }
        }
    }

    /// Wakes the task if it is idle and there is work for it.
    fn wake(&self, worker: &Worker, is_due: impl FnOnce() -> bool) -> bool {
        let wakes = self.is_idle(worker) && is_due();
        if wakes && let Some(task) = self.idle.of(worker).take() {
            worker.make_ready(task);
        }
        wakes
    }
}

/// Until this is dropped the tasks do nothing.
pub(crate) struct Pause<'m>(&'m AtomicUsize);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The work in a task.
struct Work<'w> {
    merging: &'w Merging,
    transactions: &'w Transactions,
    local: &'w TaskWorker,
}

impl Merging {
    /// That of a store that is being opened.
    pub(crate) fn new(lower: LowerParts) -> Merging {
        let config = &lower.shared.config;
        let overlays = &lower.buffer.pool.overlays;
        let begins = config.overlays && !config.read_only;
        let memory_bytes = u64::from(config.lent_frames / 2) * PAGE_SIZE as u64;
        overlays.configure(begins, memory_bytes);
        Merging {
            runs: SystemTask::new(&lower),
            merges: SystemTask::new(&lower),
            // Until the store is open: a run that is built then is none that a crash has left.
            pauses: AtomicUsize::new(1),
            slept_at: PerWorker::new(&lower.workers, |_| Cell::new(Lsn(0))),
            retired: Mutex::default(),
            freeing: AtomicBool::new(false),
            left_at: AtomicU32::new(0),
            lower,
        }
    }

    /// Has the trees have the overlays that the catalog lists, with empty memories; whether there
    /// are some. Called before changes of the log are repeated.
    ///
    /// # Errors
    ///
    /// A failed read.
    pub(crate) fn restore(local: &TaskWorker) -> Result<bool, Error> {
        let mapping = &local.pool.mapping;
        if mapping.place(CATALOG.root) == PagePlace::Free {
            // The store's creation was cut off.
            return Ok(false);
        }
        let listed = listing::list(local)?;
        let is_any = !listed.is_empty();
        limit_memory(local);
        for entry in &listed {
            let overlays = &local.pool.overlays;
            let may_have_large = local.parts.pagestore.may_have_large();
            overlays.insert(entry.tree, listing::initial(entry, may_have_large));
        }
        Ok(is_any)
    }

    /// Frees the runs that were being built or freed when the store was left, and has trees leave
    /// their overlays for which these were temporary.
    ///
    /// # Errors
    ///
    /// As for any commit.
    pub(crate) fn resume(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
    ) -> Result<(), Error> {
        let work = self.work(transactions, local);
        let left = list_unlisted(local)?;
        left.into_iter().try_for_each(|run| work.free_run(run))?;
        let overlaid = local.pool.overlays.all().into_iter();
        let temporary = overlaid.filter(|overlaid| overlaid.is_temporary());
        temporary.for_each(|overlaid| overlaid.end_soon());
        Ok(())
    }

    /// The store is open: the tasks may begin.
    pub(crate) fn end_opening(&self) {
        self.pauses.fetch_sub(1, Ordering::SeqCst);
    }

    /// Seals all memories, so that the volume has what was committed before.
    ///
    /// # Errors
    ///
    /// As for any commit.
    pub(crate) fn seal_all(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
    ) -> Result<(), Error> {
        let work = self.work(transactions, local);
        for overlaid in local.pool.overlays.all() {
            let _busy = until(local, || overlaid.begin_work())?;
            work.seal_all(&overlaid)?;
        }
        Ok(())
    }

    /// Ends the tasks' work and seals all memories, for the store closes.
    ///
    /// # Errors
    ///
    /// As for any commit.
    pub(crate) fn end(&self, transactions: &Transactions, local: &TaskWorker) -> Result<(), Error> {
        let pause = self.pause(local)?;
        // For good.
        std::mem::forget(pause);
        self.seal_all(transactions, local)?;
        self.free_retired(transactions, local)
    }

    /// Has the tasks do nothing until what this returns is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn pause(&self, local: &TaskWorker) -> Result<Pause<'_>, Error> {
        let pause = self.begin_pause();
        until(local, || (!self.is_working()).then_some(()))?;
        Ok(pause)
    }

    fn is_working(&self) -> bool {
        let tasks = [&self.runs, &self.merges];
        tasks
            .iter()
            .any(|task| task.is_working.load(Ordering::SeqCst))
    }

    /// Has the tasks begin nothing, and end what goes on for long, until what this returns is
    /// dropped.
    fn begin_pause(&self) -> Pause<'_> {
        self.pauses.fetch_add(1, Ordering::SeqCst);
        Pause(&self.pauses)
    }

    /// Frees the runs that no reader has any more.
    ///
    /// # Errors
    ///
    /// As for any commit.
    pub(crate) fn free_retired(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
    ) -> Result<(), Error> {
        self.work(transactions, local).free_retired()
    }

    fn work<'w>(&'w self, transactions: &'w Transactions, local: &'w TaskWorker) -> Work<'w> {
        Work {
            merging: self,
            transactions,
            local,
        }
    }

    /// How long the worker of a task may sleep: what is due is not told to it, but if writers wait.
    pub(crate) fn max_wait(&self, worker: &Worker) -> Option<Duration> {
        let may_be_due = self.lower.buffer.pool.overlays.may_have_some();
        let is_idle = self.runs.is_idle(worker) || self.merges.is_idle(worker);
        let next = self.lower.log.next();
        (may_be_due && is_idle).then(|| match self.slept_at.of(worker).replace(next) == next {
            true => LOOK_IF_IDLE,
            false => LOOK_EVERY,
        })
    }

    /// Wakes the tasks for which there is work; part of each step.
    #[inline]
    pub(crate) fn poll(&self, worker: &Worker, stopping: bool) -> bool {
        let wakes = self.runs.wake(worker, || stopping || self.is_due());
        self.merges.wake(worker, || stopping || self.is_merge_due()) || wakes
    }

    /// Whether others want the tasks to do nothing.
    fn is_paused(&self) -> bool {
        self.pauses.load(Ordering::SeqCst) > 0
    }

    /// Whether the tasks may begin something.
    fn may_work(&self) -> bool {
        !self.is_paused() && !self.lower.shared.is_recovering() && !self.lower.shared.is_poisoned()
    }

    /// Whether there is work for the task that merges.
    fn is_merge_due(&self) -> bool {
        let overlays = &self.lower.buffer.pool.overlays;
        let is_due = |overlaid: &Arc<Overlaid>| {
            self.is_to_be_merged(overlaid) && !overlaid.is_merging() && !overlaid.holds_merges()
        };
        self.may_begin_merge() && overlays.all().iter().any(is_due)
    }

    fn may_begin_merge(&self) -> bool {
        self.may_work() && !self.awaits_seal()
    }

    /// Whether merges wait for a memory that is to be sealed, as writers do: it holds the log,
    /// which merges would fill, and sealing needs some of it.
    fn awaits_seal(&self) -> bool {
        let (next, area) = self.log_end();
        let overlaid = self.lower.buffer.pool.overlays.all();
        let mut holding = overlaid.iter().filter(|own| own.holds_log(next, area));
        holding.any(|own| self.is_to_be_sealed(own))
    }

    /// Where the log's next record is, and the bytes of its area; 0 without a log.
    fn log_end(&self) -> (Lsn, u64) {
        let log = &self.lower.log;
        (log.next(), if log.is_on() { log.area_bytes() } else { 0 })
    }

    /// Whether there is work for the other one.
    fn is_due(&self) -> bool {
        let overlays = &self.lower.buffer.pool.overlays;
        self.may_work()
            && (overlays.has_candidate()
                || self.retired.lock().iter().any(trim::Retired::is_free)
                || overlays.all().iter().any(|overlaid| {
                    // Of one that a task works on already, that task does it.
                    !overlaid.is_busy() && self.is_due_for(overlaid)
                }))
    }

    fn is_due_for(&self, overlaid: &Overlaid) -> bool {
        self.is_to_be_sealed(overlaid)
            || overlaid.has_unused()
            || overlaid.is_to_leave()
            || self.is_to_be_combined(overlaid)
            || is_to_be_retired(overlaid)
            || is_to_be_trimmed(overlaid)
            || is_to_be_measured(overlaid)
            || self.lacks_filter(overlaid)
            || overlaid.looked.lock().is_some()
    }

    /// Whether the tasks have nothing to do, and have left nothing half-way.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn is_at_rest(&self) -> bool {
        let overlaid = self.lower.buffer.pool.overlays.all();
        let mut worked_on = overlaid
            .iter()
            .filter(|own| own.is_busy() || own.is_merging());
        !self.is_working()
            && !self.is_due()
            && !self.is_merge_due()
            && self.retired.lock().is_empty()
            && worked_on.next().is_none()
    }

    fn is_to_be_sealed(&self, overlaid: &Overlaid) -> bool {
        let levels = overlaid.levels();
        let (next, area) = self.log_end();
        let overlays = &self.lower.buffer.pool.overlays;
        let wanted =
            levels.sealing.is_some() || overlays.is_to_be_sealed(&levels.memory, next, area);
        wanted && levels.runs.len() < MAX_TREE_RUNS && overlaid.failed.lock().is_none()
    }

    fn is_to_be_merged(&self, overlaid: &Overlaid) -> bool {
        let levels = overlaid.levels();
        let mut runs = levels.runs.iter();
        // Those that it has passed are retired by the other task.
        runs.any(|run| !run.is_merged_at(&levels.position))
            && !overlaid.merge_failed.load(Ordering::SeqCst)
            && overlaid.has_backlog(&self.lower.buffer.pool.overlays)
    }

    /// Whether a run of the tree is to get a filter.
    fn lacks_filter(&self, overlaid: &Overlaid) -> bool {
        let overlays = &self.lower.buffer.pool.overlays;
        let levels = overlaid.levels();
        let mut runs = levels.runs.iter();
        let lacks_one = runs.any(|run| overlays.is_to_be_filtered(run));
        lacks_one && !overlaid.upkeep_failed.load(Ordering::SeqCst)
    }

    /// The life of the task that changes which runs there are.
    pub(crate) fn run(&self, transactions: &Transactions, local: &TaskWorker) {
        let work = self.work(transactions, local);
        self.runs.live(local, || self.is_due(), || work.some());
    }

    /// The life of the task that merges.
    pub(crate) fn run_merges(&self, transactions: &Transactions, local: &TaskWorker) {
        let work = self.work(transactions, local);
        self.merges
            .live(local, || self.is_merge_due(), || work.some_merges());
    }
}

/// Tries until `attempt` succeeds; meanwhile others run.
///
/// # Errors
///
/// [`Error::Poisoned`].
fn until<T>(local: &TaskWorker, mut attempt: impl FnMut() -> Option<T>) -> Result<T, Error> {
    let mut patience = Patience::default();
    loop {
        if let Some(done) = attempt() {
            return Ok(done);
        }
        local.parts.shared.writable()?;
        patience.wait(&local.worker);
    }
}

/// Sealing and merging may take about as much as a memory has beyond what user data may take.
fn limit_memory(local: &TaskWorker) {
    if let Some(limit) = local.parts.pagestore.limit_bytes() {
        local.pool.overlays.limit_memory(limit / LIMIT_SHARE);
    }
}

/// How large the base is was not found since the store was opened: what may be to be merged follows
/// from that.
fn is_to_be_measured(overlaid: &Overlaid) -> bool {
    overlaid.base_records() == 0
        && !overlaid.levels().runs.is_empty()
        && !overlaid.upkeep_failed.load(Ordering::SeqCst)
}

/// Merges have passed all that a run has.
fn is_to_be_retired(overlaid: &Overlaid) -> bool {
    overlaid.levels().has_merged_run() && !overlaid.upkeep_failed.load(Ordering::SeqCst)
}

/// A round of merges has ended, and what it has passed of runs is not trimmed.
fn is_to_be_trimmed(overlaid: &Overlaid) -> bool {
    let trims = overlaid.trims.lock();
    trims.current.is_none()
        && trims.position.round < overlaid.levels().position.round
        && !overlaid.upkeep_failed.load(Ordering::SeqCst)
}

impl Work<'_> {
    /// Lets others run.
    fn wait(&self) -> Result<(), Error> {
        self.local.parts.shared.writable()?;
        self.local.worker.yield_now();
        Ok(())
    }

    /// Does some of the work that is due, the most urgent first.
    fn some(&self) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        let mut first_error = None;
        for overlaid in overlays.all() {
            if let Some(_busy) = overlaid.begin_work()
                && overlays.state(overlaid.tree.id) == Some(overlaid.serial)
                && let Err(error) = self.some_of(&overlaid)
            {
                first_error.get_or_insert(error);
            }
        }
        if let Err(error) = self.free_retired() {
            first_error.get_or_insert(error);
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        match overlays.next_candidate() {
            Some((tree, _beginning)) => self.begin(tree),
            None => Ok(()),
        }
    }

    /// Does some of the work that is due for a tree, with which the caller is busy.
    fn some_of(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        if overlaid.is_to_leave() {
            return self.leave_for_space(overlaid);
        }
        overlaid.forget_unused();
        if self.merging.is_to_be_sealed(overlaid) {
            let sealed = self.seal(overlaid);
            sealed.inspect_err(|error| *overlaid.failed.lock() = Some(error.clone()))?;
            self.begin_trim(overlaid);
        }
        self.keep_up_runs(overlaid)
            .inspect_err(|error| overlaid.note_failure(&overlaid.upkeep_failed, error, overlays))?;
        self.look_for_large(overlaid)
    }

    fn keep_up_runs(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        if is_to_be_measured(overlaid) {
            self.measure(overlaid)?;
        }
        if is_to_be_retired(overlaid) {
            self.retire(overlaid)?;
        }
        if is_to_be_trimmed(overlaid) {
            self.begin_trim(overlaid);
        }
        if self.merging.lacks_filter(overlaid) {
            self.build_filter(overlaid)?;
        } else if self.merging.is_to_be_combined(overlaid) {
            match self.combine(overlaid) {
                Err(Error::VolumeFull { .. }) => overlaid.end_soon(),
                combined => combined?,
            }
        }
        Ok(())
    }

    /// Merges some of each tree that has a backlog.
    fn some_merges(&self) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        let mut first_error = None;
        for overlaid in overlays.all() {
            let Some(_merging) = overlaid.begin_merge() else {
                continue;
            };
            let is_held = overlaid.holds_merges() || !self.merging.may_begin_merge();
            let has_them = overlays.state(overlaid.tree.id) == Some(overlaid.serial);
            if is_held || !has_them || !self.merging.is_to_be_merged(&overlaid) {
                continue;
            }
            let merged = self.measure(&overlaid).and_then(|()| self.merge(&overlaid));
            if let Err(error) = merged {
                overlaid.note_failure(&overlaid.merge_failed, &error, overlays);
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Gives `tree` overlays if it does not fit into the pool, and its leaves have several records
    /// each: a change of a record as large as a page costs less in its place.
    ///
    /// The catalog says so first: whatever a recovery then repeats in memory the base may have
    /// already. No merge begins before the commits in flight have ended, which may change leaves.
    fn begin(&self, tree: Tree) -> Result<(), Error> {
        if self.local.pool.overlays.has(tree.id) {
            return Ok(());
        }
        match self.is_worth_overlays(&[tree])? {
            true => self.give_overlays(tree, false),
            false => Ok(()),
        }
    }

    /// Whether overlays pay for a tree that has the records of these.
    fn is_worth_overlays(&self, parts: &[Tree]) -> Result<bool, Error> {
        let overlays = &self.local.pool.overlays;
        limit_memory(self.local);
        let has_room = || {
            let pagestore = &self.local.parts.pagestore;
            let runs = pagestore.allocated_bytes() / ROOM_SHARE;
            let memories = overlays.max_in_memory() + overlays.max_in_one();
            let bytes = 2 * memories + runs;
            let has_grown = pagestore.segments() > self.merging.left_at.load(Ordering::SeqCst);
            pagestore.has_room_for(bytes) || has_grown && pagestore.may_have_room_for(bytes)
        };
        if !overlays.may_begin() || !has_room() {
            return Ok(false);
        }
        let (mut levels, mut leaves, mut pages, mut records) = (0, 0.0, 0.0, 0.0);
        for tree in parts {
            let sample = tree.sample(&TaskContext { local: self.local }, SAMPLED)?;
            levels = levels.max(sample.levels);
            leaves += sample.leaf_pages;
            pages += sample.leaf_pages + sample.inner_pages;
            records += sample.records;
        }
        let frames = f64::from(self.local.pool.frames.count());
        Ok(match overlays.is_small() {
            true => levels > 1,
            false => pages > frames && records > MIN_RECORDS_PER_LEAF * leaves,
        })
    }

    /// The overlays of `tree`, which gets temporary ones if it has none, that the caller ends; `None`
    /// if it is dropped.
    fn need_overlays(
        &self,
        tree: Tree,
        status: &TreeStatus,
    ) -> Result<Option<Arc<Overlaid>>, Error> {
        let overlays = &self.local.pool.overlays;
        // Bound: another task has it leave them each time.
        loop {
            let beginning = until(self.local, || match overlays.of(tree.id) {
                // It would be about to leave them when the caller works with them. During a check
                // it is not.
                Some(overlaid) if overlaid.is_to_leave() && !self.merging.is_paused() => None,
                Some(_) => Some(None),
                None => overlays.begin_with(tree.id).map(Some),
            })?;
            // Another task may have given it some in between.
            if let Some(overlaid) = overlays.of(tree.id) {
                return Ok(Some(overlaid));
            }
            if beginning.is_none() {
                continue;
            }
            // A drop keeps others from giving it some.
            if status.is_dropped() {
                return Ok(None);
            }
            self.give_overlays(tree, true)?;
        }
    }

    /// Gives overlays to `tree`, which has none; the caller keeps others from doing so.
    fn give_overlays(&self, tree: Tree, is_temporary: bool) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        limit_memory(self.local);
        let sample = tree.sample(&TaskContext { local: self.local }, SAMPLED)?;
        let key = listing::key(OVERLAID, tree.id);
        let entry = listing::encode_new(tree, is_temporary);
        self.commit(&[catalog_change(&key, Some(&entry))], None)?;
        let initial = Initial {
            runs: Vec::new(),
            has_large: true,
            is_temporary,
            sealed_before: Lsn(0),
            from: Lsn(u64::MAX),
        };
        overlays.insert(tree, initial);
        self.transactions.tracker.drain(false, || self.wait())?;
        if let Some(overlaid) = overlays.of(tree.id) {
            overlaid.are_from(self.local.parts.log.next());
            overlaid.measured(sample.records, sample.leaf_pages);
            // The values that those commits put had space before.
            match self.local.parts.pagestore.may_have_large() {
                true => *overlaid.looked.lock() = Some(Vec::new()),
                false => overlaid.found_none_large(),
            }
        }
        Ok(())
    }

    /// Finds how many records the base has, about, where a round of merges begins.
    fn measure(&self, overlaid: &Overlaid) -> Result<(), Error> {
        let is_known = overlaid.base_records() > 0;
        if is_known && !overlaid.levels().position.key.is_empty() {
            return Ok(());
        }
        let ctx = TaskContext { local: self.local };
        let sample = overlaid.tree.sample(&ctx, SAMPLED)?;
        overlaid.measured(sample.records, sample.leaf_pages);
        overlaid.set_pace(&self.local.pool.overlays);
        Ok(())
    }

    /// Builds the filter of a run that has none since the store was opened.
    fn build_filter(&self, overlaid: &Overlaid) -> Result<(), Error> {
        let levels = overlaid.levels();
        let overlays = &self.local.pool.overlays;
        let mut runs = levels.runs.iter();
        let Some(run) = runs.find(|run| overlays.is_to_be_filtered(run)) else {
            return Ok(());
        };
        let passed = run.passed();
        let ctx = TaskContext { local: self.local };
        let sample = run.tree.sample(&ctx, SAMPLED)?;
        // The catalog's number is of when the runs of the tree changed last.
        let records = run.records().max(sample.records.round() as u64);
        run.set_records(records);
        if !overlays.is_to_be_filtered(run) {
            return Ok(());
        }
        let filter = Filter::new(records);
        let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
        let mut cursor = Cursor::new(run.tree, lower, upper, Direction::Forward);
        let (mut leaves, mut unmerged) = (0, 0);
        while cursor.next_records(&ctx)? {
            cursor.visit_leaf(&ctx, |entry| {
                filter.add(entry.key);
                unmerged += u64::from(!run.has_merged(entry.key, &levels.position));
                true
            })?;
            leaves += 1;
            if leaves % LEAVES_PER_TURN == 0 {
                self.local.worker.yield_now();
            }
        }
        // Merges go on meanwhile.
        run.set_records(unmerged + passed);
        // No other task builds it.
        let _ = run.filter.set(filter);
        overlaid.set_pace(overlays);
        Ok(())
    }

    /// Goes on looking for large values in the base, unless that has ended; every change since it
    /// got overlays says whether it has one. Until that has ended changes read what they replace,
    /// which costs more than merges.
    fn look_for_large(&self, overlaid: &Overlaid) -> Result<(), Error> {
        let Some(from) = overlaid.looked.lock().take() else {
            return Ok(());
        };
        let ctx = TaskContext { local: self.local };
        let (lower, upper) = (Bound::Included(&from[..]), Bound::Unbounded);
        let mut cursor = Cursor::new(overlaid.tree, lower, upper, Direction::Forward);
        for leaf in 1..=LOOKED_AT {
            if !cursor.next_records(&ctx)? {
                overlaid.found_none_large();
                return Ok(());
            }
            let is_small = |kind| kind == ValueKind::Inline;
            if !cursor.visit_leaf(&ctx, |entry| is_small(entry.value.kind))? {
                return Ok(());
            }
            if leaf % LEAVES_PER_TURN == 0 {
                self.local.worker.yield_now();
                let merging = self.merging;
                if merging.is_to_be_sealed(overlaid) || merging.awaits_seal() || merging.is_paused()
                {
                    break;
                }
            }
        }
        match cursor.boundary() {
            Some(boundary) => *overlaid.looked.lock() = Some(boundary.to_vec()),
            None => overlaid.found_none_large(),
        }
        Ok(())
    }
}
