//! A scan outside transactions: the leaves as they are, as long as no commit is in flight.

use std::ops::Bound;

use crate::api::packed::Packed;
use crate::api::record::read_entry;
use crate::api::tree::{Tree, Wanted};
use crate::btree::{Direction, ValueKind, ValueRef};
use crate::context::{InlineContext, ReadContext, TaskContext};
use crate::levels::Cursor;
use crate::txn::versions::Bounds;
use crate::{Error, extent};

/// Leaves that a task reads at a time for a caller elsewhere, at most; it begins with one.
const LEAVES_AT_ONCE: usize = 64;

/// A scan on its way through the leaves.
pub(crate) struct Scan<'t> {
    tree: &'t Tree,
    cursor: Cursor,
    last: Option<Vec<u8>>,
    shown: usize,
    /// A record of the cursor's leaf was shown.
    has_shown: bool,
    /// The leaves hold changes that are not visible yet: behind `last` the version store has to be
    /// read, too.
    pub(crate) needs_versions: bool,
    wanted: Wanted,
}

/// The rest of `bounds` behind the last record passed.
pub(crate) fn behind<'k>(
    bounds: Bounds<'k>,
    direction: Direction,
    last: Option<&'k [u8]>,
) -> Bounds<'k> {
    match (last, direction) {
        (None, _) => bounds,
        (Some(last), Direction::Forward) => (Bound::Excluded(last), bounds.1),
        (Some(last), Direction::Reverse) => (bounds.0, Bound::Excluded(last)),
    }
}

impl<'t> Scan<'t> {
    pub(crate) fn new(tree: &'t Tree, cursor: Cursor, wanted: Wanted) -> Scan<'t> {
        Scan {
            tree,
            cursor,
            last: None,
            shown: 0,
            has_shown: false,
            needs_versions: false,
            wanted,
        }
    }

    /// The last key of the last leaf that was shown.
    pub(crate) fn last(&self) -> Option<&[u8]> {
        self.last.as_deref()
    }

    /// Records shown.
    pub(crate) fn shown(&self) -> usize {
        self.shown
    }

    /// Shows record after record to `visit`, with the length of its value, until that says that it
    /// is enough, the range ends, or versions are needed. Outside a task, tasks read the pages that
    /// are missing, some at a time: `visit` is the caller's, may take as long as it likes, and is
    /// called if the caller is.
    pub(crate) fn leaves(
        &mut self,
        visit: &mut (impl FnMut(&[u8], &[u8], u64) -> bool + Send),
    ) -> Result<(), Error> {
        let tree = self.tree;
        tree.alive()?;
        let keys_only = self.wanted.keys_only;
        let mut bytes = Vec::new();
        // In a task, what runs as one runs right here.
        let mut show = |key: &[u8], value: ValueRef<'_>| {
            if value.kind == ValueKind::Inline {
                return Ok(visit(key, value.bytes, value.bytes.len() as u64));
            }
            if keys_only {
                return Ok(visit(key, &[], extent::decode(value.bytes)?.length));
            }
            let inner = tree.state.tree;
            let found = tree.run(|local| read_entry(local, inner, key, value, &mut bytes))?;
            Ok(!found || visit(key, &bytes, bytes.len() as u64))
        };
        if tree.runtime.is_in_task() {
            return tree.run(|local| {
                self.pass(&TaskContext { local }, usize::MAX, &mut show)?
                    .map(drop)
            });
        }
        let inline = InlineContext::new(tree.runtime.pool()?);
        if let Ok(ended) = self.pass(&inline, usize::MAX, &mut show) {
            return ended.map(drop);
        }
        // Not here again: only tasks read ahead.
        let (mut packed, mut leaves) = (Packed::default(), 1);
        // Bound: each round but the last passes a leaf.
        loop {
            let most = self.wanted.limit.unwrap_or(usize::MAX);
            let most = most.saturating_sub(self.shown);
            let more = tree.run(|local| {
                self.pass(&TaskContext { local }, leaves, &mut |key, value| {
                    packed.push(key, value);
                    Ok(packed.count() < most)
                })?
            });
            // Also those before a page that cannot be read.
            for (key, value) in packed.records() {
                if !show(key, value)? {
                    return Ok(());
                }
            }
            if !more? {
                return Ok(());
            }
            packed.clear();
            leaves = (2 * leaves).min(LEAVES_AT_ONCE);
        }
    }

    /// Hands the records of at most `leaves` leaves, as far as `ctx` reads them, to `show`, which
    /// says whether to go on, and finds large values unread. Whether there may be more to show.
    fn pass<C: ReadContext>(
        &mut self,
        ctx: &C,
        leaves: usize,
        show: &mut impl FnMut(&[u8], ValueRef<'_>) -> Result<bool, Error>,
    ) -> Result<Result<bool, Error>, C::Error> {
        let tree = self.tree;
        let transactions = &tree.runtime.engine()?.transactions;
        let reader = transactions.reader(tree.state.tree.id, None);
        for _ in 0..leaves {
            tree.runtime.count_operations(1);
            if self.has_shown {
                self.has_shown = false;
                self.last = Some(self.cursor.key().to_vec());
            }
            let found = self.cursor.next_records(ctx)?;
            // A leaf says what all of it had when it was read, and the range's end says that
            // nothing was behind.
            if !reader.sees_leaves((Bound::Unbounded, Bound::Unbounded)) {
                self.needs_versions = true;
                return Ok(Ok(false));
            }
            if !found {
                return Ok(Ok(false));
            }
            self.has_shown = true;
            let mut failed = Ok(true);
            let goes_on = self.cursor.visit_leaf(ctx, |entry| {
                self.shown += 1;
                match show(entry.key, entry.value) {
                    Ok(true) => true,
                    ended => {
                        failed = ended;
                        false
                    }
                }
            })?;
            if !goes_on {
                return Ok(failed.map(|_| false));
            }
        }
        Ok(Ok(true))
    }
}
