//! Backups: a consistent copy of a store that is in use, in one file, and stores made of such files
//! (docs/decisions/0016).
//!
//! A restored store is recovered from the last round's map, the provisional allocations and the log. What these say of a page has to be
//! what the mapping table said at one point, so a round keeps this order:
//!
//! 1. [`WorkerState::begin_pass`](crate::runtime::WorkerState::begin_pass) writes what is dirty and finds the log's start. A change, an
//!    end or a confirmation before it is complete, and in the mapping table and the list of provisional allocations; so is the end of
//!    whatever a later record names a copy of.
//! 2. The provisional allocations are listed, then the highest id is read. A token that is confirmed after 1 has its record in the log,
//!    and so has a page with a higher id.
//! 3. Each id is looked at once. What ends before the look has its record before the round's end, what ends after it has it
//!    in the log, and what begins after it is an image in the log or a copy that the log names.
//! 4. The round waits until every word that it has seen has its record: a task yields between the two only where it frees
//!    chunks or moves pages, and says so meanwhile. Then the log is made durable. That is the round's end.
//! 5. Copies that only the log names are read while no segment is filled again. An entry that is older than the page's last
//!    beginning or end is none: the id may be another's by then.
//!
//! Without any record between start and end nothing has to be repeated, but provisional allocations still have to be canceled: the restored
//! store is recovered unless there are neither.

pub(crate) mod file;
mod log;
mod restore;
pub(crate) mod source;
mod take;

pub(crate) use source::{BackupState, CopyBatch, DeadKept, MapEntry, RoundStart};

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use isobath_io::Volume;

use crate::error::{BackupError, RestoreError, of_kind};
use crate::{Options, Store};

/// Watches long work: called with the name of its stage, how much of it is done, and how much it is, 0 where it is not
/// knows. The amounts are bytes of backup files while these are verified or restored, bytes of the volume while it is
/// searched, and pages otherwise. [`ControlFlow::Break`] ends the work with the error `Interrupted`.
pub type Watch<'w> = &'w mut (dyn FnMut(&'static str, u64, u64) -> ControlFlow<()> + Send);

/// How a backup is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct BackupOptions {
    since: Option<PathBuf>,
    overwrite: bool,
    unverified: bool,
}

impl BackupOptions {
    /// A full backup, into a file that does not exist yet, which is verified.
    pub fn new() -> BackupOptions {
        BackupOptions::default()
    }

    /// Only what has changed since the backup `base` of the same store, full or incremental. Restoring then needs
    /// that one too, and whatever it adds to.
    pub fn since(mut self, base: impl Into<PathBuf>) -> BackupOptions {
        self.since = Some(base.into());
        self
    }

    /// Whether a file of that name may be replaced; by default not.
    pub fn overwrite(mut self, overwrite: bool) -> BackupOptions {
        self.overwrite = overwrite;
        self
    }

    /// Whether the file is read once more from the drive, and every checksum verified, before it gets its name; by
    /// default it is.
    pub fn verify(mut self, verify: bool) -> BackupOptions {
        self.unverified = !verify;
        self
    }
}

/// What a backup consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Pages and chunks of large values in the file.
    pub pages: u64,
    /// Their bytes.
    pub page_bytes: u64,
    /// Bytes of log records in the file.
    pub log_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Rounds over the store that it took: further ones copy what changed during the one before.
    pub rounds: u64,
    /// Pages and chunks that the store had.
    pub store_pages: u64,
}

/// What a store was restored from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Pages and chunks of large values of the restored store.
    pub pages: u64,
    /// Their bytes.
    pub page_bytes: u64,
    /// Bytes of log records that were applied.
    pub log_bytes: u64,
    /// Bytes of the backup files.
    pub file_bytes: u64,
    /// Seconds since 1970 at which the last of the backups was begun.
    pub created: u64,
}

impl Store {
    /// Writes a backup of the whole store to the file `to`, while the store is in use: a state in which everything is
    /// that was acknowledged before the call, and of each transaction all or nothing.
    ///
    /// Copies the pages as they are on the volume, then those that changed meanwhile, and in the end the little log that
    /// brings them to one point. Writers go on; only if they change pages faster than these can be copied, the last
    /// round slows them, as a full log does. Room for 24 bytes per page is needed beside `to`. Blocks the calling
    /// thread; a task should leave it to an ordinary one, because writing the file blocks its worker.
    ///
    /// The file gets its name when it is complete and on the drive; until then, `.partial` is behind it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let at = |name: &str| directory.path().join(name);
    /// use std::ops::ControlFlow;
    /// use isobath::{BackupOptions, Options, Store};
    ///
    /// let options = Options::new().pool_bytes(16 << 20);
    /// let store = Store::create(&[at("a.iso")], &options)?;
    /// let tree = store.create_tree("t")?;
    /// tree.insert(b"one", b"1")?;
    /// let mut watch = |_: &str, _, _| ControlFlow::Continue(());
    /// store.backup(&at("monday"), &BackupOptions::new(), &mut watch)?;
    /// tree.insert(b"two", b"2")?;
    /// store.backup(&at("tuesday"), &BackupOptions::new().since(at("monday")), &mut watch)?;
    /// store.close()?;
    ///
    /// Store::restore(&[at("monday"), at("tuesday")], &[at("b.iso")], &options, &mut watch)?;
    /// let store = Store::open(&[at("b.iso")], &options)?;
    /// assert!(store.tree("t")?.contains(b"two")?);
    /// store.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BackupError::FileExists`], [`BackupError::OutputIsStore`], [`BackupError::File`] (as where its file system is full),
    /// [`BackupError::BackupNeedsLog`], [`BackupError::BackupRunning`]; with a base [`BackupError::BadBackup`] and
    /// [`BackupError::BackupChain`]; [`BackupError::Storage`] where the store cannot be read, is poisoned or closed;
    /// [`BackupError::BadOption`], [`BackupError::Interrupted`]. There is no file then.
    pub fn backup(
        &self,
        to: &Path,
        options: &BackupOptions,
        watch: Watch<'_>,
    ) -> Result<BackupReport, BackupError> {
        take::take(self, to, options, watch).map_err(of_kind)
    }

    /// Makes a store on `paths`, files that do not exist yet or block devices that hold no data, from a full backup
    /// and the incremental ones that follow it, in order. Everything in them is verified. The restored store is a store of
    /// its own: backups of it do not add to those of the first one.
    ///
    /// `options` as for [`Store::create`]; the sizes of segments and log are those of the backup, and the log lies on the
    /// store's own volume, wherever that of the first store did. Takes 8 bytes of memory per page beside the pool.
    ///
    /// # Errors
    ///
    /// [`RestoreError::BadBackup`], [`RestoreError::BackupChain`], [`RestoreError::File`], [`RestoreError::Interrupted`], and in
    /// [`RestoreError::Open`] what [`Store::create`] and [`Store::open`] fail with. Files that were made are removed, and on block
    /// devices is nothing that opens.
    pub fn restore<B: AsRef<Path>, P: AsRef<Path>>(
        backups: &[B],
        paths: &[P],
        options: &Options,
        watch: Watch<'_>,
    ) -> Result<RestoreReport, RestoreError> {
        let backups: Vec<&Path> = backups.iter().map(AsRef::as_ref).collect();
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        restore::restore(&backups, paths, options, watch).map_err(of_kind)
    }

    /// As [`Store::restore`], on an empty volume.
    ///
    /// # Errors
    ///
    /// As for [`Store::restore`]; the volume is of no further use then.
    pub fn restore_on_volume<B: AsRef<Path>>(
        backups: &[B],
        volume: Volume,
        options: &Options,
        watch: Watch<'_>,
    ) -> Result<RestoreReport, RestoreError> {
        let backups: Vec<&Path> = backups.iter().map(AsRef::as_ref).collect();
        restore::restore_on(&backups, volume, options, watch).map_err(of_kind)
    }
}
