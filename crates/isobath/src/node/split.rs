//! Chooses where a full node is cut in two.
//!
//! Insertions in ascending or descending order are cut at the insertion point,
//! so that pages fill; all others near the middle, where the separator is
//! shortest.

use super::edit::next_run;
use super::{
    Builder, CAPACITY, Image, MalformedNode, Node, SLOT, inner_cost, leaf_cost, separator,
};
use crate::page::PageId;
use crate::types::TreeId;

/// Insertions in a row to neighbouring positions from which on they count as a pattern.
const PATTERN: i16 = 4;

/// Difference of the two halves, in bytes, within which a shorter separator
/// is worth less balance.
const WINDOW: usize = CAPACITY / 6;

/// Last insertion position before position 0, so that the next insertion
/// there continues a rising run.
const BEFORE_FIRST: u16 = u16::MAX;

/// The record that does not fit into a leaf.
#[derive(Clone, Copy)]
pub(crate) struct Pending<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) value_len: usize,
}

/// The cut that the insertion pattern suggests.
fn pattern(run: i16) -> Option<bool> {
    if run >= PATTERN {
        Some(true)
    } else if run <= -PATTERN {
        Some(false)
    } else {
        None
    }
}

/// Where a leaf is cut: the first `left_count` of its records stay on the
/// left. With the pending record put where it belongs, both sides fit.
pub(crate) struct LeafSplit {
    left_count: usize,
    separator: Vec<u8>,
    /// Last insertion and run that go to the side of the pending record.
    run: (u16, i16),
    pending_left: bool,
}

/// The leaf's records with the pending one among them.
struct Imagined<'a> {
    node: Node<'a, Image>,
    pending: Pending<'a>,
    position: usize,
    replaces: usize,
    costs: Vec<usize>,
}

impl<'a> Imagined<'a> {
    fn new(node: Node<'a, Image>, pending: Pending<'a>) -> Result<Imagined<'a>, MalformedNode> {
        let suffix = node.suffix_of(pending.key)?;
        let (position, found) = node.search(suffix)?;
        let mut costs = Vec::with_capacity(node.count() + 1);
        for record in 0..node.count() {
            costs.push(SLOT + node.record_len(record)?);
        }
        let cost = leaf_cost(suffix.len(), pending.value_len);
        if found {
            costs[position] = cost;
        } else {
            costs.insert(position, cost);
        }
        Ok(Imagined {
            node,
            pending,
            position,
            replaces: usize::from(found),
            costs,
        })
    }

    /// The leaf's own record that is imagined record `index`.
    fn own(&self, index: usize) -> usize {
        if index <= self.position {
            index
        } else {
            index - 1 + self.replaces
        }
    }

    fn key(&self, index: usize, into: &mut Vec<u8>) -> Result<(), MalformedNode> {
        if index == self.position {
            into.clear();
            into.extend_from_slice(self.pending.key);
            Ok(())
        } else {
            self.node.key(self.own(index), into)
        }
    }

    /// The separator of a cut before imagined record `cut`.
    fn separator(&self, cut: usize) -> Result<Vec<u8>, MalformedNode> {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        self.key(cut - 1, &mut left)?;
        self.key(cut, &mut right)?;
        if left >= right {
            return Err(MalformedNode("its keys are not in order"));
        }
        Ok(separator(&left, &right).to_vec())
    }
}

impl LeafSplit {
    /// Chooses where to cut a leaf that `pending` does not fit into.
    pub(crate) fn choose(
        node: Node<'_, Image>,
        pending: Pending<'_>,
    ) -> Result<LeafSplit, MalformedNode> {
        let imagined = Imagined::new(node, pending)?;
        let (last, run) = node.insertion_run();
        let run = if imagined.replaces == 1 {
            0
        } else {
            next_run(last, run, imagined.position)
        };
        let total: usize = imagined.costs.iter().sum();
        let count = imagined.costs.len();
        if count < 2 {
            return Err(MalformedNode("its only record does not fit into a page"));
        }
        let position = imagined.position;
        let preferred = pattern(run).map(|rising| {
            let cut = match (rising, position) {
                (true, at) if at + 1 == count => at,
                (true, at) => at + 1,
                (false, 0) => 1,
                (false, at) => at,
            };
            cut.clamp(1, count - 1)
        });
        let (cut, separator) = match preferred {
            Some(cut) => nearest_valid(&imagined, total, cut)?,
            None => balanced(&imagined, total)?,
        };
        let pending_left = position < cut;
        // The pending record's position in its new node, and the one before it.
        let landing = if pending_left {
            position
        } else {
            position - cut
        };
        let before = match (run > 0, landing) {
            (true, 0) => BEFORE_FIRST,
            (true, at) => at as u16 - 1,
            (false, at) => at as u16,
        };
        let kept = run - run.signum();
        Ok(LeafSplit {
            left_count: if pending_left {
                cut - 1 + imagined.replaces
            } else {
                cut
            },
            separator,
            run: (before, kept),
            pending_left,
        })
    }

    /// The first key that the right node may have.
    pub(crate) fn separator(&self) -> &[u8] {
        &self.separator
    }

    /// The two nodes; `lower` is the leaf's lower bound.
    pub(crate) fn build(
        &self,
        node: Node<'_, Image>,
        tree: TreeId,
        lower: &[u8],
    ) -> Result<(Box<Image>, Box<Image>), MalformedNode> {
        let mut upper = Vec::new();
        let upper = node.upper(&mut upper)?.then_some(&upper[..]);
        if lower >= &self.separator[..] || upper.is_some_and(|upper| &self.separator[..] >= upper) {
            return Err(MalformedNode("its keys lie outside its range"));
        }
        let mut left = Builder::new(tree, 0, lower, Some(&self.separator));
        left.copy_records(&node, 0..self.left_count)?;
        let mut right = Builder::new(tree, 0, &self.separator, upper);
        right.copy_records(&node, self.left_count..node.count())?;
        let target = if self.pending_left {
            &mut left
        } else {
            &mut right
        };
        target.set_run(self.run.0, self.run.1);
        Ok((left.finish(), right.finish()))
    }
}

/// Whether both sides of a cut fit. Their prefixes are no shorter than the
/// leaf's, so their records cost no more.
fn is_valid(imagined: &Imagined<'_>, left: usize, total: usize, separator: &[u8]) -> bool {
    left + separator.len() <= CAPACITY && total - left + imagined.node.fence_len() <= CAPACITY
}

/// The valid cut nearest to `wanted`. There is one: a page less one
/// fence and one record still holds a fence and a record of the largest sizes.
fn nearest_valid(
    imagined: &Imagined<'_>,
    total: usize,
    wanted: usize,
) -> Result<(usize, Vec<u8>), MalformedNode> {
    let count = imagined.costs.len();
    // Bound: every cut is tried once.
    for distance in 0..count {
        let below = wanted.checked_sub(distance).filter(|&cut| cut >= 1);
        let above = (distance > 0 && wanted + distance < count).then_some(wanted + distance);
        for cut in below.into_iter().chain(above) {
            let left: usize = imagined.costs[..cut].iter().sum();
            let separator = imagined.separator(cut)?;
            if is_valid(imagined, left, total, &separator) {
                return Ok((cut, separator));
            }
        }
    }
    Err(MalformedNode("it cannot be split into two pages"))
}

/// The valid cut with the shortest separator near the middle.
fn balanced(imagined: &Imagined<'_>, total: usize) -> Result<(usize, Vec<u8>), MalformedNode> {
    let mut best: Option<(usize, usize, usize, Vec<u8>)> = None;
    let (mut left, mut nearest, mut nearest_gap) = (0, 1, usize::MAX);
    for cut in 1..imagined.costs.len() {
        left += imagined.costs[cut - 1];
        let gap = left.abs_diff(total - left);
        if gap < nearest_gap {
            (nearest, nearest_gap) = (cut, gap);
        }
        if gap > WINDOW {
            continue;
        }
        let separator = imagined.separator(cut)?;
        if !is_valid(imagined, left, total, &separator) {
            continue;
        }
        let rank = (separator.len(), gap);
        if best.as_ref().is_none_or(|best| rank < (best.0, best.1)) {
            best = Some((separator.len(), gap, cut, separator));
        }
    }
    match best {
        Some((_, _, cut, separator)) => Ok((cut, separator)),
        None => nearest_valid(imagined, total, nearest),
    }
}

/// Where an inner node is cut: separator `promoted` moves up, the child to its
/// right becomes the leftmost of the right node.
pub(crate) struct InnerSplit {
    promoted: usize,
    separator: Vec<u8>,
    run: Option<(bool, u16, i16)>,
}

impl InnerSplit {
    /// Chooses where to cut an inner node that one more separator at `position` does not fit into.
    pub(crate) fn choose(
        node: Node<'_, Image>,
        position: usize,
    ) -> Result<InnerSplit, MalformedNode> {
        let count = node.count();
        if count < 2 {
            // One separator, the fence and another separator always fit.
            return Err(MalformedNode(
                "it has no free space though it has few separators",
            ));
        }
        let (last, run) = node.insertion_run();
        let run = next_run(last, run, position);
        let promoted = match pattern(run) {
            Some(true) => position.min(count - 1),
            Some(false) => position.saturating_sub(1),
            None => shortest_near_middle(&node)?,
        };
        let mut separator = Vec::new();
        node.key(promoted, &mut separator)?;
        let goes_left = position <= promoted;
        let landing = if goes_left {
            position
        } else {
            position - promoted - 1
        };
        let before = match (run > 0, landing) {
            (true, 0) => BEFORE_FIRST,
            (true, at) => at as u16 - 1,
            (false, at) => at as u16,
        };
        Ok(InnerSplit {
            promoted,
            separator,
            run: Some((goes_left, before, run - run.signum())),
        })
    }

    /// The first key that the right node may have.
    pub(crate) fn separator(&self) -> &[u8] {
        &self.separator
    }

    /// The two nodes; `lower` is the node's lower bound.
    pub(crate) fn build(
        &self,
        node: Node<'_, Image>,
        tree: TreeId,
        lower: &[u8],
    ) -> Result<(Box<Image>, Box<Image>), MalformedNode> {
        let mut upper = Vec::new();
        let upper = node.upper(&mut upper)?.then_some(&upper[..]);
        if lower >= &self.separator[..] || upper.is_some_and(|upper| &self.separator[..] >= upper) {
            return Err(MalformedNode("its separators lie outside its range"));
        }
        let mut left = Builder::new(tree, node.level(), lower, Some(&self.separator));
        left.set_leftmost(node.child(0)?);
        left.copy_children(&node, 0..self.promoted)?;
        let mut right = Builder::new(tree, node.level(), &self.separator, upper);
        right.set_leftmost(node.child(self.promoted + 1)?);
        right.copy_children(&node, self.promoted + 1..node.count())?;
        if let Some((goes_left, last, run)) = self.run {
            let target = if goes_left { &mut left } else { &mut right };
            target.set_run(last, run);
        }
        Ok((left.finish(), right.finish()))
    }
}

fn shortest_near_middle(node: &Node<'_, Image>) -> Result<usize, MalformedNode> {
    let costs: Vec<usize> = (0..node.count())
        .map(|position| inner_cost(node.slot(position).key_len()))
        .collect();
    let total: usize = costs.iter().sum();
    let (mut left, mut best, mut best_rank) = (0usize, 0, (true, usize::MAX, usize::MAX));
    for (position, cost) in costs.iter().enumerate() {
        let gap = left.abs_diff(total - left - cost);
        let near = gap <= WINDOW;
        let key_len = if near {
            node.slot(position).key_len()
        } else {
            0
        };
        // Outside the window only the distance from the middle counts.
        let rank = (!near, key_len, gap);
        if rank < best_rank {
            (best, best_rank) = (position, rank);
        }
        left += cost;
    }
    Ok(best)
}

/// A copy of the inner node `node` with one more separator at its place, and
/// the child to its right.
pub(crate) fn with_child(
    node: Node<'_, Image>,
    tree: TreeId,
    position: usize,
    key: &[u8],
    child: PageId,
) -> Result<Box<Image>, MalformedNode> {
    let mut builder = like(&node, tree)?;
    builder.copy_children(&node, 0..position)?;
    builder.push_child(key, child)?;
    builder.copy_children(&node, position..node.count())?;
    let (last, run) = node.insertion_run();
    builder.set_run(position as u16, next_run(last, run, position));
    Ok(builder.finish())
}

/// A copy of the inner node `node` without separator `position` and the child
/// to its right.
pub(crate) fn without_child(
    node: Node<'_, Image>,
    tree: TreeId,
    position: usize,
) -> Result<Box<Image>, MalformedNode> {
    let mut builder = like(&node, tree)?;
    builder.copy_children(&node, 0..position)?;
    builder.copy_children(&node, position + 1..node.count())?;
    Ok(builder.finish())
}

/// An empty node of the range, level and leftmost child of `node`.
fn like(node: &Node<'_, Image>, tree: TreeId) -> Result<Builder, MalformedNode> {
    let mut upper = Vec::new();
    let upper = node.upper(&mut upper)?.then_some(&upper[..]);
    // Any lower bound with the node's own prefix gives that prefix again.
    let prefix = match upper {
        Some(upper) => upper
            .get(..node.prefix_len())
            .filter(|prefix| prefix.len() < upper.len())
            .ok_or(MalformedNode("its prefix is as long as its upper fence"))?,
        None => &[],
    };
    let mut builder = Builder::new(tree, node.level(), prefix, upper);
    builder.set_leftmost(node.child(0)?);
    Ok(builder)
}

/// A copy of the inner node `node` without its last `taken` separators and the
/// children to their right.
pub(crate) fn without_last_children(
    node: Node<'_, Image>,
    tree: TreeId,
    taken: usize,
) -> Result<Box<Image>, MalformedNode> {
    let mut builder = like(&node, tree)?;
    builder.copy_children(&node, 0..node.count() - taken)?;
    Ok(builder.finish())
}

/// A copy of `node` that ends at `upper`, which is not above where it ended before, and
/// of whose separators only the first `kept` stay; `None` if that does not fit.
pub(crate) fn cut_above(
    node: Node<'_, Image>,
    tree: TreeId,
    lower: &[u8],
    kept: usize,
    upper: &[u8],
) -> Result<Option<Box<Image>>, MalformedNode> {
    let mut before = Vec::new();
    if lower >= upper || node.upper(&mut before)? && upper > &before[..] {
        return Err(MalformedNode(
            "its range does not end where the tree's does",
        ));
    }
    // The saving of a longer prefix is not counted.
    if node.free() + node.fence_len() < upper.len() {
        return Ok(None);
    }
    let mut builder = Builder::new(tree, node.level(), lower, Some(upper));
    if node.is_leaf() {
        builder.copy_records(&node, 0..node.count())?;
    } else {
        builder.set_leftmost(node.child(0)?);
        builder.copy_children(&node, 0..kept)?;
    }
    Ok(Some(builder.finish()))
}
