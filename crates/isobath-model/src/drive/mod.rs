//! Models of a drive: from DAM (equation 1) to a joint fit with a correction surface.
//!
//! Every model answers one question: how much wall time in µs does one page cost, all I/Os in
//! flight together, at a given (k, r, I/O size, mix)? Mixed points cost the sum of their parts,
//! read share by read share; that predicts measured mixes within about 10% at the median, so no
//! model needs parameters of its own for them.

mod mqssd;
mod queue;
mod simple;
mod smooth;
mod surface;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use mqssd::{
    ConcurrencyCosts, Mqssd, MqssdPrinted, MqssdPrintedAdded, TABLE_2_ACCESSES,
    costs_per_concurrency,
};
pub use queue::{Queue, QueueCost};
pub use simple::{Affine, Dam, Pdam};
pub use smooth::Smooth;
pub use surface::Surface;

use crate::error::FitError;
use crate::point::{OperatingPoint, Operation, Sample, check};

macro_rules! models {
    ($($(#[$about:meta])* $kind:ident($form:ty) $name:literal,)*) => {
        /// The models that can be fitted, from the coarsest to the finest.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ModelKind { $($(#[$about])* $kind),* }

        impl ModelKind {
            /// All kinds, coarsest first.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];
        }

        impl fmt::Display for ModelKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$kind => $name),* })
            }
        }

        /// A fitted model of a drive.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum DriveModel { $($(#[$about])* $kind($form)),* }

        impl DriveModel {
            /// Which model this is.
            pub fn kind(&self) -> ModelKind {
                match self { $(Self::$kind(_) => ModelKind::$kind),* }
            }

            /// Wall time per page in µs, all I/Os in flight together.
            ///
            /// Positive and finite for every model except [`ModelKind::MqssdPrinted`] and
            /// [`ModelKind::MqssdPrintedAdded`], whose rational functions may have poles.
            pub fn page_cost_us(&self, point: &OperatingPoint) -> Result<f64, FitError> {
                match self { $(Self::$kind(model) => model.page_cost_us(point)),* }
            }

            /// All fitted numbers with their units.
            pub fn coefficients(&self) -> Vec<Coefficient> {
                match self { $(Self::$kind(model) => model.coefficients()),* }
            }
        }
    };
}

models! {
    /// Disk access machine, equation 1: every page costs the same.
    Dam(PerOperation<Dam>) "DAM",
    /// Parallel DAM, equations 2 and 4: cost falls as 1/k down to `P` pages at a time.
    Pdam(PerOperation<Pdam>) "PDAM",
    /// Affine, equation 3 with costs added: setup plus transfer, no concurrency.
    Affine(PerOperation<Affine>) "affine",
    /// MQSSD as printed: per-k least squares, rational functions (5, 6), rates added (7, 8), which
    /// is a slip.
    MqssdPrinted(PerOperation<MqssdPrinted>) "MQSSD as printed",
    /// MQSSD as printed, but with costs added, as equations 5 and 6 mean.
    MqssdPrintedAdded(PerOperation<MqssdPrintedAdded>) "MQSSD as printed, costs added",
    /// MQSSD as corrected: costs added, saturating s, β, t, α, relative errors.
    Mqssd(PerOperation<Mqssd>) "MQSSD as corrected",
    /// MQSSD as corrected with a smooth residual, where a whole grid was measured.
    MqssdSmooth(PerOperation<Smooth>) "MQSSD as corrected with smooth residual",
    /// Queue form: latency divided by k against the drive's service time.
    Queue(Queue) "queue form",
    /// Queue form with a low-order correction surface over the logarithms.
    Surface(Surface) "queue form with correction surface",
}

/// One fitted number, for reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Coefficient {
    /// The operation whose cost it describes; `None` when it is shared.
    pub operation: Option<Operation>,
    /// Its symbol in the paper or in this crate's documentation.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

impl Coefficient {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            operation: None,
            name: name.into(),
            value,
            unit: unit.into(),
        }
    }
}

/// A fitted model of either kind of operation on its own.
pub(crate) trait PureModel: Sized {
    const KIND: ModelKind;
    /// Fits to points of one operation; the slice is not empty.
    fn fit_pure(operation: Operation, samples: &[Sample]) -> Result<Self, FitError>;
    /// As `fit_pure`, from a fit to almost the same points, which may save most of the work.
    fn fit_near(operation: Operation, samples: &[Sample], _near: &Self) -> Result<Self, FitError> {
        Self::fit_pure(operation, samples)
    }
    /// Cost per page in µs, ignoring the point's read share.
    fn page_cost_us(&self, point: &OperatingPoint) -> f64;
    fn coefficients(&self) -> Vec<Coefficient>;
}

/// A model fitted to reads and to writes separately, as the paper does for all of its baselines
/// (section 4.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PerOperation<M> {
    /// For reads, if the profile has pure reads.
    pub read: Option<M>,
    /// For writes, if the profile has pure writes.
    pub write: Option<M>,
}

#[expect(
    private_bounds,
    reason = "callers only ever name the models that implement it"
)]
impl<M: PureModel> PerOperation<M> {
    fn fit(samples: &[Sample], near: Option<&Self>) -> Result<Self, FitError> {
        let one = |operation, near: Option<&M>| {
            let own = pure_samples(samples, operation);
            match near {
                _ if own.is_empty() => Ok(None),
                Some(near) => M::fit_near(operation, &own, near).map(Some),
                None => M::fit_pure(operation, &own).map(Some),
            }
        };
        let fitted = Self {
            read: one(Operation::Read, near.and_then(|n| n.read.as_ref()))?,
            write: one(Operation::Write, near.and_then(|n| n.write.as_ref()))?,
        };
        if fitted.read.is_none() && fitted.write.is_none() {
            return Err(FitError::NoPurePoints { model: M::KIND });
        }
        Ok(fitted)
    }

    fn page_cost_us(&self, point: &OperatingPoint) -> Result<f64, FitError> {
        mixed_cost(
            point,
            self.read.as_ref().map(|m| m.page_cost_us(point)),
            self.write.as_ref().map(|m| m.page_cost_us(point)),
        )
    }

    fn coefficients(&self) -> Vec<Coefficient> {
        let tagged = |operation, model: &Option<M>| {
            let own = model.iter().flat_map(M::coefficients).collect::<Vec<_>>();
            own.into_iter().map(move |c| Coefficient {
                operation: Some(operation),
                ..c
            })
        };
        tagged(Operation::Read, &self.read)
            .chain(tagged(Operation::Write, &self.write))
            .collect()
    }
}

pub(crate) fn pure_samples(samples: &[Sample], operation: Operation) -> Vec<Sample> {
    samples
        .iter()
        .filter(|s| s.point.pure_operation() == Some(operation))
        .copied()
        .collect()
}

/// The linear sum of pure costs by read share.
fn mixed_cost(
    point: &OperatingPoint,
    read: Option<f64>,
    write: Option<f64>,
) -> Result<f64, FitError> {
    let share = point.read_share;
    let part = |share: f64, cost: Option<f64>, operation| match cost {
        Some(cost) => Ok(share * cost),
        None if share <= 0.0 => Ok(0.0),
        None => Err(FitError::NotMeasured { operation }),
    };
    // A pure point must not multiply the other operation's cost by zero: that cost may be infinite.
    let read = if share > 0.0 {
        part(share, read, Operation::Read)?
    } else {
        0.0
    };
    let write = if share < 1.0 {
        part(1.0 - share, write, Operation::Write)?
    } else {
        0.0
    };
    Ok(read + write)
}

impl DriveModel {
    /// Fits one kind of model to measured points.
    pub fn fit(kind: ModelKind, samples: &[Sample]) -> Result<Self, FitError> {
        Self::fit_near(kind, samples, None)
    }

    /// As [`Self::fit`]; `near` is a model of almost the same points, whose optimum is where the
    /// search begins.
    pub(crate) fn fit_near(
        kind: ModelKind,
        samples: &[Sample],
        near: Option<&Self>,
    ) -> Result<Self, FitError> {
        check(samples)?;
        let queue = match near {
            Some(Self::Queue(queue)) => Some(queue),
            Some(Self::Surface(surface)) => Some(&surface.base),
            _ => None,
        };
        Ok(match kind {
            ModelKind::Dam => Self::Dam(PerOperation::fit(samples, None)?),
            ModelKind::Pdam => Self::Pdam(PerOperation::fit(samples, None)?),
            ModelKind::Affine => Self::Affine(PerOperation::fit(samples, None)?),
            ModelKind::MqssdPrinted => Self::MqssdPrinted(PerOperation::fit(samples, None)?),
            ModelKind::MqssdPrintedAdded => {
                Self::MqssdPrintedAdded(PerOperation::fit(samples, None)?)
            }
            ModelKind::Mqssd => {
                let near = match near {
                    Some(Self::Mqssd(near)) => Some(near),
                    _ => None,
                };
                Self::Mqssd(PerOperation::fit(samples, near)?)
            }
            ModelKind::MqssdSmooth => {
                let near = match near {
                    Some(Self::MqssdSmooth(near)) => Some(near),
                    _ => None,
                };
                Self::MqssdSmooth(PerOperation::fit(samples, near)?)
            }
            ModelKind::Queue => Self::Queue(Queue::fit_as(kind, samples, queue)?),
            ModelKind::Surface => Self::Surface(Surface::fit_near(samples, queue)?),
        })
    }

    /// Pages of 4 KiB per second.
    pub fn throughput_pages_per_s(&self, point: &OperatingPoint) -> Result<f64, FitError> {
        Ok(1e6 / self.page_cost_us(point)?)
    }

    /// Mean latency of one I/O in µs with `k` in flight, by Little's law.
    pub fn io_latency_us(&self, point: &OperatingPoint) -> Result<f64, FitError> {
        Ok(self.page_cost_us(point)? * point.io_pages * point.concurrency)
    }
}
