//! How many pages of each class are alive, by when they were last written.

use super::tag::{CELLS, STAMP_MASK, Tag};

/// Units of time in an epoch, unless that is too short.
const EPOCH_UNITS: u32 = 32;
/// Ticks in an epoch at least. The counting at the end of each takes some 20 µs even in a small
/// space.
const EPOCH_TICKS_MIN: u64 = 256;
/// Ticks after which scores are learned again, at least: that takes up to three million
/// instructions.
const LEARN_TICKS_MIN: u64 = 1024;
/// The share of the counts that remains after 32 units, 1/64 of the space's pages.
const FADE: f32 = 0.98;
/// The least share that remains after an epoch, however long.
const KEEPS_MIN: f32 = 0.5;
/// Pages older than this many units are all alike.
pub(super) const ANCIENT: u32 = STAMP_MASK / 2;
/// An epoch is never longer than this share of its age.
const LENGTH_SHARE: u64 = 8;

/// How long the youngest epoch is.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpochLength {
    /// Ticks per unit.
    pub(super) quantum: u64,
    /// Units, a power of two.
    pub(super) units: u32,
    /// The share of the counts that remains after an epoch.
    pub(super) keeps: f32,
    /// Scores are learned again at the end of one of so many.
    pub(super) learn_every: u64,
}

impl EpochLength {
    /// That of a space of `pages` pages.
    pub(super) fn new(pages: u64, quantum: u64) -> Self {
        let enough = EPOCH_TICKS_MIN.div_ceil(quantum) as u32;
        let units = enough.next_power_of_two().max(EPOCH_UNITS);
        let times = units as f32 * quantum as f32 * 64.0 / pages as f32;
        Self {
            quantum,
            units,
            keeps: FADE.powf(times).clamp(KEEPS_MIN, FADE),
            learn_every: LEARN_TICKS_MIN.div_ceil(u64::from(units) * quantum),
        }
    }

    pub(super) fn ticks(self) -> u64 {
        self.quantum * u64::from(self.units)
    }
}

/// A time in which pages were written, up to the next epoch's start.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    /// First unit, not wrapped.
    start: u64,
    /// Its row of counts.
    row: u16,
}

/// Counts of living pages by epoch and cell. Old epochs are merged, so that there are some eight
/// per factor of two in age.
#[derive(Debug, Clone)]
pub(super) struct Epochs {
    /// Oldest first; the first one holds everything that is older, too.
    list: Vec<Epoch>,
    /// By row × cell. A page whose history was lost may make one negative.
    alive: Vec<i32>,
    free_rows: Vec<u16>,
    /// By stamp / `units`, the row.
    row_of: Vec<u16>,
    /// Units in an epoch.
    units: u32,
}

/// Pages of one epoch: ages in units, from and to, and how many there are of each cell.
pub(super) struct Cohort<'a> {
    pub(super) youngest: f32,
    pub(super) oldest: f32,
    pub(super) alive: &'a [i32],
}

impl Epochs {
    pub(super) fn new(units: u32) -> Self {
        Self {
            units,
            list: vec![Epoch { start: 0, row: 0 }],
            alive: vec![0; CELLS],
            free_rows: Vec::new(),
            row_of: vec![0; ((STAMP_MASK + 1) / units) as usize],
        }
    }

    /// The epochs that there are at unit `now` of a space that was in use until then, with no pages
    /// in them.
    pub(super) fn of_the_past(units: u32, now: u64) -> Self {
        let mut epochs = Self::new(units);
        let unit = u64::from(units);
        let now = now / unit * unit;
        let mut starts = vec![now];
        let mut age = unit;
        while age < now.min(u64::from(ANCIENT)) {
            starts.push(now - age);
            age += (age / LENGTH_SHARE).next_multiple_of(unit).max(unit);
        }
        starts.reverse();
        starts.into_iter().for_each(|start| epochs.begin(start));
        epochs
    }

    /// The count that `tag` belongs to.
    #[inline]
    pub(super) fn alive(&mut self, tag: Tag) -> &mut i32 {
        let row = self.row_of[(tag.stamp / self.units) as usize];
        &mut self.alive[usize::from(row) * CELLS + tag.cell]
    }

    /// Pages alive.
    pub(super) fn total(&self) -> i64 {
        self.alive.iter().map(|&alive| i64::from(alive)).sum()
    }

    /// The pages of every epoch at unit `now`.
    pub(super) fn cohorts(&self, now: u64) -> impl Iterator<Item = Cohort<'_>> {
        let ends = self.list.iter().skip(1).map(|next| next.start);
        let ends = ends.chain(std::iter::once(now));
        self.list.iter().zip(ends).map(move |(epoch, end)| {
            let first = usize::from(epoch.row) * CELLS;
            Cohort {
                youngest: now.saturating_sub(end) as f32,
                oldest: now.saturating_sub(epoch.start) as f32,
                alive: &self.alive[first..first + CELLS],
            }
        })
    }

    /// Begins an epoch at unit `now`, a multiple of `units`.
    pub(super) fn begin(&mut self, now: u64) {
        if self.list.last().is_some_and(|epoch| epoch.start >= now) {
            return;
        }
        self.merge(now);
        let row = self.free_rows.pop().unwrap_or_else(|| {
            let rows = self.alive.len() / CELLS;
            self.alive.resize((rows + 1) * CELLS, 0);
            rows as u16
        });
        self.list.push(Epoch { start: now, row });
        self.map_stamps(now);
    }

    /// Merges neighbours that are short for their age, the ancient ones anyway.
    fn merge(&mut self, now: u64) {
        let mut i = 0;
        while i + 2 < self.list.len() {
            let (start, end) = (self.list[i].start, self.list[i + 2].start);
            let ancient = now - end >= u64::from(ANCIENT);
            if ancient || (end - start) * LENGTH_SHARE <= now - end {
                let younger = self.list.remove(i + 1).row;
                let older = usize::from(self.list[i].row) * CELLS;
                let first = usize::from(younger) * CELLS;
                for cell in 0..CELLS {
                    self.alive[older + cell] += std::mem::take(&mut self.alive[first + cell]);
                }
                self.free_rows.push(younger);
            }
            if !ancient {
                i += 1;
            }
        }
    }

    fn map_stamps(&mut self, now: u64) {
        let unit = u64::from(self.units);
        let mask = self.row_of.len() as u64 - 1;
        // Whatever is older than all other epochs, or was before stamps wrapped.
        self.row_of.fill(self.list[0].row);
        let oldest = (now / unit).saturating_sub(mask);
        for (i, epoch) in self.list.iter().enumerate().skip(1) {
            let end = self.list.get(i + 1).map_or(now + unit, |next| next.start);
            for at in (epoch.start / unit).max(oldest)..end / unit {
                self.row_of[(at & mask) as usize] = epoch.row;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::life_table::tag::stamp;
    use crate::rng::Rng;

    /// However epochs are merged, every page is counted out where it was counted in.
    #[test]
    fn pages_leave_the_count_that_they_entered() {
        let mut epochs = Epochs::new(EPOCH_UNITS);
        let mut rng = Rng::new(3);
        let mut tags: Vec<Option<Tag>> = vec![None; 500];
        // Until stamps have wrapped, with a third of the pages never written again.
        for now in 0..u64::from(STAMP_MASK) * 3 / 2 {
            if now % u64::from(EPOCH_UNITS) == 0 {
                epochs.begin(now);
            }
            if now % 7 != 0 {
                continue;
            }
            let mut page = rng.below(500) as usize;
            if tags[page].is_some() && page.is_multiple_of(3) {
                page += 1;
            }
            if let Some(old) = tags[page % 500] {
                *epochs.alive(old) -= 1;
            }
            let tag = Tag {
                stamp: stamp(now),
                cell: rng.below(CELLS as u32) as usize,
            };
            *epochs.alive(tag) += 1;
            tags[page % 500] = Some(tag);
            assert!(*epochs.alive(tag) > 0);
        }
        assert!(epochs.alive.iter().all(|&alive| alive >= 0));
        assert_eq!(epochs.total(), 500);
        // Measured 90 epochs and 333 young pages.
        assert!(epochs.list.len() <= 90, "{}", epochs.list.len());
        let now = u64::from(STAMP_MASK) * 3 / 2;
        let young: i32 = epochs
            .cohorts(now)
            .filter(|cohort| cohort.oldest < 40_000.0)
            .flat_map(|cohort| cohort.alive)
            .sum();
        assert!((330..337).contains(&young), "{young}");
    }
}
