//! Drive profiles and workloads from files: models with their errors, accuracy on another run,
//! advice.

use std::fs;
use std::io::Write;
use std::path::Path;

use isobath::OutputFile;
pub use isobath_model::Beyond;
use isobath_model::advise::{Advice, AdviseError, Advisor, IsobathCosts};
use isobath_model::profile::Levels;
pub use isobath_model::profile::{DeviceProfile, HostCacheVerdict, MeasuredPoint};
pub use isobath_model::report::{ModelReport, ModelRow};
use isobath_model::workload::Workload;
use isobath_model::{HeldOutError, ModelKind, Sample};
use serde::Serialize;

use crate::LabError;

/// Reads a profile that a probe wrote.
///
/// # Errors
/// [`LabError::Io`] if it cannot be read, [`LabError::Input`] if it is no profile of this version.
pub fn read_profile(path: &Path) -> Result<DeviceProfile, LabError> {
    let text = fs::read_to_string(path).map_err(LabError::io("read", path))?;
    DeviceProfile::from_json(&text).map_err(|e| LabError::input(path, e.to_string()))
}

/// Writes a profile, wholly or not at all: a crash leaves the old file or the new one.
///
/// # Errors
/// [`LabError::Io`].
pub fn write_profile(path: &Path, profile: &DeviceProfile) -> Result<(), LabError> {
    let text = profile
        .to_json()
        .map_err(|e| LabError::input(path, e.to_string()))?;
    write_whole(path, &text)
}

/// Replaces a file, which appears only when it is complete; none of a store.
///
/// # Errors
/// [`LabError::Engine`] with what the engine says of outputs.
pub fn write_whole(path: &Path, text: &str) -> Result<(), LabError> {
    let mut output = OutputFile::create(path, true)?;
    output
        .write_all(text.as_bytes())
        .map_err(LabError::io("write", output.path()))?;
    Ok(output.finish()?)
}

/// Whether a file can be made at `path`: asked before work that would be lost. Leaves nothing
/// there.
///
/// # Errors
/// As [`write_whole`].
pub fn writable(path: &Path) -> Result<(), LabError> {
    // A FIFO would have its reader's end by being opened and closed.
    let takes_bytes = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    if !takes_bytes {
        OutputFile::create(path, true)?;
    }
    Ok(())
}

/// Fits every model to a profile, and judges it on another run of the drive if one is given.
///
/// # Errors
/// [`LabError::Input`] if not even the coarsest model can be fitted: it says which points are
/// missing.
pub fn fit(
    path: &Path,
    profile: &DeviceProfile,
    unseen: Option<&DeviceProfile>,
) -> Result<ModelReport, LabError> {
    let report = ModelReport::of(profile, unseen);
    let failures = report.rows.iter().filter_map(|r| r.failure.as_ref());
    if failures.clone().count() < report.rows.len() {
        return Ok(report);
    }
    let reason = failures.into_iter().next().cloned().unwrap_or_default();
    let kept = report.samples.len();
    let set_aside = profile.points.len() - kept;
    let aside = match set_aside {
        0 => String::new(),
        n => format!(" ({n} more points are set aside because the drive was not steady)"),
    };
    Err(LabError::input(
        path,
        format!("too few points, {kept} can be used{aside}: {reason}"),
    ))
}

/// One model judged on the points of another run.
#[derive(Debug, Clone, Serialize)]
pub struct JudgedModel {
    /// The model.
    pub kind: ModelKind,
    /// Points that it was fitted to.
    pub trained_on: usize,
    /// Cross-validated inside the training points.
    pub held_out: Option<HeldOutError>,
    /// On all points of the test profile, at whatever level the drive was: as a user meets it.
    pub as_met: Option<HeldOutError>,
    /// On the points of the test profile at the levels of the drive that were seen in training.
    pub unseen: Option<HeldOutError>,
    /// On its reads alone.
    pub unseen_reads: Option<HeldOutError>,
    /// On its writes alone.
    pub unseen_writes: Option<HeldOutError>,
    /// Why there are no numbers, in words.
    pub failure: Option<String>,
    /// Whether the training points alone chose it.
    pub chosen: bool,
}

/// How well models trained on one run predict another.
#[derive(Debug, Clone, Serialize)]
pub struct Evaluation {
    /// Points that were fitted.
    pub train_points: usize,
    /// Points that were predicted, at whatever level the drive was.
    pub met_points: usize,
    /// Points that were predicted at the levels seen in training.
    pub test_points: usize,
    /// Coarsest model first.
    pub models: Vec<JudgedModel>,
    /// How much repeats of one point of reads differ within the test run, median.
    pub repeat_noise_read: Option<f64>,
    /// The same for writes.
    pub repeat_noise_write: Option<f64>,
    /// How much points differ that both runs measured: what no model can know. Median and 90th
    /// percentile.
    pub between_runs: Option<HeldOutError>,
    /// How much faster (above 1) or slower the drive was in the test run where it is judged, by the
    /// sentinel of small I/Os.
    pub sentinel_ratio: Option<f64>,
    /// The same by the sentinel of large I/Os.
    pub large_sentinel_ratio: Option<f64>,
    /// The same by the sentinel of writes.
    pub write_sentinel_ratio: Option<f64>,
    /// What to know before quoting the numbers.
    pub warnings: Vec<String>,
}

/// Trains every model on one profile and judges it on another run of the same drive.
///
/// # Errors
/// [`LabError::Input`] if a profile is not usable, [`LabError::Request`] if both are the same run.
pub fn evaluate(train_path: &Path, test_path: &Path) -> Result<Evaluation, LabError> {
    let train = read_profile(train_path)?;
    let test = read_profile(test_path)?;
    if train.points == test.points {
        return Err(LabError::Request(format!(
            "{} and {} hold the same measurements; judge models on another run",
            train_path.display(),
            test_path.display()
        )));
    }
    let test_points = test.samples();
    if test_points.is_empty() {
        return Err(LabError::input(test_path, "it has no usable points"));
    }
    let met: Vec<Sample> = test.points.iter().map(|p| p.sample()).collect();
    let report = fit(train_path, &train, Some(&test))?;
    let models = report
        .rows
        .iter()
        .map(|row| {
            let on = |keep: fn(f64) -> bool| {
                let kept: Vec<_> = test_points
                    .iter()
                    .filter(|s| keep(s.point.read_share))
                    .copied()
                    .collect();
                let model = report.predictor(row.kind)?.model();
                HeldOutError::of(model, &kept).ok().flatten()
            };
            JudgedModel {
                kind: row.kind,
                trained_on: report.samples.len(),
                held_out: row.held_out,
                as_met: report
                    .predictor(row.kind)
                    .and_then(|p| HeldOutError::of(p.model(), &met).ok().flatten()),
                unseen: row.unseen,
                unseen_reads: on(|share| share >= 1.0),
                unseen_writes: on(|share| share <= 0.0),
                failure: row.failure.clone(),
                chosen: row.chosen,
            }
        })
        .collect();
    let ratios = sentinel_ratios(&train, &test);
    Ok(Evaluation {
        train_points: report.samples.len(),
        met_points: met.len(),
        test_points: test_points.len(),
        models,
        repeat_noise_read: test.repeat_noise.read,
        repeat_noise_write: test.repeat_noise.write,
        between_runs: between_runs(&train, &test),
        sentinel_ratio: ratios.small,
        large_sentinel_ratio: ratios.large,
        write_sentinel_ratio: ratios.write,
        warnings: doubts(&train, &test),
    })
}

fn between_runs(train: &DeviceProfile, test: &DeviceProfile) -> Option<HeldOutError> {
    let (train, test) = (train.samples(), test.samples());
    let errors: Vec<f64> = test
        .iter()
        .filter_map(|s| {
            let twin = train.iter().find(|t| t.point == s.point)?;
            Some((twin.throughput_pages_per_s / s.throughput_pages_per_s - 1.0).abs())
        })
        .collect();
    HeldOutError::from_errors(&errors)
}

/// How much faster (above 1) or slower the drive was in the test run where it is judged, by
/// sentinel: ratios, not rates.
fn sentinel_ratios(train: &DeviceProfile, test: &DeviceProfile) -> Levels {
    let ratio = |train: Option<f64>, test: Option<f64>| Some(test? / train?);
    let (before, after) = (train.levels(), test.levels());
    Levels {
        small: ratio(before.small, after.small),
        large: ratio(before.large, after.large),
        write: ratio(before.write, after.write),
    }
}

/// Said of models that mix levels.
pub const ACROSS_LEVELS: &str = "The drive changed its level so often that too few points are left at one: models are fitted to all of them.";

/// Beyond this, the two runs did not see the same drive.
const SENTINEL_DRIFT: f64 = 0.10;

fn doubts(train: &DeviceProfile, test: &DeviceProfile) -> Vec<String> {
    let mut doubts = Vec::new();
    let ratios = sentinel_ratios(train, test);
    let ratios = [
        ("small I/Os", ratios.small),
        ("large I/Os", ratios.large),
        ("writes", ratios.write),
    ];
    for (what, ratio) in ratios {
        if let Some(ratio) = ratio
            && (ratio - 1.0).abs() > SENTINEL_DRIFT
        {
            doubts.push(format!(
                "The drive itself changed: the sentinel of {what} was {:.0}% {} in the test run.",
                100.0 * (ratio - 1.0).abs(),
                if ratio > 1.0 { "faster" } else { "slower" }
            ));
        }
    }
    let disturbed = |p: &DeviceProfile| p.points.iter().filter(|p| p.disturbed > 0).count();
    if disturbed(train) + disturbed(test) > 0 {
        doubts.push(format!(
            "Other programs used the drive or the CPU during repeats of {} of {} training and {} of {} test points: measure on a quiet machine.",
            disturbed(train),
            train.points.len(),
            disturbed(test),
            test.points.len()
        ));
    }
    let (a, b) = (&train.hardware, &test.hardware);
    if a.drive_model != b.drive_model || a.drive_capacity_bytes != b.drive_capacity_bytes {
        doubts.push("The profiles name different drives.".to_owned());
    }
    let aside = (
        train.points.len() - train.fitted_samples().len(),
        test.points.len() - test.samples().len(),
    );
    if aside.0 + aside.1 > 0 {
        doubts.push(format!(
            "{} training and {} test points are left out: the drive was not steady around them.",
            aside.0, aside.1
        ));
    }
    if train.is_fitted_across_levels() {
        doubts.push(ACROSS_LEVELS.to_owned());
    }
    doubts
}

/// Reads a workload file.
///
/// # Errors
/// [`LabError::Input`] names line and field.
pub fn read_workload(path: &Path) -> Result<Workload, LabError> {
    let text = fs::read_to_string(path).map_err(LabError::io("read", path))?;
    Workload::from_toml(&text).map_err(|e| LabError::input(path, e.to_string()))
}

/// Advice for a workload on a profiled drive.
///
/// # Errors
/// [`LabError::Input`] names the file that is to blame: the profile if it is not enough, the
/// workload if its data do not fit.
pub fn advise(
    profile_path: &Path,
    workload_path: &Path,
    costs: Option<IsobathCosts>,
) -> Result<(Workload, Advice), LabError> {
    let profile = read_profile(profile_path)?;
    let workload = read_workload(workload_path)?;
    let advisor = Advisor::new(&profile).map(|advisor| match costs {
        Some(costs) => advisor.with_costs(costs),
        None => advisor,
    });
    let advice = advisor.and_then(|advisor| advisor.advise(&workload));
    let advice = advice.map_err(|e| match e {
        AdviseError::DoesNotFit { .. } => LabError::input(workload_path, e.to_string()),
        other => LabError::input(profile_path, other.to_string()),
    })?;
    Ok((workload, advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_report::tests::profile;
    use isobath_model::profile::Sentinel;

    #[test]
    fn a_drive_that_wrote_at_another_level_is_named() {
        let at = |write_pages_per_s| DeviceProfile {
            sentinels: vec![Sentinel {
                at_s: 0.0,
                throughput_pages_per_s: 1e5,
                large_pages_per_s: None,
                write_pages_per_s: Some(write_pages_per_s),
            }],
            ..profile("train")
        };
        let named = |test: &DeviceProfile| {
            let doubts = doubts(&at(5e4), test);
            doubts
                .iter()
                .any(|d| d.contains("sentinel of writes was 40% faster"))
        };
        assert!(named(&at(7e4)));
        assert!(!named(&at(5.2e4)));
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.json");
        write_whole(&path, "one").unwrap();
        write_whole(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let lost = dir.path().join("no/such/p.json");
        let error = write_whole(&lost, "x").unwrap_err().to_string();
        assert!(error.starts_with("cannot create"), "{error}");
    }
}
