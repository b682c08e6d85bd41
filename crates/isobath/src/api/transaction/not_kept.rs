//! Why a transaction does not keep a change.

use std::sync::Arc;

use crate::error::{Error, StorageError, TransactionError};

/// Why changes are not kept.
#[derive(Debug)]
pub(super) enum NotKept {
    /// As in [`Error::TooManySavepoints`].
    TooManySavepoints {
        limit: u64,
    },
    Failed(TransactionError),
}

impl<E: Into<TransactionError>> From<E> for NotKept {
    fn from(error: E) -> NotKept {
        NotKept::Failed(error.into())
    }
}

impl From<NotKept> for Error {
    fn from(error: NotKept) -> Error {
        match error {
            NotKept::TooManySavepoints { limit } => Error::TooManySavepoints { limit },
            NotKept::Failed(error) => error.into(),
        }
    }
}

impl NotKept {
    /// The error of a transaction without savepoints.
    pub(super) fn without_savepoints(self) -> TransactionError {
        match self {
            NotKept::TooManySavepoints { .. } => {
                StorageError::Unexpected(Arc::new(self.into())).into()
            }
            NotKept::Failed(error) => error,
        }
    }
}
