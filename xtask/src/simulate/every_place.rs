//! Short runs in which a worker or task is held back for long, at every place in turn.

use isobath::{How, Small, Switch, Who};

use super::run::Failure;
use super::switching::run_switching;
use crate::clients::plan::{FaultKind, Scenario};

/// Steps for which one is held back: enough for pages to be written.
const STEPS: u32 = 1500;
/// Passes of each place at which one is held back, one in each run.
const PASSES: [u64; 3] = [1, 3, 9];

/// A short run that grows, writes checkpoints and opens what they leave.
fn script(seed: u64) -> Scenario {
    let mut scenario = Scenario::draw(seed, &[FaultKind::Power]);
    scenario.workers = scenario.workers.max(2);
    scenario.actors = 3;
    scenario.operations = 40;
    scenario.rounds = 1;
    scenario.large_values = true;
    scenario.drops = true;
    scenario.faults.power = false;
    scenario.faults.full = false;
    scenario.limit_bytes = None;
    scenario.log = true;
    scenario = scenario.with_more();
    scenario.more.passing = 3;
    scenario.more.loads = 40;
    scenario.more.beside = 6;
    scenario.more.small = Small {
        words_per_page: Some(32),
        checkpoint_bytes: Some(4 << 10),
        spill_bytes: [None, Some(0), Some(300)][seed as usize % 3],
        overlay_bytes: None,
    };
    scenario.tasks = scenario.tasks.max(7);
    scenario
}

/// Holds back the worker or task that passes a place, for each place whose name contains `filter`;
/// returns the number of runs.
///
/// # Errors
///
/// The first place with which something is wrong.
pub(super) fn every_place(seed: u64, filter: &str) -> Result<u64, Failure> {
    let scenario = script(seed);
    let (without, places) =
        run_switching(scenario.clone(), None, Some(How::Given(Vec::new()))).passed();
    without?;
    let mut runs = 0;
    for place in places {
        if !place.to_string().contains(filter) {
            continue;
        }
        for pass in PASSES {
            let switch = Switch {
                simulation: 0,
                place,
                pass,
                steps: STEPS,
                who: Who::Application,
            };
            runs += 1;
            let how = How::Given(vec![switch]);
            let done = run_switching(scenario.clone(), None, Some(how));
            let taken = done.taken();
            if let Err(failure) = done.outcome {
                let at = taken.first().copied().unwrap_or(switch);
                return Err(failure.at(at));
            }
            if taken.is_empty() {
                // It is passed less often.
                break;
            }
        }
    }
    Ok(runs)
}
