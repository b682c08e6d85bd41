//! Seeded random choices.

use isobath_flash::rng::Rng;

/// Steps at which something is due, drawn from a seed.
pub(crate) struct Steps {
    pub(crate) random: Random,
    pub(crate) at: u64,
    within: u64,
}

impl Steps {
    /// Those of a round, each within so many steps of the one before.
    pub(crate) fn new(seed: u64, round: u64, within: u64) -> Steps {
        let mut random = Random::new(seed ^ (round + 1) << 40);
        let at = random.skewed(within);
        Steps { random, at, within }
    }

    /// Whether one is reached, and then the next is drawn.
    pub(crate) fn are_due(&mut self, step: u64) -> bool {
        let are_due = step >= self.at;
        if are_due {
            self.at = step + self.random.skewed(self.within);
        }
        are_due
    }
}

/// A seeded stream of choices.
#[derive(Debug, Clone)]
pub(crate) struct Random(Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Evenly from 0 to `n` - 1.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// True `percent` times in a hundred.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// From 1 to about `most`, small numbers as often as large ones.
    pub(crate) fn skewed(&mut self, most: u64) -> u64 {
        let bits = 64 - most.leading_zeros();
        let width = self.below(u64::from(bits)) + 1;
        1 + self.below(most.min((1 << width) - 1).max(1))
    }
}
