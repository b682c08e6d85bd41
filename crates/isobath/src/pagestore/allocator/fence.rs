//! Emptying segments so that the volume can end before them.
//!
//! No one takes segments behind the fence: those that are free, or become so, wait on a list of
//! their own. The cleaner moves what lives in the others. When all of them are on the list, the
//! volume may be cut there. Until then the fence may be lifted at any time, and everything is as
//! before.

use isobath_flash::policy::{SegmentId, SegmentState};

use super::{MIN_OPEN, SealedSegment, SegmentAllocator};
use crate::small;

/// Which segments are being emptied.
pub(super) struct Fence {
    /// The first segment of the volume's tail.
    tail: u32,
    /// Those of them that are free.
    free: Vec<u32>,
    /// The cleaner looks for the next victim below this, from the volume's end down.
    cursor: u32,
}

impl Fence {
    pub(super) fn contains(&self, segment: u32) -> bool {
        segment >= self.tail
    }
}

/// The shares of segments that a volume of some length keeps.
pub(crate) struct Shares {
    /// For a checkpoint.
    pub(crate) checkpoint: u32,
    /// Open ones at most.
    pub(crate) open: u32,
    /// That only cleaning and checkpoints may take.
    pub(crate) reserve: u32,
}

impl SegmentAllocator {
    /// The shares that a volume of `segments` segments keeps.
    pub(crate) fn shares(&self, segments: u32) -> Shares {
        // Every stream of relocated pages may hold one half-filled segment while
        // the next victim is read.
        // A checkpoint needs a word per page and a few per segment, beside the
        // one that it replaces.
        let checkpoint = small::checkpoint_segments(segments, segments / 300 + 2);
        // The log's space is not available to pages.
        let room = segments.saturating_sub(self.system);
        Shares {
            checkpoint,
            open: (self.open.len() as u32).min((room / 32).max(MIN_OPEN)),
            reserve: MIN_OPEN.min(segments / 4) + checkpoint,
        }
    }

    /// Takes the segments from `tail` on out of use. Those of them that are open are closed; their
    /// summaries are to be written.
    pub(crate) fn fence(&mut self, tail: u32, closing: &mut Vec<SealedSegment>) {
        self.unfence();
        let fence = Fence {
            tail,
            free: Vec::new(),
            cursor: self.count,
        };
        for slot in 0..self.open.len() {
            if self.open[slot]
                .as_ref()
                .is_some_and(|open| fence.contains(open.segment))
            {
                self.close(slot, false, closing);
            }
        }
        self.fence = Some(fence);
        for segment in std::mem::take(&mut self.free) {
            self.add_free(segment);
        }
        self.restart_progress();
    }

    /// Lifts the fence: its free segments may be taken again. Whether there was one.
    pub(crate) fn unfence(&mut self) -> bool {
        let Some(mut fence) = self.fence.take() else {
            return false;
        };
        // In front: low numbers are taken first.
        fence.free.sort_unstable_by(|a, b| b.cmp(a));
        self.free.splice(0..0, fence.free);
        true
    }

    /// Whether there is a fence.
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.is_some()
    }

    /// Whether `segment` is behind the fence.
    pub(crate) fn is_behind_fence(&self, segment: u32) -> bool {
        self.fence
            .as_ref()
            .is_some_and(|fence| fence.contains(segment))
    }

    /// A free segment, for the next allocation.
    pub(super) fn add_free(&mut self, segment: u32) {
        match &mut self.fence {
            Some(fence) if fence.contains(segment) => fence.free.push(segment),
            _ => self.free.push(segment),
        }
    }

    /// Segments of the tail that are not free.
    pub(crate) fn tail_left(&self) -> u32 {
        self.fence.as_ref().map_or(0, |fence| {
            let free = fence.free.iter().filter(|&&segment| segment >= fence.tail);
            self.count - fence.tail - free.count() as u32
        })
    }

    /// Bad segments behind the fence: they cannot be emptied.
    pub(crate) fn has_bad_behind_fence(&self) -> bool {
        self.bad
            .iter()
            .any(|&segment| self.is_behind_fence(segment))
    }

    /// The segment behind the last one that cannot be emptied.
    pub(crate) fn end_of_bad(&self) -> u32 {
        self.bad.last().map_or(0, |segment| segment + 1)
    }

    /// Whether the cleaner has victims behind the fence, and space for what is live in them.
    pub(crate) fn fence_wants_cleaning(&self) -> bool {
        let starts = self.fence.as_ref().map(|fence| fence.tail);
        let cursor = self.fence.as_ref().map_or(0, |fence| fence.cursor);
        starts.is_some_and(|lowest| cursor > lowest) && !self.keeps_dead
    }

    /// The cleaner finds no victim, behind the fence either, until it is to look there again.
    pub(crate) fn rest_behind_fence(&mut self) {
        if let Some(fence) = &mut self.fence {
            fence.cursor = fence.tail;
        }
    }

    /// Lets the cleaner look at all segments behind the fence again: some may have been written to
    /// the end since.
    pub(crate) fn look_behind_fence_again(&mut self) {
        if let Some(fence) = &mut self.fence {
            fence.cursor = self.count;
        }
    }

    /// The next sealed segment behind the fence, from the end of the volume down.
    pub(super) fn fenced_victim(&mut self) -> Option<SegmentId> {
        // Of what is free below the fence, the last ones are for ordinary cleaning.
        if self.spare_segments() == 0 {
            return None;
        }
        let fence = self.fence.as_mut()?;
        let lowest = fence.tail;
        while fence.cursor > lowest {
            fence.cursor -= 1;
            let id = SegmentId(fence.cursor);
            if fence.contains(id.0) && self.table.state(id) == SegmentState::Sealed {
                return Some(id);
            }
        }
        None
    }

    /// Cuts the volume off at the fence, if nothing is behind it; the new number of segments.
    pub(crate) fn cut_at_fence(&mut self) -> Option<u32> {
        if self.tail_left() > 0 {
            return None;
        }
        let fence = self.fence.take()?;
        let before = std::mem::replace(&mut self.count, fence.tail);
        for segment in fence.free {
            if segment < self.count {
                self.free.push(segment);
            }
        }
        debug_assert!(self.free.iter().all(|&segment| segment < self.count));
        debug_assert!(
            (self.count..before).all(|segment| self.busy[segment as usize] == 0),
            "what was cut off is in use"
        );
        self.resized();
        Some(self.count)
    }
}
