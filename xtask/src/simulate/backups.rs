//! Backups of a simulated store, full and incremental, restored and judged.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use isobath::{BackupOptions, Simulation, Store, Volume};
use isobath_io::{FaultDevice, FaultPlan};

use super::run::{Failure, Run, beside};
use crate::clients::recorder::Recorder;
use crate::clients::state::{self, Created};
use crate::history::History;
use crate::random::Steps;

/// Most backups that add to one another.
const LONGEST_CHAIN: usize = 4;
/// Steps within which a backup begins.
const WITHIN: u64 = 4000;

/// The backups of one run.
#[derive(Default)]
pub(super) struct Backups {
    directory: Option<tempfile::TempDir>,
    /// A full one and those that add to it.
    chain: Vec<PathBuf>,
    made: u64,
}

/// When a round makes backups.
pub(super) struct Schedule {
    left: u64,
    steps: Steps,
}

impl Schedule {
    pub(super) fn new(seed: u64, round: u64, backups: u64) -> Schedule {
        Schedule {
            left: backups,
            steps: Steps::new(seed ^ 0x6261_636b, round, WITHIN),
        }
    }

    /// Whether one is to begin at step `step`; and whether it adds to the last one.
    pub(super) fn is_due(&mut self, step: u64) -> Option<bool> {
        if self.left == 0 || !self.steps.are_due(step) {
            return None;
        }
        self.left -= 1;
        Some(self.steps.random.chance(65))
    }
}

impl Backups {
    /// A place for the next backup, in memory if there is such a directory.
    fn next(&mut self) -> std::io::Result<PathBuf> {
        let directory = match self.directory.take() {
            Some(directory) => directory,
            None => tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?,
        };
        self.made += 1;
        let path = directory.path().join(self.made.to_string());
        self.directory = Some(directory);
        Ok(path)
    }
}

impl Run {
    /// Makes a backup while clients work, restores it, and judges what it has by what was answered
    /// before it began and what was asked for before it had ended.
    pub(super) fn back_up(
        &mut self,
        simulation: &Simulation,
        device: &FaultDevice,
        recorder: &Recorder,
        adds: bool,
    ) -> Result<(), Failure> {
        let path = self.backups.next();
        let path = path.map_err(|error| Failure::of(format!("a directory: {error}")))?;
        if !adds || self.backups.chain.len() >= LONGEST_CHAIN {
            for old in self.backups.chain.drain(..) {
                // The directory goes in the end.
                let _ = std::fs::remove_file(old);
            }
        }
        let mut options = BackupOptions::new().verify(self.backups.made.is_multiple_of(4));
        if let Some(base) = self.backups.chain.last() {
            options = options.since(base);
        }
        let began = recorder.tick();
        let mut go_on = |_: &str, _, _| ControlFlow::Continue(());
        let done = simulation.store().backup(&path, &options, &mut go_on);
        match done {
            Ok(_) => {}
            Err(_) if device.is_off() => return Ok(()),
            Err(error) => return Err(Failure::of(format!("a backup: {error}"))),
        }
        self.backups.chain.push(path);
        self.report.counts.backups += 1;
        let history = recorder.history();
        let history = history.copied(began, history.now());
        let created = recorder.created();
        beside(|| self.restored(history, &created))
    }

    fn restored(&mut self, history: History, created: &Created) -> Result<(), Failure> {
        let options = self.scenario.options().volume_limit_bytes(None);
        let device = FaultDevice::new(0, FaultPlan::new(self.scenario.seed));
        let volume = || Volume::from_device(Arc::clone(&device) as _);
        let mut go_on = |_: &str, _, _| ControlFlow::Continue(());
        let chain = &self.backups.chain;
        let done = Store::restore_on_volume(chain, volume(), &options, &mut go_on);
        done.map_err(|error| Failure::of(format!("restoring: {error}")))?;
        let opened = Simulation::open(volume(), &options, self.scenario.seed);
        let simulation = opened.map_err(|error| Failure::of(format!("opening: {error}")))?;
        let state = state::read(simulation.store(), &self.records.universe, created);
        self.judge(state, history, false)?;
        self.sound(simulation.store(), 0)?;
        let closed = simulation.close();
        closed.map_err(|error| Failure::of(format!("closing: {error}")))
    }
}
