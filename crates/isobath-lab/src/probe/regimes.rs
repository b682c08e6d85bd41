//! Stretches of time in which the drive behaved alike. No fit mixes them.

use std::ops::Range;

use isobath_model::Operation;
use isobath_model::profile::{LARGE_PREFIX, Levels, MeasuredPoint, Regime, Sentinel, WRITE_PREFIX};

/// How a point was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Between sentinels that agree.
    Steady,
    /// Its sentinels differed, however often it was measured again.
    Drifting,
    /// Writes before the write cache was full.
    WriteCache,
}

/// A point with how it was taken; its `regime` is set by [`assign`].
#[derive(Debug, Clone)]
pub(super) struct TakenPoint {
    pub(super) point: MeasuredPoint,
    pub(super) taken: Taken,
}

pub(super) const DRIFTING: &str = "drifting";
pub(super) const WRITE_CACHE: &str = "write cache";
const STEADY: &str = "steady";
const BURST: &str = "burst credits";
const OTHER: &str = "another level";

/// A sentinel that differs from the level by this much, and whose successor agrees with it, begins
/// another regime.
const LEVEL_CHANGE: f64 = 0.30;
/// A level within this of the requested one is that one.
const WANTED: f64 = 0.15;
/// Two sentinels within this agree.
const AGREE: f64 = 0.10;
/// Two sentinels of writes within this agree: repeats of writes differ about twice as much as those
/// of reads.
const AGREE_WRITES: f64 = 0.20;

/// By how much two rates differ, as a share of the lower one.
pub(super) fn difference(a: f64, b: f64) -> f64 {
    (a / b).max(b / a) - 1.0
}

/// I/Os of this many pages and more resemble the sentinel of large I/Os.
const LARGE_PAGES_MIN: f64 = 8.0;

fn is_large(point: &MeasuredPoint) -> bool {
    point.io_pages >= LARGE_PAGES_MIN
}

/// Whether the sentinels around a point differ: those that it resembles, for a drive may keep its
/// I/Os per second and lose its bandwidth.
pub(super) fn drifted(before: &Sentinel, after: &Sentinel, point: &MeasuredPoint) -> bool {
    let small = (before.throughput_pages_per_s, after.throughput_pages_per_s);
    let large = before.large_pages_per_s.zip(after.large_pages_per_s);
    let reads = match is_large(point) {
        true => large.unwrap_or(small),
        false => small,
    };
    let writes = before.write_pages_per_s.zip(after.write_pages_per_s);
    let writes = writes.filter(|_| point.read_share < 1.0);
    difference(reads.0, reads.1) > AGREE
        || writes.is_some_and(|w| difference(w.0, w.1) > AGREE_WRITES)
}

fn writes(point: &MeasuredPoint) -> bool {
    point.read_share < 1.0
}

/// Whether a sentinel says something about a point.
type Concerns = fn(&MeasuredPoint) -> bool;

/// One of the sentinels: its times and rates.
struct Series {
    rates: Vec<(f64, f64)>,
    concerns: Concerns,
    /// How the names of its regimes begin.
    prefix: &'static str,
    /// The operation that its regimes concern; `None` for both.
    operation: Option<Operation>,
    /// Two of its rates within this agree.
    agree: f64,
    /// The level that is to be fitted; `None`: the one with most points.
    wanted: Option<f64>,
}

/// The three sentinels; each says more about its points than the one before.
fn series(sentinels: &[Sentinel], wanted: Levels) -> [Series; 3] {
    let rates = |rate: fn(&Sentinel) -> Option<f64>| {
        let rates = sentinels.iter().filter_map(|s| Some((s.at_s, rate(s)?)));
        rates.collect()
    };
    let small = Series {
        rates: rates(|s| Some(s.throughput_pages_per_s)),
        concerns: |_| true,
        prefix: "",
        operation: None,
        agree: AGREE,
        wanted: wanted.small,
    };
    let large = Series {
        rates: rates(|s| s.large_pages_per_s),
        concerns: is_large,
        prefix: LARGE_PREFIX,
        wanted: wanted.large,
        ..small
    };
    let write = Series {
        rates: rates(|s| s.write_pages_per_s),
        concerns: writes,
        prefix: WRITE_PREFIX,
        operation: Some(Operation::Write),
        agree: AGREE_WRITES,
        wanted: wanted.write,
    };
    [small, large, write]
}

/// The points at which a sentinel's level changes and stays changed: indices at which a new level
/// begins, the first being 0.
fn levels(sentinel: &Series) -> Vec<usize> {
    let series = &sentinel.rates;
    let rate = |i: usize| series[i].1;
    let mut begins = vec![0];
    for i in 1..series.len().saturating_sub(1) {
        let from = begins[begins.len() - 1];
        let level = median((from..i).map(rate));
        let moved = difference(rate(i), level) > LEVEL_CHANGE
            && difference(rate(i + 1), level) > LEVEL_CHANGE;
        if moved && difference(rate(i), rate(i + 1)) <= sentinel.agree {
            begins.push(i);
        }
    }
    begins
}

/// The stretch of `regimes`, which follow each other, that holds a time.
fn at(regimes: &[Regime], time_s: f64) -> usize {
    let begun = regimes.iter().rposition(|r| r.began_s <= time_s);
    begun.unwrap_or(0)
}

/// The stretches between changes of level. The requested level is the one that is fitted, else the
/// one with most points.
fn stretches(sentinel: &Series, points: &[&MeasuredPoint], ended_s: f64) -> Vec<Regime> {
    let series = &sentinel.rates;
    let begins = levels(sentinel);
    let begin_s = |level: usize| match level {
        0 => 0.0,
        _ => series[begins[level]].0,
    };
    let mut regimes: Vec<Regime> = (0..begins.len())
        .map(|level| Regime {
            name: String::new(),
            operation: sentinel.operation,
            usable: false,
            level_pages_per_s: None,
            began_s: begin_s(level),
            ended_s: match level + 1 < begins.len() {
                true => begin_s(level + 1),
                false => ended_s,
            },
        })
        .collect();
    let mut count = vec![0usize; regimes.len()];
    for point in points {
        count[at(&regimes, point.began_s)] += 1;
    }
    let rate = |level: usize| {
        let end = begins.get(level + 1).copied().unwrap_or(series.len());
        median(series[begins[level].min(end)..end].iter().map(|s| s.1))
    };
    // A drive that comes back to its level is the same drive.
    let same = |a: usize, b: usize| a == b || difference(rate(a), rate(b)) <= sentinel.agree;
    let at_level = |level: usize| -> usize {
        let own = (0..count.len()).filter(|l| same(*l, level));
        own.map(|l| count[l]).sum()
    };
    // Of equals the later one: the first one was the burst.
    let usable = (0..count.len()).max_by_key(|l| at_level(*l)).unwrap_or(0);
    for (level, regime) in regimes.iter_mut().enumerate() {
        regime.level_pages_per_s = Some(rate(level)).filter(|r| r.is_finite());
        regime.usable = match sentinel.wanted {
            Some(wanted) => {
                let off = difference(rate(level), wanted);
                // Without sentinels there is no rate to differ.
                off.is_nan() || off <= WANTED.max(sentinel.agree)
            }
            None => same(level, usable),
        };
        let name = match level {
            _ if regime.usable => STEADY,
            l if l < usable && rate(l) > rate(usable) => BURST,
            _ => OTHER,
        };
        regime.name = format!("{}{name}", sentinel.prefix);
    }
    regimes
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Gives every point its regime. If the bandwidth or the writes changed their level, large I/Os
/// or writes have stretches of their own; `fill_cliff` is the time at which writing the file in
/// full slowed down, if it did.
pub(super) fn assign(
    sentinels: &[Sentinel],
    points: &[TakenPoint],
    fill_cliff: Option<(f64, f64)>,
    wanted: Levels,
) -> (Vec<Regime>, Vec<MeasuredPoint>) {
    let end_s = points.iter().map(|t| t.point.began_s + t.point.duration_s);
    let end_s = end_s
        .chain(sentinels.iter().map(|s| s.at_s))
        .fold(0.0, f64::max);
    let mut regimes: Vec<Regime> = Vec::new();
    let mut told: Vec<(Concerns, Range<usize>)> = Vec::new();
    for series in series(sentinels, wanted) {
        let steady = points.iter().filter(|t| t.taken == Taken::Steady);
        let own = steady.map(|t| &t.point).filter(|p| (series.concerns)(p));
        let stretches = stretches(&series, &own.collect::<Vec<_>>(), end_s);
        let says_something = stretches.len() > 1 || stretches.iter().any(|r| !r.usable);
        if told.is_empty() || says_something {
            let first = regimes.len();
            regimes.extend(stretches);
            told.push((series.concerns, first..regimes.len()));
        }
    }
    // The first that may not be fitted; else the one that says most about the point.
    let regime_of = |point: &MeasuredPoint| {
        let mut own = 0;
        for (_, range) in told.iter().filter(|(concerns, _)| concerns(point)) {
            own = range.start + at(&regimes[range.clone()], point.began_s);
            if !regimes[own].usable {
                break;
            }
        }
        own
    };
    let own: Vec<usize> = points.iter().map(|t| regime_of(&t.point)).collect();
    let mut extra = |taken: Taken, name: &str, operation, span: Option<(f64, f64)>| {
        let own = || points.iter().filter(|t| t.taken == taken).map(|t| &t.point);
        let began = own()
            .map(|p| p.began_s)
            .chain(span.map(|s| s.0))
            .reduce(f64::min);
        let ended = own()
            .map(|p| p.began_s + p.duration_s)
            .chain(span.map(|s| s.1))
            .reduce(f64::max);
        let (began_s, ended_s) = began.zip(ended)?;
        regimes.push(Regime {
            name: name.to_owned(),
            operation,
            usable: false,
            level_pages_per_s: None,
            began_s,
            ended_s,
        });
        Some(regimes.len() - 1)
    };
    let drifting = extra(Taken::Drifting, DRIFTING, None, None);
    let cache = extra(
        Taken::WriteCache,
        WRITE_CACHE,
        Some(Operation::Write),
        fill_cliff,
    );
    let points = points
        .iter()
        .zip(own)
        .map(|(taken, own)| MeasuredPoint {
            regime: match taken.taken {
                Taken::Steady => own,
                // Present because such a point is.
                Taken::Drifting => drifting.unwrap_or(0),
                Taken::WriteCache => cache.unwrap_or(0),
            },
            ..taken.point.clone()
        })
        .collect();
    (regimes, points)
}

/// Before a cliff the rate was at least this many times the one after.
const CLIFF: f64 = 1.5;
/// The slowest rate before it was at least this many times the fastest after.
const GAP: f64 = 1.2;

/// Where a series of rates falls and stays down: everything before the index is above everything
/// from it on, by [`CLIFF`] on average. At least two rates must follow: one slow moment is no
/// cliff.
pub(super) fn cliff(rates: &[f64]) -> Option<usize> {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    (1..rates.len().saturating_sub(1))
        .map(|at| (at, rates.split_at(at)))
        .filter(|(_, (before, after))| {
            let least = before.iter().copied().fold(f64::INFINITY, f64::min);
            least > GAP * after.iter().copied().fold(0.0, f64::max)
        })
        .map(|(at, (before, after))| (at, mean(before) / mean(after)))
        .filter(|(_, fall)| *fall > CLIFF)
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinels(rates: &[f64]) -> Vec<Sentinel> {
        let one = |(i, rate): (usize, &f64)| Sentinel {
            at_s: i as f64,
            throughput_pages_per_s: *rate,
            large_pages_per_s: Some(4.0 * rate),
            write_pages_per_s: None,
        };
        rates.iter().enumerate().map(one).collect()
    }

    fn at_levels(small: f64, large: f64) -> Levels {
        Levels {
            small: Some(small),
            large: Some(large),
            write: None,
        }
    }

    fn point(began_s: f64, taken: Taken) -> TakenPoint {
        let point = crate::probe::visits::tests::slice(1.0, began_s, 1.0);
        TakenPoint { point, taken }
    }

    #[test]
    fn noise_and_one_slow_moment_are_one_regime() {
        let s = sentinels(&[100.0, 108.0, 95.0, 40.0, 101.0, 99.0]);
        let points: Vec<_> = (0..5)
            .map(|i| point(f64::from(i) + 0.2, Taken::Steady))
            .collect();
        let (regimes, points) = assign(&s, &points, None, Levels::default());
        assert_eq!(regimes.len(), 1);
        assert!(regimes[0].usable && regimes[0].name == STEADY);
        assert!(points.iter().all(|p| p.regime == 0));
    }

    #[test]
    fn bandwidth_that_changes_alone_sets_large_points_apart() {
        let mut s = sentinels(&[100.0; 8]);
        for sentinel in &mut s[..3] {
            sentinel.large_pages_per_s = Some(800.0);
        }
        let points: Vec<_> = (0..7)
            .map(|i| {
                let mut taken = point(f64::from(i) + 0.2, Taken::Steady);
                taken.point.io_pages = if i % 2 == 0 { 64.0 } else { 1.0 };
                taken
            })
            .collect();
        let (before, after) = (&s[2], &s[3]);
        assert!(drifted(before, after, &points[0].point));
        let written = |rate| Sentinel {
            write_pages_per_s: Some(rate),
            ..*before
        };
        let mut write = points[1].point.clone();
        assert!(!drifted(&written(100.0), &written(40.0), &write), "reads");
        write.read_share = 0.5;
        assert!(drifted(&written(100.0), &written(40.0), &write));
        assert!(!drifted(&written(100.0), &written(85.0), &write));
        assert!(!drifted(before, after, &points[1].point));
        let (regimes, points) = assign(&s, &points, None, Levels::default());
        let names: Vec<&str> = regimes.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(
            names,
            [STEADY, "large I/Os: burst credits", "large I/Os: steady"]
        );
        let usable = |p: &MeasuredPoint| regimes[p.regime].usable;
        let of: Vec<bool> = points.iter().map(usable).collect();
        // Points 0 and 2 are large and lie in the burst.
        assert_eq!(of, [false, true, false, true, true, true, true]);

        // Another run was at the higher level, and this one is to be judged there.
        let taken: Vec<_> = points
            .iter()
            .map(|p| TakenPoint {
                point: p.clone(),
                taken: Taken::Steady,
            })
            .collect();
        let (regimes, points) = assign(&s, &taken, None, at_levels(95.0, 760.0));
        let of: Vec<bool> = points.iter().map(|p| regimes[p.regime].usable).collect();
        assert_eq!(of, [true, true, true, true, false, true, false]);
        let (regimes, points) = assign(
            &s,
            &taken,
            None,
            Levels {
                large: Some(2000.0),
                ..Levels::default()
            },
        );
        let large = points.iter().filter(|p| is_large(p));
        assert!(large.into_iter().all(|p| !regimes[p.regime].usable));
    }

    #[test]
    fn writes_that_change_their_level_alone_set_points_that_write_apart() {
        let mut s = sentinels(&[100.0; 9]);
        for (i, sentinel) in s.iter_mut().enumerate() {
            sentinel.write_pages_per_s = Some(if i < 3 { 50.0 } else { 80.0 });
        }
        let taken: Vec<_> = (0..8)
            .map(|i| {
                let mut taken = point(f64::from(i) + 0.2, Taken::Steady);
                taken.point.read_share = [1.0, 0.0, 0.5, 0.0][i as usize % 4];
                taken
            })
            .collect();
        let usable = |wanted| -> Vec<bool> {
            let (regimes, points) = assign(&s, &taken, None, wanted);
            points.iter().map(|p| regimes[p.regime].usable).collect()
        };
        let most = usable(Levels::default());
        assert_eq!(most, [true, false, false, true, true, true, true, true]);
        let slow = usable(Levels {
            write: Some(52.0),
            ..Levels::default()
        });
        assert_eq!(slow, [true, true, true, false, true, false, false, false]);
        let (regimes, _) = assign(&s, &taken, None, Levels::default());
        let names: Vec<&str> = regimes.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, [STEADY, "writes: another level", "writes: steady"]);
        assert_eq!(regimes[1].operation, Some(Operation::Write));
    }

    #[test]
    fn burst_credits_that_run_out_are_set_aside() {
        let s: Vec<Sentinel> = [300.0, 310.0, 295.0, 100.0, 101.0, 99.0, 100.0, 102.0]
            .iter()
            .enumerate()
            .map(|(i, rate)| Sentinel {
                at_s: i as f64,
                throughput_pages_per_s: *rate,
                large_pages_per_s: None,
                write_pages_per_s: None,
            })
            .collect();
        let points: Vec<_> = (0..7)
            .map(|i| point(f64::from(i) + 0.2, Taken::Steady))
            .collect();
        let (regimes, points) = assign(&s, &points, None, Levels::default());
        let names: Vec<&str> = regimes.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, [BURST, STEADY]);
        assert!(!regimes[0].usable && regimes[1].usable);
        let of: Vec<usize> = points.iter().map(|p| p.regime).collect();
        assert_eq!(of, [0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn a_level_that_comes_back_is_the_same_regime_for_fits() {
        let mut s = sentinels(&[100.0, 101.0, 99.0, 98.0, 50.0, 51.0, 103.0, 102.0, 101.0]);
        for sentinel in &mut s {
            sentinel.large_pages_per_s = None;
        }
        let points: Vec<_> = (0..8)
            .map(|i| point(f64::from(i) + 0.2, Taken::Steady))
            .collect();
        let (regimes, _) = assign(&s, &points, None, Levels::default());
        let usable: Vec<bool> = regimes.iter().map(|r| r.usable).collect();
        assert_eq!(usable, [true, false, true]);
        assert_eq!(regimes[1].name, OTHER);
    }

    #[test]
    fn the_level_with_most_points_may_have_come_and_gone() {
        let s = sentinels(&[
            50.0, 51.0, 50.0, 49.0, 100.0, 101.0, 99.0, 60.0, 61.0, 102.0, 101.0, 100.0,
        ]);
        let points: Vec<_> = (0..11)
            .map(|i| point(f64::from(i) + 0.2, Taken::Steady))
            .collect();
        let (regimes, _) = assign(&s, &points, None, Levels::default());
        let usable: Vec<bool> = regimes.iter().take(4).map(|r| r.usable).collect();
        assert_eq!(usable, [false, true, false, true]);
    }

    #[test]
    fn drifting_points_and_write_caches_are_never_fitted() {
        let s = sentinels(&[100.0; 4]);
        let points = [
            point(0.1, Taken::Steady),
            point(1.1, Taken::Drifting),
            point(2.1, Taken::WriteCache),
        ];
        let (regimes, points) = assign(&s, &points, Some((0.0, 0.5)), Levels::default());
        let of: Vec<(&str, bool)> = points
            .iter()
            .map(|p| (regimes[p.regime].name.as_str(), regimes[p.regime].usable))
            .collect();
        assert_eq!(
            of,
            [(STEADY, true), (DRIFTING, false), (WRITE_CACHE, false)]
        );
        assert!((regimes[points[2].regime].ended_s - 2.6).abs() < 1e-9);
    }

    #[test]
    fn a_probe_without_sentinels_has_a_regime_still() {
        let (regimes, points) = assign(&[], &[], None, Levels::default());
        assert_eq!((regimes.len(), points.len()), (1, 0));
        let (_, points) = assign(
            &sentinels(&[1.0]),
            &[point(0.0, Taken::Steady)],
            None,
            Levels::default(),
        );
        assert_eq!(points[0].regime, 0);
    }

    #[test]
    fn a_cliff_is_a_fall_that_stays() {
        assert_eq!(cliff(&[900.0, 880.0, 300.0, 310.0]), Some(2));
        assert_eq!(cliff(&[900.0, 880.0, 300.0]), None, "one slow moment");
        assert_eq!(cliff(&[900.0, 300.0, 890.0, 880.0]), None, "it recovered");
        assert_eq!(cliff(&[900.0, 850.0, 800.0, 790.0]), None, "noise");
        assert_eq!(cliff(&[]), None);
    }
}
