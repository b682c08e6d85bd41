//! Age: clean the segment that was sealed first (section 2.2), a circular log.

use super::{
    CleaningPolicy, PageWrite, SegmentId, SegmentTable, Selector, StreamId, Tick, stream_by_cause,
};

/// Cleans the oldest segments first. Equation (4) gives its emptiness under uniform updates.
#[derive(Debug, Clone, Default)]
pub struct Age {
    selector: Selector,
}

impl Age {
    /// An age policy.
    pub fn new() -> Self {
        Self::default()
    }
}

impl CleaningPolicy for Age {
    fn name(&self) -> &'static str {
        "age"
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
        let next = table.next_seal_seq();
        // Ages beyond 2³² seals compare equal; the segment number then decides.
        self.selector.select(table, n, out, |segment| {
            let age = next - table.seal_seq(segment);
            u32::MAX - u32::try_from(age).unwrap_or(u32::MAX)
        });
    }
}
