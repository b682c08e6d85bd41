//! Reading one tree as a transaction sees it: the leaves, then the version
//! store, then the transaction's own changes.

use std::borrow::Cow;
use std::ops::Bound;

use super::cursor::{MergeCursor, Step};
use super::view::View;
use super::write_set::{Own, Write};
use crate::api::range::Part;
use crate::api::tree::{Tree, Wanted};
use crate::api::value::{Keeper, ValueReader};
use crate::btree::{Direction, Stretch, TreeId, ValueKind, ValueRef};
use crate::context::{InlineContext, TaskContext};
use crate::engine::{Engine, WorkerState};
use crate::error::{Error, StorageError, TransactionError};
use crate::extent::{self, Extent};
use crate::levels::Cursor;
use crate::sync::Mutex;
use crate::txn::serializable::{ReadSet, TreeRead};
use crate::txn::versions::Bounds;
use crate::txn::visible::{Reader, Seen};

/// Leaves that a task counts at a time for a caller elsewhere, where some are missing.
const COUNTED_AT_ONCE: usize = 256;

/// One tree, seen by one transaction.
#[derive(Clone, Copy)]
pub(crate) struct Source<'s> {
    pub(super) tree: &'s Tree,
    pub(super) engine: &'s Engine,
    /// `None` for an operation outside transactions, which reads what it may see now.
    pub(super) view: Option<&'s View>,
    pub(super) writes: Own<'s>,
    pub(super) reads: Option<&'s Mutex<ReadSet>>,
    /// Where scans note what they have passed in vain.
    pub(super) hidden: Option<&'s Mutex<Hidden>>,
}

/// A stretch of a tree in which a transaction has removed everything one by one, as its last scan
/// has found.
#[derive(Default)]
pub(super) struct Hidden(Option<(TreeId, Stretch)>);

impl Hidden {
    /// Takes it, if it is one of this tree.
    pub(super) fn take(&mut self, tree: TreeId) -> Option<Stretch> {
        let (of, stretch) = self.0.take()?;
        (of == tree).then_some(stretch)
    }

    /// Adds what a scan has passed, which goes on where it was.
    pub(super) fn add(&mut self, tree: TreeId, passed: Stretch) {
        let before = self.take(tree);
        let joined = before.and_then(|before| before.joined(&passed));
        self.0 = Some((tree, joined.unwrap_or(passed)));
    }
}

/// What a range takes of a value, which may still have to be read.
#[derive(Debug)]
pub(crate) enum Found<V = Vec<u8>> {
    Whole(V),
    Large(Extent),
}

/// A key, and what was found of its value.
pub(super) type FoundRecord<V> = (Vec<u8>, Found<V>);

impl<V: Part> Found<V> {
    pub(super) fn of(value: ValueRef<'_>) -> Result<Found<V>, StorageError> {
        Ok(match value.kind {
            ValueKind::Inline => Found::Whole(V::of_bytes(value.bytes)),
            ValueKind::Extent => Found::Large(extent::decode(value.bytes)?),
        })
    }
}

impl Found {
    pub(super) fn take<V: Part>(self) -> Found<V> {
        match self {
            Found::Whole(bytes) => Found::Whole(V::of_whole(bytes)),
            Found::Large(extent) => Found::Large(extent),
        }
    }
}

impl<'s> Source<'s> {
    /// What an operation outside transactions reads.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    pub(crate) fn newest(tree: &'s Tree) -> Result<Source<'s>, TransactionError> {
        Ok(Source {
            tree,
            engine: tree.runtime.engine()?,
            view: None,
            writes: Own::default(),
            reads: None,
            hidden: None,
        })
    }

    fn names(&self) -> TreeRead<'_> {
        let state = &self.tree.state;
        TreeRead {
            tree: state.tree.id,
            name: &state.name,
            status: &state.status,
        }
    }

    /// Remembers that `key` was read.
    fn note(&self, key: &[u8]) {
        if let Some(reads) = self.reads {
            reads.lock().add_key(self.names(), key);
        }
    }

    /// Lets others run between a look at a leaf and the one at what may be newer in it.
    pub(super) fn judge(&self) -> Reader<'_> {
        WorkerState::with_current(self.engine, |local| {
            if let Some(local) = local {
                local.worker.preemption_point();
            }
        });
        let snapshot = self.view.map(View::lsn);
        let transactions = &self.engine.transactions;
        transactions.reader(self.tree.state.tree.id, snapshot)
    }

    /// Whether the leaves, which were read for `bounds` before this is asked, have there what is to
    /// be seen, but for the transaction's own changes.
    pub(super) fn sees_leaves(&self, bounds: Bounds<'_>) -> Result<bool, TransactionError> {
        let reader = self.judge();
        self.tree.await_others(reader)?;
        let sees_leaves = reader.sees_leaves(bounds);
        self.check()?;
        Ok(sees_leaves)
    }

    /// To be asked when leaf and versions were read: whether both were complete.
    pub(super) fn check(&self) -> Result<(), TransactionError> {
        match self.view {
            Some(view) => view.check(self.tree),
            None => self.tree.found(()),
        }
    }

    fn own(&self, key: &[u8]) -> Result<Option<Cow<'_, Write>>, TransactionError> {
        Ok(self.writes.get(key)?)
    }

    fn read_extent(&self, extent: Extent, into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        self.tree
            .run(|local| Ok(extent::read_all(local, extent, into)?))
    }

    pub(super) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        if let Some(write) = self.own(key)? {
            return self.take_own(&write, value);
        }
        self.note(key);
        let kind = self.seen(key, value)?;
        self.read_seen(kind, value)
    }

    /// Makes the value of its descriptor, if it is a large one; whether there is one. The snapshot
    /// keeps large values, unless it has failed.
    fn read_seen(&self, kind: Option<ValueKind>, value: &mut Vec<u8>) -> Result<bool, Error> {
        if kind == Some(ValueKind::Extent) {
            let descriptor = std::mem::take(value);
            self.read_large(extent::decode(&descriptor)?, value)?;
        }
        Ok(kind.is_some())
    }

    /// What `key` has for the snapshot, but for the transaction's own changes: the kind, and the
    /// bytes or the descriptor in `value`.
    fn seen(&self, key: &[u8], value: &mut Vec<u8>) -> Result<Option<ValueKind>, Error> {
        // Whatever happens to the key, its version is there afterwards.
        let found = self.tree.get_leaf(key, value)?;
        let seen = self.judge().seen(key, found, value);
        self.check()?;
        // Only readers outside transactions may have to read it again.
        Ok(seen.unwrap_or(found))
    }

    fn take_own(&self, write: &Write, value: &mut Vec<u8>) -> Result<bool, Error> {
        value.clear();
        match write {
            Write::Removed => return Ok(false),
            Write::Inline(bytes) => value.extend_from_slice(bytes),
            Write::Extent(extent) => self.read_extent(*extent, value)?,
        }
        Ok(true)
    }

    pub(super) fn contains(&self, key: &[u8]) -> Result<bool, Error> {
        if let Some(write) = self.own(key)? {
            return Ok(*write != Write::Removed);
        }
        self.note(key);
        Ok(self.seen(key, &mut Vec::new())?.is_some())
    }

    pub(super) fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        keys.iter().for_each(|key| self.note(key));
        let mut values = self.tree.get_many(keys)?;
        for (key, slot) in keys.iter().zip(&mut values) {
            let mut value = Vec::new();
            if let Some(write) = self.own(key)? {
                *slot = self.take_own(&write, &mut value)?.then_some(value);
                continue;
            }
            let seen = self.judge().judge(key);
            self.check()?;
            if let Seen::Older(old) = seen {
                let kind = old.take(&mut value);
                *slot = self.read_seen(kind, &mut value)?.then_some(value);
            }
        }
        Ok(values)
    }

    pub(super) fn reader(&self, key: &[u8]) -> Result<Option<ValueReader>, Error> {
        let tree = || self.tree.clone();
        let bytes = |bytes| Ok(Some(ValueReader::of_bytes(tree(), bytes)));
        let large = |extent, keeper| ValueReader::of_extent(tree(), extent, keeper).map(Some);
        match self.own(key)?.as_deref() {
            Some(Write::Removed) => return Ok(None),
            Some(Write::Inline(value)) => return bytes(value.to_vec()),
            Some(Write::Extent(extent)) => return large(*extent, Keeper::Writer),
            None => {}
        }
        let bounds = (Bound::Included(key), Bound::Included(key));
        let mut cursor = MergeCursor::new(*self, bounds, Direction::Forward, Some(1));
        match cursor.next::<Vec<u8>>(self)? {
            None => Ok(None),
            Some((_, Found::Whole(value))) => bytes(value),
            Some((_, Found::Large(extent))) => {
                large(extent, self.view.map_or(Keeper::Writer, View::keeper))
            }
        }
    }

    /// Calls `visit` with each record and the length of its value; the value is empty where keys
    /// only are wanted.
    pub(super) fn scan(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        wanted: Wanted,
        visit: impl FnMut(&[u8], &[u8], u64) -> bool,
    ) -> Result<(), Error> {
        let mut cursor = MergeCursor::new(*self, bounds, direction, wanted.limit);
        self.scan_on(&mut cursor, wanted.keys_only, visit)
    }

    /// As [`Source::scan`], of what is still to come of a cursor: it stands behind the record at
    /// which `visit` has returned `false`.
    pub(super) fn scan_on(
        &self,
        cursor: &mut MergeCursor,
        keys_only: bool,
        mut visit: impl FnMut(&[u8], &[u8], u64) -> bool,
    ) -> Result<(), Error> {
        let mut large = Vec::new();
        let mut show = |key: &[u8], value: ValueRef<'_>| -> Result<bool, Error> {
            if value.kind == ValueKind::Inline {
                return Ok(visit(key, value.bytes, value.bytes.len() as u64));
            }
            let extent = extent::decode(value.bytes)?;
            if keys_only {
                return Ok(visit(key, &[], extent.length));
            }
            let is_there = self.read_large_of(key, extent, &mut large)?;
            Ok(!is_there || visit(key, &large, large.len() as u64))
        };
        // Bound: each round passes a record, or the rest of a leaf.
        loop {
            let goes_on = match cursor.step(self)? {
                Step::Leaf => cursor.visit_leaf(self, &mut show)?,
                Step::Record((key, found)) => match &found {
                    Found::Whole(bytes) => show(&key, ValueRef::inline(bytes))?,
                    Found::Large(extent) => show(&key, ValueRef::extent(&extent.encode()))?,
                },
                Step::End => false,
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Calls `visit` with the keys within `bounds`.
    pub(super) fn keys(
        &self,
        bounds: Bounds<'_>,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<(), TransactionError> {
        let mut cursor = MergeCursor::new(*self, bounds, Direction::Forward, None);
        // Bound: each round passes a record, or the rest of a leaf.
        loop {
            match cursor.step(self)? {
                Step::Leaf => {
                    cursor.visit_leaf(self, &mut |key, _| {
                        visit(key);
                        Ok::<_, TransactionError>(true)
                    })?;
                }
                Step::Record((key, _)) => visit(&key),
                Step::End => return Ok(()),
            }
        }
    }

    /// Counts the records within `bounds`: by what leaves say of themselves, where that is what is
    /// to be seen.
    pub(crate) fn count(&self, bounds: Bounds<'_>) -> Result<u64, Error> {
        let mut cursor = Cursor::new(self.tree.state.tree, bounds.0, bounds.1, Direction::Forward);
        let mut lower = bounds.0.map(<[u8]>::to_vec);
        let mut count = 0;
        // Bound: each round passes a leaf, or is the last.
        loop {
            self.tree.alive()?;
            let of_leaves = self.count_leaves(&mut cursor)?;
            let boundary = cursor.boundary().map(<[u8]>::to_vec);
            let upper = boundary.as_deref().map_or(bounds.1, Bound::Excluded);
            let part = (as_slice(&lower), upper);
            count += if self.writes.is_empty() && self.sees_leaves(part)? {
                self.note_range(part);
                of_leaves
            } else {
                self.count_one_by_one(part)?
            };
            match boundary {
                Some(boundary) => lower = Bound::Included(boundary),
                None => break,
            }
        }
        Ok(count)
    }

    /// Counts the records of the next leaves, here as far as they are in memory.
    fn count_leaves(&self, cursor: &mut Cursor) -> Result<u64, Error> {
        self.tree.runtime.count_operations(1);
        if !self.tree.runtime.is_in_task() {
            let inline = InlineContext::new(self.tree.runtime.pool()?);
            if let Ok(count) = cursor.count_leaves(&inline) {
                return Ok(count);
            }
        }
        self.tree.run(|local| {
            let mut count = 0;
            for _ in 0..COUNTED_AT_ONCE {
                count += cursor.count_leaves(&TaskContext { local })?;
                if cursor.boundary().is_none() {
                    break;
                }
            }
            Ok(count)
        })
    }

    fn count_one_by_one(&self, bounds: Bounds<'_>) -> Result<u64, Error> {
        let mut count = 0;
        if self.view.is_none() {
            self.tree.scan_keys(bounds, None, |_| count += 1)?;
            return Ok(count);
        }
        let wanted = Wanted {
            limit: None,
            keys_only: true,
        };
        self.scan(bounds, Direction::Forward, wanted, |_, _, _| {
            count += 1;
            true
        })?;
        Ok(count)
    }

    /// Remembers that `bounds` were read.
    pub(super) fn note_range(&self, bounds: Bounds<'_>) {
        if let Some(reads) = self.reads {
            let (lower, upper) = owned(bounds);
            reads.lock().add_range(self.names(), lower, upper);
        }
    }

    /// Without a snapshot the value may have gone in between; then what the key has now; `false` if
    /// nothing.
    pub(crate) fn read_large_of(
        &self,
        key: &[u8],
        extent: Extent,
        into: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        match self.read_large(extent, into) {
            // If this was not a change of the record, the same error comes again.
            Err(_) if self.view.is_none() => self.tree.get_into(key, into),
            other => other.map(|()| true),
        }
    }

    fn read_large(&self, extent: Extent, into: &mut Vec<u8>) -> Result<(), Error> {
        let read = self.read_extent(extent, into);
        self.check()?;
        read
    }
}

/// Calls `visit` with the records of a tree that are visible now, until it returns `false`.
pub(crate) fn scan_seen(
    tree: &Tree,
    bounds: Bounds<'_>,
    direction: Direction,
    wanted: Wanted,
    visit: impl FnMut(&[u8], &[u8], u64) -> bool,
) -> Result<(), Error> {
    Source::newest(tree)?.scan(bounds, direction, wanted, visit)
}

pub(super) fn owned(bounds: Bounds<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (bounds.0.map(<[u8]>::to_vec), bounds.1.map(<[u8]>::to_vec))
}

pub(super) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
