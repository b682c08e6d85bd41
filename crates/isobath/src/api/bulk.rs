//! Loading sorted records: the caller's thread packs them into batches, tasks
//! build the tree's pages from them. A caller that is a task does both.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::api::packed::Packed;
use crate::api::tree::{Tree, TreeState, check_key, check_value};
use crate::btree::{self, Descriptor, Loader, Paused, ValueRef};
use crate::canary::{self, Canary};
use crate::context::TaskContext;
use crate::engine::{Admitted, TaskHandle, WorkerState};
use crate::error::{LoadError, StorageError};
use crate::extent;
use crate::merging::Does;
use crate::runtime::{Patience, Urgency, block_on};
use crate::shared::Counters;
use crate::txn::tree_status::Closed;

/// Bytes after which a batch goes to the task. Two batches exist at a time.
const BATCH_BYTES: usize = 1 << 20;

/// Loads `records`, strictly ascending, at the end of `tree`; none if one of them is an error.
pub(crate) fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    tree: &Tree,
    records: impl Iterator<Item = Result<(K, V), LoadError>>,
) -> Result<u64, LoadError> {
    // A task does not wait for another one: there may be none left to run it.
    if tree.runtime.is_in_task() {
        tree.alive()?;
        let engine = tree.runtime.engine()?;
        let loaded = WorkerState::in_task(engine, |local| load_here(local, &tree.state, records));
        return tree.map_error(loaded);
    }
    let mut feed = Feed::begin(tree)?;
    let mut batch = Packed::default();
    for record in records {
        let (key, value) = record?;
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        check_value(value.len() as u64)?;
        batch.push(key, ValueRef::inline(value));
        if batch.bytes() >= BATCH_BYTES {
            batch = feed.send(batch)?;
        }
    }
    feed.finish(batch)
}

/// A load whose records come from outside of tasks. Each batch gets a task of its own, once it is
/// complete: no task waits for the caller's iterator, which may take as long as it likes, and may
/// wait for tasks itself. Dropped before the end, by an error or a panic of that iterator, it gives
/// the load up.
struct Feed<'t> {
    tree: &'t Tree,
    /// The store does not close before the load has ended.
    _admitted: Admitted,
    /// The task that has the load now.
    task: Option<TaskHandle<Result<Step, LoadError>>>,
}

/// The result of a task: the load, unless it has ended; its number of records at the end; the
/// batch, to be filled again.
struct Step {
    paused: Option<Paused>,
    loaded: u64,
    batch: Packed,
}

impl<'t> Feed<'t> {
    fn begin(tree: &'t Tree) -> Result<Feed<'t>, LoadError> {
        tree.alive()?;
        let mut feed = Feed {
            tree,
            _admitted: tree.runtime.admit(Urgency::Ordinary)?,
            task: None,
        };
        feed.start(None, Packed::default(), false)?;
        Ok(feed)
    }

    /// Has a task load the records of `batch`, while the next one is filled.
    fn start(
        &mut self,
        paused: Option<Paused>,
        batch: Packed,
        is_last: bool,
    ) -> Result<(), LoadError> {
        let state = Arc::clone(&self.tree.state);
        let engine = Arc::clone(self.tree.runtime.engine()?);
        let work = move || {
            WorkerState::in_task(&engine, |local| step(local, &state, paused, batch, is_last))
        };
        self.task = Some(self.tree.runtime.spawn(Urgency::Closing, None, work));
        Ok(())
    }

    /// Waits for the task that has the load.
    fn wait(&mut self) -> Result<Step, LoadError> {
        let task = self.task.take().ok_or(StorageError::Closed)?;
        self.tree.map_error(block_on(task.flat()))
    }

    /// Sends a batch; answers an empty one.
    fn send(&mut self, batch: Packed) -> Result<Packed, LoadError> {
        let before = self.wait()?;
        self.start(before.paused, batch, false)?;
        Ok(before.batch)
    }

    /// Sends the last batch, and waits until the records are there.
    fn finish(mut self, batch: Packed) -> Result<u64, LoadError> {
        let before = self.wait()?;
        self.start(before.paused, batch, true)?;
        self.wait().map(|step| step.loaded)
    }
}

impl Drop for Feed<'_> {
    fn drop(&mut self) {
        // A task that has failed has given the load up itself.
        let Some(Ok(Step {
            paused: Some(paused),
            ..
        })) = self.task.take().map(|task| block_on(task.flat()))
        else {
            return;
        };
        let Ok(engine) = self.tree.runtime.engine().map(Arc::clone) else {
            return;
        };
        let given_up = self.tree.runtime.spawn(Urgency::Closing, None, move || {
            WorkerState::with_current(&engine, |local| {
                if let Some(local) = local {
                    give_up(local, paused.resume(&TaskContext { local }));
                }
            });
        });
        // No caller is left to receive an error: the next opening frees the rest.
        let _ = given_up.join();
    }
}

/// Loads one batch, and returns the rest of the load.
fn step(
    local: &WorkerState,
    tree: &TreeState,
    paused: Option<Paused>,
    mut batch: Packed,
    is_last: bool,
) -> Result<Step, LoadError> {
    let ctx = TaskContext { local };
    let mut loader = match paused {
        Some(paused) => paused.resume(&ctx),
        None => begin(local, &ctx, tree)?,
    };
    let pushed = check_alive(tree).and_then(|()| {
        let mut records = batch.records();
        records.try_for_each(|(key, value)| push(local, &mut loader, key, value.bytes))
    });
    if let Err(error) = pushed {
        give_up(local, loader);
        return Err(error);
    }
    let counters = &local.engine.shared.counters;
    Counters::add(&counters.user_bytes, batch.bytes() as u64);
    batch.clear();
    let (paused, loaded) = match is_last {
        true => (None, appear(local, tree, loader)?),
        false => (Some(loader.pause()), 0),
    };
    Ok(Step {
        paused,
        loaded,
        batch,
    })
}

/// Begins a load into `tree`.
fn begin<'c>(
    local: &WorkerState,
    ctx: &'c TaskContext<'c>,
    tree: &TreeState,
) -> Result<Loader<'c, TaskContext<'c>>, LoadError> {
    // The tree is closed before its overlays are worked on, as by all that do both.
    let _kept_out = local.engine.merging.keep_out(local, tree.tree)?;
    let is_overlaid = local.pool.overlays.has(tree.tree.id);
    let closed = is_overlaid.then(|| close_to_others(local, tree));
    let closed = closed.transpose()?;
    let alone = || match closed.is_some() || canary::is_on(Canary::CollapseBesideOthers) {
        true => Ok(None),
        false => close_to_others(local, tree).map(Some),
    };
    // Merges alone change leaves of large trees then; those of small ones split as they grow.
    let fill_percent = match local.parts.shared.config.overlays {
        true => 100,
        false => btree::FILL_PERCENT,
    };
    // Overlays have nothing above the base's last key, nor do they remove that.
    let last = btree::last_key(ctx, tree.tree)?;
    let from = last.as_deref().map_or(Bound::Unbounded, Bound::Included);
    beside_overlays(local, tree, from, Does::Look, || {
        Loader::new(ctx, tree.tree, fill_percent, alone)
    })
}

/// Calls `work`, which changes the tree's base `from` a key on, beside overlays; see
/// [`Merging::beside_overlays`](crate::merging::Merging::beside_overlays).
fn beside_overlays<T>(
    local: &WorkerState,
    tree: &TreeState,
    from: Bound<&[u8]>,
    does: Does,
    work: impl FnOnce() -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    let engine = &local.engine;
    let (merging, transactions) = (&engine.merging, &engine.transactions);
    merging.beside_overlays(transactions, local, tree.tree, from, does, work)
}

/// Ends a load that is not to appear.
fn give_up(local: &WorkerState, loader: Loader<'_, TaskContext<'_>>) {
    // Before the token is cancelled: values that no record names have to be free by then.
    loader.abort(&mut |extent| local.engine.transactions.free_large(local, extent));
}

/// Loads the caller's records in the caller's own task.
fn load_here<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    local: &WorkerState,
    tree: &TreeState,
    records: impl Iterator<Item = Result<(K, V), LoadError>>,
) -> Result<u64, LoadError> {
    let mut panicked = None;
    let loaded = load_in_task(local, tree, |loader| {
        // A panic of the caller's iterator goes on once the load is given up.
        let taken = catch_unwind(AssertUnwindSafe(|| {
            take_records(local, tree, loader, records)
        }));
        taken.unwrap_or_else(|payload| {
            panicked = Some(payload);
            Ok(false)
        })
    });
    if let Some(payload) = panicked {
        resume_unwind(payload);
    }
    loaded
}

/// Loads the records that `take` takes; it says whether that were all.
fn load_in_task(
    local: &WorkerState,
    tree: &TreeState,
    take: impl FnOnce(&mut Loader<'_, TaskContext<'_>>) -> Result<bool, LoadError>,
) -> Result<u64, LoadError> {
    let ctx = TaskContext { local };
    let mut loader = begin(local, &ctx, tree)?;
    match take(&mut loader) {
        Ok(true) => appear(local, tree, loader),
        Ok(false) => {
            give_up(local, loader);
            Ok(0)
        }
        Err(error) => {
            give_up(local, loader);
            Err(error)
        }
    }
}

/// Makes the loaded records visible, all at once, while no commit changes the tree
/// and neither another load nor a drop of it is under way. They leave no versions, so
/// older snapshots must not read the tree any more.
fn appear(
    local: &WorkerState,
    tree: &TreeState,
    mut loader: Loader<'_, TaskContext<'_>>,
) -> Result<u64, LoadError> {
    let engine = &local.engine;
    let note = &mut |extent: &Descriptor| engine.transactions.free_large(local, extent);
    let closed = match loader
        .complete()
        .map_err(LoadError::from)
        .and_then(|()| close_tree(local, tree))
    {
        Ok(closed) => closed,
        Err(error) => {
            loader.abort(note);
            return Err(error);
        }
    };
    let Some(lower) = loader.lower().map(<[u8]>::to_vec) else {
        return link(local, tree, &closed, loader);
    };
    let does = match loader.has_large() {
        true => Does::PutLarge,
        false => Does::Put,
    };
    let from = Bound::Included(&lower[..]);
    let mut loader = Some(loader);
    let linked = beside_overlays(local, tree, from, does, || match loader.take() {
        Some(loader) => link(local, tree, &closed, loader),
        None => Ok(0),
    });
    if let Some(loader) = loader {
        loader.abort(note);
    }
    linked
}

/// Links what was loaded into a tree that no commit or merge changes.
fn link(
    local: &WorkerState,
    tree: &TreeState,
    closed: &Closed<'_>,
    loader: Loader<'_, TaskContext<'_>>,
) -> Result<u64, LoadError> {
    let engine = &local.engine;
    let note = &mut |extent: &Descriptor| engine.transactions.free_large(local, extent);
    let unseen = match loader.is_overtaken() {
        Ok(true) => None,
        Ok(false) => {
            let from = loader.lower();
            from.and_then(|from| engine.transactions.begin_load(tree.tree.id, from))
        }
        Err(error) => {
            loader.abort(note);
            return Err(error.into());
        }
    };
    let before = closed.begin_loading();
    let loaded = loader.link(note).inspect_err(|_| {
        closed.set_loaded(before);
    })?;
    let lasts = engine.log_tasks.make_durable(
        &local.worker,
        engine.log.newest_record(),
        engine.shared.config.durability,
    );
    match unseen {
        // For readers the tree stays as it was.
        Some(unseen) if lasts.is_err() => {
            unseen.keep();
            closed.set_loaded(before);
        }
        // Single reads see the records from here on, and snapshots that are newer than the stamp.
        unseen => {
            drop(unseen);
            engine.log.stamp(local.worker.index);
            closed.set_loaded(engine.log.next().0);
        }
    }
    lasts?;
    let next = engine.log.next();
    while engine.transactions.watermark(&engine.log) < next {
        engine.shared.writable()?;
        local.worker.yield_now();
    }
    Ok(loaded)
}

/// Closes the tree's status, once no other load or large commit has closed it.
fn close_to_others<'t>(local: &WorkerState, tree: &'t TreeState) -> Result<Closed<'t>, LoadError> {
    let mut patience = Patience::default();
    let wait = || {
        local.engine.shared.writable()?;
        patience.wait(&local.worker);
        Ok::<(), LoadError>(())
    };
    let dropped = || LoadError::TreeDropped {
        name: tree.name.to_string(),
    };
    tree.status.close_to_load(wait)?.ok_or_else(dropped)
}

/// Closes the tree's status, and waits for the commits that have not seen that.
fn close_tree<'t>(local: &WorkerState, tree: &'t TreeState) -> Result<Closed<'t>, LoadError> {
    let closed = close_to_others(local, tree)?;
    let wait = || {
        local.engine.shared.writable()?;
        local.worker.yield_now();
        Ok::<(), LoadError>(())
    };
    if !canary::is_on(Canary::LoadBesideCommits) {
        local.engine.transactions.tracker.drain(false, wait)?;
    }
    Ok(closed)
}

/// Loads record after record, in the task that has them.
fn take_records<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    local: &WorkerState,
    tree: &TreeState,
    loader: &mut Loader<'_, TaskContext<'_>>,
    records: impl Iterator<Item = Result<(K, V), LoadError>>,
) -> Result<bool, LoadError> {
    for record in records {
        let (key, value) = record?;
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        check_value(value.len() as u64)?;
        check_alive(tree)?;
        push(local, loader, key, value)?;
        let bytes = (key.len() + value.len()) as u64;
        Counters::add(&local.engine.shared.counters.user_bytes, bytes);
    }
    Ok(true)
}

/// A drop of the tree ends a load into it.
fn check_alive(tree: &TreeState) -> Result<(), LoadError> {
    if tree.is_dropped() {
        return Err(LoadError::TreeDropped {
            name: tree.name.to_string(),
        });
    }
    Ok(())
}

fn push(
    local: &WorkerState,
    loader: &mut Loader<'_, TaskContext<'_>>,
    key: &[u8],
    value: &[u8],
) -> Result<(), LoadError> {
    if btree::fits_inline(key.len(), value.len()) {
        Ok(loader.push(key, ValueRef::inline(value))?)
    } else {
        push_extent(local, loader, key, value)
    }
}

fn push_extent(
    local: &WorkerState,
    loader: &mut Loader<'_, TaskContext<'_>>,
    key: &[u8],
    value: &[u8],
) -> Result<(), LoadError> {
    let token = match canary::is_on(Canary::LoadValuesApart) {
        true => None,
        false => Some(loader.token()),
    };
    let written = extent::write_all(local, value, token)?;
    let pushed = loader.push(key, ValueRef::extent(&written.encode()));
    if pushed.is_err() {
        local.engine.transactions.free_uncommitted(local, written);
    }
    Ok(pushed?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::{Options, Store};

    /// A load frees the pages of a tree without records, and those are not its own while another
    /// task has closed the tree.
    #[test]
    fn a_load_does_not_begin_while_its_tree_is_closed() {
        let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(2)).unwrap();
        let tree = store.create_tree("t").unwrap();
        let never = || Err::<(), ()>(());
        let closed = tree.state.status.close_to_load(never).unwrap().unwrap();
        let has_begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| {
                tree.run(|local| {
                    load_in_task(local, &tree.state, |loader| {
                        has_begun.store(true, Ordering::SeqCst);
                        push(local, loader, b"key", b"value").map(|()| true)
                    })
                })
            });
            std::thread::sleep(Duration::from_millis(200));
            let was_early = has_begun.load(Ordering::SeqCst);
            drop(closed);
            assert_eq!(loading.join().unwrap().unwrap(), 1);
            assert!(!was_early);
        });
        assert_eq!(tree.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        store.close().unwrap();
    }
}
