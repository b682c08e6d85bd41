//! Whether writes may go on.

use std::sync::Arc;

use crate::error::{Error, StorageError};
use crate::sync::{Mutex, OnceLock};
use crate::trace;

/// Has the tasks of one part wake that wait for what does not come once a write has failed.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// The first failed write; no more writes are accepted after it.
pub(super) struct Health {
    poison: OnceLock<Error>,
    /// Functions to call then.
    wakes: Mutex<Vec<Wake>>,
}

impl Health {
    pub(super) fn new() -> Health {
        Health {
            poison: OnceLock::new(),
            wakes: Mutex::default(),
        }
    }

    /// Why no write is accepted.
    #[inline]
    pub(super) fn cause(&self) -> Option<&Error> {
        self.poison.get()
    }

    /// Calls `wake` whenever a write fails.
    pub(super) fn on_poison(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.wakes.lock().push(Arc::new(wake));
    }

    /// No more writes: tasks that wait wake and find the reason. The first cause is the one that
    /// matters.
    pub(super) fn poison(&self, cause: Error) {
        if self.poison.set(cause).is_ok() {
            let cause = || self.cause().map_or_else(String::new, Error::to_string);
            trace::tell!(
                error,
                "a write failed: the store takes no more",
                cause = cause().as_str()
            );
        }
        // Called without the lock: they take others.
        let wakes = self.wakes.lock().clone();
        wakes.iter().for_each(|wake| wake());
    }

    /// Refuses where a write has failed.
    #[inline]
    pub(super) fn check(&self) -> Result<(), StorageError> {
        match self.poison.get() {
            Some(cause) => Err(StorageError::Poisoned {
                cause: Arc::new(cause.clone()),
            }),
            None => Ok(()),
        }
    }
}
