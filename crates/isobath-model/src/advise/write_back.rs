//! Which leaves of a store that is written in no order lie beside each other all the same.
//!
//! A load numbers leaves in the order of their keys. The engine's writer takes changed pages from
//! one shard of their queue after another, where runs of page numbers share a shard, and writes a
//! batch in the order of the numbers unless its policy finds reasons for another one (mdc does;
//! greedy does not, nor life-table while all pages are updated alike). So a leaf lies beside the
//! next one of its batch, which often belongs to the same scan, until either is written again. The
//! cleaner keeps the order of what it moves, with those gone that were written again.

/// Shards of the queue of changed pages, and page numbers in a row of one shard.
const SHARDS: usize = 8;
const RUN_LEAVES: f64 = 64.0;
/// Of the frames, those that may be changed; writers begin at half of that, and take a quarter of
/// it, divided by their number.
const DIRTY_SHARE: f64 = 1.0 / 8.0;
const TARGET_SHARE: f64 = 0.5;
const BATCH_SHARE: f64 = 0.25;
/// Pages of a batch at least, and at most.
const BATCH_PAGES_MIN: f64 = 64.0;
const BATCH_PAGES_MAX: f64 = 8192.0;
/// Batches until those that follow are alike, and batches that are looked at then.
const SETTLED: usize = 400;
const LOOKED_AT: usize = 8;
/// How often a page was moved at most; one in a hundred was moved more often at a fill of 0.8.
const MOVES_MAX: i32 = 12;

/// What a batch takes from one shard.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Of all that is written.
    share: f64,
    /// Of the leaves of the shard, those that are written.
    density: f64,
    /// Whether the shard behind it, with the runs behind its own, is written in the same batch.
    goes_on: bool,
}

/// How leaves are written back.
#[derive(Debug, Clone)]
pub(super) struct WriteBack {
    parts: Vec<Part>,
    /// Of a segment's pages, those that are obsolete when it is cleaned.
    emptiness: f64,
}

/// Of missing leaves that are asked for together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Joined {
    /// The share that is read with another one, less one of each read.
    pub(super) share: f64,
    /// Of those, the ones for which a page between is read over.
    pub(super) over: f64,
}

impl WriteBack {
    /// `leaves` that are updated alike, by so many workers with a pool of `frames`, in segments
    /// that are cleaned at `fill`. Some policies take large batches, in order to sort them.
    pub(super) fn of(leaves: f64, frames: f64, workers: u32, fill: f64, is_sorted: bool) -> Self {
        let dirty = (frames * DIRTY_SHARE).min(leaves);
        let batch = match is_sorted {
            true => dirty * BATCH_SHARE / f64::from(workers.max(1)),
            false => BATCH_PAGES_MIN,
        };
        let batch = batch
            .clamp(BATCH_PAGES_MIN, BATCH_PAGES_MAX)
            .min(dirty * TARGET_SHARE);
        Self {
            parts: parts(leaves, dirty * TARGET_SHARE, batch, workers.max(1) as usize),
            emptiness: isobath_flash::analysis::emptiness(fill),
        }
    }

    /// What is saved where `asked` leaves that follow each other are asked for together, each
    /// missing with probability `miss`.
    pub(super) fn joined(&self, asked: f64, miss: f64) -> Joined {
        // While a segment ages until it is cleaned, the page behind a live one is live, too, with
        // this probability on average.
        let live = 1.0 - 0.5 * self.emptiness;
        let beside = live * miss;
        let mut joined = Joined::default();
        for part in &self.parts {
            let mut share = part.share * self.emptiness;
            let mut density = part.density;
            for _ in 0..MOVES_MAX {
                let (next, next_but_one) = within(asked.round(), density, part.goes_on);
                let over = share * (1.0 - beside) * beside * next_but_one;
                joined.share += share * beside * next + over;
                joined.over += over;
                // What is moved has lost the same share of its pages as neighbours.
                share *= 1.0 - self.emptiness;
                density *= 1.0 - self.emptiness;
            }
        }
        joined
    }
}

/// What batches take from shards, in the long run.
fn parts(leaves: f64, changed: f64, batch: f64, workers: usize) -> Vec<Part> {
    let shard_leaves = leaves / SHARDS as f64;
    let mut shards = [changed / SHARDS as f64; SHARDS];
    let mut cursors = vec![0usize; workers];
    let mut parts = Vec::new();
    for at in 0..SETTLED + LOOKED_AT * workers {
        let cursor = &mut cursors[at % workers];
        let (mut left, mut own) = (batch, Vec::new());
        for step in 0..SHARDS {
            let shard = &mut shards[(*cursor + step) % SHARDS];
            let taken = shard.min(left);
            if taken > 0.0 {
                own.push((taken, taken / shard_leaves));
            }
            *shard -= taken;
            left -= taken;
        }
        *cursor += 1;
        // As many pages change until the next batch.
        for shard in &mut shards {
            *shard += batch / SHARDS as f64;
        }
        if at >= SETTLED {
            let last = own.len().saturating_sub(1);
            parts.extend(own.iter().enumerate().map(|(i, &(taken, density))| Part {
                share: taken,
                density: density.min(1.0),
                goes_on: i < last,
            }));
        }
    }
    let all: f64 = parts.iter().map(|part| part.share).sum();
    for part in &mut parts {
        part.share /= all.max(f64::MIN_POSITIVE);
    }
    parts
}

/// How probably the next one of a batch that takes leaves with this probability is among `asked`
/// leaves in a row, and the next but one.
fn within(asked: f64, density: f64, goes_on: bool) -> (f64, f64) {
    let (mut next, mut next_but_one) = (0.0, 0.0);
    // How probably none of the leaves between is in the batch.
    let mut none = 1.0;
    let mut distance = 1.0;
    // Bound: leaves of a window.
    while distance < asked {
        let in_run = match goes_on {
            true => 1.0,
            false => (1.0 - distance / RUN_LEAVES).max(0.0),
        };
        let both = (1.0 - distance / asked) * in_run * density;
        next += both * none;
        // One of those between is in it.
        let one = (distance - 1.0) * density * none / (1.0 - density).max(f64::MIN_POSITIVE);
        next_but_one += both * one;
        none *= 1.0 - density;
        distance += 1.0;
    }
    (next, next_but_one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    /// The engine's write-back of leaves that are updated alike, and greedy cleaning: where each
    /// leaf lies in the end.
    fn written(leaves: usize, frames: usize, segment: usize) -> Vec<usize> {
        const UNPLACED: usize = usize::MAX;
        let mut random = SplitMix64::new(1);
        let segments = (leaves as f64 / 0.8 / segment as f64) as usize + 8;
        let mut place = vec![UNPLACED; leaves];
        let mut holds: Vec<Vec<usize>> = vec![Vec::new(); segments];
        let mut live = vec![0usize; segments];
        let mut free: Vec<usize> = (1..segments).collect();
        let mut open = 0;
        let mut shards = vec![Vec::new(); SHARDS];
        let (mut is_changed, mut changed, mut cursor) = (vec![false; leaves], 0, 0);
        let mut batch: Vec<usize> = (0..leaves).collect();
        for _ in 0..10 * leaves {
            // Survivors of the emptiest segment stay in their order.
            loop {
                for leaf in batch.drain(..) {
                    if holds[open].len() == segment {
                        open = free.pop().unwrap();
                        holds[open].clear();
                    }
                    if place[leaf] != UNPLACED {
                        live[place[leaf] / segment] -= 1;
                    }
                    place[leaf] = open * segment + holds[open].len();
                    holds[open].push(leaf);
                    live[open] += 1;
                }
                if free.len() >= 6 {
                    break;
                }
                let full = (0..segments).filter(|s| *s != open && holds[*s].len() == segment);
                let victim = full.min_by_key(|s| live[*s]).unwrap();
                let entries = std::mem::take(&mut holds[victim]).into_iter().enumerate();
                batch.extend(
                    entries
                        .filter(|(at, leaf)| place[*leaf] == victim * segment + at)
                        .map(|(_, leaf)| leaf),
                );
                free.insert(0, victim);
            }
            let leaf = (random.next_u64() % leaves as u64) as usize;
            if std::mem::replace(&mut is_changed[leaf], true) {
                continue;
            }
            changed += 1;
            shards[leaf / RUN_LEAVES as usize % SHARDS].push(leaf);
            if changed <= frames / 16 {
                continue;
            }
            for step in 0..SHARDS {
                let shard: &mut Vec<usize> = &mut shards[(cursor + step) % SHARDS];
                let taken = shard.len().min(frames / 32 - batch.len());
                batch.extend(shard.drain(..taken));
            }
            cursor += 1;
            batch.sort_unstable();
            changed -= batch.len();
            batch.iter().for_each(|leaf| is_changed[*leaf] = false);
        }
        place
    }

    /// Of missing leaves that are asked for together, those that cost no read of their own.
    fn saved(place: &[usize], asked: usize, miss: f64) -> f64 {
        let mut random = SplitMix64::new(2);
        let mut unit = || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let (mut reads, mut pages) = (0.0, 0.0);
        for _ in 0..6000 {
            let from = (unit() * (place.len() - asked) as f64) as usize;
            let window = place[from..from + asked].iter().copied();
            let mut missing: Vec<usize> = window.filter(|_| unit() < miss).collect();
            missing.sort_unstable();
            pages += missing.len() as f64;
            let apart = missing.windows(2).filter(|two| two[1] - two[0] > 2).count();
            reads += (apart + usize::from(!missing.is_empty())) as f64;
        }
        1.0 - reads / pages
    }

    /// Measured: 0.097 to 0.206 of 64, within 2.1%; 0.052 to 0.121 of 32, within 1.8%; what lies
    /// between is 0.165 of that at most.
    #[test]
    fn leaves_are_joined_as_in_a_simulation_of_the_writer() {
        for (leaves, frames, miss) in [
            (55_500, 15_500, 0.71),
            (30_000, 15_500, 0.6),
            (55_500, 8_000, 0.9),
        ] {
            let place = written(leaves, frames, 511);
            let write_back = WriteBack::of(leaves as f64, frames as f64, 1, 0.8, true);
            for (asked, within) in [(64, 0.022), (32, 0.019)] {
                let simulated = saved(&place, asked, miss);
                let joined = write_back.joined(asked as f64, miss);
                println!("{leaves} {frames} {asked}: {simulated:.4} {joined:?}");
                assert!((joined.share / simulated - 1.0).abs() < within);
                assert!(joined.over < 0.17 * joined.share);
            }
        }
    }

    #[test]
    fn small_batches_join_little_and_one_leaf_nothing() {
        let of = |is_sorted| WriteBack::of(55_500.0, 15_500.0, 1, 0.8, is_sorted);
        assert_eq!(of(true).joined(1.0, 0.7), Joined::default());
        let (large, small) = (of(true).joined(64.0, 0.7), of(false).joined(64.0, 0.7));
        assert!(small.share < large.share, "{small:?} {large:?}");
        assert_eq!(of(true).joined(64.0, 0.0), Joined::default());
    }
}
