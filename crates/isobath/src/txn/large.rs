//! The commit of a transaction that is too large for one log record: its trees are rewritten beside
//! themselves, and one record makes all of that valid (docs/decisions/0033-large-transactions.md).
//!
//! 1. Close the trees: other commits to them wait. Wait for those in flight.
//! 2. Validate and rewrite: new leaves for the ranges that change, new inner nodes above them. What
//!    is new belongs to a token. Readers see the trees as they were.
//! 3. Wait until all that is durable, with whatever earlier commits have changed in the trees; then
//!    say that earlier commits are not to be repeated there.
//! 4. Register in the tracker, keep snapshots from the trees, validate what was read.
//! 5. Append the record: the new roots, what is confirmed, what is freed. Wait until it is durable.
//! 6. Wait until earlier commits are applied and durable. Give all roots their new content in one
//!    step, and let snapshots that are newer than the record read the trees. Once the watermark has
//!    passed the record, empty the slot. Readers outside transactions that come in that time wait:
//!    they would see this commit, and of earlier ones what these have replaced.
//! 7. Free what the roots have replaced, parents before their children. Until that is done no log
//!    begins behind the record. Open the trees.
//!
//! Before step 5 nothing has happened that a recovery or a reader sees.

use super::commit::CommitContext;
use super::copies::Rewriting;
use super::serializable::Validation;
use super::snapshots::Registered;
use super::tree_status::Closed;
use super::versions::OldValue;
use super::{Transactions, TreeStatus};
use crate::btree::{
    self, Change, Direction, Edits, Rewrite, Rewritten, Stretches, Tree, TreeId, ValueKind,
};
use crate::canary::{self, Canary};
use crate::context::{TaskContext, TaskParts, TaskWorker, WriteContext};
use crate::error::{StorageError, TransactionError};
use crate::extent::{self, Extent};
use crate::log::record::{Kind, Token, structure_body};
use crate::log::{ReservationClass, Slot};
use crate::page::{Lsn, PAGE_SIZE, PageId};
use crate::runtime::Patience;
use crate::shared::Counters;

/// Frames of the pool for each root that one commit may change.
const FRAMES_PER_ROOT: u64 = 4;

/// Versions that are looked at together.
const VALIDATED_AT_ONCE: usize = 256;

/// A tree that the transaction changes.
#[derive(Clone, Copy)]
pub(crate) struct LargeTree<'a> {
    pub(crate) tree: Tree,
    pub(crate) name: &'a str,
    pub(crate) status: &'a TreeStatus,
    /// Keys that are removed where the transaction's snapshot has them, unless a change says what
    /// they are going to have.
    pub(crate) removed: &'a Stretches,
}

impl LargeTree<'_> {
    fn conflict(&self, key: &[u8]) -> TransactionError {
        TransactionError::Conflict {
            tree: self.name.to_owned(),
            key: key.to_vec(),
        }
    }
}

/// Gives the next change of the tree at this index, by ascending keys, each key once.
pub(crate) type NextChange<'s> = dyn FnMut(usize) -> Result<Option<Change>, TransactionError> + 's;

/// The contents of the record.
#[derive(Default)]
struct Content {
    trees: Vec<Rewritten>,
    /// Chunks of large values that are replaced or removed.
    chunks: Vec<PageId>,
    /// Of large values that are new, and of the pages.
    tokens: Vec<Token>,
}

impl Content {
    fn ended(&self) -> Vec<PageId> {
        let pages = self.trees.iter().flat_map(|tree| &tree.replaced);
        pages.chain(&self.chunks).copied().collect()
    }
}

/// A large commit on its way.
pub(crate) struct LargeCommit<'a> {
    transactions: &'a Transactions,
    local: &'a TaskWorker,
    trees: &'a [LargeTree<'a>],
    context: CommitContext<'a>,
    token: Token,
    /// Entries of 8 bytes that the record may have.
    most: usize,
    /// All records stay, in fewer leaves.
    repacks: bool,
}

impl Transactions {
    /// Commits the changes of `trees`, all or none, and durably.
    ///
    /// # Errors
    ///
    /// [`TransactionError::TransactionTooLarge`] if the record, which has the roots, and 8 bytes
    /// for each page and each chunk that is replaced and for each large value, does not fit into
    /// the log, or the roots take too much of the pool; [`TransactionError::Conflict`],
    /// [`TransactionError::SnapshotTooOld`], [`TransactionError::TreeDropped`],
    /// [`StorageError::VolumeFull`], those of `next` and of reading: nothing has changed then.
    /// [`StorageError::Poisoned`] or a failed write.
    pub(crate) fn commit_large(
        &self,
        local: &TaskWorker,
        trees: &[LargeTree<'_>],
        context: CommitContext<'_>,
        next: &mut NextChange<'_>,
    ) -> Result<(), TransactionError> {
        LargeCommit::new(self, local, trees, context)?.run(next)?;
        Counters::add(&self.counters.commits, 1);
        Counters::add(&self.counters.large_commits, 1);
        Ok(())
    }

    /// Moves all records of a tree to new leaves, as full as those of a load. Commits to the tree
    /// wait for that; readers and snapshots see what they saw.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::commit_large`], but for a conflict.
    pub(crate) fn repack(
        &self,
        local: &TaskWorker,
        tree: Tree,
        name: &str,
        status: &TreeStatus,
    ) -> Result<(), TransactionError> {
        let trees = [LargeTree {
            tree,
            name,
            status,
            removed: &Stretches::of_all_keys(),
        }];
        let context = CommitContext::default();
        let commit = LargeCommit::new(self, local, &trees, context)?;
        let repacking = LargeCommit {
            repacks: true,
            ..commit
        };
        repacking.run(&mut |_| Ok(None))
    }
}

impl Transactions {
    /// Waits until the commit at `lsn`, and those before it, are durable, and these are applied, so
    /// that it is visible soon after its trees have their new content.
    pub(super) fn await_older(
        &self,
        local: &TaskWorker,
        slot: &Slot<'_>,
        lsn: Lsn,
    ) -> Result<(), StorageError> {
        let parts = &local.parts;
        if canary::is_on(Canary::SwapBeforeRecord) || !parts.log.is_on() {
            return Ok(());
        }
        parts.log_tasks.wait_durable(&local.worker, lsn)?;
        while self.tracker.waits_for_others(&parts.log, lsn, slot)
            && !canary::is_on(Canary::ShowRootsEarly)
        {
            parts.shared.writable()?;
            local.worker.yield_now();
        }
        Ok(())
    }
}

/// All roots are in memory and latched when they get their new content.
fn check_trees(parts: &TaskParts, trees: usize) -> Result<(), TransactionError> {
    let most = u64::from(parts.buffer.pool.frames.count()) / FRAMES_PER_ROOT;
    if trees as u64 > most {
        return Err(TransactionError::TransactionTooLarge {
            bytes: trees as u64 * PAGE_SIZE as u64,
            limit: most * PAGE_SIZE as u64,
        });
    }
    Ok(())
}

impl<'a> LargeCommit<'a> {
    /// Of `trees`, at most so many that their roots fit the pool.
    pub(crate) fn new(
        transactions: &'a Transactions,
        local: &'a TaskWorker,
        trees: &'a [LargeTree<'a>],
        context: CommitContext<'a>,
    ) -> Result<LargeCommit<'a>, TransactionError> {
        let parts = &local.parts;
        TaskContext { local }.admit()?;
        check_trees(parts, trees.len())?;
        Ok(LargeCommit {
            transactions,
            local,
            trees,
            context,
            token: parts.log.stamp(local.worker.index).0,
            most: (parts.log.record_limit() / 8) as usize,
            repacks: false,
        })
    }

    /// The transaction's snapshot and reads.
    pub(crate) fn context(&self) -> CommitContext<'a> {
        self.context
    }

    fn run(&self, next: &mut NextChange<'_>) -> Result<(), TransactionError> {
        let parts = &self.local.parts;
        let _rewriting = self.begin_rewriting()?;
        let closed = self.close()?;
        let mut built = Vec::new();
        let done = self
            .rewrite(next, &mut built)
            .and_then(|content| self.prepare(&content).map(|body| (content, body)))
            .and_then(|(content, body)| self.write(&closed, &content, &body));
        // Where the record may be in the log its pages stay.
        if done.is_err() && parts.shared.writable().is_ok() {
            parts
                .pagestore
                .discard_pages(&self.local.worker, self.token, built);
        }
        done
    }

    /// Keeps backups from copying the store; waited for before the first tree is closed.
    pub(crate) fn begin_rewriting(&self) -> Result<Rewriting<'a>, StorageError> {
        let copies = &self.transactions.copies;
        copies.begin_rewriting(&self.local.parts.shared, &self.local.worker)
    }

    /// Closes all trees, in one order for all commits, and waits for the commits in flight.
    pub(crate) fn close(&self) -> Result<Vec<(usize, Closed<'a>)>, TransactionError> {
        let mut patience = Patience::default();
        let mut wait = || {
            self.local.parts.shared.writable()?;
            patience.wait(&self.local.worker);
            Ok::<(), TransactionError>(())
        };
        let mut order: Vec<usize> = (0..self.trees.len()).collect();
        order.sort_unstable_by_key(|&at| self.trees[at].tree.id);
        let mut closed = Vec::with_capacity(order.len());
        for at in order {
            let tree = &self.trees[at];
            let own = tree.status.close_to_load(&mut wait)?;
            let dropped = || TransactionError::TreeDropped {
                name: tree.name.to_owned(),
            };
            closed.push((at, own.ok_or_else(dropped)?));
        }
        if !canary::is_on(Canary::RewriteBesideCommits) {
            self.transactions.tracker.drain(false, &mut wait)?;
        }
        let snapshot = self.context.snapshot;
        for tree in self.trees {
            if snapshot.is_some_and(|own| own.lsn < tree.status.loaded()) {
                return Err(tree.conflict(&[]));
            }
        }
        Ok(closed)
    }

    /// Writes the trees' new content beside them; `built` receives the new pages, also if this
    /// fails.
    fn rewrite(
        &self,
        next: &mut NextChange<'_>,
        built: &mut Vec<PageId>,
    ) -> Result<Content, TransactionError> {
        let ctx = TaskContext { local: self.local };
        let mut content = Content {
            tokens: vec![self.token],
            ..Content::default()
        };
        for (at, tree) in self.trees.iter().enumerate() {
            let taken: usize = content.trees.iter().map(|tree| tree.replaced.len()).sum();
            let most = self.most.saturating_sub(taken);
            let mut rewrite = Rewrite::new(&ctx, tree.tree, btree::FILL_PERCENT, self.token, most);
            let (tokens, chunks) = (&mut content.tokens, &mut content.chunks);
            let mut changes = || {
                let Some(change) = next(at)? else {
                    return Ok(None);
                };
                self.validate_write(tree, &change.key)?;
                if let Some((ValueKind::Extent, bytes)) = &change.value {
                    tokens.extend(Extent::decode(bytes).map(|extent| extent.token()));
                    self.check_entries(tokens.len())?;
                }
                Ok(Some(change))
            };
            let mut on_replaced = |descriptor: &[u8]| {
                chunks.extend(extent::chunk_ids(self.local, extent::decode(descriptor)?)?);
                self.check_entries(chunks.len())
            };
            self.validate_removed(tree)?;
            let rewritten = rewrite.run(&mut Edits {
                next: &mut changes,
                removed: tree.removed,
                is_removed: Some(&mut |key| Ok(!self.repacks && self.was_there(tree, key))),
                on_replaced: &mut on_replaced,
            });
            built.append(&mut rewrite.built());
            content.trees.push(rewritten?);
        }
        Ok(content)
    }

    /// The record can name so many pages, chunks or tokens.
    pub(crate) fn check_entries(&self, count: usize) -> Result<(), TransactionError> {
        if count > self.most {
            return Err(self.too_large(8 * count as u64));
        }
        Ok(())
    }

    fn too_large(&self, bytes: u64) -> TransactionError {
        let limit = 8 * self.most as u64;
        TransactionError::TransactionTooLarge { bytes, limit }
    }

    /// First committer wins: no commit has changed the key since the snapshot; as the tree is
    /// closed none will.
    pub(crate) fn validate_write(
        &self,
        tree: &LargeTree<'_>,
        key: &[u8],
    ) -> Result<(), TransactionError> {
        let Some(snapshot) = self.context.snapshot else {
            return Ok(());
        };
        let versions = &self.transactions.versions;
        if versions.is_changed(tree.tree.id, key, snapshot.lsn, None)
            && !canary::is_on(Canary::SkipWriteValidation)
        {
            return Err(tree.conflict(key));
        }
        Ok(())
    }

    /// The same of the stretches that are removed: no record that the snapshot has there was
    /// changed.
    fn validate_removed(&self, tree: &LargeTree<'_>) -> Result<(), TransactionError> {
        let Some(snapshot) = self.context.snapshot else {
            return Ok(());
        };
        let versions = &self.transactions.versions;
        let is_skipped = canary::is_on(Canary::SkipWriteValidation);
        for stretch in tree.removed.iter().filter(|_| !is_skipped) {
            let mut rest = Some(stretch);
            // Bound: each round passes some versions, or is the last.
            while let Some(stretch) = rest.take() {
                let wanted = (snapshot.lsn, Direction::Forward, VALIDATED_AT_ONCE);
                let changed = versions.within(tree.tree.id, stretch.bounds(), wanted);
                let mut found = changed.found.iter();
                if let Some((key, _)) = found.find(|(_, old)| *old != OldValue::Absent) {
                    return Err(tree.conflict(key));
                }
                if let Some(cut) = &changed.cut {
                    let passed = stretch.up_to(cut, Direction::Forward);
                    rest = stretch.past(&passed, Direction::Forward);
                }
            }
        }
        Ok(())
    }

    /// Whether a record of a stretch that is removed, which is valid, was there for the snapshot:
    /// what others have inserted since stays.
    fn was_there(&self, tree: &LargeTree<'_>, key: &[u8]) -> bool {
        let versions = &self.transactions.versions;
        let at = self.context.snapshot.map(|snapshot| snapshot.lsn);
        at.is_none_or(|at| versions.find(tree.tree.id, key, at) != Some(OldValue::Absent))
    }

    /// Waits until the new pages are durable, and what earlier commits have changed in pages that
    /// stay; the record's body.
    fn prepare(&self, content: &Content) -> Result<Vec<u8>, TransactionError> {
        let (local, parts) = (self.local, &self.local.parts);
        let body = btree::roots_body(&content.trees, &content.ended(), &content.tokens, false);
        if body.len() as u64 > parts.log.record_limit() {
            return Err(self.too_large(body.len() as u64));
        }
        if !parts.log.is_on() {
            return Ok(body);
        }
        parts
            .log_tasks
            .wait_to_hold(&local.worker, body.len() as u64)?;
        if !canary::is_on(Canary::SwapRootsEarly) {
            TaskContext { local }.flush_older_than(parts.log.next())?;
        }
        // The record itself says so of the first tree.
        for tree in &self.trees[1..] {
            let none: [(PageId, &[u8; PAGE_SIZE]); 0] = [];
            let freed: [PageId; 0] = [];
            let said = structure_body(
                tree.tree.id,
                none.into_iter(),
                freed.into_iter(),
                &[],
                Some(&[]),
            );
            let _reservation = parts.log_tasks.reserve(
                &local.worker,
                said.len() as u64,
                ReservationClass::Structure,
            )?;
            if !canary::is_on(Canary::RepeatOverRewritten) {
                let writer = local.worker.index;
                parts.log.append(writer, Kind::Structure, &[&said], |_| {});
            }
        }
        Ok(body)
    }

    /// Steps 4 to 7.
    fn write(
        &self,
        closed: &[(usize, Closed<'_>)],
        content: &Content,
        body: &[u8],
    ) -> Result<(), TransactionError> {
        let (local, parts) = (self.local, &self.local.parts);
        let transactions = self.transactions;
        let bytes = body.len() as u64;
        let mut validation = self.validation();
        self.advance(validation.as_mut())?;
        let turn = transactions.await_turn(local)?;
        let reservation =
            parts
                .log_tasks
                .reserve(&local.worker, bytes, ReservationClass::Structure)?;
        self.advance(validation.as_mut())?;
        parts.shared.writable()?;
        let tracker = &transactions.tracker;
        let slot = tracker.register(local.worker.index, &parts.log);
        // Where all records stay, so do the versions that snapshots read.
        let keep_snapshots = |tree: &Closed<'_>| match self.repacks {
            true => tree.loaded(),
            false => tree.begin_loading(),
        };
        let before: Vec<u64> = closed
            .iter()
            .map(|(_, tree)| keep_snapshots(tree))
            .collect();
        let reopen = || {
            for ((_, tree), before) in closed.iter().zip(&before) {
                tree.set_loaded(*before);
            }
        };
        local.worker.preemption_point();
        // Those that validate from here on see that the trees change.
        while tracker.is_validating() && !canary::is_on(Canary::PassValidating) {
            local.worker.yield_now();
        }
        let validating = self.context.reads.map(|_| tracker.begin_validating());
        if let Err(error) = self.validate_reads(validation.as_ref()) {
            reopen();
            return Err(error);
        }
        local.worker.preemption_point();
        let ended = content.ended();
        let lsn = parts
            .log
            .append(local.worker.index, Kind::Structure, &[body], |lsn| {
                if self.context.reads.is_none() {
                    slot.is_at(lsn);
                }
                parts.pagestore.confirm_allocations(&content.tokens, &ended);
            });
        drop((validating, reservation));
        let ctx = TaskContext { local };
        if let Err(error) = transactions.await_older(local, &slot, lsn) {
            // For readers the trees stay as they were.
            slot.abandon();
            reopen();
            return Err(error.into());
        }
        let swap = transactions.begin_swap(self.trees.iter().map(|tree| tree.tree.id));
        if let Err(error) = btree::install_roots(&ctx, &content.trees, lsn) {
            slot.abandon();
            reopen();
            parts.shared.poison(error.clone());
            return Err(error.into());
        }
        for ((_, tree), before) in closed.iter().zip(&before) {
            tree.set_loaded(if self.repacks { *before } else { lsn.0 + 8 });
        }
        let ending = transactions.tracker.begin_ending(lsn);
        slot.is_applied(lsn);
        if let Err(error) = transactions.wait_for_watermark(local, lsn) {
            // No reader outside transactions sees it: they find the trees noted.
            if let Some(swap) = swap {
                swap.keep();
            }
            slot.abandon();
            std::mem::forget(ending);
            return Err(error.into());
        }
        drop((swap, slot, turn));
        self.free_replaced(content, lsn);
        drop(ending);
        Ok(())
    }

    fn free_replaced(&self, content: &Content, lsn: Lsn) {
        for tree in &content.trees {
            self.local
                .parts
                .pagestore
                .end_pages(&self.local.worker, lsn, &tree.replaced);
        }
        extent::free_logged(self.local, lsn, &content.chunks);
    }

    /// The trees that are its own.
    fn own(&self) -> Vec<TreeId> {
        self.trees.iter().map(|tree| tree.tree.id).collect()
    }

    fn validation(&self) -> Option<Validation<'a>> {
        let reads = self.context.reads.zip(self.context.snapshot);
        let reads = reads.filter(|_| !canary::is_on(Canary::SkipReadValidation));
        reads.map(|(reads, snapshot)| reads.validation(snapshot))
    }

    /// Validates what it has read beside the commits of others.
    fn advance(&self, validation: Option<&mut Validation<'_>>) -> Result<(), TransactionError> {
        let versions = &self.transactions.versions;
        validation.map_or(Ok(()), |validation| {
            validation.advance(self.local, versions, &self.own())
        })
    }

    fn validate_reads(&self, validation: Option<&Validation<'_>>) -> Result<(), TransactionError> {
        if let Some(validation) = validation {
            validation.run(&self.transactions.versions, None, &self.own())?;
        }
        // Versions that would have shown a conflict may be gone.
        self.context.snapshot.map_or(Ok(()), Registered::check)
    }
}

#[cfg(test)]
#[path = "large_tests.rs"]
mod tests;
