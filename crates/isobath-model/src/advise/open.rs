//! What a profile alone, without a workload, says about opening a store.

use super::AdviseError;
use super::drive::useful_depth;
use super::isobath::{SEGMENT_BYTES, tasks_for};
use crate::drive::{DriveModel, ModelKind};
use crate::error::FitError;
use crate::point::OperatingPoint;
use crate::profile::DeviceProfile;

/// Settings that a store takes from its drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenSettings {
    /// I/Os in flight over all workers: the least that reach 95% of the drive's random reads.
    pub depth: u32,
    /// I/Os in flight per worker.
    pub depth_per_worker: u32,
    /// Tasks per worker: half as many again, so that some compute while the others wait.
    pub tasks_per_worker: u32,
    /// Bytes per segment.
    pub segment_bytes: u64,
}

/// From fine to coarse: a profile of few points still says something.
const KINDS: [ModelKind; 3] = [ModelKind::Queue, ModelKind::Mqssd, ModelKind::Pdam];

/// Settings for a store of `workers` workers on a profiled drive. Fits one model, without
/// cross-validation: a store is opened more often than a drive is judged.
pub fn open_settings(profile: &DeviceProfile, workers: u32) -> Result<OpenSettings, AdviseError> {
    let samples = profile.fitted_samples();
    let reads: Vec<_> = samples
        .iter()
        .filter(|s| s.point.read_share >= 1.0)
        .copied()
        .collect();
    let mut lacking = FitError::NoPurePoints {
        model: ModelKind::Pdam,
    };
    for kind in KINDS {
        match DriveModel::fit(kind, &reads) {
            Ok(model) => {
                let cost = |k: u32| {
                    let point = OperatingPoint::random_reads(f64::from(k), 1.0);
                    Ok(model.page_cost_us(&point)?)
                };
                let depth = useful_depth(profile.deepest(), cost)?;
                let depth_per_worker = depth.div_ceil(workers.max(1));
                return Ok(OpenSettings {
                    depth,
                    depth_per_worker,
                    tasks_per_worker: tasks_for(depth_per_worker),
                    segment_bytes: SEGMENT_BYTES,
                });
            }
            Err(error) => lacking = error,
        }
    }
    Err(AdviseError::Profile(lacking))
}
