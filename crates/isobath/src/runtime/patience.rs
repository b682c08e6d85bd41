//! Waiting without a queue for events that may take a moment or seconds.

use std::time::Duration;

use super::{Worker, clock};

/// Times that others run before the task sleeps.
const YIELDS: u32 = 64;
/// How long it sleeps between two looks.
const SLEEP: Duration = Duration::from_millis(1);

/// How long a task has waited: at first it lets others run, later it sleeps, so that it does not
/// keep a worker busy.
#[derive(Default)]
pub(crate) struct Patience(u32);

impl Patience {
    /// Waits a little.
    pub(crate) fn wait(&mut self, worker: &Worker) {
        if self.0 < YIELDS {
            self.0 += 1;
            worker.yield_now();
        } else {
            worker.sleep_until(clock::now() + SLEEP);
        }
    }
}
