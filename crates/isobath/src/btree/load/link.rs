//! Links a loaded subtree to the right end of the tree.
//!
//! What the tree has at or above the subtree's lower bound must be empty: leaves
//! from which all records were removed. They go in the same modification.

mod tail;

use std::cmp::Ordering;

use tail::trim;

use crate::btree::descend::{Hold, root};
use crate::btree::smo::{Goal, Modification, make_room, merge, with_pages};
use crate::btree::{AttemptError, Tree};
use crate::buffer::Restart;
use crate::context::WriteContext;
use crate::error::StorageError;
use crate::log::record::Token;
use crate::node::{
    Builder, Image, MAX_LEVELS, MalformedNode, Node, cut_above, inner_cost, with_child,
    without_last_children,
};
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
    /// So many empty pages are in the way that they have to be merged first.
    Hollow,
    /// A node of the right edge has to be split first.
    MakeRoom(Goal),
}

/// A node's new content, or the step that has to come first.
type Changed = Result<Box<Image>, Outcome>;

/// The rightmost node of one level, and its lower bound.
struct Edge<'p> {
    hold: Hold<'p>,
    lower: Vec<u8>,
}

/// The result of linking a loaded subtree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Linked {
    Yes,
    /// The tree has keys at or above its lower bound; nothing has changed.
    Overlaps,
    /// The tree has too many empty pages there, and they cannot be merged.
    TooHollow,
}

impl Built {
    /// Links the subtree.
    pub(super) fn link<C: WriteContext>(
        &self,
        ctx: &C,
        tree: &Tree,
        token: Token,
    ) -> Result<Linked, StorageError> {
        // Bound: every round but the last splits a node, raises the root, or merges pages.
        loop {
            let outcome = with_pages(ctx, |reservation| {
                let edge = right_edge(ctx, tree)?;
                let node = edge[0].hold.node(tree)?;
                if node.is_leaf() && node.count() == 0 {
                    if self.lower.is_empty() {
                        return self.become_root(ctx, tree, &edge[0].hold, token);
                    }
                } else if self.lower.is_empty() {
                    // The tree was empty when the load began, and is one leaf no longer.
                    return match node.is_leaf() {
                        true => edge[0].hold.validate().map(|()| Outcome::Overlaps),
                        false => edge[0].hold.validate().map(|()| Outcome::Hollow),
                    };
                }
                if node.level() > self.level {
                    return self.append(ctx, tree, edge, token);
                }
                if node.level() + 2 >= MAX_LEVELS {
                    return Err(edge[0]
                        .hold
                        .malformed(MalformedNode("the tree has too many levels")));
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
                Outcome::Linked => return Ok(Linked::Yes),
                Outcome::Overlaps => return Ok(Linked::Overlaps),
                Outcome::MakeRoom(goal) => make_room(ctx, tree, &self.lower, goal)?,
                Outcome::Hollow => match trim(ctx, tree, &self.lower)? {
                    Outcome::Overlaps => return Ok(Linked::Overlaps),
                    Outcome::Hollow if !merge_last(ctx, tree)? => return Ok(Linked::TooHollow),
                    _ => {}
                },
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
    ) -> Result<Outcome, AttemptError> {
        let top = ctx.pool().read(self.top)?;
        let (root, top) = (root.page.exclusive()?, top.exclusive()?);
        let image = Image::copy_of(top.words());
        Modification::new(*tree)
            .page(root, image)
            .unlink(top)
            .load(token, &[])
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
    ) -> Result<Outcome, AttemptError> {
        let mut modification = Modification::new(*tree).load(token, &self.lower);
        // The nodes from here on cover keys below the subtree's: the lowest of them is the
        // leaf with the tree's last keys, or it has no part in the tail that is empty.
        let fork = edge.partition_point(|node| node.lower < self.lower) - 1;
        if fork + 1 < edge.len() {
            return self.replace_tail(ctx, tree, &edge, fork, modification);
        }
        for Edge { hold, lower } in edge {
            match self.beside(tree, &hold, &lower)? {
                None => {}
                Some(Ok(image)) => modification = modification.page(hold.page.exclusive()?, image),
                Some(Err(outcome)) => return Ok(outcome),
            }
        }
        modification.apply(ctx);
        Ok(Outcome::Linked)
    }

    /// The new image of a right-edge node that covers keys below the subtree's and keeps all its
    /// children; `None` if it does not change.
    fn beside(
        &self,
        tree: &Tree,
        hold: &Hold<'_>,
        lower: &[u8],
    ) -> Result<Option<Changed>, AttemptError> {
        let node = hold.node(tree)?;
        let (level, count) = (node.level(), node.count());
        hold.validate()?;
        Ok(match level.cmp(&(self.level + 1)) {
            Ordering::Greater => None,
            Ordering::Equal => Some(self.naming(tree, hold, count, self.top)?),
            Ordering::Less => Some(self.ending(tree, hold, lower, count)?),
        })
    }

    /// An inner node with its first `kept` separators, and `child` last, for the keys from
    /// the subtree's lower bound on.
    fn naming(
        &self,
        tree: &Tree,
        hold: &Hold<'_>,
        kept: usize,
        child: PageId,
    ) -> Result<Changed, AttemptError> {
        let image = Image::copy_of(hold.page.words());
        hold.validate()?;
        let corrupt = |why: MalformedNode| AttemptError::Corrupt(hold.id, why.0);
        let node = Node::open(&*image, tree.id).map_err(corrupt)?;
        let (level, key_len) = (node.level(), self.lower.len());
        let shorter = without_last_children(node, tree.id, node.count() - kept).map_err(corrupt)?;
        let node = Node::open(&*shorter, tree.id).map_err(corrupt)?;
        if node.free() < inner_cost(key_len) {
            return Ok(Err(Outcome::MakeRoom(Goal::Separator { level, key_len })));
        }
        with_child(node, tree.id, kept, &self.lower, child)
            .map(Ok)
            .map_err(corrupt)
    }

    /// A node with its first `kept` separators, which ends at the subtree's lower bound.
    fn ending(
        &self,
        tree: &Tree,
        hold: &Hold<'_>,
        lower: &[u8],
        kept: usize,
    ) -> Result<Changed, AttemptError> {
        let image = Image::copy_of(hold.page.words());
        hold.validate()?;
        let corrupt = |why: MalformedNode| AttemptError::Corrupt(hold.id, why.0);
        let node = Node::open(&*image, tree.id).map_err(corrupt)?;
        if node.is_leaf() && node.count() > 0 {
            let mut last = Vec::new();
            node.key(node.count() - 1, &mut last).map_err(corrupt)?;
            if last >= self.lower {
                return Ok(Err(Outcome::Overlaps));
            }
        }
        let goal = match node.level() {
            0 => Goal::Record { value_len: 0 },
            level => Goal::Separator {
                level,
                key_len: self.lower.len(),
            },
        };
        let cut = cut_above(node, tree.id, lower, kept, &self.lower).map_err(corrupt)?;
        Ok(cut.ok_or(Outcome::MakeRoom(goal)))
    }
}

/// Whether the tree is one leaf without records.
pub(super) fn is_empty_leaf<C: WriteContext>(ctx: &C, tree: &Tree) -> Result<bool, StorageError> {
    loop {
        let attempt = || {
            let root = root(ctx.pool(), tree)?;
            let node = root.node(tree)?;
            root.validate()?;
            Ok(node.is_leaf() && node.count() == 0)
        };
        match attempt() {
            Ok(is_empty) => return Ok(is_empty),
            Err::<_, AttemptError>(fail) => fail.resolve(ctx)?,
        }
    }
}

/// Merges the rightmost leaf with the one before it, and empty nodes above likewise;
/// `false` if that changes nothing.
fn merge_last<C: WriteContext>(ctx: &C, tree: &Tree) -> Result<bool, StorageError> {
    let look = || -> Result<(usize, Vec<u8>), StorageError> {
        loop {
            let attempt = || {
                let edge = right_edge(ctx, tree)?;
                let height = edge.len();
                Ok((height, edge.into_iter().next_back().map(|last| last.lower)))
            };
            match attempt() {
                Ok((height, lower)) => return Ok((height, lower.unwrap_or_default())),
                Err::<_, AttemptError>(fail) => fail.resolve(ctx)?,
            }
        }
    };
    let before = look()?;
    merge(ctx, tree, &before.1);
    Ok(look()? != before)
}

/// Makes a tree without records one empty leaf; leaves it as it is where it has some.
pub(super) fn collapse<C: WriteContext>(ctx: &C, tree: &Tree) -> Result<(), StorageError> {
    // Bound: each round frees pages or makes space for that.
    while matches!(trim(ctx, tree, &[])?, Outcome::Linked) {}
    // Bound: each round but the last ends a page.
    while merge_last(ctx, tree)? {}
    Ok(())
}

/// The rightmost node of every level, from the root to a leaf.
fn right_edge<'p, C: WriteContext>(ctx: &'p C, tree: &Tree) -> Result<Vec<Edge<'p>>, AttemptError> {
    let mut hold = root(ctx.pool(), tree)?;
    let (mut edge, mut lower) = (Vec::new(), Vec::new());
    let mut above: Option<u8> = None;
    // Bound: each round is one level lower.
    loop {
        let node = hold.node(tree)?;
        if above.is_some_and(|above| above != node.level() + 1) {
            return Err(hold.malformed(MalformedNode("its level is not one below its parent's")));
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
