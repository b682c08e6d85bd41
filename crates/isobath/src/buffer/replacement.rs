//! Chooses the frame to give up: S3-FIFO over the frames of one partition.
//!
//! A page enters a small queue of a tenth of the frames. If no access touches it
//! again by the time it reaches the queue's end, it goes; if one did, it
//! moves to the main queue, where every touch since the last round keeps it for
//! another one. A page that was given up lately enters the main queue directly.
//! A scan's pages pass through the small queue only, so a scan of any length
//! costs the main queue nothing (Yang et al., SOSP 2023). No access takes a
//! lock or moves a page: it only counts in the frame's header.

use std::collections::VecDeque;

use super::{BufferPool, FrameId, PagePlace};
use crate::page::PageId;

/// Share of the frames in the small queue: one in this many.
const SMALL_SHARE: usize = 10;
/// Touches that move a page from the small queue to the main one; the first
/// one is that of the task that had the page read.
const PROMOTE_TOUCHES: u8 = 2;
/// Frames looked at, per frame wanted and at least, before a call gives up.
const SCAN_PER_FRAME: usize = 8;
const MIN_SCAN: usize = 128;

/// The frames that one worker loaded, in replacement order.
pub(crate) struct Partition {
    small: VecDeque<FrameId>,
    main: VecDeque<FrameId>,
    /// Pages given up lately: a direct-mapped table of their ids' low bits.
    ghosts: Vec<u32>,
}

impl Partition {
    /// A partition that will hold about `frames` frames.
    pub(crate) fn new(frames: usize) -> Partition {
        Partition {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: vec![0; frames.max(1)],
        }
    }

    /// Frames in the partition.
    pub(crate) fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn ghost(&mut self, id: PageId) -> &mut u32 {
        let slot = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let slot = slot as usize % self.ghosts.len();
        &mut self.ghosts[slot]
    }

    /// `frame` now holds page `id`.
    pub(crate) fn admit(&mut self, frame: FrameId, id: PageId) {
        let ghost = self.ghost(id);
        if *ghost == id.0 as u32 {
            *ghost = 0;
            self.main.push_back(frame);
        } else {
            self.small.push_back(frame);
        }
    }

    /// Frees up to `want` frames into `freed`: their pages are no longer
    /// resident, their latches stay held exclusively.
    pub(crate) fn evict(&mut self, pool: &BufferPool, want: usize, freed: &mut Vec<FrameId>) {
        let target = freed.len() + want;
        let mut budget = (want * SCAN_PER_FRAME).max(MIN_SCAN).min(4 * self.len());
        while freed.len() < target && budget > 0 {
            budget -= 1;
            let from_small = self.main.is_empty() || self.small.len() * SMALL_SHARE > self.len();
            if from_small {
                let Some(frame) = self.small.pop_front() else {
                    return;
                };
                self.leave_small(pool, frame, freed);
            } else {
                let Some(frame) = self.main.pop_front() else {
                    return;
                };
                self.leave_main(pool, frame, freed);
            }
        }
    }

    fn leave_small(&mut self, pool: &BufferPool, frame: FrameId, freed: &mut Vec<FrameId>) {
        let header = pool.frames.header(frame);
        if header.touches() >= PROMOTE_TOUCHES && !header.is_freed() {
            header.set_touches(0);
            self.main.push_back(frame);
            return;
        }
        let id = header.page();
        if give_up(pool, frame) {
            *self.ghost(id) = id.0 as u32;
            freed.push(frame);
        } else {
            self.main.push_back(frame);
        }
    }

    fn leave_main(&mut self, pool: &BufferPool, frame: FrameId, freed: &mut Vec<FrameId>) {
        let header = pool.frames.header(frame);
        let touches = header.touches();
        if touches > 0 && !header.is_freed() {
            header.set_touches(touches - 1);
            self.main.push_back(frame);
        } else if give_up(pool, frame) {
            freed.push(frame);
        } else {
            self.main.push_back(frame);
        }
    }
}

/// Takes the page out of `frame` if it is clean and not latched; whether the frame is free now.
fn give_up(pool: &BufferPool, frame: FrameId) -> bool {
    pool.frames.header(frame).give_up(|page, address| {
        pool.mapping
            .replace(page, PagePlace::Resident(frame), PagePlace::Stored(address))
    })
}
