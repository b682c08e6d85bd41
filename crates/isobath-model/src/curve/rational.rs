//! Equations 5 and 6: rational cost functions of k, as the paper fits them and as they should be
//! fitted.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::CostCurve;
use crate::error::FitError;
use crate::nonlinear::{Parameter, minimize};

/// Degree of numerator and denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RationalDegree {
    /// Equation 5: t(k), α(k), s(k).
    Two,
    /// Equation 6: β(k).
    Three,
}

impl RationalDegree {
    /// The degree as a number.
    pub fn get(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    /// Free parameters once d₀ = 1: numerator and denominator share a factor, so one coefficient is
    /// no parameter.
    pub fn parameter_count(self) -> usize {
        2 * self.get() + 1
    }
}

/// (c₀ + c₁k + …) / (d₀ + d₁k + …) with d₀ = 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rational {
    /// c₀, c₁, …
    pub numerator: Vec<f64>,
    /// d₀ = 1, d₁, …
    pub denominator: Vec<f64>,
}

impl CostCurve for Rational {
    fn at(&self, k: f64) -> f64 {
        horner(&self.numerator, k) / horner(&self.denominator, k)
    }
}

/// Greatest d ln f / d ln k beyond the measured range that counts as flat.
const RISE_MAX: f64 = 1e-3;

fn horner(coefficients: &[f64], k: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * k + c)
}

impl Rational {
    /// As printed: least squares on the absolute error, coefficients of any sign.
    ///
    /// Nothing keeps such a fit from having poles or negative values between the points; see
    /// [`Self::poles_from`]. Points are `(k, cost)`. Fewer points than free parameters is an error
    /// of the caller's model.
    pub fn fit_as_printed(points: &[(f64, f64)], degree: RationalDegree) -> Result<Self, FitError> {
        let n = degree.get();
        let mut best = linearized(points, n).ok_or_else(no_convergence)?;
        // Iterating the linear problem with the last denominator as weight converges to a
        // stationary point of the absolute error (Sanathanan and Koerner), without bounds and with
        // any sign.
        for _ in 0..40 {
            let Some(next) = reweighted(points, n, &best) else {
                break;
            };
            if absolute_error(&next, points) < absolute_error(&best, points) {
                best = next;
            }
        }
        Ok(best)
    }

    /// As corrected: d₀ = 1, coefficients positive (no pole for k > 0), relative errors, and no
    /// rise beyond the measured range on either side.
    pub fn fit(points: &[(f64, f64)], degree: RationalDegree) -> Result<Self, FitError> {
        let n = degree.get();
        let first = points.iter().map(|p| p.0).fold(f64::INFINITY, f64::min);
        let last = points.iter().map(|p| p.0).fold(0.0, f64::max);
        let (low, high) = points
            .iter()
            .fold((f64::INFINITY, 0.0f64), |(low, high), p| {
                (low.min(p.1), high.max(p.1))
            });
        if !(first >= 1.0 && low > 0.0 && high.is_finite()) {
            return Err(FitError::BadPoint {
                index: 0,
                what: "cost",
                value: low,
            });
        }
        let parameters: Vec<_> = (0..=n)
            .map(|i| Parameter::new(low * 1e-9, high / 8f64.powi(i as i32), high * 1e6))
            .chain((1..=n).map(|i| Parameter::new(1e-9, 1.0 / 8f64.powi(i as i32 - 1), 1e6)))
            .collect();
        let starts: Vec<Vec<f64>> = [1.0, 4.0, 16.0, 64.0]
            .iter()
            .map(|&k0| start_around(n, low, high, k0))
            .collect();
        let outside: Vec<f64> = (0..12)
            .map(|i| last * 2f64.powi(i))
            .chain([first])
            .collect();
        let residuals = |v: &[f64]| -> Vec<f64> {
            let curve = Self::from_values(v, n);
            let errors = points.iter().map(|&(k, y)| (curve.at(k) / y).ln());
            let rises = outside.iter().map(|&k| 100.0 * curve.log_slope(k).max(0.0));
            errors.chain(rises).collect()
        };
        let minimum = minimize(&parameters, &starts, &residuals).ok_or_else(no_convergence)?;
        let curve = Self::from_values(&minimum.values, n);
        // The penalty makes a rise expensive, not impossible: what it did not prevent is refused.
        if outside.iter().any(|&k| curve.log_slope(k) > RISE_MAX) {
            return Err(no_convergence());
        }
        Ok(curve)
    }

    fn from_values(v: &[f64], degree: usize) -> Self {
        let mut denominator = vec![1.0];
        denominator.extend_from_slice(&v[degree + 1..]);
        Self {
            numerator: v[..=degree].to_vec(),
            denominator,
        }
    }

    /// d ln f / d ln k, in closed form: the penalty must be exact, a difference quotient would let
    /// slow rises pass.
    fn log_slope(&self, k: f64) -> f64 {
        let part = |c: &[f64]| {
            let weighted: Vec<f64> = c.iter().enumerate().map(|(i, c)| c * i as f64).collect();
            horner(&weighted, k) / horner(c, k)
        };
        part(&self.numerator) - part(&self.denominator)
    }

    /// Real poles at or beyond `k`, in ascending order.
    pub fn poles_from(&self, k: f64) -> Vec<f64> {
        let mut d = self.denominator.clone();
        while d.last().is_some_and(|c| c.abs() < 1e-300) {
            d.pop();
        }
        let n = d.len().saturating_sub(1);
        if n == 0 {
            return Vec::new();
        }
        // Roots of a polynomial are the eigenvalues of its companion matrix.
        let companion = DMatrix::from_fn(n, n, |row, column| {
            let last = if column == n - 1 { -d[row] / d[n] } else { 0.0 };
            last + if row == column + 1 { 1.0 } else { 0.0 }
        });
        let mut poles: Vec<f64> = companion
            .complex_eigenvalues()
            .iter()
            .filter(|root| root.im.abs() <= 1e-7 * (1.0 + root.re.abs()) && root.re >= k)
            .map(|root| root.re)
            .collect();
        poles.sort_by(f64::total_cmp);
        poles
    }
}

/// Coefficients of (high + low·(k/k₀)ⁿ) / (1 + (k/k₀)ⁿ) with the middle terms small: a saturating
/// start.
fn start_around(n: usize, low: f64, high: f64, k0: f64) -> Vec<f64> {
    let numerator = (0..=n).map(|i| {
        if i == 0 {
            high
        } else {
            low.max(high * 1e-3) / k0.powi(i as i32)
        }
    });
    numerator
        .chain((1..=n).map(|i| 1.0 / k0.powi(i as i32)))
        .collect()
}

fn absolute_error(curve: &Rational, points: &[(f64, f64)]) -> f64 {
    let sum: f64 = points.iter().map(|&(k, y)| (curve.at(k) - y).powi(2)).sum();
    if sum.is_finite() { sum } else { f64::INFINITY }
}

fn linearized(points: &[(f64, f64)], n: usize) -> Option<Rational> {
    solve_linearized(points, n, |_| 1.0)
}

fn reweighted(points: &[(f64, f64)], n: usize, last: &Rational) -> Option<Rational> {
    solve_linearized(points, n, |k| 1.0 / horner(&last.denominator, k))
}

/// Solves c₀ + … + cₙkⁿ − y·(d₁k + … + dₙkⁿ) = y by linear least squares with the given weights.
fn solve_linearized(
    points: &[(f64, f64)],
    n: usize,
    weight: impl Fn(f64) -> f64,
) -> Option<Rational> {
    let scale = points.iter().map(|p| p.0).fold(1.0, f64::max);
    let matrix = DMatrix::from_fn(points.len(), 2 * n + 1, |row, column| {
        let (k, y) = (points[row].0 / scale, points[row].1);
        weight(points[row].0)
            * if column <= n {
                k.powi(column as i32)
            } else {
                -y * k.powi((column - n) as i32)
            }
    });
    let right = DVector::from_fn(points.len(), |row, _| weight(points[row].0) * points[row].1);
    let solution = matrix.svd(true, true).solve(&right, 1e-13).ok()?;
    let unscaled: Vec<f64> = (0..=n)
        .map(|i| solution[i] / scale.powi(i as i32))
        .chain((1..=n).map(|i| solution[n + i] / scale.powi(i as i32)))
        .collect();
    unscaled
        .iter()
        .all(|v| v.is_finite())
        .then(|| Rational::from_values(&unscaled, n))
}

fn no_convergence() -> FitError {
    FitError::no_convergence("a rational cost function")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poles_are_found_where_they_are() {
        // (k - 2)(k - 5)(k + 1) = 10 + 3k - 6k² + k³, divided by 10 so that d₀ = 1.
        let curve = Rational {
            numerator: vec![1.0],
            denominator: vec![1.0, 0.3, -0.6, 0.1],
        };
        let poles = curve.poles_from(1.0);
        assert_eq!(poles.len(), 2, "{poles:?}");
        assert!((poles[0] - 2.0).abs() < 1e-6 && (poles[1] - 5.0).abs() < 1e-6);
        assert!(
            Rational {
                numerator: vec![1.0],
                denominator: vec![1.0, 0.0, 2.0]
            }
            .poles_from(0.0)
            .is_empty()
        );
    }

    #[test]
    fn printed_fit_interpolates_an_exact_rational() {
        let truth = Rational {
            numerator: vec![9.0, 2.0, 0.5],
            denominator: vec![1.0, 0.7, 0.9],
        };
        let points: Vec<_> = (0..8)
            .map(|i| (2f64.powi(i), truth.at(2f64.powi(i))))
            .collect();
        let fit = Rational::fit_as_printed(&points, RationalDegree::Two).unwrap();
        assert!((fit.at(3.0) / truth.at(3.0) - 1.0).abs() < 1e-6);
    }
}
