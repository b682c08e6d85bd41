//! A sealed overlay.

use super::Filter;
use crate::sync::OnceLock;
use crate::types::Tree;

/// A place in the rounds that merges make through the keys: round and key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Position {
    pub(crate) round: u64,
    pub(crate) key: Vec<u8>,
}

/// A tree of puts and tombstones that never changes.
pub(crate) struct Run {
    pub(crate) tree: Tree,
    pub(crate) records: u64,
    /// Where merges were when it was sealed: one round later all of it is merged.
    pub(crate) start: Position,
    /// None while it is not built since the store was opened: any key may be there.
    pub(crate) filter: OnceLock<Filter>,
}

impl Run {
    pub(crate) fn new(tree: Tree, records: u64, start: Position) -> Run {
        Run {
            tree,
            records,
            start,
            filter: OnceLock::new(),
        }
    }

    /// Whether it may have `key`.
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        self.filter.get().is_none_or(|filter| filter.may_have(key))
    }

    /// Whether merges that have come to `position` have merged all of it.
    pub(crate) fn is_merged_at(&self, position: &Position) -> bool {
        let end = (self.start.round + 1, &self.start.key);
        (position.round, &position.key) >= end
    }
}
