//! What RocksDB is predicted to do beside what it does: one drive, one configuration, the same minutes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use isobath_model::advise::{
    Advisor, Law, RocksdbCosts, RocksdbSettings, Run, SyncedCosts, ThreadedIo, WaitingThreads,
};
use isobath_model::lsm::Layout;
use isobath_model::profile::DeviceProfile;
use isobath_model::workload::{Durability, Workload as Described};
use serde::Serialize;

use crate::bench::{Choice, LookupPlan, ScanLength, Workload, lookup};
use crate::calibrate::{Calibration, Costs, KEY_BYTES, VALUE_BYTES};
use crate::drive_model::with_costs;
use crate::engine::rocksdb::{self, LEVEL_BASE_BUFFERS, Sizes};
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
    /// Calibrate in turn with so many runs of each workload; otherwise there is one run of each.
    pub in_turn: Option<InTurn>,
}

/// Short calibrations before, between and after the runs of a workload, beside their files, of CPU and drive: a machine whose speed drifts from
/// minute to minute is judged by what it was in those minutes.
#[derive(Debug, Clone, Copy)]
pub struct InTurn {
    /// Runs of each workload.
    pub runs: u32,
    /// Operations per cost of each calibration, of as many bytes of records as the runs have.
    pub operations: u32,
}

/// One workload.
#[derive(Debug, Clone, Serialize)]
pub struct RatesRow {
    /// Its name.
    pub workload: String,
    /// Operations per second that the model predicts.
    pub predicted_per_s: f64,
    /// The least and the greatest rate that the calibrations of these minutes predict, each for itself; `None` where there is one.
    pub predicted_per_s_range: Option<(f64, f64)>,
    /// What it says is the limit.
    pub limited_by: &'static str,
    /// Operations per second that were measured, the median of the runs; a scan is one.
    pub measured_per_s: f64,
    /// The same of each run.
    pub runs_per_s: Vec<f64>,
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
    /// The costs that were measured before, between and after the runs; empty where costs are given.
    pub calibrations: Vec<RocksdbCosts>,
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
    let refused = |error| LabError::Request(format!("the profile: {error}"));
    let mut advisor = Advisor::new(profile).map_err(refused)?;
    if let Some(costs) = costs {
        advisor = with_costs(advisor, costs);
    }
    for warning in advisor.warnings() {
        monitor.say(&warning);
    }
    let mut rows = Vec::new();
    // What was measured after a workload was measured before the next.
    let mut last = None;
    for name in &plan.workloads {
        let mut calibrations = Vec::new();
        let mut runs = Vec::new();
        for _ in 0..plan.in_turn.map_or(1, |in_turn| in_turn.runs.max(1)) {
            if let Some(in_turn) = plan.in_turn {
                if calibrations.is_empty() {
                    calibrations.push(match last.take() {
                        Some(last) => last,
                        None => calibrate_part(plan, in_turn, monitor)?,
                    });
                }
                runs.push(measure(plan, name, monitor)?);
                calibrations.push(calibrate_part(plan, in_turn, monitor)?);
            } else {
                runs.push(measure(plan, name, monitor)?);
            }
        }
        last = calibrations.last().cloned();
        rows.push(compare(plan, &mut advisor, name, calibrations, &runs)?);
    }
    Ok(rows)
}

/// A calibration in the directory that the runs have their database in.
fn calibrate_part(
    plan: &RatesPlan,
    in_turn: InTurn,
    monitor: &dyn Monitor,
) -> Result<RocksdbCosts, LabError> {
    let directory = plan.path.parent().filter(|p| !p.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let records = plan.data_bytes / (KEY_BYTES + VALUE_BYTES) as u64;
    let calibration = Calibration {
        records: u32::try_from(records).unwrap_or(u32::MAX),
        operations: in_turn.operations,
    };
    let costs = rocksdb::calibrate(calibration, directory, monitor)?;
    let jobs = Tuning::default().jobs() as u32;
    let drive = rocksdb::threaded_io(directory, plan.data_bytes, plan.clients, jobs)?;
    Ok(RocksdbCosts {
        drive: Some(drive),
        ..costs
    })
}

/// What one run gave.
#[derive(Debug, Clone, Copy)]
struct Measured {
    per_s: f64,
    reads: f64,
    cpu_us: f64,
    written_bytes: f64,
    drive: Option<(f64, f64)>,
}

fn measure(plan: &RatesPlan, name: &str, monitor: &dyn Monitor) -> Result<Measured, LabError> {
    let workload = Workload::named(name)?;
    let records = (plan.data_bytes / workload.record_bytes()).max(1);
    let report = lookup(&bench_plan(plan, workload, records), monitor)?;
    // Rows are of the same seconds: a row's calls over its own duration.
    let calls_per_s = |row: &crate::bench::Row| {
        row.calls as f64 * row.operations_per_s / (row.operations as f64).max(1.0)
    };
    let per_s: f64 = report.rows.iter().map(calls_per_s).sum();
    // What is counted per operation counts every record of a scan.
    let all: f64 = report.rows.iter().map(|row| row.operations_per_s).sum();
    let per_call = all / per_s.max(1e-9);
    let of_first = |value: fn(&crate::bench::Row) -> f64| report.rows.first().map_or(0.0, value);
    let drive = report
        .drive_before
        .as_ref()
        .zip(report.drive_after.as_ref());
    Ok(Measured {
        per_s,
        reads: of_first(|row| row.device_bytes_read_per_operation) * per_call / 4096.0,
        cpu_us: of_first(|row| row.cpu_us_per_operation) * per_call,
        written_bytes: of_first(|row| row.device_bytes_written_per_operation) * per_call,
        drive: drive.map(|(a, b)| (a.reads_per_s, b.reads_per_s)),
    })
}

/// What is predicted by the costs of these minutes, or those that were given, beside what was measured.
fn compare(
    plan: &RatesPlan,
    advisor: &mut Advisor<'_>,
    name: &str,
    calibrations: Vec<RocksdbCosts>,
    runs: &[Measured],
) -> Result<RatesRow, LabError> {
    let workload = Workload::named(name)?;
    let records = (plan.data_bytes / workload.record_bytes()).max(1);
    let described = described(plan, &workload, records);
    let (settings, run) = (settings(plan, &described), run(plan, &workload));
    let mut predict = |costs: Option<RocksdbCosts>| {
        if let Some(costs) = costs {
            advisor.use_rocksdb_costs(costs);
        }
        advisor
            .predict_rocksdb_run(&described, &settings, &run)
            .map_err(|error| LabError::Request(format!("{name}: {error}")))
    };
    let mut rates = Vec::new();
    for costs in &calibrations {
        rates.push(predict(Some(costs.clone()))?.operations_per_s);
    }
    let predicted = predict(median_costs(&calibrations))?;
    let profile_reads_per_s = advisor
        .predictor()
        .predict(&isobath_model::OperatingPoint::random_reads(
            f64::from(plan.clients),
            1.0,
        ))
        .map_err(|error| LabError::Request(format!("the profile: {error}")))?
        .throughput_pages_per_s;
    let of_runs = |value: fn(&Measured) -> f64| median(runs.iter().map(value).collect());
    let measured_per_s = of_runs(|run| run.per_s);
    let least = rates.iter().copied().reduce(f64::min);
    Ok(RatesRow {
        workload: name.to_owned(),
        predicted_per_s: predicted.operations_per_s,
        predicted_per_s_range: least.zip(rates.iter().copied().reduce(f64::max)),
        limited_by: predicted.limited_by,
        measured_per_s,
        runs_per_s: runs.iter().map(|run| run.per_s).collect(),
        error_ratio: predicted.operations_per_s / measured_per_s.max(1e-9) - 1.0,
        predicted_reads_per_operation: predicted.page_reads_per_operation,
        measured_reads_per_operation: of_runs(|run| run.reads),
        predicted_cpu_us: predicted.cpu_us_per_operation,
        measured_cpu_us: of_runs(|run| run.cpu_us),
        predicted_written_bytes: predicted.write_amplification
            * described.writes()
            * described.record_bytes(),
        measured_written_bytes: of_runs(|run| run.written_bytes),
        drive_reads_per_s: runs
            .first()
            .and_then(|run| run.drive)
            .zip(runs.last().and_then(|run| run.drive))
            .map(|(first, last)| (first.0, last.1)),
        profile_reads_per_s,
        calibrations,
    })
}

/// Of an even number, the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => 0.5 * (values[middle - 1] + values[middle]),
    }
}

/// The median of each cost.
fn median_costs(parts: &[RocksdbCosts]) -> Option<RocksdbCosts> {
    let first = parts.first()?;
    let of = |cost: fn(&RocksdbCosts) -> f64| median(parts.iter().map(cost).collect());
    let blocks: Vec<f64> = parts.iter().filter_map(|part| part.block_us).collect();
    let drives: Vec<ThreadedIo> = parts.iter().filter_map(|part| part.drive).collect();
    let compactions: Vec<f64> = parts
        .iter()
        .filter_map(|part| part.compaction_page_us)
        .collect();
    let waiting: Vec<WaitingThreads> = parts.iter().filter_map(|part| part.waiting).collect();
    let of_drives = |rate: fn(&ThreadedIo) -> f64| median(drives.iter().map(rate).collect());
    Some(RocksdbCosts {
        lookup_us: of(|c| c.lookup_us),
        block_above_io_us: of(|c| c.block_above_io_us),
        block_us: (!blocks.is_empty()).then(|| median(blocks)),
        write_us: of(|c| c.write_us),
        rewritten_record_us: of(|c| c.rewritten_record_us),
        rewritten_byte_us: of(|c| c.rewritten_byte_us),
        scanned_record_us: of(|c| c.scanned_record_us),
        scan_ahead_us: of(|c| c.scan_ahead_us),
        write_byte_us: of(|c| c.write_byte_us),
        write_wait_us: of(|c| c.write_wait_us),
        synced: SyncedCosts {
            wake_us: of(|c| c.synced.wake_us),
            commit_us: of(|c| c.synced.commit_us),
        },
        interrupt_us: of(|c| c.interrupt_us),
        scattered_ratio: of(|c| c.scattered_ratio),
        drive: drives.first().map(|first| ThreadedIo {
            read_us: of_drives(|io| io.read_us),
            large_written_page_us: of_drives(|io| io.large_written_page_us),
            large_read_page_us: of_drives(|io| io.large_read_page_us),
            ..*first
        }),
        compaction_page_us: (!compactions.is_empty()).then(|| median(compactions)),
        waiting: waiting.first().map(|first| WaitingThreads {
            lookups_per_s: median(waiting.iter().map(|w| w.lookups_per_s).collect()),
            ..*first
        }),
        source: format!("{} parts of {}", parts.len(), first.source),
    })
}

/// How far apart the calibrations are in one cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The cost.
    pub what: &'static str,
    /// The least that was measured, µs.
    pub least_us: f64,
    /// The most.
    pub most_us: f64,
}

/// Of each cost that says much about a rate, how far apart the calibrations of these rows are.
#[must_use]
pub fn spreads(rows: &[RatesRow]) -> Vec<Spread> {
    let spread = |what, cost: fn(&RocksdbCosts) -> f64| {
        let all = rows
            .iter()
            .flat_map(|row| row.calibrations.iter().map(cost));
        Spread {
            what,
            least_us: all.clone().fold(f64::INFINITY, f64::min),
            most_us: all.fold(0.0, f64::max),
        }
    };
    vec![
        spread("a lookup", |c| c.lookup_us),
        spread("a block", |c| c.block_us.unwrap_or(0.0)),
        spread("a write", |c| c.write_us),
        spread("its wait for another", |c| c.write_wait_us),
        spread("a record rewritten", |c| c.rewritten_record_us),
        spread("a record scanned", |c| c.scanned_record_us),
        spread("a read by threads", |c| {
            c.drive.map_or(0.0, |io| io.read_us)
        }),
        spread("a page of large writes", |c| {
            c.drive.map_or(0.0, |io| io.large_written_page_us)
        }),
        spread("a page of a compaction", |c| {
            c.compaction_page_us.unwrap_or(0.0)
        }),
    ]
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
        latency_every: None,
        left_out: crate::bench::LeftOut::default(),
        virtual_ssd: None,
        region_bytes: None,
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
        components: false,
        seed: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(write_us: f64) -> RocksdbCosts {
        RocksdbCosts {
            write_us,
            block_us: Some(2.0 * write_us),
            ..RocksdbCosts::default()
        }
    }

    #[test]
    fn what_one_calibration_says_alone_does_not_count() {
        let of = |parts: &[f64]| {
            let parts: Vec<_> = parts.iter().map(|us| costs(*us)).collect();
            median_costs(&parts).map(|costs| (costs.write_us, costs.block_us))
        };
        assert_eq!(of(&[5.0, 900.0, 7.0]), Some((7.0, Some(14.0))));
        assert_eq!(of(&[5.0, 7.0]), Some((6.0, Some(12.0))));
        assert_eq!(of(&[]), None);
    }

    /// A tiny experiment, as a whole: calibrations before, between and after the runs, on the files' own directory.
    #[test]
    fn calibrations_and_runs_take_turns() {
        let directory = tempfile::TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let profile =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/profile.json");
        let profile = crate::drive_model::read_profile(&profile).unwrap();
        let plan = RatesPlan {
            path: directory.path().join("rates"),
            workloads: vec!["update-small".to_owned(), "lookup".to_owned()],
            data_bytes: 16 << 20,
            memory_bytes: MEMORY_BYTES_MIN,
            clients: 4,
            warm_up: Duration::from_millis(100),
            duration: Duration::from_millis(300),
            in_turn: Some(InTurn {
                runs: 2,
                operations: 5_000,
            }),
        };
        let rows = rates(&plan, &profile, None, &crate::Silent).unwrap();
        for row in &rows {
            assert_eq!((row.calibrations.len(), row.runs_per_s.len()), (3, 2));
            let (least, most) = row.predicted_per_s_range.unwrap();
            assert!(least > 0.0 && least <= most && row.measured_per_s > 0.0);
        }
        // What was measured behind one workload is what was measured before the next.
        assert_eq!(rows[0].calibrations[2], rows[1].calibrations[0]);
        // A wait is a difference, which may be none.
        assert!(spreads(&rows).iter().all(|s| s.least_us <= s.most_us));
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 0, "databases are removed");
    }

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
            in_turn: None,
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
