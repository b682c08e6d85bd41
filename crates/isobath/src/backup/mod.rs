//! Backups: a consistent copy of a store that is in use, in one file, and stores made of such
//! files. Pages are copied while writers change them; the log that is kept since then makes them
//! one state.
//!
//! A restored store is recovered from the last round's map, the provisional allocations and the
//! log. What these say of a page has to be what the mapping table said at one point, so a round
//! keeps this order:
//!
//! 1. [`Source::begin_pass`](source::Source::begin_pass) writes what is dirty and finds the log's
//!    start. A change, an end or a confirmation before it is complete, and in the mapping table and
//!    the list of provisional allocations; so is the end of whatever a later record names a copy
//!    of.
//! 2. The provisional allocations are listed, then the highest id is read. A token that is
//!    confirmed after 1 has its record in the log, and so has a page with a higher id.
//! 3. Each id is looked at once. What ends before the look has its record before the round's end,
//!    what ends after it has it in the log, and what begins after it is an image in the log or a
//!    copy that the log names.
//! 4. The round waits until every word that it has seen has its record: a task yields between the
//!    two only if it frees chunks or moves pages, and it is counted as doing so until both are
//!    done. Then the log is made durable. That is the round's end.
//! 5. Copies that only the log names are read while no segment is filled again. An entry that is
//!    older than the page's last beginning or end is none: the id may be another's by then.
//!
//! Without any record between start and end nothing has to be repeated, but provisional allocations
//! still have to be canceled: the restored store is recovered unless there are neither.

pub(crate) mod file;
mod log;
pub(crate) mod restore;
mod source;
mod take;

pub(crate) use source::MapEntry;
pub(crate) use take::take;

use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::types::LogPosition;

/// Watches long work: called with the name of its stage, how much of it is done, and how much it
/// is, 0 if it is unknown. The amounts are bytes of backup files while these are verified or
/// restored, bytes of the volume while it is searched, and pages otherwise. [`ControlFlow::Break`]
/// ends the work with the error `Interrupted`.
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

    /// Only changes since the backup `base` of the same store, full or incremental.
    /// Restoring then needs that one too, and whatever it adds to.
    pub fn since(mut self, base: impl Into<PathBuf>) -> BackupOptions {
        self.since = Some(base.into());
        self
    }

    /// Whether a file of that name may be replaced; by default not.
    pub fn overwrite(mut self, overwrite: bool) -> BackupOptions {
        self.overwrite = overwrite;
        self
    }

    /// Whether the file is read once more from the drive, and every checksum verified, before it
    /// gets its name; by default it is.
    pub fn verify(mut self, verify: bool) -> BackupOptions {
        self.unverified = !verify;
        self
    }
}

/// The contents of a backup.
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
    /// The backup has what was committed before this position in the store's log, and nothing else:
    /// [`Store::changes`](crate::Store::changes) goes on from there. `None` without a log.
    pub position: Option<LogPosition>,
}

/// The backups that a store was restored from.
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
