//! The queue form times a low-order correction surface, fitted in log space.
//!
//! The queue form carries the physics and the extrapolation; the surface takes up what it misses
//! inside the measured range. Its coordinates are clamped to that range, so outside of it the
//! correction stays what it was at the edge and the queue form alone decides.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::queue::Queue;
use super::{Coefficient, ModelKind};
use crate::error::FitError;
use crate::linear::ridge_fit;
use crate::point::{OperatingPoint, Sample};

/// Per coordinate (log₂ k, log₂ pages, random share, read share): least and greatest measured
/// value.
type Range = [(f64, f64); 4];

/// ln cost = ln queue(point) + w · features(point), `w` by ridge regression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// The form that is corrected.
    pub base: Queue,
    /// Weights of the features, in ln(cost).
    pub weights: Vec<f64>,
    /// Ridge penalty that leave-one-out chose inside the training points.
    pub ridge: f64,
    range: Range,
}

const RIDGES: [f64; 6] = [0.1, 0.3, 1.0, 3.0, 10.0, 100.0];

fn coordinates(point: &OperatingPoint) -> [f64; 4] {
    [
        point.concurrency.log2(),
        point.io_pages.log2(),
        point.random_share,
        point.read_share,
    ]
}

/// Names and values of the features; every coordinate is scaled to -1..=1 over the measured range.
fn features(range: &Range, point: &OperatingPoint) -> Vec<f64> {
    let mut c = coordinates(point);
    for (value, (low, high)) in c.iter_mut().zip(range) {
        let clamped = value.clamp(*low, *high);
        *value = if high > low {
            (2.0 * clamped - low - high) / (high - low)
        } else {
            0.0
        };
    }
    let [k, p, r, m] = c;
    // 1 - m² is zero for pure reads and writes: what mixing costs beyond the sum of its parts.
    let mixing = 1.0 - m * m;
    vec![
        1.0,
        k,
        p,
        r,
        m,
        k * k,
        p * p,
        k * p,
        k * m,
        p * m,
        k * r,
        p * r,
        r * m,
        mixing,
        mixing * k,
    ]
}

const FEATURE_NAMES: [&str; 15] = [
    "1", "k", "p", "r", "m", "k²", "p²", "kp", "km", "pm", "kr", "pr", "rm", "1-m²", "(1-m²)k",
];

impl Surface {
    /// Fits the queue form, then the surface through what is left.
    pub fn fit(samples: &[Sample]) -> Result<Self, FitError> {
        Self::fit_near(samples, None)
    }

    /// As [`Self::fit`]; `near` is a queue form of almost the same samples.
    pub(super) fn fit_near(samples: &[Sample], near: Option<&Queue>) -> Result<Self, FitError> {
        let base = Queue::fit_as(ModelKind::Surface, samples, near)?;
        let mut range: Range = [(f64::INFINITY, f64::NEG_INFINITY); 4];
        let mut rows = Vec::new();
        for sample in samples {
            let Ok(cost) = base.page_cost_us(&sample.point) else {
                continue;
            };
            for (bounds, value) in range.iter_mut().zip(coordinates(&sample.point)) {
                *bounds = (bounds.0.min(value), bounds.1.max(value));
            }
            rows.push((sample.point, (sample.page_cost_us() / cost).ln()));
        }
        let matrix = DMatrix::from_row_iterator(
            rows.len(),
            FEATURE_NAMES.len(),
            rows.iter().flat_map(|(point, _)| features(&range, point)),
        );
        let errors = DVector::from_iterator(rows.len(), rows.iter().map(|r| r.1));
        let best = RIDGES
            .iter()
            .filter_map(|&ridge| {
                let (weights, held_out) = ridge_fit(&matrix, &errors, ridge)?;
                Some((held_out, ridge, weights))
            })
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, ridge, weights) =
            best.ok_or_else(|| FitError::no_convergence(ModelKind::Surface))?;
        Ok(Self {
            base,
            weights: weights.as_slice().to_vec(),
            ridge,
            range,
        })
    }

    /// Wall time per page in µs.
    pub fn page_cost_us(&self, point: &OperatingPoint) -> Result<f64, FitError> {
        let correction: f64 = features(&self.range, point)
            .iter()
            .zip(&self.weights)
            .map(|(f, w)| f * w)
            .sum();
        Ok(self.base.page_cost_us(point)? * correction.exp())
    }

    pub(super) fn coefficients(&self) -> Vec<Coefficient> {
        let mut all = self.base.coefficients();
        let named = |(name, &value): (&&str, &f64)| {
            Coefficient::new(format!("w[{name}]"), value, "ln(cost)")
        };
        all.extend(FEATURE_NAMES.iter().zip(&self.weights).map(named));
        all
    }
}
