//! The engine's errors as exceptions of `isobath._errors`, with the engine's sentences.

use std::io::ErrorKind;

use isobath::Error;
use isobath_io::VolumeError;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Why a call failed.
pub(crate) enum Failure {
    Engine(Error),
    /// The transaction was committed or rolled back.
    Ended,
    /// The argument's value is impossible.
    Value(String),
    /// The key of a mapping has no value.
    Missing(Vec<u8>),
    Python(PyErr),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Engine(error.into())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure {
            Failure::Python(error) => error,
            Failure::Missing(key) => {
                Python::attach(|py| PyKeyError::new_err(PyBytes::new(py, &key).unbind()))
            }
            Failure::Ended => raised("TransactionEnded", "the transaction has ended", None),
            Failure::Value(sentence) => raised("InvalidArgument", &sentence, None),
            Failure::Engine(error) => {
                let conflict = match &error {
                    Error::Conflict { tree, key } => Some((tree.as_str(), key.as_slice())),
                    _ => None,
                };
                raised(class_of(&error), &error.to_string(), conflict)
            }
        }
    }
}

/// An exception of a class of `isobath._errors`; a conflict also names its tree and key.
fn raised(class: &str, sentence: &str, conflict: Option<(&str, &[u8])>) -> PyErr {
    Python::attach(|py| {
        let made = py.import("isobath._errors").and_then(|module| {
            let class = module.getattr(class)?;
            match conflict {
                Some((tree, key)) => class.call1((sentence, tree, PyBytes::new(py, key))),
                None => class.call1((sentence,)),
            }
        });
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// The name of an error's class.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::KeyTooLong { .. }
        | Error::ValueTooLong { .. }
        | Error::BadTreeName { .. }
        | Error::BadOption { .. }
        | Error::LoadOrder { .. }
        | Error::NoSuchSavepoint
        | Error::OtherStore { .. } => "InvalidArgument",
        Error::Closed => "Closed",
        Error::Forked => "Forked",
        Error::ReadOnly | Error::ReadOnlyTransaction => "ReadOnly",
        Error::Poisoned { .. } => "Poisoned",
        Error::NoSuchTree { .. } => "NoSuchTree",
        Error::TreeExists { .. } => "TreeExists",
        Error::TreeDropped { .. } => "TreeDropped",
        Error::Conflict { .. } => "Conflict",
        Error::SnapshotTooOld => "SnapshotTooOld",
        Error::TransactionTooLarge { .. } => "TransactionTooLarge",
        Error::TooManySavepoints { .. } => "TransactionError",
        Error::ValueReplaced => "ValueReplaced",
        Error::ReaderOverrun { .. } => "ReaderOverrun",
        Error::ChangesOverrun { .. } => "ChangesOverrun",
        Error::PositionOfOtherStore { .. } => "InvalidArgument",
        Error::NotAStore { .. } | Error::NotALog { .. } => "NotAStore",
        Error::NewerFormat { .. } | Error::OlderFormat { .. } | Error::UnknownLogRecord { .. } => {
            "UnsupportedFormat"
        }
        Error::CorruptPage { .. }
        | Error::Structure { .. }
        | Error::LogCorrupt { .. }
        | Error::LogHeaderCorrupt { .. }
        | Error::LogTruncated { .. }
        | Error::LogOutOfStep { .. }
        | Error::SuperblockCorrupt { .. }
        | Error::Truncated { .. }
        | Error::NotClosedCleanly { .. } => "Corruption",
        Error::LogMissing { .. } => "StoreNotFound",
        Error::FileExists { .. } => "StoreExists",
        Error::BackupNeedsLog
        | Error::BackupRunning
        | Error::BadBackup { .. }
        | Error::BackupChain { .. }
        | Error::OutputIsStore { .. } => "BackupError",
        error if error.is_in_use() => "StoreInUse",
        error if error.is_no_space() => "NoSpace",
        Error::Volume(cause) => class_of_volume(cause),
        Error::File { source, .. } => match source.kind() {
            ErrorKind::NotFound => "StoreNotFound",
            ErrorKind::PermissionDenied => "AccessDenied",
            _ => "IOFailure",
        },
        Error::Io(_) | Error::PageRead { .. } | Error::Sort { .. } => "IOFailure",
        _ => "Error",
    }
}

fn class_of_volume(error: &VolumeError) -> &'static str {
    match error {
        VolumeError::NotFound { .. }
        | VolumeError::DanglingLink { .. }
        | VolumeError::NoDirectory { .. } => "StoreNotFound",
        VolumeError::AlreadyExists { .. } | VolumeError::DeviceInUse { .. } => "StoreExists",
        VolumeError::IsDirectory { .. }
        | VolumeError::NotAFile { .. }
        | VolumeError::Foreign { .. } => "NotAStore",
        VolumeError::LabelCorrupt { .. } | VolumeError::Truncated { .. } => "Corruption",
        VolumeError::WrongOrder { .. }
        | VolumeError::WrongCount { .. }
        | VolumeError::DifferentVolumes { .. }
        | VolumeError::Duplicate { .. }
        | VolumeError::LogRefused { .. }
        | VolumeError::BadOption { .. } => "InvalidArgument",
        VolumeError::PermissionDenied { .. } => "AccessDenied",
        VolumeError::NewerFormat { .. } => "UnsupportedFormat",
        VolumeError::ReadOnly { .. } => "ReadOnly",
        _ => "IOFailure",
    }
}
