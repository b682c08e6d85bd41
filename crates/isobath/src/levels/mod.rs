//! The door to a tree's records: all parts above read and change them here, whether the tree has
//! overlays or not. One without takes today's way, for the price of a load.
//!
//! See [`overlay`](crate::overlay) for the order in which readers and writers go.

mod cursor;
mod parts;

pub(crate) use cursor::Cursor;
pub(crate) use parts::Parts;

use crate::btree::{Decision, Tree, ValueKind, ValueRef};
use crate::context::{ReadContext, WriteContext};
use crate::overlay::Levels;
use crate::page::Lsn;
use crate::types::CATALOG;

/// Replaces `into` by the newest value of `key`, or says that there is none; `into` then holds
/// nothing that means anything.
#[inline]
pub(crate) fn get<C: ReadContext>(
    tree: &Tree,
    ctx: &C,
    key: &[u8],
    into: &mut Vec<u8>,
) -> Result<Option<ValueKind>, C::Error> {
    match ctx.pool().overlays.of(tree.id) {
        None => tree.get(ctx, key, into),
        Some(overlaid) => get_in(&overlaid.levels(), tree, ctx, key, into),
    }
}

/// As [`get`], of a tree with these parts, which were taken before.
fn get_in<C: ReadContext>(
    levels: &Levels,
    tree: &Tree,
    ctx: &C,
    key: &[u8],
    into: &mut Vec<u8>,
) -> Result<Option<ValueKind>, C::Error> {
    Tree::check_key(key);
    let memories = [Some(&levels.memory), levels.sealing.as_ref()];
    for memory in memories.into_iter().flatten() {
        if let Some(found) = memory.read(key, into)? {
            return Ok(found);
        }
    }
    let position = &levels.position;
    let runs = levels.runs.iter();
    for run in runs.filter(|run| run.may_have(key, position)) {
        match run.tree.get(ctx, key, into)? {
            None => {}
            // A tombstone.
            Some(ValueKind::Extent) if into.is_empty() => return Ok(None),
            found => return Ok(found),
        }
    }
    tree.get(ctx, key, into)
}

/// Changes the record of `key` as the log record at `change` says. The caller has the key's lock,
/// and is in its slot.
pub(crate) fn put<C: WriteContext>(
    tree: &Tree,
    ctx: &C,
    key: &[u8],
    change: Lsn,
    value: Option<ValueRef<'_>>,
) -> Result<(), C::Error> {
    let overlays = &ctx.pool().overlays;
    let Some(overlaid) = overlays.of(tree.id) else {
        if *tree != CATALOG {
            overlays.note_change(*tree);
        }
        return tree.apply(ctx, key, Some(change), |_| {
            value.map_or(Decision::Remove, Decision::Put)
        });
    };
    Tree::check_key(key);
    if value.is_some_and(|value| value.kind == ValueKind::Extent) {
        overlaid.note_large();
    }
    let lsn = ctx.log().is_on().then_some(change);
    let memory = &overlaid.levels().memory;
    memory.put(key, value, lsn, || ctx.lend())
}

/// As [`put`], of a change that no record has: lets `decide` look at the record of `key`, unless
/// the change is `blind` and no old value matters, and says what becomes of it. `decide` may be
/// called several times; its last call counts.
pub(crate) fn update<'v, C: WriteContext>(
    tree: &Tree,
    ctx: &C,
    key: &[u8],
    is_blind: bool,
    mut decide: impl FnMut(Option<ValueRef<'_>>) -> Decision<'v>,
) -> Result<(), C::Error> {
    let overlays = &ctx.pool().overlays;
    let Some(overlaid) = overlays.of(tree.id) else {
        if *tree != CATALOG {
            overlays.note_change(*tree);
        }
        return tree.apply(ctx, key, None, decide);
    };
    let mut bytes = Vec::new();
    let kind = match is_blind && !overlaid.has_large() {
        true => None,
        false => get_in(&overlaid.levels(), tree, ctx, key, &mut bytes)?,
    };
    let old = kind.map(|kind| ValueRef {
        kind,
        bytes: &bytes,
    });
    let value = match decide(old) {
        Decision::Keep => return Ok(()),
        Decision::Put(value) => Some(value),
        Decision::Remove => None,
    };
    if value.is_some_and(|value| value.kind == ValueKind::Extent) {
        overlaid.note_large();
    }
    let memory = &overlaid.levels().memory;
    memory.put(key, value, None, || ctx.lend())
}
