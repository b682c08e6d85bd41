//! The queue form: a request's latency shared by k requests in flight, against the drive's own
//! service time.

use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};

use super::simple::distinct_values;
use super::{Coefficient, ModelKind, mixed_cost, pure_samples};
use crate::error::FitError;
use crate::nonlinear::{Objective, Parameter, minimize, minimize_from};
use crate::point::{OperatingPoint, Operation, Sample};

/// cost(p pages) = (((l + x·p)/k)ⁿ + (i·σ + b·p·(1 + c·h))ⁿ)^(1/n), µs per I/O, where σ is 1 for a
/// random I/O and `g` for one that continues the last, and h grows with what is in flight: q/(1 +
/// q/4) for q = k·p/1024.
///
/// The first part is what one request takes from end to end, of which k overlap; the second is what
/// the drive cannot overlap. `n` says how sharply one gives way to the other: 1 adds them, ∞ takes
/// the larger. `c` is the crowding: how much dearer a page becomes when tens of megabytes are in
/// flight at once.
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
    /// `c`: by which share `b` grows with the first 4 MiB in flight; five times that at most.
    pub crowding: f64,
}

/// Pages in flight that crowding is counted in: 4 MiB.
const CROWD_PAGES: f64 = 1024.0;
/// Crowding levels off at this many times [`CROWD_PAGES`], so that no prediction far outside runs
/// away.
const CROWD_LIMIT: f64 = 4.0;

/// A cost with d ln(cost) / d ln(parameter), in the order of the fields of [`QueueCost`].
type Slopes = (f64, [f64; QueueCost::PARAMETER_COUNT]);

impl QueueCost {
    /// Parameters.
    pub const PARAMETER_COUNT: usize = 7;
    /// Least points per operation; weak priors make up for the rest.
    pub const POINTS_MIN: usize = 6;

    fn from_values(v: &[f64]) -> Self {
        Self {
            latency_us: v[0],
            latency_per_page_us: v[1],
            service_us: v[2],
            service_per_page_us: v[3],
            sharpness: v[4],
            sequential_service_share: v[5],
            crowding: v[6],
        }
    }

    fn values(&self) -> [f64; Self::PARAMETER_COUNT] {
        [
            self.latency_us,
            self.latency_per_page_us,
            self.service_us,
            self.service_per_page_us,
            self.sharpness,
            self.sequential_service_share,
            self.crowding,
        ]
    }

    /// Wall time per page in µs; the point's read share is ignored.
    pub fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        let (overlapped, serial) = (self.overlapped_us(point), self.serial_us(point));
        let (high, n) = (overlapped.max(serial), self.sharpness);
        // Relative to the larger part, so that no power overflows.
        let sum = (overlapped / high).powf(n) + (serial / high).powf(n);
        high * sum.powf(1.0 / n) / point.io_pages
    }

    fn overlapped_us(&self, point: &OperatingPoint) -> f64 {
        (self.latency_us + self.latency_per_page_us * point.io_pages) / point.concurrency
    }

    fn serial_us(&self, point: &OperatingPoint) -> f64 {
        let share = point.random_share + (1.0 - point.random_share) * self.sequential_service_share;
        let crowd = 1.0 + self.crowding * crowd(point);
        self.service_us * share + self.service_per_page_us * point.io_pages * crowd
    }

    fn slopes(&self, point: &OperatingPoint) -> Slopes {
        let (k, p, r, n) = (
            point.concurrency,
            point.io_pages,
            point.random_share,
            self.sharpness,
        );
        let (overlapped, serial) = (self.overlapped_us(point), self.serial_us(point));
        let high = overlapped.max(serial);
        let (a, b) = (overlapped / high, serial / high);
        let (a_n, b_n) = (a.powf(n), b.powf(n));
        let sum = a_n + b_n;
        let (by_a, by_b) = (a_n / sum / overlapped, b_n / sum / serial);
        let sequential = (1.0 - r) * self.sequential_service_share;
        let pages_us = self.service_per_page_us * p;
        let crowded = self.crowding * crowd(point);
        let slopes = [
            by_a * self.latency_us / k,
            by_a * self.latency_per_page_us * p / k,
            by_b * self.service_us * (r + sequential),
            by_b * pages_us * (1.0 + crowded),
            (a_n * a.ln() + b_n * b.ln()) / sum - sum.ln() / n,
            by_b * self.service_us * sequential,
            by_b * pages_us * crowded,
        ];
        (high * sum.powf(1.0 / n) / p, slopes)
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
            Parameter::new(0.5, 1.2, 6.0),
            Parameter::new(0.01, 0.7, 1.0),
            Parameter::new(0.001, 0.05, 1.0),
        ]
    }
}

/// `h`.
fn crowd(point: &OperatingPoint) -> f64 {
    let in_flight = point.concurrency * point.io_pages / CROWD_PAGES;
    in_flight / (1.0 + in_flight / CROWD_LIMIT)
}

/// How strongly ln(parameter) is drawn to its start. Points outweigh it if they say anything; the
/// sharpness and the crowding are shapes that twenty noisy points say little about, so they are
/// held more firmly.
const PRIOR_WEIGHTS: [f64; QueueCost::PARAMETER_COUNT] = [0.03, 0.03, 0.03, 0.03, 0.2, 0.05, 0.1];

/// The queue form for reads and writes, fitted to pure and mixed points together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Reads, if the profile has pure reads.
    pub read: Option<QueueCost>,
    /// Writes, if the profile has pure writes.
    pub write: Option<QueueCost>,
}

/// ln(cost / measured) of every sample, and the priors.
struct LogErrors<'a> {
    known: &'a [Operation],
    samples: &'a [Sample],
    parameters: &'a [Parameter],
}

impl LogErrors<'_> {
    fn weight(&self, index: usize) -> f64 {
        PRIOR_WEIGHTS[index % QueueCost::PARAMETER_COUNT]
    }
}

impl Objective for LogErrors<'_> {
    fn residuals(&self, values: &[f64]) -> Vec<f64> {
        let model = Queue::from_values(self.known, values);
        let errors = self.samples.iter().map(|s| {
            let cost = model.page_cost_us(&s.point).unwrap_or(f64::NAN);
            (cost / s.page_cost_us()).ln()
        });
        let priors = values.iter().zip(self.parameters).enumerate();
        let priors = priors.map(|(i, (v, p))| self.weight(i) * (v / p.start).ln());
        errors.chain(priors).collect()
    }

    fn slopes(&self, values: &[f64]) -> Option<DMatrix<f64>> {
        const N: usize = QueueCost::PARAMETER_COUNT;
        let model = Queue::from_values(self.known, values);
        let points = self.samples.len();
        let mut slopes = DMatrix::zeros(points + values.len(), values.len());
        for (row, sample) in self.samples.iter().enumerate() {
            let share = sample.point.read_share.clamp(0.0, 1.0);
            let parts = self.known.iter().enumerate().map(|(place, operation)| {
                let (cost, weight) = match operation {
                    Operation::Read => (model.read, share),
                    Operation::Write => (model.write, 1.0 - share),
                };
                let (cost, own) = cost.map_or((0.0, [0.0; N]), |c| c.slopes(&sample.point));
                (place, weight * cost, own)
            });
            let parts: Vec<_> = parts.collect();
            let whole: f64 = parts.iter().map(|p| p.1).sum();
            for (place, part, own) in parts {
                for (i, slope) in own.iter().enumerate() {
                    slopes[(row, place * N + i)] = part / whole * slope;
                }
            }
        }
        for i in 0..values.len() {
            slopes[(points + i, i)] = self.weight(i);
        }
        Some(slopes)
    }
}

impl Queue {
    /// Fits both operations and the mixes between them at once, on the logarithm of the cost.
    pub fn fit(samples: &[Sample]) -> Result<Self, FitError> {
        Self::fit_as(ModelKind::Queue, samples, None)
    }

    /// Whether `part` has enough pure points of every operation that `all` has some of.
    pub(crate) fn is_determined_by(part: &[Sample], all: &[Sample]) -> bool {
        let operations = [Operation::Read, Operation::Write].into_iter();
        let mut asked = operations.filter(|o| !pure_samples(all, *o).is_empty());
        asked.all(|o| enough(ModelKind::Queue, o, &pure_samples(part, o)).is_ok())
    }

    /// `near` is a fit to almost the same samples: the optimum is sought from there alone.
    pub(super) fn fit_as(
        model: ModelKind,
        samples: &[Sample],
        near: Option<&Self>,
    ) -> Result<Self, FitError> {
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
        let errors = LogErrors {
            known: &known,
            samples: &usable,
            parameters: &parameters,
        };
        let minimum = match near.and_then(|n| n.values(&known)) {
            Some(start) => minimize_from(&parameters, &[start], &errors),
            None => minimize(&parameters, &starts(&parameters), &errors),
        };
        let minimum = minimum.ok_or_else(|| FitError::no_convergence(model))?;
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

    /// The parameters of the operations in their order; `None` if one is missing.
    fn values(&self, known: &[Operation]) -> Option<Vec<f64>> {
        let of = |operation: &Operation| match operation {
            Operation::Read => self.read,
            Operation::Write => self.write,
        };
        let costs: Option<Vec<QueueCost>> = known.iter().map(of).collect();
        Some(costs?.iter().flat_map(QueueCost::values).collect())
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
                    ("c", c.crowding, "1/(4 MiB)"),
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

/// Further starts: the sharpness is what an optimum depends on.
fn starts(parameters: &[Parameter]) -> Vec<Vec<f64>> {
    let start = |n: f64| {
        let with_n = |(i, p): (usize, &Parameter)| match i % QueueCost::PARAMETER_COUNT {
            4 => n,
            _ => p.start,
        };
        parameters.iter().enumerate().map(with_n).collect()
    };
    [0.7, 2.0, 4.0].map(start).to_vec()
}

/// Whether there are enough points for a curve over k and one over the size of I/Os.
pub(super) fn enough(
    model: ModelKind,
    operation: Operation,
    own: &[Sample],
) -> Result<(), FitError> {
    let concurrencies = distinct_values(own.iter().map(|s| s.point.concurrency));
    let sizes = distinct_values(own.iter().map(|s| s.point.io_pages));
    let all = [
        ("points", QueueCost::POINTS_MIN, own.len()),
        ("values of k", 3, concurrencies),
        ("I/O sizes", 2, sizes),
    ];
    FitError::unless_enough(model, operation, &all)
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
                throughput_pages_per_s: 1e5,
            })
            .collect();
        let known = [Operation::Read, Operation::Write];
        let one = QueueCost::parameters(&pure_samples(&samples, Operation::Read));
        let parameters = [one, one].concat();
        let errors = LogErrors {
            known: &known,
            samples: &samples,
            parameters: &parameters,
        };
        for scale in [0.3, 1.0, 3.0] {
            let values: Vec<f64> = parameters
                .iter()
                .map(|p| (p.start * scale).clamp(p.low * 1.1, p.high * 0.9))
                .collect();
            let error = slope_error(&parameters, &values, &errors);
            assert!(error < 1e-6, "scale {scale}: {error}");
        }
    }
}
