//! Result rows: tidy, with units in their column names.

use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::medium::Medium;
use super::tally::Results;
use super::workload::Operation;
use crate::Machine;
use crate::engine::{Callers, EngineKind, IsolationLevel, SpaceConfig, SpaceCounters, Tuning};

/// The setting of a row; equal settings have an equal hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The engine.
    pub kind: EngineKind,
    /// Its name and version.
    pub engine: String,
    /// Name of the workload.
    pub workload: String,
    /// Operations and weights.
    pub mix: String,
    /// The law by which records are chosen.
    pub choice: Choice,
    /// Records loaded.
    pub records: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Buffer pool or block cache.
    pub pool_bytes: u64,
    /// Whether everything was in the pool.
    pub in_pool: bool,
    /// The medium of the data.
    pub medium: Medium,
    /// The callers of the engine.
    pub callers: Callers,
    /// Clients at the same time.
    pub clients: usize,
    /// Workers of Isobath; 0 for rivals.
    pub workers: usize,
    /// Exponent of that law; none is uniform.
    pub zipf: Option<f64>,
    /// How Isobath keeps space on the volume.
    pub space: SpaceConfig,
    /// Keys per get-many.
    pub batch: usize,
    /// Records per scan, at most.
    pub scan_records: usize,
    /// Operations offered per second; none in a closed loop.
    pub rate_per_s: Option<f64>,
    /// Seconds before measuring.
    pub warm_up_s: f64,
    /// Seconds measured.
    pub duration_s: f64,
    /// Settings that a search may choose, and that make second rows.
    pub tuning: Tuning,
    /// Seed of keys and arrivals.
    pub seed: u64,
}

impl Setting {
    /// The engine's name beside others: itself, and what makes it a second row.
    #[must_use]
    pub fn side(&self) -> String {
        let isolation = match self.tuning.isolation {
            IsolationLevel::Snapshot => "",
            IsolationLevel::Least => ", least isolation",
        };
        let blocks = match self.block_align() {
            true => ", blocks aligned",
            false => "",
        };
        format!("{}{isolation}{blocks}", self.engine)
    }

    /// Whether RocksDB's blocks were aligned to pages of the drive.
    #[must_use]
    pub fn block_align(&self) -> bool {
        self.tuning.block_align && self.kind == EngineKind::RocksDb
    }

    /// Whether the clients write to a drive.
    pub(super) fn writes_to_drive(&self, writes: bool) -> bool {
        writes && self.medium.is_drive()
    }

    /// 16 hexadecimal digits that are equal for equal settings (FNV-1a).
    #[must_use]
    pub fn hash(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

/// One operation of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Hash of the setting.
    pub config_hash: String,
    /// Version of the laboratory.
    pub isobath_version: String,
    /// The setting.
    #[serde(flatten)]
    pub setting: Setting,
    /// The machine and the drive.
    #[serde(flatten)]
    pub machine: Machine,
    /// The drive's preparation.
    pub drive_state: String,
    /// The operation that this row is about.
    pub operation: String,
    /// Keys (get, get-many) or records (scan) or writes processed.
    pub operations: u64,
    /// The same per second.
    pub operations_per_s: f64,
    /// Slowest whole second of the run, all operations together.
    pub operations_per_s_min: f64,
    /// Fastest whole second of the run, all operations together.
    pub operations_per_s_max: f64,
    /// Calls; a get-many or a scan is one.
    pub calls: u64,
    /// Latency of calls, microseconds, mean.
    pub latency_us_mean: f64,
    /// Median.
    pub latency_us_p50: f64,
    /// 90th percentile.
    pub latency_us_p90: f64,
    /// 99th percentile.
    pub latency_us_p99: f64,
    /// 99.9th percentile.
    pub latency_us_p999: f64,
    /// Longest.
    pub latency_us_max: f64,
    /// Calls of a client of which one is timed.
    pub latency_one_in: u32,
    /// Keys that were drawn before the run, by all clients together, and are used in turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_drawn_before: Option<u64>,
    /// CPU time, user and system, of the whole process per operation of any kind.
    pub cpu_us_per_operation: f64,
    /// Reads of the device per second, 4 KiB each if the engine does not count them.
    pub device_reads_per_s: f64,
    /// The same per operation of any kind.
    pub device_reads_per_operation: f64,
    /// Bytes read from block devices per operation of any kind, as the kernel counts them for this
    /// process.
    pub device_bytes_read_per_operation: f64,
    /// Bytes written to block devices per operation of any kind, as the kernel counts them for this
    /// process: direct writes when they are sent, buffered ones when they make a page dirty.
    pub device_bytes_written_per_operation: f64,
    /// Whether the second half of the run was within 5% of the first.
    pub steady: String,
    /// The drive's own random 4 KiB reads per second before the run.
    pub drive_reads_per_s_before: Option<f64>,
    /// The same after the run.
    pub drive_reads_per_s_after: Option<f64>,
    /// CPU time per read of those runs, microseconds.
    pub drive_cpu_us_per_read: Option<f64>,
    /// Operations over the drive's limit (mean of before and after).
    pub operations_per_drive_read: Option<f64>,
    /// Bytes of the engine's files.
    pub space_bytes: u64,
    /// Isobath's space counters of the run.
    #[serde(flatten)]
    pub space: Option<SpaceRow>,
}

/// The page store's counters during the measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SpaceRow {
    /// Pages written because they changed, per operation that writes.
    pub page_writes_per_update: f64,
    /// `Wamp`: pages that the cleaner moved per page written because it changed.
    pub wamp_ratio: f64,
    /// Bytes written to the volume, for whatever reason, per operation that writes.
    pub bytes_written_per_update: f64,
    /// Live bytes over bytes of all segments, at the end.
    pub fill_ratio: f64,
    /// Segments of the volume, at the end.
    pub segments_count: u64,
    /// Bytes of one.
    pub segment_bytes: u64,
    /// Longest time that a change or a write waited for other writes or for cleaning, since the
    /// store was opened.
    pub stall_ms_max: f64,
}

impl SpaceRow {
    pub(super) fn between(before: &SpaceCounters, after: &SpaceCounters, updates: u64) -> SpaceRow {
        let writes = (after.page_writes - before.page_writes) as f64;
        let moved = (after.relocations - before.relocations) as f64;
        let bytes = (after.bytes_written - before.bytes_written) as f64;
        let updates = updates.max(1) as f64;
        SpaceRow {
            page_writes_per_update: writes / updates,
            wamp_ratio: moved / writes.max(1.0),
            bytes_written_per_update: bytes / updates,
            fill_ratio: after.live_bytes as f64
                / (after.segments * after.segment_bytes).max(1) as f64,
            segments_count: after.segments,
            segment_bytes: after.segment_bytes,
            stall_ms_max: after.stall_ns_max as f64 / 1e6,
        }
    }
}

/// The sorted load that preceded a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadRow {
    /// Name and version of the engine.
    pub engine: String,
    /// Records.
    pub records: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Seconds, closing included.
    pub seconds: f64,
    /// Records per second.
    pub records_per_s: f64,
    /// Millions of bytes of keys and values per second.
    pub megabytes_per_s: f64,
    /// CPU time per record, microseconds.
    pub cpu_us_per_record: f64,
    /// Bytes written to block devices per byte of keys and values.
    pub device_bytes_written_per_byte: f64,
    /// Bytes of the engine's files.
    pub space_bytes: u64,
}

/// Latencies of one operation, in the fields that [`Row`] has.
pub(super) struct Latency {
    pub(super) mean: f64,
    pub(super) at: [f64; 4],
    pub(super) max: f64,
}

impl Latency {
    pub(super) fn of(results: &Results, operation: Operation) -> Latency {
        let histogram = &results.latency_ns[operation as usize];
        let us = |ns: u64| ns as f64 / 1000.0;
        Latency {
            mean: histogram.mean() / 1000.0,
            at: [0.5, 0.9, 0.99, 0.999].map(|q| us(histogram.value_at_quantile(q))),
            max: us(histogram.max()),
        }
    }
}

/// Verdict on a run from its operations in each whole second.
pub(super) fn steady(per_second: &[u64]) -> &'static str {
    if per_second.len() < 4 {
        return "unknown: too short";
    }
    let (first, second) = per_second.split_at(per_second.len() / 2);
    let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len() as f64;
    let (first, second) = (mean(first), mean(second));
    if first > 0.0 && (second / first - 1.0).abs() <= 0.05 {
        "steady"
    } else {
        "drifting"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steadiness_compares_the_halves() {
        assert_eq!(steady(&[100, 101, 99, 100, 102, 98]), "steady");
        assert_eq!(steady(&[100, 100, 100, 80, 70, 60]), "drifting");
        assert_eq!(steady(&[0, 0, 0, 0]), "drifting");
        assert_eq!(steady(&[1, 1]), "unknown: too short");
    }

    #[test]
    fn latencies_are_microseconds() {
        let mut results = Results::new(&crate::bench::Mix::get());
        let one = &mut results.latency_ns[Operation::Get as usize];
        for us in 1..=10_000u64 {
            one.record(us * 1000).unwrap();
        }
        let latency = Latency::of(&results, Operation::Get);
        let all = [&[latency.mean, latency.max][..], &latency.at[..]].concat();
        let right = [5000.5, 10_000.0, 5000.0, 9000.0, 9900.0, 9990.0];
        for (found, right) in all.iter().zip(right) {
            // Histograms have two significant digits.
            assert!((found / right - 1.0).abs() < 0.01, "{all:?}");
        }
        assert!(latency.at[3] > latency.at[2], "{all:?}");
    }

    #[test]
    fn space_is_counted_between_two_looks() {
        let at = |times: u64| SpaceCounters {
            page_writes: 1000 + 300 * times,
            relocations: 500 + 60 * times,
            bytes_written: 7 + 4096 * 360 * times,
            live_bytes: 3 << 20,
            segments: 4,
            segment_bytes: 1 << 20,
            stall_ns_max: 2_500_000,
        };
        let row = SpaceRow::between(&at(1), &at(3), 1200);
        assert_eq!((row.page_writes_per_update, row.wamp_ratio), (0.5, 0.2));
        assert_eq!(row.bytes_written_per_update, 4096.0 * 0.6);
        assert_eq!((row.fill_ratio, row.stall_ms_max), (0.75, 2.5));
        assert_eq!((row.segments_count, row.segment_bytes), (4, 1 << 20));
        // Nothing was written: no ratio is infinite.
        let idle = SpaceRow::between(&at(1), &at(1), 0);
        assert_eq!((idle.page_writes_per_update, idle.wamp_ratio), (0.0, 0.0));
    }
}
