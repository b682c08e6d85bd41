//! Exact Zipf sampling for any exponent in a few nanoseconds.
//!
//! Ranks are cut into blocks within which the probability changes by less than half a percent (the
//! first 1,024 ranks are blocks of their own). A block is drawn by Walker's alias method, a rank in
//! it uniformly and then accepted by rejection; only one draw in several hundred has to evaluate a
//! power. `rand_distr`'s rejection-inversion evaluates several powers and logarithms for every
//! draw.

use crate::rng::Rng;

/// Ranks below this are blocks of their own.
const SINGLE: u32 = 1024;
/// A block starting at rank a spans a/GROWTH ranks.
const GROWTH: u32 = 256;

#[derive(Debug, Clone, Copy)]
struct Block {
    /// First rank (0-based).
    first: u32,
    len: u32,
    /// Accept without a power if a 32-bit draw is below this: 2³² × smallest / largest probability
    /// in the block.
    sure: u32,
    /// Alias method: keep this block if a 32-bit draw is below `keep`, else take `alias`.
    keep: u32,
    alias: u32,
}

/// Zipf distribution over ranks 0..n: P(rank r) ∝ (r+1)^−s.
#[derive(Debug, Clone)]
pub struct Zipf {
    blocks: Vec<Block>,
    exponent: f64,
    total: f64,
}

impl Zipf {
    /// The distribution over `n` ranks (at least 1) with exponent `s` ≥ 0.
    pub fn new(n: u32, s: f64) -> Self {
        let n = n.max(1);
        let mut blocks = Vec::new();
        let mut weights = Vec::new();
        let mut first = 0;
        while first < n {
            let len = if first < SINGLE {
                1
            } else {
                (first / GROWTH).min(n - first)
            };
            weights.push(mass(first, len, s));
            let ratio = (f64::from(first + 1) / f64::from(first + len)).powf(s);
            let sure = (ratio * 4_294_967_295.0) as u32;
            blocks.push(Block {
                first,
                len,
                sure,
                keep: u32::MAX,
                alias: 0,
            });
            first += len;
        }
        let total = weights.iter().sum();
        fill_alias(&mut blocks, weights, total);
        Self {
            blocks,
            exponent: s,
            total,
        }
    }

    /// Draws a rank.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u32 {
        let x = rng.bits();
        let pick = ((x >> 32) * self.blocks.len() as u64) >> 32;
        let mut block = &self.blocks[pick as usize];
        if x as u32 > block.keep {
            block = &self.blocks[block.alias as usize];
        }
        if block.len == 1 {
            return block.first;
        }
        loop {
            let y = rng.bits();
            let rank = block.first + (((y >> 32) * u64::from(block.len)) >> 32) as u32;
            if (y as u32) < block.sure || self.accepts(block, rank, y as u32) {
                return rank;
            }
        }
    }

    #[cold]
    fn accepts(&self, block: &Block, rank: u32, draw: u32) -> bool {
        let relative = (f64::from(block.first + 1) / f64::from(rank + 1)).powf(self.exponent);
        f64::from(draw) < relative * 4_294_967_296.0
    }

    /// (number of ranks, probability) of consecutive blocks of nearly equal ranks.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.blocks.iter().map(|block| {
            (
                block.len,
                mass(block.first, block.len, self.exponent) / self.total,
            )
        })
    }

    /// The probability of rank `rank`.
    pub fn probability(&self, rank: u32) -> f64 {
        f64::from(rank + 1).powf(-self.exponent) / self.total
    }
}

/// Σ (r+1)^−s for r in first..first+len: exact for single ranks, else by the midpoint rule with its
/// first correction, which is exact to 10⁻¹² from rank 1,024 on.
fn mass(first: u32, len: u32, s: f64) -> f64 {
    if len == 1 {
        return f64::from(first + 1).powf(-s);
    }
    let (a, b) = (f64::from(first) + 0.5, f64::from(first + len) + 0.5);
    // ∫ x^−s over [a, b] relative to a, stable for s near 1.
    let log = (b / a).ln();
    let integral = a.powf(1.0 - s)
        * if (1.0 - s).abs() < 1e-9 {
            log
        } else {
            ((1.0 - s) * log).exp_m1() / (1.0 - s)
        };
    let derivative = |x: f64| -s * x.powf(-s - 1.0);
    integral - (derivative(b) - derivative(a)) / 24.0
}

/// Walker's alias method (Vose's construction).
fn fill_alias(blocks: &mut [Block], weights: Vec<f64>, total: f64) {
    let n = blocks.len() as f64;
    let mut share: Vec<f64> = weights.into_iter().map(|w| w * n / total).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..share.len()).partition(|&i| share[i] < 1.0);
    while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
        small.pop();
        blocks[s].keep = (share[s] * 4_294_967_295.0) as u32;
        blocks[s].alias = l as u32;
        share[l] -= 1.0 - share[s];
        if share[l] < 1.0 {
            large.pop();
            small.push(l);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chi_square(n: u32, s: f64, draws: u32) -> (f64, f64) {
        let zipf = Zipf::new(n, s);
        let mut rng = Rng::new(7);
        let mut counts = vec![0u32; n as usize];
        for _ in 0..draws {
            counts[zipf.sample(&mut rng) as usize] += 1;
        }
        // Cells of at least 50 expected draws.
        let (mut chi, mut cells) = (0.0, 0.0);
        let (mut expected, mut seen) = (0.0, 0.0);
        for (rank, &count) in counts.iter().enumerate() {
            expected += zipf.probability(rank as u32) * f64::from(draws);
            seen += f64::from(count);
            if expected >= 50.0 {
                chi += (seen - expected) * (seen - expected) / expected;
                cells += 1.0;
                (expected, seen) = (0.0, 0.0);
            }
        }
        (chi, cells - 1.0)
    }

    #[test]
    fn samples_follow_the_distribution() {
        for (n, s) in [
            (1, 0.99),
            (100, 0.0),
            (20_000, 0.0),
            (20_000, 0.99),
            (20_000, 1.0),
            (50_000, 1.35),
        ] {
            let (chi, df) = chi_square(n, s, 1_000_000);
            assert!(
                chi < df + 4.0 * (2.0 * df).sqrt() + 4.0,
                "n={n} s={s}: chi² {chi} at {df} degrees"
            );
        }
    }

    #[test]
    fn a_wrong_exponent_would_be_noticed() {
        let right = Zipf::new(20_000, 0.99);
        let wrong = Zipf::new(20_000, 1.0);
        let ratio = right.probability(0) / wrong.probability(0);
        assert!((ratio - 1.0).abs() > 0.02);
    }

    #[test]
    fn block_masses_are_exact() {
        for s in [0.0, 0.5, 0.99, 1.0, 1.35, 3.0] {
            let zipf = Zipf::new(300_000, s);
            let exact: f64 = (1..=300_000).map(|r| f64::from(r).powf(-s)).sum();
            assert!(
                (zipf.total / exact - 1.0).abs() < 1e-10,
                "s={s}: {} vs {exact}",
                zipf.total
            );
        }
    }
}
