//! Whole nodes written into private pages, which splits, merges and bulk loads copy into frames.

use std::cmp::Ordering;

use super::{
    CAPACITY, CHILD, EXTENT_FLAG, HEAD, INNER_FIXED, INNER_SLOTS, LEAF_RECORD, MalformedNode, Node,
    NodeSlot, SAMPLES, SAMPLES_AT, SLOT, SLOTS, Source, ValueAt, field, head_of, leaf_cost,
    sampled_slot,
};
use crate::node::Words;
use crate::page::{PAGE_SIZE, PageId, PageKind, get_u64, offset, put_u16, put_u32, put_u64};
use crate::types::{TreeId, ValueKind, ValueRef};

/// A private copy of one page.
#[derive(Clone)]
#[repr(C, align(64))]
pub(crate) struct Image(pub(crate) [u8; PAGE_SIZE]);

impl Image {
    pub(crate) fn zeroed() -> Box<Image> {
        Box::new(Image([0; PAGE_SIZE]))
    }

    /// A copy of `words`; it counts only once their version was validated.
    pub(crate) fn copy_of(words: &Words) -> Box<Image> {
        let mut image = Image::zeroed();
        words.load_all(&mut image.0);
        image
    }

    /// Becomes a copy of `words`; it counts only once their version was validated.
    pub(crate) fn load(&mut self, words: &Words) {
        words.load_all(&mut self.0);
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.0
    }

    /// The page's own id.
    pub(crate) fn page_id(&self) -> PageId {
        PageId(get_u64(&self.0, offset::PAGE_ID))
    }
}

impl Source for Image {
    #[inline(always)]
    fn u64_at(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        if let Some(bytes) = self.0.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            word = *bytes;
        } else if let Some(bytes) = self.0.get(at..) {
            word[..bytes.len()].copy_from_slice(bytes);
        }
        u64::from_le_bytes(word)
    }

    #[inline(always)]
    fn compare(&self, at: usize, length: usize, other: &[u8]) -> Option<Ordering> {
        Some(self.0.get(at..at + length)?.cmp(other))
    }

    #[inline(always)]
    fn append_to(&self, at: usize, length: usize, into: &mut Vec<u8>) -> bool {
        match self.0.get(at..at + length) {
            Some(bytes) => {
                into.extend_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

/// Bytes behind a key in a [`KeyBuffer`] that a copy of whole words may write.
const SLACK: usize = 8;

/// A buffer for any key, plus the bytes that a copy of whole words writes beyond it.
pub(crate) struct KeyBuffer([u8; crate::MAX_KEY_BYTES + SLACK]);

impl KeyBuffer {
    pub(crate) const fn new() -> KeyBuffer {
        KeyBuffer([0; crate::MAX_KEY_BYTES + SLACK])
    }

    /// The first `length` bytes; none if there are not so many.
    #[inline(always)]
    pub(crate) fn key(&self, length: usize) -> &[u8] {
        self.0.get(..length).unwrap_or_default()
    }

    /// Replaces the first bytes by `prefix`; `false` if that is longer than a key can be.
    pub(crate) fn set_prefix(&mut self, prefix: &[u8]) -> bool {
        let fits = prefix.len() <= crate::MAX_KEY_BYTES;
        if fits {
            self.0[..prefix.len()].copy_from_slice(prefix);
        }
        fits
    }
}

impl<'s> Node<'s, Image> {
    /// The prefix that all keys share.
    pub(crate) fn shared_prefix(&self) -> Result<&'s [u8], MalformedNode> {
        let (at, length) = if self.prefix == 0 {
            (0, 0)
        } else {
            self.fence()
        };
        let fence = self.source.bytes().get(at..at + length);
        fence
            .and_then(|fence| fence.get(..self.prefix))
            .ok_or(MalformedNode("its prefix is longer than its upper fence"))
    }

    /// Puts the key of the leaf's record `position` into `key`, whose first bytes are the
    /// leaf's prefix already; the key's length, and where the value is.
    #[inline(always)]
    pub(crate) fn record(
        &self,
        position: usize,
        key: &mut KeyBuffer,
    ) -> Result<(usize, ValueAt), MalformedNode> {
        const PAST: MalformedNode = MalformedNode("a record passes the page's end");
        let bytes = self.source.bytes();
        let slot = NodeSlot(self.source.u64_at(SLOTS + SLOT * position));
        let length = self.prefix + slot.key_len();
        if length > crate::MAX_KEY_BYTES {
            return Err(MalformedNode("a key is longer than keys can be"));
        }
        let (record, rest) = (slot.record(), slot.rest_len());
        let header = bytes.get(record..record + LEAF_RECORD);
        let word = header.and_then(|header| header.first_chunk::<LEAF_RECORD>());
        let word = u16::from_le_bytes(*word.ok_or(PAST)?);
        let (at, len) = (
            record + LEAF_RECORD + rest,
            usize::from(word & !EXTENT_FLAG),
        );
        if record < SLOTS || at + len > PAGE_SIZE {
            return Err(PAST);
        }
        let into = &mut key.0[self.prefix..];
        let head = slot.head().swap_bytes().to_le_bytes();
        into[..HEAD].copy_from_slice(&head);
        if rest > 0 {
            let (from, into) = (&bytes[at - rest..], &mut into[HEAD..]);
            // One word if it has all: the slack takes the bytes beyond the key.
            match (from.first_chunk::<SLACK>(), into.first_chunk_mut::<SLACK>()) {
                (Some(from), Some(into)) if rest <= SLACK => *into = *from,
                _ => into[..rest].copy_from_slice(&from[..rest]),
            }
        }
        let kind = if word & EXTENT_FLAG == 0 {
            ValueKind::Inline
        } else {
            ValueKind::Extent
        };
        Ok((length, ValueAt { kind, at, len }))
    }
}

/// Number of leading bytes that `a` and `b` share.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let limit = a.len().min(b.len());
    let mut at = 0;
    while at + 8 <= limit {
        let differs = get_u64(a, at) ^ get_u64(b, at);
        if differs != 0 {
            return at + differs.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < limit && a[at] == b[at] {
        at += 1;
    }
    at
}

/// The shortest separator `s` with `left < s <= right`; needs `left < right`.
pub(crate) fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    let shared = common_prefix(left, right);
    &right[..right.len().min(shared + 1)]
}

/// Builds a node in a private page, records in ascending order.
pub(crate) struct Builder {
    image: Box<Image>,
    is_leaf: bool,
    count: usize,
    heap: usize,
    prefix: usize,
    /// The last slot; the next key has to be above its.
    last: Option<NodeSlot>,
    /// Bytes of the upper fence, at the page's end.
    fence_len: usize,
    /// An inner node's children; their place depends on the final count.
    children: Vec<PageId>,
}

impl Builder {
    /// An empty node for the keys from `lower` up to `upper`. The page id is
    /// stamped when the image is put into a frame.
    pub(crate) fn new(tree: TreeId, level: u8, lower: &[u8], upper: Option<&[u8]>) -> Builder {
        Builder::in_page(Image::zeroed(), tree, level, lower, upper)
    }

    /// As [`Builder::new`], in a page whose old bytes do not matter.
    pub(crate) fn in_page(
        mut image: Box<Image>,
        tree: TreeId,
        level: u8,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Builder {
        let page = &mut image.0;
        page[..INNER_SLOTS].fill(0);
        let kind = if level == 0 {
            PageKind::Leaf
        } else {
            PageKind::Inner
        };
        page[offset::KIND] = kind as u8;
        page[offset::LEVEL] = level;
        put_u32(page, offset::TREE_ID, tree.0);
        let (mut heap, mut prefix) = (PAGE_SIZE, 0);
        if let Some(upper) = upper {
            debug_assert!(!upper.is_empty() && lower < upper);
            prefix = common_prefix(lower, upper);
            heap -= upper.len();
            page[heap..heap + upper.len()].copy_from_slice(upper);
            put_u16(page, field::FENCE_LEN, upper.len() as u16);
            put_u16(page, field::FENCE_AT, heap as u16);
        }
        put_u16(page, field::PREFIX, prefix as u16);
        Builder {
            image,
            is_leaf: level == 0,
            count: 0,
            heap,
            prefix,
            last: None,
            fence_len: upper.map_or(0, <[u8]>::len),
            children: Vec::new(),
        }
    }

    /// Bytes that are left for slots and records.
    pub(crate) fn free(&self) -> usize {
        let slots = if self.is_leaf {
            SLOT * self.count
        } else {
            INNER_FIXED + (SLOT + CHILD) * self.count
        };
        self.heap - SLOTS - slots
    }

    /// The part of a record's key that slot and record hold, or the reason that it cannot be here.
    fn suffix<'k>(&self, key: &'k [u8]) -> Result<&'k [u8], MalformedNode> {
        key.get(self.prefix..)
            .ok_or(MalformedNode("a key lies outside its node's range"))
    }

    /// Whether a key is above the last one and below the upper fence. Pages
    /// that are taken apart may be corrupt; the corruption must not spread.
    #[inline(always)]
    fn is_in_order(&self, suffix: &[u8], head: u32) -> bool {
        let above = match self.last {
            Some(last) if last.head() == head => {
                let header = if self.is_leaf { LEAF_RECORD } else { 0 };
                let at = last.record() + header;
                let rest = &self.image.0[at..at + last.rest_len()];
                // As in a search: a key within its head that has another's
                // padded head is the other's prefix.
                if last.key_len() <= HEAD || suffix.len() <= HEAD {
                    last.key_len() < suffix.len()
                } else {
                    rest < &suffix[HEAD..]
                }
            }
            Some(last) => last.head() < head,
            None => true,
        };
        let fence = &self.image.0[PAGE_SIZE - self.fence_len..];
        above && (fence.is_empty() || suffix < &fence[self.prefix..])
    }

    /// Takes `len` bytes of heap and a slot for a key.
    #[inline(always)]
    fn allocate(&mut self, suffix: &[u8], len: usize) -> Result<usize, MalformedNode> {
        let head = head_of(suffix);
        if !self.is_in_order(suffix, head) {
            return Err(MalformedNode("its keys are not in order"));
        }
        let (slots_at, child) = if self.is_leaf {
            (SLOTS, 0)
        } else {
            (INNER_SLOTS, CHILD)
        };
        if self.free() < SLOT + child + len {
            return Err(MalformedNode("its records do not fit into a page"));
        }
        self.heap -= len;
        // A record of no bytes may begin at the page's end.
        let record = if len == 0 { 0 } else { self.heap };
        let slot = NodeSlot::new(record, suffix.len(), head);
        self.last = Some(slot);
        let at = slots_at + SLOT * self.count;
        put_u64(&mut self.image.0, at, slot.to_word());
        self.count += 1;
        Ok(self.heap)
    }

    /// Appends a record to a leaf.
    ///
    /// # Errors
    ///
    /// Where it does not fit, which for a node that is taken apart means that
    /// its page is corrupt.
    pub(crate) fn push_record(
        &mut self,
        key: &[u8],
        value: ValueRef<'_>,
    ) -> Result<(), MalformedNode> {
        let suffix = self.suffix(key)?;
        let len = leaf_cost(suffix.len(), value.bytes.len()) - SLOT;
        let mut at = self.allocate(suffix, len)?;
        let flag = match value.kind {
            ValueKind::Inline => 0,
            ValueKind::Extent => EXTENT_FLAG,
        };
        let page = &mut self.image.0;
        put_u16(page, at, value.bytes.len() as u16 | flag);
        at += LEAF_RECORD;
        if let Some(rest) = suffix.get(HEAD..) {
            page[at..at + rest.len()].copy_from_slice(rest);
            at += rest.len();
        }
        page[at..at + value.bytes.len()].copy_from_slice(value.bytes);
        Ok(())
    }

    /// Sets the child below every separator; comes before all others.
    pub(crate) fn set_leftmost(&mut self, child: PageId) {
        debug_assert!(self.children.is_empty() && !self.is_leaf);
        self.children.push(child);
    }

    /// Appends a separator and the child to its right.
    ///
    /// # Errors
    ///
    /// As [`Builder::push_record`].
    pub(crate) fn push_child(&mut self, key: &[u8], child: PageId) -> Result<(), MalformedNode> {
        let suffix = self.suffix(key)?;
        let rest = suffix.get(HEAD..).unwrap_or_default();
        let at = self.allocate(suffix, rest.len())?;
        self.image.0[at..at + rest.len()].copy_from_slice(rest);
        self.children.push(child);
        Ok(())
    }

    /// Appends records `range` of the leaf `from`.
    pub(crate) fn copy_records(
        &mut self,
        from: &Node<'_, Image>,
        range: std::ops::Range<usize>,
    ) -> Result<(), MalformedNode> {
        let mut key = Vec::new();
        for position in range {
            from.key(position, &mut key)?;
            let value = from.value(position)?;
            let bytes = &from.source.0[value.at..value.at + value.len];
            self.push_record(
                &key,
                ValueRef {
                    kind: value.kind,
                    bytes,
                },
            )?;
        }
        Ok(())
    }

    /// Appends separators `range` of the inner node `from`, each with the child
    /// to its right.
    pub(crate) fn copy_children(
        &mut self,
        from: &Node<'_, Image>,
        range: std::ops::Range<usize>,
    ) -> Result<(), MalformedNode> {
        let mut key = Vec::new();
        for position in range {
            from.key(position, &mut key)?;
            self.push_child(&key, from.child(position + 1)?)?;
        }
        Ok(())
    }

    /// Sets the node's memory of the insertion pattern.
    pub(crate) fn set_run(&mut self, last_insert: u16, run: i16) {
        put_u16(&mut self.image.0, field::LAST_INSERT, last_insert);
        put_u16(&mut self.image.0, field::RUN, run as u16);
    }

    /// The finished page.
    pub(crate) fn finish(mut self) -> Box<Image> {
        let page = &mut self.image.0;
        put_u16(page, field::COUNT, self.count as u16);
        put_u16(page, field::HEAP, self.heap as u16);
        let mut slots_end = SLOTS + SLOT * self.count;
        if !self.is_leaf {
            debug_assert_eq!(self.children.len(), self.count + 1);
            slots_end = INNER_SLOTS + SLOT * self.count;
            if self.count > 0 {
                for index in 0..SAMPLES {
                    let slot = INNER_SLOTS + SLOT * sampled_slot(index, self.count);
                    page.copy_within(slot + 4..slot + 8, SAMPLES_AT + 4 * index);
                }
            }
            for child in &self.children {
                put_u64(page, slots_end, child.0);
                slots_end += CHILD;
            }
        }
        // Earlier bytes must not reach the disk.
        page[slots_end..self.heap].fill(0);
        self.image
    }
}

const _: () = assert!(CAPACITY < u16::MAX as usize);
