//! Many raw measurements over one target, which is prepared once.

use isobath_io::Volume;

use crate::raw::{self, RawPlan, RawResult, RawTarget};
use crate::{LabError, Monitor};

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
        RawTarget::Scratch(_) if plans.len() > 1 => {
            Some(raw::make(first, monitor).map_err(LabError::from)?)
        }
        _ => None,
    };
    for (at, given) in plans.iter().enumerate() {
        let mut plan = given.clone();
        if let Some(scratch) = &scratch {
            let volume = Volume::open(scratch.paths(), &raw::options(&plan));
            let volume = volume
                .map_err(raw::RawError::from)
                .map_err(LabError::from)?;
            plan.target = RawTarget::Volume(volume);
        }
        plan.prepare &= at == 0;
        let result = raw::run(&plan, monitor).map_err(LabError::from)?;
        each(given, &result)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
