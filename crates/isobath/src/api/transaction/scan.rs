//! Reading one tree as a transaction sees it: the leaves, then the version
//! store, then the transaction's own changes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Bound;

use super::view::View;
use super::write_set::{Own, Write};
use crate::Error;
use crate::api::range::{Ends, Part};
use crate::api::tree::{Tree, Wanted};
use crate::api::value::{Keeper, ValueReader};
use crate::btree::{Cursor, Direction, ValueKind, ValueRef};
use crate::context::{InlineContext, ReadContext, TaskContext};
use crate::engine::{Engine, WorkerState};
use crate::extent::{self, Extent};
use crate::sync::Mutex;
use crate::txn::serializable::{ReadSet, TreeRead};
use crate::txn::unseen::Unseen;
use crate::txn::versions::{Bounds, OldValue, Older, Versions, is_passed};

/// Records of the first batch of a scan that does not say how many it wants, and of its longest; each is twice as long as
/// the one before, so that a scan that ends early has read no more than it showed.
const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 256;
/// Bytes after which a batch ends.
const BATCH_BYTES: usize = 256 << 10;
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
}

/// What a range takes of a value, which may still have to be read.
#[derive(Debug)]
pub(crate) enum Found<V = Vec<u8>> {
    Whole(V),
    Large(Extent),
}

/// A key, and what was found of its value.
type FoundRecord<V> = (Vec<u8>, Found<V>);

impl<V: Part> Found<V> {
    fn of(value: ValueRef<'_>) -> Result<Found<V>, Error> {
        Ok(match value.kind {
            ValueKind::Inline => Found::Whole(V::of_bytes(value.bytes)),
            ValueKind::Extent => Found::Large(extent::decode(value.bytes)?),
        })
    }
}

impl Found {
    fn take<V: Part>(self) -> Found<V> {
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
    pub(crate) fn newest(tree: &'s Tree) -> Result<Source<'s>, Error> {
        Ok(Source {
            tree,
            engine: tree.runtime.engine()?,
            view: None,
            writes: Own::default(),
            reads: None,
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

    fn versions(&self) -> &Versions {
        &self.engine.transactions.versions
    }

    /// What is at or above this is not to be seen. Asked after the leaf was read.
    fn at(&self) -> u64 {
        let tracker = &self.engine.transactions.tracker;
        self.view.map_or_else(|| tracker.reported(), View::lsn)
    }

    fn interrupted(&self) {
        WorkerState::with_current(self.engine, |local| {
            if let Some(local) = local {
                local.worker.preemption_point();
            }
        });
    }

    /// Whether versions may tell what the leaves, which were read before this is asked, do not.
    fn needs_versions(&self) -> Result<bool, Error> {
        Ok(self.view.is_some() || self.tree.needs_versions()?)
    }

    /// Whether the leaves, which were read for `bounds` before this is asked, have there what is to be seen, but for
    /// the transaction's own changes.
    fn sees_leaves(&self, bounds: Bounds<'_>) -> Result<bool, Error> {
        self.interrupted();
        if self.view.is_none() {
            return Ok(!self.tree.needs_versions()?);
        }
        let id = self.tree.state.tree.id;
        let is_changed = self.versions().is_changed_within(id, bounds, self.at());
        self.check()?;
        Ok(!is_changed && self.unseen().loaded_from(id).is_none())
    }

    /// Refuses a record that is of a commit which has failed half-way.
    #[inline]
    fn check_atomic_visibility(&self, key: &[u8]) -> Result<(), Error> {
        if self.view.is_some() {
            return Ok(());
        }
        let (engine, id) = (self.engine, self.tree.state.tree.id);
        let transactions = &engine.transactions;
        transactions.check_atomic_visibility(&engine.shared, id, key)
    }

    /// Outside transactions: waits for the rest of the commits that what was read may have the beginning of.
    fn await_rest(&self) -> Result<(), Error> {
        self.view.map_or_else(|| self.tree.await_rest(), |_| Ok(()))
    }

    /// Outside transactions: waits for the commits that leave no versions and may be in what was read.
    fn await_parts(&self) -> Result<(), Error> {
        let transactions = &self.engine.transactions;
        if self.view.is_some() || !transactions.unseen.is_in_parts() {
            return Ok(());
        }
        self.tree.run(|local| transactions.await_parts(local))
    }

    /// To be asked when leaf and versions were read: whether both were complete.
    fn check(&self) -> Result<(), Error> {
        self.view.map_or(Ok(()), |view| view.check(self.tree))
    }

    /// What `key` had, if what is in the leaf, which was read before this is called, may be newer.
    fn older(&self, key: &[u8]) -> Option<OldValue> {
        self.interrupted();
        self.versions()
            .find(self.tree.state.tree.id, key, self.at())
    }

    fn unseen(&self) -> &Unseen {
        &self.engine.transactions.unseen
    }

    /// Whether what the leaf has for `key` is of a bulk load that is not to be seen. Asked after [`Source::check`], which lets
    /// a view pass before a load begins, and after it has ended.
    fn is_unseen(&self, key: &[u8]) -> bool {
        self.unseen().is_loaded(self.tree.state.tree.id, key)
    }

    fn own(&self, key: &[u8]) -> Result<Option<Cow<'_, Write>>, Error> {
        self.writes.get(key)
    }

    fn read_extent(&self, extent: Extent, into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        self.tree.run(|local| extent::read_all(local, extent, into))
    }

    pub(super) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        if let Some(write) = self.own(key)? {
            return self.take_own(&write, value);
        }
        self.note(key);
        // Whatever happens to the key, its version is there afterwards.
        let found = self.tree.get_newest(key, value)?;
        self.replace_by_older(key, found, value)
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

    /// Makes what the leaf has into what the snapshot has.
    fn replace_by_older(
        &self,
        key: &[u8],
        found: bool,
        value: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let older = self.older(key);
        self.check()?;
        match older {
            None => Ok(found && !self.is_unseen(key)),
            Some(OldValue::Absent) => Ok(false),
            Some(OldValue::Inline(bytes)) => {
                value.clear();
                value.extend_from_slice(&bytes);
                Ok(true)
            }
            Some(OldValue::Extent(descriptor)) => {
                let read = extent::decode(descriptor.bytes())
                    .and_then(|extent| self.read_extent(extent, value));
                // A snapshot that has failed keeps no large values either.
                self.check()?;
                read.map(|()| true)
            }
        }
    }

    pub(super) fn contains(&self, key: &[u8]) -> Result<bool, Error> {
        if let Some(write) = self.own(key)? {
            return Ok(*write != Write::Removed);
        }
        self.note(key);
        let found = self.tree.contains(key)?;
        let older = self.older(key);
        self.check()?;
        Ok(match older {
            Some(older) => older != OldValue::Absent,
            None => found && !self.is_unseen(key),
        })
    }

    pub(super) fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        keys.iter().for_each(|key| self.note(key));
        let mut values = self.tree.get_many(keys)?;
        for (key, slot) in keys.iter().zip(&mut values) {
            let found = slot.is_some();
            let mut value = slot.take().unwrap_or_default();
            let found = match self.own(key)? {
                Some(write) => self.take_own(&write, &mut value)?,
                None => self.replace_by_older(key, found, &mut value)?,
            };
            *slot = found.then_some(value);
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

    /// Calls `visit` with each record and the length of its value; the value is empty where keys only are wanted.
    pub(super) fn scan(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        wanted: Wanted,
        mut visit: impl FnMut(&[u8], &[u8], u64) -> bool,
    ) -> Result<(), Error> {
        let mut cursor = MergeCursor::new(*self, bounds, direction, wanted.limit);
        let mut large = Vec::new();
        while let Some((key, found)) = cursor.next::<Vec<u8>>(self)? {
            let goes_on = match &found {
                Found::Whole(bytes) => visit(&key, bytes, bytes.len() as u64),
                Found::Large(extent) if wanted.keys_only => visit(&key, &[], extent.length),
                Found::Large(extent) => {
                    !self.read_large_of(&key, *extent, &mut large)?
                        || visit(&key, &large, large.len() as u64)
                }
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Counts the records within `bounds`: by what leaves say of themselves, where that is what is to be seen.
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
            // A commit in parts changes leaves that are counted already, and those that are not.
            let counts = self.writes.is_empty()
                && self.sees_leaves(part)?
                && (self.view.is_some() || !self.unseen().is_in_parts());
            count += if counts {
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
        self.await_rest()?;
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
    fn note_range(&self, bounds: Bounds<'_>) {
        if let Some(reads) = self.reads {
            let (lower, upper) = (bounds.0.map(<[u8]>::to_vec), bounds.1.map(<[u8]>::to_vec));
            reads.lock().add_range(self.names(), lower, upper);
        }
    }

    /// Without a snapshot the value may have gone in between; then what the key has now; `false` if nothing.
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

/// The records of a range, one direction.
///
/// A leaf that has what is to be seen gives its records one by one from the cursor's copy of it. Where it has not, because of
/// versions or of the transaction's own changes, or where leaves are missing in memory, a batch of records is read and merged.
pub(crate) struct MergeCursor {
    direction: Direction,
    leaves: Cursor,
    /// The current leaf has what is to be seen.
    sees_leaf: bool,
    /// Behind which what is still to come lies; `None` before the first leaf or batch.
    passed: Option<Bound<Vec<u8>>>,
    /// Nothing is to be read any more.
    ended: bool,
    batch: VecDeque<(Vec<u8>, Found)>,
    /// Records of the next batch, unless it is known how many are wanted.
    size: usize,
    /// How many are still wanted, where that is known.
    left: Option<usize>,
}

/// Records of leaves, in the cursor's order.
#[derive(Default)]
struct Records {
    records: Vec<(Vec<u8>, Found)>,
    bytes: usize,
}

impl Records {
    /// Takes records until there are enough; `false` at the end of the range.
    fn fill<C: ReadContext>(
        &mut self,
        cursor: &mut Cursor,
        ctx: &C,
        most: usize,
    ) -> Result<bool, C::Error> {
        while self.records.len() < most && self.bytes < BATCH_BYTES {
            let Some(entry) = cursor.next(ctx)? else {
                return Ok(false);
            };
            self.bytes += entry.key.len() + entry.value.bytes.len();
            self.records
                .push((entry.key.to_vec(), Found::of(entry.value)?));
        }
        Ok(true)
    }
}

impl MergeCursor {
    pub(crate) fn new(
        source: Source<'_>,
        bounds: Bounds<'_>,
        direction: Direction,
        limit: Option<usize>,
    ) -> MergeCursor {
        MergeCursor {
            direction,
            leaves: Cursor::new(source.tree.state.tree, bounds.0, bounds.1, direction),
            sees_leaf: false,
            passed: None,
            ended: false,
            batch: VecDeque::new(),
            size: FIRST_BATCH,
            left: limit,
        }
    }

    pub(crate) fn next<V: Part>(
        &mut self,
        source: &Source<'_>,
    ) -> Result<Option<FoundRecord<V>>, Error> {
        // Bound: each round passes a leaf, or some records of the leaves, or is the last.
        loop {
            if self.sees_leaf {
                let next = self.leaves.next_in_leaf(source.tree.runtime.pool()?);
                if let Some(entry) = source.tree.map_error(next)? {
                    source.check_atomic_visibility(entry.key)?;
                    return Ok(Some((entry.key.to_vec(), Found::of(entry.value)?)));
                }
                self.sees_leaf = false;
            }
            if let Some((key, found)) = self.batch.pop_front() {
                return Ok(Some((key, found.take())));
            }
            if self.ended {
                return Ok(None);
            }
            self.fill(source)?;
        }
    }

    fn fill(&mut self, source: &Source<'_>) -> Result<(), Error> {
        source.tree.alive()?;
        // What a serializable transaction reads is remembered by ranges, of which batches make fewer.
        let by_leaf = source.writes.is_empty() && source.reads.is_none();
        if !by_leaf || !self.enter_leaf(source)? {
            self.merge(source)?;
        }
        source.await_rest()
    }

    /// Reads the next leaf, if it is in memory or this is a task; whether it has what is to be seen.
    fn enter_leaf(&mut self, source: &Source<'_>) -> Result<bool, Error> {
        if let Some(left) = self.left {
            self.leaves.limit(left);
        }
        source.tree.runtime.count_operations(1);
        let leaves = &mut self.leaves;
        let is_there = if source.tree.runtime.is_in_task() {
            source
                .tree
                .run(|local| leaves.next_records(&TaskContext { local }))?
        } else {
            let inline = InlineContext::new(source.tree.runtime.pool()?);
            leaves.next_records(&inline).unwrap_or(false)
        };
        let part = self.until(self.leaves.boundary().map(|boundary| match self.direction {
            Direction::Forward => Bound::Excluded(boundary),
            Direction::Reverse => Bound::Included(boundary),
        }));
        if !is_there || !source.sees_leaves(part)? {
            return Ok(false);
        }
        let behind = self.leaves.boundary().map(|boundary| match self.direction {
            Direction::Forward => Bound::Included(boundary.to_vec()),
            Direction::Reverse => Bound::Excluded(boundary.to_vec()),
        });
        let records = self.leaves.left_in_leaf();
        self.pass(behind, records);
        self.sees_leaf = true;
        Ok(true)
    }

    /// Reads a batch of records from the leaves, and makes of them what is to be seen.
    fn merge(&mut self, source: &Source<'_>) -> Result<(), Error> {
        let mut records = Records::default();
        let more = self.read_leaves(source, &mut records)?;
        let mut records = records.records;
        // Where the part of the range ends that was read, unless that is all.
        let mut last = records.last().filter(|_| more).map(|(key, _)| key.clone());
        let mut own = Vec::new();
        if !source.writes.is_empty() {
            let part = self.until(last.as_deref().map(Bound::Included));
            let (writes, cut) = source.writes.within(part, self.direction, LARGEST_BATCH)?;
            own = writes;
            if let Some(cut) = cut {
                // The transaction's own changes are many: the batch ends with the last of these.
                records.retain(|(key, _)| is_passed(key, &cut, self.direction));
                self.leaves = self.leaves_behind(source, &cut);
                last = Some(cut);
            }
        }
        let id = source.tree.state.tree.id;
        source.interrupted();
        source.await_parts()?;
        let part = self.until(last.as_deref().map(Bound::Included));
        let wanted = (source.at(), self.direction, self.left.unwrap_or(self.size));
        let older = match source.needs_versions()? {
            true => source.versions().within(id, part, wanted),
            false => Older::default(),
        };
        source.check()?;
        if let Some(cut) = older.cut {
            // What others have changed is much: the batch ends with the last of it that was looked at.
            records.retain(|(key, _)| is_passed(key, &cut, self.direction));
            own.retain(|(key, _)| is_passed(key, &cut, self.direction));
            self.leaves = self.leaves_behind(source, &cut);
            last = Some(cut.to_vec());
        }
        source.note_range(self.until(last.as_deref().map(Bound::Included)));
        if let Some(from) = source.unseen().loaded_from(id) {
            records.retain(|(key, _)| **key < *from);
        }
        for (key, _) in &records {
            source.check_atomic_visibility(key)?;
        }
        if self.direction == Direction::Reverse {
            records.reverse();
        }
        let older = older
            .found
            .into_iter()
            .map(|(key, old)| Ok((key.to_vec(), from_old(old)?)));
        let older = older.collect::<Result<Vec<_>, Error>>()?;
        let own = own.into_iter().map(|(key, write)| (key, from_write(write)));
        let mut merged = overlay(present(records), older);
        merged = overlay(merged, own.collect());
        let visible = merged
            .into_iter()
            .filter_map(|(key, found)| Some((key, found?)));
        self.batch = match self.direction {
            Direction::Forward => visible.collect(),
            Direction::Reverse => visible.rev().collect(),
        };
        self.pass(last.map(Bound::Excluded), self.batch.len());
        Ok(())
    }

    /// The leaves of what is still to come behind `last`.
    fn leaves_behind(&self, source: &Source<'_>, last: &[u8]) -> Cursor {
        let (lower, upper) = self.leaves.bounds();
        let (lower, upper) = match self.direction {
            Direction::Forward => (Bound::Excluded(last), upper),
            Direction::Reverse => (lower, Bound::Excluded(last)),
        };
        Cursor::new(source.tree.state.tree, lower, upper, self.direction)
    }

    /// Notes what was read: up to `behind`, or all, and how many records that are to be seen.
    fn pass(&mut self, behind: Option<Bound<Vec<u8>>>, records: usize) {
        self.ended = behind.is_none();
        self.passed = behind.or(self.passed.take());
        // Where more is wanted than was asked for, the scan goes on as one that did not say.
        self.left = self.left.and_then(|left| left.checked_sub(records));
    }

    /// What is still to come up to `end`, in the cursor's direction; all of it where that is `None`.
    fn until<'b>(&'b self, end: Option<Bound<&'b [u8]>>) -> Bounds<'b> {
        let (lower, upper) = self.leaves.bounds();
        let passed = self.passed.as_ref().map(as_slice);
        match self.direction {
            Direction::Forward => (passed.unwrap_or(lower), end.unwrap_or(upper)),
            Direction::Reverse => (end.unwrap_or(lower), passed.unwrap_or(upper)),
        }
    }

    /// Reads the next leaves, here as far as they are in memory.
    fn read_leaves(&mut self, source: &Source<'_>, records: &mut Records) -> Result<bool, Error> {
        let size = match self.left {
            Some(left) => {
                self.leaves.limit(left);
                left.clamp(1, LARGEST_BATCH)
            }
            None => {
                let size = self.size;
                self.size = (2 * size).min(LARGEST_BATCH);
                size
            }
        };
        source.tree.runtime.count_records(size);
        let leaves = &mut self.leaves;
        if !source.tree.runtime.is_in_task() {
            let inline = InlineContext::new(source.tree.runtime.pool()?);
            if let Ok(more) = records.fill(leaves, &inline, size) {
                return Ok(more);
            }
        }
        source
            .tree
            .run(|local| records.fill(leaves, &TaskContext { local }, size))
    }
}

type Merged = Vec<(Vec<u8>, Option<Found>)>;

fn present(records: Vec<(Vec<u8>, Found)>) -> Merged {
    let found = |(key, found)| (key, Some(found));
    records.into_iter().map(found).collect()
}

/// Two ascending lists as one; where both have a key, `upper` counts.
fn overlay(lower: Merged, upper: Merged) -> Merged {
    if upper.is_empty() {
        return lower;
    }
    let mut all = Vec::with_capacity(lower.len() + upper.len());
    let mut lower = lower.into_iter().peekable();
    for (key, value) in upper {
        while let Some(record) = lower.next_if(|record| record.0 < key) {
            all.push(record);
        }
        lower.next_if(|record| record.0 == key);
        all.push((key, value));
    }
    all.extend(lower);
    all
}

fn from_old(old: OldValue) -> Result<Option<Found>, Error> {
    Ok(match old {
        OldValue::Absent => None,
        OldValue::Inline(bytes) => Some(Found::Whole(bytes.into_vec())),
        OldValue::Extent(descriptor) => Some(Found::Large(extent::decode(descriptor.bytes())?)),
    })
}

fn from_write(write: Write) -> Option<Found> {
    match write {
        Write::Removed => None,
        Write::Inline(bytes) => Some(Found::Whole(bytes.into_vec())),
        Write::Extent(extent) => Some(Found::Large(extent)),
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Records in key order as a transaction sees them, from [`Transaction::range`](super::Transaction::range), or their keys with the
/// lengths of their values, from [`Transaction::keys`](super::Transaction::keys). After an error it ends.
pub struct TransactionRange<'t, V = Vec<u8>> {
    source: Source<'t>,
    ends: Ends,
    part: PhantomData<fn() -> V>,
}

impl<V> std::fmt::Debug for TransactionRange<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionRange")
            .field("tree", &self.source.tree.name())
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

impl<'t, V> TransactionRange<'t, V> {
    pub(super) fn new(
        source: Source<'t>,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
    ) -> TransactionRange<'t, V> {
        TransactionRange {
            source,
            ends: Ends::new(lower, upper),
            part: PhantomData,
        }
    }
}

impl<V: Part> Iterator for TransactionRange<'_, V> {
    type Item = Result<(Vec<u8>, V), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.ends.step(&self.source, Direction::Forward)
    }
}

impl<V: Part> DoubleEndedIterator for TransactionRange<'_, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.ends.step(&self.source, Direction::Reverse)
    }
}

/// After the end, and after an error, there is nothing more.
impl<V: Part> std::iter::FusedIterator for TransactionRange<'_, V> {}
