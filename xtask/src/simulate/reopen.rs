//! Stores that are opened again: after a clean close, after power cuts during recovery, at last.

use std::sync::Arc;

use isobath::Simulation;
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
        let what = format_args!("closing after round {round}");
        let closed = simulation.close();
        if self.or_refused(closed, what)?.is_none() {
            return Ok(false);
        }
        let opened = self.open(&between.device, self.scenario.seed ^ 0x0061_6761_696e);
        let Some(simulation) = self.or_refused(opened, "opening again")? else {
            return Ok(false);
        };
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
        self.unless_detected(simulation.close(), "closing again")?;
        Ok(true)
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
            match self.open(&image, self.scenario.seed ^ again << 32) {
                // Recovered before the cut, which may come while closing.
                Ok(simulation) => drop(simulation),
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
            self.report.counts.interruptions += 1;
            self.report.counts.ios += image.io_count();
            let plan = self.scenario.device(round + 100 + again);
            let (data, log) = survivors(&mut self.random, self.scenario.separate_log);
            image = image.crash_image_split(data, log, self.random.bits(), plan);
        }
        Ok(image)
    }

    /// After the last round: the store opens, and has what it had.
    pub(super) fn finally(&mut self, between: &mut Between) -> Result<(), Failure> {
        let opened = self.open(&between.device, self.scenario.seed);
        let Some(simulation) = self.unless_detected(opened, "opening at last")? else {
            return Ok(());
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
