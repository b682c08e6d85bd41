//! Errors of the laboratory.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::Stopped;
use crate::raw::RawError;

/// Why a piece of laboratory work ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The engine refused or failed; its message names the file and the cure.
    #[error(transparent)]
    Engine(#[from] isobath::Error),
    /// There is no store where one was named.
    #[error("{paths} does not exist; check the name, or add --create to make a new store there")]
    NoStore {
        /// The paths that were named.
        paths: String,
    },
    /// The operating system refused or failed.
    #[error("cannot {action} {}: {}", path.display(), isobath_io::reason(path, source))]
    Io {
        /// The attempted action, as a verb: "read", "create".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// An input is not what it was said to be.
    #[error("{}: {reason}", path.display())]
    Input {
        /// The file; `-` is standard input.
        path: PathBuf,
        /// The problem, its place, and the remedy.
        reason: String,
    },
    /// An export file is corrupt, truncated or of a newer format.
    #[error("{}: at byte {offset}: {reason}", path.display())]
    Export {
        /// The export file.
        path: PathBuf,
        /// The offset in the file.
        offset: u64,
        /// The problem and the remedy.
        reason: String,
    },
    /// There is less free space than the work needs.
    #[error(
        "{} has {} free and this needs {}; free some space, or choose another place with {option}",
        path.display(),
        isobath_io::two_sizes(*available_bytes, *needed_bytes).0,
        isobath_io::two_sizes(*available_bytes, *needed_bytes).1
    )]
    NoSpace {
        /// A path on the file system.
        path: PathBuf,
        /// Free bytes there.
        available_bytes: u64,
        /// Bytes that the work would take.
        needed_bytes: u64,
        /// The option that chooses another place.
        option: &'static str,
    },
    /// A raw measurement failed.
    #[error(transparent)]
    Raw(RawError),
    /// A task of the engine panicked; the store goes on.
    #[error(transparent)]
    Panic(#[from] isobath::TaskPanic),
    /// A rival engine failed.
    #[error("{engine}: {message}")]
    Rival {
        /// Its name.
        engine: &'static str,
        /// Its own message.
        message: String,
    },
    /// A transaction of a benchmark was rolled back because of another one, and may be run again.
    #[error("the transaction conflicts with another one")]
    Conflict,
    /// This build lacks a feature.
    #[error("this build has no {what}; {cure}")]
    NotBuilt {
        /// The missing part.
        what: &'static str,
        /// How to get it.
        cure: &'static str,
    },
    /// The machine lacks what a virtual SSD needs.
    #[error("a virtual SSD cannot be mounted here, it needs {needs}")]
    CannotMount {
        /// The missing part.
        needs: String,
    },
    /// The request contradicts itself or is not possible.
    #[error("{0}")]
    Request(String),
    /// The data read back differs from the data stored.
    #[error("verification failed: {0}")]
    Verify(String),
    /// A file or device for measuring could not be opened, made or grown.
    #[error(transparent)]
    Volume(#[from] isobath_io::VolumeError),
    /// A load ended early.
    #[error("{source}; {stored}")]
    Partly {
        /// Why.
        source: Box<LabError>,
        /// The part that was stored, and the way to go on; a sentence.
        stored: String,
    },
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Errors of one kind of the engine's operations are errors of the engine.
macro_rules! of_engine {
    ($($Kind:ident),+) => {$(
        impl From<isobath::$Kind> for LabError {
            fn from(error: isobath::$Kind) -> LabError {
                LabError::Engine(error.into())
            }
        }
    )+};
}

of_engine!(
    OpenError,
    TransactionError,
    LoadError,
    BackupError,
    RestoreError
);

impl From<RawError> for LabError {
    fn from(error: RawError) -> LabError {
        match error {
            RawError::Interrupted => LabError::Interrupted,
            other => LabError::Raw(other),
        }
    }
}

impl LabError {
    /// An I/O error with its path; for `map_err`. `action` is a verb. A read that was stopped is
    /// [`LabError::Interrupted`].
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LabError {
        let path = path.to_path_buf();
        move |source| match source.get_ref() {
            Some(inner) if inner.is::<Stopped>() => LabError::Interrupted,
            _ => LabError::Io {
                action,
                path,
                source,
            },
        }
    }

    /// An error of a value that was streamed: the engine's own where it was the
    /// engine's, else an I/O error with what was done and where.
    #[must_use]
    pub fn streamed(action: &'static str, path: &Path, error: io::Error) -> LabError {
        match error.downcast::<isobath::Error>() {
            Ok(engine) => engine.into(),
            Err(other) => LabError::io(action, path)(other),
        }
    }

    /// The same error, with the part stored before it.
    pub(crate) fn after(self, stored: impl Into<String>) -> LabError {
        LabError::Partly {
            source: Box::new(self),
            stored: stored.into(),
        }
    }

    /// An error of the input at `path`.
    pub(crate) fn input(path: &Path, reason: impl Into<String>) -> LabError {
        LabError::Input {
            path: path.to_path_buf(),
            reason: reason.into(),
        }
    }
}
