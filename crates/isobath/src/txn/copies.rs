//! Backups and large transactions keep each other out: the log does not repeat changes of a tree
//! from before it got a large transaction's run.

use crate::canary::{self, Canary};
use crate::error::StorageError as Error;
use crate::runtime::{Patience, Worker};
use crate::shared::Shared;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether a backup is under way, and large transactions that it must not meet.
#[derive(Default)]
pub(crate) struct Copies {
    /// There is one.
    running: AtomicBool,
    /// It has not copied yet all that it is going to have.
    copying: AtomicBool,
    /// Large transactions that commit, or ask whether they may.
    large: AtomicUsize,
}

impl Copies {
    /// Begins a backup; `false` if one is under way.
    pub(crate) fn begin(&self) -> bool {
        let begins = !self.running.swap(true, Ordering::SeqCst);
        if begins {
            self.copying.store(true, Ordering::SeqCst);
        }
        begins
    }

    /// The backup needs nothing more of the store.
    pub(crate) fn has_copied(&self) {
        self.copying.store(false, Ordering::SeqCst);
    }

    /// Whether a backup copies the store. If none does, the next one has pages as they are now, or
    /// newer.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.load(Ordering::SeqCst)
    }

    /// Ends a backup.
    pub(crate) fn end(&self) {
        self.has_copied();
        self.running.store(false, Ordering::SeqCst);
    }

    /// Waits, in a backup's task, until no large transaction commits; those that begin from
    /// here on see the backup.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn await_large(&self, shared: &Shared, worker: &Worker) -> Result<(), Error> {
        let mut patience = Patience::default();
        while self.large.load(Ordering::SeqCst) > 0 && !canary::is_on(Canary::LargeBesideBackups) {
            shared.writable()?;
            patience.wait(worker);
        }
        Ok(())
    }

    /// Waits until no backup copies the store, and keeps the next one from copying. A backup may
    /// have copies of pages that are older than its log, for the log repeats what has changed in
    /// them; where a tree got a run since it does not.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn begin_large(
        &self,
        shared: &Shared,
        worker: &Worker,
    ) -> Result<WithoutBackup<'_>, Error> {
        let mut patience = Patience::default();
        loop {
            self.large.fetch_add(1, Ordering::SeqCst);
            let without = WithoutBackup(self);
            let may = !self.copying.load(Ordering::SeqCst);
            if may || canary::is_on(Canary::LargeBesideBackups) {
                return Ok(without);
            }
            drop(without);
            shared.writable()?;
            patience.wait(worker);
        }
    }
}

/// While a large transaction commits: no backup copies the store during that.
pub(crate) struct WithoutBackup<'b>(&'b Copies);

impl Drop for WithoutBackup<'_> {
    fn drop(&mut self) {
        self.0.large.fetch_sub(1, Ordering::SeqCst);
    }
}
