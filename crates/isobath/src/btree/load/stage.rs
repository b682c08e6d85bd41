//! The open node of each level of a bulk load.
//!
//! A node's prefix, and so its size, depends on its upper fence, which is known
//! only when the node's successor is. So entries are staged, and one more than
//! the node will have: at any time the node could be closed before its last entry.

use std::ops::Range;

use crate::btree::{Descriptor, TreeId, ValueKind, ValueRef};
use crate::node::{Builder, CAPACITY, INNER_FIXED, Image, common_prefix, inner_cost, leaf_cost};
use crate::page::PageId;

/// A staged record: where in the arena its key and value lie.
#[derive(Clone, Copy)]
struct StagedRecord {
    at: usize,
    key_len: usize,
    value_len: usize,
    kind: ValueKind,
}

/// The records of the open leaf.
pub(super) struct LeafStage {
    lower: Vec<u8>,
    arena: Vec<u8>,
    records: Vec<StagedRecord>,
    key_bytes: usize,
    value_bytes: usize,
    shortest_key: usize,
    /// Bytes that the last record's key shares with the one before it.
    last_shared: usize,
}

impl LeafStage {
    pub(super) fn new() -> LeafStage {
        LeafStage {
            lower: Vec::new(),
            arena: Vec::with_capacity(2 * CAPACITY),
            records: Vec::new(),
            key_bytes: 0,
            value_bytes: 0,
            shortest_key: usize::MAX,
            last_shared: 0,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.records.len()
    }

    pub(super) fn set_lower(&mut self, lower: &[u8]) {
        self.lower = lower.to_vec();
    }

    pub(super) fn lower(&self) -> &[u8] {
        &self.lower
    }

    /// Sets the next leaf's lower bound; returns that of the leaf just built.
    pub(super) fn replace_lower(&mut self, next: Vec<u8>) -> Vec<u8> {
        std::mem::replace(&mut self.lower, next)
    }

    fn key(&self, record: StagedRecord) -> &[u8] {
        &self.arena[record.at..record.at + record.key_len]
    }

    fn value(&self, record: StagedRecord) -> ValueRef<'_> {
        let at = record.at + record.key_len;
        ValueRef {
            kind: record.kind,
            bytes: &self.arena[at..at + record.value_len],
        }
    }

    pub(super) fn last_key(&self) -> &[u8] {
        self.records.last().map_or(&[], |last| self.key(*last))
    }

    /// Bytes of all staged records where their keys share `prefix` bytes.
    fn cost(&self, prefix: usize) -> usize {
        let count = self.records.len();
        // A key of `prefix + 4` bytes or more takes its length less those.
        if self.shortest_key >= prefix + 4 {
            return count * leaf_cost(0, 0) + self.key_bytes + self.value_bytes
                - count * (prefix + 4);
        }
        self.records
            .iter()
            .map(|record| leaf_cost(record.key_len.saturating_sub(prefix), record.value_len))
            .sum()
    }

    pub(super) fn push_first(&mut self, key: &[u8], value: ValueRef<'_>) {
        debug_assert!(self.records.is_empty());
        self.add(key, value, 0);
    }

    /// Adds a record if the leaf could be closed before it, and if its key is
    /// above the last one.
    #[inline]
    pub(super) fn push(&mut self, key: &[u8], value: ValueRef<'_>, limit: usize) -> bool {
        let last = self.last_key();
        let shared = common_prefix(last, key);
        // `key > last`: it goes on if they differ, or is longer.
        let is_above = match (key.get(shared), last.get(shared)) {
            (Some(key), Some(last)) => key > last,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if !is_above {
            return false;
        }
        let fence = &key[..shared + 1];
        let needed = self.cost(common_prefix(&self.lower, fence)) + fence.len();
        if !self.is_near(needed, limit) && self.records.len() > 1 {
            return false;
        }
        self.add(key, value, shared);
        true
    }

    /// Whether the leaf is nearer to `limit` with all its records, which take `needed` bytes, than
    /// without the last one: so leaves are as full as they should be on average, whatever the size
    /// of their records.
    fn is_near(&self, needed: usize, limit: usize) -> bool {
        let last = self.records.last();
        let last = last.map_or(0, |last| leaf_cost(last.key_len, last.value_len));
        needed <= limit || needed <= CAPACITY && 2 * needed < 2 * limit + last
    }

    fn add(&mut self, key: &[u8], value: ValueRef<'_>, shared: usize) {
        self.records.push(StagedRecord {
            at: self.arena.len(),
            key_len: key.len(),
            value_len: value.bytes.len(),
            kind: value.kind,
        });
        self.arena.extend_from_slice(key);
        self.arena.extend_from_slice(value.bytes);
        self.key_bytes += key.len();
        self.value_bytes += value.bytes.len();
        self.shortest_key = self.shortest_key.min(key.len());
        self.last_shared = shared;
    }

    /// Whether all records fit a page without an upper bound, so without a
    /// common prefix.
    pub(super) fn fits_unbounded(&self) -> bool {
        self.records.len() < 2 || self.cost(0) <= CAPACITY
    }

    /// Whether all records fit a page that ends at `upper`.
    pub(super) fn fits_below(&self, upper: &[u8]) -> bool {
        let prefix = common_prefix(&self.lower, upper);
        self.records.len() < 2 || self.cost(prefix) + upper.len() <= CAPACITY
    }

    /// Builds the leaf of all records; it ends at `upper`, if that is given.
    pub(super) fn build_all(&mut self, tree: TreeId, upper: Option<&[u8]>) -> Box<Image> {
        let mut builder = Builder::new(tree, 0, &self.lower, upper);
        for &record in &self.records {
            let pushed = builder.push_record(self.key(record), self.value(record));
            assert!(pushed.is_ok(), "staged records fit");
        }
        self.arena.clear();
        self.records.clear();
        (self.key_bytes, self.value_bytes, self.shortest_key) = (0, 0, usize::MAX);
        builder.finish()
    }

    /// Builds the leaf: of all records, without an upper bound, if `is_last`;
    /// else of all but the last one, which stays. Returns the lower bound of what
    /// stays, too.
    pub(super) fn build(&mut self, tree: TreeId, is_last: bool) -> (Box<Image>, Vec<u8>) {
        let kept = usize::from(!is_last);
        let built = self.records.len() - kept;
        let next_lower = if is_last {
            Vec::new()
        } else {
            self.last_key()[..self.last_shared + 1].to_vec()
        };
        let upper = (!is_last).then_some(&next_lower[..]);
        let mut builder = Builder::new(tree, 0, &self.lower, upper);
        for &record in &self.records[..built] {
            let pushed = builder.push_record(self.key(record), self.value(record));
            assert!(pushed.is_ok(), "staged records fit");
        }
        let image = builder.finish();
        let kept: Vec<(Vec<u8>, StagedRecord)> = self.records[built..]
            .iter()
            .map(|&record| {
                let end = record.at + record.key_len + record.value_len;
                (self.arena[record.at..end].to_vec(), record)
            })
            .collect();
        self.arena.clear();
        self.records.clear();
        (self.key_bytes, self.value_bytes, self.shortest_key) = (0, 0, usize::MAX);
        for (bytes, record) in kept {
            let (key, value) = bytes.split_at(record.key_len);
            let value = ValueRef {
                kind: record.kind,
                bytes: value,
            };
            self.add(key, value, self.last_shared);
        }
        (image, next_lower)
    }

    /// Moves the records from `at` on to `next`, which has none; one stays at least. `next` begins
    /// where this ends then.
    pub(super) fn split_off(&mut self, at: usize, next: &mut LeafStage) {
        let (last, first) = (self.key(self.records[at - 1]), self.key(self.records[at]));
        next.set_lower(&first[..common_prefix(last, first) + 1]);
        next.append(self, at..self.records.len());
        let end = self.records[at].at;
        self.arena.truncate(end);
        self.records.truncate(at);
        self.key_bytes -= next.key_bytes;
        self.value_bytes -= next.value_bytes;
    }

    /// Adds some records of `other`, which are above its own.
    fn append(&mut self, other: &LeafStage, which: Range<usize>) {
        for &record in &other.records[which] {
            self.add(other.key(record), other.value(record), 0);
        }
    }

    /// Has this leaf, which ends at `upper`, and the one before it take about as many bytes each,
    /// if it has less than half of a page and that can be.
    pub(super) fn even_out(&mut self, before: &mut LeafStage, upper: &[u8]) {
        let cost = |record: &StagedRecord| leaf_cost(record.key_len, record.value_len);
        let bytes = |leaf: &LeafStage| leaf.records.iter().map(cost).sum::<usize>();
        let (own, others) = (bytes(self), bytes(before));
        if 2 * own >= CAPACITY {
            return;
        }
        let mut left = others;
        let is_even = |record: &StagedRecord| {
            left -= cost(record);
            2 * (left + own) <= own + others
        };
        let at = before
            .records
            .iter()
            .position(is_even)
            .map_or(0, |at| at + 1);
        if at == 0 || at >= before.records.len() {
            return;
        }
        let mut moved = LeafStage::new();
        before.split_off(at, &mut moved);
        let count = moved.count();
        moved.append(self, 0..self.count());
        if moved.fits_below(upper) {
            *self = moved;
        } else {
            before.append(&moved, 0..count);
        }
    }

    /// Passes the extents of all staged records to `on_extent`.
    pub(super) fn extents(&self, on_extent: &mut dyn FnMut(&Descriptor)) {
        for &record in &self.records {
            if record.kind == ValueKind::Extent {
                on_extent(&Descriptor::new(self.value(record).bytes));
            }
        }
    }
}

/// The children of the open node of one inner level.
pub(super) struct InnerStage {
    lower: Vec<u8>,
    leftmost: PageId,
    /// Each child's lower bound, and the child.
    entries: Vec<(Vec<u8>, PageId)>,
    key_bytes: usize,
    shortest_key: usize,
}

impl InnerStage {
    pub(super) fn new(lower: Vec<u8>, leftmost: PageId) -> InnerStage {
        InnerStage {
            lower,
            leftmost,
            entries: Vec::new(),
            key_bytes: 0,
            shortest_key: usize::MAX,
        }
    }

    fn cost(&self, prefix: usize) -> usize {
        let count = self.entries.len();
        if self.shortest_key >= prefix + 4 {
            return INNER_FIXED + count * inner_cost(0) + self.key_bytes - count * (prefix + 4);
        }
        let costs = self.entries.iter();
        let costs = costs.map(|(key, _)| inner_cost(key.len().saturating_sub(prefix)));
        INNER_FIXED + costs.sum::<usize>()
    }

    /// Adds a child if the node could be closed before it.
    pub(super) fn push(&mut self, lower: &[u8], child: PageId, limit: usize) -> bool {
        let needed = self.cost(common_prefix(&self.lower, lower)) + lower.len();
        if needed > limit && self.entries.len() > 1 {
            return false;
        }
        self.key_bytes += lower.len();
        self.shortest_key = self.shortest_key.min(lower.len());
        self.entries.push((lower.to_vec(), child));
        true
    }

    pub(super) fn fits_unbounded(&self) -> bool {
        self.entries.len() < 2 || self.cost(0) <= CAPACITY
    }

    /// Builds the node: of all children, without an upper bound, if `is_last`;
    /// else of all but the last one, which starts the next node. Returns the
    /// built node's lower bound, too.
    pub(super) fn build(
        &mut self,
        tree: TreeId,
        level: u8,
        is_last: bool,
    ) -> (Box<Image>, Vec<u8>) {
        let next = if is_last { None } else { self.entries.pop() };
        let upper = next.as_ref().map(|(key, _)| &key[..]);
        let mut builder = Builder::new(tree, level, &self.lower, upper);
        builder.set_leftmost(self.leftmost);
        for (key, child) in &self.entries {
            let pushed = builder.push_child(key, *child);
            assert!(pushed.is_ok(), "staged children fit");
        }
        let image = builder.finish();
        let (lower, leftmost) = next.unwrap_or_default();
        let started = std::mem::replace(self, InnerStage::new(lower, leftmost));
        (image, started.lower)
    }

    /// Whether all children fit a node that ends at `upper`.
    pub(super) fn fits_below(&self, upper: &[u8]) -> bool {
        let prefix = common_prefix(&self.lower, upper);
        self.entries.is_empty() || self.cost(prefix) + upper.len() <= CAPACITY
    }

    /// Builds the node of all children; it ends at `upper`, if that is given. Returns its lower
    /// bound, too.
    pub(super) fn build_all(
        self,
        tree: TreeId,
        level: u8,
        upper: Option<&[u8]>,
    ) -> (Box<Image>, Vec<u8>) {
        let mut builder = Builder::new(tree, level, &self.lower, upper);
        builder.set_leftmost(self.leftmost);
        for (key, child) in &self.entries {
            let pushed = builder.push_child(key, *child);
            assert!(pushed.is_ok(), "staged children fit");
        }
        (builder.finish(), self.lower)
    }

    /// Whether it has one child only.
    pub(super) fn is_single(&self) -> bool {
        self.entries.is_empty()
    }

    /// The leftmost child, and its lower bound.
    pub(super) fn single(&self) -> (Vec<u8>, PageId) {
        (self.lower.clone(), self.leftmost)
    }

    /// All children.
    pub(super) fn children(self) -> impl Iterator<Item = PageId> {
        let rest = self.entries.into_iter().map(|(_, child)| child);
        std::iter::once(self.leftmost)
            .chain(rest)
            .filter(|child| child.get() != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: ValueRef<'_> = ValueRef {
        kind: ValueKind::Inline,
        bytes: &[7; 100],
    };

    fn keys(leaf: &LeafStage) -> Vec<Vec<u8>> {
        let keys = leaf.records.iter().map(|record| leaf.key(*record).to_vec());
        keys.collect()
    }

    /// A full leaf, and the next one with so many records.
    fn full_and(count: usize, prefix: &[u8]) -> (LeafStage, LeafStage) {
        let (mut full, mut leaf) = (LeafStage::new(), LeafStage::new());
        let key = |number: usize| [prefix, format!("{number:04}").as_bytes()].concat();
        full.push_first(&key(0), VALUE);
        let mut number = 1;
        while full.push(&key(number), VALUE, CAPACITY) {
            number += 1;
        }
        full.split_off(full.count() - 1, &mut leaf);
        let added = (0..count - 1).all(|more| leaf.push(&key(number + more), VALUE, CAPACITY));
        assert!(added);
        (full, leaf)
    }

    #[test]
    fn a_full_leaf_and_a_small_one_become_two_of_the_same_size() {
        for count in [1, 5] {
            let (mut full, mut leaf) = full_and(count, b"key");
            let all = [keys(&full), keys(&leaf)].concat();
            leaf.even_out(&mut full, b"keyz");
            assert!(full.count().abs_diff(leaf.count()) <= 1);
            assert_eq!([keys(&full), keys(&leaf)].concat(), all);
            assert!(full.last_key() < leaf.lower() && *leaf.lower() <= *keys(&leaf)[0]);
            // Both are built without a panic, with the bytes that their stages say.
            full.build_all(TreeId(7), Some(leaf.lower()));
            leaf.build_all(TreeId(7), Some(b"keyz"));
        }
    }

    #[test]
    fn leaves_stay_that_are_full_enough_or_would_not_fit() {
        let (mut full, mut leaf) = full_and(20, b"key");
        leaf.even_out(&mut full, b"keyz");
        assert_eq!(leaf.count(), 20);
        // Records of a page's third with a long prefix that they have no more beside this bound.
        let (mut full, mut leaf) = full_and(1, &[b'k'; 1500]);
        let before = (keys(&full), keys(&leaf));
        leaf.even_out(&mut full, b"z");
        assert_eq!((keys(&full), keys(&leaf)), before);
        leaf.even_out(&mut LeafStage::new(), b"z");
        assert_eq!(leaf.count(), 1);
    }
}
