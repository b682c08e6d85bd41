//! The engine's errors as those of `object_store`.

use isobath::{Error, TransactionError};
use object_store::path::Path;

/// The name that errors have of this implementation.
pub(crate) const STORE: &str = "Isobath";

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Engine(Error),
    Object(object_store::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Engine(error)
    }
}

impl From<TransactionError> for Failure {
    fn from(error: TransactionError) -> Failure {
        Failure::Engine(error.into())
    }
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Failure {
        Failure::Object(error)
    }
}

impl Failure {
    /// The error of an operation on `location`.
    pub(crate) fn at(self, location: &Path) -> object_store::Error {
        let error = match self {
            Failure::Object(error) => return error,
            Failure::Engine(error) => error,
        };
        let path = location.to_string();
        match &error {
            Error::ReadOnly | Error::ReadOnlyTransaction => {
                let source = Box::new(error);
                object_store::Error::PermissionDenied { path, source }
            }
            Error::KeyTooLong { .. } => object_store::Error::InvalidPath {
                source: object_store::path::Error::Canonicalize {
                    path: path.into(),
                    source: std::io::Error::new(std::io::ErrorKind::InvalidFilename, error),
                },
            },
            _ => object_store::Error::Generic {
                store: STORE,
                source: Box::new(error),
            },
        }
    }
}

pub(crate) fn generic(sentence: String) -> object_store::Error {
    object_store::Error::Generic {
        store: STORE,
        source: sentence.into(),
    }
}

pub(crate) fn not_found(location: &Path) -> object_store::Error {
    object_store::Error::NotFound {
        path: location.to_string(),
        source: "there is no object".into(),
    }
}

pub(crate) fn exists(location: &Path) -> object_store::Error {
    object_store::Error::AlreadyExists {
        path: location.to_string(),
        source: "there is an object already".into(),
    }
}
