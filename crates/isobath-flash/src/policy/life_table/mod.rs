//! Life tables: learn from observed deaths (invalidations of pages) how soon pages die, group pages
//! by that, and clean by the exact index of equation (4)'s model.
//!
//! MDC estimates a page's update frequency from its segment's mean u_p2 and takes the estimate at
//! its word. Here nothing is taken at its word. Each page carries four bytes: when it was last
//! written, the smoothed interval between its updates, and how the last interval compares with
//! that. Pages that look alike form a *class*, and an actuary's life table per class says at which
//! rate its pages die at each age: deaths observed, divided by the time that pages lived. The
//! living are counted where they are, by class and time of birth, not where they happen to be seen:
//! else the coldest pages, most of a skewed space, are noticed only by the deaths among them, and
//! look many times hotter than they are. From the table follows, for a page of this class and age,
//! the time until a quarter of its like are dead, whatever law the workload follows: frequencies
//! that do not change, hot sets that move on, pages written once. The death rate of that time is
//! the page's *score*. The table says, too, whether a page that is overwritten much sooner than
//! before became hot, and its interval begins again: more pages of its class do so than chance
//! explains.
//!
//! - **Together.** Pages go to streams, user writes and relocated pages alike: ranges of scores,
//!   divided where the rates differ most, and only as many as are worth it, since each stream keeps
//!   a segment open. A batch is sorted by score, in alternating direction, so that neighbours in
//!   successive batches meet within a stream, too. Versions that are obsolete before they are
//!   written score as the hottest of all, and so share segments that cost nothing to clean.
//! - **Cleaned.** The death rate f of a segment is the expectation of its pages when they were
//!   written, corrected by how many died since. Segments are cleaned in ascending order of
//!   f/(E/(1−E) + ln(1−E)), the index that is equal everywhere at the optimum (see
//!   [`crate::analysis::fluid_bound`]), of which MDC's f·(1−E)/E² is an approximation.
//! - **Not at all** if there is nothing to distinguish: as long as the classes' death rates differ
//!   by no more than chance explains, all pages go to one stream and the emptiest segment is
//!   cleaned first, which nothing beats then.
//!
//! Counts fade, so that the tables follow the workload.

mod epochs;
mod pages;
mod segments;
mod streams;
mod tag;

use self::epochs::{ANCIENT, EpochLength};
use self::pages::PageLives;
use self::segments::SegmentRates;
use self::streams::{STREAMS, Streams};
use self::tag::{Smoother, Tag, UNKNOWN_CELL, bucket, cell_of_interval, stamp};
use super::batch::BatchSorter;
use super::multi_log::marginal_gain;
use super::{
    Cause, CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentTable, Selector,
    StreamId, Tick, float_score, stream_by_cause,
};

/// Death rates whose variance is at most this share of their mean squared count as equal.
const MIN_SPREAD: f32 = 0.02;

/// The history of a version that will be obsolete when it is written; no tag looks like it.
const DEAD: History = History(u32::MAX as u64 - 1);
/// The score of such a version, that of the hottest pages.
const DEAD_SCORE: u8 = 0;

/// The policy of this module.
#[derive(Debug, Clone)]
pub struct LifeTable {
    /// Ticks per unit of a time stamp: 1/2048 of the space's pages.
    quantum: u64,
    pages: f32,
    lives: PageLives,
    smoother: Smoother,
    rates: SegmentRates,
    /// Whether some pages are hotter than others.
    skewed: bool,
    streams: Streams,
    /// By cause, the direction in which the next batch is sorted.
    descending: [bool; 2],
    sorter: BatchSorter,
    selector: Selector,
    now: Tick,
    epoch: EpochLength,
    learn_at: Tick,
    /// How often scores were learned.
    learned: u32,
    census_at: Tick,
    /// Whether there are pages from before the space was opened.
    is_opened: bool,
}

/// So often scores are learned at the end of every epoch, while there is little to go by.
const EARLY_LESSONS: u32 = 8;

/// Ticks per unit of a time stamp, in a space of `pages` pages.
fn quantum(pages: u64) -> u64 {
    (pages >> 11).max(1)
}

impl LifeTable {
    /// The policy for a space of about `pages` user pages.
    pub fn new(pages: u64) -> Self {
        let pages = pages.max(1);
        let quantum = quantum(pages);
        let epoch = EpochLength::new(pages, quantum);
        let lives = PageLives::new(pages, epoch);
        Self {
            quantum,
            pages: pages as f32,
            lives,
            smoother: Smoother::new(),
            rates: SegmentRates::new(1.0 / pages as f32),
            skewed: false,
            streams: Streams::new(),
            descending: [false; 2],
            sorter: BatchSorter::default(),
            selector: Selector::new(),
            now: 0,
            learn_at: epoch.ticks(),
            epoch,
            learned: 0,
            census_at: 0,
            is_opened: false,
        }
    }

    /// The score of a page by its class and age.
    #[inline]
    fn score(&self, history: History, now: Tick) -> u8 {
        if !history.is_known() {
            return self.lives.score(UNKNOWN_CELL, 0);
        }
        if history == DEAD {
            return DEAD_SCORE;
        }
        let tag = Tag::unpack(history);
        let age = tag.age(now / self.quantum);
        self.lives.score(tag.cell, bucket(age))
    }

    #[cold]
    fn learn(&mut self, now: Tick) {
        let epoch = self.epoch.ticks();
        self.learn_at = (now / epoch + 1) * epoch;
        self.lives
            .begin_epoch(now / epoch * u64::from(self.epoch.units));
        self.streams.fade(self.epoch.keeps);
        if self.learned < EARLY_LESSONS || (now / epoch).is_multiple_of(self.epoch.learn_every) {
            self.learned += 1;
            self.lives.learn();
            self.smoother.learn(self.lives.heated());
            self.skewed = self.lives.spread() > MIN_SPREAD;
            self.streams.divide(self.rates.slack());
        }
    }
}

impl CleaningPolicy for LifeTable {
    fn name(&self) -> &'static str {
        "life-table"
    }

    fn streams(&self) -> u16 {
        STREAMS
    }

    /// Growing by less than half changes nothing. Beyond, time stamps get a coarser unit.
    fn is_outgrown(&self, pages: u64) -> bool {
        pages as f32 > 1.5 * self.pages
    }

    fn resized(&mut self, pages: u64) {
        *self = Self::new(pages);
    }

    fn history_kind(&self) -> HistoryKind {
        HistoryKind::Page { bytes: 4 }
    }

    fn orders(&self, _cause: Cause) -> bool {
        true
    }

    /// Few, so that little space lies free: alike pages meet in streams. Choosing one victim at a
    /// time would take more time than moving its pages in a large space.
    fn preferred_batch(&self) -> usize {
        16
    }

    #[inline]
    fn updated(&mut self, old: History, now: Tick) -> History {
        self.now = now;
        if now >= self.learn_at {
            self.learn(now);
        }
        let unit = now / self.quantum;
        let cell = if old.is_known() {
            let tag = Tag::unpack(old);
            let interval = bucket(tag.age(unit));
            self.lives.died(tag, interval);
            // The clock's hash, from 0 to 1.
            let hash = now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let chance = hash as f32 / (1u32 << 24) as f32;
            self.smoother.next(tag.cell, interval, chance)
        } else {
            UNKNOWN_CELL
        };
        let tag = Tag {
            stamp: stamp(unit),
            cell,
        };
        self.lives.born(tag);
        tag.pack()
    }

    /// Very old pages stay half the range of stamps old, so that their stamps never wrap round to
    /// young.
    #[inline]
    fn survived(&mut self, old: History, now: Tick) -> History {
        let unit = now / self.quantum;
        let tag = Tag::unpack(old);
        if !old.is_known() || tag.age(unit) <= ANCIENT {
            return old;
        }
        let restamped = tag.at_most(ANCIENT, unit);
        self.lives.restamp(tag, restamped);
        restamped.pack()
    }

    fn superseded(&mut self, older: &mut PageWrite) {
        older.history = DEAD;
    }

    fn forgotten(&mut self, old: History) {
        if old.is_known() {
            self.lives.forget(Tag::unpack(old));
        }
    }

    fn order(&mut self, batch: &mut [PageWrite], now: Tick) {
        let Some(first) = batch.first() else { return };
        let cause = stream_by_cause(first.cause).index();
        if !self.skewed {
            return;
        }
        let descending = self.descending[cause];
        self.descending[cause] = !descending;
        let mut sorter = std::mem::take(&mut self.sorter);
        let score = |page: &PageWrite| u64::from(self.score(page.history, now));
        sorter.sort(batch, descending, score);
        self.sorter = sorter;
    }

    #[inline]
    fn place(&mut self, page: &PageWrite, now: Tick) -> StreamId {
        let score = self.score(page.history, now);
        StreamId(self.streams.place(score, self.skewed))
    }

    #[inline]
    fn appended(&mut self, segment: SegmentId, page: &PageWrite) {
        let score = self.score(page.history, self.now);
        let rate = self.lives.rate_of(score);
        let tag =
            (page.history.is_known() && page.history != DEAD).then(|| Tag::unpack(page.history));
        self.rates
            .appended(segment, rate, tag, self.now / self.quantum);
    }

    fn sealed(&mut self, table: &SegmentTable, segment: SegmentId) {
        self.streams.sealed(table.stream(segment).0);
        self.rates.sealed(table, segment);
    }

    /// As if all pages of the segment were like the mean of its sample.
    fn stored_history(&self, _table: &SegmentTable, segment: SegmentId, now: Tick) -> History {
        let units = self.rates.since_last_but_one(segment, now / self.quantum);
        units.map_or(History::UNKNOWN, |units| {
            History(now.saturating_sub((units * self.quantum as f32) as Tick))
        })
    }

    /// As if all pages of the segment had last been written when it was sealed: of relocated ones
    /// the interval is then too long, by a factor that is much the same for all.
    fn restored(
        &mut self,
        table: &SegmentTable,
        segment: SegmentId,
        stored: History,
        now: Tick,
    ) -> History {
        let unit = now / self.quantum;
        if !self.is_opened {
            self.is_opened = true;
            self.lives.opened(unit);
        }
        if !stored.is_known() {
            return History::UNKNOWN;
        }
        let History(u_p2) = stored;
        let written = table.sealed_at(segment).min(now);
        let interval = written.saturating_sub(u_p2).max(self.quantum);
        let age = (unit - written / self.quantum).min(u64::from(ANCIENT));
        let tag = Tag {
            stamp: stamp(unit - age),
            cell: cell_of_interval((interval / self.quantum) as f32),
        };
        // Section 5.1.3: half the time since u_p2 is the mean interval.
        let rate = 2.0 / now.saturating_sub(u_p2).max(2) as f32;
        self.rates
            .restored(table, segment, (rate, tag), (now, unit));
        self.lives.restored(tag, table.live_pages(segment));
        tag.pack()
    }

    fn freed(&mut self, segment: SegmentId) {
        self.rates.freed(segment);
    }

    fn select_victims(
        &mut self,
        table: &SegmentTable,
        now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        if now >= self.census_at {
            // At most a quarter of a segment is looked at per update, however small segments are.
            let segments = u64::from(table.len());
            self.census_at = now + (self.pages as u64 / 128).max(4 * segments).max(1);
            self.rates
                .census(table, &self.lives, now, now / self.quantum);
        }
        if !self.skewed {
            let emptiest = |segment| table.live_bytes(segment);
            return self.selector.select(table, n, out, emptiest);
        }
        let (rates, pages) = (&self.rates, self.pages);
        self.selector.select(table, n, out, |segment| {
            let rate = rates.rate(segment) * pages;
            float_score(rate / marginal_gain(table.emptiness(segment)))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::workload::Zipf;

    #[test]
    fn a_space_that_grew_much_begins_anew() {
        let mut policy = LifeTable::new(1 << 20);
        assert!(!policy.is_outgrown(5 << 18));
        assert_eq!(policy.quantum, 512);
        assert!(policy.is_outgrown(1 << 22));
        policy.resized(1 << 22);
        assert_eq!(policy.quantum, 2048);
    }

    /// Loads every page once, then makes `updates` updates.
    fn taught(
        pages: u32,
        updates: u64,
        mut page: impl FnMut() -> u32,
    ) -> (LifeTable, Vec<History>) {
        let mut policy = LifeTable::new(u64::from(pages));
        let mut now = 0;
        let mut tick = || {
            now += 1;
            now
        };
        let load = |_| policy.updated(History::UNKNOWN, tick());
        let mut histories: Vec<History> = (0..pages).map(load).collect();
        for _ in 0..updates {
            let history = &mut histories[page() as usize];
            *history = policy.updated(*history, tick());
        }
        (policy, histories)
    }

    /// The mean of the scores, in factors of two, of pages in `range`.
    fn mean_octave(
        policy: &LifeTable,
        histories: &[History],
        range: std::ops::Range<usize>,
    ) -> f64 {
        let n = range.len() as f64;
        let score = |&history| f64::from(policy.score(history, policy.now)) / 8.0;
        histories[range].iter().map(score).sum::<f64>() / n
    }

    #[test]
    fn learns_two_frequencies() {
        let mut rng = Rng::new(1);
        let (policy, histories) = taught(8192, 30 * 8192, || {
            if rng.unit() < 0.9 {
                rng.below(819)
            } else {
                819 + rng.below(8192 - 819)
            }
        });
        assert!(policy.skewed);
        let hot = mean_octave(&policy, &histories, 0..819);
        let cold = mean_octave(&policy, &histories, 819..8192);
        // Hot pages are updated 81 times as often; measured 0.041 octaves from that.
        assert!(
            (cold - hot - 81f64.log2()).abs() < 0.05,
            "hot {hot} cold {cold}"
        );
    }

    /// The coldest pages of a skewed space are not taken for hotter than they are, though most were
    /// never updated.
    #[test]
    fn the_coldest_pages_are_known_by_their_age() {
        let pages = 20_000;
        let zipf = Zipf::new(pages, 0.99);
        let mut rng = Rng::new(2);
        let draw = || zipf.sample(&mut rng);
        let (policy, histories) = taught(pages, 12 * u64::from(pages), draw);
        for (from, to) in [(200, 400), (2000, 4000), (15_000, 20_000)] {
            let seen = mean_octave(&policy, &histories, from..to);
            let rate = zipf.probability(((from + to) / 2) as u32) * f64::from(pages);
            let exact = 11.0 - rate.log2();
            // Measured 0.05, 0.41 and -0.58 octaves from it.
            assert!(
                (seen - exact).abs() < 0.6,
                "ranks {from}..{to}: {seen}, exactly {exact}"
            );
        }
    }

    #[test]
    fn uniform_updates_show_no_skew() {
        let mut rng = Rng::new(3);
        let mut policy = taught(8192, 5 * 8192, || rng.below(8192)).0;
        assert!(!policy.skewed, "spread {}", policy.lives.spread());
        let page = PageWrite {
            token: 0,
            bytes: 4096,
            cause: Cause::User,
            history: History::UNKNOWN,
            rate: 0.0,
        };
        assert_eq!(policy.place(&page, policy.now), StreamId(0));
    }

    /// To learn takes up to three million instructions whatever the size of the space: after the
    /// first times once in 1,024 updates at most.
    #[test]
    fn learns_seldom_in_a_small_space() {
        for pages in [100, 1000, 10_000] {
            let mut policy = LifeTable::new(pages);
            let (mut epochs, mut learned) = (0, 0);
            for now in 1..50_000 {
                let before = (policy.learn_at, policy.learned);
                let _ = policy.updated(History::UNKNOWN, now);
                epochs += u32::from(policy.learn_at != before.0);
                learned += policy.learned - before.1;
            }
            assert!(epochs <= 50_000 / 256, "{pages} pages: {epochs} epochs");
            assert!(
                // Measured 54 of each size.
                (52..=56).contains(&learned),
                "{pages} pages: {learned} times"
            );
        }
    }

    #[test]
    fn versions_obsolete_before_they_are_written_score_as_the_hottest() {
        let (mut policy, histories) = taught(1000, 0, || 0);
        let history = histories[0];
        let mut page = PageWrite {
            token: 0,
            bytes: 4096,
            cause: Cause::User,
            history,
            rate: 0.0,
        };
        policy.superseded(&mut page);
        assert_eq!(policy.score(page.history, policy.now), DEAD_SCORE);
        assert_ne!(policy.score(history, policy.now), DEAD_SCORE);
        assert_eq!(policy.lives.alive(), 1000, "`updated` counts it out");
        let newest = Tag {
            stamp: tag::STAMP_MASK,
            cell: tag::CELLS - 1,
        };
        assert_ne!(newest.pack(), DEAD);
    }

    #[test]
    fn forgotten_pages_do_not_stay_live() {
        let (mut policy, histories) = taught(1000, 0, || 0);
        assert_eq!(policy.lives.alive(), 1000);
        for &history in &histories[..400] {
            policy.forgotten(history);
        }
        policy.forgotten(History::UNKNOWN);
        assert_eq!(policy.lives.alive(), 600);
    }
}
