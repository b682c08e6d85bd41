//! Combining: neighbouring runs become one, so that readers have few runs to look at, and a tree
//! that is much larger than its memory has a share of its records in runs before they are merged.
//!
//! The new run stands above those that it is made of from the start. A step moves the next range of
//! keys:
//!
//! 1. Copy the newest record of each key, those that merges have passed as well: once the store is
//!    opened again nothing says that they do not count, and an older run may say what was true
//!    before. A record of the log gives the new run these.
//! 2. New `Levels`. Once no reader has earlier ones the older runs are trimmed by that range.
//!
//! So at each time the new run says the same as the others or nothing: readers need not know how
//! far a step has come, nor does a recovery, for which the new run is one like the others. It
//! counts as sealed where the newest of them was. What only older ones had merged by then, the base
//! has as it is in the new run.
//!
//! While a step copies nothing is trimmed: of a key that a trim took from all runs the step would
//! put back an older record.

use std::ops::Bound;
use std::sync::Arc;

use super::Work;
use super::merge::FULL;
use super::trim::Freed;
use crate::btree::{Change, Direction, Edits};
use crate::canary::{self, Canary};
use crate::context::TaskContext;
use crate::error::StorageError as Error;
use crate::levels::Parts;
use crate::overlay::{Busy, Combining, Filter, Levels, MAX_TREE_RUNS, Overlaid, Put, Run, Trim};
use crate::page::PAGE_SIZE;
use crate::shared::Counters;
use crate::sync::atomic::Ordering;
use crate::txn::reserved_task::ReservedTask;
use crate::types::ValueKind;

/// Records that a step copies.
const RECORDS: usize = 4096;
const RECORDS_IF_FULL: usize = 512;
const SMALL_RECORDS: usize = 16;
/// Records that are copied before the runs that they come from are trimmed.
const RECORDS_PER_TRIM: u64 = 4 * RECORDS as u64;
const SMALL_RECORDS_PER_TRIM: u64 = 2 * SMALL_RECORDS as u64;

/// Bytes that a record takes in a leaf beside its key and its value, about.
const RECORD_OVERHEAD: usize = 8;

/// What a step has copied.
struct Copied {
    records: u64,
    /// The key from which on to go on; `None` at the end.
    next: Option<Vec<u8>>,
}

impl super::Merging {
    /// Whether runs of the tree are to become one, or are about to.
    pub(super) fn is_to_be_combined(&self, overlaid: &Overlaid) -> bool {
        let overlays = &self.lower.buffer.pool.overlays;
        let runs = overlaid.levels().runs.len();
        let goes_on = || overlaid.combining.lock().is_some();
        (goes_on() || runs >= overlays.max_runs() && runs < MAX_TREE_RUNS)
            && !overlaid.upkeep_failed.load(Ordering::SeqCst)
    }
}

impl Work<'_> {
    /// Takes a step of combining neighbours, those with the fewest records. The caller is busy with
    /// `overlaid`.
    pub(super) fn combine(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        // It is tried again: writers may wait for a memory of this tree to be sealed.
        let Some(_no_trim) = Busy::begin(&self.merging.freeing) else {
            return Ok(());
        };
        let begun = overlaid.combining.lock().take();
        let begun = match begun {
            Some(begun) => Some(begun),
            None => self.begin_combining(overlaid)?,
        };
        let Some(mut combining) = begun else {
            return Ok(());
        };
        // Merges retire the oldest runs.
        let levels = overlaid.levels();
        let is_left = |run: &Arc<Run>| levels.runs.iter().any(|left| Arc::ptr_eq(left, run));
        combining.from.retain(is_left);
        if combining.from.is_empty() || !is_left(&combining.into) {
            return Ok(());
        }
        let copied = match self.copy_some(overlaid, &levels, &combining) {
            Ok(copied) => copied,
            Err(error) => {
                *overlaid.combining.lock() = Some(combining);
                return Err(error);
            }
        };
        drop(levels);
        let Some(next) = copied.next else {
            return self.end_combining(overlaid, combining);
        };
        combining.next = next;
        combining.copied += copied.records;
        let per_trim = match self.local.pool.overlays.is_small() {
            true => SMALL_RECORDS_PER_TRIM,
            false => RECORDS_PER_TRIM,
        };
        if combining.copied >= per_trim {
            combining.copied = 0;
            let start = std::mem::replace(&mut combining.freed, combining.next.clone());
            let trim = Trim {
                runs: combining.from.iter().map(|run| run.tree.id).collect(),
                start,
                end: Some(combining.next.clone()),
            };
            let number = overlaid.change(|levels| Some(levels.copy()));
            self.retire_at(overlaid, number, Freed::Combined(trim));
        }
        *overlaid.combining.lock() = Some(combining);
        Ok(())
    }

    /// Gives the tree a run into which some of its runs are to go.
    fn begin_combining(&self, overlaid: &Arc<Overlaid>) -> Result<Option<Combining>, Error> {
        let levels = overlaid.levels();
        let count = self.local.pool.overlays.combined_runs();
        let neighbours = levels.runs.windows(count.min(levels.runs.len()).max(2));
        let records = |runs: &[Arc<Run>]| runs.iter().map(|run| run.records()).sum::<u64>();
        let fewest = neighbours.enumerate().min_by_key(|(_, runs)| records(runs));
        let Some((at, from)) = fewest else {
            return Ok(None);
        };
        let tree = self.create_run()?;
        let into = Arc::new(Run::new(tree, 0, from[0].start.clone()));
        // It is the first one.
        let _ = into.filter.set(Filter::new(records(from)));
        let mut runs = levels.runs.clone();
        runs.insert(at, Arc::clone(&into));
        if let Err(error) = self.replace_runs(overlaid, &[], runs, Some(tree)) {
            self.give_up(tree);
            return Err(error);
        }
        Ok(Some(Combining {
            into,
            from: from.to_vec(),
            next: Vec::new(),
            freed: Vec::new(),
            copied: 0,
        }))
    }

    /// Copies the next records.
    fn copy_some(
        &self,
        overlaid: &Overlaid,
        levels: &Levels,
        combining: &Combining,
    ) -> Result<Copied, Error> {
        let ctx = TaskContext { local: self.local };
        let (into, mut from) = (&combining.into, combining.from.clone());
        if canary::is_on(Canary::CombineOlderFirst) {
            from.reverse();
        }
        // At this position nothing of them is merged.
        let oldest = combining.from.last().map_or(&into.start, |run| &run.start);
        let copied = Levels {
            position: Arc::new(oldest.clone()),
            ..levels.with_runs(from)
        };
        let most = match self.local.pool.overlays.is_small() {
            true => SMALL_RECORDS,
            false if self.is_nearly_full() => RECORDS_IF_FULL,
            false => RECORDS,
        };
        // Each may be in a leaf of its own.
        let most = most.min(self.max_replaced() / 2).max(1);
        let rest = (Bound::Included(&combining.next[..]), Bound::Unbounded);
        let mut parts = Parts::new(&copied, rest, Direction::Forward, false);
        let (mut changes, mut merged, mut bytes) = (Vec::with_capacity(most), 0, 0);
        while changes.len() < most
            && let Some((key, Put(value))) = parts.next(&ctx)?
        {
            let tombstone = || (ValueKind::Extent, Vec::new());
            let value = value.map_or_else(tombstone, |(kind, bytes)| (kind, bytes.into_vec()));
            if let Some(filter) = into.filter.get() {
                filter.add(&key);
            }
            bytes += RECORD_OVERHEAD + key.len() + value.1.len();
            merged += u64::from(into.has_merged(&key, &levels.position));
            changes.push(Change {
                key,
                value: Some(value),
            });
        }
        let next = parts.peek(&ctx)?.map(<[u8]>::to_vec);
        let records = changes.len() as u64;
        if !changes.is_empty() {
            // This takes space before it frees some: not beyond what user data may take.
            let pages = 2 + bytes.div_ceil(PAGE_SIZE) as u64;
            let ctx = ReservedTask::reserve_from(self.local, pages, false, 0)?;
            let edits = Edits::Change(&mut changes.into_iter());
            self.rewrite(&ctx, into.tree, edits, FULL)?;
        }
        into.add(records);
        into.pass(merged);
        parts.pass();
        overlaid.set_pace(&self.local.pool.overlays);
        Ok(Copied { records, next })
    }

    /// The new run has all that the older ones have.
    fn end_combining(&self, overlaid: &Arc<Overlaid>, combining: Combining) -> Result<(), Error> {
        let from = &combining.from;
        let is_old = |run: &Arc<Run>| from.iter().any(|old| Arc::ptr_eq(old, run));
        let mut runs = overlaid.levels().runs.clone();
        runs.retain(|run| !is_old(run));
        if let Err(error) = self.replace_runs(overlaid, from, runs, None) {
            *overlaid.combining.lock() = Some(combining);
            return Err(error);
        }
        overlaid.set_pace(&self.local.pool.overlays);
        let counters = &self.local.parts.shared.counters;
        Counters::add(&counters.combined_runs, from.len() as u64);
        Ok(())
    }
}
