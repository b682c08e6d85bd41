//! Read-ahead of a cursor: asks for leaves before the cursor comes to them, so
//! that a long scan keeps the drive's queue full.
//!
//! It works only after the scan met a page that was not in memory, and walks
//! the inner nodes on its own, so that parents' ends do not interrupt it.

use std::ops::Bound;

use super::Direction;
use crate::btree::descend::Descent;
use crate::btree::{AttemptError, Tree};
use crate::buffer::{BufferPool, PagePlace, Restart};
use crate::context::ReadContext;
use crate::node::{Node, Words};
use crate::page::PageId;

/// Most leaves asked for beyond the cursor.
const WINDOW_MAX: usize = 64;

pub(super) struct ReadAhead {
    /// Leaves to keep ahead of the cursor; 0 while nothing is missing.
    window: usize,
    /// Leaves asked for that the cursor has not reached.
    outstanding: usize,
    /// The key at which asking continues: from here on (forward), below here (reverse).
    edge: Vec<u8>,
    /// Whether the range has no leaves beyond `edge`.
    at_end: bool,
    /// Leaves that the scan still needs beside those asked for, if that is known.
    needed: Option<usize>,
    ids: Vec<PageId>,
}

impl ReadAhead {
    pub(super) fn new() -> ReadAhead {
        ReadAhead {
            window: 0,
            outstanding: 0,
            edge: Vec::new(),
            at_end: false,
            needed: None,
            ids: Vec::new(),
        }
    }

    /// The scan needs about so many leaves more: these are asked for together,
    /// and no others.
    pub(super) fn need(&mut self, leaves: usize) {
        self.needed = Some(leaves.saturating_sub(self.outstanding));
    }

    /// Notes that the cursor met a page that is not in memory.
    pub(super) fn note_fault(&mut self) {
        self.window = self.window.max(1);
    }

    /// Notes that the cursor moved to a leaf.
    pub(super) fn note_leaf(&mut self) {
        match self.outstanding.checked_sub(1) {
            Some(rest) => self.outstanding = rest,
            // It was not asked for.
            None => self.needed = self.needed.map(|needed| needed.saturating_sub(1)),
        }
    }

    /// Whether [`ReadAhead::run`] would ask for anything.
    pub(super) fn is_wanted(&self) -> bool {
        let enough = match self.needed {
            Some(0) => return false,
            Some(_) => WINDOW_MAX,
            None => self.window,
        };
        self.window > 0 && self.outstanding <= enough / 2
    }

    /// Asks for the leaves after (before) the ones asked for already, or after
    /// `boundary` where the cursor has passed these; none beyond `end`. Holds nothing.
    pub(super) fn run<C: ReadContext>(
        &mut self,
        ctx: &C,
        tree: &Tree,
        direction: Direction,
        boundary: &[u8],
        end: Bound<&[u8]>,
    ) {
        if self.outstanding == 0 {
            self.edge.clear();
            self.edge.extend_from_slice(boundary);
            self.at_end = false;
        }
        if self.at_end {
            return;
        }
        let window = match self.needed {
            Some(needed) => self.outstanding + needed,
            None => self.window * 2,
        };
        self.window = window.min(WINDOW_MAX);
        // Bound: a round per parent; parents without children do not exist.
        while self.outstanding < self.window && !self.at_end {
            self.ids.clear();
            let wanted = self.window - self.outstanding;
            match self.collect(ctx.pool(), tree, direction, end, wanted) {
                Ok(()) => {}
                Err(AttemptError::Restart(Restart::NotResident(id))) => {
                    ctx.read_ahead(&[id]);
                    return;
                }
                // The cursor itself meets the problem, if there is one.
                Err(_) => return,
            }
            self.outstanding += self.ids.len();
            self.needed = self
                .needed
                .map(|needed| needed.saturating_sub(self.ids.len()));
            let resident =
                |id: &PageId| matches!(ctx.pool().mapping.place(*id), PagePlace::Resident(_));
            let asked = self.ids.len();
            self.ids.retain(|id| !resident(id));
            if self.ids.is_empty() {
                // Nothing is missing here: not worth the effort until the next miss.
                if asked >= self.window / 2 {
                    self.window = 0;
                }
                return;
            }
            if !ctx.read_ahead(&self.ids) {
                self.ask_again();
                return;
            }
        }
    }

    /// Has the leaves that are not reached yet be asked for once more at the next leaf: some of
    /// them are not read.
    fn ask_again(&mut self) {
        self.needed = self.needed.map(|needed| needed + self.outstanding);
        self.outstanding = 0;
        self.window = (self.window / 2).max(1);
    }

    /// Collects up to `wanted` leaves of the parent at `edge` into `ids`, and
    /// moves `edge` beyond them.
    fn collect(
        &mut self,
        pool: &BufferPool,
        tree: &Tree,
        direction: Direction,
        limit: Bound<&[u8]>,
        wanted: usize,
    ) -> Result<(), AttemptError> {
        let mut descent = Descent::to_level(*tree, 1);
        let edge = &self.edge[..];
        let forward = direction == Direction::Forward;
        let (hold, node) = if forward {
            descent.find(pool, edge)?
        } else {
            descent.run(pool, |node| node.child_position_below(edge))?
        };
        if node.is_leaf() {
            self.at_end = true;
            return Ok(());
        }
        let mut next = Vec::new();
        let (range, has_more);
        // Whether the keys behind this separator, as the cursor goes, are outside the range.
        let is_beyond = |separator: &[u8]| match (limit, forward) {
            (Bound::Included(limit), true) => *separator > *limit,
            (Bound::Excluded(limit), true) => *separator >= *limit,
            (Bound::Included(limit) | Bound::Excluded(limit), false) => *separator <= *limit,
            (Bound::Unbounded, _) => false,
        };
        let mut ends_before = |separator: usize| -> Result<bool, AttemptError> {
            hold.checked(node.key(separator, &mut next))?;
            Ok(is_beyond(&next))
        };
        if forward {
            let first = hold.checked(node.child_position(edge))?;
            let most = (first + wanted).min(node.count() + 1);
            let mut end = most;
            // Bound: the leaves that are wanted. A leaf's keys lie above the separator before it.
            while end > first + 1 && ends_before(end - 2)? {
                end -= 1;
            }
            range = first..end;
            has_more = if end <= node.count() {
                hold.checked(node.key(end - 1, &mut next))?;
                end == most
            } else {
                hold.checked(node.upper(&mut next))?
            };
        } else {
            let last = hold.checked(node.child_position_below(edge))?;
            let most = (last + 1).saturating_sub(wanted);
            let mut first = most;
            // Bound: as above. A leaf's keys lie below the separator behind it.
            while first < last && ends_before(first)? {
                first += 1;
            }
            range = first..last + 1;
            match first.checked_sub(1) {
                Some(separator) => hold.checked(node.key(separator, &mut next))?,
                None => descent.lower_bound(&mut next)?,
            }
            has_more = !next.is_empty() && first == most;
        }
        collect_children(&node, range, forward, &mut self.ids)
            .map_err(|why| hold.malformed(why))?;
        hold.validate()?;
        // A corrupt page could lead nowhere.
        let advanced = if forward {
            next[..] > *edge
        } else {
            next[..] < *edge
        };
        self.at_end = !has_more || !advanced || is_beyond(&next);
        self.edge = next;
        Ok(())
    }
}

fn collect_children(
    node: &Node<'_, Words>,
    range: std::ops::Range<usize>,
    forward: bool,
    ids: &mut Vec<PageId>,
) -> Result<(), crate::node::MalformedNode> {
    for position in range {
        ids.push(node.child(position)?);
    }
    if !forward {
        ids.reverse();
    }
    Ok(())
}
