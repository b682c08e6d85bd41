//! a + b / (1 + (k/k₀)^p): costs fall with concurrency and converge to the drive's limit `a`.

use serde::{Deserialize, Serialize};

use super::CostCurve;
use crate::error::FitError;
use crate::nonlinear::{Minimum, Parameter, minimize};

/// What a fit minimizes over the errors of the logarithm of the cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FitNorm {
    /// Sum of squares: the choice for noisy measurements and for extrapolation.
    #[default]
    Squares,
    /// Close to the largest error (a sum of eighth powers): the choice to condense a table that is
    /// taken as exact.
    Largest,
}

/// The saturating form. All parameters are positive, so it has no pole, falls monotonically for
/// every k ≥ 0 and never leaves the interval (a, a + b): it extrapolates to the drive's limit
/// instead of to infinity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Saturating {
    /// `a`: the limit at high concurrency, in the unit of the cost.
    pub limit: f64,
    /// `b`: what concurrency can remove, in the unit of the cost.
    pub removable: f64,
    /// `k₀`: the concurrency at which half of `b` is gone.
    pub half_concurrency: f64,
    /// `p`: how sharply the cost falls around `k₀`.
    pub sharpness: f64,
}

impl CostCurve for Saturating {
    fn at(&self, k: f64) -> f64 {
        self.limit + self.removable / (1.0 + (k / self.half_concurrency).powf(self.sharpness))
    }
}

impl Saturating {
    /// Parameters; a curve needs at least as many distinct k.
    pub const PARAMETER_COUNT: usize = 4;

    pub(crate) fn from_values(v: &[f64]) -> Self {
        Self {
            limit: v[0],
            removable: v[1],
            half_concurrency: v[2],
            sharpness: v[3],
        }
    }

    /// d cost / d ln(parameter), in the order of the fields.
    pub(crate) fn slopes(&self, k: f64) -> [f64; Self::PARAMETER_COUNT] {
        let power = (k / self.half_concurrency).powf(self.sharpness);
        let removable = self.removable / (1.0 + power);
        let by_power = -removable * power / (1.0 + power);
        [
            self.limit,
            removable,
            -by_power * self.sharpness,
            by_power * self.sharpness * (k / self.half_concurrency).ln(),
        ]
    }

    /// Fits `(k, cost)` points on the logarithm, by several starts over `k₀` and `p`.
    pub fn fit(points: &[(f64, f64)], norm: FitNorm) -> Result<Self, FitError> {
        let bad = points
            .iter()
            .position(|&(k, y)| !(k >= 1.0 && k.is_finite() && y > 0.0 && y.is_finite()));
        if let Some(index) = bad {
            return Err(FitError::BadPoint {
                index,
                what: "cost",
                value: points[index].1,
            });
        }
        let low = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let high = points.iter().map(|p| p.1).fold(0.0, f64::max);
        let parameters = [
            Parameter::new(low * 1e-3, low * 0.8, high * 1.1),
            Parameter::new(high * 1e-3, high, high * 1e4),
            Parameter::new(0.01, 2.0, 1e4),
            Parameter::new(0.2, 1.3, 6.0),
        ];
        let starts: Vec<Vec<f64>> = [0.3, 1.0, 8.0, 32.0]
            .iter()
            .flat_map(|&k0| [1.0, 2.0].map(|p| vec![low * 0.9, high, k0, p]))
            .collect();
        let errors = |v: &[f64]| -> Vec<f64> {
            let curve = Self::from_values(v);
            points
                .iter()
                .map(|&(k, y)| (curve.at(k) / y).ln())
                .collect()
        };
        let mut best = minimize(&parameters, &starts, &errors).ok_or_else(no_convergence)?;
        if norm == FitNorm::Largest {
            best = towards_largest(&parameters, best, &errors).ok_or_else(no_convergence)?;
        }
        Ok(Self::from_values(&best.values))
    }
}

/// Raises the power of the errors step by step from the least-squares optimum: jumping to a high
/// power at once leaves the solver on a plateau.
fn towards_largest(
    parameters: &[Parameter],
    mut best: Minimum,
    errors: &impl Fn(&[f64]) -> Vec<f64>,
) -> Option<Minimum> {
    for power in [2, 3, 4] {
        let scale = (best.values.len() as f64 * largest(&errors(&best.values))).max(1e-12);
        let powered = |v: &[f64]| -> Vec<f64> {
            errors(v)
                .iter()
                .map(|e| (e / scale).abs().powi(power).copysign(*e))
                .collect()
        };
        best = minimize(parameters, &[best.values.clone()], &powered)?;
    }
    Some(best)
}

fn largest(errors: &[f64]) -> f64 {
    errors.iter().fold(0.0, |m, e| e.abs().max(m))
}

fn no_convergence() -> FitError {
    FitError::no_convergence("the saturating cost curve")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn falls_monotonically_and_has_no_pole(
            limit in 0.01f64..10.0, removable in 0.01f64..100.0, k0 in 0.02f64..100.0, p in 0.3f64..5.0
        ) {
            let curve = Saturating { limit, removable, half_concurrency: k0, sharpness: p };
            let mut last = f64::INFINITY;
            for i in 0..200 {
                let y = curve.at(1.1f64.powi(i));
                prop_assert!(y.is_finite() && y >= limit && y <= last);
                last = y;
            }
        }

        #[test]
        fn recovers_its_own_values(
            limit in 0.1f64..1.0, removable in 5.0f64..100.0, k0 in 0.5f64..16.0, p in 0.8f64..2.5
        ) {
            let truth = Saturating { limit, removable, half_concurrency: k0, sharpness: p };
            let points: Vec<_> = (0..8).map(|i| (2f64.powi(i), truth.at(2f64.powi(i)))).collect();
            let fit = Saturating::fit(&points, FitNorm::Squares).unwrap();
            for &(k, y) in &points {
                prop_assert!((fit.at(k) / y - 1.0).abs() < 1e-3, "k={k}: {} against {y}", fit.at(k));
            }
        }
    }

    #[test]
    fn refuses_a_cost_of_zero() {
        let error = Saturating::fit(&[(1.0, 1.0), (2.0, 0.0)], FitNorm::Squares).unwrap_err();
        assert!(
            matches!(error, FitError::BadPoint { index: 1, .. }),
            "{error}"
        );
    }
}
