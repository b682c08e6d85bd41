//! The policies that look at nothing but the segments: age and greedy.

use std::marker::PhantomData;

use super::{
    CleaningPolicy, PageWrite, SegmentId, SegmentTable, Selector, StreamId, Tick, stream_by_cause,
};

/// The score by which segments are cleaned.
pub trait SegmentScore: Send {
    /// The policy's name.
    const NAME: &'static str;

    /// Whether segments without any obsolete space are cleaned in their turn, too.
    const CLEANS_FULL: bool = false;

    /// The score of a sealed segment; the smallest is cleaned first.
    fn score(table: &SegmentTable, segment: SegmentId) -> u32;
}

/// Age (section 2.2): always the segment that was sealed first, as in a circular log, even if all
/// of it is live. Equation (4) gives its emptiness under uniform updates,
/// [`crate::analysis::age_wamp`] its cost under any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Oldest;

impl SegmentScore for Oldest {
    const NAME: &'static str = "age";
    const CLEANS_FULL: bool = true;

    /// Ages beyond 2³² seals compare equal; the segment number then decides.
    #[inline]
    fn score(table: &SegmentTable, segment: SegmentId) -> u32 {
        let age = table.next_seal_seq() - table.seal_seq(segment);
        u32::MAX - u32::try_from(age).unwrap_or(u32::MAX)
    }
}

/// Greedy (section 4.5): the segment with the most free space; optimal for uniform updates, poor
/// under skew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Emptiest;

impl SegmentScore for Emptiest {
    const NAME: &'static str = "greedy";

    #[inline]
    fn score(table: &SegmentTable, segment: SegmentId) -> u32 {
        table.live_bytes(segment)
    }
}

/// Cleans the segments with the smallest scores; user writes and relocated pages are kept apart.
#[derive(Debug, Clone, Default)]
pub struct ByScore<S> {
    selector: Selector,
    score: PhantomData<S>,
}

/// Cleans the oldest segments first.
pub type Age = ByScore<Oldest>;

/// Cleans the emptiest segments first.
pub type Greedy = ByScore<Emptiest>;

impl<S: SegmentScore + Default> ByScore<S> {
    /// The policy.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<S: SegmentScore> CleaningPolicy for ByScore<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn streams(&self) -> u16 {
        2
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
        _now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        let score = |segment| S::score(table, segment);
        match S::CLEANS_FULL {
            true => self.selector.select_any(table, n, out, score),
            false => self.selector.select(table, n, out, score),
        }
    }
}
