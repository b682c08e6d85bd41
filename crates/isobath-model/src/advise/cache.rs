//! How much of the traffic a cache of whole pages keeps from the drive.

/// Σ i^(−s) for i = 1..=n, by the integral with the midpoint correction; within 1% for n ≥ 1.
fn harmonic(n: f64, s: f64) -> f64 {
    let upper = n + 0.5;
    let head = 1.0;
    if (s - 1.0).abs() < 1e-9 {
        head + (upper / 1.5).ln()
    } else {
        head + (upper.powf(1.0 - s) - 1.5f64.powf(1.0 - s)) / (1.0 - s)
    }
}

/// Share of accesses that find their page among the `cached_pages` hottest of `pages`.
///
/// Records of rank i are accessed with weight i^(−`zipf_exponent`) and lie on pages at random, so a
/// page is as hot as its hottest record: the hottest pages hold one hot record each, and average
/// ones beside it.
pub(crate) fn hit_share(cached_pages: f64, pages: f64, records: f64, zipf_exponent: f64) -> f64 {
    let cached = cached_pages.clamp(0.0, pages);
    let even = cached / pages;
    if zipf_exponent <= 0.0 || cached < 1.0 {
        return even;
    }
    let hot = harmonic(cached.min(records), zipf_exponent) / harmonic(records, zipf_exponent);
    (hot + (1.0 - hot) * even).min(1.0)
}

/// Shares of accesses that miss, of sets of blocks that share a cache of `cached_pages`, each given
/// as its blocks and the accesses that go to it, evenly, per operation. Those of the hot sets are
/// found by the characteristic time T after which a block that was not used leaves an LRU cache
/// (Che, Tung and Wang, 2002): a block that is accessed at rate λ is there with probability 1 −
/// e^(−λT), and T is such that all blocks that are there fill the cache.
pub(crate) fn miss_shares(cached_pages: f64, sets: &[(f64, f64)]) -> Vec<f64> {
    let miss = |time: f64, &(pages, accesses): &(f64, f64)| match pages > 0.0 {
        true => (-accesses / pages * time).exp(),
        false => 0.0,
    };
    let all: f64 = sets.iter().map(|(pages, _)| pages).sum();
    if cached_pages >= all {
        return vec![0.0; sets.len()];
    }
    let held = |time: f64| -> f64 {
        let held = sets.iter().map(|set| set.0 * (1.0 - miss(time, set)));
        held.sum()
    };
    // In operations. Bound: 200 halvings of the exponent's range.
    let (mut low, mut high) = (0.0f64, 1e15);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        match held(middle) < cached_pages {
            true => low = middle,
            false => high = middle,
        }
    }
    sets.iter().map(|set| miss(low, set)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmonic_sums_are_close() {
        for s in [0.5, 0.99, 1.0, 1.35] {
            let exact: f64 = (1..=10_000).map(|i| f64::from(i).powf(-s)).sum();
            assert!(
                // 0.0059 at s = 1.35.
                (harmonic(10_000.0, s) / exact - 1.0).abs() < 0.006,
                "s = {s}"
            );
        }
    }

    /// Against a replay: one million draws from a Zipf distribution over records scattered on
    /// pages.
    #[test]
    fn the_hit_share_matches_a_replay() {
        use crate::rng::SplitMix64;
        let (records, per_page) = (40_000usize, 20usize);
        let pages = records / per_page;
        for exponent in [0.0, 0.8, 0.99, 1.2] {
            let mut random = SplitMix64::new(5);
            let mut page_of: Vec<usize> = (0..records).map(|i| i / per_page).collect();
            random.shuffle(&mut page_of);
            let mut weight = vec![0.0; pages];
            let mut total = 0.0;
            for (rank, page) in page_of.iter().enumerate() {
                let w = (rank as f64 + 1.0).powf(-exponent);
                weight[*page] += w;
                total += w;
            }
            weight.sort_by(|a, b| b.total_cmp(a));
            for cached in [pages / 10, pages / 3] {
                let exact = weight[..cached].iter().sum::<f64>() / total;
                let formula = hit_share(cached as f64, pages as f64, records as f64, exponent);
                assert!(
                    // 0.011 at most, for an exponent of 0.8.
                    (formula - exact).abs() < 0.012,
                    "exponent {exponent}, {cached} pages: {formula} against {exact}"
                );
            }
        }
    }

    /// Two sets of blocks, one small and hot, in an LRU cache that is replayed.
    #[test]
    fn small_sets_stay_in_the_cache() {
        use crate::rng::SplitMix64;
        use std::collections::{BTreeMap, HashMap};
        let (small, large, cached) = (50u64, 5000u64, 600usize);
        let mut random = SplitMix64::new(7);
        let (mut used, mut order) = (HashMap::new(), BTreeMap::new());
        let mut misses = [0.0; 2];
        let (operations, warm) = (40_000u64, 10_000u64);
        for now in 0..2 * operations {
            let set = (now % 2) as usize;
            let block = match set {
                0 => random.next_u64() % small,
                _ => small + random.next_u64() % large,
            };
            match used.insert(block, now) {
                Some(before) => {
                    order.remove(&before);
                }
                None if now >= 2 * warm => misses[set] += 1.0,
                None => {}
            }
            order.insert(now, block);
            if order.len() > cached
                && let Some((_, oldest)) = order.pop_first()
            {
                used.remove(&oldest);
            }
        }
        let sets = [(small as f64, 1.0), (large as f64, 1.0)];
        let formula = miss_shares(cached as f64, &sets);
        for (set, formula) in formula.iter().enumerate() {
            let seen = misses[set] / (operations - warm) as f64;
            // 0.890 where 0.888 were seen, and nothing where nothing was.
            assert!((formula - seen).abs() < 0.003, "{set}: {formula} {seen}");
        }
        assert!(formula[0] < 1e-5 && formula[1] > 0.88, "{formula:?}");
        assert_eq!(miss_shares(6000.0, &sets), [0.0, 0.0]);
    }

    #[test]
    fn everything_hits_when_everything_fits() {
        assert!((hit_share(500.0, 100.0, 1000.0, 0.99) - 1.0).abs() < 1e-12);
    }
}
