//! The state of checkpoints: the newest one, the changes for the next one, and the start of a
//! recovery.

use std::cell::Cell;
use std::sync::Arc;

use super::log_device;
use super::superblock::{ArrayRoot, OFFSETS as SUPERBLOCK_OFFSETS, Superblock};
use super::writer::{CheckpointIo, CheckpointState};
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::log::{LogEnd, seal_tail};
use crate::pagestore::{LowerParts, PageStore};
use crate::runtime::{PerWorker, TaskId, Worker};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;

/// The state of checkpoints: the start of a recovery, and the changes that it would miss.
pub(crate) struct Checkpoints {
    /// The checkpoint on the volume; taken out by the task that writes the next one.
    pub(super) current: Mutex<Option<Box<CheckpointState>>>,
    /// The log's end when the last checkpoint began.
    pub(super) checkpointed_at: AtomicU64,
    /// The checkpointer, parked, to be woken when there is work.
    idle: PerWorker<Cell<Option<TaskId>>>,
    pub(super) pagestore: Arc<PageStore>,
    pub(super) lower: LowerParts,
}

impl Checkpoints {
    /// The newest one is `current`.
    pub(crate) fn new(
        current: CheckpointState,
        lower: LowerParts,
        pagestore: &Arc<PageStore>,
    ) -> Checkpoints {
        Checkpoints {
            current: Mutex::new(Some(Box::new(current))),
            checkpointed_at: AtomicU64::new(0),
            idle: PerWorker::new(&lower.workers, |_| Cell::new(None)),
            pagestore: Arc::clone(pagestore),
            lower,
        }
    }

    /// The checkpointer that is parked on this worker.
    #[inline]
    pub(crate) fn idle<'w>(&'w self, worker: &'w Worker) -> &'w Cell<Option<TaskId>> {
        self.idle.of(worker)
    }

    /// Takes the right to write superblocks and checkpoints, with what the newest one is; `None`
    /// while another task has it.
    pub(crate) fn take(&self) -> Option<Box<CheckpointState>> {
        self.current.lock().take()
    }

    /// Gives the right back.
    pub(crate) fn give_back(&self, current: Box<CheckpointState>) {
        *self.current.lock() = Some(current);
    }

    /// The newest superblock; `None` while a task has the right to write the next one.
    pub(crate) fn superblock(&self) -> Option<Superblock> {
        let current = self.current.lock();
        current.as_ref().map(|current| current.superblock.clone())
    }

    /// Notes on the volume that a writer has the store open. Before this, opening
    /// has changed nothing; if nothing is logged, only a checkpoint makes the
    /// store whole after it. The log ended at `log_end`, if there was one.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn mark_open(&self, log_end: Option<LogEnd>) -> Result<(), StorageError> {
        let volume = self.lower.shared.volume()?;
        let mut current = self.current.lock();
        let Some(current) = current.as_mut() else {
            return Err(StorageError::Closed);
        };
        if current.superblock.clean {
            current.superblock.provisional = ArrayRoot::EMPTY;
        }
        current.superblock.clean = false;
        // Whatever this opening writes: the next one tells it from its own by the segments'
        // sequence numbers, also if no checkpoint and no record says which were given.
        if !canary::is_on(Canary::GiveSeqsAgain) {
            current.superblock.next_segment_seq = self.pagestore.next_seq();
        }
        log_device::announce(&volume, &current.superblock)?;
        // Both of them: were only one to say "open" and be corrupted later, an opening would take
        // the other, whose checkpoint is overwritten by then.
        for _ in SUPERBLOCK_OFFSETS {
            current.superblock.sequence += 1;
            CheckpointIo::Volume(volume.clone()).superblock(&current.superblock)?;
            if canary::is_on(Canary::OpenOneSuperblock) {
                break;
            }
        }
        log_device::confirm(&volume, &current.superblock)?;
        if let (Some(area), Some(end)) = (self.lower.log.area(), log_end) {
            let superblock = &current.superblock;
            let open_epoch = superblock.open_epoch;
            seal_tail(&volume, &area, &superblock.store_id, end, open_epoch)
                .map_err(StorageError::Io)?;
        }
        Ok(())
    }

    /// The store is open, and recovered: from now on checkpoints are written.
    pub(crate) fn end_opening(&self) {
        self.lower.shared.recovered();
        self.lower.log.set_recovering(false);
        self.lower.log_tasks.release();
    }
}
