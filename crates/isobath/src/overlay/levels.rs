//! The parts of a tree with overlays at one time.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Memory, Position, Run};
use crate::error::StorageError;

/// The parts of a tree with overlays, from new to old; the base is last.
pub(crate) struct Levels {
    /// No others of the tree have it, since it got overlays.
    pub(crate) number: u64,
    pub(crate) memory: Arc<Memory>,
    /// The one that is being sealed: no commit changes it any more, but those that were in flight.
    pub(crate) sealing: Option<Arc<Memory>>,
    /// From new to old.
    pub(crate) runs: Vec<Arc<Run>>,
    /// How far merges have come.
    pub(crate) position: Arc<Position>,
}

impl Levels {
    /// The same with other parts, for a change.
    pub(crate) fn with_runs(&self, runs: Vec<Arc<Run>>) -> Levels {
        Levels {
            runs,
            ..self.copy()
        }
    }

    /// The same, for a change.
    pub(crate) fn copy(&self) -> Levels {
        Levels {
            number: self.number,
            memory: Arc::clone(&self.memory),
            sealing: self.sealing.clone(),
            runs: self.runs.clone(),
            position: Arc::clone(&self.position),
        }
    }

    /// Whether a part above the base may have something of `key`.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn may_have(&self, key: &[u8]) -> Result<bool, StorageError> {
        let is_in_memory = match &self.sealing {
            Some(sealing) => self.memory.has(key)? || sealing.has(key)?,
            None => self.memory.has(key)?,
        };
        let mut runs = self.runs.iter();
        Ok(is_in_memory || runs.any(|run| run.may_have(key, &self.position)))
    }

    /// Whether merges have passed all of a run: of the oldest one, then.
    pub(crate) fn has_merged_run(&self) -> bool {
        let oldest = self.runs.last();
        oldest.is_some_and(|run| run.is_merged_at(&self.position))
    }

    /// Records of runs that are to be merged.
    pub(crate) fn unmerged(&self) -> u64 {
        self.runs.iter().map(|run| run.unmerged()).sum()
    }

    /// Bytes of changes that no run has.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let sealing = self.sealing.as_ref().map_or(0, |memory| memory.bytes());
        self.memory.bytes() + sealing
    }
}

/// The `Levels` of a tree, and those of before that readers may have.
pub(super) struct Versions {
    pub(super) current: Arc<Levels>,
    /// From old to new.
    pub(super) former: VecDeque<Arc<Levels>>,
}

impl Versions {
    pub(super) fn new(levels: Levels) -> Versions {
        Versions {
            current: Arc::new(levels),
            former: VecDeque::new(),
        }
    }

    /// Whether no reader has the oldest.
    pub(super) fn has_unused(&self) -> bool {
        let is_free = |former: &Arc<Levels>| Arc::strong_count(former) == 1;
        self.former.front().is_some_and(is_free)
    }

    /// The oldest ones, as long as no reader has them.
    pub(super) fn take_unused(&mut self) -> Vec<Arc<Levels>> {
        let mut unused = Vec::new();
        while self.has_unused() {
            unused.extend(self.former.pop_front());
        }
        unused
    }
}
