//! Range cursors, forward and reverse, safe beside concurrent writers.
//!
//! A cursor copies one leaf at a time into a private page, validates the copy,
//! and iterates it. It goes on from the copy's own bound, so whatever happens to
//! the tree at the same time, it visits every key range exactly once and in order: a
//! record that is there during the whole scan is seen once.
//!
//! Between two leaves it holds nothing. It remembers the parent's version, and
//! as long as that holds takes the next child from there; else it descends again.

mod ahead;
mod count;

use std::cell::Cell;
use std::ops::Bound;

use ahead::ReadAhead;

use super::descend::{Descent, Hold};
use super::{AttemptError, Tree, ValueRef};
use crate::bounds::prefix_end;
use crate::buffer::{BufferPool, FrameId, Optimistic, PagePlace, Restart, Version};
use crate::context::ReadContext;
use crate::node::{Geometry, Image, KeyBuffer, MalformedNode, Node, ValueAt};
use crate::page::{PAGE_SIZE, PageId};

/// Leaves of a cursor that count as accessed for the replacement strategy;
/// those of longer scans must not push others out.
const TOUCHED_LEAVES: u32 = 4;

/// Records after which a cursor is taken to go on beyond its first leaf.
const FIRST_RECORDS: isize = 4;

/// Cache lines of a page.
const LINES: isize = (PAGE_SIZE / 64) as isize;

/// Cache lines of the next leaf that are called into the cache at each record.
const LINES_PER_RECORD: isize = 4;

/// Bounds of keys.
pub(crate) type OwnedBounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Which way a cursor goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// By ascending keys.
    Forward,
    /// By descending keys.
    Reverse,
}

/// One record, as long as the cursor stands on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry<'c> {
    pub(crate) key: &'c [u8],
    pub(crate) value: ValueRef<'c>,
}

/// An optimistic hold without the borrow of the pool, so that a cursor can move
/// from one context to another.
#[derive(Clone, Copy)]
struct Mark {
    id: PageId,
    frame: FrameId,
    version: Version,
}

impl Mark {
    fn of(hold: &Hold<'_>) -> Mark {
        let (frame, version) = hold.page.parts();
        Mark {
            id: hold.id,
            frame,
            version,
        }
    }

    fn hold<'p>(&self, pool: &'p BufferPool) -> Hold<'p> {
        Hold {
            id: self.id,
            page: Optimistic::new(pool, self.frame, self.version),
        }
    }
}

/// The place of the next leaf.
enum Next {
    /// The leaf with the first (or last) keys of the range.
    Start,
    /// The leaf that follows `boundary`.
    Beyond,
    /// There is none.
    End,
}

thread_local! {
    /// The page of a cursor that is no more: short scans need not allocate one.
    static SPARE: Cell<Option<Box<Private>>> = const { Cell::new(None) };
}

/// A leaf's copy, and one of its keys; the first bytes of that are the leaf's prefix.
struct Private {
    image: Image,
    key: KeyBuffer,
}

impl Private {
    const EMPTY: Private = Private {
        image: Image([0; PAGE_SIZE]),
        key: KeyBuffer::new(),
    };
}

/// A cursor's private page; there is none before its first leaf.
struct LeafCopy(Option<Box<Private>>);

static NO_LEAF: Private = Private::EMPTY;

impl std::ops::Deref for LeafCopy {
    type Target = Private;

    #[inline(always)]
    fn deref(&self) -> &Private {
        self.0.as_deref().unwrap_or(&NO_LEAF)
    }
}

impl std::ops::DerefMut for LeafCopy {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Private {
        self.0.get_or_insert_with(|| {
            let spare = SPARE.try_with(Cell::take).ok().flatten();
            spare.unwrap_or_else(|| Box::new(Private::EMPTY))
        })
    }
}

impl Private {
    /// The record whose key was read into this.
    #[inline(always)]
    fn entry<'p>(
        image: &'p Image,
        key: &'p KeyBuffer,
        key_len: usize,
        value: ValueAt,
    ) -> Entry<'p> {
        Entry {
            key: key.key(key_len),
            value: ValueRef {
                kind: value.kind,
                bytes: &image.bytes()[value.at..value.at + value.len],
            },
        }
    }
}

impl Drop for LeafCopy {
    fn drop(&mut self) {
        if let Some(leaf) = self.0.take() {
            // A thread that ends may have no place for it any more.
            let _ = SPARE.try_with(|spare| spare.set(Some(leaf)));
        }
    }
}

/// The leaf that follows, as far as its parent names it.
struct Following {
    id: PageId,
    /// The frame that it was in at its first line.
    frame: Option<FrameId>,
    /// The next of its cache lines to call into the cache; below 0, that many
    /// lines later.
    line: isize,
}

impl Following {
    /// Calls some bytes of the leaf into the cache, a few at each record, so that they
    /// neither wait for each other nor are waited for.
    #[inline(always)]
    fn prefetch(&mut self, pool: &BufferPool) {
        let line = self.line;
        if line >= LINES {
            return;
        }
        self.line += LINES_PER_RECORD;
        if line == 0 {
            self.frame = match pool.mapping.place(self.id) {
                PagePlace::Resident(frame) => Some(frame),
                _ => None,
            };
        }
        if let (Some(frame), Ok(line)) = (self.frame, usize::try_from(line)) {
            let lines = line..line + LINES_PER_RECORD as usize;
            pool.frames.prefetch(frame, lines);
        }
    }
}

/// A cursor over the records of a key range.
pub(crate) struct Cursor {
    tree: Tree,
    direction: Direction,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    leaf: LeafCopy,
    geometry: Geometry,
    /// Records of `leaf` that are still to come, a range of positions.
    rest: std::ops::Range<usize>,
    next: Next,
    /// Forward: the upper fence of `leaf`. Reverse: its lower bound.
    boundary: Vec<u8>,
    /// The leaf's parent, and the leaf's position there.
    parent: Option<(Mark, usize)>,
    /// Reverse: the parent's lower bound.
    parent_lower: Vec<u8>,
    leaves: u32,
    following: Following,
    /// Bytes of the current key, which is in `leaf`.
    key_len: usize,
    ahead: ReadAhead,
    /// Records that will be taken, if that is known.
    limit: Option<usize>,
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
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
            leaf: LeafCopy(None),
            geometry: Geometry::default(),
            rest: 0..0,
            next: Next::Start,
            boundary: Vec::new(),
            parent: None,
            parent_lower: Vec::new(),
            leaves: 0,
            following: Following {
                id: PageId(0),
                frame: None,
                line: LINES,
            },
            key_len: 0,
            ahead: ReadAhead::new(),
            limit: None,
        }
    }

    /// Reads no further ahead than `records` records need.
    pub(crate) fn limit(&mut self, records: usize) {
        self.limit = Some(records);
    }

    /// A cursor over the keys that start with `prefix`.
    pub(crate) fn with_prefix(tree: Tree, prefix: &[u8], direction: Direction) -> Cursor {
        let mut cursor = Cursor::new(tree, Bound::Included(prefix), Bound::Unbounded, direction);
        cursor.upper = prefix_end(prefix);
        cursor
    }

    /// The current record's key, until the cursor moves on.
    pub(crate) fn key(&self) -> &[u8] {
        self.leaf.key.key(self.key_len)
    }

    /// The range's bounds.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (as_slice(&self.lower), as_slice(&self.upper))
    }

    /// What is behind the current leaf; `None` at the end.
    pub(crate) fn rest_bounds(&self) -> Option<OwnedBounds> {
        let (lower, upper) = (self.lower.clone(), self.upper.clone());
        match (&self.next, self.direction) {
            (Next::Start, _) => Some((lower, upper)),
            (Next::Beyond, Direction::Forward) => {
                Some((Bound::Included(self.boundary.clone()), upper))
            }
            (Next::Beyond, Direction::Reverse) => {
                Some((lower, Bound::Excluded(self.boundary.clone())))
            }
            (Next::End, _) => None,
        }
    }

    /// The key from which on (descending: below which) the leaves lie that follow the current one;
    /// `None` if none follows.
    pub(crate) fn boundary(&self) -> Option<&[u8]> {
        matches!(self.next, Next::Beyond).then_some(&self.boundary[..])
    }

    /// Records of the current leaf that are still to come.
    pub(crate) fn left_in_leaf(&self) -> usize {
        self.rest.len()
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
        if self.rest.is_empty() {
            return Ok(None);
        }
        let forward = self.direction == Direction::Forward;
        let position = match forward {
            true => self.rest.start,
            false => self.rest.end - 1,
        };
        self.following.prefetch(pool);
        let private = &mut *self.leaf;
        let node = Node::reopen(&private.image, self.geometry);
        let record = node.record(position, &mut private.key);
        let (key_len, value) = record.map_err(|why| self.malformed(why))?;
        match forward {
            true => self.rest.start += 1,
            false => self.rest.end -= 1,
        }
        self.key_len = key_len;
        let Private { image, key } = &*self.leaf;
        Ok(Some(Private::entry(image, key, key_len, value)))
    }

    /// Has the records that are still to come be those of one leaf, at least one; `false` at the
    /// end of the range.
    #[inline(always)]
    pub(crate) fn next_records<C: ReadContext>(&mut self, ctx: &C) -> Result<bool, C::Error> {
        // Bound: one round for each leaf of the range.
        while self.rest.is_empty() {
            if matches!(self.next, Next::End) {
                return Ok(false);
            }
            self.next_leaf(ctx)?;
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
        let private = &mut *self.leaf;
        let node = Node::reopen(&private.image, self.geometry);
        let (mut rest, forward) = (self.rest.clone(), self.direction == Direction::Forward);
        let (mut position, step) = if forward {
            (rest.start, 1)
        } else {
            (rest.end.wrapping_sub(1), usize::MAX)
        };
        let mut goes_on = Ok(true);
        for _ in 0..rest.len() {
            self.following.prefetch(ctx.pool());
            match node.record(position, &mut private.key) {
                Ok((key_len, value)) => {
                    self.key_len = key_len;
                    goes_on = Ok(visit(Private::entry(
                        &private.image,
                        &private.key,
                        key_len,
                        value,
                    )));
                }
                Err(why) => {
                    goes_on = Err(why);
                    break;
                }
            }
            position = position.wrapping_add(step);
            if goes_on == Ok(false) {
                break;
            }
        }
        // Records that were shown are not shown again, also by a worker to which this is handed.
        if forward {
            rest.start = position;
        } else {
            rest.end = position.wrapping_add(1);
        }
        self.rest = rest;
        goes_on.map_err(|why| self.malformed(why).into())
    }

    /// The error of a record that makes no sense. The cursor stays before it: where the error says
    /// no more than that a worker is needed, that one meets the record again.
    #[cold]
    fn malformed(&self, why: MalformedNode) -> crate::error::StorageError {
        crate::error::StorageError::Structure {
            page: self.leaf.image.page_id().get(),
            reason: why.0,
        }
    }

    /// Copies the next leaf and finds which of its records are in the range.
    fn next_leaf<C: ReadContext>(&mut self, ctx: &C) -> Result<(), C::Error> {
        if self.ahead.is_wanted() {
            let edge = match self.next {
                Next::Beyond => Some(&self.boundary[..]),
                _ => None,
            };
            if let Some(edge) = edge {
                let end = far_end(self.direction, &self.lower, &self.upper);
                self.ahead.run(ctx, &self.tree, self.direction, edge, end);
            }
        }
        let mut descent = Descent::to_level(self.tree, 0);
        descent.touch = self.leaves < TOUCHED_LEAVES;
        descent.leaf_lines = PAGE_SIZE / 64;
        loop {
            let fail = match self.try_next_leaf(ctx, &mut descent) {
                Ok(()) => break,
                Err(fail) => fail,
            };
            match fail {
                AttemptError::Restart(Restart::NotResident(_)) => {
                    self.ahead.note_fault();
                    self.ask_for_first(ctx);
                }
                _ => self.parent = None,
            }
            fail.resolve(ctx)?;
        }
        self.leaves = self.leaves.saturating_add(1);
        self.ahead.note_leaf();
        if let Some(limit) = self.limit.take() {
            let per_leaf = Node::reopen(&self.leaf.image, self.geometry).count().max(1);
            ctx.note_leaf_records(self.tree.id, per_leaf);
            let missing = limit.saturating_sub(self.rest.len());
            self.ahead.need(missing.div_ceil(per_leaf));
        }
        self.look_ahead(ctx.pool());
        Ok(())
    }

    /// Asks for the first leaf, which is missing, together with those that surely follow it, as far
    /// as the scan has said how many records it takes and leaves are as full as others were: they
    /// are there when the first one is.
    fn ask_for_first<C: ReadContext>(&mut self, ctx: &C) {
        let (Next::Start, Some(limit)) = (&self.next, self.limit) else {
            return;
        };
        let mut start = match (self.direction, &self.lower, &self.upper) {
            (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _)
            | (Direction::Reverse, _, Bound::Included(key) | Bound::Excluded(key)) => key.clone(),
            (Direction::Forward, Bound::Unbounded, _) => Vec::new(),
            (Direction::Reverse, _, Bound::Unbounded) => return,
        };
        if let (Direction::Reverse, Bound::Included(_)) = (self.direction, &self.upper) {
            // The leaves below a separator do not have it.
            start.push(0);
        }
        let Some(per_leaf) = ctx.leaf_records(self.tree.id) else {
            return;
        };
        let leaves = limit.div_ceil(per_leaf);
        if leaves > 1 {
            self.ahead.need(leaves);
        }
        if leaves > 1 && self.ahead.is_wanted() {
            let end = far_end(self.direction, &self.lower, &self.upper);
            self.ahead.run(ctx, &self.tree, self.direction, &start, end);
        }
    }

    /// Finds which leaf follows, and has its mapping word called into the cache.
    fn look_ahead(&mut self, pool: &BufferPool) {
        self.following.line = LINES;
        let (Some((mark, position)), Next::Beyond) = (self.parent, &self.next) else {
            return;
        };
        // Never validated: a wrong id costs a useless prefetch, nothing else.
        let Ok(node) = mark.hold(pool).node(&self.tree) else {
            return;
        };
        let sibling = match self.direction {
            Direction::Forward => Some(position + 1).filter(|&next| next <= node.count()),
            Direction::Reverse => position.checked_sub(1),
        };
        if let Some(Ok(id)) = sibling.map(|sibling| node.child(sibling)) {
            pool.mapping.prefetch(id);
            self.following.id = id;
            // A short scan may end in its first leaf.
            let skipped = if self.leaves == 1 { FIRST_RECORDS } else { 1 };
            self.following.line = -(skipped * LINES_PER_RECORD);
        }
    }

    fn try_next_leaf<'p, C: ReadContext>(
        &mut self,
        ctx: &'p C,
        descent: &mut Descent<'p>,
    ) -> Result<(), AttemptError> {
        let pool = ctx.pool();
        if let Some(hold) = self.sibling(pool, descent.touch)? {
            let before = std::mem::take(&mut self.boundary);
            let copied = self.copy_sibling(pool, &hold, &before);
            if copied.is_err() {
                self.boundary = before;
            }
            return copied;
        }
        let forward = self.direction == Direction::Forward;
        let edge = match (&self.next, forward) {
            (Next::Beyond, true) => Bound::Included(&self.boundary[..]),
            (Next::Beyond, false) => Bound::Excluded(&self.boundary[..]),
            (_, true) => as_slice(&self.lower),
            (_, false) => as_slice(&self.upper),
        };
        let (hold, _) = match (edge, forward) {
            (Bound::Unbounded, true) => descent.run(pool, |_| Ok(0))?,
            (Bound::Unbounded, false) => descent.run(pool, |node| Ok(node.count()))?,
            (Bound::Excluded(key), false) => {
                descent.run(pool, |node| node.child_position_below(key))?
            }
            (Bound::Included(key) | Bound::Excluded(key), _) => descent.find(pool, key)?,
        };
        let mut boundary = Vec::new();
        if !forward {
            descent.lower_bound(&mut boundary)?;
            descent.lower_bound_of_parent(&mut self.parent_lower)?;
        }
        self.leaf.image.load(hold.page.words());
        hold.validate()?;
        self.parent = descent
            .parent
            .map(|(parent, position)| (Mark::of(&parent), position));
        self.enter(hold.id, boundary)
    }

    /// A hold on the leaf beside the current one, if their parent is unchanged
    /// and has it.
    fn sibling<'p>(
        &mut self,
        pool: &'p BufferPool,
        touch: bool,
    ) -> Result<Option<Hold<'p>>, AttemptError> {
        let Some((mark, position)) = self.parent else {
            return Ok(None);
        };
        let parent = mark.hold(pool);
        if parent.validate().is_err() {
            self.parent = None;
            return Ok(None);
        }
        let node = parent.node(&self.tree)?;
        let position = match self.direction {
            Direction::Forward => (position < node.count()).then_some(position + 1),
            Direction::Reverse => position.checked_sub(1),
        };
        let Some(position) = position else {
            self.parent = None;
            return Ok(None);
        };
        let id = parent.checked(node.child(position))?;
        Ok(Some(parent.child(pool, id, touch)?))
    }

    /// Copies the leaf that [`Cursor::sibling`] found.
    fn copy_sibling(
        &mut self,
        pool: &BufferPool,
        hold: &Hold<'_>,
        before: &[u8],
    ) -> Result<(), AttemptError> {
        let Some((mark, position)) = self.parent else {
            return Err(Restart::Changed.into());
        };
        let mut boundary = Vec::new();
        let position = if self.direction == Direction::Forward {
            position + 1
        } else {
            let position = position - 1;
            match position.checked_sub(1) {
                Some(separator) => {
                    let parent = mark.hold(pool);
                    let node = parent.node(&self.tree)?;
                    parent.checked(node.key(separator, &mut boundary))?;
                    parent.validate()?;
                }
                None => boundary.clone_from(&self.parent_lower),
            }
            position
        };
        self.leaf.image.load(hold.page.words());
        hold.validate()?;
        self.parent = Some((mark, position));
        self.boundary.extend_from_slice(before);
        self.enter(hold.id, boundary)
    }

    /// Starts on the validated copy in `leaf`; `lower` is its lower bound, which
    /// only a reverse cursor needs.
    fn enter(&mut self, id: PageId, lower: Vec<u8>) -> Result<(), AttemptError> {
        let corrupt = |why: MalformedNode| AttemptError::Corrupt(id, why.0);
        let private = &mut *self.leaf;
        let node = Node::open(&private.image, self.tree.id).map_err(corrupt)?;
        if !node.is_leaf() {
            return Err(corrupt(MalformedNode(
                "its level is not one below its parent's",
            )));
        }
        let mut upper = Vec::new();
        let has_upper = node.upper(&mut upper).map_err(corrupt)?;
        let prefix = node.shared_prefix().map_err(corrupt)?;
        let mut rest = 0..node.count();
        let (mut has_more, advanced);
        if self.direction == Direction::Forward {
            advanced = !matches!(self.next, Next::Beyond) || !has_upper || upper > self.boundary;
            has_more = has_upper && is_above_none(&self.upper, &upper);
        } else {
            advanced = !matches!(self.next, Next::Beyond) || lower < self.boundary;
            has_more = !lower.is_empty() && is_below_none(&self.lower, &lower);
        }
        if !advanced {
            return Err(corrupt(MalformedNode(
                "its bounds are not beyond its neighbour's",
            )));
        }
        // Records behind a boundary lie behind the end where the cursor began.
        let is_first = !matches!(self.next, Next::Beyond);
        let forward = self.direction == Direction::Forward;
        if let Bound::Included(key) | Bound::Excluded(key) = &self.lower
            && (is_first || !forward)
        {
            let (position, found) = rank(&node, prefix, key).map_err(corrupt)?;
            let skip = found && matches!(self.lower, Bound::Excluded(_));
            rest.start = position + usize::from(skip);
        }
        if let Bound::Included(key) | Bound::Excluded(key) = &self.upper
            && (is_first || forward)
        {
            let (position, found) = rank(&node, prefix, key).map_err(corrupt)?;
            let keep = found && matches!(self.upper, Bound::Included(_));
            rest.end = position + usize::from(keep);
        }
        // A merge since may have brought keys back that the cursor has passed.
        if !is_first {
            let (position, _) = rank(&node, prefix, &self.boundary).map_err(corrupt)?;
            if forward {
                rest.start = rest.start.max(position);
            } else {
                rest.end = rest.end.min(position);
            }
        }
        if rest.start > rest.end {
            // The range is empty: its lower end lies above its upper end.
            (rest, has_more) = (0..0, false);
        }
        self.geometry = node.geometry();
        if !private.key.set_prefix(prefix) {
            return Err(corrupt(MalformedNode(
                "its prefix is longer than a key can be",
            )));
        }
        self.rest = rest;
        self.boundary = if self.direction == Direction::Forward {
            upper
        } else {
            lower
        };
        self.next = if has_more { Next::Beyond } else { Next::End };
        Ok(())
    }
}

/// The bound at which a cursor ends.
fn far_end<'b>(
    direction: Direction,
    lower: &'b Bound<Vec<u8>>,
    upper: &'b Bound<Vec<u8>>,
) -> Bound<&'b [u8]> {
    as_slice(match direction {
        Direction::Forward => upper,
        Direction::Reverse => lower,
    })
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Whether keys from `start` on can lie within the upper bound.
fn is_above_none(upper: &Bound<Vec<u8>>, start: &[u8]) -> bool {
    match upper {
        Bound::Included(upper) => start <= &upper[..],
        Bound::Excluded(upper) => start < &upper[..],
        Bound::Unbounded => true,
    }
}

/// Whether keys below `end` can lie within the lower bound.
fn is_below_none(lower: &Bound<Vec<u8>>, end: &[u8]) -> bool {
    match lower {
        Bound::Included(lower) | Bound::Excluded(lower) => end > &lower[..],
        Bound::Unbounded => true,
    }
}

/// Number of the leaf's keys below `key`, which may lie outside its range, and
/// whether the next one equals it.
fn rank(node: &Node<'_, Image>, prefix: &[u8], key: &[u8]) -> Result<(usize, bool), MalformedNode> {
    match key.strip_prefix(prefix) {
        Some(suffix) => node.search(suffix),
        None if key < prefix => Ok((0, false)),
        None => Ok((node.count(), false)),
    }
}
