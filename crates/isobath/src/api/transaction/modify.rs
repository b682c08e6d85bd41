//! What a transaction changes by what it reads: ends and ranges of a tree, and single values.

use std::iter::FusedIterator;
use std::ops::Bound;

use super::Transaction;
use super::cursor::MergeCursor;
use super::write_set::Write;
use crate::api::range::Ends;
use crate::api::tree::{Tree, Wanted};
use crate::api::update::CompareAndSwapError;
use crate::bounds::{self, KeyRange};
use crate::btree::{Direction, Stretch};
use crate::{Error, Record};

/// Keys that are removed at a time.
const AT_ONCE: usize = 512;

type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Records after which a part of a range ends.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) removed: usize,
    pub(crate) passed: usize,
}

/// What was done of a range.
pub(crate) struct RemovedPart {
    pub(crate) removed: u64,
    /// The last key of it; `None` where that was all.
    pub(crate) last: Option<Vec<u8>>,
}

fn as_slices(bounds: &OwnedBounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (
        bounds.0.as_ref().map(Vec::as_slice),
        bounds.1.as_ref().map(Vec::as_slice),
    )
}

impl Transaction {
    /// Removes the records of `tree` that this transaction sees within `bounds` when it commits;
    /// returns how many these are. What others insert there before that stays, unless the
    /// transaction is serializable, which is in conflict with it then.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`] and [`Transaction::get`]; the transaction removes a first
    /// part of the range then.
    pub fn remove_range(&mut self, tree: &Tree, bounds: impl KeyRange) -> Result<u64, Error> {
        let wanted = Wanted {
            limit: None,
            keys_only: true,
        };
        self.remove_where(tree, bounds::owned(&bounds), wanted, |_, _| true)
    }

    /// Removes all records of `tree` that this transaction sees when it commits, as
    /// [`Transaction::remove_range`] of `..`.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// tree.insert("old", "1")?;
    /// let mut transaction = store.begin()?;
    /// assert_eq!(transaction.clear(&tree)?, 1);
    /// transaction.insert(&tree, "new", "2")?;
    /// assert!(tree.contains_key("old")?); // until it commits
    /// transaction.commit()?;
    /// assert_eq!(tree.iter().count(), 1);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Transaction::remove_range`].
    pub fn clear(&mut self, tree: &Tree) -> Result<u64, Error> {
        self.remove_range(tree, ..)
    }

    /// Keeps those records of `tree` within `bounds` for which `keep` returns `true`, and removes
    /// the others when it commits; returns how many it removes. `keep` is called once for each
    /// record that this transaction sees, by ascending keys.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// # for (key, value) in [("a", "1"), ("b", ""), ("c", "")] { tree.insert(key, value)?; }
    /// let mut transaction = store.begin()?;
    /// let removed = transaction.retain(&tree, .., |_, value| !value.is_empty())?;
    /// transaction.commit()?;
    /// assert_eq!((removed, tree.count(..)?), (2, 1));
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Transaction::remove_range`].
    pub fn retain(
        &mut self,
        tree: &Tree,
        bounds: impl KeyRange,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64, Error> {
        let is_removed = |key: &[u8], value: &[u8]| !keep(key, value);
        self.remove_where(tree, bounds::owned(&bounds), Wanted::default(), is_removed)
    }

    fn remove_where(
        &mut self,
        tree: &Tree,
        bounds: OwnedBounds,
        wanted: Wanted,
        mut is_removed: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64, Error> {
        self.may_write(tree, b"")?;
        let (mut lower, upper) = bounds;
        let most = Most {
            removed: AT_ONCE,
            passed: usize::MAX,
        };
        let mut removed = 0;
        loop {
            let bounds = (lower, upper.clone());
            let part = self.remove_part(tree, bounds, wanted, most, &mut is_removed)?;
            removed += part.removed;
            match part.last {
                Some(last) => lower = Bound::Excluded(last),
                None => return Ok(removed),
            }
        }
    }

    /// As [`Transaction::retain`], of `most` records.
    pub(crate) fn retain_part(
        &mut self,
        tree: &Tree,
        bounds: OwnedBounds,
        most: Most,
        keep: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<RemovedPart, Error> {
        self.may_write(tree, b"")?;
        let mut is_removed = |key: &[u8], value: &[u8]| !keep(key, value);
        self.remove_part(tree, bounds, Wanted::default(), most, &mut is_removed)
    }

    fn remove_part(
        &mut self,
        tree: &Tree,
        bounds: OwnedBounds,
        wanted: Wanted,
        most: Most,
        is_removed: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<RemovedPart, Error> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let (mut passed, mut last) = (0, None);
        let part = as_slices(&bounds);
        self.source(tree)?
            .scan(part, Direction::Forward, wanted, |key, value, _| {
                if is_removed(key, value) {
                    keys.push(key.to_vec());
                }
                passed += 1;
                if keys.len() == most.removed || passed == most.passed {
                    last = Some(key.to_vec());
                }
                last.is_none()
            })?;
        let removed = keys.len();
        if removed == passed && removed > 0 {
            let part = match &last {
                Some(last) => (part.0, Bound::Included(&last[..])),
                None => part,
            };
            if let Some(stretch) = Stretch::new(part) {
                self.remove_all(tree, stretch, &keys)?;
            }
        } else {
            for key in keys {
                self.write(tree, key, Write::Removed)?;
            }
        }
        let removed = removed as u64;
        Ok(RemovedPart { removed, last })
    }

    /// The records of `tree` within `bounds` for which `is_extracted` returns `true`, by ascending
    /// keys: each is removed, when the transaction commits, as the iterator gives it. Those behind
    /// where it is dropped stay.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// # for (key, value) in [("a", "done"), ("b", ""), ("c", "done")] { tree.insert(key, value)?; }
    /// let mut transaction = store.begin()?;
    /// let mut done = Vec::new();
    /// for record in transaction.extract_if(&tree, .., |_, value| value == b"done")? {
    ///     done.push(record?.0);
    /// }
    /// transaction.commit()?;
    /// assert_eq!(done, [b"a", b"c"]);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OtherStore`], [`Error::ReadOnlyTransaction`], [`Error::TreeDropped`]; the iterator
    /// as for [`Transaction::remove`], after which it ends.
    pub fn extract_if<'t, P>(
        &'t mut self,
        tree: &'t Tree,
        bounds: impl KeyRange,
        is_extracted: P,
    ) -> Result<TransactionExtractIf<'t, P>, Error>
    where
        P: FnMut(&[u8], &[u8]) -> bool,
    {
        self.may_write(tree, b"")?;
        let bounds = bounds.key_bounds();
        // Before the cursor looks at the stretches: writing would make one of what a scan has
        // passed before, and it might lie ahead of the cursor.
        self.remove_hidden(tree)?;
        let cursor = MergeCursor::new(self.source(tree)?, bounds, Direction::Forward, None);
        Ok(TransactionExtractIf {
            transaction: self,
            tree,
            cursor: Some(cursor),
            is_extracted,
        })
    }

    /// Removes the first record of `tree` by key when it commits, and returns it; `None` if there
    /// is none.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let queue = store.create_tree("queue")?;
    /// # queue.insert("1", "job")?;
    /// let mut transaction = store.begin()?;
    /// while let Some((key, job)) = transaction.pop_first(&queue)? {
    ///     assert_eq!((&key[..], &job[..]), (&b"1"[..], &b"job"[..]));
    /// }
    /// transaction.commit()?;
    /// assert!(queue.is_empty()?);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Transaction::remove`].
    pub fn pop_first(&mut self, tree: &Tree) -> Result<Option<Record>, Error> {
        self.pop(tree, Direction::Forward)
    }

    /// As [`Transaction::pop_first`], of the last record by key.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::remove`].
    pub fn pop_last(&mut self, tree: &Tree) -> Result<Option<Record>, Error> {
        self.pop(tree, Direction::Reverse)
    }

    fn pop(&mut self, tree: &Tree, direction: Direction) -> Result<Option<Record>, Error> {
        self.may_write(tree, b"")?;
        let (id, all) = (tree.state.tree.id, (Bound::Unbounded, Bound::Unbounded));
        // What a serializable transaction reads ahead it would have to validate.
        let kept = self.pops.take().filter(|_| self.reads.is_none());
        let kept = kept.filter(|kept| kept.0 == id);
        let mut pops = kept.unwrap_or_else(|| {
            let ends = Ends::new(Bound::Unbounded, Bound::Unbounded);
            Box::new((id, ends.with_limit(self.reads.is_some().then_some(1))))
        });
        let step = pops.1.step(&self.source(tree)?, direction);
        let found: Option<Record> = step.transpose()?;
        if let Some((key, _)) = &found {
            // Nothing that it sees lies between the end and this record.
            let all = Stretch::new(all);
            if let Some(stretch) = all.map(|all| all.up_to(key, direction)) {
                self.remove_all(tree, stretch, std::slice::from_ref(key))?;
            }
        }
        self.pops = Some(pops);
        Ok(found)
    }

    /// Gives `key` of `tree` what `change` makes of its value, when it commits: `None` stands for
    /// no value. Returns what `change` has returned.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let words = store.create_tree("words")?;
    /// let mut transaction = store.begin()?;
    /// for word in ["sea", "lake", "sea"] {
    ///     transaction.update(&words, word, |count| {
    ///         let count = count.map_or(0, |count| count[0]);
    ///         Some(vec![count + 1])
    ///     })?;
    /// }
    /// transaction.commit()?;
    /// assert_eq!(words.get("sea")?, Some(vec![2]));
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`] and [`Transaction::get`].
    pub fn update(
        &mut self,
        tree: &Tree,
        key: impl AsRef<[u8]>,
        change: impl FnOnce(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let key = key.as_ref();
        self.may_write(tree, key)?;
        let old = self.get(tree, key)?;
        let new = change(old.as_deref());
        self.replace(tree, key, old.is_some(), new.as_deref())?;
        Ok(new)
    }

    /// Gives `key` of `tree` the value `new`, when it commits, if it has the value `old` for this
    /// transaction; `None` stands for no value.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::update`]. The inner error says what the key has instead.
    pub fn compare_and_swap(
        &mut self,
        tree: &Tree,
        key: impl AsRef<[u8]>,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), CompareAndSwapError>, Error> {
        let key = key.as_ref();
        self.may_write(tree, key)?;
        let current = self.get(tree, key)?;
        if current.as_deref() != old {
            return Ok(Err(CompareAndSwapError { current }));
        }
        self.replace(tree, key, old.is_some(), new)?;
        Ok(Ok(()))
    }

    fn replace(
        &mut self,
        tree: &Tree,
        key: &[u8],
        existed: bool,
        new: Option<&[u8]>,
    ) -> Result<(), Error> {
        match new {
            Some(new) => self.insert(tree, key, new),
            None if existed => Ok(self.write(tree, key, Write::Removed)?),
            None => Ok(()),
        }
    }
}

/// Records that a transaction removes as they are taken, from [`Transaction::extract_if`]. After an
/// error it ends.
pub struct TransactionExtractIf<'t, P> {
    transaction: &'t mut Transaction,
    tree: &'t Tree,
    /// `None` at the end.
    cursor: Option<MergeCursor>,
    is_extracted: P,
}

impl<P> std::fmt::Debug for TransactionExtractIf<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionExtractIf")
            .field("tree", &self.tree.name())
            .field("has_ended", &self.cursor.is_none())
            .finish_non_exhaustive()
    }
}

impl<P: FnMut(&[u8], &[u8]) -> bool> TransactionExtractIf<'_, P> {
    fn take(&mut self) -> Result<Option<Record>, Error> {
        let Some(cursor) = &mut self.cursor else {
            return Ok(None);
        };
        let source = self.transaction.source(self.tree)?;
        let mut taken = None;
        source.scan_on(cursor, false, |key, value, _| {
            if (self.is_extracted)(key, value) {
                taken = Some((key.to_vec(), value.to_vec()));
            }
            taken.is_none()
        })?;
        if let Some((key, _)) = &taken {
            // Only this iterator changes the transaction, and only behind its cursor.
            self.transaction
                .write(self.tree, &key[..], Write::Removed)?;
        }
        Ok(taken)
    }
}

impl<P: FnMut(&[u8], &[u8]) -> bool> Iterator for TransactionExtractIf<'_, P> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.take();
        if !matches!(record, Ok(Some(_))) {
            self.cursor = None;
        }
        record.transpose()
    }
}

/// After the end, and after an error, there is nothing more.
impl<P: FnMut(&[u8], &[u8]) -> bool> FusedIterator for TransactionExtractIf<'_, P> {}
