//! The parameters of a simulation, and their errors.

use std::fmt;
use std::str::FromStr;

use super::Shape;
use crate::policy::PolicyKind;
use crate::sim::SimError;
use crate::workload::{WorkloadError, WorkloadKind};

/// Share of their bytes that nodes in memory use under random insertion.
const NODE_FILL: f64 = 0.69;

/// Where an upsert goes, and what is written of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Design {
    /// Into its leaf, which is read first and written out of place when its frame is wanted.
    InPlace,
    /// Into the memory overlay, new keys and those of leaves that such keys made dirty excepted;
    /// the rolling merge takes every run at its position.
    Overlays {
        /// Pages of runs per leaf, on average over time: merges keep pace with sealing.
        share: f64,
        /// Most runs; beyond them the two neighbours with the fewest pages become one. With 1 the
        /// runs are one level, which every sealed overlay is merged with.
        runs: u32,
    },
    /// As `Overlays` without a limit on runs, but a merge takes only runs that were sealed before
    /// its lap began.
    WholeLaps {
        /// As above.
        share: f64,
    },
    /// Into its leaf; one delta has all records that changed since the leaf was written whole, and
    /// is rewritten with each write-back.
    Cumulative {
        /// Share of the leaf's records beyond which the leaf is written whole.
        share: f64,
    },
    /// Into its leaf; each write-back appends a delta, while all of them are at most half a leaf.
    Chained {
        /// Most deltas of a leaf; the next write-back writes the leaf whole.
        deltas: u32,
    },
    /// Into a levelled LSM tree with four runs in level 0, and files that move one at a time in
    /// key order.
    Lsm {
        /// Size of a level per size of the level above.
        fan_out: u32,
    },
}

impl Design {
    /// How designs are written.
    pub const FORMS: &'static str = "in-place, overlays:SHARE or overlays:SHARE:RUNS, whole-laps:SHARE, \
        cumulative:SHARE, chained:DELTAS, lsm:FAN-OUT";
    /// Runs of `overlays:SHARE`.
    pub const RUNS: u32 = 8;
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InPlace => write!(f, "in-place"),
            Self::Overlays { share, runs } if *runs == Self::RUNS => write!(f, "overlays:{share}"),
            Self::Overlays { share, runs } => write!(f, "overlays:{share}:{runs}"),
            Self::WholeLaps { share } => write!(f, "whole-laps:{share}"),
            Self::Cumulative { share } => write!(f, "cumulative:{share}"),
            Self::Chained { deltas } => write!(f, "chained:{deltas}"),
            Self::Lsm { fan_out } => write!(f, "lsm:{fan_out}"),
        }
    }
}

impl FromStr for Design {
    type Err = OverlayError;

    fn from_str(text: &str) -> Result<Self, OverlayError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let words: Vec<&str> = rest.split(':').collect();
        let share = words[0].parse::<f64>().ok();
        let share = share.filter(|&share| share > 0.0 && share <= 1.0);
        let count = |at: usize| {
            let count = words.get(at).and_then(|word| word.parse::<u32>().ok());
            count.filter(|count| (1..=64).contains(count))
        };
        let design = match (name, words.len()) {
            ("in-place", 1) if rest.is_empty() => Some(Self::InPlace),
            ("overlays", 1) => share.map(|share| Self::Overlays {
                share,
                runs: Self::RUNS,
            }),
            ("overlays", 2) => share
                .zip(count(1))
                .map(|(share, runs)| Self::Overlays { share, runs }),
            ("whole-laps", 1) => share.map(|share| Self::WholeLaps { share }),
            ("cumulative", 1) => share.map(|share| Self::Cumulative { share }),
            ("chained", 1) => count(0).map(|deltas| Self::Chained { deltas }),
            ("lsm", 1) => count(0)
                .filter(|&fan_out| fan_out > 1)
                .map(|fan_out| Self::Lsm { fan_out }),
            _ => None,
        };
        design.ok_or_else(|| OverlayError::Design {
            text: text.to_owned(),
        })
    }
}

/// Which records are upserted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RecordLaw {
    /// A law of [`crate::workload`], its pages being records.
    Law(WorkloadKind),
    /// A synthetic mix after TPC-C's tables, no recording: per order 13 records appended to orders,
    /// new orders, order lines and history, 12 of an earlier order updated, 10 skewed updates of
    /// stock, two of customers, three of warehouses and districts. The appended tables are rings.
    OrderMix,
}

impl fmt::Display for RecordLaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Law(kind) => kind.fmt(f),
            Self::OrderMix => write!(f, "order-mix"),
        }
    }
}

impl FromStr for RecordLaw {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        match text {
            "order-mix" => Ok(Self::OrderMix),
            law => law.parse().map(Self::Law),
        }
    }
}

/// A tree, its memory, its volume and its workload.
#[derive(Debug, Clone, PartialEq)]
pub struct OverlayParams {
    /// The design.
    pub design: Design,
    /// Which records are upserted and looked up.
    pub law: RecordLaw,
    /// Records of the tree, all of them loaded first.
    pub records: u32,
    /// Bytes of a record, key included.
    pub record_bytes: u32,
    /// Bytes of a leaf and of a page of a run.
    pub page_bytes: u32,
    /// Memory per byte of data, for everything but inner nodes.
    pub memory: f64,
    /// Records that the memory overlay takes per record of the tree.
    pub overlay: f64,
    /// Bits of a filter per record of a run.
    pub filter_bits: f64,
    /// Bytes of the volume per byte of data.
    pub space: f64,
    /// How the volume is cleaned.
    pub policy: PolicyKind,
    /// Upserts per record of the tree; the first half warms up.
    pub updates_per_record: f64,
    /// Lookups per upsert.
    pub lookups_per_update: f64,
    /// Seed of the workload.
    pub seed: u64,
}

impl Default for OverlayParams {
    fn default() -> Self {
        Self {
            design: Design::InPlace,
            law: RecordLaw::Law(WorkloadKind::Uniform),
            records: 1_000_000,
            record_bytes: 144,
            page_bytes: 4096,
            memory: 0.1,
            overlay: 0.05,
            filter_bits: 10.0,
            space: 1.45,
            policy: PolicyKind::Mdc,
            updates_per_record: 8.0,
            lookups_per_update: 0.25,
            seed: 1,
        }
    }
}

/// How memory is divided, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) overlay: f64,
    pub(super) filters: f64,
    pub(super) cache: f64,
}

impl OverlayParams {
    /// Checks the numbers, and against each other those of memory. Whether the data fits its volume
    /// shows in a simulation.
    ///
    /// # Errors
    /// [`OverlayError::Parameter`]: the first that is out of range.
    pub fn validate(&self) -> Result<(), OverlayError> {
        self.check().map(|_| ())
    }

    pub(super) fn check(&self) -> Result<Shape, OverlayError> {
        let per_leaf = self.page_bytes.checked_div(self.record_bytes).unwrap_or(0);
        let is_page = self.page_bytes.is_multiple_of(super::io::DELTA_UNIT);
        let updates = f64::from(self.records) * self.updates_per_record;
        let checks = [
            (
                is_page && (1..=u128::BITS).contains(&per_leaf) && self.page_bytes <= 1 << 20,
                "the size of a page",
                "a multiple of 128 bytes, with 1 to 128 records",
            ),
            (
                (1000..=1 << 26).contains(&self.records),
                "the number of records",
                "1,000 to 67,108,864",
            ),
            (
                self.overlay > 0.0 && self.overlay < 1.0 && self.memory > 0.0 && self.memory < 1.0,
                "memory and overlay",
                "shares of the data",
            ),
            (
                (1.0..=64.0).contains(&self.filter_bits),
                "bits of a filter",
                "1 to 64",
            ),
            (
                self.space > 1.0 && self.space <= 10.0,
                "the volume's bytes per byte of data",
                "above 1, at most 10",
            ),
            (
                updates >= 2.0 && updates < f64::from(u32::MAX),
                "the number of upserts",
                "2 to 2^32",
            ),
            (
                (0.0..=100.0).contains(&self.lookups_per_update),
                "lookups per upsert",
                "0 to 100",
            ),
            (
                !self.policy.needs_rates(),
                "the cleaning policy",
                "one that needs no exact rates",
            ),
        ];
        if let Some(&(_, what, range)) = checks.iter().find(|check| !check.0) {
            return Err(OverlayError::Parameter { what, range });
        }
        let shape = Shape {
            records: self.records,
            per_leaf,
            leaves: self.records.div_ceil(per_leaf),
        };
        if self.memory(shape).cache < 0.0 {
            return Err(OverlayError::Parameter {
                what: "memory",
                range: "enough for the overlay, whose nodes are 69% full, and the filters",
            });
        }
        Ok(shape)
    }

    /// Records that the memory overlay takes.
    pub(super) fn overlay_records(&self) -> usize {
        ((f64::from(self.records) * self.overlay) as usize).max(1)
    }

    /// The probability that a filter says "maybe" of a key that its run does not have.
    pub(super) fn false_positives(&self) -> f64 {
        0.6185f64.powf(self.filter_bits)
    }

    /// How memory is divided: the cache gets what the others leave.
    pub(super) fn memory(&self, shape: Shape) -> Memory {
        let data = f64::from(self.records) * f64::from(self.record_bytes);
        let filtered = match self.design {
            Design::InPlace | Design::Cumulative { .. } | Design::Chained { .. } => None,
            Design::Overlays { share, .. } | Design::WholeLaps { share } => Some(share),
            Design::Lsm { fan_out } => Some(1.0 + 1.0 / f64::from(fan_out) + 2.0 * self.overlay),
        };
        let all = self.memory * data;
        let Some(share) = filtered else {
            return Memory {
                overlay: 0.0,
                filters: 0.0,
                cache: all,
            };
        };
        let overlay = self.overlay * data / NODE_FILL;
        let runs = share * f64::from(shape.leaves) * f64::from(shape.per_leaf);
        let filters = runs * self.filter_bits / 8.0;
        Memory {
            overlay,
            filters,
            cache: all - overlay - filters,
        }
    }
}

/// Why a simulation cannot run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// Unknown design.
    #[error("unknown design `{text}`; write one of: {}", Design::FORMS)]
    Design {
        /// The given text.
        text: String,
    },
    /// A number out of range.
    #[error("{what} must be {range}")]
    Parameter {
        /// The number.
        what: &'static str,
        /// The allowed range.
        range: &'static str,
    },
    /// The leaves and runs are more than the volume.
    #[error(
        "leaves and runs take up to {live:.2} bytes per byte of data, which a volume of {space} cannot hold"
    )]
    Space {
        /// Most live bytes per byte of data.
        live: f64,
        /// Bytes of the volume per byte of data.
        space: f64,
    },
    /// The cleaner cannot go on.
    #[error(transparent)]
    Cleaning(#[from] SimError),
    /// The workload makes no sense.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}
