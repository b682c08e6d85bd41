//! Merging: the records of runs move into the base, in key order, round and round.
//!
//! A merge takes the next records of all runs, and of each key the newest. It writes new leaves
//! beside the base ([`Rewrite`]), waits until they are on the drive, and gives the root its new
//! content as one record says. That record does not say that commits before it are not to be
//! repeated: the memory's are.
//!
//! A run is merged as a whole once merges have come round to where they were when it was sealed.
//! Then the catalog lists it as one that is being freed, new `Levels` come without it, and once no
//! reader has it its pages are freed. Older runs are never left behind: they would say what they
//! had again. Before that `trim` frees what merges have passed.

use std::ops::Bound;
use std::sync::Arc;

use super::trim::Freed;
use super::{Work, listing, until};
use crate::btree::{self, Change, Direction, Edits, Rewrite, Stretch, Tree};
use crate::canary::{self, Canary};
use crate::context::{TaskContext, WriteContext};
use crate::error::{StorageError as Error, TransactionError};
use crate::levels::Parts;
use crate::log::ReservationClass;
use crate::log::record::Kind;
use crate::overlay::{Busy, Levels, Overlaid, Position, Run};
use crate::page::PAGE_SIZE;
use crate::shared::Counters;
use crate::txn::catalog_change;
use crate::txn::reserved_task::ReservedTask;
use crate::types::{OVERLAID, UNLISTED_RUN};

/// Records that one merge moves.
const RECORDS: usize = 8192;
const RECORDS_IF_FULL: usize = 512;
/// Part of the pages that a volume has room for, with which a merge that finds it nearly full goes
/// beyond that at most: one in this many.
const MERGED_IF_FULL: u64 = 128;
const SMALL_RECORDS: usize = 2;
/// Leaves that are packed at a time.
const PACKED: usize = 4096;
/// Of these, and of those that a trim passes, in simulations.
const SMALL_PACKED: usize = 8;
const SMALL_TRIMMED: usize = 1;
/// Pages that a merge passes between two looks at other tasks.
const PAGES_PER_TURN: u32 = 16;
/// Of a page, what is filled in percent where no change comes to a leaf but by the next merge.
pub(super) const FULL: usize = 100;

/// Leaves of the base that so many of the records of its runs change, about: in the worst case each
/// is in a leaf of its own, but a volume is not to grow for that.
fn leaves_of(overlaid: &Overlaid, levels: &Levels, records: usize) -> usize {
    let (leaves, unmerged) = (overlaid.base_leaves(), levels.unmerged().max(1));
    let evenly = records as f64 * leaves as f64 / unmerged as f64;
    match leaves {
        0 => records,
        _ => records.min(16 + (evenly * 1.25) as usize),
    }
}

/// Of a leaf of the base, what merges fill, in percent.
fn fill_percent(overlaid: &Overlaid) -> usize {
    match overlaid.is_temporary() {
        true => btree::FILL_PERCENT,
        false => FULL,
    }
}

impl Work<'_> {
    /// Merges the next records of the runs of `overlaid`, as the one task that does; `false` if it
    /// has none.
    pub(super) fn merge(&self, overlaid: &Arc<Overlaid>) -> Result<bool, Error> {
        let levels = overlaid.levels();
        if levels.runs.is_empty() {
            return Ok(false);
        }
        let round = levels.position.round;
        let position = match self.merge_from(overlaid, &levels, &levels.position.key)? {
            Some(key) => Position { round, key },
            None => Position {
                round: round + 1,
                key: Vec::new(),
            },
        };
        drop(levels);
        // Only now: the base has what readers do not look for in runs from here on.
        let position = Arc::new(position);
        overlaid.change(|levels| {
            Some(Levels {
                position: Arc::clone(&position),
                ..levels.copy()
            })
        });
        overlaid.set_pace(&self.local.pool.overlays);
        Ok(true)
    }

    /// Merges until `overlaid`, with which the caller is busy, has fewer than `runs` runs.
    pub(super) fn merge_below(&self, overlaid: &Arc<Overlaid>, runs: usize) -> Result<(), Error> {
        // Bound: each round passes some records.
        while overlaid.levels().runs.len() >= runs {
            self.merge_some(overlaid)?;
        }
        Ok(())
    }

    /// Merges all that the runs of `overlaid`, with which the caller is busy, have now. Meanwhile
    /// commits go on, and what is in memory is sealed if it has to be.
    pub(super) fn merge_round(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let mut end = overlaid.levels().position.as_ref().clone();
        end.round += 1;
        // Bound: each round passes some records.
        while !overlaid.levels().runs.is_empty() && *overlaid.levels().position < end {
            self.merge_some(overlaid)?;
            if self.merging.is_to_be_sealed(overlaid) {
                self.seal(overlaid)?;
            }
            // A memory of another tree would hold the log, and its writers. They are told.
            let _ = self.seal_due();
        }
        Ok(())
    }

    /// Moves the next records of the base of `overlaid`, with which the caller is busy, from a key
    /// on, to as few leaves as a load fills; the key from which on to go on, or `None` at the end.
    pub(super) fn pack(
        &self,
        overlaid: &Arc<Overlaid>,
        start: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let rest = Stretch { start, end: None };
        let _merging = self.wait_to_merge(overlaid)?;
        let ctx = ReservedTask::reserve_from(self.local, 0, false, 0)?;
        self.rewrite(&ctx, overlaid.tree, Edits::Pack(&rest), btree::FILL_PERCENT)
    }

    /// Merges the next records of `overlaid`, with which the caller is busy.
    pub(super) fn merge_some(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let merging = self.wait_to_merge(overlaid)?;
        self.merge(overlaid)?;
        drop(merging);
        self.retire(overlaid)
    }

    /// Makes the caller, which is busy with `overlaid`, the one task that merges.
    pub(super) fn wait_to_merge<'o>(&self, overlaid: &'o Overlaid) -> Result<Busy<'o>, Error> {
        // Else that task would begin the next merge before this one looks again.
        let _held = overlaid.hold_merges();
        until(self.local, || overlaid.begin_merge())
    }

    /// Merges some records of the runs from the key `from` on; the key from which on to go on, or
    /// `None` at the end.
    fn merge_from(
        &self,
        overlaid: &Arc<Overlaid>,
        levels: &Levels,
        from: &[u8],
    ) -> Result<Option<Vec<u8>>, Error> {
        let ctx = TaskContext { local: self.local };
        let most = match self.local.pool.overlays.is_small() {
            true => SMALL_RECORDS,
            false if self.is_nearly_full() => self.records_if_full(),
            false => RECORDS,
        };
        // Each may be in a leaf of its own.
        let most = most.min(self.max_replaced() / 2).max(1);
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let mut parts = Parts::new(levels, bounds, Direction::Forward, false);
        let mut changes = Vec::new();
        while changes.len() < most
            && let Some((key, put)) = parts.next(&ctx)?
        {
            let value = put.0.map(|(kind, bytes)| (kind, bytes.into_vec()));
            changes.push(Change { key, value });
        }
        let next = parts.peek(&ctx)?.map(<[u8]>::to_vec);
        if !changes.is_empty() {
            let ctx = self.beyond_limit(leaves_of(overlaid, levels, changes.len()))?;
            let edits = Edits::Change(&mut changes.into_iter());
            self.rewrite(&ctx, overlaid.tree, edits, fill_percent(overlaid))?;
        }
        parts.pass();
        Ok(next)
    }

    /// Whether the volume may have no space for a merge beside what it replaces.
    pub(super) fn is_nearly_full(&self) -> bool {
        let pagestore = &self.local.parts.pagestore;
        let used = pagestore.allocated_bytes() + (RECORDS * PAGE_SIZE) as u64;
        let limit = pagestore.limit_bytes();
        pagestore.growth_was_refused() || limit.is_some_and(|limit| used > limit / 10 * 8)
    }

    /// Records that one merge moves in a volume that is nearly full: each may be in a leaf of its
    /// own, which takes space until the old one is free.
    fn records_if_full(&self) -> usize {
        let pages = self.local.parts.pagestore.capacity_bytes() / PAGE_SIZE as u64;
        ((pages / MERGED_IF_FULL) as usize).clamp(8, RECORDS_IF_FULL)
    }

    /// Pages that the record of one merge can name.
    pub(super) fn max_replaced(&self) -> usize {
        (self.local.parts.log.record_limit() / 8) as usize
    }

    /// Edits `tree`. What is removed or packed may have too many pages for one record: the key from
    /// which on it is left then.
    pub(super) fn rewrite(
        &self,
        ctx: &ReservedTask<'_>,
        tree: Tree,
        mut edits: Edits<'_>,
        fill_percent: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let (local, parts) = (self.local, &self.local.parts);
        ctx.admit()?;
        let token = parts.log.stamp(local.worker.index).0;
        let most = self.max_replaced();
        let mut rewrite = Rewrite::new(ctx, tree, fill_percent, token, most);
        rewrite.seldom_waits(PAGES_PER_TURN);
        rewrite.begin_early();
        rewrite.stops_at(match (&edits, self.local.pool.overlays.is_small()) {
            (Edits::Pack(_), true) => SMALL_PACKED,
            (Edits::Pack(_), false) => PACKED.min(most / 2),
            (_, true) => SMALL_TRIMMED,
            (_, false) => most / 2,
        });
        // The commit that has replaced a large value has freed it, or given it to a version.
        let rewritten = rewrite.run(&mut edits);
        let (built, stopped) = (rewrite.built(), rewrite.stopped());
        drop(rewrite);
        let rewritten = rewritten.map_err(TransactionError::of_own_work);
        let installed = rewritten.and_then(|rewritten| self.install(rewritten, token));
        if installed.is_err() && parts.shared.writable().is_ok() {
            parts.pagestore.discard_pages(&local.worker, token, built);
        }
        installed.map(|()| stopped)
    }

    /// Gives the root its new content.
    fn install(&self, mut rewritten: btree::Rewritten, token: u64) -> Result<(), Error> {
        let unflushed = std::mem::take(&mut rewritten.unflushed);
        let (local, parts) = (self.local, &self.local.parts);
        let ctx = TaskContext { local };
        let worker = &local.worker;
        let ended = &rewritten.replaced;
        let body = btree::root_body(&rewritten, token);
        let bytes = body.len() as u64;
        if parts.log.is_on() {
            let held = parts.log_tasks.wait_to_hold(worker, bytes);
            held.map_err(TransactionError::of_own_work)?;
            if !canary::is_on(Canary::MergeBeforeLeaves) {
                ctx.flush_pages(unflushed)?;
            }
        }
        let class = ReservationClass::Structure;
        let reservation = parts.log_tasks.reserve(worker, bytes, class)?;
        parts.shared.writable()?;
        // No checkpoint that knows neither the record nor the root begins behind it.
        let tracker = &self.transactions.tracker;
        let slot = tracker.register(worker.index, &parts.log);
        slot.adds_versions();
        let lsn = parts
            .log
            .append(worker.index, Kind::Structure, &[&body], |lsn| {
                slot.is_at(lsn);
                parts.pagestore.confirm_allocations(&[token], ended);
            });
        drop(reservation);
        if let Err(error) = btree::install_root(&ctx, &rewritten, lsn) {
            slot.abandon();
            parts.shared.poison(error.clone());
            return Err(error);
        }
        let ending = tracker.begin_ending(lsn);
        drop(slot);
        parts.pagestore.end_pages(worker, lsn, ended);
        drop(ending);
        Ok(())
    }

    /// Takes the oldest runs out of the tree, with which the caller is busy, that are merged.
    pub(super) fn retire(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let levels = overlaid.levels();
        let is_left = |run: &Arc<Run>| !run.is_merged_at(&levels.position);
        let kept = levels.runs.iter().rposition(is_left).map_or(0, |at| at + 1);
        let (mut runs, mut retired) = (levels.runs[..kept].to_vec(), levels.runs[kept..].to_vec());
        if canary::is_on(Canary::RetireNewest) && !retired.is_empty() && !runs.is_empty() {
            std::mem::swap(&mut runs[0], &mut retired[0]);
        }
        drop(levels);
        if retired.is_empty() {
            return Ok(());
        }
        let counters = &self.local.parts.shared.counters;
        self.replace_runs(overlaid, &retired, runs, None)?;
        Counters::add(&counters.merged_runs, retired.len() as u64);
        Ok(())
    }

    /// Gives the tree `runs`, of which one may be `built` just now, in place of those that it has;
    /// of these `old` are freed once no reader has them.
    pub(super) fn replace_runs(
        &self,
        overlaid: &Arc<Overlaid>,
        old: &[Arc<Run>],
        runs: Vec<Arc<Run>>,
        built: Option<Tree>,
    ) -> Result<(), Error> {
        let unlisted = |tree: Tree| listing::key(UNLISTED_RUN, tree.id);
        let listed = listing::key(OVERLAID, overlaid.tree.id);
        let entry = listing::encode(overlaid, &runs, overlaid.sealed_before());
        let built = built.map(unlisted);
        let freed = old.iter().map(|run| run.tree);
        let freed: Vec<_> = freed
            .map(|tree| (unlisted(tree), listing::encode_unlisted(tree)))
            .collect();
        let mut changes = vec![catalog_change(&listed, Some(&entry))];
        changes.extend(built.iter().map(|key| catalog_change(key, None)));
        changes.extend(
            freed
                .iter()
                .map(|(key, value)| catalog_change(key, Some(value))),
        );
        self.commit(&changes, None)?;
        let number = overlaid.change(|levels| Some(levels.with_runs(runs)));
        let freed = old.iter().map(|run| run.tree).collect();
        self.retire_at(overlaid, number, Freed::Runs(freed));
        Ok(())
    }
}
