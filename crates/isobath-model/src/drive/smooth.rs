//! MQSSD as corrected times a smooth residual, where a whole grid over k and I/O size was measured.
//!
//! The corrected form has nine parameters per operation and one shape in k; a grid of fifty points knows more. What the form
//! misses is fitted on the logarithm by products of Chebyshev polynomials in ln k and in the logarithm of setups per page. Degrees and
//! ridge penalty are those with the least leave-one-out error. Coordinates are clamped to the grid, so that outside of it the
//! residual stays what it was at the edge and the corrected form alone decides.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::mqssd::Mqssd;
use super::{Coefficient, ModelKind, PureModel};
use crate::error::FitError;
use crate::linear::ridge_fit;
use crate::point::{OperatingPoint, Operation, Sample};

/// ln cost = ln MQSSD(point) + Σ wᵢⱼ Tᵢ(ln k) Tⱼ(ln setups per page), both coordinates scaled to -1..=1 over the grid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Smooth {
    /// The form that is corrected.
    pub base: Mqssd,
    /// Greatest degree in ln k.
    pub degree_concurrency: usize,
    /// Greatest degree in the logarithm of setups per page.
    pub degree_setups: usize,
    /// `w`, in ln(cost): all of the second degree for the first of the first, and so on.
    pub weights: Vec<f64>,
    /// Ridge penalty.
    pub ridge: f64,
    /// Of ln k and of ln(setups per page): least and greatest measured.
    range: [(f64, f64); 2],
}

/// Values of k, and I/O sizes, that a grid has at least: fewer carry no curve of their own.
const GRID_SIDE_MIN: usize = 4;
/// Share of the cells of the grid that must have been measured.
const GRID_SHARE_MIN: f64 = 0.7;
/// Polynomials of a higher degree follow the noise between the points of a grid.
const DEGREE_MAX: usize = 5;
const RIDGES: [f64; 5] = [1e-3, 1e-2, 0.1, 0.3, 1.0];

/// How much of a grid over k and I/O size some points are.
struct Grid {
    /// The lesser of the numbers of its rows and columns.
    side: usize,
    cells: usize,
    measured: usize,
}

impl Grid {
    /// Rows are the values of k that were measured at several I/O sizes, columns the I/O sizes measured at several of k.
    fn of(samples: &[Sample]) -> Self {
        let mut cells: Vec<(f64, f64)> = samples
            .iter()
            .map(|s| (s.point.concurrency, s.point.io_pages))
            .collect();
        cells.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        cells.dedup();
        let lines = |own: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = cells.iter().map(own).collect();
            values.sort_by(f64::total_cmp);
            let lines = values.chunk_by(|a, b| a == b);
            lines
                .filter(|line| line.len() >= GRID_SIDE_MIN)
                .map(|line| line[0])
                .collect::<Vec<f64>>()
        };
        let (rows, columns) = (lines(|c| c.0), lines(|c| c.1));
        let inside = |c: &&(f64, f64)| rows.contains(&c.0) && columns.contains(&c.1);
        Self {
            side: rows.len().min(columns.len()),
            cells: rows.len() * columns.len(),
            measured: cells.iter().filter(inside).count(),
        }
    }

    fn check(&self, operation: Operation) -> Result<(), FitError> {
        let too_few = |what, needed, found| {
            Err(FitError::TooFewPoints {
                model: ModelKind::MqssdSmooth,
                operation,
                what,
                needed,
                found,
            })
        };
        if self.side < GRID_SIDE_MIN {
            let what = "values of k and I/O sizes of a whole grid";
            return too_few(what, GRID_SIDE_MIN, self.side);
        }
        let needed = (GRID_SHARE_MIN * self.cells as f64).ceil() as usize;
        if self.measured < needed {
            return too_few("points of the grid", needed, self.measured);
        }
        Ok(())
    }
}

fn coordinates(base: &Mqssd, point: &OperatingPoint) -> [f64; 2] {
    [point.concurrency.ln(), base.setups_per_page(point).ln()]
}

/// T₀(x) … T_degree(x).
fn chebyshev(x: f64, degree: usize) -> Vec<f64> {
    let mut terms = vec![1.0, x];
    for i in 2..=degree {
        terms.push(2.0 * x * terms[i - 1] - terms[i - 2]);
    }
    terms.truncate(degree + 1);
    terms
}

fn features(
    range: &[(f64, f64); 2],
    degrees: (usize, usize),
    coordinates: [f64; 2],
) -> impl Iterator<Item = f64> {
    let scaled = |i: usize| {
        let ((low, high), value): ((f64, f64), f64) = (range[i], coordinates[i]);
        (2.0 * value.clamp(low, high) - low - high) / (high - low).max(f64::MIN_POSITIVE)
    };
    let (x, y) = (
        chebyshev(scaled(0), degrees.0),
        chebyshev(scaled(1), degrees.1),
    );
    x.into_iter()
        .flat_map(move |x| y.clone().into_iter().map(move |y| x * y))
}

impl Smooth {
    fn around(base: Mqssd, samples: &[Sample]) -> Result<Self, FitError> {
        let mut range = [(f64::INFINITY, f64::NEG_INFINITY); 2];
        let at: Vec<[f64; 2]> = samples
            .iter()
            .map(|s| coordinates(&base, &s.point))
            .collect();
        for (i, value) in at.iter().flat_map(|c| c.iter().copied().enumerate()) {
            range[i] = (range[i].0.min(value), range[i].1.max(value));
        }
        let missed = DVector::from_iterator(
            samples.len(),
            samples
                .iter()
                .map(|s| (s.page_cost_us() / base.page_cost_us(&s.point)).ln()),
        );
        let mut best: Option<(f64, Self)> = None;
        for degree_concurrency in 0..=DEGREE_MAX {
            for degree_setups in 0..=DEGREE_MAX {
                let degrees = (degree_concurrency, degree_setups);
                let columns = (degrees.0 + 1) * (degrees.1 + 1);
                // As many weights as half of the points leave nothing to judge them by.
                if 2 * columns > samples.len() {
                    continue;
                }
                let matrix = DMatrix::from_row_iterator(
                    samples.len(),
                    columns,
                    at.iter().flat_map(|c| features(&range, degrees, *c)),
                );
                for ridge in RIDGES {
                    let Some((weights, held_out)) = ridge_fit(&matrix, &missed, ridge) else {
                        continue;
                    };
                    if held_out.is_finite() && best.as_ref().is_none_or(|b| held_out < b.0) {
                        let fitted = Self {
                            base,
                            degree_concurrency,
                            degree_setups,
                            weights: weights.as_slice().to_vec(),
                            ridge,
                            range,
                        };
                        best = Some((held_out, fitted));
                    }
                }
            }
        }
        let none = || FitError::DidNotConverge {
            what: ModelKind::MqssdSmooth.to_string(),
        };
        best.map(|b| b.1).ok_or_else(none)
    }
}

impl PureModel for Smooth {
    const KIND: ModelKind = ModelKind::MqssdSmooth;

    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        Grid::of(samples).check(operation)?;
        Self::around(Mqssd::fit_pure(operation, samples)?, samples)
    }

    fn fit_near(operation: Operation, samples: &[Sample], near: &Self) -> Result<Self, FitError> {
        Grid::of(samples).check(operation)?;
        Self::around(Mqssd::fit_near(operation, samples, &near.base)?, samples)
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        let degrees = (self.degree_concurrency, self.degree_setups);
        let residual: f64 = features(&self.range, degrees, coordinates(&self.base, point))
            .zip(&self.weights)
            .map(|(f, w)| f * w)
            .sum();
        self.base.page_cost_us(point) * residual.exp()
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        let mut all = self.base.coefficients();
        for (i, &value) in self.weights.iter().enumerate() {
            let (k, p) = (i / (self.degree_setups + 1), i % (self.degree_setups + 1));
            all.push(Coefficient::new(format!("w[{k},{p}]"), value, "ln(cost)"));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{paper_plan, quick_plan};

    fn samples(plan: Vec<OperatingPoint>) -> Vec<Sample> {
        let reads = plan.into_iter().filter(|p| p.read_share >= 1.0);
        let sample = |point: OperatingPoint| Sample {
            point,
            throughput_pages_per_s: 1e5 * point.concurrency.min(40.0) * point.io_pages.sqrt(),
        };
        reads.map(sample).collect()
    }

    #[test]
    fn polynomials_are_chebyshevs() {
        let angle = 0.7f64;
        for (n, value) in chebyshev(angle.cos(), 5).into_iter().enumerate() {
            assert!((value - (n as f64 * angle).cos()).abs() < 1e-12, "T{n}");
        }
        assert_eq!(chebyshev(0.3, 0), [1.0]);
    }

    #[test]
    fn it_needs_a_grid_and_says_what_is_missing() {
        let error = Smooth::fit_pure(Operation::Read, &samples(quick_plan(128))).unwrap_err();
        assert!(
            error.to_string().contains(
                "more values of k and I/O sizes of a whole grid for reads (0 of 4 present)"
            ),
            "{error}"
        );
        let grid = samples(paper_plan());
        assert!(Smooth::fit_pure(Operation::Read, &grid).is_ok());
        // Seven sizes for each k, in order: every second cell is missing, as on a chessboard.
        let half = grid
            .iter()
            .enumerate()
            .filter(|(i, _)| (i % 7 + i / 7) % 2 == 0);
        let half: Vec<Sample> = half.map(|(_, s)| *s).collect();
        let error = Smooth::fit_pure(Operation::Read, &half).unwrap_err();
        assert!(error.to_string().contains("points of the grid"), "{error}");
    }

    /// Outside of the grid the residual is that of the edge: the corrected form's saturation decides.
    #[test]
    fn outside_the_grid_the_residual_is_that_of_its_edge() {
        let model = Smooth::fit_pure(Operation::Read, &samples(paper_plan())).unwrap();
        let ratio = |k: f64| {
            let point = OperatingPoint::random_reads(k, 1.0);
            model.page_cost_us(&point) / model.base.page_cost_us(&point)
        };
        assert!((ratio(4096.0) / ratio(128.0) - 1.0).abs() < 1e-12);
        assert!((ratio(64.0) / ratio(128.0) - 1.0).abs() > 1e-6);
    }
}
