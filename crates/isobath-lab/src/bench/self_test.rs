//! The benchmark tested on itself: each pitfall is committed on purpose, and must be caught.
//!
//! All runs are real: Isobath on small simulated drives, updated until they are steady. A control campaign avoids every pitfall. For
//! each pitfall there is a campaign that commits it and no other, by runs of its own, and the verdicts are passed on its records alone.

use std::time::Duration;

use super::campaign::{Campaign, Case, Outcome};
use super::catalogue::Workload;
use super::lookup::LookupPlan;
use super::record::{LeftOut, Record, evidence};
use super::verdict::{Pitfall, Verdict, judge};
use crate::engine::{
    Callers, DriveProfile, DriveState, EngineConfig, EngineKind, Schema, SimulatedDrive,
    SpaceConfig, Tuning,
};
use crate::{LabError, Monitor};

/// What became of one pitfall.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Caught {
    /// The pitfall that was committed.
    pub pitfall: Pitfall,
    /// The verdict on it where it was committed.
    pub verdict: Verdict,
    /// The verdict on it in the control campaign.
    pub control: Verdict,
    /// Whether the fault, and nothing else that the control avoids, was called violated.
    pub is_caught: bool,
}

/// Bytes that the engine may write to on the small drives.
const CAPACITY: u64 = 48 << 20;
/// Bytes of a segment of the small stores.
const SEGMENT: u32 = 256 << 10;

/// One small run: this share of the capacity is data.
fn plan(share: f64, drive: SimulatedDrive, longest: Duration) -> LookupPlan {
    let workload = Workload::named("update").unwrap_or_else(|_| Workload::lookup());
    LookupPlan {
        records: (CAPACITY as f64 * share) as u64 / workload.record_bytes(),
        workload,
        engine: EngineConfig {
            kind: EngineKind::Isobath,
            path: None,
            pool_bytes: 8 << 20,
            workers: Some(1),
            tasks_per_worker: 8,
            depth_per_worker: 16,
            threads: 1,
            callers: Callers::Tasks,
            space: SpaceConfig {
                log_bytes: Some(0),
                segment_bytes: Some(SEGMENT),
                ..SpaceConfig::default()
            },
            simulated: Some(drive),
            tuning: Tuning::default(),
            schema: Schema::default(),
        },
        latency_every: None,
        left_out: LeftOut::default(),
        virtual_ssd: None,
        region_bytes: None,
        in_pool: false,
        rate_per_s: None,
        warm_up: Duration::ZERO,
        duration: longest,
        load_only: false,
        keep: false,
        drive_depth: None,
        drive_duration: Duration::ZERO,
        sample_every: Duration::from_millis(50),
        until_steady: true,
        components: false,
        seed: 1,
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

fn plans(runs: Runs, longest: Duration) -> [LookupPlan; 3] {
    runs.map(|(share, profile, spare)| plan(share, drive(profile, spare), longest))
}

/// The campaign that commits a pitfall, and no other.
fn fault(pitfall: Pitfall, longest: Duration) -> [LookupPlan; 3] {
    let first = |change: fn(&mut LookupPlan)| {
        let mut plans = plans(CONTROL, longest);
        change(&mut plans[0]);
        plans
    };
    match pitfall {
        Pitfall::ShortRun => first(|plan| plan.duration = SHORT),
        Pitfall::DeviceWrites => first(|plan| plan.left_out.flash_writes = true),
        Pitfall::DriveState => first(|plan| {
            if let Some(drive) = &mut plan.engine.simulated {
                drive.state = DriveState::Used;
            }
        }),
        Pitfall::DatasetSize => plans(ONE_SIZE, longest),
        Pitfall::Space => first(|plan| plan.left_out.space = true),
        Pitfall::OverProvisioning => plans(ONE_AMOUNT, longest),
        Pitfall::DriveType => plans(ONE_KIND, longest),
    }
}

/// Runs plans, each once however often it is asked for.
struct Runner<'m> {
    campaign: Campaign,
    known: Vec<(String, Record)>,
    monitor: &'m dyn Monitor,
}

impl Runner<'_> {
    fn run(&mut self, plan: LookupPlan) -> Result<Record, LabError> {
        let name = format!("{plan:?}");
        if let Some((_, record)) = self.known.iter().find(|(known, _)| *known == name) {
            return Ok(record.clone());
        }
        let case = Case {
            plan,
            side: 0,
            round: 0,
            place: None,
            row: None,
            search: None,
        };
        let record = match self.campaign.run(&case, self.monitor)? {
            Outcome::Ran(record) | Outcome::Known(record) => *record,
        };
        self.known.push((name, record.clone()));
        Ok(record)
    }

    /// The verdicts on what the plans leave.
    fn verdicts(&mut self, plans: [LookupPlan; 3]) -> Result<Vec<(Pitfall, Verdict)>, LabError> {
        let records = plans.into_iter().map(|plan| self.run(plan));
        let records = records.collect::<Result<Vec<Record>, _>>()?;
        Ok(judge(&evidence(&records)))
    }
}

/// Commits each pitfall, and says which were caught. `longest` bounds each run.
///
/// # Errors
/// Those of the runs.
pub fn self_test(longest: Duration, monitor: &dyn Monitor) -> Result<Vec<Caught>, LabError> {
    let mut runner = Runner {
        campaign: Campaign::in_memory(),
        known: Vec::new(),
        monitor,
    };
    let control = runner.verdicts(plans(CONTROL, longest))?;
    let mut all = Vec::new();
    for (at, pitfall) in Pitfall::ALL.into_iter().enumerate() {
        let verdicts = runner.verdicts(fault(pitfall, longest))?;
        // Verdicts come in the order of the pitfalls.
        let others = verdicts.iter().zip(&control);
        let only = others
            .filter(|((other, _), _)| *other != pitfall)
            .all(|((_, now), (_, before))| now.is_violated() == before.is_violated());
        let (verdict, control) = (verdicts[at].1.clone(), control[at].1.clone());
        all.push(Caught {
            pitfall,
            is_caught: verdict.is_violated() && !control.is_violated() && only,
            verdict,
            control,
        });
    }
    Ok(all)
}
