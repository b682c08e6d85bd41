//! Status codes and messages.

use std::ffi::c_char;

use isobath::Error;

use crate::message;

/// What every function that can fail returns. `ISOBATH_NOT_FOUND` is an answer, all that follow are
/// errors.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum isobath_status {
    /// Done.
    ISOBATH_OK = 0,
    /// Done: there is no such record, or nothing is left.
    ISOBATH_NOT_FOUND = 1,
    /// A pointer that must not be NULL is.
    ISOBATH_NULL = 2,
    /// An argument makes no sense.
    ISOBATH_ARGUMENT = 3,
    /// An option has a value that cannot work.
    ISOBATH_OPTION = 4,
    /// The buffer is too small; the needed length was written.
    ISOBATH_BUFFER = 5,
    /// A key is longer than ISOBATH_MAX_KEY_BYTES.
    ISOBATH_KEY_TOO_LONG = 6,
    /// A value is longer than ISOBATH_MAX_VALUE_BYTES.
    ISOBATH_VALUE_TOO_LONG = 7,
    /// No store can be there, or be opened: the message says why.
    ISOBATH_OPEN = 8,
    /// Another process, or this one, has the store open.
    ISOBATH_IN_USE = 9,
    /// There is no tree of that name.
    ISOBATH_NO_TREE = 10,
    /// A tree of that name exists already.
    ISOBATH_TREE_EXISTS = 11,
    /// The tree was dropped.
    ISOBATH_TREE_DROPPED = 12,
    /// Another transaction was first: run this one again from its beginning.
    ISOBATH_CONFLICT = 13,
    /// What the snapshot reads is gone: begin again.
    ISOBATH_TOO_OLD = 14,
    /// The transaction replaces more pages than one log record can name, or has too many
    /// savepoints.
    ISOBATH_TOO_LARGE = 15,
    /// The store, or the transaction, is for reading only.
    ISOBATH_READ_ONLY = 16,
    /// The volume, or its file system, has no space left.
    ISOBATH_FULL = 17,
    /// Stored bytes differ from the written ones.
    ISOBATH_CORRUPT = 18,
    /// Reading or writing failed.
    ISOBATH_IO = 19,
    /// A write failed earlier: the store takes no more changes until it is opened again.
    ISOBATH_POISONED = 20,
    /// The store, or the transaction, was ended.
    ISOBATH_CLOSED = 21,
    /// A callback ended the work.
    ISOBATH_INTERRUPTED = 22,
    /// As many requests are in flight as the queue may have.
    ISOBATH_QUEUE_FULL = 23,
    /// A value is not the one that was expected; what there is instead was written.
    ISOBATH_DIFFERENT = 24,
    /// The library failed: please report it.
    ISOBATH_PANIC = 25,
    /// Any other error; the message says which.
    ISOBATH_OTHER = 26,
    /// The value was replaced or removed while it was read: read it again from its beginning.
    ISOBATH_REPLACED = 27,
    /// The log no longer has what a stream of changes asks for: begin again, with all trees.
    ISOBATH_OVERRUN = 28,
}

use isobath_status::*;

/// Why a call fails.
pub(crate) enum Failure {
    Null,
    Argument(&'static str),
    Status(isobath_status, String),
    Engine(Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Engine(error.into())
    }
}

impl Failure {
    /// The failure of a stream, which has the engine's error inside.
    pub(crate) fn of_stream(error: std::io::Error) -> Failure {
        match error.downcast::<Error>() {
            Ok(error) => Failure::Engine(error),
            Err(error) => Failure::Status(ISOBATH_IO, error.to_string()),
        }
    }

    /// Keeps the message for the calling thread; the status.
    pub(crate) fn tell(self) -> isobath_status {
        match self {
            Failure::Null => {
                message::set("a pointer that must not be NULL is");
                ISOBATH_NULL
            }
            Failure::Argument(reason) => {
                message::set(reason);
                ISOBATH_ARGUMENT
            }
            Failure::Status(status, reason) => {
                message::set(reason);
                status
            }
            Failure::Engine(error) => {
                message::set(error.to_string());
                of(&error)
            }
        }
    }
}

/// The status of an engine's error.
pub(crate) fn of(error: &Error) -> isobath_status {
    match error {
        Error::KeyTooLong { .. } => ISOBATH_KEY_TOO_LONG,
        Error::ValueTooLong { .. } => ISOBATH_VALUE_TOO_LONG,
        error if error.is_no_space() => ISOBATH_FULL,
        Error::BadOption { .. } => ISOBATH_OPTION,
        Error::NoSuchTree { .. } => ISOBATH_NO_TREE,
        Error::TreeExists { .. } => ISOBATH_TREE_EXISTS,
        Error::TreeDropped { .. } => ISOBATH_TREE_DROPPED,
        Error::BadTreeName { .. } | Error::NoSuchSavepoint | Error::OtherStore { .. } => {
            ISOBATH_ARGUMENT
        }
        Error::Conflict { .. } => ISOBATH_CONFLICT,
        Error::SnapshotTooOld => ISOBATH_TOO_OLD,
        Error::ValueReplaced => ISOBATH_REPLACED,
        Error::ChangesOverrun { .. } => ISOBATH_OVERRUN,
        Error::TransactionTooLarge { .. } | Error::TooManySavepoints { .. } => ISOBATH_TOO_LARGE,
        Error::ReadOnly | Error::ReadOnlyTransaction => ISOBATH_READ_ONLY,
        Error::CorruptPage { .. }
        | Error::Structure { .. }
        | Error::LogCorrupt { .. }
        | Error::LogHeaderCorrupt { .. }
        | Error::LogTruncated { .. }
        | Error::SuperblockCorrupt { .. }
        | Error::Truncated { .. } => ISOBATH_CORRUPT,
        error if error.is_io_failure() => ISOBATH_IO,
        Error::Poisoned { .. } => ISOBATH_POISONED,
        Error::Closed | Error::Forked => ISOBATH_CLOSED,
        Error::Interrupted => ISOBATH_INTERRUPTED,
        error if error.is_in_use() => ISOBATH_IN_USE,
        Error::Volume(_)
        | Error::NotAStore { .. }
        | Error::NewerFormat { .. }
        | Error::OlderFormat { .. }
        | Error::UnknownLogRecord { .. }
        | Error::NeedsRecovery { .. }
        | Error::NotClosedCleanly { .. }
        | Error::ReaderOverrun { .. }
        | Error::LogMissing { .. }
        | Error::NoSeparateLog { .. }
        | Error::NotALog { .. }
        | Error::LogOfOtherStore { .. }
        | Error::LogOutOfStep { .. } => ISOBATH_OPEN,
        Error::TaskPanicked { .. } => ISOBATH_PANIC,
        _ => ISOBATH_OTHER,
    }
}

/// The message of the calling thread's last call that failed, in a sentence for people. Valid until
/// the thread's next call that fails; never NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_last_error() -> *const c_char {
    message::get()
}

/// The name of a status, such as "ISOBATH_OK"; never NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_status_name(status: i32) -> *const c_char {
    const NAMES: [&std::ffi::CStr; 29] = [
        c"ISOBATH_OK",
        c"ISOBATH_NOT_FOUND",
        c"ISOBATH_NULL",
        c"ISOBATH_ARGUMENT",
        c"ISOBATH_OPTION",
        c"ISOBATH_BUFFER",
        c"ISOBATH_KEY_TOO_LONG",
        c"ISOBATH_VALUE_TOO_LONG",
        c"ISOBATH_OPEN",
        c"ISOBATH_IN_USE",
        c"ISOBATH_NO_TREE",
        c"ISOBATH_TREE_EXISTS",
        c"ISOBATH_TREE_DROPPED",
        c"ISOBATH_CONFLICT",
        c"ISOBATH_TOO_OLD",
        c"ISOBATH_TOO_LARGE",
        c"ISOBATH_READ_ONLY",
        c"ISOBATH_FULL",
        c"ISOBATH_CORRUPT",
        c"ISOBATH_IO",
        c"ISOBATH_POISONED",
        c"ISOBATH_CLOSED",
        c"ISOBATH_INTERRUPTED",
        c"ISOBATH_QUEUE_FULL",
        c"ISOBATH_DIFFERENT",
        c"ISOBATH_PANIC",
        c"ISOBATH_OTHER",
        c"ISOBATH_REPLACED",
        c"ISOBATH_OVERRUN",
    ];
    let name = usize::try_from(status).ok().and_then(|at| NAMES.get(at));
    name.map_or(c"no status of isobath".as_ptr(), |name| name.as_ptr())
}

/// Whether the same work, such as a transaction, may succeed when it is run again from its
/// beginning. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_status_is_retryable(status: i32) -> bool {
    [ISOBATH_CONFLICT, ISOBATH_TOO_OLD, ISOBATH_REPLACED]
        .map(|status| status as i32)
        .contains(&status)
}

/// The library's version, such as "0.1.0"; never NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use isobath::{
        BackupError, LoadError, OpenError, RestoreError, StorageError, TransactionError,
    };
    use isobath_io::{IoError, IoErrorKind, Op, VolumeError};

    use super::*;

    /// An error of a kind has the code of the same error of all.
    #[test]
    fn kinds_of_errors_have_the_codes_of_their_errors() {
        fn code(error: impl Into<Error>) -> isobath_status {
            Failure::from(error).tell()
        }
        let bad = || OpenError::BadOption {
            option: "workers",
            reason: "at least 1".to_owned(),
        };
        let conflict = TransactionError::Conflict {
            tree: "t".to_owned(),
            key: Vec::new(),
        };
        let long = LoadError::KeyTooLong {
            length: 2000,
            limit: 1024,
        };
        assert_eq!(code(bad()), ISOBATH_OPTION);
        assert_eq!(code(RestoreError::from(bad())), ISOBATH_OPTION);
        assert_eq!(
            code(OpenError::NotAStore { paths: Vec::new() }),
            ISOBATH_OPEN
        );
        let truncated = OpenError::Truncated {
            paths: Vec::new(),
            found: 1,
            expected: 2,
        };
        assert_eq!(code(truncated), ISOBATH_CORRUPT);
        let unrecovered = OpenError::NeedsRecovery { paths: Vec::new() };
        assert_eq!(code(unrecovered), ISOBATH_OPEN);
        // A commit for which the volume was to grow.
        let path = || "data".into();
        let volume = |cause| Error::Volume(Arc::new(cause));
        let needed = 4096;
        assert_eq!(
            code(volume(VolumeError::NoSpace {
                path: path(),
                needed
            })),
            ISOBATH_FULL
        );
        let no_block = IoError::new(IoErrorKind::NoSpace, Op::Write, 0, 4096);
        assert_eq!(
            code(volume(VolumeError::Io(no_block.clone()))),
            ISOBATH_FULL
        );
        assert_eq!(code(Error::Io(no_block)), ISOBATH_FULL);
        let broken = IoError::new(IoErrorKind::Media, Op::Write, 0, 4096);
        assert_eq!(code(volume(VolumeError::Io(broken.clone()))), ISOBATH_IO);
        assert_eq!(code(Error::Io(broken)), ISOBATH_IO);
        let refused = VolumeError::Os {
            path: path(),
            action: "grow",
            source: std::io::Error::other("no"),
        };
        assert_eq!(code(volume(refused)), ISOBATH_IO);
        assert_eq!(
            code(volume(VolumeError::NotFound { path: path() })),
            ISOBATH_OPEN
        );
        assert_eq!(code(conflict), ISOBATH_CONFLICT);
        assert_eq!(code(TransactionError::SnapshotTooOld), ISOBATH_TOO_OLD);
        assert_eq!(code(TransactionError::ReadOnly), ISOBATH_READ_ONLY);
        assert_eq!(code(long), ISOBATH_KEY_TOO_LONG);
        assert_eq!(code(BackupError::Interrupted), ISOBATH_INTERRUPTED);
        for error in [
            code(OpenError::from(StorageError::Closed)),
            code(TransactionError::from(StorageError::Closed)),
            code(LoadError::from(StorageError::Closed)),
            code(BackupError::from(StorageError::Closed)),
            code(Error::Closed),
        ] {
            assert_eq!(error, ISOBATH_CLOSED);
        }
    }
}
