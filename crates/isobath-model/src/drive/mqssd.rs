//! The MQSSD model: setup and transfer costs that depend on concurrency (section 4.2).

use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};

use super::queue::enough;
use super::simple::distinct_values;
use super::{Coefficient, ModelKind, PureModel};
use crate::curve::{CostCurve, Rational, RationalDegree, Saturating};
use crate::error::FitError;
use crate::linear::fit_line;
use crate::nonlinear::{Minimum, Objective, Parameter, minimize, minimize_from};
use crate::point::{OperatingPoint, Operation, Sample};

/// Random accesses in one percentage point of the pages of 1 GiB: Table 2 prints s and t in µs per
/// this many.
pub const TABLE_2_ACCESSES: f64 = 2621.44;

/// One row of Table 2 for one operation: a straight line through the points of one k.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyCosts {
    /// `k`.
    pub concurrency: f64,
    /// s(k) or t(k), µs per random access. Multiply by [`TABLE_2_ACCESSES`] for the table's unit.
    pub setup_us: f64,
    /// β(k) or α(k), µs per page.
    pub transfer_us: f64,
    /// R² of the line.
    pub r_squared: f64,
}

/// Per-k least squares of page cost against random accesses per page, as Table 2 was derived.
///
/// Values of k with fewer than two distinct shares of random accesses are left out: they determine
/// no line.
pub fn costs_per_concurrency(samples: &[Sample]) -> Vec<ConcurrencyCosts> {
    let mut by_k: Vec<(f64, Vec<(f64, f64)>)> = Vec::new();
    for sample in samples {
        let k = sample.point.concurrency;
        let point = (
            sample.point.random_accesses_per_page(),
            sample.page_cost_us(),
        );
        match by_k.iter_mut().find(|(known, _)| *known == k) {
            Some((_, points)) => points.push(point),
            None => by_k.push((k, vec![point])),
        }
    }
    by_k.sort_by(|a, b| a.0.total_cmp(&b.0));
    by_k.iter()
        .filter(|(_, points)| distinct_values(points.iter().map(|p| p.0)) >= 2)
        .map(|(concurrency, points)| {
            let line = fit_line(points);
            ConcurrencyCosts {
                concurrency: *concurrency,
                setup_us: line.slope,
                transfer_us: line.intercept,
                r_squared: line.r_squared,
            }
        })
        .collect()
}

/// MQSSD exactly as printed: rational functions (5) and (6) through per-k lines, and rates added
/// (7, 8).
///
/// Adding rates is a slip of equations 3, 7 and 8: their text adds costs, and the sum of two rates
/// diverges for r → 0. Kept as the yardstick; [`MqssdPrintedAdded`] is the same with costs added.
/// Both may have poles and negative costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MqssdPrinted {
    /// The lines that the functions were fitted to.
    pub rows: Vec<ConcurrencyCosts>,
    /// s(k) or t(k), equation 5, µs per random access.
    pub setup: Rational,
    /// α(k) by equation 5 or β(k) by equation 6, µs per page. With fewer than seven rows equation 6
    /// is not determined and equation 5 takes its place.
    pub transfer: Rational,
}

impl MqssdPrinted {
    fn fit(model: ModelKind, operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        let rows = costs_per_concurrency(samples);
        let needed = RationalDegree::Two.parameter_count();
        let what = "values of k, each with two shares of random accesses,";
        FitError::unless_enough(model, operation, &[(what, needed, rows.len())])?;
        let degree = match operation {
            Operation::Write if rows.len() >= RationalDegree::Three.parameter_count() => {
                RationalDegree::Three
            }
            _ => RationalDegree::Two,
        };
        let column = |f: fn(&ConcurrencyCosts) -> f64| {
            rows.iter()
                .map(|r| (r.concurrency, f(r)))
                .collect::<Vec<_>>()
        };
        Ok(Self {
            setup: Rational::fit_as_printed(&column(|r| r.setup_us), RationalDegree::Two)?,
            transfer: Rational::fit_as_printed(&column(|r| r.transfer_us), degree)?,
            rows,
        })
    }
}

impl PureModel for MqssdPrinted {
    const KIND: ModelKind = ModelKind::MqssdPrinted;

    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        Self::fit(Self::KIND, operation, samples)
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        let setup_us = self.setup.at(point.concurrency) * point.random_accesses_per_page();
        let transfer_us = self.transfer.at(point.concurrency);
        1.0 / (1.0 / setup_us + 1.0 / transfer_us)
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        let mut all = Vec::new();
        for (name, unit, curve) in [
            ("setup", "µs/access", &self.setup),
            ("transfer", "µs/page", &self.transfer),
        ] {
            let part = |letter: &str, values: &[f64], unit: &str| {
                let named =
                    |(i, &value)| Coefficient::new(format!("{name} {letter}{i}"), value, unit);
                values.iter().enumerate().map(named).collect::<Vec<_>>()
            };
            all.extend(part("c", &curve.numerator, unit));
            all.extend(part("d", &curve.denominator, "1"));
        }
        all
    }
}

/// The rational functions of [`MqssdPrinted`] with costs added, as equations 5 and 6 mean: time =
/// s(k)·r + β(k)·N/B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MqssdPrintedAdded(pub MqssdPrinted);

impl PureModel for MqssdPrintedAdded {
    const KIND: ModelKind = ModelKind::MqssdPrintedAdded;

    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        MqssdPrinted::fit(Self::KIND, operation, samples).map(Self)
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        let setup_us = self.0.setup.at(point.concurrency) * point.random_accesses_per_page();
        setup_us + self.0.transfer.at(point.concurrency)
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        self.0.coefficients()
    }
}

/// MQSSD as corrected: cost per page = setup(k) · setups per page + transfer(k), both saturating in
/// k, all fitted together on the logarithm of the cost.
///
/// The setup is a cost per I/O. An I/O that continues where the last one ended pays the share
/// `sequential_setup_share` of it: 1 on a drive without read-ahead, small where neighbours are
/// merged on their way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mqssd {
    /// s(k) or t(k), µs per I/O.
    pub setup: Saturating,
    /// β(k) or α(k), µs per page.
    pub transfer: Saturating,
    /// What a sequential I/O pays of the setup, 0..=1.
    pub sequential_setup_share: f64,
}

/// How strongly a shape parameter is drawn to its usual value, in standard deviations of ln(value)
/// per unit of residual; points outweigh it as soon as there are a few of them.
const SHAPE_PRIOR_WEIGHT: f64 = 0.05;

impl Mqssd {
    /// Setups that a page pays for, in those of random I/Os.
    pub fn setups_per_page(&self, point: &OperatingPoint) -> f64 {
        let sequential = (1.0 - point.random_share) * self.sequential_setup_share;
        (point.random_share + sequential) / point.io_pages
    }

    fn from_values(v: &[f64]) -> Self {
        Self {
            setup: Saturating::from_values(&v[..4]),
            transfer: Saturating::from_values(&v[4..8]),
            sequential_setup_share: v[8],
        }
    }

    fn values(&self) -> [f64; PARAMETER_COUNT] {
        let (s, t) = (&self.setup, &self.transfer);
        [
            s.limit,
            s.removable,
            s.half_concurrency,
            s.sharpness,
            t.limit,
            t.removable,
            t.half_concurrency,
            t.sharpness,
            self.sequential_setup_share,
        ]
    }

    fn from_minimum(minimum: Option<Minimum>) -> Result<Self, FitError> {
        let minimum = minimum.ok_or_else(|| FitError::no_convergence(Self::KIND))?;
        Ok(Self::from_values(&minimum.values))
    }

    /// Ranges and starts from the points.
    fn parameters(samples: &[Sample]) -> [Parameter; PARAMETER_COUNT] {
        let io_us = |s: &Sample| s.page_cost_us() * s.point.io_pages;
        let io_high = samples.iter().map(io_us).fold(0.0, f64::max);
        let page_low = samples
            .iter()
            .map(Sample::page_cost_us)
            .fold(f64::INFINITY, f64::min);
        [
            Parameter::new(page_low * 1e-3, page_low, io_high),
            Parameter::new(io_high * 1e-3, io_high, io_high * 1e3),
            Parameter::new(0.05, 2.0, 256.0),
            Parameter::new(0.3, 1.2, 4.0),
            Parameter::new(page_low * 1e-2, page_low * 0.8, io_high),
            Parameter::new(page_low * 1e-2, page_low * 2.0, io_high * 10.0),
            Parameter::new(0.05, 2.0, 256.0),
            Parameter::new(0.3, 1.2, 4.0),
            Parameter::new(0.01, 0.7, 1.0),
        ]
    }
}

const PARAMETER_COUNT: usize = 9;
/// Parameters with a prior: k₀ and p of both curves, and the sequential share.
const SHAPES: [usize; 5] = [2, 3, 6, 7, 8];

/// ln(cost / measured) of every sample, and the priors.
struct LogErrors<'a> {
    samples: &'a [Sample],
    parameters: &'a [Parameter],
}

impl Objective for LogErrors<'_> {
    fn residuals(&self, v: &[f64]) -> Vec<f64> {
        let model = Mqssd::from_values(v);
        let errors = self
            .samples
            .iter()
            .map(|s| (model.page_cost_us(&s.point) / s.page_cost_us()).ln());
        let priors = SHAPES.map(|i| SHAPE_PRIOR_WEIGHT * (v[i] / self.parameters[i].start).ln());
        errors.chain(priors).collect()
    }

    fn slopes(&self, v: &[f64]) -> Option<DMatrix<f64>> {
        let model = Mqssd::from_values(v);
        let points = self.samples.len();
        let mut slopes = DMatrix::zeros(points + SHAPES.len(), v.len());
        for (row, sample) in self.samples.iter().enumerate() {
            let (point, cost) = (&sample.point, model.page_cost_us(&sample.point));
            let sequential = (1.0 - point.random_share) * model.sequential_setup_share;
            let setups = (point.random_share + sequential) / point.io_pages;
            for (first, weight, curve) in [(0, setups, model.setup), (4, 1.0, model.transfer)] {
                for (i, slope) in curve.slopes(point.concurrency).iter().enumerate() {
                    slopes[(row, first + i)] = weight * slope / cost;
                }
            }
            let setup_us = model.setup.at(point.concurrency);
            slopes[(row, 8)] = setup_us * sequential / point.io_pages / cost;
        }
        for (row, column) in SHAPES.iter().enumerate() {
            slopes[(points + row, *column)] = SHAPE_PRIOR_WEIGHT;
        }
        Some(slopes)
    }
}

impl PureModel for Mqssd {
    const KIND: ModelKind = ModelKind::Mqssd;

    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        enough(Self::KIND, operation, samples)?;
        let parameters = Self::parameters(samples);
        let starts: Vec<Vec<f64>> = [0.5, 8.0, 32.0]
            .iter()
            .map(|&k0| {
                let mut start: Vec<f64> = parameters.iter().map(|p| p.start).collect();
                (start[2], start[6]) = (k0, k0);
                start
            })
            .collect();
        let errors = LogErrors {
            samples,
            parameters: &parameters,
        };
        Self::from_minimum(minimize(&parameters, &starts, &errors))
    }

    fn fit_near(operation: Operation, samples: &[Sample], near: &Self) -> Result<Self, FitError> {
        enough(Self::KIND, operation, samples)?;
        let parameters = Self::parameters(samples);
        let errors = LogErrors {
            samples,
            parameters: &parameters,
        };
        Self::from_minimum(minimize_from(
            &parameters,
            &[near.values().to_vec()],
            &errors,
        ))
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        let k = point.concurrency;
        self.setup.at(k) * self.setups_per_page(point) + self.transfer.at(k)
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        let curve = |name: &str, unit: &str, c: &Saturating| {
            [
                Coefficient::new(format!("{name} a"), c.limit, unit),
                Coefficient::new(format!("{name} b"), c.removable, unit),
                Coefficient::new(format!("{name} k₀"), c.half_concurrency, "I/Os"),
                Coefficient::new(format!("{name} p"), c.sharpness, "1"),
            ]
        };
        let mut all = Vec::from(curve("setup", "µs/IO", &self.setup));
        all.extend(curve("transfer", "µs/page", &self.transfer));
        all.push(Coefficient::new(
            "sequential share of setup",
            self.sequential_setup_share,
            "1",
        ));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nonlinear::slope_error;

    #[test]
    fn slopes_are_those_of_the_residuals() {
        let samples: Vec<Sample> = crate::plan::seeded_plan(30, 3, 128)
            .into_iter()
            .map(|point| Sample {
                point,
                throughput_pages_per_s: 1e5 * point.io_pages.sqrt(),
            })
            .collect();
        let parameters = Mqssd::parameters(&samples);
        let errors = LogErrors {
            samples: &samples,
            parameters: &parameters,
        };
        for scale in [0.4, 1.0, 2.5] {
            let values: Vec<f64> = parameters
                .iter()
                .map(|p| (p.start * scale).clamp(p.low * 1.1, p.high * 0.9))
                .collect();
            let error = slope_error(&parameters, &values, &errors);
            assert!(error < 1e-6, "scale {scale}: {error}");
        }
    }
}
