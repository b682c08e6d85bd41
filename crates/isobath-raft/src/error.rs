//! Errors of opening, and how errors reach openraft.

use std::io;
use std::path::{Path, PathBuf};

use openraft::{AnyError, ErrorSubject, ErrorVerb, NodeId, StorageError, StorageIOError};

/// Why the storage of a Raft node does not do what it was asked for. openraft gets the same
/// sentences in its [`StorageError`], and ends the node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// One of the stores failed.
    #[error(transparent)]
    Store(#[from] isobath::Error),
    /// A file beside the stores could not be used.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A record is not what this version writes.
    #[error(
        "the Raft storage's record \"{name}\" cannot be read ({source}); open it with the version \
         and the types that wrote it"
    )]
    Record {
        /// What the record holds.
        name: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A snapshot does not fit what came with it.
    #[error("the snapshot {id} cannot be used: {reason}")]
    Snapshot {
        /// The snapshot's id, or the name of one of its files.
        id: String,
        /// What does not fit.
        reason: &'static str,
    },
    /// Entries are neither in the log nor in the state, as after the state's file was replaced by
    /// an older one.
    #[error(
        "the Raft log begins behind entry {purged}, but the state has entries up to {} only; take \
         the node out of the cluster, remove its directory, and add it again",
        applied.unwrap_or(0)
    )]
    Gap {
        /// Index of the last entry that was purged.
        purged: u64,
        /// Index of the last entry applied; `None` if there is none.
        applied: Option<u64>,
    },
    /// The log keeps its entries, because the installation of the snapshot that covers them has
    /// failed.
    #[error(
        "the Raft log was not purged up to entry {index}: the snapshot that covers it was not \
         installed; start the node again, and it is sent again"
    )]
    NotInstalled {
        /// Index of the last entry to purge.
        index: u64,
    },
    /// A thread for blocking work has ended early.
    #[error("the work was given up: {0}")]
    Cancelled(#[from] tokio::task::JoinError),
}

impl Error {
    /// For `map_err`: an error of the file `path`.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::File {
            path: path.to_owned(),
            source,
        }
    }

    /// For `map_err`: openraft's error of the same sentence.
    pub(crate) fn during<N: NodeId>(
        subject: ErrorSubject<N>,
        verb: ErrorVerb,
    ) -> impl FnOnce(Error) -> StorageError<N> {
        move |error| StorageIOError::new(subject, verb, AnyError::new(&error)).into()
    }
}

macro_rules! from_kinds {
    ($($Kind:ident),+) => { $(
        impl From<isobath::$Kind> for Error {
            fn from(error: isobath::$Kind) -> Error {
                Error::Store(error.into())
            }
        }
    )+ };
}

from_kinds!(OpenError, BackupError, RestoreError, TransactionError);
