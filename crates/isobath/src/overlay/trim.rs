//! Trims: freeing what merges have passed.

use super::Position;
use crate::types::TreeId;

/// A range of keys of which these runs hold nothing that counts.
#[derive(Clone)]
pub(crate) struct Trim {
    pub(crate) runs: Vec<TreeId>,
    pub(crate) start: Vec<u8>,
    /// `None` stands for the end of all keys.
    pub(crate) end: Option<Vec<u8>>,
}

/// The trims of a tree.
#[derive(Default)]
pub(crate) struct Trims {
    /// Where the next one begins.
    pub(crate) position: Position,
    /// The one that is going on.
    pub(crate) current: Option<Trim>,
    /// It waits for readers.
    pub(crate) is_queued: bool,
}
