//! I/O cost models of drives, their fitting, and advisors.
//!
//! Implements *Multi-Queue SSD I/O Modeling & Its Implications for Data Structure Design* (Ransom,
//! Lim, Mitzenmacher). Pure code: no threads, no I/O, no clock.
//!
//! Fit every model to measurements, take the one that best predicts points that it was not fitted
//! to, and ask it for a point that was not measured:
//!
//! ```
//! use isobath_model::{Comparison, OperatingPoint, Sample};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A drive that answers each read in 100 µs, and at most 64 at a time.
//! let measured = |k: f64| Sample {
//!     point: OperatingPoint::random_reads(k, 1.0),
//!     throughput_pages_per_s: k.min(64.0) * 10_000.0,
//! };
//! let samples: Vec<Sample> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0].map(measured).into();
//! let comparison = Comparison::of(&samples);
//! let best = comparison.best().ok_or("no model fits")?;
//! let predicted = best.predict(&OperatingPoint::random_reads(24.0, 1.0))?;
//! let error = predicted.throughput_pages_per_s / 240_000.0 - 1.0;
//! assert!(error.abs() < 0.25, "{predicted:?}");
//! # Ok(())
//! # }
//! ```
//!
//! | step | where |
//! | --- | --- |
//! | which points to measure | [`plan`] |
//! | what was measured, as JSON | [`profile`] |
//! | models: DAM to the queue form | [`drive`], with cost curves over k in [`curve`] |
//! | cross-validation, intervals, selection | [`Comparison`], [`Predictor`] |
//! | B-trees (section 2.2) and LSM trees (section 5) on a drive | [`btree`], [`lsm`] |
//! | what a user runs, as TOML | [`workload`] |
//! | settings with reasons | [`advise`] |
//! | what a report shows | [`report`] |
#![deny(missing_docs)]

pub mod advise;
pub mod btree;
pub mod curve;
pub mod drive;
mod error;
mod linear;
pub mod lsm;
mod nonlinear;
pub mod plan;
mod point;
pub mod profile;
pub mod report;
mod rng;
mod select;
pub mod workload;

pub use drive::{Coefficient, DriveModel, ModelKind};
pub use error::FitError;
pub use linear::{LinearFit, fit_line, fit_line_relative};
pub use point::{OperatingPoint, Operation, PAGE_BYTES, Sample};
pub use select::{
    Beyond, Candidate, Comparison, ExtrapolationError, HeldOutError, Prediction, Predictor,
};
