//! From a device profile and a workload to settings, predictions and reasons.
//!
//! Everything here is a model: the drive's by its measured points, the trees' by their structure,
//! and both trees' CPU by a few constants of Isobath. Predictions are for steady state and carry an
//! interval from the drive model's cross-validated error alone.

mod cache;
mod drive;
mod isobath;
mod open;
mod options_file;
mod rocksdb;
mod scan_reads;
mod synced;
mod write_back;

use serde::Serialize;

pub use isobath::{CleaningPolicy, IsobathCosts, IsobathSettings};
pub use open::{OpenSettings, open_settings};
pub use rocksdb::RocksdbSettings;
pub use synced::SyncedCosts;

use crate::error::FitError;
use crate::point::{OperatingPoint, Operation};
use crate::profile::DeviceProfile;
use crate::select::{HeldOutError, Predictor};
use crate::workload::{Order, Workload};
use drive::{CHUNK_PAGES, DriveView};

/// Why there is no advice.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AdviseError {
    /// The profile does not determine a model, or lacks reads or writes.
    #[error("the profile is not enough for advice: {0}")]
    Profile(#[from] FitError),
    /// The data do not fit the drive.
    #[error(
        "field drive.capacity_bytes: {capacity_bytes} is too little for {needed_bytes:.0} bytes of pages; at least {min_bytes:.0} are needed"
    )]
    DoesNotFit {
        /// Bytes of pages.
        needed_bytes: f64,
        /// Bytes that the store may fill.
        capacity_bytes: f64,
        /// Least capacity.
        min_bytes: f64,
    },
}

/// What an engine is predicted to do with its settings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    /// Operations per second at most.
    pub operations_per_s: f64,
    /// Lower and upper end of the 90% interval of the drive's part, operations/s. The upper end is
    /// no more than `drive_limit_operations_per_s`.
    pub operations_per_s_range: (f64, f64),
    /// The rate at which the drive would be read as fast as at the fastest points of the profile,
    /// in bytes and in I/Os per second, and written as fast in bytes; `None` if nothing goes to the
    /// drive.
    pub drive_limit_operations_per_s: Option<f64>,
    /// What limits the rate: `drive`, `CPU`, `clients`, `compaction` or `log flushes`.
    pub limited_by: &'static str,
    /// Mean latency of a point read at that rate, µs: with as many operations in flight as there
    /// are clients. `None` if the workload has no point reads.
    pub read_latency_us_mean: Option<f64>,
    /// Its 99th percentile, µs, no less than the mean; `None` if the profile has no latencies, or
    /// the workload no point reads.
    pub read_latency_us_p99: Option<f64>,
    /// CPU time per operation, µs on one core.
    pub cpu_us_per_operation: f64,
    /// Device reads per operation, pages.
    pub page_reads_per_operation: f64,
    /// I/Os that these take: neighbouring pages are read with one; `None` if that is not predicted.
    pub read_ios_per_operation: Option<f64>,
    /// Bytes written to the drive per byte of records written (WA-A).
    pub write_amplification: f64,
    /// Bytes written to the drive per second, at the target rate if there is one, else at the
    /// greatest.
    pub drive_writes_bytes_per_s: f64,
    /// Years until the drive's endurance is used up at that rate; `None` without
    /// `drive.endurance_bytes` or writes.
    pub endurance_years: Option<f64>,
    /// Bytes on the drive per byte of records.
    pub space_amplification: f64,
    /// Says which of the drive's rates behind it lie outside of what was measured; `None` inside.
    pub extrapolated: Option<String>,
}

/// Why a setting has its value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reason {
    /// The setting.
    pub setting: &'static str,
    /// Its value, as text.
    pub value: String,
    /// Why.
    pub because: String,
}

/// Settings of one engine with their reasons and what they are predicted to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EngineAdvice<S> {
    /// The settings.
    pub settings: S,
    /// What they are predicted to do.
    pub predicted: Predicted,
    /// Why, setting by setting.
    pub reasons: Vec<Reason>,
}

/// Which kind of tree fits better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// A B-tree with out-of-place page writes: Isobath.
    BTree,
    /// An LSM tree: RocksDB.
    Lsm,
}

/// What the drive can do, whatever the engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DriveLimits {
    /// The model that predicts, by name.
    pub model: String,
    /// Its cross-validated error.
    pub held_out: Option<HeldOutError>,
    /// Random 4 KiB reads per second at the recommended depth.
    pub page_reads_per_s: f64,
    /// Random 4 KiB writes per second at the recommended depth.
    pub page_writes_per_s: f64,
    /// The recommended depth, I/Os in flight over all workers.
    pub depth: u32,
}

/// A constant behind the predictions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Constant {
    /// `Isobath`, or `Both`.
    pub engine: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Its value, µs of CPU.
    pub us: f64,
    /// Whether it was measured; a goal of the design or an assumption otherwise.
    pub is_measured: bool,
    /// Where it comes from.
    pub source: String,
}

/// The advisor's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The drive.
    pub drive: DriveLimits,
    /// Isobath.
    pub isobath: EngineAdvice<IsobathSettings>,
    /// RocksDB.
    pub rocksdb: EngineAdvice<RocksdbSettings>,
    /// Which of the two fits better.
    pub structure: Structure,
    /// Why.
    pub structure_because: String,
    /// The constants of the engines behind the predictions, and where each comes from.
    pub constants: Vec<Constant>,
    /// What the predictions take for granted that the workload does not say, or says.
    pub assumptions: Vec<String>,
    /// What to know before trusting the numbers.
    pub warnings: Vec<String>,
}

impl Advice {
    /// The RocksDB settings as the text of a RocksDB OPTIONS file.
    pub fn rocksdb_options_file(&self) -> String {
        options_file::render(&self.rocksdb.settings)
    }
}

/// Recommends settings for a workload on a drive. To ask about several workloads, keep an
/// [`Advisor`].
pub fn advise(profile: &DeviceProfile, workload: &Workload) -> Result<Advice, AdviseError> {
    Advisor::new(profile)?.advise(workload)
}

/// A drive whose models are fitted and compared, ready for any number of workloads.
pub struct Advisor<'a> {
    drive: DriveView<'a>,
    depth: u32,
    costs: IsobathCosts,
}

impl std::fmt::Debug for Advisor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Advisor").finish_non_exhaustive()
    }
}

impl<'a> Advisor<'a> {
    /// Fits and cross-validates every model on the profile (about a second for twenty points) and
    /// keeps the best.
    pub fn new(profile: &'a DeviceProfile) -> Result<Self, AdviseError> {
        let drive = DriveView::new(profile)?;
        let depth = drive.useful_depth()?;
        Ok(Self {
            drive,
            depth,
            costs: IsobathCosts::default(),
        })
    }

    /// Uses Isobath's CPU costs as they were measured on this machine.
    #[must_use]
    pub fn with_costs(mut self, costs: IsobathCosts) -> Self {
        self.costs = costs;
        self
    }

    /// The model behind the advice.
    pub fn predictor(&self) -> &Predictor {
        &self.drive.predictor
    }

    /// Recommends settings for one workload.
    pub fn advise(&self, workload: &Workload) -> Result<Advice, AdviseError> {
        let drive = &self.drive;
        let isobath = isobath::advise(drive, workload, self.depth, &self.costs)?;
        let rocksdb = rocksdb::advise(drive, workload, &self.costs)?;
        let (structure, structure_because) =
            compare(workload, &isobath.predicted, &rocksdb.predicted);
        let mut warnings = drive.warnings();
        warnings.extend(isobath::memory_warning(workload, &isobath.settings));
        warnings.extend(rocksdb::memory_warning(workload, &rocksdb.settings));
        for (engine, predicted) in [
            ("Isobath", &isobath.predicted),
            ("RocksDB", &rocksdb.predicted),
        ] {
            warnings.extend(missed_targets(engine, workload, predicted));
            let caution = predicted.extrapolated.as_ref();
            warnings.extend(caution.map(|c| format!("{engine}'s rates: {c}.")));
        }
        let write_us =
            drive.page_cost_us(&OperatingPoint::random_writes(f64::from(self.depth), 1.0))?;
        let limits = DriveLimits {
            model: drive.predictor.model().kind().to_string(),
            held_out: drive.predictor.held_out(),
            page_reads_per_s: 1e6 / drive.page_read_us(self.depth)?,
            page_writes_per_s: 1e6 / write_us,
            depth: self.depth,
        };
        Ok(Advice {
            drive: limits,
            isobath,
            rocksdb,
            structure,
            structure_because,
            constants: [vec![drive.io_constant()], self.costs.constants()].concat(),
            assumptions: assumptions(workload),
            warnings,
        })
    }
}

/// What is taken for granted of RocksDB's CPU, and by scans of how records lie on the drive.
fn assumptions(workload: &Workload) -> Vec<String> {
    let mut all = vec![SAME_CPU.to_owned()];
    if workload.scans <= 0.0 {
        return all;
    }
    let because = match (workload.order, workload.writes() > 0.0) {
        (Some(_), _) => "as data.order says",
        (None, true) => "since the workload writes; data.order = \"loaded\" says otherwise",
        (None, false) => "since nothing is written; data.order = \"rewritten\" says otherwise",
    };
    let assumed = match workload.order_on_drive() {
        Order::Loaded => {
            "leaves lie in the order of their keys, as a sorted load leaves them: neighbours are read with one I/O"
        }
        Order::Rewritten => {
            "leaves lie in no order, as random writes leave them: each is read with an I/O of its own, but for some that were written together"
        }
    };
    all.push(format!("Isobath's scans: {assumed} ({because})."));
    all
}

const SAME_CPU: &str = "RocksDB: its CPU costs are those of Isobath, so that its rates are what an LSM tree can reach on this drive; \
    `isobath bench compare` measures RocksDB itself.";

fn missed_targets(engine: &str, workload: &Workload, predicted: &Predicted) -> Vec<String> {
    let mut missed = Vec::new();
    if let Some(target) = workload.target_operations_per_s
        && predicted.operations_per_s < target
    {
        missed.push(format!(
            "{engine} is predicted to reach {:.0} operations/s, less than the target of {target:.0}; {} is the limit.",
            predicted.operations_per_s, predicted.limited_by
        ));
    }
    if let (Some(target), Some(p99)) = (workload.target_read_p99_us, predicted.read_latency_us_p99)
        && p99 > target
    {
        missed.push(format!("{engine}'s reads are predicted at a p99 of {p99:.0} µs, above the target of {target:.0}."));
    }
    if let Some(years) = predicted.endurance_years
        && years < workload.lifetime_years
    {
        missed.push(format!(
            "{engine} would use up the drive's endurance in {}, before the {:.0} years that it must last.",
            duration(years),
            workload.lifetime_years
        ));
    }
    missed
}

/// Years in words; days where years would round to nothing.
fn duration(years: f64) -> String {
    if years < 1.0 {
        format!("{:.0} days", years * 365.25)
    } else {
        format!("{years:.1} years")
    }
}

/// B-tree or LSM tree? One that misses the target or wears the drive out loses to one that does
/// not; among equals the faster wins if it is faster by more than [`CLEARLY_FASTER`], else the one
/// that writes less flash.
fn compare(workload: &Workload, btree: &Predicted, lsm: &Predicted) -> (Structure, String) {
    let slower = btree.operations_per_s.min(lsm.operations_per_s);
    let sound = |p: &Predicted| {
        let (reaches, share) = match workload.target_operations_per_s {
            Some(target) => (p.operations_per_s >= target, 1.0),
            // Without a target both wear the drive at the rate of the slower one.
            None => (true, slower / p.operations_per_s),
        };
        let lasts = |years: f64| years >= workload.lifetime_years * share;
        reaches && p.endurance_years.is_none_or(lasts)
    };
    let numbers = format!(
        "B-tree {:.0} operations/s and write amplification {:.1}, LSM tree {:.0} and {:.1}",
        btree.operations_per_s,
        btree.write_amplification,
        lsm.operations_per_s,
        lsm.write_amplification
    );
    let ratio = btree.operations_per_s / lsm.operations_per_s;
    let (structure, why) = match (sound(btree), sound(lsm)) {
        (true, false) => (
            Structure::BTree,
            "only the B-tree meets target and lifetime",
        ),
        (false, true) => (
            Structure::Lsm,
            "only the LSM tree meets target and lifetime",
        ),
        _ if ratio > CLEARLY_FASTER => {
            (Structure::BTree, "the B-tree is clearly faster on this mix")
        }
        _ if ratio < 1.0 / CLEARLY_FASTER => {
            (Structure::Lsm, "the LSM tree is clearly faster on this mix")
        }
        _ if workload.writes() <= 0.0 => (
            Structure::BTree,
            "both are about equally fast and nothing is written, so that an LSM tree saves nothing",
        ),
        _ if btree.drive_writes_bytes_per_s <= lsm.drive_writes_bytes_per_s => (
            Structure::BTree,
            "both are about equally fast and the B-tree writes less flash",
        ),
        _ => (
            Structure::Lsm,
            "both are about equally fast and the LSM tree writes less flash",
        ),
    };
    (structure, format!("{why} ({numbers}, predicted)"))
}

const CLEARLY_FASTER: f64 = 1.15;

/// Rates of one engine on one workload, before they become a [`Predicted`].
struct Demand {
    /// Drive time per operation, µs, all I/Os overlapped.
    drive_us: f64,
    /// CPU time per operation, µs, one core.
    cpu_us: f64,
    /// Time per operation that nothing overlaps, µs, and what it is.
    serial_us: f64,
    serial: &'static str,
    /// Latency of one operation with one client, µs.
    alone_us: f64,
    /// Latency of one point read with one client, µs.
    point_read_alone_us: f64,
    page_reads: f64,
    read_ios: Option<f64>,
    /// Device reads of one point read, one after another.
    point_read_accesses: f64,
    point_read_cpu_us: f64,
    /// The largest I/O, pages, and how many reads the engine would have in flight if the profile
    /// went so far.
    largest_io_pages: f64,
    deepest: u32,
    /// Random reads, whatever their size.
    reads: f64,
    /// Pages that move, those of cleaning and compaction included.
    pages_read: f64,
    pages_written: f64,
    written_bytes: f64,
    space_amplification: f64,
}

const SECONDS_PER_YEAR: f64 = 365.25 * 86_400.0;
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// From so much below a rate to so much above it, but to no more than `most`.
fn range(per_s: f64, spread: f64, most: Option<f64>) -> (f64, f64) {
    let high = most.map_or(per_s * spread, |most| (per_s * spread).min(most));
    (per_s / spread, high.max(per_s))
}

/// Clients that are at the cores at such a rate, if they ask for no I/O: those that are served.
fn at_cores(workload: &Workload, predicted: &Predicted) -> f64 {
    let busy = predicted.operations_per_s * predicted.cpu_us_per_operation / 1e6;
    busy.min(f64::from(workload.core_count))
}

/// Turns demands into rates. `read_depth` is the concurrency at which the drive is used.
fn predict(
    drive: &DriveView<'_>,
    workload: &Workload,
    demand: &Demand,
    read_depth: u32,
) -> Result<Predicted, AdviseError> {
    let limits = [
        ("drive", demand.drive_us),
        ("CPU", demand.cpu_us / f64::from(workload.core_count)),
        (demand.serial, demand.serial_us),
        ("clients", demand.alone_us / f64::from(workload.clients)),
    ];
    let (mut limited_by, mut slowest_us) = ("CPU", 0.0);
    for (name, us) in limits {
        if us > slowest_us {
            (limited_by, slowest_us) = (name, us);
        }
    }
    let operations_per_s = 1e6 / slowest_us.max(1e-3);
    // Rates are taken from the nearest point that was measured; how sure they are, from the
    // workload's own.
    let chunk_pages = match demand.pages_written > 0.0 {
        true => CHUNK_PAGES,
        false => 1.0,
    };
    let interval = drive.predictor.predict(&OperatingPoint::random_reads(
        f64::from(demand.deepest.max(read_depth)),
        demand.largest_io_pages.max(chunk_pages),
    ))?;
    let spread = interval.high_pages_per_s / interval.throughput_pages_per_s;
    let read_us = demand.pages_read * drive.min_page_us(Operation::Read);
    let fastest_us = read_us.max(demand.reads * drive.min_read_us())
        + demand.pages_written * drive.min_page_us(Operation::Write);
    let max_per_s = (fastest_us > 0.0).then(|| 1e6 / fastest_us);
    let written_per_s = workload
        .target_operations_per_s
        .unwrap_or(f64::INFINITY)
        .min(operations_per_s);
    let drive_writes_bytes_per_s = written_per_s * demand.written_bytes;
    // Little's law: as many operations are in flight as there are clients, so that an operation
    // takes clients / rate. Reads take their share of it by what they take alone.
    let crowding = f64::from(workload.clients) / operations_per_s * 1e6 / demand.alone_us.max(1e-3);
    // Where commits wait for each other in the log, those that read do not: clients queue there to
    // write.
    let crowding = match limited_by == "log flushes" {
        true => 1.0,
        false => crowding.max(1.0),
    };
    let latency = demand.point_read_alone_us * crowding;
    let cpu_us = demand.point_read_cpu_us;
    let p99_us = |ratio: f64| match demand.point_read_accesses {
        // Fewer than one read in a hundred at the drive: the 99th percentile is a hit, which waits
        // where the cores are what all wait for.
        misses if misses < 0.01 && limited_by == "CPU" => cpu_us * crowding,
        misses if misses < 0.01 => cpu_us,
        // One that misses takes the CPU that all take, and the drive's time of all.
        misses => {
            let drive_us = (demand.point_read_alone_us - cpu_us).max(0.0) / misses.min(1.0);
            match limited_by {
                // All wait for the cores alike; the drive takes of this one what it takes of one
                // that is alone.
                "CPU" => (crowding - 1.0) * demand.point_read_alone_us + cpu_us + drive_us * ratio,
                _ => (cpu_us + drive_us) * crowding * ratio,
            }
        }
    };
    let user_bytes = workload.writes() * workload.record_bytes();
    let reads_points = workload.point_reads > 0.0;
    // Few reads that take long may lift the mean above what 99 of 100 take. What a target is judged
    // by is never below the mean.
    let p99_us = |ratio: f64| p99_us(ratio).max(latency);
    Ok(Predicted {
        operations_per_s,
        operations_per_s_range: range(operations_per_s, spread, max_per_s),
        drive_limit_operations_per_s: max_per_s,
        limited_by,
        read_latency_us_mean: reads_points.then_some(latency),
        read_latency_us_p99: drive
            .read_p99_ratio(read_depth)
            .filter(|_| reads_points)
            .map(p99_us),
        cpu_us_per_operation: demand.cpu_us,
        page_reads_per_operation: demand.page_reads,
        read_ios_per_operation: demand.read_ios,
        write_amplification: if user_bytes > 0.0 {
            demand.written_bytes / user_bytes
        } else {
            0.0
        },
        drive_writes_bytes_per_s,
        endurance_years: workload
            .endurance_bytes
            .filter(|_| drive_writes_bytes_per_s > 0.0)
            .map(|bytes| bytes / drive_writes_bytes_per_s / SECONDS_PER_YEAR),
        space_amplification: demand.space_amplification,
        extrapolated: interval.caution(),
    })
}
