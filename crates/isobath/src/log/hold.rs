//! Holds that keep the log from beginning later: a backup's, or that of a recovery under way.

use super::LogTasks;
use crate::page::Lsn;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Nothing holds the log.
const NO_FLOOR: u64 = u64::MAX;

/// From where on the log is kept.
pub(super) struct Hold {
    /// No checkpoint may release the log from here on.
    floor: AtomicU64,
    /// Something kept a checkpoint from shortening the log, and does so no longer.
    checkpoint_again: AtomicBool,
}

impl Hold {
    pub(super) fn new() -> Hold {
        Hold {
            floor: AtomicU64::new(NO_FLOOR),
            checkpoint_again: AtomicBool::new(false),
        }
    }
}

impl LogTasks {
    /// The log is kept from here on at least.
    pub(crate) fn floor(&self) -> Lsn {
        Lsn(self.hold.floor.load(Ordering::SeqCst))
    }

    /// Whether the log is held for a backup, whose target may be slow, or for a recovery under way.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.floor.load(Ordering::SeqCst) != NO_FLOOR
    }

    /// Keeps the log from `floor` on: a backup needs it, or a recovery has not applied what is
    /// there.
    pub(crate) fn hold(&self, floor: Lsn) {
        self.hold.floor.store(floor.0, Ordering::SeqCst);
    }

    /// Releases the log.
    pub(crate) fn release(&self) {
        if self.hold.floor.swap(NO_FLOOR, Ordering::SeqCst) != NO_FLOOR {
            self.request_checkpoint_again();
        }
    }

    /// Writers may wait for log space that the last checkpoint came too early to free. They log
    /// nothing until there is another one.
    pub(crate) fn request_checkpoint_again(&self) {
        self.hold.checkpoint_again.store(true, Ordering::SeqCst);
        self.workers.notify_all();
    }

    /// Whether a checkpoint is due however little was logged since the last one.
    pub(crate) fn wants_checkpoint_again(&self) -> bool {
        self.hold.checkpoint_again.load(Ordering::SeqCst)
    }

    /// A checkpoint begins, and will look at the floor after this.
    pub(crate) fn checkpoint_begins(&self) {
        self.hold.checkpoint_again.store(false, Ordering::SeqCst);
    }
}
