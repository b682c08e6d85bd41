//! Rewriting a tree with many changes at once: new leaves for the ranges that changes touch, new
//! inner nodes above them. Everything else stays.
//!
//! The tree, which no one else changes during the load, is walked from left to right. A subtree
//! without a change becomes a part of the new tree as it is; where one has some, or keys that are
//! removed, its records and the changes are merged into new leaves. New pages belong to a token,
//! and nothing names them: the tree is as it was until the root gets its new content
//! ([`install_root`]).

use std::cmp::Ordering;

use super::super::descend::root;
use super::super::{AttemptError, Stretch, Tree, ValueKind, ValueRef};
use super::pages::Pages;
use super::stage::{InnerStage, LeafStage};
use crate::context::WriteContext;
use crate::error::{StorageError, TransactionError};
use crate::log::record::{Token, structure_body};
use crate::node::{CAPACITY, Image, MalformedNode, Node};
use crate::page::{Lsn, PageId, offset, put_u64};

/// Leaves that are read ahead at a time while one leaf after the other is changed: those that
/// follow the next ones, which are on their way.
const READ_AHEAD: usize = 16;

/// A key's new value.
pub(crate) struct Change {
    pub(crate) key: Vec<u8>,
    /// `None` if nothing.
    pub(crate) value: Option<(ValueKind, Vec<u8>)>,
}

/// What becomes of a tree.
pub(crate) enum Edits<'s> {
    /// These changes of single keys, by ascending keys, each key once.
    Change(&'s mut dyn Iterator<Item = Change>),
    /// These keys go, unread. The large values that they have are not freed.
    Remove(&'s Stretch),
    /// The records of these keys move to full leaves.
    Pack(&'s Stretch),
}

impl Edits<'_> {
    fn next(&mut self) -> Option<Change> {
        match self {
            Edits::Change(changes) => changes.next(),
            Edits::Remove(_) | Edits::Pack(_) => None,
        }
    }

    /// Whether leaves of keys from `lower` to `upper` are replaced, whatever changes say.
    fn replaces(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        match self {
            Edits::Change(_) => false,
            Edits::Remove(stretch) | Edits::Pack(stretch) => stretch.meets(lower, upper),
        }
    }

    fn removes(&self, key: &[u8]) -> bool {
        matches!(self, Edits::Remove(stretch) if stretch.covers(key))
    }

    fn removes_all(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        matches!(self, Edits::Remove(stretch) if stretch.covers_range(lower, upper))
    }
}

/// A tree that is being rewritten.
pub(crate) struct Rewrite<'c, C: WriteContext> {
    ctx: &'c C,
    tree: Tree,
    limit: usize,
    pages: Pages<'c, C>,
    leaf: LeafStage,
    /// Whether the open leaf has a range.
    is_open: bool,
    /// The leaf before it, not written yet; empty if there is none.
    full: LeafStage,
    /// New records are the last ones of the open leaf: more of them are to be expected.
    is_appended: bool,
    /// `inner[i]` collects nodes of level `i`.
    inner: Vec<Option<InnerStage>>,
    /// The next change that was not merged yet.
    next: Option<Change>,
    built: Vec<PageId>,
    /// Pages of the tree as it was that have no part in the new one, parents before their children.
    replaced: Vec<PageId>,
    /// So many of them may be.
    most: usize,
    /// Leaves of those.
    replaced_leaves: usize,
    /// From so many leaves on no others are replaced unless a key of theirs changes, and from which
    /// key on that was so.
    stops_at: usize,
    stopped: Option<Vec<u8>>,
    /// The last leaf was read for its changes.
    was_touched: bool,
    /// The copy of a leaf that was merged, for the next one.
    spare: Option<Box<Image>>,
    /// Steps since others had a turn, and after how many they have one.
    steps: (u32, u32),
}

/// A tree's new content, beside it.
pub(crate) struct Rewritten {
    tree: Tree,
    root: Box<Image>,
    /// Pages that go once the root has its new content, parents before their children.
    pub(crate) replaced: Vec<PageId>,
    /// New pages that may be in memory alone.
    pub(crate) unflushed: Vec<PageId>,
}

/// A node of the old tree on the way to the one that is looked at.
struct Step {
    image: Box<Image>,
    level: u8,
    next: usize,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

/// A child of the old tree.
struct Child {
    id: PageId,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
}

impl Step {
    fn child(&self, tree: Tree, position: usize) -> Result<Child, MalformedNode> {
        let node = Node::open(&*self.image, tree.id)?;
        let key = |position| {
            let mut key = Vec::new();
            node.key(position, &mut key).map(|()| key)
        };
        Ok(Child {
            id: node.child(position)?,
            lower: match position {
                0 => self.lower.clone(),
                _ => key(position - 1)?,
            },
            upper: match position == node.count() {
                true => self.upper.clone(),
                false => Some(key(position)?),
            },
        })
    }

    /// The children from `position` on that are to be read ahead.
    fn ahead(&self, tree: Tree, position: usize) -> Result<Vec<PageId>, MalformedNode> {
        let node = Node::open(&*self.image, tree.id)?;
        let end = node.count().min(position + 2 * READ_AHEAD);
        (position..=end).map(|at| node.child(at)).collect()
    }
}

fn corrupt<C: WriteContext>(ctx: &C, id: PageId, why: MalformedNode) -> StorageError {
    let failed = AttemptError::Corrupt(id, why.0).resolve(ctx);
    failed.err().unwrap_or(StorageError::Closed)
}

impl<'c, C: WriteContext> Rewrite<'c, C> {
    /// Of `tree`; pages are filled to `fill_percent`, belong to `token`, and replace `most` at
    /// most.
    pub(crate) fn new(
        ctx: &'c C,
        tree: Tree,
        fill_percent: usize,
        token: Token,
        most: usize,
    ) -> Self {
        Rewrite {
            ctx,
            tree,
            limit: CAPACITY * fill_percent.clamp(50, 100) / 100,
            pages: Pages::new(ctx, tree, token),
            leaf: LeafStage::new(),
            is_open: false,
            full: LeafStage::new(),
            is_appended: false,
            inner: Vec::new(),
            next: None,
            built: Vec::new(),
            replaced: Vec::new(),
            most,
            replaced_leaves: 0,
            stops_at: usize::MAX,
            stopped: None,
            was_touched: false,
            spare: None,
            steps: (0, 1),
        }
    }

    /// Lets others run only after so many pages were passed or written.
    pub(crate) fn seldom_waits(&mut self, steps: u32) {
        self.steps = (0, steps);
    }

    /// Has the new pages begin to be written at once.
    pub(crate) fn begin_early(&mut self) {
        self.pages.begin_early();
    }

    /// Once so many leaves are replaced, one at least, those that are left to be removed or packed
    /// stay as they are.
    pub(crate) fn stops_at(&mut self, leaves: usize) {
        self.stops_at = leaves.max(1);
    }

    /// The key from which on they have.
    pub(crate) fn stopped(&mut self) -> Option<Vec<u8>> {
        self.stopped.take()
    }

    /// Nothing is held, and this goes on for long.
    fn next_turn(&mut self) {
        let (done, every) = self.steps;
        self.steps.0 = (done + 1) % every.max(1);
        if self.steps.0 == 0 {
            self.ctx.next_turn();
        }
    }

    /// The pages that were built, to be freed where the new content is not wanted.
    pub(crate) fn built(&mut self) -> Vec<PageId> {
        std::mem::take(&mut self.built)
    }

    /// Builds the new content of the tree.
    ///
    /// # Errors
    ///
    /// [`TransactionError::TransactionTooLarge`] if too many pages would be replaced; those of
    /// `edits`, of reading and of reserving pages.
    pub(crate) fn run(&mut self, edits: &mut Edits<'_>) -> Result<Rewritten, TransactionError> {
        self.next = edits.next();
        let (image, level) = self.read(self.tree.root, None)?;
        let mut steps: Vec<Step> = Vec::new();
        match level {
            0 => self.merge_leaf(&image, &[], None, edits)?,
            _ => steps.push(Step {
                image,
                level,
                next: 0,
                lower: Vec::new(),
                upper: None,
            }),
        }
        // Bound: each round passes a child of a node, or a node.
        while let Some(step) = steps.last_mut() {
            let (level, position) = (step.level - 1, step.next);
            let id = step.image.page_id();
            let count = Node::open(&*step.image, self.tree.id).map(|node| node.count());
            if position > count.map_err(|why| corrupt(self.ctx, id, why))? {
                steps.pop();
                continue;
            }
            step.next += 1;
            self.next_turn();
            let child = step.child(self.tree, position);
            let child = child.map_err(|why| corrupt(self.ctx, id, why))?;
            let is_hollow = self.is_open && self.leaf.count() == 0;
            let upper = child.upper.as_deref();
            let has_change = self.has_change(upper);
            let is_to_go = edits.replaces(&child.lower, upper);
            let stops = is_to_go && self.replaced_leaves >= self.stops_at;
            if stops && self.stopped.is_none() {
                self.stopped = Some(child.lower.clone());
            }
            let is_changed = has_change || is_to_go && !stops;
            if !is_changed && !is_hollow {
                self.was_touched = false;
                self.share(level, child.lower, child.id)?;
                continue;
            }
            if level == 0 && !stops && edits.removes_all(&child.lower, upper) {
                // The open leaf goes on behind it.
                self.replace(child.id, level)?;
                self.open_leaf(&child.lower);
                self.was_touched = false;
                continue;
            }
            if level == 0 && self.was_touched && position % READ_AHEAD == 0 {
                let ahead = step.ahead(self.tree, position);
                let ahead = ahead.map_err(|why| corrupt(self.ctx, id, why))?;
                self.ctx.read_ahead(&ahead);
            }
            self.replace(child.id, level)?;
            let (image, _) = self.read(child.id, Some(level))?;
            if level == 0 {
                self.was_touched = true;
                let upper = child.upper.as_deref();
                self.merge_leaf(&image, &child.lower, upper, edits)?;
                self.spare = Some(image);
            } else {
                steps.push(Step {
                    image,
                    level,
                    next: 0,
                    lower: child.lower,
                    upper: child.upper,
                });
            }
        }
        self.finish()
    }

    /// Whether a change is left below `upper`.
    fn has_change(&self, upper: Option<&[u8]>) -> bool {
        let next = self.next.as_ref();
        next.is_some_and(|next| upper.is_none_or(|upper| &next.key[..] < upper))
    }

    fn replace(&mut self, id: PageId, level: u8) -> Result<(), TransactionError> {
        self.replaced.push(id);
        self.replaced_leaves += usize::from(level == 0);
        if self.replaced.len() > self.most {
            return Err(TransactionError::TransactionTooLarge {
                bytes: 8 * self.replaced.len() as u64,
                limit: 8 * self.most as u64,
            });
        }
        Ok(())
    }

    /// A copy of a page, and its level.
    fn read(
        &mut self,
        id: PageId,
        level: Option<u8>,
    ) -> Result<(Box<Image>, u8), TransactionError> {
        let mut image = self.spare.take().unwrap_or_else(Image::zeroed);
        loop {
            let mut attempt = || {
                let page = self.ctx.pool().read_untouched(id)?;
                image.load(page.words());
                page.validate()
            };
            match attempt() {
                Ok(()) => {
                    let found = Node::open(&*image, self.tree.id).map(|node| node.level());
                    let found = found.map_err(|why| corrupt(self.ctx, id, why))?;
                    if level.is_some_and(|level| level != found) {
                        let why = MalformedNode("its level is not one below its parent's");
                        return Err(corrupt(self.ctx, id, why).into());
                    }
                    return Ok((image, found));
                }
                Err(restart) => AttemptError::from(restart).resolve(self.ctx)?,
            }
        }
    }

    /// Has a leaf be open, whose range starts at `lower` if none is.
    fn open_leaf(&mut self, lower: &[u8]) {
        if !self.is_open {
            self.leaf.set_lower(lower);
            self.is_open = true;
        }
    }

    /// Adds the records of a leaf, with the changes of its range.
    fn merge_leaf(
        &mut self,
        image: &Image,
        lower: &[u8],
        upper: Option<&[u8]>,
        edits: &mut Edits<'_>,
    ) -> Result<(), TransactionError> {
        self.open_leaf(lower);
        let id = image.page_id();
        let tree = self.tree.id;
        let node = Node::open(image, tree).map_err(|why| corrupt(self.ctx, id, why))?;
        let has_stopped = self.stopped.is_some();
        let mut key = Vec::new();
        for position in 0..node.count() {
            let record = node
                .key(position, &mut key)
                .and_then(|()| node.value(position));
            let at = record.map_err(|why| corrupt(self.ctx, id, why))?;
            let old = ValueRef {
                kind: at.kind,
                bytes: &image.bytes()[at.at..at.at + at.len],
            };
            let is_changed = loop {
                match self.next.as_ref().map(|next| next.key.cmp(&key)) {
                    Some(Ordering::Less) => self.take_change(edits)?,
                    order => break order == Some(Ordering::Equal),
                }
            };
            if is_changed {
                self.take_change(edits)?;
            } else if has_stopped || !edits.removes(&key) {
                self.push(&key, old)?;
            }
        }
        self.is_appended = self.has_change(upper);
        while self.has_change(upper) {
            self.take_change(edits)?;
        }
        Ok(())
    }

    /// Adds what the next change leaves of its key.
    fn take_change(&mut self, edits: &mut Edits<'_>) -> Result<(), TransactionError> {
        let following = edits.next();
        let Some(change) = std::mem::replace(&mut self.next, following) else {
            return Ok(());
        };
        if let Some((kind, bytes)) = change.value {
            let value = ValueRef {
                kind,
                bytes: &bytes,
            };
            self.push(&change.key, value)?;
        }
        Ok(())
    }

    fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<(), TransactionError> {
        if self.leaf.count() == 0 {
            self.leaf.push_first(key, value);
            return Ok(());
        }
        if self.leaf.push(key, value, self.limit) {
            return Ok(());
        }
        if key <= self.leaf.last_key() {
            let why = MalformedNode("its keys are not in order");
            return Err(corrupt(self.ctx, self.tree.root, why).into());
        }
        self.emit_leaf()?;
        let fits = self.leaf.push(key, value, self.limit);
        assert!(fits, "a leaf can be closed after one record");
        Ok(())
    }

    /// Finishes the open leaf, all but its last record.
    fn emit_leaf(&mut self) -> Result<(), TransactionError> {
        self.next_turn();
        self.write_full()?;
        std::mem::swap(&mut self.leaf, &mut self.full);
        self.full.split_off(self.full.count() - 1, &mut self.leaf);
        Ok(())
    }

    /// Writes the leaf before the open one.
    fn write_full(&mut self) -> Result<(), TransactionError> {
        if self.full.count() == 0 {
            return Ok(());
        }
        let page = self.pages.reserve()?;
        let image = (self.full).build_all(self.tree.id, Some(self.leaf.lower()));
        let id = self.pages.write(page, image);
        self.built.push(id);
        let lower = self.full.replace_lower(Vec::new());
        self.add_child(0, lower, id)
    }

    /// Adds a subtree of the old tree, whose top is of `level` and whose range starts at `lower`.
    fn share(&mut self, level: u8, lower: Vec<u8>, id: PageId) -> Result<(), TransactionError> {
        self.close_below(level, Some(&lower))?;
        self.add_child(usize::from(level), lower, id)
    }

    /// Finishes the open nodes below `level`, which end at `upper`.
    fn close_below(&mut self, level: u8, upper: Option<&[u8]>) -> Result<(), TransactionError> {
        if self.is_open {
            let fits = |leaf: &LeafStage| match upper {
                Some(upper) => leaf.fits_below(upper),
                None => leaf.fits_unbounded(),
            };
            if !fits(&self.leaf) {
                self.emit_leaf()?;
            }
            if let Some(upper) = upper.filter(|_| !self.is_appended) {
                self.leaf.even_out(&mut self.full, upper);
            }
            self.write_full()?;
            let page = self.pages.reserve()?;
            let image = self.leaf.build_all(self.tree.id, upper);
            let id = self.pages.write(page, image);
            self.built.push(id);
            let lower = self.leaf.replace_lower(Vec::new());
            self.is_open = false;
            self.add_child(0, lower, id)?;
        }
        // Each that is closed may open the one above it.
        for below in 0..usize::from(level) {
            self.close_inner(below, upper)?;
        }
        Ok(())
    }

    /// Finishes the open node of children of level `below`, which ends at `upper`.
    fn close_inner(&mut self, below: usize, upper: Option<&[u8]>) -> Result<(), TransactionError> {
        let Some(mut stage) = self.inner.get_mut(below).and_then(Option::take) else {
            return Ok(());
        };
        let node_level = below as u8 + 1;
        let fits = match upper {
            Some(upper) => stage.fits_below(upper),
            None => stage.fits_unbounded(),
        };
        if !fits {
            let page = self.pages.reserve()?;
            let (image, lower) = stage.build(self.tree.id, node_level, false);
            let id = self.pages.write(page, image);
            self.built.push(id);
            self.add_child(below + 1, lower, id)?;
        }
        let page = self.pages.reserve()?;
        let (image, lower) = stage.build_all(self.tree.id, node_level, upper);
        let id = self.pages.write(page, image);
        self.built.push(id);
        self.add_child(below + 1, lower, id)
    }

    /// Adds a finished node of `level`, whose range starts at `lower`, to the level above it.
    fn add_child(
        &mut self,
        level: usize,
        lower: Vec<u8>,
        id: PageId,
    ) -> Result<(), TransactionError> {
        let (mut level, mut lower, mut id) = (level, lower, id);
        // Bound: one level higher each time.
        loop {
            if self.inner.len() <= level {
                self.inner.resize_with(level + 1, || None);
            }
            let Some(stage) = &mut self.inner[level] else {
                self.inner[level] = Some(InnerStage::new(lower, id));
                return Ok(());
            };
            if stage.push(&lower, id, self.limit) {
                return Ok(());
            }
            let page = self.pages.reserve()?;
            let (image, next) = stage.build(self.tree.id, level as u8 + 1, false);
            let fits = stage.push(&lower, id, self.limit);
            assert!(fits, "an inner node holds two separators");
            let finished = self.pages.write(page, image);
            self.built.push(finished);
            (level, lower, id) = (level + 1, next, finished);
        }
    }

    /// Finishes all open nodes; the last one's content becomes the root's.
    fn finish(&mut self) -> Result<Rewritten, TransactionError> {
        self.close_below(0, None)?;
        let mut level = 0;
        // Bound: the number of levels, which grows only while nodes remain.
        let top = loop {
            let is_last = level + 1 == self.inner.len();
            match &self.inner[level] {
                Some(stage) if is_last && stage.is_single() => break stage.single().1,
                _ => self.close_inner(level, None)?,
            }
            level += 1;
        };
        let (mut root, _) = self.read(top, None)?;
        put_u64(&mut root.0, offset::PAGE_ID, self.tree.root.0);
        // Its content is the root's. Only replaced nodes name it.
        self.replaced.push(top);
        Ok(Rewritten {
            tree: self.tree,
            root,
            replaced: std::mem::take(&mut self.replaced),
            unflushed: self.pages.take_unflushed(),
        })
    }
}

/// The body of the record that gives the tree its new content: confirms `token`, and frees what is
/// replaced. Commits before it are repeated in the tree: they change its memory.
pub(crate) fn root_body(rewritten: &Rewritten, token: Token) -> Vec<u8> {
    let Rewritten {
        tree,
        root,
        replaced,
        ..
    } = rewritten;
    let images = [(tree.root, &root.0)].into_iter();
    structure_body(tree.id, images, replaced.iter().copied(), &[token], None)
}

/// Gives the tree its new content, as the record at `record` says.
pub(crate) fn install_root<C: WriteContext>(
    ctx: &C,
    rewritten: &Rewritten,
    record: Lsn,
) -> Result<(), StorageError> {
    loop {
        let attempt = || {
            let mut page = root(ctx.pool(), &rewritten.tree)?.page.exclusive()?;
            page.words().store_all(&rewritten.root.0);
            page.changed(record, record);
            Ok(())
        };
        match attempt() {
            Ok(()) => return Ok(()),
            Err::<_, AttemptError>(fail) => fail.resolve(ctx)?,
        }
    }
}
