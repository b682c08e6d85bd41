//! Counting records by the headers of their leaves.

use super::{Cursor, Direction, LINES, Next, is_above_none};
use crate::btree::AttemptError;
use crate::buffer::BufferPool;
use crate::context::ReadContext;
use crate::node::Node;

/// Leaves whose headers are called into the cache before they are read, and those whose mapping
/// words are.
const HEADERS_AHEAD: usize = 8;
const WORDS_AHEAD: usize = 16;

impl Cursor {
    /// Passes the leaves that follow up to [`Cursor::boundary`], or to the range's end, and counts
    /// their records in the range: of most leaves that are in memory by their headers alone. For
    /// ascending cursors.
    pub(crate) fn count_leaves<C: ReadContext>(&mut self, ctx: &C) -> Result<u64, C::Error> {
        debug_assert!(self.direction == Direction::Forward, "counts ascend");
        if !self.next_records(ctx)? {
            return Ok(0);
        }
        let count = self.rest.len() as u64;
        self.rest = 0..0;
        // Leaves that cannot be counted so are read as others are.
        Ok(count + self.count_siblings(ctx.pool()).unwrap_or(0))
    }

    /// Counts and passes the leaves that follow under the same parent, as far as they are in memory
    /// and lie in the range as a whole; not the parent's last one, whose end the parent does not
    /// know.
    ///
    /// That the parent is unchanged afterwards proves that each leaf had the range that the parent
    /// says when it was counted. So a record that is there all the time is counted once.
    fn count_siblings(&mut self, pool: &BufferPool) -> Result<u64, AttemptError> {
        let (Some((mark, position)), Next::Beyond) = (self.parent, &self.next) else {
            return Ok(0);
        };
        let parent = mark.hold(pool);
        parent.validate()?;
        let node = parent.node(&self.tree)?;
        let whole = match &self.upper {
            std::ops::Bound::Unbounded => node.count(),
            std::ops::Bound::Included(upper) | std::ops::Bound::Excluded(upper) => {
                parent.checked(node.child_position(upper))?
            }
        };
        let (first, end) = (position + 1, whole.min(node.count()));
        for ahead in first..end.min(first + WORDS_AHEAD) {
            pool.mapping.prefetch(parent.checked(node.child(ahead))?);
        }
        for ahead in first..end.min(first + HEADERS_AHEAD) {
            pool.prefetch(parent.checked(node.child(ahead))?, 0..1);
        }
        let mut count = 0;
        let mut passed = first;
        while passed < end {
            if passed + WORDS_AHEAD < end {
                let ahead = node.child(passed + WORDS_AHEAD);
                pool.mapping.prefetch(parent.checked(ahead)?);
            }
            if passed + HEADERS_AHEAD < end {
                let ahead = node.child(passed + HEADERS_AHEAD);
                pool.prefetch(parent.checked(ahead)?, 0..1);
            }
            let id = parent.checked(node.child(passed))?;
            let Ok(leaf) = pool.read_untouched(id) else {
                break;
            };
            let records = match Node::open(leaf.words(), self.tree.id) {
                Ok(node) if node.is_leaf() => node.count(),
                _ => break,
            };
            if leaf.validate().is_err() {
                break;
            }
            count += records as u64;
            passed += 1;
        }
        if passed == first {
            return Ok(0);
        }
        let mut boundary = Vec::new();
        parent.checked(node.key(passed - 1, &mut boundary))?;
        parent.validate()?;
        self.parent = Some((mark, passed - 1));
        if !is_above_none(&self.upper, &boundary) {
            self.next = Next::End;
        }
        self.boundary = boundary;
        self.following.line = LINES;
        let leaves = passed - first;
        self.leaves = self.leaves.saturating_add(leaves as u32);
        (0..leaves).for_each(|_| self.ahead.note_leaf());
        Ok(count)
    }
}
