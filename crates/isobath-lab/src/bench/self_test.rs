//! The benchmark tested on itself: each pitfall is committed on purpose, and must be caught.
//!
//! The runs are real: Isobath on small simulated drives, updated until they are steady. A control campaign avoids every
//! pitfall; each fault then takes away one thing from it, and only it, and the verdicts are passed on what is left.

use std::time::Duration;

use super::campaign::{Campaign, Case, Outcome};
use super::catalogue::Workload;
use super::lookup::LookupPlan;
use super::record::{Record, evidence};
use super::verdict::{Evidence, Known, Pitfall, StateEvidence, Verdict, judge};
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
        seed: 1,
    }
}

/// The control campaign: three sizes, two amounts of over-provisioning, two kinds of drives.
fn control(longest: Duration) -> Vec<LookupPlan> {
    let drive = |profile, over_provisioning| SimulatedDrive {
        profile,
        capacity_bytes: CAPACITY,
        over_provisioning,
        state: DriveState::Preconditioned,
        wear_difference_max: None,
    };
    [
        (0.2, DriveProfile::Tlc, 0.2),
        (0.35, DriveProfile::Tlc, 0.3),
        (0.5, DriveProfile::Qlc, 0.3),
    ]
    .map(|(share, profile, spare)| plan(share, drive(profile, spare), longest))
    .into()
}

/// Commits each pitfall, and says which were caught. `longest` bounds each run of the control campaign.
///
/// # Errors
/// Those of the runs.
pub fn self_test(longest: Duration, monitor: &dyn Monitor) -> Result<Vec<Caught>, LabError> {
    let mut campaign = Campaign::in_memory();
    let mut ran = |plan: LookupPlan| -> Result<Record, LabError> {
        match campaign.run(
            &Case {
                plan,
                side: 0,
                round: 0,
                region: None,
                row: None,
                search: None,
            },
            monitor,
        )? {
            Outcome::Ran(record) | Outcome::Known(record) => Ok(*record),
        }
    };
    let plans = control(longest);
    let good = plans
        .iter()
        .cloned()
        .map(&mut ran)
        .collect::<Result<Vec<_>, _>>()?;
    // A run that ends long before it can be steady.
    let mut short = plans[0].clone();
    short.duration = Duration::from_millis(300);
    let short = ran(short)?;
    let control = judge(&evidence(&good));
    let caught = Pitfall::ALL.map(|pitfall| {
        let verdicts = judge(&committed(pitfall, &good, &short));
        let of = |verdicts: &[(Pitfall, Verdict)]| {
            let found = verdicts
                .iter()
                .find(|(p, _)| *p == pitfall)
                .map(|(_, v)| v.clone());
            found.unwrap_or_else(|| Verdict::Unknown("no verdict".to_owned()))
        };
        let others = verdicts.iter().zip(&control);
        let only = others
            .filter(|((p, _), _)| *p != pitfall)
            .all(|((_, now), (_, before))| now.is_violated() == before.is_violated());
        let (verdict, control) = (of(&verdicts), of(&control));
        Caught {
            pitfall,
            is_caught: verdict.is_violated() && !control.is_violated() && only,
            verdict,
            control,
        }
    });
    Ok(caught.into())
}

/// The control campaign's evidence with one pitfall committed.
fn committed(pitfall: Pitfall, good: &[Record], short: &Record) -> Evidence {
    let mut evidence = evidence(good);
    match pitfall {
        Pitfall::ShortRun => {
            let mut records = good.to_vec();
            records[0] = short.clone();
            return super::record::evidence(&records);
        }
        Pitfall::DeviceWrites => evidence.wa_d = Known::LeftOut,
        Pitfall::DriveState => {
            evidence.state = StateEvidence::Dirty(
                "the second run found the drive as the first had left it".to_owned(),
            );
        }
        Pitfall::DatasetSize => evidence.dataset_shares.truncate(1),
        Pitfall::Space => evidence.space = Known::LeftOut,
        Pitfall::OverProvisioning => {
            if let Known::Is(shares) = &mut evidence.over_provisioning {
                shares.truncate(1);
            }
        }
        Pitfall::DriveType => evidence.drives.truncate(1),
    }
    evidence
}
