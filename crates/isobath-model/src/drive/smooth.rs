//! MQSSD as corrected times a smooth residual, where a whole grid over k and I/O size was measured.
//!
//! The corrected form has nine parameters per operation and one shape in k; a grid of fifty points
//! knows more. What the form misses is fitted on the logarithm by a Gaussian process over log₂ k
//! and log₂(setups per page): a product of Matérn kernels of order 3/2, whose lengths, and the
//! share of the variance that is noise, are those of the greatest marginal likelihood. The kernel
//! is once differentiable and no more, since a drive's rates have bends (commands of one length,
//! read-ahead that begins or ends), which polynomials smear over the whole grid. The noise has the
//! tails of Student's distribution: a point that its neighbours contradict, as a disturbed repeat
//! is, counts little. Coordinates are clamped to the grid, so that outside of it the residual stays
//! what it was at the edge and the corrected form alone decides.

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use serde::{Deserialize, Serialize};

use super::mqssd::Mqssd;
use super::{Coefficient, ModelKind, PureModel};
use crate::error::FitError;
use crate::point::{OperatingPoint, Operation, Sample};

/// ln cost = ln MQSSD(point) + Σ wᵢ K(point, pointᵢ), where K falls with the distance in doublings
/// of k and of setups per page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Smooth {
    /// The form that is corrected.
    pub base: Mqssd,
    /// What the residual is like.
    pub process: Process,
    /// `w`, in ln(cost): one for each measured point.
    pub weights: Vec<f64>,
    /// Of each measured point, log₂ k and log₂(setups per page).
    at: Vec<[f64; 2]>,
    /// Of both: least and greatest measured.
    range: [(f64, f64); 2],
}

/// A Gaussian process, up to its scale.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Over how many doublings of k, and of setups per page, a residual stays about the same.
    pub lengths: [f64; 2],
    /// Variance of the noise of one point over that of the residual.
    pub noise_share: f64,
    /// Standard deviation of the residual, in ln(cost).
    pub deviation: f64,
}

/// Values of k, and I/O sizes, that a grid has at least: fewer carry no curve of their own.
const GRID_SIDE_MIN: usize = 4;
/// Share of the cells of the grid that must have been measured.
const GRID_SHARE_MIN: f64 = 0.7;
/// Degrees of freedom of the noise: few enough that a point ten deviations off hardly counts,
/// enough that one at two does.
const NOISE_FREEDOM: f64 = 4.0;
/// Rounds of weighing points by what the others say of them, at most, and the change of a weight
/// below which they end.
const ROUNDS_MAX: usize = 8;
const WEIGHT_CHANGE: f64 = 0.02;
/// Bounds of the lengths in doublings, and of the share of noise: a tenth of a grid's step to many
/// grids.
const LENGTHS: (f64, f64) = (0.1, 100.0);
const NOISE_SHARES: (f64, f64) = (1e-6, 10.0);
/// Least variance of a residual: a form that meets every point leaves none, and its logarithm must
/// be finite.
const VARIANCE_MIN: f64 = 1e-20;

/// How much of a grid over k and I/O size some points are.
struct Grid {
    /// The lesser of the numbers of its rows and columns.
    side: usize,
    cells: usize,
    measured: usize,
}

impl Grid {
    /// Rows are the values of k that were measured at several I/O sizes, columns the I/O sizes
    /// measured at several of k.
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
        let cells = (GRID_SHARE_MIN * self.cells as f64).ceil() as usize;
        let side = "values of k and I/O sizes of a whole grid";
        let all = [
            (side, GRID_SIDE_MIN, self.side),
            ("points of the grid", cells, self.measured),
        ];
        FitError::unless_enough(Smooth::KIND, operation, &all)
    }
}

fn coordinates(base: &Mqssd, point: &OperatingPoint) -> [f64; 2] {
    [point.concurrency.log2(), base.setups_per_page(point).log2()]
}

/// Correlation of the residuals at two places.
fn correlation(lengths: [f64; 2], a: [f64; 2], b: [f64; 2]) -> f64 {
    let matern = |i: usize| {
        let distance = 3f64.sqrt() * (a[i] - b[i]).abs() / lengths[i];
        (1.0 + distance) * (-distance).exp()
    };
    matern(0) * matern(1)
}

/// What the form missed at the measured points.
struct Missed<'a> {
    at: &'a [[f64; 2]],
    /// ln(measured / form).
    ln: DVector<f64>,
    /// How much a point counts: the inverse of its noise's variance, in that of a usual point.
    counts: Vec<f64>,
}

impl Missed<'_> {
    /// The covariance over the residual's variance, decomposed; `None` if it is not positive
    /// definite.
    fn covariance(&self, process: &Process) -> Option<Cholesky<f64, Dyn>> {
        let n = self.at.len();
        let entry = |i: usize, j: usize| {
            let noise = process.noise_share / self.counts[i];
            let same = if i == j { noise } else { 0.0 };
            correlation(process.lengths, self.at[i], self.at[j]) + same
        };
        DMatrix::from_fn(n, n, entry).cholesky()
    }

    /// −2 ln(marginal likelihood) up to a constant, at the scale that makes it least, and that
    /// scale's variance.
    fn misfit(&self, process: &Process) -> Option<(f64, f64)> {
        let covariance = self.covariance(process)?;
        let n = self.at.len() as f64;
        let variance = self.ln.dot(&covariance.solve(&self.ln)) / n;
        let variance = variance.max(VARIANCE_MIN);
        let logs = covariance.l_dirty().diagonal().map(f64::ln).sum();
        let misfit = n * variance.ln() + 2.0 * logs;
        misfit.is_finite().then_some((misfit, variance))
    }

    /// Searches along the axes of the logarithms with steps that are halved.
    fn likeliest(&self, start: Process, step: f64) -> Option<(f64, Process)> {
        let (mut least, variance) = self.misfit(&start)?;
        let mut best = Process {
            deviation: variance.sqrt(),
            ..start
        };
        let mut step = step;
        while step > STEP_MIN {
            let mut moved = false;
            for (axis, factor) in [0, 1, 2]
                .into_iter()
                .flat_map(|a| [(a, step), (a, 1.0 / step)])
            {
                let mut next = best;
                match axis {
                    2 => {
                        next.noise_share =
                            (next.noise_share * factor).clamp(NOISE_SHARES.0, NOISE_SHARES.1)
                    }
                    _ => {
                        next.lengths[axis] =
                            (next.lengths[axis] * factor).clamp(LENGTHS.0, LENGTHS.1)
                    }
                }
                if let Some((misfit, variance)) = self.misfit(&next)
                    && misfit < least - MISFIT_GAIN_MIN
                {
                    next.deviation = variance.sqrt();
                    (least, best, moved) = (misfit, next, true);
                }
            }
            if !moved {
                step = step.sqrt();
            }
        }
        Some((least, best))
    }

    /// Weighs every point by how far it is from what the others say of it; the greatest change.
    fn weigh(&mut self, process: &Process) -> Option<f64> {
        let covariance = self.covariance(process)?;
        let (inverse, solved) = (covariance.inverse(), covariance.solve(&self.ln));
        let variance = process.deviation.powi(2).max(VARIANCE_MIN);
        let mut change: f64 = 0.0;
        for (i, counts) in self.counts.iter_mut().enumerate() {
            // Leaving a point out in closed form: its error, and the variance of that if its noise
            // were usual.
            let error = solved[i] / inverse[(i, i)];
            let noise = process.noise_share;
            let expected = variance * (1.0 / inverse[(i, i)] - noise / *counts + noise);
            let now = (NOISE_FREEDOM + 1.0) / (NOISE_FREEDOM + error * error / expected);
            change = change.max((now - *counts).abs());
            *counts = now;
        }
        Some(change)
    }

    /// The process and the weights of its points; `near` is where the search begins.
    fn fit(&mut self, near: Option<Process>) -> Option<(Process, DVector<f64>)> {
        let usual = |length: f64| Process {
            lengths: [length; 2],
            noise_share: 0.01,
            deviation: 0.0,
        };
        let starts = near.map_or_else(
            || vec![usual(1.5), usual(5.0), usual(15.0)],
            |near| vec![near],
        );
        let fits = starts
            .into_iter()
            .filter_map(|start| self.likeliest(start, STEP_FIRST));
        let mut process = fits.min_by(|a, b| a.0.total_cmp(&b.0))?.1;
        for _ in 0..ROUNDS_MAX {
            let change = self.weigh(&process)?;
            process = self.likeliest(process, STEP_AGAIN)?.1;
            if change < WEIGHT_CHANGE {
                break;
            }
        }
        let weights = self.covariance(&process)?.solve(&self.ln);
        Some((process, weights))
    }
}

/// Factors of the first steps of the search for the likeliest process, of those after points were
/// weighed again, and of the last; and what a step must gain: 0.01 of twice a logarithm of the
/// likelihood tells nothing.
const STEP_FIRST: f64 = 2.0;
const STEP_AGAIN: f64 = 1.2;
const STEP_MIN: f64 = 1.05;
const MISFIT_GAIN_MIN: f64 = 0.01;

impl Smooth {
    fn around(base: Mqssd, samples: &[Sample], near: Option<Process>) -> Result<Self, FitError> {
        let mut range = [(f64::INFINITY, f64::NEG_INFINITY); 2];
        let at: Vec<[f64; 2]> = samples
            .iter()
            .map(|s| coordinates(&base, &s.point))
            .collect();
        for (i, value) in at.iter().flat_map(|c| c.iter().copied().enumerate()) {
            range[i] = (range[i].0.min(value), range[i].1.max(value));
        }
        let missed = |s: &Sample| (s.page_cost_us() / base.page_cost_us(&s.point)).ln();
        let mut missed = Missed {
            at: &at,
            ln: DVector::from_iterator(samples.len(), samples.iter().map(missed)),
            counts: vec![1.0; samples.len()],
        };
        let fitted = missed.fit(near);
        let (process, weights) = fitted.ok_or_else(|| FitError::no_convergence(Self::KIND))?;
        Ok(Self {
            base,
            process,
            weights: weights.as_slice().to_vec(),
            at,
            range,
        })
    }
}

impl PureModel for Smooth {
    const KIND: ModelKind = ModelKind::MqssdSmooth;

    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        Grid::of(samples).check(operation)?;
        Self::around(Mqssd::fit_pure(operation, samples)?, samples, None)
    }

    fn fit_near(operation: Operation, samples: &[Sample], near: &Self) -> Result<Self, FitError> {
        Grid::of(samples).check(operation)?;
        let base = Mqssd::fit_near(operation, samples, &near.base)?;
        Self::around(base, samples, Some(near.process))
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        let mut place = coordinates(&self.base, point);
        for (value, (low, high)) in place.iter_mut().zip(self.range) {
            *value = value.clamp(low, high);
        }
        let points = self.at.iter().zip(&self.weights);
        let residual: f64 = points
            .map(|(at, w)| w * correlation(self.process.lengths, place, *at))
            .sum();
        self.base.page_cost_us(point) * residual.exp()
    }

    /// Those of the form, and of the process in place of a weight for each point.
    fn coefficients(&self) -> Vec<Coefficient> {
        let [k, setups] = self.process.lengths;
        let noise = self.process.deviation * self.process.noise_share.sqrt();
        let mut all = self.base.coefficients();
        all.extend([
            Coefficient::new("residual σ", self.process.deviation, "ln(cost)"),
            Coefficient::new("its noise", noise, "ln(cost)"),
            Coefficient::new("its length in k", k, "doublings"),
            Coefficient::new("its length in setups", setups, "doublings"),
        ]);
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

    /// A point that was disturbed hardly moves what is predicted there, and a bend in the I/O size
    /// is followed.
    #[test]
    fn one_disturbed_point_hardly_counts_and_a_step_is_kept() {
        let with_step = |mut s: Sample| {
            if s.point.io_pages > 50.0 {
                s.throughput_pages_per_s *= 1.5;
            }
            s
        };
        let mut grid: Vec<Sample> = samples(paper_plan()).into_iter().map(with_step).collect();
        let fit = |grid: &[Sample]| Smooth::fit_pure(Operation::Read, grid).unwrap();
        let (at, before) = (25, fit(&grid));
        let missed =
            |model: &Smooth, s: &Sample| model.page_cost_us(&s.point) / s.page_cost_us() - 1.0;
        let worst = grid
            .iter()
            .map(|s| missed(&before, s).abs())
            .fold(0.0, f64::max);
        let disturbed = grid[at];
        grid[at].throughput_pages_per_s /= 2.0;
        let moved = missed(&fit(&grid), &disturbed);
        println!("worst {worst:.4}, moved {moved:.4}, {:?}", before.process);
        // Measured 0.0007 and 0.0003.
        assert!(worst < 0.001, "{worst}");
        assert!(moved.abs() < 0.001, "{moved}");
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

    /// Outside of the grid the residual is that of the edge: the corrected form's saturation
    /// decides.
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
