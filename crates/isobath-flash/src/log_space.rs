//! The part that the simulator of cleaning ([`crate::sim`]) and the simulated SSD ([`crate::ftl`])
//! share: where each page lies, the segments, the histories of pages, and what the policy is told
//! of all that.

use crate::policy::{
    CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentTable, Tick,
};
use crate::space::Space;

/// No history, among those of pages.
const NONE: u32 = u32::MAX;

/// Pages in the segments of a log-structured space.
#[derive(Debug)]
pub(crate) struct LogSpace {
    pub(crate) space: Space,
    pub(crate) table: SegmentTable,
    /// Per page, its history, if the policy uses that.
    pub(crate) histories: Vec<u32>,
}

impl LogSpace {
    /// An empty space of so many pages, in segments of so many slots and bytes.
    pub(crate) fn new(
        pages: u32,
        segments: u32,
        slots: u32,
        segment_bytes: u32,
        kind: HistoryKind,
    ) -> LogSpace {
        LogSpace {
            space: Space::new(pages, segments, slots),
            table: SegmentTable::new(segments, segment_bytes).keeping(kind),
            histories: histories_of(pages, kind),
        }
    }

    /// All segments are free again, with statistics of `kind`, and nothing is known of pages; the
    /// segments as they were.
    pub(crate) fn forget_all(&mut self, pages: u32, kind: HistoryKind) -> SegmentTable {
        self.histories = histories_of(pages, kind);
        let fresh = SegmentTable::new(self.table.len(), self.table.segment_bytes()).keeping(kind);
        std::mem::replace(&mut self.table, fresh)
    }

    /// The history of a page that lies in `segment`.
    #[inline]
    pub(crate) fn history(
        &self,
        policy: &(impl CleaningPolicy + ?Sized),
        page: u32,
        segment: u32,
    ) -> History {
        match policy.history_kind() {
            HistoryKind::None => History::UNKNOWN,
            HistoryKind::Segment | HistoryKind::SegmentNewest => {
                self.table.history(SegmentId(segment))
            }
            HistoryKind::Page { .. } => self.own_history(page),
        }
    }

    /// The history that is kept of the page itself.
    #[inline]
    pub(crate) fn own_history(&self, page: u32) -> History {
        match self.histories.get(page as usize) {
            None | Some(&NONE) => History::UNKNOWN,
            Some(history) => History(u64::from(*history)),
        }
    }

    /// Keeps a history of the page itself, if the policy uses that.
    #[inline]
    pub(crate) fn set_history(&mut self, page: u32, history: History) {
        if let Some(own) = self.histories.get_mut(page as usize) {
            // Unknown is all ones.
            *own = history.0 as u32;
        }
    }

    /// The page has no history of its own any more.
    pub(crate) fn clear_history(&mut self, page: u32) {
        if let Some(own) = self.histories.get_mut(page as usize) {
            *own = NONE;
        }
    }

    /// The version in `slot` of `segment` is obsolete.
    #[inline]
    pub(crate) fn invalidate(
        &mut self,
        policy: &mut (impl CleaningPolicy + ?Sized),
        (slot, segment): (u32, u32),
        bytes: u32,
        rate: f32,
        now: Tick,
    ) {
        self.space.invalidate(slot);
        let segment = SegmentId(segment);
        self.table.invalidate(segment, bytes);
        policy.died(&self.table, segment, rate, now);
    }

    /// The page is written to `slot` of `segment`.
    #[inline]
    pub(crate) fn put(
        &mut self,
        policy: &mut (impl CleaningPolicy + ?Sized),
        (slot, segment): (u32, u32),
        page: u32,
        write: &PageWrite,
    ) {
        let segment = SegmentId(segment);
        self.space.put(slot, page);
        self.table.append(segment, write.bytes, write.history);
        self.set_history(page, write.history);
        policy.appended(segment, write);
    }

    /// The segment takes no more pages.
    pub(crate) fn seal(
        &mut self,
        policy: &mut (impl CleaningPolicy + ?Sized),
        segment: u32,
        now: Tick,
    ) {
        let segment = SegmentId(segment);
        self.table.seal(segment, now);
        policy.sealed(&self.table, segment);
    }

    /// The segment is free.
    pub(crate) fn free(&mut self, policy: &mut (impl CleaningPolicy + ?Sized), segment: SegmentId) {
        self.table.free(segment);
        policy.freed(segment);
    }
}

fn histories_of(pages: u32, kind: HistoryKind) -> Vec<u32> {
    match kind {
        HistoryKind::Page { .. } => vec![NONE; pages as usize],
        _ => Vec::new(),
    }
}
