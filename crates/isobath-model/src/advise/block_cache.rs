//! RocksDB's block cache: blocks of several records, in an LRU list that new blocks enter at its middle.
//!
//! Half of the list is for blocks that were found in it since they were read (`high_pri_pool_ratio` of 7.8, 0.5); others start
//! at the middle. A block that a compaction replaces is another block: its first access misses, however popular it is.

use super::law::Class;

/// Of the cache, the part that only blocks have that were used again.
const REUSED_SHARE: f64 = 0.5;

/// Blocks that are accessed equally often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Blocks {
    pub(super) count: f64,
    /// Accesses of each per operation.
    pub(super) rate: f64,
}

/// Blocks of one run, and how long they last.
#[derive(Debug, Clone, Default)]
pub(super) struct BlockSet {
    pub(super) blocks: Vec<Blocks>,
    /// Operations after which a compaction has replaced them all; none where nothing does.
    pub(super) lifetime: Option<f64>,
}

impl BlockSet {
    /// `count` blocks of which each is accessed for the sake of `keys` keys, chosen at random of all: its hottest
    /// key is of some class, the others are as those that are no hotter are on average. `rate` is that of a key of a class.
    pub(super) fn scattered(
        count: f64,
        keys: f64,
        classes: &[Class],
        rate: impl Fn(&Class) -> f64,
    ) -> BlockSet {
        let mut rates: Vec<(f64, f64)> = classes.iter().map(|c| (c.count, rate(c))).collect();
        rates.sort_by(|a, b| a.1.total_cmp(&b.1));
        let all: f64 = rates.iter().map(|r| r.0).sum();
        let mean = rates.iter().map(|r| r.0 * r.1).sum::<f64>() / all.max(1.0);
        let (mut below, mut weight) = (0.0f64, 0.0f64);
        let mut blocks = Vec::new();
        for &(records, rate) in &rates {
            let until = (below + records).min(all);
            weight += records * rate;
            let hottest = (until / all).powf(keys) - (below / all).powf(keys);
            below = until;
            blocks.push(Blocks {
                count: count * hottest,
                rate: rate + (keys - 1.0).max(0.0) * weight / below.max(1.0),
            });
        }
        // The means are rounded; all accesses together are not.
        let sum: f64 = blocks.iter().map(|b| b.count * b.rate).sum();
        let scale = if sum > 0.0 {
            count * keys * mean / sum
        } else {
            0.0
        };
        blocks.iter_mut().for_each(|b| b.rate *= scale);
        BlockSet {
            blocks,
            lifetime: None,
        }
    }

    pub(super) fn accesses(&self) -> f64 {
        self.blocks.iter().map(|b| b.count * b.rate).sum()
    }
}

/// How long, in operations, a block that is not used stays in the upper and the lower part of the list.
#[derive(Debug, Clone, Copy)]
struct Times {
    upper: f64,
    lower: f64,
}

/// What share of the time a block is in the cache and in its upper part. It enters the lower part, and goes to the top
/// whenever it is found: a renewal process.
fn presence(rate: f64, times: Times) -> (f64, f64) {
    let found = -(-rate * times.lower).exp_m1();
    let stays = found * (rate * (times.upper + times.lower)).min(EXPONENT_MAX).exp();
    let present = stays / (1.0 + stays);
    (present, present * -(-rate * times.upper).exp_m1())
}

/// e to more than this says no more.
const EXPONENT_MAX: f64 = 600.0;
/// Halvings of the exponents between which times are sought: 10⁻³ to 10¹³ operations.
const HALVINGS: u32 = 60;
const TIMES: (f64, f64) = (-3.0, 13.0);

/// The exponent of ten at which `is_low` ends.
fn bisect(is_low: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = TIMES;
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        match is_low(10f64.powf(middle)) {
            true => low = middle,
            false => high = middle,
        }
    }
    10f64.powf(low)
}

/// Shares of accesses to each set that miss a cache of `cached` blocks.
pub(super) fn misses(cached: f64, sets: &[BlockSet]) -> Vec<f64> {
    let all: f64 = sets.iter().flat_map(|s| &s.blocks).map(|b| b.count).sum();
    let replaced = |rate: f64, lifetime: Option<f64>| match lifetime {
        Some(lifetime) if rate * lifetime > 1e-9 => {
            -(-rate * lifetime).exp_m1() / (rate * lifetime)
        }
        Some(_) => 1.0,
        None => 0.0,
    };
    let times = (cached < all).then(|| times(cached, sets));
    let missing = |set: &BlockSet| {
        let of = |b: &Blocks| {
            let absent = times.map_or(0.0, |times| 1.0 - presence(b.rate, times).0);
            let first = replaced(b.rate, set.lifetime);
            b.count * b.rate * (1.0 - (1.0 - absent) * (1.0 - first))
        };
        set.blocks.iter().map(of).sum::<f64>() / set.accesses().max(f64::MIN_POSITIVE)
    };
    sets.iter().map(missing).collect()
}

fn times(cached: f64, sets: &[BlockSet]) -> Times {
    let held = |times: Times| {
        let blocks = sets.iter().flat_map(|s| &s.blocks);
        blocks.fold((0.0, 0.0), |(all, upper), b| {
            let (present, above) = presence(b.rate, times);
            (all + b.count * present, upper + b.count * above)
        })
    };
    let lower_for = |upper| bisect(|lower| held(Times { upper, lower }).0 < cached);
    let upper = bisect(|upper| {
        let lower = lower_for(upper);
        // Where the upper part alone holds too much, nothing is left for the lower.
        let (all, above) = held(Times { upper, lower });
        above < REUSED_SHARE * cached && all < 1.01 * cached
    });
    Times {
        upper,
        lower: lower_for(upper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::law::{Law, classes};
    use crate::rng::SplitMix64;
    use std::collections::{BTreeMap, HashMap};

    /// The cache itself: `lists[1]` is the upper part; the least stamp is the end of a list.
    struct Replay {
        cached: usize,
        lists: [BTreeMap<u64, usize>; 2],
        places: HashMap<usize, (usize, u64)>,
        now: u64,
    }

    impl Replay {
        fn access(&mut self, block: usize) -> bool {
            self.now += 1;
            let hit = self.places.remove(&block);
            if let Some((list, stamp)) = hit {
                self.lists[list].remove(&stamp);
            }
            let list = usize::from(hit.is_some());
            self.lists[list].insert(self.now, block);
            self.places.insert(block, (list, self.now));
            if self.lists[1].len() > self.cached / 2 {
                let (_, moved) = self.lists[1].pop_first().unwrap();
                self.now += 1;
                self.lists[0].insert(self.now, moved);
                self.places.insert(moved, (0, self.now));
            }
            if self.places.len() > self.cached {
                let (_, evicted) = self.lists[0].pop_first().unwrap();
                self.places.remove(&evicted);
            }
            hit.is_some()
        }
    }

    #[test]
    fn misses_are_those_of_a_replay() {
        let (records, per_block) = (30_000usize, 3usize);
        for law in [
            Law::Uniform,
            Law::Zipf(0.8),
            Law::ScrambledZipf(0.99),
            Law::Zipf(0.99),
        ] {
            let classes = classes(law, records as f64);
            let mut random = SplitMix64::new(3);
            let mut places: Vec<usize> = (0..records).collect();
            random.shuffle(&mut places);
            let mut sums = Vec::new();
            let (mut sum, mut firsts, mut at) = (0.0, Vec::new(), 0usize);
            for class in &classes {
                sum += class.count * class.share;
                sums.push(sum);
                firsts.push(at);
                at += class.count as usize;
            }
            let cached = records / per_block / 10;
            let mut cache = Replay {
                cached,
                lists: [BTreeMap::new(), BTreeMap::new()],
                places: HashMap::new(),
                now: 0,
            };
            let unit =
                |random: &mut SplitMix64| (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let (warm, counted) = (60_000, 120_000);
            let mut missed = 0.0;
            for i in 0..warm + counted {
                let drawn = unit(&mut random);
                let class = sums.partition_point(|s| *s < drawn).min(classes.len() - 1);
                let within = unit(&mut random) * classes[class].count;
                let record = places[(firsts[class] + within as usize).min(records - 1)];
                if !cache.access(record / per_block) && i >= warm {
                    missed += 1.0 / f64::from(counted);
                }
            }
            let set = BlockSet::scattered(
                (records / per_block) as f64,
                per_block as f64,
                &classes,
                |c| c.share,
            );
            let formula = misses(cached as f64, &[set])[0];
            // 0.0029 at most.
            assert!(
                (formula - missed).abs() < 0.003,
                "{law:?}: {formula} against {missed}"
            );
        }
    }

    #[test]
    fn replaced_blocks_miss_once_each() {
        let classes = classes(Law::Uniform, 3000.0);
        let mut set = BlockSet::scattered(1000.0, 3.0, &classes, |c| c.share);
        assert_eq!(misses(1000.0, &[set.clone()]), [0.0]);
        // Ten accesses of each block before it is replaced: one in ten misses.
        set.lifetime = Some(10_000.0);
        let missed = misses(1000.0, &[set])[0];
        assert!((missed - 0.1).abs() < 0.001, "{missed}");
    }
}
