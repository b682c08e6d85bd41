//! A store: its trees, and closing.

mod opening;

use std::collections::HashMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::api::catalog;
use crate::api::check::{self, CheckReport};
use crate::api::stats::Stats;
use crate::api::transaction::{Snapshot, Transaction, TransactionOptions};
use crate::api::tree::{Tree, TreeState};
use crate::btree::TreeId;
use crate::canary::{self, Canary};
use crate::engine::{Engine, Publisher, Runtime, TaskHandle};
use crate::error::{OpenError, StorageError, TransactionError};
use crate::pagestore::PageTrace;
use crate::paths::real;
use crate::runtime::Urgency;
use crate::sync::Mutex;
use crate::{Error, OutputFile, WriteBatch, checkpoint, extent};

/// Progress of long work: how much is done of how much, in the unit that the
/// work documents. The total may grow.
pub type Progress<'p> = &'p mut (dyn FnMut(u64, u64) + Send);

/// One tree of [`Store::trees`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeInfo {
    /// The tree's name.
    pub name: String,
    /// Its number, which no other tree of the store ever has.
    pub id: u32,
}

/// State shared by all handles of a store.
struct Shared {
    runtime: Arc<Runtime>,
    closer: Arc<Closer>,
    paths: Vec<PathBuf>,
    /// The one state of each tree that the catalog names, or may name yet, and that
    /// was ever asked for.
    trees: Mutex<HashMap<TreeId, Arc<TreeState>>>,
}

/// State that closing a store needs, without its handles.
struct Closer {
    runtime: Arc<Runtime>,
    /// How closing has ended. Locked during closing: concurrent closers wait.
    closed: Mutex<Option<Result<(), StorageError>>>,
}

/// An open store: named trees on one volume. Clones share it.
///
/// [`Store::close`] writes a checkpoint; dropping the last clone does so too,
/// but cannot report errors, and inside a task does not wait for it. A store
/// that was not closed is recovered from its log by its next writer; without a
/// log ([`Options::log_bytes`](crate::Options::log_bytes) 0) it refuses to open.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("fruit.isobath");
/// use isobath::{Options, Store};
///
/// let options = Options::new().pool_bytes(16 << 20);
/// let store = Store::create(&[&path], &options)?;
/// let fruit = store.create_tree("fruit")?;
/// fruit.insert(b"apple", b"red")?;
/// fruit.insert(b"banana", b"yellow")?;
/// assert_eq!(fruit.get(b"apple")?.as_deref(), Some(&b"red"[..]));
/// for record in fruit.prefix(b"b") {
///     let (key, value) = record?;
///     assert_eq!((&key[..], &value[..]), (&b"banana"[..], &b"yellow"[..]));
/// }
/// store.close()?;
///
/// let store = Store::open(&[&path], &options)?;
/// assert!(store.tree("fruit")?.contains(b"banana")?);
/// store.close()?;
/// # Ok(())
/// # }
/// ```
///
/// A store belongs to the process that has opened it: in a child that is forked later its
/// operations fail with [`Error::Forked`], and the parent's go on.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

/// A handle that does not keep the store open.
pub(crate) struct WeakStore(Weak<Shared>);

impl WeakStore {
    /// The store.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`] once its last handle is gone.
    pub(crate) fn upgrade(&self) -> Result<Store, StorageError> {
        self.0.upgrade().map(Store).ok_or(StorageError::Closed)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("paths", &self.0.paths)
            .field("workers", &self.workers())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// The running engine.
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.0.runtime
    }

    pub(crate) fn downgrade(&self) -> WeakStore {
        WeakStore(Arc::downgrade(&self.0))
    }

    fn on(mut runtime: Runtime, paths: Vec<PathBuf>) -> Store {
        let paths: Vec<PathBuf> = paths.iter().map(|path| real(path)).collect();
        let directory = paths.first().filter(|path| path.is_file());
        if let Some(directory) = directory.and_then(|path| path.parent()) {
            directory.clone_into(&mut runtime.directory);
        }
        if let Some(first) = paths.first()
            && runtime.config().publish_stats
            && !runtime.config().read_only
        {
            let publisher = Publisher::new(first, Stats::to_text);
            // In a forked child there is nothing to publish.
            if let Ok(engine) = runtime.engine() {
                engine.publishing.start(publisher);
            }
        }
        let runtime = Arc::new(runtime);
        Store(Arc::new(Shared {
            closer: Arc::new(Closer {
                runtime: Arc::clone(&runtime),
                closed: Mutex::new(None),
            }),
            runtime,
            paths,
            trees: Mutex::new(HashMap::new()),
        }))
    }

    /// Waits for all tasks, gives back what the file of a small store has beyond what its data
    /// needs, writes everything and a checkpoint, and ends the workers. Other handles of the store
    /// and its trees answer [`Error::Closed`] from now on.
    ///
    /// # Errors
    ///
    /// The first failure to write: what was changed since the last opening is
    /// lost then, and the store refuses to open. Every close of one store returns the same.
    /// [`Error::CloseInTask`] inside a task of this store, which would wait for itself.
    pub fn close(self) -> Result<(), Error> {
        if self.0.runtime.is_in_task() {
            return Err(Error::CloseInTask);
        }
        Ok(self.0.closer.close()?)
    }

    /// Closes a store that this thread has opened for a moment, outside of its tasks.
    pub(crate) fn close_opened(self) -> Result<(), OpenError> {
        Ok(self.0.closer.close()?)
    }

    /// Closes a store that this handle or one like it has created and takes it away again: its
    /// files and its log's are removed, block devices begin with what they held before. One that
    /// was opened is closed and stays.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("a.isobath");
    /// # use isobath::{Options, Store};
    /// # let options = Options::new().pool_bytes(16 << 20);
    /// let store = Store::create(&path, &options)?;
    /// store.undo_creation()?;
    /// assert!(!path.exists());
    ///
    /// Store::create(&path, &options)?.close()?;
    /// Store::open(&path, &options)?.undo_creation()?;
    /// assert!(path.exists());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::CloseInTask`], [`Error::Closed`].
    pub fn undo_creation(self) -> Result<(), Error> {
        let volume = self.0.runtime.engine()?.shared.volume()?;
        match self.close() {
            Err(Error::CloseInTask) => Err(Error::CloseInTask),
            // That it could not be written does not matter any more.
            _ => {
                volume.undo_creation();
                Ok(())
            }
        }
    }

    /// Makes the tree `name`.
    ///
    /// # Errors
    ///
    /// [`Error::TreeExists`], [`Error::BadTreeName`], and as for [`Tree::insert`].
    pub fn create_tree(&self, name: &str) -> Result<Tree, Error> {
        let mut handle = None;
        // The state is listed before the catalog has the name: a task that finds that, for
        // example to drop the tree, finds this state.
        let mut list = |tree| handle = Some(self.handle(name, tree));
        let made = self.0.runtime.run(Urgency::Ordinary, |local| {
            catalog::add(local, name, &mut list)
        });
        match (made, handle) {
            (Ok(()), Some(handle)) => Ok(handle),
            (Ok(()), None) => self.tree(name),
            (Err(error), handle) => {
                if let Some(handle) = handle {
                    self.forget(&handle);
                }
                Err(error)
            }
        }
    }

    /// The existing tree `name`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTree`], [`Error::BadTreeName`], or a failed read.
    pub fn tree(&self, name: &str) -> Result<Tree, Error> {
        let missing = || Error::NoSuchTree {
            name: name.to_owned(),
        };
        let found = self.find(name)?.ok_or_else(missing)?;
        let handle = self.handle(name, found);
        // The state is the tree's only one if the catalog has the name still: a drop
        // takes the name away before it takes the state out of the list.
        if self.find(name)? == Some(found) {
            return Ok(handle);
        }
        handle.state.status.set_dropped();
        self.forget(&handle);
        Err(missing())
    }

    fn find(&self, name: &str) -> Result<Option<crate::btree::Tree>, Error> {
        self.0.runtime.run(Urgency::Ordinary, |local| {
            catalog::find_visible(local, name)
        })
    }

    /// Takes the state of a tree that the catalog does not name out of the list.
    fn forget(&self, tree: &Tree) {
        self.0.trees.lock().remove(&tree.state.tree.id);
    }

    /// The tree `name`, made if there is none.
    ///
    /// # Errors
    ///
    /// As for [`Store::create_tree`], except for [`Error::TreeExists`].
    pub fn open_or_create_tree(&self, name: &str) -> Result<Tree, Error> {
        // Bound: each round but the last finds that others made the tree, then that they
        // dropped it.
        loop {
            match self.tree(name) {
                Err(Error::NoSuchTree { .. }) => {}
                other => return other,
            }
            match self.create_tree(name) {
                Err(Error::TreeExists { .. }) => {}
                other => return other,
            }
        }
    }

    fn handle(&self, name: &str, tree: crate::btree::Tree) -> Tree {
        let new = || Arc::new(TreeState::new(name, tree));
        let state = if canary::is_on(Canary::SeparateTreeStates) {
            new()
        } else {
            let mut trees = self.0.trees.lock();
            Arc::clone(trees.entry(tree.id).or_insert_with(new))
        };
        Tree {
            runtime: Arc::clone(&self.0.runtime),
            state,
        }
    }

    /// Drops the tree `name` with all its records; its room is free when this
    /// returns. Handles on it answer [`Error::TreeDropped`] from now on.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchTree`], and as for [`Tree::remove`].
    pub fn drop_tree(&self, name: &str) -> Result<(), Error> {
        let tree = self.tree(name)?;
        let result = self.0.runtime.run(Urgency::Ordinary, |local| {
            catalog::drop_tree(local, name, &tree.state)
        });
        if tree.state.is_dropped() {
            self.forget(&tree);
        }
        result
    }

    /// All trees, by name.
    ///
    /// # Errors
    ///
    /// A failed read.
    pub fn trees(&self) -> Result<Vec<TreeInfo>, Error> {
        let trees = self
            .0
            .runtime
            .run(Urgency::Ordinary, catalog::list_visible)?;
        Ok(trees
            .into_iter()
            .map(|(name, tree)| TreeInfo {
                name,
                id: tree.id.0,
            })
            .collect())
    }

    /// Begins a transaction with snapshot isolation, see [`Transaction`].
    ///
    /// # Errors
    ///
    /// [`TransactionError::ReadOnly`], [`StorageError::Poisoned`](crate::StorageError::Poisoned),
    /// [`StorageError::Closed`](crate::StorageError::Closed).
    pub fn begin(&self) -> Result<Transaction, TransactionError> {
        self.begin_with(TransactionOptions::new())
    }

    /// Begins a transaction.
    ///
    /// # Errors
    ///
    /// As for [`Store::begin`]; a read-only one needs no writable store.
    pub fn begin_with(&self, options: TransactionOptions) -> Result<Transaction, TransactionError> {
        Transaction::begin(&self.0.runtime, options)
    }

    /// Opens a snapshot for reading: everything that is committed now, and
    /// nothing that is committed later.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`](crate::StorageError::Closed);
    /// [`StorageError::Poisoned`](crate::StorageError::Poisoned) where a commit that it would show
    /// has failed.
    pub fn snapshot(&self) -> Result<Snapshot, TransactionError> {
        Snapshot::open(&self.0.runtime)
    }

    /// Runs `work` in a transaction and commits it. If that fails because of
    /// other transactions, it runs `work` again from the beginning, in a new
    /// transaction, after pauses that grow; at most
    /// [`TransactionOptions::attempts`] times. So `work` should have no effects but
    /// on the transaction. If `work` returns an error, the transaction is rolled back. The
    /// error may be of any type that [`Error`] can become.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use isobath::{Options, Store, TransactionOptions};
    ///
    /// #[derive(Debug, thiserror::Error)]
    /// enum Refused {
    ///     #[error("not enough left: {0}")]
    ///     TooLittle(u8),
    ///     #[error(transparent)]
    ///     Store(#[from] isobath::Error),
    /// }
    ///
    /// let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let stock = store.create_tree("stock")?;
    /// stock.insert("apples", [3])?;
    /// let take = |wanted: u8| {
    ///     store.transact(TransactionOptions::new(), |transaction| {
    ///         let there = transaction.get(&stock, "apples")?.map_or(0, |count| count[0]);
    ///         let left = there.checked_sub(wanted).ok_or(Refused::TooLittle(there))?;
    ///         transaction.insert(&stock, "apples", [left])?;
    ///         Ok::<u8, Refused>(left)
    ///     })
    /// };
    /// assert_eq!(take(2)?, 1);
    /// assert!(matches!(take(2), Err(Refused::TooLittle(1))));
    /// # store.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What `work` fails with, and as for [`Transaction::commit`]; the last
    /// [`Error::Conflict`] if no attempt has succeeded.
    pub fn transact<T, E: From<Error>>(
        &self,
        options: TransactionOptions,
        work: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        crate::api::transaction::transact(&self.0.runtime, options, work)
    }

    /// Commits all changes of `batch` at once, whatever others have changed since they were
    /// collected. Where this returns an error, the batch is as it was and may be written again.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`] and [`Transaction::commit`], except for [`Error::Conflict`].
    pub fn write(&self, batch: &WriteBatch) -> Result<(), Error> {
        crate::api::transaction::write_batch(&self.0.runtime, batch)
    }

    /// Counters and gauges of the whole store; all zero in a child that was forked.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let engine = self.0.runtime.engine();
        engine.map_or_else(|_| Stats::default(), |engine| Stats::of(engine))
    }

    /// Tells the drive which segments hold nothing (TRIM; holes in a file), so that it need not
    /// keep what they held. Answers how many bytes that were. The store can be used during that. A
    /// file then has to find room for them again.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the device does not know the operation or fails; nothing is lost.
    /// [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn discard_free_segments(&self) -> Result<u64, Error> {
        self.0.runtime.run(Urgency::Ordinary, |local| {
            Ok(local.engine.pagestore.discard_free(&local.worker)?)
        })
    }

    /// Tells `trace` of every page that is stored now, then of every page that is written because
    /// it changed, and of every page that is freed: what a cleaning policy sees of a workload.
    /// `None` ends that. Chunks of large values are not told. Page numbers start at 1.
    pub fn trace_pages(&self, trace: Option<Box<dyn PageTrace>>) {
        if let Ok(engine) = self.0.runtime.engine() {
            engine.pagestore.trace_pages(&engine.buffer, trace);
        }
    }

    /// Reads and verifies everything: every page and chunk, every rule of
    /// every tree, and that all room is accounted for. No task may change the
    /// store during that. Progress is in pages and chunks: `progress` runs on the calling thread,
    /// gets the newest count each time, and may read the store. If it panics, the check goes on to
    /// its end without it. In a task of this store it runs in that task.
    ///
    /// # Errors
    ///
    /// Only what prevents checking at all; what is wrong with the store is in
    /// the report.
    pub fn check(&self, progress: Progress<'_>) -> Result<CheckReport, Error> {
        check::check(&self.0.runtime, progress)
    }

    /// Runs `work` as a task on some worker: operations on the store's trees
    /// inside it overlap their I/O with other tasks. Waits while very much work
    /// is queued already.
    ///
    /// A task yields to others of its thread wherever it waits: in operations of the store that
    /// read, write or commit, in [`yield_now`](crate::yield_now) and the like. So `work` must not
    ///
    /// - hold a lock that other tasks take (`std::sync::Mutex`, a `RefCell` in thread-local
    ///   storage) across such a call: another task of the same thread that wants it blocks the
    ///   thread, and with it the task that has it. Take the lock, copy what is needed, release it,
    ///   then call the store.
    /// - block the thread for long: sleeping, network, channels. That work belongs to threads of
    ///   the application.
    /// - need more stack than [`Options::task_stack_bytes`](crate::Options::task_stack_bytes): the
    ///   process ends, and says so.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> TaskHandle<T> {
        self.0.runtime.spawn(Urgency::Ordinary, None, work)
    }

    /// As [`Store::spawn`], on the worker of this index, modulo their number; a task that joins it
    /// early runs it itself, on its own worker.
    pub fn spawn_on<T: Send + 'static>(
        &self,
        worker: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> TaskHandle<T> {
        self.0.runtime.spawn(Urgency::Ordinary, Some(worker), work)
    }

    /// Number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.0.runtime.config().workers
    }

    /// The log's path, if it is not in the volume's own files
    /// ([`Options::log_path`](crate::Options::log_path)).
    #[must_use]
    pub fn log_path(&self) -> Option<PathBuf> {
        checkpoint::log_path(&self.0.runtime.config().log_path, &self.0.paths)
    }

    /// Begins to write the file `path`, which is none of this store's; see [`OutputFile::create`].
    ///
    /// # Errors
    ///
    /// As for [`OutputFile::create`]; [`Error::Closed`].
    pub fn output_file(&self, path: &Path, overwrite: bool) -> Result<OutputFile, Error> {
        let volume = self.0.runtime.engine()?.shared.volume()?;
        Ok(OutputFile::create_beside(&volume, path, overwrite)?)
    }

    /// Whether `file` is one of the files or block devices that the store lies on, its log's
    /// included, under any name.
    #[must_use]
    pub fn holds(&self, file: &Metadata) -> bool {
        let volume = self.0.runtime.engine();
        let volume = volume.and_then(|engine| engine.shared.volume());
        volume.is_ok_and(|volume| volume.holds(file))
    }

    /// The volume's files, in order, as absolute paths without symbolic links; none for a store in
    /// memory.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.0.paths
    }
}

impl Closer {
    fn close(&self) -> Result<(), StorageError> {
        let engine = self.runtime.engine()?;
        let mut closed = self.closed.lock();
        closed
            .get_or_insert_with(|| self.close_once(engine))
            .clone()
    }

    fn close_once(&self, engine: &Arc<Engine>) -> Result<(), StorageError> {
        self.runtime.refuse_and_drain();
        engine.publishing.stop();
        if engine.shared.config.read_only {
            self.runtime.stop();
            engine.release();
            return Ok(());
        }
        let flushed = self.runtime.run(Urgency::Closing, |local| {
            // Snapshots that are still open end with the store.
            while local.engine.transactions.snapshots.abort_oldest() {}
            // First: what is left to confirm or free in the catalog goes with it.
            let engine = &local.engine;
            engine.merging.end(&engine.transactions, local)?;
            local.engine.transactions.gc(local);
            extent::free_provisional(local);
            local.engine.checkpoints.trim(&local.worker);
            local.engine.pagestore.write_all(&local.worker)
        });
        self.runtime.stop();
        // Why the store is poisoned says more than that its workers have ended.
        let closed = engine
            .shared
            .writable()
            .and(flushed)
            .and_then(|()| engine.checkpoints.last_checkpoint());
        #[cfg(any(test, feature = "simulation"))]
        if self.runtime.is_simulated() {
            let layout = crate::recovery::compare::Layout::of(&engine.buffer, &engine.pagestore);
            engine.opening.note_layout(layout);
        }
        engine.release();
        closed
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.runtime.is_forked() {
            // Locks, statistics and rings are the parent's, and stay.
            std::mem::forget(Arc::clone(&self.runtime));
            return;
        }
        if !self.runtime.is_in_task() {
            // `close` says how it went; a drop cannot.
            let _ = self.closer.close();
        } else if !self.runtime.is_simulated() {
            // The last handle goes inside a task, for which closing has to wait.
            let closer = Arc::clone(&self.closer);
            let thread = std::thread::Builder::new().name("isobath-close".to_owned());
            #[allow(
                clippy::disallowed_methods,
                reason = "no worker may wait for the workers' end"
            )]
            // Without a thread the store stays open, and says so at its next opening.
            let _ = thread.spawn(move || closer.close());
        }
    }
}
