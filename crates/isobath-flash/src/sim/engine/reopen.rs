//! Closing and opening the space again, as an engine does: the policy's statistics are lost, and of
//! each segment the policy gets the data that a checkpoint keeps.

use super::super::config::SimError;
use super::{CLOSED, Simulator};
use crate::policy::{CleaningPolicy, SegmentId, SegmentRecord, SegmentState};
use crate::workload::Workload;

impl<P: CleaningPolicy, W: Workload> Simulator<P, W> {
    /// Closes the space and opens it with `policy`, which knows nothing yet.
    ///
    /// # Errors
    /// If the policy runs out of free segments.
    pub fn reopen(&mut self, policy: P) -> Result<(), SimError> {
        self.flush_buffer()?;
        for stream in 0..self.open.len() {
            let open = std::mem::replace(&mut self.open[stream], CLOSED);
            if !open.is_closed() {
                self.seal(open);
            }
        }
        let before = std::mem::replace(&mut self.policy, policy);
        let mut slots = Vec::new();
        self.open = vec![CLOSED; usize::from(self.policy.streams())];
        let kind = self.policy.history_kind();
        let closed = self.log.forget_all(self.workload.pages(), kind);
        for segment in (0..closed.len()).map(SegmentId) {
            if closed.state(segment) == SegmentState::Sealed {
                let stored = before.stored_history(&closed, segment, self.now);
                let record = SegmentRecord {
                    history: stored,
                    ..closed.record(segment)
                };
                self.log.table.restore(segment, &record);
                let history = self
                    .policy
                    .restored(&self.log.table, segment, stored, self.now);
                if self.keeps_page_histories() {
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
