//! The parts of the pool that one worker has registered with the kernel, which only saves time.
//!
//! A registered page is pinned: it takes memory whether anything is in it or not. So the pool is
//! registered in pieces, each once all its frames were used.

#![allow(unsafe_code)]

use std::cell::Cell;

use super::{Buffer, FrameId};
use crate::runtime::Worker;

/// Frames of a piece at least: 4 MiB.
const MIN_PIECE: u32 = 1 << 10;
/// Pieces at most.
const PIECES: u32 = 1 << 11;

/// One worker's share.
pub(super) struct Registered {
    /// Frames of a piece.
    piece: u32,
    /// Frames below this are registered.
    frames: Cell<FrameId>,
    /// Number of frames in use at which there is something to do.
    due_at: Cell<u32>,
}

impl Registered {
    /// Nothing of a pool of `count` frames.
    pub(super) fn new(count: u32) -> Registered {
        let piece = (count / PIECES).next_power_of_two().max(MIN_PIECE);
        Registered {
            piece,
            frames: Cell::new(0),
            due_at: Cell::new(piece.min(count)),
        }
    }
}

impl Buffer {
    /// Registers a piece that came into use, if there is one; part of each step.
    #[inline]
    pub(super) fn register_used(&self, worker: &Worker, registered: &Registered) {
        if self.pool.frames.used() >= registered.due_at.get() {
            self.register_frames(worker, registered);
        }
    }

    fn register_frames(&self, worker: &Worker, registered: &Registered) {
        let frames = &self.pool.frames;
        let from = registered.frames.get();
        let to = frames.count().min(from + registered.piece);
        // SAFETY: the pool's frames outlive every worker of their engine.
        if !unsafe { worker.register_more(frames.region(from..to)) } {
            // It was refused.
            return registered.due_at.set(u32::MAX);
        }
        registered.frames.set(to);
        registered.due_at.set(match frames.count() - to {
            0 => u32::MAX,
            rest => to + rest.min(registered.piece),
        });
    }
}
