//! Cost as a function of concurrency: the paper's rational functions (equations 5 and 6) and a
//! saturating form.

mod rational;
mod saturating;

pub use rational::{Rational, RationalDegree};
pub use saturating::{FitNorm, Saturating};

/// A cost curve over `k`, in the unit of the costs it was fitted to.
pub trait CostCurve {
    /// The cost at concurrency `k` ≥ 1.
    fn at(&self, k: f64) -> f64;
}
