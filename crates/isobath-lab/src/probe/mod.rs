//! Probing a drive: a plan of raw I/O points that ends in a device profile (paper 000, section 3.3,
//! with O_DIRECT).
//!
//! Points are measured in several passes, each in a random order of its own, between sentinels: one
//! fixed point that shows whether the drive is still the same. If the sentinels around a repeat
//! differ by more than 10%, or others used the drive or the CPU during it, it is thrown away and
//! done again in a later pass; it is never rescaled. The profile is written after every group of
//! points, whole or not at all, so an interrupted probe leaves what it has and can go on from
//! there. A test file loses its name as soon as it is open: nothing stays behind, however the
//! process ends.

mod measure;
mod regimes;
mod run;
mod system;
mod target;
mod visits;

use std::path::{Path, PathBuf};
use std::time::Duration;

use isobath_model::plan::{default_plan, paper_plan, quick_plan, seeded_plan};
use isobath_model::profile::{DeviceProfile, Levels, PlanNote};
use isobath_model::{OperatingPoint, PAGE_BYTES};
use serde::Serialize;

use crate::{LabError, Monitor};
pub(crate) use run::flush_us;
pub(crate) use target::Opened;
pub use target::{Intent, intent};
use visits::{Enough, Visits};

/// Which points are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// Twenty points, under a minute.
    Quick,
    /// Sixty points, some minutes.
    Default,
    /// The grid of section 3.3.
    Paper,
    /// Points drawn from a seed: what models are judged on.
    Seeded(usize),
}

impl Grid {
    fn name(self) -> &'static str {
        match self {
            Grid::Quick => "quick",
            Grid::Default => "default",
            Grid::Paper => "paper",
            Grid::Seeded(_) => "seeded",
        }
    }
}

/// The plan of a probe.
#[derive(Debug, Clone)]
pub struct ProbePlan {
    /// A directory or new file (a test file is made), an existing file (only read), or a block
    /// device.
    pub path: PathBuf,
    /// The path of the profile.
    pub output: PathBuf,
    /// Which points.
    pub grid: Grid,
    /// Bytes that offsets are drawn from.
    pub bytes: u64,
    /// Deepest queue tried, 32 at least.
    pub concurrency_max: u32,
    /// Half width of the 95% confidence interval of a point's mean that repeats aim at, as a share
    /// of it.
    pub confidence: f64,
    /// Least repeats of a point.
    pub repeats_min: u32,
    /// Most repeats of a point.
    pub repeats_max: u32,
    /// How long one repeat measures.
    pub slice: Duration,
    /// Points between two sentinels.
    pub group: usize,
    /// How many repeats of a point may be thrown away because its sentinels differ or others
    /// disturbed it.
    pub reruns_max: u32,
    /// After this time only points that have no repeat yet are measured.
    pub rerun_until: Duration,
    /// Seed of order, offsets and drawn points.
    pub seed: u64,
    /// Write twice the range at random first, so that writes are measured in steady state.
    pub precondition: bool,
    /// Overwrite a block device that is not empty.
    pub destroy: bool,
    /// Go on with the profile at `output`.
    pub resume: bool,
    /// Levels of the sentinels at which the drive is to be measured: those of an earlier profile
    /// ([`DeviceProfile::levels`]) that this one is to be compared with. `None`: wherever most
    /// points lie.
    pub levels: Levels,
}

/// An estimate of a probe, reported before it does anything.
#[derive(Debug, Clone, Serialize)]
pub struct Estimate {
    /// Points still to be measured.
    pub points: usize,
    /// The effect on the path, as a sentence.
    pub action: String,
    /// Bytes of the file or range.
    pub bytes: u64,
    /// Bytes that preparing writes; measured writes come on top, as many as the drive takes in
    /// `measuring_writes_s`.
    pub prepare_writes_bytes: u64,
    /// Seconds of measured writes at least.
    pub measuring_writes_s: f64,
    /// Seconds at least, on a drive of 2 GB/s that is quiet.
    pub seconds_min: f64,
    /// Seconds at most, on a drive of 500 MB/s where every point takes all repeats.
    pub seconds_max: f64,
}

/// Rates that the estimate assumes, bytes/s.
const FAST: f64 = 2e9;
const SLOW: f64 = 5e8;
/// The most points that are drawn; more would take hours.
const SEEDED_MAX: usize = 10_000;
/// How long one repeat of a point may measure.
const SLICE_MIN: Duration = Duration::from_millis(1);
const SLICE_MAX: Duration = Duration::from_secs(3600);
/// Starting and stopping a slice.
const SLICE_OVERHEAD_S: f64 = 0.02;

impl ProbePlan {
    /// The plan of a grid with its defaults.
    #[must_use]
    pub fn new(path: &Path, output: &Path, grid: Grid) -> ProbePlan {
        let quick = grid == Grid::Quick;
        ProbePlan {
            path: path.to_path_buf(),
            output: output.to_path_buf(),
            grid,
            bytes: if quick { 1 << 30 } else { 4 << 30 },
            concurrency_max: 128,
            confidence: if quick { 0.10 } else { 0.05 },
            repeats_min: if quick { 2 } else { 3 },
            repeats_max: if quick { 4 } else { 6 },
            slice: Duration::from_millis(if quick { 400 } else { 600 }),
            group: if quick { 2 } else { 1 },
            reruns_max: if quick { 3 } else { 4 },
            rerun_until: Duration::from_secs(if quick { 48 } else { 3600 }),
            seed: 1,
            precondition: false,
            destroy: false,
            resume: false,
            levels: Levels::default(),
        }
    }

    /// The points, in the order of the plan.
    #[must_use]
    pub fn points(&self) -> Vec<OperatingPoint> {
        let deep = self.concurrency_max;
        match self.grid {
            Grid::Quick => quick_plan(deep),
            Grid::Default => default_plan(self.seed, deep),
            Grid::Paper => paper_plan(),
            Grid::Seeded(count) => seeded_plan(count, self.seed, deep),
        }
    }

    fn note(&self) -> PlanNote {
        PlanNote {
            name: self.grid.name().to_owned(),
            point_count: self.points().len(),
            seed: self.seed,
            concurrency_max: self.concurrency_max,
        }
    }

    fn enough(&self) -> Enough {
        Enough {
            repeats_min: self.repeats_min,
            repeats_max: self.repeats_max,
            reruns_max: self.reruns_max,
            confidence: self.confidence,
        }
    }

    fn check(&self) -> Result<(), LabError> {
        let wrong = |text: String| Err(LabError::Request(text));
        if let Grid::Seeded(points) = self.grid
            && !(1..=SEEDED_MAX).contains(&points)
        {
            return wrong(format!("--seeded must be 1 to {SEEDED_MAX}, not {points}"));
        }
        if self.slice < SLICE_MIN || self.slice > SLICE_MAX {
            return wrong(format!(
                "--slice must be {SLICE_MIN:?} to {SLICE_MAX:?}, not {:?}",
                self.slice
            ));
        }
        if !(32..=4096).contains(&self.concurrency_max) {
            return wrong(format!(
                "--max-depth must be 32 to 4096, not {}",
                self.concurrency_max
            ));
        }
        let largest = self.points().iter().map(|p| p.io_pages).fold(1.0, f64::max);
        let threads = f64::from(self.concurrency_max.max(128)) / 32.0;
        let least = (largest * threads) as u64 * PAGE_BYTES;
        let least = least.max(target::MIN_BYTES);
        if self.bytes < least {
            return wrong(format!(
                "--size {} is too small: this plan needs at least {least} bytes",
                self.bytes
            ));
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return wrong(format!(
                "--confidence must be above 0% and below 100%, not {}%",
                self.confidence * 100.0
            ));
        }
        Ok(())
    }
}

/// A probe that was checked and has touched nothing yet.
pub struct Prepared {
    plan: ProbePlan,
    intent: Intent,
    earlier: Option<DeviceProfile>,
}

crate::names::opaque!(Prepared, "Prepared");

/// Checks a plan against its path and output; writes nothing.
///
/// # Errors
/// [`LabError::Request`] if the plan contradicts itself or the output; [`LabError::Input`] for
/// an unusable path or an earlier profile of another plan.
pub fn prepare(plan: ProbePlan) -> Result<Prepared, LabError> {
    plan.check()?;
    let intent = intent(&plan.path)?;
    let earlier = match (plan.resume, plan.output.exists()) {
        (false, false) => None,
        (false, true) => {
            return Err(LabError::Request(format!(
                "{} exists; add --resume to go on with it, or name another file with --output",
                plan.output.display()
            )));
        }
        (true, false) => None,
        (true, true) => {
            let profile = crate::drive_model::read_profile(&plan.output)?;
            if profile.plan.as_ref() != Some(&plan.note()) {
                return Err(LabError::input(
                    &plan.output,
                    "it was made by another plan; resume with the options that it was begun with, or name another --output",
                ));
            }
            same_target(&plan, &profile, None)?;
            Some(profile)
        }
    };
    Ok(Prepared {
        plan,
        intent,
        earlier,
    })
}

/// Refuses to go on with another path or, once they are known, other bytes: these may be of another
/// drive, or in another cache.
fn same_target(
    plan: &ProbePlan,
    earlier: &DeviceProfile,
    bytes: Option<u64>,
) -> Result<(), LabError> {
    let target = &earlier.target;
    let is_path = target.path == plan.path.display().to_string();
    if is_path && bytes.is_none_or(|bytes| bytes == target.size_bytes) {
        return Ok(());
    }
    Err(LabError::input(
        &plan.output,
        format!(
            "it is of {} bytes of {}; resume with the path and the --size that it was begun with, or name another --output",
            target.size_bytes, target.path
        ),
    ))
}

impl Prepared {
    fn read_only(&self) -> bool {
        matches!(self.intent, Intent::ReadOnly(_))
    }

    /// The points that the target allows, with what an earlier session knows of them.
    fn visits(&self) -> Vec<Visits> {
        let mut points = self.plan.points();
        points.retain(|p| !self.read_only() || p.read_share >= 1.0);
        let known = self.earlier.iter().flat_map(|profile| {
            let sound = |regime: usize| {
                let name = &profile.regimes[regime].name;
                name != regimes::DRIFTING && name != regimes::WRITE_CACHE
            };
            profile.points.iter().filter(move |p| sound(p.regime))
        });
        let known: Vec<_> = known.collect();
        let visits = points.into_iter().map(|point| {
            let mut visits = Visits::new(point);
            for earlier in known.iter().filter(|p| p.sample().point == point) {
                visits.take_over((*earlier).clone());
            }
            visits
        });
        visits.collect()
    }

    /// Estimates the probe's actions and time.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let plan = &self.plan;
        let read_only = self.read_only();
        let enough = plan.enough();
        let mut visits = self.visits();
        visits.retain(|v| v.wants_more(&enough));
        let points = visits.len();
        let slice = plan.slice.as_secs_f64() + run::WARM_UP.as_secs_f64() + SLICE_OVERHEAD_S;
        let group = plan.group.max(1);
        let measuring = |repeats: u32| {
            let known = |v: &Visits| f64::from(repeats.saturating_sub(v.repeats()));
            let slices: f64 = visits.iter().map(known).sum();
            // Small, large, and writes.
            let overhead = slice - plan.slice.as_secs_f64();
            let sentinel = if read_only { 2.0 } else { 3.0 }
                * (plan.slice.as_secs_f64() * run::SENTINEL_SHARE + overhead);
            slice * slices + sentinel * (slices / group as f64 + 1.0)
        };
        let bytes = plan.bytes;
        let written = match (read_only, plan.precondition) {
            (true, _) => 0,
            (false, false) => bytes,
            (false, true) => 3 * bytes,
        };
        let moved = (written + bytes) as f64;
        let writes = visits.iter().map(|v| 1.0 - v.point.read_share).sum::<f64>();
        let (fast, slow) = (moved / FAST, moved / SLOW);
        // After `rerun_until` only points that have nothing yet are measured.
        let until = plan.rerun_until.as_secs_f64().max(slow + measuring(1));
        Estimate {
            points,
            action: self.action(),
            bytes,
            prepare_writes_bytes: written,
            measuring_writes_s: writes * f64::from(plan.repeats_min) * slice,
            seconds_min: fast + measuring(plan.repeats_min),
            seconds_max: (slow + measuring(plan.repeats_max)).min(until),
        }
    }

    fn action(&self) -> String {
        match &self.intent {
            Intent::TestFile(path) => format!(
                "makes a test file in {}, writes it in full and removes it",
                path.parent().unwrap_or(path).display()
            ),
            Intent::ReadOnly(path) => {
                format!(
                    "reads {}, which exists, and writes nothing to it",
                    path.display()
                )
            }
            Intent::Overwrite(path) if self.plan.destroy => {
                format!("OVERWRITES {}: whatever it holds is lost", path.display())
            }
            Intent::Overwrite(path) => format!(
                "writes to {} if it is empty, and refuses otherwise",
                path.display()
            ),
        }
    }

    /// Measures. The profile at the plan's output grows with every group of points.
    ///
    /// # Errors
    /// [`LabError::Interrupted`] after Ctrl-C, the partial profile being written;
    /// [`LabError::NoSpace`], [`LabError::Volume`] and [`LabError::Raw`] otherwise.
    pub fn run(self, monitor: &dyn Monitor) -> Result<DeviceProfile, LabError> {
        let opened = self.open()?;
        self.run_on(&opened, monitor)
    }

    /// Opens the target, for [`Self::run_on`].
    pub(crate) fn open(&self) -> Result<Opened, LabError> {
        crate::drive_model::writable(&self.plan.output)?;
        Opened::open(&self.intent, self.plan.bytes, self.plan.destroy)
    }

    /// As [`Self::run`], on a target that may have been probed before: the same place of the same
    /// drive.
    pub(crate) fn run_on(
        self,
        opened: &Opened,
        monitor: &dyn Monitor,
    ) -> Result<DeviceProfile, LabError> {
        run::run(self, opened, monitor)
    }
}

#[cfg(test)]
mod tests;
