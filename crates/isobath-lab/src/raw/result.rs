//! The result of a measurement.

use isobath_io::{ChannelStats, OpStats, Volume};
use serde::Serialize;

use crate::raw::Parts;
use crate::raw::plan::RawPlan;

/// Latencies of one kind of I/O, in microseconds, from the hand-over to the kernel until the
/// completion was reaped.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LatencySummary {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Largest since the thread's start, the warm-up included.
    pub max_us: f64,
}

/// The result of a [`RawPlan`].
#[derive(Debug, Clone, Serialize)]
pub struct RawResult {
    /// I/Os completed in the measured window.
    pub ios: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Length of the window.
    pub window_s: f64,
    /// I/Os per second.
    pub ios_per_s: f64,
    /// Reads per second.
    pub reads_per_s: f64,
    /// Writes per second.
    pub writes_per_s: f64,
    /// Megabytes (10^6 bytes) per second, both directions.
    pub mb_per_s: f64,
    /// I/Os per second, second by second.
    pub ios_per_s_series: Vec<f64>,
    /// Latencies of reads.
    pub read_latency: LatencySummary,
    /// Latencies of writes.
    pub write_latency: LatencySummary,
    /// CPU time of the process per I/O, user and system.
    pub cpu_us_per_io: f64,
    /// User time of it.
    pub cpu_user_us_per_io: f64,
    /// System time of it.
    pub cpu_system_us_per_io: f64,
    /// Cores that were busy on average.
    pub cores_busy: f64,
    /// System calls per I/O.
    pub system_calls_per_io: f64,
    /// I/Os in flight, on average (Little's law), reads and writes together.
    pub in_flight_mean: f64,
    /// The backend that was in use.
    pub backend: String,
    /// Whether the page cache was by-passed.
    pub direct: bool,
    /// Refused settings, and their replacements.
    pub notes: Vec<String>,
}

pub(super) fn assemble(plan: &RawPlan, volume: &Volume, parts: Parts) -> RawResult {
    let mut stats = ChannelStats::default();
    let mut rates = [0.0; 2];
    for worker in &parts.workers {
        stats.merge(&worker.stats);
        // Windows of threads begin and end some I/Os apart; each rate is over the thread's own.
        let seconds = worker.window.as_secs_f64().max(1e-9);
        rates[0] += worker.stats.read.completed as f64 / seconds;
        rates[1] += worker.stats.write.completed as f64 / seconds;
    }
    let ios = stats.read.completed + stats.write.completed;
    let per_io = |total: f64| if ios == 0 { 0.0 } else { total / ios as f64 };
    let seconds = parts.window.as_secs_f64().max(1e-9);
    let latency_s = (stats.read.latency.sum_ns() + stats.write.latency.sum_ns()) as f64 * 1e-9;
    let report = volume.backend_report();
    RawResult {
        ios,
        reads: stats.read.completed,
        writes: stats.write.completed,
        window_s: seconds,
        ios_per_s: rates[0] + rates[1],
        reads_per_s: rates[0],
        writes_per_s: rates[1],
        mb_per_s: (rates[0] + rates[1]) * f64::from(plan.page_bytes) * 1e-6,
        ios_per_s_series: parts.series,
        read_latency: summary(&stats.read),
        write_latency: summary(&stats.write),
        cpu_us_per_io: per_io(parts.cpu.total.as_secs_f64() * 1e6),
        cpu_user_us_per_io: per_io(parts.cpu.user_s() * 1e6),
        cpu_system_us_per_io: per_io(parts.cpu.system_s() * 1e6),
        cores_busy: parts.cpu.total.as_secs_f64() / seconds,
        system_calls_per_io: per_io(stats.system_calls as f64),
        in_flight_mean: latency_s / seconds,
        backend: report.backend.to_string(),
        direct: report.direct,
        notes: report.notes,
    }
}

fn summary(stats: &OpStats) -> LatencySummary {
    let us = |ns: u64| ns as f64 / 1000.0;
    let at = |q| us(stats.latency.quantile_ns(q));
    LatencySummary {
        mean_us: us(stats.latency.mean_ns()),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: us(stats.latency.max_ns()),
    }
}
