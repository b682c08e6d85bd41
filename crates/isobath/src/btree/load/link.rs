//! Links a loaded subtree to the right end of the tree.

use crate::btree::descend::{Hold, root};
use crate::btree::node::{Builder, Garbled, Image, Node, with_child, with_upper};
use crate::btree::smo::{Goal, Modification, make_room, with_pages};
use crate::btree::{Fail, MAX_LEVELS, Tree};
use crate::buffer::Restart;
use crate::context::WriteContext;
use crate::log::record::Token;
use crate::page::PageId;

/// A complete subtree for the keys from `lower` on, which nothing names.
pub(super) struct Built {
    pub(super) top: PageId,
    pub(super) level: u8,
    pub(super) lower: Vec<u8>,
}

/// How an attempt to link ended.
enum Outcome {
    Linked,
    /// The tree has keys that are not below the loaded ones.
    Overlaps,
    /// A node of the right edge has to be split first.
    MakeRoom(Goal),
}

/// The rightmost node of one level, and its lower bound.
struct Edge<'p> {
    hold: Hold<'p>,
    lower: Vec<u8>,
}

impl Built {
    /// Links the subtree; `false`, and nothing changed, where the tree has keys
    /// at or above its lower bound.
    pub(super) fn link<C: WriteContext>(
        &self,
        ctx: &C,
        tree: &Tree,
        token: Token,
    ) -> Result<bool, C::Stop> {
        // Bound: every round but the last makes room, or raises the root.
        loop {
            let outcome = with_pages(ctx, |reservation| {
                let edge = right_edge(ctx, tree)?;
                let node = edge[0].hold.node(tree)?;
                if node.is_leaf() && node.count() == 0 {
                    if self.lower.is_empty() {
                        return self.become_root(ctx, tree, &edge[0].hold, token);
                    }
                } else if self.lower.is_empty() {
                    edge[0].hold.validate()?;
                    return Ok(Outcome::Overlaps);
                }
                if node.level() > self.level {
                    return self.append(ctx, tree, edge, token);
                }
                if node.level() + 2 >= MAX_LEVELS {
                    return Err(edge[0]
                        .hold
                        .garbled(Garbled("the tree has too many levels")));
                }
                if reservation.len() == 0 {
                    return Err(Restart::NeedPages(1).into());
                }
                // The root's content moves into an only child.
                let level = node.level() + 1;
                let page = edge[0].hold.page.exclusive()?;
                let content = Image::copy_of(page.words());
                let child = reservation.take(ctx.pool());
                let mut builder = Builder::new(tree.id, level, &[], None);
                builder.set_leftmost(child.id());
                Modification::new(*tree)
                    .page(page, builder.finish())
                    .page(child, content)
                    .apply(ctx);
                Err(Restart::Changed.into())
            })?;
            match outcome {
                Outcome::Linked => return Ok(true),
                Outcome::Overlaps => return Ok(false),
                Outcome::MakeRoom(goal) => make_room(ctx, tree, &self.lower, goal)?,
            }
        }
    }

    /// Replaces the root of an empty tree by the loaded one.
    fn become_root<C: WriteContext>(
        &self,
        ctx: &C,
        tree: &Tree,
        root: &Hold<'_>,
        token: Token,
    ) -> Result<Outcome, Fail> {
        let top = ctx.pool().read(self.top)?;
        let (root, top) = (root.page.exclusive()?, top.exclusive()?);
        let image = Image::copy_of(top.words());
        Modification::new(*tree)
            .page(root, image)
            .unlink(top)
            .confirm(token)
            .apply(ctx);
        Ok(Outcome::Linked)
    }

    /// Ends the ranges of the rightmost nodes up to the subtree's level at its
    /// lower bound, and names it in the rightmost node above.
    fn append<C: WriteContext>(
        &self,
        ctx: &C,
        tree: &Tree,
        edge: Vec<Edge<'_>>,
        token: Token,
    ) -> Result<Outcome, Fail> {
        let mut modification = Modification::new(*tree).confirm(token);
        for Edge { hold, lower } in edge {
            let damaged = |why: Garbled| Fail::Damaged(hold.id, why.0);
            let level = hold.node(tree)?.level();
            if level > self.level + 1 {
                continue;
            }
            let page = hold.page.exclusive()?;
            let image = Image::copy_of(page.words());
            let node = Node::open(&*image, tree.id).map_err(damaged)?;
            if node.count() > 0 {
                let mut last = Vec::new();
                node.key(node.count() - 1, &mut last).map_err(damaged)?;
                if last >= self.lower {
                    return Ok(Outcome::Overlaps);
                }
            }
            let goal = if level == 0 {
                Goal::Record { value_len: 0 }
            } else {
                let key_len = self.lower.len();
                Goal::Separator { level, key_len }
            };
            let changed = if level == self.level + 1 {
                let cost = crate::btree::node::inner_cost(self.lower.len());
                if node.free() < cost {
                    return Ok(Outcome::MakeRoom(goal));
                }
                let child = with_child(node, tree.id, node.count(), &self.lower, self.top);
                Some(child.map_err(damaged)?)
            } else if lower >= self.lower {
                return Ok(Outcome::Overlaps);
            } else {
                with_upper(node, tree.id, &lower, &self.lower).map_err(damaged)?
            };
            match changed {
                Some(image) => modification = modification.page(page, image),
                None => return Ok(Outcome::MakeRoom(goal)),
            }
        }
        modification.apply(ctx);
        Ok(Outcome::Linked)
    }
}

/// Whether the tree is one leaf without records.
pub(super) fn is_empty_leaf<C: WriteContext>(ctx: &C, tree: &Tree) -> Result<bool, C::Stop> {
    loop {
        let attempt = || {
            let root = root(ctx.pool(), tree)?;
            let node = root.node(tree)?;
            root.validate()?;
            Ok(node.is_leaf() && node.count() == 0)
        };
        match attempt() {
            Ok(is_empty) => return Ok(is_empty),
            Err::<_, Fail>(fail) => fail.resolve(ctx)?,
        }
    }
}

/// The rightmost node of every level, from the root to a leaf.
fn right_edge<'p, C: WriteContext>(ctx: &'p C, tree: &Tree) -> Result<Vec<Edge<'p>>, Fail> {
    let mut hold = root(ctx.pool(), tree)?;
    let (mut edge, mut lower) = (Vec::new(), Vec::new());
    let mut above: Option<u8> = None;
    // Bound: each round is one level lower.
    loop {
        let node = hold.node(tree)?;
        if above.is_some_and(|above| above != node.level() + 1) {
            return Err(hold.garbled(Garbled("its level is not one below its parent's")));
        }
        above = Some(node.level());
        edge.push(Edge {
            hold,
            lower: lower.clone(),
        });
        if node.is_leaf() {
            hold.validate()?;
            return Ok(edge);
        }
        if node.count() > 0 {
            hold.checked(node.key(node.count() - 1, &mut lower))?;
        }
        let id = hold.checked(node.child(node.count()))?;
        hold = hold.child(ctx.pool(), id, true)?;
    }
}
