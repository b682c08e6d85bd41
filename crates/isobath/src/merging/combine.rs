//! Combining: neighbouring runs become one, so that readers have few runs to look at, and a tree
//! that is much larger than its memory has a share of its records in runs before they are merged.
//!
//! The new run has all records of theirs, the newest of each key, those that merges have passed as
//! well: once the store is opened again nothing says that they do not count, and an older run may
//! say what was true before. So it counts as sealed where the newest one was. What only older ones
//! had merged by then, the base has as it is in the new run.

use std::ops::Bound;
use std::sync::Arc;

use super::Work;
use crate::btree::{Direction, Loader, NotLoaded, Tree, ValueRef};
use crate::canary::{self, Canary};
use crate::context::TaskContext;
use crate::error::StorageError as Error;
use crate::levels::Parts;
use crate::overlay::{Filter, Levels, Overlaid, Run};
use crate::shared::Counters;

/// Records that are copied between two looks at other work.
const RECORDS_PER_TURN: u64 = 256;

impl Work<'_> {
    /// Combines the neighbours with the fewest records. The caller is busy with `overlaid`, which
    /// has two runs, and of which nothing is trimmed.
    pub(super) fn combine(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let levels = overlaid.levels();
        let count = self.local.pool.overlays.combined_runs();
        let neighbours = levels.runs.windows(count.min(levels.runs.len()).max(2));
        let records = |runs: &[Arc<Run>]| runs.iter().map(|run| run.records).sum::<u64>();
        let fewest = neighbours.enumerate().min_by_key(|(_, runs)| records(runs));
        let Some((at, old @ [newest, .., oldest])) = fewest else {
            return Ok(());
        };
        let tree = self.create_run()?;
        let mut filter = Filter::new(records(old));
        let mut copied = old.to_vec();
        if canary::is_on(Canary::CombineOlderFirst) {
            copied.reverse();
        }
        // At this position nothing of them is merged.
        let copied = Levels {
            position: Arc::new(oldest.start.clone()),
            ..levels.with_runs(copied)
        };
        let copied = match self.copy_runs(overlaid, tree, &copied, &mut filter) {
            Ok(Some(copied)) => copied,
            Ok(None) => {
                self.give_up(tree);
                return Ok(());
            }
            Err(error) => {
                self.give_up(tree);
                return Err(error);
            }
        };
        let run = Run::new(tree, copied, newest.start.clone());
        // It is the first one.
        let _ = run.filter.set(filter);
        // Others may have been sealed since, which are newer.
        let mut runs = overlaid.levels().runs.clone();
        let at = at + runs.len() - levels.runs.len();
        runs.splice(at..at + old.len(), [Arc::new(run)]);
        if let Err(error) = self.replace_runs(overlaid, old, runs, Some(tree)) {
            self.give_up(tree);
            return Err(error);
        }
        overlaid.set_pace(&self.local.pool.overlays);
        let counters = &self.local.parts.shared.counters;
        Counters::add(&counters.combined_runs, old.len() as u64);
        Ok(())
    }

    /// Fills `tree` with the records of `runs`; how many that are, unless others want the task to
    /// do nothing.
    fn copy_runs(
        &self,
        overlaid: &Arc<Overlaid>,
        tree: Tree,
        runs: &Levels,
        filter: &mut Filter,
    ) -> Result<Option<u64>, Error> {
        let ctx = TaskContext { local: self.local };
        let all = (Bound::Unbounded, Bound::Unbounded);
        let mut parts = Parts::new(runs, all, Direction::Forward, false);
        let mut loader = Loader::new(&ctx, tree, 100, || Ok::<(), Error>(()))?;
        let mut copied = 0;
        while let Some((key, put)) = parts.next(&ctx)? {
            loader
                .push(&key, put.value().unwrap_or(ValueRef::extent(&[])))
                .map_err(NotLoaded::of_own_work)?;
            filter.add(&key);
            copied += 1;
            if copied % RECORDS_PER_TURN == 0 {
                self.wait()?;
                if self.merging.is_paused() {
                    return Ok(None);
                }
                // Writers wait for that, and this may take long.
                self.seal_due(Some(overlaid))?;
            }
        }
        // Values belong to the tree whose overlays these are.
        loader.complete()?;
        loader.link(&mut |_| {}).map_err(NotLoaded::of_own_work)?;
        Ok(Some(copied))
    }
}
