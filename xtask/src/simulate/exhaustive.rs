//! Short runs whose power is cut at every I/O, and whose recoveries are cut at
//! every I/O of their own.

use std::sync::Arc;

use isobath::{Canary, Error, Simulation, Volume};
use isobath_io::{Fault, FaultDevice, FaultRule, Survivors, Trigger};

use super::run::{Between, Failure, Run};
use crate::clients::plan::Scenario;
use crate::clients::state;
use crate::history::History;

/// The coverage of an exhaustive run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Coverage {
    /// I/Os of the run, closing included.
    pub(crate) ios: u64,
    /// Media that a cut left and that were recovered and judged.
    pub(crate) images: u64,
    /// Cuts during recovery.
    pub(crate) interruptions: u64,
}

/// The media that each cut is tried with: what survives of the data, of a log
/// device, and which draw of it.
const OUTCOMES: [(Survivors, Survivors, u64); 6] = [
    (Survivors::None, Survivors::None, 0),
    (Survivors::Executed, Survivors::Executed, 0),
    (Survivors::Random, Survivors::Random, 1),
    (Survivors::Random, Survivors::Random, 2),
    (Survivors::None, Survivors::Executed, 0),
    (Survivors::Executed, Survivors::None, 0),
];

/// Cuts the power of a short run at each of its I/Os in turn. Every
/// `interrupt_every`-th recovery is cut at each of its own I/Os too.
///
/// # Errors
///
/// The first cut after which something is wrong.
pub(crate) fn every_io(
    seed: u64,
    interrupt_every: u64,
    canary: Option<Canary>,
) -> Result<Coverage, Failure> {
    let mut coverage = Coverage::default();
    for index in 0.. {
        let done = super::in_thread(seed, canary, move || {
            let mut here = Coverage::default();
            let interrupt = index % interrupt_every.max(1) == 0;
            let cut = one_cut(seed, index, interrupt, &mut here);
            cut.map(|cut| (cut, here))
        });
        let (was_cut, here) = done.map_err(|failure| failure.at(format!("cut at I/O {index}")))?;
        coverage.images += here.images;
        coverage.interruptions += here.interruptions;
        coverage.ios = index;
        if !was_cut {
            break;
        }
    }
    Ok(coverage)
}

/// Runs until I/O `index`, cuts, and tries what may be left; `false` if the run
/// has fewer I/Os.
fn one_cut(
    seed: u64,
    index: u64,
    interrupt: bool,
    coverage: &mut Coverage,
) -> Result<bool, Failure> {
    let scenario = Scenario::short(seed);
    scenario.more.small.switch_on();
    let mut run = Run::new(scenario);
    run.cut_by_rule = true;
    let device = FaultDevice::new(0, run.scenario.device(0));
    device.add_rule(FaultRule::new(Fault::PowerLoss, Trigger::At(index)));
    let mut between = Between::new(Arc::clone(&device));
    let volume = Volume::from_device(device.clone());
    let opened = Simulation::new(volume, &run.scenario.options(), seed);
    let (history, created) = match opened {
        Ok(simulation) => {
            let (_, recorder) = run.round(simulation, &mut between, 0)?;
            (recorder.history(), recorder.created())
        }
        Err(_) if device.is_off() => (History::default(), Default::default()),
        Err(error) => return Err(Failure::of(format!("creating: {error}"))),
    };
    if !device.is_off() {
        return Ok(false);
    }
    let now = history.now();
    let history = history.until(now);
    let has_log_device = run.scenario.separate_log;
    for (data, log, variant) in OUTCOMES {
        if data != log && !has_log_device {
            continue;
        }
        let plan = run.scenario.device(1);
        let image = || device.crash_image_split(data, log, variant, plan.clone());
        let context = |what: String| format!("{data:?} and {log:?} {variant}, {what}");
        coverage.images += 1;
        let ios = recovered(&mut run, &image(), &history, &created)
            .map_err(|failure| failure.at(context("recovered".to_owned())))?;
        if !interrupt {
            continue;
        }
        for inner in 0..ios {
            let image = image();
            image.add_rule(FaultRule::new(Fault::PowerLoss, Trigger::At(inner)));
            drop(run.open(&image, inner));
            if !image.is_off() {
                break;
            }
            coverage.interruptions += 1;
            let again = image.crash_image_with(Survivors::Random, inner, run.scenario.device(2));
            recovered(&mut run, &again, &history, &created).map_err(|failure| {
                failure.at(context(format!("recovery cut at its I/O {inner}")))
            })?;
        }
    }
    Ok(true)
}

/// Recovers a medium and judges its contents; the I/Os that opening took.
pub(super) fn recovered(
    run: &mut Run,
    image: &Arc<FaultDevice>,
    history: &History,
    created: &state::Created,
) -> Result<u64, Failure> {
    let simulation = match run.open(image, 1) {
        Ok(simulation) => simulation,
        // The creation was not acknowledged.
        Err(Error::NotAStore { .. } | Error::SuperblockCorrupt { .. })
            if history.transactions.is_empty() =>
        {
            return Ok(0);
        }
        Err(error) => return Err(Failure::of(format!("opening: {error}"))),
    };
    let ios = image.io_count();
    let state = state::read(simulation.store(), &run.records.universe, created);
    run.judge(state, history.clone(), false)?;
    run.sound(simulation.store(), 0)?;
    simulation
        .close()
        .map_err(|error| Failure::of(format!("closing: {error}")))?;
    Ok(ios)
}
