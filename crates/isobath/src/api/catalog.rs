//! The catalog: a tree that names all others.
//!
//! Its keys are `n` + name → id and root of a tree; `d` + id → root of a tree
//! that is being dropped, so that dropping goes on after a restart; and `i` →
//! the last id given to a tree, which is never given again.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::api::tree::TreeState;
use crate::btree::{Cursor, Descriptor, Direction, Tree, TreeId, ValueKind, ValueRef};
use crate::buffer::PagePlace;
use crate::canary::{self, Canary};
use crate::context::{TaskContext, WriteContext};
use crate::engine::WorkerState;
use crate::error::{Error, StorageError, TransactionError};
use crate::extent;
use crate::page::{PageId, get_u32, get_u64, put_u32, put_u64};
use crate::txn::catalog_change;
use crate::txn::commit::{Change, CommitContext};
use crate::txn::versions::OldValue;
pub(crate) use crate::types::CATALOG;
use crate::types::DROPPING;

/// Most bytes that a tree's name can have.
pub(crate) const MAX_NAME_BYTES: usize = 255;

const NAME: u8 = b'n';
const ENTRY_BYTES: usize = 16;

/// Pages of a dropped tree that are freed between two looks at other tasks.
const FREE_STEP: u32 = 64;

fn name_key(name: &str) -> Result<Vec<u8>, Error> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(Error::BadTreeName {
            length: name.len(),
            limit: MAX_NAME_BYTES,
        });
    }
    let mut key = Vec::with_capacity(1 + name.len());
    key.push(NAME);
    key.extend_from_slice(name.as_bytes());
    Ok(key)
}

fn dropping_key(id: TreeId) -> [u8; 5] {
    let mut key = [DROPPING, 0, 0, 0, 0];
    put_u32(&mut key, 1, id.0);
    key
}

fn encode(tree: Tree) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    put_u32(&mut bytes, 0, tree.id.0);
    put_u64(&mut bytes, 8, tree.root.0);
    bytes
}

fn decode(bytes: &[u8]) -> Result<Tree, StorageError> {
    if bytes.len() != ENTRY_BYTES {
        return Err(StorageError::Structure {
            page: PageId::CATALOG_ROOT.0,
            reason: "a catalog entry has a wrong length",
        });
    }
    Ok(Tree {
        root: PageId(get_u64(bytes, 8)),
        id: TreeId(get_u32(bytes, 0)),
    })
}

/// An entry as it was before a commit that is not visible yet.
fn decode_old(old: &OldValue) -> Result<Option<Tree>, StorageError> {
    match old {
        OldValue::Absent => Ok(None),
        OldValue::Inline(bytes) => decode(bytes).map(Some),
        OldValue::Extent(_) => decode(&[]).map(Some),
    }
}

/// The tree that a record of the catalog names, and its name; `None` if the record is about
/// something else, or makes no sense.
pub(crate) fn named_by<'r>(key: &'r [u8], value: &[u8]) -> Option<(&'r [u8], Tree)> {
    let name = key.strip_prefix(&[NAME])?;
    Some((name, decode(value).ok()?))
}

/// The name that a key of the catalog has; `None` for keys about something else.
pub(crate) fn name_in(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[NAME])
}

/// The root that a record of the catalog names.
pub(crate) fn root_in(value: &[u8]) -> Option<PageId> {
    decode(value).ok().map(|tree| tree.root)
}

/// Makes the catalog of a new store, durably. Does nothing if there is one.
pub(crate) fn create(local: &WorkerState) -> Result<(), StorageError> {
    let ctx = TaskContext { local };
    let mapping = &local.engine.buffer.pool.mapping;
    if mapping.place(CATALOG.root) != PagePlace::Free {
        return Ok(());
    }
    let tree = Tree::create(&ctx, CATALOG.id, None)?;
    assert_eq!(tree, CATALOG, "the catalog is the first tree of a store");
    local.engine.log_tasks.wait_all_durable(&local.worker)
}

/// The tree `name`, if there is one.
pub(crate) fn find(local: &WorkerState, name: &str) -> Result<Option<Tree>, Error> {
    let ctx = TaskContext { local };
    let mut value = Vec::new();
    match CATALOG.get(&ctx, &name_key(name)?, &mut value)? {
        Some(ValueKind::Inline) => Ok(Some(decode(&value)?)),
        Some(ValueKind::Extent) => Ok(Some(decode(&[])?)),
        None => Ok(None),
    }
}

/// The tree `name` as readers see it: one that was made is there, and one that was dropped is not,
/// once that is as durable as commits have to be to be seen.
pub(crate) fn find_visible(local: &WorkerState, name: &str) -> Result<Option<Tree>, Error> {
    let key = name_key(name)?;
    let transactions = &local.engine.transactions;
    transactions.read_one(local, CATALOG.id, &key, |old| match old {
        Some(old) => Ok(decode_old(&old)?),
        None => find(local, name),
    })
}

/// Makes a tree; of several callers with the same name, one succeeds. `made` is called with it
/// before the catalog names it, and also for a tree that gets no name.
pub(crate) fn add(
    local: &WorkerState,
    name: &str,
    made: &mut dyn FnMut(Tree),
) -> Result<(), Error> {
    let key = name_key(name)?;
    if find_visible(local, name)?.is_some() {
        return Err(Error::TreeExists {
            name: name.to_owned(),
        });
    }
    let ctx = TaskContext { local };
    let id = local.engine.transactions.next_tree_id(local)?;
    let token = local.engine.log.stamp(local.worker.index).0;
    let tree = Tree::create(&ctx, id, Some(token))?;
    made(tree);
    let value = encode(tree);
    let naming = Change {
        confirms: Some(token),
        ..catalog_change(&key, Some(&value))
    };
    let transactions = &local.engine.transactions;
    let named = transactions.change_one(local, naming, |old| old.is_none());
    if matches!(named, Ok(true)) {
        return Ok(());
    }
    if local.engine.shared.writable().is_ok() {
        tree.free_root(&ctx)?;
        ctx.cancel_provisional(Some(token), &[]);
    }
    named?;
    Err(Error::TreeExists {
        name: name.to_owned(),
    })
}

/// Drops the tree of this name: no commit changes it any more, its name goes, then its pages.
///
/// # Errors
///
/// [`Error::NoSuchTree`] if another one dropped it first, and as for any commit.
pub(crate) fn drop_tree(local: &WorkerState, name: &str, tree: &TreeState) -> Result<(), Error> {
    let engine = &local.engine;
    let missing = || Error::NoSuchTree {
        name: name.to_owned(),
    };
    let wait = || {
        engine.shared.writable()?;
        local.worker.yield_now();
        Ok::<(), Error>(())
    };
    let _kept_out = engine.merging.keep_out(local, tree.tree)?;
    let closed = tree.status.close_to_drop(wait)?.ok_or_else(missing)?;
    // Waits for the commits that have not seen the mark; of a commit and this, one sees the other.
    if !canary::is_on(Canary::DropBesideCommits) {
        engine.transactions.tracker.drain(false, wait)?;
    }
    local.pool.overlays.forget(tree.tree.id);
    let (merging, transactions) = (&engine.merging, &engine.transactions);
    let removed = merging.drop_with(transactions, local, tree.tree, |changes| {
        remove_name(local, name, tree.tree, changes)
    });
    match removed {
        Ok(was_there) => {
            closed.drop_tree();
            if !was_there {
                return Err(missing());
            }
        }
        Err(error) => {
            let found = find_visible(local, name);
            if !matches!(found, Ok(Some(found)) if found == tree.tree) {
                closed.drop_tree();
            }
            return Err(error);
        }
    }
    Ok(free_dropped(local, tree.tree)?)
}

/// Takes the name of `tree` out of the catalog, which lists it as dropped from then on, and has
/// these changes; `false` if it was gone. No commit to the tree may be in flight or begin any more.
fn remove_name(
    local: &WorkerState,
    name: &str,
    tree: Tree,
    also: &[Change<'_>],
) -> Result<bool, Error> {
    let (mark, key, value) = (dropping_key(tree.id), name_key(name)?, encode(tree));
    let name_at = also.len();
    let mut changes = also.to_vec();
    changes.push(catalog_change(&key, None));
    changes.push(catalog_change(&mark, Some(&value)));
    let durability = local.engine.shared.config.durability;
    let was_there = local.engine.transactions.change_all(
        local,
        &changes,
        CommitContext {
            frees_space: true,
            ..CommitContext::default()
        },
        durability,
        &mut |at, old| Ok(at != name_at || old.is_some_and(|old| old.bytes == value)),
    )?;
    Ok(was_there)
}

/// Frees what is left of a tree whose name was removed. The next opening does what this leaves
/// undone.
pub(crate) fn free_dropped(local: &WorkerState, tree: Tree) -> Result<(), StorageError> {
    empty(local, tree, &mut |extent| {
        extent::free_descriptor(local, extent.bytes())
    })?;
    forget_dropped(local, tree)
}

/// Frees all large values and all pages of a tree that no handle can reach any more,
/// but its root. The values go first: a crash may leave a page that names values
/// that are gone, but no value that no page names.
fn empty(
    local: &WorkerState,
    tree: Tree,
    free: &mut dyn FnMut(&Descriptor) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let ctx = TaskContext { local };
    while !tree.free_some(&ctx, FREE_STEP, free)? {
        local.worker.yield_now();
    }
    Ok(())
}

/// Removes what is left of a dropped tree: its root and its last entry go in one commit.
fn forget_dropped(local: &WorkerState, tree: Tree) -> Result<(), StorageError> {
    let mark = dropping_key(tree.id);
    let context = CommitContext {
        frees_space: true,
        ends: Some(tree),
        ..CommitContext::default()
    };
    let durability = local.engine.shared.config.durability;
    let precondition = &mut |_, _: Option<ValueRef<'_>>| Ok(true);
    let changes = [catalog_change(&mark, None)];
    let transactions = &local.engine.transactions;
    let forgotten = transactions.change_all(local, &changes, context, durability, precondition);
    forgotten.map(drop).map_err(TransactionError::of_own_work)
}

/// Goes on with drops that a restart interrupted. Their pages may name large values
/// that are gone: some were freed before the restart, others were replaced by
/// commits that recovery had no reason to repeat.
pub(crate) fn resume_drops(local: &WorkerState) -> Result<(), StorageError> {
    for tree in list_dropped(local)? {
        empty(local, tree, &mut |extent| {
            let extent = extent::decode(extent.bytes())?;
            extent::free_leftovers(local, &[extent])
        })?;
        forget_dropped(local, tree)?;
    }
    Ok(())
}

/// Trees that were dropped, and are not wholly freed.
pub(crate) fn list_dropped(local: &WorkerState) -> Result<Vec<Tree>, StorageError> {
    let mut trees = Vec::new();
    visit(local, DROPPING, |_, tree| trees.push(tree))?;
    Ok(trees)
}

/// As [`list`], of the trees that [`find_visible`] finds.
pub(crate) fn list_visible(local: &WorkerState) -> Result<Vec<(String, Tree)>, StorageError> {
    let mut trees = BTreeMap::new();
    visit(local, NAME, |name, tree| {
        trees.insert(name.to_vec(), tree);
    })?;
    local.worker.preemption_point();
    let bounds = (
        Bound::Included(&[NAME][..]),
        Bound::Excluded(&[NAME + 1][..]),
    );
    let reader = local.engine.transactions.reader(CATALOG.id, None);
    let older = reader.older_within(bounds, Direction::Forward, usize::MAX);
    for (key, old) in older.found {
        match decode_old(&old)? {
            Some(tree) => trees.insert(key[1..].to_vec(), tree),
            None => trees.remove(&key[1..]),
        };
    }
    let name = |name: Vec<u8>| String::from_utf8_lossy(&name).into_owned();
    Ok(trees
        .into_iter()
        .map(|(key, tree)| (name(key), tree))
        .collect())
}

/// All trees by name.
pub(crate) fn list(local: &WorkerState) -> Result<Vec<(String, Tree)>, StorageError> {
    let mut trees = Vec::new();
    visit(local, NAME, |name, tree| {
        trees.push((String::from_utf8_lossy(name).into_owned(), tree));
    })?;
    Ok(trees)
}

fn visit(
    local: &WorkerState,
    kind: u8,
    mut each: impl FnMut(&[u8], Tree),
) -> Result<(), StorageError> {
    let ctx = TaskContext { local };
    let mut cursor = Cursor::with_prefix(CATALOG, &[kind], Direction::Forward);
    while let Some(entry) = cursor.next(&ctx)? {
        each(&entry.key[1..], decode(entry.value.bytes)?);
    }
    Ok(())
}
