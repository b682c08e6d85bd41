//! Known bugs that the simulator must find.

use isobath::Canary;

use super::Failure;
use super::plan::{FaultKind, Scenario};
use super::switching;

/// A bug, and how it is looked for.
pub(crate) struct Known {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    canary: Canary,
    /// The faults that bring it to light.
    faults: &'static [FaultKind],
    /// Seeds within which it must be found: the first, and how many.
    first: u64,
    seeds: u64,
    /// How many times as much clients do.
    scale: u64,
}

const POWER: &[FaultKind] = &[FaultKind::Power];

const fn known(
    name: &'static str,
    canary: Canary,
    faults: &'static [FaultKind],
    seeds: std::ops::Range<u64>,
    scale: u64,
) -> Known {
    Known {
        name,
        canary,
        faults,
        first: seeds.start,
        seeds: seeds.end - seeds.start,
        scale,
    }
}

/// All of them.
#[rustfmt::skip]
pub(crate) const KNOWN: &[Known] = &[
    known("skip-page-checks", Canary::SkipPageChecks, &[FaultKind::Rot], 1..60, 1),
    known("acknowledge-early", Canary::AcknowledgeEarly, POWER, 1..40, 1),
    known("skip-log-flush", Canary::SkipLogFlush, POWER, 1..40, 1),
    known("skip-page-flush", Canary::SkipPageFlush, POWER, 1..40, 1),
    known("reuse-segments-at-once", Canary::ReuseSegmentsAtOnce, POWER, 1..300, 4),
    known("cut-log-early", Canary::CutLogEarly, POWER, 1..60, 20),
    known("forget-promises", Canary::ForgetPromises, POWER, 1..300, 8),
    known("skip-write-validation", Canary::SkipWriteValidation, &[], 1..20, 1),
    known("skip-read-validation", Canary::SkipReadValidation, &[], 1..20, 1),
];

impl Known {
    /// The bug of this name.
    pub(crate) fn named(name: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Searches its seeds; the first that shows it, and how.
    pub(crate) fn find(&self) -> Option<(u64, Failure)> {
        (self.first..self.first + self.seeds).find_map(|seed| {
            let mut scenario = Scenario::draw(seed, self.faults);
            scenario.operations *= self.scale;
            let done = switching::run_switching(scenario, Some(self.canary), None);
            done.outcome.err().map(|failure| (seed, failure))
        })
    }

    /// Looks for the bug and says how it went; whether it was found.
    pub(crate) fn hunt(&self) -> bool {
        match self.find() {
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
            let found = known.find();
            assert!(found.is_some(), "{} is not found", known.name);
        }
    }
}
