//! What RocksDB is predicted to do beside what it does: one drive, one configuration, the same minutes.

use std::path::PathBuf;
use std::time::Duration;

use isobath_model::advise::{Advisor, Law, RocksdbSettings, Run};
use isobath_model::lsm::Layout;
use isobath_model::profile::DeviceProfile;
use isobath_model::workload::{Durability, Workload as Described};
use serde::Serialize;

use crate::bench::{Choice, LookupPlan, ScanLength, Workload, lookup};
use crate::calibrate::Costs;
use crate::drive_model::with_costs;
use crate::engine::rocksdb::{LEVEL_BASE_BUFFERS, Sizes};
use crate::engine::{Callers, EngineConfig, EngineKind, Schema, SpaceConfig, Tuning};
use crate::{LabError, Monitor};

/// The workloads that are compared, by their names in the benchmark.
pub const WORKLOADS: [&str; 10] = [
    "lookup",
    "scan",
    "update-small",
    "update",
    "ycsb-a",
    "ycsb-b",
    "ycsb-c",
    "ycsb-d",
    "ycsb-e",
    "ycsb-f",
];

/// Where and how long.
#[derive(Debug, Clone)]
pub struct RatesPlan {
    /// A directory that does not exist; the database is made there and removed.
    pub path: PathBuf,
    /// Workloads, of [`WORKLOADS`].
    pub workloads: Vec<String>,
    /// Bytes of records.
    pub data_bytes: u64,
    /// Bytes of memtables and block cache.
    pub memory_bytes: u64,
    /// Client threads.
    pub clients: u32,
    /// How long each workload runs before it is measured, and is measured.
    pub warm_up: Duration,
    /// See above.
    pub duration: Duration,
}

/// One workload.
#[derive(Debug, Clone, Serialize)]
pub struct RatesRow {
    /// Its name.
    pub workload: String,
    /// Operations per second that the model predicts.
    pub predicted_per_s: f64,
    /// What it says is the limit.
    pub limited_by: &'static str,
    /// Operations per second that were measured; a scan is one.
    pub measured_per_s: f64,
    /// Predicted less measured, over measured.
    pub error_ratio: f64,
    /// Device reads per operation, predicted, pages.
    pub predicted_reads_per_operation: f64,
    /// The same measured: bytes that the kernel counts, over 4 KiB.
    pub measured_reads_per_operation: f64,
    /// CPU per operation, predicted, µs.
    pub predicted_cpu_us: f64,
    /// The same measured.
    pub measured_cpu_us: f64,
    /// Bytes written to the drive per operation, predicted.
    pub predicted_written_bytes: f64,
    /// The same measured.
    pub measured_written_bytes: f64,
    /// The drive's own random 4 KiB reads per second, before and after, with as many in flight as there are clients.
    pub drive_reads_per_s: Option<(f64, f64)>,
    /// The same by the profile that the prediction rests on.
    pub profile_reads_per_s: f64,
}

/// Measures every workload of the plan and predicts it from the profile.
///
/// # Errors
/// Those of the benchmark, and of a profile that is not enough.
pub fn rates(
    plan: &RatesPlan,
    profile: &DeviceProfile,
    costs: Option<Costs>,
    monitor: &dyn Monitor,
) -> Result<Vec<RatesRow>, LabError> {
    if plan.memory_bytes < MEMORY_BYTES_MIN {
        return Err(LabError::Request(
            "RocksDB needs 32 MiB of memory to be compared".to_owned(),
        ));
    }
    let advisor = Advisor::new(profile)
        .map_err(|error| LabError::Request(format!("the profile: {error}")))?;
    let advisor = match costs {
        Some(costs) => with_costs(advisor, costs),
        None => advisor,
    };
    for warning in advisor.warnings() {
        monitor.say(&warning);
    }
    let row = |name: &String| compare(plan, &advisor, name, monitor);
    plan.workloads.iter().map(row).collect()
}

fn compare(
    plan: &RatesPlan,
    advisor: &Advisor<'_>,
    name: &str,
    monitor: &dyn Monitor,
) -> Result<RatesRow, LabError> {
    let workload = Workload::named(name)?;
    let records = (plan.data_bytes / workload.record_bytes()).max(1);
    let described = described(plan, &workload, records);
    let settings = settings(plan, &described);
    let predicted = advisor
        .predict_rocksdb_run(&described, &settings, &run(plan, &workload))
        .map_err(|error| LabError::Request(format!("{name}: {error}")))?;
    let profile_reads_per_s = advisor
        .predictor()
        .predict(&isobath_model::OperatingPoint::random_reads(
            f64::from(plan.clients),
            1.0,
        ))
        .map_err(|error| LabError::Request(format!("the profile: {error}")))?
        .throughput_pages_per_s;
    let report = lookup(&bench_plan(plan, workload, records), monitor)?;
    // Rows are of the same seconds: a row's calls over its own duration.
    let calls_per_s = |row: &crate::bench::Row| {
        row.calls as f64 * row.operations_per_s / (row.operations as f64).max(1.0)
    };
    let measured_per_s: f64 = report.rows.iter().map(calls_per_s).sum();
    // What is counted per operation counts every record of a scan.
    let all: f64 = report.rows.iter().map(|row| row.operations_per_s).sum();
    let per_call = all / measured_per_s.max(1e-9);
    let of_first = |value: fn(&crate::bench::Row) -> f64| report.rows.first().map_or(0.0, value);
    let drive = report
        .drive_before
        .as_ref()
        .zip(report.drive_after.as_ref());
    Ok(RatesRow {
        workload: name.to_owned(),
        predicted_per_s: predicted.operations_per_s,
        limited_by: predicted.limited_by,
        measured_per_s,
        error_ratio: predicted.operations_per_s / measured_per_s.max(1e-9) - 1.0,
        predicted_reads_per_operation: predicted.page_reads_per_operation,
        measured_reads_per_operation: of_first(|row| row.device_bytes_read_per_operation)
            * per_call
            / 4096.0,
        predicted_cpu_us: predicted.cpu_us_per_operation,
        measured_cpu_us: of_first(|row| row.cpu_us_per_operation) * per_call,
        predicted_written_bytes: predicted.write_amplification
            * described.writes()
            * described.record_bytes(),
        measured_written_bytes: of_first(|row| row.device_bytes_written_per_operation) * per_call,
        drive_reads_per_s: drive.map(|(a, b)| (a.reads_per_s, b.reads_per_s)),
        profile_reads_per_s,
    })
}

/// The benchmark's workload in the advisor's terms. A read-modify-write is one operation that reads and updates.
fn described(plan: &RatesPlan, workload: &Workload, records: u64) -> Described {
    let [get, scan, update, insert, rmw] =
        ["get", "scan", "update", "insert", "rmw"].map(|name| workload.mix.share(name));
    Described {
        record_count: records as f64,
        key_bytes: workload.key_format.bytes() as f64,
        value_bytes: workload.value_bytes as f64,
        zipf_exponent: match workload.choice {
            Choice::Uniform => 0.0,
            Choice::Zipf(exponent) | Choice::ScrambledZipf(exponent) | Choice::Latest(exponent) => {
                exponent
            }
        },
        order: None,
        point_reads: get + rmw,
        scans: scan,
        updates: update + rmw,
        inserts: insert,
        scan_records: match workload.scan {
            ScanLength::Fixed(count) => count as f64,
            ScanLength::UpTo(most) => (1 + most) as f64 / 2.0,
        },
        clients: plan.clients,
        memory_bytes: plan.memory_bytes as f64,
        core_count: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        target_operations_per_s: None,
        target_read_p99_us: None,
        capacity_bytes: None,
        endurance_bytes: None,
        lifetime_years: 5.0,
        durability: Durability::Buffered,
    }
}

/// The run as the model has it.
fn run(plan: &RatesPlan, workload: &Workload) -> Run {
    Run {
        law: match workload.choice {
            Choice::Uniform => Law::Uniform,
            Choice::Zipf(exponent) => Law::Zipf(exponent),
            Choice::ScrambledZipf(exponent) => Law::ScrambledZipf(exponent),
            Choice::Latest(exponent) => Law::Latest(exponent),
        },
        warm_up_s: plan.warm_up.as_secs_f64(),
        duration_s: plan.duration.as_secs_f64(),
    }
}

/// What the benchmark's adapter sets, in the advisor's terms.
fn settings(plan: &RatesPlan, described: &Described) -> RocksdbSettings {
    let sizes = Sizes::of(
        plan.memory_bytes,
        described.data_bytes() as u64,
        Some(MEMTABLE_SHARE),
    );
    let jobs = Tuning::default().jobs() as u32;
    // The load ends with everything in one run, and stays so where nothing is written.
    let layout = match described.writes() > 0.0 {
        true => Layout::Leveled {
            fanout: FANOUT,
            l0_files: LEVEL_BASE_BUFFERS as u32,
        },
        false => Layout::SingleLevel,
    };
    RocksdbSettings {
        layout,
        file_bytes: sizes.write_buffer_bytes,
        l0_trigger_files: L0_FILES,
        l0_slowdown_files: 20,
        l0_stop_files: 36,
        background_jobs: jobs,
        subcompactions: 1,
        filter_bits_per_key: 0,
        block_cache_bytes: sizes.block_cache_bytes,
        write_buffer_bytes: sizes.write_buffer_bytes,
        user_threads: plan.clients,
        level_count: 0,
    }
}

/// Of the memory, memtables take this share, as the advice has it.
const MEMTABLE_SHARE: f64 = 0.25;
/// With less, files are so small that the drive's own limit cannot be read from them.
const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// RocksDB's defaults, which the adapter keeps.
const FANOUT: u32 = 10;
const L0_FILES: u32 = 4;

fn bench_plan(plan: &RatesPlan, workload: Workload, records: u64) -> LookupPlan {
    LookupPlan {
        engine: EngineConfig {
            kind: EngineKind::RocksDb,
            path: Some(plan.path.clone()),
            pool_bytes: plan.memory_bytes,
            workers: None,
            tasks_per_worker: 1,
            depth_per_worker: 1,
            threads: plan.clients as usize,
            callers: Callers::Threads,
            space: SpaceConfig {
                buffered_ms: Some(10),
                ..SpaceConfig::default()
            },
            simulated: None,
            // As the advice's OPTIONS file has it: otherwise most blocks lie in two pages of the drive.
            tuning: Tuning {
                block_align: true,
                write_share: Some(MEMTABLE_SHARE),
                ..Tuning::default()
            },
            schema: Schema::default(),
        },
        in_pool: false,
        records,
        workload,
        rate_per_s: None,
        warm_up: plan.warm_up,
        duration: plan.duration,
        load_only: false,
        keep: false,
        drive_depth: Some(plan.clients),
        drive_duration: Duration::from_secs(2),
        sample_every: Duration::from_secs(1),
        until_steady: false,
        seed: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_become_shares_of_operations() {
        let plan = RatesPlan {
            path: PathBuf::new(),
            workloads: Vec::new(),
            data_bytes: 1 << 30,
            memory_bytes: 64 << 20,
            clients: 8,
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
        };
        for name in WORKLOADS {
            let workload = Workload::named(name).unwrap();
            let of = described(&plan, &workload, 1000);
            let rmw = workload.mix.share("rmw");
            let sum = of.point_reads + of.scans + of.updates + of.inserts - rmw;
            assert!((sum - 1.0).abs() < 1e-9, "{name}: {of:?}");
        }
        let f = described(&plan, &Workload::named("ycsb-f").unwrap(), 1000);
        assert_eq!(
            (f.point_reads, f.updates, f.zipf_exponent),
            (1.0, 0.5, 0.99)
        );
        let e = described(&plan, &Workload::named("ycsb-e").unwrap(), 1000);
        assert_eq!((e.scans, e.scan_records), (0.95, 50.5));
    }
}
