//! Where a recovery has to start reading the log (docs/decisions/0014).

use crate::canary::{self, Canary};
use crate::engine::Engine;
use crate::page::Lsn;

impl Engine {
    /// Where a recovery from a checkpoint that begins now has to start reading the
    /// log, or earlier. Called by who has the right to write checkpoints.
    ///
    /// A change moves from the log's incomplete end, or a commit in flight, to a
    /// dirty frame, from there to the floor of who writes it, to the written batches, and
    /// to the mapping table. These are read in the same order, so that each change
    /// is seen at least once, however long that takes; see docs/decisions/0014. So `pause` may yield.
    pub(crate) fn recovery_start(&self, pause: impl FnMut()) -> Lsn {
        let complete = self.log.contiguous_lsn();
        let start = match canary::sings(Canary::IgnoreUnapplied) {
            true => complete,
            false => self.oldest_commit(complete),
        };
        let start = self.buffer.oldest_unflushed(start, pause);
        // Whatever moves it back may move it into the range of a late record.
        let start = start.min(self.checkpoints.log_floor());
        let start = self.buffer.before_late_records(start);
        // A floor may be older than what it holds back. The checkpoint before this
        // needed nothing older, so neither does this; and the log has nothing older.
        start.max(self.log.start())
    }

    /// A lower bound of the records of all ends that the mapping table does not show
    /// yet: a page that it shows now ends with this record or a later one.
    pub(crate) fn oldest_end(&self) -> Lsn {
        if canary::sings(Canary::MissLateEnds) {
            return self.log.next();
        }
        self.oldest_commit(self.log.contiguous_lsn())
    }

    /// The oldest commit in flight that has not been applied, or `complete`.
    pub(crate) fn oldest_commit(&self, complete: Lsn) -> Lsn {
        complete.min(self.transactions.oldest_unapplied(&self.log))
    }
}
