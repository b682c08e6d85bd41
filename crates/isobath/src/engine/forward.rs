//! What callers still ask the assembly for, and parts do (docs/decisions/0088).

use super::Engine;
use crate::Error;
use crate::buffer::Stored;
use crate::log::record::{Mapped, Token};
use crate::page::Lsn;
use crate::runtime::WorkerState;

impl Engine {
    /// What the limits of dirty pages depend on.
    fn stored(&self) -> Stored {
        Stored {
            allocated_bytes: self.pagestore.allocated_bytes(),
            segment_bytes: self.pagestore.used_segment_bytes(),
        }
    }

    /// See [`Buffer::dirty_limit`](crate::buffer::Buffer::dirty_limit).
    pub(crate) fn dirty_limit(&self) -> usize {
        self.buffer.dirty_limit(self.stored())
    }

    /// See [`Buffer::min_dirty_limit`](crate::buffer::Buffer::min_dirty_limit).
    pub(crate) fn min_dirty_limit(&self) -> usize {
        self.buffer.min_dirty_limit(self.stored())
    }

    /// See [`Buffer::dirty_target`](crate::buffer::Buffer::dirty_target).
    pub(crate) fn dirty_target(&self) -> usize {
        self.buffer.dirty_target(self.stored())
    }

    /// See [`Buffer::frames_written_back`](crate::buffer::Buffer::frames_written_back).
    pub(crate) fn frames_written_back(&self, count: usize) {
        self.buffer.frames_written_back(count, self.stored());
    }

    /// See [`Log::newest_record`](crate::log::Log::newest_record).
    pub(crate) fn newest_record(&self) -> Lsn {
        self.log.newest_record()
    }
}

impl WorkerState {
    /// See [`LogTasks::flush_volume`](crate::log::LogTasks::flush_volume).
    pub(crate) fn flush_volume(&self) -> Result<(), Error> {
        self.engine.log_tasks.flush_volume(&self.worker)
    }

    /// See [`Buffer::log_copies`](crate::buffer::Buffer::log_copies).
    pub(crate) fn log_copies(&self, token: Token, copies: &[Mapped]) -> Lsn {
        self.engine.buffer.log_copies(&self.worker, token, copies)
    }
}
