//! Bounded non-linear least squares over the `levenberg-marquardt` crate.
//!
//! Every parameter lives between two positive bounds and is fitted on the logarithm: costs span decades, and bounds are
//! what keeps a fit on twenty noisy points from running to absurd values. The map from an unbounded variable to the
//! interval is smooth, so the solver itself stays the textbook one.

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::{DMatrix, DVector, Dyn, Owned};

/// One positive parameter: its admissible range and where to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) start: f64,
}

impl Parameter {
    pub(crate) fn new(low: f64, start: f64, high: f64) -> Self {
        Self {
            low,
            high,
            start: start.clamp(low, high),
        }
    }

    fn value(&self, u: f64) -> f64 {
        let share = 1.0 / (1.0 + (-u).exp());
        (self.low.ln() + (self.high / self.low).ln() * share).exp()
    }

    fn coordinate(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        let share = share.clamp(1e-3, 1.0 - 1e-3);
        (share / (1.0 - share)).ln()
    }
}

/// The best optimum over all starts.
#[derive(Debug, Clone)]
pub(crate) struct Minimum {
    pub(crate) values: Vec<f64>,
    pub(crate) sum_of_squares: f64,
}

fn to_values(parameters: &[Parameter], coordinates: &[f64]) -> Vec<f64> {
    parameters
        .iter()
        .zip(coordinates)
        .map(|(p, &u)| p.value(u))
        .collect()
}

const STEP: f64 = 1e-5;

fn jacobian(
    parameters: &[Parameter],
    at: &[f64],
    residuals: &dyn Fn(&[f64]) -> Vec<f64>,
) -> DMatrix<f64> {
    let columns: Vec<DVector<f64>> = (0..at.len())
        .map(|j| {
            let (mut up, mut down) = (at.to_vec(), at.to_vec());
            up[j] += STEP;
            down[j] -= STEP;
            let (up, down) = (
                residuals(&to_values(parameters, &up)),
                residuals(&to_values(parameters, &down)),
            );
            DVector::from_iterator(
                up.len(),
                up.iter().zip(&down).map(|(a, b)| (a - b) / (2.0 * STEP)),
            )
        })
        .collect();
    DMatrix::from_columns(&columns)
}

struct Problem<'a> {
    parameters: &'a [Parameter],
    residuals: &'a dyn Fn(&[f64]) -> Vec<f64>,
    at: DVector<f64>,
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Problem<'_> {
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;
    type ParameterStorage = Owned<f64, Dyn>;

    fn set_params(&mut self, x: &DVector<f64>) {
        self.at.copy_from(x);
    }

    fn params(&self) -> DVector<f64> {
        self.at.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        let r = (self.residuals)(&to_values(self.parameters, self.at.as_slice()));
        r.iter()
            .all(|v| v.is_finite())
            .then(|| DVector::from_vec(r))
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        let j = jacobian(self.parameters, self.at.as_slice(), self.residuals);
        j.iter().all(|v| v.is_finite()).then_some(j)
    }
}

/// Minimizes the sum of squared residuals from each start in turn and keeps the best finite optimum.
///
/// Fewer residuals than parameters are padded with zeros: callers that allow it regularize with a prior.
/// Returns `None` if no start leads to a finite optimum.
pub(crate) fn minimize(
    parameters: &[Parameter],
    extra_starts: &[Vec<f64>],
    residuals: &dyn Fn(&[f64]) -> Vec<f64>,
) -> Option<Minimum> {
    let padded = |values: &[f64]| {
        let mut r = residuals(values);
        r.resize(r.len().max(parameters.len()), 0.0);
        r
    };
    let first: Vec<f64> = parameters.iter().map(|p| p.start).collect();
    let mut best: Option<Minimum> = None;
    for start in std::iter::once(&first).chain(extra_starts) {
        let at = DVector::from_iterator(
            parameters.len(),
            parameters
                .iter()
                .zip(start)
                .map(|(p, &value)| p.coordinate(value)),
        );
        let problem = Problem {
            parameters,
            residuals: &padded,
            at,
        };
        let (problem, report) = LevenbergMarquardt::new()
            .with_patience(200)
            .minimize(problem);
        let sum_of_squares = 2.0 * report.objective_function;
        if !sum_of_squares.is_finite()
            || best
                .as_ref()
                .is_some_and(|b| b.sum_of_squares <= sum_of_squares)
        {
            continue;
        }
        best = Some(Minimum {
            values: to_values(parameters, problem.at.as_slice()),
            sum_of_squares,
        });
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exponential(values: &[f64]) -> Vec<f64> {
        (0..8)
            .map(|x| {
                values[0] * (-f64::from(x) / values[1]).exp() - 5.0 * (-f64::from(x) / 2.5).exp()
            })
            .collect()
    }

    #[test]
    fn finds_the_exact_optimum_and_respects_bounds() {
        let free = [
            Parameter::new(0.1, 1.0, 100.0),
            Parameter::new(0.1, 1.0, 100.0),
        ];
        let minimum = minimize(&free, &[], &exponential).unwrap();
        assert!(
            (minimum.values[0] - 5.0).abs() < 1e-5 && (minimum.values[1] - 2.5).abs() < 1e-5,
            "{minimum:?}"
        );
        let bounded = [
            Parameter::new(0.1, 1.0, 4.0),
            Parameter::new(0.1, 1.0, 100.0),
        ];
        let minimum = minimize(&bounded, &[], &exponential).unwrap();
        assert!(
            minimum.values[0] <= 4.0 && minimum.values[0] > 3.9,
            "{minimum:?}"
        );
    }

    #[test]
    fn a_residual_that_is_never_finite_gives_none() {
        assert!(minimize(&[Parameter::new(1.0, 2.0, 3.0)], &[], &|_| vec![f64::NAN]).is_none());
    }
}
