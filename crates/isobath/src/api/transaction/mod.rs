//! Transactions and snapshots, as users see them.

mod cursor;
mod large_changes;
mod modify;
mod not_kept;
mod retry;
mod scan;
mod spill;
mod view;
mod write_set;
mod writer;
mod writes;

use std::borrow::Cow;
use std::sync::Arc;

pub(crate) use cursor::MergeCursor;
pub use cursor::TransactionRange;
pub(crate) use modify::Most;
pub use modify::TransactionExtractIf;
pub use retry::TransactionOptions;
pub(crate) use retry::transact;
pub(crate) use scan::{Found, Source, scan_seen};
pub use writer::TransactionWriter;

use crate::api::range::Ends;
use crate::api::tree::{Tree, Wanted, check_key, check_value};
use crate::api::value::ValueReader;
use crate::bounds::{self, KeyRange};
use crate::btree::{self, Direction, Stretch, TreeId};
use crate::engine::{OperationFuture, Runtime};
use crate::error::{LoadError, StorageError, TransactionError};
use crate::runtime::Urgency;
use crate::shared::Counters;
use crate::sync::Mutex;
use crate::txn::Dead;
use crate::txn::commit::CommitContext;
use crate::txn::serializable::ReadSet;
use crate::{Durability, Error, Record, WriteBatch, extent, small};
use not_kept::NotKept;
use scan::Hidden;
use view::View;
use write_set::{Own, Write, WriteSet};

/// What a transaction is protected from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// It sees the store as it was when it began, and commits only if no other has
    /// changed since what it writes. Two transactions may each read what the
    /// other writes (*write skew*).
    #[default]
    Snapshot,
    /// Moreover it commits only if no other has changed since what it has read,
    /// records that were not there included: the outcome is that of running the
    /// serializable transactions one after another.
    Serializable,
}

/// A place to go back to in a [`Transaction`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savepoint {
    transaction: u64,
    number: u64,
}

/// A transaction over all trees of a store, from
/// [`Store::begin`](crate::Store::begin).
///
/// It reads the store as it was when the transaction began, together with its own
/// changes; they are not visible to others before [`Transaction::commit`] returns, and
/// then all at once. Nothing is locked before that: of two transactions that change
/// the same key, the first to commit wins, and the other gets
/// [`TransactionError::Conflict`]. Dropping a transaction rolls it back.
///
/// It may be used from any thread and inside tasks, and moved between them. While
/// it is open the store keeps what it may still read, so a transaction should not
/// be open for longer than it must.
///
/// ```
/// # fn main() -> Result<(), isobath::Error> {
/// use isobath::{Options, Store};
///
/// let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
/// let accounts = store.create_tree("accounts")?;
/// accounts.insert(b"ada", b"100")?;
///
/// let mut transaction = store.begin()?;
/// transaction.insert(&accounts, b"ada", b"70")?;
/// transaction.insert(&accounts, b"grace", b"30")?;
/// assert_eq!(accounts.get(b"grace")?, None); // not visible to others yet
/// assert_eq!(transaction.get(&accounts, b"grace")?.as_deref(), Some(&b"30"[..]));
/// transaction.commit()?;
/// assert!(accounts.contains(b"grace")?);
/// # store.close()
/// # }
/// ```
pub struct Transaction {
    view: View,
    writes: WriteSet,
    reads: Option<Mutex<ReadSet>>,
    /// What scans have passed in vain since the last change.
    hidden: Mutex<Hidden>,
    /// Where pops from a tree go on: only they have changed anything since they began.
    pops: Option<Box<(TreeId, Ends)>>,
    durability: Durability,
    read_only: bool,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("began_at", &self.view.lsn())
            .field("changed_bytes", &self.writes.bytes())
            .finish_non_exhaustive()
    }
}

impl Transaction {
    pub(crate) fn begin(
        runtime: &Arc<Runtime>,
        options: TransactionOptions,
    ) -> Result<Transaction, TransactionError> {
        if !options.is_read_only() {
            runtime.engine()?.shared.writable()?;
        }
        let is_serializable = options.isolation_level() == Isolation::Serializable;
        // A snapshot is a state that the serializable transactions agree on, so
        // who only reads it need not remember what.
        let remembers = is_serializable && !options.is_read_only();
        let default = runtime.config().durability;
        let view = View::open(runtime)?;
        Ok(Transaction {
            view,
            writes: WriteSet::default(),
            reads: remembers.then(Mutex::default),
            hidden: Mutex::default(),
            pops: None,
            durability: options.durability.unwrap_or(default),
            read_only: options.is_read_only(),
        })
    }

    /// It sees exactly the commits whose records are before this.
    pub(crate) fn lsn(&self) -> u64 {
        self.view.lsn()
    }

    fn source<'s>(&'s self, tree: &'s Tree) -> Result<Source<'s>, Error> {
        self.view.check_tree(tree)?;
        Ok(Source {
            tree,
            engine: self.view.runtime().engine()?,
            view: Some(&self.view),
            writes: self.writes.of(tree),
            reads: self.reads.as_ref(),
            hidden: Some(&self.hidden).filter(|_| !self.read_only),
        })
    }

    /// The value that `key` of `tree` has for this transaction.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`], [`Error::KeyTooLong`], [`Error::TreeDropped`],
    /// [`Error::OtherStore`], [`Error::Closed`], or a failed read.
    pub fn get(&self, tree: &Tree, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(tree, key, &mut value)?.then_some(value))
    }

    /// Like [`Transaction::get`], into `value`, which is cleared first; `false`
    /// if the key is absent.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn get_into(
        &self,
        tree: &Tree,
        key: impl AsRef<[u8]>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let key = key.as_ref();
        check_key(key)?;
        self.source(tree)?.get(key, value)
    }

    /// Whether `key` of `tree` has a value for this transaction.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn contains(&self, tree: &Tree, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = key.as_ref();
        check_key(key)?;
        self.source(tree)?.contains(key)
    }

    /// The same as [`Transaction::contains`], by the name that it has in the standard library's
    /// maps.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn contains_key(&self, tree: &Tree, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.contains(tree, key)
    }

    /// The values of all `keys`, in their order; page faults of many keys overlap.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        tree: &Tree,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        keys.iter().try_for_each(|key| check_key(key))?;
        self.source(tree)?.get_many(&keys)
    }

    /// The records of `tree` whose keys lie within `bounds`, in order, from both
    /// ends.
    ///
    /// # Errors
    ///
    /// [`Error::OtherStore`]; the iterator as for [`Transaction::get`].
    pub fn range<'t>(
        &'t self,
        tree: &'t Tree,
        bounds: impl KeyRange,
    ) -> Result<TransactionRange<'t>, Error> {
        let (lower, upper) = bounds::owned(&bounds);
        Ok(TransactionRange::new(self.source(tree)?, lower, upper))
    }

    /// The keys of `tree` within `bounds` with the lengths of their values in bytes, in order, from
    /// both ends; reads no large value.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::range`].
    pub fn keys<'t>(
        &'t self,
        tree: &'t Tree,
        bounds: impl KeyRange,
    ) -> Result<TransactionRange<'t, u64>, Error> {
        let (lower, upper) = bounds::owned(&bounds);
        Ok(TransactionRange::new(self.source(tree)?, lower, upper))
    }

    /// Counts the records of `tree` that this transaction sees within `bounds`; where nothing has
    /// changed since it began, by what the leaves say of themselves, as [`Tree::count`].
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn count(&self, tree: &Tree, bounds: impl KeyRange) -> Result<u64, Error> {
        self.source(tree)?.count(bounds.key_bounds())
    }

    /// All records of `tree` in order, from both ends.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::range`].
    pub fn iter<'t>(&'t self, tree: &'t Tree) -> Result<TransactionRange<'t>, Error> {
        self.range(tree, ..)
    }

    /// The records of `tree` whose keys start with `prefix`, in order, from both
    /// ends.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::range`].
    pub fn prefix<'t>(
        &'t self,
        tree: &'t Tree,
        prefix: impl AsRef<[u8]>,
    ) -> Result<TransactionRange<'t>, Error> {
        self.range(tree, bounds::prefix_range(prefix))
    }

    /// Calls `visit` with the records of `tree` whose keys lie within `bounds`, in
    /// order, until it returns `false`.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn scan(
        &self,
        tree: &Tree,
        bounds: impl KeyRange,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.scan_in(tree, bounds, Direction::Forward, visit)
    }

    fn scan_in(
        &self,
        tree: &Tree,
        bounds: impl KeyRange,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let (bounds, wanted) = (bounds.key_bounds(), Wanted::default());
        let source = self.source(tree)?;
        source.scan(bounds, direction, wanted, |key, value, _| visit(key, value))
    }

    /// As [`Transaction::scan`], by descending keys.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn scan_reverse(
        &self,
        tree: &Tree,
        bounds: impl KeyRange,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        self.scan_in(tree, bounds, Direction::Reverse, visit)
    }

    /// Reads the value of `key` as a stream; `None` if it has none. Once the transaction has ended
    /// and the value is gone, reading fails with an [`std::io::Error`] around
    /// [`Error::ValueReplaced`].
    ///
    /// # Errors
    ///
    /// As for [`Transaction::get`].
    pub fn reader(&self, tree: &Tree, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>, Error> {
        let key = key.as_ref();
        check_key(key)?;
        self.source(tree)?.reader(key)
    }

    /// Gives `key` of `tree` the value `value` when the transaction commits.
    ///
    /// A value too large for a leaf goes to the volume now.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::Sort`] where the transaction is
    /// larger than memory may hold and its temporary file cannot be written,
    /// [`Error::TooManySavepoints`], [`Error::ReadOnlyTransaction`], [`Error::TreeDropped`],
    /// [`Error::OtherStore`], [`Error::Poisoned`], [`Error::VolumeFull`], [`Error::Closed`]; the
    /// transaction is as before then.
    pub fn insert(
        &mut self,
        tree: &Tree,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        check_value(value.len() as u64)?;
        self.may_write(tree, key)?;
        Ok(self.put(tree, key, value)?)
    }

    /// As [`Transaction::insert`], of what may be written.
    fn put(&mut self, tree: &Tree, key: &[u8], value: &[u8]) -> Result<(), NotKept> {
        if btree::fits_inline(key.len(), value.len()) {
            return self.write(tree, key, Write::Inline(value.into()));
        }
        let extent = tree.run(|local| {
            local.engine.shared.writable()?;
            Ok::<_, TransactionError>(extent::write_all(local, value, None)?)
        })?;
        self.write(tree, key, Write::Extent(extent))
    }

    /// Removes `key` of `tree` when the transaction commits; `false` if it has no
    /// value for this transaction.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`] and [`Transaction::get`].
    pub fn remove(&mut self, tree: &Tree, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = key.as_ref();
        self.may_write(tree, key)?;
        let existed = self.source(tree)?.contains(key)?;
        if existed {
            self.write(tree, key, Write::Removed)?;
        }
        Ok(existed)
    }

    /// Writes a value of up to [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES) as a
    /// stream; it belongs to the transaction once [`TransactionWriter::finish`]
    /// returns.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`].
    pub fn writer<'t>(
        &'t mut self,
        tree: &Tree,
        key: impl AsRef<[u8]>,
    ) -> Result<TransactionWriter<'t>, Error> {
        let key = key.as_ref();
        self.may_write(tree, key)?;
        Ok(TransactionWriter::new(self, tree, key))
    }

    fn may_write(&self, tree: &Tree, key: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        self.view.check_tree(tree)?;
        if self.read_only {
            return Err(Error::ReadOnlyTransaction);
        }
        Ok(())
    }

    /// Notes as one stretch what a scan has found removed one by one.
    fn remove_hidden(&mut self, tree: &Tree) -> Result<(), NotKept> {
        match self.hidden.get_mut().take(tree.state.tree.id) {
            Some(stretch) => self.remove_all(tree, stretch, &[]),
            None => Ok(()),
        }
    }

    fn write<'k>(
        &mut self,
        tree: &Tree,
        key: impl Into<Cow<'k, [u8]>>,
        write: Write,
    ) -> Result<(), NotKept> {
        self.pops = None;
        match write {
            Write::Removed => self.remove_hidden(tree)?,
            _ => drop(self.hidden.get_mut().take(tree.state.tree.id)),
        }
        let limit = self.memory_limit()?;
        let directory = &self.view.runtime().directory;
        let result = self.writes.put(tree, key.into(), write, limit, directory);
        self.note_spilled();
        self.defer_free();
        result
    }

    /// Removes all that `stretch` has for this transaction: the records that it sees there have
    /// `keys`.
    fn remove_all(
        &mut self,
        tree: &Tree,
        stretch: Stretch,
        keys: &[Vec<u8>],
    ) -> Result<(), NotKept> {
        self.pops = None;
        let limit = self.memory_limit()?;
        let directory = &self.view.runtime().directory;
        let result = (self.writes).remove_all(tree, stretch, keys, limit, directory);
        self.note_spilled();
        self.defer_free();
        result
    }

    /// Bytes of changes that are kept in memory, and that one record may have.
    fn memory_limit(&self) -> Result<u64, StorageError> {
        let limit = self.view.runtime().engine()?.log.transaction_limit();
        Ok(small::spill_bytes(limit))
    }

    fn note_spilled(&mut self) {
        let bytes = self.writes.take_spilled_bytes();
        if bytes > 0
            && let Ok(transactions) = self.view.transactions()
        {
            Counters::add(&transactions.counters.spilled_bytes, bytes);
        }
    }

    /// Large values that the transaction wrote and gave up go to the next task.
    fn defer_free(&mut self) {
        let dead = self.writes.take_dead();
        if dead.is_empty() {
            return;
        }
        let dead = dead.into_iter().map(Dead::uncommitted);
        // In a forked child they are the parent's.
        if let Ok(transactions) = self.view.transactions() {
            transactions.defer_free(dead);
        }
    }

    /// Remembers the transaction's changes so far. What savepoints keep may take as much memory as
    /// the changes themselves; more goes to a temporary file, which keeps up to 1,024 savepoints
    /// apart. Further changes fail with [`Error::TooManySavepoints`] then, until one of the earlier
    /// savepoints was rolled back to.
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint {
            transaction: self.view.registered().number(),
            number: self.writes.savepoint(),
        }
    }

    /// Undoes all changes since `savepoint`, which stays usable. Reads are not
    /// undone: a serializable transaction still answers for them.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSavepoint`] for one of another transaction, or one that was
    /// made after a savepoint that was rolled back since.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        let mine = savepoint.transaction == self.view.registered().number();
        if !mine || !self.writes.rollback_to(savepoint.number) {
            return Err(Error::NoSuchSavepoint);
        }
        *self.hidden.get_mut() = Hidden::default();
        self.pops = None;
        self.defer_free();
        Ok(())
    }

    /// Makes all changes visible and lasting, or none. When this returns, they
    /// are as durable as was asked for.
    ///
    /// A transaction without changes always commits.
    ///
    /// # Errors
    ///
    /// [`TransactionError::Conflict`] and [`TransactionError::SnapshotTooOld`], after which the
    /// same may succeed when it is begun anew (see [`Store::transact`](crate::Store::transact));
    /// [`TransactionError::TreeDropped`], [`TransactionError::TransactionTooLarge`],
    /// [`TransactionError::Sort`], [`StorageError::VolumeFull`](crate::StorageError::VolumeFull),
    /// [`StorageError::Closed`](crate::StorageError::Closed), or a failed read. Nothing was changed
    /// then. [`StorageError::Poisoned`](crate::StorageError::Poisoned) or a failed write: whether
    /// the changes last is known at the next opening.
    pub fn commit(self) -> Result<(), TransactionError> {
        self.commit_if(true)
    }

    /// Commits. Whether others have changed the same keys since matters only where that is to be
    /// `validated`.
    fn commit_if(mut self, validated: bool) -> Result<(), TransactionError> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let runtime = Arc::clone(self.view.runtime());
        if self.writes.is_large(self.memory_limit()?) {
            return self.commit_large(&runtime, validated);
        }
        self.name_removed()?;
        if !self.writes.has_single_writes() {
            return Ok(());
        }
        let reads = self.reads.as_mut().map(|reads| &*reads.get_mut());
        let (writes, view, durability) = (&self.writes, &self.view, self.durability);
        let result = runtime.run(Urgency::Ordinary, |local| {
            let encoded = writes.changes();
            let changes: Vec<_> = encoded.iter().map(write_set::Encoded::change).collect();
            let context = CommitContext {
                snapshot: validated.then(|| view.registered()),
                reads,
                is_blind: true,
                ..CommitContext::default()
            };
            local.engine.transactions.change_all(
                local,
                &changes,
                context,
                durability,
                &mut |_, _| Ok(true),
            )
        });
        if let Err(TransactionError::TransactionTooLarge { .. }) = result {
            // One record does not have it all, or what applying that logs.
            return self.commit_large(&runtime, validated);
        }
        let user_bytes = self.writes.user_bytes();
        self.end(&runtime, result.map(|_| user_bytes))
    }

    /// Has the write set name the records of the stretches that are removed.
    fn name_removed(&mut self) -> Result<(), TransactionError> {
        self.writes.name_withdrawn();
        let stretches = self.writes.stretches();
        let stretches = stretches.map(|(state, removed)| (Arc::clone(state), removed.clone()));
        for (state, removed) in stretches.collect::<Vec<_>>() {
            let tree = Tree {
                runtime: Arc::clone(self.view.runtime()),
                state,
            };
            let snapshot = Source {
                tree: &tree,
                engine: self.view.runtime().engine()?,
                view: Some(&self.view),
                writes: Own::default(),
                reads: None,
                hidden: None,
            };
            let mut keys = Vec::new();
            for stretch in removed.iter() {
                snapshot.keys(stretch.bounds(), |key| keys.push(key.to_vec()))?;
            }
            self.writes.remove_each(&tree.state, keys);
        }
        Ok(())
    }

    /// Commits what is more than one log record can have.
    fn commit_large(
        &mut self,
        runtime: &Arc<Runtime>,
        validated: bool,
    ) -> Result<(), TransactionError> {
        let reads = self.reads.as_mut().map(|reads| &*reads.get_mut());
        let context = CommitContext {
            snapshot: validated.then(|| self.view.registered()),
            reads,
            ..CommitContext::default()
        };
        let changes = self.writes.large().map_err(TransactionError::from);
        let result = changes.and_then(|mut changes| {
            let trees = changes.trees();
            runtime.run(Urgency::Ordinary, |local| {
                let (merging, transactions) = (&local.engine.merging, &local.engine.transactions);
                let next = &mut |at| changes.next(at);
                merging.commit_large(transactions, local, &trees, context, next)
            })?;
            Ok((changes.dead, changes.user_bytes))
        });
        let result = result.map(|(dead, user_bytes)| {
            self.writes.bury(dead);
            user_bytes
        });
        self.note_spilled();
        self.end(runtime, result)
    }

    /// Notes how the commit has ended; where it has succeeded, of how many bytes of keys and values
    /// it was.
    fn end(
        &mut self,
        runtime: &Arc<Runtime>,
        result: Result<u64, TransactionError>,
    ) -> Result<(), TransactionError> {
        match result {
            Ok(user_bytes) => {
                let counters = &runtime.engine()?.shared.counters;
                Counters::add(&counters.user_bytes, user_bytes);
                self.writes.forget();
                Ok(())
            }
            Err(error) => {
                if error.is_retryable() {
                    let counters = &self.view.transactions()?.counters;
                    Counters::add(&counters.conflicts, 1);
                }
                if runtime.engine()?.shared.writable().is_err() {
                    // The record may be in the log: what it names has to stay.
                    self.writes.forget();
                }
                Err(error)
            }
        }
    }

    /// [`Transaction::commit`] as a future, for any async runtime. The commit goes on where the
    /// future is dropped: whether it came to its end is known by reading.
    pub fn commit_async(self) -> OperationFuture<(), TransactionError> {
        let runtime = Arc::clone(self.view.runtime());
        let task = runtime.spawn(Urgency::Ordinary, None, move || self.commit());
        task.flat()
    }

    /// Ends the transaction without changing anything, as dropping it does.
    pub fn rollback(self) {}
}

/// Inserts `records` in one commit, whatever others have changed.
pub(crate) fn insert_together(tree: &Tree, records: &[Record]) -> Result<(), LoadError> {
    let mut transaction = Transaction::begin(&tree.runtime, TransactionOptions::new())?;
    for (key, value) in records {
        tree.alive()?;
        let put = transaction.put(tree, key, value);
        put.map_err(NotKept::without_savepoints)?;
    }
    Ok(transaction.commit_if(false)?)
}

/// The last key of a tree.
pub(crate) fn last_key(tree: &Tree) -> Result<Option<Vec<u8>>, TransactionError> {
    let source = Source::newest(tree)?;
    let bounds = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let mut cursor = MergeCursor::new(source, bounds, Direction::Reverse, Some(1));
    let last = cursor.next::<Vec<u8>>(&source)?;
    Ok(last.map(|(key, _)| key))
}

/// Commits a batch of changes, whatever others have changed.
pub(crate) fn write_batch(runtime: &Arc<Runtime>, batch: &WriteBatch) -> Result<(), Error> {
    let mut transaction = Transaction::begin(runtime, TransactionOptions::new())?;
    for (tree, key, value) in batch.changes() {
        match value {
            Some(value) => transaction.insert(tree, key, value)?,
            None => {
                transaction.may_write(tree, key)?;
                transaction.write(tree, key, Write::Removed)?;
            }
        }
    }
    Ok(transaction.commit_if(false)?)
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.writes.abandon();
        self.defer_free();
    }
}

/// The store as it was at one moment, for reading, from
/// [`Store::snapshot`](crate::Store::snapshot).
///
/// It never waits for writers, and never makes one wait or fail. While it is open
/// the store keeps what it may still read; if that becomes too much, the oldest
/// snapshots fail with [`Error::SnapshotTooOld`].
#[derive(Debug)]
pub struct Snapshot(Transaction);

impl Snapshot {
    pub(crate) fn open(runtime: &Arc<Runtime>) -> Result<Snapshot, TransactionError> {
        let options = TransactionOptions::new().read_only(true);
        Transaction::begin(runtime, options).map(Snapshot)
    }
}

/// A snapshot reads as a transaction does.
impl std::ops::Deref for Snapshot {
    type Target = Transaction;

    fn deref(&self) -> &Transaction {
        &self.0
    }
}
