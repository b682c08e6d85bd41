//! Why a command failed, and the exit code that says so.

use std::io;

use isobath_files::FilesError;
use isobath_lab::LabError;
use isobath_lab::raw::RawError;
use isobath_nvme::NvmeError;

use crate::explain;

/// Found problems, or did not find the requested thing.
pub(crate) const FOUND: u8 = 1;
/// The command line is invalid.
pub(crate) const USAGE: u8 = 2;
/// The engine, the operating system or an input failed.
pub(crate) const FAILED: u8 = 3;
/// The user interrupted it; the shell's number for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The laboratory or the engine.
    Lab(LabError),
    /// A tree of files.
    Files(FilesError),
    /// An NVMe drive.
    Nvme(NvmeError),
    /// The key that was asked for is absent.
    NotFound(String),
    /// The process that was started to serve files ended, with what it said and its exit code.
    Server { said: String, code: u8 },
    /// There is no tree of that name.
    NoTree {
        name: String,
        /// One that has almost that name.
        alike: Option<String>,
        /// Whether the verb makes missing trees, if an option asks for it.
        creates: bool,
    },
    /// The command line is invalid.
    Usage(String),
    /// Standard output was closed by its reader.
    OutputClosed,
    /// Standard output cannot be written.
    Output(io::Error),
    /// Problems were found and printed already.
    Reported,
}

impl Failure {
    /// Whether the user interrupted the work.
    pub(crate) fn is_interruption(&self) -> bool {
        self.exit_code() == INTERRUPTED
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::OutputClosed => 0,
            Failure::NotFound(_) | Failure::Reported => FOUND,
            Failure::Usage(_) => USAGE,
            Failure::Lab(error) => exit_code(error),
            Failure::Files(error) => of_files(error),
            Failure::Nvme(NvmeError::BadAddress { .. }) => USAGE,
            Failure::Server { code, .. } => *code,
            Failure::Nvme(_) | Failure::NoTree { .. } | Failure::Output(_) => FAILED,
        }
    }
}

fn of_files(error: &FilesError) -> u8 {
    match error {
        FilesError::NotFound { .. } => FOUND,
        FilesError::BadName { .. } => USAGE,
        FilesError::Interrupted => INTERRUPTED,
        _ => FAILED,
    }
}

fn exit_code(error: &LabError) -> u8 {
    match error {
        LabError::Verify(_) => FOUND,
        LabError::Request(_)
        | LabError::NotBuilt { .. }
        | LabError::Raw(RawError::BadPlan { .. })
        | LabError::Engine(isobath::Error::BadOption { .. } | isobath::Error::KeyTooLong { .. }) => {
            USAGE
        }
        LabError::Interrupted | LabError::Engine(isobath::Error::Interrupted) => INTERRUPTED,
        LabError::Partly { source, .. } => exit_code(source),
        _ => FAILED,
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Lab(error) => explain::lab(error, f),
            Failure::Files(error) => write!(f, "{error}"),
            Failure::Nvme(error) => write!(f, "{error}"),
            Failure::NoTree {
                name,
                alike,
                creates,
            } => {
                write!(f, "there is no tree {name:?}")?;
                if let Some(alike) = alike {
                    write!(f, "; did you mean {alike:?}?")?;
                }
                match (creates, alike) {
                    (true, Some(_)) => f.write_str(" --create-tree makes a new one"),
                    (true, None) => f.write_str("; --create-tree makes a new one"),
                    (false, Some(_)) => Ok(()),
                    (false, None) => f.write_str("; `isobath trees list` shows those that exist"),
                }
            }
            Failure::NotFound(what) | Failure::Usage(what) | Failure::Server { said: what, .. } => {
                f.write_str(what)
            }
            Failure::OutputClosed => f.write_str("the output was closed"),
            Failure::Output(error) => write!(f, "cannot write the output: {error}"),
            Failure::Reported => f.write_str("problems were found"),
        }
    }
}

impl From<NvmeError> for Failure {
    fn from(error: NvmeError) -> Self {
        Failure::Nvme(error)
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Failure::Lab(error)
    }
}

/// Errors of the engine, and of each kind of its operations.
macro_rules! of_engine {
    ($($Error:ident),+) => {$(
        impl From<isobath::$Error> for Failure {
            fn from(error: isobath::$Error) -> Self {
                Failure::Lab(error.into())
            }
        }
    )+};
}

of_engine!(
    Error,
    OpenError,
    TransactionError,
    LoadError,
    BackupError,
    RestoreError
);

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        match error {
            FilesError::Engine(error) => error.into(),
            error => Failure::Files(error),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Failure::OutputClosed
        } else {
            Failure::Output(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use isobath::{BackupError, Error, LoadError, OpenError, RestoreError};

    use super::*;

    #[test]
    fn kinds_of_errors_have_the_exit_codes_of_their_errors() {
        let code = |failure: Failure| failure.exit_code();
        let bad = || OpenError::BadOption {
            option: "workers",
            reason: "at least 1".to_owned(),
        };
        assert_eq!(code(bad().into()), USAGE);
        assert_eq!(code(RestoreError::from(bad()).into()), USAGE);
        assert_eq!(code(Error::from(bad()).into()), USAGE);
        assert_eq!(code(BackupError::Interrupted.into()), INTERRUPTED);
        assert_eq!(code(RestoreError::Interrupted.into()), INTERRUPTED);
        assert_eq!(code(LoadError::Interrupted.into()), INTERRUPTED);
        assert_eq!(code(BackupError::BackupRunning.into()), FAILED);
    }
}
