//! The state of checkpoints: which one counts, what the next one has to write, and where a recovery would begin.

use std::sync::Arc;

use super::superblock::Superblock;
use super::writer::CheckpointState;
use crate::buffer::ChangeTracker;
use crate::page::{Lsn, PageId};
use crate::shared::Shared;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, MutexGuard};

/// What a recovery would begin with, and what it would miss.
pub(crate) struct Checkpoints {
    /// The checkpoint on the volume; taken out by the task that writes the next one.
    pub(super) current: Mutex<Option<Box<CheckpointState>>>,
    changes: Arc<ChangeTracker>,
    /// Where the log ended when the last checkpoint began.
    pub(super) checkpointed_at: AtomicU64,
    shared: Arc<Shared>,
}

impl Checkpoints {
    /// The newest one is `current`; the next one writes what `changes` says.
    pub(crate) fn new(
        current: CheckpointState,
        changes: &Arc<ChangeTracker>,
        shared: &Arc<Shared>,
    ) -> Checkpoints {
        Checkpoints {
            current: Mutex::new(Some(Box::new(current))),
            changes: Arc::clone(changes),
            checkpointed_at: AtomicU64::new(0),
            shared: Arc::clone(shared),
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
        self.changes.mark(id);
    }

    /// Takes the right to write superblocks and checkpoints, with what the newest one is; `None` while another task has it.
    pub(crate) fn take(&self) -> Option<Box<CheckpointState>> {
        self.current.lock().take()
    }

    /// Gives the right back.
    pub(crate) fn give_back(&self, current: Box<CheckpointState>) {
        *self.current.lock() = Some(current);
    }

    /// The same for blocking calls, while no worker runs.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Box<CheckpointState>>> {
        self.current.lock()
    }

    /// The newest superblock; `None` while a task has the right to write the next one.
    pub(crate) fn superblock(&self) -> Option<Superblock> {
        let current = self.current.lock();
        current.as_ref().map(|current| current.superblock.clone())
    }

    /// Whether tasks wait for dirty pages to be written, however few there are.
    #[inline]
    pub(crate) fn wants_pages_written(&self) -> bool {
        self.changes.wants_pages_written()
    }

    /// A change as old as `oldest` is in the batch of the writing task `slot`. Called before the frame says that it is clean.
    pub(crate) fn hold_batch(&self, slot: usize, oldest: Lsn) {
        self.changes.hold_batch(slot, oldest);
    }

    /// The batch of `slot` was written; `record` says where to. Some page in it has ended before that record, but not before
    /// `late_since`, if that is given.
    pub(crate) fn batch_written(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        self.changes.batch_written(slot, record, late_since);
    }

    /// The pages that the task `slot` has moved are where `record` says; they held no changes.
    pub(crate) fn batch_moved(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        self.changes.batch_moved(slot, record, late_since);
    }
}
