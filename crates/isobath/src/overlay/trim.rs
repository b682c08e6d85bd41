//! Trims: freeing what merges have passed.

use super::Position;
use crate::types::TreeId;

/// A range of keys of which these runs hold nothing that counts.
pub(crate) struct Trim {
    pub(crate) runs: Vec<TreeId>,
    pub(crate) start: Vec<u8>,
    /// `None` stands for the end of all keys.
    pub(crate) end: Option<Vec<u8>>,
}

/// A range of keys that merges have passed.
#[derive(Clone)]
pub(crate) struct Passed {
    pub(crate) from: Position,
    /// `None` stands for the end of all keys.
    pub(crate) end: Option<Vec<u8>>,
}

/// The trims of a tree.
#[derive(Default)]
pub(crate) struct Trims {
    /// Where the next one begins.
    pub(crate) position: Position,
    /// What the one that is going on is of.
    pub(crate) current: Option<Passed>,
    /// It waits for readers.
    pub(crate) is_queued: bool,
}
