//! The slices of one point, taken in several passes over the plan.
//!
//! Slices that follow each other at once share whatever the drive was doing at that moment, so
//! their spread says too little. Slices of different passes lie minutes apart, and their median is
//! what the drive does most of the time.

use isobath_model::OperatingPoint;
use isobath_model::profile::MeasuredPoint;

use super::regimes::{Taken, TakenPoint, cliff};

/// When a point has been measured often enough.
#[derive(Debug, Clone, Copy)]
pub(super) struct Enough {
    pub(super) repeats_min: u32,
    pub(super) repeats_max: u32,
    /// Slices of a point that may be thrown away.
    pub(super) reruns_max: u32,
    /// Half width of the 95% interval of the mean, as a share of it.
    pub(super) confidence: f64,
}

/// The surroundings of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Around {
    /// Nothing.
    Quiet,
    /// Other programs used the drive or most of the CPU.
    Others,
    /// The sentinels before and after it differ.
    Drift,
}

/// Further slices where the last ones fall: they distinguish a cliff from a slow moment.
const CLIFF_REPEATS: u32 = 3;
/// The last slice of writes is this many times slower than the first: perhaps a cliff.
const FALL: f64 = 1.5;

/// One point with its measurements.
#[derive(Debug, Clone)]
pub(super) struct Visits {
    pub(super) point: OperatingPoint,
    /// In order of time; an entry is a slice, or what an earlier session made of several.
    kept: Vec<MeasuredPoint>,
    /// The last slice that was thrown away, in case that none better comes.
    spoilt: Option<(MeasuredPoint, Around)>,
    reruns: u32,
}

impl Visits {
    pub(super) fn new(point: OperatingPoint) -> Visits {
        Visits {
            point,
            kept: Vec::new(),
            spoilt: None,
            reruns: 0,
        }
    }

    /// Takes over what an earlier session measured at this point.
    pub(super) fn take_over(&mut self, earlier: MeasuredPoint) {
        self.kept.push(earlier);
    }

    /// Takes a slice, or throws it away. Load from other processes that never ends is accepted at
    /// last; a drive that drifts is not.
    pub(super) fn take(&mut self, slice: MeasuredPoint, around: Around, enough: &Enough) {
        let spare = self.reruns < enough.reruns_max;
        match around {
            Around::Quiet => self.kept.push(slice),
            Around::Others if !spare => self.kept.push(slice),
            Around::Others | Around::Drift => {
                self.reruns += 1;
                self.spoilt = Some((slice, around));
            }
        }
    }

    /// Slices that count.
    pub(super) fn repeats(&self) -> u32 {
        self.kept.iter().map(|p| p.repeats).sum()
    }

    /// Whether another slice is worth its time.
    pub(super) fn wants_more(&self, enough: &Enough) -> bool {
        if self.reruns > enough.reruns_max {
            return false;
        }
        let (rates, repeats) = (self.rates(), self.repeats());
        let falls = self.falls(&rates);
        let most = enough.repeats_max + if falls { CLIFF_REPEATS } else { 0 };
        let settled =
            !falls && repeats >= enough.repeats_min && interval(&rates) <= enough.confidence;
        !settled && repeats < most
    }

    /// Of the least number of repeats, how many are done; all if the point is given up.
    pub(super) fn progress(&self, enough: &Enough) -> u32 {
        match self.wants_more(enough) {
            true => self.repeats().min(enough.repeats_min),
            false => enough.repeats_min,
        }
    }

    /// Whether the point may have further slices although it has enough: those that it has may be
    /// of another regime.
    pub(super) fn may_go_on(&self, enough: &Enough) -> bool {
        self.reruns <= enough.reruns_max
            && self.repeats() + self.reruns < enough.repeats_max + enough.reruns_max
    }

    /// Whether nothing at all is known about this point.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.spoilt.is_none()
    }

    fn rates(&self) -> Vec<f64> {
        let rates = self.kept.iter().map(expanded);
        rates.flatten().collect()
    }

    fn falls(&self, rates: &[f64]) -> bool {
        let ends = rates.first().zip(rates.last());
        self.point.read_share < 1.0 && ends.is_some_and(|(first, last)| *last < first / FALL)
    }

    /// The slices with how they were taken.
    pub(super) fn taken(&self) -> Vec<TakenPoint> {
        let counted = |point: &MeasuredPoint, taken| TakenPoint {
            point: MeasuredPoint {
                reruns: self.reruns + point.reruns,
                ..point.clone()
            },
            taken,
        };
        if self.kept.is_empty() {
            let spoilt = self.spoilt.iter().map(|(point, around)| {
                let taken = match around {
                    Around::Drift => Taken::Drifting,
                    Around::Others | Around::Quiet => Taken::Steady,
                };
                counted(point, taken)
            });
            return spoilt.collect();
        }
        let entries: Vec<f64> = self.kept.iter().map(|p| p.throughput_pages_per_s).collect();
        let fallen = match self.point.read_share < 1.0 {
            true => cliff(&entries).unwrap_or(0),
            false => 0,
        };
        let taken = |i: usize| match i < fallen {
            true => Taken::WriteCache,
            false => Taken::Steady,
        };
        let kept = self.kept.iter().enumerate();
        kept.map(|(i, p)| counted(p, taken(i))).collect()
    }
}

/// The rates that a point stands for, one per repeat.
fn expanded(point: &MeasuredPoint) -> impl Iterator<Item = f64> {
    std::iter::repeat_n(point.throughput_pages_per_s, point.repeats.max(1) as usize)
}

/// Puts entries of the same point and the same stretch together. `same` says which regimes are the
/// same drive.
pub(super) fn pool(
    points: &[MeasuredPoint],
    same: impl Fn(usize, usize) -> bool,
) -> Vec<MeasuredPoint> {
    let mut groups: Vec<Vec<&MeasuredPoint>> = Vec::new();
    for point in points {
        let belongs = |group: &&mut Vec<&MeasuredPoint>| {
            group[0].sample().point == point.sample().point && same(group[0].regime, point.regime)
        };
        match groups.iter_mut().find(belongs) {
            Some(group) => group.push(point),
            None => groups.push(vec![point]),
        }
    }
    groups.iter().map(|group| together(group)).collect()
}

fn together(group: &[&MeasuredPoint]) -> MeasuredPoint {
    let mut rates: Vec<f64> = group.iter().copied().flat_map(expanded).collect();
    let own_spread = group.iter().map(|p| p.throughput_spread);
    let spread = own_spread.fold(spread(&rates), f64::max);
    rates.sort_by(f64::total_cmp);
    let median = 0.5 * (rates[(rates.len() - 1) / 2] + rates[rates.len() / 2]);
    // Quantiles of latency do not average: the entry nearest to the median rate stands for all.
    let distance = |p: &MeasuredPoint| (p.throughput_pages_per_s / median).ln().abs();
    let typical = group
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let cpu = || {
        let known = group.iter().map(|p| Some((p.cpu_us_per_io?, p.repeats)));
        let known: Option<Vec<(f64, u32)>> = known.collect();
        let known = known?;
        let repeats: u32 = known.iter().map(|k| k.1).sum();
        Some(known.iter().map(|k| k.0 * f64::from(k.1)).sum::<f64>() / f64::from(repeats.max(1)))
    };
    MeasuredPoint {
        duration_s: group.iter().map(|p| p.duration_s).sum(),
        throughput_pages_per_s: median,
        throughput_spread: spread,
        repeats: group.iter().map(|p| p.repeats).sum(),
        reruns: group.iter().map(|p| p.reruns).max().unwrap_or(0),
        disturbed: group.iter().map(|p| p.disturbed).sum(),
        cpu_us_per_io: cpu(),
        latency_us: typical.and_then(|p| p.latency_us),
        ..group[0].clone()
    }
}

/// Two-sided 95% quantiles of Student's t for 1, 2, … degrees of freedom.
const T_95: [f64; 10] = [
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// Half width of the 95% interval of the mean as a share of the mean; infinite for one value.
fn interval(rates: &[f64]) -> f64 {
    if rates.len() < 2 {
        return f64::INFINITY;
    }
    let t = T_95[(rates.len() - 2).min(T_95.len() - 1)];
    t * spread(rates) / (rates.len() as f64).sqrt()
}

/// Relative standard deviation; 0 for a single value.
fn spread(rates: &[f64]) -> f64 {
    let n = rates.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = rates.iter().sum::<f64>() / n;
    let variance = rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0);
    variance.sqrt() / mean
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A slice of random reads or writes.
    pub(crate) fn slice(read_share: f64, began_s: f64, rate: f64) -> MeasuredPoint {
        MeasuredPoint {
            threads: 1,
            queue_depth: 1,
            random_share: 1.0,
            io_pages: 1.0,
            read_share,
            regime: 0,
            began_s,
            duration_s: 0.5,
            throughput_pages_per_s: rate,
            throughput_spread: 0.0,
            repeats: 1,
            reruns: 0,
            disturbed: 0,
            cpu_us_per_io: Some(2.0),
            latency_us: None,
        }
    }

    const ENOUGH: Enough = Enough {
        repeats_min: 3,
        repeats_max: 5,
        reruns_max: 2,
        confidence: 0.05,
    };

    fn visits(read_share: f64, rates: &[f64]) -> Visits {
        let mut visits = Visits::new(slice(read_share, 0.0, 1.0).sample().point);
        for (i, rate) in rates.iter().enumerate() {
            visits.take(slice(read_share, i as f64, *rate), Around::Quiet, &ENOUGH);
        }
        visits
    }

    #[test]
    fn a_point_is_repeated_until_its_interval_is_narrow() {
        assert!(visits(1.0, &[100.0, 100.0]).wants_more(&ENOUGH));
        assert!(!visits(1.0, &[100.0, 100.5, 99.5]).wants_more(&ENOUGH));
        assert!(visits(1.0, &[100.0, 120.0, 80.0]).wants_more(&ENOUGH));
        let many = [100.0, 120.0, 80.0, 100.0, 110.0];
        assert!(!visits(1.0, &many).wants_more(&ENOUGH));
    }

    #[test]
    fn slices_between_sentinels_that_differ_are_never_kept() {
        let mut v = visits(1.0, &[]);
        for _ in 0..3 {
            assert!(v.wants_more(&ENOUGH));
            v.take(slice(1.0, 0.0, 50.0), Around::Drift, &ENOUGH);
        }
        assert!(!v.wants_more(&ENOUGH), "a drifting drive has no end");
        let taken = v.taken();
        assert_eq!((taken.len(), taken[0].taken), (1, Taken::Drifting));
        assert_eq!(taken[0].point.reruns, 3);
        v.take(slice(1.0, 0.0, 100.0), Around::Quiet, &ENOUGH);
        let taken = v.taken();
        assert_eq!((taken.len(), taken[0].taken), (1, Taken::Steady));
        assert_eq!(taken[0].point.throughput_pages_per_s, 100.0);
    }

    #[test]
    fn load_of_others_that_never_ends_is_accepted() {
        let mut v = visits(1.0, &[]);
        let mut taken = 0;
        while v.wants_more(&ENOUGH) {
            v.take(slice(1.0, 0.0, 100.0), Around::Others, &ENOUGH);
            taken += 1;
        }
        assert_eq!((taken, v.repeats()), (2 + 3, 3));
    }

    #[test]
    fn writes_before_a_cliff_are_set_apart() {
        let mut v = visits(0.0, &[900.0, 880.0, 300.0]);
        assert!(v.wants_more(&ENOUGH), "one slow slice may be chance");
        v.take(slice(0.0, 3.0, 310.0), Around::Quiet, &ENOUGH);
        let taken: Vec<Taken> = v.taken().iter().map(|t| t.taken).collect();
        use Taken::{Steady, WriteCache};
        assert_eq!(taken, [WriteCache, WriteCache, Steady, Steady]);
        assert!(
            visits(1.0, &[900.0, 880.0, 300.0, 310.0])
                .taken()
                .iter()
                .all(|t| t.taken == Steady)
        );
    }

    #[test]
    fn slices_of_a_point_are_pooled_by_their_median() {
        let mut points = vec![
            slice(1.0, 0.0, 100.0),
            slice(1.0, 1.0, 300.0),
            slice(1.0, 2.0, 110.0),
            slice(0.0, 3.0, 70.0),
            slice(1.0, 4.0, 50.0),
        ];
        points[4].regime = 1;
        points[0].disturbed = 1;
        let pooled = pool(&points, |a, b| a == b);
        assert_eq!(pooled.len(), 3);
        let first = &pooled[0];
        assert_eq!(
            (
                first.throughput_pages_per_s,
                first.repeats,
                first.began_s,
                first.disturbed
            ),
            (110.0, 3, 0.0, 1)
        );
        assert!((first.duration_s - 1.5).abs() < 1e-12 && first.throughput_spread > 0.5);
        assert_eq!(pool(&points, |_, _| true).len(), 2);
        // Points that an earlier session measured three times count three times.
        let earlier = MeasuredPoint {
            repeats: 3,
            throughput_spread: 0.02,
            ..slice(1.0, 0.0, 100.0)
        };
        let pooled = pool(&[earlier, slice(1.0, 9.0, 130.0)], |_, _| true);
        assert_eq!(
            (pooled[0].throughput_pages_per_s, pooled[0].repeats),
            (100.0, 4)
        );
    }

    #[test]
    fn the_interval_is_students() {
        // Mean 10, standard deviation 1, n = 3: 4.303 · 0.1 / √3.
        assert!((interval(&[9.0, 10.0, 11.0]) - 0.2484).abs() < 1e-3);
        assert!(interval(&[5.0]).is_infinite());
        assert!(interval(&[5.0, 5.0]).abs() < 1e-12);
    }
}
