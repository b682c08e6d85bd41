//! Bulk load of sorted records: leaves and inner nodes are built in private
//! pages, full, and linked to the tree at the end, in one structure
//! modification. Until then, and if the load fails, the tree is as it was.

mod link;
mod pages;
mod rewrite;
mod stage;

pub(crate) use rewrite::{Change, Edits, Rewrite, Rewritten, install_root, root_body};

use std::ops::Bound;
use std::sync::Arc;

use link::{Built, Linked};
use pages::Pages;
use stage::{InnerStage, LeafStage};

use super::{Cursor, Descriptor, Direction, Tree, ValueKind, ValueRef};
use crate::context::{ReadContext, WriteContext};
use crate::error::{LoadError, StorageError};
use crate::log::record::Token;
use crate::node::{CAPACITY, separator};
use crate::page::PageId;

/// How full new pages are made on average, in percent: a full page would split at the first record
/// that is inserted into it later.
pub(crate) const FILL_PERCENT: usize = 94;

const NOT_ABOVE: &str = "its key is not above that of the record before it";
const NOT_BEYOND: &str = "its key is not above every key that the tree has";
const OVERTAKEN: &str =
    "keys were inserted above it, or right below it, while the load was running";
const TOO_HOLLOW: &str = "too many empty pages follow the tree's last key; remove a key near it";

/// A bulk load in progress.
pub(crate) struct Loader<'c, C: WriteContext> {
    ctx: &'c C,
    tree: Tree,
    /// Bytes of a page to fill.
    limit: usize,
    leaf: LeafStage,
    /// `inner[i]` collects the nodes of level `i` for the open node of level `i + 1`.
    inner: Vec<InnerStage>,
    pages: Pages<'c, C>,
    records: u64,
    /// The tree's last key, which all loaded keys must exceed; none if the tree is one empty leaf.
    edge: Option<Vec<u8>>,
    /// Finished nodes that an error kept from their parents.
    orphans: Vec<PageId>,
    /// The subtree to be linked, once all records are in it.
    built: Option<Built>,
    /// Whether the pages built are linked, or freed.
    is_over: bool,
    /// The token of the built pages until they are linked.
    token: Token,
    /// Some of the records have large values.
    has_large: bool,
}

/// A bulk load between two tasks: it holds no frames, no reserved pages and no log space.
pub(crate) struct Paused {
    tree: Tree,
    limit: usize,
    leaf: LeafStage,
    inner: Vec<InnerStage>,
    records: u64,
    edge: Option<Vec<u8>>,
    orphans: Vec<PageId>,
    unflushed: Vec<PageId>,
    token: Token,
    has_large: bool,
}

impl Paused {
    /// Goes on with the load in another task.
    pub(crate) fn resume<C: WriteContext>(self, ctx: &C) -> Loader<'_, C> {
        Loader {
            ctx,
            tree: self.tree,
            limit: self.limit,
            leaf: self.leaf,
            inner: self.inner,
            pages: Pages::new(ctx, self.tree, self.token).with_unflushed(self.unflushed),
            records: self.records,
            edge: self.edge,
            orphans: self.orphans,
            built: None,
            is_over: false,
            token: self.token,
            has_large: self.has_large,
        }
    }
}

/// Why records are not loaded.
#[derive(Debug)]
pub(crate) enum NotLoaded {
    /// They are not in order, or not behind all that the tree has.
    Order {
        record: u64,
        reason: &'static str,
    },
    Storage(StorageError),
}

impl From<StorageError> for NotLoaded {
    fn from(error: StorageError) -> NotLoaded {
        NotLoaded::Storage(error)
    }
}

impl NotLoaded {
    /// The error of a load of the engine's own, whose records are in order.
    pub(crate) fn of_own_work(self) -> StorageError {
        match self {
            NotLoaded::Order { .. } => {
                StorageError::Unexpected(Arc::new(LoadError::from(self).into()))
            }
            NotLoaded::Storage(error) => error,
        }
    }
}

impl From<NotLoaded> for LoadError {
    fn from(error: NotLoaded) -> LoadError {
        match error {
            NotLoaded::Order { record, reason } => LoadError::LoadOrder { record, reason },
            NotLoaded::Storage(error) => error.into(),
        }
    }
}

/// The last key that the pages of `tree` have.
pub(crate) fn last_key<C: ReadContext>(ctx: &C, tree: Tree) -> Result<Option<Vec<u8>>, C::Error> {
    let mut cursor = Cursor::new(tree, Bound::Unbounded, Bound::Unbounded, Direction::Reverse);
    Ok(cursor.next(ctx)?.map(|entry| entry.key.to_vec()))
}

impl<'c, C: WriteContext> Loader<'c, C> {
    /// Leaves the load as it is, before it is complete, for another task to go on with.
    pub(crate) fn pause(mut self) -> Paused {
        debug_assert!(self.built.is_none(), "it is complete");
        // The built pages belong to the answer from here on.
        self.is_over = true;
        Paused {
            tree: self.tree,
            limit: self.limit,
            leaf: std::mem::replace(&mut self.leaf, LeafStage::new()),
            inner: std::mem::take(&mut self.inner),
            records: self.records,
            edge: self.edge.take(),
            orphans: std::mem::take(&mut self.orphans),
            unflushed: self.pages.take_unflushed(),
            token: self.token,
            has_large: self.has_large,
        }
    }

    /// Starts a load into `tree`, after its last key. Leaves are filled to
    /// `fill_percent` on average, inner nodes at most; from 50 to 100. Pages of a tree without
    /// records go before, while what `alone` answers keeps others from changing the tree.
    pub(crate) fn new<G, E: From<StorageError>>(
        ctx: &'c C,
        tree: Tree,
        fill_percent: usize,
        alone: impl FnOnce() -> Result<G, E>,
    ) -> Result<Self, E> {
        let last = last_key(ctx, tree)?;
        if last.is_none() {
            let _alone = alone()?;
            link::collapse(ctx, &tree)?;
        }
        let is_empty = last.is_none() && link::is_empty_leaf(ctx, &tree)?;
        let token = ctx.log().stamp(ctx.writer()).0;
        Ok(Loader {
            ctx,
            tree,
            limit: CAPACITY * fill_percent.clamp(50, 100) / 100,
            leaf: LeafStage::new(),
            inner: Vec::new(),
            pages: Pages::new(ctx, tree, token),
            records: 0,
            edge: (!is_empty).then(|| last.unwrap_or_default()),
            orphans: Vec::new(),
            built: None,
            is_over: false,
            token,
            has_large: false,
        })
    }

    /// The token of the load's pages and chunks until it is linked.
    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Whether some of the records have large values.
    pub(crate) fn has_large(&self) -> bool {
        self.has_large
    }

    /// Adds a record, whose key is above all before it.
    ///
    /// # Errors
    ///
    /// [`NotLoaded::Order`]: the load can go on with another record. After other errors it can only
    /// be aborted.
    pub(crate) fn push(&mut self, key: &[u8], value: ValueRef<'_>) -> Result<(), NotLoaded> {
        Tree::check_key(key);
        assert!(value.is_storable(key.len()), "an oversized value");
        if self.leaf.count() == 0 {
            self.start(key)?;
            self.leaf.push_first(key, value);
        } else if !self.leaf.push(key, value, self.limit) {
            if key <= self.leaf.last_key() {
                return Err(self.out_of_order(NOT_ABOVE));
            }
            self.emit_leaf(false)?;
            let fits = self.leaf.push(key, value, self.limit);
            assert!(fits, "a leaf can be closed after one record");
        }
        self.records += 1;
        self.has_large |= value.kind == ValueKind::Extent;
        Ok(())
    }

    fn out_of_order(&self, reason: &'static str) -> NotLoaded {
        NotLoaded::Order {
            record: self.records,
            reason,
        }
    }

    /// Sets the lower bound of all that is loaded.
    fn start(&mut self, first: &[u8]) -> Result<(), NotLoaded> {
        if let Some(last) = &self.edge {
            if first <= &last[..] {
                return Err(self.out_of_order(NOT_BEYOND));
            }
            self.leaf.set_lower(separator(last, first));
        }
        Ok(())
    }

    /// Writes the open leaf, all but its last record unless `is_last`.
    fn emit_leaf(&mut self, is_last: bool) -> Result<(), StorageError> {
        let page = self.pages.reserve()?;
        let (image, next_lower) = self.leaf.build(self.tree.id, is_last);
        let id = self.pages.write(page, image);
        let lower = self.leaf.replace_lower(next_lower);
        self.add_child(0, lower, id)
    }

    /// Adds a finished node of `level`, whose range starts at `lower`, to the
    /// level above it.
    fn add_child(&mut self, level: usize, lower: Vec<u8>, id: PageId) -> Result<(), StorageError> {
        let (mut level, mut lower, mut id) = (level, lower, id);
        // Bound: one level higher each time.
        loop {
            if self.inner.len() == level {
                self.inner.push(InnerStage::new(lower, id));
                return Ok(());
            }
            if self.inner[level].push(&lower, id, self.limit) {
                return Ok(());
            }
            let page = match self.pages.reserve() {
                Ok(page) => page,
                Err(stop) => {
                    self.orphans.push(id);
                    return Err(stop);
                }
            };
            let stage = &mut self.inner[level];
            let (image, next) = stage.build(self.tree.id, level as u8 + 1, false);
            let fits = stage.push(&lower, id, self.limit);
            assert!(fits, "an inner node holds two separators");
            let finished = self.pages.write(page, image);
            (level, lower, id) = (level + 1, next, finished);
        }
    }

    /// Finishes all open nodes; what remains is one page, or none.
    fn finish_nodes(&mut self) -> Result<Option<Built>, StorageError> {
        if self.leaf.count() == 0 {
            return Ok(None);
        }
        if !self.leaf.fits_unbounded() {
            self.emit_leaf(false)?;
        }
        self.emit_leaf(true)?;
        let mut level = 0;
        // Bound: the number of levels, which grows only while nodes remain.
        while level + 1 < self.inner.len() || !self.inner[level].is_single() {
            for is_last in [false, true] {
                if !is_last && self.inner[level].fits_unbounded() {
                    continue;
                }
                let page = self.pages.reserve()?;
                let (image, next) = self.inner[level].build(self.tree.id, level as u8 + 1, is_last);
                let id = self.pages.write(page, image);
                self.add_child(level + 1, next, id)?;
            }
            level += 1;
        }
        let (lower, top) = self.inner[level].single();
        self.inner.truncate(level + 1);
        Ok(Some(Built {
            top,
            level: level as u8,
            lower,
        }))
    }

    /// Finishes all pages, and waits until they are on the drive, so that linking them is
    /// short. After an error the load can only be aborted.
    pub(crate) fn complete(&mut self) -> Result<(), StorageError> {
        self.built = self.finish_nodes()?;
        if self.built.is_some() {
            // The record that links the pages does not hold them.
            self.ctx.flush_pages(self.pages.take_unflushed())?;
        }
        Ok(())
    }

    /// From which key on all records are the loaded ones once they are linked; `None` if nothing
    /// was loaded, or it is not complete.
    pub(crate) fn lower(&self) -> Option<&[u8]> {
        self.built.as_ref().map(|built| &built.lower[..])
    }

    /// Whether the tree has such records already, so that the load will be refused. Asked once it
    /// is complete, while no commit changes the tree.
    pub(crate) fn is_overtaken(&self) -> Result<bool, StorageError> {
        let Some(lower) = self.lower() else {
            return Ok(false);
        };
        let lower = Bound::Included(lower);
        let mut cursor = Cursor::new(self.tree, lower, Bound::Unbounded, Direction::Forward);
        Ok(cursor.next(self.ctx)?.is_some())
    }

    /// Links the loaded subtree to the tree; returns the number of records.
    ///
    /// # Errors
    ///
    /// [`NotLoaded::Order`] if another task has inserted keys beyond the first
    /// one loaded since. The tree is then as it would be without the load.
    pub(crate) fn link(mut self, on_extent: &mut dyn FnMut(&Descriptor)) -> Result<u64, NotLoaded> {
        let result = self.try_link();
        match result {
            Ok(()) => self.is_over = true,
            Err(_) => self.free_built(on_extent),
        }
        result.map(|()| self.records)
    }

    fn try_link(&mut self) -> Result<(), NotLoaded> {
        let Some(built) = &self.built else {
            return Ok(());
        };
        let reason = match built.link(self.ctx, &self.tree, self.token)? {
            Linked::Yes => return Ok(()),
            Linked::Overlaps => OVERTAKEN,
            Linked::TooHollow => TOO_HOLLOW,
        };
        Err(NotLoaded::Order { record: 0, reason })
    }

    /// [`Loader::complete`], then [`Loader::link`].
    #[cfg(test)]
    pub(crate) fn finish(
        mut self,
        on_extent: &mut dyn FnMut(&Descriptor),
    ) -> Result<u64, NotLoaded> {
        match self.complete() {
            Ok(()) => self.link(on_extent),
            Err(stop) => {
                self.free_built(on_extent);
                Err(stop.into())
            }
        }
    }

    /// Aborts the load; the tree is as it was. `on_extent` receives every extent that the loaded
    /// records named.
    pub(crate) fn abort(mut self, on_extent: &mut dyn FnMut(&Descriptor)) {
        self.free_built(on_extent);
    }

    fn free_built(&mut self, on_extent: &mut dyn FnMut(&Descriptor)) {
        self.is_over = true;
        self.leaf.extents(on_extent);
        let stages = std::mem::take(&mut self.inner);
        let mut roots = std::mem::take(&mut self.orphans);
        roots.extend(stages.into_iter().flat_map(InnerStage::children));
        for root in roots {
            let part = Tree {
                root,
                id: self.tree.id,
            };
            // A page that cannot be read stays allocated; a check of the store finds it.
            // Bound: every round frees pages.
            let mut note = |extent: &Descriptor| {
                on_extent(extent);
                Ok(())
            };
            while let Ok(false) = part.free_some(self.ctx, 64, &mut note) {}
            // As its pages.
            let _ = part.free_root(self.ctx);
        }
        self.ctx.cancel_provisional(Some(self.token), &[]);
    }
}

impl<C: WriteContext> Drop for Loader<'_, C> {
    fn drop(&mut self) {
        if !self.is_over {
            self.free_built(&mut |_| {});
        }
    }
}
