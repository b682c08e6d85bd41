//! Life tables: learn from observed deaths how soon pages die, group pages by that, and clean by the exact index of
//! equation (4)'s model.
//!
//! MDC estimates a page's update frequency from its segment's mean u_p2 and takes the estimate at its word. Here nothing
//! is taken at its word. Each page carries four bytes: when it was last written, the smoothed interval between its
//! updates, and the size class of its last interval. Pages that look alike form a *class*, and an actuary's life table
//! per class counts at which ages its pages die or are seen alive (by the cleaner). From it follows, for a page of this
//! class and age, the median time that it still has to live, whatever law the workload follows: frequencies that do not
//! change, hot sets that move on, pages that are written once.
//!
//! - Pages go to one stream per factor of two in expected death rate (ln 2 / that median), user writes and relocated
//!   pages alike. The stream of the mean rate is centred on it, so that under uniform updates all pages share one.
//! - A second life table, per stream and age of a segment, counts how many of a segment's pages die per update. It gives
//!   the rate f of a segment at its age, and segments are cleaned in ascending order of f/(E/(1−E) + ln(1−E)), the index
//!   that is equal everywhere at the optimum (see [`crate::analysis::fluid_bound`]), of which MDC's f·(1−E)/E² is an
//!   approximation.
//!
//! A stream that few pages want is merged with its nearest neighbour, since each one keeps a segment open.
//!
//! Counts fade, so that the tables follow the workload. There is no sort buffer.

use super::multi_log::marginal_gain;
use super::{
    CleaningPolicy, History, HistoryKind, PageWrite, SegmentId, SegmentState, SegmentTable,
    Selector, StreamId, Tick, float_score,
};

/// Buckets of ages and intervals per factor of two.
const PER_OCTAVE: u32 = 3;
/// Number of buckets; the last one stands for pages of unknown history.
const BUCKETS: usize = 64;
const LAST_AGE: usize = BUCKETS - 2;
/// Size classes of the last interval, of 8 buckets each.
const RECENT: usize = 8;
const CELLS: usize = BUCKETS * RECENT;
const UNKNOWN_CELL: usize = BUCKETS - 1;
/// One stream per factor of two in death rate.
const STREAMS: usize = 32;

/// The stream of pages that die at the mean rate.
const MEAN_STREAM: u8 = 11;

/// Weight of the newest interval in the smoothed one.
const SMOOTHING: f32 = 0.25;
/// Intervals are averaged as their square roots: between the mean of logarithms, which short intervals upset, and the
/// plain mean, which is slow to see that a page became hot.
const POWER: f32 = 0.5;
/// A stream that fewer than this share of the pages want is not worth the segment that it would keep open.
const WANTED_LEAST: f32 = 0.02;
/// What remains of the counts after each 1/64 of the space was updated.
const FADE: f32 = 0.98;
/// The pooled rate counts like this many observed deaths in every cell.
const PRIOR_DEATHS: f32 = 4.0;

const STAMP_BITS: u32 = 18;
const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;
const CELL_BITS: u32 = 9;

/// A page's four bytes: 18 bits of time stamp, 9 bits of cell (smoothed interval, last interval), 5 bits of the age at
/// which the cleaner last saw it.
#[derive(Debug, Clone, Copy)]
struct Tag {
    stamp: u32,
    cell: usize,
    /// Age bucket / 2 since which the page counts as observed.
    seen: usize,
}

impl Tag {
    #[inline]
    fn pack(self) -> History {
        let bits = self.stamp & STAMP_MASK
            | (self.cell as u32) << STAMP_BITS
            | (self.seen as u32) << (STAMP_BITS + CELL_BITS);
        History(u64::from(bits))
    }

    #[inline]
    fn unpack(history: History) -> Self {
        let bits = history.0 as u32;
        Self {
            stamp: bits & STAMP_MASK,
            cell: (bits >> STAMP_BITS) as usize % CELLS,
            seen: (bits >> (STAMP_BITS + CELL_BITS)) as usize,
        }
    }
}

/// Observations of one cell by age bucket: when pages came under observation, when they left it, and how many of the
/// latter died (the others were relocated, and observed anew from that age on).
#[derive(Debug, Clone)]
struct Life {
    entered: [f32; BUCKETS],
    left: [f32; BUCKETS],
    died: [f32; BUCKETS],
}

const UNSEEN: Life = Life {
    entered: [0.0; BUCKETS],
    left: [0.0; BUCKETS],
    died: [0.0; BUCKETS],
};

/// The segments of one stream: deaths and live pages × ticks by age since sealing, and the rate that follows.
#[derive(Debug, Clone)]
struct SegmentLife {
    died: [f32; BUCKETS],
    exposure: [f32; BUCKETS],
    rate: [f32; BUCKETS],
}

/// The policy of this module.
#[derive(Debug, Clone)]
pub struct LifeTable {
    /// Ticks per unit of a time stamp: 1/2048 of the space's pages.
    quantum: u64,
    pages: f32,
    lives: Vec<Life>,
    /// Per cell and age bucket, the stream of a page.
    stream_of: Vec<[u8; BUCKETS]>,
    /// Per stream, pages that wanted it lately.
    wanted: [f32; STREAMS],
    /// Per stream, the one that takes its pages: itself, or the nearest that enough pages want.
    instead: [u8; STREAMS],
    learn_at: Tick,
    segment_lives: Vec<SegmentLife>,
    /// Per segment, live pages and time at the last census; time is `Tick::MAX` if there was none.
    counted: Vec<(u32, Tick)>,
    census_at: Tick,
    selector: Selector,
}

/// Bucket of an age or interval in units of the time stamp: log₂(1 + units), linear within each factor of two.
#[inline]
fn bucket(units: u32) -> usize {
    let log = ((units + 1) as f32).to_bits() as f32 * (1.0 / (1u32 << 23) as f32) - 127.0;
    ((log * PER_OCTAVE as f32 + 1e-4) as usize).min(LAST_AGE)
}

/// The smallest age, in units, that falls into `bucket`.
fn edge(bucket: usize) -> f32 {
    let log = bucket as f32 / PER_OCTAVE as f32;
    log.floor().exp2() * (1.0 + log.fract()) - 1.0
}

/// Ticks per unit of a time stamp, in a space of `pages` pages.
fn quantum(pages: u64) -> u64 {
    (pages >> 11).max(1)
}

impl LifeTable {
    /// The policy for a space of about `pages` user pages.
    pub fn new(pages: u64) -> Self {
        let pages = pages.max(1);
        let unseen = SegmentLife {
            died: [0.0; BUCKETS],
            exposure: [0.0; BUCKETS],
            rate: [0.0; BUCKETS],
        };
        let mut policy = Self {
            quantum: quantum(pages),
            pages: pages as f32,
            lives: vec![UNSEEN; CELLS],
            stream_of: vec![[0; BUCKETS]; CELLS],
            wanted: [0.0; STREAMS],
            instead: [MEAN_STREAM; STREAMS],
            learn_at: 0,
            segment_lives: vec![unseen; STREAMS],
            counted: Vec::new(),
            census_at: 0,
            selector: Selector::new(),
        };
        policy.learn(0);
        policy.learn_segment_rates();
        policy
    }

    #[inline]
    fn age(&self, tag: Tag, now: Tick) -> u32 {
        ((now / self.quantum) as u32).wrapping_sub(tag.stamp) & STAMP_MASK
    }

    #[inline]
    fn observe(&mut self, tag: Tag, age: usize, died: bool) {
        let life = &mut self.lives[tag.cell];
        life.entered[(tag.seen * 2).min(age)] += 1.0;
        life.left[age] += 1.0;
        life.died[age] += f32::from(u8::from(died));
    }

    /// The stream for pages that die at `rate` per tick: the middle of stream s is 2^(top−s), and one of the middles is
    /// 1/pages.
    fn stream_for(&self, rate: f32) -> u8 {
        let octaves_below_top = -(rate * self.pages).log2() + f32::from(MEAN_STREAM);
        (octaves_below_top + 0.5).clamp(0.0, (STREAMS - 1) as f32) as u8
    }

    fn rate_of(&self, stream: usize) -> f32 {
        (f32::from(MEAN_STREAM) - stream as f32).exp2() / self.pages
    }

    /// Ticks in age bucket `age`.
    fn width(&self, age: usize) -> f32 {
        (edge(age + 1) - edge(age)) * self.quantum as f32
    }

    /// Page-ticks observed per age bucket in one cell. Pages enter and leave half-way through a bucket on average, but
    /// start with age 0.
    fn exposure(&self, life: &Life) -> [f32; BUCKETS] {
        let mut exposure = [0.0; BUCKETS];
        let mut inside = 0.0f32;
        for (age, exposure) in exposure.iter_mut().enumerate().take(LAST_AGE + 1) {
            let entered = if age == 0 {
                life.entered[age]
            } else {
                0.5 * life.entered[age]
            };
            *exposure = (inside + entered - 0.5 * life.left[age]).max(0.0) * self.width(age);
            inside += life.entered[age] - life.left[age];
        }
        exposure
    }

    /// Turns the observations into streams, and lets the observations fade.
    fn learn(&mut self, now: Tick) {
        self.learn_at = now + (self.pages as u64 / 64).max(1);
        let exposures: Vec<[f32; BUCKETS]> =
            self.lives.iter().map(|life| self.exposure(life)).collect();
        let mut pooled = [1.0 / self.pages; BUCKETS];
        for (age, pooled) in pooled.iter_mut().enumerate() {
            let died: f32 = self.lives.iter().map(|life| life.died[age]).sum();
            let exposure: f32 = exposures.iter().map(|exposure| exposure[age]).sum();
            *pooled = (died + 1.0) / (exposure + self.pages);
        }
        let unseen_row = self.streams_of_hazard(&pooled);
        for (cell, exposure) in exposures.iter().enumerate() {
            let life = &self.lives[cell];
            if life.left.iter().sum::<f32>() < 1.0 {
                self.stream_of[cell] = unseen_row;
                continue;
            }
            let mut hazard = [0.0; BUCKETS];
            for (age, hazard) in hazard.iter_mut().enumerate() {
                *hazard =
                    (life.died[age] + PRIOR_DEATHS) / (exposure[age] + PRIOR_DEATHS / pooled[age]);
            }
            self.stream_of[cell] = self.streams_of_hazard(&hazard);
        }
        self.merge_streams();
        for life in &mut self.lives {
            let counts = life
                .entered
                .iter_mut()
                .chain(&mut life.left)
                .chain(&mut life.died);
            counts.for_each(|count| *count *= FADE);
        }
    }

    /// Decides which streams are worth having, and lets the counts of pages that want them fade.
    fn merge_streams(&mut self) {
        let least = WANTED_LEAST * self.wanted.iter().sum::<f32>();
        let worth: Vec<u8> = (0..STREAMS as u8)
            .filter(|&stream| self.wanted[usize::from(stream)] > least)
            .collect();
        for stream in 0..STREAMS as u8 {
            let nearest = worth.iter().min_by_key(|other| other.abs_diff(stream));
            self.instead[usize::from(stream)] = nearest.copied().unwrap_or(MEAN_STREAM);
        }
        self.wanted.iter_mut().for_each(|count| *count *= FADE);
    }

    /// The stream for a page whose class and age say `stream`.
    #[inline]
    fn take(&mut self, stream: u8) -> StreamId {
        self.wanted[usize::from(stream)] += 1.0;
        StreamId(u16::from(self.instead[usize::from(stream)]))
    }

    /// The stream of a page by its age, from the death rate at each age: that of ln 2 / median time left to live.
    fn streams_of_hazard(&self, hazard: &[f32; BUCKETS]) -> [u8; BUCKETS] {
        let mut streams = [0; BUCKETS];
        for (from, stream) in streams.iter_mut().enumerate().take(LAST_AGE + 1) {
            let mut left = std::f32::consts::LN_2;
            let mut time = 0.0;
            for (age, &rate) in hazard.iter().enumerate().take(LAST_AGE + 1).skip(from) {
                // The page is on average half-way through its own bucket, except at age 0.
                let width = self.width(age) * if age == from && age > 0 { 0.5 } else { 1.0 };
                let risk = rate * width;
                if risk >= left || age == LAST_AGE {
                    time += left / rate;
                    break;
                }
                left -= risk;
                time += width;
            }
            *stream = self.stream_for(std::f32::consts::LN_2 / time);
        }
        streams
    }

    /// Counts what died in every sealed segment since the last census.
    fn census(&mut self, table: &SegmentTable, now: Tick) {
        self.census_at = now + (self.pages as u64 / 128).max(1);
        self.counted.resize(table.len() as usize, (0, Tick::MAX));
        for life in &mut self.segment_lives {
            life.died
                .iter_mut()
                .chain(&mut life.exposure)
                .for_each(|count| *count *= 0.98);
        }
        for (i, counted) in self.counted.iter_mut().enumerate() {
            let segment = SegmentId(i as u32);
            if table.state(segment) != SegmentState::Sealed {
                continue;
            }
            let (sealed_at, live) = (table.sealed_at(segment), table.live_pages(segment));
            let (before, at) = *counted;
            if at != Tick::MAX && at >= sealed_at && before >= live {
                let age = bucket((now.saturating_sub(sealed_at) / self.quantum) as u32);
                let life = &mut self.segment_lives[table.stream(segment).index().min(STREAMS - 1)];
                life.died[age] += (before - live) as f32;
                life.exposure[age] += 0.5 * (before + live) as f32 * (now - at) as f32;
            }
            *counted = (live, now);
        }
        self.learn_segment_rates();
    }

    /// Rates by stream and age. What was not observed is taken from the next younger age, in the end from the stream.
    fn learn_segment_rates(&mut self) {
        for stream in 0..STREAMS {
            let mut younger = self.rate_of(stream);
            let life = &mut self.segment_lives[stream];
            for age in 0..BUCKETS {
                let rate =
                    (life.died[age] + PRIOR_DEATHS) / (life.exposure[age] + PRIOR_DEATHS / younger);
                life.rate[age] = rate;
                younger = rate;
            }
        }
    }
}

impl CleaningPolicy for LifeTable {
    fn name(&self) -> &'static str {
        "life-table"
    }

    fn streams(&self) -> u16 {
        STREAMS as u16
    }

    /// Growing by less than half changes nothing. Beyond, time stamps get a coarser unit, and learning begins anew.
    fn resized(&mut self, pages: u64) -> bool {
        let grown = pages as f32 > 1.5 * self.pages;
        if grown {
            *self = Self::new(pages);
        }
        grown
    }

    fn history_kind(&self) -> HistoryKind {
        HistoryKind::Page { bytes: 4 }
    }

    #[inline]
    fn updated(&mut self, old: History, now: Tick) -> History {
        if now >= self.learn_at {
            self.learn(now);
        }
        let stamp = (now / self.quantum) as u32;
        if !old.is_known() {
            return Tag {
                stamp,
                cell: UNKNOWN_CELL,
                seen: 0,
            }
            .pack();
        }
        let tag = Tag::unpack(old);
        let interval = bucket(self.age(tag, now));
        self.observe(tag, interval, true);
        let smoothed = tag.cell % BUCKETS;
        let smoothed = if smoothed == UNKNOWN_CELL {
            interval
        } else {
            // Rounding up or down by the clock's hash makes differences below a bucket count on average.
            let dither =
                (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1u32 << 24) as f32;
            let power = POWER / PER_OCTAVE as f32;
            let (old, new) = (
                (smoothed as f32 * power).exp2(),
                (interval as f32 * power).exp2(),
            );
            let mean = (old + SMOOTHING * (new - old)).log2() / power;
            ((mean + dither) as usize).min(LAST_AGE)
        };
        Tag {
            stamp,
            cell: smoothed + BUCKETS * (interval / 8),
            seen: 0,
        }
        .pack()
    }

    #[inline]
    fn survived(&mut self, old: History, now: Tick) -> History {
        if !old.is_known() {
            return old;
        }
        let mut tag = Tag::unpack(old);
        let units = self.age(tag, now);
        let age = bucket(units);
        self.observe(tag, age, false);
        tag.seen = age / 2;
        if units > STAMP_MASK / 2 {
            // Very old pages stay half the range old, so that the stamp never wraps round to young.
            tag.stamp = ((now / self.quantum) as u32).wrapping_sub(STAMP_MASK / 2);
        }
        tag.pack()
    }

    #[inline]
    fn place(&mut self, page: &PageWrite, now: Tick) -> StreamId {
        if !page.history.is_known() {
            return self.take(self.stream_of[UNKNOWN_CELL][0]);
        }
        let tag = Tag::unpack(page.history);
        let stream = self.stream_of[tag.cell][bucket(self.age(tag, now))];
        self.take(stream)
    }

    fn freed(&mut self, segment: SegmentId) {
        if let Some(counted) = self.counted.get_mut(segment.index()) {
            counted.1 = Tick::MAX;
        }
    }

    fn select_victims(
        &mut self,
        table: &SegmentTable,
        now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        if now >= self.census_at {
            self.census(table, now);
        }
        let (lives, quantum, pages) = (&self.segment_lives, self.quantum, self.pages);
        self.selector.select(table, n, out, |segment| {
            let age = bucket((now.saturating_sub(table.sealed_at(segment)) / quantum) as u32);
            let rate = lives[table.stream(segment).index().min(STREAMS - 1)].rate[age];
            float_score(rate * pages / marginal_gain(table.emptiness(segment)))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_edges_agree() {
        for b in 0..=LAST_AGE {
            assert_eq!(
                bucket(edge(b).ceil() as u32).max(b),
                bucket(edge(b).ceil() as u32)
            );
        }
        for units in [0, 1, 2, 3, 10, 100, 5000, STAMP_MASK] {
            let b = bucket(units);
            assert!(edge(b) <= units as f32 + 1e-3 * units as f32, "{units} {b}");
            assert!(
                b == LAST_AGE || edge(b + 1) > units as f32 * 0.999,
                "{units} {b}"
            );
        }
    }

    #[test]
    fn tags_fit_four_bytes_and_never_look_unknown() {
        let tag = Tag {
            stamp: STAMP_MASK,
            cell: CELLS - 1,
            seen: LAST_AGE / 2,
        };
        let packed = tag.pack();
        assert!(packed.0 < 1 << 32);
        let back = Tag::unpack(packed);
        assert_eq!(
            (back.stamp, back.cell, back.seen),
            (tag.stamp, tag.cell, tag.seen)
        );
        const { assert!(STAMP_BITS + CELL_BITS + 5 == 32 && LAST_AGE / 2 <= 31) };
        let never = Tag {
            stamp: STAMP_MASK,
            cell: UNKNOWN_CELL + BUCKETS * (RECENT - 1),
            seen: 31,
        };
        assert_eq!(
            never.pack().0,
            u64::from(u32::MAX),
            "only this reads as unknown; its cell is never assigned"
        );
    }

    #[test]
    fn a_space_that_grew_much_begins_anew() {
        let mut policy = LifeTable::new(1 << 20);
        assert!(!policy.resized(5 << 18));
        assert_eq!(policy.quantum, 512);
        assert!(policy.resized(1 << 22));
        assert_eq!(policy.quantum, 2048);
    }

    /// Pages of two frequencies end up in streams about as far apart as their frequencies.
    #[test]
    fn learns_two_frequencies() {
        let pages = 8192u64;
        let mut policy = LifeTable::new(pages);
        let mut rng = crate::rng::Rng::new(1);
        let mut tags = vec![History::UNKNOWN; pages as usize];
        for now in 1..60 * pages {
            let page = if rng.unit() < 0.9 {
                rng.below(819)
            } else {
                819 + rng.below(8192 - 819)
            } as usize;
            tags[page] = policy.updated(tags[page], now);
        }
        let now = 60 * pages;
        let mut mean = |range: std::ops::Range<usize>| {
            let n = range.len() as f64;
            let place = |history| {
                let page = PageWrite {
                    token: 0,
                    bytes: 1,
                    cause: super::super::Cause::Relocated,
                    history,
                    rate: 0.0,
                };
                f64::from(policy.place(&page, now).0)
            };
            tags[range].iter().copied().map(place).sum::<f64>() / n
        };
        let (hot, cold) = (mean(0..819), mean(819..8192));
        assert!(
            (cold - hot - 81f64.log2()).abs() < 1.5,
            "hot {hot} cold {cold}"
        );
    }

    #[test]
    fn a_new_policy_puts_all_pages_in_one_stream() {
        let policy = LifeTable::new(1 << 20);
        let first = policy.stream_of[UNKNOWN_CELL][0];
        assert!(
            policy
                .stream_of
                .iter()
                .all(|row| row[..=LAST_AGE].iter().all(|&s| s == first))
        );
        assert_eq!(first, 11);
    }
}
