//! Operations of a tree that read and change in one step, and those on its ends and ranges.

use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;

use crate::api::range::Range;
use crate::api::record::{Newest, read_newest};
use crate::api::transaction::{Most, Source, TransactionOptions, transact};
use crate::api::tree::{Tree, TreeState, check_key, check_value};
use crate::bounds::{self, KeyRange};
use crate::btree::{self, ValueKind, ValueRef};
use crate::canary::{self, Canary};
use crate::context::InlineContext;
use crate::engine::WorkerState;
use crate::levels;
use crate::shared::Counters;
use crate::txn::commit::{CommitContext, change_bytes};
use crate::{Error, Record, extent};

/// Why [`Tree::compare_and_swap`] has changed nothing: the key has another value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the key does not have the expected value")]
pub struct CompareAndSwapError {
    /// The key's value; `None` if it has none.
    pub current: Option<Vec<u8>>,
}

/// Keys that [`Tree::remove_range`] removes in one commit.
const REMOVED_AT_ONCE: usize = 256;
/// Of the largest record that a commit may have, what these take: one part in this many.
const REMOVED_SHARE: u64 = 2;
/// Records that [`Tree::retain`] removes in one commit, and those that it looks at for one.
const RETAINED_AT_ONCE: usize = 256;
const LOOKED_AT_ONCE: usize = 4096;

/// A value that was read, to be compared with the key's value when it is changed.
struct Read {
    newest: Newest,
    value: Vec<u8>,
}

impl Read {
    fn value(&self) -> Option<&[u8]> {
        (self.newest != Newest::Absent).then_some(&self.value)
    }

    /// Whether a leaf has the same still. A large value's descriptor names chunks that no other
    /// value has while this one exists.
    fn is(&self, now: Option<ValueRef<'_>>) -> bool {
        match (&self.newest, now) {
            (Newest::Absent, now) => now.is_none(),
            (Newest::Inline, Some(now)) => now.kind == ValueKind::Inline && now.bytes == self.value,
            (Newest::Large(descriptor), Some(now)) => {
                now.kind == ValueKind::Extent && now.bytes == &descriptor[..]
            }
            (_, None) => false,
        }
    }
}

impl Tree {
    /// Gives `key` what `change` makes of its value, in one atomic step: `None` stands for no
    /// value. Returns what `change` has returned last.
    ///
    /// `change` runs on the calling thread, holds no lock, and is called again if another change
    /// of the key came first; what it is shown may not be durable yet, but is when this returns.
    ///
    /// ```
    /// # fn main() -> Result<(), isobath::Error> {
    /// use isobath::{Options, Store};
    ///
    /// let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// let words = store.create_tree("words")?;
    /// for word in ["sea", "lake", "sea"] {
    ///     words.update(word, |count| {
    ///         let count = count.map_or(0, |count| count[0]);
    ///         Some(vec![count + 1])
    ///     })?;
    /// }
    /// assert_eq!(words.get("sea")?, Some(vec![2]));
    /// # store.close()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`].
    pub fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let key = key.as_ref();
        // Bound: each round but the last finds that another change of the key has succeeded.
        loop {
            let read = self.read_to_change(key)?;
            let new = change(read.value());
            if self.replace(key, &read, new.as_deref())? {
                return Ok(new);
            }
        }
    }

    /// Gives `key` the value `new` if it has the value `old`, in one atomic step; `None` stands for
    /// no value.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`]. The inner error says what the key has instead.
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), CompareAndSwapError>, Error> {
        let key = key.as_ref();
        // Bound: as in `update`.
        loop {
            let read = self.read_to_change(key)?;
            let matches = read.value() == old;
            let new = if matches { new } else { read.value() };
            if self.replace_unless_same(key, &read, new)? {
                return Ok(if matches {
                    Ok(())
                } else {
                    let current = read.value().map(<[u8]>::to_vec);
                    Err(CompareAndSwapError { current })
                });
            }
        }
    }

    /// The first record by key, if there is any.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`].
    pub fn first(&self) -> Result<Option<Record>, Error> {
        self.range(..).next().transpose()
    }

    /// The last record by key, if there is any.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`].
    pub fn last(&self) -> Result<Option<Record>, Error> {
        self.range(..).next_back().transpose()
    }

    /// Removes the first record by key and returns it; `None` if there is none. Of several callers
    /// each gets another record.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`].
    pub fn pop_first(&self) -> Result<Option<Record>, Error> {
        self.pop(|tree| tree.keys(..).next())
    }

    /// As [`Tree::pop_first`], of the last record by key.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`].
    pub fn pop_last(&self) -> Result<Option<Record>, Error> {
        self.pop(|tree| tree.keys(..).next_back())
    }

    fn pop(
        &self,
        end: impl Fn(&Tree) -> Option<Result<(Vec<u8>, u64), Error>>,
    ) -> Result<Option<Record>, Error> {
        // Bound: each round but the last finds that another caller has taken the record.
        while let Some((key, _)) = end(self).transpose()? {
            let read = self.read_to_change(&key)?;
            if read.newest == Newest::Absent {
                // Its removal is not visible yet; this call waits until it is.
                self.replace_unless_same(&key, &read, None)?;
            } else if self.replace(&key, &read, None)? || canary::is_on(Canary::PopBlindly) {
                return Ok(Some((key, read.value)));
            }
        }
        Ok(None)
    }

    /// Keeps those records within `bounds` for which `keep` returns `true`, and removes the others;
    /// returns how many it has removed. Each commit takes some hundred records: this is not atomic
    /// as a whole, but a record goes only while it has the value that `keep` was shown.
    /// [`Transaction::retain`](crate::Transaction::retain) is atomic.
    ///
    /// `keep` runs on the calling thread, holds no lock, and is called again for some records where
    /// others have changed one of them.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// # for (key, value) in [("a", "1"), ("b", ""), ("c", "")] { tree.insert(key, value)?; }
    /// assert_eq!(tree.retain(.., |_, value| !value.is_empty())?, 2);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`]; the records of a first part of the range are gone then.
    pub fn retain(
        &self,
        bounds: impl KeyRange,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64, Error> {
        let (mut lower, upper) = bounds::owned(&bounds);
        let mut removed = 0;
        // Each attempt but the last finds that another change of one of its records has succeeded.
        let options = TransactionOptions::new().attempts(u32::MAX);
        loop {
            let mut removed_most = 2 * RETAINED_AT_ONCE;
            let part = transact(&self.runtime, options, |transaction| {
                removed_most = removed_most.div_ceil(2);
                let most = Most {
                    removed: removed_most,
                    passed: LOOKED_AT_ONCE,
                };
                let bounds = (lower.clone(), upper.clone());
                transaction.retain_part(self, bounds, most, &mut keep)
            })?;
            removed += part.removed;
            match part.last {
                Some(last) => lower = Bound::Excluded(last),
                None => return Ok(removed),
            }
        }
    }

    /// The records within `bounds` for which `is_extracted` returns `true`, by ascending keys: each
    /// is removed, in a commit of its own, as the iterator gives it, and only while it has the
    /// value that `is_extracted` was shown. Of many records
    /// [`Transaction::extract_if`](crate::Transaction::extract_if) makes one commit.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// # for (key, value) in [("a", "done"), ("b", ""), ("c", "done")] { tree.insert(key, value)?; }
    /// let mut done = Vec::new();
    /// for record in tree.extract_if(.., |_, value| value == b"done") {
    ///     done.push(record?.0);
    /// }
    /// assert_eq!(done, [b"a", b"c"]);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    pub fn extract_if<P>(&self, bounds: impl KeyRange, is_extracted: P) -> ExtractIf<P>
    where
        P: FnMut(&[u8], &[u8]) -> bool,
    {
        ExtractIf {
            tree: self.clone(),
            range: self.range(bounds),
            is_extracted,
        }
    }

    /// Counts the records whose keys lie within `bounds`. Reads every leaf of the range: in memory
    /// some 100 ns each, by what it says of itself, unless commits are under way.
    /// [`Tree::estimate_len`] takes microseconds.
    ///
    /// # Errors
    ///
    /// As for [`Tree::scan`].
    #[doc(alias = "len")]
    pub fn count(&self, bounds: impl KeyRange) -> Result<u64, Error> {
        Source::newest(self)?.count(bounds.key_bounds())
    }

    /// Whether the tree has no record.
    ///
    /// # Errors
    ///
    /// As for [`Tree::get`].
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.keys(..).next().transpose()?.is_none())
    }

    /// Removes the records whose keys lie within `bounds` and returns how many there were. Each
    /// commit takes some hundred records: this is not atomic as a whole, and where it fails, a
    /// first part of the range is gone. Records that are inserted during that may stay.
    /// [`Transaction::remove_range`](crate::Transaction::remove_range) is atomic.
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`].
    pub fn remove_range(&self, bounds: impl KeyRange) -> Result<u64, Error> {
        let (lower, upper) = bounds.key_bounds();
        let mut lower = lower.map(<[u8]>::to_vec);
        let upper = upper.map(<[u8]>::to_vec);
        let mut removed = 0;
        let most = self.runtime.engine()?.log.transaction_limit_now() / REMOVED_SHARE;
        loop {
            let mut keys = Vec::with_capacity(REMOVED_AT_ONCE);
            let mut bytes = 0;
            let part = (
                lower.as_ref().map(Vec::as_slice),
                upper.as_ref().map(Vec::as_slice),
            );
            self.scan_keys(part, Some(REMOVED_AT_ONCE), |key| {
                if bytes < most {
                    bytes += change_bytes(key.len(), 0);
                    keys.push(key.to_vec());
                }
            })?;
            let Some(last) = keys.last().cloned() else {
                return Ok(removed);
            };
            removed += self.run(|local| remove_all(local, &self.state, &keys))?;
            lower = Bound::Excluded(last);
        }
    }

    /// Removes all records and returns how many there were, as [`Tree::remove_range`] of `..`: not
    /// atomic as a whole, and what is inserted during that may stay. Each key is logged;
    /// [`Store::drop_tree`](crate::Store::drop_tree) logs none of them, and gives the pages back
    /// afterwards.
    ///
    /// ```
    /// # use isobath::{Options, Store};
    /// # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
    /// # let tree = store.create_tree("t")?;
    /// tree.insert("a", "1")?;
    /// tree.insert("b", "2")?;
    /// assert_eq!(tree.clear()?, 2);
    /// assert!(tree.is_empty()?);
    /// # store.close()?;
    /// # Ok::<(), isobath::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Tree::insert`].
    pub fn clear(&self) -> Result<u64, Error> {
        self.remove_range(..)
    }

    /// Reads the value of `key`, visible to others or not yet.
    fn read_to_change(&self, key: &[u8]) -> Result<Read, Error> {
        check_key(key)?;
        self.alive()?;
        let mut value = Vec::new();
        let tree = self.state.tree;
        let inline = InlineContext::new(self.runtime.pool()?);
        let newest = match levels::get(&tree, &inline, key, &mut value) {
            Ok(None) => Newest::Absent,
            Ok(Some(ValueKind::Inline)) => Newest::Inline,
            // A large value, or a page that is missing.
            _ => self.run(|local| read_newest(local, tree, key, &mut value))?,
        };
        self.found(Read { newest, value })
    }

    /// As [`Tree::replace`]; if `new` is the value that was read, only waits until that is durable.
    fn replace_unless_same(
        &self,
        key: &[u8],
        read: &Read,
        new: Option<&[u8]>,
    ) -> Result<bool, Error> {
        if new != read.value() {
            return self.replace(key, read, new);
        }
        self.run(|local| {
            let change = self.state.change(key, None);
            let transactions = &local.engine.transactions;
            let mut is_same = false;
            transactions.change_one(local, change, |now| {
                is_same = read.is(now);
                false
            })?;
            Ok(is_same)
        })
    }

    /// Gives `key` the value `new` if its value is still `read`; whether it was.
    fn replace(&self, key: &[u8], read: &Read, new: Option<&[u8]>) -> Result<bool, Error> {
        if new.is_none() && read.newest == Newest::Absent {
            return self.replace_unless_same(key, read, new);
        }
        check_value(new.map_or(0, <[u8]>::len) as u64)?;
        self.run(|local| replace_in_task(local, &self.state, key, read, new))
    }
}

/// Records that are removed as they are taken, from [`Tree::extract_if`]. After an error it ends;
/// dropping it leaves the rest.
pub struct ExtractIf<P> {
    tree: Tree,
    range: Range,
    is_extracted: P,
}

impl<P> std::fmt::Debug for ExtractIf<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtractIf")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl<P: FnMut(&[u8], &[u8]) -> bool> ExtractIf<P> {
    /// Removes `key` if it has a value that is to be extracted still, and gives that.
    fn extract(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        // Bound: each round but the last finds that another change of the key has succeeded.
        loop {
            let read = self.tree.read_to_change(key)?;
            match read.value() {
                Some(value) if (self.is_extracted)(key, value) => {}
                _ => return Ok(None),
            }
            if self.tree.replace(key, &read, None)? {
                return Ok(Some(read.value));
            }
        }
    }
}

impl<P: FnMut(&[u8], &[u8]) -> bool> Iterator for ExtractIf<P> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        // Bound: each round passes a record.
        loop {
            let (key, value) = match self.range.next()? {
                Ok(record) => record,
                Err(error) => return Some(Err(error)),
            };
            if !(self.is_extracted)(&key, &value) {
                continue;
            }
            match self.extract(&key) {
                Ok(None) => {}
                Ok(Some(value)) => return Some(Ok((key, value))),
                Err(error) => {
                    self.range.end();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// After the end, and after an error, there is nothing more.
impl<P: FnMut(&[u8], &[u8]) -> bool> FusedIterator for ExtractIf<P> {}

fn replace_in_task(
    local: &WorkerState,
    tree: &TreeState,
    key: &[u8],
    read: &Read,
    new: Option<&[u8]>,
) -> Result<bool, Error> {
    let transactions = &local.engine.transactions;
    let swap = |value: Option<ValueRef<'_>>| {
        transactions.change_one(local, tree.change(key, value), |now| {
            read.is(now) || canary::is_on(Canary::UpdateBlindly)
        })
    };
    let swapped = match new {
        Some(new) if !btree::fits_inline(key.len(), new.len()) => {
            local.engine.shared.writable()?;
            let extent = extent::write_all(local, new, None)?;
            let swapped = swap(Some(ValueRef::extent(&extent.encode())));
            if !matches!(swapped, Ok(true)) && local.engine.shared.writable().is_ok() {
                local.engine.transactions.free_uncommitted(local, extent);
            }
            swapped?
        }
        new => swap(new.map(ValueRef::inline))?,
    };
    if swapped {
        let bytes = key.len() + new.map_or(0, <[u8]>::len);
        Counters::add(&local.engine.shared.counters.user_bytes, bytes as u64);
    }
    Ok(swapped)
}

/// Removes those of `keys` that have a value, in one commit, and says how many that were.
fn remove_all(local: &WorkerState, tree: &Arc<TreeState>, keys: &[Vec<u8>]) -> Result<u64, Error> {
    let changes: Vec<_> = keys.iter().map(|key| tree.change(key, None)).collect();
    let mut had = vec![false; keys.len()];
    let durability = local.engine.shared.config.durability;
    local.engine.transactions.change_all(
        local,
        &changes,
        CommitContext::default(),
        durability,
        &mut |at, old| {
            had[at] = old.is_some() || canary::is_on(Canary::CountAbsent);
            Ok(true)
        },
    )?;
    let removed = had.iter().zip(keys).filter(|(had, _)| **had);
    let (mut count, mut bytes) = (0, 0);
    for (_, key) in removed {
        count += 1;
        bytes += key.len() as u64;
    }
    Counters::add(&local.engine.shared.counters.user_bytes, bytes);
    Ok(count)
}
