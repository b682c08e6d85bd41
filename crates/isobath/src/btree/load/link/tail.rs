//! Linking if leaves at the tree's end have lost all their records.
//!
//! Two paths lead to the last leaf that keeps its place and to the rightmost one;
//! they part at the *fork*. All that lies between them, and the right path itself,
//! is empty. The left path's nodes end where the loaded subtree begins. The right
//! path's nodes above the subtree's level stay, each with one child, down to it.

use super::{Built, Changed, Edge, Outcome, right_edge};
use crate::btree::descend::{Hold, root};
use crate::btree::smo::{Modification, make_room, with_pages};
use crate::btree::{AttemptError, Tree};
use crate::context::WriteContext;
use crate::node::{Builder, MalformedNode};
use crate::page::PageId;

/// Most empty pages that go in one modification.
const MAX_EMPTY: usize = 64;
/// Leaves that a step of trimming takes away. Each may have inner nodes of its own.
const TRIMMED: usize = 4;

/// A node of the left path, its lower bound, and how many of its separators stay.
struct Ending<'p> {
    hold: Hold<'p>,
    lower: Vec<u8>,
    kept: usize,
}

/// The part of the tail that an attempt has found.
struct Tail<'p> {
    /// The left path, from the fork down to a leaf.
    left: Vec<Ending<'p>>,
    /// Empty pages that go.
    empty: Vec<Hold<'p>>,
}

impl Built {
    /// Links the subtree in place of the empty nodes behind `edge[fork]`, the lowest of
    /// the right edge that covers keys below it.
    pub(super) fn replace_tail<'p, C: WriteContext>(
        &self,
        ctx: &'p C,
        tree: &Tree,
        edge: &[Edge<'p>],
        fork: usize,
        mut modification: Modification<'p>,
    ) -> Result<Outcome, AttemptError> {
        let Tail { left, mut empty } = match self.tail(ctx, tree, &edge[fork])? {
            Ok(tail) => tail,
            Err(outcome) => return Ok(outcome),
        };
        let mut changed: Vec<(Hold<'p>, Changed)> = Vec::new();
        for Edge { hold, lower } in &edge[..fork] {
            let beside = self.beside(tree, hold, lower)?;
            changed.extend(beside.map(|image| (*hold, image)));
        }
        for (at, Ending { hold, lower, kept }) in left.iter().enumerate() {
            let level = hold.node(tree)?.level();
            let image = if at > 0 || level <= self.level {
                self.ending(tree, hold, lower, *kept)?
            } else if level == self.level + 1 {
                self.naming(tree, hold, *kept, self.top)?
            } else {
                self.naming(tree, hold, *kept, edge[fork + 1].hold.id)?
            };
            changed.push((*hold, image));
        }
        for (at, Edge { hold, .. }) in edge.iter().enumerate().skip(fork + 1) {
            let level = hold.node(tree)?.level();
            if level <= self.level {
                break;
            }
            let below = edge.get(at + 1).map_or(self.top, |below| below.hold.id);
            let child = match level == self.level + 1 {
                true => self.top,
                false => below,
            };
            let mut only = Builder::new(tree.id, level, &self.lower, None);
            only.set_leftmost(child);
            changed.push((*hold, Ok(only.finish())));
            empty.retain(|empty| empty.id != hold.id);
        }
        // The rightmost leaf may be the one that is linked: then it stays, with more keys to cover.
        if let Some(at) = empty.iter().position(|empty| empty.id == self.top) {
            let leaf = Builder::new(tree.id, 0, &self.lower, None).finish();
            changed.push((empty.swap_remove(at), Ok(leaf)));
        }
        for (hold, image) in changed {
            match image {
                Ok(image) => modification = modification.page(hold.page.exclusive()?, image),
                Err(outcome) => return Ok(outcome),
            }
        }
        for empty in &empty {
            modification = modification.unlink(empty.page.exclusive()?);
        }
        modification.apply(ctx);
        Ok(Outcome::Linked)
    }

    /// The left path below `fork`, and the nodes behind it, if they are empty.
    fn tail<'p, C: WriteContext>(
        &self,
        ctx: &'p C,
        tree: &Tree,
        fork: &Edge<'p>,
    ) -> Result<Result<Tail<'p>, Outcome>, AttemptError> {
        let mut tail = Tail {
            left: Vec::new(),
            empty: Vec::new(),
        };
        let (mut hold, mut lower) = (fork.hold, fork.lower.clone());
        // Bound: each round is one level lower.
        loop {
            let node = hold.node(tree)?;
            if node.is_leaf() {
                hold.validate()?;
                let kept = 0;
                tail.left.push(Ending { hold, lower, kept });
                return Ok(Ok(tail));
            }
            let kept = hold.checked(node.child_position_below(&self.lower))?;
            for position in kept + 1..=node.count() {
                let id = hold.checked(node.child(position))?;
                let child = checked_child(ctx, tree, &hold, id)?;
                if let Err(outcome) = self.add_empty(ctx, tree, child, &mut tail.empty)? {
                    return Ok(Err(outcome));
                }
            }
            let mut below = lower.clone();
            if kept > 0 {
                hold.checked(node.key(kept - 1, &mut below))?;
            }
            let id = hold.checked(node.child(kept))?;
            let child = checked_child(ctx, tree, &hold, id)?;
            tail.left.push(Ending { hold, lower, kept });
            (hold, lower) = (child, below);
        }
    }

    /// Adds the pages of a subtree without records.
    fn add_empty<'p, C: WriteContext>(
        &self,
        ctx: &'p C,
        tree: &Tree,
        top: Hold<'p>,
        into: &mut Vec<Hold<'p>>,
    ) -> Result<Result<(), Outcome>, AttemptError> {
        let mut left = vec![top];
        // Bound: `MAX_EMPTY` pages.
        while let Some(hold) = left.pop() {
            let node = hold.node(tree)?;
            if node.is_leaf() && node.count() > 0 {
                hold.validate()?;
                return Ok(Err(Outcome::Overlaps));
            }
            if into.len() + left.len() + node.count() >= MAX_EMPTY {
                hold.validate()?;
                return Ok(Err(Outcome::Hollow));
            }
            if !node.is_leaf() {
                for position in 0..=node.count() {
                    let id = hold.checked(node.child(position))?;
                    left.push(checked_child(ctx, tree, &hold, id)?);
                }
            }
            into.push(hold);
        }
        Ok(Ok(()))
    }
}

/// Takes some empty leaves away at the tree's end, so that its last leaf, which is empty,
/// covers their keys as well; not those below `from`. Says what the next step needs:
/// [`Outcome::Linked`] that one more may be taken, [`Outcome::Hollow`] that none can.
pub(super) fn trim<C: WriteContext>(
    ctx: &C,
    tree: &Tree,
    from: &[u8],
) -> Result<Outcome, C::Error> {
    let mut lower = Vec::new();
    let outcome = with_pages(ctx, |_| {
        let edge = right_edge(ctx, tree)?;
        let last = &edge[edge.len() - 1];
        if last.hold.node(tree)?.count() > 0 {
            last.hold.validate()?;
            return Ok(Outcome::Overlaps);
        }
        lower.clone_from(&last.lower);
        for _ in 0..TRIMMED {
            match lower_below(ctx, tree, &lower)? {
                below if below.is_empty() || &below[..] < from => break,
                below => lower = below,
            }
        }
        if lower == last.lower {
            return Ok(Outcome::Hollow);
        }
        let leaf = Built {
            top: last.hold.id,
            level: 0,
            lower: lower.clone(),
        };
        let fork = edge.partition_point(|node| node.lower < lower) - 1;
        leaf.replace_tail(ctx, tree, &edge, fork, Modification::new(*tree))
    })?;
    if let Outcome::MakeRoom(goal) = outcome {
        make_room(ctx, tree, &lower, goal)?;
        return Ok(Outcome::Linked);
    }
    Ok(outcome)
}

/// The lower bound of the leaf that covers the keys right below `bound`.
fn lower_below<C: WriteContext>(
    ctx: &C,
    tree: &Tree,
    bound: &[u8],
) -> Result<Vec<u8>, AttemptError> {
    let (mut hold, mut lower) = (root(ctx.pool(), tree)?, Vec::new());
    // Bound: each round is one level lower.
    loop {
        let node = hold.node(tree)?;
        if node.is_leaf() {
            hold.validate()?;
            return Ok(lower);
        }
        let position = hold.checked(node.child_position_below(bound))?;
        if position > 0 {
            hold.checked(node.key(position - 1, &mut lower))?;
        }
        let id = hold.checked(node.child(position))?;
        hold = checked_child(ctx, tree, &hold, id)?;
    }
}

/// The child `id` of a node, one level below it.
fn checked_child<'p, C: WriteContext>(
    ctx: &'p C,
    tree: &Tree,
    parent: &Hold<'p>,
    id: PageId,
) -> Result<Hold<'p>, AttemptError> {
    let child = parent.child(ctx.pool(), id, true)?;
    let level = child.node(tree)?.level();
    if parent.node(tree)?.level() != level + 1 {
        return Err(child.malformed(MalformedNode("its level is not one below its parent's")));
    }
    Ok(child)
}
