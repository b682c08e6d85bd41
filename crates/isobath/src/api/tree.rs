//! A named tree: the operations that a user calls.

use std::sync::Arc;

use crate::api::range::Range;
use crate::api::record::{get_in_task, insert_in_task, remove_in_task};
use crate::api::scan::{Scan, behind};
use crate::api::transaction;
use crate::api::value::{ValueReader, ValueWriter};
use crate::bounds::{self, KeyRange};
use crate::btree::{self, Direction, ValueKind, ValueRef};
use crate::context::{InlineContext, TaskContext};
use crate::engine::{Runtime, WorkerState};
use crate::error::{LoadError, StorageError, TransactionError};
use crate::levels::{self, Cursor};
use crate::runtime::Urgency;
use crate::txn::commit::Change;
use crate::txn::versions::{Bounds, OldValue};
use crate::txn::visible::Reader;
use crate::txn::{TreeStatus, key_hash};
use crate::{Error, MAX_KEY_BYTES, MAX_VALUE_BYTES, Record};

/// State shared by all handles of one tree.
pub(crate) struct TreeState {
    pub(crate) name: Arc<str>,
    pub(crate) tree: btree::Tree,
    pub(crate) status: Arc<TreeStatus>,
}

impl TreeState {
    pub(crate) fn new(name: &str, tree: btree::Tree) -> TreeState {
        TreeState {
            name: Arc::from(name),
            tree,
            status: Arc::new(TreeStatus::default()),
        }
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.status.is_dropped()
    }

    /// A change of `key` for a commit.
    pub(crate) fn change<'a>(&'a self, key: &'a [u8], value: Option<ValueRef<'a>>) -> Change<'a> {
        Change {
            tree: self.tree,
            name: &self.name,
            status: Some(&self.status),
            key,
            number: key_hash(self.tree.id, key),
            value,
            confirms: None,
        }
    }
}

/// A named tree of a [`Store`](crate::Store): an ordered map from byte strings
/// to byte strings. Clones share it; every method may be called from any thread
/// and inside tasks.
///
/// Keys have 0 to [`MAX_KEY_BYTES`] bytes and compare as byte strings; values
/// have up to [`MAX_VALUE_BYTES`] bytes. Each operation is atomic.
#[derive(Clone)]
pub struct Tree {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) state: Arc<TreeState>,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree")
            .field("name", &self.name())
            .field("id", &self.state.tree.id.0)
            .finish_non_exhaustive()
    }
}

impl Tree {
    /// Whether both are handles of the same tree.
    pub(crate) fn is(&self, other: &Tree) -> bool {
        Arc::ptr_eq(&self.runtime, &other.runtime) && self.state.tree == other.state.tree
    }

    /// The tree's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The value of `key`, if it has one.
    ///
    /// While everything needed is in memory this runs on the calling thread;
    /// a page miss is handed to a worker.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`], [`Error::TreeDropped`], [`Error::Closed`], or a
    /// failed read.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Like [`Tree::get`], into `value`, which is cleared first; `false` if
    /// the key is absent. Allocates nothing once `value` is large enough.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`].
    #[inline]
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool, Error> {
        self.get_bytes(key.as_ref(), value)
    }

    fn get_bytes(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        check_key(key)?;
        self.alive()?;
        let tree = self.state.tree;
        let mut here = None;
        let engine = self.runtime.engine()?;
        WorkerState::with_current(engine, |local| {
            if let Some(local) = local {
                local.worker.count_operations(1);
                here = Some(get_in_task(local, tree, key, value));
            }
        });
        if let Some(result) = here {
            return self.found(self.map_error(result)?);
        }
        let reader = engine.transactions.reader(tree.id, None);
        let inline = InlineContext::new(self.runtime.pool()?);
        if let Ok(found) = levels::get(&tree, &inline, key, value)
            && let Some(found @ (None | Some(ValueKind::Inline))) = reader.seen(key, found, value)
        {
            return self.found(found.is_some());
        }
        // A page miss, a chunk to read, something to wait for or to report.
        self.found(self.run(|local| get_in_task(local, tree, key, value))?)
    }

    /// What the leaf of `key` has, visible or not: the kind, and the bytes or the descriptor in
    /// `value`.
    pub(crate) fn get_leaf(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<ValueKind>, Error> {
        self.alive()?;
        let tree = self.state.tree;
        self.runtime.count_operations(1);
        match levels::get(&tree, &InlineContext::new(self.runtime.pool()?), key, value) {
            Ok(found) => self.found(found),
            Err(_) => self.run(|local| Ok(levels::get(&tree, &TaskContext { local }, key, value)?)),
        }
    }

    /// What was found in the tree, unless it was dropped in between: its records go one
    /// after another.
    #[inline]
    pub(crate) fn found<T, E: From<TransactionError>>(&self, found: T) -> Result<T, E> {
        match self.state.is_dropped() {
            true => Err(E::from(TransactionError::TreeDropped {
                name: self.state.name.to_string(),
            })),
            false => Ok(found),
        }
    }

    /// Whether `key` has a value.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.contains_bytes(key.as_ref())
    }

    /// The same as [`Tree::contains`], by the name that it has in the standard library's maps.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.contains_bytes(key.as_ref())
    }

    fn contains_bytes(&self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        let mut value = Vec::new();
        let found = self.get_leaf(key, &mut value)?;
        let tree = self.state.tree;
        let transactions = &self.runtime.engine()?.transactions;
        let reader = transactions.reader(tree.id, None);
        if let Some(found) = reader.seen(key, found, &mut value) {
            return self.found(found.is_some());
        }
        self.found(self.run(|local| {
            transactions.read_one(local, tree.id, key, |old| match old {
                Some(old) => Ok::<_, Error>(old != OldValue::Absent),
                None => Ok(levels::get(&tree, &TaskContext { local }, key, &mut value)?.is_some()),
            })
        })?)
    }

    /// Gives `key` the value `value`, whether it had one or not.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::VolumeFull`],
    /// [`Error::ReadOnly`], [`Error::Poisoned`], [`Error::TreeDropped`],
    /// [`Error::Closed`], or a failed read; the tree is unchanged then.
    #[doc(alias = "put")]
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.insert_bytes(key.as_ref(), value.as_ref())
    }

    fn insert_bytes(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        check_value(value.len() as u64)?;
        self.run(|local| insert_in_task(local, &self.state, key, value))
    }

    /// Removes `key`; `false` if it had no value.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`].
    #[doc(alias = "delete")]
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.remove_bytes(key.as_ref())
    }

    fn remove_bytes(&self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        self.run(|local| remove_in_task(local, &self.state, key))
    }

    /// The records whose keys lie within `bounds`, in order, from both ends.
    /// Safe beside concurrent changes: a record that is there during the whole
    /// iteration is seen exactly once.
    ///
    /// Both ends of one of Rust's ranges have one type, and arrays of different length are
    /// different types: `b"a"..b"zz"` does not compile. Text does, and so does a slice, which makes
    /// one of the other end:
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// tree.insert("m", "")?;
    /// assert_eq!(tree.range("a".."zz").count(), 1);
    /// assert_eq!(tree.range(b"a".as_slice()..b"zz").count(), 1);
    /// assert_eq!(tree.range(&b"a"[..]..=&[b'm']).count(), 1);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    #[must_use]
    pub fn range(&self, bounds: impl KeyRange) -> Range {
        let (lower, upper) = bounds::owned(&bounds);
        Range::new(self.clone(), lower, upper)
    }

    /// All records in order, from both ends, as [`Tree::range`] of `..`. `for record in &tree` is
    /// the same.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let tree = store.create_tree("ports")?;
    /// tree.insert("http", "80")?;
    /// tree.insert("ssh", "22")?;
    /// let last = tree.iter().next_back().transpose()?;
    /// assert_eq!(last, Some((b"ssh".to_vec(), b"22".to_vec())));
    /// let mut keys = Vec::new();
    /// for record in &tree {
    ///     let (key, _) = record?;
    ///     keys.push(key);
    /// }
    /// assert_eq!(keys, [&b"http"[..], b"ssh"]);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    #[must_use]
    pub fn iter(&self) -> Range {
        self.range(..)
    }

    /// The records whose keys start with `prefix`, in order, from both ends.
    /// [`prefix_range`](crate::prefix_range) makes the same range for other methods, such as
    /// [`Tree::keys`] and [`Tree::count`].
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        let (lower, upper) = bounds::prefix_range(prefix);
        Range::new(self.clone(), lower, upper)
    }

    /// The keys within `bounds` with the lengths of their values in bytes, in order, from both
    /// ends; reads no large value. Otherwise as [`Tree::range`].
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// tree.insert("film", vec![0; 3 << 20])?;
    /// tree.insert("note", "short")?;
    /// let keys = tree.keys(..).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(keys, [(b"film".to_vec(), 3 << 20), (b"note".to_vec(), 5)]);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    #[must_use]
    pub fn keys(&self, bounds: impl KeyRange) -> Range<u64> {
        let (lower, upper) = bounds::owned(&bounds);
        Range::new(self.clone(), lower, upper)
    }

    /// Calls `visit` with the records whose keys lie within `bounds`, in order,
    /// until it returns `false`; allocates nothing per record.
    ///
    /// Where pages are missing tasks read them, and ahead at the drive's full
    /// queue depth. `visit` runs on the calling thread, and may take its time.
    ///
    /// # Errors
    ///
    /// [`Error::TreeDropped`], [`Error::Closed`], or a failed read.
    pub fn scan(
        &self,
        bounds: impl KeyRange,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool + Send,
    ) -> Result<(), Error> {
        self.scan_in(
            bounds.key_bounds(),
            Direction::Forward,
            Wanted::default(),
            |key, value, _| visit(key, value),
        )
    }

    /// As [`Tree::scan`], of the first `limit` records only. Missing pages are
    /// read together, as far as those records need them and no further: for short
    /// scans this is faster than ending a longer one early.
    ///
    /// # Errors
    ///
    /// As for [`Tree::scan`].
    pub fn scan_first(
        &self,
        bounds: impl KeyRange,
        limit: usize,
        mut visit: impl FnMut(&[u8], &[u8]) + Send,
    ) -> Result<(), Error> {
        if limit == 0 {
            return Ok(self.alive()?);
        }
        let mut left = limit;
        let wanted = Wanted {
            limit: Some(limit),
            keys_only: false,
        };
        self.scan_in(
            bounds.key_bounds(),
            Direction::Forward,
            wanted,
            |key, value, _| {
                visit(key, value);
                left -= 1;
                left > 0
            },
        )
    }

    /// Waits for the commits that a scan may have seen a part of.
    pub(crate) fn await_others(&self, reader: Reader<'_>) -> Result<(), TransactionError> {
        match reader.has_met_others() {
            true => self.run(|local| Ok(reader.await_others(local)?)),
            false => Ok(()),
        }
    }

    /// As [`Tree::scan`], by descending keys.
    ///
    /// # Errors
    ///
    /// As for [`Tree::scan`].
    pub fn scan_reverse(
        &self,
        bounds: impl KeyRange,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool + Send,
    ) -> Result<(), Error> {
        self.scan_in(
            bounds.key_bounds(),
            Direction::Reverse,
            Wanted::default(),
            |key, value, _| visit(key, value),
        )
    }

    /// Calls `visit` with the keys within `bounds` and the lengths of their values in bytes,
    /// ascending, or descending where `is_reverse`, until it returns `false`; reads no large value,
    /// and allocates nothing per record. [`Tree::keys`] is an iterator.
    ///
    /// # Errors
    ///
    /// As for [`Tree::scan`].
    pub fn visit_keys(
        &self,
        bounds: impl KeyRange,
        is_reverse: bool,
        mut visit: impl FnMut(&[u8], u64) -> bool + Send,
    ) -> Result<(), Error> {
        let direction = match is_reverse {
            true => Direction::Reverse,
            false => Direction::Forward,
        };
        let wanted = Wanted {
            limit: None,
            keys_only: true,
        };
        self.scan_in(bounds.key_bounds(), direction, wanted, |key, _, length| {
            visit(key, length)
        })
    }

    /// Calls `visit` with the keys within `bounds`, in order, of at most `limit` records, and reads
    /// no large value.
    pub(crate) fn scan_keys(
        &self,
        bounds: Bounds<'_>,
        limit: Option<usize>,
        mut visit: impl FnMut(&[u8]) + Send,
    ) -> Result<(), Error> {
        let mut left = limit.unwrap_or(usize::MAX);
        let wanted = Wanted {
            limit,
            keys_only: true,
        };
        self.scan_in(bounds, Direction::Forward, wanted, |key, _, _| {
            visit(key);
            left -= 1;
            left > 0
        })
    }

    fn scan_in(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        wanted: Wanted,
        mut visit: impl FnMut(&[u8], &[u8], u64) -> bool + Send,
    ) -> Result<(), Error> {
        let mut cursor = Cursor::new(self.state.tree, bounds.0, bounds.1, direction);
        if let Some(limit) = wanted.limit {
            cursor.limit(limit);
        }
        let mut scan = Scan::new(self, cursor, wanted);
        scan.leaves(&mut visit)?;
        if scan.needs_versions {
            let bounds = behind(bounds, direction, scan.last());
            let wanted = Wanted {
                limit: wanted.limit.map(|limit| limit.saturating_sub(scan.shown())),
                ..wanted
            };
            transaction::scan_seen(self, bounds, direction, wanted, visit)?;
        }
        let transactions = &self.runtime.engine()?.transactions;
        // Where commits are seen late the scan has shown a part of none.
        if !transactions.is_late {
            self.await_others(transactions.reader(self.state.tree.id, None))?;
        }
        self.found(())
    }

    /// The values of all `keys`, in their order. Cache misses and page faults
    /// of many keys overlap, so this is the fastest way to read many records.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`]; the first of any key.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values: Vec<Option<Vec<u8>>> = Vec::with_capacity(keys.len());
        values.resize_with(keys.len(), || None);
        self.get_each(keys, |at, value| values[at] = value.map(<[u8]>::to_vec))?;
        Ok(values)
    }

    /// As [`Tree::get_many`], but hands each value to `each` with the key's
    /// index, in any order, and allocates nothing per key.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get_many`].
    pub fn get_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        each: impl FnMut(usize, Option<&[u8]>) + Send,
    ) -> Result<(), Error> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        keys.iter().try_for_each(|key| check_key(key))?;
        self.map_error(crate::api::many::get_each(self, &keys, each))?;
        self.found(())
    }

    /// Loads records with strictly ascending keys, as fast as they come. The
    /// tree must be empty, or its last key below the first new one. Returns how
    /// many were loaded. Pages are left 6% empty on average, for later insertions.
    ///
    /// The records appear at the end, and leave nothing for those who should not
    /// see them: transactions and snapshots that began before fail with
    /// [`Error::SnapshotTooOld`] when they read the tree afterwards.
    ///
    /// # Errors
    ///
    /// [`LoadError::LoadOrder`] with the offending record, and as for
    /// [`Tree::insert`]; the tree is as it was then.
    pub fn bulk_load<K, V, I>(&self, records: I) -> Result<u64, LoadError>
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
        I: IntoIterator<Item = (K, V)>,
    {
        crate::api::bulk::load(self, records.into_iter().map(Ok))
    }

    /// Writes a value of up to [`MAX_VALUE_BYTES`] as a stream; it appears
    /// under `key` when [`ValueWriter::finish`] returns.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`], [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn writer(&self, key: impl AsRef<[u8]>) -> Result<ValueWriter, Error> {
        let key = key.as_ref();
        check_key(key)?;
        self.runtime.engine()?.shared.writable()?;
        Ok(ValueWriter::new(self.clone(), key))
    }

    /// Reads the value of `key` as a stream; `None` if it has none. Once a large value is replaced
    /// or removed, reading fails with an [`std::io::Error`] around [`Error::ValueReplaced`]; one of
    /// a snapshot lasts as long as that ([`Transaction::reader`](crate::Transaction::reader)).
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`].
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>, Error> {
        let key = key.as_ref();
        check_key(key)?;
        ValueReader::open(self.clone(), key)
    }

    /// Refuses once the tree is dropped or the store closed.
    #[inline]
    pub(crate) fn alive(&self) -> Result<(), TransactionError> {
        self.found::<_, TransactionError>(())?;
        Ok(self.runtime.check_open()?)
    }

    /// Runs `work` in a task, and names the tree in its errors.
    pub(crate) fn run<T: Send, E: OfTree + Send>(
        &self,
        work: impl FnOnce(&WorkerState) -> Result<T, E> + Send,
    ) -> Result<T, E> {
        self.alive()?;
        let result = self.runtime.run(Urgency::Ordinary, work);
        self.map_error(result)
    }

    /// A tree that is being dropped looks corrupt to those who are still in it: its pages
    /// are gone, and their ids are given to others.
    #[inline]
    pub(crate) fn map_error<T, E: OfTree>(&self, result: Result<T, E>) -> Result<T, E> {
        result.map_err(|error| error.of_tree(&self.state))
    }
}

/// Errors of a tree's operations.
pub(crate) trait OfTree: From<StorageError> + From<TransactionError> {
    /// The same, with the tree's name; whether it was dropped, if that may have caused it.
    fn of_tree(self, tree: &TreeState) -> Self;
}

macro_rules! of_tree {
    ($Kind:ident: { $dropped:pat } { $read:pat } $name:ident) => {
        impl OfTree for $Kind {
            #[cold]
            fn of_tree(mut self, tree: &TreeState) -> $Kind {
                match &mut self {
                    $dropped if tree.is_dropped() => {
                        return TransactionError::TreeDropped {
                            name: tree.name.to_string(),
                        }
                        .into();
                    }
                    $read => {
                        $name.get_or_insert_with(|| Arc::clone(&tree.name));
                    }
                    _ => {}
                }
                self
            }
        }
    };
}

of_tree!(Error:
    { Error::Structure { .. } | Error::CorruptPage { .. } | Error::ValueReplaced }
    { Error::PageRead { tree: name, .. } } name);
of_tree!(TransactionError:
    { TransactionError::Storage(StorageError::Structure { .. } | StorageError::CorruptPage { .. }) }
    { TransactionError::Storage(StorageError::PageRead { tree: name, .. }) } name);
of_tree!(LoadError:
    { LoadError::Storage(StorageError::Structure { .. } | StorageError::CorruptPage { .. }) }
    { LoadError::Storage(StorageError::PageRead { tree: name, .. }) } name);

/// All records in order, as [`Tree::iter`].
impl IntoIterator for &Tree {
    type Item = Result<Record, Error>;
    type IntoIter = Range;

    fn into_iter(self) -> Range {
        self.iter()
    }
}

/// The records that a scan shows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// The first records only.
    pub(crate) limit: Option<usize>,
    /// Large values are not read.
    pub(crate) keys_only: bool,
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), LoadError> {
    if key.len() > MAX_KEY_BYTES {
        return Err(LoadError::KeyTooLong {
            length: key.len(),
            limit: MAX_KEY_BYTES,
        });
    }
    Ok(())
}

pub(crate) fn check_value(length: u64) -> Result<(), LoadError> {
    if length > MAX_VALUE_BYTES {
        return Err(LoadError::ValueTooLong {
            length,
            limit: MAX_VALUE_BYTES,
        });
    }
    Ok(())
}
