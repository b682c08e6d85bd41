//! Iteration over a key range from both ends.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::Bound;
use std::sync::Arc;

use crate::api::record::read_entry;
use crate::api::transaction::scan_seen;
use crate::api::tree::{Tree, Wanted};
use crate::btree::{Cursor, Direction, ValueKind};
use crate::context::{InlineContext, TaskContext};
use crate::engine::Runtime;
use crate::{Error, Record};

/// Records of the first batch; each is twice as long as the one before, up to the longest, so that a range that is left
/// early has read no more than it gave.
const FIRST_BATCH: usize = 16;
const LARGEST_BATCH: usize = 256;
/// Bytes after which a batch ends.
const BATCH_BYTES: usize = 256 << 10;

/// Records in key order, from [`Tree::range`] or [`Tree::prefix`].
///
/// It reads a few leaves at a time; between two calls it holds nothing. After
/// an error it ends.
pub struct Range {
    tree: Tree,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    front: Option<Cursor>,
    back: Option<Cursor>,
    front_batch: VecDeque<Record>,
    back_batch: VecDeque<Record>,
    /// Records of the next batch.
    batch: usize,
    ended: bool,
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range")
            .field("tree", &self.tree.name())
            .field("lower", &self.lower)
            .field("upper", &self.upper)
            .finish_non_exhaustive()
    }
}

impl Range {
    pub(crate) fn new(tree: Tree, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Range {
        Range {
            tree,
            lower,
            upper,
            front: None,
            back: None,
            front_batch: VecDeque::new(),
            back_batch: VecDeque::new(),
            batch: FIRST_BATCH,
            ended: false,
        }
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.tree.runtime
    }

    fn cursor(&self, direction: Direction) -> Cursor {
        let lower = self.lower.as_ref().map(Vec::as_slice);
        let upper = self.upper.as_ref().map(Vec::as_slice);
        Cursor::new(self.tree.state.tree, lower, upper, direction)
    }

    /// The next records from one end, as many as make a batch.
    fn fetch(&mut self, direction: Direction) -> Result<VecDeque<Record>, Error> {
        self.tree.alive()?;
        let most = self.batch;
        self.batch = (2 * most).min(LARGEST_BATCH);
        self.tree.runtime.count_records(most);
        let kept = match direction {
            Direction::Forward => self.front.take(),
            Direction::Reverse => self.back.take(),
        };
        if self.tree.needs_versions()? {
            return self.fetch_seen(direction, most);
        }
        let mut cursor = kept.unwrap_or_else(|| self.cursor(direction));
        let mut batch = Batch::new(most);
        let inline = InlineContext::new(self.tree.runtime.pool()?);
        let mut needs_task = false;
        while !batch.is_full() {
            match cursor.next(&inline) {
                Ok(None) => break,
                Ok(Some(entry)) if entry.value.kind == ValueKind::Inline => {
                    let engine = self.tree.runtime.engine()?;
                    let tree = self.tree.state.tree.id;
                    engine
                        .transactions
                        .check_atomic_visibility(&engine.shared, tree, entry.key)?;
                    batch.push(entry.key.to_vec(), entry.value.bytes.to_vec());
                }
                Ok(Some(entry)) => {
                    let (key, value) = (entry.key.to_vec(), entry.value);
                    let mut bytes = Vec::new();
                    let inner = self.tree.state.tree;
                    let found = self
                        .tree
                        .run(|local| read_entry(local, inner, &key, value, &mut bytes))?;
                    if found {
                        batch.push(key, bytes);
                    }
                }
                Err(_) => {
                    needs_task = true;
                    break;
                }
            }
        }
        if needs_task {
            let (cursor, batch) = (&mut cursor, &mut batch);
            let inner = self.tree.state.tree;
            self.tree.run(move |local| {
                let ctx = TaskContext { local };
                while !batch.is_full() {
                    let Some(entry) = cursor.next(&ctx)? else {
                        break;
                    };
                    let transactions = &local.engine.transactions;
                    transactions.check_atomic_visibility(
                        &local.engine.shared,
                        inner.id,
                        entry.key,
                    )?;
                    let mut bytes = Vec::new();
                    if read_entry(local, inner, entry.key, entry.value, &mut bytes)? {
                        batch.push(entry.key.to_vec(), bytes);
                    }
                }
                Ok(())
            })?;
        }
        if self.tree.needs_versions()? {
            return self.fetch_seen(direction, most);
        }
        match direction {
            Direction::Forward => self.front = Some(cursor),
            Direction::Reverse => self.back = Some(cursor),
        }
        self.tree.await_rest()?;
        Ok(batch.records)
    }

    /// As [`Range::fetch`], while commits are in flight that are not visible yet.
    fn fetch_seen(&self, direction: Direction, most: usize) -> Result<VecDeque<Record>, Error> {
        let bounds = (
            self.lower.as_ref().map(Vec::as_slice),
            self.upper.as_ref().map(Vec::as_slice),
        );
        let mut batch = Batch::new(most);
        let wanted = Wanted {
            limit: Some(most),
            keys_only: false,
        };
        scan_seen(&self.tree, bounds, direction, wanted, |key, value| {
            batch.push(key.to_vec(), value.to_vec());
            !batch.is_full()
        })?;
        self.tree.await_rest()?;
        Ok(batch.records)
    }

    /// Takes a record from one end and moves that end's bound past it.
    fn step(&mut self, direction: Direction) -> Option<Result<Record, Error>> {
        if self.ended {
            return None;
        }
        let empty = match direction {
            Direction::Forward => self.front_batch.is_empty(),
            Direction::Reverse => self.back_batch.is_empty(),
        };
        if empty {
            match self.fetch(direction) {
                Ok(batch) if direction == Direction::Forward => self.front_batch = batch,
                Ok(batch) => self.back_batch = batch,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        let record = match direction {
            Direction::Forward => self.front_batch.pop_front(),
            Direction::Reverse => self.back_batch.pop_front(),
        };
        match record {
            Some(record) if self.within(&record.0) => {
                let bound = Bound::Excluded(record.0.clone());
                match direction {
                    Direction::Forward => self.lower = bound,
                    Direction::Reverse => self.upper = bound,
                }
                Some(Ok(record))
            }
            // The other end has been here already, or nothing is left.
            _ => {
                self.ended = true;
                None
            }
        }
    }

    /// Gives nothing more.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    fn within(&self, key: &[u8]) -> bool {
        let above = match &self.lower {
            Bound::Included(lower) => key >= lower.as_slice(),
            Bound::Excluded(lower) => key > lower.as_slice(),
            Bound::Unbounded => true,
        };
        let below = match &self.upper {
            Bound::Included(upper) => key <= upper.as_slice(),
            Bound::Excluded(upper) => key < upper.as_slice(),
            Bound::Unbounded => true,
        };
        above && below
    }
}

struct Batch {
    records: VecDeque<Record>,
    bytes: usize,
    /// Records that fill it.
    most: usize,
}

impl Batch {
    fn new(most: usize) -> Batch {
        Batch {
            records: VecDeque::new(),
            bytes: 0,
            most,
        }
    }

    fn is_full(&self) -> bool {
        self.records.len() >= self.most || self.bytes >= BATCH_BYTES
    }

    fn push(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.bytes += key.len() + value.len();
        self.records.push_back((key, value));
    }
}

impl Iterator for Range {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Reverse)
    }
}

/// After the end, and after an error, there is nothing more.
impl FusedIterator for Range {}
