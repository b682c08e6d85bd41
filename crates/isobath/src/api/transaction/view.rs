//! An open snapshot and how its state of a record is found.

use std::sync::Arc;

use crate::api::tree::Tree;
use crate::api::value::Keeper;
use crate::engine::{Engine, Runtime, WorkerState};
use crate::error::{Error, StorageError, TransactionError};
use crate::runtime::Urgency;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::txn::Transactions;
use crate::txn::snapshots::Registered;

/// An open snapshot; dropping this closes it.
pub(super) struct View {
    runtime: Arc<Runtime>,
    registered: Arc<Registered>,
    /// A read has failed because the snapshot is too old for it.
    was_too_old: AtomicBool,
}

impl View {
    /// Opens a snapshot of everything that is committed and acknowledged.
    pub(super) fn open(runtime: &Arc<Runtime>) -> Result<View, StorageError> {
        runtime.check_open()?;
        let engine = runtime.engine()?;
        let transactions = &engine.transactions;
        let (log, tracker) = (&engine.log, &transactions.tracker);
        let registered = transactions.snapshots.begin(log, tracker, || {
            // A commit that failed half-way never ends.
            engine.shared.writable()?;
            rest(engine);
            Ok::<(), StorageError>(())
        })?;
        Ok(View {
            runtime: Arc::clone(runtime),
            registered,
            was_too_old: AtomicBool::new(false),
        })
    }

    pub(super) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    pub(super) fn registered(&self) -> &Registered {
        &self.registered
    }

    /// The keeper of the snapshot's large values.
    pub(super) fn keeper(&self) -> Keeper {
        Keeper::Snapshot(Arc::downgrade(&self.registered))
    }

    pub(super) fn lsn(&self) -> u64 {
        self.registered.lsn
    }

    pub(super) fn transactions(&self) -> Result<&Transactions, StorageError> {
        self.runtime.engine().map(|engine| &engine.transactions)
    }

    /// Refuses trees of other stores, and dropped ones.
    pub(super) fn check_tree(&self, tree: &Tree) -> Result<(), Error> {
        if !Arc::ptr_eq(&tree.runtime, &self.runtime) {
            return Err(Error::OtherStore {
                name: tree.name().to_owned(),
            });
        }
        Ok(tree.alive()?)
    }

    /// To be asked when leaf and versions were read: whether both were complete.
    pub(super) fn check(&self, tree: &Tree) -> Result<(), TransactionError> {
        tree.found::<_, TransactionError>(())?;
        let is_too_old = tree.state.status.loaded() > self.lsn();
        if is_too_old || self.registered.check().is_err() {
            self.was_too_old.store(true, Ordering::Relaxed);
            return Err(TransactionError::SnapshotTooOld);
        }
        Ok(())
    }

    /// Whether a read of this snapshot has failed with [`Error::SnapshotTooOld`].
    pub(super) fn was_too_old(&self) -> bool {
        self.was_too_old.load(Ordering::Relaxed)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // In a forked child the snapshot is the parent's.
        let Ok(engine) = self.runtime.engine() else {
            return;
        };
        let transactions = &engine.transactions;
        transactions.snapshots.end(&self.registered);
        // What only this snapshot could see goes; the last one takes all. A
        // task that panics must not wait.
        let panics = std::thread::panicking();
        let go_on = || transactions.snapshots.active() == 0 && !panics;
        if !transactions.versions.is_empty() {
            transactions.watermark(&engine.log);
        }
        while transactions.gc_versions(COLLECT_AT_END) && go_on() {
            rest_in_task(engine);
        }
        if transactions.has_dead() && !panics {
            // While the store is closing, closing does it.
            let _ = self.runtime.run(Urgency::Ordinary, |local| {
                local.engine.transactions.free_dead(local);
                Ok::<(), StorageError>(())
            });
        }
    }
}

/// Versions that the end of a snapshot collects at least.
const COLLECT_AT_END: usize = 256;

fn rest_in_task(engine: &Engine) -> bool {
    WorkerState::with_current(engine, |local| {
        if let Some(local) = local {
            local.worker.yield_now();
        }
        local.is_some()
    })
}

/// Lets others run: other tasks, other threads, or the simulation.
pub(super) fn rest(engine: &Engine) {
    if !rest_in_task(engine) && !crate::sync::drive() {
        std::thread::yield_now();
    }
}
