//! Giving file space back: segments at the volume's end are emptied, then cut off
//! (docs/decisions/0031).
//!
//! The order is what matters. Everything moves away from the tail; then a checkpoint lets go of
//! every record that names a place there; then both superblocks say that the volume is shorter;
//! then its labels; then the files are cut. A crash in between leaves a volume that is longer than
//! it says, which is harmless.

use super::Checkpoints;
use super::log_growth::Larger;
use crate::canary::{self, Canary};
use crate::page::Lsn;
use crate::pagestore::{Fence, MAX_IDLE_LOOKS, POLL};
use crate::runtime::{Worker, clock};
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

impl Checkpoints {
    /// Writes a checkpoint that needs nothing of the log so far, but for what a backup holds.
    ///
    /// # Errors
    ///
    /// [`Error::NeedsLog`], [`Error::ReadOnly`], [`Error::Poisoned`]; any of the volume's, which
    /// poisons the store.
    pub(crate) fn checkpoint_now(&self, worker: &Worker) -> Result<(), Error> {
        self.lower.shared.writable()?;
        if !self.lower.log.is_on() {
            return Err(Error::NeedsLog { what: "checkpoint" });
        }
        let before = self.lower.log.next();
        // Bound: each other checkpoint ends, and each that is written in part makes space for the
        // rest.
        while !self.checkpoint(worker, before)?.is_whole() {
            worker.sleep_until(clock::now() + POLL);
            self.lower.shared.writable()?;
        }
        Ok(())
    }

    /// Packs what is stored towards the volume's beginning and gives back the space behind it.
    /// `end_versions` frees old values that no snapshot needs.
    ///
    /// # Errors
    ///
    /// As for [`Checkpoints::checkpoint_now`].
    pub(crate) fn shrink(&self, worker: &Worker, end_versions: &dyn Fn()) -> Result<Shrunk, Error> {
        self.lower.shared.writable()?;
        if !self.lower.log.is_on() {
            return Err(Error::NeedsLog { what: "compact" });
        }
        // Bound: each other one ends.
        let _turn = loop {
            if let Some(turn) = self.pagestore.begin_shrinking() {
                break turn;
            }
            worker.sleep_until(clock::now() + POLL);
            self.lower.shared.writable()?;
        };
        let _span = trace::span!("compact");
        let volume = self.lower.shared.volume()?;
        let before = volume.len();
        let discarded = if volume.can_shrink() {
            for _ in 0..MAX_ROUNDS {
                let length = volume.len();
                if self.shrink_once(worker, end_versions)? && volume.len() == length {
                    break;
                }
            }
            self.pagestore.discard_outgrown(worker)?
        } else {
            self.pagestore.pack(worker)?;
            self.pagestore.discard_free(worker)?
        };
        Ok(Shrunk {
            before,
            after: volume.len(),
            discarded,
        })
    }

    /// One attempt; `false` if it was interrupted.
    fn shrink_once(&self, worker: &Worker, end_versions: &dyn Fn()) -> Result<bool, Error> {
        self.leave_old_log(worker)?;
        end_versions();
        self.checkpoint_now(worker)?;
        // What was written before may have asked for a larger log: it would grow once the volume is
        // short.
        self.lower.log_tasks.forget_wanted();
        let target = self.pagestore.shrink_target(self.log_run(worker)?);
        let log = target.log.map_or(0, |run| run.count);
        let needed = target.segments + target.left;
        let spare = self.pagestore.make_free(worker, needed, log)?;
        match self.pagestore.fence(worker, &target, spare)? {
            Fence::Stands => Ok(self.empty_fenced(worker, target.log)? && self.cut(worker)?),
            Fence::NotNeeded => Ok(true),
            Fence::Refused => Ok(false),
        }
    }

    /// The log's run in the volume, if it has one, and whether its size may change.
    fn log_run(&self, worker: &Worker) -> Result<Option<(Run, bool)>, Error> {
        loop {
            self.lower.shared.writable()?;
            if let Some(superblock) = self.superblock() {
                let run = Run {
                    first: superblock.log_first,
                    count: superblock.log_segments,
                };
                return Ok((run.count > 0).then_some((run, superblock.max_log_segments > 0)));
            }
            // A checkpoint is being written.
            worker.sleep_until(clock::now() + POLL);
        }
    }

    /// Waits until nothing is in the tail; `false` if the fence was lifted.
    fn empty_fenced(&self, worker: &Worker, mut log: Option<Run>) -> Result<bool, Error> {
        let (mut idle, mut least) = (0, u32::MAX);
        loop {
            self.lower.shared.writable()?;
            self.pagestore.wait_for_pending_frees(worker)?;
            if self.is_fenced() {
                self.checkpoint_now(worker)?;
            }
            let Some(tail) = self.pagestore.look_behind_fence(log.is_some()) else {
                return Ok(false);
            };
            if let Some(run) = tail.adopted {
                log = None;
                if !self.move_log_down(worker, run)? {
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
                self.pagestore.lift_fence();
                return Ok(false);
            }
            self.pagestore.request_cleaning();
            worker.sleep_until(clock::now() + POLL);
        }
    }

    /// Cuts the volume off at the fence; `false` if that cannot be now.
    fn cut(&self, worker: &Worker) -> Result<bool, Error> {
        // Every record that names a place in the tail is below this.
        let needed = self.lower.log.next();
        if !self.let_go_of_log(worker, needed)? {
            return Ok(false);
        }
        if !self.pagestore.end_at_fence() {
            return Ok(false);
        }
        // Both superblocks: were only one to say so and be corrupted later, the other would speak
        // of more than there is.
        if !canary::is_on(Canary::CutVolumeEarly) {
            self.checkpoint_now(worker)?;
            if !canary::is_on(Canary::CutOneSuperblock) {
                self.checkpoint_now(worker)?;
            }
        }
        self.pagestore.cut_volume(worker)?;
        Ok(true)
    }

    /// Checkpoints until a recovery reads nothing of the log before `needed`; `false` if something
    /// holds it, as a backup does.
    fn let_go_of_log(&self, worker: &Worker, needed: Lsn) -> Result<bool, Error> {
        for _ in 0..MAX_IDLE_LOOKS {
            if self.lower.log.start() >= needed || canary::is_on(Canary::CutVolumeEarly) {
                return Ok(true);
            }
            if self.lower.log_tasks.is_held() {
                self.lower.shared.writable()?;
                worker.sleep_until(clock::now() + POLL);
                continue;
            }
            self.checkpoint_now(worker)?;
        }
        Ok(false)
    }

    /// Waits until the log has left the area that it had before the present one, and no other area
    /// is being made.
    fn leave_old_log(&self, worker: &Worker) -> Result<(), Error> {
        // Bound: an area in the making is finished; checkpoints let go of the one before it, once
        // no backup holds the log.
        while self.lower.log_tasks.is_moving()
            || self.lower.log.area().is_some_and(|area| !area.is_alone())
        {
            match self.lower.log_tasks.is_moving() || self.lower.log_tasks.is_held() {
                true => worker.sleep_until(clock::now() + POLL),
                false => self.checkpoint_now(worker)?,
            }
            self.lower.shared.writable()?;
        }
        Ok(())
    }

    /// Moves the log to `run`, which may be smaller than its area. Returns `false`, and frees the
    /// run, where too much of the log is in use all the time.
    fn move_log_down(&self, worker: &Worker, run: Run) -> Result<bool, Error> {
        self.lower.log_tasks.count_segments(run);
        let mut area = Larger::in_run(run);
        let moved = self
            .fill_all(worker, &mut area)
            .and_then(|()| self.try_moves(worker, run));
        if !matches!(moved, Ok(true)) {
            self.pagestore.release_log_run(run);
        }
        if let Err(error) = &moved {
            self.lower.shared.poison(error.clone());
        }
        if moved? {
            self.leave_old_log(worker)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn try_moves(&self, worker: &Worker, run: Run) -> Result<bool, Error> {
        for _ in 0..MAX_LOG_MOVES {
            self.checkpoint_now(worker)?;
            self.lower.log_tasks.forget_wanted();
            let before = self.lower.log.area_bytes();
            if !self.lower.log.measure_by(self.bytes_of(run)) {
                worker.sleep_until(clock::now() + POLL);
                continue;
            }
            let few_are_dirty = self.lower.buffer.pool.dirty.unwritten()
                <= self.lower.buffer.min_dirty_limit(self.pagestore.stored());
            if few_are_dirty && self.move_log(worker, run)? {
                return Ok(true);
            }
            self.lower.log.measure_again_by(before);
        }
        Ok(false)
    }
}
