//! Frames that wait to be written back, oldest change first.

use std::collections::VecDeque;

use super::FrameId;
use crate::page::PageId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 8;

/// Page ids in a row of one shard. Loads give ids to pages in the order of their keys, and writers
/// take frames from one shard: pages whose keys follow each other are written together, and can be
/// read together.
const RUN: u64 = 64;

/// A sharded queue of dirty frames. A frame whose `QUEUED` flag is set is in it. One that a writer
/// has taken out of turn stays listed without the flag.
pub(crate) struct DirtyQueue {
    shards: [Mutex<VecDeque<FrameId>>; SHARDS],
    /// Frames that are to be written before all others, and how many.
    first: Mutex<Vec<FrameId>>,
    first_count: AtomicUsize,
    /// Frames that are dirty or being written; what the limit counts.
    unwritten: AtomicUsize,
    /// Frames that have turned clean, since the store was opened.
    cleaned: AtomicUsize,
    /// Frames that are listed.
    queued: AtomicUsize,
}

impl DirtyQueue {
    pub(crate) fn new() -> DirtyQueue {
        DirtyQueue {
            shards: std::array::from_fn(|_| Mutex::new(VecDeque::new())),
            first: Mutex::default(),
            first_count: AtomicUsize::new(0),
            unwritten: AtomicUsize::new(0),
            cleaned: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
        }
    }

    /// A clean frame turned dirty.
    pub(crate) fn turned_dirty(&self) {
        self.unwritten.fetch_add(1, Ordering::Relaxed);
    }

    /// `count` writes of frames have ended, or dirty pages.
    pub(crate) fn written(&self, count: usize) {
        self.unwritten.fetch_sub(count, Ordering::Relaxed);
        self.cleaned.fetch_add(count, Ordering::Release);
    }

    /// How many frames have turned clean since the store was opened.
    pub(crate) fn written_back(&self) -> usize {
        self.cleaned.load(Ordering::Acquire)
    }

    /// Frames dirty or being written now.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Frames that are listed now, queued or not.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Queues a frame whose `QUEUED` flag the caller has just set, and which holds `page`.
    pub(crate) fn push(&self, frame: FrameId, page: PageId) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let shard = (page.0 / RUN) as usize % SHARDS;
        self.shards[shard].lock().push_back(frame);
    }

    /// Has writers write these frames before all others, unless some are to be written so already:
    /// then the caller asks again later.
    pub(crate) fn write_first(&self, frames: impl Iterator<Item = FrameId>) {
        let mut first = self.first.lock();
        if first.is_empty() {
            first.extend(frames);
            self.first_count.store(first.len(), Ordering::Release);
        }
    }

    /// Whether frames are to be written before all others.
    pub(crate) fn has_first(&self) -> bool {
        self.first_count.load(Ordering::Acquire) > 0
    }

    /// Takes up to `most` frames that are to be written first. If there are none, takes frames of
    /// the shard `start` or, if that is empty, of the next one that is not.
    pub(crate) fn take(&self, start: usize, most: usize, into: &mut Vec<FrameId>) {
        if self.has_first() {
            let mut first = self.first.lock();
            let left = first.len().saturating_sub(most);
            into.extend(first.drain(left..));
            self.first_count.store(left, Ordering::Release);
            return;
        }
        for step in 0..SHARDS {
            let mut shard = self.shards[(start + step) % SHARDS].lock();
            let count = shard.len().min(most - into.len());
            into.extend(shard.drain(..count));
            self.queued.fetch_sub(count, Ordering::Relaxed);
            if into.len() >= most {
                return;
            }
        }
    }
}
