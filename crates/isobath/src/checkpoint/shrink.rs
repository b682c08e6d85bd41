//! Giving file space back: segments at the volume's end are emptied, then cut off
//! (docs/decisions/0031).
//!
//! The order is what matters. Everything moves away from the tail; then a checkpoint lets go of
//! every record that names a place there; then both superblocks say that the volume is shorter;
//! then its labels; then the files are cut. A crash in between leaves a volume that is longer than
//! it says, which is harmless.

use isobath_io::Volume;

use super::Checkpoints;
use crate::canary::{self, Canary};
use crate::error::{Error, StorageError};
use crate::page::Lsn;
use crate::pagestore::{Fence, MAX_IDLE_LOOKS, POLL};
use crate::runtime::{Worker, clock};
use crate::trace;

/// Looks without progress after which a store that is closed stays as long as it is.
const TRIM_LOOKS: u32 = 1_000;
/// Attempts to empty the volume's end: writers that need the space lift the fence.
const MAX_ROUNDS: u32 = 4;

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
    /// [`StorageError::ReadOnly`], [`StorageError::Poisoned`]; any of the volume's, which poisons
    /// the store.
    pub(crate) fn checkpoint_now(&self, worker: &Worker) -> Result<(), StorageError> {
        self.lower.shared.writable()?;
        assert!(self.lower.log.is_on(), "closing writes the only checkpoint");
        let before = self.lower.log.next();
        // Bound: each other checkpoint ends, and each that is written in part makes space for the
        // rest.
        while !self.checkpoint(worker, before)?.is_whole() {
            worker.sleep_until(clock::now() + POLL);
            self.lower.shared.writable()?;
        }
        Ok(())
    }

    /// Refuses a store that cannot do `what` while it is open: one for reading only, or without a
    /// log.
    ///
    /// # Errors
    ///
    /// [`Error::NeedsLog`], [`Error::ReadOnly`], [`Error::Poisoned`].
    pub(crate) fn needs_log(&self, what: &'static str) -> Result<(), Error> {
        self.lower.shared.writable()?;
        match self.lower.log.is_on() {
            true => Ok(()),
            false => Err(Error::NeedsLog { what }),
        }
    }

    /// Packs what is stored towards the volume's beginning and gives back the space behind it.
    /// `end_versions` frees old values that no snapshot needs.
    ///
    /// # Errors
    ///
    /// As for [`Checkpoints::checkpoint_now`].
    pub(crate) fn shrink(
        &self,
        worker: &Worker,
        end_versions: &dyn Fn(),
    ) -> Result<Shrunk, StorageError> {
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
                if self.shrink_once(worker, end_versions, MAX_IDLE_LOOKS)? && volume.len() == length
                {
                    break;
                }
            }
            0
        } else {
            self.pagestore.pack(worker)?;
            self.pagestore.discard_free(worker)?
        };
        self.pagestore.set_compacted();
        Ok(Shrunk {
            before,
            after: volume.len(),
            discarded,
        })
    }

    /// Gives back what the file of a small store has beyond what its data needs, when the store is
    /// closed: whatever the pattern of commits was, it is short then. Cleaners and the log have it
    /// grow no more.
    pub(crate) fn trim(&self, worker: &Worker) {
        let Some(turn) = self.pagestore.begin_shrinking() else {
            return;
        };
        turn.until_closed();
        let can_shrink = |volume: Volume| volume.can_shrink();
        let is_wanted = self.lower.log.is_on()
            && self.pagestore.is_long_for_its_data()
            && self.lower.shared.volume().is_ok_and(can_shrink);
        if is_wanted {
            // One attempt, which does not wait for a reader that comes meanwhile. A failure has
            // poisoned the store, which closing says.
            let _ = self.shrink_once(worker, &|| (), TRIM_LOOKS);
            self.pagestore.lift_fence();
        }
    }

    /// Gives a file's blocks back that hold nothing, when a store is closed that was compacted:
    /// free segments, and of the log what lies outside the LSNs from `start` to `end`, which no
    /// superblock needs. Opening finds room for them again, before anything is written.
    pub(super) fn discard_unused(&self, volume: &Volume, start: Lsn, end: Lsn) {
        if !self.pagestore.gives_blocks_back() || !volume.can_shrink() {
            return;
        }
        let mut unused = self.pagestore.free_extents();
        let area = self.lower.log.area();
        if let Some(area) = area.filter(|_| volume.log_len() == 0) {
            let extents = area.extents().iter().copied();
            unused.extend(area.without(start.0, end.0, extents));
        }
        for (offset, length) in unused {
            // A file system that cannot do this keeps the blocks.
            let _ = volume.discard_at(offset, length);
        }
    }

    /// One attempt, which ends after so many looks without progress; `false` if it was interrupted.
    fn shrink_once(
        &self,
        worker: &Worker,
        end_versions: &dyn Fn(),
        looks: u32,
    ) -> Result<bool, StorageError> {
        self.wait_for_log(worker)?;
        end_versions();
        self.checkpoint_now(worker)?;
        // What was written before may have asked for a longer log: it would grow once the volume is
        // short.
        self.lower.log_tasks.forget_wanted();
        self.shorten_log(worker)?;
        let tail = self.pagestore.shrink_target();
        let spare = self.pagestore.make_free(worker, tail, looks)?;
        match self.pagestore.fence(worker, tail, spare)? {
            Fence::Stands(tail) => Ok(self.empty_fenced(worker, tail, looks)? && self.cut(worker)?),
            Fence::NotNeeded => Ok(true),
        }
    }

    /// Has the log leave what it does not need, where its length may change.
    fn shorten_log(&self, worker: &Worker) -> Result<(), StorageError> {
        let (log, changes) = self.log_segments(worker)?;
        let least = self.min_log(&log, changes);
        if least.len() < log.len() {
            // Where it cannot, as while a backup holds it, the rest is given back nevertheless.
            self.leave_segments(worker, least, |_| false)?;
        }
        Ok(())
    }

    /// Waits until nothing is in the segments from `tail` on; `false` if the fence was lifted, or
    /// the log stays there.
    fn empty_fenced(&self, worker: &Worker, tail: u32, looks: u32) -> Result<bool, StorageError> {
        let (mut idle, mut least) = (0, u32::MAX);
        loop {
            self.lower.shared.writable()?;
            self.pagestore.wait_for_pending_frees(worker)?;
            if self.is_fenced() {
                self.checkpoint_now(worker)?;
            }
            let Some(found) = self.pagestore.look_behind_fence() else {
                return Ok(false);
            };
            if found.left == 0 {
                return Ok(true);
            }
            let log = self.log_segments(worker)?.0;
            if log.iter().any(|&segment| segment >= tail) {
                if !self.leave_segments(worker, &log, |segment| segment >= tail)? {
                    return Ok(false);
                }
                continue;
            }
            idle = if found.left < least { 0 } else { idle + 1 };
            least = least.min(found.left);
            if found.is_stuck || idle > looks {
                self.pagestore.lift_fence();
                return Ok(false);
            }
            self.pagestore.request_cleaning();
            worker.sleep_until(clock::now() + POLL);
        }
    }

    /// Cuts the volume off at the fence; `false` if that cannot be now.
    fn cut(&self, worker: &Worker) -> Result<bool, StorageError> {
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
    fn let_go_of_log(&self, worker: &Worker, needed: Lsn) -> Result<bool, StorageError> {
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
}
