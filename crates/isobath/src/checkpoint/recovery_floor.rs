//! The LSN at which a recovery has to start reading the log.

use super::Checkpoints;
use crate::canary::{self, Canary};
use crate::page::Lsn;

impl Checkpoints {
    /// The LSN at which a recovery from a checkpoint that begins now has to start reading the log,
    /// or an earlier one. Called by the task with the right to write checkpoints.
    ///
    /// A change moves from the log's incomplete end, or a commit in flight, to a
    /// dirty frame, from there to its writer's floor, to the written batches, and
    /// to the mapping table. These are read in the same order, so that each change
    /// is seen at least once, however long that takes (docs/protocol.md has the reason for each
    /// step). So `pause` may yield.
    pub(crate) fn recovery_start(&self, pause: impl FnMut()) -> Lsn {
        let complete = self.lower.log.contiguous_lsn();
        let start = match canary::is_on(Canary::IgnoreUnapplied) {
            true => complete,
            false => self.lower.log_tasks.oldest_commit(complete),
        };
        let start = self.lower.buffer.oldest_unflushed(start, pause);
        // Whatever moves it back may move it into the range of a late record.
        let start = start.min(self.lower.log_tasks.floor());
        // After the commits: a record is in its memory before its commit ends.
        let start = start.min(self.lower.buffer.pool.overlays.floor());
        let start = self.lower.buffer.before_late_records(start);
        // A floor may be older than what it holds back. The checkpoint before this
        // needed nothing older, so neither does this; and the log has nothing older.
        start.max(self.lower.log.start())
    }
}
