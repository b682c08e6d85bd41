//! The B+-tree: variable-length keys and values in 4 KiB slotted pages, read
//! with optimistic lock coupling.
//!
//! Each operation is a driver loop around an *attempt*. An attempt is a plain
//! synchronous function: it holds no latch when it returns and never waits. If
//! it cannot finish it says why ([`AttemptError`]); the driver asks its context to
//! resolve the reason (read a page, let others run) and tries again. So a task
//! never yields while it holds a latch.
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

mod content;
mod cursor;
mod descend;
mod dispose;
mod get_many;
mod load;
mod ops;
mod sample;
mod smo;
mod stretches;
#[cfg(test)]
mod testing;
mod verify;

pub(crate) use content::{Content, PageRecord, read_content};
pub(crate) use cursor::{Cursor, Direction, Entry, OwnedBounds};
pub(crate) use get_many::{Batch, Lookup};
pub(crate) use load::{
    Change, Edits, FILL_PERCENT, Loader, NotLoaded, Paused, Rewrite, Rewritten, install_root,
    last_key, root_body,
};
pub(crate) use ops::Decision;
pub(crate) use sample::{MaxPages, Sample};
pub(crate) use stretches::{Stretch, Stretches};
pub(crate) use verify::Visitor;

pub(crate) use crate::types::{MAX_DESCRIPTOR, Tree, TreeId, ValueKind, ValueRef, fits_inline};

use crate::buffer::Restart;
use crate::page::PageId;

/// Bytes of a page that its records and their slots may take.
pub(crate) const PAGE_CAPACITY: usize = crate::node::CAPACITY;

/// An extent descriptor that a change took out of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
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

/// A key's value before it was changed.
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
enum AttemptError {
    /// Start over once this is resolved.
    Restart(Restart),
    /// A page breaks the tree's rules; its version was validated after the
    /// breach was seen, so it is no torn read.
    Corrupt(PageId, &'static str),
}

impl From<Restart> for AttemptError {
    fn from(why: Restart) -> AttemptError {
        AttemptError::Restart(why)
    }
}

impl AttemptError {
    /// Resolves the reason: the caller starts over, or gives up with the error.
    fn resolve<C: crate::context::ReadContext>(self, ctx: &C) -> Result<(), C::Error> {
        match self {
            AttemptError::Restart(why) => ctx.resolve(why),
            AttemptError::Corrupt(page, reason) => Err(crate::error::StorageError::Structure {
                page: page.get(),
                reason,
            }
            .into()),
        }
    }
}
