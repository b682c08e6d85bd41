//! Chooses how much of the volume is given back, and empties its end behind a fence. The order of
//! all steps: `checkpoint/shrink.rs`.

use std::time::Duration;

use crate::error::StorageError;
use crate::log::MIN_AREA_BYTES;
use crate::pagestore::growth::first_segments;
use crate::pagestore::{PageStore, SegmentAllocator, page_payload};
use crate::runtime::{Worker, clock};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Between two looks at what others empty.
pub(crate) const POLL: Duration = Duration::from_millis(1);
/// Looks in a row that find no progress, after which the rest stays as it is: a backup or a reader
/// may hold it for long.
pub(crate) const MAX_IDLE_LOOKS: u32 = 3_000;
/// Free segments beyond those that are given back, before the tail is emptied.
const MARGIN: u32 = 2;

/// Beside so much data it is not worth the wait to move some when a store is closed.
const MOVED_BYTES: u64 = 192 << 20;

/// Whether the volume is being shortened.
#[derive(Default)]
pub(crate) struct Shrinking {
    is_running: AtomicBool,
    /// Spare segments that the cleaners work towards.
    goal: AtomicU32,
    /// The store was compacted since it was opened.
    is_compacted: AtomicBool,
}

impl Shrinking {
    /// Whether the volume is being shortened: the log does not grow during that.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::SeqCst)
    }

    /// Spare segments that the cleaners work towards, beside what they do anyway.
    pub(crate) fn goal(&self) -> u32 {
        self.goal.load(Ordering::Relaxed)
    }

    /// Cleaning gains nothing more.
    pub(crate) fn give_up_goal(&self) {
        self.goal.store(0, Ordering::Relaxed);
    }
}

/// The right to shorten the volume, until it is dropped.
pub(crate) struct ShrinkTurn<'p>(&'p PageStore);

impl ShrinkTurn<'_> {
    /// Keeps the right: the store is being closed.
    pub(crate) fn until_closed(self) {
        std::mem::forget(self);
    }
}

impl Drop for ShrinkTurn<'_> {
    fn drop(&mut self) {
        let pagestore = self.0;
        pagestore.shrinking.give_up_goal();
        pagestore.lift_fence();
        let is_running = &pagestore.shrinking.is_running;
        is_running.store(false, Ordering::SeqCst);
    }
}

/// The outcome of setting up a fence.
pub(crate) enum Fence {
    /// There is one, in front of this segment.
    Stands(u32),
    /// It would gain nothing.
    NotNeeded,
}

/// The contents behind the fence.
pub(crate) struct Tail {
    /// Segments.
    pub(crate) left: u32,
    /// Some segment cannot be emptied.
    pub(crate) is_stuck: bool,
}

impl PageStore {
    /// Begins to shorten the volume, if no other task does.
    pub(crate) fn begin_shrinking(&self) -> Option<ShrinkTurn<'_>> {
        let begun = &self.shrinking.is_running;
        let began = begun.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst);
        // Made only if it is the right: one that is dropped ends that of the task that has it.
        began.is_ok().then(|| ShrinkTurn(self))
    }

    /// The store was compacted since it was opened.
    pub(crate) fn set_compacted(&self) {
        let is_compacted = &self.shrinking.is_compacted;
        is_compacted.store(true, Ordering::Relaxed);
    }

    /// Whether closing gives back the blocks of a file that hold nothing. One with a limit keeps
    /// the room that it was promised.
    pub(crate) fn gives_blocks_back(&self) -> bool {
        self.shrinking.is_compacted.load(Ordering::Relaxed) && !self.growth.is_limited()
    }

    /// Segments that a volume needs for what is stored now and a log of `log` segments.
    fn segments_needed(&self, space: &SegmentAllocator, log: u32) -> u32 {
        let segment = u64::from(space.segment_bytes());
        let live = self.allocated_bytes.load(Ordering::Acquire);
        let reserved = self.reserved_bytes.load(Ordering::Acquire);
        let payload = page_payload(space.segment_bytes());
        // Bound: the present length.
        let is_limited = self.growth.is_limited();
        let mut segments = first_segments(is_limited) + log;
        while segments < space.segments() {
            let shares = space.shares(segments);
            let system = 1 + log + segments / 250 + 2;
            let spare = self.growth.spare_of(segments);
            let kept = system + shares.reserve + shares.open + spare;
            let usable = u64::from(segments.saturating_sub(kept));
            let room = u64::from(segments.saturating_sub(system)) * segment;
            let has_room = usable * payload * self.growth.full_percent() / 100 >= reserved;
            // The next writes make one without a limit grow again.
            let is_cleanable = || self.lower.shared.config.fill_factor * room as f64 >= live as f64;
            if has_room && (!is_limited || is_cleanable()) {
                break;
            }
            segments += 1;
        }
        segments.max(space.end_of_bad())
    }

    /// Whether a volume without a limit is so much longer than its data that it is worth moving
    /// some. Not while a reader in another process needs what is obsolete.
    pub(crate) fn is_long_for_its_data(&self) -> bool {
        let space = self.space.lock();
        let data = self.allocated_bytes();
        let first = u64::from(first_segments(false)) * u64::from(space.segment_bytes());
        let most = MIN_AREA_BYTES + first + data + data / 4;
        !self.growth.is_limited()
            && data <= MOVED_BYTES
            && space.sizes().start_of(space.segments()) > most
            && !space.has_readers()
    }

    /// The segments that the volume needs for what is stored.
    pub(crate) fn shrink_target(&self) -> u32 {
        let space = self.space.lock();
        let log = self.lower.log_tasks.segments();
        self.segments_needed(&space, log)
    }

    /// Waits until as many segments are free as are not needed for what is stored.
    pub(crate) fn pack(&self, worker: &Worker) -> Result<(), StorageError> {
        self.make_free(worker, self.shrink_target(), MAX_IDLE_LOOKS)
            .map(drop)
    }

    /// Waits until the cleaners have freed as many segments as are to be given back, or have freed
    /// none for so many looks; returns how many are spare then.
    pub(crate) fn make_free(
        &self,
        worker: &Worker,
        segments: u32,
        looks: u32,
    ) -> Result<u32, StorageError> {
        let goal = {
            let space = self.space.lock();
            space.segments().saturating_sub(segments) + MARGIN
        };
        self.shrinking.goal.store(goal, Ordering::Relaxed);
        let (mut idle, mut most) = (0, 0);
        loop {
            self.lower.shared.writable()?;
            self.wait_for_pending_frees(worker)?;
            let spare = self.space.lock().spare_segments();
            idle = if spare > most { 0 } else { idle + 1 };
            most = most.max(spare);
            let given_up = self.shrinking.goal() == 0;
            if spare >= goal || given_up || idle > looks {
                self.shrinking.give_up_goal();
                return Ok(spare);
            }
            self.request_cleaning();
            worker.sleep_until(clock::now() + POLL);
        }
    }

    /// Sets up a fence in front of segment `target`, or of a later one where fewer than are behind
    /// it are `spare`.
    ///
    /// # Errors
    ///
    /// Any of the volume's, which poisons the store.
    pub(crate) fn fence(
        &self,
        worker: &Worker,
        target: u32,
        spare: u32,
    ) -> Result<Fence, StorageError> {
        // A task that grows the volume now has not seen the fence; a later one lifts it.
        drop(self.resizing_turn(worker)?);
        let mut closing = Vec::new();
        let tail = {
            let mut space = self.space.lock();
            // Each segment that is given back is free, or finds a free one for what lives in it.
            let gain = spare.saturating_sub(MARGIN);
            let tail = target.max(space.segments().saturating_sub(gain));
            if tail >= space.segments() {
                return Ok(Fence::NotNeeded);
            }
            space.fence(tail, &mut closing);
            tail
        };
        // Segments were closed because they are to be emptied.
        let closed = self.write_summaries(worker, &mut closing);
        closed.inspect_err(|error| self.lower.shared.poison(error.clone()))?;
        Ok(Fence::Stands(tail))
    }

    /// The contents behind the fence, while it stands.
    pub(crate) fn look_behind_fence(&self) -> Option<Tail> {
        let mut space = self.space.lock();
        if !space.is_fenced() {
            return None;
        }
        space.look_behind_fence_again();
        Some(Tail {
            left: space.tail_left(),
            is_stuck: space.has_bad_behind_fence(),
        })
    }

    /// Takes the fence away, if there is one.
    pub(crate) fn lift_fence(&self) {
        self.space.lock().unfence();
    }

    /// Hands out no segment behind the fence any more, which is the volume's end from now on;
    /// `false` if that cannot be, as while another task grows the volume: it hands out what is
    /// behind the fence when it is done.
    pub(crate) fn end_at_fence(&self) -> bool {
        let mut space = self.space.lock();
        if self.is_resizing() || !space.is_fenced() || space.cut_at_fence().is_none() {
            return false;
        }
        self.update_capacity(&space);
        true
    }
}
