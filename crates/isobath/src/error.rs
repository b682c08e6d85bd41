//! Errors of the engine.

mod kinds;
#[cfg(test)]
mod kinds_tests;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use isobath_io::{ByteSize, IoError, IoErrorKind, VolumeError, reason, two_sizes};

pub(crate) use kinds::by_storage;
pub use kinds::{BackupError, LoadError, OpenError, RestoreError, StorageError, TransactionError};

use crate::page::{self, PageCorruption};

/// Why an operation on a store failed: every error that there is.
///
/// Reading and writing return it. Operations that few of these errors can come of have types of
/// their own, which `?` makes this one of: [`OpenError`], [`TransactionError`], [`LoadError`],
/// [`BackupError`], [`RestoreError`]; what any operation may meet is a [`StorageError`] in each of
/// them. The variants have the same names and messages there.
///
/// Cheap to clone: a failed write is reported to every later caller.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than [`crate::MAX_KEY_BYTES`].
    #[error("the key has {length} bytes; at most {limit} are possible")]
    KeyTooLong {
        /// Bytes of the key given.
        length: usize,
        /// Most bytes that a key can have.
        limit: usize,
    },
    /// The value is longer than [`crate::MAX_VALUE_BYTES`].
    #[error("the value has {length} bytes; at most {limit} are possible")]
    ValueTooLong {
        /// Bytes of the value given.
        length: u64,
        /// Most bytes that a value can have.
        limit: u64,
    },
    /// A tree's name is empty or too long.
    #[error("a tree's name has 1 to {limit} bytes; this one has {length}")]
    BadTreeName {
        /// Bytes of the name given.
        length: usize,
        /// Most bytes that a name can have.
        limit: usize,
    },
    /// There is no room for more pages on the volume. The sentence says what limits it: the store's
    /// limit, the file system, or that nothing frees space any more.
    #[error(
        "no space for a change, with {} of {} that data may take in use: {}",
        ByteSize(*used), ByteSize(*limit), no_space(reason)
    )]
    VolumeFull {
        /// Bytes of live pages.
        used: u64,
        /// Bytes that live pages may take.
        limit: u64,
        /// Why the volume cannot grow.
        reason: Arc<isobath_io::VolumeError>,
    },
    /// The mapping table's address space is used up.
    #[error("the store has as many pages as its mapping table can name")]
    TooManyPages,
    /// A transaction's record takes more room in the log than it may have: one of a transaction
    /// that spilled names all pages and chunks that it replaces, and all large values, in 8 bytes
    /// each.
    #[error(
        "the transaction would log {}; at most {} are possible: raise Options::transaction_bytes, or \
         Options::log_bytes of a new store to 32 times as much; or split it, or bulk-load",
        two_sizes(*bytes, *limit).0, two_sizes(*bytes, *limit).1
    )]
    TransactionTooLarge {
        /// Bytes that its log record would have.
        bytes: u64,
        /// Most bytes that it can have ([`crate::Options::transaction_bytes`], less with a small
        /// log).
        limit: u64,
    },
    /// More was logged than was reserved; an error of the engine's own accounting.
    #[error(
        "internal error: more was logged than the log's reservations allowed; reopen the store, with a larger log"
    )]
    LogOverrun,
    /// The log breaks off before its end: acknowledged changes are missing.
    #[error(
        "the log is corrupt at position {position}: nothing sound is there, but it had reached the drive up to {durable}; restore from a backup, or salvage what is left"
    )]
    LogCorrupt {
        /// The position in the log (LSN) of the first byte that is not sound.
        position: u64,
        /// The position up to which it had been durable, at least.
        durable: u64,
    },
    /// The log of a store that keeps it on a device of its own is not where it was.
    #[error(
        "{} keeps its log in {}, which does not exist: if it was moved, say where to (`Options::log_path`, --log-path); if it is lost, restore from a backup, or salvage what is left",
        list(paths), path.display()
    )]
    LogMissing {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// The path at which the log was looked for; `a log device` for a volume without files.
        path: PathBuf,
    },
    /// A log was named for a store that keeps it on its own volume, or keeps none.
    #[error(
        "{} has no log outside its own files, so {} cannot be its log: open it without a path of a log",
        list(paths), path.display()
    )]
    NoSeparateLog {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// The path given.
        path: PathBuf,
    },
    /// A file that is no log of a store was to be one.
    #[error("{} is not the log of an Isobath store: name the one that belongs to {}", path.display(), list(paths))]
    NotALog {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// The file that was looked into.
        path: PathBuf,
    },
    /// The log of another store.
    #[error("{} is the log of another store: name the one that belongs to {}", path.display(), list(paths))]
    LogOfOtherStore {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// The log that was looked into.
        path: PathBuf,
    },
    /// The log and the rest of the store are of different times: one of them is an old copy.
    #[error(
        "{} was last written in opening {log} of the store, but {} in opening {store}: {}",
        path.display(), list(paths), older(*log, *store)
    )]
    LogOutOfStep {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// The log's file.
        path: PathBuf,
        /// The opening for writing that the log was last used in, counted from the store's
        /// creation.
        log: u32,
        /// The volume's value.
        store: u32,
    },
    /// The headers of a log device cannot be read.
    #[error("both headers of the log {} are corrupt: restore from a backup, or salvage what is left", path.display())]
    LogHeaderCorrupt {
        /// The log's file.
        path: PathBuf,
    },
    /// A log device is shorter than the log.
    #[error("the log {} is truncated: it has {} and must have {}; restore from a backup, or salvage what is left", path.display(), two_sizes(*found, *expected).0, two_sizes(*found, *expected).1)]
    LogTruncated {
        /// The log's file.
        path: PathBuf,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The log holds a sound record of an unknown kind: a newer version wrote it.
    #[error(
        "the log's record at position {position} has kind {kind}, which this version does not know; use a newer one"
    )]
    UnknownLogRecord {
        /// The record's position in the log (LSN).
        position: u64,
        /// Its kind.
        kind: u8,
    },
    /// A page on the volume is not what it should be.
    #[error(
        "{} at byte {offset} of the store is corrupt: {corruption}; run `isobath check` and restore from a backup",
        page::name_of(*page)
    )]
    CorruptPage {
        /// The page's id.
        page: u64,
        /// Its byte offset in the volume.
        offset: u64,
        /// The problem with it.
        corruption: PageCorruption,
    },
    /// The input of a bulk load is not in order.
    #[error("record {record} of the bulk load is out of order: {reason}")]
    LoadOrder {
        /// Which record, counted from 0.
        record: u64,
        /// What its key should have been.
        reason: &'static str,
    },
    /// A page that verified against its checksum breaks the tree's rules.
    #[error("page {page} breaks the tree's structure: {reason}")]
    Structure {
        /// The page's id.
        page: u64,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The store was opened for reading only.
    #[error("the store is open for reading only")]
    ReadOnly,
    /// An earlier write failed; the store accepts no more changes.
    #[error(
        "no more changes are accepted since a write failed: {cause}; close and reopen the store"
    )]
    Poisoned {
        /// The first failure.
        cause: Arc<Error>,
    },
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
    /// The store was opened by the process that has forked this one: its workers are there.
    #[error(
        "the store was opened before this process was forked; open it after the fork, in one process"
    )]
    Forked,
    /// A task asked for its own store to be closed.
    #[error("a store cannot be closed inside one of its own tasks, for which closing waits")]
    CloseInTask,
    /// A page, or a chunk of a large value, could not be read from the drive.
    #[error("{}{} at byte {offset} of the store cannot be read: {source}", page::name_of(*page), of_tree(tree.as_deref()))]
    PageRead {
        /// The page's id.
        page: u64,
        /// Its byte offset in the volume.
        offset: u64,
        /// The name of the tree that was being read, if that is known.
        tree: Option<Arc<str>>,
        /// The drive's error.
        source: isobath_io::IoError,
    },
    /// Records could not be sorted: there is no room for what does not fit into memory, or it
    /// cannot be read back.
    #[error("cannot sort records in temporary files in {}: {source}", directory.display())]
    Sort {
        /// The directory of temporary files.
        directory: PathBuf,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// One read or write failed.
    #[error(transparent)]
    Io(#[from] isobath_io::IoError),
    /// The volume could not be created, opened or grown.
    #[error(transparent)]
    Volume(Arc<isobath_io::VolumeError>),
    /// The volume holds no Isobath store.
    #[error("{} holds no Isobath store", list(paths))]
    NotAStore {
        /// The volume's files.
        paths: Vec<PathBuf>,
    },
    /// The store was written by a newer engine.
    #[error(
        "{} has format version {found}; this engine reads up to {known}: use a newer one",
        list(paths)
    )]
    NewerFormat {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// The version found.
        found: u32,
        /// The newest version that this engine reads.
        known: u32,
    },
    /// The store was written by an earlier release, in a format that this one does not read.
    #[error(
        "{} has format version {found}; this engine reads version {known}: run `isobath export` or \
         `isobath backup` of the release that wrote it, and `isobath import` or `isobath restore` \
         of this one",
        list(paths)
    )]
    OlderFormat {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// The version found.
        found: u32,
        /// The version that this engine reads.
        known: u32,
    },
    /// Both superblocks are unreadable.
    #[error(
        "both superblocks of {} are corrupt; restore from a backup",
        list(paths)
    )]
    SuperblockCorrupt {
        /// The volume's files.
        paths: Vec<PathBuf>,
    },
    /// The store is shorter than its superblock says.
    #[error(
        "{} is truncated: it has {} and must have {}: restore it from a backup, or salvage it",
        list(paths), two_sizes(*found, *expected).0, two_sizes(*found, *expected).1
    )]
    Truncated {
        /// The volume's files.
        paths: Vec<PathBuf>,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The store was not closed and is to be read only, but there is not enough memory or temporary
    /// space to replay its log.
    #[error(
        "{} was not closed (its process ended, or a write failed) and needs recovery: open it for writing once; nothing that was acknowledged is lost",
        list(paths)
    )]
    NeedsRecovery {
        /// The volume's files.
        paths: Vec<PathBuf>,
    },
    /// A process that writes the store has used space again that this reader, which was opened
    /// earlier, still needs.
    #[error(
        "the process that writes {} has used space again that this older view of it needs; open it for reading again",
        list(paths)
    )]
    ReaderOverrun {
        /// The volume's files.
        paths: Vec<PathBuf>,
    },
    /// The store was not closed and keeps no log, so that its newest state is incomplete.
    #[error(
        "{} was not closed cleanly (the process ended or a write failed), and without a log its newest state cannot be recovered; restore from a backup or an export",
        list(paths)
    )]
    NotClosedCleanly {
        /// The volume's files.
        paths: Vec<PathBuf>,
    },
    /// An option has a value that cannot work.
    #[error("option {option}: {reason}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// The requirement.
        reason: String,
    },
    /// The system refuses memory or address space.
    #[error("the system refuses memory for {what}: {source}")]
    Memory {
        /// Its purpose.
        what: &'static str,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// No tree of that name exists.
    #[error("there is no tree named {name:?}; `Store::trees` lists those that exist")]
    NoSuchTree {
        /// The name asked for.
        name: String,
    },
    /// A tree of that name exists already.
    #[error("a tree named {name:?} exists already")]
    TreeExists {
        /// The name asked for.
        name: String,
    },
    /// The tree was dropped while this handle was held.
    #[error("the tree {name:?} was dropped")]
    TreeDropped {
        /// Its name.
        name: String,
    },
    /// The statistics of this store are not published.
    #[error("the statistics of {} cannot be watched: {reason}", path.display())]
    NotPublished {
        /// The store's first file.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// Another transaction changed what this one writes, or, if it is
    /// serializable, what it has read.
    #[error(
        "another transaction changed key {} of tree {tree:?} since this one began; run it again",
        show(key)
    )]
    Conflict {
        /// The tree's name.
        tree: String,
        /// The key that both concern.
        key: Vec<u8>,
    },
    /// So much was changed since the snapshot began that what it would see is
    /// kept no longer.
    #[error(
        "more was changed since this snapshot began than the version store holds, or the volume beside the rest; begin anew, or raise `Options::version_store_bytes`"
    )]
    SnapshotTooOld,
    /// The value that a reader reads piece by piece was replaced or removed, and nothing keeps it
    /// any more.
    #[error(
        "the value was replaced or removed while it was read; read it again from its beginning"
    )]
    ValueReplaced,
    /// The transaction was begun as read-only.
    #[error("the transaction is read-only")]
    ReadOnlyTransaction,
    /// A savepoint of another transaction, or one that was rolled back.
    #[error("the savepoint is not one of this transaction, or was rolled back itself")]
    NoSuchSavepoint,
    /// The changes between two savepoints of a transaction that spilled lie apart from the others
    /// in its temporary file, as often as this is possible. The transaction is as before.
    #[error(
        "the transaction is larger than memory may hold, and only {limit} of its savepoints can be kept: roll back to an earlier one, \
         commit, or make fewer"
    )]
    TooManySavepoints {
        /// Savepoints that can be kept.
        limit: u64,
    },
    /// A tree of another store was used in a transaction.
    #[error("the tree {name:?} belongs to another store than the transaction")]
    OtherStore {
        /// The tree's name.
        name: String,
    },
    /// The store is open for writing and keeps no log.
    #[error(
        "a store without a log cannot be backed up while it is open for writing: close it and open it for reading, or export it"
    )]
    BackupNeedsLog,
    /// A stream of changes has fallen behind: the log has used the space again of what it needs.
    #[error(
        "the log has no longer what was committed behind position {from}; it begins at {oldest}: copy the store anew, and read the stream more often or give the store a larger log"
    )]
    ChangesOverrun {
        /// The position (LSN) asked for, or reached.
        from: u64,
        /// The oldest position that the log keeps for certain.
        oldest: u64,
    },
    /// The store keeps no log, from which its changes could be read.
    #[error(
        "a store without a log has no stream of changes: create it with a log (`Options::log_bytes`)"
    )]
    ChangesNeedLog,
    /// A position in the log of another store.
    #[error(
        "position {position} is not one of this store, whose log is at {store}: the store was replaced by another one; copy it anew"
    )]
    PositionOfOtherStore {
        /// The position given.
        position: String,
        /// The end of this store's log.
        store: String,
    },
    /// The store keeps no log ([`crate::Options::log_bytes`] 0), without which this cannot be done
    /// while it is open.
    #[error(
        "cannot {what} a store without a log while it is open: closing it writes the only checkpoint that it has"
    )]
    NeedsLog {
        /// The requested value.
        what: &'static str,
    },
    /// Bytes in a [`TypedTree`](crate::TypedTree) are no key or value of its types.
    #[error("a stored key or value is not of the type asked for: {what}")]
    BadEncoding {
        /// The type, or what it is part of.
        what: &'static str,
    },
    /// Another backup of the store is under way.
    #[error("another backup of this store is under way; one at a time")]
    BackupRunning,
    /// A backup file is not what it should be.
    #[error("{} at byte {offset}: {error}", path.display())]
    BadBackup {
        /// The file.
        path: PathBuf,
        /// The offset in it.
        offset: u64,
        /// The problem there.
        error: BackupFileError,
    },
    /// Backup files that do not belong together, or to this store.
    #[error("{}: {reason}", path.display())]
    BackupChain {
        /// The file that does not fit.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// A file that is to be made is there already.
    #[error("{} exists already; name another file, or have it replaced", path.display())]
    FileExists {
        /// The file.
        path: PathBuf,
    },
    /// An output was to go to a file of a store, or of its log.
    #[error("{} is a file of a store; name another file for the output", path.display())]
    OutputIsStore {
        /// The file.
        path: PathBuf,
    },
    /// The system refused an operation on a file that is not a store's.
    #[error("cannot {action} {}: {}", path.display(), reason(path, source))]
    File {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: Arc<std::io::Error>,
    },
    /// The watcher of the work had it stop.
    #[error("interrupted")]
    Interrupted,
    /// The user's closure panicked in a task; or, where the store is poisoned by this, a worker or
    /// a task of the engine's own.
    #[error("a task panicked: {message}")]
    TaskPanicked {
        /// The panic's message.
        message: String,
    },
}

impl Error {
    /// Whether the same work may succeed when it is run again from its beginning, as
    /// [`Store::transact`](crate::Store::transact) does with a transaction.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Conflict { .. } | Error::SnapshotTooOld | Error::ValueReplaced
        )
    }

    /// Whether another process, or another opening in this one, has the store open.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Error::Volume(cause) if matches!(**cause, VolumeError::Locked { .. }))
    }

    /// Whether there was no space left on the volume, in its file system or within its limit.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let lacks_block = |error: &IoError| error.kind() == IoErrorKind::NoSpace;
        match self {
            Error::VolumeFull { .. } => true,
            Error::Io(error) => lacks_block(error),
            Error::Volume(cause) => match &**cause {
                VolumeError::Io(error) => lacks_block(error),
                cause => cause.is_no_space(),
            },
            _ => false,
        }
    }

    /// Whether the system or a drive failed to read, to write or to make the volume longer.
    #[must_use]
    pub fn is_io_failure(&self) -> bool {
        match self {
            Error::Io(_) | Error::PageRead { .. } => true,
            Error::Volume(cause) => matches!(
                **cause,
                VolumeError::Io(_) | VolumeError::Os { .. } | VolumeError::Device(_)
            ),
            _ => false,
        }
    }

    /// Whether there is something already where a store was to be created on `paths`; a log alone
    /// is no store.
    pub(crate) fn is_already_there(&self, paths: &[PathBuf]) -> bool {
        let Error::Volume(error) = self else {
            return false;
        };
        match &**error {
            VolumeError::AlreadyExists { path } => paths.contains(path),
            VolumeError::DeviceInUse { .. } => true,
            _ => false,
        }
    }
}

/// Names the limit of a store that has no space, and the remedy.
fn no_space(reason: &VolumeError) -> String {
    match reason {
        VolumeError::Limit { limit, .. } => format!(
            "the volume may have at most {}; delete something, or raise the limit",
            ByteSize(*limit)
        ),
        reason => reason.to_string(),
    }
}

/// An error of a backup file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupFileError {
    /// It is something else.
    #[error("this is no backup file of an Isobath store")]
    Foreign,
    /// A newer version wrote it.
    #[error(
        "the backup has format version {found}; this version reads up to {known}: use a newer one"
    )]
    Newer {
        /// The version found.
        found: u32,
        /// The newest version that this engine reads.
        known: u32,
    },
    /// Its end is missing.
    #[error("the file is truncated, or its backup was never finished; use another backup")]
    Truncated,
    /// The bytes do not match their checksum.
    #[error("its bytes do not match their checksum: the file is corrupt; use another backup")]
    Checksum,
    /// The block is sound and does not belong there.
    #[error("{0}: the file is corrupt; use another backup")]
    Malformed(&'static str),
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// A key for a message: as text where it is some, shortened.
fn show(key: &[u8]) -> String {
    const MOST: usize = 48;
    let shown = key[..key.len().min(MOST)].escape_ascii();
    let rest = if key.len() > MOST { "..." } else { "" };
    format!("\"{shown}{rest}\"")
}

/// Which of a log and its volume is the old one, for a message.
fn older(log: u32, store: u32) -> &'static str {
    if log < store {
        "it is an old copy of the log; name the newest one, or restore log and store from the same backup"
    } else {
        "the store is an old copy, or a copy of it has used this log; restore both from the same backup"
    }
}

/// The tree that a page belongs to, for a message.
fn of_tree(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(" of tree {name:?}"))
}

/// The files of a volume, for a message.
fn list(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "the store".to_owned();
    }
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}
