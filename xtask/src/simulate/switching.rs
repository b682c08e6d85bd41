//! Chooses where a simulation switches between two accesses, and the fewest switches with which it
//! still fails.

use std::time::{Duration, Instant};

use isobath::{Canary, How, Place, Switch, Switches};

use super::run::{Failure, Report};
use super::{in_thread, run};
use crate::clients::plan::Scenario;
use crate::random::Random;

/// Which seeds of a campaign switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wanted {
    /// Those that draw it.
    Drawn,
    /// None: tasks run until they wait.
    Off,
    /// All.
    Always,
}

/// How many of a hundred seeds switch.
const SWITCHING_PERCENT: u64 = 60;
/// Most runs that making a failure smaller may take.
const MAX_REPLAYS: usize = 200;
/// The same in time.
const MAX_TIME: Duration = Duration::from_secs(20);

/// How the simulations of `seed` switch.
pub(crate) fn draw(seed: u64, wanted: Wanted) -> Option<How> {
    let mut random = Random::new(seed ^ 0x7377_6974_6368_6573);
    let drawn = random.chance(SWITCHING_PERCENT);
    let max_steps = random.one_of(&[2, 8, 30, 200, 3000]);
    let how = match random.below(10) {
        0..5 => How::EveryPlace {
            rate: 0.5 / f64::from(1u32 << random.below(11)),
            max_steps,
        },
        5..8 => How::FewPlaces {
            one_in: 8 << random.below(7),
            max_steps,
        },
        _ => How::EveryPass {
            gap: 8 << random.below(14),
            max_steps,
        },
    };
    let on = match wanted {
        Wanted::Drawn => drawn,
        Wanted::Off => false,
        Wanted::Always => true,
    };
    on.then_some(how)
}

/// The result of a run with switches.
pub(super) struct Done {
    pub(super) outcome: Result<Report, Failure>,
    switches: Option<Switches>,
}

impl Done {
    /// The switches that were taken.
    pub(super) fn taken(&self) -> Vec<Switch> {
        let switches = self.switches.as_ref();
        switches.map_or_else(Vec::new, Switches::taken)
    }

    /// Its outcome, and the places that were passed.
    pub(super) fn passed(self) -> (Result<Report, Failure>, Vec<Place>) {
        let places = self.switches.map_or_else(Vec::new, |s| s.places());
        (self.outcome, places)
    }
}

/// Runs a scenario with these switches, in a thread of its own.
pub(super) fn run_switching(scenario: Scenario, canary: Option<Canary>, how: Option<How>) -> Done {
    let switches = how.map(Switches::new);
    let inside = switches.clone();
    let outcome = in_thread(scenario.seed, canary, move || {
        if let Some(switches) = inside {
            switches.switch_on();
        }
        run(scenario)
    });
    Done { outcome, switches }
}

/// The fewest of `taken` with which `scenario` still fails, and how it does.
/// `None` if it passes with all of them: then it does not repeat itself.
pub(super) fn minimise(
    scenario: &Scenario,
    canary: Option<Canary>,
    taken: Vec<Switch>,
) -> Option<(Vec<Switch>, Failure)> {
    let mut replays = 0;
    let begin = Instant::now();
    let mut fails = |list: &[Switch]| {
        replays += 1;
        if replays > MAX_REPLAYS || begin.elapsed() > MAX_TIME {
            return None;
        }
        let how = How::Given(list.to_vec());
        let done = run_switching(scenario.clone(), canary, Some(how));
        let taken = done.taken();
        done.outcome.err().map(|failure| (taken, failure))
    };
    if let Some(without) = fails(&[]) {
        return Some(without);
    }
    let (mut smallest, mut failure) = fails(&taken)?;
    let mut part = smallest.len().div_ceil(2);
    while part > 0 {
        let mut from = 0;
        while from < smallest.len() {
            let mut without = smallest.clone();
            without.drain(from..(from + part).min(smallest.len()));
            match fails(&without) {
                // Those that were not reached any more are gone too.
                Some((taken, still)) if taken.len() < smallest.len() => {
                    (smallest, failure) = (taken, still);
                }
                _ => from += part,
            }
        }
        part = if part == 1 { 0 } else { part.div_ceil(2) };
    }
    Some((smallest, failure))
}

/// Says which hand-overs make `scenario` fail.
pub(super) fn explain(scenario: &Scenario, canary: Option<Canary>, taken: Vec<Switch>) -> String {
    let all = taken.len();
    let Some((fewest, failure)) = minimise(scenario, canary, taken) else {
        return format!("{all} switches; the same ones again, it passes");
    };
    let places: Vec<String> = fewest.iter().map(|switch| format!("  {switch}")).collect();
    format!(
        "{all} switches; it fails with these {}:\n{}\n{failure}",
        fewest.len(),
        places.join("\n")
    )
}
