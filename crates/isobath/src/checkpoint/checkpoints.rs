//! The state of checkpoints: which one counts, what the next one has to write, and where a recovery would begin.

use std::sync::Arc;

use super::superblock::Superblock;
use super::writer::CheckpointState;
use crate::pagestore::{LowerParts, PageStore};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, MutexGuard};

/// What a recovery would begin with, and what it would miss.
pub(crate) struct Checkpoints {
    /// The checkpoint on the volume; taken out by the task that writes the next one.
    pub(super) current: Mutex<Option<Box<CheckpointState>>>,
    /// Where the log ended when the last checkpoint began.
    pub(super) checkpointed_at: AtomicU64,
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
            pagestore: Arc::clone(pagestore),
            lower,
        }
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
}
