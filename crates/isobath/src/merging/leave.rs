//! Leaving: a tree gets rid of its overlays, for work that knows the base alone.

use std::sync::Arc;

use super::{Merging, Work, listing};
use crate::btree::Tree;
use crate::context::TaskWorker;
use crate::error::StorageError as Error;
use crate::overlay::{KeptOut, Overlaid};
use crate::runtime::Patience;
use crate::sync::atomic::Ordering;
use crate::txn::{Transactions, catalog_change};
use crate::types::OVERLAID;

/// Commits to the tree wait until this is dropped.
struct Leaving<'o>(&'o Overlaid);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.is_leaving.store(false, Ordering::SeqCst);
    }
}

impl Merging {
    /// Merges all that the overlays of `tree` have into the tree, which then has none until what
    /// this returns is dropped; `None` if no tree of the store can have any. The caller has no
    /// slot, and has not closed the tree.
    ///
    /// # Errors
    ///
    /// Those of reading and writing; the tree then has its overlays still.
    pub(crate) fn leave(
        &self,
        transactions: &Transactions,
        local: &TaskWorker,
        tree: Tree,
    ) -> Result<Option<KeptOut>, Error> {
        let overlays = &local.pool.overlays;
        if !overlays.may_have_some() {
            return Ok(None);
        }
        let work = Work {
            merging: self,
            transactions,
            local,
        };
        let kept_out = overlays.keep_out(tree.id);
        while overlays.is_beginning(tree.id) {
            work.wait()?;
        }
        let mut patience = Patience::default();
        // What goes on for long ends.
        let mut pause = None;
        while let Some(overlaid) = overlays.of(tree.id) {
            if let Some(_busy) = overlaid.begin_work() {
                drop(pause);
                work.merge_and_end(&overlaid)?;
                break;
            }
            pause.get_or_insert_with(|| self.begin_pause());
            local.parts.shared.writable()?;
            patience.wait(&local.worker);
        }
        Ok(Some(kept_out))
    }
}

impl Work<'_> {
    fn merge_and_end(&self, overlaid: &Arc<Overlaid>) -> Result<(), Error> {
        let overlays = &self.local.pool.overlays;
        if overlays.state(overlaid.tree.id) != Some(overlaid.serial) {
            // Another task has done it.
            return Ok(());
        }
        overlaid.is_leaving.store(true, Ordering::SeqCst);
        let leaving = Leaving(overlaid);
        self.transactions.tracker.drain(false, || self.wait())?;
        // So that nothing in memory holds the log while all is merged.
        self.seal_all(overlaid)?;
        self.merge_all(overlaid)?;
        // Those that come with it still read the base, which has everything.
        let key = listing::key(OVERLAID, overlaid.tree.id);
        self.commit(&[catalog_change(&key, None)], None)?;
        overlays.remove(overlaid.tree.id);
        drop(leaving);
        self.free_retired()
    }
}
