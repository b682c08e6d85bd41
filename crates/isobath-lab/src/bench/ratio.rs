//! Comparison of two engines: paired repeats, and the statements that they support.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Repeats of each side without which nothing is said.
pub const REPEATS_MIN: usize = 5;

/// A statement about a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Says {
    /// The first side is above the second: the whole interval lies above 1.
    Above,
    /// The first side is below the second: the whole interval lies below 1.
    Below,
    /// The interval includes 1.
    Undecided,
    /// There are fewer repeats than [`REPEATS_MIN`].
    TooFewRepeats,
}

impl Says {
    /// The statement as a sentence.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Says::Above => "above: the interval excludes 1",
            Says::Below => "below: the interval excludes 1",
            Says::Undecided => "no difference can be told: the interval includes 1",
            Says::TooFewRepeats => "nothing is said of fewer than 5 repeats",
        }
    }
}

/// The ratio of two sides over paired repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Geometric mean of first ÷ second.
    pub ratio: f64,
    /// Lower end of the 95% interval (Student's t on logarithms of the pairs' ratios).
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Pairs.
    pub repeats_count: usize,
    /// The statement that follows.
    pub says: Says,
}

/// Compares measurements that were taken in pairs, one of each side per round; all must be above 0.
#[must_use]
pub fn compare(pairs: &[(f64, f64)]) -> Option<Ratio> {
    let usable = |v: f64| v.is_finite() && v > 0.0;
    if pairs.is_empty() || !pairs.iter().all(|p| usable(p.0) && usable(p.1)) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (a / b).ln()).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let half = match logs.len() {
        1 => f64::INFINITY,
        _ => {
            let squares: f64 = logs.iter().map(|l| (l - mean).powi(2)).sum();
            let error = (squares / (count - 1.0) / count).sqrt();
            let t = StudentsT::new(0.0, 1.0, count - 1.0).ok()?;
            t.inverse_cdf(0.975) * error
        }
    };
    let (low, high) = ((mean - half).exp(), (mean + half).exp());
    Some(Ratio {
        ratio: mean.exp(),
        low,
        high,
        repeats_count: logs.len(),
        says: match () {
            () if logs.len() < REPEATS_MIN => Says::TooFewRepeats,
            () if low > 1.0 => Says::Above,
            () if high < 1.0 => Says::Below,
            () => Says::Undecided,
        },
    })
}

/// The order of the runs: in each round every side once, in a random order of its own.
#[must_use]
pub fn schedule(sides: usize, rounds: usize, seed: u64) -> Vec<(usize, usize)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let round = |round| {
        let mut order: Vec<usize> = (0..sides).collect();
        rng.shuffle(&mut order);
        order
            .into_iter()
            .map(move |side| (round, side))
            .collect::<Vec<_>>()
    };
    (0..rounds).flat_map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(seed: u64, factor: f64, repeats: usize) -> Vec<(f64, f64)> {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Rounds differ much, sides of one round little: what pairing is for.
        (0..repeats)
            .map(|_| {
                let round = 1000.0 * (0.5 + rng.f64());
                let mut side = |factor: f64| round * factor * (1.0 + 0.04 * (rng.f64() - 0.5));
                (side(factor), side(1.0))
            })
            .collect()
    }

    #[test]
    fn equal_sides_are_rarely_distinguished_and_unequal_ones_are() {
        let says = |factor: f64, wanted: Says| {
            let hits =
                (0..1000).filter(|seed| compare(&noisy(*seed, factor, 5)).unwrap().says == wanted);
            hits.count()
        };
        assert!(says(1.0, Says::Undecided) >= 925);
        assert!(says(1.1, Says::Above) >= 990);
        assert!(says(0.9, Says::Below) >= 990);
    }

    #[test]
    fn a_known_interval() {
        // Logarithms 0.1, 0.2, 0.3, 0.4, 0.5: mean 0.3, standard error 0.0707, t(4) = 2.776.
        let pairs: Vec<(f64, f64)> = (1..=5)
            .map(|i| ((f64::from(i) / 10.0).exp(), 1.0))
            .collect();
        let ratio = compare(&pairs).unwrap();
        assert!((ratio.ratio.ln() - 0.3).abs() < 1e-9);
        assert!((ratio.low.ln() - (0.3 - 2.776_445 * 0.070_710_678)).abs() < 1e-5);
        assert_eq!(ratio.says, Says::Above);
        assert_eq!(compare(&pairs[..4]).unwrap().says, Says::TooFewRepeats);
        assert!(compare(&[]).is_none() && compare(&[(0.0, 1.0)]).is_none());
    }

    #[test]
    fn rounds_interleave_the_sides_in_changing_order() {
        let order = schedule(3, 6, 1);
        assert_eq!(order, schedule(3, 6, 1));
        let mut orders = std::collections::BTreeSet::new();
        for (number, round) in order.chunks(3).enumerate() {
            assert!(round.iter().all(|(r, _)| *r == number));
            let mut sides: Vec<usize> = round.iter().map(|(_, side)| *side).collect();
            orders.insert(sides.clone());
            sides.sort_unstable();
            assert_eq!(sides, [0, 1, 2]);
        }
        assert!(orders.len() > 1);
    }

    #[test]
    fn sides_that_are_equal_are_undecided_and_no_side_may_be_nothing() {
        let equal = compare(&[(3.0, 3.0); 5]).unwrap();
        assert_eq!((equal.ratio, equal.says), (1.0, Says::Undecided));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(compare(&[(1.0, 2.0), (1.0, wrong)]).is_none(), "{wrong}");
            assert!(compare(&[(1.0, 2.0), (wrong, 1.0)]).is_none(), "{wrong}");
        }
    }

    #[test]
    fn another_seed_is_another_order() {
        let orders = (0..20).map(|seed| schedule(3, 6, seed));
        let distinct: std::collections::BTreeSet<_> = orders.collect();
        assert!(distinct.len() > 15, "{}", distinct.len());
    }
}
