//! Writing pages in runs: the same as [`Simulator`]'s page-by-page writing, for policies that place
//! pages by their cause alone and pages of one size. Nearly all of a simulation's time is spent
//! here.

use super::super::config::SimError;
use super::Simulator;
use crate::log_space::{OpenSegment, Owner};
use crate::policy::{Cause, CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, StreamId};
use crate::space::BUFFERED;
use crate::workload::{Op, Workload};

/// Map entries that are read ahead of their use.
const AHEAD: usize = 256;

impl<P: CleaningPolicy, W: Workload> Simulator<P, W> {
    /// True if relocated pages and flushed buffers can be written in runs.
    #[inline]
    pub(super) fn writes_runs(&self) -> bool {
        self.log.policy.places_by_cause()
            && !self.log.keeps_page_histories()
            && self.sizes.is_none()
    }

    /// True if user writes can be, too: neither histories nor a sort buffer are between.
    #[inline]
    pub(super) fn overwrites_runs(&self) -> bool {
        self.writes_runs()
            && self.log.policy.history_kind() == HistoryKind::None
            && !self.sorts_user
    }

    /// The open segment for `write`, and how many more pages fit into it: at least one.
    #[inline]
    fn room_for(&mut self, write: &PageWrite) -> Result<(StreamId, OpenSegment, usize), SimError> {
        let stream = self.log.stream_for(write);
        let capacity = self.config.segment_bytes;
        let room = |open: &OpenSegment| ((capacity - open.used_bytes) / write.bytes) as usize;
        let mut open = self.log.open[stream.index()];
        if open.is_closed() || room(&open) == 0 {
            open = self.next_segment(stream, write.cause)?;
        }
        Ok((stream, open, room(&open)))
    }

    /// The user's operations from the first on, up to the end of a segment or a trim; returns how
    /// many.
    #[inline]
    pub(super) fn overwrite_run(&mut self, ops: &[Op]) -> Result<usize, SimError> {
        let writes = ops.iter().position(|op| op.is_trim());
        let writes = writes.unwrap_or(ops.len());
        if writes == 0 {
            self.trim(ops[0].page());
            return Ok(1);
        }
        let bytes = self.config.page_bytes;
        let write = PageWrite {
            token: 0,
            bytes,
            cause: Cause::User,
            history: History::UNKNOWN,
            rate: 0.0,
        };
        let (stream, open, room) = self.room_for(&write)?;
        let count = writes.min(room);
        let segment = SegmentId(open.segment);
        self.log
            .table
            .append_run(segment, bytes, count as u32, write.history);
        let (space, table) = (&mut self.log.space, &mut self.log.table);
        let pages = ops[..count].iter().map(|op| op.page());
        space.overwrite_run(open.next_slot, pages, |segment| {
            table.invalidate(SegmentId(segment), bytes);
        });
        self.log.advance(stream, count, bytes);
        self.log.now += count as u64;
        self.totals.updates += count as u64;
        self.totals.user_pages += count as u64;
        self.totals.user_bytes += count as u64 * u64::from(bytes);
        Ok(count)
    }

    /// Pages out of victims, all with the cause and history of `group`.
    pub(super) fn move_run(
        &mut self,
        group: &PageWrite,
        mut pages: &[u32],
    ) -> Result<(), SimError> {
        let bytes = self.config.page_bytes;
        let write = PageWrite { bytes, ..*group };
        self.totals.relocated_pages += pages.len() as u64;
        self.totals.relocated_bytes += pages.len() as u64 * u64::from(bytes);
        while !pages.is_empty() {
            let (stream, open, room) = self.room_for(&write)?;
            let (run, rest) = pages.split_at(pages.len().min(room).min(AHEAD));
            pages = rest;
            self.log.space.touch(run.iter().copied());
            self.log.space.put_run(open.next_slot, run);
            let segment = SegmentId(open.segment);
            self.log
                .table
                .append_run(segment, bytes, run.len() as u32, write.history);
            self.log.advance(stream, run.len(), bytes);
        }
        Ok(())
    }

    /// The sorted contents of the sort buffer. Entries whose page was written again are obsolete
    /// already.
    pub(super) fn flush_runs(&mut self, mut writes: &[PageWrite]) -> Result<(), SimError> {
        let bytes = self.config.page_bytes;
        self.totals.user_pages += writes.len() as u64;
        self.totals.user_bytes += writes.len() as u64 * u64::from(bytes);
        while let Some(first) = writes.first() {
            let (stream, open, room) = self.room_for(first)?;
            let (run, rest) = writes.split_at(writes.len().min(room));
            writes = rest;
            let segment = SegmentId(open.segment);
            for (slot, write) in (open.next_slot..).zip(run) {
                let page = write.token as u32;
                if self.log.space.get(page) == BUFFERED | (write.token >> 32) as u32 {
                    self.log.space.put(slot, page);
                    self.log.table.append(segment, bytes, write.history);
                } else {
                    self.log.table.note_history(segment, write.history);
                }
            }
            self.log.advance(stream, run.len(), bytes);
            self.reserve.flushed(run.len() as u64 * u64::from(bytes));
        }
        Ok(())
    }
}
