//! Changes of single records, in place, under the leaf's exclusive latch.

use super::{
    EXTENT_FLAG, HEAD, Image, LEAF_RECORD, MalformedNode, Node, NodeSlot, SLOT, SLOTS, field,
    head_of, leaf_cost,
};
use crate::node::Words;
use crate::page::{PAGE_SIZE, offset};
use crate::types::{TreeId, ValueKind, ValueRef};

/// Whether a record fitted into the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Edit {
    /// The leaf was changed.
    Done,
    /// The leaf was not changed: the record does not fit even after compaction.
    Full,
}

/// A leaf whose exclusive latch the caller holds.
pub(crate) struct LeafEdit<'w> {
    words: &'w Words,
    tree: TreeId,
    node: Node<'w, Words>,
}

impl<'w> LeafEdit<'w> {
    pub(crate) fn open(words: &'w Words, tree: TreeId) -> Result<LeafEdit<'w>, MalformedNode> {
        let node = Node::open(words, tree)?;
        if !node.is_leaf() {
            return Err(MalformedNode("it is no leaf"));
        }
        Ok(LeafEdit { words, tree, node })
    }

    pub(crate) fn node(&self) -> Node<'w, Words> {
        self.node
    }

    /// Puts `value` at `position`: as a new record, or in place of the one that
    /// is there.
    pub(crate) fn put(
        &mut self,
        position: usize,
        replace: bool,
        suffix: &[u8],
        value: ValueRef<'_>,
    ) -> Result<Edit, MalformedNode> {
        if replace {
            self.replace(position, suffix, value)
        } else {
            let done = self.insert(position, suffix, value)?;
            if done == Edit::Done {
                self.note_insertion(position);
            }
            Ok(done)
        }
    }

    fn replace(
        &mut self,
        position: usize,
        suffix: &[u8],
        value: ValueRef<'_>,
    ) -> Result<Edit, MalformedNode> {
        let old = self.node.value(position)?;
        if old.len == value.bytes.len() {
            let record = self.node.slot(position).record();
            self.write_value(record, old.at, value);
            return Ok(Edit::Done);
        }
        let freed = SLOT + self.node.record_len(position)?;
        if self.node.free() + freed < leaf_cost(suffix.len(), value.bytes.len()) {
            return Ok(Edit::Full);
        }
        self.remove(position)?;
        match self.insert(position, suffix, value)? {
            Edit::Done => Ok(Edit::Done),
            Edit::Full => Err(MalformedNode("its garbage count is wrong")),
        }
    }

    fn insert(
        &mut self,
        position: usize,
        suffix: &[u8],
        value: ValueRef<'_>,
    ) -> Result<Edit, MalformedNode> {
        let cost = leaf_cost(suffix.len(), value.bytes.len());
        if self.node.contiguous() < cost {
            if self.node.free() < cost {
                return Ok(Edit::Full);
            }
            self.compact()?;
            if self.node.contiguous() < cost {
                return Err(MalformedNode("its garbage count is wrong"));
            }
        }
        let record = self.node.heap - (cost - SLOT);
        let mut at = record + LEAF_RECORD;
        if let Some(rest) = suffix.get(HEAD..) {
            self.words.write(at, rest);
            at += rest.len();
        }
        self.write_value(record, at, value);
        // Bound: the number of slots.
        for moved in (position..self.node.count).rev() {
            self.set_slot(moved + 1, self.node.slot(moved));
        }
        let slot = NodeSlot::new(record, suffix.len(), head_of(suffix));
        self.set_slot(position, slot);
        self.set_geometry(self.node.count + 1, record);
        Ok(Edit::Done)
    }

    /// Removes the record at `position`.
    pub(crate) fn remove(&mut self, position: usize) -> Result<(), MalformedNode> {
        let (record, len) = (
            self.node.slot(position).record(),
            self.node.record_len(position)?,
        );
        for moved in position + 1..self.node.count {
            self.set_slot(moved - 1, self.node.slot(moved));
        }
        let mut heap = self.node.heap;
        if record == heap {
            heap += len;
        } else {
            self.set_garbage(self.node.garbage() + len);
        }
        self.set_geometry(self.node.count - 1, heap);
        Ok(())
    }

    /// Moves the records together, so that all free bytes are contiguous.
    fn compact(&mut self) -> Result<(), MalformedNode> {
        let mut copy = Image([0; PAGE_SIZE]);
        self.words.load_all(&mut copy.0);
        let old = Node::open(&copy, self.tree)?;
        let mut heap = PAGE_SIZE;
        let (fence_at, fence_len) = old.fence();
        if fence_len > 0 {
            let fence = copy
                .0
                .get(fence_at..fence_at + fence_len)
                .ok_or(MalformedNode("its upper fence passes the page's end"))?;
            heap -= fence_len;
            self.words.write(heap, fence);
            self.words.put_u16(field::FENCE_AT, heap as u16);
        }
        for position in 0..old.count {
            let (slot, len) = (old.slot(position), old.record_len(position)?);
            if heap < SLOTS + SLOT * old.count + len {
                return Err(MalformedNode("its records do not fit into a page"));
            }
            heap -= len;
            self.words
                .write(heap, &copy.0[slot.record()..slot.record() + len]);
            self.set_slot(position, NodeSlot::new(heap, slot.key_len(), slot.head()));
        }
        self.set_garbage(0);
        self.set_geometry(old.count, heap);
        Ok(())
    }

    fn write_value(&self, record: usize, at: usize, value: ValueRef<'_>) {
        let flag = match value.kind {
            ValueKind::Inline => 0,
            ValueKind::Extent => EXTENT_FLAG,
        };
        let length = value.bytes.len() as u16 | flag;
        self.words.write(record, &length.to_le_bytes());
        self.words.write(at, value.bytes);
    }

    #[inline(always)]
    fn set_slot(&self, position: usize, slot: NodeSlot) {
        self.words
            .set_u64_aligned(SLOTS + SLOT * position, slot.to_word());
    }

    fn set_garbage(&self, garbage: usize) {
        self.words.put_u16(field::GARBAGE, garbage as u16);
    }

    fn set_geometry(&mut self, count: usize, heap: usize) {
        let word = u64::from(self.tree.0) | (count as u64) << 32 | (heap as u64) << 48;
        self.words.set_u64_aligned(offset::TREE_ID, word);
        (self.node.count, self.node.heap) = (count, heap);
    }

    fn note_insertion(&self, position: usize) {
        let (last, run) = self.node.insertion_run();
        let run = next_run(last, run, position);
        let word = position as u64 | u64::from(run as u16) << 16;
        self.words.set_u64_aligned(field::LAST_INSERT, word);
    }
}

/// The run of insertions after one at `position`.
pub(super) fn next_run(last: usize, run: i16, position: usize) -> i16 {
    if position == (last + 1) & usize::from(u16::MAX) {
        run.max(0).saturating_add(1)
    } else if position == last {
        run.min(0).saturating_sub(1)
    } else {
        0
    }
}
