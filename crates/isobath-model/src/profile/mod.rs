//! Device profiles: what a probe learnt about a drive, as versioned JSON.
//!
//! One file holds one probe of one target. It carries the raw points, not only fitted numbers, so
//! that any model can be fitted later, and it carries everything that is needed to doubt them:
//! kernel, file system, drive state, steal time, first-pass against repeat rates, reruns. All sizes
//! are bytes, all times say their unit in their name.
//!
//! ```json
//! {
//!   "format": "isobath-device-profile",
//!   "version": 1,
//!   "tool_version": "0.1.0",
//!   "created_unix_s": 1790000000,
//!   "complete": true,
//!   "plan": { "name": "quick", "point_count": 20, "seed": 1, "concurrency_max": 128 },
//!   "target": { "path": "/data/probe.bin", "kind": "file", "size_bytes": 4294967296 },
//!   "hardware": { "drive_model": "Samsung SSD 990 PRO 1TB", "cpu_model": "AMD EPYC", "cpu_count": 2,
//!                 "memory_bytes": 25769803776 },
//!   "system": { "kernel": "6.18.0", "file_system": "ext4", "io_interface": "io_uring", "direct_io": true },
//!   "drive_state": { "preparation": "sequential_fill", "prepared_bytes": 4294967296 },
//!   "host_cache": { "verdict": "suspected", "first_pass_reads_per_s": 13000.0, "repeat_reads_per_s": 82000.0 },
//!   "steal_share": 0.001,
//!   "flush_us": 210.0,
//!   "repeat_noise": { "read": 0.05, "write": 0.09 },
//!   "regimes": [ { "name": "steady", "operation": null, "usable": true, "began_s": 0.0, "ended_s": 58.0 } ],
//!   "sentinels": [ { "at_s": 1.0, "throughput_pages_per_s": 90000.0 } ],
//!   "points": [ { "threads": 1, "queue_depth": 32, "random_share": 1.0, "io_pages": 1, "read_share": 1.0,
//!                 "regime": 0, "began_s": 2.0, "duration_s": 1.5, "throughput_pages_per_s": 88000.0,
//!                 "throughput_spread": 0.03, "repeats": 2, "reruns": 0, "cpu_us_per_io": 2.9,
//!                 "latency_us": { "mean": 363.0, "p50": 340.0, "p90": 500.0, "p99": 1100.0, "p999": 2500.0,
//!                                 "max": 9000.0 } } ]
//! }
//! ```
//!
//! Optional fields that a probe could not find out are absent or `null`; they are never guessed.

mod schema;

pub use schema::{
    DeviceProfile, DriveState, Hardware, HostCache, HostCacheVerdict, Latency, MeasuredPoint,
    PlanNote, Preparation, Regime, RepeatNoise, Sentinel, System, Target, TargetKind,
};

use serde::Deserialize;

use crate::drive::Queue;
use crate::point::{OperatingPoint, Sample};

/// The `format` field of every profile.
pub const PROFILE_FORMAT: &str = "isobath-device-profile";

/// The version that this crate writes and the only one that it reads.
pub const PROFILE_VERSION: u32 = 1;

/// Why a profile could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Not JSON, or JSON of another shape.
    #[error("not a device profile: {0}")]
    Syntax(#[from] serde_json::Error),
    /// JSON of another kind of file.
    #[error(
        "this file is a {found:?}, not a {PROFILE_FORMAT:?}: give the file that `isobath probe` wrote"
    )]
    Foreign {
        /// Its `format` field.
        found: String,
    },
    /// Written by a newer or older version.
    #[error(
        "the profile has version {found}, this program reads version {PROFILE_VERSION}: probe the drive again with this program"
    )]
    Version {
        /// Its `version` field.
        found: u32,
    },
    /// A value that no measurement can have.
    #[error(
        "point {index} of the profile: {field} is {value}, which no measurement can be; delete the point or probe again"
    )]
    BadPoint {
        /// Its place in `points`, from 0.
        index: usize,
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A number that no measurement gives.
    #[error(
        "{field} of the profile is {value}, which no measurement can be; delete it or probe again"
    )]
    BadField {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A point names a regime that is not listed.
    #[error(
        "point {index} of the profile belongs to regime {regime}, but only {regime_count} are listed"
    )]
    UnknownRegime {
        /// Its place in `points`, from 0.
        index: usize,
        /// The regime that it names.
        regime: usize,
        /// Regimes in the profile.
        regime_count: usize,
    },
}

/// The most I/Os in flight that a point may have: no block layer lets more through.
const CONCURRENCY_MAX: f64 = 65_536.0;

/// How the names of regimes of large I/Os begin: those that the sentinel of large I/Os
/// distinguishes.
pub const LARGE_PREFIX: &str = "large I/Os: ";
/// How the names of regimes of writes begin: those that the sentinel of writes distinguishes.
pub const WRITE_PREFIX: &str = "writes: ";

/// Levels of the three sentinels, 4 KiB pages per second; `None` if nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Levels {
    /// Small random reads.
    pub small: Option<f64>,
    /// Large random reads.
    pub large: Option<f64>,
    /// Small random writes.
    pub write: Option<f64>,
}

#[derive(Deserialize)]
struct Header {
    format: String,
    version: u32,
}

impl DeviceProfile {
    /// Reads and checks a profile.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        // The header first: a foreign or newer file must be named as such, not as "missing field".
        let header: Header = serde_json::from_str(text)?;
        if header.format != PROFILE_FORMAT {
            return Err(ProfileError::Foreign {
                found: header.format,
            });
        }
        if header.version != PROFILE_VERSION {
            return Err(ProfileError::Version {
                found: header.version,
            });
        }
        let profile: Self = serde_json::from_str(text)?;
        profile.check()?;
        Ok(profile)
    }

    /// Writes the profile, indented for people, with a final newline.
    pub fn to_json(&self) -> Result<String, ProfileError> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }

    /// Checks every number that rates follow from; called by [`Self::from_json`].
    pub fn check(&self) -> Result<(), ProfileError> {
        if let Some(value) = self.flush_us.filter(|us| !(us.is_finite() && *us > 0.0)) {
            let field = "flush_us";
            return Err(ProfileError::BadField { field, value });
        }
        if let Some(value) = self.steal_share.filter(|share| !(0.0..1.0).contains(share)) {
            let field = "steal_share";
            return Err(ProfileError::BadField { field, value });
        }
        for (index, point) in self.points.iter().enumerate() {
            let positive = |v: f64| v.is_finite() && v > 0.0;
            let share = |v: f64| (0.0..=1.0).contains(&v);
            let fields = [
                ("threads", f64::from(point.threads), point.threads > 0),
                (
                    "queue_depth",
                    f64::from(point.queue_depth),
                    point.queue_depth > 0,
                ),
                ("io_pages", point.io_pages, positive(point.io_pages)),
                (
                    "random_share",
                    point.random_share,
                    share(point.random_share),
                ),
                ("read_share", point.read_share, share(point.read_share)),
                ("duration_s", point.duration_s, positive(point.duration_s)),
                (
                    "throughput_pages_per_s",
                    point.throughput_pages_per_s,
                    positive(point.throughput_pages_per_s),
                ),
                (
                    "throughput_spread",
                    point.throughput_spread,
                    point.throughput_spread >= 0.0,
                ),
                (
                    "threads × queue_depth",
                    point.concurrency(),
                    point.concurrency() <= CONCURRENCY_MAX,
                ),
                (
                    "cpu_us_per_io",
                    point.cpu_us_per_io.unwrap_or_default(),
                    point.cpu_us_per_io.is_none_or(|us| us >= 0.0),
                ),
                (
                    "latency_us.mean",
                    point.latency_us.map_or(1.0, |latency| latency.mean),
                    point
                        .latency_us
                        .is_none_or(|latency| positive(latency.mean)),
                ),
                (
                    "latency_us.p99",
                    point.latency_us.map_or(1.0, |latency| latency.p99),
                    point.latency_us.is_none_or(|latency| positive(latency.p99)),
                ),
            ];
            if let Some((field, value, _)) = fields.into_iter().find(|(_, _, ok)| !ok) {
                return Err(ProfileError::BadPoint {
                    index,
                    field,
                    value,
                });
            }
            if point.regime >= self.regimes.len() {
                let regime_count = self.regimes.len();
                return Err(ProfileError::UnknownRegime {
                    index,
                    regime: point.regime,
                    regime_count,
                });
            }
        }
        Ok(())
    }

    /// Levels of the sentinels in the regimes that may be fitted: where this profile's models hold.
    /// A sentinel that distinguished no regimes has the median of all its rates.
    pub fn levels(&self) -> Levels {
        let level = |prefix: &str, rate: fn(&Sentinel) -> Option<f64>| {
            let mut fitted = self.regimes.iter().filter(|r| r.usable);
            let told = fitted.find(|r| r.sentinel_prefix() == prefix);
            told.and_then(|r| r.level_pages_per_s).or_else(|| {
                let mut rates: Vec<f64> = self.sentinels.iter().filter_map(rate).collect();
                rates.sort_by(f64::total_cmp);
                rates.get(rates.len() / 2).copied()
            })
        };
        Levels {
            small: level("", |s| Some(s.throughput_pages_per_s)),
            large: level(LARGE_PREFIX, |s| s.large_pages_per_s),
            write: level(WRITE_PREFIX, |s| s.write_pages_per_s),
        }
    }

    /// The points that models are fitted to: [`Self::samples`], unless these do not determine the
    /// queue form and all points do. A model of several levels at once is between them; one that
    /// knows nothing of concurrency is off by a factor everywhere.
    pub fn fitted_samples(&self) -> Vec<Sample> {
        let steady = self.samples();
        let all: Vec<Sample> = self.points.iter().map(MeasuredPoint::sample).collect();
        let by = |part: &[Sample]| Queue::is_determined_by(part, &all);
        match !by(&steady) && by(&all) {
            true => all,
            false => steady,
        }
    }

    /// Whether [`Self::fitted_samples`] are of several levels of the drive.
    pub fn is_fitted_across_levels(&self) -> bool {
        self.fitted_samples().len() > self.samples().len()
    }

    /// The points of one level of the drive. Regimes that are marked unusable (burst credits, a
    /// full write cache) are left out.
    pub fn samples(&self) -> Vec<Sample> {
        self.points
            .iter()
            .filter(|p| self.regimes.get(p.regime).is_some_and(|r| r.usable))
            .map(MeasuredPoint::sample)
            .collect()
    }
}

impl Regime {
    /// The prefix of the sentinel that distinguished it; empty for that of small reads.
    fn sentinel_prefix(&self) -> &'static str {
        let told = [LARGE_PREFIX, WRITE_PREFIX];
        let own = told.into_iter().find(|p| self.name.starts_with(p));
        own.unwrap_or_default()
    }
}

impl MeasuredPoint {
    /// `k`: I/Os in flight over all threads.
    pub fn concurrency(&self) -> f64 {
        f64::from(self.threads) * f64::from(self.queue_depth)
    }

    /// The point as models see it.
    pub fn sample(&self) -> Sample {
        Sample {
            point: OperatingPoint {
                concurrency: self.concurrency(),
                random_share: self.random_share,
                io_pages: self.io_pages,
                read_share: self.read_share,
            },
            throughput_pages_per_s: self.throughput_pages_per_s,
        }
    }
}
