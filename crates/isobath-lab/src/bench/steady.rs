//! Whether a series of measurements has stopped changing: CUSUM for a change of the mean, with a
//! variance that allows for autocorrelation.
//!
//! Paper 002, section 4.1, asks for CUSUM over throughput, WA-A and WA-D together. The statistic
//! here is the largest
//! |S_k| / (σ √n), S_k being the sum of the first k deviations from the mean and σ² the long-run variance (Newey and
//! West's, with Bartlett weights). For a stationary series it is distributed like the largest
//! excursion of a Brownian bridge (Kolmogorov's distribution), whatever the autocorrelation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The detector's input.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SteadyParameters {
    /// Samples that the steady part must have at least.
    pub samples_min: usize,
    /// Share of the series that the steady part must be at least.
    pub share_min: f64,
    /// Critical value of the statistic; 1.358 is Kolmogorov's for 5%.
    pub critical: f64,
    /// A change of the mean, relative, below which a significant change is of no consequence.
    pub tolerance: f64,
    /// Operations that the steady part must have at least: counts of fewer say nothing of a rate.
    pub operations_min: u64,
}

impl Default for SteadyParameters {
    fn default() -> SteadyParameters {
        SteadyParameters {
            samples_min: 30,
            share_min: 1.0 / 3.0,
            critical: 1.358,
            tolerance: 0.02,
            operations_min: 300,
        }
    }
}

impl fmt::Display for SteadyParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "steady by CUSUM: critical value {}, changes up to {}% of the mean are let pass, at least {} samples, {} operations and {:.0}% of the run",
            self.critical,
            self.tolerance * 100.0,
            self.samples_min,
            self.operations_min,
            self.share_min * 100.0
        )
    }
}

/// The verdict on one series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steady {
    /// Its mean does not change from this sample on.
    From(usize),
    /// Its mean still changes.
    Drifting,
    /// There are too few samples to say.
    TooShort,
}

/// Starts that are tried, as shares of the series.
const STARTS: usize = 12;

/// The point at which all series, sampled at the same times, have stopped changing.
#[must_use]
pub fn steady(series: &[&[f64]], parameters: &SteadyParameters) -> Steady {
    let Some(samples) = series.iter().map(|one| one.len()).min() else {
        return Steady::TooShort;
    };
    let least = parameters
        .samples_min
        .max((samples as f64 * parameters.share_min).ceil() as usize);
    if samples < least {
        return Steady::TooShort;
    }
    let is_steady = |start: usize| {
        series
            .iter()
            .all(|one| !changes(&one[start..samples], parameters))
    };
    let starts = (0..=STARTS).map(|step| (samples - least) * step / STARTS);
    match starts.into_iter().find(|start| is_steady(*start)) {
        Some(start) => Steady::From(start),
        None => Steady::Drifting,
    }
}

/// Whether the mean of a series changes, significantly and by more than the tolerance.
fn changes(series: &[f64], parameters: &SteadyParameters) -> bool {
    let mean = mean(series);
    let mut sum = 0.0;
    let (mut largest, mut at) = (0.0f64, 0);
    for (index, value) in series.iter().enumerate() {
        sum += value - mean;
        if sum.abs() > largest {
            (largest, at) = (sum.abs(), index + 1);
        }
    }
    if largest == 0.0 || at == 0 || at == series.len() {
        return false;
    }
    // The variance is that around the means before and after the most likely change, so that a
    // change does not hide in it.
    let (before, after) = series.split_at(at);
    let means = (self::mean(before), self::mean(after));
    let size = (means.1 - means.0).abs() / mean.abs().max(f64::MIN_POSITIVE);
    let residuals: Vec<f64> = before
        .iter()
        .map(|v| v - means.0)
        .chain(after.iter().map(|v| v - means.1))
        .collect();
    let statistic = largest / (long_run_variance(&residuals) * series.len() as f64).sqrt();
    size > parameters.tolerance && statistic > parameters.critical
}

fn mean(series: &[f64]) -> f64 {
    series.iter().sum::<f64>() / series.len().max(1) as f64
}

/// Newey and West's estimate with Bartlett weights; the bandwidth follows Andrews' rule for an
/// autoregressive series.
fn long_run_variance(residuals: &[f64]) -> f64 {
    let count = residuals.len();
    let covariance = |lag: usize| {
        let pairs = residuals.iter().zip(&residuals[lag..]);
        pairs.map(|(a, b)| a * b).sum::<f64>() / count as f64
    };
    let variance = covariance(0);
    if variance <= 0.0 {
        return f64::MIN_POSITIVE;
    }
    let rho = (covariance(1) / variance).clamp(-0.9, 0.95);
    let alpha = 4.0 * rho * rho / ((1.0 - rho * rho).powi(2));
    let bandwidth = 1.1447 * (alpha * count as f64).cbrt();
    let lags = (bandwidth.ceil() as usize).clamp(1, count / 3);
    let tail: f64 = (1..=lags)
        .map(|lag| 2.0 * (1.0 - lag as f64 / (lags as f64 + 1.0)) * covariance(lag))
        .sum();
    // Residuals around two fitted means vary less than the series does.
    (variance + tail).max(variance * 0.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An autoregressive series around `mean(t)` with standard deviation `noise`.
    fn series(
        seed: u64,
        samples: usize,
        rho: f64,
        noise: f64,
        mean: impl Fn(f64) -> f64,
    ) -> Vec<f64> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut normal = || (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
        let mut state = normal();
        (0..samples)
            .map(|t| {
                state = rho * state + (1.0 - rho * rho).sqrt() * normal();
                mean(t as f64 / samples as f64) * (1.0 + noise * state)
            })
            .collect()
    }

    fn rate(rho: f64, mean: impl Fn(f64) -> f64 + Copy) -> f64 {
        let found = (0..400).filter(|seed| {
            let one = series(*seed, 240, rho, 0.05, mean);
            steady(&[&one], &SteadyParameters::default()) != Steady::Drifting
        });
        f64::from(found.count() as u32) / 400.0
    }

    #[test]
    fn false_alarms_are_rare_at_any_autocorrelation() {
        for rho in [0.0, 0.5, 0.8] {
            let accepted = rate(rho, |_| 1000.0);
            assert!(accepted >= 0.95, "{rho}: {accepted}");
        }
    }

    #[test]
    fn what_still_changes_is_detected() {
        for rho in [0.0, 0.5] {
            // Throughput that falls all the time, as a drive does that fills up.
            let accepted = rate(rho, |t| 1000.0 * (1.0 - 0.5 * t));
            assert!(accepted <= 0.10, "{rho}: {accepted}");
            // A step shortly before the end.
            let accepted = rate(rho, |t| if t < 0.85 { 1000.0 } else { 700.0 });
            assert!(accepted <= 0.10, "{rho}: {accepted}");
        }
    }

    #[test]
    fn the_steady_part_begins_after_the_change() {
        let falls = |t: f64| if t < 0.4 { 2000.0 - 2500.0 * t } else { 1000.0 };
        let one = series(3, 240, 0.3, 0.03, falls);
        let flat = vec![1.5; 240];
        let parameters = SteadyParameters::default();
        let Steady::From(at) = steady(&[&one, &flat], &parameters) else {
            panic!("not found");
        };
        assert!((70..=150).contains(&at), "{at}");
        // One series that still changes is enough.
        let rising: Vec<f64> = (0..240).map(|t| 1.0 + f64::from(t) / 240.0).collect();
        assert_eq!(steady(&[&one, &rising], &parameters), Steady::Drifting);
        assert_eq!(steady(&[&one[..20]], &parameters), Steady::TooShort);
        assert_eq!(steady(&[], &parameters), Steady::TooShort);
        assert_eq!(steady(&[&flat], &parameters), Steady::From(0));
    }

    /// A series whose mean changes once, without noise.
    fn step(samples: usize, at: usize, by: f64) -> Vec<f64> {
        let value = |t| if t < at { 1.0 } else { 1.0 + by };
        (0..samples).map(value).collect()
    }

    #[test]
    fn the_tolerance_is_that_of_the_change_itself() {
        let parameters = SteadyParameters::default();
        for at in [10, 30, 50] {
            // Relative to the mean of the whole, a change by 2% or a little more.
            let share = (60 - at) as f64 / 60.0;
            let limit = parameters.tolerance / (1.0 - parameters.tolerance * share);
            assert!(!changes(&step(60, at, limit * 0.99), &parameters), "{at}");
            assert!(changes(&step(60, at, limit * 1.01), &parameters), "{at}");
        }
    }

    #[test]
    fn the_shortest_and_the_last_steady_parts_are_found() {
        let parameters = SteadyParameters::default();
        let of = |samples| steady(&[&step(samples, samples, 1.0)], &parameters);
        assert_eq!(of(parameters.samples_min), Steady::From(0));
        assert_eq!(of(parameters.samples_min - 1), Steady::TooShort);
        // Only the last third does not change.
        assert_eq!(
            steady(&[&step(240, 155, 1.0)], &parameters),
            Steady::From(160)
        );
    }
}
