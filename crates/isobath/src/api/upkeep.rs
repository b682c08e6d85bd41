//! What an open store is asked to do for itself: checkpoints, giving space back.

use crate::btree;
use crate::runtime::Urgency;
use crate::{Error, Store, Tree, TreeInfo};

/// The leaves that a tree has too many are worth the work from so many on, and from so large a
/// share of all.
const PACKED_LEAVES: f64 = 8.0;
const PACKED_SHARE: f64 = 0.15;

/// The result of [`Store::compact`]. Sizes are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Compaction {
    /// The volume's length before.
    pub bytes_before: u64,
    /// The volume's length after.
    pub bytes_after: u64,
    /// Bytes that block devices, which keep their length, were asked to discard.
    pub bytes_discarded: u64,
}

impl Store {
    /// Writes a checkpoint now: everything that was committed before is in the pages on the drive,
    /// and a recovery has to read only what is logged afterwards. The store writes checkpoints
    /// itself as its log fills; this is for a moment that the application chooses, such as before
    /// files are copied or the machine is shut down. A backup under way holds the log nevertheless.
    ///
    /// # Errors
    ///
    /// [`Error::NeedsLog`] for a store without a log, which has one checkpoint: when it is closed;
    /// [`Error::ReadOnly`], [`Error::Poisoned`], [`Error::Closed`]; [`Error::Io`], after which the
    /// store is poisoned.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.runtime().run(Urgency::Ordinary, |local| {
            let engine = &local.engine;
            engine.checkpoints.needs_log("checkpoint")?;
            if local.pool.overlays.is_any() {
                engine.merging.seal_all(&engine.transactions, local)?;
            }
            Ok(engine.checkpoints.checkpoint_now(&local.worker)?)
        })
    }

    /// Packs what is stored towards the beginning of the volume and gives the space behind it back
    /// to the file system: after much was removed, the files become small. A log that has grown
    /// becomes small again, too. Trees whose leaves are much emptier than after a load get new ones
    /// first. The store can be used meanwhile; writes that need the space end it early, without an
    /// error. What stays is what the records take, 4 MiB of log and 14 segments or more, and in a
    /// store with a limit the share that [`Options::fill_factor`](crate::Options::fill_factor)
    /// keeps free for cleaning. Without a limit the next writes make the files grow again, and
    /// closing gives the blocks of files back that hold none of the records: the next opening for
    /// writing finds room for them, or fails.
    ///
    /// A crash at any moment leaves all records as they were, in a volume of the one length or the
    /// other. Block devices keep their length; they are asked to discard segments that hold
    /// nothing, as by [`Store::discard_free_segments`].
    ///
    /// Costs about one reading and writing of what is stored in the segments that are given back.
    /// Open snapshots keep old values, which then take space; a backup under way is waited for.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let gained = store.compact()?;
    /// println!("{} bytes less", gained.bytes_before - gained.bytes_after);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Store::checkpoint`]; [`Error::Volume`] if cutting a file fails, after which the
    /// store is poisoned.
    pub fn compact(&self) -> Result<Compaction, Error> {
        self.runtime().run(Urgency::Ordinary, |local| {
            let engine = &local.engine;
            engine.checkpoints.needs_log("compact")?;
            for overlaid in local.pool.overlays.all() {
                let tree = overlaid.tree;
                engine.merging.leave(&engine.transactions, local, tree)?;
            }
            Ok::<_, Error>(())
        })?;
        self.pack_trees()?;
        let shrunk = self.runtime().run(Urgency::Ordinary, |local| {
            let end_versions = || local.engine.transactions.gc(local);
            let checkpoints = &local.engine.checkpoints;
            Ok::<_, Error>(checkpoints.shrink(&local.worker, &end_versions)?)
        })?;
        Ok(Compaction {
            bytes_before: shrunk.before,
            bytes_after: shrunk.after,
            bytes_discarded: shrunk.discarded,
        })
    }

    /// Moves the records of trees with half-full leaves to fewer ones.
    fn pack_trees(&self) -> Result<(), Error> {
        for TreeInfo { name, .. } in self.trees()? {
            let packed = self.tree(&name).and_then(|tree| tree.pack());
            match packed {
                // It was dropped, or there is no room for what is moved.
                Err(
                    Error::NoSuchTree { .. } | Error::TreeDropped { .. } | Error::VolumeFull { .. },
                )
                | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Tree {
    /// Moves all records to as few leaves as a load fills, if that gains much.
    fn pack(&self) -> Result<(), Error> {
        let stats = self.stats()?;
        let (leaves, records) = (stats.leaf_pages as f64, stats.records as f64);
        // Of the larger records, few fit into a leaf.
        let of_leaf = btree::FILL_PERCENT as f64 / 100.0 / stats.leaf_fill * records / leaves;
        let gained = leaves - records / of_leaf.floor().max(1.0);
        if gained < PACKED_LEAVES.max(PACKED_SHARE * leaves) {
            return Ok(());
        }
        let state = &self.state;
        self.run(|local| {
            let (merging, transactions) = (&local.engine.merging, &local.engine.transactions);
            Ok(merging.pack(transactions, local, state.tree, &state.status)?)
        })
    }
}
