//! Statistics of a tree.

use crate::btree::{self, MaxPages, Sample};
use crate::context::TaskContext;
use crate::overlay::Levels;
use crate::page::PAGE_SIZE;
use crate::{Error, Tree};

/// Pages of each level that are read for statistics, and for an estimate.
const STATS_PAGES: MaxPages = MaxPages {
    leaves: 256,
    inner: 4096,
};
const ESTIMATE_PAGES: MaxPages = MaxPages {
    leaves: 64,
    inner: 64,
};
/// And of each run of overlays.
const RUN_PAGES: MaxPages = MaxPages {
    leaves: 8,
    inner: 64,
};

/// Counts of a tree. Exact if `is_exact`, as for a tree of up to 256 leaves; else estimated from
/// 256 leaves, spread evenly over the keys, and 4,096 inner pages of each level.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TreeStats {
    /// Whether every page was read: nothing is estimated.
    pub is_exact: bool,
    /// Levels, that of the leaves included.
    pub levels: u64,
    /// Pages that hold records.
    pub leaf_pages: u64,
    /// Pages above them.
    pub inner_pages: u64,
    /// Records; of a tree with overlays those of its base, the leaves that merges write: records of
    /// overlays replace or remove some of them, or are new.
    pub records: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Values that have chunks of their own.
    pub large_values: u64,
    /// Bytes of those.
    pub large_value_bytes: u64,
    /// Bytes of the tree's pages, those of runs included, and of its large values.
    pub bytes: u64,
    /// Share of the leaves' bytes that is in use, from 0 to 1.
    pub leaf_fill: f64,
    /// Records of the tree's overlays in memory, removals included; 0 without overlays, as the
    /// rest.
    pub memory_records: u64,
    /// Runs of its overlays.
    pub runs: u64,
    /// Their records that are to be merged, removals included.
    pub run_records: u64,
    /// Bytes of their pages.
    pub run_bytes: u64,
}

impl TreeStats {
    fn of(sample: &Sample) -> TreeStats {
        let whole = |number: f64| number.round() as u64;
        let pages = sample.leaf_pages + sample.inner_pages;
        let room = sample.leaf_pages * btree::PAGE_CAPACITY as f64;
        TreeStats {
            is_exact: sample.is_exact,
            levels: u64::from(sample.levels),
            leaf_pages: whole(sample.leaf_pages),
            inner_pages: whole(sample.inner_pages),
            records: whole(sample.records),
            key_bytes: whole(sample.key_bytes),
            value_bytes: whole(sample.value_bytes),
            large_values: whole(sample.large_values),
            large_value_bytes: whole(sample.large_value_bytes),
            bytes: whole(pages) * PAGE_SIZE as u64 + whole(sample.large_value_bytes),
            leaf_fill: sample.leaf_bytes_used / room.max(1.0),
            ..TreeStats::default()
        }
    }

    /// Adds what the overlays have.
    fn add_overlays(&mut self, ctx: &TaskContext<'_>, levels: &Levels) -> Result<(), Error> {
        let sealing = levels.sealing.as_ref().map_or(0, |memory| memory.count());
        self.memory_records = levels.memory.count() + sealing;
        self.runs = levels.runs.len() as u64;
        for run in &levels.runs {
            let sample = run.tree.sample(ctx, RUN_PAGES)?;
            let pages = (sample.leaf_pages + sample.inner_pages).round() as u64;
            self.run_records += run.unmerged();
            self.run_bytes += pages * PAGE_SIZE as u64;
        }
        self.bytes += self.run_bytes;
        self.is_exact &= self.memory_records + self.run_records == 0;
        Ok(())
    }
}

impl Tree {
    /// Counts the tree's records, pages and bytes, and how full its leaves are. Reads at most 256
    /// leaves, and 4,096 inner pages of each level, one for some hundred leaves: milliseconds, some
    /// more if they are not in memory. The error of an estimate is typically below a twentieth.
    /// Other threads may change the tree during that.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let tree = store.create_tree("fruit")?;
    /// tree.insert("apple", "red")?;
    /// let stats = tree.stats()?;
    /// assert!(stats.is_exact && stats.records == 1 && stats.leaf_pages == 1);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::TreeDropped`], [`Error::Closed`], or a failed read.
    pub fn stats(&self) -> Result<TreeStats, Error> {
        let tree = self.state.tree;
        self.run(|local| {
            let ctx = TaskContext { local };
            // Taken first: merges move records from there to the base.
            let levels = local.pool.overlays.of(tree.id).map(|own| own.levels());
            let mut stats = TreeStats::of(&tree.sample(&ctx, STATS_PAGES)?);
            if let Some(levels) = levels {
                stats.add_overlays(&ctx, &levels)?;
            }
            Ok(stats)
        })
    }

    /// About how many records the tree has: exact up to 64 leaves (some thousand small records),
    /// else from 64 of them, spread evenly over the keys. The error is typically below a tenth; it
    /// is larger where a few stretches of the keys have records of quite another size.
    /// [`Tree::count`] is exact, and reads every leaf.
    ///
    /// # Errors
    ///
    /// As for [`Tree::stats`].
    #[doc(alias = "len")]
    pub fn estimate_len(&self) -> Result<u64, Error> {
        let tree = self.state.tree;
        self.run(|local| {
            let sample = tree.sample(&TaskContext { local }, ESTIMATE_PAGES)?;
            Ok(sample.records.round() as u64)
        })
    }
}
