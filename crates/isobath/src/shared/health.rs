//! Whether writes may go on.

use std::sync::Arc;

use crate::Error;
use crate::sync::OnceLock;

/// The first failed write; no more writes are accepted after it.
pub(super) struct Health {
    poison: OnceLock<Error>,
}

impl Health {
    pub(super) fn new() -> Health {
        Health {
            poison: OnceLock::new(),
        }
    }

    /// Why no write is accepted.
    #[inline]
    pub(super) fn cause(&self) -> Option<&Error> {
        self.poison.get()
    }

    /// No more writes; `false` if that was so before. The first cause is the one that matters.
    pub(super) fn poison(&self, cause: Error) -> bool {
        self.poison.set(cause).is_ok()
    }

    /// Refuses where a write has failed.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(cause) => Err(Error::Poisoned {
                cause: Arc::new(cause.clone()),
            }),
            None => Ok(()),
        }
    }
}
