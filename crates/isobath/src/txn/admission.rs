//! When a commit to trees with overlays may begin: before it holds anything, for what it waits for
//! are commits of its own kind.
//!
//! It waits for the pace of the tree, for a full volume, and for the memory, in this order. Commits
//! to the catalog wait for nothing: sealing and merging make some.

use std::sync::Arc;

use super::change::Change;
use crate::context::TaskWorker;
use crate::error::StorageError as Error;
use crate::overlay::{Admission, Overlaid};
use crate::page::PAGE_SIZE;
use crate::runtime::{Patience, clock};
use crate::types::CATALOG;

/// Waits until a commit of `changes` may begin, as far as overlays are concerned.
///
/// # Errors
///
/// [`Error::VolumeFull`], for one that does not only remove; why the memory could not be sealed.
pub(super) fn wait(local: &TaskWorker, changes: &[Change<'_>]) -> Result<(), Error> {
    let overlays = &local.pool.overlays;
    let is_of_user = |change: &Change<'_>| change.tree != CATALOG;
    let is_any = overlays.is_any() || overlays.frees_space();
    if !is_any || !changes.iter().any(is_of_user) {
        return Ok(());
    }
    let count = changes.len() as u64;
    // The tree of the first change decides: of several, others are asked by other commits.
    let overlaid = changes.iter().find(|change| overlays.has(change.tree.id));
    let begins = overlaid.and_then(|change| overlays.begin(change.tree.id, count, clock::now()));
    if let Some(begins) = begins {
        local.worker.sleep_until(begins);
    }
    if changes.iter().any(|change| change.value.is_some()) {
        wait_for_space(local, changes)?;
    }
    let mut patience = Patience::default();
    while overlays.is_any() {
        let log = &local.parts.log;
        let trees = changes.iter().map(|change| change.tree.id);
        match overlays.admit(trees, log.next(), log.area_bytes()) {
            Admission::Granted => break,
            Admission::Refused(error) => return Err(error),
            Admission::Later => wait_a_little(local, &mut patience)?,
        }
    }
    Ok(())
}

fn wait_a_little(local: &TaskWorker, patience: &mut Patience) -> Result<(), Error> {
    local.parts.shared.writable()?;
    local.parts.workers.notify_all();
    patience.wait(&local.worker);
    Ok(())
}

/// Waits until the volume has space for all that memories may have, and for `changes`, or no tree
/// has overlays any more.
///
/// What is in a memory takes no page yet. So the volume has to have space for full memories beside
/// every change. Where it has not, and cannot grow, all trees leave their overlays while that is
/// possible: in its leaf a record that replaces another one needs no space of its own.
fn wait_for_space(local: &TaskWorker, changes: &[Change<'_>]) -> Result<(), Error> {
    let (overlays, pagestore) = (&local.pool.overlays, &local.parts.pagestore);
    let own = changes.iter().map(Change::bytes).sum::<u64>();
    let bytes = own + overlays.max_in_memory();
    // As all is most of the time.
    if pagestore.has_room_for(bytes) {
        return Ok(());
    }
    let pages = bytes.div_ceil(PAGE_SIZE as u64);
    match pagestore.reserve_pages(&local.worker, pages) {
        Ok(()) => {
            pagestore.release_pages(pages);
            Ok(())
        }
        Err(Error::VolumeFull { .. }) => leave(local, overlays.all()),
        Err(error) => Err(error),
    }
}

/// Waits until these trees have overlays no more, and what was freed by that is free.
///
/// # Errors
///
/// Why one cannot leave them; it is tried again by the next change.
fn leave(local: &TaskWorker, trees: Vec<Arc<Overlaid>>) -> Result<(), Error> {
    let overlays = &local.pool.overlays;
    let mut patience = Patience::default();
    let ask = |tree: Arc<Overlaid>| {
        let (failures, _) = tree.not_left();
        tree.end_soon();
        (tree, failures)
    };
    let asked: Vec<_> = trees.into_iter().map(ask).collect();
    for (tree, failures) in asked {
        let has_them = || {
            let now = overlays.of(tree.tree.id);
            now.is_some_and(|now| Arc::ptr_eq(&now, &tree))
        };
        while has_them() {
            if let (now, Some(error)) = tree.not_left()
                && now > failures
            {
                return Err(error);
            }
            wait_a_little(local, &mut patience)?;
        }
    }
    while overlays.frees_space() {
        wait_a_little(local, &mut patience)?;
    }
    Ok(())
}
