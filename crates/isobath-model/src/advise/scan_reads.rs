//! Reads of a scan of Isobath from the drive: their number, and the I/Os that they take.
//!
//! The engine asks for the leaves of a scan together and reads those that lie beside each other
//! with one I/O. A load places leaves that follow each other next to each other; a page that is
//! written again goes where there is space, among pages that were changed at the same time
//! ([`super::write_back`]).

use super::write_back::{Joined, WriteBack};
use crate::workload::Order;

/// Leaves that a scan asks for together at first, and each time that half of these are behind it.
const WINDOW_LEAVES: u32 = 64;
const REFILL_LEAVES: u32 = WINDOW_LEAVES / 2;
/// Pages of one read at most.
const READ_PAGES_MAX: usize = 16;
/// Pages between two wanted ones that are read over.
const GAP_PAGES_MAX: usize = 1;
/// Leaves that a load writes beside each other.
const LOADED_RUN_LEAVES: f64 = 64.0;
/// Leaves of a scan that the pool counts as used.
const USED_LEAVES: f64 = 4.0;
/// Of scans whose first leaves are resident, those with so few are not looked at further.
const NEGLIGIBLE: f64 = 1e-9;

/// Means per scan.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ScanReads {
    /// Leaves that are not in memory.
    pub(super) leaves: f64,
    /// Reads of one leaf that nothing else is asked for with.
    pub(super) alone: f64,
    /// Reads among those that are asked for together, and pages of one of them, read over or not.
    pub(super) together: f64,
    pub(super) pages_together: f64,
    /// How often leaves are asked for together.
    pub(super) windows: f64,
}

/// Leaves of a store in use.
#[derive(Debug, Clone)]
pub(super) struct Leaves {
    /// Records that one holds.
    pub(super) records: f64,
    /// How probably one is not in memory.
    pub(super) miss: f64,
    pub(super) order: Order,
    /// Of leaves that were written again, how; nothing if their numbers do not follow their keys.
    pub(super) write_back: Option<WriteBack>,
    /// Of the operations that come to leaves, those that scan; the others come to one leaf each.
    pub(super) scan_share: f64,
}

impl Leaves {
    /// How probably the leaf behind a missing one is missing, too. A leaf is missing if nothing has
    /// come to it for some time; what came to the one behind it in that time can only have begun
    /// there, since a scan that begins before comes to both. Leaves behind a scan's first few do
    /// not count as used, and come and go more as they like.
    fn next_miss(&self, touched: f64) -> f64 {
        let used = touched.min(USED_LEAVES);
        let comes = self.scan_share * used + (1.0 - self.scan_share);
        self.miss.powf(1.0 / comes)
    }
}

impl ScanReads {
    /// Scans that say that they take `records`.
    pub(super) fn of(records: f64, leaves: &Leaves) -> ScanReads {
        let miss = leaves.miss.clamp(0.0, 1.0);
        // A scan begins anywhere in its first leaf; these are surely needed.
        let asked = (records / leaves.records).ceil().max(1.0);
        let touched = 1.0 + (records - 1.0).max(0.0) / leaves.records;
        let mut reads = ScanReads {
            leaves: miss * touched,
            ..ScanReads::default()
        };
        if asked <= 1.0 {
            reads.alone = reads.leaves;
            return reads;
        }
        let chain = Chain {
            behind_missing: leaves.next_miss(touched),
            miss,
            breaks: match leaves.order {
                Order::Loaded => 1.0 / LOADED_RUN_LEAVES,
                Order::Rewritten => 1.0,
            },
        };
        let first = chain.window(1.0);
        let later = chain.window(miss);
        let behind = chain.window(chain.behind_missing);
        let mut moved = 0.0;
        // All leaves that are asked for together may share reads, whatever lies between them in the
        // tree.
        let joins = |asked: f64| match &leaves.write_back {
            Some(write_back) if leaves.order == Order::Rewritten => write_back.joined(asked, miss),
            _ => Joined::default(),
        };
        let refill_joins = joins(f64::from(REFILL_LEAVES));
        let save = |(ios, pages): (f64, f64), joined: Joined| {
            (ios * (1.0 - joined.share), pages + ios * joined.over)
        };
        let mut ask = |first: &Window, leaves: f64, share: f64| {
            let own = leaves.min(f64::from(WINDOW_LEAVES));
            let refills = (leaves - own) / f64::from(REFILL_LEAVES);
            let (ios, pages) = save(first.until(own), joins(own));
            let (more_ios, more_pages) = save(later.until(f64::from(REFILL_LEAVES)), refill_joins);
            reads.together += share * (ios + refills * more_ios);
            moved += share * (pages + refills * more_pages);
            reads.windows += share * (1.0 + refills);
        };
        // The first leaf is missing: it is asked for with the others, and a last one once the first
        // has come.
        ask(&first, asked, miss);
        reads.alone = miss * (touched - asked).max(0.0) * chain.at(asked);
        // It is there: the first one that is missing is met, and read alone; those behind it are
        // asked for.
        let mut share = 1.0 - miss;
        let mut left = touched - 1.0;
        // Bound: leaves of the scan, fewer by the share that gets smaller.
        while left > 0.0 && share > NEGLIGIBLE {
            let met = share * chain.behind_resident() * left.min(1.0);
            reads.alone += met;
            left -= 1.0;
            if left > 0.0 {
                ask(&behind, left, met);
            }
            share *= 1.0 - chain.behind_resident();
        }
        reads.pages_together = match reads.together > 0.0 {
            true => moved / reads.together,
            false => 1.0,
        };
        reads
    }
}

/// Leaves one behind the other, each missing or not.
struct Chain {
    miss: f64,
    /// How probably a leaf behind a missing one is missing.
    behind_missing: f64,
    /// How probably it lies elsewhere.
    breaks: f64,
}

/// Expected reads, and pages that they move, of the first leaves of a window: entry `n` is of `n`
/// of them.
struct Window(Vec<(f64, f64)>);

impl Chain {
    /// How probably a leaf behind a resident one is missing.
    fn behind_resident(&self) -> f64 {
        match self.miss < 1.0 {
            true => (self.miss * (1.0 - self.behind_missing) / (1.0 - self.miss)).min(1.0),
            false => 1.0,
        }
    }

    /// How probably the leaf so many places behind a missing one is missing.
    fn at(&self, places: f64) -> f64 {
        let memory = (self.behind_missing - self.behind_resident()).max(0.0);
        self.miss + (1.0 - self.miss) * memory.powf(places)
    }

    /// A window whose first leaf is missing with that probability.
    fn window(&self, first: f64) -> Window {
        // How probably a read is open that has so many pages, and so many lie behind it.
        let mut open = [[0.0f64; READ_PAGES_MAX + 1]; GAP_PAGES_MAX + 1];
        let (mut ios, mut moved) = (0.0, 0.0);
        let mut sums = vec![(0.0, 0.0)];
        for leaf in 0..WINDOW_LEAVES {
            let mut next = [[0.0f64; READ_PAGES_MAX + 1]; GAP_PAGES_MAX + 1];
            let (mut missing, mut joins) = (0.0, 0.0);
            let mut closed = 1.0;
            for (gap, lengths) in open.iter().enumerate() {
                let misses = match gap {
                    0 => self.behind_missing,
                    _ => self.behind_resident(),
                };
                for (length, &share) in lengths.iter().enumerate() {
                    closed -= share;
                    missing += share * misses;
                    let beside = share * (1.0 - self.breaks);
                    let longer = length + gap + 1;
                    if longer <= READ_PAGES_MAX {
                        next[0][longer] += beside * misses;
                        moved += beside * misses * (gap + 1) as f64;
                        joins += beside * misses;
                    }
                    if gap < GAP_PAGES_MAX {
                        // Whether it lies beside matters once there is another.
                        next[gap + 1][length] += beside * (1.0 - misses);
                    }
                }
            }
            missing += match leaf {
                0 => first,
                _ => closed.max(0.0) * self.behind_resident(),
            };
            let begins = missing - joins;
            next[0][1] += begins;
            ios += begins;
            moved += begins;
            open = next;
            sums.push((ios, moved));
        }
        Window(sums)
    }
}

impl Window {
    /// Of this many leaves, at most those of a window; a part of a leaf is one in this many scans.
    fn until(&self, leaves: f64) -> (f64, f64) {
        let last = self.0.len() - 1;
        let at = (leaves as usize).min(last);
        let (low, high) = (self.0[at], self.0[(at + 1).min(last)]);
        let part = leaves - at as f64;
        (
            low.0 + part * (high.0 - low.0),
            low.1 + part * (high.1 - low.1),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    fn leaves(miss: f64, order: Order) -> Leaves {
        Leaves {
            records: 28.8,
            miss,
            order,
            write_back: None,
            scan_share: 1.0,
        }
    }

    #[test]
    fn leaves_that_all_lie_beside_each_other_take_few_reads() {
        // 4 leaves in one read but where a run of 64 ends; a fifth in 44 of 100 scans.
        let all = ScanReads::of(100.0, &leaves(1.0, Order::Loaded));
        let breaks = 3.0 / 64.0;
        assert!((all.together - 1.0 - breaks).abs() < 1e-9, "{all:?}");
        assert!((all.together * all.pages_together - 4.0).abs() < 1e-9);
        assert!((all.alone - 0.4375).abs() < 1e-9, "{all:?}");
        assert!((all.leaves - 4.4375).abs() < 1e-9, "{all:?}");
        let apart = ScanReads::of(100.0, &leaves(1.0, Order::Rewritten));
        assert!(
            (apart.alone + apart.together - apart.leaves).abs() < 1e-9,
            "{apart:?}"
        );
        assert!((apart.pages_together - 1.0).abs() < 1e-9, "{apart:?}");
        // A window of 64 missing leaves takes four reads of 16 pages, and a few more.
        let long = ScanReads::of(64.0 * 28.8, &leaves(1.0, Order::Loaded));
        // Measured 4.81.
        assert!((4.75..4.85).contains(&long.together), "{long:?}");
    }

    #[test]
    fn apart_each_missing_leaf_is_a_read() {
        for miss in [0.2, 0.7, 0.99] {
            for records in [10.0, 100.0, 1000.0] {
                let reads = ScanReads::of(records, &leaves(miss, Order::Rewritten));
                let ratio = (reads.alone + reads.together) / reads.leaves;
                assert!((ratio - 1.0).abs() < 1e-9, "{miss} {records}: {reads:?}");
            }
        }
    }

    #[test]
    fn nothing_is_read_where_nothing_is_missing() {
        for order in [Order::Loaded, Order::Rewritten] {
            let none = ScanReads::of(100.0, &leaves(0.0, order));
            assert_eq!((none.alone, none.together, none.leaves), (0.0, 0.0, 0.0));
            let short = ScanReads::of(10.0, &leaves(0.5, order));
            assert_eq!(short.alone, short.leaves);
        }
    }

    /// Against a replay of what the engine does (`find_runs` in its `long_read`) on leaves that are
    /// missing by chance.
    #[test]
    fn windows_agree_with_a_replay() {
        let chains = [
            (0.9, 0.9, 1.0 / 64.0),
            (0.7, 0.93, 1.0 / 64.0),
            (0.3, 0.5, 0.0),
            (0.7, 0.8, 1.0),
        ];
        for (miss, behind_missing, breaks) in chains {
            let chain = Chain {
                miss,
                behind_missing,
                breaks,
            };
            for leaves in [4u32, 20, 64] {
                let mut random = SplitMix64::new(3);
                let mut chance =
                    |of: f64| (random.next_u64() >> 11) as f64 / ((1u64 << 53) as f64) < of;
                let (mut ios, mut moved) = (0u32, 0u32);
                let rounds = 20_000u32;
                for _ in 0..rounds {
                    // The places of the first and the last page of the open read.
                    let mut open: Option<(u32, u32)> = None;
                    let mut place = 0;
                    let mut is_missing = None;
                    for _ in 0..leaves {
                        place += if chance(breaks) { 100 } else { 1 };
                        let now = match is_missing {
                            None => chance(miss),
                            Some(true) => chance(behind_missing),
                            Some(false) => chance(chain.behind_resident()),
                        };
                        is_missing = Some(now);
                        if !now {
                            continue;
                        }
                        open = match open {
                            Some((first, last)) if place - last <= 2 && place - first < 16 => {
                                moved += place - last;
                                Some((first, place))
                            }
                            _ => {
                                ios += 1;
                                moved += 1;
                                Some((place, place))
                            }
                        };
                    }
                }
                let (predicted, pages) = chain.window(miss).until(f64::from(leaves));
                let seen = f64::from(ios) / f64::from(rounds);
                let seen_pages = f64::from(moved) / f64::from(rounds);
                let text = format!(
                    "{leaves} {miss} {breaks}: {predicted} {seen}, {pages} {seen_pages} pages"
                );
                // 0.4% and 0.3% at most.
                assert!((predicted / seen - 1.0).abs() < 0.004, "{text}");
                assert!((pages / seen_pages - 1.0).abs() < 0.0035, "{text}");
            }
        }
    }
}
