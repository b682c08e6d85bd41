//! One slice of one point.

use std::path::PathBuf;

use isobath_model::OperatingPoint;
use isobath_model::profile::{Latency, MeasuredPoint};

use super::system::Traffic;
use crate::raw::{self, LatencySummary, RawPlan, RawResult, RawTarget};
use crate::{LabError, Monitor, Unseen};

/// How points are measured.
pub(super) struct Gauge<'a> {
    pub(super) volume: &'a isobath_io::Volume,
    pub(super) bytes: u64,
    pub(super) cores: u32,
    pub(super) slice_ms: u32,
    pub(super) warmup_ms: u32,
    pub(super) seed: u64,
    /// The directory under /sys of the drive that is measured.
    pub(super) drive: Option<PathBuf>,
    pub(super) monitor: &'a dyn Monitor,
}

/// I/Os in flight that one thread handles before another is worth its CPU.
const DEPTH_PER_THREAD: u32 = 64;
/// A slow drive gets this many times the slice before it counts as not answering.
const PATIENCE: u32 = 16;

/// Threads and depth whose product is `k`.
pub(super) fn split(k: f64, cores: u32) -> (u32, u32) {
    let k = k.round().max(1.0) as u32;
    let most = k.div_ceil(DEPTH_PER_THREAD).clamp(1, cores.max(1));
    let threads = (1..=most).rev().find(|t| k.is_multiple_of(*t)).unwrap_or(1);
    (threads, k / threads)
}

impl Gauge<'_> {
    /// The plan of one slice.
    pub(super) fn slice(&self, point: &OperatingPoint, number: u64, ms: u32) -> RawPlan {
        let (threads, depth) = split(point.concurrency, self.cores);
        RawPlan {
            target: RawTarget::Volume(self.volume.clone()),
            bytes: Some(self.bytes),
            page_bytes: (point.io_pages.round().max(1.0) as u32) * 4096,
            read_percent: (point.read_share * 100.0).round() as u32,
            random_percent: (point.random_share * 100.0).round() as u32,
            threads,
            depth,
            // As if every I/O in flight were a thread of the paper's: neighbours are not merged on
            // their way.
            streams: depth,
            // Few, so that the I/Os in flight stay near k.
            wait_min: (depth / 8).clamp(1, 16),
            prepare: false,
            warmup_ms: self.warmup_ms,
            duration_ms: ms,
            seed: self.seed.wrapping_mul(1_000_003).wrapping_add(number),
            ..RawPlan::default()
        }
    }

    /// Measures for `first_ms`, longer if nothing completes in it.
    pub(super) fn run(
        &self,
        point: &OperatingPoint,
        number: u64,
        first_ms: u32,
    ) -> Result<RawResult, LabError> {
        let mut ms = first_ms;
        loop {
            let result = raw::run(&self.slice(point, number, ms), &Unseen(self.monitor))?;
            if result.ios > 0 {
                return Ok(result);
            }
            if ms >= first_ms.saturating_mul(PATIENCE) {
                return Err(LabError::Request(format!(
                    "no I/O of {} pages completed within {ms} ms; is the drive hanging?",
                    point.io_pages
                )));
            }
            ms *= 2;
        }
    }

    /// Measures one slice of a point, and whether others disturbed it.
    pub(super) fn point(
        &self,
        point: &OperatingPoint,
        number: u64,
        began_s: f64,
    ) -> Result<(MeasuredPoint, bool), LabError> {
        let before = Traffic::now(self.drive.as_deref());
        let result = self.run(point, number, self.slice_ms)?;
        let disturbed = Traffic::now(self.drive.as_deref()).disturbed_since(&before);
        let (threads, queue_depth) = split(point.concurrency, self.cores);
        let measured = MeasuredPoint {
            threads,
            queue_depth,
            random_share: point.random_share,
            io_pages: point.io_pages.round(),
            read_share: point.read_share,
            regime: 0,
            began_s,
            duration_s: result.window_s,
            throughput_pages_per_s: result.ios_per_s * point.io_pages.round(),
            throughput_spread: 0.0,
            repeats: 1,
            reruns: 0,
            disturbed: u32::from(disturbed),
            cpu_us_per_io: Some(result.cpu_us_per_io),
            // Reads and writes of a mix have latencies of their own; one summary would describe
            // neither.
            latency_us: match point.read_share {
                share if share >= 1.0 => Some(latency(&result.read_latency)),
                share if share <= 0.0 => Some(latency(&result.write_latency)),
                _ => None,
            },
        };
        Ok((measured, disturbed))
    }
}

fn latency(l: &LatencySummary) -> Latency {
    Latency {
        mean: l.mean_us,
        p50: l.p50_us,
        p90: l.p90_us,
        p99: l.p99_us,
        p999: l.p999_us,
        max: l.max_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_times_depth_is_k() {
        for k in 1..=300 {
            let (threads, depth) = split(f64::from(k), 4);
            assert_eq!(threads * depth, k);
            assert!(threads <= 4);
        }
        assert_eq!(split(128.0, 2), (2, 64));
        assert_eq!(split(64.0, 2), (1, 64));
        assert_eq!(split(128.0, 1), (1, 128));
    }
}
