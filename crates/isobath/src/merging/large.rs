//! Large transactions: what they change in a tree with overlays becomes its newest run.
//!
//! 1. Wait for a backup that copies the store: it may have copies of leaves that are older than
//!    step 4. Trees of the transaction that have no overlays get some. What is in memory is sealed,
//!    so that little is left for step 2.
//! 2. Close the trees; wait for the commits in flight; work on these overlays alone; seal the rest.
//! 3. Validate each change, and build a run of them. Readers see the trees as they were.
//! 4. Wait until all that is on the drive, and what earlier commits have changed in leaves before
//!    the trees had overlays.
//! 5. One commit lists the runs. It says of each tree, as sealing does, that no record before 4 is
//!    to be repeated: recovery would put that into memory, above the run.
//! 6. Once that is durable, and every commit before it, readers find the runs
//!    ([`Installs::install`]). Open the trees.
//!
//! Older snapshots cannot read these trees, nor older transactions change them, as where a large
//! transaction rewrites a tree ([`large`](crate::txn::large)).

use std::sync::Arc;

use super::leave::Alone;
use super::{Merging, Work, listing};
use crate::btree::{Change, Loader, NotLoaded, Tree, TreeId, ValueKind, ValueRef};
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

impl Merging {
    /// Commits a large transaction, all or nothing, and durably, if one of its trees has overlays;
    /// `false`, with nothing taken of `next`, if none has, or the leaves have to be rewritten: to
    /// take whole ranges from them, or since another tree has no overlays and is to get none now.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::commit_large`].
    pub(crate) fn commit_large(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
        trees: &[LargeTree<'_>],
        context: CommitContext<'_>,
        next: &mut NextChange<'_>,
    ) -> Result<bool, TransactionError> {
        let overlays = &local.pool.overlays;
        let takes_ranges = trees.iter().any(|tree| !tree.removed.is_empty());
        if takes_ranges || !trees.iter().any(|tree| overlays.has(tree.tree.id)) {
            return Ok(false);
        }
        let work = self.work(transactions, local);
        let commit = LargeCommit::new(transactions, local, trees, context)?;
        let _rewriting = commit.begin_rewriting()?;
        // Bound: another task has a tree leave its overlays each time.
        loop {
            for tree in trees {
                if !work.seal_early(tree)? {
                    return Ok(false);
                }
            }
            let closed = commit.close()?;
            let overlaid = trees.iter().map(|tree| overlays.of(tree.tree.id));
            let Some(overlaid) = overlaid.collect::<Option<Vec<_>>>() else {
                continue;
            };
            let busy = overlaid.iter().map(|own| self.wait_to_work(local, own));
            let Some(_busy) = busy.collect::<Result<Option<Vec<Alone<'_>>>, _>>()? else {
                continue;
            };
            for own in &overlaid {
                work.seal_all(own)?;
                // So that the catalog can name one more.
                work.merge_below(own, MAX_TREE_RUNS)?;
            }
            work.commit_runs((&commit, trees), &closed, &overlaid, next)?;
            return Ok(true);
        }
    }
}

impl Work<'_> {
    /// Has the tree have overlays, and nothing in memory but what commits put there from now on;
    /// `false` if it is to have none now.
    fn seal_early(&self, tree: &LargeTree<'_>) -> Result<bool, StorageError> {
        let overlays = &self.local.pool.overlays;
        let Some(overlaid) = overlays.of(tree.tree.id) else {
            let beginning = match self.local.parts.shared.config.overlays {
                true => overlays.begin_with(tree.tree.id),
                false => None,
            };
            let Some(_beginning) = beginning else {
                return Ok(false);
            };
            self.give_overlays(tree.tree)?;
            return Ok(true);
        };
        if let Some(_busy) = self.merging.wait_to_work(self.local, &overlaid)? {
            self.seal_all(&overlaid)?;
        }
        Ok(true)
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
        let mut loader = Loader::new(&ctx, run, 100, || Ok::<(), StorageError>(()))?;
        // Of this transaction's own values none goes.
        let has_large = overlaid.has_large();
        let (mut records, mut old) = (0_u64, Vec::new());
        while let Some(change) = next()? {
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
