//! Merges of underfull nodes, and root shrink.
//!
//! Best effort: after a few collisions with others, and where so much of the log is in use that
//! commits wait, a merge is given up, and the next removal from the same leaf tries again.

use super::Modification;
use crate::btree::descend::{Descent, Hold};
use crate::btree::{AttemptError, Tree};
use crate::buffer::Restart;
use crate::context::WriteContext;
use crate::node::{
    Builder, CAPACITY, INNER_FIXED, Image, MalformedNode, Node, Source, Words, common_prefix,
    inner_cost, leaf_cost, without_child,
};

/// Bytes below which a node is merged with a sibling where possible.
const UNDERFULL: usize = CAPACITY * 2 / 5;

/// Most bytes that a merged node may have, so that it is not split again soon.
const MERGED_MAX: usize = CAPACITY * 4 / 5;

/// Attempts after which a merge is left to the next removal.
const MERGE_ATTEMPTS: u32 = 8;

/// Whether a node is worth merging with a neighbour.
pub(in crate::btree) fn is_underfull<S: Source>(node: &Node<'_, S>) -> bool {
    // An inner node without separators keeps its child from having siblings.
    node.used() < UNDERFULL || (!node.is_leaf() && node.count() == 0)
}

/// How an attempt to merge ended.
enum Outcome {
    /// Nothing more to do.
    Done,
    /// The parent may be underfull now, or has to be merged first.
    Parent,
}

/// Merges the leaf that covers `key` with a sibling if it is underfull, then
/// its ancestors likewise. Errors are left to the next reader of the page: the
/// change that called for the merge is complete.
pub(in crate::btree) fn merge<C: WriteContext>(ctx: &C, tree: &Tree, key: &[u8]) {
    if !ctx.log().has_space_to_merge(ctx.is_one_of_many()) {
        return;
    }
    let Ok(_reservation) = ctx.reserve_for_structure() else {
        return;
    };
    let (mut level, mut attempts) = (0, 0);
    // Bound: each round goes one level up or is one of MERGE_ATTEMPTS.
    loop {
        match try_merge(ctx, tree, key, level) {
            Ok(Outcome::Done) => return,
            Ok(Outcome::Parent) => level += 1,
            Err(fail) => {
                attempts += 1;
                if attempts == MERGE_ATTEMPTS || fail.resolve(ctx).is_err() {
                    return;
                }
            }
        }
    }
}

fn try_merge<C: WriteContext>(
    ctx: &C,
    tree: &Tree,
    key: &[u8],
    level: u8,
) -> Result<Outcome, AttemptError> {
    let mut descent = Descent::to_level(*tree, level);
    let (hold, node) = descent.find(ctx.pool(), key)?;
    let Some((parent, position)) = descent.parent else {
        return shrink_root(ctx, tree, hold, node);
    };
    if !is_underfull(&node) {
        hold.validate()?;
        return Ok(Outcome::Done);
    }
    let siblings = parent.node(tree)?.count();
    // An only child waits for its parent to be merged.
    if siblings == 0 {
        parent.validate()?;
        return Ok(Outcome::Parent);
    }
    let pairs = [
        position.checked_sub(1),
        (position < siblings).then_some(position),
    ];
    for left_position in pairs.into_iter().flatten() {
        let pair = Pair {
            tree,
            descent: &descent,
            parent,
            left_position,
        };
        if pair.merge(ctx, hold, node.count() == 0)? {
            return Ok(Outcome::Parent);
        }
    }
    Ok(Outcome::Done)
}

/// Pulls the content of the root's only child up into the root.
fn shrink_root<C: WriteContext>(
    ctx: &C,
    tree: &Tree,
    root: Hold<'_>,
    node: Node<'_, Words>,
) -> Result<Outcome, AttemptError> {
    if node.is_leaf() || node.count() > 0 {
        root.validate()?;
        return Ok(Outcome::Done);
    }
    let level = node.level();
    let id = root.checked(node.child(0))?;
    let child = root.child(ctx.pool(), id, true)?;
    let (upper, lower) = (root.page.exclusive()?, child.page.exclusive()?);
    let image = Image::copy_of(lower.words());
    let is_sound = Node::open(&*image, tree.id)
        .is_ok_and(|node| node.level() + 1 == level && !node.has_upper());
    if !is_sound {
        return Err(AttemptError::Corrupt(
            id,
            "an only child differs from its root",
        ));
    }
    Modification::new(*tree)
        .page(upper, image)
        .unlink(lower)
        .apply(ctx);
    // The new root may have an only child, too.
    Err(Restart::Changed.into())
}

/// Two neighbours below one parent.
struct Pair<'a, 'p> {
    tree: &'a Tree,
    descent: &'a Descent<'p>,
    parent: Hold<'p>,
    /// The left one's position; also that of the separator between them.
    left_position: usize,
}

impl<'p> Pair<'_, 'p> {
    /// Merges the two if they fit into one page. `underfull` is one of them.
    fn merge<C: WriteContext>(
        &self,
        ctx: &'p C,
        underfull: Hold<'p>,
        is_empty: bool,
    ) -> Result<bool, AttemptError> {
        let parent = self.parent.node(self.tree)?;
        let mut holds = [underfull; 2];
        for (index, hold) in holds.iter_mut().enumerate() {
            let id = parent.child(self.left_position + index);
            let id = self.parent.checked(id)?;
            if id == underfull.id {
                continue;
            }
            *hold = match self.parent.child(ctx.pool(), id, false) {
                // Only an empty node is worth reading its sibling.
                Err(AttemptError::Restart(Restart::NotResident(_))) if !is_empty => {
                    return Ok(false);
                }
                other => other?,
            };
        }
        let [left, right] = holds;
        let limit = if is_empty { CAPACITY } else { MERGED_MAX };
        let (left_node, right_node) = (left.node(self.tree)?, right.node(self.tree)?);
        let least = left_node.used().saturating_sub(left_node.fence_len()) + right_node.used();
        if least > limit {
            left.validate()?;
            right.validate()?;
            return Ok(false);
        }
        let (mut lower, mut separator) = (Vec::new(), Vec::new());
        self.descent
            .lower_bound_of_sibling(self.left_position, &mut lower)?;
        self.parent
            .checked(parent.key(self.left_position, &mut separator))?;
        self.parent.validate()?;
        let (left_image, right_image) = (
            Image::copy_of(left.page.words()),
            Image::copy_of(right.page.words()),
        );
        left.validate()?;
        right.validate()?;
        let merged = merged(
            self.tree,
            &left_image,
            &right_image,
            &lower,
            &separator,
            limit,
        );
        let Some(merged) = merged.map_err(|why| AttemptError::Corrupt(underfull.id, why.0))? else {
            return Ok(false);
        };
        let parent_page = self.parent.page.exclusive()?;
        let (left, right) = (left.page.exclusive()?, right.page.exclusive()?);
        let parent_image = Image::copy_of(parent_page.words());
        let new_parent = Node::open(&*parent_image, self.tree.id)
            .and_then(|node| without_child(node, self.tree.id, self.left_position))
            .map_err(|why| AttemptError::Corrupt(self.parent.id, why.0))?;
        Modification::new(*self.tree)
            .page(parent_page, new_parent)
            .page(left, merged)
            .unlink(right)
            .apply(ctx);
        Ok(true)
    }
}

/// Bytes that the records of `node` take if they share `prefix` bytes.
fn cost_with_prefix(node: &Node<'_, Image>, prefix: usize) -> Result<usize, MalformedNode> {
    let mut total = 0;
    for position in 0..node.count() {
        let suffix_len = (node.slot(position).key_len() + node.prefix_len())
            .checked_sub(prefix)
            .ok_or(MalformedNode("its prefix does not fit its bounds"))?;
        total += if node.is_leaf() {
            leaf_cost(suffix_len, node.value(position)?.len)
        } else {
            inner_cost(suffix_len)
        };
    }
    Ok(total)
}

/// The node of both ranges, if it has at most `limit` bytes.
fn merged(
    tree: &Tree,
    left: &Image,
    right: &Image,
    lower: &[u8],
    separator: &[u8],
    limit: usize,
) -> Result<Option<Box<Image>>, MalformedNode> {
    let (left, right) = (Node::open(left, tree.id)?, Node::open(right, tree.id)?);
    let mut upper = Vec::new();
    let upper = right.upper(&mut upper)?.then_some(&upper[..]);
    if left.level() != right.level()
        || lower >= separator
        || upper.is_some_and(|upper| separator >= upper)
    {
        return Err(MalformedNode("it does not fit beside its sibling"));
    }
    let prefix = upper.map_or(0, |upper| common_prefix(lower, upper));
    let mut total = upper.map_or(0, <[u8]>::len)
        + cost_with_prefix(&left, prefix)?
        + cost_with_prefix(&right, prefix)?;
    if !left.is_leaf() {
        total += INNER_FIXED + inner_cost(separator.len() - prefix);
    }
    if total > limit {
        return Ok(None);
    }
    let mut builder = Builder::new(tree.id, left.level(), lower, upper);
    if left.is_leaf() {
        builder.copy_records(&left, 0..left.count())?;
        builder.copy_records(&right, 0..right.count())?;
    } else {
        builder.set_leftmost(left.child(0)?);
        builder.copy_children(&left, 0..left.count())?;
        builder.push_child(separator, right.child(0)?)?;
        builder.copy_children(&right, 0..right.count())?;
    }
    Ok(Some(builder.finish()))
}
