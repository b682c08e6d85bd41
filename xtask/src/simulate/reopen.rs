//! Stores that are opened again: after a clean close, after power cuts during recovery, at last.

use std::sync::Arc;

use isobath::{Simulation, Volume};
use isobath_io::{Fault, FaultDevice, FaultRule, Trigger};

use super::run::{Between, Failure, Run};
use crate::clients::plan::survivors;
use crate::clients::state;
use crate::history::History;

/// Most power cuts during one recovery before it may end.
const MAX_INTERRUPTIONS: u64 = 4;

impl Run {
    /// Closes, opens, and finds exactly as much space taken.
    pub(super) fn close_and_compare(
        &mut self,
        simulation: Simulation,
        between: &mut Between,
        round: u64,
    ) -> Result<bool, Failure> {
        let before = simulation.store().stats();
        self.note(simulation.trace_hash());
        if let Err(error) = simulation.close() {
            if self.is_detected(&error) {
                self.report.refused += 1;
                return Ok(false);
            }
            return Err(Failure::of(format!("closing after round {round}: {error}")));
        }
        let volume = Volume::from_device(between.device.clone());
        let seed = self.scenario.seed ^ 0x0061_6761_696e;
        let options = self.scenario.options();
        match Simulation::open(volume, &options, seed) {
            Ok(simulation) => {
                let after = simulation.store().stats();
                let lost = after.allocated_bytes != before.allocated_bytes
                    || after.live_bytes != before.allocated_bytes;
                // Closing seals memories of overlays, and opening goes on with merges.
                let is_still = after.overlaid_trees == 0;
                if lost && is_still && self.scenario.faults.corruption.is_none() {
                    let what = format!(
                        "round {round}: space is lost: {} bytes were allocated, now {} are, {} of them live",
                        before.allocated_bytes, after.allocated_bytes, after.live_bytes
                    );
                    return Err(Failure::of(what));
                }
                let closed = simulation.close();
                if let Err(error) = closed
                    && !self.is_detected(&error)
                {
                    return Err(Failure::of(format!("closing again: {error}")));
                }
                Ok(true)
            }
            Err(error) if self.is_detected(&error) => {
                self.report.refused += 1;
                Ok(false)
            }
            Err(error) => Err(Failure::of(format!("opening again: {error}"))),
        }
    }

    /// Cuts the power again, several times perhaps, while the store recovers.
    pub(super) fn interrupt_recovery(
        &mut self,
        mut image: Arc<FaultDevice>,
        round: u64,
    ) -> Result<Arc<FaultDevice>, Failure> {
        if !self.random.chance(40) {
            return Ok(image);
        }
        for again in 0..=self.random.below(MAX_INTERRUPTIONS) {
            let index = self.random.skewed(300) - 1;
            image.add_rule(FaultRule::new(Fault::PowerLoss, Trigger::At(index)));
            let volume = Volume::from_device(image.clone());
            let seed = self.scenario.seed ^ again << 32;
            let opened = Simulation::open(volume, &self.scenario.options(), seed);
            match opened {
                Ok(simulation) => {
                    // Recovered before the cut, which may come while closing.
                    drop(simulation);
                }
                Err(_) if image.is_off() => {}
                Err(error) => {
                    let what = format!("recovering after round {round}: {error}");
                    return Err(Failure::of(what));
                }
            }
            if !image.is_off() {
                image.clear_rules();
                continue;
            }
            self.report.interruptions += 1;
            self.report.ios += image.io_count();
            let plan = self.scenario.device(round + 100 + again);
            let (data, log) = survivors(&mut self.random, self.scenario.separate_log);
            image = image.crash_image_split(data, log, self.random.bits(), plan);
        }
        Ok(image)
    }

    /// After the last round: the store opens, and has what it had.
    pub(super) fn finally(&mut self, between: &mut Between) -> Result<(), Failure> {
        let volume = Volume::from_device(between.device.clone());
        let opened = Simulation::open(volume, &self.scenario.options(), self.scenario.seed);
        let simulation = match opened {
            Ok(simulation) => simulation,
            Err(error) if self.is_detected(&error) => return Ok(()),
            Err(error) => return Err(Failure::of(format!("opening at last: {error}"))),
        };
        let state = state::read(simulation.store(), &self.records.universe, &between.created);
        let history = History::starting_with(between.known.clone());
        self.judge(state, history, true).map_err(|failure| {
            failure.at(format!("round {}, {}", self.scenario.rounds, "at last"))
        })?;
        self.note(simulation.trace_hash());
        drop(simulation);
        self.note(between.device.digest());
        Ok(())
    }
}
