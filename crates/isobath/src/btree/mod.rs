//! The B+-tree: variable-length keys and values in 4 KiB slotted pages, read
//! with optimistic lock coupling.
//!
//! Each operation is a driver loop around an *attempt*. An attempt is a plain
//! synchronous function: it holds no latch when it returns and never waits. If
//! it cannot finish it says why ([`Fail`]); the driver has its context resolve
//! the reason (read a page, let others run) and tries again. So a task never
//! yields with a latch in hand.
//!
//! Invariants, checked by [`Tree::verify`]:
//!
//! - A node covers a range [lower, upper) of keys. Its upper bound, the *upper
//!   fence*, is stored in the node; its lower bound is the separator to its left
//!   in the nearest ancestor that has one. For a separator `s`:
//!   every key on the left < `s` <= every key on the right.
//! - A node's range changes only while its own latch is held exclusively, even
//!   though the lower bound is stored elsewhere. So a version that still holds
//!   proves that the range is the one seen before.
//! - All keys of a node share the first `prefix length` bytes of its upper
//!   fence, which are stored only there.
//! - The root's page id never changes; a child's level is its parent's minus one.
//! - There are no sibling pointers: every page is named by exactly one other.

mod cursor;
mod descend;
mod dispose;
mod get_many;
mod load;
mod node;
mod ops;
mod smo;
#[cfg(test)]
mod testing;
mod verify;

pub(crate) use cursor::{Cursor, Direction, prefix_end};
pub(crate) use get_many::{Batch, Lookup};
pub(crate) use load::Loader;
pub(crate) use ops::Decision;
pub(crate) use verify::Visitor;

use crate::buffer::Restart;
use crate::page::PageId;

/// The number that names a tree in its pages and in the log; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TreeId(pub(crate) u32);

/// Where a tree starts, and which one it is. The tree itself has no state in
/// memory: any number of these may exist for one tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tree {
    pub(crate) root: PageId,
    pub(crate) id: TreeId,
}

/// Most levels that a tree can have. A tree whose nodes have only two children
/// each reaches 2⁴⁰ leaves at this height.
pub(crate) const MAX_LEVELS: u8 = 40;

/// Most bytes that key and value can have together for the value to lie in
/// the leaf. Two such records and the longest fence fit one page, so that every
/// leaf can be split.
pub(crate) const MAX_INLINE_RECORD: usize = 1280;

/// Most bytes that a value in a leaf can have, whatever the key.
pub(crate) const MAX_INLINE_VALUE: usize = 1024;

/// Most bytes that an extent descriptor can have.
pub(crate) const MAX_DESCRIPTOR: usize = 32;

/// Whether a value of `value_len` bytes lies in the leaf beside its key;
/// otherwise the layer above puts it into an extent.
pub(crate) fn fits_inline(key_len: usize, value_len: usize) -> bool {
    value_len <= MAX_INLINE_VALUE && key_len + value_len <= MAX_INLINE_RECORD
}

/// How a record's value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValueKind {
    /// The bytes are the value.
    Inline,
    /// The bytes describe where the value is; only the layer above reads them.
    Extent,
}

/// A value as a leaf holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueRef<'v> {
    pub(crate) kind: ValueKind,
    pub(crate) bytes: &'v [u8],
}

impl<'v> ValueRef<'v> {
    /// A value that lies in the leaf.
    pub(crate) fn inline(bytes: &'v [u8]) -> ValueRef<'v> {
        ValueRef {
            kind: ValueKind::Inline,
            bytes,
        }
    }

    /// A value that lies in an extent with this descriptor.
    pub(crate) fn extent(descriptor: &'v [u8]) -> ValueRef<'v> {
        ValueRef {
            kind: ValueKind::Extent,
            bytes: descriptor,
        }
    }

    /// Whether a leaf can hold it beside a key of `key_len` bytes.
    pub(crate) fn is_storable(&self, key_len: usize) -> bool {
        match self.kind {
            ValueKind::Inline => fits_inline(key_len, self.bytes.len()),
            ValueKind::Extent => self.bytes.len() <= MAX_DESCRIPTOR,
        }
    }
}

/// An extent descriptor that a change took out of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor {
    length: u8,
    bytes: [u8; MAX_DESCRIPTOR],
}

impl Descriptor {
    /// A copy of a descriptor's bytes.
    pub(crate) fn new(from: &[u8]) -> Descriptor {
        let mut bytes = [0; MAX_DESCRIPTOR];
        let length = from.len().min(MAX_DESCRIPTOR);
        bytes[..length].copy_from_slice(&from[..length]);
        Descriptor {
            length: length as u8,
            bytes,
        }
    }

    /// The descriptor's bytes, as they were inserted.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// What a key had before it was changed.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Old {
    /// No record.
    Absent,
    /// A value in the leaf, now gone.
    Inline,
    /// An extent that nothing in the tree names any more.
    Extent(Descriptor),
}

#[cfg(test)]
impl Old {
    fn of(value: Option<ValueRef<'_>>) -> Old {
        match value {
            None => Old::Absent,
            Some(value) if value.kind == ValueKind::Inline => Old::Inline,
            Some(value) => Old::Extent(Descriptor::new(value.bytes)),
        }
    }

    /// Whether there was a record.
    pub(crate) fn existed(&self) -> bool {
        !matches!(self, Old::Absent)
    }
}

/// Why an attempt did not finish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
enum Fail {
    /// Start over once this is resolved.
    Restart(Restart),
    /// A page breaks the tree's rules; its version was validated after the
    /// breach was seen, so it is no torn read.
    Damaged(PageId, &'static str),
}

impl From<Restart> for Fail {
    fn from(why: Restart) -> Fail {
        Fail::Restart(why)
    }
}

impl Fail {
    /// What is left to do about it: nothing but start over, or give up.
    fn resolve<C: crate::context::ReadContext>(self, ctx: &C) -> Result<(), C::Stop> {
        match self {
            Fail::Restart(why) => ctx.resolve(why),
            Fail::Damaged(page, reason) => Err(crate::Error::Structure {
                page: page.get(),
                reason,
            }
            .into()),
        }
    }
}
