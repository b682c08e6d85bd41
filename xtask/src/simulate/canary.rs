//! Known bugs that the simulator must find.

use isobath::Canary;

use super::plan::{FaultKind, Scenario};
use super::{Failure, isolated_with};

/// A bug, and how it is looked for.
pub(crate) struct Known {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    canary: Canary,
    /// The faults that bring it to light.
    faults: &'static [FaultKind],
    /// Seeds within which it must be found.
    seeds: u64,
}

const POWER: &[FaultKind] = &[FaultKind::Power];

const fn known(
    name: &'static str,
    canary: Canary,
    faults: &'static [FaultKind],
    seeds: u64,
) -> Known {
    Known {
        name,
        canary,
        faults,
        seeds,
    }
}

/// All of them.
pub(crate) const KNOWN: &[Known] = &[
    known(
        "skip-page-checks",
        Canary::SkipPageChecks,
        &[FaultKind::Rot],
        60,
    ),
    known("acknowledge-early", Canary::AcknowledgeEarly, POWER, 40),
    known("skip-log-flush", Canary::SkipLogFlush, POWER, 40),
    known("skip-page-flush", Canary::SkipPageFlush, POWER, 100),
    known(
        "reuse-segments-at-once",
        Canary::ReuseSegmentsAtOnce,
        POWER,
        200,
    ),
    known("cut-log-early", Canary::CutLogEarly, POWER, 200),
    known("forget-promises", Canary::ForgetPromises, POWER, 100),
    known(
        "skip-write-validation",
        Canary::SkipWriteValidation,
        &[],
        20,
    ),
    known("skip-read-validation", Canary::SkipReadValidation, &[], 40),
];

impl Known {
    /// The bug of this name.
    pub(crate) fn named(name: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Searches seeds from `from` on; the first that shows it, and how.
    pub(crate) fn find(&self, from: u64) -> Option<(u64, Failure)> {
        (from..from + self.seeds).find_map(|seed| {
            let scenario = Scenario::draw(seed, self.faults);
            let outcome = isolated_with(scenario, Some(self.canary));
            outcome.err().map(|failure| (seed, failure))
        })
    }

    /// Looks for the bug and says how it went; whether it was found.
    pub(crate) fn hunt(&self, from: u64) -> bool {
        match self.find(from) {
            Some((seed, failure)) => {
                println!("{}: found by seed {seed}:\n{failure}", self.name);
                true
            }
            None => {
                println!("{}: NOT FOUND within {} seeds", self.name, self.seeds);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_bug_is_found_within_few_seeds() {
        for known in KNOWN {
            let found = known.find(1);
            assert!(found.is_some(), "{} is not found", known.name);
        }
    }
}
