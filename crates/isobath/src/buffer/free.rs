//! Frames that hold no page and that no worker keeps for itself.

use super::frames::Frames;
use super::mapping::FrameId;

/// Those that were given back. The others were never used: [`Frames`] knows which.
#[derive(Default)]
pub(crate) struct FreeFrames {
    returned: Vec<FrameId>,
}

impl FreeFrames {
    /// Number of free frames.
    pub(crate) fn len(&self, frames: &Frames) -> usize {
        self.returned.len() + (frames.count() - frames.used()) as usize
    }

    /// Puts a frame back whose latch is held exclusively.
    pub(crate) fn give(&mut self, frame: FrameId) {
        self.returned.push(frame);
    }

    /// Moves up to `most` frames to the end of `into`: those that were used before first, then new
    /// ones, of which the lowest comes last. Memory grows with the highest frame used.
    pub(crate) fn take(&mut self, frames: &Frames, most: usize, into: &mut Vec<FrameId>) {
        let from = self.returned.len() - most.min(self.returned.len());
        let missing = most - (self.returned.len() - from);
        if missing > 0 {
            let missing = u32::try_from(missing).unwrap_or(u32::MAX);
            into.extend(frames.use_more(missing).rev());
        }
        into.extend(self.returned.drain(from..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_used_in_order_and_again_before_new_ones() {
        let frames = Frames::map(10).unwrap();
        let mut free = FreeFrames::default();
        assert_eq!((free.len(&frames), frames.used()), (10, 0));
        let mut taken = Vec::new();
        free.take(&frames, 4, &mut taken);
        assert_eq!(taken, [3, 2, 1, 0]);
        assert_eq!((free.len(&frames), frames.used()), (6, 4));
        free.give(1);
        free.give(3);
        taken.clear();
        free.take(&frames, 3, &mut taken);
        assert_eq!(taken, [4, 1, 3]);
        taken.clear();
        free.take(&frames, 100, &mut taken);
        assert_eq!(taken, [9, 8, 7, 6, 5]);
        free.take(&frames, 1, &mut taken);
        assert_eq!((taken.len(), free.len(&frames)), (5, 0));
    }

    #[test]
    fn a_discarded_frame_is_latched() {
        let frames = Frames::map(4).unwrap();
        let header = frames.header(2);
        assert!(header.latch().optimistic().is_none() && !header.latch().try_exclusive());
        header.latch().unlock_exclusive();
        let seen = header.latch().optimistic().unwrap();
        assert!(header.latch().validate(seen));
        frames.words(2).put_u16(8, 7);
        frames.discard_headers();
        frames.discard_pages();
        assert_eq!(frames.words(2).u64_at(8), 0);
        assert!(!header.latch().validate(seen) && header.latch().optimistic().is_none());
        assert!(!header.latch().try_shared() && !header.latch().try_upgrade(seen));
    }
}
