//! How good is a model on points that it has not seen? Cross-validation, extrapolation, prediction
//! intervals, selection.

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
    /// From relative errors; predictions that are not finite and positive count as wholly wrong
    /// (1.0). `None` if empty.
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

/// Predicts every sample from a fit without it and others of the same point (or without its fold).
/// Entry `i` is the predicted page cost of `samples[i]` in µs, or `None` if the rest did not
/// determine the model (a corner that only this point held).
///
/// Every fit begins at the optimum of all samples: leaving out one point moves it little.
fn held_out_costs(whole: &DriveModel, samples: &[Sample]) -> Vec<Option<f64>> {
    let mut points: Vec<OperatingPoint> = Vec::new();
    for sample in samples {
        if !points.contains(&sample.point) {
            points.push(sample.point);
        }
    }
    SplitMix64::new(FOLD_SEED).shuffle(&mut points);
    let folds = if points.len() <= LEAVE_ONE_OUT_MAX {
        points.len()
    } else {
        FOLDS
    };
    let mut costs = vec![None; samples.len()];
    for fold in 0..folds {
        let left_out: Vec<&OperatingPoint> = points.iter().skip(fold).step_by(folds).collect();
        let is_out = |sample: &Sample| left_out.contains(&&sample.point);
        let rest: Vec<Sample> = samples.iter().filter(|s| !is_out(s)).copied().collect();
        let Ok(model) = DriveModel::fit_near(whole.kind(), &rest, Some(whole)) else {
            continue;
        };
        for (cost, sample) in costs.iter_mut().zip(samples) {
            if is_out(sample) {
                *cost = model.page_cost_us(&sample.point).ok();
            }
        }
    }
    costs
}

/// A direction in which a drive may be operated beyond what was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beyond {
    /// More I/Os in flight.
    Concurrency,
    /// More pages per I/O.
    IoPages,
}

impl Beyond {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Concurrency, Self::IoPages];

    fn of(self, point: &OperatingPoint) -> f64 {
        match self {
            Self::Concurrency => point.concurrency,
            Self::IoPages => point.io_pages,
        }
    }
}

/// How wrong a model is on the largest k, or the largest I/Os, when it was fitted to the points
/// below alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExtrapolationError {
    /// What was held out.
    pub beyond: Beyond,
    /// Doublings between the largest value fitted to and the largest held out.
    pub doublings: f64,
    /// The error there; `None` if the points below do not determine the model.
    pub error: Option<HeldOutError>,
}

/// What lies above this share of the largest value is held out: a row of a grid of doublings.
const LARGEST_ABOVE: f64 = 0.5;
/// A gap of more doublings is a plan's design (its corners bracket a range), not a question of
/// extrapolation.
const DOUBLINGS_MAX: f64 = 2.0;

/// Holds out the largest values of `beyond`; `None` if the rest is none, or lies too far below.
fn extrapolation(
    whole: &DriveModel,
    samples: &[Sample],
    beyond: Beyond,
) -> Option<ExtrapolationError> {
    let largest = |of: &[Sample]| of.iter().map(|s| beyond.of(&s.point)).fold(0.0, f64::max);
    let top = largest(samples);
    let (out, rest): (Vec<Sample>, Vec<Sample>) = samples
        .iter()
        .partition(|s| beyond.of(&s.point) > LARGEST_ABOVE * top);
    let doublings = (top / largest(&rest)).log2();
    if rest.is_empty() || doublings > DOUBLINGS_MAX {
        return None;
    }
    let fitted = DriveModel::fit_near(whole.kind(), &rest, None);
    let error = fitted.and_then(|model| HeldOutError::of(&model, &out));
    Some(ExtrapolationError {
        beyond,
        doublings,
        error: error.ok().flatten(),
    })
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
    /// How far outside the measured range the point lies, in doublings of k and of the I/O size; 0
    /// inside.
    pub extrapolated_doublings: f64,
    /// The point.
    pub point: OperatingPoint,
    /// Least and greatest k of the points that were fitted.
    pub concurrency_range: (f64, f64),
    /// Least and greatest pages per I/O of the points that were fitted.
    pub io_pages_range: (f64, f64),
}

impl Prediction {
    /// Says in words which of k and the I/O size lies outside of what was measured; `None` inside.
    pub fn caution(&self) -> Option<String> {
        let outside = |what: &str, value: f64, (low, high): (f64, f64)| {
            if value > high {
                Some(format!(
                    "{what} of {value:.0} is above the largest measured ({high:.0})"
                ))
            } else if value < low {
                Some(format!(
                    "{what} of {value:.0} is below the least measured ({low:.0})"
                ))
            } else {
                None
            }
        };
        let said = [
            outside("a depth", self.point.concurrency, self.concurrency_range),
            outside(
                "an I/O size in pages",
                self.point.io_pages,
                self.io_pages_range,
            ),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        (!said.is_empty()).then(|| {
            format!(
                "{}: this is extrapolated, and its interval is wider",
                said.join(", and ")
            )
        })
    }
}

/// A fitted model that knows how wrong it has been.
///
/// The interval is the 90th percentile of the cross-validated errors of ln(throughput), so it needs
/// no assumption about their distribution. Each doubling of k or I/O size beyond the measured range
/// widens it by half, or by what the model missed per doubling when the largest were held out,
/// whichever is more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predictor {
    model: DriveModel,
    held_out: Option<HeldOutError>,
    extrapolation: Vec<ExtrapolationError>,
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
        let extrapolation = Beyond::ALL
            .iter()
            .filter_map(|beyond| extrapolation(&model, samples, *beyond))
            .collect();
        Ok(Self {
            model,
            held_out: HeldOutError::from_errors(&errors),
            extrapolation,
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

    /// Errors on the largest k and the largest I/Os when these were held out; those that the points
    /// allow.
    pub fn extrapolation(&self) -> &[ExtrapolationError] {
        &self.extrapolation
    }

    /// What selection compares: the mean of median and 90th percentile, so that neither a lucky
    /// middle nor a single outlier decides, half of it cross-validated, half extrapolated. `None`
    /// if no point could be left out.
    fn score(&self) -> Option<f64> {
        let mean = |e: &HeldOutError| 0.5 * (e.median + e.p90);
        let inside = mean(&self.held_out?);
        if self.extrapolation.is_empty() {
            return Some(inside);
        }
        // What the points below do not determine is as wrong as an interval of unknown width.
        let unknown = HALF_WIDTH_UNKNOWN.exp() - 1.0;
        let outside = self.extrapolation.iter();
        let outside = outside.map(|e| e.error.as_ref().map_or(unknown, mean));
        let outside = outside.sum::<f64>() / self.extrapolation.len() as f64;
        Some(0.5 * (inside + outside))
    }

    /// By how much, in ln(throughput), a doubling beyond the measured range widens the interval.
    fn widening_ln(&self, beyond: Beyond) -> f64 {
        let least = 0.5 * self.half_width_ln;
        let own = self.extrapolation.iter().find(|e| e.beyond == beyond);
        let missed = own.and_then(|e| Some(e.error?.p90.ln_1p() / e.doublings));
        missed.map_or(least, |missed| missed.max(least))
    }

    /// Every training point that could be left out, with the throughput in pages/s that a fit
    /// without it predicted.
    pub fn cross_validated(&self) -> &[(Sample, f64)] {
        &self.cross_validated
    }

    /// Throughput at a point with its 90% interval.
    pub fn predict(&self, point: &OperatingPoint) -> Result<Prediction, FitError> {
        let throughput_pages_per_s = self.model.throughput_pages_per_s(point)?;
        let outside =
            |value: f64, (low, high): (f64, f64)| (value / value.clamp(low, high)).log2().abs();
        let deeper = outside(point.concurrency, self.concurrency_range);
        let larger = outside(point.io_pages, self.io_pages_range);
        let factor = (self.half_width_ln
            + deeper * self.widening_ln(Beyond::Concurrency)
            + larger * self.widening_ln(Beyond::IoPages))
        .exp();
        Ok(Prediction {
            throughput_pages_per_s,
            low_pages_per_s: throughput_pages_per_s / factor,
            high_pages_per_s: throughput_pages_per_s * factor,
            extrapolated_doublings: deeper + larger,
            point: *point,
            concurrency_range: self.concurrency_range,
            io_pages_range: self.io_pages_range,
        })
    }
}

/// One model of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The model.
    pub kind: ModelKind,
    /// The fitted predictor, or why there is none (for example: too few points, and how many are
    /// missing).
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

    /// The model with the least error on points held out: inside of the measured range by
    /// cross-validation, and beyond it by the largest k and the largest I/Os in turn. A finer model
    /// must be better by 2% to displace a coarser one. `None` if no model could be cross-validated.
    pub fn best(&self) -> Option<&Predictor> {
        let mut best: Option<(f64, &Predictor)> = None;
        for predictor in self
            .candidates
            .iter()
            .filter_map(|c| c.outcome.as_ref().ok())
        {
            let Some(score) = predictor.score() else {
                continue;
            };
            if best.is_none_or(|(least, _)| score < least * (1.0 - FINER_GAIN_MIN)) {
                best = Some((score, predictor));
            }
        }
        best.map(|(_, predictor)| predictor)
    }
}

/// By how much (as a share) a model must beat every coarser one to be preferred: less is chance,
/// not knowledge.
const FINER_GAIN_MIN: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert!((quantile(&[1.0, 2.0, 4.0], 0.5) - 2.0).abs() < 1e-12);
        assert!((quantile(&[0.0, 1.0], 0.9) - 0.9).abs() < 1e-12);
    }

    /// A point that was measured twice is not predicted from itself.
    #[test]
    fn a_point_is_left_out_whole() {
        let sample = |k: u32, rate: f64| Sample {
            point: OperatingPoint::random_reads(f64::from(k), 1.0),
            throughput_pages_per_s: rate,
        };
        let once: Vec<Sample> = [(1, 1e4), (4, 3e4), (16, 2e4), (64, 9e4), (128, 4e4)]
            .map(|(k, rate)| sample(k, rate))
            .to_vec();
        let twice = [once.clone(), once.clone()].concat();
        let error = |samples: &[Sample]| {
            let predictor = Predictor::train(ModelKind::Dam, samples).unwrap();
            predictor.held_out().unwrap().median
        };
        assert!((error(&twice) / error(&once) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_prediction_that_is_not_a_number_counts_as_wholly_wrong() {
        let error = HeldOutError::from_errors(&[0.0, f64::NAN, f64::INFINITY]).unwrap();
        assert!((error.median - 1.0).abs() < 1e-12);
        assert!(HeldOutError::from_errors(&[]).is_none());
    }
}
