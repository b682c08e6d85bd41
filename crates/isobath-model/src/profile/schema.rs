//! The fields of a device profile, version 1. Every change of meaning raises
//! [`super::PROFILE_VERSION`].

use serde::{Deserialize, Serialize};

use crate::point::Operation;

/// One probe of one target. See the module's example.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Always [`super::PROFILE_FORMAT`].
    pub format: String,
    /// Always [`super::PROFILE_VERSION`].
    pub version: u32,
    /// Version of the program that probed.
    pub tool_version: String,
    /// When the probe began, seconds since 1970 UTC.
    pub created_unix_s: u64,
    /// False for a probe that was interrupted: its points are sound, its plan is not finished.
    pub complete: bool,
    /// The plan that was measured, so that an interrupted probe can go on; `None` in profiles from
    /// elsewhere.
    #[serde(default)]
    pub plan: Option<PlanNote>,
    /// What was probed.
    pub target: Target,
    /// The machine and the drive.
    pub hardware: Hardware,
    /// Kernel, file system, interface.
    pub system: System,
    /// What was done to the drive before measuring.
    pub drive_state: DriveState,
    /// Whether something between us and the drive seems to cache.
    pub host_cache: HostCache,
    /// Share of CPU time that the hypervisor gave to others during the probe, 0..=1; `None` on bare
    /// metal.
    #[serde(default)]
    pub steal_share: Option<f64>,
    /// One page that is written and made durable with nothing else in flight, wall time, µs, the
    /// median: what a group of synced commits waits for. `None` if the probe wrote nothing, and in
    /// profiles from before it was measured.
    #[serde(default)]
    pub flush_us: Option<f64>,
    /// How much repeated points differ.
    pub repeat_noise: RepeatNoise,
    /// Stretches of time in which the drive behaved alike. At least one.
    pub regimes: Vec<Regime>,
    /// The one fixed point that is measured between the others.
    #[serde(default)]
    pub sentinels: Vec<Sentinel>,
    /// The measured points, in the order of measurement.
    pub points: Vec<MeasuredPoint>,
}

/// Which points a probe set out to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanNote {
    /// `quick`, `default`, `paper` or `seeded`.
    pub name: String,
    /// Points of the plan.
    pub point_count: usize,
    /// Seed of points, order and offsets.
    pub seed: u64,
    /// Deepest queue tried.
    pub concurrency_max: u32,
}

/// What was probed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Path as given.
    pub path: String,
    /// File or block device.
    pub kind: TargetKind,
    /// Bytes that offsets were drawn from.
    pub size_bytes: u64,
}

/// Kind of target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// A regular file.
    File,
    /// A block device.
    BlockDevice,
    /// A device in memory or simulated: rates are not those of hardware.
    Simulated,
}

/// The machine and the drive, as far as the kernel reports them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// Drive model.
    #[serde(default)]
    pub drive_model: Option<String>,
    /// Drive firmware.
    #[serde(default)]
    pub drive_firmware: Option<String>,
    /// `nvme`, `virtio`, `sata`…
    #[serde(default)]
    pub drive_transport: Option<String>,
    /// Capacity of the whole drive.
    #[serde(default)]
    pub drive_capacity_bytes: Option<u64>,
    /// Requests that the block layer lets into the drive before submitters block.
    #[serde(default)]
    pub drive_queue_requests: Option<u32>,
    /// Logical block size.
    #[serde(default)]
    pub logical_block_bytes: Option<u32>,
    /// The drive says that its write cache loses data with power.
    #[serde(default)]
    pub volatile_write_cache: Option<bool>,
    /// CPU model.
    #[serde(default)]
    pub cpu_model: Option<String>,
    /// Hardware threads that this process may use.
    pub cpu_count: u32,
    /// Memory of the machine.
    pub memory_bytes: u64,
}

/// Software between the probe and the drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct System {
    /// Kernel release.
    pub kernel: String,
    /// File system, `None` on a raw block device.
    #[serde(default)]
    pub file_system: Option<String>,
    /// I/O scheduler of the block device.
    #[serde(default)]
    pub io_scheduler: Option<String>,
    /// `io_uring`, `libaio`, `pread`…
    pub io_interface: String,
    /// Whether the page cache was bypassed. Points measured without are not the drive's.
    pub direct_io: bool,
}

/// What was done to the drive before measuring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveState {
    /// The preparation.
    pub preparation: Preparation,
    /// Bytes written by it.
    pub prepared_bytes: u64,
    /// Share of the drive's capacity that holds data, where known, 0..=1.
    #[serde(default)]
    pub fill_share: Option<f64>,
}

/// How the drive was prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preparation {
    /// Nothing was done; the state is whatever it was.
    Unknown,
    /// Trimmed: a fresh drive's best case for writes.
    Trimmed,
    /// The target was written once in order and read in full.
    SequentialFill,
    /// Filled in order, then random writes of twice the capacity: steady state for writes.
    Preconditioned,
}

/// Whether reads come from a cache that O_DIRECT does not bypass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostCache {
    /// The verdict.
    pub verdict: HostCacheVerdict,
    /// Random 4 KiB reads per second at the first visit of every offset.
    #[serde(default)]
    pub first_pass_reads_per_s: Option<f64>,
    /// The same over offsets that were read before.
    #[serde(default)]
    pub repeat_reads_per_s: Option<f64>,
}

/// Verdict about a cache below the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostCacheVerdict {
    /// Repeated reads are much faster than first ones.
    Suspected,
    /// They are not.
    NoneSeen,
    /// Not tested.
    NotTested,
}

/// Relative difference between repeats of one point, median over points.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RepeatNoise {
    /// Reads.
    #[serde(default)]
    pub read: Option<f64>,
    /// Writes.
    #[serde(default)]
    pub write: Option<f64>,
}

/// A stretch of time in which the drive behaved alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Regime {
    /// For people: `steady`, `burst credits`, `write cache`…
    pub name: String,
    /// The operation it concerns; `None` for both.
    #[serde(default)]
    pub operation: Option<Operation>,
    /// Whether its points may be fitted.
    pub usable: bool,
    /// Median of the sentinel that distinguishes this regime from others, 4 KiB pages per second;
    /// `None` if none does.
    #[serde(default)]
    pub level_pages_per_s: Option<f64>,
    /// Seconds since the probe began.
    pub began_s: f64,
    /// Seconds since the probe began.
    pub ended_s: f64,
}

/// One measurement of the fixed points that bracket the others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sentinel {
    /// Seconds since the probe began.
    pub at_s: f64,
    /// Throughput of small I/Os: random reads of a page.
    pub throughput_pages_per_s: f64,
    /// Throughput of large I/Os: random reads of 64 pages. Bandwidth and I/Os per second are
    /// limited, and drift, apart.
    #[serde(default)]
    pub large_pages_per_s: Option<f64>,
    /// Throughput of small writes at random; `None` if only reads are measured. Flushes of others
    /// slow writes alone.
    #[serde(default)]
    pub write_pages_per_s: Option<f64>,
}

/// One measured point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPoint {
    /// Threads that issued I/O.
    pub threads: u32,
    /// I/Os in flight per thread; 1 for blocking calls. `k` is threads × queue depth.
    pub queue_depth: u32,
    /// Share of I/Os at random offsets, 0..=1.
    pub random_share: f64,
    /// Pages of 4 KiB per I/O.
    pub io_pages: f64,
    /// Share of I/Os that were reads, 0..=1.
    pub read_share: f64,
    /// Index into `regimes`.
    pub regime: usize,
    /// Seconds since the probe began.
    pub began_s: f64,
    /// Seconds measured, all repeats together.
    pub duration_s: f64,
    /// Median throughput over the repeats, 4 KiB pages per second.
    pub throughput_pages_per_s: f64,
    /// Relative standard deviation between repeats; 0 for a single one.
    pub throughput_spread: f64,
    /// Repeats that the median is over.
    pub repeats: u32,
    /// Measurements that were thrown away because the sentinels around them differed by more than
    /// 10%, or because other programs used the drive or the CPU during them.
    pub reruns: u32,
    /// Repeats that were kept although other programs used the drive or the CPU during them: no
    /// quieter ones came.
    #[serde(default)]
    pub disturbed: u32,
    /// User and system time of the issuing process per I/O.
    #[serde(default)]
    pub cpu_us_per_io: Option<f64>,
    /// Latency of I/Os.
    #[serde(default)]
    pub latency_us: Option<Latency>,
}

/// Latency of one I/O in µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}
