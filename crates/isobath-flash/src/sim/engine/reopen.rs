//! Closing and opening the space again, as an engine does: the policy's statistics are lost, and of
//! each segment the policy gets the data that a checkpoint keeps.

use super::super::config::SimError;
use super::Simulator;
use crate::policy::{CleaningPolicy, SegmentId, SegmentRecord, SegmentState, StreamId};
use crate::workload::Workload;

impl<P: CleaningPolicy, W: Workload> Simulator<P, W> {
    /// Closes the space and opens it with `policy`, which knows nothing yet.
    ///
    /// # Errors
    /// If the policy runs out of free segments.
    pub fn reopen(&mut self, policy: P) -> Result<(), SimError> {
        self.flush_buffer()?;
        for stream in 0..self.log.open.len() {
            self.log.seal(StreamId(stream as u16));
        }
        let mut slots = Vec::new();
        let (before, closed) = self.log.forget_all(policy);
        for segment in (0..closed.len()).map(SegmentId) {
            if closed.state(segment) == SegmentState::Sealed {
                let stored = before.stored_history(&closed, segment, self.log.now);
                let record = SegmentRecord {
                    history: stored,
                    ..closed.record(segment)
                };
                self.log.table.restore(segment, &record);
                let history =
                    self.log
                        .policy
                        .restored(&self.log.table, segment, stored, self.log.now);
                if self.log.keeps_page_histories() {
                    self.log.space.valid_slots(segment.0, &mut slots);
                    for slot in slots.drain(..) {
                        self.log.set_history(self.log.space.page_at(slot), history);
                    }
                }
            }
        }
        Ok(())
    }
}
