//! Multi-log (Stoica and Ailamaki 2013), the state of the art that section 6 compares with.

use std::collections::VecDeque;

use super::mdc::{RATE_CLASSES, rate_class};
use super::{
    Cause, CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentTable, Selector,
    StreamId, Tick,
};

/// Pages live in logs, one per factor of two in update frequency; each log is a queue of segments.
///
/// When space runs low after a user's write to log L, the oldest segment of L or of its nearest
/// hotter or colder log of some size is cleaned: the one whose space is cheapest to take, by the
/// marginal cost U/(E/(1−E) + ln(1−E)) of a log at emptiness E in the model of equation (4). Logs
/// of less than a `THIN_SHARE`th of the space are no neighbours: between hot and cold pages lie
/// logs that pages only pass through, written too seldom to hand on the space that hot logs need
/// from cold ones. If frequencies are known there are none.
///
/// The plain variant estimates a page's frequency from its previous update time, and moves a page
/// by one log at a time, starting with all pages in one log; it keeps 4 bytes per page. The `-opt`
/// variant gets the exact frequency.
#[derive(Debug, Clone)]
pub struct MultiLog {
    exact: bool,
    /// Ticks per unit of the page's time stamp.
    quantum: u64,
    /// The log in which pages of unknown history start: that of the mean frequency.
    start: u16,
    /// Per log: sealed segments, oldest first. Entries whose seal sequence changed are stale.
    logs: Vec<VecDeque<(SegmentId, u64)>>,
    /// Sealed segments per log.
    sizes: Vec<u32>,
    /// Per segment the log that it counts for, while it is sealed.
    log_of_segment: Vec<Option<u16>>,
    written: u16,
    fallback: Selector,
}

/// A log of less than this share of the segments is no neighbour. Of 1/100 to 1/25 the last gives
/// the least `Wamp` at 90:10, by 6% to 15%, the first under Zipf 1.35.
const THIN_SHARE: u32 = 25;

const STAMP_BITS: u32 = 26;
const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;

impl MultiLog {
    /// The variant that estimates frequencies, for a space of `pages` pages. Time stamps have a
    /// resolution of pages/65536 updates.
    pub fn new(pages: u64) -> Self {
        Self::with(false, pages.max(1))
    }

    /// The variant that gets exact frequencies in [`PageWrite::rate`].
    pub fn exact() -> Self {
        Self::with(true, 1)
    }

    fn with(exact: bool, pages: u64) -> Self {
        let logs = vec![VecDeque::new(); usize::from(RATE_CLASSES)];
        let start = rate_class(1.0 / pages as f32);
        let quantum = (pages >> 16).max(1);
        Self {
            exact,
            quantum,
            start,
            sizes: vec![0; logs.len()],
            log_of_segment: Vec::new(),
            logs,
            written: start,
            fallback: Selector::new(),
        }
    }

    fn pack(&self, log: u16, tick: Tick) -> History {
        History(u64::from(log) << STAMP_BITS | (tick / self.quantum) & STAMP_MASK)
    }

    fn log_of(&self, history: History) -> u16 {
        if !history.is_known() {
            return self.start;
        }
        ((history.0 >> STAMP_BITS) as u16).min(RATE_CLASSES - 1)
    }

    fn class_of_age(&self, history: History, now: Tick) -> u16 {
        rate_class(1.0 / self.age(history, now).max(1) as f32)
    }

    /// Ticks since the page's last update; time stamps wrap.
    fn age(&self, history: History, now: Tick) -> u64 {
        ((now / self.quantum).wrapping_sub(history.0) & STAMP_MASK) * self.quantum
    }

    /// Whether `log` is large enough to be another one's neighbour.
    fn is_neighbour(&mut self, table: &SegmentTable, log: usize) -> bool {
        let is_large = self.exact || self.sizes[log] > table.len() / THIN_SHARE;
        is_large && self.oldest(table, log, 0).is_some()
    }

    /// The oldest sealed segment of `log` beyond the first `skip` valid ones.
    fn oldest(&mut self, table: &SegmentTable, log: usize, skip: usize) -> Option<SegmentId> {
        let valid = |&(segment, seq): &(SegmentId, u64)| {
            table.state(segment) == super::SegmentState::Sealed && table.seal_seq(segment) == seq
        };
        let queue = &mut self.logs[log];
        while queue.front().is_some_and(|entry| !valid(entry)) {
            queue.pop_front();
        }
        queue
            .iter()
            .filter(|entry| valid(entry))
            .nth(skip)
            .map(|&(segment, _)| segment)
    }
}

impl CleaningPolicy for MultiLog {
    fn name(&self) -> &'static str {
        if self.exact {
            "multi-log-opt"
        } else {
            "multi-log"
        }
    }

    fn streams(&self) -> u16 {
        RATE_CLASSES
    }

    fn needs_rates(&self) -> bool {
        self.exact
    }

    fn history_kind(&self) -> HistoryKind {
        if self.exact {
            HistoryKind::None
        } else {
            HistoryKind::Page { bytes: 4 }
        }
    }

    /// One at a time, as in the evaluation of section 6.1.3.
    fn preferred_batch(&self) -> usize {
        1
    }

    #[inline]
    fn updated(&mut self, old: History, now: Tick) -> History {
        if self.exact {
            return old;
        }
        if !old.is_known() {
            return self.pack(self.start, now);
        }
        let log = self.log_of(old);
        let wanted = self.class_of_age(old, now);
        let log = match wanted.cmp(&log) {
            std::cmp::Ordering::Less => log - 1,
            std::cmp::Ordering::Equal => log,
            std::cmp::Ordering::Greater => log + 1,
        };
        self.pack(log, now)
    }

    /// A page that was not updated for twice its log's period moves to the next colder log.
    #[inline]
    fn survived(&mut self, old: History, now: Tick) -> History {
        if self.exact || !old.is_known() {
            return old;
        }
        let log = self.log_of(old);
        if self.class_of_age(old, now) > log + 1 {
            History((old.0 & STAMP_MASK) | u64::from(log + 1) << STAMP_BITS)
        } else {
            old
        }
    }

    #[inline]
    fn place(&mut self, page: &PageWrite, _now: Tick) -> StreamId {
        let log = if self.exact {
            rate_class(page.rate)
        } else {
            self.log_of(page.history)
        };
        if page.cause == Cause::User {
            self.written = log;
        }
        StreamId(log)
    }

    fn sealed(&mut self, table: &SegmentTable, segment: SegmentId) {
        let log = table.stream(segment);
        self.logs[log.index()].push_back((segment, table.seal_seq(segment)));
        self.sizes[log.index()] += 1;
        if self.log_of_segment.len() <= segment.index() {
            self.log_of_segment.resize(segment.index() + 1, None);
        }
        self.log_of_segment[segment.index()] = Some(log.0);
    }

    fn freed(&mut self, segment: SegmentId) {
        let log = self.log_of_segment.get_mut(segment.index());
        if let Some(log) = log.and_then(Option::take) {
            self.sizes[usize::from(log)] -= 1;
        }
    }

    fn select_victims(
        &mut self,
        table: &SegmentTable,
        _now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        let centre = usize::from(self.written);
        let hotter = (0..centre).rfind(|&log| self.is_neighbour(table, log));
        let colder = (centre + 1..self.logs.len()).find(|&log| self.is_neighbour(table, log));
        let nearby = [hotter, Some(centre), colder];
        let mut taken = [0usize; 3];
        let before = out.len();
        while out.len() - before < n {
            let mut best: Option<(f32, usize, SegmentId)> = None;
            for (place, log) in nearby.into_iter().enumerate() {
                let Some(log) = log else { continue };
                let Some(segment) = self.oldest(table, log, taken[place]) else {
                    continue;
                };
                let e = table.emptiness(segment);
                if e <= 0.0 {
                    continue;
                }
                let rate = (-(log as f32)).exp2();
                let cost = rate / marginal_gain(e);
                if best.is_none_or(|(least, ..)| cost < least) {
                    best = Some((cost, place, segment));
                }
            }
            let Some((_, place, segment)) = best else {
                break;
            };
            taken[place] += 1;
            out.push(segment);
        }
        // Nothing to gain nearby (all live, or empty logs): the emptiest segment anywhere keeps the
        // space usable.
        if out.len() == before {
            self.fallback
                .select(table, n, out, |segment| table.live_bytes(segment));
        }
    }
}

/// E/(1−E) + ln(1−E), which grows like E²/2: see [`crate::policy`]'s exact index.
#[inline]
pub(super) fn marginal_gain(e: f32) -> f32 {
    if e >= 1.0 {
        return f32::INFINITY;
    }
    if e < 0.02 {
        // The two terms cancel to E²/2 + 2E³/3 + …, below f32's precision.
        return e * e * (0.5 + e * (2.0 / 3.0));
    }
    e / (1.0 - e) + (-e).ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Cause;

    #[test]
    fn a_page_moves_one_log_at_a_time_towards_its_frequency() {
        let mut policy = MultiLog::new(1 << 20);
        let mut now = 1 << 20;
        let mut history = policy.updated(History::UNKNOWN, now);
        let mut logs = Vec::new();
        for _ in 0..40 {
            now += 1 << 12;
            history = policy.updated(history, now);
            logs.push(policy.log_of(history));
        }
        assert_eq!(logs[0], 19);
        assert!(
            logs.windows(2).all(|w| w[0].abs_diff(w[1]) <= 1),
            "{logs:?}"
        );
        assert_eq!(
            *logs.last().unwrap_or(&0),
            12,
            "an interval of 2^12 ends in log 12: {logs:?}"
        );
        let kept = policy.survived(history, now + (1 << 12));
        assert_eq!(kept, history, "not demoted before twice the period");
        let demoted = policy.survived(history, now + (1 << 15));
        assert_eq!(policy.log_of(demoted), 13);
        assert!(history.0 < 1 << 32, "fits the 4 bytes that it declares");
    }

    #[test]
    fn cleans_the_oldest_segment_of_the_written_log_or_a_neighbour() {
        let mut policy = MultiLog::exact();
        let mut table = SegmentTable::new(6, 100);
        // Log 3: segments 0 (older) and 1; log 4: 2; log 9: 3 and 4, emptier but out of reach.
        for (id, log, live) in [(0, 3, 60), (1, 3, 10), (2, 4, 90), (3, 9, 5), (4, 9, 5)] {
            let segment = SegmentId(id);
            table.open(segment, StreamId(log));
            table.append(segment, live, History::UNKNOWN);
            table.seal(segment, 0);
            policy.sealed(&table, segment);
        }
        let rate = 1.0 / 8.0;
        let page = PageWrite {
            token: 0,
            bytes: 1,
            cause: Cause::User,
            history: History::UNKNOWN,
            rate,
        };
        assert_eq!(policy.place(&page, 0), StreamId(3));
        let mut out = Vec::new();
        policy.select_victims(&table, 0, 1, &mut out);
        assert_eq!(out, [SegmentId(0)]);
        table.begin_cleaning(SegmentId(0));
        out.clear();
        policy.select_victims(&table, 0, 2, &mut out);
        assert_eq!(out, [SegmentId(1), SegmentId(2)]);
    }

    #[test]
    fn marginal_gain_is_continuous_and_increasing() {
        let values: Vec<f32> = (1..1000)
            .map(|i| marginal_gain(i as f32 / 1000.0))
            .collect();
        assert!(values.windows(2).all(|w| w[0] < w[1]));
        assert!((marginal_gain(0.5) - 0.306_852_8).abs() < 1e-5);
    }
}
