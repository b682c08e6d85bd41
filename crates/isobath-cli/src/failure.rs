//! Why a command failed, and the exit code that says so.

use std::io;

use isobath_lab::LabError;
use isobath_lab::raw::RawError;

/// Found problems, or did not find what was asked for.
pub(crate) const FOUND: u8 = 1;
/// The command line cannot be obeyed.
pub(crate) const USAGE: u8 = 2;
/// The engine, the operating system or an input failed.
pub(crate) const FAILED: u8 = 3;
/// The person interrupted it; the shell's number for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The laboratory or the engine.
    Lab(LabError),
    /// The key that was asked for is absent.
    NotFound(String),
    /// The command line cannot be obeyed.
    Usage(String),
    /// Standard output was closed by its reader.
    OutputClosed,
    /// Standard output cannot be written.
    Output(io::Error),
    /// Problems were found and printed already.
    Reported,
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::OutputClosed => 0,
            Failure::NotFound(_) | Failure::Reported | Failure::Lab(LabError::Verify(_)) => FOUND,
            Failure::Usage(_)
            | Failure::Lab(
                LabError::Request(_)
                | LabError::NotBuilt { .. }
                | LabError::Raw(RawError::BadPlan { .. })
                | LabError::Engine(
                    isobath::Error::BadOption { .. } | isobath::Error::KeyTooLong { .. },
                ),
            ) => USAGE,
            Failure::Lab(LabError::Interrupted | LabError::Engine(isobath::Error::Interrupted)) => {
                INTERRUPTED
            }
            Failure::Lab(_) | Failure::Output(_) => FAILED,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // The engine names its function; a person at a shell needs the verb.
            Failure::Lab(LabError::Engine(isobath::Error::NoSuchTree { name })) => write!(
                f,
                "there is no tree {name:?}; `isobath trees list` shows those that exist"
            ),
            Failure::Lab(LabError::Engine(error @ isobath::Error::NeedsRecovery { .. })) => {
                write!(f, "{error}: `isobath recover` does that")
            }
            Failure::Lab(LabError::Engine(isobath::Error::FileExists { path })) => write!(
                f,
                "{} exists already; choose another name or add --force to replace it",
                path.display()
            ),
            Failure::Lab(error) => error.fmt(f),
            Failure::NotFound(what) | Failure::Usage(what) => f.write_str(what),
            Failure::OutputClosed => f.write_str("the output was closed"),
            Failure::Output(error) => write!(f, "cannot write the output: {error}"),
            Failure::Reported => f.write_str("problems were found"),
        }
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Failure::Lab(error)
    }
}

impl From<isobath::Error> for Failure {
    fn from(error: isobath::Error) -> Self {
        Failure::Lab(error.into())
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
