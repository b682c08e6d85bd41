//! Segments that hold nothing any more, but that readers in other processes may still read
//! (docs/decisions/0029).
//!
//! A reader pins the superblock that it was opened with. It needs no segment that became free
//! before that superblock was written, and any that became free since. So a freed segment is
//! labelled with the newest superblock that may be on the volume, and is used again once no pin is
//! as old as the label. How much is retained is bounded: beyond the bound, and when nothing else is
//! free, the oldest readers are overrun.

use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use super::SegmentAllocator;
use crate::canary::{self, Canary};

/// Share of the volume that is retained at most: one segment in this many.
const RETAINED_SHARE: u32 = 4;
/// Bytes that are retained at most in however small a volume.
const RETAINED_BYTES: u32 = 32 << 20;

/// Whether a reader in another process pins one of these superblocks.
pub(crate) type PinnedBy = Box<dyn Fn(RangeInclusive<u64>) -> bool + Send>;

/// Freed segments that readers may need, and what is known of these readers.
#[derive(Default)]
pub(super) struct Retained {
    is_pinned: Option<PinnedBy>,
    /// Sequence number of the newest superblock that may be on the volume.
    superblock: u64,
    /// Readers of this superblock and of earlier ones are overrun.
    overrun: u64,
    /// With their labels; the oldest first.
    segments: VecDeque<(u64, u32)>,
    /// Segments by which the volume has grown while some were retained.
    grown: u32,
}

impl Retained {
    /// Whether a reader may need what became free while `superblock` was the newest one.
    fn is_needed(&self, superblock: u64) -> bool {
        let Some(is_pinned) = &self.is_pinned else {
            return false;
        };
        self.overrun < superblock && is_pinned(self.overrun + 1..=superblock)
    }
}

impl SegmentAllocator {
    /// From now on what readers may need is retained. The newest superblock has the number
    /// `superblock`.
    pub(crate) fn retain_for_readers(&mut self, superblock: u64, is_pinned: PinnedBy) {
        self.retained.is_pinned = Some(is_pinned);
        self.retained.superblock = superblock;
    }

    /// Retains what became free before this opening, and is needed by readers that came before it.
    /// Of what it is not known when that became free, the superblock `latest` was the newest one
    /// then.
    pub(crate) fn retain_freed(&mut self, latest: u64) {
        for &segment in &self.free {
            let freed_at = &mut self.freed_at[segment as usize];
            *freed_at = latest.min(*freed_at);
        }
        let since = |&segment: &u32| self.freed_at[segment as usize];
        let mut freed: Vec<(u64, u32)> = self.free.iter().map(|s| (since(s), *s)).collect();
        freed.sort_unstable();
        // A reader that needs a segment freed at some time also needs those freed later.
        let first = freed.partition_point(|freed| !self.retained.is_needed(freed.0));
        let needed = freed.split_off(first);
        let segments: BTreeSet<u32> = needed.iter().map(|(_, segment)| *segment).collect();
        self.free.retain(|segment| !segments.contains(segment));
        self.retained.segments.extend(needed);
        self.bound_retained();
    }

    /// Frees what was retained first if that is more than may be.
    fn bound_retained(&mut self) {
        let least = RETAINED_BYTES / self.segment_bytes();
        let most = least.max(self.segments() / RETAINED_SHARE);
        while self.retained() > most && self.overrun_readers() {}
    }

    /// Ends that: the volume is closed.
    pub(crate) fn forget_readers(&mut self) {
        self.retained.is_pinned = None;
    }

    /// A superblock with this number is about to be written. Called before a reader can see it.
    pub(crate) fn superblock_begins(&mut self, superblock: u64) {
        self.retained.superblock = superblock;
    }

    /// Whether a reader in another process may need what becomes free now, or became so before.
    pub(crate) fn has_readers(&self) -> bool {
        self.retained() > 0 || self.retained.is_needed(self.retained.superblock)
    }

    /// Segments that are retained.
    pub(crate) fn retained(&self) -> u32 {
        self.retained.segments.len() as u32
    }

    /// Whether the volume may grow in place of what is retained: at most by as much.
    pub(crate) fn grows_for_readers(&self) -> bool {
        self.retained() > self.retained.grown
    }

    /// The volume has grown by `count` segments.
    pub(super) fn has_grown(&mut self, count: u32) {
        if self.retained() > 0 {
            self.retained.grown += count;
        }
    }

    /// Nothing lives in `segment`, and this process reads nothing there: it is free, now or once no
    /// reader needs it.
    pub(super) fn put_free(&mut self, segment: u32) {
        let superblock = self.retained.superblock;
        self.freed_at[segment as usize] = superblock;
        if self.retained.is_needed(superblock) && !canary::is_on(Canary::ReuseBesideReaders) {
            self.retained.segments.push_back((superblock, segment));
            self.bound_retained();
        } else {
            self.add_free(segment);
        }
        self.release_retained();
    }

    /// Frees what no reader needs any more.
    pub(crate) fn release_retained(&mut self) {
        let mut released = None;
        while let Some(&(superblock, segment)) = self.retained.segments.front() {
            if released != Some(superblock) && self.retained.is_needed(superblock) {
                return;
            }
            released = Some(superblock);
            self.retained.segments.pop_front();
            self.add_free(segment);
        }
        self.retained.grown = 0;
    }

    /// Frees the segments that were retained first; whether there are any. The readers that may
    /// need them find out when they read there, and hold back nothing any more.
    pub(crate) fn overrun_readers(&mut self) -> bool {
        let Some(&(superblock, _)) = self.retained.segments.front() else {
            return false;
        };
        self.retained.overrun = superblock;
        self.release_retained();
        true
    }

    /// A free segment; if there is none, one that was to be given back, or else one that is
    /// retained.
    pub(super) fn pop_free(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.unfence();
        }
        if self.free.is_empty() {
            self.overrun_readers();
        }
        self.free.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::shared::{ReservedWords, SegmentSize};
    use isobath_flash::policy::PolicyKind;

    /// Readers' pins, and a space that asks for them.
    struct Readers {
        pins: Arc<Mutex<BTreeSet<u64>>>,
        space: SegmentAllocator,
        /// Segments in use, to be freed.
        used: Vec<u32>,
    }

    impl Readers {
        fn new(segments: u32) -> Readers {
            Readers::of(segments, SegmentSize::of(1 << 20))
        }

        fn of(segments: u32, sizes: SegmentSize) -> Readers {
            let pins = Arc::new(Mutex::new(BTreeSet::new()));
            let policy = PolicyKind::Greedy.build(10_000);
            let mut space = SegmentAllocator::new(segments, sizes, 4096, 1, policy);
            let asked = Arc::clone(&pins);
            let is_pinned = move |range| asked.lock().unwrap().range(range).next().is_some();
            space.retain_for_readers(1, Box::new(is_pinned));
            let used = (0..segments / 2).filter_map(|_| space.take_system());
            let used = used.collect();
            Readers { pins, space, used }
        }

        fn pin(&self, superblock: u64) {
            self.pins.lock().unwrap().insert(superblock);
        }

        fn unpin(&self, superblock: u64) {
            self.pins.lock().unwrap().remove(&superblock);
        }

        /// Frees a segment; whether it can be used again at once.
        fn free_one(&mut self) -> bool {
            let segment = self.used.pop().unwrap();
            self.space.release_system(segment);
            self.space.free.contains(&segment)
        }
    }

    #[test]
    fn what_became_free_after_a_reader_came_waits_for_it() {
        let mut readers = Readers::new(100);
        assert!(readers.free_one(), "there is no reader");
        readers.pin(1);
        assert!(!readers.free_one());
        readers.space.superblock_begins(2);
        assert!(!readers.free_one());
        readers.pin(2);
        assert_eq!(readers.space.retained(), 2);
        // The second reader does not need what was free when it came.
        readers.unpin(1);
        readers.space.release_retained();
        assert_eq!(readers.space.retained(), 1);
        readers.unpin(2);
        assert!(readers.free_one(), "both are gone");
        assert_eq!(readers.space.retained(), 0);
    }

    /// A reader that pins the superblock before the last one may need the checkpoint that this one
    /// has replaced: its segments were in use when the last one was written, and are free when the
    /// store is opened after a crash. What was never in use no reader needs.
    #[test]
    fn what_the_system_used_at_the_last_checkpoint_waits_for_readers() {
        let before = Readers::new(50);
        let seqs = ReservedWords::reserve(1 << 20).unwrap();
        let words: Vec<[u64; 4]> = (0..50).map(|s| before.space.to_words(s, &seqs)).collect();
        let mut after = Readers::new(50);
        (0..25).for_each(|_| assert!(after.free_one()));
        after.pin(1);
        // It has grown since then.
        after.space.restore(0, &words[..40], &[], 0, &seqs);
        after.space.retain_freed(1);
        let retained = after.space.retained.segments.iter();
        let retained: BTreeSet<u32> = retained.map(|(_, segment)| *segment).collect();
        let used: BTreeSet<u32> = before.used.iter().copied().collect();
        assert_eq!(retained, used);
    }

    #[test]
    fn what_is_retained_is_bounded() {
        let mut readers = Readers::new(400);
        readers.pin(1);
        for superblock in 2..150 {
            readers.space.superblock_begins(superblock);
            readers.free_one();
        }
        assert_eq!(
            readers.space.retained(),
            0,
            "the reader holds back nothing more"
        );
        assert!(readers.free_one());
        readers.pin(149);
        assert!(!readers.free_one(), "a newer one does");
    }

    #[test]
    fn what_is_retained_is_taken_before_there_is_nothing() {
        let mut readers = Readers::new(100);
        readers.pin(1);
        readers.free_one();
        readers.space.superblock_begins(2);
        readers.pin(2);
        readers.free_one();
        readers.space.free.clear();
        assert!(readers.space.take_system().is_some());
        assert_eq!(
            readers.space.retained(),
            1,
            "the older reader's need goes first"
        );
        assert!(readers.space.take_system().is_some());
        assert!(readers.space.take_system().is_none());
    }

    #[test]
    fn the_volume_grows_by_as_much_as_is_retained() {
        let mut readers = Readers::new(100);
        assert!(!readers.space.grows_for_readers());
        readers.pin(1);
        readers.free_one();
        assert!(readers.space.grows_for_readers());
        readers.space.grow(108);
        assert!(!readers.space.grows_for_readers());
        for _ in 0..8 {
            readers.free_one();
        }
        assert!(readers.space.grows_for_readers());
        readers.unpin(1);
        readers.space.release_retained();
        assert!(!readers.space.grows_for_readers());
    }
}
