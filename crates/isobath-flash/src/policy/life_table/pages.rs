//! Statistics of pages: an actuary's life table for every class of them.

use super::epochs::{EpochLength, Epochs};
use super::tag::{
    BUCKETS, CELLS, LAST_AGE, PER_OCTAVE, TRENDS, Tag, UNKNOWN_CELL, bucket, edge, mean_interval,
};

/// A page's score is about the time in which this share of the pages like it dies.
///
/// Classes mix pages that die soon with pages that stay: a page that is written after long silence
/// became hot, or will be silent again. One that dies soon leaves a hole in the segment that it
/// shares, for as long as that is not cleaned; one that stays is relocated once. Among cold pages
/// the hole costs more, so that pages go with hot ones even if fewer than half of their kind die
/// soon.
const DYING_SHARE: f32 = 0.25;
/// An interval that is so many factors of two shorter than the smoothed one may say that its page
/// became hot.
const HEATED_OCTAVES: usize = 3;
/// Pages of a class that die young up to this many times as often as chance makes them did not
/// become hot.
const BY_CHANCE: f32 = 2.0;
/// Number of scores.
pub(super) const SCORES: usize = 256;
/// Scores per factor of two in death rate.
pub(super) const SCORES_PER_OCTAVE: f32 = 8.0;
/// The score of pages that die at the mean rate.
const MEAN_SCORE: u8 = 88;
/// The prior of a cell at an age counts like this many deaths observed there.
const PRIOR_DEATHS: f32 = 4.0;

/// Observations of one cell by age bucket.
#[derive(Debug, Clone)]
struct Life {
    /// Whether there ever was a page in it.
    used: bool,
    born: f32,
    died: [f32; BUCKETS],
    /// Page-units lived.
    exposure: [f32; BUCKETS],
    /// Deaths in these if all pages died at the mean rate of their time.
    expected: [f32; BUCKETS],
}

const UNSEEN: Life = Life {
    used: false,
    born: 0.0,
    died: [0.0; BUCKETS],
    exposure: [0.0; BUCKETS],
    expected: [0.0; BUCKETS],
};

/// The life tables of all cells, and the score of a page by cell and age that follows from them.
///
/// A score is a death rate on a logarithmic scale, eight per factor of two: 0 for the hottest
/// pages.
#[derive(Debug, Clone)]
pub(super) struct PageLives {
    epoch: EpochLength,
    /// Ages below this bucket are younger than two epochs.
    young: usize,
    pages: f32,
    epochs: Epochs,
    lives: Vec<Life>,
    /// The cells in which there ever was a page.
    used: Vec<u16>,
    /// Deaths since the last epoch began.
    deaths: u32,
    scores: Vec<[u8; BUCKETS]>,
    /// By cell and age, the risk to die before that age: the sum of the death rates at all younger
    /// ages.
    risks: Vec<[f32; BUCKETS]>,
    /// By smoothed interval × interval that ended, the share of such pages that became hot.
    heated: Vec<[f32; BUCKETS]>,
    rate_of_score: Vec<f32>,
    /// The smallest age in each bucket, in units.
    edges: [f32; BUCKETS + 1],
    spread: f32,
    /// Whether there were pages before anything was observed. Then it is assumed of each class that
    /// its pages die as often as they were updated: learned from the first deaths alone, the tables
    /// would be no use for long.
    has_past: bool,
}

impl PageLives {
    pub(super) fn new(pages: u64, epoch: EpochLength) -> Self {
        Self {
            epoch,
            young: bucket(2 * epoch.units - 1),
            pages: pages as f32,
            epochs: Epochs::new(epoch.units),
            lives: vec![UNSEEN; CELLS],
            used: Vec::new(),
            deaths: 0,
            scores: vec![[MEAN_SCORE; BUCKETS]; CELLS],
            risks: vec![[0.0; BUCKETS]; CELLS],
            heated: vec![[0.0; BUCKETS]; BUCKETS],
            rate_of_score: (0..SCORES)
                .map(|score| rate_of(score as u8, pages as f32))
                .collect(),
            edges: std::array::from_fn(edge),
            spread: 0.0,
            has_past: false,
        }
    }

    /// A page of `tag` exists from now on.
    #[inline]
    pub(super) fn born(&mut self, tag: Tag) {
        self.lives[tag.cell].born += 1.0;
        *self.epochs.alive(tag) += 1;
    }

    /// The space is opened at unit `now`; there are pages from before.
    pub(super) fn opened(&mut self, now: u64) {
        self.has_past = true;
        self.epochs = Epochs::of_the_past(self.epoch.units, now);
    }

    /// There are `pages` pages of `tag` from before the space was opened.
    pub(super) fn restored(&mut self, tag: Tag, pages: u32) {
        let life = &mut self.lives[tag.cell];
        if !life.used {
            life.used = true;
            self.used.push(tag.cell as u16);
        }
        *self.epochs.alive(tag) += pages as i32;
    }

    /// A page of `tag` was overwritten at `age`.
    #[inline]
    pub(super) fn died(&mut self, tag: Tag, age: usize) {
        self.deaths += 1;
        self.lives[tag.cell].died[age] += 1.0;
        *self.epochs.alive(tag) -= 1;
    }

    /// A page of `tag` is no longer counted.
    pub(super) fn forget(&mut self, tag: Tag) {
        *self.epochs.alive(tag) -= 1;
    }

    /// Pages that are counted.
    #[cfg(test)]
    pub(super) fn alive(&self) -> i64 {
        self.epochs.total()
    }

    /// A page's time stamp changes.
    pub(super) fn restamp(&mut self, from: Tag, to: Tag) {
        *self.epochs.alive(from) -= 1;
        *self.epochs.alive(to) += 1;
    }

    /// The score of a page in `cell` at `age`.
    #[inline]
    pub(super) fn score(&self, cell: usize, age: usize) -> u8 {
        self.scores[cell][age]
    }

    /// By smoothed interval × interval that ended, the share of pages that became hot.
    pub(super) fn heated(&self) -> &[[f32; BUCKETS]] {
        &self.heated
    }

    /// Deaths per tick of pages of `score`.
    pub(super) fn rate_of(&self, score: u8) -> f32 {
        self.rate_of_score[usize::from(score)]
    }

    /// Deaths per tick of pages in `cell` that are `units` old, until a [`DYING_SHARE`] of them is
    /// dead.
    #[inline]
    pub(super) fn rate(&self, cell: usize, units: u32) -> f32 {
        self.rate_of(self.score(cell, bucket(units)))
    }

    /// The risk of pages in `cell` to die before they are `units` old; e to its negative power
    /// survive.
    #[inline]
    pub(super) fn risk(&self, cell: usize, units: u32) -> f32 {
        let age = bucket(units);
        let (from, to) = (self.edges[age], self.edges[age + 1]);
        let risks = &self.risks[cell];
        let share = (units as f32 - from) / (to - from);
        let next = risks[(age + 1).min(LAST_AGE)];
        risks[age] + share * (next - risks[age])
    }

    /// The score of pages that die at `rate` per tick.
    fn score_of(&self, rate: f32) -> u8 {
        let octaves = -(rate * self.pages).log2();
        (octaves * SCORES_PER_OCTAVE + f32::from(MEAN_SCORE) + 0.5).clamp(0.0, 255.0) as u8
    }

    /// Variance of the death rates of pages, relative to their mean squared, beyond what chance
    /// explains.
    pub(super) fn spread(&self) -> f32 {
        self.spread
    }

    /// Begins the epoch of unit `now`, a multiple of its length: counts what was lived since the
    /// last one, after what was observed before has faded.
    pub(super) fn begin_epoch(&mut self, now: u64) {
        let keeps = self.epoch.keeps;
        for (cell, life) in self.lives.iter_mut().enumerate() {
            if !life.used && life.born > 0.0 {
                life.used = true;
                self.used.push(cell as u16);
            }
        }
        for &cell in &self.used {
            let life = &mut self.lives[usize::from(cell)];
            life.born *= keeps;
            let counts = life.died.iter_mut();
            let counts = counts.chain(&mut life.exposure).chain(&mut life.expected);
            counts.for_each(|count| *count *= keeps);
        }
        self.count_alive(now);
        self.count_young();
        self.epochs.begin(now);
    }

    /// Turns the observations into scores.
    pub(super) fn learn(&mut self) {
        self.learn_scores();
        self.measure_spread();
    }

    /// Adds what the pages that are alive lived in the last epoch, beyond the young ages.
    fn count_alive(&mut self, now: u64) {
        let alive = self.epochs.total().max(1) as f32;
        let rate = self.deaths as f32 / (alive * self.epoch.units as f32);
        self.deaths = 0;
        for cohort in self.epochs.cohorts(now) {
            let (low, high) = (cohort.youngest, cohort.oldest);
            for age in bucket(low as u32).max(self.young)..=LAST_AGE {
                if self.edges[age] >= high {
                    break;
                }
                let end = match age {
                    LAST_AGE => high,
                    _ => self.edges[age + 1].min(high),
                };
                let share = (end - self.edges[age].max(low)).max(0.0) / (high - low);
                let units = self.epoch.units as f32 * share;
                for &cell in &self.used {
                    let life = &mut self.lives[usize::from(cell)];
                    let alive = cohort.alive[usize::from(cell)];
                    let lived = units * alive.max(0) as f32;
                    life.exposure[age] += lived;
                    life.expected[age] += lived * rate;
                }
            }
        }
    }

    /// The living at young ages follow from births and deaths, which are steady over so short a
    /// time.
    fn count_young(&mut self) {
        let rate = self.mean_rate();
        for life in self.lives.iter_mut().filter(|life| life.used) {
            let mut alive = life.born;
            for age in 0..self.young {
                let width = self.edges[age + 1] - self.edges[age];
                life.exposure[age] = (alive - 0.5 * life.died[age]).max(0.0) * width;
                life.expected[age] = life.exposure[age] * rate;
                alive = (alive - life.died[age]).max(0.0);
            }
        }
    }

    /// Deaths per page-unit.
    fn mean_rate(&self) -> f32 {
        let used = || self.lives.iter().filter(|life| life.used);
        let died: f32 = used().flat_map(|life| life.died).sum();
        let exposure: f32 = used().flat_map(|life| life.exposure).sum();
        (died + 1.0) / (exposure + self.pages / self.epoch.quantum as f32)
    }

    fn learn_scores(&mut self) {
        let mean = self.mean_rate();
        let edges = self.edges;
        // Most rows have never had a page: they are all alike.
        let unused = [mean; BUCKETS];
        let row = self.scores_of_hazard(&unused, &edges);
        let risks = risks_of_hazard(&unused, &edges);
        for smoothed in 0..BUCKETS {
            let cells = (0..TRENDS).map(|trend| smoothed + BUCKETS * trend);
            if !cells.clone().any(|cell| self.lives[cell].used) {
                for cell in cells {
                    (self.scores[cell], self.risks[cell]) = (row, risks);
                }
                continue;
            }
            let prior = match smoothed {
                UNKNOWN_CELL => mean,
                _ if self.has_past => 1.0 / mean_interval(smoothed),
                _ => mean,
            };
            if smoothed != UNKNOWN_CELL {
                self.heated[smoothed] = self.heated_of(smoothed, cells.clone());
            }
            let together = self.hazard_together(cells.clone(), prior);
            let row = self.scores_of_hazard(&together, &edges);
            let risks = risks_of_hazard(&together, &edges);
            for cell in cells {
                let life = &self.lives[cell];
                (self.scores[cell], self.risks[cell]) = (row, risks);
                if life.used && smoothed != UNKNOWN_CELL {
                    let hazard = std::array::from_fn(|age| {
                        (life.died[age] + PRIOR_DEATHS)
                            / (life.exposure[age] + PRIOR_DEATHS / together[age])
                    });
                    self.scores[cell] = self.scores_of_hazard(&hazard, &edges);
                    self.risks[cell] = risks_of_hazard(&hazard, &edges);
                }
            }
        }
    }

    /// By the interval that ended, the share of pages of `cells`, of smoothed interval `smoothed`,
    /// that became hot.
    ///
    /// Where frequencies stay, some intervals are short by chance: as many as a constant rate of
    /// one death per mean interval makes. The others are pages that became hot.
    fn heated_of(
        &self,
        smoothed: usize,
        cells: impl Iterator<Item = usize> + Clone,
    ) -> [f32; BUCKETS] {
        let rate = 1.0 / mean_interval(smoothed);
        let lives = cells.map(|cell| &self.lives[cell]);
        let lives = lives.filter(|life| life.used);
        let (mut died, mut by_chance) = (PRIOR_DEATHS, PRIOR_DEATHS);
        let mut heated = [0.0; BUCKETS];
        let short = (smoothed + 1).saturating_sub(HEATED_OCTAVES * PER_OCTAVE as usize);
        for (age, heated) in heated.iter_mut().enumerate().take(short) {
            for life in lives.clone() {
                died += life.died[age];
                by_chance += life.exposure[age] * rate;
            }
            *heated = (1.0 - BY_CHANCE * by_chance / died).max(0.0);
        }
        heated
    }

    /// Deaths per page-unit by age in all of `cells` together, each age beginning with what the
    /// younger one says.
    fn hazard_together(
        &self,
        cells: impl Iterator<Item = usize> + Clone,
        mean: f32,
    ) -> [f32; BUCKETS] {
        let mut younger = mean;
        std::array::from_fn(|age| {
            let lives = cells.clone().map(|cell| &self.lives[cell]);
            let (died, exposure) = lives
                .filter(|life| life.used)
                .fold((0.0, 0.0), |(died, exposure), life| {
                    (died + life.died[age], exposure + life.exposure[age])
                });
            younger = (died + PRIOR_DEATHS) / (exposure + PRIOR_DEATHS / younger);
            younger
        })
    }

    /// The score of a page by its age, from the death rate at each age: that of the rate at which a
    /// [`DYING_SHARE`] of such pages dies.
    fn scores_of_hazard(
        &self,
        hazard: &[f32; BUCKETS],
        edges: &[f32; BUCKETS + 1],
    ) -> [u8; BUCKETS] {
        let width = |age: usize| edges[age + 1] - edges[age];
        let dying_risk = -(1.0 - DYING_SHARE).ln();
        let mut scores = [MEAN_SCORE; BUCKETS];
        // Risk and time from the young edge of a page's bucket to that of bucket `to`.
        let (mut to, mut risk, mut time) = (0, 0.0f32, 0.0f32);
        for (from, score) in scores.iter_mut().enumerate().take(LAST_AGE + 1) {
            // The page is on average half-way through its own bucket, except at age 0.
            let passed = if from > 0 { 0.5 * width(from) } else { 0.0 };
            let reached = dying_risk + passed * hazard[from];
            while to < LAST_AGE && risk + hazard[to] * width(to) < reached {
                risk += hazard[to] * width(to);
                time += width(to);
                to += 1;
            }
            let left = time + (reached - risk) / hazard[to] - passed;
            *score = self.score_of(dying_risk / (left * self.epoch.quantum as f32));
            if to > from {
                risk = (risk - hazard[from] * width(from)).max(0.0);
                time -= width(from);
            } else {
                to = from + 1;
            }
        }
        scores
    }

    /// With d deaths seen where e were expected at the mean rate, (d−e)² − d has the mean 0 if
    /// chance alone decides, and else e² × the squared relative difference of the rate.
    fn measure_spread(&mut self) {
        let (mut excess, mut weight) = (0.0, 0.0);
        for life in self.lives.iter().filter(|life| life.used) {
            for (&d, &e) in life.died.iter().zip(&life.expected) {
                let (d, e) = (f64::from(d), f64::from(e));
                excess += (d - e) * (d - e) - d;
                weight += e * e;
            }
        }
        self.spread = (excess / weight.max(1.0)) as f32;
    }
}

/// Deaths per tick of pages of `score` in a space of `pages` pages.
fn rate_of(score: u8, pages: f32) -> f32 {
    ((f32::from(MEAN_SCORE) - f32::from(score)) / SCORES_PER_OCTAVE).exp2() / pages
}

/// By age, the sum of the death rates of all younger ages.
fn risks_of_hazard(hazard: &[f32; BUCKETS], edges: &[f32; BUCKETS + 1]) -> [f32; BUCKETS] {
    let mut sum = 0.0;
    std::array::from_fn(|age| {
        let before = sum;
        if age < LAST_AGE {
            sum += hazard[age] * (edges[age + 1] - edges[age]);
        }
        before
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_and_rates_agree() {
        let lives = PageLives::new(1 << 20, EpochLength::new(1 << 20, 512));
        assert_eq!(lives.score_of(lives.rate_of(20)), 20);
        assert_eq!(lives.score_of(1.0 / (1 << 20) as f32), MEAN_SCORE);
    }

    /// A constant death rate gives its own score at every age.
    #[test]
    fn without_aging_the_score_is_the_rate() {
        let lives = PageLives::new(1 << 20, EpochLength::new(1 << 20, 512));
        let edges = std::array::from_fn(edge);
        for score in [30, 60, 88, 120] {
            let rate = lives.rate_of(score) * 512.0;
            let scores = lives.scores_of_hazard(&[rate; BUCKETS], &edges);
            assert!(
                scores[..=LAST_AGE].iter().all(|&s| s.abs_diff(score) <= 1),
                "{score}: {scores:?}"
            );
        }
    }

    /// A page that dies much younger than pages like it usually do became hot, if more do than
    /// chance explains.
    #[test]
    fn pages_became_hot_if_more_die_young_than_by_chance() {
        let smoothed = 40;
        let heated = |died_young: f32| {
            let mut lives = PageLives::new(1 << 20, EpochLength::new(1 << 20, 512));
            let life = &mut lives.lives[smoothed];
            life.used = true;
            for age in 0..30 {
                let width = edge(age + 1) - edge(age);
                life.exposure[age] = 10_000.0 * width;
                life.died[age] = died_young * 10_000.0 * width / mean_interval(smoothed);
            }
            lives.learn();
            [20, 31, 32].map(|interval| lives.heated()[smoothed][interval])
        };
        assert_eq!(heated(1.0), [0.0; 3]);
        let [young, short, longer] = heated(20.0);
        // Measured 0.895 and 0.899.
        assert!(young > 0.89 && short > 0.89, "{young} {short}");
        assert_eq!(longer, 0.0, "not three factors of two shorter");
    }

    /// Of a kind of which a third dies soon and the rest never, a page scores with those that die
    /// soon, until it has survived that age.
    #[test]
    fn a_kind_that_dies_soon_or_never_scores_as_dying_soon() {
        let lives = PageLives::new(1 << 20, EpochLength::new(1 << 20, 512));
        let edges: [f32; BUCKETS + 1] = std::array::from_fn(edge);
        let soon = 1.0 / 3.0 / edges[12];
        let hazard = std::array::from_fn(|age| if age < 12 { 1.2 * soon } else { 1e-6 });
        let scores = lives.scores_of_hazard(&hazard, &edges);
        let as_soon = lives.score_of(1.2 * soon / 512.0);
        assert!(scores[0].abs_diff(as_soon) <= 1, "{} {as_soon}", scores[0]);
        // Measured 42 and 159 where dying soon is 42.
        assert!(scores[14] > as_soon + 115, "{scores:?}");
    }

    /// Pages that die less the older they are have more time left the older they are.
    #[test]
    fn survivors_score_as_colder() {
        let lives = PageLives::new(1 << 20, EpochLength::new(1 << 20, 512));
        let edges = std::array::from_fn(edge);
        let hazard = std::array::from_fn(|age| 0.7 / (edge(age) + 1.0));
        let scores = lives.scores_of_hazard(&hazard, &edges);
        assert!(
            scores[..=LAST_AGE]
                .windows(2)
                .all(|pair| pair[0] <= pair[1]),
            "{scores:?}"
        );
        // Measured 114 and 34: ten octaves of eight.
        assert!(scores[40] > scores[10] + 78, "{scores:?}");
    }
}
