//! From the root to a node, with optimistic lock coupling.

use super::{AttemptError, Tree};
use crate::buffer::{BufferPool, Optimistic, Restart};
use crate::node::{INNER_LINES, LEAF_LINES, MalformedNode, Node, Words};
use crate::page::PageId;

/// An optimistic hold on a node, with the id that it was reached by.
#[derive(Clone, Copy)]
pub(super) struct Hold<'p> {
    pub(super) id: PageId,
    pub(super) page: Optimistic<'p>,
}

impl<'p> Hold<'p> {
    /// The node as it is now, possibly torn.
    #[inline(always)]
    pub(super) fn node(&self, tree: &Tree) -> Result<Node<'p, Words>, AttemptError> {
        self.checked(Node::open(self.page.words(), tree.id))
    }

    /// Checks a read. A malformed node is corrupt if its version still holds, and was only changing
    /// if not.
    #[inline(always)]
    pub(super) fn checked<T>(&self, read: Result<T, MalformedNode>) -> Result<T, AttemptError> {
        match read {
            Ok(value) => Ok(value),
            Err(why) => Err(self.malformed(why)),
        }
    }

    #[cold]
    pub(super) fn malformed(&self, why: MalformedNode) -> AttemptError {
        match self.page.validate() {
            Ok(()) => AttemptError::Corrupt(self.id, why.0),
            Err(changed) => AttemptError::Restart(changed),
        }
    }

    #[inline(always)]
    pub(super) fn validate(&self) -> Result<(), AttemptError> {
        Ok(self.page.validate()?)
    }

    /// A hold on the child `id` that this node names.
    #[inline(always)]
    pub(super) fn child(
        &self,
        pool: &'p BufferPool,
        id: PageId,
        touch: bool,
    ) -> Result<Hold<'p>, AttemptError> {
        match read(pool, id, touch) {
            Ok(child) => {
                // The child's version was taken while this node still named it.
                self.page.validate()?;
                Ok(child)
            }
            Err(why) => Err(self.unreadable(pool, id, why)),
        }
    }

    #[cold]
    fn unreadable(&self, pool: &BufferPool, id: PageId, why: Restart) -> AttemptError {
        // Looked at before the validation: an id is freed after the latch of
        // the node that named it was taken.
        let is_free = is_free(pool, id);
        match self.page.validate() {
            Err(changed) => AttemptError::Restart(changed),
            Ok(()) if is_free => AttemptError::Corrupt(self.id, "it names a child that is no page"),
            Ok(()) => AttemptError::Restart(why),
        }
    }
}

fn is_free(pool: &BufferPool, id: PageId) -> bool {
    pool.mapping.place(id) == crate::buffer::PagePlace::Free
}

#[inline(always)]
fn read(pool: &BufferPool, id: PageId, touch: bool) -> Result<Hold<'_>, Restart> {
    let page = if touch {
        pool.read(id)?
    } else {
        pool.read_untouched(id)?
    };
    Ok(Hold { id, page })
}

/// A hold on a tree's root.
#[inline(always)]
pub(super) fn root<'p>(pool: &'p BufferPool, tree: &Tree) -> Result<Hold<'p>, AttemptError> {
    match read(pool, tree.root, true) {
        Ok(root) => Ok(root),
        Err(Restart::Changed) if is_free(pool, tree.root) => Err(AttemptError::Corrupt(
            tree.root,
            "the tree's root is no page",
        )),
        Err(why) => Err(why.into()),
    }
}

/// The way down to one node. After a page miss it goes on where it stopped,
/// as long as the parent of the missing page is unchanged.
pub(super) struct Descent<'p> {
    tree: Tree,
    stop_level: u8,
    /// Whether the last node counts as accessed for the replacement strategy.
    pub(super) touch: bool,
    /// Cache lines of the leaf that will be read first.
    pub(super) leaf_lines: usize,
    /// The parent of the node found and its position there; none for the root.
    pub(super) parent: Option<(Hold<'p>, usize)>,
    /// The nearest ancestor that holds the node's lower bound, and the
    /// separator's position there; none if there is no lower bound.
    pub(super) lower: Option<(Hold<'p>, usize)>,
    /// As `lower`, for the parent.
    pub(super) parent_lower: Option<(Hold<'p>, usize)>,
    /// The child of `parent` that was not resident, and its level.
    missing: Option<(PageId, u8)>,
}

impl<'p> Descent<'p> {
    /// A descent to the node of `stop_level`, 0 for a leaf; where the root is
    /// lower, to the root.
    #[inline(always)]
    pub(super) fn to_level(tree: Tree, stop_level: u8) -> Descent<'p> {
        Descent {
            tree,
            stop_level,
            touch: true,
            leaf_lines: LEAF_LINES,
            parent: None,
            lower: None,
            parent_lower: None,
            missing: None,
        }
    }

    /// Descends; `choose` says which child of an inner node to take.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        pool: &'p BufferPool,
        choose: impl Fn(&Node<'p, Words>) -> Result<usize, MalformedNode>,
    ) -> Result<(Hold<'p>, Node<'p, Words>), AttemptError> {
        let (mut hold, mut expected_level) = match (self.missing.take(), self.parent) {
            (Some((id, level)), Some((parent, _))) => {
                let touch = self.touch || level > self.stop_level;
                match parent.child(pool, id, touch) {
                    Ok(hold) => (hold, Some(level)),
                    Err(fail) => return self.stopped(fail, id, level),
                }
            }
            _ => {
                (self.parent, self.lower, self.parent_lower) = (None, None, None);
                (root(pool, &self.tree)?, None)
            }
        };
        // Bound: each round is one level lower, as the check of levels makes sure.
        loop {
            let node = hold.node(&self.tree)?;
            if expected_level.is_some_and(|level| level != node.level()) {
                return Err(
                    hold.malformed(MalformedNode("its level is not one below its parent's"))
                );
            }
            if node.level() <= self.stop_level {
                return Ok((hold, node));
            }
            let position = hold.checked(choose(&node))?;
            let id = hold.checked(node.child(position))?;
            self.parent = Some((hold, position));
            self.parent_lower = self.lower;
            if position > 0 {
                self.lower = Some((hold, position - 1));
            }
            let level = node.level() - 1;
            let touch = self.touch || level > self.stop_level;
            // Latch and slots in one miss, not one after the other.
            let lines = if level == 0 {
                self.leaf_lines
            } else {
                INNER_LINES
            };
            pool.prefetch(id, 0..lines);
            match hold.child(pool, id, touch) {
                Ok(child) => (hold, expected_level) = (child, Some(level)),
                Err(fail) => return self.stopped(fail, id, level),
            }
        }
    }

    #[cold]
    fn stopped<T>(&mut self, fail: AttemptError, id: PageId, level: u8) -> Result<T, AttemptError> {
        if let AttemptError::Restart(Restart::NotResident(_)) = fail {
            self.missing = Some((id, level));
        }
        Err(fail)
    }

    /// Descends to the node whose range contains `key`.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        pool: &'p BufferPool,
        key: &[u8],
    ) -> Result<(Hold<'p>, Node<'p, Words>), AttemptError> {
        self.run(pool, |node| node.child_position_overlapped(key))
    }

    /// Replaces `into` by the lower bound of the node found; empty if there
    /// is none. Right for the node's version that was found.
    pub(super) fn lower_bound(&self, into: &mut Vec<u8>) -> Result<(), AttemptError> {
        self.read_separator(self.lower, into)
    }

    /// Replaces `into` by the lower bound of the parent of the node found.
    pub(super) fn lower_bound_of_parent(&self, into: &mut Vec<u8>) -> Result<(), AttemptError> {
        self.read_separator(self.parent_lower, into)
    }

    /// Replaces `into` by the lower bound of the parent's child `position`.
    pub(super) fn lower_bound_of_sibling(
        &self,
        position: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), AttemptError> {
        let at = match (position.checked_sub(1), self.parent) {
            (Some(before), Some((parent, _))) => Some((parent, before)),
            _ => self.parent_lower,
        };
        self.read_separator(at, into)
    }

    fn read_separator(
        &self,
        at: Option<(Hold<'p>, usize)>,
        into: &mut Vec<u8>,
    ) -> Result<(), AttemptError> {
        into.clear();
        if let Some((ancestor, position)) = at {
            let node = ancestor.node(&self.tree)?;
            ancestor.checked(node.key(position, into))?;
            ancestor.validate()?;
        }
        Ok(())
    }
}
