//! Many raw measurements over one target, which is prepared once.

use std::path::PathBuf;

use isobath_io::{AlignedBuf, DirectMode, Volume, VolumeOptions};

use crate::raw::{self, RawPlan, RawResult, RawTarget};
use crate::{LabError, Monitor, Stage, Unit};

/// Bytes written at a time while preparing.
const PIECE: usize = 4 << 20;
/// Bytes of new files unless a plan says otherwise.
const SCRATCH_BYTES: u64 = 1 << 30;

/// Files that are removed when this is dropped.
struct Scratch(Vec<PathBuf>);

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            // A file that cannot be removed is left to the user, who has its name.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Runs the plans one after another over the target of the first, and hands
/// each result over as it comes. New files are written in full and read once
/// in full before the first measurement, and removed after the last.
///
/// # Errors
/// [`LabError::Raw`] of the first measurement that fails, or that a result
/// could not be handed over.
pub fn sweep<E: From<LabError>>(
    plans: &[RawPlan],
    monitor: &dyn Monitor,
    mut each: impl FnMut(&RawPlan, &RawResult) -> Result<(), E>,
) -> Result<(), E> {
    let Some(first) = plans.first() else {
        return Ok(());
    };
    let scratch = match &first.target {
        RawTarget::Scratch(paths) if plans.len() > 1 => Some(make(first, paths, monitor)?),
        _ => None,
    };
    for (at, given) in plans.iter().enumerate() {
        let mut plan = given.clone();
        if let Some(scratch) = &scratch {
            let volume = Volume::open(&scratch.0, &options(&plan)).map_err(raw_error)?;
            plan.target = RawTarget::Volume(volume);
        }
        plan.prepare &= at == 0;
        let result = raw::run(&plan, monitor).map_err(LabError::from)?;
        each(given, &result)?;
    }
    Ok(())
}

fn raw_error(error: isobath_io::VolumeError) -> LabError {
    LabError::from(raw::RawError::from(error))
}

fn options(plan: &RawPlan) -> VolumeOptions {
    VolumeOptions::new()
        .backend(plan.backend.into())
        .direct(if plan.direct {
            DirectMode::Auto
        } else {
            DirectMode::Off
        })
        .stripe_unit(plan.stripe_unit_bytes)
}

/// Makes the files and fills them with incompressible bytes.
fn make(plan: &RawPlan, paths: &[PathBuf], monitor: &dyn Monitor) -> Result<Scratch, LabError> {
    let volume = Volume::create(paths, &options(plan)).map_err(raw_error)?;
    let made = paths.iter().filter(|p| p.is_file()).cloned();
    let scratch = Scratch(made.collect());
    let bytes = plan.bytes.unwrap_or(SCRATCH_BYTES).next_multiple_of(4096);
    volume.grow(bytes).map_err(raw_error)?;
    monitor.begin(Stage {
        name: "writing in full",
        total: Some(bytes),
        unit: Unit::Bytes,
    });
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let mut buffer = AlignedBuf::new(PIECE);
    let mut at = 0;
    while at < bytes {
        monitor.check()?;
        let take = usize::try_from(bytes - at).map_or(PIECE, |left| left.min(PIECE));
        let piece = &mut buffer.as_mut_slice()[..take];
        rng.fill(piece);
        volume
            .write_at(at, piece)
            .map_err(|e| LabError::from(raw::RawError::from(e)))?;
        monitor.advance(take as u64);
        at += take as u64;
    }
    volume
        .sync()
        .map_err(|e| LabError::from(raw::RawError::from(e)))?;
    Ok(scratch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::raw::RawBackend;

    fn plan(paths: &[PathBuf], depth: u32) -> RawPlan {
        RawPlan {
            target: RawTarget::Scratch(paths.to_vec()),
            bytes: Some(8 << 20),
            depth,
            read_percent: 50,
            warmup_ms: 10,
            duration_ms: 100,
            ..RawPlan::default()
        }
    }

    #[test]
    fn a_sweep_prepares_once_and_removes_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("a"), dir.path().join("b")];
        let mut plans = vec![plan(&paths, 1), plan(&paths, 4), plan(&paths, 16)];
        plans[2].backend = RawBackend::Pread;
        let mut depths = Vec::new();
        sweep(&plans, &Silent, |plan, result| -> Result<(), LabError> {
            assert!(result.reads > 0 && result.writes > 0, "{result:?}");
            depths.push(plan.depth);
            Ok(())
        })
        .unwrap();
        assert_eq!(depths, [1, 4, 16]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_are_removed_after_an_error_too() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("a")];
        let mut plans = vec![plan(&paths, 1), plan(&paths, 1)];
        plans[1].read_percent = 200;
        let result = sweep(&plans, &Silent, |_, _| Ok::<(), LabError>(()));
        assert!(matches!(result, Err(LabError::Raw(_))), "{result:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
