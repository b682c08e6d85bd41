//! Randomness from a seed: every draw is a function of the seed, its purpose and an index, so that
//! one fault more or less leaves all other draws as they were.

/// The purpose of a draw.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(super) enum Purpose {
    Latency = 1,
    Rule = 2,
    Effect = 3,
    Crash = 4,
    Discard = 5,
}

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    pub(super) fn new(seed: u64, purpose: Purpose, index: u64) -> Rng {
        let a = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let b = mix(a ^ (purpose as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
        Rng(mix(b ^ index.wrapping_mul(0xa076_1d64_78bd_642f)))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Evenly from 0 to `n` - 1 (0 for `n` = 0).
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True with probability `p`.
    pub(super) fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_repeatable() {
        let mut counts = [0u32; 10];
        for index in 0..10_000 {
            let mut rng = Rng::new(7, Purpose::Effect, index);
            counts[rng.below(10) as usize] += 1;
            let mut again = Rng::new(7, Purpose::Effect, index);
            again.next();
            assert_eq!(rng.next(), again.next());
        }
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
        let mut rng = Rng::new(1, Purpose::Rule, 0);
        let hits = (0..10_000).filter(|_| rng.chance(0.3)).count();
        assert!((2800..3200).contains(&hits), "{hits}");
        assert!(!rng.chance(0.0) && rng.chance(1.0));
    }
}
