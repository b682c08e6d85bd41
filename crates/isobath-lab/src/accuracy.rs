//! How well drive models predict: the whole experiment in one call.
//!
//! Twenty designed points train the models, a hundred seeded ones over k, r, I/O size and mix judge
//! them. The two are measured in runs of their own, and the second is used for nothing else. MQSSD
//! as printed and the smooth residual are not determined by twenty points, so they get the paper's
//! whole grid, from a third run. All runs use one test file, rewritten for each: a virtual
//! drive's rate of writes may differ by half from place to place, and the experiment compares
//! models, not places.

use std::path::{Path, PathBuf};
use std::time::Duration;

use isobath_model::ModelKind;
use isobath_model::profile::Levels;

use crate::drive_model::{self, Evaluation};
use crate::probe::{self, Grid, ProbePlan};
use crate::{LabError, Monitor};

/// The experiment.
#[derive(Debug, Clone)]
pub struct AccuracyPlan {
    /// A directory on the drive: a test file is made there and removed.
    pub path: PathBuf,
    /// The path of the three profiles.
    pub output: PathBuf,
    /// Thirty test points and fewer repeats: three minutes, for a first look.
    pub quick: bool,
    /// Go on with the profiles that are there.
    pub resume: bool,
}

const TEST_POINTS: usize = 100;
const TEST_POINTS_QUICK: usize = 30;
/// Not the seed of the training run: the order of its points is drawn from it too.
const TEST_SEED: u64 = 2;

/// After these times only points that have no repeat yet are measured.
const TRAIN_TIME: Duration = Duration::from_secs(480);
const TEST_TIME: Duration = Duration::from_secs(1080);
const PAPER_TIME: Duration = Duration::from_secs(420);

impl AccuracyPlan {
    fn file(&self, name: &str) -> PathBuf {
        self.output.join(name)
    }

    /// The runs in their order: training, test, and the paper's grid.
    #[must_use]
    pub fn probes(&self) -> Vec<ProbePlan> {
        let base = |name: &str, grid| {
            let whole = ProbePlan::new(&self.path, &self.file(name), Grid::Default);
            let mut plan = ProbePlan {
                grid,
                // A point is only worth keeping if the drive was the same around it.
                reruns_max: 8,
                resume: self.resume,
                ..whole
            };
            if self.quick {
                plan.bytes = 1 << 30;
                plan.slice = Duration::from_millis(300);
                plan.repeats_min = 2;
                plan.repeats_max = 3;
                plan.reruns_max = 3;
                plan.confidence = 0.10;
                plan.rerun_until = Duration::from_secs(90);
            }
            plan
        };
        let points = if self.quick {
            TEST_POINTS_QUICK
        } else {
            TEST_POINTS
        };
        let mut train = base("accuracy-train.json", Grid::Quick);
        let mut test = ProbePlan {
            seed: TEST_SEED,
            ..base("accuracy-test.json", Grid::Seeded(points))
        };
        if self.quick {
            return vec![train, test];
        }
        // Everything rests on these twenty points: more repeats, over more of the drive's moods.
        train.repeats_min = 8;
        train.repeats_max = 16;
        train.rerun_until = TRAIN_TIME;
        test.rerun_until = TEST_TIME;
        let paper = ProbePlan {
            repeats_min: 1,
            repeats_max: 2,
            reruns_max: 3,
            rerun_until: PAPER_TIME,
            ..base("accuracy-paper.json", Grid::Paper)
        };
        vec![train, test, paper]
    }

    /// Least and most seconds of all runs; writes nothing.
    ///
    /// # Errors
    /// As [`probe::prepare`].
    pub fn seconds(&self) -> Result<(f64, f64), LabError> {
        let mut total = (0.0, 0.0);
        for plan in self.probes() {
            let estimate = probe::prepare(plan)?.estimate();
            total.0 += estimate.seconds_min;
            total.1 += estimate.seconds_max;
        }
        Ok(total)
    }

    /// Measures whatever is missing, then trains and judges.
    ///
    /// # Errors
    /// As [`probe::Prepared::run`] and [`drive_model::evaluate`].
    pub fn run(&self, monitor: &dyn Monitor) -> Result<Evaluation, LabError> {
        if !self.path.is_dir() {
            return Err(LabError::input(
                &self.path,
                "the experiment needs a directory on the drive, for its test file",
            ));
        }
        std::fs::create_dir_all(&self.output).map_err(LabError::io("create", &self.output))?;
        let mut probes = self.probes();
        let mut levels = Levels::default();
        let mut file = None;
        for plan in &mut probes {
            // A drive with several levels is judged at the one that the models were trained at.
            plan.levels = levels;
            if !finished(plan)? {
                monitor.say(&format!("measuring {}", plan.output.display()));
                let prepared = probe::prepare(plan.clone())?;
                let opened = match file.take() {
                    Some(opened) => opened,
                    None => prepared.open()?,
                };
                prepared.run_on(&opened, monitor)?;
                file = Some(opened);
            }
            if levels == Levels::default() {
                levels = drive_model::read_profile(&plan.output)?.levels();
            }
        }
        let mut evaluation = drive_model::evaluate(&probes[0].output, &probes[1].output)?;
        if let Some(paper) = probes.get(2) {
            add_models_of_the_grid(&mut evaluation, &paper.output, &probes[1].output)?;
        }
        Ok(evaluation)
    }
}

/// Whether an earlier session finished this run.
fn finished(plan: &ProbePlan) -> Result<bool, LabError> {
    if !(plan.resume && plan.output.exists()) {
        return Ok(false);
    }
    Ok(drive_model::read_profile(&plan.output)?.complete)
}

/// Puts the models that need the paper's grid in the place of those that twenty points did not
/// determine.
fn add_models_of_the_grid(
    evaluation: &mut Evaluation,
    grid: &Path,
    test: &Path,
) -> Result<(), LabError> {
    let fitted = drive_model::evaluate(grid, test)?;
    for found in fitted.models {
        let of_a_grid = matches!(
            found.kind,
            ModelKind::MqssdPrinted | ModelKind::MqssdPrintedAdded | ModelKind::MqssdSmooth
        );
        let place = evaluation.models.iter_mut().find(|m| m.kind == found.kind);
        if let Some(place) = place.filter(|_| of_a_grid) {
            *place = drive_model::JudgedModel {
                chosen: false,
                ..found
            };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(quick: bool) -> AccuracyPlan {
        AccuracyPlan {
            path: "/mnt".into(),
            output: "out".into(),
            quick,
            resume: false,
        }
    }

    #[test]
    fn training_and_test_share_nothing_but_the_drive() {
        for quick in [false, true] {
            let probes = plan(quick).probes();
            let (train, test) = (&probes[0], &probes[1]);
            assert!(train.points().len() <= 20);
            assert_eq!(test.points().len(), if quick { 30 } else { 100 });
            assert!(train.seed != test.seed && train.output != test.output);
            assert_eq!(train.bytes, test.bytes, "another size is another cache");
        }
    }

    #[test]
    fn the_printed_model_gets_the_papers_grid() {
        let probes = plan(false).probes();
        assert_eq!(probes[2].grid, Grid::Paper);
        assert_eq!(plan(true).probes().len(), 2);
    }
}
