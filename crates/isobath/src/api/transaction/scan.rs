//! Reading one tree as a transaction sees it: the leaves, then the version
//! store, then the transaction's own changes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Bound;

use super::view::View;
use super::write_set::{Own, Write};
use crate::Error;
use crate::api::tree::{Tree, Wanted};
use crate::api::value::ValueReader;
use crate::btree::{Cursor, Direction, ValueKind};
use crate::context::{InlineContext, ReadContext, TaskContext};
use crate::engine::{Engine, WorkerState};
use crate::extent::{self, Extent};
use crate::sync::Mutex;
use crate::txn::serializable::{ReadSet, TreeRead};
use crate::txn::unseen::Unseen;
use crate::txn::versions::{Bounds, OldValue, Versions};

/// Records of the first batch of a scan that does not say how many it wants, and of its longest; each is twice as long as
/// the one before, so that a scan that ends early has read no more than it showed.
const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 256;
/// Bytes after which a batch ends.
const BATCH_BYTES: usize = 256 << 10;

type Record = (Vec<u8>, Vec<u8>);

/// One tree, seen by one transaction.
#[derive(Clone, Copy)]
pub(super) struct Source<'s> {
    pub(super) tree: &'s Tree,
    pub(super) engine: &'s Engine,
    /// `None` for an operation outside transactions, which reads what it may see now.
    pub(super) view: Option<&'s View>,
    pub(super) writes: Own<'s>,
    pub(super) reads: Option<&'s Mutex<ReadSet>>,
}

/// A value that may still have to be read.
#[derive(Debug)]
enum Found {
    Bytes(Vec<u8>),
    Large(Extent),
}

impl Source<'_> {
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
        let found = match self.own(key)?.as_deref() {
            Some(Write::Removed) => None,
            Some(Write::Inline(bytes)) => Some(Found::Bytes(bytes.to_vec())),
            Some(Write::Extent(extent)) => Some(Found::Large(*extent)),
            None => {
                let bounds = (Bound::Included(key), Bound::Included(key));
                let mut cursor = MergeCursor::new(*self, bounds, Direction::Forward, Some(1));
                cursor.next(self)?.map(|(_, found)| found)
            }
        };
        found
            .map(|found| match found {
                Found::Bytes(bytes) => Ok(ValueReader::of_bytes(self.tree.clone(), bytes)),
                Found::Large(extent) => ValueReader::of_extent(self.tree.clone(), extent),
            })
            .transpose()
    }

    pub(super) fn scan(
        &self,
        bounds: Bounds<'_>,
        direction: Direction,
        wanted: Wanted,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let mut cursor = MergeCursor::new(*self, bounds, direction, wanted.limit);
        let mut large = Vec::new();
        while let Some((key, found)) = cursor.next(self)? {
            let value = match &found {
                Found::Bytes(bytes) => bytes,
                Found::Large(_) if wanted.keys_only => &large,
                Found::Large(extent) => {
                    if !self.read_large_of(&key, *extent, &mut large)? {
                        continue;
                    }
                    &large
                }
            };
            if !visit(&key, value) {
                break;
            }
        }
        Ok(())
    }

    /// Without a snapshot the value may have gone in between; then what the key has now; `false` if nothing.
    fn read_large_of(&self, key: &[u8], extent: Extent, into: &mut Vec<u8>) -> Result<bool, Error> {
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
    visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Error> {
    let source = Source {
        tree,
        engine: tree.runtime.engine()?,
        view: None,
        writes: Own::default(),
        reads: None,
    };
    source.scan(bounds, direction, wanted, visit)
}

/// The records of a range, one direction, a batch at a time.
struct MergeCursor {
    direction: Direction,
    leaves: Cursor,
    /// What is still to come.
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
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
            let found = match entry.value.kind {
                ValueKind::Inline => Found::Bytes(entry.value.bytes.to_vec()),
                ValueKind::Extent => Found::Large(extent::decode(entry.value.bytes)?),
            };
            self.bytes += entry.key.len() + entry.value.bytes.len();
            self.records.push((entry.key.to_vec(), found));
        }
        Ok(true)
    }
}

impl MergeCursor {
    fn new(
        source: Source<'_>,
        bounds: Bounds<'_>,
        direction: Direction,
        limit: Option<usize>,
    ) -> MergeCursor {
        MergeCursor {
            direction,
            leaves: Cursor::new(source.tree.state.tree, bounds.0, bounds.1, direction),
            lower: bounds.0.map(<[u8]>::to_vec),
            upper: bounds.1.map(<[u8]>::to_vec),
            ended: false,
            batch: VecDeque::new(),
            size: FIRST_BATCH,
            left: limit,
        }
    }

    fn next(&mut self, source: &Source<'_>) -> Result<Option<(Vec<u8>, Found)>, Error> {
        // Bound: each round passes some records of the leaves, or is the last.
        while self.batch.is_empty() && !self.ended {
            self.fill(source)?;
        }
        Ok(self.batch.pop_front())
    }

    fn fill(&mut self, source: &Source<'_>) -> Result<(), Error> {
        source.tree.alive()?;
        let mut records = Records::default();
        let more = self.read_leaves(source, &mut records)?;
        let mut records = records.records;
        // The part of the range that was read, and what is left of it.
        let mut last = records.last().map(|(key, _)| key.clone());
        let (mut own, mut is_cut) = (Vec::new(), false);
        if !source.writes.is_empty() {
            let (lower, upper) = self.until(last.as_deref().filter(|_| more));
            let (writes, cut) =
                source
                    .writes
                    .within((lower, upper), self.direction, LARGEST_BATCH)?;
            own = writes;
            if let Some(cut) = cut {
                // The transaction's own changes are many: the batch ends with the last of these.
                records.retain(|(key, _)| match self.direction {
                    Direction::Forward => *key <= cut,
                    Direction::Reverse => *key >= cut,
                });
                let rest = match self.direction {
                    Direction::Forward => (Bound::Excluded(&cut[..]), as_slice(&self.upper)),
                    Direction::Reverse => (as_slice(&self.lower), Bound::Excluded(&cut[..])),
                };
                let tree = source.tree.state.tree;
                self.leaves = Cursor::new(tree, rest.0, rest.1, self.direction);
                last = Some(cut);
                is_cut = true;
            }
        }
        let (lower, upper) = match (last.filter(|_| more || is_cut), self.direction) {
            (None, _) => {
                self.ended = true;
                (self.lower.clone(), self.upper.clone())
            }
            (Some(last), Direction::Forward) => (
                std::mem::replace(&mut self.lower, Bound::Excluded(last.clone())),
                Bound::Included(last),
            ),
            (Some(last), Direction::Reverse) => (
                Bound::Included(last.clone()),
                std::mem::replace(&mut self.upper, Bound::Excluded(last)),
            ),
        };
        let bounds = (as_slice(&lower), as_slice(&upper));
        let id = source.tree.state.tree.id;
        source.interrupted();
        source.await_parts()?;
        let older = source.versions().within(id, bounds, source.at());
        source.check()?;
        if let Some(from) = source.unseen().loaded_from(id) {
            records.retain(|(key, _)| **key < *from);
        }
        if self.direction == Direction::Reverse {
            records.reverse();
        }
        let older = older
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
        // Where more is wanted than was asked for, the scan goes on as one that did not say.
        self.left = self
            .left
            .and_then(|left| left.checked_sub(self.batch.len()));
        if let Some(reads) = source.reads {
            reads.lock().add_range(source.names(), lower, upper);
        }
        Ok(())
    }

    /// What is still to come up to `last`, the end of a batch.
    fn until<'b>(&'b self, last: Option<&'b [u8]>) -> Bounds<'b> {
        let (lower, upper) = (as_slice(&self.lower), as_slice(&self.upper));
        match (last, self.direction) {
            (None, _) => (lower, upper),
            (Some(last), Direction::Forward) => (lower, Bound::Included(last)),
            (Some(last), Direction::Reverse) => (Bound::Included(last), upper),
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
        if !WorkerState::with_current(source.engine, |local| local.is_some()) {
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
        OldValue::Inline(bytes) => Some(Found::Bytes(bytes.into_vec())),
        OldValue::Extent(descriptor) => Some(Found::Large(extent::decode(descriptor.bytes())?)),
    })
}

fn from_write(write: Write) -> Option<Found> {
    match write {
        Write::Removed => None,
        Write::Inline(bytes) => Some(Found::Bytes(bytes.into_vec())),
        Write::Extent(extent) => Some(Found::Large(extent)),
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// Records in key order as a transaction sees them, from
/// [`Transaction::range`](super::Transaction::range). After an error it ends.
pub struct TransactionRange<'t> {
    source: Source<'t>,
    front: MergeCursor,
    back: MergeCursor,
    /// The last keys that came from either end.
    passed: (Option<Vec<u8>>, Option<Vec<u8>>),
    ended: bool,
}

impl std::fmt::Debug for TransactionRange<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionRange")
            .field("passed", &self.passed)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl<'t> TransactionRange<'t> {
    pub(super) fn new(
        source: Source<'t>,
        lower: Bound<Vec<u8>>,
        upper: Bound<Vec<u8>>,
    ) -> TransactionRange<'t> {
        let bounds = (
            lower.as_ref().map(Vec::as_slice),
            upper.as_ref().map(Vec::as_slice),
        );
        TransactionRange {
            front: MergeCursor::new(source, bounds, Direction::Forward, None),
            back: MergeCursor::new(source, bounds, Direction::Reverse, None),
            source,
            passed: (None, None),
            ended: false,
        }
    }

    fn step(&mut self, direction: Direction) -> Option<Result<Record, Error>> {
        if self.ended {
            return None;
        }
        let record = self.take(direction);
        self.ended = !matches!(record, Ok(Some(_)));
        record.transpose()
    }

    fn take(&mut self, direction: Direction) -> Result<Option<Record>, Error> {
        let is_forward = direction == Direction::Forward;
        let cursor = if is_forward {
            &mut self.front
        } else {
            &mut self.back
        };
        let Some((key, found)) = cursor.next(&self.source)? else {
            return Ok(None);
        };
        // The other end has been here already.
        let has_met = match (&self.passed, is_forward) {
            ((_, Some(back)), true) => key >= *back,
            ((Some(front), _), false) => key <= *front,
            _ => false,
        };
        if has_met {
            return Ok(None);
        }
        let value = match found {
            Found::Bytes(bytes) => bytes,
            Found::Large(extent) => {
                let mut bytes = Vec::new();
                self.source.read_large(extent, &mut bytes)?;
                bytes
            }
        };
        let passed = Some(key.clone());
        if is_forward {
            self.passed.0 = passed;
        } else {
            self.passed.1 = passed;
        }
        Ok(Some((key, value)))
    }
}

impl Iterator for TransactionRange<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl DoubleEndedIterator for TransactionRange<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Reverse)
    }
}

/// After the end, and after an error, there is nothing more.
impl std::iter::FusedIterator for TransactionRange<'_> {}
