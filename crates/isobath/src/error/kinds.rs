//! An error for each kind of operation: the variants of [`Error`] that its operations can fail
//! with, under the same names, and what any operation may meet as one group. A program that matches
//! on it sees what the operation can fail with. Messages are in [`Error`] alone.
//!
//! Each function of the engine returns the narrowest of these types that has all its errors, and
//! `?` widens it: [`StorageError`] becomes a part of any kind, and every kind becomes an [`Error`].
//! Nothing converts in the other direction.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use isobath_io::{IoError, VolumeError};

use super::{BackupFileError, Error};
use crate::page::PageCorruption;

/// Defines the error of a kind of operation from some variants of [`Error`] and, after `else`, a
/// group of others.
macro_rules! kind {
    // The cause of a variant: its field `source`, which is the last one, or that of the error that
    // it stands for.
    (@source) => { None };
    (@source source $source:ident) => { Some($source) };
    (@source transparent $inner:ident) => { std::error::Error::source($inner) };
    (@source $name:ident $field:ident $($rest:tt)*) => {{
        let _ = $field;
        kind!(@source $($rest)*)
    }};
    (
        $(#[$about:meta])*
        pub enum $Kind:ident {
            $(
                $(#[$doc:meta])*
                $Variant:ident $( { $( $field:ident : $Type:ty ),+ } )? $( ( $inner:ident : $Inner:ty ) )?,
            )*
        }
        $(
            $(#[$group_doc:meta])*
            else $Rest:ident($Group:ty)
        )?
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub enum $Kind {
            $(
                $(#[$doc])*
                $Variant
                $( { $(
                    #[doc = concat!("As in [`Error::", stringify!($Variant), "`].")]
                    $field: $Type,
                )+ } )?
                $( ($Inner) )?,
            )*
            $(
                $(#[$group_doc])*
                $Rest($Group),
            )?
        }

        impl From<$Kind> for Error {
            fn from(error: $Kind) -> Error {
                match error {
                    $( $Kind::$Variant $( { $( $field ),+ } )? $( ($inner) )? => {
                        Error::$Variant $( { $( $field ),+ } )? $( ($inner) )?
                    } )*
                    $( $Kind::$Rest(other) => <$Group as Widen>::widen(other), )?
                }
            }
        }

        impl fmt::Display for $Kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&Error::from(self.clone()), f)
            }
        }

        impl std::error::Error for $Kind {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                match self {
                    $( $Kind::$Variant $( { $( $field ),+ } )? $( ($inner) )? => {
                        kind!(@source $( $( $field $field )+ )? $( transparent $inner )?)
                    } )*
                    $( $Kind::$Rest(other) => std::error::Error::source(other), )?
                }
            }
        }
    };
}

/// An error, or a group of errors, as one of all.
trait Widen {
    fn widen(self) -> Error;
}

impl<E: Into<Error>> Widen for E {
    fn widen(self) -> Error {
        self.into()
    }
}

impl Widen for Arc<Error> {
    fn widen(self) -> Error {
        Arc::unwrap_or_clone(self)
    }
}

/// Lets errors of a group become errors of the kinds that have it. A variant that a kind has itself
/// stays that variant.
macro_rules! group {
    ($( $Group:ident => $Kind:ident::$Rest:ident $( except $Own:ident )?, )*) => {$(
        impl From<$Group> for $Kind {
            fn from(error: $Group) -> $Kind {
                match error {
                    $( $Group::$Own => $Kind::$Own, )?
                    other => $Kind::$Rest(other),
                }
            }
        }
    )*};
}

group! {
    StorageError => OpenError::Storage except ReadOnly,
    StorageError => TransactionError::Storage except ReadOnly,
    StorageError => LoadError::Storage except ReadOnly,
    StorageError => BackupError::Storage,
    OpenError => RestoreError::Open,
}

impl From<StorageError> for RestoreError {
    fn from(error: StorageError) -> RestoreError {
        OpenError::from(error).into()
    }
}

/// Loads insert what they cannot append, by commits that nothing conflicts with.
impl From<TransactionError> for LoadError {
    fn from(error: TransactionError) -> LoadError {
        match error {
            TransactionError::Conflict { .. } => LoadError::Storage(error.of_own_work()),
            TransactionError::SnapshotTooOld => LoadError::SnapshotTooOld,
            TransactionError::TransactionTooLarge { bytes, limit } => {
                LoadError::TransactionTooLarge { bytes, limit }
            }
            TransactionError::Sort { directory, source } => LoadError::Sort { directory, source },
            TransactionError::TreeDropped { name } => LoadError::TreeDropped { name },
            TransactionError::ReadOnly => LoadError::ReadOnly,
            TransactionError::Storage(error) => LoadError::Storage(error),
        }
    }
}

impl From<IoError> for StorageError {
    fn from(source: IoError) -> StorageError {
        StorageError::Io(source)
    }
}

impl From<VolumeError> for StorageError {
    fn from(source: VolumeError) -> StorageError {
        StorageError::Volume(Arc::new(source))
    }
}

/// Lets errors of the volume, and those of layers above this one, become errors of a kind.
macro_rules! by_storage {
    ($Source:ty: $( $Kind:ident )*) => {$(
        impl From<$Source> for $crate::error::$Kind {
            fn from(source: $Source) -> $crate::error::$Kind {
                $crate::error::StorageError::from(source).into()
            }
        }
    )*};
}
pub(crate) use by_storage;

by_storage!(IoError: OpenError BackupError RestoreError);
by_storage!(VolumeError: OpenError BackupError RestoreError Error);

kind! {
    /// Errors that any operation of a store may meet: of the drive, the memory, the store's state.
    ///
    /// A part of the errors of each kind of operation, such as [`OpenError`]; [`Error`] has the
    /// same variants.
    pub enum StorageError {
        /// There is no space for more pages on the volume.
        VolumeFull { used: u64, limit: u64, reason: Arc<VolumeError> },
        /// The mapping table's address space is used up.
        TooManyPages,
        /// More was logged than was reserved; an error of the engine's own accounting.
        LogOverrun,
        /// The log breaks off before its end: acknowledged changes are missing.
        LogCorrupt { position: u64, durable: u64 },
        /// The log holds a sound record of an unknown kind: a newer version wrote it.
        UnknownLogRecord { position: u64, kind: u8 },
        /// A page on the volume is not what it should be.
        CorruptPage { page: u64, offset: u64, corruption: PageCorruption },
        /// A page that verified against its checksum breaks the tree's rules.
        Structure { page: u64, reason: &'static str },
        /// A page, or a chunk of a large value, could not be read from the drive.
        PageRead { page: u64, offset: u64, tree: Option<Arc<str>>, source: IoError },
        /// An earlier write failed; the store accepts no more changes.
        Poisoned { cause: Arc<Error> },
        /// The store was opened for reading only.
        ReadOnly,
        /// The store has been closed.
        Closed,
        /// The store was opened by the process that has forked this one: its workers are there.
        Forked,
        /// A process that writes the store has used space again that this reader, which was opened
        /// earlier, still needs.
        ReaderOverrun { paths: Vec<PathBuf> },
        /// One read or write failed.
        Io(source: IoError),
        /// The volume could not be created, opened or grown.
        Volume(source: Arc<VolumeError>),
        /// The system refuses memory or address space.
        Memory { what: &'static str, source: Arc<std::io::Error> },
        /// A task panicked.
        TaskPanicked { message: String },
    }
    /// What the engine does of its own accord has failed as only work of a user should: a defect,
    /// please report it. The message is that error's own.
    else Unexpected(Arc<Error>)
}

kind! {
    /// Why a store could not be created or opened: [`Store::create`](crate::Store::create),
    /// [`open`](crate::Store::open) and those like them, and [`Options`](crate::Options).
    pub enum OpenError {
        /// An option has a value that cannot work.
        BadOption { option: &'static str, reason: String },
        /// A store cannot be created for reading only.
        ReadOnly,
        /// The volume holds no Isobath store.
        NotAStore { paths: Vec<PathBuf> },
        /// The store was written by a newer engine.
        NewerFormat { paths: Vec<PathBuf>, found: u32, known: u32 },
        /// The store was written by an earlier release, in a format that this one does not read.
        OlderFormat { paths: Vec<PathBuf>, found: u32, known: u32 },
        /// Both superblocks are unreadable.
        SuperblockCorrupt { paths: Vec<PathBuf> },
        /// The store is shorter than its superblock says.
        Truncated { paths: Vec<PathBuf>, found: u64, expected: u64 },
        /// The store was not closed and is to be read only, but there is not enough memory or
        /// temporary space to replay its log.
        NeedsRecovery { paths: Vec<PathBuf> },
        /// The store was not closed and keeps no log, so that its newest state is incomplete.
        NotClosedCleanly { paths: Vec<PathBuf> },
        /// The log of a store that keeps it on a device of its own is not where it was.
        LogMissing { paths: Vec<PathBuf>, path: PathBuf },
        /// A log was named for a store that keeps it on its own volume, or keeps none.
        NoSeparateLog { paths: Vec<PathBuf>, path: PathBuf },
        /// A file that is no log of a store was to be one.
        NotALog { paths: Vec<PathBuf>, path: PathBuf },
        /// The log of another store.
        LogOfOtherStore { paths: Vec<PathBuf>, path: PathBuf },
        /// The log and the rest of the store are of different times: one of them is an old copy.
        LogOutOfStep { paths: Vec<PathBuf>, path: PathBuf, log: u32, store: u32 },
        /// The headers of a log device cannot be read.
        LogHeaderCorrupt { path: PathBuf },
        /// A log device is shorter than the log.
        LogTruncated { path: PathBuf, found: u64, expected: u64 },
    }
    /// Errors of any operation; here also if the volume cannot be opened, or recovery fails.
    else Storage(StorageError)
}

kind! {
    /// Why a transaction could not begin or commit: [`Store::begin`](crate::Store::begin),
    /// [`Store::snapshot`](crate::Store::snapshot) and
    /// [`Transaction::commit`](crate::Transaction::commit).
    pub enum TransactionError {
        /// Another transaction changed what this one writes, or, if it is serializable, what it has
        /// read.
        Conflict { tree: String, key: Vec<u8> },
        /// So much was changed since the snapshot began that what it would see is kept no longer.
        SnapshotTooOld,
        /// The transaction replaces so many pages that the log has no space for the record that
        /// names them.
        TransactionTooLarge { bytes: u64, limit: u64 },
        /// The transaction's writes could not be kept in temporary files.
        Sort { directory: PathBuf, source: Arc<std::io::Error> },
        /// A tree that the transaction changed was dropped.
        TreeDropped { name: String },
        /// The store was opened for reading only.
        ReadOnly,
    }
    /// Errors of any operation.
    else Storage(StorageError)
}

impl TransactionError {
    /// The error of a commit of the engine's own, of which nothing but the store can be the cause.
    pub(crate) fn of_own_work(self) -> StorageError {
        match self {
            TransactionError::Storage(error) => error,
            TransactionError::ReadOnly => StorageError::ReadOnly,
            other => StorageError::Unexpected(Arc::new(other.into())),
        }
    }

    /// As [`Error::is_retryable`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        Error::from(self.clone()).is_retryable()
    }
}

kind! {
    /// Why records could not be loaded: [`Tree::bulk_load`](crate::Tree::bulk_load),
    /// [`Tree::load`](crate::Tree::load) and [`Loader`](crate::Loader).
    pub enum LoadError {
        /// The input of a bulk load is not in order.
        LoadOrder { record: u64, reason: &'static str },
        /// A key is longer than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
        KeyTooLong { length: usize, limit: usize },
        /// A value is longer than [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
        ValueTooLong { length: u64, limit: u64 },
        /// Records could not be sorted in temporary files.
        Sort { directory: PathBuf, source: Arc<std::io::Error> },
        /// Records that are inserted together take more space in the log than a transaction may
        /// have.
        TransactionTooLarge { bytes: u64, limit: u64 },
        /// So much was changed during the load that what the load reads of the tree is kept no
        /// longer.
        SnapshotTooOld,
        /// The tree was dropped.
        TreeDropped { name: String },
        /// The store was opened for reading only.
        ReadOnly,
        /// The watcher had the load stop.
        Interrupted,
    }
    /// Errors of any operation.
    else Storage(StorageError)
}

kind! {
    /// Why a store could not be backed up: [`Store::backup`](crate::Store::backup).
    pub enum BackupError {
        /// Another backup of the store is under way.
        BackupRunning,
        /// The store is open for writing and keeps no log.
        BackupNeedsLog,
        /// An option has a value that cannot work.
        BadOption { option: &'static str, reason: String },
        /// The backup that this one is to add to is not what it should be, or this one is not when
        /// it is read back.
        BadBackup { path: PathBuf, offset: u64, error: BackupFileError },
        /// The backup that this one is to add to does not fit.
        BackupChain { path: PathBuf, reason: &'static str },
        /// The file that is to be made is there already.
        FileExists { path: PathBuf },
        /// The backup was to go to a file of a store, or of its log.
        OutputIsStore { path: PathBuf },
        /// The system refused an operation on a file of a backup.
        File { action: &'static str, path: PathBuf, source: Arc<std::io::Error> },
        /// The watcher had the backup stop.
        Interrupted,
    }
    /// Errors of any operation; here if the store cannot be read.
    else Storage(StorageError)
}

kind! {
    /// Why a store could not be made from backups: [`Store::restore`](crate::Store::restore) and
    /// [`Store::restore_on_volume`](crate::Store::restore_on_volume).
    pub enum RestoreError {
        /// A backup file is not what it should be.
        BadBackup { path: PathBuf, offset: u64, error: BackupFileError },
        /// Backup files that do not belong together.
        BackupChain { path: PathBuf, reason: &'static str },
        /// The system refused an operation on a backup file.
        File { action: &'static str, path: PathBuf, source: Arc<std::io::Error> },
        /// The watcher had the work stop.
        Interrupted,
    }
    /// Errors of creating and opening a store.
    else Open(OpenError)
}
