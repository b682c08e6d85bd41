//! Linear least squares: straight lines with R², as Table 2 was derived, and ridge regression.

use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

/// A straight line `slope · x + intercept` with its coefficient of determination.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinearFit {
    /// Slope, in units of y per unit of x.
    pub slope: f64,
    /// Value at x = 0, in units of y.
    pub intercept: f64,
    /// R²: the share of y's variance that the line explains; 1 when y does not vary.
    pub r_squared: f64,
}

/// Ordinary least squares through `(x, y)` points. With fewer than two distinct x the slope is 0.
pub fn fit_line(points: &[(f64, f64)]) -> LinearFit {
    fit_line_weighted(points, |_| 1.0)
}

/// Least squares with weights 1/y²: minimizes relative errors, so that small costs count as much as
/// large ones. Points with y ≤ 0 are left out.
pub fn fit_line_relative(points: &[(f64, f64)]) -> LinearFit {
    fit_line_weighted(points, |(_, y)| if y > 0.0 { 1.0 / (y * y) } else { 0.0 })
}

fn fit_line_weighted(points: &[(f64, f64)], weight: impl Fn((f64, f64)) -> f64) -> LinearFit {
    let sums =
        |f: &dyn Fn(f64, f64) -> f64| points.iter().map(|&p| weight(p) * f(p.0, p.1)).sum::<f64>();
    let total = sums(&|_, _| 1.0);
    if total <= 0.0 {
        return LinearFit {
            slope: 0.0,
            intercept: 0.0,
            r_squared: 0.0,
        };
    }
    let (x_mean, y_mean) = (sums(&|x, _| x) / total, sums(&|_, y| y) / total);
    let xx = sums(&|x, _| (x - x_mean).powi(2));
    let xy = sums(&|x, y| (x - x_mean) * (y - y_mean));
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    let intercept = y_mean - slope * x_mean;
    let residual = sums(&|x, y| (y - slope * x - intercept).powi(2));
    let variance = sums(&|_, y| (y - y_mean).powi(2));
    LinearFit {
        slope,
        intercept,
        r_squared: if variance > 0.0 {
            1.0 - residual / variance
        } else {
            1.0
        },
    }
}

/// Ridge regression and the sum of its leave-one-out errors in closed form: |eᵢ / (1 − hᵢᵢ)| with
/// the hat matrix H.
pub(crate) fn ridge_fit(
    matrix: &DMatrix<f64>,
    errors: &DVector<f64>,
    ridge: f64,
) -> Option<(DVector<f64>, f64)> {
    let normal =
        matrix.transpose() * matrix + DMatrix::identity(matrix.ncols(), matrix.ncols()) * ridge;
    let inverse = normal.try_inverse()?;
    let weights = &inverse * (matrix.transpose() * errors);
    let hat = matrix * &inverse * matrix.transpose();
    let fitted = matrix * &weights;
    let held_out = (0..errors.len())
        .map(|i| ((errors[i] - fitted[i]) / (1.0 - hat[(i, i)])).abs())
        .sum::<f64>();
    Some((weights, held_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovers_a_line_and_reports_its_r_squared() {
        let exact: Vec<_> = (0..5)
            .map(|x| (f64::from(x), 3.0 * f64::from(x) + 2.0))
            .collect();
        let line = fit_line(&exact);
        assert!((line.slope - 3.0).abs() < 1e-12 && (line.intercept - 2.0).abs() < 1e-12);
        assert!((line.r_squared - 1.0).abs() < 1e-12);
        // y = 0, 1, 0: the best line is flat at 1/3 and explains nothing.
        let bump = fit_line(&[(0.0, 0.0), (1.0, 1.0), (2.0, 0.0)]);
        assert!(bump.slope.abs() < 1e-12 && (bump.intercept - 1.0 / 3.0).abs() < 1e-12);
        assert!(bump.r_squared.abs() < 1e-12);
    }

    #[test]
    fn relative_weights_favour_small_values() {
        let points = [(0.0, 1.0), (1.0, 2.0), (2.0, 30.0)];
        let (plain, relative) = (fit_line(&points), fit_line_relative(&points));
        assert!((relative.intercept - 1.0).abs() < (plain.intercept - 1.0).abs());
    }
}
