//! Splits of full nodes, and root growth.

use super::{Modification, with_pages};
use crate::btree::descend::{Descent, Hold};
use crate::btree::{AttemptError, Tree};
use crate::buffer::{Exclusive, Reservation, Restart};
use crate::context::WriteContext;
use crate::node::{
    Builder, Image, InnerSplit, LeafSplit, MAX_LEVELS, MalformedNode, Node, Pending, Words,
    inner_cost, leaf_cost, with_child,
};
use crate::page::PageId;

/// Which node needs space, and for what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::btree) enum Goal {
    /// A value of this many bytes in the leaf that covers the key.
    Record { value_len: usize },
    /// A separator of this many bytes in the inner node of this level.
    Separator { level: u8, key_len: usize },
}

impl Goal {
    fn level(self) -> u8 {
        match self {
            Goal::Record { .. } => 0,
            Goal::Separator { level, .. } => level,
        }
    }
}

/// How an attempt to make space ended.
enum Outcome {
    /// There is space, or a page more than before.
    Done,
    /// The parent has to be split first.
    First(Goal),
}

/// Makes space for a value of `value_len` bytes in the leaf that covers `key`.
pub(in crate::btree) fn split<C: WriteContext>(
    ctx: &C,
    tree: &Tree,
    key: &[u8],
    value_len: usize,
) -> Result<(), C::Error> {
    make_room(ctx, tree, key, Goal::Record { value_len })
}

/// Splits the node that covers `key` on the goal's level, if it is full, after any ancestors that
/// its separator does not fit into.
pub(in crate::btree) fn make_room<C: WriteContext>(
    ctx: &C,
    tree: &Tree,
    key: &[u8],
    first: Goal,
) -> Result<(), C::Error> {
    let mut goal = first;
    with_pages(ctx, |reservation| {
        // Bound: a round goes one level up, or splits a node, after which it
        // starts again with one more page in the tree.
        loop {
            match try_split(ctx, tree, key, goal, reservation) {
                Ok(Outcome::Done) if goal == first => return Ok(()),
                Ok(Outcome::Done) => goal = first,
                Ok(Outcome::First(ancestor)) => goal = ancestor,
                Err(fail) => {
                    // The tree may look different next time.
                    if !matches!(fail, AttemptError::Restart(Restart::NeedPages(_))) {
                        goal = first;
                    }
                    return Err(fail);
                }
            }
        }
    })
}

/// A node about to be split, and how.
enum Cut {
    Leaf(LeafSplit),
    Inner(InnerSplit),
}

impl Cut {
    fn choose(node: Node<'_, Image>, goal: Goal, key: &[u8]) -> Result<Cut, MalformedNode> {
        Ok(match goal {
            Goal::Record { value_len } => {
                Cut::Leaf(LeafSplit::choose(node, Pending { key, value_len })?)
            }
            Goal::Separator { .. } => {
                Cut::Inner(InnerSplit::choose(node, node.child_position(key)?)?)
            }
        })
    }

    fn separator(&self) -> &[u8] {
        match self {
            Cut::Leaf(split) => split.separator(),
            Cut::Inner(split) => split.separator(),
        }
    }

    fn build(
        &self,
        node: Node<'_, Image>,
        tree: &Tree,
        lower: &[u8],
    ) -> Result<(Box<Image>, Box<Image>), MalformedNode> {
        match self {
            Cut::Leaf(split) => split.build(node, tree.id, lower),
            Cut::Inner(split) => split.build(node, tree.id, lower),
        }
    }
}

/// Whether what `goal` describes fits into the node.
fn has_room(node: &Node<'_, Words>, goal: Goal, key: &[u8]) -> Result<bool, MalformedNode> {
    match goal {
        Goal::Record { value_len } => {
            let suffix = node.suffix_of(key)?;
            let (position, found) = node.search(suffix)?;
            let mut free = node.free();
            if found {
                free += node.record_len(position)?;
            }
            Ok(free >= leaf_cost(suffix.len(), value_len))
        }
        Goal::Separator { key_len, .. } => {
            Ok(node.free() >= inner_cost(key_len.saturating_sub(node.prefix_len())))
        }
    }
}

fn try_split<C: WriteContext>(
    ctx: &C,
    tree: &Tree,
    key: &[u8],
    goal: Goal,
    reservation: &mut Reservation,
) -> Result<Outcome, AttemptError> {
    let pool = ctx.pool();
    let mut descent = Descent::to_level(*tree, goal.level());
    let (hold, node) = descent.find(pool, key)?;
    if node.level() < goal.level() || hold.checked(has_room(&node, goal, key))? {
        hold.validate()?;
        return Ok(Outcome::Done);
    }
    let new_pages = if descent.parent.is_some() { 1 } else { 2 };
    if reservation.len() < new_pages {
        return Err(Restart::NeedPages(new_pages).into());
    }
    let mut lower = Vec::new();
    descent.lower_bound(&mut lower)?;
    let image = Image::copy_of(hold.page.words());
    hold.validate()?;
    let corrupt = |why: MalformedNode| AttemptError::Corrupt(hold.id, why.0);
    let node = Node::open(&*image, tree.id).map_err(corrupt)?;
    let cut = Cut::choose(node, goal, key).map_err(corrupt)?;
    let (left, right) = cut.build(node, tree, &lower).map_err(corrupt)?;
    let level = node.level() + 1;
    match descent.parent {
        None if level >= MAX_LEVELS => Err(corrupt(MalformedNode("the tree has too many levels"))),
        None => {
            let root = hold.page.exclusive()?;
            grow_root(ctx, tree, root, &cut, (left, right), level, reservation).map_err(corrupt)?;
            Ok(Outcome::Done)
        }
        Some((parent, position)) => {
            let split = Child {
                hold,
                position,
                images: (left, right),
                separator: cut.separator(),
            };
            split.apply(ctx, tree, parent, level, reservation)
        }
    }
}

/// Moves the root's content into two new children.
fn grow_root<'p, C: WriteContext>(
    ctx: &'p C,
    tree: &Tree,
    root: Exclusive<'p>,
    cut: &Cut,
    (left, right): (Box<Image>, Box<Image>),
    level: u8,
    reservation: &mut Reservation,
) -> Result<(), MalformedNode> {
    let ids: Vec<PageId> = reservation.ids().take(2).collect();
    let mut builder = Builder::new(tree.id, level, &[], None);
    builder.set_leftmost(ids[0]);
    builder.push_child(cut.separator(), ids[1])?;
    Modification::new(*tree)
        .page(root, builder.finish())
        .page(reservation.take(ctx.pool()), left)
        .page(reservation.take(ctx.pool()), right)
        .apply(ctx);
    Ok(())
}

/// A node that is split below a parent.
struct Child<'p, 'a> {
    hold: Hold<'p>,
    position: usize,
    images: (Box<Image>, Box<Image>),
    separator: &'a [u8],
}

impl<'p> Child<'p, '_> {
    /// Keeps the left part in place, puts the right part into a new page and
    /// its separator into the parent, if it fits there.
    fn apply<C: WriteContext>(
        self,
        ctx: &'p C,
        tree: &Tree,
        parent: Hold<'p>,
        level: u8,
        reservation: &mut Reservation,
    ) -> Result<Outcome, AttemptError> {
        let goal = Goal::Separator {
            level,
            key_len: self.separator.len(),
        };
        let node = parent.node(tree)?;
        if !parent.checked(has_room(&node, goal, self.separator))? {
            parent.validate()?;
            return Ok(Outcome::First(goal));
        }
        let upper_page = parent.page.exclusive()?;
        let page = self.hold.page.exclusive()?;
        let image = Image::copy_of(upper_page.words());
        let Some(new_id) = reservation.ids().next() else {
            return Err(Restart::NeedPages(1).into());
        };
        let new_parent = Node::open(&*image, tree.id)
            .and_then(|node| with_child(node, tree.id, self.position, self.separator, new_id))
            .map_err(|why| AttemptError::Corrupt(parent.id, why.0))?;
        Modification::new(*tree)
            .page(upper_page, new_parent)
            .page(page, self.images.0)
            .page(reservation.take(ctx.pool()), self.images.1)
            .apply(ctx);
        Ok(Outcome::Done)
    }
}
