//! Greedy: clean the segment with the most free space (section 4.5).

use super::{
    CleaningPolicy, PageWrite, SegmentId, SegmentTable, Selector, StreamId, Tick, stream_by_cause,
};

/// Cleans the emptiest segments first; optimal for uniform updates, poor under skew.
#[derive(Debug, Clone, Default)]
pub struct Greedy {
    selector: Selector,
}

impl Greedy {
    /// A greedy policy.
    pub fn new() -> Self {
        Self::default()
    }
}

impl CleaningPolicy for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn streams(&self) -> u16 {
        2
    }

    #[inline]
    fn place(&mut self, page: &PageWrite, _now: Tick) -> StreamId {
        stream_by_cause(page.cause)
    }

    fn select_victims(
        &mut self,
        table: &SegmentTable,
        _now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        self.selector
            .select(table, n, out, |segment| table.live_bytes(segment));
    }
}
