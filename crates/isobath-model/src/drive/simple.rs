//! DAM, PDAM and affine: the models before MQSSD (section 2.1), fitted as section 4.1 fits them.

use serde::{Deserialize, Serialize};

use super::{Coefficient, ModelKind, PureModel};
use crate::error::FitError;
use crate::linear::fit_line_relative;
use crate::point::{OperatingPoint, Operation, Sample};

/// The points with the least concurrency: "derived based on the single-threaded benchmarking
/// results".
fn min_concurrent(samples: &[Sample]) -> Vec<Sample> {
    let k_min = samples
        .iter()
        .map(|s| s.point.concurrency)
        .fold(f64::INFINITY, f64::min);
    samples
        .iter()
        .filter(|s| s.point.concurrency == k_min)
        .copied()
        .collect()
}

fn mean_page_cost_us(samples: &[Sample]) -> f64 {
    samples.iter().map(Sample::page_cost_us).sum::<f64>() / samples.len() as f64
}

/// Equation 1: throughput = B / page_cost, whatever r and k.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dam {
    /// `page_cost`, µs per page.
    pub page_cost_us: f64,
}

impl PureModel for Dam {
    const KIND: ModelKind = ModelKind::Dam;

    fn fit_pure(_: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        Ok(Self {
            page_cost_us: mean_page_cost_us(&min_concurrent(samples)),
        })
    }

    fn page_cost_us(&self, _: &OperatingPoint) -> f64 {
        self.page_cost_us
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        vec![Coefficient::new("page_cost", self.page_cost_us, "µs/page")]
    }
}

/// Equations 2 and 4: throughput = B · min(k, P) / cycle_cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pdam {
    /// `cycle_cost`, µs per cycle of up to `P` pages.
    pub cycle_cost_us: f64,
    /// `P`, pages per cycle. The paper takes the number of flash channels; that is unknown for most
    /// drives, so it is fitted (least relative error over whole numbers).
    pub parallel_pages: u32,
}

impl PureModel for Pdam {
    const KIND: ModelKind = ModelKind::Pdam;

    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        let base = min_concurrent(samples);
        let others = samples.len() - base.len();
        FitError::unless_enough(Self::KIND, operation, &[("points at another k", 1, others)])?;
        let k_min = base[0].point.concurrency;
        let k_max = samples
            .iter()
            .map(|s| s.point.concurrency)
            .fold(1.0, f64::max);
        let cycle_cost_us = mean_page_cost_us(&base) * k_min;
        let error = |parallel_pages: u32| {
            let model = Self {
                cycle_cost_us,
                parallel_pages,
            };
            samples
                .iter()
                .map(|s| {
                    (model.page_cost_us(&s.point) / s.page_cost_us())
                        .ln()
                        .powi(2)
                })
                .sum::<f64>()
        };
        let best = (1..=k_max.ceil() as u32).min_by(|a, b| error(*a).total_cmp(&error(*b)));
        Ok(Self {
            cycle_cost_us,
            parallel_pages: best.unwrap_or(1),
        })
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        self.cycle_cost_us / point.concurrency.min(f64::from(self.parallel_pages))
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        vec![
            Coefficient::new("cycle_cost", self.cycle_cost_us, "µs/cycle"),
            Coefficient::new("P", f64::from(self.parallel_pages), "pages/cycle"),
        ]
    }
}

/// Equation 3 with its costs added instead of its rates: cost per page = s · (random accesses per
/// page) + β.
///
/// As printed, N/(s·r) + B/β diverges for r → 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Affine {
    /// `s`: µs per random access.
    pub setup_us: f64,
    /// `β`: µs per page.
    pub transfer_us: f64,
}

impl PureModel for Affine {
    const KIND: ModelKind = ModelKind::Affine;

    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError> {
        let points: Vec<_> = min_concurrent(samples)
            .iter()
            .map(|s| (s.point.random_accesses_per_page(), s.page_cost_us()))
            .collect();
        let distinct = distinct_values(points.iter().map(|p| p.0));
        let what = "distinct shares of random accesses at the least k";
        FitError::unless_enough(Self::KIND, operation, &[(what, 2, distinct)])?;
        let line = fit_line_relative(&points);
        let cheapest = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
        // A drive without read-ahead may answer sequential pages no faster; the line must still not
        // go below zero.
        Ok(Self {
            setup_us: line.slope.max(0.0),
            transfer_us: line.intercept.max(cheapest * 1e-3),
        })
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> f64 {
        self.setup_us * point.random_accesses_per_page() + self.transfer_us
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        vec![
            Coefficient::new("s", self.setup_us, "µs/access"),
            Coefficient::new("β", self.transfer_us, "µs/page"),
        ]
    }
}

/// Distinct values up to a relative difference of 10⁻⁹.
pub(crate) fn distinct_values(values: impl Iterator<Item = f64>) -> usize {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup_by(|a, b| (*a - *b).abs() <= 1e-9 * b.abs());
    sorted.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(concurrency: f64, io_pages: f64, page_cost_us: f64) -> Sample {
        Sample {
            point: OperatingPoint::random_reads(concurrency, io_pages),
            throughput_pages_per_s: 1e6 / page_cost_us,
        }
    }

    #[test]
    fn pdam_finds_the_number_of_channels() {
        let samples: Vec<_> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
            .iter()
            .map(|&k: &f64| sample(k, 1.0, 80.0 / k.min(6.0)))
            .collect();
        let model = Pdam::fit_pure(Operation::Read, &samples).unwrap();
        assert_eq!(model.parallel_pages, 6);
        assert!((model.page_cost_us(&samples[2].point) - 20.0).abs() < 1e-9);
        let error = Pdam::fit_pure(Operation::Read, &samples[..1]).unwrap_err();
        assert!(
            matches!(
                error,
                FitError::TooFewPoints {
                    needed: 1,
                    found: 0,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn affine_adds_setup_and_transfer() {
        let samples = [
            sample(1.0, 1.0, 53.0),
            sample(1.0, 10.0, 8.0),
            sample(1.0, 50.0, 4.0),
        ];
        let model = Affine::fit_pure(Operation::Read, &samples).unwrap();
        assert!(
            (model.setup_us - 50.0).abs() < 1e-9 && (model.transfer_us - 3.0).abs() < 1e-9,
            "{model:?}"
        );
        let error = Affine::fit_pure(Operation::Write, &samples[..1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "affine needs 1 more distinct shares of random accesses at the least k for writes (1 of 2 present): \
             measure them and fit again"
        );
    }

    #[test]
    fn dam_averages_the_single_threaded_points_only() {
        let samples = [
            sample(1.0, 1.0, 60.0),
            sample(1.0, 8.0, 20.0),
            sample(32.0, 1.0, 1.0),
        ];
        let model = Dam::fit_pure(Operation::Read, &samples).unwrap();
        assert!((model.page_cost_us - 40.0).abs() < 1e-9);
    }
}
