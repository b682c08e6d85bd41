//! Large transactions: what they change in a tree becomes its newest run, which appears at once.
//!
//! 1. Wait for a backup that copies the store: it may have copies of leaves that are older than
//!    step 4. Trees of the transaction that have no overlays get some. What is in memory is sealed,
//!    so that little is left for step 2.
//! 2. Close the trees; wait for the commits in flight; work on these overlays alone; seal the rest.
//! 3. Validate each change, and build a run of them: puts, and tombstones of what single removals
//!    and removed ranges take away. Readers see the trees as they were.
//! 4. Wait until all that is on the drive, and what earlier commits have changed in leaves before
//!    the trees had overlays.
//! 5. One commit lists the runs. It says of each tree, as sealing does, that no record before 4 is
//!    to be repeated: recovery would put that into memory, above the run.
//! 6. Once every commit before it is applied, readers find the runs ([`Installs::install`]), and
//!    wait for what they find there until it is durable. Then open the trees.
//! 7. Trees that had no overlays leave them soon, but for those that are larger than the pool.
//!
//! Older snapshots cannot read these trees, nor older transactions change them.

use std::cmp::Ordering;
use std::sync::Arc;

use super::leave::Alone;
use super::{Merging, Work, listing};
use crate::btree::{
    Change, Direction, Loader, NotLoaded, Stretch, Tree, TreeId, ValueKind, ValueRef,
};
use crate::context::{TaskContext, TaskWorker};
use crate::error::{StorageError, TransactionError};
use crate::extent::{self, Extent};
use crate::levels;
use crate::log::record::Token;
use crate::overlay::{MAX_TREE_RUNS, Overlaid, Overlays, Run};
use crate::page::{Lsn, PageId};
use crate::shared::{Counters, Durability};
use crate::sync::Mutex;
use crate::txn::commit::{CommitContext, Installs};
use crate::txn::large::{LargeCommit, LargeTree, NextChange};
use crate::txn::tree_status::Closed;
use crate::txn::{Transactions, catalog_change};
use crate::types::{OVERLAID, REPLACED, UNLISTED_RUN};

/// Gives the next change of one tree.
type NextOfTree<'s> = dyn FnMut() -> Result<Option<Change>, TransactionError> + 's;

/// Records of a run that are built between two looks at other tasks.
const RECORDS_PER_TURN: u64 = 256;

/// The runs that the trees are to have.
struct Runs<'a> {
    overlaid: &'a [Arc<Overlaid>],
    /// In the order in which they were closed.
    closed: &'a [(usize, Closed<'a>)],
    /// One for each tree.
    runs: Vec<Arc<Run>>,
    tokens: Vec<Token>,
    chunks: Vec<PageId>,
    /// The watermarks of loads of `closed` before.
    before: Mutex<Vec<u64>>,
    all: &'a Overlays,
}

impl Installs for Runs<'_> {
    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn chunks(&self) -> &[PageId] {
        &self.chunks
    }

    fn trees(&self) -> Vec<TreeId> {
        self.overlaid.iter().map(|own| own.tree.id).collect()
    }

    fn begin(&self) {
        let closed = self.closed.iter();
        *self.before.lock() = closed.map(|(_, tree)| tree.begin_loading()).collect();
    }

    fn cancel(&self) {
        for ((_, tree), before) in self.closed.iter().zip(&*self.before.lock()) {
            tree.set_loaded(*before);
        }
    }

    fn install(&self, lsn: Lsn) {
        for (overlaid, run) in self.overlaid.iter().zip(&self.runs) {
            overlaid.change(|levels| {
                let mut runs = vec![Arc::clone(run)];
                runs.extend(levels.runs.iter().cloned());
                Some(levels.with_runs(runs))
            });
            overlaid.forget_failures();
            overlaid.set_pace(self.all);
        }
        for (_, tree) in self.closed {
            tree.set_loaded(lsn.0 + 8);
        }
    }
}

/// All changes of a tree, in order: what the transaction has written, and tombstones of the keys
/// that it removes as ranges.
struct Changes<'a> {
    commit: &'a LargeCommit<'a>,
    tree: &'a LargeTree<'a>,
    ctx: &'a TaskContext<'a>,
    next: &'a mut NextOfTree<'a>,
    /// The next one that was written.
    written: Option<Change>,
    stretches: Box<dyn Iterator<Item = Stretch> + 'a>,
    /// Of the stretch that is being removed.
    cursor: Option<levels::Cursor>,
    /// The next key that is removed.
    removed: Option<Vec<u8>>,
}

impl<'a> Changes<'a> {
    fn new(
        (commit, tree): (&'a LargeCommit<'a>, &'a LargeTree<'a>),
        ctx: &'a TaskContext<'a>,
        next: &'a mut NextOfTree<'a>,
    ) -> Result<Changes<'a>, TransactionError> {
        let mut changes = Changes {
            commit,
            tree,
            ctx,
            written: next()?,
            next,
            stretches: Box::new(tree.removed.iter()),
            cursor: None,
            removed: None,
        };
        changes.pass_removed()?;
        Ok(changes)
    }

    fn next(&mut self) -> Result<Option<Change>, TransactionError> {
        let order = match (&self.removed, &self.written) {
            (Some(removed), Some(written)) => removed.cmp(&written.key),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        if order == Ordering::Less {
            let key = self.pass_removed()?;
            return Ok(key.map(|key| Change { key, value: None }));
        }
        if order == Ordering::Equal {
            // It was written after that.
            self.pass_removed()?;
        }
        let following = (self.next)()?;
        Ok(std::mem::replace(&mut self.written, following))
    }

    /// Moves on to the next key that is removed; the one that was the next.
    fn pass_removed(&mut self) -> Result<Option<Vec<u8>>, StorageError> {
        let passed = self.removed.take();
        // Bound: each round passes a record, or a stretch.
        while self.removed.is_none() {
            let Some(cursor) = &mut self.cursor else {
                let Some(stretch) = self.stretches.next() else {
                    break;
                };
                let (lower, upper) = stretch.bounds();
                let cursor = levels::Cursor::new(self.tree.tree, lower, upper, Direction::Forward);
                self.cursor = Some(cursor);
                continue;
            };
            match cursor.next(self.ctx)? {
                None => self.cursor = None,
                Some(entry) if self.commit.was_there(self.tree, entry.key) => {
                    self.removed = Some(entry.key.to_vec());
                }
                Some(_) => {}
            }
        }
        Ok(passed)
    }
}

impl Merging {
    /// Commits a large transaction, all or nothing, and durably. `next` gives its changes.
    ///
    /// # Errors
    ///
    /// [`TransactionError::TransactionTooLarge`] if the record, which has the trees, and 8 bytes
    /// for each large value that is new and each chunk of those that are replaced, does not fit
    /// into the log; [`TransactionError::Conflict`], [`TransactionError::SnapshotTooOld`],
    /// [`TransactionError::TreeDropped`], [`StorageError::VolumeFull`], those of `next` and of
    /// reading: nothing has changed then. [`StorageError::Poisoned`] or a failed write.
    pub(crate) fn commit_large(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
        trees: &[LargeTree<'_>],
        context: CommitContext<'_>,
        next: &mut NextChange<'_>,
    ) -> Result<(), TransactionError> {
        let work = self.work(transactions, local);
        let committed = work.commit_large(trees, context, next);
        for tree in trees {
            work.end_temporary(tree.tree);
        }
        committed
    }
}

impl Work<'_> {
    fn commit_large(
        &self,
        trees: &[LargeTree<'_>],
        context: CommitContext<'_>,
        next: &mut NextChange<'_>,
    ) -> Result<(), TransactionError> {
        let (merging, local) = (self.merging, self.local);
        let commit = LargeCommit::new(self.transactions, local, trees, context)?;
        let _without_backup = commit.begin_large()?;
        // Bound: another task has a tree leave its overlays each time.
        loop {
            for tree in trees {
                let overlaid = self.need_overlays(tree.tree, tree.status)?;
                let overlaid = overlaid.ok_or_else(|| tree.dropped())?;
                if let Some(_busy) = merging.wait_to_work(local, &overlaid)? {
                    self.seal_all(&overlaid)?;
                }
            }
            let closed = commit.close()?;
            let overlaid = trees
                .iter()
                .map(|tree| local.pool.overlays.of(tree.tree.id));
            let Some(overlaid) = overlaid.collect::<Option<Vec<_>>>() else {
                continue;
            };
            let busy = overlaid.iter().map(|own| merging.wait_to_work(local, own));
            let Some(_busy) = busy.collect::<Result<Option<Vec<Alone<'_>>>, _>>()? else {
                continue;
            };
            for own in &overlaid {
                self.seal_all(own)?;
                // So that the catalog can name one more.
                self.merge_below(own, MAX_TREE_RUNS)?;
            }
            return self.commit_runs((&commit, trees), &closed, &overlaid, next);
        }
    }

    /// Builds a run for each tree, with which the caller is busy, and lists them.
    fn commit_runs(
        &self,
        (commit, trees): (&LargeCommit<'_>, &[LargeTree<'_>]),
        closed: &[(usize, Closed<'_>)],
        overlaid: &[Arc<Overlaid>],
        next: &mut NextChange<'_>,
    ) -> Result<(), TransactionError> {
        let mut runs = Runs {
            overlaid,
            closed,
            runs: Vec::with_capacity(trees.len()),
            tokens: Vec::new(),
            chunks: Vec::new(),
            before: Mutex::default(),
            all: &self.local.pool.overlays,
        };
        let mut trees = trees.iter().zip(overlaid).enumerate();
        let built = trees.try_for_each(|(at, (tree, own))| {
            let run = self.create_run()?;
            let mut changes = || next(at);
            let records = self.fill_run((commit, tree), own, (run, &mut changes), &mut runs);
            let records = records.inspect_err(|_| self.give_up(run))?;
            let position = own.levels().position.as_ref().clone();
            // Its filter is built by the task: only now it is known how many records it has.
            runs.runs.push(Arc::new(Run::new(run, records, position)));
            Ok(())
        });
        built
            .and_then(|()| self.list_runs(commit, &runs))
            .inspect_err(|_| runs.runs.iter().for_each(|run| self.give_up(run.tree)))
    }

    /// Fills `run` with the changes of a tree; how many they are.
    fn fill_run(
        &self,
        (commit, tree): (&LargeCommit<'_>, &LargeTree<'_>),
        overlaid: &Overlaid,
        (run, next): (Tree, &mut NextOfTree<'_>),
        runs: &mut Runs<'_>,
    ) -> Result<u64, TransactionError> {
        let (local, ctx) = (self.local, TaskContext { local: self.local });
        commit.validate_removed(tree)?;
        let mut changes = Changes::new((commit, tree), &ctx, next)?;
        let mut loader = Loader::new(&ctx, run, 100, || Ok::<(), StorageError>(()))?;
        // Of this transaction's own values none goes.
        let has_large = overlaid.has_large();
        let (mut records, mut old) = (0_u64, Vec::new());
        while let Some(change) = changes.next()? {
            commit.validate_write(tree, &change.key)?;
            if has_large
                && levels::get(&tree.tree, &ctx, &change.key, &mut old)? == Some(ValueKind::Extent)
            {
                let replaced = extent::chunk_ids(local, extent::decode(&old)?)?;
                runs.chunks.extend(replaced);
            }
            let value = change.value.as_ref();
            let value = value.map(|(kind, bytes)| ValueRef { kind: *kind, bytes });
            if let Some(value) = value.filter(|value| value.kind == ValueKind::Extent) {
                overlaid.note_large();
                let token = Extent::decode(value.bytes).map(|extent| extent.token());
                runs.tokens.extend(token);
            }
            commit.check_entries(runs.chunks.len() + runs.tokens.len())?;
            let pushed = loader.push(&change.key, value.unwrap_or(ValueRef::TOMBSTONE));
            pushed.map_err(NotLoaded::of_own_work)?;
            records += 1;
            if records.is_multiple_of(RECORDS_PER_TURN) {
                self.wait()?;
                // A memory of another tree would hold the log, and its writers. They are told.
                let _ = self.seal_due();
            }
        }
        loader.complete()?;
        loader.link(&mut |_| {}).map_err(NotLoaded::of_own_work)?;
        Ok(records)
    }

    /// Commits that the trees have these runs.
    fn list_runs(&self, commit: &LargeCommit<'_>, runs: &Runs<'_>) -> Result<(), TransactionError> {
        let (local, log) = (self.local, &self.local.parts.log);
        let sealed_before = log.next();
        let are_durable = |own: &Arc<Overlaid>| own.leaves_are_durable(log.start());
        if log.is_on() && !runs.overlaid.iter().all(are_durable) {
            // The log does not repeat what was changed in leaves before they had overlays.
            TaskContext { local }.flush_older_than(sealed_before)?;
        }
        let entry = |(own, run): (&Arc<Overlaid>, &Arc<Run>)| {
            let mut listed = vec![Arc::clone(run)];
            listed.extend(own.levels().runs.iter().cloned());
            let id = own.tree.id;
            (
                listing::key(UNLISTED_RUN, run.tree.id),
                (
                    listing::key(OVERLAID, id),
                    listing::encode(own, &listed, sealed_before),
                ),
                listing::key(REPLACED, id),
            )
        };
        let entries: Vec<_> = runs.overlaid.iter().zip(&runs.runs).map(entry).collect();
        let changes: Vec<_> = entries
            .iter()
            .flat_map(|(built, (listed, entry), replaced)| {
                [
                    catalog_change(built, None),
                    catalog_change(listed, Some(entry)),
                    catalog_change(replaced, None),
                ]
            })
            .collect();
        let context = CommitContext {
            installs: Some(runs),
            ..commit.context()
        };
        let _turn = self.transactions.await_turn(local)?;
        self.transactions.change_all(
            local,
            &changes,
            context,
            Durability::Synced,
            &mut |_, _| Ok(true),
        )?;
        let overlaid = runs.overlaid.iter();
        overlaid.for_each(|own| own.set_sealed_before(sealed_before));
        Counters::add(&self.transactions.counters.large_commits, 1);
        Ok(())
    }
}
