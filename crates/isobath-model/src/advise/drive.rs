//! A drive as the advisors see it: the best fitted model, and how far it may be asked.

use crate::error::FitError;
use crate::point::{OperatingPoint, Operation};
use crate::profile::{DeviceProfile, HostCacheVerdict};
use crate::select::{Comparison, Predictor};

use super::{AdviseError, Constant};

/// The predictor of a profile with what the advisors ask of it.
pub(crate) struct DriveView<'a> {
    pub(crate) predictor: Predictor,
    pub(crate) profile: &'a DeviceProfile,
    pub(crate) concurrency_max: u32,
}

/// Share of the throughput at the greatest useful depth that a recommended depth must reach: the
/// last few percent cost as much latency again.
const DEPTH_GAIN_SHARE: f64 = 0.95;

/// Pages per write of the page store: chunks of 256 KiB. No larger than what was measured.
pub(super) const CHUNK_PAGES: f64 = 64.0;

impl<'a> DriveView<'a> {
    pub(crate) fn new(profile: &'a DeviceProfile) -> Result<Self, AdviseError> {
        let samples = profile.fitted_samples();
        let comparison = Comparison::of(&samples);
        let predictor = match comparison.best() {
            Some(best) => best.clone(),
            // The first failure is the coarsest model's: what even that one lacks is what to
            // measure first.
            None => {
                let lacking = comparison
                    .candidates
                    .into_iter()
                    .find_map(|c| c.outcome.err());
                return Err(AdviseError::Profile(lacking.unwrap_or(
                    FitError::NoPurePoints {
                        model: crate::ModelKind::Dam,
                    },
                )));
            }
        };
        let view = Self {
            predictor,
            profile,
            concurrency_max: profile.deepest(),
        };
        // Advice without reads or writes would be a guess about half of the work.
        view.page_cost_us(&OperatingPoint::random_reads(1.0, 1.0))?;
        view.page_cost_us(&OperatingPoint::random_writes(1.0, 1.0))?;
        Ok(view)
    }

    /// Wall time per page that no measured point of this operation was faster than, µs: whatever
    /// the model says, the drive moves no more bytes than it was seen to move.
    pub(crate) fn min_page_us(&self, operation: Operation) -> f64 {
        let samples = self.profile.fitted_samples();
        let read_share = match operation {
            Operation::Read => 1.0,
            Operation::Write => 0.0,
        };
        let pure = samples.iter().filter(|s| s.point.read_share == read_share);
        1e6 / pure
            .map(|s| s.throughput_pages_per_s)
            .fold(f64::MIN_POSITIVE, f64::max)
    }

    /// Wall time per I/O that no measured point of random reads was faster than, µs.
    pub(crate) fn min_read_us(&self) -> f64 {
        let samples = self.profile.fitted_samples();
        let reads = samples.iter().filter(|s| s.point.read_share >= 1.0);
        1e6 / reads
            .map(|s| s.throughput_pages_per_s / s.point.io_pages)
            .fold(f64::MIN_POSITIVE, f64::max)
    }

    /// Wall time of one random read of `pages` pages with `k` in flight, µs. Larger reads than were
    /// measured cost as much per page as the largest measured; none is faster than the fastest
    /// measured, in I/Os or in bytes.
    pub(crate) fn random_read_us(&self, k: impl Into<f64>, pages: f64) -> Result<f64, AdviseError> {
        let samples = self.profile.fitted_samples();
        let reads = samples.iter().filter(|s| s.point.read_share >= 1.0);
        let largest = reads.map(|s| s.point.io_pages).fold(1.0, f64::max);
        let point = OperatingPoint::random_reads(k.into(), pages.clamp(1.0, largest));
        let least = self.min_page_us(Operation::Read);
        let us = pages * self.page_cost_us(&point)?.max(least);
        Ok(us.max(self.min_read_us()))
    }

    pub(crate) fn page_cost_us(&self, point: &OperatingPoint) -> Result<f64, AdviseError> {
        Ok(self.predictor.model().page_cost_us(point)?)
    }

    /// Wall time of one random page read with `k` in flight, µs.
    pub(crate) fn page_read_us(&self, k: impl Into<f64>) -> Result<f64, AdviseError> {
        self.random_read_us(k, 1.0)
    }

    /// Wall time per page of reads or writes in large sequential chunks, µs per page.
    pub(crate) fn bulk_page_us(&self, k: u32, read_share: f64) -> Result<f64, AdviseError> {
        let largest = self
            .profile
            .fitted_samples()
            .iter()
            .map(|s| s.point.io_pages)
            .fold(1.0, f64::max);
        let io_pages = CHUNK_PAGES.min(largest);
        let cost = self.page_cost_us(&OperatingPoint {
            concurrency: f64::from(k),
            random_share: 1.0,
            io_pages,
            read_share,
        })?;
        let operation = match read_share > 0.5 {
            true => Operation::Read,
            false => Operation::Write,
        };
        Ok(cost.max(self.min_page_us(operation)))
    }

    /// Wall time of one synced write of `pages` pages that nothing overlaps, µs: a group of
    /// commits. A profile without a measured flush says what a write takes, which is less.
    pub(crate) fn flush_us(&self, pages: f64) -> Result<f64, AdviseError> {
        let one = match self.profile.flush_us {
            Some(us) => us,
            None => self.page_cost_us(&OperatingPoint::random_writes(1.0, 1.0))?,
        };
        let more = self.bulk_page_us(1, 0.0)?;
        Ok(one + (pages - 1.0).max(0.0) * more)
    }

    /// Mean latency of a random page read with `k` in flight, µs.
    pub(crate) fn read_latency_us(&self, k: u32) -> Result<f64, AdviseError> {
        Ok(self
            .predictor
            .model()
            .io_latency_us(&OperatingPoint::random_reads(f64::from(k), 1.0))?)
    }

    /// Ratio of the 99th percentile to the mean at the measured point of small reads nearest in k,
    /// if latencies were recorded.
    pub(crate) fn read_p99_ratio(&self, k: u32) -> Option<f64> {
        let distance = |c: f64| (c / f64::from(k)).ln().abs();
        self.profile
            .points
            .iter()
            .filter(|p| p.read_share >= 1.0 && p.io_pages <= 4.0)
            .filter_map(|p| {
                p.latency_us
                    .map(|l| (distance(p.concurrency()), l.p99 / l.mean))
            })
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, ratio)| ratio.max(1.0))
    }

    /// CPU of one small I/O at depth, µs: the least measured, else what io_uring takes on current
    /// machines.
    pub(crate) fn cpu_us_per_io(&self) -> f64 {
        self.measured_cpu_us_per_io()
            .unwrap_or(DEFAULT_CPU_US_PER_IO)
    }

    /// The same with where it comes from.
    pub(super) fn io_constant(&self) -> Constant {
        let is_measured = self.measured_cpu_us_per_io().is_some();
        Constant {
            engine: "Both",
            what: "I/O of a page, many in flight",
            us: self.cpu_us_per_io(),
            is_measured,
            source: match is_measured {
                true => "the profile, by the probe".into(),
                false => "an assumption: the profile has no CPU times".into(),
            },
        }
    }

    fn measured_cpu_us_per_io(&self) -> Option<f64> {
        let measured = self
            .profile
            .points
            .iter()
            .filter(|p| p.io_pages <= 1.0)
            .filter_map(|p| p.cpu_us_per_io);
        let least = measured.filter(|c| *c > 0.0).fold(f64::INFINITY, f64::min);
        least.is_finite().then_some(least)
    }

    /// The least depth at which random reads reach [`DEPTH_GAIN_SHARE`] of the best predicted
    /// throughput.
    pub(crate) fn useful_depth(&self) -> Result<u32, AdviseError> {
        useful_depth(self.concurrency_max, |k| self.page_read_us(k))
    }

    /// What a reader of the advice must know about the measurements behind it.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |condition: bool, text: String| {
            if condition {
                warnings.push(text);
            }
        };
        warn(
            !self.profile.complete,
            "The probe was interrupted; predictions rest on the points it had.".into(),
        );
        warn(
            self.profile.is_fitted_across_levels(),
            "The drive changed its level so often that the model rests on points of several: rates are between them.".into(),
        );
        warn(
            !self.profile.system.direct_io,
            "The probe went through the page cache: its rates are partly memory's.".into(),
        );
        warn(
            self.profile.host_cache.verdict == HostCacheVerdict::Suspected,
            "A cache below the kernel is suspected: rates hold for data that was touched recently; first reads are slower."
                .into(),
        );
        if let Some(error) = self.predictor.held_out() {
            warn(
                error.p90 > 0.4,
                format!(
                    "The drive model misses one point in ten by more than {:.0}%: treat every rate below as that uncertain.",
                    100.0 * error.p90
                ),
            );
        }
        warnings
    }
}

const DEFAULT_CPU_US_PER_IO: f64 = 2.7;

/// The least depth up to `deepest` at which random reads, of `page_read_us(k)` µs each, reach
/// [`DEPTH_GAIN_SHARE`] of the best.
pub(super) fn useful_depth(
    deepest: u32,
    page_read_us: impl Fn(u32) -> Result<f64, AdviseError>,
) -> Result<u32, AdviseError> {
    let doublings = (0..=16).map(|i| 1u32 << i).filter(|k| *k <= deepest);
    let mut min_us = f64::INFINITY;
    for k in doublings.chain([deepest]) {
        min_us = min_us.min(page_read_us(k)?);
    }
    for k in 1..=deepest {
        if page_read_us(k)? <= min_us / DEPTH_GAIN_SHARE {
            return Ok(k);
        }
    }
    Ok(deepest)
}

impl DeviceProfile {
    /// The deepest queue that advice may use: no deeper than was measured, nor than the block layer
    /// lets through.
    pub(super) fn deepest(&self) -> u32 {
        let measured = self.fitted_samples();
        let measured = measured.iter().map(|s| s.point.concurrency);
        let queue = self.hardware.drive_queue_requests.unwrap_or(u32::MAX);
        (measured.fold(1.0, f64::max) as u32).min(queue).max(1)
    }
}
