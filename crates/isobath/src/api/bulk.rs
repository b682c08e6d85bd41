//! Loading sorted records: the caller's thread packs them into batches, a task
//! builds the tree's pages from them. A caller that is a task does both.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use oneshot::{AsyncReceiver, Sender};

use crate::api::tree::{Tree, TreeState, check_key, check_value};
use crate::btree::{self, Descriptor, Loader, ValueRef};
use crate::canary::{self, Canary};
use crate::context::TaskContext;
use crate::engine::WorkerState;
use crate::runtime::{Patience, block_on};
use crate::shared::Counters;
use crate::txn::tree_status::Closed;
use crate::{Error, extent};

/// Bytes after which a batch goes to the task. Two batches exist at a time.
const BATCH_BYTES: usize = 1 << 20;
/// How full pages are made on average, in percent: a full page would split at the first record that
/// is inserted into it later.
const FILL_PERCENT: usize = 94;

/// Packed records: key lengths, value lengths, then the bytes.
#[derive(Default)]
struct Batch {
    lengths: Vec<(u32, u32)>,
    bytes: Vec<u8>,
}

impl Batch {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.lengths.push((key.len() as u32, value.len() as u32));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.bytes[..];
        self.lengths.iter().map(move |&(key, value)| {
            let (record, later) = rest.split_at((key + value) as usize);
            rest = later;
            record.split_at(key as usize)
        })
    }
}

/// A batch on its way to the task, and where the next one will come from. A
/// sender that is dropped before the last batch makes the task give up.
struct Parcel {
    batch: Batch,
    is_last: bool,
    /// Gives the empty batch back, once its records are loaded.
    taken: Sender<Batch>,
    next: AsyncReceiver<Parcel>,
}

/// Loads `records`, strictly ascending, at the end of `tree`; none where one of them is an error.
pub(crate) fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    tree: &Tree,
    records: impl Iterator<Item = Result<(K, V), Error>>,
) -> Result<u64, Error> {
    let state = Arc::clone(&tree.state);
    let runtime = &tree.runtime;
    // A task does not wait for another one: there may be none left to run it.
    if runtime.is_in_task() {
        tree.alive()?;
        let loaded = WorkerState::with_current(&runtime.engine, |local| match local {
            Some(local) => load_here(local, &state, records),
            None => Err(Error::Closed),
        });
        return tree.map_error(loaded);
    }
    let (first, parcels) = oneshot::async_channel();
    let engine = std::sync::Arc::clone(&runtime.engine);
    let task = runtime.spawn(None, move || {
        WorkerState::with_current(&engine, |local| match local {
            Some(local) => load_in_task(local, &state, |loader| {
                take_parcels(local, &state, loader, parcels)
            }),
            None => Err(Error::Closed),
        })
    });
    let fed = feed(records, first);
    let loaded = block_on(task.flat());
    // The task's own failure explains why the batches were not taken.
    let loaded = tree.map_error(loaded)?;
    fed.map(|()| loaded)
}

/// Sends all records in batches. A bad record, or a panic of the caller's
/// iterator, leaves the load without its last batch.
fn feed<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    records: impl Iterator<Item = Result<(K, V), Error>>,
    first: Sender<Parcel>,
) -> Result<(), Error> {
    let mut to = first;
    let mut batch = Batch::default();
    let mut in_flight: Option<AsyncReceiver<Batch>> = None;
    let mut send = |batch: Batch, is_last: bool, to: Sender<Parcel>| {
        let (taken, empty) = oneshot::async_channel();
        let (next_to, next) = oneshot::async_channel();
        let parcel = Parcel {
            batch,
            is_last,
            taken,
            next,
        };
        // A task that has failed takes nothing; its result says why.
        let sent = to.send(parcel).is_ok();
        let spare = in_flight
            .replace(empty)
            .and_then(|earlier| block_on(earlier).ok());
        sent.then(|| (spare.unwrap_or_default(), next_to))
    };
    for record in records {
        let (key, value) = record?;
        let (key, value) = (key.as_ref(), value.as_ref());
        check_key(key)?;
        check_value(value.len() as u64)?;
        batch.push(key, value);
        if batch.bytes.len() >= BATCH_BYTES {
            match send(batch, false, to) {
                Some((spare, next)) => (batch, to) = (spare, next),
                None => return Ok(()),
            }
        }
    }
    // Nothing follows the last batch; where the task has failed, it says why.
    let _ = send(batch, true, to);
    Ok(())
}

/// Loads the caller's records in the caller's own task.
fn load_here<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    local: &WorkerState,
    tree: &TreeState,
    records: impl Iterator<Item = Result<(K, V), Error>>,
) -> Result<u64, Error> {
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
    take: impl FnOnce(&mut Loader<'_, TaskContext<'_>>) -> Result<bool, Error>,
) -> Result<u64, Error> {
    let ctx = TaskContext { local };
    let alone = || match canary::is_on(Canary::CollapseBesideRewrites) {
        true => Ok(None),
        false => close_to_others(local, tree).map(Some),
    };
    let mut loader = Loader::new(&ctx, tree.tree, FILL_PERCENT, alone)?;
    let outcome = take(&mut loader);
    // Before the token is cancelled: values that no record names have to be free by then.
    let mut free = |extent: &Descriptor| local.engine.transactions.free_large(local, extent);
    match outcome {
        Ok(true) => appear(local, tree, loader, &mut free),
        Ok(false) => {
            loader.abort(&mut free);
            Ok(0)
        }
        Err(error) => {
            loader.abort(&mut free);
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
    note: &mut dyn FnMut(&Descriptor),
) -> Result<u64, Error> {
    let engine = &local.engine;
    let closed = match loader.complete().and_then(|()| close_tree(local, tree)) {
        Ok(closed) => closed,
        Err(error) => {
            loader.abort(note);
            return Err(error);
        }
    };
    let unseen = match loader.lower() {
        Ok(lower) => lower.and_then(|from| engine.transactions.begin_load(tree.tree.id, from)),
        Err(error) => {
            loader.abort(note);
            return Err(error);
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
fn close_to_others<'t>(local: &WorkerState, tree: &'t TreeState) -> Result<Closed<'t>, Error> {
    let mut patience = Patience::default();
    let wait = || {
        local.engine.shared.writable()?;
        patience.wait(&local.worker);
        Ok::<(), Error>(())
    };
    let dropped = || Error::TreeDropped {
        name: tree.name.to_string(),
    };
    tree.status.close_to_load(wait)?.ok_or_else(dropped)
}

/// Closes the tree's status, and waits for the commits that have not seen that.
fn close_tree<'t>(local: &WorkerState, tree: &'t TreeState) -> Result<Closed<'t>, Error> {
    let closed = close_to_others(local, tree)?;
    let wait = || {
        local.engine.shared.writable()?;
        local.worker.yield_now();
        Ok::<(), Error>(())
    };
    if !canary::is_on(Canary::LoadBesideCommits) {
        local.engine.transactions.tracker.drain(false, wait)?;
    }
    Ok(closed)
}

/// Loads batch after batch; `false` if the sender gave up.
fn take_parcels(
    local: &WorkerState,
    tree: &TreeState,
    loader: &mut Loader<'_, TaskContext<'_>>,
    first: AsyncReceiver<Parcel>,
) -> Result<bool, Error> {
    let mut from = first;
    while let Ok(parcel) = block_on(from) {
        let mut batch = parcel.batch;
        check_alive(tree)?;
        for (key, value) in batch.records() {
            push(local, loader, key, value)?;
        }
        Counters::add(
            &local.engine.shared.counters.user_bytes,
            batch.bytes.len() as u64,
        );
        batch.lengths.clear();
        batch.bytes.clear();
        // The sender may have ended already.
        let _ = parcel.taken.send(batch);
        if parcel.is_last {
            return Ok(true);
        }
        from = parcel.next;
    }
    Ok(false)
}

/// Loads record after record, in the task that has them.
fn take_records<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    local: &WorkerState,
    tree: &TreeState,
    loader: &mut Loader<'_, TaskContext<'_>>,
    records: impl Iterator<Item = Result<(K, V), Error>>,
) -> Result<bool, Error> {
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
fn check_alive(tree: &TreeState) -> Result<(), Error> {
    if tree.is_dropped() {
        return Err(Error::TreeDropped {
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
) -> Result<(), Error> {
    if btree::fits_inline(key.len(), value.len()) {
        loader.push(key, ValueRef::inline(value))
    } else {
        push_extent(local, loader, key, value)
    }
}

fn push_extent(
    local: &WorkerState,
    loader: &mut Loader<'_, TaskContext<'_>>,
    key: &[u8],
    value: &[u8],
) -> Result<(), Error> {
    let token = match canary::is_on(Canary::LoadValuesApart) {
        true => None,
        false => Some(loader.token()),
    };
    let written = extent::write_all(local, value, token)?;
    let pushed = loader.push(key, ValueRef::extent(&written.encode()));
    if pushed.is_err() {
        local.engine.transactions.free_uncommitted(local, written);
    }
    pushed
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::{Options, Store};

    /// A load frees the pages of a tree without records, and those are not its own while a large commit rewrites the tree.
    #[test]
    fn a_load_does_not_begin_while_its_tree_is_rewritten() {
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
