//! Names of trees, records and values, shared by the log, which writes them down, and the tree,
//! which holds them.

use std::fmt;
use std::str::FromStr;

use crate::error::OpenError;
use crate::page::{Lsn, PageId, get_u32, get_u64};

/// The number that names a tree in its pages and in the log; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TreeId(pub(crate) u32);

/// Runs of overlays have numbers from here on, others lower ones: their pages say so.
const FIRST_RUN: u32 = 1 << 31;

impl TreeId {
    /// The number of a run, of one that no tree has.
    pub(crate) fn of_run(self) -> TreeId {
        TreeId(self.0 | FIRST_RUN)
    }

    /// Whether it is a run's, as this release makes them.
    pub(crate) fn is_run(self) -> bool {
        self.0 >= FIRST_RUN
    }
}

/// A tree's root and id. The tree itself has no state in memory: any number of these may exist for
/// one tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tree {
    pub(crate) root: PageId,
    pub(crate) id: TreeId,
}

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
    /// The bytes describe the place of the value; only the layer above reads them.
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

    /// What an overlay says of a key that was removed.
    pub(crate) const TOMBSTONE: ValueRef<'static> = ValueRef {
        kind: ValueKind::Extent,
        bytes: &[],
    };

    /// Whether it stands for none.
    pub(crate) fn is_tombstone(&self) -> bool {
        *self == ValueRef::TOMBSTONE
    }

    /// Whether a leaf can hold it beside a key of `key_len` bytes.
    pub(crate) fn is_storable(&self, key_len: usize) -> bool {
        match self.kind {
            ValueKind::Inline => fits_inline(key_len, self.bytes.len()),
            ValueKind::Extent => self.bytes.len() <= MAX_DESCRIPTOR,
        }
    }
}

/// The catalog's own tree.
pub(crate) const CATALOG: Tree = Tree {
    root: PageId::CATALOG_ROOT,
    id: TreeId(0),
};

/// First byte of the catalog's key that says that a tree is being dropped; its
/// number follows.
pub(crate) const DROPPING: u8 = b'd';

/// The tree whose drop begins when `key` is put into the catalog.
pub(crate) fn dropped_by(key: &[u8]) -> Option<TreeId> {
    (key.len() == 5 && key[0] == DROPPING).then(|| TreeId(get_u32(key, 1)))
}

/// First byte of the catalog's key that says that a tree has overlays; its number follows.
pub(crate) const OVERLAID: u8 = b'o';

/// Where the value of that key has the LSN before which the log's changes of the tree are not to be
/// repeated: runs have them.
pub(crate) const SEALED_BEFORE: usize = 16;

/// The tree of which a record of the catalog says so, and that LSN.
pub(crate) fn sealed_before(key: &[u8], value: &[u8]) -> Option<(TreeId, Lsn)> {
    let is_one = key.len() == 5 && key[0] == OVERLAID && value.len() >= SEALED_BEFORE + 8;
    is_one.then(|| (TreeId(get_u32(key, 1)), Lsn(get_u64(value, SEALED_BEFORE))))
}

/// First byte of the catalog's key of a run of overlays that is being built or freed; its number
/// follows.
pub(crate) const UNLISTED_RUN: u8 = b'r';

/// First byte of the catalog's key that a large transaction takes out of the catalog, where it
/// never is, with the commit that makes its changes of a tree a run; the tree's number follows. So
/// streams of changes know that the log does not have these.
pub(crate) const REPLACED: u8 = b'w';

/// The tree that got a run of a large transaction when `key` was taken out of the catalog.
pub(crate) fn replaced_by(key: &[u8]) -> Option<TreeId> {
    (key.len() == 5 && key[0] == REPLACED).then(|| TreeId(get_u32(key, 1)))
}

/// A position in the log of one store: between two transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogPosition {
    pub(crate) store: [u8; 16],
    pub(crate) lsn: u64,
}

impl LogPosition {
    /// The log sequence number: bytes that were logged before, since the store was created.
    #[must_use]
    pub fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Whether both are of one store.
    #[must_use]
    pub fn is_of_same_store(&self, other: &LogPosition) -> bool {
        self.store == other.store
    }
}

/// As the store's identity in 32 hexadecimal digits, a hyphen, and the LSN.
impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = u128::from_le_bytes(self.store);
        write!(f, "{store:032x}-{}", self.lsn)
    }
}

impl FromStr for LogPosition {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<LogPosition, OpenError> {
        let parse = || {
            let (store, lsn) = text.split_once('-')?;
            let is_hex = store.len() == 32 && store.bytes().all(|byte| byte.is_ascii_hexdigit());
            let store = u128::from_str_radix(store, 16).ok().filter(|_| is_hex)?;
            Some(LogPosition {
                store: store.to_le_bytes(),
                lsn: lsn.parse().ok()?,
            })
        };
        parse().ok_or_else(|| OpenError::BadOption {
            option: "from",
            reason: format!(
                "{text:?} is no position in a log; a backup's report and a follower tell theirs"
            ),
        })
    }
}
