//! Minimum declining cost (sections 4 and 5): clean first what would gain least by waiting.

use super::batch::BatchSorter;
use super::{
    Cause, CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentTable, Selector,
    StreamId, Tick, float_score, stream_by_cause,
};

/// MDC and its two ablations of section 6.2.1.
///
/// A segment's priority is ((B−A)/A)² / (C·(u_now − u_p2)), smallest first (section 5.1.3), which
/// for pages of one size is (1−E)/E² / (u_now − u_p2). u_p2 is kept per segment only: a page
/// inherits its segment's (section 5.2.2). Batches are sorted by u_p2, in alternating direction, so
/// that neighbours in successive batches meet in one segment.
#[derive(Debug, Clone)]
pub struct Mdc {
    selector: Selector,
    separate_user: bool,
    separate_relocated: bool,
    descending: [bool; 2],
    sorter: BatchSorter,
}

impl Mdc {
    /// MDC as proposed: both user writes and relocated pages are separated by estimated update
    /// frequency.
    pub fn new() -> Self {
        Self::with(true, true)
    }

    /// `MDC-no-sep-user`: user writes go to segments in arrival order.
    pub fn no_separate_user() -> Self {
        Self::with(false, true)
    }

    /// `MDC-no-sep-user-GC`: neither is separated; it differs from greedy in victim selection only.
    pub fn no_separate() -> Self {
        Self::with(false, false)
    }

    fn with(separate_user: bool, separate_relocated: bool) -> Self {
        Self {
            selector: Selector::new(),
            separate_user,
            separate_relocated,
            descending: [false; 2],
            sorter: BatchSorter::default(),
        }
    }
}

impl Default for Mdc {
    fn default() -> Self {
        Self::new()
    }
}

impl CleaningPolicy for Mdc {
    fn name(&self) -> &'static str {
        match (self.separate_user, self.separate_relocated) {
            (_, false) => "mdc-no-sep-user-gc",
            (false, true) => "mdc-no-sep-user",
            (true, true) => "mdc",
        }
    }

    fn streams(&self) -> u16 {
        2
    }

    fn history_kind(&self) -> HistoryKind {
        HistoryKind::Segment
    }

    fn orders(&self, cause: Cause) -> bool {
        match cause {
            Cause::User => self.separate_user,
            Cause::Relocated => self.separate_relocated,
        }
    }

    fn separates(&self) -> bool {
        self.separate_relocated
    }

    /// new(u_p2) = old(u_p2) + ½·(u_now − old(u_p2)) (section 5.2.2).
    #[inline]
    fn updated(&mut self, old: History, now: Tick) -> History {
        if old.is_known() {
            History(old.0 + now.saturating_sub(old.0) / 2)
        } else {
            old
        }
    }

    fn order(&mut self, batch: &mut [PageWrite], _now: Tick) {
        fill_unknown(batch);
        let Some(cause) = batch.first().map(|page| page.cause) else {
            return;
        };
        if !self.orders(cause) {
            return;
        }
        let descending = &mut self.descending[stream_by_cause(cause).index()];
        self.sorter.sort(batch, *descending, |page| page.history.0);
        *descending = !*descending;
    }

    #[inline]
    fn places_by_cause(&self) -> bool {
        true
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
            let u_p2 = table.history(segment);
            let u_p2 = if u_p2.is_known() { u_p2.0 } else { 0 };
            let live = table.live_bytes(segment);
            let ratio = live as f32 / (table.segment_bytes() - live) as f32;
            let pages = table.live_pages(segment).max(1) as f32;
            let period = now.saturating_sub(u_p2) as f32 + 1.0;
            float_score(ratio * ratio / (pages * period))
        });
    }
}

/// "First Write" (section 5.2.2): pages of unknown history get the oldest one of the batch, or 0 if
/// none is known.
fn fill_unknown(batch: &mut [PageWrite]) {
    if batch.iter().all(|page| page.history.is_known()) {
        return;
    }
    let known = batch
        .iter()
        .map(|page| page.history)
        .filter(|history| history.is_known());
    let oldest = known.min().unwrap_or(History(0));
    for page in batch.iter_mut().filter(|page| !page.history.is_known()) {
        page.history = oldest;
    }
}

/// Streams that [`rate_class`] distinguishes.
pub(super) const RATE_CLASSES: u16 = 48;

/// Class of a page with exact update rate `rate` (updates per tick): one per factor of two, 0 the
/// hottest.
#[inline]
pub(super) fn rate_class(rate: f32) -> u16 {
    // The exponent of 2^-k is 127 - k; rates are at most 1 (one update per tick).
    let exponent = (rate.to_bits() >> 23) as u16 & 0xff;
    127u16.saturating_sub(exponent).min(RATE_CLASSES - 1)
}

/// MDC-opt (section 6.1.3): MDC that gets the exact update frequency of every page.
///
/// One stream per factor of two in frequency, shared by user and relocated pages, without a sort
/// buffer. A segment's decline is computed from the exact summed rate of its live pages.
#[derive(Debug, Clone, Default)]
pub struct MdcOpt {
    selector: Selector,
    /// Per segment, the summed update rate of its live pages.
    rates: Vec<f64>,
}

impl MdcOpt {
    /// An MDC-opt policy. It needs [`PageWrite::rate`].
    pub fn new() -> Self {
        Self::default()
    }
}

impl CleaningPolicy for MdcOpt {
    fn name(&self) -> &'static str {
        "mdc-opt"
    }

    fn streams(&self) -> u16 {
        RATE_CLASSES
    }

    fn needs_rates(&self) -> bool {
        true
    }

    #[inline]
    fn place(&mut self, page: &PageWrite, _now: Tick) -> StreamId {
        StreamId(rate_class(page.rate))
    }

    #[inline]
    fn appended(&mut self, segment: SegmentId, page: &PageWrite) {
        if self.rates.len() <= segment.index() {
            self.rates.resize(segment.index() + 1, 0.0);
        }
        self.rates[segment.index()] += f64::from(page.rate);
    }

    #[inline]
    fn died(&mut self, _table: &SegmentTable, segment: SegmentId, rate: f32, _now: Tick) {
        if let Some(sum) = self.rates.get_mut(segment.index()) {
            *sum -= f64::from(rate);
        }
    }

    fn freed(&mut self, segment: SegmentId) {
        if let Some(sum) = self.rates.get_mut(segment.index()) {
            *sum = 0.0;
        }
    }

    fn select_victims(
        &mut self,
        table: &SegmentTable,
        _now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        let rates = &self.rates;
        self.selector.select(table, n, out, |segment| {
            let e = table.emptiness(segment);
            let rate = rates.get(segment.index()).map_or(0.0, |&sum| sum as f32);
            let pages = table.live_pages(segment).max(1) as f32;
            // (1−E)/E² · U_pf · ΔE with U_pf = rate/C and ΔE = (1−E)/C (section 4.4).
            let share = (1.0 - e) / pages;
            float_score(share * share * rate * pages / (e * e))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(history: History) -> PageWrite {
        PageWrite {
            token: history.0,
            bytes: 4096,
            cause: Cause::User,
            history,
            rate: 0.0,
        }
    }

    #[test]
    fn first_writes_become_as_cold_as_the_oldest_of_their_batch() {
        let mut batch = [user(History(50)), user(History::UNKNOWN), user(History(20))];
        Mdc::new().order(&mut batch, 100);
        assert_eq!(batch.map(|p| p.history.0), [20, 20, 50]);
        let mut batch = [user(History::UNKNOWN)];
        Mdc::no_separate().order(&mut batch, 100);
        assert_eq!(batch[0].history, History(0));
    }

    #[test]
    fn sort_direction_alternates_per_cause() {
        let mut mdc = Mdc::new();
        let unsorted = [user(History(5)), user(History(9)), user(History(1))];
        let mut order = |cause| {
            let mut batch = unsorted.map(|p| PageWrite { cause, ..p });
            mdc.order(&mut batch, 100);
            batch.map(|p| p.history.0)
        };
        assert_eq!(order(Cause::User), [1, 5, 9]);
        assert_eq!(order(Cause::Relocated), [1, 5, 9]);
        assert_eq!(order(Cause::User), [9, 5, 1]);
        assert_eq!(order(Cause::User), [1, 5, 9]);
        assert_eq!(order(Cause::Relocated), [9, 5, 1]);
    }

    #[test]
    fn an_update_moves_u_p2_half_way_to_now() {
        assert_eq!(Mdc::new().updated(History(100), 200), History(150));
        assert_eq!(Mdc::new().updated(History::UNKNOWN, 200), History::UNKNOWN);
    }

    /// Section 4.4: of two segments equally empty and equally old, the one with the *smaller*
    /// remaining pages gains less per update and is cleaned first.
    #[test]
    fn variable_page_sizes_weigh_the_average_remaining_page() {
        let mut table = SegmentTable::new(2, 1000);
        for (id, sizes) in [(0, vec![250, 250]), (1, vec![50; 10])] {
            let segment = SegmentId(id);
            table.open(segment, StreamId(0));
            sizes
                .iter()
                .for_each(|&bytes| table.append(segment, bytes, History(10)));
            table.seal(segment, 20);
        }
        let mut out = Vec::new();
        Mdc::new().select_victims(&table, 100, 2, &mut out);
        assert_eq!(out, [SegmentId(1), SegmentId(0)]);
    }

    #[test]
    fn a_cold_segment_is_cleaned_before_a_hot_one_that_is_somewhat_emptier() {
        let mut table = SegmentTable::new(2, 1000);
        for (id, live, u_p2) in [(0, 500, 99_000), (1, 600, 0)] {
            let segment = SegmentId(id);
            table.open(segment, StreamId(0));
            table.append(segment, live, History(u_p2));
            table.seal(segment, 99_000);
        }
        let first = |policy: &mut dyn CleaningPolicy| {
            let mut out = Vec::new();
            policy.select_victims(&table, 100_000, 1, &mut out);
            out[0]
        };
        assert_eq!(first(&mut Mdc::new()), SegmentId(1));
        assert_eq!(first(&mut super::super::Greedy::new()), SegmentId(0));
    }

    #[test]
    fn rate_classes_are_factors_of_two() {
        assert_eq!(rate_class(1.0), 0);
        assert_eq!(rate_class(0.5), 1);
        assert_eq!(rate_class(0.3), 2);
        assert_eq!(rate_class(1e-6), 20);
        assert_eq!(rate_class(0.0), RATE_CLASSES - 1);
    }
}
