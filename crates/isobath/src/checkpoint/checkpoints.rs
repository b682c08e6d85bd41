//! The state of checkpoints: which one counts, what the next one has to write, and where a recovery would begin.

use std::sync::Arc;

use super::superblock::{ArrayRoot, OFFSETS, Superblock};
use super::writer::{CheckpointIo, CheckpointState};
use crate::Error;
use crate::buffer::Buffer;
use crate::canary::{self, Canary};
use crate::log::{Log, LogEnd, seal_tail, separate};
use crate::page::{Lsn, PageId};
use crate::pagestore::PageStore;
use crate::runtime::WorkerPool;
use crate::shared::Shared;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Nothing asks for the log to be kept.
const NO_FLOOR: u64 = u64::MAX;

/// What a recovery would begin with, and what it would miss.
pub(crate) struct Checkpoints {
    /// The checkpoint on the volume; taken out by the task that writes the next one.
    pub(super) current: Mutex<Option<Box<CheckpointState>>>,
    /// Where the log ended when the last checkpoint began.
    pub(super) checkpointed_at: AtomicU64,
    /// No checkpoint may release the log from here on.
    log_floor: AtomicU64,
    /// Something kept a checkpoint from shortening the log, and does so no longer.
    again: AtomicBool,
    pub(super) shared: Arc<Shared>,
    pub(super) workers: Arc<WorkerPool>,
    pub(super) log: Arc<Log>,
    pub(super) buffer: Arc<Buffer>,
    pub(super) pagestore: Arc<PageStore>,
}

impl Checkpoints {
    /// The newest one is `current`.
    pub(crate) fn new(
        current: CheckpointState,
        shared: &Arc<Shared>,
        workers: &Arc<WorkerPool>,
        log: &Arc<Log>,
        buffer: &Arc<Buffer>,
        pagestore: &Arc<PageStore>,
    ) -> Checkpoints {
        Checkpoints {
            current: Mutex::new(Some(Box::new(current))),
            checkpointed_at: AtomicU64::new(0),
            log_floor: AtomicU64::new(NO_FLOOR),
            again: AtomicBool::new(false),
            shared: Arc::clone(shared),
            workers: Arc::clone(workers),
            log: Arc::clone(log),
            buffer: Arc::clone(buffer),
            pagestore: Arc::clone(pagestore),
        }
    }

    /// Whether the log says more than what is in the pages.
    #[inline]
    pub(crate) fn is_recovering(&self) -> bool {
        self.shared.is_recovering()
    }

    /// The next checkpoint has to write the word of `id`.
    #[inline]
    pub(crate) fn mark(&self, id: PageId) {
        self.buffer.changes.mark(id);
    }

    /// Takes the right to write superblocks and checkpoints, with what the newest one is; `None` while another task has it.
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

    /// Whether tasks wait for dirty pages to be written, however few there are.
    #[inline]
    pub(crate) fn wants_pages_written(&self) -> bool {
        self.buffer.changes.wants_pages_written()
    }

    /// A change as old as `oldest` is in the batch of the writing task `slot`. Called before the frame says that it is clean.
    pub(crate) fn hold_batch(&self, slot: usize, oldest: Lsn) {
        self.buffer.changes.hold_batch(slot, oldest);
    }

    /// The batch of `slot` was written; `record` says where to. Some page in it has ended before that record, but not before
    /// `late_since`, if that is given.
    pub(crate) fn batch_written(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        self.buffer.changes.batch_written(slot, record, late_since);
    }

    /// The pages that the task `slot` has moved are where `record` says; they held no changes.
    pub(crate) fn batch_moved(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        self.buffer.changes.batch_moved(slot, record, late_since);
    }

    // ---- where the log may begin --------------------------------------------

    /// Keeps the log from `floor` on: a backup needs it, or a recovery has not applied what is there.
    pub(crate) fn hold_log(&self, floor: Lsn) {
        self.log_floor.store(floor.0, Ordering::SeqCst);
    }

    /// Releases the log.
    pub(crate) fn release_log(&self) {
        if self.log_floor.swap(NO_FLOOR, Ordering::SeqCst) != NO_FLOOR {
            self.request_again();
        }
    }

    /// Writers may wait for log space that the last checkpoint came too early to free. They log nothing until there is
    /// another one.
    pub(crate) fn request_again(&self) {
        self.again.store(true, Ordering::SeqCst);
        self.workers.notify_all();
    }

    /// The log is kept from here on at least.
    pub(super) fn log_floor(&self) -> Lsn {
        Lsn(self.log_floor.load(Ordering::SeqCst))
    }

    /// Whether the log is held for a backup, whose target may be slow, or for a recovery under way.
    pub(crate) fn holds_log(&self) -> bool {
        self.log_floor.load(Ordering::SeqCst) != NO_FLOOR
    }

    /// Whether a checkpoint is due however little was logged since the last one.
    pub(super) fn is_wanted_again(&self) -> bool {
        self.again.load(Ordering::SeqCst)
    }

    /// A checkpoint begins, and will look at the floor after this.
    pub(super) fn begins(&self) {
        self.again.store(false, Ordering::SeqCst);
    }

    // ---- opening ------------------------------------------------------------

    /// Notes on the volume that a writer has the store open. Before this, opening
    /// has changed nothing; where nothing is logged, only a checkpoint makes the
    /// store whole after it. The log ended at `log_end`, if there was one.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn mark_open(&self, log_end: Option<LogEnd>) -> Result<(), Error> {
        let volume = self.shared.volume()?;
        let mut current = self.current.lock();
        let Some(current) = current.as_mut() else {
            return Err(Error::Closed);
        };
        if current.superblock.clean {
            current.superblock.provisional = ArrayRoot::EMPTY;
        }
        current.superblock.clean = false;
        // Whatever this opening writes: the next one tells it from its own by the segments' sequence numbers, also where no
        // checkpoint and no record says which were given.
        if !canary::sings(Canary::GiveSeqsAgain) {
            current.superblock.next_segment_seq = self.pagestore.next_seq();
        }
        separate::announce(&volume, &current.superblock)?;
        // Both of them: were only one to say "open" and be corrupted later, an opening would take the other, whose
        // checkpoint is overwritten by then.
        for _ in OFFSETS {
            current.superblock.sequence += 1;
            CheckpointIo::Volume(volume.clone()).superblock(&current.superblock)?;
        }
        separate::confirm(&volume, &current.superblock)?;
        if let (Some(area), Some(end)) = (self.log.area(), log_end) {
            let superblock = &current.superblock;
            let open_epoch = superblock.open_epoch;
            seal_tail(&volume, &area, &superblock.store_id, end, open_epoch).map_err(Error::Io)?;
        }
        Ok(())
    }

    /// The store is open, and recovered: from now on checkpoints are written.
    pub(crate) fn end_opening(&self) {
        self.shared.recovered();
        self.log.set_recovering(false);
        self.release_log();
    }
}
