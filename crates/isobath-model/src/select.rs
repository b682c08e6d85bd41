//! How good is a model on points that it has not seen? Cross-validation, prediction intervals, selection.

use serde::{Deserialize, Serialize};

use crate::drive::{DriveModel, ModelKind};
use crate::error::FitError;
use crate::point::{OperatingPoint, Sample};
use crate::rng::SplitMix64;

/// Relative errors |predicted / measured − 1| of throughput at points that took no part in the fit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeldOutError {
    /// Median, as a share of the measured throughput.
    pub median: f64,
    /// 90th percentile, as a share of the measured throughput.
    pub p90: f64,
    /// Points that were predicted.
    pub point_count: usize,
}

impl HeldOutError {
    /// From relative errors; predictions that are not finite and positive count as wholly wrong (1.0). `None` if empty.
    pub fn from_errors(errors: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = errors
            .iter()
            .map(|e| if e.is_finite() { *e } else { 1.0 })
            .collect();
        if sorted.is_empty() {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5),
            p90: quantile(&sorted, 0.9),
            point_count: sorted.len(),
        })
    }

    /// Error of a fitted model on other points.
    pub fn of(model: &DriveModel, samples: &[Sample]) -> Result<Option<Self>, FitError> {
        let errors: Result<Vec<f64>, FitError> =
            samples.iter().map(|s| relative_error(model, s)).collect();
        Ok(Self::from_errors(&errors?))
    }
}

/// Linear interpolation between order statistics of a sorted, non-empty slice.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

fn relative_error(model: &DriveModel, sample: &Sample) -> Result<f64, FitError> {
    let predicted = model.throughput_pages_per_s(&sample.point)?;
    Ok((predicted / sample.throughput_pages_per_s - 1.0).abs())
}

/// Up to this many points every point is left out in turn; beyond, [`FOLDS`] random folds.
const LEAVE_ONE_OUT_MAX: usize = 40;
const FOLDS: usize = 10;
const FOLD_SEED: u64 = 0x1D_0BA7;

/// Predicts every sample from a fit without it (or without its fold). Entry `i` is the predicted page cost of
/// `samples[i]` in µs, or `None` where the rest did not determine the model (a corner that only this point held).
///
/// Every fit begins at the optimum of all samples: leaving out one point moves it little.
fn held_out_costs(whole: &DriveModel, samples: &[Sample]) -> Vec<Option<f64>> {
    let mut order: Vec<usize> = (0..samples.len()).collect();
    SplitMix64::new(FOLD_SEED).shuffle(&mut order);
    let folds = if samples.len() <= LEAVE_ONE_OUT_MAX {
        samples.len()
    } else {
        FOLDS
    };
    let mut costs = vec![None; samples.len()];
    for fold in 0..folds {
        let out: Vec<usize> = order.iter().copied().skip(fold).step_by(folds).collect();
        let rest: Vec<Sample> = samples
            .iter()
            .enumerate()
            .filter(|(i, _)| !out.contains(i))
            .map(|(_, s)| *s)
            .collect();
        let Ok(model) = DriveModel::fit_near(whole.kind(), &rest, Some(whole)) else {
            continue;
        };
        for i in out {
            costs[i] = model.page_cost_us(&samples[i].point).ok();
        }
    }
    costs
}

/// Predicted throughput with an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Pages of 4 KiB per second.
    pub throughput_pages_per_s: f64,
    /// Lower end of the 90% interval, pages/s.
    pub low_pages_per_s: f64,
    /// Upper end of the 90% interval, pages/s.
    pub high_pages_per_s: f64,
    /// How far outside the measured range the point lies, in doublings of k and of the I/O size; 0 inside.
    pub extrapolated_doublings: f64,
}

/// A fitted model that knows how wrong it has been.
///
/// The interval is the 90th percentile of the cross-validated errors of ln(throughput), so it needs no assumption about
/// their distribution; each doubling of k or I/O size beyond the measured range widens it by half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predictor {
    model: DriveModel,
    held_out: Option<HeldOutError>,
    half_width_ln: f64,
    concurrency_range: (f64, f64),
    io_pages_range: (f64, f64),
    cross_validated: Vec<(Sample, f64)>,
}

/// The interval's half width where cross-validation was impossible: a factor of two either way.
const HALF_WIDTH_UNKNOWN: f64 = std::f64::consts::LN_2;

impl Predictor {
    /// Fits `kind` to all samples and cross-validates it on them.
    pub fn train(kind: ModelKind, samples: &[Sample]) -> Result<Self, FitError> {
        Self::train_near(kind, samples, None)
    }

    /// As [`Self::train`]; `near` is a model of another kind that was fitted to the same samples.
    fn train_near(
        kind: ModelKind,
        samples: &[Sample],
        near: Option<&DriveModel>,
    ) -> Result<Self, FitError> {
        let model = DriveModel::fit_near(kind, samples, near)?;
        let costs = held_out_costs(&model, samples);
        let predicted: Vec<(f64, f64)> = costs
            .iter()
            .zip(samples)
            .filter_map(|(c, s)| c.map(|c| (c, s.page_cost_us())))
            .collect();
        let errors: Vec<f64> = predicted.iter().map(|(c, y)| (y / c - 1.0).abs()).collect();
        let mut logs: Vec<f64> = predicted
            .iter()
            .map(|(c, y)| (c / y).ln().abs())
            .map(|e| if e.is_finite() { e } else { HALF_WIDTH_UNKNOWN })
            .collect();
        logs.sort_by(f64::total_cmp);
        let range = |f: fn(&Sample) -> f64| {
            samples
                .iter()
                .map(f)
                .fold((f64::INFINITY, 0.0f64), |(low, high), v| {
                    (low.min(v), high.max(v))
                })
        };
        Ok(Self {
            model,
            held_out: HeldOutError::from_errors(&errors),
            half_width_ln: if logs.is_empty() {
                HALF_WIDTH_UNKNOWN
            } else {
                quantile(&logs, 0.9)
            },
            concurrency_range: range(|s| s.point.concurrency),
            io_pages_range: range(|s| s.point.io_pages),
            cross_validated: costs
                .iter()
                .zip(samples)
                .filter_map(|(c, s)| c.map(|c| (*s, 1e6 / c)))
                .collect(),
        })
    }

    /// The fitted model.
    pub fn model(&self) -> &DriveModel {
        &self.model
    }

    /// Cross-validated error; `None` if no point could be left out.
    pub fn held_out(&self) -> Option<HeldOutError> {
        self.held_out
    }

    /// Every training point that could be left out, with the throughput in pages/s that a fit without it predicted.
    pub fn cross_validated(&self) -> &[(Sample, f64)] {
        &self.cross_validated
    }

    /// Throughput at a point with its 90% interval.
    pub fn predict(&self, point: &OperatingPoint) -> Result<Prediction, FitError> {
        let throughput_pages_per_s = self.model.throughput_pages_per_s(point)?;
        let outside =
            |value: f64, (low, high): (f64, f64)| (value / value.clamp(low, high)).log2().abs();
        let extrapolated_doublings = outside(point.concurrency, self.concurrency_range)
            + outside(point.io_pages, self.io_pages_range);
        let factor = (self.half_width_ln * (1.0 + 0.5 * extrapolated_doublings)).exp();
        Ok(Prediction {
            throughput_pages_per_s,
            low_pages_per_s: throughput_pages_per_s / factor,
            high_pages_per_s: throughput_pages_per_s * factor,
            extrapolated_doublings,
        })
    }
}

/// One model of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The model.
    pub kind: ModelKind,
    /// The fitted predictor, or why there is none (for example: too few points, and how many are missing).
    pub outcome: Result<Predictor, FitError>,
}

/// All models side by side, trained on the same points.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// One entry per kind of [`ModelKind::ALL`], in that order.
    pub candidates: Vec<Candidate>,
}

impl Comparison {
    /// Fits and cross-validates every kind of model.
    pub fn of(samples: &[Sample]) -> Self {
        let mut candidates: Vec<Candidate> = Vec::new();
        for kind in ModelKind::ALL {
            // The surface corrects the queue form that came before it.
            let before = candidates.last().and_then(|c| c.outcome.as_ref().ok());
            let outcome = Predictor::train_near(kind, samples, before.map(Predictor::model));
            candidates.push(Candidate { kind, outcome });
        }
        Self { candidates }
    }

    /// The model with the least cross-validated error: by the mean of median and 90th percentile, so that neither a
    /// lucky middle nor a single outlier decides. A finer model must be better by 2% to displace a
    /// coarser one. `None` if no model could be cross-validated.
    pub fn best(&self) -> Option<&Predictor> {
        let mut best: Option<(f64, &Predictor)> = None;
        for predictor in self
            .candidates
            .iter()
            .filter_map(|c| c.outcome.as_ref().ok())
        {
            let Some(error) = predictor.held_out else {
                continue;
            };
            let score = 0.5 * (error.median + error.p90);
            if best.is_none_or(|(least, _)| score < least * (1.0 - FINER_GAIN_MIN)) {
                best = Some((score, predictor));
            }
        }
        best.map(|(_, predictor)| predictor)
    }
}

/// By how much (as a share) a model must beat every coarser one to be preferred: less is chance, not knowledge.
const FINER_GAIN_MIN: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert!((quantile(&[1.0, 2.0, 4.0], 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&[0.0, 1.0], 0.9) - 0.9).abs() < 1e-12);
    }

    #[test]
    fn a_prediction_that_is_not_a_number_counts_as_wholly_wrong() {
        let error = HeldOutError::from_errors(&[0.0, f64::NAN, f64::INFINITY]).unwrap();
        assert!((error.median - 1.0).abs() < 1e-12);
        assert!(HeldOutError::from_errors(&[]).is_none());
    }
}
