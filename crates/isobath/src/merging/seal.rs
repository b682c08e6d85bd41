//! Sealing: a memory becomes a run.
//!
//! 1. The tree gets a new memory.
//! 2. The commits in flight end: none changes the old one any more.
//! 3. A tree is built of it, which the catalog lists as a run that is being built: a crash frees
//!    it.
//! 4. Between two merges one commit makes it the newest run of the tree: merges pass it from there.
//!    It says from where on a recovery repeats changes: from the first one in the new memory, and
//!    at the latest from the first commit after 1. Runs have those before. Leaves have those from
//!    before the tree had overlays, once a checkpoint has passed them: until then the commit says
//!    what the last one said. So it does beside a backup, which may have older copies of leaves,
//!    for which the log repeats what has changed in them.
//! 5. Readers find it in place of the memory, which lets go of the log.

use std::ops::Bound;
use std::sync::Arc;

use super::{Work, listing};
use crate::btree::{Loader, NotLoaded, Tree, ValueRef};
use crate::canary::{self, Canary};
use crate::context::{TaskContext, WriteContext};
use crate::error::{StorageError as Error, TransactionError};
use crate::overlay::{Filter, Levels, MAX_TREE_RUNS, Memory, Overlaid, Run};
use crate::page::{Lsn, PAGE_SIZE};
use crate::shared::Counters;
use crate::txn::catalog_change;
use crate::txn::commit::CommitContext;
use crate::txn::reserved_task::ReservedTask;
use crate::types::{OVERLAID, UNLISTED_RUN};

/// Records that are copied under one lock.
const COPIED_AT_ONCE: usize = 256;
/// Pages of a run that are freed between two looks at other tasks.
const FREE_STEP: u32 = 64;

impl Work<'_> {
    /// Seals all that `overlaid`, with which the caller is busy, has in memory.
    pub(super) fn seal_all(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        // The second one is the memory, if an earlier attempt has left one half-way.
        for _ in 0..2 {
            self.seal(overlaid)?;
        }
        Ok(())
    }

    /// Seals the memory of `overlaid`, with which the caller is busy, or one that an earlier attempt
    /// has left half-way.
    pub(super) fn seal(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        // So that the catalog can name one more.
        self.merge_below(overlaid, MAX_TREE_RUNS)?;
        let begins = self.local.parts.log.next();
        overlaid.change(|levels| {
            // One that an earlier attempt has left is first.
            let begins = levels.sealing.is_none() && levels.memory.count() > 0;
            begins.then(|| Levels {
                memory: Arc::default(),
                sealing: Some(Arc::clone(&levels.memory)),
                ..levels.copy()
            })
        });
        let levels = overlaid.levels();
        let Some(memory) = &levels.sealing else {
            return Ok(());
        };
        self.transactions.tracker.drain(false, || self.wait())?;
        let (tree, filter) = self.build(memory)?;
        let sealed_before = self.sealed_before(overlaid, &levels, begins);
        let merging = match canary::is_on(Canary::SealBesideMerge) {
            true => Ok(None),
            false => self.wait_to_merge(overlaid).map(Some),
        };
        let _merging = merging.inspect_err(|_| self.give_up(tree))?;
        let position = overlaid.levels().position.as_ref().clone();
        let run = Arc::new(Run::new(tree, memory.count(), position));
        // It is the first one.
        let _ = run.filter.set(filter);
        let mut runs = vec![Arc::clone(&run)];
        runs.extend(levels.runs.iter().cloned());
        // The memory goes with them.
        drop(levels);
        let entry = listing::encode(overlaid, &runs, sealed_before);
        let (listed, built) = (
            listing::key(OVERLAID, overlaid.tree.id),
            listing::key(UNLISTED_RUN, run.tree.id),
        );
        let changes = [
            catalog_change(&built, None),
            catalog_change(&listed, Some(&entry)),
        ];
        if let Err(error) = self.commit(&changes, None) {
            self.give_up(run.tree);
            return Err(error);
        }
        overlaid.set_sealed_before(sealed_before);
        overlaid.change(|levels| {
            Some(Levels {
                sealing: None,
                ..levels.with_runs(runs)
            })
        });
        overlaid.forget_failures();
        overlaid.set_pace(&self.local.pool.overlays);
        Counters::add(&self.local.parts.shared.counters.sealed_runs, 1);
        Ok(())
    }

    /// From where on a recovery repeats changes once the memory is a run whose sealing began at
    /// `begins`; the commits in flight then have ended.
    fn sealed_before(&self, overlaid: &Overlaid, levels: &Levels, begins: Lsn) -> Lsn {
        let log = &self.local.parts.log;
        let is_copying =
            self.transactions.copies.is_copying() && !canary::is_on(Canary::SealBesideBackup);
        if !log.is_on() || is_copying || !overlaid.leaves_are_durable(log.start()) {
            return overlaid.sealed_before();
        }
        match canary::is_on(Canary::SealBeyondMemory) {
            true => log.next(),
            false => begins.min(Lsn(levels.memory.first())),
        }
    }

    /// As [`Work::seal_due`], if no other wants the tasks to do nothing.
    fn seal_due_unless_paused(&self) -> Result<(), Error> {
        match self.merging.is_paused() {
            true => Ok(()),
            false => self.seal_due(),
        }
    }

    /// Seals what is due, between steps of other work, of trees with which no task is busy.
    pub(super) fn seal_due(&self) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        for overlaid in overlays.all() {
            if self.merging.is_to_be_sealed(&overlaid)
                && let Some(_busy) = overlaid.begin_work()
                && overlays.state(overlaid.tree.id) == Some(overlaid.serial)
            {
                let sealed = self.seal(&overlaid);
                sealed.inspect_err(|error| *overlaid.failed.lock() = Some(error.clone()))?;
            }
        }
        Ok(())
    }

    /// Builds the tree of a run, and its filter, of a memory that no commit changes.
    fn build(&self, memory: &Memory) -> Result<(Tree, Filter), Error> {
        let tree = self.create_run()?;
        let filter = Filter::new(memory.count());
        let filled = self.fill(tree, memory, &filter);
        filled.inspect_err(|_| self.give_up(tree))?;
        Ok((tree, filter))
    }

    /// Makes an empty run, which the catalog lists as one that is being built.
    pub(super) fn create_run(&self) -> Result<Tree, Error> {
        let ctx = self.beyond_limit(1)?;
        let parts = &self.local.parts;
        let id = (self.transactions)
            .next_tree_id(self.local)
            .map_err(TransactionError::of_own_work)?
            .of_run();
        let token = parts.log.stamp(self.local.worker.index).0;
        let tree = Tree::create(&ctx, id, Some(token))?;
        let (key, value) = (
            listing::key(UNLISTED_RUN, id),
            listing::encode_unlisted(tree),
        );
        let listed = crate::txn::commit::Change {
            confirms: Some(token),
            ..catalog_change(&key, Some(&value))
        };
        if let Err(error) = self.commit(&[listed], None) {
            if parts.shared.writable().is_ok() {
                tree.free_root(&ctx)?;
                ctx.cancel_provisional(Some(token), &[]);
            }
            return Err(error);
        }
        Ok(tree)
    }

    fn fill(&self, tree: Tree, memory: &Memory, filter: &Filter) -> Result<(), Error> {
        let ctx = self.beyond_limit((memory.bytes() / PAGE_SIZE as u64) as usize)?;
        let mut loader = Loader::new(&ctx, tree, 100, || Ok::<(), Error>(()))?;
        let mut last: Option<Vec<u8>> = None;
        loop {
            let lower = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let records = memory.within((lower, Bound::Unbounded), true, COPIED_AT_ONCE)?;
            let Some(end) = records.last() else {
                break;
            };
            last = Some(end.key.clone());
            for record in &records {
                let key = &record.key;
                loader
                    .push(key, record.value())
                    .map_err(NotLoaded::of_own_work)?;
                if !canary::is_on(Canary::ForgetInFilter) || !key.len().is_multiple_of(2) {
                    filter.add(key);
                }
            }
            self.local.worker.yield_now();
        }
        // Values belong to the tree whose overlay it is.
        loader.complete()?;
        loader
            .link(&mut |_| {})
            .map(drop)
            .map_err(NotLoaded::of_own_work)
    }

    /// A task for about so many pages, which takes them beyond what user data may take where it has
    /// to: what is in memory has to find space, and merges free what they replace. So that it does
    /// not go far beyond, what is dead already is freed before, and all is merged from then on.
    pub(super) fn beyond_limit(&self, pages: usize) -> Result<ReservedTask<'_>, Error> {
        let pagestore = &self.local.parts.pagestore;
        if !pagestore.has_room_for((pages * PAGE_SIZE) as u64) {
            pagestore.wait_for_pending_frees(&self.local.worker)?;
            match pagestore.reserve_pages(&self.local.worker, pages as u64) {
                Ok(()) => pagestore.release_pages(pages as u64),
                Err(Error::VolumeFull { .. }) => self.local.pool.overlays.leave_for_space(),
                Err(error) => return Err(error),
            }
        }
        ReservedTask::reserve_from(self.local, 0, true, 0)
    }

    /// Frees a run that will not be used; what fails is left to the next opening.
    pub(super) fn give_up(&self, run: Tree) {
        if self.local.parts.shared.writable().is_ok() {
            // The caller has an error to tell already.
            let _ = self.free_run(run);
        }
    }

    /// Frees a run that no reader has and the catalog lists as such.
    pub(super) fn free_run(&self, run: Tree) -> Result<(), Error> {
        let ctx = TaskContext { local: self.local };
        // Large values belong to the tree whose run it was.
        while !run.free_some(&ctx, FREE_STEP, &mut |_| Ok(()))? {
            self.local.worker.yield_now();
            // Its writers are told.
            let _ = self.seal_due_unless_paused();
        }
        let key = listing::key(UNLISTED_RUN, run.id);
        self.commit(&[catalog_change(&key, None)], Some(run))
    }

    /// Commits changes of the catalog, with the end of a tree of which nothing but the root is
    /// left.
    pub(super) fn commit(
        &self,
        changes: &[crate::txn::commit::Change<'_>],
        ends: Option<Tree>,
    ) -> Result<(), Error> {
        let context = CommitContext {
            frees_space: true,
            frees_log: true,
            ends,
            ..CommitContext::default()
        };
        let durability = self.local.parts.shared.config.durability;
        let precondition = &mut |_, _: Option<ValueRef<'_>>| Ok(true);
        self.transactions
            .change_all(self.local, changes, context, durability, precondition)
            .map(drop)
            .map_err(TransactionError::of_own_work)
    }
}
