//! Leaving: a tree gets rid of its overlays, for work that knows the base alone, or since it is
//! dropped.

use std::ops::Bound;
use std::sync::Arc;

use super::trim::Freed;
use super::{Merging, Work, listing, until};
use crate::btree::{Direction, Tree};
use crate::canary::{self, Canary};
use crate::context::{TaskContext, TaskWorker};
use crate::error::StorageError as Error;
use crate::levels::Parts;
use crate::overlay::{Busy, KeptOut, Overlaid};
use crate::runtime::Patience;
use crate::sync::atomic::Ordering;
use crate::txn::commit::Change;
use crate::txn::{Transactions, TreeStatus, catalog_change};
use crate::types::{OVERLAID, UNLISTED_RUN};

/// What work does to the base of a tree with overlays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// It changes no records.
    Look,
    Put,
    /// It puts large values, too.
    PutLarge,
}

/// Commits to the tree wait until this is dropped.
struct Leaving<'o>(&'o Overlaid);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.is_leaving.store(false, Ordering::SeqCst);
    }
}

/// Until this is dropped no other task seals, combines, retires or merges in a tree.
pub(super) struct Alone<'o> {
    _held: Option<Busy<'o>>,
    _busy: Busy<'o>,
}

impl Merging {
    /// Merges all that the overlays of `tree` have into the tree, which then has none, but may get
    /// some again. The caller has no slot. Where it closes the tree, too, it does that before.
    ///
    /// # Errors
    ///
    /// Those of reading and writing; the tree then has its overlays still.
    pub(crate) fn leave(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
        tree: Tree,
    ) -> Result<(), Error> {
        let overlays = &local.pool.overlays;
        let _kept_out = self.keep_out(local, tree)?;
        let work = self.work(transactions, local);
        while let Some(overlaid) = overlays.of(tree.id) {
            if let Some(_busy) = self.wait_to_work(local, &overlaid)? {
                work.merge_and_end(&overlaid)?;
            }
        }
        Ok(())
    }

    /// Calls `work`, which changes the base of `tree` `from` a key on, while no merge does and the
    /// overlays have nothing there: where they have something, or if the work puts large values
    /// into the base, the tree leaves them before. Where it puts some, what merges have passed
    /// counts: runs have it still, and once the store is opened again nothing says that it was
    /// merged. The caller has no slot; where it closes the tree it has done so, or `work` would
    /// wait for another that waits for the overlays.
    ///
    /// # Errors
    ///
    /// Those of `work`, of reading and of writing.
    pub(crate) fn beside_overlays<T, E: From<Error>>(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
        tree: Tree,
        from: Bound<&[u8]>,
        does: Does,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _kept_out = self.keep_out(local, tree)?;
        // Bound: overlays that have something there go.
        while let Some(overlaid) = local.pool.overlays.of(tree.id) {
            let Some(_busy) = self.wait_to_work(local, &overlaid)? else {
                continue;
            };
            if does != Does::PutLarge && self.has_none_from(local, &overlaid, from, does)? {
                return work();
            }
            self.work(transactions, local).merge_and_end(&overlaid)?;
        }
        work()
    }

    /// Whether overlays, with which the caller is busy, have nothing `from` a key on: nothing that
    /// counts if the caller only looks, nothing at all otherwise.
    fn has_none_from(
        &self,
        local: &TaskWorker,
        overlaid: &Overlaid,
        from: Bound<&[u8]>,
        does: Does,
    ) -> Result<bool, Error> {
        // No trim frees what merges have passed while it is read.
        let _freeing = self.wait_to_free(local)?;
        let mut levels = overlaid.levels().copy();
        if does != Does::Look
            && !canary::is_on(Canary::LoadOverMerged)
            && let Some(oldest) = levels.runs.last()
        {
            levels.position = Arc::new(oldest.start.clone());
        }
        let rest = (from, Bound::Unbounded);
        let mut parts = Parts::new(&levels, rest, Direction::Forward, true);
        Ok(parts.peek(&TaskContext { local })?.is_none())
    }

    /// Moves the records of `tree` to as few leaves as a load fills, unless it is dropped. Its
    /// commits go on meanwhile.
    ///
    /// # Errors
    ///
    /// Those of reading and writing.
    pub(crate) fn pack(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
        tree: Tree,
        status: &TreeStatus,
    ) -> Result<(), Error> {
        let work = self.work(transactions, local);
        let packed = work.pack_all(tree, status);
        work.end_temporary(tree);
        packed
    }

    /// Keeps `tree` from getting overlays until what this returns is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn keep_out(&self, local: &TaskWorker, tree: Tree) -> Result<KeptOut, Error> {
        let overlays = &local.pool.overlays;
        let kept_out = overlays.keep_out(tree.id);
        while overlays.is_beginning(tree.id) {
            local.parts.shared.writable()?;
            local.worker.yield_now();
        }
        Ok(kept_out)
    }

    /// Has `end` commit that `tree` is dropped, to which no commit is in flight or begins any more.
    /// It is given changes of the catalog to commit along with that, and answers whether it has.
    /// Then the tree has no overlays: nothing that they have is merged, unless some of it may be a
    /// large value, since these are freed with the base.
    ///
    /// # Errors
    ///
    /// Those of `end`, and as for any commit.
    pub(crate) fn drop_with<E: From<Error>>(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
        tree: Tree,
        end: impl FnOnce(&[Change<'_>]) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let overlays = &local.pool.overlays;
        let _kept_out = self.keep_out(local, tree)?;
        if (overlays.of(tree.id)).is_some_and(|overlaid| overlaid.has_large()) {
            self.leave(transactions, local, tree)?;
        }
        let Some(overlaid) = overlays.of(tree.id) else {
            return end(&[]);
        };
        let Some(_busy) = self.wait_to_work(local, &overlaid)? else {
            return end(&[]);
        };
        let runs: Vec<_> = overlaid.levels().runs.iter().map(|run| run.tree).collect();
        let entry = |run: &Tree| {
            let key = listing::key(UNLISTED_RUN, run.id);
            (key, listing::encode_unlisted(*run))
        };
        let entries: Vec<_> = runs.iter().map(entry).collect();
        let listed = listing::key(OVERLAID, tree.id);
        let mut changes = vec![catalog_change(&listed, None)];
        let unlisted = entries.iter();
        changes.extend(unlisted.map(|(key, value)| catalog_change(key, Some(value))));
        if !end(&changes)? {
            return Ok(false);
        }
        overlays.remove(tree.id);
        // Readers may have the runs.
        let number = overlaid.change(|levels| Some(levels.with_runs(Vec::new())));
        let work = self.work(transactions, local);
        work.retire_at(&overlaid, number, Freed::Runs(runs));
        work.free_retired()?;
        Ok(true)
    }

    /// Makes the caller the one task that works on these overlays: none merges, either. `None` if
    /// the tree has them no more. What goes on for long ends.
    pub(super) fn wait_to_work<'o>(
        &self,
        local: &TaskWorker,
        overlaid: &'o Overlaid,
    ) -> Result<Option<Alone<'o>>, Error> {
        let overlays = &local.pool.overlays;
        let mut pause = None;
        let busy = until(local, || {
            let busy = overlaid.begin_work();
            if busy.is_none() {
                pause.get_or_insert_with(|| self.begin_pause());
            }
            busy
        })?;
        let held = overlaid.hold_merges();
        until(local, || (!overlaid.is_merging()).then_some(()))?;
        let has_them = overlays.state(overlaid.tree.id) == Some(overlaid.serial);
        Ok(has_them.then_some(Alone {
            _held: held,
            _busy: busy,
        }))
    }
}

impl Work<'_> {
    /// Has the tree of `overlaid`, with which the caller is busy, leave its overlays, and frees the
    /// space that they take.
    pub(super) fn leave_for_space(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        let _freeing = overlays.begin_to_free();
        if !overlaid.is_temporary() {
            let segments = self.local.parts.pagestore.segments();
            self.merging.left_at.store(segments, Ordering::SeqCst);
        }
        overlaid.forget_failures();
        let left = self.leave_and_free(overlaid);
        left.inspect_err(|error| {
            // What has led to it is not tried again by itself, either.
            overlaid.note_failure(&overlaid.upkeep_failed, error, overlays);
            overlaid.note_not_left(error);
        })
    }

    fn leave_and_free(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let (local, parts) = (self.local, &self.local.parts);
        let _held = overlaid.hold_merges();
        until(local, || (!overlaid.is_merging()).then_some(()))?;
        self.merge_and_end(overlaid)?;
        let mut patience = Patience::default();
        loop {
            // No other task is half-way.
            let freeing = self.merging.wait_to_free(local)?;
            if !self.merging.has_retired(overlaid) {
                break;
            }
            drop(freeing);
            // Readers have them for a moment still.
            parts.shared.writable()?;
            patience.wait(&local.worker);
            self.free_retired()?;
        }
        // What is pending now: commits go on, and more comes.
        for _ in 0..2 {
            parts.log_tasks.wait_all_durable(&local.worker)?;
            parts.pagestore.drain_pending_frees();
        }
        Ok(())
    }

    /// Between two steps others work on the overlays: they seal, and large transactions commit.
    fn pack_all(&self, tree: Tree, status: &TreeStatus) -> Result<(), Error> {
        let mut left = Some(Vec::new());
        // Bound: each round passes some leaves, or another task has the tree leave its overlays.
        while let Some(start) = left.take() {
            let Some(overlaid) = self.need_overlays(tree, status)? else {
                return Ok(());
            };
            left = match self.merging.wait_to_work(self.local, &overlaid)? {
                Some(_busy) => self.pack(&overlaid, start)?,
                None => Some(start),
            };
        }
        Ok(())
    }

    /// The caller's work that `tree` has temporary overlays for is done: it keeps them if they pay,
    /// with what they have now, or the system task has it leave them.
    pub(super) fn end_temporary(&self, tree: Tree) {
        let overlays = &self.local.pool.overlays;
        let overlaid = overlays.of(tree.id);
        let is_done = |overlaid: &Arc<Overlaid>| overlaid.is_temporary() && !overlaid.is_to_leave();
        let Some(overlaid) = overlaid.filter(is_done) else {
            return;
        };
        let levels = overlaid.levels();
        let mut parts = vec![tree];
        parts.extend(levels.runs.iter().map(|run| run.tree));
        match self.is_worth_overlays(&parts) {
            Ok(true) => overlaid.keep(overlays),
            // What cannot be read now they need not have.
            Ok(false) | Err(_) => overlaid.end_soon(),
        }
    }

    /// Of overlays with which the caller is busy.
    fn merge_and_end(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        // Most of it beside commits, which wait for the rest.
        self.merge_round(overlaid)?;
        overlaid.is_leaving.store(true, Ordering::SeqCst);
        let leaving = Leaving(overlaid);
        self.transactions.tracker.drain(false, || self.wait())?;
        // So that nothing in memory holds the log while all is merged.
        self.seal_all(overlaid)?;
        // Bound: each round passes some records.
        while !overlaid.levels().runs.is_empty() {
            self.merge_some(overlaid)?;
            // A memory of another tree would hold the log, and its writers. They are told.
            let _ = self.seal_due();
        }
        // Those that come with it still read the base, which has everything.
        let key = listing::key(OVERLAID, overlaid.tree.id);
        self.commit(&[catalog_change(&key, None)], None)?;
        overlays.remove(overlaid.tree.id);
        drop(leaving);
        self.free_retired()
    }
}
