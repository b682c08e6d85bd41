//! Errors of fitting and prediction.

use crate::drive::ModelKind;
use crate::point::Operation;

/// Why a model could not be fitted or evaluated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The measurements do not determine the model.
    #[error("{model} needs {missing} more {what} for {operation}s ({found} of {needed} present): measure them and fit again", missing = needed - found)]
    TooFewPoints {
        /// The model that was asked for.
        model: ModelKind,
        /// The operation whose cost it could not determine.
        operation: Operation,
        /// What is missing, in words: points, distinct values of k, and so on.
        what: &'static str,
        /// How many the model needs.
        needed: usize,
        /// How many there are.
        found: usize,
    },
    /// The profile has neither pure reads nor pure writes.
    #[error("{model} needs measurements of pure reads or pure writes and found neither")]
    NoPurePoints {
        /// The model that was asked for.
        model: ModelKind,
    },
    /// No start led to a finite optimum.
    #[error(
        "the fit of {what} did not converge from any of its starts; check the points for outliers or zeros"
    )]
    DidNotConverge {
        /// What was being fitted.
        what: String,
    },
    /// A cost or abscissa was not a positive finite number.
    #[error("point {index} is not usable: {what} is {value}")]
    BadPoint {
        /// Position in the slice that was passed.
        index: usize,
        /// The field.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A prediction was asked for an operation that the profile never measured.
    #[error(
        "this model knows nothing about {operation}s: the profile it was fitted on has no pure {operation} points"
    )]
    NotMeasured {
        /// The missing operation.
        operation: Operation,
    },
}

impl FitError {
    pub(crate) fn no_convergence(what: impl ToString) -> FitError {
        let what = what.to_string();
        FitError::DidNotConverge { what }
    }

    /// The first of these, each with how many a model needs and how many there are, of which there
    /// are too few.
    pub(crate) fn unless_enough(
        model: ModelKind,
        operation: Operation,
        all: &[(&'static str, usize, usize)],
    ) -> Result<(), FitError> {
        match all.iter().find(|(_, needed, found)| found < needed) {
            Some(&(what, needed, found)) => Err(FitError::TooFewPoints {
                model,
                operation,
                what,
                needed,
                found,
            }),
            None => Ok(()),
        }
    }
}
