//! What callers still ask the assembly for, and parts do (docs/decisions/0088).

use crate::Error;
use crate::runtime::WorkerState;

impl WorkerState {
    /// See [`LogTasks::flush_volume`](crate::log::LogTasks::flush_volume).
    pub(crate) fn flush_volume(&self) -> Result<(), Error> {
        self.engine.log_tasks.flush_volume(&self.worker)
    }
}
