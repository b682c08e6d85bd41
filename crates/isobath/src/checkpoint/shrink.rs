//! Giving file space back: segments at the volume's end are emptied, then cut off (docs/decisions/0031).
//!
//! The order is what matters. Everything moves away from the tail; then a checkpoint lets go of every record that names a
//! place there; then both superblocks say that the volume is shorter; then its labels; then the files are cut. A crash in
//! between leaves a volume that is longer than it says, which is harmless.

use super::log_growth::Larger;
use crate::canary::{self, Canary};
use crate::page::Lsn;
use crate::pagestore::{Fence, MAX_IDLE_LOOKS, POLL};
use crate::runtime::{WorkerState, clock};
use crate::shared::Run;
use crate::{Error, trace};

/// Attempts to empty the volume's end: writers that need the space lift the fence.
const MAX_ROUNDS: u32 = 4;
/// Attempts to move the log to a smaller area: they fail while much of it is in use.
const MAX_LOG_MOVES: u32 = 50;

/// Bytes of the volume before and after, and how many a drive was asked to discard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shrunk {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) discarded: u64,
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
        // Bound: each other one ends.
        let _turn = loop {
            if let Some(turn) = engine.pagestore.begin_shrinking() {
                break turn;
            }
            self.worker.sleep_until(clock::now() + POLL);
            engine.shared.writable()?;
        };
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
            engine.pagestore.pack(&self.worker)?;
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
        let target = engine.pagestore.shrink_target(self.log_run()?);
        let log = target.log.map_or(0, |run| run.count);
        let needed = target.segments + target.left;
        let spare = engine.pagestore.make_free(&self.worker, needed, log)?;
        match engine.pagestore.fence(&self.worker, &target, spare)? {
            Fence::Stands => Ok(self.empty_fenced(target.log)? && self.cut()?),
            Fence::NotNeeded => Ok(true),
            Fence::Refused => Ok(false),
        }
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

    /// Waits until nothing is in the tail; `false` where the fence was lifted.
    fn empty_fenced(&self, mut log: Option<Run>) -> Result<bool, Error> {
        let engine = &self.engine;
        let (mut idle, mut least) = (0, u32::MAX);
        loop {
            engine.shared.writable()?;
            engine.pagestore.wait_for_pending_frees(&self.worker)?;
            if engine.checkpoint_is_fenced() {
                self.checkpoint_now()?;
            }
            let Some(tail) = engine.pagestore.look_behind_fence(log.is_some()) else {
                return Ok(false);
            };
            if let Some(run) = tail.adopted {
                log = None;
                if !self.move_log_down(run)? {
                    return Ok(false);
                }
                continue;
            }
            if tail.left == 0 && log.is_none() {
                return Ok(true);
            }
            idle = if tail.left < least { 0 } else { idle + 1 };
            least = least.min(tail.left);
            if tail.is_stuck || idle > MAX_IDLE_LOOKS {
                engine.pagestore.lift_fence();
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
        if !engine.pagestore.end_at_fence() {
            return Ok(false);
        }
        // Both superblocks: were only one to say so and be corrupted later, the other would speak of more than there is.
        if !canary::is_on(Canary::CutVolumeEarly) {
            self.checkpoint_now()?;
            self.checkpoint_now()?;
        }
        engine.pagestore.cut_volume(&self.worker)?;
        Ok(true)
    }

    /// Checkpoints until a recovery reads nothing of the log before `needed`; `false` where something holds it, as a backup does.
    fn let_go_of_log(&self, needed: Lsn) -> Result<bool, Error> {
        for _ in 0..MAX_IDLE_LOOKS {
            if self.engine.log.start() >= needed || canary::is_on(Canary::CutVolumeEarly) {
                return Ok(true);
            }
            if self.engine.log_tasks.is_held() {
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
            match engine.log_tasks.is_moving() || engine.log_tasks.is_held() {
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
        engine.log_tasks.count_segments(run);
        let mut area = Larger::in_run(run);
        let moved = engine
            .checkpoints
            .fill_all(&self.worker, &mut area)
            .and_then(|()| self.try_moves(run));
        if !matches!(moved, Ok(true)) {
            engine.pagestore.release_log_run(run);
        }
        if let Err(error) = &moved {
            engine.shared.poison(error.clone());
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
            if !engine.log.measure_by(engine.checkpoints.bytes_of(run)) {
                self.worker.sleep_until(clock::now() + POLL);
                continue;
            }
            let few_are_dirty = engine.buffer.pool.dirty.unwritten()
                <= engine.buffer.min_dirty_limit(engine.pagestore.stored());
            if few_are_dirty && engine.checkpoints.move_log(&self.worker, run)? {
                return Ok(true);
            }
            engine.log.measure_again_by(before);
        }
        Ok(false)
    }
}
