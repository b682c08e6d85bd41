//! Reading and changing single records.

#[cfg(test)]
use super::Old;
use super::descend::Descent;
use super::{AttemptError, Tree, TreeId, ValueKind, ValueRef, smo};
use crate::MAX_KEY_BYTES;
use crate::buffer::BufferPool;
use crate::canary::{self, Canary};
use crate::context::{ReadContext, WriteContext};
use crate::log::record::Token;
use crate::node::{Builder, Edit, LeafEdit, MalformedNode};
use crate::page::{Lsn, PageId};

/// The decision about a key's record, made with its current value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decision<'v> {
    /// Nothing.
    Keep,
    /// Have this value, whether there was one or not.
    Put(ValueRef<'v>),
    /// Have no record.
    Remove,
}

/// How an attempt to change a record ended.
enum Changed {
    Done,
    /// Done, and the leaf is so empty that it should be merged.
    Underfull,
    /// Not done: a value of this many bytes does not fit into the leaf.
    Full(usize),
}

impl Tree {
    /// Makes the one page of an empty tree, and the tree.
    ///
    /// With a `token` the page belongs to that until a record confirms it, so
    /// that a crash before the tree has a name leaves nothing behind.
    pub(crate) fn create<C: WriteContext>(
        ctx: &C,
        id: TreeId,
        token: Option<Token>,
    ) -> Result<Tree, C::Error> {
        ctx.admit()?;
        let _reservation = ctx.reserve_for_structure()?;
        let mut reservation = ctx.reserve(1)?;
        let page = reservation.take(ctx.pool());
        let tree = Tree {
            root: page.id(),
            id,
        };
        if let Some(token) = token {
            ctx.add_provisional(token, &[tree.root]);
        }
        let image = Builder::new(id, 0, &[], None).finish();
        smo::Modification::new(tree).page(page, image).apply(ctx);
        ctx.release(reservation);
        Ok(tree)
    }

    /// The API refuses keys that are too long.
    pub(crate) fn check_key(key: &[u8]) {
        assert!(key.len() <= MAX_KEY_BYTES, "an oversized key");
    }

    /// Replaces `into` by the value of `key`, or says that there is none;
    /// `into` then holds nothing that means anything.
    pub(crate) fn get<C: ReadContext>(
        &self,
        ctx: &C,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<ValueKind>, C::Error> {
        Tree::check_key(key);
        if ctx.interleaves()
            && let Some(found) = self.get_in_turns(ctx, key, into)
        {
            return Ok(found);
        }
        let mut descent = Descent::to_level(*self, 0);
        loop {
            match try_get(ctx.pool(), &mut descent, key, into) {
                Ok(found) => return Ok(found),
                Err(fail) => fail.resolve(ctx)?,
            }
        }
    }

    /// The leaf that covers `key`, and the bytes that are free in it.
    pub(crate) fn leaf_space<C: ReadContext>(
        &self,
        ctx: &C,
        key: &[u8],
    ) -> Result<(PageId, usize), C::Error> {
        let mut descent = Descent::to_level(*self, 0);
        loop {
            let found = descent.find(ctx.pool(), key).and_then(|(hold, node)| {
                let space = (hold.id, node.free());
                hold.validate()?;
                Ok(space)
            });
            match found {
                Ok(space) => return Ok(space),
                Err(fail) => fail.resolve(ctx)?,
            }
        }
    }

    /// Lets `decide` look at the record of `key` and says what becomes of it,
    /// in one step. `decide` may be called several times; its last call counts.
    #[cfg(test)]
    pub(crate) fn update<'v, C: WriteContext>(
        &self,
        ctx: &C,
        key: &[u8],
        decide: impl FnMut(Option<ValueRef<'_>>) -> Decision<'v>,
    ) -> Result<(), C::Error> {
        ctx.admit()?;
        self.apply(ctx, key, None, decide)
    }

    /// Lets `decide` look at the record of `key` and says what becomes of it, in
    /// one step. The log record `change` holds the change already, and space was
    /// reserved for it. `decide` may be called several times; its last call
    /// counts.
    pub(crate) fn apply<'v, C: WriteContext>(
        &self,
        ctx: &C,
        key: &[u8],
        change: Option<Lsn>,
        mut decide: impl FnMut(Option<ValueRef<'_>>) -> Decision<'v>,
    ) -> Result<(), C::Error> {
        Tree::check_key(key);
        let mut descent = Descent::to_level(*self, 0);
        loop {
            match self.try_update(ctx, &mut descent, key, change, &mut decide) {
                Ok(Changed::Done) => return Ok(()),
                Ok(Changed::Underfull) => {
                    smo::merge(ctx, self, key);
                    return Ok(());
                }
                Ok(Changed::Full(value_len)) => smo::split(ctx, self, key, value_len)?,
                Err(fail) => fail.resolve(ctx)?,
            }
        }
    }

    fn try_update<'p, 'v, C: WriteContext>(
        &self,
        ctx: &'p C,
        descent: &mut Descent<'p>,
        key: &[u8],
        change: Option<Lsn>,
        decide: &mut impl FnMut(Option<ValueRef<'_>>) -> Decision<'v>,
    ) -> Result<Changed, AttemptError> {
        let (hold, _) = descent.find(ctx.pool(), key)?;
        let mut page = hold.page.exclusive()?;
        // Held exclusively at a validated version: a malformed node is corruption.
        let corrupt = |why: MalformedNode| AttemptError::Corrupt(hold.id, why.0);
        let mut edit = LeafEdit::open(page.words(), self.id).map_err(corrupt)?;
        let node = edit.node();
        let suffix = node.suffix_of(key).map_err(corrupt)?;
        let (position, found) = node.search(suffix).map_err(corrupt)?;
        let decision = if found {
            let at = node.value(position).map_err(corrupt)?;
            decide(Some(ValueRef {
                kind: at.kind,
                bytes: &page.bytes()[at.at..at.at + at.len],
            }))
        } else {
            decide(None)
        };
        match decision {
            Decision::Put(value) => {
                assert!(value.is_storable(key.len()), "an oversized value");
                let done = edit.put(position, found, suffix, value).map_err(corrupt)?;
                if done == Edit::Full {
                    return Ok(Changed::Full(value.bytes.len()));
                }
            }
            Decision::Remove if found => edit.remove(position).map_err(corrupt)?,
            // A merge that was given up earlier is tried again on any removal.
            Decision::Remove => {}
            Decision::Keep => return Ok(Changed::Done),
        }
        let is_removal = matches!(decision, Decision::Remove);
        if found || !is_removal {
            let (record, log) = (
                change.unwrap_or_else(|| ctx.log().stamp(ctx.writer())),
                ctx.log(),
            );
            // The record may be older than the page, which was split since.
            let version = if record > page.version() || canary::is_on(Canary::LowerVersion) {
                record
            } else {
                log.stamp(ctx.writer())
            };
            page.changed(record, version);
        }
        if is_removal && descent.parent.is_some() && smo::is_underfull(&edit.node()) {
            Ok(Changed::Underfull)
        } else {
            Ok(Changed::Done)
        }
    }

    /// Gives `key` this value; returns what it had before.
    #[cfg(test)]
    pub(crate) fn insert<C: WriteContext>(
        &self,
        ctx: &C,
        key: &[u8],
        value: ValueRef<'_>,
    ) -> Result<Old, C::Error> {
        let mut old = Old::Absent;
        self.update(ctx, key, |found| {
            old = Old::of(found);
            Decision::Put(value)
        })?;
        Ok(old)
    }

    /// Gives `key` this value unless it has one; returns whether it did.
    #[cfg(test)]
    pub(crate) fn insert_if_absent<C: WriteContext>(
        &self,
        ctx: &C,
        key: &[u8],
        value: ValueRef<'_>,
    ) -> Result<bool, C::Error> {
        let mut inserted = false;
        self.update(ctx, key, |found| {
            inserted = found.is_none();
            if inserted {
                Decision::Put(value)
            } else {
                Decision::Keep
            }
        })?;
        Ok(inserted)
    }

    /// Removes the record of `key`; returns what it had.
    #[cfg(test)]
    pub(crate) fn remove<C: WriteContext>(&self, ctx: &C, key: &[u8]) -> Result<Old, C::Error> {
        let mut old = Old::Absent;
        self.update(ctx, key, |found| {
            old = Old::of(found);
            Decision::Remove
        })?;
        Ok(old)
    }
}

#[inline(always)]
fn try_get<'p>(
    pool: &'p BufferPool,
    descent: &mut Descent<'p>,
    key: &[u8],
    into: &mut Vec<u8>,
) -> Result<Option<ValueKind>, AttemptError> {
    let (hold, node) = descent.find(pool, key)?;
    let suffix = hold.checked(node.suffix_of(key))?;
    let (position, found) = hold.checked(node.search(suffix))?;
    let mut kind = None;
    if found {
        let value = hold.checked(node.value(position))?;
        into.clear();
        hold.checked(node.append(value.at, value.len, into))?;
        kind = Some(value.kind);
    }
    hold.validate()?;
    Ok(kind)
}
