//! Results of the flushes of one member.
//!
//! Linux reports a failed write-back once per open file description. If several flushers share
//! one (workers, growth, the blocking calls), the first one takes the error, and the others succeed
//! although their writes are lost. So every success is verified: a second description of the
//! member, which no other code flushes, is asked whether an error has come up, and every flush from
//! then on returns the first failure.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::IoErrorKind;
use crate::file::sys;

pub(super) struct Flushes {
    /// The member once more. `None` if it cannot be opened again: the flushes of this process
    /// then have only each other's failures to go by.
    witness: Option<File>,
    /// The first failure. Which writes were lost then is unknown, so no later flush may succeed.
    failed: OnceLock<IoErrorKind>,
    /// Held while the witness is asked, because it answers with an error only once.
    asking: Mutex<()>,
}

impl Flushes {
    /// Those of `file`, which was opened at `path`.
    pub(super) fn of(path: &Path, file: &File, writable: bool) -> Flushes {
        let witness = || {
            let again = File::open(path).ok()?;
            let place = |file: &File| file.metadata().map(|m| (m.dev(), m.ino(), m.rdev()));
            (place(&again).ok()? == place(file).ok()?).then_some(again)
        };
        Flushes {
            witness: writable.then(witness).flatten(),
            failed: OnceLock::new(),
            asking: Mutex::new(()),
        }
    }

    /// The outcome of a flush or a durable write of the member, to which the system has answered
    /// `result`.
    pub(super) fn judge(&self, result: Result<(), IoErrorKind>) -> Result<(), IoErrorKind> {
        let result = result.and_then(|()| {
            let _one_at_a_time = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(kind) = self.failed.get() {
                return Err(*kind);
            }
            let asked = match &self.witness {
                Some(witness) => sys::written_back(witness.as_raw_fd()),
                None => Ok(()),
            };
            asked.map_err(|errno| {
                let kind = IoErrorKind::from_errno(errno);
                // Stored under the lock: the second description reports the error to one flush
                // only.
                *self.failed.get_or_init(|| kind)
            })
        });
        result.inspect_err(|kind| {
            self.failed.get_or_init(|| *kind);
        })
    }
}
