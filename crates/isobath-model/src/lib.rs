//! I/O cost models of drives, their fitting, and advisors.
//!
//! Implements *Multi-Queue SSD I/O Modeling & Its Implications for Data Structure Design* (Ransom, Lim, Mitzenmacher).
//! Pure code: no threads, no I/O, no clock.
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
pub use select::{Candidate, Comparison, HeldOutError, Prediction, Predictor};
