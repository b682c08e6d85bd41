//! Stretches of time in which the drive behaved alike. No fit mixes them.

use isobath_model::Operation;
use isobath_model::profile::{MeasuredPoint, Regime, Sentinel};

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

/// A sentinel that differs from the level by this much, and whose successor agrees with it, begins another regime.
const LEVEL_CHANGE: f64 = 0.30;
/// Two sentinels within this agree.
pub(super) const AGREE: f64 = 0.10;

/// By how much two rates differ, as a share of the lower one.
pub(super) fn difference(a: f64, b: f64) -> f64 {
    (a / b).max(b / a) - 1.0
}

/// Where the level of the sentinels changes and stays changed: indices at which a new level begins, the first being 0.
fn levels(sentinels: &[Sentinel]) -> Vec<usize> {
    let rate = |i: usize| sentinels[i].throughput_pages_per_s;
    let mut begins = vec![0];
    for i in 1..sentinels.len().saturating_sub(1) {
        let from = begins[begins.len() - 1];
        let level = median((from..i).map(rate));
        let moved = difference(rate(i), level) > LEVEL_CHANGE
            && difference(rate(i + 1), level) > LEVEL_CHANGE;
        if moved && difference(rate(i), rate(i + 1)) <= AGREE {
            begins.push(i);
        }
    }
    begins
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Gives every point its regime. The level with most points is the one that is fitted; `fill_cliff` is the time at which
/// writing the file in full slowed down, if it did.
pub(super) fn assign(
    sentinels: &[Sentinel],
    points: &[TakenPoint],
    fill_cliff: Option<(f64, f64)>,
) -> (Vec<Regime>, Vec<MeasuredPoint>) {
    let begins = levels(sentinels);
    let begin_s = |level: usize| match level {
        0 => 0.0,
        _ => sentinels[begins[level]].at_s,
    };
    let level_of = |p: &MeasuredPoint| {
        (0..begins.len())
            .rev()
            .find(|l| begin_s(*l) <= p.began_s)
            .unwrap_or(0)
    };
    let mut count = vec![0usize; begins.len()];
    for taken in points.iter().filter(|t| t.taken == Taken::Steady) {
        count[level_of(&taken.point)] += 1;
    }
    // Of equals the later one: what came first was the burst.
    let usable = (0..begins.len()).max_by_key(|l| count[*l]).unwrap_or(0);
    let rate = |level: usize| {
        let end = begins.get(level + 1).copied().unwrap_or(sentinels.len());
        median(
            sentinels[begins[level].min(end)..end]
                .iter()
                .map(|s| s.throughput_pages_per_s),
        )
    };
    // A drive that comes back to its level is the same drive.
    let same = |level: usize| level == usable || difference(rate(level), rate(usable)) <= AGREE;
    let end_s = points.iter().map(|t| t.point.began_s + t.point.duration_s);
    let end_s = end_s
        .chain(sentinels.iter().map(|s| s.at_s))
        .fold(0.0, f64::max);
    let mut regimes: Vec<Regime> = (0..begins.len())
        .map(|level| Regime {
            name: match level {
                l if same(l) => STEADY,
                l if l < usable && rate(l) > rate(usable) => BURST,
                _ => OTHER,
            }
            .to_owned(),
            operation: None,
            usable: same(level),
            began_s: begin_s(level),
            ended_s: if level + 1 < begins.len() {
                begin_s(level + 1)
            } else {
                end_s
            },
        })
        .collect();
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
        .map(|taken| MeasuredPoint {
            regime: match taken.taken {
                Taken::Steady => level_of(&taken.point),
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

/// Where a series of rates falls and stays down: everything before the index is above everything from it on, by
/// [`CLIFF`] on average. At least two rates must follow: one slow moment is no cliff.
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
        };
        rates.iter().enumerate().map(one).collect()
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
        let (regimes, points) = assign(&s, &points, None);
        assert_eq!(regimes.len(), 1);
        assert!(regimes[0].usable && regimes[0].name == STEADY);
        assert!(points.iter().all(|p| p.regime == 0));
    }

    #[test]
    fn burst_credits_that_run_out_are_set_aside() {
        let s = sentinels(&[300.0, 310.0, 295.0, 100.0, 101.0, 99.0, 100.0, 102.0]);
        let points: Vec<_> = (0..7)
            .map(|i| point(f64::from(i) + 0.2, Taken::Steady))
            .collect();
        let (regimes, points) = assign(&s, &points, None);
        let names: Vec<&str> = regimes.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, [BURST, STEADY]);
        assert!(!regimes[0].usable && regimes[1].usable);
        let of: Vec<usize> = points.iter().map(|p| p.regime).collect();
        assert_eq!(of, [0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn a_level_that_comes_back_is_the_same_regime_for_fits() {
        let s = sentinels(&[100.0, 101.0, 99.0, 98.0, 50.0, 51.0, 103.0, 102.0, 101.0]);
        let points: Vec<_> = (0..8)
            .map(|i| point(f64::from(i) + 0.2, Taken::Steady))
            .collect();
        let (regimes, _) = assign(&s, &points, None);
        let usable: Vec<bool> = regimes.iter().map(|r| r.usable).collect();
        assert_eq!(usable, [true, false, true]);
        assert_eq!(regimes[1].name, OTHER);
    }

    #[test]
    fn drifting_points_and_write_caches_are_never_fitted() {
        let s = sentinels(&[100.0; 4]);
        let points = [
            point(0.1, Taken::Steady),
            point(1.1, Taken::Drifting),
            point(2.1, Taken::WriteCache),
        ];
        let (regimes, points) = assign(&s, &points, Some((0.0, 0.5)));
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
        let (regimes, points) = assign(&[], &[], None);
        assert_eq!((regimes.len(), points.len()), (1, 0));
        let (_, points) = assign(&sentinels(&[1.0]), &[point(0.0, Taken::Steady)], None);
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
