//! Statistics of a trace: updates that follow the order of earlier ones, and how often pages are
//! updated otherwise.

use std::collections::VecDeque;

use super::Trace;
use crate::analysis::{FluidBound, Group, fluid_bound, groups_of_noisy_counts};

/// Versions overwritten before, with which one that is overwritten is compared.
const NEIGHBOURS: usize = 16;
/// Two versions are neighbours if their births, and their deaths, lie at most this share of a
/// lifetime apart.
const NEAR_SHARE: u64 = 64;
/// How much farther apart, in the same unit, births are sought that are near by chance.
const CHANCE_SHIFT: u64 = 5;
/// A page of which at least this share of updates comes in order is not in the independent part at
/// all.
const IN_ORDER_PAGE: f64 = 0.75;

/// Statistics of a trace's updates from some point on.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceContents {
    /// Live pages by how often they are updated independently of each other, of all these pages and
    /// updates.
    pub groups: Vec<Group>,
    /// Share of the updates that come in the order of earlier ones: sequential, cyclic, or swept.
    pub in_order: f64,
}

impl TraceContents {
    /// The least `Wamp` and cost at fill factor `fill`: the fluid bound for the updates that are
    /// independent of each other; the others overwrite whole segments in the order in which these
    /// were written, and cost nothing.
    pub fn bound(&self, fill: f64) -> FluidBound {
        let bound = fluid_bound(fill, &self.groups);
        let alone = 1.0 - self.in_order;
        FluidBound {
            wamp: alone * bound.wamp,
            // A segment that is cleaned when it is empty costs 2/E = 2.
            cost: alone * bound.cost + self.in_order * 2.0,
            ..bound
        }
    }

    /// The pages that the groups speak of.
    fn new(pages: &[PageUpdates], in_order: f64) -> Self {
        let others = pages.iter().filter(|page| !page.is_in_order());
        let counts: Vec<u32> = others.map(|page| page.others).collect();
        let share = counts.len() as f64 / (pages.len() as f64).max(1.0);
        let mut groups = match counts.iter().any(|&count| count > 0) {
            true => groups_of_noisy_counts(&counts),
            false => Vec::new(),
        };
        let in_order_pages = match groups.is_empty() {
            true => 1.0,
            false => 1.0 - share,
        };
        groups.iter_mut().for_each(|group| group.pages *= share);
        // These need no slack.
        if in_order_pages > 0.0 {
            groups.push(Group {
                pages: in_order_pages,
                updates: 0.0,
            });
        }
        Self { groups, in_order }
    }
}

/// The updates of one page.
#[derive(Debug, Clone, Copy, Default)]
struct PageUpdates {
    live: bool,
    in_order: u32,
    others: u32,
}

impl PageUpdates {
    /// Whether the page is updated in order, and by chance now and then at most.
    fn is_in_order(&self) -> bool {
        let all = f64::from(self.in_order + self.others);
        all > 0.0 && f64::from(self.in_order) >= IN_ORDER_PAGE * all
    }
}

/// The last versions overwritten: when each was written and overwritten, in writes.
#[derive(Debug, Default)]
struct Overwritten(VecDeque<(u64, u64)>);

impl Overwritten {
    /// Whether a version written at `born` and overwritten at `now` was overwritten beside one that
    /// was written near it, `shift` such distances away.
    fn has_neighbour(&self, born: u64, now: u64, shift: u64) -> bool {
        let near = (now - born) / NEAR_SHARE;
        let at = born.wrapping_sub(shift * near);
        self.0
            .iter()
            .rev()
            .take_while(|&&(_, died)| now - died <= near)
            .any(|&(other, _)| other.abs_diff(at) <= near && other != born)
    }

    fn push(&mut self, born: u64, now: u64) {
        if self.0.len() == NEIGHBOURS {
            self.0.pop_front();
        }
        self.0.push_back((born, now));
    }
}

impl Trace {
    /// Statistics of the operations from number `from` on; those before it show when pages were
    /// written.
    ///
    /// An update comes in order if its page's last version was written next to one that was
    /// overwritten just before. So many as do that by chance, as versions written at another time
    /// show, are not counted.
    pub fn contents(&self, from: usize) -> TraceContents {
        let mut born: Vec<Option<u64>> = vec![None; self.pages as usize];
        let mut pages = vec![PageUpdates::default(); self.pages as usize];
        let mut last = Overwritten::default();
        let (mut now, mut updates) = (0u64, 0u64);
        let (mut near, mut by_chance) = (0u64, 0u64);
        for (i, op) in self.ops.iter().enumerate() {
            let page = op.page() as usize;
            pages[page].live = !op.is_trim();
            if op.is_trim() {
                born[page] = None;
                continue;
            }
            now += 1;
            let before = born[page].replace(now);
            let Some(before) = before else {
                pages[page].others += u32::from(i >= from);
                updates += u64::from(i >= from);
                continue;
            };
            if i >= from {
                let in_order = last.has_neighbour(before, now, 0);
                near += u64::from(in_order);
                by_chance += u64::from(last.has_neighbour(before, now, CHANCE_SHIFT));
                updates += 1;
                match in_order {
                    true => pages[page].in_order += 1,
                    false => pages[page].others += 1,
                }
            }
            last.push(before, now);
        }
        pages.retain(|page| page.live || page.in_order + page.others > 0);
        let [near, by_chance] =
            [near, by_chance].map(|count| count as f64 / (updates as f64).max(1.0));
        let in_order = ((near - by_chance) / (1.0 - by_chance).max(0.01)).clamp(0.0, 1.0);
        // Intervals that chance explains say nothing of the pages either.
        if in_order < 0.02 {
            for page in &mut pages {
                page.others += std::mem::take(&mut page.in_order);
            }
            return TraceContents::new(&pages, 0.0);
        }
        TraceContents::new(&pages, in_order)
    }

    /// Pages that are live at the end or written from operation number `from` on.
    pub fn pages_in_use(&self, from: usize) -> u32 {
        let mut used = vec![false; self.pages as usize];
        for (i, op) in self.ops.iter().enumerate() {
            let page = &mut used[op.page() as usize];
            *page = !op.is_trim() || (*page && i >= from);
        }
        used.iter().filter(|&&used| used).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{emptiness, groups_of, wamp};
    use crate::workload::{Op, Synthetic, Workload};

    fn contents(law: &str, pages: u32, per_page: u32) -> TraceContents {
        let mut workload = Synthetic::new(law.parse().unwrap(), pages, 3).unwrap();
        let mut ops = vec![Op::write(0); (pages * per_page) as usize];
        workload.fill(&mut ops);
        let load = (0..pages).map(|page| Op::write(page * 7 % pages));
        let ops: Vec<Op> = load.chain(ops).collect();
        // From the second round on: the first one follows no order.
        Trace::new(ops, 0).contents(2 * pages as usize)
    }

    /// Page writes that do not depend on each other show no order, however skewed they are.
    #[test]
    fn independent_updates_are_not_in_order() {
        for law in ["uniform", "hot-cold:0.9", "zipf:0.99"] {
            let contents = contents(law, 20_011, 20);
            assert_eq!(contents.in_order, 0.0, "{law}");
            let groups = groups_of(law.parse().unwrap(), 20_011).unwrap();
            let (seen, exact) = (contents.bound(0.8).wamp, fluid_bound(0.8, &groups).wamp);
            // Measured 0.9998, 1.0093 and 0.9821 of the exact bound.
            assert!((seen / exact - 1.0).abs() < 0.019, "{law}: {seen} {exact}");
        }
    }

    /// Cyclic writes cost nothing; beside random ones the slack is all for these (section 3 with
    /// pages that need none).
    #[test]
    fn updates_in_order_are_found_and_cost_nothing() {
        let cyclic = contents("sequential:1:1", 20_011, 10);
        assert!(cyclic.in_order > 0.9999, "{}", cyclic.in_order);
        assert!(cyclic.bound(0.8).wamp < 1e-9);
        let half = contents("sequential:0.5:0.5", 20_011, 16);
        // Measured 0.4982, and a bound 1.0021 times as large.
        assert!((half.in_order - 0.5).abs() < 0.002, "{}", half.in_order);
        let exact = 0.5 * wamp(emptiness(0.4 / 0.6));
        let seen = half.bound(0.8).wamp;
        assert!((seen / exact - 1.0).abs() < 0.003, "{seen} {exact}");
    }
}
