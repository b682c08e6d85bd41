//! Giving file space back: segments at the volume's end are emptied, then cut off (docs/decisions/0031).
//!
//! The order is what matters. Everything moves away from the tail; then a checkpoint lets go of every record that names a
//! place there; then both superblocks say that the volume is shorter; then its labels; then the files are cut. A crash in
//! between leaves a volume that is longer than it says, which is harmless.

use std::time::Duration;

use crate::canary::{self, Canary};
use crate::engine::Engine;
use crate::log::MIN_AREA_BYTES;
use crate::log::growth::Larger;
use crate::page::Lsn;
use crate::pagestore::growth::FULL_PERCENT;
use crate::pagestore::{SealedSegment, SegmentAllocator, page_payload, writeback};
use crate::runtime::{WorkerState, clock};
use crate::shared::Run;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::{Error, trace};

/// Between two looks at what others empty.
const POLL: Duration = Duration::from_millis(1);
/// Attempts to empty the volume's end: writers that need the space lift the fence.
const MAX_ROUNDS: u32 = 4;
/// Looks in a row that find no progress, after which the rest stays as it is: a backup or a reader may hold it for long.
const MAX_IDLE_LOOKS: u32 = 3_000;
/// Free segments beyond those that are given back, before the tail is emptied.
const MARGIN: u32 = 2;
/// How full the segments of a volume without a limit become, in percent: the last few percent would cost moving everything.
const PACKED_PERCENT: u64 = 97;
/// Attempts to move the log to a smaller area: they fail while much of it is in use.
const MAX_LOG_MOVES: u32 = 50;

/// Whether the volume is being shortened.
#[derive(Default)]
pub(crate) struct Shrinking {
    is_running: AtomicBool,
    /// Spare segments that the cleaners work towards.
    goal: AtomicU32,
}

impl Shrinking {
    /// Whether the volume is being shortened: the log stays where it is meanwhile.
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

/// Clears the state of a running compaction when dropped, also after an error.
struct Running<'e>(&'e Engine);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let engine = self.0;
        engine.pagestore.shrinking.give_up_goal();
        engine.pagestore.space.lock().unfence();
        engine.pagestore.segment_waiters.wake_all();
        engine
            .pagestore
            .shrinking
            .is_running
            .store(false, Ordering::SeqCst);
    }
}

/// What is tried to be emptied.
struct Target {
    /// Segments that the volume is to have.
    segments: u32,
    /// Where the log is to lie, if it moves.
    log: Option<Run>,
    /// Segments of the tail that it leaves then.
    left: u32,
}

/// Bytes of the volume before and after, and how many a drive was asked to discard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shrunk {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) discarded: u64,
}

impl Engine {
    /// Segments that a volume needs for what is stored now and a log of `log` segments.
    fn segments_needed(&self, space: &SegmentAllocator, log: u32) -> u32 {
        let sizes = space.sizes();
        let segment = u64::from(space.segment_bytes());
        let live = self.pagestore.allocated_bytes.load(Ordering::Acquire);
        let reserved = self.pagestore.reserved_bytes.load(Ordering::Acquire);
        let payload = page_payload(space.segment_bytes());
        // Bound: the present length.
        let mut segments = crate::recovery::open::FIRST_SEGMENTS + log;
        if sizes.are_outgrown_by(space.segments()) {
            segments += sizes.first_large;
        }
        while segments < space.segments() {
            let shares = space.shares(segments);
            let used = sizes.usable_of(segments);
            let system = 1 + log + used / 250 + 2;
            let kept = system + shares.reserve + shares.open + writeback::SPARE_ENOUGH;
            let usable = u64::from(used.saturating_sub(kept));
            let room = u64::from(used.saturating_sub(system)) * segment;
            let holds = match self.pagestore.growth.is_limited() {
                true => {
                    usable * payload * FULL_PERCENT / 100 >= reserved
                        && self.shared.config.fill_factor * room as f64 >= live as f64
                }
                // The next writes make the volume grow again.
                false => usable * payload * PACKED_PERCENT / 100 >= reserved,
            };
            if holds {
                break;
            }
            segments += 1;
        }
        segments.max(space.end_of_bad())
    }
}

impl WorkerState {
    /// Writes a checkpoint that needs nothing of the log so far, but for what a backup holds.
    ///
    /// # Errors
    ///
    /// [`Error::NeedsLog`], [`Error::ReadOnly`], [`Error::Poisoned`]; any of the volume's, which poisons the store.
    pub(crate) fn checkpoint_now(&self) -> Result<(), Error> {
        let engine = &self.engine;
        engine.shared.writable()?;
        if !engine.log.is_on() {
            return Err(Error::NeedsLog { what: "checkpoint" });
        }
        let before = engine.log.next();
        // Bound: each other checkpoint ends, and each that is written in part makes space for the rest.
        while !self.checkpoint(before)?.is_whole() {
            self.worker.sleep_until(clock::now() + POLL);
            engine.shared.writable()?;
        }
        Ok(())
    }

    /// Packs what is stored towards the volume's beginning and gives back the space behind it.
    ///
    /// # Errors
    ///
    /// As for [`WorkerState::checkpoint_now`].
    pub(crate) fn shrink(&self) -> Result<Shrunk, Error> {
        let engine = &self.engine;
        engine.shared.writable()?;
        if !engine.log.is_on() {
            return Err(Error::NeedsLog { what: "compact" });
        }
        let begin = || {
            let begun = &engine.pagestore.shrinking.is_running;
            begun
                .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        };
        // Bound: each other one ends.
        while !begin() {
            self.worker.sleep_until(clock::now() + POLL);
            engine.shared.writable()?;
        }
        let _running = Running(engine);
        let _span = trace::span!("compact");
        let volume = engine.shared.volume()?;
        let before = volume.len();
        let discarded = if volume.can_shrink() {
            for _ in 0..MAX_ROUNDS {
                let length = volume.len();
                if self.shrink_once()? && volume.len() == length {
                    break;
                }
            }
            engine.pagestore.discard_outgrown(&self.worker)?
        } else {
            let space = engine.pagestore.space.lock();
            let log = engine.log_tasks.segments(space.segments());
            let needed = engine.segments_needed(&space, log);
            drop(space);
            self.make_free(needed, 0)?;
            engine.pagestore.discard_free(&self.worker)?
        };
        Ok(Shrunk {
            before,
            after: volume.len(),
            discarded,
        })
    }

    /// One attempt; `false` where it was interrupted.
    fn shrink_once(&self) -> Result<bool, Error> {
        let engine = &self.engine;
        self.leave_old_log()?;
        engine.transactions.gc(self);
        self.checkpoint_now()?;
        let target = self.target()?;
        let log = target.log.map_or(0, |run| run.count);
        let spare = self.make_free(target.segments + target.left, log)?;
        let mut closing = Vec::new();
        {
            let mut space = engine.pagestore.space.lock();
            // Each segment that is given back is free, or finds a free one for what lives in it.
            let gain = spare.saturating_sub(log + MARGIN) + target.left;
            let tail = target.segments.max(space.segments().saturating_sub(gain));
            if tail >= space.segments() && target.log.is_none() {
                return Ok(true);
            }
            if !space.may_fence(tail, target.log) {
                // It has outgrown its small segments meanwhile.
                return Ok(false);
            }
            space.fence(tail, target.log, &mut closing);
        }
        self.close_fenced(&mut closing)?;
        Ok(self.empty_fenced(target.log)? && self.cut()?)
    }

    /// Where the log lies in the volume, if it does, and whether it may have another size.
    fn log_run(&self) -> Result<Option<(Run, bool)>, Error> {
        let engine = &self.engine;
        loop {
            engine.shared.writable()?;
            if let Some(superblock) = engine.checkpoints.superblock() {
                let run = Run {
                    first: superblock.log_first,
                    count: superblock.log_segments,
                };
                return Ok((run.count > 0).then_some((run, superblock.max_log_segments > 0)));
            }
            // A checkpoint is being written.
            self.worker.sleep_until(clock::now() + POLL);
        }
    }

    /// How short the volume can become, and where its log is to lie then.
    fn target(&self) -> Result<Target, Error> {
        let log = self.log_run()?;
        let space = self.engine.pagestore.space.lock();
        let Some((run, changes)) = log else {
            return Ok(Target {
                segments: self.engine.segments_needed(&space, 0),
                left: 0,
                log: None,
            });
        };
        let least = MIN_AREA_BYTES.div_ceil(u64::from(space.segment_bytes())) as u32;
        let count = if changes {
            least.min(run.count)
        } else {
            run.count
        };
        let segments = self.engine.segments_needed(&space, count);
        // One that has just outgrown its small segments may have no room for the log beside what pages need.
        let lowest = match changes && segments <= space.segments() {
            true => space.lowest_run(count, run),
            false => None,
        };
        // To where it makes the volume shorter, or for fewer segments.
        let end = |run: Run| run.first + run.count;
        let log = lowest
            .filter(|&lowest| count < run.count || (end(run) > segments && end(lowest) < end(run)));
        Ok(Target {
            segments: segments.max(end(log.unwrap_or(run))),
            left: match log {
                Some(_) if run.first >= segments => run.count,
                _ => 0,
            },
            log,
        })
    }

    /// Waits until the cleaners have freed as many segments as are to be given back, and `more`; returns how many are
    /// spare then.
    fn make_free(&self, segments: u32, more: u32) -> Result<u32, Error> {
        let engine = &self.engine;
        let goal = {
            let space = engine.pagestore.space.lock();
            space.segments().saturating_sub(segments) + more + MARGIN
        };
        engine
            .pagestore
            .shrinking
            .goal
            .store(goal, Ordering::Relaxed);
        let (mut idle, mut most) = (0, 0);
        loop {
            engine.shared.writable()?;
            self.wait_for_pending_frees()?;
            let spare = engine.pagestore.space.lock().spare_segments();
            idle = if spare > most { 0 } else { idle + 1 };
            most = most.max(spare);
            let given_up = engine.pagestore.shrinking.goal() == 0;
            if spare >= goal || given_up || idle > MAX_IDLE_LOOKS {
                engine.pagestore.shrinking.give_up_goal();
                return Ok(spare);
            }
            engine.pagestore.request_cleaning();
            self.worker.sleep_until(clock::now() + POLL);
        }
    }

    /// Writes the summaries of segments that were closed because they are to be emptied.
    fn close_fenced(&self, closing: &mut Vec<SealedSegment>) -> Result<(), Error> {
        let closed = self.write_summaries(closing);
        if let Err(error) = &closed {
            self.engine.poison(error.clone());
        }
        closed
    }

    /// Waits until nothing is in the tail; `false` where the fence was lifted.
    fn empty_fenced(&self, mut log: Option<Run>) -> Result<bool, Error> {
        let engine = &self.engine;
        let (mut idle, mut least) = (0, u32::MAX);
        loop {
            engine.shared.writable()?;
            self.wait_for_pending_frees()?;
            if engine.checkpoint_is_fenced() {
                self.checkpoint_now()?;
            }
            let (left, adopted, is_stuck) = {
                let mut space = engine.pagestore.space.lock();
                if !space.is_fenced() {
                    return Ok(false);
                }
                let adopted = log.and_then(|_| space.adopt_fenced_run());
                space.look_behind_fence_again();
                (space.tail_left(), adopted, space.has_bad_behind_fence())
            };
            if let Some(run) = adopted {
                log = None;
                if !self.move_log_down(run)? {
                    return Ok(false);
                }
                continue;
            }
            if left == 0 && log.is_none() {
                return Ok(true);
            }
            idle = if left < least { 0 } else { idle + 1 };
            least = least.min(left);
            if is_stuck || idle > MAX_IDLE_LOOKS {
                engine.pagestore.space.lock().unfence();
                return Ok(false);
            }
            engine.pagestore.request_cleaning();
            self.worker.sleep_until(clock::now() + POLL);
        }
    }

    /// Cuts the volume off at the fence; `false` where that cannot be now.
    fn cut(&self) -> Result<bool, Error> {
        let engine = &self.engine;
        // Every record that names a place in the tail is below this.
        let needed = engine.log.next();
        if !self.let_go_of_log(needed)? {
            return Ok(false);
        }
        {
            let mut space = engine.pagestore.space.lock();
            if !space.is_fenced() || space.cut_at_fence().is_none() {
                return Ok(false);
            }
            engine.pagestore.update_capacity(&space, &engine.log_tasks);
        }
        // Both superblocks: were only one to say so and be corrupted later, the other would speak of more than there is.
        if !canary::sings(Canary::CutVolumeEarly) {
            self.checkpoint_now()?;
            self.checkpoint_now()?;
        }
        self.cut_volume()?;
        Ok(true)
    }

    /// Checkpoints until a recovery reads nothing of the log before `needed`; `false` where something holds it, as a backup does.
    fn let_go_of_log(&self, needed: Lsn) -> Result<bool, Error> {
        for _ in 0..MAX_IDLE_LOOKS {
            if self.engine.log.start() >= needed || canary::sings(Canary::CutVolumeEarly) {
                return Ok(true);
            }
            if self.engine.checkpoints.holds_log() {
                self.engine.shared.writable()?;
                self.worker.sleep_until(clock::now() + POLL);
                continue;
            }
            self.checkpoint_now()?;
        }
        Ok(false)
    }

    /// Waits until the log has left the area that it had before the present one, and no other area is being made.
    fn leave_old_log(&self) -> Result<(), Error> {
        let engine = &self.engine;
        // Bound: an area in the making is finished; checkpoints let go of the one before it, once no backup holds the log.
        while engine.log_tasks.is_moving() || engine.log.area().is_some_and(|area| !area.is_alone())
        {
            match engine.log_tasks.is_moving() || engine.checkpoints.holds_log() {
                true => self.worker.sleep_until(clock::now() + POLL),
                false => self.checkpoint_now()?,
            }
            engine.shared.writable()?;
        }
        Ok(())
    }

    /// Moves the log to `run`, which may be smaller than its area. Returns `false`, and frees the run, where too much
    /// of the log is in use all the time.
    fn move_log_down(&self, run: Run) -> Result<bool, Error> {
        let engine = &self.engine;
        engine.count_log_segments(run);
        let mut area = Larger::in_run(run);
        let moved = self.fill_all(&mut area).and_then(|()| self.try_moves(run));
        if !matches!(moved, Ok(true)) {
            engine.log_not_moved(run);
        }
        if let Err(error) = &moved {
            engine.poison(error.clone());
        }
        if moved? {
            self.leave_old_log()?;
            return Ok(true);
        }
        Ok(false)
    }

    fn try_moves(&self, run: Run) -> Result<bool, Error> {
        let engine = &self.engine;
        for _ in 0..MAX_LOG_MOVES {
            self.checkpoint_now()?;
            engine.log_tasks.forget_wanted();
            let before = engine.log.area_bytes();
            if !engine.log.measure_by(self.bytes_of(run)) {
                self.worker.sleep_until(clock::now() + POLL);
                continue;
            }
            let few_are_dirty = engine.buffer.pool.dirty.unwritten() <= engine.min_dirty_limit();
            if few_are_dirty && self.move_log(run)? {
                return Ok(true);
            }
            engine.log.measure_again_by(before);
        }
        Ok(false)
    }
}
