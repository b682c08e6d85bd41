//! Choosing the best segments by a score, with bounded work per call.

use super::{SegmentId, SegmentState, SegmentTable};

/// Segments that one call of [`Selector::select`] scores at most, beside its shortlist. At about 3
/// ns each this is 0.2 ms.
const SCAN_LIMIT: usize = 1 << 16;

/// The shortlist holds the best 1/16 of a long table.
const SHORTLIST_SHARE: usize = 16;

/// Picks the `n` sealed segments with the smallest scores.
///
/// A table of up to 65,536 segments (16 GiB of 256 KiB segments) is scored in full at every call, so
/// the choice is exact. A longer table is scored in slices of 65,536 per call; the best of each
/// slice are kept in a shortlist that is scored again at every call, so a call's cost stays bounded
/// and a segment is considered at most a few calls late.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    /// Score in the high half, segment in the low half.
    scratch: Vec<u64>,
    shortlist: Vec<u32>,
    cursor: usize,
}

impl Selector {
    /// A selector without memory of earlier calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `out` the up to `n` sealed segments that have some obsolete space and the
    /// smallest `score`, smallest first; equal scores go by segment number. [`float_score`] turns a
    /// real number into a score.
    pub fn select(
        &mut self,
        table: &SegmentTable,
        n: usize,
        out: &mut Vec<SegmentId>,
        score: impl FnMut(SegmentId) -> u32,
    ) {
        let has_dead = |segment| table.live_bytes(segment) < table.segment_bytes();
        self.select_among(table, n, out, has_dead, score);
    }

    /// As [`Selector::select`], of all sealed segments, those without any obsolete space too.
    pub fn select_any(
        &mut self,
        table: &SegmentTable,
        n: usize,
        out: &mut Vec<SegmentId>,
        score: impl FnMut(SegmentId) -> u32,
    ) {
        self.select_among(table, n, out, |_| true, score);
    }

    fn select_among(
        &mut self,
        table: &SegmentTable,
        n: usize,
        out: &mut Vec<SegmentId>,
        allowed: impl Fn(SegmentId) -> bool,
        mut score: impl FnMut(SegmentId) -> u32,
    ) {
        self.scratch.clear();
        let len = table.len() as usize;
        let mut consider = |scratch: &mut Vec<u64>, id: u32| {
            let segment = SegmentId(id);
            if table.state(segment) == SegmentState::Sealed && allowed(segment) {
                scratch.push(u64::from(score(segment)) << 32 | u64::from(id));
            }
        };
        if len <= SCAN_LIMIT {
            for id in 0..table.len() {
                consider(&mut self.scratch, id);
            }
        } else {
            self.shortlist.sort_unstable();
            self.shortlist.dedup();
            for &id in &self.shortlist {
                consider(&mut self.scratch, id);
            }
            let listed = std::mem::take(&mut self.shortlist);
            for step in 0..SCAN_LIMIT {
                let id = ((self.cursor + step) % len) as u32;
                if listed.binary_search(&id).is_err() {
                    consider(&mut self.scratch, id);
                }
            }
            self.cursor = (self.cursor + SCAN_LIMIT) % len;
            self.shortlist = listed;
        }
        if n == 0 {
            return;
        }
        if len > SCAN_LIMIT {
            self.keep_shortlist(n.max((SCAN_LIMIT / SHORTLIST_SHARE).min(len)));
        }
        if self.scratch.len() > n {
            self.scratch.select_nth_unstable(n - 1);
            self.scratch.truncate(n);
        }
        self.scratch.sort_unstable();
        out.extend(self.scratch.iter().map(|&key| SegmentId(key as u32)));
    }

    fn keep_shortlist(&mut self, keep: usize) {
        if self.scratch.len() > keep {
            self.scratch.select_nth_unstable(keep - 1);
            self.scratch.truncate(keep);
        }
        self.shortlist.clear();
        self.shortlist
            .extend(self.scratch.iter().map(|&key| key as u32));
    }
}

/// A score that orders like the non-negative number `x`; NaN and negative numbers count as 0 and
/// infinity as worst.
#[inline]
pub fn float_score(x: f32) -> u32 {
    x.max(0.0).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{History, StreamId};

    /// A table whose segment i is sealed with `live(i)` of 100 bytes.
    fn table(segments: u32, live: impl Fn(u32) -> u32) -> SegmentTable {
        let mut table = SegmentTable::new(segments, 100);
        for i in 0..segments {
            table.open(SegmentId(i), StreamId(0));
            table.append(SegmentId(i), live(i), History::UNKNOWN);
            table.seal(SegmentId(i), u64::from(i));
        }
        table
    }

    #[test]
    fn picks_the_smallest_scores_in_order_and_never_full_open_or_free_segments() {
        let mut table = table(10, |i| if i == 4 { 100 } else { 90 - i });
        table.free(SegmentId(9));
        table.begin_cleaning(SegmentId(8));
        let mut out = Vec::new();
        Selector::new().select(&table, 3, &mut out, |s| table.live_bytes(s));
        assert_eq!(out, [SegmentId(7), SegmentId(6), SegmentId(5)]);
        out.clear();
        Selector::new().select(&table, 100, &mut out, |s| table.live_bytes(s));
        assert_eq!(
            out.len(),
            7,
            "all but the full, the free and the one being cleaned: {out:?}"
        );
    }

    #[test]
    fn a_long_table_is_searched_in_slices_but_the_best_are_found() {
        let n = 3 * SCAN_LIMIT as u32 + 17;
        let best = n - 5;
        let table = table(n, |i| if i == best { 1 } else { 50 + i % 40 });
        let mut selector = Selector::new();
        let mut scored = 0;
        let mut rounds = 0;
        loop {
            let mut out = Vec::new();
            let mut calls = 0;
            selector.select(&table, 2, &mut out, |s| {
                calls += 1;
                table.live_bytes(s)
            });
            assert_eq!(out.len(), 2);
            assert!(
                calls <= SCAN_LIMIT + SCAN_LIMIT / SHORTLIST_SHARE,
                "bounded work, was {calls}"
            );
            scored += calls;
            rounds += 1;
            if out[0] == SegmentId(best) {
                break;
            }
            assert!(rounds < 5, "not found after scoring {scored}");
        }
        let mut out = Vec::new();
        selector.select(&table, 1, &mut out, |s| table.live_bytes(s));
        assert_eq!(out, [SegmentId(best)], "remembered in the shortlist");
    }
}
