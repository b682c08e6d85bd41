//! The queue form: a request's latency shared by k requests in flight, against the drive's own service time.

use serde::{Deserialize, Serialize};

use super::simple::distinct_values;
use super::{Coefficient, ModelKind, mixed_cost, pure_samples};
use crate::error::FitError;
use crate::nonlinear::{Parameter, minimize};
use crate::point::{OperatingPoint, Operation, Sample};

/// cost(p pages) = (((l + x·p)/k)ⁿ + (i·σ + b·p)ⁿ)^(1/n), µs per I/O, where σ is 1 for a random I/O and `g` for one that
/// continues the last.
///
/// The first part is what one request takes from end to end, of which k overlap; the second is what the drive cannot
/// overlap. `n` says how sharply one gives way to the other: 1 adds them, ∞ takes the larger.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueueCost {
    /// `l`: latency of a request, µs.
    pub latency_us: f64,
    /// `x`: latency per page, µs/page.
    pub latency_per_page_us: f64,
    /// `i`: service time of a random I/O that no concurrency hides, µs.
    pub service_us: f64,
    /// `b`: service time per page, µs/page.
    pub service_per_page_us: f64,
    /// `n`: sharpness of the transition.
    pub sharpness: f64,
    /// `g`: share of `i` that a sequential I/O pays.
    pub sequential_service_share: f64,
}

impl QueueCost {
    /// Parameters.
    pub const PARAMETER_COUNT: usize = 6;

    fn from_values(v: &[f64]) -> Self {
        Self {
            latency_us: v[0],
            latency_per_page_us: v[1],
            service_us: v[2],
            service_per_page_us: v[3],
            sharpness: v[4],
            sequential_service_share: v[5],
        }
    }

    /// Wall time per page in µs; the point's read share is ignored.
    pub fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        let (k, p, n) = (point.concurrency, point.io_pages, self.sharpness);
        let share = point.random_share + (1.0 - point.random_share) * self.sequential_service_share;
        let overlapped = (self.latency_us + self.latency_per_page_us * p) / k;
        let serial = self.service_us * share + self.service_per_page_us * p;
        (overlapped.powf(n) + serial.powf(n)).powf(1.0 / n) / p
    }

    /// Ranges and starts from the points: no constant here knows the speed of a drive.
    fn parameters(samples: &[Sample]) -> [Parameter; Self::PARAMETER_COUNT] {
        let io_us = |s: &Sample| s.page_cost_us() * s.point.io_pages;
        let latency = samples
            .iter()
            .map(|s| io_us(s) * s.point.concurrency / s.point.io_pages)
            .fold(0.0, f64::max);
        let io_low = samples.iter().map(io_us).fold(f64::INFINITY, f64::min);
        let page_low = samples
            .iter()
            .map(Sample::page_cost_us)
            .fold(f64::INFINITY, f64::min);
        [
            Parameter::new(latency * 1e-3, latency * 0.5, latency * 2.0),
            Parameter::new(page_low * 1e-2, page_low, latency),
            Parameter::new(io_low * 1e-2, io_low * 0.5, io_low * 100.0),
            Parameter::new(page_low * 1e-2, page_low * 0.8, page_low * 10.0),
            Parameter::new(0.5, 1.3, 6.0),
            Parameter::new(0.01, 0.7, 1.0),
        ]
    }
}

/// Weight of the weak priors, as in the corrected MQSSD fit.
const PRIOR_WEIGHT: f64 = 0.03;

/// The queue form for reads and writes, fitted to pure and mixed points together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Reads, if the profile has pure reads.
    pub read: Option<QueueCost>,
    /// Writes, if the profile has pure writes.
    pub write: Option<QueueCost>,
}

impl Queue {
    /// Fits both operations and the mixes between them at once, on the logarithm of the cost.
    pub fn fit(samples: &[Sample]) -> Result<Self, FitError> {
        Self::fit_as(ModelKind::Queue, samples)
    }

    pub(super) fn fit_as(model: ModelKind, samples: &[Sample]) -> Result<Self, FitError> {
        let mut operations = Vec::new();
        for operation in [Operation::Read, Operation::Write] {
            let own = pure_samples(samples, operation);
            if !own.is_empty() {
                enough(model, operation, &own)?;
                operations.push((operation, QueueCost::parameters(&own)));
            }
        }
        if operations.is_empty() {
            return Err(FitError::NoPurePoints { model });
        }
        let known: Vec<Operation> = operations.iter().map(|o| o.0).collect();
        let usable: Vec<Sample> = samples
            .iter()
            .filter(|s| known.len() == 2 || s.point.pure_operation() == Some(known[0]))
            .copied()
            .collect();
        let parameters: Vec<Parameter> = operations.iter().flat_map(|o| o.1).collect();
        let residuals = |v: &[f64]| -> Vec<f64> {
            let model = Self::from_values(&known, v);
            let errors = usable.iter().map(|s| {
                let cost = model.page_cost_us(&s.point).unwrap_or(f64::NAN);
                (cost / s.page_cost_us()).ln()
            });
            let priors = v
                .iter()
                .zip(&parameters)
                .map(|(v, p)| PRIOR_WEIGHT * (v / p.start).ln());
            errors.chain(priors).collect()
        };
        let starts: Vec<Vec<f64>> = [0.7, 2.0, 4.0]
            .iter()
            .map(|&n| {
                parameters
                    .iter()
                    .enumerate()
                    .map(|(i, p)| if i % 6 == 4 { n } else { p.start })
                    .collect()
            })
            .collect();
        let minimum =
            minimize(&parameters, &starts, &residuals).ok_or_else(|| FitError::DidNotConverge {
                what: model.to_string(),
            })?;
        Ok(Self::from_values(&known, &minimum.values))
    }

    fn from_values(known: &[Operation], v: &[f64]) -> Self {
        let of = |operation| {
            let place = known.iter().position(|o| *o == operation)?;
            let n = QueueCost::PARAMETER_COUNT;
            Some(QueueCost::from_values(&v[place * n..(place + 1) * n]))
        };
        Self {
            read: of(Operation::Read),
            write: of(Operation::Write),
        }
    }

    /// Wall time per page in µs.
    pub fn page_cost_us(&self, point: &OperatingPoint) -> Result<f64, FitError> {
        mixed_cost(
            point,
            self.read.map(|m| m.page_cost_us(point)),
            self.write.map(|m| m.page_cost_us(point)),
        )
    }

    pub(super) fn coefficients(&self) -> Vec<Coefficient> {
        let of = |operation, cost: Option<QueueCost>| {
            cost.into_iter().flat_map(move |c| {
                [
                    ("l", c.latency_us, "µs"),
                    ("x", c.latency_per_page_us, "µs/page"),
                    ("i", c.service_us, "µs"),
                    ("b", c.service_per_page_us, "µs/page"),
                    ("n", c.sharpness, "1"),
                    ("g", c.sequential_service_share, "1"),
                ]
                .map(|(name, value, unit)| Coefficient {
                    operation: Some(operation),
                    ..Coefficient::new(name, value, unit)
                })
            })
        };
        of(Operation::Read, self.read)
            .chain(of(Operation::Write, self.write))
            .collect()
    }
}

fn enough(model: ModelKind, operation: Operation, own: &[Sample]) -> Result<(), FitError> {
    let checks = [
        ("points", QueueCost::PARAMETER_COUNT, own.len()),
        (
            "values of k",
            3,
            distinct_values(own.iter().map(|s| s.point.concurrency)),
        ),
        (
            "I/O sizes",
            2,
            distinct_values(own.iter().map(|s| s.point.io_pages)),
        ),
    ];
    match checks.into_iter().find(|(_, needed, found)| found < needed) {
        Some((what, needed, found)) => Err(FitError::TooFewPoints {
            model,
            operation,
            what,
            needed,
            found,
        }),
        None => Ok(()),
    }
}
