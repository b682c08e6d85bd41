//! Small segments that a volume has outgrown: none is taken or cleaned any more, since cleaning
//! them would use up large segments and free none.

use isobath_flash::policy::{SegmentId, SegmentState};

use super::SegmentAllocator;
use crate::canary::{self, Canary};

impl SegmentAllocator {
    /// Segments that are in use: all, or all large ones.
    pub(crate) fn usable_segments(&self) -> u32 {
        self.sizes.usable_of(self.count)
    }

    /// Segments, of those that are in use at all, that hold no pages of the store: superblocks,
    /// log, checkpoints.
    pub(crate) fn system_segments(&self) -> u32 {
        match self.sizes.are_outgrown_by(self.count) {
            true => self.system - self.small_system,
            false => self.system,
        }
    }

    /// Takes no small segment from now on, if the volume has outgrown them, and cleans none: that
    /// would take space, and give none.
    pub(crate) fn leave_small(&mut self) {
        if !self.sizes.are_outgrown_by(self.count) {
            return;
        }
        self.table.enlarge_segments(self.sizes.large);
        let first_large = self.sizes.first_large;
        self.free.retain(|&segment| segment >= first_large);
        self.release_outgrown();
        for id in (0..first_large).map(SegmentId) {
            let is_sealed = self.table.state(id) == SegmentState::Sealed;
            if is_sealed && !canary::is_on(Canary::CleanSmallSegments) {
                self.table.begin_cleaning(id);
            }
        }
    }

    /// Small segments that hold nothing and that the volume has outgrown; none while a reader in
    /// another process may need what was there.
    pub(crate) fn unused_outgrown(&self) -> Vec<u32> {
        if self.has_readers() && !canary::is_on(Canary::ReuseBesideReaders) {
            return Vec::new();
        }
        let is_unused = |segment: &u32| {
            self.is_left(*segment) && self.table.state(SegmentId(*segment)) == SegmentState::Free
        };
        (0..self.sizes.first_large).filter(is_unused).collect()
    }

    /// Whether `segment` is small, in a volume that has outgrown these: it is never free again.
    pub(super) fn is_left(&self, segment: u32) -> bool {
        segment < self.sizes.first_large && self.sizes.are_outgrown_by(self.count)
    }
}
