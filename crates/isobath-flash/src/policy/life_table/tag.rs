//! The history that a page carries, in four bytes.

use super::super::History;

/// Buckets of ages and intervals per factor of two.
pub(super) const PER_OCTAVE: u32 = 3;
/// Number of buckets; the last one stands for pages of unknown history.
pub(super) const BUCKETS: usize = 64;
/// The bucket of the oldest ages.
pub(super) const LAST_AGE: usize = BUCKETS - 2;
/// How the last interval compares with those before.
pub(super) const TRENDS: usize = 8;
/// The trend of an interval like those before.
const STEADY: usize = 3;
/// Buckets per trend.
const TREND_BUCKETS: usize = 4;
/// Classes of pages: smoothed interval × trend.
pub(super) const CELLS: usize = BUCKETS * TRENDS;
/// The class of pages that were written once.
pub(super) const UNKNOWN_CELL: usize = BUCKETS - 1;

/// The cell of pages all of whose intervals were in `bucket`.
fn steady(bucket: usize) -> usize {
    bucket + BUCKETS * STEADY
}

const STAMP_BITS: u32 = 18;
/// Time stamps wrap beyond this.
pub(super) const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;

/// Weight of the newest interval in the smoothed one.
const SMOOTHING: f32 = 0.25;
/// Intervals are averaged as their square roots: between the mean of logarithms, which short
/// intervals upset, and the plain mean, which is slow to see that a page became hot.
const POWER: f32 = 0.5;

/// 18 bits of time stamp, 9 bits of cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tag {
    /// Unit of time of the last write, wrapped.
    pub(super) stamp: u32,
    pub(super) cell: usize,
}

impl Tag {
    #[inline]
    pub(super) fn pack(self) -> History {
        History(u64::from(self.stamp | (self.cell as u32) << STAMP_BITS))
    }

    /// What [`Tag::pack`] made; anything else becomes some tag.
    #[inline]
    pub(super) fn unpack(history: History) -> Self {
        let bits = history.0 as u32;
        Self {
            stamp: bits & STAMP_MASK,
            cell: (bits >> STAMP_BITS) as usize % CELLS,
        }
    }

    /// Units of time since the last write, at unit `now`.
    #[inline]
    pub(super) fn age(self, now: u64) -> u32 {
        (now as u32).wrapping_sub(self.stamp) & STAMP_MASK
    }

    /// The same, but at most `age` units old. Of a page that was written before the clock began, as
    /// after opening, the stamp lies before zero, which wraps.
    #[inline]
    pub(super) fn at_most(self, age: u32, now: u64) -> Tag {
        match self.age(now) > age {
            true => Tag {
                stamp: stamp(now.wrapping_sub(u64::from(age))),
                ..self
            },
            false => self,
        }
    }
}

/// A time stamp of unit `now`.
#[inline]
pub(super) fn stamp(now: u64) -> u32 {
    now as u32 & STAMP_MASK
}

/// Bucket of an age or interval in units of the time stamp: log₂(1 + units), linear within each
/// factor of two.
#[inline]
pub(super) fn bucket(units: u32) -> usize {
    let log = ((units + 1) as f32).to_bits() as f32 * (1.0 / (1u32 << 23) as f32) - 127.0;
    ((log * PER_OCTAVE as f32 + 1e-4) as usize).min(LAST_AGE)
}

/// The smallest age, in units, that falls into `bucket`.
pub(super) fn edge(bucket: usize) -> f32 {
    let log = bucket as f32 / PER_OCTAVE as f32;
    log.floor().exp2() * (1.0 + log.fract()) - 1.0
}

/// The square of the mean of square roots of intervals, over their mean, if they are distributed
/// exponentially.
const ROOT_MEAN: f32 = std::f32::consts::FRAC_PI_4;

/// The mean interval, in units, of pages whose smoothed one is in `bucket`.
pub(super) fn mean_interval(bucket: usize) -> f32 {
    0.5 * (edge(bucket) + edge(bucket + 1)) / ROOT_MEAN
}

/// The cell of pages whose mean interval is `units`.
pub(super) fn cell_of_interval(units: f32) -> usize {
    steady(bucket((ROOT_MEAN * units) as u32))
}

/// How a page's cell follows from its last one and the interval that ended.
#[derive(Debug, Clone)]
pub(super) struct Smoother {
    /// By smoothed interval × interval, the new smoothed interval in buckets, while no page becomes
    /// hot.
    steady: Vec<[f32; BUCKETS]>,
    /// The same with pages that become hot.
    means: Vec<[f32; BUCKETS]>,
}

impl Smoother {
    pub(super) fn new() -> Self {
        let power = POWER / PER_OCTAVE as f32;
        let mean = |old: usize, new: usize| {
            let (old, new) = ((old as f32 * power).exp2(), (new as f32 * power).exp2());
            (old + SMOOTHING * (new - old)).log2() / power
        };
        let row = |old| std::array::from_fn(|new| mean(old, new));
        let steady: Vec<[f32; BUCKETS]> = (0..BUCKETS).map(row).collect();
        Self {
            means: steady.clone(),
            steady,
        }
    }

    /// Learns which share of the pages became hot, by smoothed interval × interval: of these the
    /// intervals before count no more.
    pub(super) fn learn(&mut self, heated: &[[f32; BUCKETS]]) {
        let rows = self.means.iter_mut().zip(&self.steady).zip(heated);
        for ((means, steady), heated) in rows {
            for (interval, mean) in means.iter_mut().enumerate() {
                let steady = steady[interval];
                *mean = steady + heated[interval] * (interval as f32 - steady);
            }
        }
    }

    /// The cell of a page of `cell` that was overwritten after an interval in bucket `interval`;
    /// `chance`, from 0 to 1, decides between two buckets, so that differences below one count on
    /// average.
    #[inline]
    pub(super) fn next(&self, cell: usize, interval: usize, chance: f32) -> usize {
        let smoothed = cell % BUCKETS;
        if cell == UNKNOWN_CELL {
            return steady(interval);
        }
        let trend = interval + STEADY * TREND_BUCKETS + TREND_BUCKETS / 2;
        let trend = (trend.saturating_sub(smoothed) / TREND_BUCKETS).min(TRENDS - 1);
        let mean = (self.means[smoothed][interval] + chance) as usize;
        mean.min(LAST_AGE) + BUCKETS * trend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_and_edges_agree() {
        for b in 0..=LAST_AGE {
            let from = edge(b).ceil() as u32;
            assert_eq!(bucket(from).max(b), bucket(from));
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
        };
        assert!(tag.pack().0 < u64::from(u32::MAX));
        assert_eq!(Tag::unpack(tag.pack()), tag);
        assert_eq!(tag.age(5), 6, "stamps wrap");
    }

    #[test]
    fn what_is_too_old_becomes_younger_also_where_the_clock_has_just_begun() {
        let oldest = STAMP_MASK / 2;
        for now in [0, 5, u64::from(oldest), u64::from(STAMP_MASK) + 7] {
            let of_age = |age: u32| Tag {
                stamp: stamp(now.wrapping_sub(u64::from(age))),
                cell: 3,
            };
            assert_eq!(of_age(oldest).at_most(oldest, now), of_age(oldest));
            assert_eq!(of_age(oldest + 9).at_most(oldest, now), of_age(oldest));
        }
    }

    #[test]
    fn cells_follow_intervals() {
        let mut smoother = Smoother::new();
        let first = smoother.next(UNKNOWN_CELL, 30, 0.9);
        assert_eq!(first, 30 + BUCKETS * STEADY);
        assert_eq!(smoother.next(first, 30, 0.0), first, "nothing changed");
        let shorter = smoother.next(first, 10, 0.0);
        assert!(
            shorter % BUCKETS < 30 && shorter / BUCKETS == 0,
            "{shorter}"
        );
        let longer = smoother.next(first, 60, 0.0);
        assert!(
            longer % BUCKETS > 30 && longer / BUCKETS == TRENDS - 1,
            "{longer}"
        );
        let sum: usize = (0..10)
            .map(|tenth| smoother.next(first, 31, tenth as f32 / 10.0) % BUCKETS - 30)
            .sum();
        assert_eq!(sum, 2, "rounded up now and then");
        let long = smoother.next(UNKNOWN_CELL, 50, 0.0);
        assert!(smoother.next(long, 18, 0.0) % BUCKETS > 40);
        smoother.learn(&[[1.0; BUCKETS]; BUCKETS]);
        assert_eq!(smoother.next(long, 18, 0.0) % BUCKETS, 18, "became hot");
        smoother.learn(&[[0.0; BUCKETS]; BUCKETS]);
        assert!(smoother.next(long, 18, 0.0) % BUCKETS > 40);
    }
}
