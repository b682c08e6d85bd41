//! The parts of a record: its setting, its calls, its space, and the load before it.

use serde::{Deserialize, Serialize};

use super::choice::Choice;
use super::medium::Medium;
use super::tally::Results;
use super::workload::Operation;
use crate::engine::{Callers, EngineKind, IsolationLevel, SpaceConfig, SpaceCounters, Tuning};

/// The setting of a run; equal settings have an equal hash.
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

    /// 16 hexadecimal digits that are equal for equal settings.
    #[must_use]
    pub fn hash(&self) -> String {
        hashed(&serde_json::to_string(self).unwrap_or_default())
    }
}

/// 16 hexadecimal digits that are equal for equal texts (FNV-1a).
pub(super) fn hashed(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The calls of one kind in a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// The operation.
    pub operation: String,
    /// Keys (get, get-many) or records (scan) or writes processed.
    pub operations: u64,
    /// The same per second.
    pub operations_per_s: f64,
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
}

impl Calls {
    pub(super) fn of(results: &Results, operation: Operation, seconds: f64) -> Calls {
        let histogram = &results.latency_ns[operation as usize];
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        let operations = results.operations[operation as usize];
        Calls {
            operation: operation.name().to_owned(),
            operations,
            operations_per_s: operations as f64 / seconds,
            calls: results.calls[operation as usize],
            latency_us_mean: histogram.mean() / 1000.0,
            latency_us_p50: at(0.5),
            latency_us_p90: at(0.9),
            latency_us_p99: at(0.99),
            latency_us_p999: at(0.999),
            latency_us_max: histogram.max() as f64 / 1000.0,
        }
    }
}

/// The page store's counters during the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_microseconds() {
        let mut results = Results::new(&crate::bench::Mix::get());
        let one = &mut results.latency_ns[Operation::Get as usize];
        for us in 1..=10_000u64 {
            one.record(us * 1000).unwrap();
        }
        let calls = Calls::of(&results, Operation::Get, 1.0);
        let all = [
            calls.latency_us_mean,
            calls.latency_us_max,
            calls.latency_us_p50,
            calls.latency_us_p90,
            calls.latency_us_p99,
            calls.latency_us_p999,
        ];
        let right = [5000.5, 10_000.0, 5000.0, 9000.0, 9900.0, 9990.0];
        for (found, right) in all.iter().zip(right) {
            // Histograms have two significant digits.
            assert!((found / right - 1.0).abs() < 0.01, "{all:?}");
        }
        assert!(all[5] > all[4], "{all:?}");
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
