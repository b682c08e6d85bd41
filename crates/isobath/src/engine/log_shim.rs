//! Stands in for the log's own waiting until the log keeps anything.

use super::Local;
use crate::Error;
use crate::page::Lsn;

/// Whose need for room in the log comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tier {
    /// Commits, which begin something.
    Commit,
}

/// Room in the log that a task holds.
pub(crate) struct LogRoom;

impl Local {
    /// Waits for room for a record of `bytes` bytes.
    #[expect(clippy::unused_self, clippy::unnecessary_wraps)]
    pub(crate) fn log_room(&self, bytes: u64, tier: Tier) -> Result<LogRoom, Error> {
        let _ = (bytes, tier);
        Ok(LogRoom)
    }

    /// Waits until the record at `lsn` is durable.
    pub(crate) fn wait_durable(&self, lsn: Lsn) -> Result<(), Error> {
        debug_assert!(self.engine.log.durable() > lsn);
        Ok(())
    }
}
