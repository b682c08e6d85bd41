//! The records of a range as a transaction sees them: those of the leaves, those that versions have
//! in their place, and the transaction's own changes.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Bound;

use super::scan::{Found, FoundRecord, Source, as_slice, owned};
use super::write_set::Write;
use crate::api::range::{Ends, Part};
use crate::btree::{Direction, Stretch, ValueRef};
use crate::context::{InlineContext, ReadContext, TaskContext};
use crate::error::{Error, StorageError, TransactionError};
use crate::extent;
use crate::levels::Cursor;
use crate::txn::versions::{Bounds, OldValue, Older, is_passed};

/// Records of the first batch of a scan that does not say how many it wants, and of its longest;
/// each is twice as long as the one before, so that a scan that ends early has read no more than it
/// showed.
const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 256;
/// Bytes after which a batch ends.
const BATCH_BYTES: usize = 256 << 10;

/// The records of a range, one direction.
///
/// A leaf that has what is to be seen gives its records one by one from the cursor's copy of it.
/// Where it has not, because of versions or of the transaction's own changes, or where leaves are
/// missing in memory, a batch of records is read and merged.
///
/// Where the transaction has removed stretches, the range is read in pieces: in those between them
/// as without them, and in each of these only what the transaction wrote itself.
pub(crate) struct MergeCursor {
    direction: Direction,
    /// In the piece of the range that was begun.
    leaves: Cursor,
    /// All that the snapshot has in this piece is removed.
    is_removed: bool,
    /// What is behind the piece.
    rest: Option<Stretch>,
    /// The current leaf has what is to be seen.
    sees_leaf: bool,
    /// What is still to come of the piece. The bounds of `leaves` say less: its cursor is replaced
    /// where a batch is cut.
    left_of_piece: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// Nothing of the piece is to be read any more.
    ended: bool,
    batch: VecDeque<(Vec<u8>, Found)>,
    /// Records of the next batch, unless it is known how many are wanted.
    size: usize,
    /// How many are still wanted, where that is known.
    left: Option<usize>,
}

/// Where the next record is.
pub(super) enum Step {
    /// Among those of the current leaf, if it has more.
    Leaf,
    /// It was merged.
    Record(FoundRecord<Vec<u8>>),
    End,
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
        let mut cursor = MergeCursor {
            direction,
            leaves: Cursor::new(source.tree.state.tree, bounds.0, bounds.1, direction),
            is_removed: false,
            rest: None,
            sees_leaf: false,
            left_of_piece: owned(bounds),
            ended: false,
            batch: VecDeque::new(),
            size: FIRST_BATCH,
            left: limit,
        };
        if source.writes.has_stretches()
            && let Some(whole) = Stretch::new(bounds)
        {
            cursor.begin_piece(&source, whole);
        }
        cursor
    }

    /// Goes on with the first piece of `whole`.
    fn begin_piece(&mut self, source: &Source<'_>, whole: Stretch) {
        let (is_removed, piece) = source.writes.piece(&whole, self.direction);
        let (lower, upper) = piece.bounds();
        self.leaves = Cursor::new(source.tree.state.tree, lower, upper, self.direction);
        self.left_of_piece = owned((lower, upper));
        self.is_removed = is_removed;
        self.rest = whole.past(&piece, self.direction);
        self.ended = false;
    }

    pub(crate) fn next<V: Part>(
        &mut self,
        source: &Source<'_>,
    ) -> Result<Option<FoundRecord<V>>, TransactionError> {
        // Bound: each round passes a leaf, or is the last.
        loop {
            match self.step(source)? {
                Step::Leaf => {
                    let next = self.leaves.next_in_leaf(source.tree.runtime.pool()?);
                    if let Some(entry) = source
                        .tree
                        .map_error(next.map_err(TransactionError::from))?
                    {
                        return Ok(Some((entry.key.to_vec(), Found::of(entry.value)?)));
                    }
                    self.sees_leaf = false;
                }
                Step::Record((key, found)) => return Ok(Some((key, found.take()))),
                Step::End => return Ok(None),
            }
        }
    }

    /// Where the next record is; reads what is missing for that.
    pub(super) fn step(&mut self, source: &Source<'_>) -> Result<Step, TransactionError> {
        // Bound: each round but the last reads a leaf, or some records of leaves.
        loop {
            if self.sees_leaf {
                return Ok(Step::Leaf);
            }
            if let Some(record) = self.batch.pop_front() {
                return Ok(Step::Record(record));
            }
            if self.ended {
                let Some(rest) = self.rest.take() else {
                    return Ok(Step::End);
                };
                self.begin_piece(source, rest);
            }
            self.fill(source)?;
        }
    }

    /// Calls `visit` with the records of the current leaf, without copies, if it has what is to be
    /// seen; `false` if `visit` ends that.
    pub(super) fn visit_leaf<E: From<TransactionError> + From<StorageError>>(
        &mut self,
        source: &Source<'_>,
        visit: &mut impl FnMut(&[u8], ValueRef<'_>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        while self.sees_leaf {
            let next = self.leaves.next_in_leaf(source.tree.runtime.pool()?);
            let Some(entry) = source
                .tree
                .map_error(next.map_err(TransactionError::from))?
            else {
                self.sees_leaf = false;
                break;
            };
            if !visit(entry.key, entry.value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fill(&mut self, source: &Source<'_>) -> Result<(), TransactionError> {
        source.tree.alive()?;
        // What a serializable transaction reads is remembered by ranges, of which batches make
        // fewer.
        let by_leaf = !self.is_removed && source.reads.is_none();
        if !by_leaf || !self.enter_leaf(source)? {
            self.merge(source)?;
        }
        Ok(())
    }

    /// Reads the next leaf, if it is in memory or this is a task; whether it has what is to be
    /// seen.
    fn enter_leaf(&mut self, source: &Source<'_>) -> Result<bool, TransactionError> {
        if let Some(left) = self.left {
            self.leaves.limit(left);
        }
        source.tree.runtime.count_operations(1);
        let leaves = &mut self.leaves;
        let is_there = if source.tree.runtime.is_in_task() {
            source.tree.run(|local| {
                Ok::<_, TransactionError>(leaves.next_records(&TaskContext { local })?)
            })?
        } else {
            let inline = InlineContext::new(source.tree.runtime.pool()?);
            leaves.next_records(&inline).unwrap_or(false)
        };
        let part = self.until(self.leaves.boundary().map(|boundary| match self.direction {
            Direction::Forward => Bound::Excluded(boundary),
            Direction::Reverse => Bound::Included(boundary),
        }));
        if !is_there || !source.writes.has_none_within(part) || !source.sees_leaves(part)? {
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
    fn merge(&mut self, source: &Source<'_>) -> Result<(), TransactionError> {
        let mut records = Records::default();
        let more = !self.is_removed && self.read_leaves(source, &mut records)?;
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
        let mut older = Older::default();
        if !self.is_removed {
            let reader = source.judge();
            source.tree.await_others(reader)?;
            let part = self.until(last.as_deref().map(Bound::Included));
            let most = self.left.unwrap_or(self.size);
            older = reader.older_within(part, self.direction, most);
            source.check()?;
            if let Some(cut) = &older.cut {
                // What others have changed is much: the batch ends with the last of it that was
                // looked at.
                records.retain(|(key, _)| is_passed(key, cut, self.direction));
                own.retain(|(key, _)| is_passed(key, cut, self.direction));
                self.leaves = self.leaves_behind(source, cut);
                last = Some(cut.to_vec());
            }
            source.note_range(self.until(last.as_deref().map(Bound::Included)));
            if let Some(from) = reader.loaded_from() {
                records.retain(|(key, _)| **key < *from);
            }
            let mut keys = records.iter().map(|(key, _)| key);
            keys.try_for_each(|key| reader.check(&source.engine.shared, key))?;
        }
        let part = self.until(last.as_deref().map(Bound::Included));
        let hidden = source.hidden.filter(|_| records.len() >= FIRST_BATCH);
        let passed = hidden.and_then(|hidden| Some((hidden, Stretch::new(part)?)));
        let older = older
            .found
            .into_iter()
            .map(|(key, old)| Ok((key.to_vec(), from_old(old)?)));
        let older = older.collect::<Result<Vec<_>, StorageError>>()?;
        let own = own.into_iter().map(|(key, write)| (key, from_write(write)));
        self.batch = merged(records, older, own.collect(), self.direction);
        if let Some((hidden, passed)) = passed.filter(|_| self.batch.is_empty()) {
            hidden.lock().add(id, passed);
        }
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
        if let Some(behind) = behind {
            match self.direction {
                Direction::Forward => self.left_of_piece.0 = behind,
                Direction::Reverse => self.left_of_piece.1 = behind,
            }
        }
        // Where more is read than was asked for, the scan goes on as one that did not say.
        self.left = self.left.filter(|_| records > 0);
        self.left = self.left.and_then(|left| left.checked_sub(records));
    }

    /// What is still to come up to `end`, in the cursor's direction; all of it where that is
    /// `None`.
    fn until<'b>(&'b self, end: Option<Bound<&'b [u8]>>) -> Bounds<'b> {
        let (lower, upper) = (
            as_slice(&self.left_of_piece.0),
            as_slice(&self.left_of_piece.1),
        );
        match self.direction {
            Direction::Forward => (lower, end.unwrap_or(upper)),
            Direction::Reverse => (end.unwrap_or(lower), upper),
        }
    }

    /// Reads the next leaves, here as far as they are in memory.
    fn read_leaves(
        &mut self,
        source: &Source<'_>,
        records: &mut Records,
    ) -> Result<bool, TransactionError> {
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
            .run(|local| Ok(records.fill(leaves, &TaskContext { local }, size)?))
    }
}

type Merged = Vec<(Vec<u8>, Option<Found>)>;

/// What is visible of `records`, which are in the order of `direction`, given what counts in their
/// place; in that order.
fn merged(
    mut records: Vec<(Vec<u8>, Found)>,
    older: Merged,
    own: Merged,
    direction: Direction,
) -> VecDeque<(Vec<u8>, Found)> {
    if older.is_empty() && own.is_empty() {
        return records.into();
    }
    if direction == Direction::Reverse {
        records.reverse();
    }
    let merged = overlay(overlay(present(records), older), own);
    let visible = merged
        .into_iter()
        .filter_map(|(key, found)| Some((key, found?)));
    match direction {
        Direction::Forward => visible.collect(),
        Direction::Reverse => visible.rev().collect(),
    }
}

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

fn from_old(old: OldValue) -> Result<Option<Found>, StorageError> {
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

/// Records in key order as a transaction sees them, from
/// [`Transaction::range`](super::Transaction::range), or their keys with the lengths of their
/// values, from [`Transaction::keys`](super::Transaction::keys). After an error it ends.
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
