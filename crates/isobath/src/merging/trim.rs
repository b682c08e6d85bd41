//! Freeing: runs that are merged, and what merges have passed of the others.
//!
//! A trim frees the pages of runs within a range of keys that merges have passed.
//!
//! 1. No reader has `Levels` any more from before merges had passed the range.
//! 2. Run by run, from the oldest to the newest, a record of the log gives the run a root without
//!    these pages.
//!
//! The order is for what a crash leaves, after which nothing says how far merges had come. A record
//! that is left says what counts, or something else does: newer ones of its key are left as well.
//! The other way round an old record might be left alone.
//!
//! A trim begins when a memory is sealed, and where a round of merges ends: a run that is sealed in
//! the midst of its range would be merged in a part of it only, so is none of its runs.

use std::sync::Arc;

use super::merge::FULL;
use super::{Merging, Work, until};
use crate::btree::{Edits, Stretch, Tree};
use crate::canary::{self, Canary};
use crate::context::TaskWorker;
use crate::error::StorageError as Error;
use crate::overlay::{Busy, Overlaid, Passed, Position, Run, Trim};

/// What goes once no reader has `Levels` of the tree from before `number`.
pub(super) struct Retired {
    overlaid: Arc<Overlaid>,
    number: u64,
    what: Freed,
}

/// What is freed.
pub(super) enum Freed {
    /// Runs as wholes, which the catalog lists as such.
    Runs(Vec<Tree>),
    /// What the tree's trim says.
    Trimmed,
    /// What a newer run has as well.
    Combined(Trim),
}

impl Retired {
    /// Whether it may go.
    pub(super) fn is_free(&self) -> bool {
        !self.overlaid.has_readers_before(self.number)
    }
}

impl Merging {
    /// Whether something of `overlaid` is to be freed once no reader has it.
    pub(super) fn has_retired(&self, overlaid: &Arc<Overlaid>) -> bool {
        let retired = self.retired.lock();
        let mut theirs = retired.iter().map(|retired| &retired.overlaid);
        theirs.any(|other| Arc::ptr_eq(other, overlaid))
    }
}

impl Work<'_> {
    /// Has this go once no reader has `Levels` of `overlaid` from before `number`.
    pub(super) fn retire_at(&self, overlaid: &Arc<Overlaid>, number: u64, what: Freed) {
        let overlaid = Arc::clone(overlaid);
        let retired = Retired {
            overlaid,
            number,
            what,
        };
        self.merging.retired.lock().push(retired);
    }

    /// Frees what no reader can reach any more; leaves the rest.
    pub(super) fn free_retired(&self) -> Result<(), Error> {
        // One task at a time: a trim and the end of the same run are two things.
        let _freeing = self.merging.wait_to_free(self.local)?;
        let (free, left): (Vec<_>, Vec<_>) = {
            let mut retired = self.merging.retired.lock();
            let all = std::mem::take(&mut *retired);
            all.into_iter().partition(Retired::is_free)
        };
        // What others have added since is newer.
        self.merging.retired.lock().splice(0..0, left);
        let mut first_error = None;
        for retired in free {
            let done = match retired.what {
                // What fails here is freed by the next opening.
                Freed::Runs(runs) => runs.into_iter().try_for_each(|run| self.free_run(run)),
                Freed::Trimmed => self.trim(&retired.overlaid),
                // What fails here goes with the runs.
                Freed::Combined(trim) => self.trim_runs(&retired.overlaid, &trim),
            };
            if let Err(error) = done {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Begins to trim what merges have passed since the last trim, if none is going on. The caller
    /// is busy with `overlaid`.
    pub(super) fn begin_trim(&self, overlaid: &Arc<Overlaid>) {
        let levels = overlaid.levels();
        let mut trims = overlaid.trims.lock();
        if trims.current.is_none() {
            let (from, position) = (&trims.position, &levels.position);
            if *from >= **position {
                return;
            }
            // At most to the end of the keys.
            let is_same_round = position.round == from.round;
            let next = match is_same_round {
                true => Position::clone(position),
                false => Position {
                    round: from.round + 1,
                    key: Vec::new(),
                },
            };
            trims.current = Some(Passed {
                from: Position::clone(from),
                end: is_same_round.then(|| position.key.clone()),
            });
            trims.position = next;
        }
        if trims.current.is_some() && !std::mem::replace(&mut trims.is_queued, true) {
            self.retire_at(overlaid, levels.number, Freed::Trimmed);
        }
    }

    /// Frees what the trim of `overlaid` says. What fails is tried again when the next one begins.
    fn trim(&self, overlaid: &Overlaid) -> Result<(), Error> {
        let passed = overlaid.trims.lock().current.clone();
        let trimmed = passed.map_or(Ok(()), |passed| self.trim_passed(overlaid, passed));
        let mut trims = overlaid.trims.lock();
        // The next one waits for readers of its own.
        trims.is_queued = false;
        trimmed.map(|()| trims.current = None)
    }

    fn trim_passed(&self, overlaid: &Overlaid, passed: Passed) -> Result<(), Error> {
        let levels = overlaid.levels();
        let is_combined = |run: &Arc<Run>| {
            let combining = overlaid.combining.lock();
            combining
                .as_ref()
                .is_some_and(|combining| Arc::ptr_eq(&combining.into, run))
        };
        let is_forgotten =
            |run: &Arc<Run>| canary::is_on(Canary::TrimForgetsCombined) && is_combined(run);
        // Among them is the one that others become, which has what they have.
        let is_passed = |run: &&Arc<Run>| run.start <= passed.from && !is_forgotten(run);
        let runs = levels.runs.iter().filter(is_passed);
        let trim = Trim {
            runs: runs.map(|run| run.tree.id).collect(),
            start: passed.from.key,
            end: passed.end,
        };
        self.trim_runs(overlaid, &trim)
    }

    fn trim_runs(&self, overlaid: &Overlaid, trim: &Trim) -> Result<(), Error> {
        let levels = overlaid.levels();
        let mut runs: Vec<_> = levels.runs.iter().rev().map(|run| run.tree).collect();
        if canary::is_on(Canary::TrimNewestFirst) {
            runs.reverse();
        }
        runs.retain(|run| trim.runs.contains(&run.id));
        runs.into_iter()
            .try_for_each(|run| self.trim_run(run, trim))
    }

    fn trim_run(&self, run: Tree, trim: &Trim) -> Result<(), Error> {
        let mut start = trim.start.clone();
        // Bound: each round frees some pages of the run.
        loop {
            let passed = Stretch {
                start,
                end: trim.end.clone(),
            };
            let ctx = self.beyond_limit(0)?;
            match self.rewrite(&ctx, run, Edits::Remove(&passed), FULL)? {
                Some(next) => start = next,
                None => return Ok(()),
            }
        }
    }
}

impl super::Merging {
    /// Makes the caller the one task that frees, or combines runs.
    pub(super) fn wait_to_free(&self, local: &TaskWorker) -> Result<Busy<'_>, Error> {
        until(local, || Busy::begin(&self.freeing))
    }
}
