//! Frames that the pool lends, for records that are in no page yet.
//!
//! No other task reaches a lent frame: its latch stays held exclusively, as a free frame's is, and
//! no replacement queue has it. It becomes free when its block is dropped, by any thread.

use std::sync::Arc;

use super::frames::Pages;
use super::{Buffer, FrameId, FreeFrames};
use crate::node::{Block, Lend, Words};
use crate::runtime::Worker;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Whom lent frames belong to.
pub(super) struct Lender {
    pages: Arc<Pages>,
    free: Mutex<FreeFrames>,
    lent: AtomicU32,
    /// Frames that may be lent.
    most: u32,
}

impl Lender {
    /// Lends up to `most` frames of these.
    pub(super) fn new(pages: Arc<Pages>, most: u32) -> Lender {
        Lender {
            pages,
            free: Mutex::default(),
            lent: AtomicU32::new(0),
            most,
        }
    }

    /// Frames that hold no page, beside those that workers keep for themselves.
    pub(super) fn free(&self) -> &Mutex<FreeFrames> {
        &self.free
    }

    /// Frames that are lent.
    pub(super) fn lent(&self) -> u32 {
        self.lent.load(Ordering::SeqCst)
    }
}

impl Lend for Lender {
    fn words(&self, frame: FrameId) -> &Words {
        self.pages.words(frame)
    }

    fn take_back(&self, frame: FrameId) {
        self.free.lock().give(frame);
        self.lent.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Buffer {
    /// Lends a frame, without waiting. Memory of its own stands in for one while all are in use, or
    /// so many are lent that pages need the rest.
    pub(crate) fn lend(&self, worker: &Worker) -> Block {
        let lender = &self.lender;
        if lender.lent.fetch_add(1, Ordering::SeqCst) < lender.most
            && let Some(frame) = self.acquire_frame(worker)
        {
            return Block::lent(Arc::clone(lender) as Arc<dyn Lend>, frame);
        }
        lender.lent.fetch_sub(1, Ordering::SeqCst);
        Block::own()
    }

    /// Frames that pages may have: all that are not lent.
    pub(crate) fn page_frames(&self) -> usize {
        (self.pool.frames.count() - self.lender.lent().min(self.lender.most)) as usize
    }

    /// Frames that are lent.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn lent_frames(&self) -> usize {
        self.lender.lent() as usize
    }
}
