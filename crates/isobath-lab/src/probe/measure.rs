//! One point: repeats until its confidence interval is as asked.

use isobath_model::OperatingPoint;
use isobath_model::profile::{Latency, MeasuredPoint};

use super::regimes::{Taken, TakenPoint, cliff};
use crate::raw::{self, LatencySummary, RawPlan, RawResult, RawTarget};
use crate::{LabError, Monitor, Stage};

/// Passes on the wish to stop, and nothing else: the probe shows its own progress.
pub(super) struct Quietly<'a>(pub(super) &'a dyn Monitor);

impl Monitor for Quietly<'_> {
    fn begin(&self, _: Stage) {}
    fn advance(&self, _: u64) {}
    fn say(&self, _: &str) {}
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

/// How points are measured.
pub(super) struct Gauge<'a> {
    pub(super) volume: &'a isobath_io::Volume,
    pub(super) bytes: u64,
    pub(super) cores: u32,
    pub(super) slice_ms: u32,
    pub(super) warmup_ms: u32,
    pub(super) repeats_min: u32,
    pub(super) repeats_max: u32,
    /// Half width of the 95% interval of the mean, as a share of it.
    pub(super) confidence: f64,
    pub(super) seed: u64,
    pub(super) monitor: &'a dyn Monitor,
}

/// I/Os in flight that one thread handles before another is worth its CPU.
const DEPTH_PER_THREAD: u32 = 64;
/// A slow drive gets this many times the slice before it counts as not answering.
const PATIENCE: u32 = 16;
/// Further repeats when the last ones fall: they tell a cliff from a slow moment.
const CLIFF_REPEATS: u32 = 3;

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
            // Few, so that what is in flight stays near k.
            wait_min: (depth / 8).clamp(1, 16),
            prepare: false,
            warmup_ms: self.warmup_ms,
            duration_ms: ms,
            seed: self.seed.wrapping_mul(1_000_003).wrapping_add(number),
            ..RawPlan::default()
        }
    }

    /// Measures one slice, longer where nothing completes in it.
    pub(super) fn run(&self, point: &OperatingPoint, number: u64) -> Result<RawResult, LabError> {
        let mut ms = self.slice_ms;
        loop {
            let result = raw::run(&self.slice(point, number, ms), &Quietly(self.monitor))?;
            if result.ios > 0 {
                return Ok(result);
            }
            if ms >= self.slice_ms.saturating_mul(PATIENCE) {
                return Err(LabError::Request(format!(
                    "no I/O of {} pages completed within {ms} ms; is the drive hanging?",
                    point.io_pages
                )));
            }
            ms *= 2;
        }
    }

    /// Measures a point; two entries where a write cache filled up in between.
    pub(super) fn point(
        &self,
        point: &OperatingPoint,
        number: u64,
        clock: &dyn Fn() -> f64,
    ) -> Result<Vec<TakenPoint>, LabError> {
        let mut began = vec![clock()];
        let mut results: Vec<RawResult> = Vec::new();
        let mut most = self.repeats_max;
        loop {
            results.push(self.run(point, number * 64 + results.len() as u64)?);
            began.push(clock());
            let rates: Vec<f64> = results.iter().map(|r| r.ios_per_s).collect();
            let n = rates.len() as u32;
            let falls = point.read_share < 1.0 && rates[rates.len() - 1] < rates[0] / 1.5;
            if falls {
                most = self.repeats_max + CLIFF_REPEATS;
            }
            let settled = !falls && n >= self.repeats_min && interval(&rates) <= self.confidence;
            if settled || n >= most {
                break;
            }
        }
        let rates: Vec<f64> = results.iter().map(|r| r.ios_per_s).collect();
        let at = match point.read_share < 1.0 {
            true => cliff(&rates).unwrap_or(0),
            false => 0,
        };
        let of = |from: usize, to: usize, taken| TakenPoint {
            point: assemble(point, self.cores, &results[from..to], began[from]),
            taken,
        };
        let mut taken = Vec::new();
        if at > 0 {
            taken.push(of(0, at, Taken::WriteCache));
        }
        taken.push(of(at, results.len(), Taken::Steady));
        Ok(taken)
    }
}

/// Two-sided 95% quantiles of Student's t for 1, 2, … degrees of freedom.
const T_95: [f64; 10] = [
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// Half width of the 95% interval of the mean as a share of the mean; infinite for one value.
pub(super) fn interval(rates: &[f64]) -> f64 {
    if rates.len() < 2 {
        return f64::INFINITY;
    }
    let t = T_95[(rates.len() - 2).min(T_95.len() - 1)];
    t * spread(rates) / (rates.len() as f64).sqrt()
}

/// Relative standard deviation; 0 for a single value.
fn spread(rates: &[f64]) -> f64 {
    let n = rates.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = rates.iter().sum::<f64>() / n;
    let variance = rates.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0);
    variance.sqrt() / mean
}

/// The repeats of a point as one.
fn assemble(
    point: &OperatingPoint,
    cores: u32,
    results: &[RawResult],
    began_s: f64,
) -> MeasuredPoint {
    let rates: Vec<f64> = results.iter().map(|r| r.ios_per_s).collect();
    let n = results.len() as f64;
    let (threads, queue_depth) = split(point.concurrency, cores);
    let mut order: Vec<usize> = (0..results.len()).collect();
    order.sort_by(|a, b| rates[*a].total_cmp(&rates[*b]));
    // The repeat of median rate stands for the distribution: quantiles do not average.
    let typical = &results[order[order.len() / 2]];
    MeasuredPoint {
        threads,
        queue_depth,
        random_share: point.random_share,
        io_pages: point.io_pages.round(),
        read_share: point.read_share,
        regime: 0,
        began_s,
        duration_s: results.iter().map(|r| r.window_s).sum(),
        throughput_pages_per_s: rates.iter().sum::<f64>() / n * point.io_pages.round(),
        throughput_spread: spread(&rates),
        repeats: results.len() as u32,
        reruns: 0,
        cpu_us_per_io: Some(results.iter().map(|r| r.cpu_us_per_io).sum::<f64>() / n),
        // Reads and writes of a mix have latencies of their own; one summary would describe neither.
        latency_us: match point.read_share {
            share if share >= 1.0 => Some(latency(&typical.read_latency)),
            share if share <= 0.0 => Some(latency(&typical.write_latency)),
            _ => None,
        },
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

    #[test]
    fn the_interval_is_students() {
        // Mean 10, standard deviation 1, n = 3: 4.303 · 0.1 / √3.
        assert!((interval(&[9.0, 10.0, 11.0]) - 0.2484).abs() < 1e-3);
        assert!(interval(&[5.0]).is_infinite());
        assert!(interval(&[5.0, 5.0]).abs() < 1e-12);
    }
}
