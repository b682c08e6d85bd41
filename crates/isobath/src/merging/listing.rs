//! What the catalog says of overlays: which trees have some, and their runs.
//!
//! ```text
//! key      'o', u32 number of the tree
//! value    0 u64 root of the tree
//!          8 u32 flags; 1: no record has a large value, 2: they are temporary
//!         12 u32 runs
//!         16 u64 LSN: runs have all changes of the tree before it; a recovery repeats none of them
//!         24 the runs; each, from the newest to the oldest:
//!            0 u32 its number as a tree, 4 u32 zero, 8 u64 root, 16 u64 records
//!
//! key      'r', u32 number of a run that is being built or freed
//! value    u64 root
//! ```

use std::ops::Bound;
use std::sync::Arc;

use crate::btree::{Cursor, Direction, Tree, TreeId};
use crate::context::{TaskContext, TaskWorker};
use crate::error::StorageError as Error;
use crate::overlay::{Initial, MAX_TREE_RUNS, Overlaid, Position, Run};
use crate::page::{Lsn, PageId, get_u32, get_u64, put_u32, put_u64};
use crate::types::{CATALOG, OVERLAID, SEALED_BEFORE, UNLISTED_RUN};

const NONE_LARGE: u32 = 1;
const TEMPORARY: u32 = 2;

fn flags(has_none_large: bool, is_temporary: bool) -> u32 {
    NONE_LARGE * u32::from(has_none_large) + TEMPORARY * u32::from(is_temporary)
}

const HEADER: usize = 24;
const RUN: usize = 24;
const _: () = assert!(HEADER + MAX_TREE_RUNS * RUN <= crate::types::MAX_INLINE_VALUE);

/// A tree with overlays, as the catalog says.
pub(crate) struct Listed {
    pub(crate) tree: Tree,
    has_none_large: bool,
    is_temporary: bool,
    sealed_before: Lsn,
    /// From the newest to the oldest; their records.
    pub(crate) runs: Vec<(Tree, u64)>,
}

/// The catalog's key of one kind for the tree of this number.
pub(super) fn key(kind: u8, id: TreeId) -> [u8; 5] {
    let mut key = [kind, 0, 0, 0, 0];
    put_u32(&mut key, 1, id.0);
    key
}

/// The entry of a tree without runs, which may have large values.
pub(super) fn encode_new(tree: Tree, is_temporary: bool) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    put_u64(&mut bytes, 0, tree.root.0);
    put_u32(&mut bytes, 8, flags(false, is_temporary));
    bytes
}

/// The entry of a tree with these runs, which have all of its changes before this LSN.
pub(super) fn encode(overlaid: &Overlaid, runs: &[Arc<Run>], sealed_before: Lsn) -> Vec<u8> {
    let is_temporary = overlaid.is_temporary();
    let mut bytes = encode_new(overlaid.tree, is_temporary);
    put_u64(&mut bytes, SEALED_BEFORE, sealed_before.0);
    bytes.resize(HEADER + RUN * runs.len(), 0);
    put_u32(&mut bytes, 8, flags(!overlaid.has_large(), is_temporary));
    put_u32(&mut bytes, 12, runs.len() as u32);
    for (run, into) in runs.iter().zip(bytes[HEADER..].chunks_exact_mut(RUN)) {
        put_u32(into, 0, run.tree.id.0);
        put_u64(into, 8, run.tree.root.0);
        put_u64(into, 16, run.unmerged());
    }
    bytes
}

/// The entry of a run that no tree's entry names.
pub(super) fn encode_unlisted(run: Tree) -> [u8; 8] {
    run.root.0.to_le_bytes()
}

/// Reads a record of the catalog; `None` if it is about something else, or makes no sense.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Listed> {
    let is_one = key.len() == 5 && key[0] == OVERLAID && value.len() >= HEADER;
    let count = is_one.then(|| get_u32(value, 12) as usize)?;
    if value.len() != HEADER + RUN * count {
        return None;
    }
    let runs = value[HEADER..].chunks_exact(RUN).map(|run| {
        let tree = Tree {
            root: PageId(get_u64(run, 8)),
            id: TreeId(get_u32(run, 0)),
        };
        (tree, get_u64(run, 16))
    });
    Some(Listed {
        tree: Tree {
            root: PageId(get_u64(value, 0)),
            id: TreeId(get_u32(key, 1)),
        },
        has_none_large: get_u32(value, 8) & NONE_LARGE != 0,
        is_temporary: get_u32(value, 8) & TEMPORARY != 0,
        sealed_before: Lsn(get_u64(value, SEALED_BEFORE)),
        runs: runs.collect(),
    })
}

/// The number of a run that the catalog lists as one that is being built or freed.
pub(crate) fn unlisted(key: &[u8]) -> Option<TreeId> {
    (key.len() == 5 && key[0] == UNLISTED_RUN).then(|| TreeId(get_u32(key, 1)))
}

fn malformed() -> Error {
    Error::Structure {
        page: PageId::CATALOG_ROOT.0,
        reason: "what the catalog says of a tree's overlays makes no sense",
    }
}

/// Calls `each` with the entries of one kind.
fn visit(
    local: &TaskWorker,
    kind: u8,
    mut each: impl FnMut(&[u8], &[u8]) -> Option<()>,
) -> Result<(), Error> {
    let (lower, upper) = ([kind], [kind + 1]);
    let (lower, upper) = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
    let mut cursor = Cursor::new(CATALOG, lower, upper, Direction::Forward);
    let ctx = TaskContext { local };
    while let Some(entry) = cursor.next(&ctx)? {
        each(entry.key, entry.value.bytes).ok_or_else(malformed)?;
    }
    Ok(())
}

/// All trees with overlays.
pub(crate) fn list(local: &TaskWorker) -> Result<Vec<Listed>, Error> {
    let mut found = Vec::new();
    visit(local, OVERLAID, |key, value| {
        found.push(decode(key, value)?);
        Some(())
    })?;
    Ok(found)
}

/// All runs that are being built or freed.
pub(crate) fn list_unlisted(local: &TaskWorker) -> Result<Vec<Tree>, Error> {
    let mut found = Vec::new();
    visit(local, UNLISTED_RUN, |key, value| {
        let root = <[u8; 8]>::try_from(value).ok()?;
        found.push(Tree {
            id: unlisted(key)?,
            root: PageId(u64::from_le_bytes(root)),
        });
        Some(())
    })?;
    Ok(found)
}

/// What an entry says, as a store begins with it: merges begin at the first key.
pub(super) fn initial(listed: &Listed, may_have_large: bool) -> Initial {
    let run = |(tree, records): &(Tree, u64)| Run::new(*tree, *records, Position::default());
    Initial {
        runs: listed.runs.iter().map(run).map(Arc::new).collect(),
        has_large: may_have_large && !listed.has_none_large,
        is_temporary: listed.is_temporary,
        sealed_before: listed.sealed_before,
        // Recoveries repeat commits in memory.
        from: Lsn(0),
    }
}
