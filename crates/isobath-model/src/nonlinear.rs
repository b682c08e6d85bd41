//! Bounded non-linear least squares over the `levenberg-marquardt` crate.
//!
//! Every parameter lives between two positive bounds and is fitted on the logarithm: costs span
//! decades, and bounds are what keeps a fit on twenty noisy points from running to absurd values.
//! The map from an unbounded variable to the interval is smooth, so the solver itself stays the
//! textbook one.

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

    /// d ln(value) / du.
    fn ln_slope(&self, u: f64) -> f64 {
        let share = 1.0 / (1.0 + (-u).exp());
        (self.high / self.low).ln() * share * (1.0 - share)
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

/// Relative change of the sum of squares, and of the parameters, below which an optimum is reached:
/// far below the noise of any measurement.
const TOLERANCE: f64 = 1e-9;
/// Evaluations per parameter until a start is given up.
const PATIENCE: usize = 50;

const STEP: f64 = 1e-5;

/// What is minimized: the sum of squares of its residuals.
pub(crate) trait Objective {
    /// The residuals at these parameters; always as many.
    fn residuals(&self, values: &[f64]) -> Vec<f64>;

    /// d residual / d ln(value), a row per residual; `None` if a model has none, and differences
    /// take their place.
    fn slopes(&self, _values: &[f64]) -> Option<DMatrix<f64>> {
        None
    }
}

impl<F: Fn(&[f64]) -> Vec<f64>> Objective for F {
    fn residuals(&self, values: &[f64]) -> Vec<f64> {
        self(values)
    }
}

struct Problem<'a> {
    parameters: &'a [Parameter],
    objective: &'a dyn Objective,
    at: DVector<f64>,
}

impl Problem<'_> {
    /// Fewer residuals than parameters are padded with zeros: callers that allow it regularize with
    /// a prior.
    fn padded(&self, coordinates: &[f64]) -> Vec<f64> {
        let values = to_values(self.parameters, coordinates);
        let mut residuals = self.objective.residuals(&values);
        residuals.resize(residuals.len().max(self.parameters.len()), 0.0);
        residuals
    }

    fn differences(&self) -> DMatrix<f64> {
        let at = self.at.as_slice();
        let column = |j: usize| {
            let (mut up, mut down) = (at.to_vec(), at.to_vec());
            up[j] += STEP;
            down[j] -= STEP;
            let (up, down) = (self.padded(&up), self.padded(&down));
            let slope = up.iter().zip(&down).map(|(a, b)| (a - b) / (2.0 * STEP));
            DVector::from_iterator(up.len(), slope)
        };
        let columns: Vec<DVector<f64>> = (0..at.len()).map(column).collect();
        DMatrix::from_columns(&columns)
    }

    /// The slopes in the solver's unbounded variables.
    fn written_down(&self) -> Option<DMatrix<f64>> {
        let values = to_values(self.parameters, self.at.as_slice());
        let mut slopes = self.objective.slopes(&values)?;
        for (j, parameter) in self.parameters.iter().enumerate() {
            let scale = parameter.ln_slope(self.at[j]);
            slopes.column_mut(j).scale_mut(scale);
        }
        let rows = slopes.nrows().max(self.parameters.len());
        Some(slopes.resize_vertically(rows, 0.0))
    }
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
        let r = self.padded(self.at.as_slice());
        r.iter()
            .all(|v| v.is_finite())
            .then(|| DVector::from_vec(r))
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        let j = self.written_down().unwrap_or_else(|| self.differences());
        j.iter().all(|v| v.is_finite()).then_some(j)
    }
}

/// Minimizes from the parameters' own starts and from `extra_starts`; see [`minimize_from`].
pub(crate) fn minimize(
    parameters: &[Parameter],
    extra_starts: &[Vec<f64>],
    objective: &dyn Objective,
) -> Option<Minimum> {
    let mut starts = vec![parameters.iter().map(|p| p.start).collect::<Vec<f64>>()];
    starts.extend_from_slice(extra_starts);
    minimize_from(parameters, &starts, objective)
}

/// Minimizes the sum of squared residuals from each start in turn and keeps the best finite
/// optimum; `None` if there is none.
pub(crate) fn minimize_from(
    parameters: &[Parameter],
    starts: &[Vec<f64>],
    objective: &dyn Objective,
) -> Option<Minimum> {
    let mut best: Option<Minimum> = None;
    for start in starts {
        let at = DVector::from_iterator(
            parameters.len(),
            parameters
                .iter()
                .zip(start)
                .map(|(p, &value)| p.coordinate(value)),
        );
        let problem = Problem {
            parameters,
            objective,
            at,
        };
        let (problem, report) = LevenbergMarquardt::new()
            .with_patience(PATIENCE)
            .with_ftol(TOLERANCE)
            .with_xtol(TOLERANCE)
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

/// Largest difference between the slopes that an objective states and those found by differences,
/// for tests.
#[cfg(test)]
pub(crate) fn slope_error(
    parameters: &[Parameter],
    values: &[f64],
    objective: &dyn Objective,
) -> f64 {
    let at = parameters.iter().zip(values).map(|(p, v)| p.coordinate(*v));
    let problem = Problem {
        parameters,
        objective,
        at: DVector::from_iterator(parameters.len(), at),
    };
    let stated = problem.written_down().expect("no slopes are stated");
    (stated - problem.differences()).amax()
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
        assert!(
            minimize(&[Parameter::new(1.0, 2.0, 3.0)], &[], &|_: &[f64]| vec![
                f64::NAN
            ])
            .is_none()
        );
    }
}
