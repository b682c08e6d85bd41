//! One node in one page: its layout, and its search.
//!
//! ```text
//!   0 ┌───────────────────────────────────────────────────────────────┐
//!     │ common header (page.rs): checksum, kind, level, page id, LSN, │
//!     │ segment sequence, tree id                                     │
//!  36 ├───────────────┬───────────────┬───────────────┬───────────────┤
//!     │ count      u16│ heap begin u16│ garbage    u16│ prefix len u16│
//!  44 ├───────────────┼───────────────┼───────────────┴───────────────┤
//!     │ fence len  u16│ fence at   u16│ reserved, zero            u64 │
//!  56 ├───────────────┼───────────────┼───────────────────────────────┤
//!     │ last insert u16│ run       i16│ reserved, zero            u32 │
//!  64 ├───────────────┴───────────────┴───────────────────────────────┤
//!     │ inner node: 16 samples, u32 each                              │
//!     ├───────────────────────────────────────────────────────────────┤
//!     │ slot 0 │ slot 1 │ ...  slot count-1 │                         │
//!     │ inner node: child 0 │ child 1 │ ... child count │  u64 each   │
//!     │                   free space          heap begin →            │
//!     │ heap of records and the upper fence, filled downwards         │
//! 4096└───────────────────────────────────────────────────────────────┘
//!
//! slot, 8 bytes, sorted by key      record in a leaf
//! ┌────────────────────┬─────┐      ┌───────────┬───────────────┬───────┐
//! │ record at       u16│     │      │ value len │ key after its │ value │
//! │ key length      u16│     │      │ + flag u16│ head          │       │
//! │ head            u32│     │      └───────────┴───────────────┴───────┘
//! └────────────────────┴─────┘      record in an inner node: key after its head
//! ```
//!
//! All integers are little-endian. A slot's key length counts the bytes after the
//! node's prefix; its head is the first four of those bytes as a big-endian
//! number, padded with zeros, so that heads compare as keys do. Bytes in the
//! head are stored only there. Bit 15 of a leaf record's value length says that
//! the value is an extent descriptor. A fence length of 0 says that there is no
//! upper bound (no key is below the empty one). *Garbage* counts the heap's bytes
//! that belong to nothing. *Last insert* and *run* remember how many insertions
//! in a row went to rising (positive) or falling positions; only the choice of
//! split points reads them.
//!
//! An inner node's child `i` covers the keys from separator `i-1` up to separator
//! `i`. A node without separators has one child. Samples are the heads of slots
//! that cut the node into 17 equal parts: a search reads them, which is one cache
//! line, then the few slots of one part, then the child. Inner nodes are always
//! written as a whole; only leaves are changed in place.

mod block;
mod build;
mod edit;
mod leaves;
mod split;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use block::{Block, Lend};
pub(crate) use build::{Builder, Image, KeyBuffer, common_prefix, separator};
pub(crate) use edit::{Edit, LeafEdit};
pub(crate) use leaves::{Leaves, Record};
pub(crate) use split::{
    InnerSplit, LeafSplit, Pending, cut_above, with_child, without_child, without_last_children,
};
pub(crate) use words::{Words, prefetch};

use std::cmp::Ordering;

use crate::page::{HEADER_SIZE, PAGE_SIZE, PageId, PageKind, offset};
use crate::types::{TreeId, ValueKind};

/// Most levels that a tree can have. A tree whose nodes have only two children
/// each reaches 2⁴⁰ leaves at this height.
pub(crate) const MAX_LEVELS: u8 = 40;

/// Byte offsets of the node's own header fields.
pub(crate) mod field {
    pub(crate) const COUNT: usize = 36;
    pub(crate) const HEAP: usize = 38;
    pub(crate) const GARBAGE: usize = 40;
    pub(crate) const PREFIX: usize = 42;
    pub(crate) const FENCE_LEN: usize = 44;
    pub(crate) const FENCE_AT: usize = 46;
    pub(crate) const LAST_INSERT: usize = 56;
    pub(crate) const RUN: usize = 58;
}

const _: () = assert!(field::COUNT == offset::KIND_SPECIFIC);

/// The offset of a leaf's slots.
pub(crate) const SLOTS: usize = HEADER_SIZE;
/// Number of an inner node's samples.
const SAMPLES: usize = 16;
/// The offset of an inner node's samples.
const SAMPLES_AT: usize = HEADER_SIZE;
/// The offset of an inner node's slots.
const INNER_SLOTS: usize = SAMPLES_AT + 4 * SAMPLES;
/// Cache lines that a search of an inner node starts with: header and samples.
pub(crate) const INNER_LINES: usize = INNER_SLOTS / 64;
/// Cache lines that a search of a leaf with some 30 records reads: header and slots.
pub(crate) const LEAF_LINES: usize = 5;
/// Cache lines that a record of some 130 bytes lies in.
const RECORD_LINES: usize = 3;
/// Bytes of an inner node's child.
const CHILD: usize = 8;
/// Bytes that every inner node has: samples and one child.
pub(crate) const INNER_FIXED: usize = INNER_SLOTS - HEADER_SIZE + CHILD;
/// Bytes of one slot.
pub(crate) const SLOT: usize = 8;
/// Bytes of a page that slots, records and fence share.
pub(crate) const CAPACITY: usize = PAGE_SIZE - HEADER_SIZE;
/// Key bytes that a slot holds itself.
pub(crate) const HEAD: usize = 4;
/// Bytes before the key in a leaf's record.
const LEAF_RECORD: usize = 2;
const EXTENT_FLAG: u16 = 1 << 15;

/// A node that makes no sense, and why: either a torn read or a corrupt page;
/// validation of the page's version decides which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MalformedNode(pub(crate) &'static str);

/// Bytes that a node can be read from: a frame that others may change, or a
/// private copy.
pub(crate) trait Source {
    /// The eight bytes at any `at`; past the page's end they mean nothing.
    fn u64_at(&self, at: usize) -> u64;
    /// Compares `length` bytes at `at` with `other`; `None` outside the page.
    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Option<Ordering>;
    /// Appends `length` bytes from `at`; `false` outside the page.
    fn append_to(&self, at: usize, length: usize, into: &mut Vec<u8>) -> bool;
}

impl Source for Words {
    #[inline(always)]
    fn u64_at(&self, at: usize) -> u64 {
        Words::u64_at(self, at)
    }
    #[inline(always)]
    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Option<Ordering> {
        Words::compare(self, at, length, other)
    }
    #[inline(always)]
    fn append_to(&self, at: usize, length: usize, into: &mut Vec<u8>) -> bool {
        Words::append_to(self, at, length, into)
    }
}

/// The first four bytes of a key after the prefix, as slots hold them.
#[inline(always)]
pub(crate) fn head_of(suffix: &[u8]) -> u32 {
    match suffix.first_chunk::<HEAD>() {
        Some(head) => u32::from_le_bytes(*head).swap_bytes(),
        None => {
            let mut head = 0;
            for (at, byte) in suffix.iter().enumerate() {
                head |= u32::from(*byte) << (24 - 8 * at);
            }
            head
        }
    }
}

/// One slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeSlot(u64);

impl NodeSlot {
    pub(crate) fn new(record: usize, key_len: usize, head: u32) -> NodeSlot {
        debug_assert!(record < PAGE_SIZE && key_len <= crate::MAX_KEY_BYTES);
        NodeSlot(record as u64 | (key_len as u64) << 16 | u64::from(head) << 32)
    }

    pub(crate) fn to_word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn record(self) -> usize {
        usize::from(self.0 as u16)
    }

    /// Bytes of the key after the prefix.
    #[inline(always)]
    pub(crate) fn key_len(self) -> usize {
        usize::from((self.0 >> 16) as u16)
    }

    /// Bytes of the key that lie in the record.
    #[inline(always)]
    pub(crate) fn rest_len(self) -> usize {
        self.key_len().saturating_sub(HEAD)
    }

    #[inline(always)]
    pub(crate) fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl Node<'_, Words> {
    #[inline(always)]
    fn prefetch(&self, at: usize) {
        let base: *const u8 = std::ptr::from_ref(self.source).cast();
        prefetch(base.wrapping_add(at));
    }

    /// Starts loading slots `from..to` of an inner node, and the children beside
    /// them, into the cache.
    #[inline(always)]
    pub(crate) fn prefetch_part(&self, from: usize, to: usize) {
        let children = INNER_SLOTS + SLOT * self.count;
        for (base, end) in [
            (INNER_SLOTS + SLOT * from, INNER_SLOTS + SLOT * to),
            (children + CHILD * from, children + CHILD * to),
        ] {
            let mut at = base & !63;
            // Bound: the cache lines of one page.
            while at <= end.min(PAGE_SIZE - 1) {
                self.prefetch(at);
                at += 64;
            }
        }
    }

    /// As [`Node::child_position`]; slots and children come into the cache
    /// together.
    #[inline(always)]
    pub(crate) fn child_position_overlapped(&self, key: &[u8]) -> Result<usize, MalformedNode> {
        let suffix = self.suffix_of(key)?;
        let (from, to) = self.part_of(suffix);
        if self.level == 1 {
            self.prefetch_part(from, to);
        }
        let (position, found) = self.search_part(suffix, from, to)?;
        Ok(position + usize::from(found))
    }

    /// Starts loading the first lines of record `position`.
    #[inline(always)]
    pub(crate) fn prefetch_record(&self, position: usize) {
        let at = self.slot(position).record();
        for line in 0..RECORD_LINES {
            self.prefetch(at + 64 * line);
        }
    }
}

/// A value's place in the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueAt {
    pub(crate) kind: ValueKind,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// Bytes that a leaf record takes, its slot included, where `suffix_len` bytes
/// of the key follow the prefix.
#[inline(always)]
pub(crate) fn leaf_cost(suffix_len: usize, value_len: usize) -> usize {
    SLOT + LEAF_RECORD + suffix_len.saturating_sub(HEAD) + value_len
}

/// Bytes that a separator with its child takes, slot included.
#[inline(always)]
pub(crate) fn inner_cost(suffix_len: usize) -> usize {
    SLOT + CHILD + suffix_len.saturating_sub(HEAD)
}

/// The slot that sample `index` of a node with `count` separators is of.
#[inline(always)]
fn sampled_slot(index: usize, count: usize) -> usize {
    (index + 1) * count / (SAMPLES + 1)
}

/// A node's layout, from its header.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Geometry {
    level: u8,
    count: u16,
    heap: u16,
    prefix: u16,
}

/// A node as [`Source`] has it now; the header's fields are read once.
pub(crate) struct Node<'s, S> {
    source: &'s S,
    level: u8,
    count: usize,
    heap: usize,
    prefix: usize,
}

impl<S> Clone for Node<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Node<'_, S> {}

impl<'s, S: Source> Node<'s, S> {
    /// Reads the header and checks that its fields agree.
    #[inline(always)]
    pub(crate) fn open(source: &'s S, tree: TreeId) -> Result<Node<'s, S>, MalformedNode> {
        let identity = source.u64_at(0);
        let (kind, level) = ((identity >> 32) as u8, (identity >> 40) as u8);
        let geometry = source.u64_at(offset::TREE_ID);
        let (count, heap) = ((geometry >> 32) as u16, (geometry >> 48) as u16);
        let truncation = source.u64_at(field::GARBAGE);
        let prefix = usize::from((truncation >> 16) as u16);
        let expected = if level == 0 {
            PageKind::Leaf
        } else {
            PageKind::Inner
        };
        if kind != expected as u8 || level >= MAX_LEVELS {
            return Err(MalformedNode(
                "its kind or level is not that of a tree's node",
            ));
        }
        if geometry as u32 != tree.0 {
            return Err(MalformedNode("it belongs to another tree"));
        }
        let (count, heap) = (usize::from(count), usize::from(heap));
        let node = Node {
            source,
            level,
            count,
            heap,
            prefix,
        };
        if heap > PAGE_SIZE || node.slots_end() > heap {
            return Err(MalformedNode("its slots and its heap overlap"));
        }
        Ok(node)
    }

    /// The layout that [`Node::open`] found, to skip that the next time.
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            level: self.level,
            count: self.count as u16,
            heap: self.heap as u16,
            prefix: self.prefix as u16,
        }
    }

    /// The node of a private copy that was opened before.
    #[inline(always)]
    pub(crate) fn reopen(source: &'s S, geometry: Geometry) -> Node<'s, S> {
        Node {
            source,
            level: geometry.level,
            count: usize::from(geometry.count),
            heap: usize::from(geometry.heap),
            prefix: usize::from(geometry.prefix),
        }
    }

    #[inline(always)]
    fn slots_at(&self) -> usize {
        if self.is_leaf() { SLOTS } else { INNER_SLOTS }
    }

    /// The end of slots, and of an inner node's children.
    #[inline(always)]
    fn slots_end(&self) -> usize {
        if self.is_leaf() {
            SLOTS + SLOT * self.count
        } else {
            INNER_SLOTS + (SLOT + CHILD) * self.count + CHILD
        }
    }

    #[inline(always)]
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    #[inline(always)]
    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Records in a leaf, separators in an inner node.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes that all keys of the node have in common, and that it stores once.
    #[inline(always)]
    pub(crate) fn prefix_len(&self) -> usize {
        self.prefix
    }

    /// Bytes of the heap that belong to nothing.
    pub(crate) fn garbage(&self) -> usize {
        usize::from(self.source.u64_at(field::GARBAGE) as u16)
    }

    /// Bytes between the slots and the heap.
    pub(crate) fn contiguous(&self) -> usize {
        self.heap - self.slots_end()
    }

    /// Bytes that could be had by compaction.
    pub(crate) fn free(&self) -> usize {
        (self.contiguous() + self.garbage()).min(CAPACITY)
    }

    /// Bytes of slots, records and fence.
    pub(crate) fn used(&self) -> usize {
        CAPACITY - self.free()
    }

    /// Position of the last insertion, and how many before it in a row rose
    /// (positive) or fell (negative) with it.
    pub(crate) fn insertion_run(&self) -> (usize, i16) {
        let word = self.source.u64_at(field::LAST_INSERT);
        (usize::from(word as u16), (word >> 16) as i16)
    }

    /// The part of `key` that slots and records hold.
    #[inline(always)]
    pub(crate) fn suffix_of<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], MalformedNode> {
        key.get(self.prefix..).ok_or(MalformedNode(
            "its prefix is longer than a key of its range",
        ))
    }

    #[inline(always)]
    pub(crate) fn slot(&self, position: usize) -> NodeSlot {
        NodeSlot(self.source.u64_at(self.slots_at() + SLOT * position))
    }

    #[inline(always)]
    fn head(&self, position: usize) -> u32 {
        self.slot(position).head()
    }

    /// Number of slots in `from..to` whose head is below `head`, plus `from`.
    #[inline(always)]
    fn heads_below(&self, from: usize, to: usize, head: u32) -> usize {
        let (mut base, mut length) = (from, to - from);
        // Halves `length` each time; no branch depends on the data.
        while length > 1 {
            let half = length / 2;
            base += usize::from(self.head(base + half - 1) < head) * half;
            length -= half;
        }
        base + usize::from(length == 1 && self.head(base) < head)
    }

    /// Bytes before the key in a record.
    #[inline(always)]
    fn record_header(&self) -> usize {
        if self.is_leaf() { LEAF_RECORD } else { 0 }
    }

    /// The slots among which the first head that is not below `head` is, if any
    /// of the samples' parts has one; an end of the range counts as well.
    #[inline(always)]
    fn part(&self, head: u32) -> (usize, usize) {
        let mut below = 0;
        for pair in 0..SAMPLES / 2 {
            let word = self.source.u64_at(SAMPLES_AT + 8 * pair);
            below += usize::from((word as u32) < head) + usize::from(((word >> 32) as u32) < head);
        }
        let to = if below == SAMPLES {
            self.count
        } else {
            sampled_slot(below, self.count)
        };
        let from = match below.checked_sub(1) {
            None => 0,
            Some(sample) => sampled_slot(sample, self.count) + 1,
        };
        (from.min(to), to)
    }

    /// Compares the key of `slot`, whose head is that of `suffix`, with it.
    #[inline(always)]
    fn compare_rest(&self, slot: NodeSlot, suffix: &[u8]) -> Result<Ordering, MalformedNode> {
        // A key within its head that has another's padded head is the other's prefix.
        if slot.key_len() <= HEAD || suffix.len() <= HEAD {
            return Ok(slot.key_len().cmp(&suffix.len()));
        }
        self.source
            .compare(
                slot.record() + self.record_header(),
                slot.rest_len(),
                &suffix[HEAD..],
            )
            .ok_or(MalformedNode("a record passes the page's end"))
    }

    /// The slots that a search for `suffix` has to look at.
    #[inline(always)]
    pub(crate) fn part_of(&self, suffix: &[u8]) -> (usize, usize) {
        if self.is_leaf() {
            (0, self.count)
        } else {
            self.part(head_of(suffix))
        }
    }

    /// Number of keys below `suffix`, and whether the next one equals it.
    #[inline(always)]
    pub(crate) fn search(&self, suffix: &[u8]) -> Result<(usize, bool), MalformedNode> {
        let (from, to) = self.part_of(suffix);
        self.search_part(suffix, from, to)
    }

    /// As [`Node::search`], among the slots that [`Node::part_of`] gave; `to` is
    /// at most [`Node::count`] while the version holds.
    #[inline(always)]
    pub(crate) fn search_part(
        &self,
        suffix: &[u8],
        from: usize,
        to: usize,
    ) -> Result<(usize, bool), MalformedNode> {
        let head = head_of(suffix);
        let mut low = self.heads_below(from, to, head);
        if low >= self.count || self.head(low) != head {
            return Ok((low, false));
        }
        let mut high = low + 1;
        if high < self.count && self.head(high) == head {
            high = match head.checked_add(1) {
                Some(above) => self.heads_below(high, self.count, above),
                None => self.count,
            };
        }
        // Bound: halves `high - low` each time.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.compare_rest(self.slot(middle), suffix)? {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok((middle, true)),
                Ordering::Greater => high = middle,
            }
        }
        Ok((low, false))
    }

    /// Which child of an inner node covers `key`.
    #[inline(always)]
    pub(crate) fn child_position(&self, key: &[u8]) -> Result<usize, MalformedNode> {
        let (position, found) = self.search(self.suffix_of(key)?)?;
        Ok(position + usize::from(found))
    }

    /// Which child covers the keys right below `key`.
    pub(crate) fn child_position_below(&self, key: &[u8]) -> Result<usize, MalformedNode> {
        Ok(self.search(self.suffix_of(key)?)?.0)
    }

    /// Child `position`, from 0 to the number of separators.
    #[inline(always)]
    pub(crate) fn child(&self, position: usize) -> Result<PageId, MalformedNode> {
        let at = INNER_SLOTS + SLOT * self.count + CHILD * position;
        match self.source.u64_at(at) {
            0 => Err(MalformedNode("a child's page id is 0")),
            id => Ok(PageId(id)),
        }
    }

    /// The value of record `position`.
    #[inline(always)]
    pub(crate) fn value(&self, position: usize) -> Result<ValueAt, MalformedNode> {
        let slot = self.slot(position);
        let word = self.source.u64_at(slot.record()) as u16;
        let (at, len) = (
            slot.record() + LEAF_RECORD + slot.rest_len(),
            usize::from(word & !EXTENT_FLAG),
        );
        if slot.record() < SLOTS || at + len > PAGE_SIZE {
            return Err(MalformedNode("a record passes the page's end"));
        }
        let kind = if word & EXTENT_FLAG == 0 {
            ValueKind::Inline
        } else {
            ValueKind::Extent
        };
        Ok(ValueAt { kind, at, len })
    }

    /// Bytes of record `position` in the heap.
    pub(crate) fn record_len(&self, position: usize) -> Result<usize, MalformedNode> {
        let slot = self.slot(position);
        if self.is_leaf() {
            let value = self.value(position)?;
            Ok(value.at + value.len - slot.record())
        } else {
            Ok(slot.rest_len())
        }
    }

    /// Appends the bytes at `at`.
    #[inline]
    pub(crate) fn append(
        &self,
        at: usize,
        length: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), MalformedNode> {
        if self.source.append_to(at, length, into) {
            Ok(())
        } else {
            Err(MalformedNode("a record passes the page's end"))
        }
    }

    /// Appends the bytes of key `position` after the prefix.
    #[inline]
    pub(crate) fn append_suffix(
        &self,
        position: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), MalformedNode> {
        let slot = self.slot(position);
        if slot.key_len() > crate::MAX_KEY_BYTES {
            return Err(MalformedNode("a key is longer than keys can be"));
        }
        let head = slot.head().swap_bytes().to_le_bytes();
        if slot.key_len() < HEAD {
            into.extend_from_slice(&head[..slot.key_len()]);
            return Ok(());
        }
        into.extend_from_slice(&head);
        if slot.key_len() == HEAD {
            return Ok(());
        }
        self.append(slot.record() + self.record_header(), slot.rest_len(), into)
    }

    /// Appends the prefix that all keys share.
    pub(crate) fn append_prefix(&self, into: &mut Vec<u8>) -> Result<(), MalformedNode> {
        if self.prefix == 0 {
            return Ok(());
        }
        let (at, len) = self.fence();
        if self.prefix > len {
            return Err(MalformedNode("its prefix is longer than its upper fence"));
        }
        self.append(at, self.prefix, into)
    }

    /// Replaces `into` by key `position`.
    pub(crate) fn key(&self, position: usize, into: &mut Vec<u8>) -> Result<(), MalformedNode> {
        into.clear();
        self.append_prefix(into)?;
        self.append_suffix(position, into)
    }

    /// Offset and length of the upper fence; length 0 if there is none.
    fn fence(&self) -> (usize, usize) {
        let word = self.source.u64_at(field::GARBAGE);
        (
            usize::from((word >> 48) as u16),
            usize::from((word >> 32) as u16),
        )
    }

    /// Whether keys of the node's range have an upper bound.
    pub(crate) fn has_upper(&self) -> bool {
        self.fence().1 != 0
    }

    /// Bytes of the upper fence.
    pub(crate) fn fence_len(&self) -> usize {
        self.fence().1
    }

    /// Replaces `into` by the upper fence; `false` if there is none.
    pub(crate) fn upper(&self, into: &mut Vec<u8>) -> Result<bool, MalformedNode> {
        into.clear();
        let (at, len) = self.fence();
        if len == 0 {
            return Ok(false);
        }
        if len > crate::MAX_KEY_BYTES {
            return Err(MalformedNode("its upper fence is longer than a key can be"));
        }
        self.append(at, len, into)?;
        Ok(true)
    }

    fn check_samples(&self) -> Result<(), MalformedNode> {
        for index in 0..SAMPLES {
            let word = self.source.u64_at(SAMPLES_AT + 8 * (index / 2));
            let sample = (word >> (32 * (index % 2))) as u32;
            if self.count > 0 && sample != self.head(sampled_slot(index, self.count)) {
                return Err(MalformedNode("a sample is not the head of its slot"));
            }
        }
        Ok(())
    }

    /// Checks every rule that can be checked within the page: offsets, order,
    /// no overlap, the garbage count.
    pub(crate) fn check(&self) -> Result<(), MalformedNode> {
        let (fence_at, fence_len) = self.fence();
        if fence_len > 0 && (fence_at < self.heap || fence_at + fence_len > PAGE_SIZE) {
            return Err(MalformedNode("its upper fence lies outside its heap"));
        }
        if self.prefix > 0 && self.prefix >= fence_len {
            return Err(MalformedNode("its prefix is as long as its upper fence"));
        }
        let mut spans = Vec::with_capacity(self.count + 1);
        if fence_len > 0 {
            spans.push((fence_at, fence_len));
        }
        let (mut before, mut key, mut upper) = (Vec::new(), Vec::new(), Vec::new());
        for position in 0..self.count {
            let (at, len) = (self.slot(position).record(), self.record_len(position)?);
            if len > 0 && (at < self.heap || at + len > PAGE_SIZE) {
                return Err(MalformedNode("a record lies outside its heap"));
            }
            if len > 0 {
                spans.push((at, len));
            }
            self.key(position, &mut key)?;
            let slot = self.slot(position);
            if slot.key_len() < HEAD && slot.head() << (8 * slot.key_len()) != 0 {
                return Err(MalformedNode("a short key's head is not padded with zeros"));
            }
            if position > 0 && before >= key {
                return Err(MalformedNode("its keys are not in order"));
            }
            if !self.is_leaf() {
                self.child(position + 1)?;
            }
            std::mem::swap(&mut before, &mut key);
        }
        if !self.is_leaf() {
            self.child(0)?;
            self.check_samples()?;
        }
        if self.upper(&mut upper)? && self.count > 0 && before >= upper {
            return Err(MalformedNode("its last key is not below its upper fence"));
        }
        spans.sort_unstable();
        if spans.windows(2).any(|two| two[0].0 + two[0].1 > two[1].0) {
            return Err(MalformedNode("two of its records overlap"));
        }
        let live: usize = spans.iter().map(|span| span.1).sum();
        if live + self.garbage() != PAGE_SIZE - self.heap {
            return Err(MalformedNode("its garbage count is wrong"));
        }
        Ok(())
    }
}
