//! The benchmark tested on itself: each pitfall is committed on purpose, and must be caught.
//!
//! All runs are real: Isobath on small simulated drives, updated until they are steady. A control
//! campaign avoids every pitfall. For each fault there is a campaign that commits it and nothing
//! else, by runs of its own, and the verdicts are passed on its records alone. Seven faults are the
//! pitfalls as they are; the others are campaigns that only look as if they avoided them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::campaign::{Campaign, Case, Outcome};
use super::catalogue::Workload;
use super::cost::needs;
use super::evidence::verdicts;
use super::plan::Plan;
use super::record::RunRecord;
use super::verdict::{Pitfall, Verdict};
use crate::engine::{
    DriveProfile, DriveState, EngineConfig, EngineKind, IsolationLevel, SimulatedDrive, SpaceConfig,
};
use crate::{LabError, Monitor, free_space, machine};

/// The result of one fault.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Caught {
    /// The fault.
    pub fault: &'static str,
    /// The pitfall that was committed; the first, where it commits several.
    pub pitfall: Pitfall,
    /// The verdict on it where it was committed.
    pub verdict: Verdict,
    /// The verdict on it in the control campaign.
    pub control: Verdict,
    /// Whether what the fault commits, and nothing else that the control avoids, was called
    /// violated.
    pub is_caught: bool,
}

/// Bytes that the engine may write to on the small drives.
const CAPACITY: u64 = 48 << 20;
/// Bytes of a segment of the small stores.
const SEGMENT: u32 = 256 << 10;

/// One small run: this share of the capacity is data.
fn plan(share: f64, drive: SimulatedDrive, longest: Duration) -> Plan {
    let workload = Workload::named("update").unwrap_or_else(|_| Workload::lookup());
    let engine = EngineConfig {
        workers: Some(1),
        tasks_per_worker: 8,
        depth_per_worker: 16,
        space: SpaceConfig {
            log_bytes: Some(0),
            segment_bytes: Some(SEGMENT),
            ..SpaceConfig::default()
        },
        simulated: Some(drive),
        ..EngineConfig::new(EngineKind::Isobath, POOL)
    };
    let records = (CAPACITY as f64 * share) as u64 / workload.record_bytes();
    Plan {
        sample_every: Duration::from_millis(50),
        until_steady: true,
        ..Plan::new(engine, workload, records, longest)
    }
}

/// A drive of the control campaign.
fn drive(profile: DriveProfile, over_provisioning: f64) -> SimulatedDrive {
    SimulatedDrive {
        profile,
        capacity_bytes: CAPACITY,
        over_provisioning,
        state: DriveState::Preconditioned,
        wear_difference_max: None,
    }
}

const TLC: DriveProfile = DriveProfile::Tlc;
const QLC: DriveProfile = DriveProfile::Qlc;
/// Shares of a drive that the data take, its kind, and its over-provisioning: three runs each.
type Runs = [(f64, DriveProfile, f64); 3];
/// The control campaign: three sizes, two amounts of over-provisioning, two kinds of drives.
const CONTROL: Runs = [(0.2, TLC, 0.2), (0.35, TLC, 0.3), (0.5, QLC, 0.3)];
const ONE_SIZE: Runs = [(0.2, TLC, 0.2), (0.2, TLC, 0.3), (0.2, QLC, 0.3)];
const ONE_AMOUNT: Runs = [(0.2, TLC, 0.2), (0.35, TLC, 0.2), (0.5, QLC, 0.2)];
const ONE_KIND: Runs = [(0.2, TLC, 0.2), (0.35, TLC, 0.3), (0.5, TLC, 0.3)];
/// How long a run measures that is too short to be steady.
const SHORT: Duration = Duration::from_millis(300);

fn plans(runs: Runs, longest: Duration) -> [Plan; 3] {
    runs.map(|(share, profile, spare)| plan(share, drive(profile, spare), longest))
}

/// Operations per second that are too few to say anything.
const FEW: f64 = 1.0;
/// How long they are offered: long enough for as many samples as the rule of steadiness asks for.
const FEW_TIME: Duration = Duration::from_millis(1600);

/// A campaign that commits some pitfalls, and no other.
type Fault = (&'static str, &'static [Pitfall], [Plan; 3]);

/// What runs of one size, amount and kind commit if they stand alone.
const ALONE: &[Pitfall] = &[
    Pitfall::DatasetSize,
    Pitfall::OverProvisioning,
    Pitfall::DriveType,
];

fn faults(longest: Duration) -> Vec<Fault> {
    let fault = |name, commits, plans| -> Fault { (name, commits, plans) };
    let control = |at: usize, change: fn(&mut Plan)| {
        let mut plans = plans(CONTROL, longest);
        change(&mut plans[at]);
        plans
    };
    let mut close = plans(ONE_AMOUNT, longest);
    if let Some(drive) = &mut close[0].engine.simulated {
        drive.over_provisioning += 1e-7;
    }
    let mut faults = vec![
        fault(
            "a run that ends at once",
            &[Pitfall::ShortRun],
            control(0, |plan| plan.duration = SHORT),
        ),
        fault(
            "flash writes that are not read",
            &[Pitfall::DeviceWrites],
            control(0, |plan| plan.left_out.flash_writes = true),
        ),
        fault(
            "a drive that others have used",
            &[Pitfall::DriveState],
            control(0, |plan| {
                if let Some(drive) = &mut plan.engine.simulated {
                    drive.state = DriveState::Used;
                }
            }),
        ),
        fault(
            ONE_SIZE_NAME,
            &[Pitfall::DatasetSize],
            plans(ONE_SIZE, longest),
        ),
        fault(
            "space that is not read",
            &[Pitfall::Space],
            control(0, |plan| plan.left_out.space = true),
        ),
        fault(
            "one amount of over-provisioning",
            &[Pitfall::OverProvisioning],
            plans(ONE_AMOUNT, longest),
        ),
        fault(
            "one kind of drive",
            &[Pitfall::DriveType],
            plans(ONE_KIND, longest),
        ),
        fault(
            "two amounts that are one",
            &[Pitfall::OverProvisioning],
            close,
        ),
        fault(
            "sizes pooled over two engines",
            ALONE,
            control(2, |plan| {
                plan.engine.tuning.isolation = IsolationLevel::Least
            }),
        ),
        fault(
            "sizes pooled over two pools",
            ALONE,
            control(2, |plan| plan.engine.pool_bytes += POOL / 2),
        ),
        fault(
            "sizes pooled over two durabilities",
            ALONE,
            control(0, |plan| {
                plan.engine.space.log_bytes = Some(LOG);
                plan.engine.space.buffered_ms = Some(u32::MAX);
            }),
        ),
        fault(
            "a handful of operations",
            &[Pitfall::ShortRun],
            plans(CONTROL, FEW_TIME).map(|mut plan| {
                plan.workload = Workload::lookup();
                (plan.engine.simulated, plan.rate_per_s) = (None, Some(FEW));
                plan.until_steady = false;
                plan
            }),
        ),
    ];
    if let Some(path) = file_in_memory() {
        let mut plans = plans(CONTROL, longest);
        (plans[2].engine.simulated, plans[2].engine.path) = (None, Some(path));
        let commits = &[Pitfall::DatasetSize, Pitfall::DriveType];
        faults.push(fault("files in memory for a drive", commits, plans));
    }
    faults
}

const ONE_SIZE_NAME: &str = "one size of data";
/// Bytes of the pool, and of the log if there is one.
const POOL: u64 = 8 << 20;
const LOG: u64 = 4 << 20;

/// A path on a file system in memory that has room for a run, if there is one.
fn file_in_memory() -> Option<PathBuf> {
    let path = Path::new("/dev/shm").join(format!("isobath-self-test-{}.iso", std::process::id()));
    let is_memory = machine::in_memory(&path).is_some();
    let room = free_space(&path).ok()?.available_bytes;
    (is_memory && room > 2 * CAPACITY + (256 << 20)).then_some(path)
}

/// Runs plans, each once however often it is asked for.
struct Runner<'m> {
    campaign: Campaign,
    known: Vec<(String, RunRecord)>,
    monitor: &'m dyn Monitor,
}

impl Runner<'_> {
    fn run(&mut self, plan: Plan) -> Result<RunRecord, LabError> {
        let name = format!("{plan:?}");
        if let Some((_, record)) = self.known.iter().find(|(known, _)| *known == name) {
            return Ok(record.clone());
        }
        let case = Case::new(plan, 0, 0);
        let record = match self.campaign.run(&case, self.monitor)? {
            Outcome::Ran(record) | Outcome::Known(record) => *record,
        };
        self.known.push((name, record.clone()));
        Ok(record)
    }

    fn run_all(&mut self, plans: [Plan; 3]) -> Result<Vec<RunRecord>, LabError> {
        plans.into_iter().map(|plan| self.run(plan)).collect()
    }
}

/// Commits each fault, and says which were caught. `longest` bounds each run.
///
/// # Errors
/// Those of the runs.
pub fn self_test(longest: Duration, monitor: &dyn Monitor) -> Result<Vec<Caught>, LabError> {
    let mut runner = Runner {
        campaign: Campaign::in_memory(),
        known: Vec::new(),
        monitor,
    };
    let control_records = runner.run_all(plans(CONTROL, longest))?;
    let control = verdicts(&control_records);
    let mut all = Vec::new();
    for (name, commits, plans) in faults(longest) {
        let records = runner.run_all(plans)?;
        let found = verdicts(&records);
        // Verdicts come in the order of the pitfalls.
        let mut both = found.iter().zip(&control);
        let is_caught = both.all(|((pitfall, now), (_, before))| {
            let is_committed = commits.contains(pitfall);
            now.is_violated() == (is_committed || before.is_violated())
                && !(is_committed && before.is_violated())
        });
        let of = |verdicts: &[(Pitfall, Verdict)]| {
            let own = verdicts
                .iter()
                .find(|(pitfall, _)| commits.first() == Some(pitfall));
            own.cloned()
        };
        let (Some((pitfall, verdict)), Some((_, before))) = (of(&found), of(&control)) else {
            continue;
        };
        if name == ONE_SIZE_NAME {
            all.push(cost_caught(&records, &control_records, &verdict, &before));
        }
        all.push(Caught {
            fault: name,
            pitfall,
            is_caught,
            verdict,
            control: before,
        });
    }
    Ok(all)
}

/// A number of drives must follow from the control campaign, and none from one that commits a
/// pitfall.
fn cost_caught(
    records: &[RunRecord],
    control_records: &[RunRecord],
    verdict: &Verdict,
    control: &Verdict,
) -> Caught {
    let answers = |records: &[RunRecord]| {
        let needs = needs(records, 1e12, 1e5);
        needs.iter().any(|need| need.drives.is_some())
    };
    Caught {
        fault: "drives counted from one size of data",
        pitfall: Pitfall::DatasetSize,
        is_caught: !answers(records) && answers(control_records),
        verdict: verdict.clone(),
        control: control.clone(),
    }
}
