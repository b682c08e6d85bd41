//! Cost-benefit, the policy of the log-structured file system (Rosenblum and Ousterhout 1992).

use super::{
    CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentTable, Selector, StreamId,
    Tick, float_score, stream_by_cause,
};

/// Cleans the segments with the largest E·age/(2−E) first, age being that of the segment's youngest
/// data.
///
/// Section 6.1.3 prints (1−E)·age/E, with E and 1−E exchanged; this is the original benefit-to-cost
/// ratio: a segment costs one read and 1−E writes, and gives E free space that stays free for about
/// its age.
///
/// A relocated page keeps its segment's time, which is that of its segment's youngest data, too.
#[derive(Debug, Clone, Default)]
pub struct CostBenefit {
    selector: Selector,
}

impl CostBenefit {
    /// A cost-benefit policy.
    pub fn new() -> Self {
        Self::default()
    }
}

impl CleaningPolicy for CostBenefit {
    fn name(&self) -> &'static str {
        "cost-benefit"
    }

    fn streams(&self) -> u16 {
        2
    }

    fn history_kind(&self) -> HistoryKind {
        HistoryKind::SegmentNewest
    }

    /// The history is the time of the last update.
    #[inline]
    fn updated(&mut self, _old: History, now: Tick) -> History {
        History(now)
    }

    #[inline]
    fn places_by_cause(&self) -> bool {
        true
    }

    fn separates(&self) -> bool {
        false
    }

    #[inline]
    fn place(&mut self, page: &PageWrite, _now: Tick) -> StreamId {
        stream_by_cause(page.cause)
    }

    fn select_victims(
        &mut self,
        table: &SegmentTable,
        now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        self.selector.select(table, n, out, |segment| {
            let youngest = match table.history(segment) {
                History::UNKNOWN => table.sealed_at(segment),
                History(tick) => tick,
            };
            let e = table.emptiness(segment);
            let age = now.saturating_sub(youngest) as f32 + 1.0;
            float_score((2.0 - e) / (e * age))
        });
    }
}
