//! Cost-benefit, the policy of the log-structured file system (Rosenblum and Ousterhout 1992).

use super::{
    CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentTable, Selector, StreamId,
    Tick, float_score, stream_by_cause,
};

/// Cleans the segments with the largest E·age/(2−E) first, age being that of the segment's youngest data.
///
/// Section 6.1.3 prints (1−E)·age/E, with E and 1−E exchanged; this is the original benefit-to-cost ratio: a segment
/// costs one read and 1−E writes, and gives E free space that stays free for about its age.
#[derive(Debug, Clone, Default)]
pub struct CostBenefit {
    selector: Selector,
    /// Per segment, the last update of its youngest page.
    youngest: Vec<Tick>,
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
        HistoryKind::Segment
    }

    /// The history is the time of the last update; a relocated page keeps its segment's.
    #[inline]
    fn updated(&mut self, _old: History, now: Tick) -> History {
        History(now)
    }

    #[inline]
    fn place(&mut self, page: &PageWrite, _now: Tick) -> StreamId {
        stream_by_cause(page.cause)
    }

    #[inline]
    fn appended(&mut self, segment: SegmentId, page: &PageWrite) {
        if self.youngest.len() <= segment.index() {
            self.youngest.resize(segment.index() + 1, 0);
        }
        if page.history.is_known() {
            let youngest = &mut self.youngest[segment.index()];
            *youngest = page.history.0.max(*youngest);
        }
    }

    fn freed(&mut self, segment: SegmentId) {
        if let Some(youngest) = self.youngest.get_mut(segment.index()) {
            *youngest = 0;
        }
    }

    fn select_victims(
        &mut self,
        table: &SegmentTable,
        now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        let youngest = &self.youngest;
        self.selector.select(table, n, out, |segment| {
            // A segment restored after a restart has no appended pages: its record stands in.
            let youngest = match youngest.get(segment.index()) {
                Some(&tick) if tick > 0 => tick,
                _ => table.sealed_at(segment),
            };
            let e = table.emptiness(segment);
            let age = now.saturating_sub(youngest) as f32 + 1.0;
            float_score((2.0 - e) / (e * age))
        });
    }
}
