//! The segment table of a checkpoint.

use isobath_flash::policy::{History, SegmentId, SegmentRecord, SegmentState, StreamId};

use super::{ReservedWords, SegmentAllocator};
use crate::canary::{self, Canary};
use crate::page::PAGE_SIZE;
use crate::shared::GRANULE;
use crate::sync::atomic::Ordering;

/// The second word of a segment that is free: its third is the superblock since which it is. No
/// summary lies there.
const FREED: u64 = 1 << 63;
/// The third word of a segment that only the system has used, which has no sequence number: what is
/// free in the next opening and has this was in use at the checkpoint.
const SYSTEM: u64 = 1;
/// In place of the superblock since which a segment is free.
pub(super) const UNKNOWN: u64 = u64::MAX;

impl SegmentAllocator {
    /// Four words of `segment` for the checkpoint: sequence number, summary
    /// offset with stream, sealed-at tick, what the policy knows of its pages.
    pub(crate) fn to_words(&self, segment: u32, seqs: &ReservedWords) -> [u64; 4] {
        let id = SegmentId(segment);
        let record = self.table.record(id);
        let seq = seqs.at(u64::from(segment)).load(Ordering::Acquire);
        if record.state == SegmentState::Free && self.freed_at[segment as usize] != UNKNOWN {
            return [seq, FREED, self.freed_at[segment as usize], 0];
        }
        // The summary of an open segment may have a place already, and not be there.
        let is_open = record.state == SegmentState::Open;
        let summary = if is_open && !canary::is_on(Canary::SummaryTooEarly) {
            0
        } else {
            self.summaries[segment as usize]
        };
        [
            seq,
            u64::from(summary)
                | u64::from(record.stream.0) << 32
                | u64::from(self.waste[segment as usize] / PAGE_SIZE as u32) << 48,
            match (seq, record.state) {
                (0, SegmentState::Open) => SYSTEM,
                _ => record.sealed_at,
            },
            self.policy.stored_history(&self.table, id, self.now).0,
        ]
    }

    /// Begins with a policy for a larger volume, which learns of the segments what a checkpoint
    /// would have said.
    pub(super) fn begin_policy_anew(&mut self, pages: u64) {
        let in_use = (0..self.table.len()).map(SegmentId);
        let in_use: Vec<SegmentId> = in_use.filter(|&id| self.table.live_pages(id) > 0).collect();
        let stored = |&id: &SegmentId| self.policy.stored_history(&self.table, id, self.now);
        let stored: Vec<History> = in_use.iter().map(stored).collect();
        self.policy.resized(pages);
        self.histories.forget();
        for (&id, history) in in_use.iter().zip(stored) {
            let history = self.policy.restored(&self.table, id, history, self.now);
            self.histories.restore(id.0, history);
        }
    }

    /// Installs what a checkpoint says of the segments at the tick `now`: `words` as `to_words`
    /// gave them, and the live bytes and pages that the mapping table names.
    /// Segments without live pages are free.
    pub(crate) fn restore(
        &mut self,
        now: u64,
        words: &[[u64; 4]],
        live: &[(u32, u32)],
        chunk_bytes: u64,
        seqs: &ReservedWords,
    ) {
        self.now = now;
        self.free.clear();
        self.live_bytes = live.iter().map(|live| u64::from(live.0)).sum();
        self.live_chunk_bytes = chunk_bytes;
        for segment in (self.system..self.segments()).rev() {
            let words = words.get(segment as usize).copied().unwrap_or_default();
            let (bytes, pages) = live.get(segment as usize).copied().unwrap_or_default();
            seqs.at(u64::from(segment))
                .store(words[0], Ordering::Release);
            if pages == 0 {
                self.freed_at[segment as usize] = match words {
                    [_, FREED, superblock, _] => superblock,
                    // No segment was here.
                    [0, _, 0, _] => 0,
                    _ => UNKNOWN,
                };
                self.free.push(segment);
                continue;
            }
            // A summary that cannot be there is none: the mapping table has what it would say.
            let summary = words[1] as u32;
            let bytes_here = self.sizes.bytes;
            let is_inside = summary < bytes_here && summary.is_multiple_of(GRANULE);
            self.summaries[segment as usize] = if is_inside { summary } else { 0 };
            let record = SegmentRecord {
                live_bytes: bytes,
                live_pages: pages,
                history: History(words[3]),
                sealed_at: words[2],
                seal_seq: words[0],
                stream: StreamId((words[1] >> 32) as u16),
                state: SegmentState::Sealed,
            };
            self.table.restore(SegmentId(segment), &record);
            let waste = (words[1] >> 48) as u32 * PAGE_SIZE as u32;
            if waste > 0 {
                self.set_waste(segment, waste);
            }
            let history =
                self.policy
                    .restored(&self.table, SegmentId(segment), record.history, self.now);
            self.histories.restore(segment, history);
        }
        self.restart_progress();
    }
}
