//! What a report about a drive's models shows, as data: coefficients, R², held-out errors, lines
//! per k, residuals.

use serde::Serialize;

use crate::drive::{Coefficient, ConcurrencyCosts, ModelKind, costs_per_concurrency, pure_samples};
use crate::error::FitError;
use crate::point::{Operation, Sample};
use crate::profile::DeviceProfile;
use crate::select::{Comparison, ExtrapolationError, HeldOutError, Predictor};

/// One model in the comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelRow {
    /// The model.
    pub kind: ModelKind,
    /// R² of ln(throughput) over the points that it was fitted on; `None` if it was not fitted.
    pub r_squared: Option<f64>,
    /// Cross-validated error.
    pub held_out: Option<HeldOutError>,
    /// Error on the largest k and the largest I/Os when these were held out.
    pub extrapolation: Vec<ExtrapolationError>,
    /// Error on points of another profile, if one was given.
    pub unseen: Option<HeldOutError>,
    /// Fitted numbers.
    pub coefficients: Vec<Coefficient>,
    /// Why it was not fitted, in words.
    pub failure: Option<String>,
    /// True for the model that predictions should be made with.
    pub chosen: bool,
}

/// A point with what the chosen model said about it before it had seen it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Residual {
    /// The measurement.
    pub sample: Sample,
    /// Predicted / measured throughput.
    pub ratio: f64,
}

/// Everything that the HTML report draws.
#[derive(Debug, Clone)]
pub struct ModelReport {
    /// One row per kind of model, coarsest first.
    pub rows: Vec<ModelRow>,
    /// Table 2 of this drive: reads.
    pub read_lines: Vec<ConcurrencyCosts>,
    /// Table 2 of this drive: writes.
    pub write_lines: Vec<ConcurrencyCosts>,
    /// Cross-validated residuals of the chosen model.
    pub residuals: Vec<Residual>,
    /// The points that were fitted.
    pub samples: Vec<Sample>,
    /// The fitted models.
    pub comparison: Comparison,
}

impl ModelReport {
    /// Fits all models to a profile; `unseen` is another profile of the same drive to judge them
    /// on.
    pub fn of(profile: &DeviceProfile, unseen: Option<&DeviceProfile>) -> Self {
        let samples = profile.fitted_samples();
        let unseen = unseen.map(DeviceProfile::samples);
        let comparison = Comparison::of(&samples);
        let chosen = comparison.best().map(|p| p.model().kind());
        let rows = comparison
            .candidates
            .iter()
            .map(|candidate| {
                let fitted = candidate.outcome.as_ref().ok();
                let of_unseen = |fitted: &Predictor| {
                    HeldOutError::of(fitted.model(), unseen.as_ref()?)
                        .ok()
                        .flatten()
                };
                ModelRow {
                    kind: candidate.kind,
                    r_squared: fitted.and_then(|fitted| r_squared(fitted, &samples)),
                    held_out: fitted.and_then(Predictor::held_out),
                    extrapolation: fitted.map_or_else(Vec::new, |f| f.extrapolation().to_vec()),
                    unseen: fitted.and_then(of_unseen),
                    coefficients: fitted.map_or_else(Vec::new, |f| f.model().coefficients()),
                    failure: candidate.outcome.as_ref().err().map(FitError::to_string),
                    chosen: chosen == Some(candidate.kind),
                }
            })
            .collect();
        let residuals = comparison
            .best()
            .map(Predictor::cross_validated)
            .unwrap_or_default();
        Self {
            rows,
            read_lines: costs_per_concurrency(&pure_samples(&samples, Operation::Read)),
            write_lines: costs_per_concurrency(&pure_samples(&samples, Operation::Write)),
            residuals: residuals
                .iter()
                .map(|&(sample, predicted)| Residual {
                    sample,
                    ratio: predicted / sample.throughput_pages_per_s,
                })
                .collect(),
            samples,
            comparison,
        }
    }

    /// The fitted predictor of one kind.
    pub fn predictor(&self, kind: ModelKind) -> Option<&Predictor> {
        self.comparison
            .candidates
            .iter()
            .find(|c| c.kind == kind)?
            .outcome
            .as_ref()
            .ok()
    }
}

/// Share of the variance of ln(throughput) that the model explains. On the logarithm, because
/// otherwise the few fastest points decide.
fn r_squared(predictor: &Predictor, samples: &[Sample]) -> Option<f64> {
    let logs: Vec<f64> = samples
        .iter()
        .map(|s| s.throughput_pages_per_s.ln())
        .collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let total: f64 = logs.iter().map(|l| (l - mean).powi(2)).sum();
    let mut left = 0.0;
    for (sample, log) in samples.iter().zip(&logs) {
        let predicted = predictor
            .model()
            .throughput_pages_per_s(&sample.point)
            .ok()?;
        left += (predicted.ln() - log).powi(2);
    }
    (total > 0.0 && left.is_finite()).then(|| 1.0 - left / total)
}
