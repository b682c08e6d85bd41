//! The store on the drive, opened beside the running one and compared.

use std::sync::Arc;

use isobath::{Canary, Simulation, Small};
use isobath_io::{FaultDevice, Survivors};

use super::exhaustive::recovered;
use super::plan::Scenario;
use super::recorder::Recorder;
use super::run::{Failure, Run, message};

/// When a round looks at what is on the drive: after each checkpoint, until it
/// has looked often enough.
pub(super) struct Beside {
    left: u64,
    checkpoints: u64,
}

impl Beside {
    pub(super) fn new(scenario: &Scenario) -> Beside {
        let faults = &scenario.faults;
        let spoils = faults.io.is_some() || faults.damage.is_some();
        Beside {
            left: if scenario.log && !spoils {
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
        let number = self.report.beside;
        self.report.beside += 1;
        let survivors = if number.is_multiple_of(2) {
            Survivors::None
        } else {
            Survivors::Random
        };
        let plan = self.scenario.device(200 + number);
        let image = device.crash_image_apart(survivors, survivors, number, plan);
        let (canary, small) = (Canary::switched_on(), Small::chosen());
        // One thread has one simulation at a time.
        std::thread::scope(|scope| {
            let compared = scope.spawn(|| {
                if let Some(canary) = canary {
                    canary.switch_on();
                }
                small.switch_on();
                recovered(self, &image, &history, &created)
            });
            match compared.join() {
                Ok(done) => done.map(|_| ()),
                Err(panic) => Err(Failure::of(format!("a panic: {}", message(&*panic)))),
            }
        })
    }
}
