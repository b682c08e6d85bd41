//! A scan outside transactions: the leaves as they are, as long as no commit is in flight.

use std::ops::Bound;

use crate::Error;
use crate::api::record::read_entry;
use crate::api::tree::Tree;
use crate::btree::{Cursor, Direction, ValueKind, ValueRef};
use crate::context::{InlineContext, ReadContext, TaskContext};
use crate::txn::versions::Bounds;

/// Reads the value of a record, wherever it is; whether the record is still there.
type ReadValue<'r> = dyn FnMut(&[u8], ValueRef<'_>, &mut Vec<u8>) -> Result<bool, Error> + 'r;

/// A scan on its way through the leaves.
pub(crate) struct Scan<'t> {
    tree: &'t Tree,
    cursor: Cursor,
    last: Option<Vec<u8>>,
    shown: usize,
    /// A record of the cursor's leaf was shown.
    has_shown: bool,
    /// The leaves hold changes that are not visible yet: behind `last` the version store has to be read, too.
    pub(crate) needs_versions: bool,
    /// Large values are not read: what is shown in their place is empty.
    keys_only: bool,
}

/// What is left of `bounds` behind the record that was passed last.
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
    pub(crate) fn new(tree: &'t Tree, cursor: Cursor, keys_only: bool) -> Scan<'t> {
        Scan {
            tree,
            cursor,
            last: None,
            shown: 0,
            has_shown: false,
            needs_versions: false,
            keys_only,
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

    /// Shows record after record to `visit`, until that says that it is enough, the range ends, or versions are
    /// needed. Outside a task it goes on in one where a page is missing.
    pub(crate) fn leaves(
        &mut self,
        visit: &mut (impl FnMut(&[u8], &[u8]) -> bool + Send),
    ) -> Result<(), Error> {
        let tree = self.tree;
        tree.alive()?;
        if !tree.runtime.is_in_task() {
            let ctx = InlineContext::new(&tree.runtime.pool);
            let mut read = |key: &[u8], value: ValueRef<'_>, bytes: &mut Vec<u8>| {
                tree.run(|local| read_entry(local, tree.state.tree, key, value, bytes))
            };
            if let Ok(ended) = self.pass(&ctx, visit, &mut read) {
                return ended;
            }
        }
        tree.run(|local| {
            let mut read = |key: &[u8], value: ValueRef<'_>, bytes: &mut Vec<u8>| {
                read_entry(local, tree.state.tree, key, value, bytes)
            };
            self.pass(&TaskContext { local }, visit, &mut read)?
        })
    }

    /// The same with one context. `read` reads the value of the record that was just found, or what has replaced it;
    /// whether there is any.
    fn pass<C: ReadContext>(
        &mut self,
        ctx: &C,
        visit: &mut impl FnMut(&[u8], &[u8]) -> bool,
        read: &mut ReadValue<'_>,
    ) -> Result<Result<(), Error>, C::Error> {
        let tree = self.tree;
        let engine = &tree.runtime.engine;
        let transactions = &engine.transactions;
        let keys_only = self.keys_only;
        let mut bytes = Vec::new();
        loop {
            tree.runtime.count_operations(1);
            if self.has_shown {
                self.has_shown = false;
                self.last = Some(self.cursor.key().to_vec());
            }
            let found = self.cursor.next_records(ctx)?;
            // A leaf says what all of it had when it was read, and the range's end says that nothing was behind.
            if tree.needs_versions() {
                self.needs_versions = true;
                return Ok(Ok(()));
            }
            if !found {
                return Ok(Ok(()));
            }
            self.has_shown = true;
            // A commit in parts that begins now changes the leaf after it was read.
            let in_parts = transactions.unseen.is_in_parts();
            let mut failed = Ok(());
            let goes_on = self.cursor.visit_leaf(ctx, |entry| {
                if in_parts {
                    failed = transactions.check_atomic_visibility(
                        &engine.shared,
                        tree.state.tree.id,
                        entry.key,
                    );
                    if failed.is_err() {
                        return false;
                    }
                }
                self.shown += 1;
                if entry.value.kind == ValueKind::Inline {
                    return visit(entry.key, entry.value.bytes);
                }
                if keys_only {
                    return visit(entry.key, &[]);
                }
                match read(entry.key, entry.value, &mut bytes) {
                    Ok(found) => !found || visit(entry.key, &bytes),
                    Err(error) => {
                        failed = Err(error);
                        false
                    }
                }
            })?;
            if !goes_on {
                return Ok(failed);
            }
        }
    }
}
