//! Cursors over the newest records of a range, whether the tree has overlays or not.

use std::ops::Bound;

use super::parts::Parts;
use crate::btree::{self, Direction, Entry, OwnedBounds, Tree, ValueKind, ValueRef};
use crate::buffer::BufferPool;
use crate::canary::{self, Canary};
use crate::context::ReadContext;

/// Records of overlays that are merged with one leaf, at most.
const MERGED_AT_ONCE: usize = 256;

/// A cursor over the records of a key range, as [`btree::Cursor`]. What that calls a leaf may be a
/// leaf's range, or a part of that, with the records of overlays.
pub(crate) struct Cursor {
    tree: Tree,
    direction: Direction,
    base: btree::Cursor,
    /// In a tree with overlays.
    merged: Option<Box<Merged>>,
    limit: Option<usize>,
}

/// The part of a cursor that merges.
struct Merged {
    /// What is still to be read; `None` at the end.
    rest: Option<OwnedBounds>,
    /// Whether `base` goes on where `rest` begins.
    is_in_step: bool,
    records: Vec<(Vec<u8>, ValueKind, Vec<u8>)>,
    /// How many of them were given.
    given: usize,
    /// The boundary of `records`; `None` if nothing is behind.
    boundary: Option<Vec<u8>>,
}

impl Cursor {
    /// A cursor over the keys between `lower` and `upper`; it reads nothing yet.
    pub(crate) fn new(
        tree: Tree,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Cursor {
        Cursor {
            tree,
            direction,
            base: btree::Cursor::new(tree, lower, upper, direction),
            merged: None,
            limit: None,
        }
    }

    /// Reads no further ahead than `records` records need.
    pub(crate) fn limit(&mut self, records: usize) {
        self.limit = Some(records);
        self.base.limit(records);
    }

    /// The current record's key, until the cursor moves on.
    pub(crate) fn key(&self) -> &[u8] {
        match &self.merged {
            None => self.base.key(),
            Some(merged) => {
                let last = merged.given.checked_sub(1);
                let record = last.and_then(|at| merged.records.get(at));
                record.map_or(&[], |(key, ..)| key)
            }
        }
    }

    /// The range's bounds.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        self.base.bounds()
    }

    /// The key from which on (descending: below which) the records lie that follow the current
    /// leaf's; `None` if none follows.
    pub(crate) fn boundary(&self) -> Option<&[u8]> {
        match &self.merged {
            None => self.base.boundary(),
            Some(merged) => merged.boundary.as_deref(),
        }
    }

    /// Records of the current leaf that are still to come.
    pub(crate) fn left_in_leaf(&self) -> usize {
        match &self.merged {
            None => self.base.left_in_leaf(),
            Some(merged) => merged.records.len() - merged.given,
        }
    }

    /// Moves on to the next record, if there is one.
    pub(crate) fn next<C: ReadContext>(&mut self, ctx: &C) -> Result<Option<Entry<'_>>, C::Error> {
        if !self.next_records(ctx)? {
            return Ok(None);
        }
        Ok(self.next_in_leaf(ctx.pool())?)
    }

    /// Moves on to the next record of the current leaf, if it has more in the range.
    #[inline(always)]
    pub(crate) fn next_in_leaf(
        &mut self,
        pool: &BufferPool,
    ) -> Result<Option<Entry<'_>>, crate::error::StorageError> {
        match &mut self.merged {
            None => self.base.next_in_leaf(pool),
            Some(merged) => Ok(merged.next()),
        }
    }

    /// Has the records that are still to come be those of one leaf, at least one; `false` at the
    /// end of the range.
    #[inline(always)]
    pub(crate) fn next_records<C: ReadContext>(&mut self, ctx: &C) -> Result<bool, C::Error> {
        // Before each leaf: what its records have above them is read first.
        if self.merged.is_none() && (self.base.left_in_leaf() > 0 || !self.begins_to_merge(ctx)) {
            return self.base.next_records(ctx);
        }
        // Bound: each round passes a leaf, or some records of overlays.
        while self.left_in_leaf() == 0 {
            if !self.merge(ctx)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Shows the current leaf's records that are still to come to `visit`, until it returns
    /// `false`; whether it did not.
    #[inline(always)]
    pub(crate) fn visit_leaf<C: ReadContext>(
        &mut self,
        ctx: &C,
        mut visit: impl FnMut(Entry<'_>) -> bool,
    ) -> Result<bool, C::Error> {
        let Some(merged) = &mut self.merged else {
            return self.base.visit_leaf(ctx, visit);
        };
        while let Some(entry) = merged.next() {
            if !visit(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes the leaves that follow up to [`Cursor::boundary`], or to the range's end, and counts
    /// their records in the range. For ascending cursors.
    pub(crate) fn count_leaves<C: ReadContext>(&mut self, ctx: &C) -> Result<u64, C::Error> {
        if self.merged.is_none() && !self.begins_to_merge(ctx) {
            return self.base.count_leaves(ctx);
        }
        if !self.next_records(ctx)? {
            return Ok(0);
        }
        let count = self.left_in_leaf() as u64;
        if let Some(merged) = &mut self.merged {
            merged.given = merged.records.len();
        }
        Ok(count)
    }

    /// Whether the tree has overlays; the cursor merges from here on then.
    #[inline]
    fn begins_to_merge<C: ReadContext>(&mut self, ctx: &C) -> bool {
        let has_overlays = ctx.pool().overlays.of(self.tree.id).is_some();
        if has_overlays {
            self.merged = Some(Box::new(Merged {
                rest: self.base.rest_bounds(),
                is_in_step: true,
                records: Vec::new(),
                given: 0,
                boundary: self.base.boundary().map(<[u8]>::to_vec),
            }));
        }
        has_overlays
    }

    /// Reads the next leaf of the base and the records of overlays in its range; `false` at the
    /// end.
    fn merge<C: ReadContext>(&mut self, ctx: &C) -> Result<bool, C::Error> {
        let Some(merged) = self.merged.as_deref_mut() else {
            return Ok(false);
        };
        let Some((lower, upper)) = &merged.rest else {
            merged.boundary = None;
            return Ok(false);
        };
        let rest = (as_slice(lower), as_slice(upper));
        if !merged.is_in_step {
            self.base = btree::Cursor::new(self.tree, rest.0, rest.1, self.direction);
            if let Some(limit) = self.limit {
                self.base.limit(limit);
            }
        }
        // If anything cannot be read, the next attempt begins with a new cursor.
        merged.is_in_step = false;
        let overlays = &ctx.pool().overlays;
        let levels = || overlays.of(self.tree.id).map(|overlaid| overlaid.levels());
        let direction = self.direction;
        // In this order: what merges move to the base while this reads is in both.
        let mut taken = levels();
        let mut leaf = Vec::new();
        if self.base.next_records(ctx)? {
            self.base.visit_leaf(ctx, |entry| {
                let ValueRef { kind, bytes } = entry.value;
                leaf.push((entry.key.to_vec(), kind, bytes.to_vec()));
                true
            })?;
        }
        if canary::is_on(Canary::LevelsAfterLeaf) {
            taken = levels();
        }
        let mut parts = taken
            .as_ref()
            .map(|levels| Parts::new(levels, rest, direction, true));
        let edge = self.base.boundary();
        let is_before = |a: &[u8], b: &[u8]| match direction {
            Direction::Forward => a < b,
            Direction::Reverse => a > b,
        };
        let is_within = |key: &[u8]| match (edge, direction) {
            (None, _) => true,
            (Some(edge), Direction::Forward) => key < edge,
            (Some(edge), Direction::Reverse) => key >= edge,
        };
        let mut records = Vec::with_capacity(leaf.len());
        let mut leaf = leaf.into_iter().peekable();
        let (mut count, mut cut) = (0, None);
        while let Some(parts) = &mut parts
            && parts.peek(ctx)?.is_some_and(is_within)
            && let Some((key, put)) = parts.next(ctx)?
        {
            while let Some(record) = leaf.next_if(|(other, ..)| is_before(other, &key)) {
                records.push(record);
            }
            leaf.next_if(|(other, ..)| *other == key);
            count += 1;
            if count == MERGED_AT_ONCE {
                cut = Some(key.clone());
            }
            if let Some(value) = put.value() {
                records.push((key, value.kind, value.bytes.to_vec()));
            }
            if cut.is_some() {
                break;
            }
        }
        let is_whole = cut.is_none();
        let (bounds, boundary) = match cut {
            None => {
                records.extend(leaf);
                let boundary = edge.map(<[u8]>::to_vec);
                (self.base.rest_bounds(), boundary)
            }
            Some(mut cut) => {
                let bounds = match direction {
                    Direction::Forward => (Bound::Excluded(cut.clone()), upper.clone()),
                    Direction::Reverse => (lower.clone(), Bound::Excluded(cut.clone())),
                };
                if direction == Direction::Forward {
                    // The first key behind it.
                    cut.push(0);
                }
                (Some(bounds), Some(cut))
            }
        };
        merged.is_in_step = is_whole;
        merged.rest = bounds;
        merged.boundary = boundary;
        merged.records = records;
        merged.given = 0;
        Ok(true)
    }
}

impl Merged {
    fn next(&mut self) -> Option<Entry<'_>> {
        let (key, kind, bytes) = self.records.get(self.given)?;
        self.given += 1;
        Some(Entry {
            key,
            value: ValueRef { kind: *kind, bytes },
        })
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}
