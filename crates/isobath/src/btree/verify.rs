//! Checks every invariant of a whole tree.

use super::{AttemptError, Tree, ValueKind};
use crate::buffer::{PagePlace, Restart};
use crate::context::ReadContext;
use crate::node::{Image, MalformedNode, Node, common_prefix};
use crate::page::PageId;

/// Receives everything that a tree owns.
pub(crate) trait Visitor {
    /// The tree reaches this page.
    fn page(&mut self, id: PageId, level: u8);
    /// A record names this extent.
    fn extent(&mut self, descriptor: &[u8]);
}

impl Visitor for () {
    fn page(&mut self, _: PageId, _: u8) {}
    fn extent(&mut self, _: &[u8]) {}
}

/// The shape of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shape {
    /// Levels, that of the leaves included.
    pub(crate) levels: u8,
    pub(crate) leaf_pages: u64,
    pub(crate) inner_pages: u64,
    pub(crate) records: u64,
    /// Bytes of leaves that slots, records and fences take.
    pub(crate) leaf_bytes_used: u64,
    /// As above, for inner nodes.
    pub(crate) inner_bytes_used: u64,
}

impl Shape {
    /// Share of the leaves' bytes that is in use, from 0 to 1.
    #[cfg(test)]
    pub(crate) fn leaf_fill(&self) -> f64 {
        self.leaf_bytes_used as f64 / (self.leaf_pages * crate::node::CAPACITY as u64) as f64
    }
}

/// Children that are asked for ahead of the walk.
const AHEAD: usize = 64;

/// A page to visit.
struct Child {
    id: PageId,
    /// Any for the root.
    level: Option<u8>,
    lower: Vec<u8>,
    /// No bound where empty.
    upper: Vec<u8>,
}

/// A node whose children are being visited.
struct Visit {
    child: Child,
    image: Box<Image>,
    /// The next child to visit.
    next: usize,
}

impl Tree {
    /// Reads the whole tree and checks order, fences, prefixes, levels and
    /// counts. No task may change the tree during that.
    ///
    /// A page that two others name is found by its fence: their ranges differ,
    /// and it can match one only.
    ///
    /// # Errors
    ///
    /// [`crate::error::StorageError::Structure`] with the first page that breaks a rule.
    pub(crate) fn verify<C: ReadContext>(
        &self,
        ctx: &C,
        visitor: &mut impl Visitor,
    ) -> Result<Shape, C::Error> {
        self.walk(ctx, visitor, true)
    }

    /// As [`Tree::verify`], for a tree that is being freed: its right edge may
    /// be missing, so that bounds are not checked.
    #[cfg(test)]
    pub(crate) fn verify_remains<C: ReadContext>(
        &self,
        ctx: &C,
        visitor: &mut impl Visitor,
    ) -> Result<Shape, C::Error> {
        self.walk(ctx, visitor, false)
    }

    fn walk<C: ReadContext>(
        &self,
        ctx: &C,
        visitor: &mut impl Visitor,
        with_bounds: bool,
    ) -> Result<Shape, C::Error> {
        let mut walk = Walk {
            tree: *self,
            with_bounds,
            shape: Shape::default(),
            visitor,
            ahead: Vec::with_capacity(AHEAD),
        };
        let mut path: Vec<Visit> = Vec::new();
        let mut next = Some(Child {
            id: self.root,
            level: None,
            lower: Vec::new(),
            upper: Vec::new(),
        });
        // Bound: two rounds for each page of the tree.
        loop {
            if let Some(child) = next.take() {
                let image = walk.visit(ctx, &child)?;
                path.push(Visit {
                    child,
                    image,
                    next: 0,
                });
                walk.shape.levels = walk.shape.levels.max(path.len() as u8);
            }
            let Some(top) = path.last_mut() else {
                return Ok(walk.shape);
            };
            match next_child(self, top) {
                Ok(Some(child)) => {
                    walk.read_ahead(ctx, top);
                    next = Some(child);
                }
                Ok(None) => drop(path.pop()),
                Err(why) => AttemptError::Corrupt(top.child.id, why.0).resolve(ctx)?,
            }
        }
    }
}

/// A walk over all pages of a tree.
struct Walk<'v, V> {
    tree: Tree,
    with_bounds: bool,
    shape: Shape,
    visitor: &'v mut V,
    /// Pages to ask for next; scratch space.
    ahead: Vec<PageId>,
}

impl<V: Visitor> Walk<'_, V> {
    /// Copies a page, checks it, and reports what it holds.
    fn visit<C: ReadContext>(&mut self, ctx: &C, child: &Child) -> Result<Box<Image>, C::Error> {
        let id = child.id;
        let image = loop {
            let fail = match ctx.pool().read_untouched(id) {
                Ok(page) => {
                    let image = Image::copy_of(page.words());
                    match page.validate() {
                        Ok(()) => break image,
                        Err(why) => AttemptError::Restart(why),
                    }
                }
                Err(Restart::Changed) if ctx.pool().mapping.place(id) == PagePlace::Free => {
                    AttemptError::Corrupt(id, "it is named by a node but is no page")
                }
                Err(why) => AttemptError::Restart(why),
            };
            fail.resolve(ctx)?;
        };
        if let Err(why) = self.check(&image, child) {
            AttemptError::Corrupt(id, why.0).resolve(ctx)?;
        }
        Ok(image)
    }

    /// Asks for children of `top` before the walk comes to them, so that the drive's queue stays
    /// full.
    fn read_ahead<C: ReadContext>(&mut self, ctx: &C, top: &Visit) {
        let at = top.next - 1;
        if !at.is_multiple_of(AHEAD / 2) {
            return;
        }
        let Ok(node) = Node::open(&*top.image, self.tree.id) else {
            return;
        };
        let first = if at == 0 { 1 } else { at + AHEAD / 2 };
        let end = (at + AHEAD).min(node.count() + 1);
        self.ahead.clear();
        for position in first..end {
            // The visit reports its problem.
            let Ok(id) = node.child(position) else { break };
            if !matches!(ctx.pool().mapping.place(id), PagePlace::Resident(_)) {
                self.ahead.push(id);
            }
        }
        // A refused page is read when the walk comes to it.
        ctx.read_ahead(&self.ahead);
    }

    fn check(&mut self, image: &Image, child: &Child) -> Result<(), MalformedNode> {
        let node = Node::open(image, self.tree.id)?;
        if child.level.is_some_and(|level| level != node.level()) {
            return Err(MalformedNode("its level is not one below its parent's"));
        }
        if image.page_id() != child.id {
            return Err(MalformedNode("it names another page id as its own"));
        }
        node.check()?;
        if self.with_bounds {
            check_bounds(&node, child)?;
        }
        self.visitor.page(child.id, node.level());
        if !node.is_leaf() {
            self.shape.inner_pages += 1;
            self.shape.inner_bytes_used += node.used() as u64;
            return Ok(());
        }
        self.shape.leaf_pages += 1;
        self.shape.records += node.count() as u64;
        self.shape.leaf_bytes_used += node.used() as u64;
        for position in 0..node.count() {
            let value = node.value(position)?;
            if value.kind == ValueKind::Extent {
                let descriptor = &image.0[value.at..value.at + value.len];
                self.visitor.extent(descriptor);
            }
        }
        Ok(())
    }
}

/// The next child to visit below `top`.
fn next_child(tree: &Tree, top: &mut Visit) -> Result<Option<Child>, MalformedNode> {
    let node = Node::open(&*top.image, tree.id)?;
    if node.is_leaf() || top.next > node.count() {
        return Ok(None);
    }
    let (mut lower, mut upper) = (top.child.lower.clone(), top.child.upper.clone());
    if let Some(before) = top.next.checked_sub(1) {
        node.key(before, &mut lower)?;
    }
    if top.next < node.count() {
        node.key(top.next, &mut upper)?;
    }
    let id = node.child(top.next)?;
    top.next += 1;
    Ok(Some(Child {
        id,
        level: Some(node.level() - 1),
        lower,
        upper,
    }))
}

fn check_bounds(node: &Node<'_, Image>, child: &Child) -> Result<(), MalformedNode> {
    let mut key = Vec::new();
    node.upper(&mut key)?;
    if key != child.upper {
        return Err(MalformedNode(
            "its upper fence is not its parent's separator",
        ));
    }
    let prefix = if child.upper.is_empty() {
        0
    } else {
        common_prefix(&child.lower, &child.upper)
    };
    if node.prefix_len() != prefix {
        return Err(MalformedNode("its prefix is not what its bounds share"));
    }
    if node.count() > 0 {
        node.key(0, &mut key)?;
        if key < child.lower || (!node.is_leaf() && key == child.lower) {
            return Err(MalformedNode("its first key is below its range"));
        }
    }
    Ok(())
}
