//! Opens the store on the drive while another instance runs, and compares the two.

use std::sync::Arc;

use isobath::{Simulation, Volume};
use isobath_io::{FaultDevice, Survivors};

use super::exhaustive::recovered;
use super::run::{Failure, Run, beside};
use crate::clients::plan::Scenario;
use crate::clients::recorder::Recorder;

/// Steps within which clients come to the end of their operations, and the store to rest.
const MAX_STEPS: u64 = 100_000;
/// Times that a store is asked to come to rest.
const MAX_RESTS: usize = 20;

/// Whether the drive is looked at.
pub(super) fn looks_beside(scenario: &Scenario) -> bool {
    let faults = &scenario.faults;
    scenario.log && scenario.more.beside > 0 && faults.io.is_none() && faults.corruption.is_none()
}

/// When a round looks at the drive: after each checkpoint, until it
/// has looked often enough.
pub(super) struct Beside {
    left: u64,
    checkpoints: u64,
}

impl Beside {
    pub(super) fn new(scenario: &Scenario) -> Beside {
        Beside {
            left: if looks_beside(scenario) {
                scenario.more.beside
            } else {
                0
            },
            checkpoints: 0,
        }
    }

    /// Whether a checkpoint has ended since the last look.
    pub(super) fn is_due(&mut self, simulation: &Simulation) -> bool {
        if self.left == 0 {
            return false;
        }
        let ended = simulation.checkpoints();
        let due = ended > self.checkpoints;
        self.checkpoints = ended;
        self.left -= u64::from(due);
        due
    }
}

impl Run {
    /// Opens the drive's contents while the store runs. Every other time clients rest during that,
    /// and what is read must equal what the store says of itself, word for word.
    pub(super) fn look(
        &mut self,
        simulation: &mut Simulation,
        device: &Arc<FaultDevice>,
        recorder: &Recorder,
        at_rest: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        if self.report.counts.beside.is_multiple_of(2) {
            recorder.pause(true);
            let problems = self.compare_words(simulation, device, at_rest);
            recorder.pause(false);
            let problems = problems?;
            if !problems.is_empty() {
                return Err(Failure { problems });
            }
        }
        if device.is_off() {
            return Ok(());
        }
        self.compare_beside(device, recorder)
    }

    fn compare_words(
        &mut self,
        simulation: &mut Simulation,
        device: &Arc<FaultDevice>,
        at_rest: &dyn Fn() -> bool,
    ) -> Result<Vec<String>, Failure> {
        for _ in 0..MAX_STEPS {
            if at_rest() || device.is_off() {
                break;
            }
            simulation.step();
        }
        for _ in 0..MAX_RESTS {
            if !at_rest() || device.is_off() {
                break;
            }
            let rests = simulation.come_to_rest();
            if device.is_off() || !rests.map_err(|error| Failure::of(error.to_string()))? {
                continue;
            }
            let plan = self.scenario.device(400 + self.report.counts.beside);
            let image = device.crash_image_with(Survivors::None, 0, plan);
            let volume = Volume::from_device(image);
            let compared = simulation.compare(volume, &self.scenario.options());
            self.report.counts.compared += 1;
            return compared.map_err(|error| Failure::of(format!("opening: {error}")));
        }
        Ok(Vec::new())
    }

    /// Opens what a power cut would leave on the drive now, finds in it what a
    /// recovery has to find, and checks it.
    pub(super) fn compare_beside(
        &mut self,
        device: &Arc<FaultDevice>,
        recorder: &Recorder,
    ) -> Result<(), Failure> {
        let history = recorder.history();
        let now = history.now();
        let history = history.until(now);
        let created = recorder.created();
        let number = self.report.counts.beside;
        self.report.counts.beside += 1;
        let survivors = if number.is_multiple_of(2) {
            Survivors::None
        } else {
            Survivors::Random
        };
        let plan = self.scenario.device(200 + number);
        let image = device.crash_image_split(survivors, survivors, number, plan);
        beside(|| recovered(self, &image, &history, &created)).map(drop)
    }
}
