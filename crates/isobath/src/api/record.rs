//! The operations on one record, in a task.

use super::tree::TreeState;
use crate::Error;
use crate::btree::{self, ValueKind, ValueRef};
use crate::context::TaskContext;
use crate::engine::WorkerState;
use crate::extent::{self, Extent};
use crate::levels;
use crate::shared::Counters;

/// Times that a read starts over because a large value was replaced in between.
const REREADS: usize = 10_000;

pub(crate) fn get_in_task(
    local: &WorkerState,
    tree: btree::Tree,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool, Error> {
    let transactions = &local.engine.transactions;
    // The result of nearly every lookup: a small value, or none.
    let found = levels::get(&tree, &TaskContext { local }, key, value)?;
    local.worker.preemption_point();
    let seen = transactions.reader(tree.id, None).seen(key, found, value);
    if let Some(seen @ (None | Some(ValueKind::Inline))) = seen {
        return Ok(seen.is_some());
    }
    transactions.read_one(local, tree.id, key, |old| {
        match old.map(|old| old.take(value)) {
            None => read_in_task(local, tree, key, value),
            Some(None) => Ok(false),
            Some(Some(ValueKind::Inline)) => Ok(true),
            Some(Some(ValueKind::Extent)) => {
                let descriptor = std::mem::take(value);
                read_value(local, ValueRef::extent(&descriptor), value).map(|()| true)
            }
        }
    })
}

fn read_in_task(
    local: &WorkerState,
    tree: btree::Tree,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool, Error> {
    Ok(read_newest(local, tree, key, value)? != Newest::Absent)
}

/// A leaf's value for a key, visible to others or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Newest {
    Absent,
    Inline,
    /// A large value, with its descriptor.
    Large(Vec<u8>),
}

/// Reads the value in the leaf of `key`, as a whole.
pub(crate) fn read_newest(
    local: &WorkerState,
    tree: btree::Tree,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<Newest, Error> {
    let newest = newest_with(local, tree, key, value, |descriptor, value| {
        read_value(local, ValueRef::extent(descriptor), value)
    })?;
    Ok(match newest {
        None => Newest::Absent,
        Some(None) => Newest::Inline,
        Some(Some((descriptor, ()))) => Newest::Large(descriptor),
    })
}

/// The result of reading a key: nothing, a value in the leaf, or `large`'s result for a large
/// value, with its descriptor.
type Read<T> = Option<Option<(Vec<u8>, T)>>;

/// Reads the value in the leaf of `key` into `value`, or calls `large` with a large value's
/// descriptor. Starts over if the value was replaced in between.
pub(crate) fn newest_with<T>(
    local: &WorkerState,
    tree: btree::Tree,
    key: &[u8],
    value: &mut Vec<u8>,
    mut large: impl FnMut(&[u8], &mut Vec<u8>) -> Result<T, Error>,
) -> Result<Read<T>, Error> {
    for _ in 0..REREADS {
        match levels::get(&tree, &TaskContext { local }, key, value)? {
            None => return Ok(None),
            Some(ValueKind::Inline) => return Ok(Some(None)),
            Some(ValueKind::Extent) => {
                let descriptor = std::mem::take(value);
                match large(&descriptor, value) {
                    Ok(made) => return Ok(Some(Some((descriptor, made)))),
                    Err(error) => match error_of(local, tree, key, &descriptor, error) {
                        Error::ValueReplaced => value.clear(),
                        error => return Err(error),
                    },
                }
            }
        }
    }
    Err(Error::ValueReplaced)
}

/// Why the large value that `key` had could not be read: `error`, if the key has it still.
pub(crate) fn error_of(
    local: &WorkerState,
    tree: btree::Tree,
    key: &[u8],
    descriptor: &[u8],
    error: impl Into<Error>,
) -> Error {
    let error = error.into();
    let mut now = Vec::new();
    match levels::get(&tree, &TaskContext { local }, key, &mut now) {
        Ok(Some(ValueKind::Extent)) if now == descriptor => error,
        Ok(_) => Error::ValueReplaced,
        // The first error names the cause.
        Err(_) => error,
    }
}

/// The bytes of a record's value, wherever they are.
pub(crate) fn read_value(
    local: &WorkerState,
    value: ValueRef<'_>,
    into: &mut Vec<u8>,
) -> Result<(), Error> {
    into.clear();
    match value.kind {
        ValueKind::Inline => {
            into.extend_from_slice(value.bytes);
            Ok(())
        }
        ValueKind::Extent => Ok(extent::read_all(local, extent::decode(value.bytes)?, into)?),
    }
}

/// The bytes of the value that a cursor found under `key`, or of the one that
/// has replaced it since; `false` if the record is gone.
pub(crate) fn read_entry(
    local: &WorkerState,
    tree: btree::Tree,
    key: &[u8],
    value: ValueRef<'_>,
    into: &mut Vec<u8>,
) -> Result<bool, Error> {
    match read_value(local, value, into) {
        Ok(()) => Ok(true),
        // If this was not a change of the record, the same error comes again.
        Err(_) => get_in_task(local, tree, key, into),
    }
}

pub(crate) fn insert_in_task(
    local: &WorkerState,
    tree: &TreeState,
    key: &[u8],
    value: &[u8],
) -> Result<(), Error> {
    if btree::fits_inline(key.len(), value.len()) {
        put_in_task(local, tree, key, ValueRef::inline(value), value.len())
    } else {
        local.engine.shared.writable()?;
        let extent = extent::write_all(local, value, None)?;
        put_extent(local, tree, key, extent)
    }
}

/// Points `key` at an extent, which is freed again if that fails.
pub(crate) fn put_extent(
    local: &WorkerState,
    tree: &TreeState,
    key: &[u8],
    extent: Extent,
) -> Result<(), Error> {
    let descriptor = extent.encode();
    let value = ValueRef::extent(&descriptor);
    let result = put_in_task(local, tree, key, value, extent.length as usize);
    if result.is_err() && local.engine.shared.writable().is_ok() {
        // The first error is the one to report. After a failed write it is unknown whether the key
        // has the value.
        local.engine.transactions.free_uncommitted(local, extent);
    }
    result
}

fn put_in_task(
    local: &WorkerState,
    tree: &TreeState,
    key: &[u8],
    value: ValueRef<'_>,
    length: usize,
) -> Result<(), Error> {
    let transactions = &local.engine.transactions;
    transactions.put_one(local, tree.change(key, Some(value)))?;
    let bytes = key.len() + length;
    Counters::add(&local.engine.shared.counters.user_bytes, bytes as u64);
    Ok(())
}

pub(super) fn remove_in_task(
    local: &WorkerState,
    tree: &TreeState,
    key: &[u8],
) -> Result<bool, Error> {
    let transactions = &local.engine.transactions;
    let change = tree.change(key, None);
    let existed = transactions.change_one(local, change, |old| old.is_some())?;
    Counters::add(&local.engine.shared.counters.user_bytes, key.len() as u64);
    Ok(existed)
}
