//! Synthetic workloads, stationary and moving.

use super::{Op, Workload, Zipf};
use crate::rng::Rng;

/// A synthetic workload's law.
///
/// The law speaks of ranks, the hottest first; [`Synthetic`] gives every rank a page number that
/// says nothing of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WorkloadKind {
    /// Every page equally likely.
    Uniform,
    /// m:1−m: a share `hot_updates` of the updates goes to a share `hot_pages` of the pages
    /// (section 3.2).
    HotCold {
        /// Share of the updates, e.g. 0.8.
        hot_updates: f64,
        /// Share of the pages, e.g. 0.2.
        hot_pages: f64,
    },
    /// Zipf with this exponent (section 6.2.2: 0.99 and 1.35).
    Zipf {
        /// The exponent, ≥ 0.
        exponent: f64,
    },
    /// Hot-cold whose hot set jumps to a random place every `period` × pages updates.
    ShiftingHot {
        /// Share of the updates.
        hot_updates: f64,
        /// Share of the pages.
        hot_pages: f64,
        /// Updates between jumps, in multiples of the number of pages.
        period: f64,
    },
    /// Hot-cold whose hot set is a window that slides over all pages once in `period` × pages
    /// updates.
    SlidingHot {
        /// Share of the updates.
        hot_updates: f64,
        /// Share of the pages.
        hot_pages: f64,
        /// Updates per turn around all pages, in multiples of the number of pages.
        period: f64,
    },
    /// Zipf whose head moves: again and again the coldest page becomes the hottest and all others
    /// lose one rank; a page goes from hottest to coldest in `period` × pages updates.
    ZipfMovingHead {
        /// The exponent, ≥ 0.
        exponent: f64,
        /// Updates per turn, in multiples of the number of pages.
        period: f64,
    },
    /// A share of the updates cycles through a share of the pages in order, the rest to the other
    /// pages, which are equally likely: a log or a queue beside random updates. Pages of the first
    /// kind are invalidated in the order in which they were written, so that cleaning them costs
    /// nothing.
    Sequential {
        /// Share of the updates that cycle, above 0, up to 1.
        updates: f64,
        /// Share of the pages that they cycle through, above 0, up to 1; the other updates then go
        /// to all pages.
        pages: f64,
    },
}

/// A workload description that makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The name or its parameters could not be read.
    #[error("unknown workload `{text}`; write one of: {}", WorkloadKind::FORMS)]
    Unknown {
        /// The given text.
        text: String,
    },
    /// A parameter is out of range.
    #[error("workload `{text}`: {what} must be {range}")]
    Parameter {
        /// The given text.
        text: String,
        /// The parameter.
        what: &'static str,
        /// The allowed range.
        range: &'static str,
    },
}

impl WorkloadKind {
    /// How workloads are written.
    pub const FORMS: &'static str = "uniform, hot-cold:0.8 (updates to the hot 0.2) or hot-cold:UPDATES:PAGES, \
        zipf:EXPONENT, shifting:UPDATES:PAGES:PERIOD, sliding:UPDATES:PAGES:PERIOD, zipf-moving:EXPONENT:PERIOD, \
        sequential:UPDATES:PAGES (in order, the rest uniform)";

    fn check(&self, text: &str) -> Result<(), WorkloadError> {
        let parameter = |what, range| {
            Err(WorkloadError::Parameter {
                text: text.to_owned(),
                what,
                range,
            })
        };
        let share = |x: f64| x > 0.0 && x < 1.0;
        if let Some((updates, pages)) = self.hot() {
            if !share(updates) {
                return parameter("the hot share of updates", "between 0 and 1");
            }
            if !share(pages) {
                return parameter("the hot share of pages", "between 0 and 1");
            }
        }
        if let Some(exponent) = self.exponent()
            && !(0.0..=10.0).contains(&exponent)
        {
            return parameter("the exponent", "between 0 and 10");
        }
        if let Self::Sequential { updates, pages } = *self
            && ![updates, pages].iter().all(|&x| x > 0.0 && x <= 1.0)
        {
            return parameter("a sequential share", "above 0 and at most 1");
        }
        if let Some(period) = self.period()
            && !(period.is_finite() && period > 0.0)
        {
            return parameter("the period", "above 0");
        }
        Ok(())
    }

    fn hot(&self) -> Option<(f64, f64)> {
        match *self {
            Self::HotCold {
                hot_updates,
                hot_pages,
            }
            | Self::ShiftingHot {
                hot_updates,
                hot_pages,
                ..
            }
            | Self::SlidingHot {
                hot_updates,
                hot_pages,
                ..
            } => Some((hot_updates, hot_pages)),
            _ => None,
        }
    }

    fn exponent(&self) -> Option<f64> {
        match *self {
            Self::Zipf { exponent } | Self::ZipfMovingHead { exponent, .. } => Some(exponent),
            _ => None,
        }
    }

    fn period(&self) -> Option<f64> {
        match *self {
            Self::ShiftingHot { period, .. }
            | Self::SlidingHot { period, .. }
            | Self::ZipfMovingHead { period, .. } => Some(period),
            _ => None,
        }
    }

    /// True if the law does not change over time, and updates do not depend on each other.
    pub fn is_stationary(&self) -> bool {
        self.period().is_none() && !matches!(self, Self::Sequential { .. })
    }
}

impl std::fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Uniform => write!(f, "uniform"),
            Self::HotCold {
                hot_updates,
                hot_pages,
            } => write!(f, "hot-cold:{hot_updates}:{hot_pages}"),
            Self::Zipf { exponent } => write!(f, "zipf:{exponent}"),
            Self::ShiftingHot {
                hot_updates,
                hot_pages,
                period,
            } => {
                write!(f, "shifting:{hot_updates}:{hot_pages}:{period}")
            }
            Self::SlidingHot {
                hot_updates,
                hot_pages,
                period,
            } => {
                write!(f, "sliding:{hot_updates}:{hot_pages}:{period}")
            }
            Self::ZipfMovingHead { exponent, period } => {
                write!(f, "zipf-moving:{exponent}:{period}")
            }
            Self::Sequential { updates, pages } => write!(f, "sequential:{updates}:{pages}"),
        }
    }
}

impl std::str::FromStr for WorkloadKind {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let unknown = || WorkloadError::Unknown {
            text: text.to_owned(),
        };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers = parts
            .map(|part| part.parse::<f64>().map_err(|_| unknown()))
            .collect::<Result<Vec<_>, _>>()?;
        let kind = match (name, numbers.as_slice()) {
            ("uniform", []) => Self::Uniform,
            ("hot-cold", &[m]) => Self::HotCold {
                hot_updates: m,
                // Without the noise of the subtraction, which names would show.
                hot_pages: ((1.0 - m) * 1e12).round() / 1e12,
            },
            ("hot-cold", &[hot_updates, hot_pages]) => Self::HotCold {
                hot_updates,
                hot_pages,
            },
            ("zipf", &[exponent]) => Self::Zipf { exponent },
            ("shifting", &[hot_updates, hot_pages, period]) => Self::ShiftingHot {
                hot_updates,
                hot_pages,
                period,
            },
            ("sliding", &[hot_updates, hot_pages, period]) => Self::SlidingHot {
                hot_updates,
                hot_pages,
                period,
            },
            ("zipf-moving", &[exponent, period]) => Self::ZipfMovingHead { exponent, period },
            ("sequential", &[updates, pages]) => Self::Sequential { updates, pages },
            _ => return Err(unknown()),
        };
        kind.check(text)?;
        Ok(kind)
    }
}

/// An endless stream of writes that follows a [`WorkloadKind`].
#[derive(Debug, Clone)]
pub struct Synthetic {
    kind: WorkloadKind,
    pages: u32,
    /// Hot pages, or those that are written in order.
    hot_pages: u32,
    /// A 64-bit draw below this is a hot update.
    hot_threshold: u64,
    zipf: Option<Zipf>,
    rng: Rng,
    /// By rank, the page.
    pages_of_ranks: Vec<u32>,
    /// Rank on which the hot set or the head starts, or that is written next in order.
    offset: u32,
    /// Updates per move of the offset, and updates done since the last.
    step: f64,
    since: f64,
}

impl Synthetic {
    /// The workload over `pages` pages (1 to 2³¹−1). Ranks are scattered over the page numbers by
    /// chance: were the hot pages neighbours, whatever is done in the order of page numbers would
    /// keep them together.
    ///
    /// # Errors
    /// If a parameter of `kind` is out of range.
    pub fn new(kind: WorkloadKind, pages: u32, seed: u64) -> Result<Self, WorkloadError> {
        kind.check(&kind.to_string())?;
        let pages = pages.clamp(1, Op::MAX_PAGES - 1);
        let (updates, share) = kind.hot().unwrap_or((0.0, 0.0));
        let pages_of_ranks = match kind {
            WorkloadKind::Uniform => Vec::new(),
            _ => scattered(pages, seed),
        };
        let share = match kind {
            WorkloadKind::Sequential { pages, .. } => pages,
            _ => share,
        };
        let hot_pages = ((f64::from(pages) * share).round() as u32).clamp(1, pages.max(2) - 1);
        let step = match kind {
            WorkloadKind::ShiftingHot { period, .. } => period * f64::from(pages),
            _ => kind.period().unwrap_or(f64::INFINITY),
        };
        Ok(Self {
            kind,
            pages,
            hot_pages,
            hot_threshold: (updates * 2f64.powi(64)) as u64,
            zipf: kind.exponent().map(|exponent| Zipf::new(pages, exponent)),
            rng: Rng::new(seed),
            pages_of_ranks,
            offset: 0,
            step,
            since: 0.0,
        })
    }

    /// The same workload with page numbers in the order of ranks, the hottest first.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.pages_of_ranks = Vec::new();
        self
    }

    /// The page of `rank`.
    #[inline]
    fn page(&self, rank: u32) -> u32 {
        match self.pages_of_ranks.get(rank as usize) {
            Some(&page) => page,
            None => rank,
        }
    }

    /// By rank to by page.
    fn by_page(&self, by_rank: Vec<f32>) -> Vec<f32> {
        let mut by_page = vec![0.0; by_rank.len()];
        for (rank, rate) in by_rank.into_iter().enumerate() {
            by_page[self.page(rank as u32) as usize] = rate;
        }
        by_page
    }

    /// The next page of the cyclic law.
    fn sequential(&mut self, updates: f64, pages: f64) -> u32 {
        let in_order = if pages < 1.0 {
            self.hot_pages
        } else {
            self.pages
        };
        if self.rng.unit() < updates {
            let next = self.offset;
            self.offset = (next + 1) % in_order;
            return next;
        }
        let first = in_order % self.pages;
        first + self.rng.below(self.pages - first)
    }

    #[inline]
    fn hot_cold(&mut self) -> u32 {
        if self.rng.bits() < self.hot_threshold {
            self.rng.below(self.hot_pages)
        } else {
            self.hot_pages + self.rng.below(self.pages - self.hot_pages)
        }
    }

    /// `index` counted from the moving offset.
    #[inline]
    fn rotate(&self, index: u32) -> u32 {
        let sum = u64::from(index) + u64::from(self.offset);
        let pages = u64::from(self.pages);
        (if sum >= pages { sum - pages } else { sum }) as u32
    }

    fn advance(&mut self, updates: usize) {
        self.since += updates as f64;
        while self.since >= self.step {
            self.since -= self.step;
            self.offset = match self.kind {
                WorkloadKind::ShiftingHot { .. } => self.rng.below(self.pages),
                // The page in front of the head is the coldest and becomes the hottest.
                WorkloadKind::ZipfMovingHead { .. } => {
                    self.offset.checked_sub(1).unwrap_or(self.pages - 1)
                }
                _ => (self.offset + 1) % self.pages,
            };
        }
    }
}

impl Workload for Synthetic {
    fn pages(&self) -> u32 {
        self.pages
    }

    fn fill(&mut self, out: &mut [Op]) -> usize {
        if let WorkloadKind::Sequential { updates, pages } = self.kind {
            for op in out.iter_mut() {
                *op = Op::write(self.sequential(updates, pages));
            }
        } else if matches!(self.kind, WorkloadKind::Uniform) {
            for op in out.iter_mut() {
                *op = Op::write(self.rng.below(self.pages));
            }
        } else if let Some(zipf) = self.zipf.take() {
            let moves = self.step.is_finite();
            for op in out.iter_mut() {
                let rank = zipf.sample(&mut self.rng);
                *op = Op::write(self.rotate(rank));
                if moves {
                    self.advance(1);
                }
            }
            self.zipf = Some(zipf);
        } else {
            for op in out.iter_mut() {
                let rank = self.hot_cold();
                *op = Op::write(self.rotate(rank));
                self.advance(1);
            }
        }
        // In a pass of its own, so that the loads overlap.
        if !self.pages_of_ranks.is_empty() {
            for op in out.iter_mut() {
                *op = Op::write(self.pages_of_ranks[op.page() as usize]);
            }
        }
        out.len()
    }

    fn rates(&self) -> Option<Vec<f32>> {
        let pages = self.pages;
        match self.kind {
            WorkloadKind::Uniform => Some(vec![1.0 / pages as f32; pages as usize]),
            WorkloadKind::HotCold { hot_updates, .. } => {
                let hot = hot_updates / f64::from(self.hot_pages);
                let cold = (1.0 - hot_updates) / f64::from(pages - self.hot_pages);
                let rate = |rank| if rank < self.hot_pages { hot } else { cold } as f32;
                Some(self.by_page((0..pages).map(rate).collect()))
            }
            WorkloadKind::Zipf { .. } => {
                let zipf = self.zipf.as_ref()?;
                let rate = |rank| zipf.probability(rank) as f32;
                Some(self.by_page((0..pages).map(rate).collect()))
            }
            _ => None,
        }
    }
}

/// The numbers below `pages` in an order drawn from `seed` (Fisher and Yates).
fn scattered(pages: u32, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed ^ 0x5ca7_7e4e);
    let mut numbers: Vec<u32> = (0..pages).collect();
    for last in (1..pages).rev() {
        numbers.swap(last as usize, rng.below(last + 1) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(kind: &str, pages: u32, n: usize) -> (Synthetic, Vec<u32>) {
        let workload = Synthetic::new(kind.parse().unwrap(), pages, 3).unwrap();
        let mut workload = workload.in_order();
        let mut ops = vec![Op::write(0); n];
        workload.fill(&mut ops);
        (workload, ops.iter().map(|op| op.page()).collect())
    }

    #[test]
    fn text_forms_round_trip() {
        for text in [
            "uniform",
            "zipf:0.99",
            "hot-cold:0.8:0.2",
            "shifting:0.8:0.2:5",
            "sliding:0.9:0.1:10",
            "sequential:0.5:0.4",
        ] {
            assert_eq!(text.parse::<WorkloadKind>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let error = |text: &str| text.parse::<WorkloadKind>().unwrap_err().to_string();
        assert!(error("gauss").contains("zipf:EXPONENT"));
        assert!(error("zipf:x").contains("`zipf:x`"));
        assert!(error("zipf:-1").contains("exponent must be between 0 and 10"));
        assert!(error("hot-cold:1.5").contains("hot share of updates"));
        assert!(error("sliding:0.8:0.2:0").contains("period must be above 0"));
        assert!(error("zipf-moving:0.99:nan").contains("period must be above 0"));
    }

    #[test]
    fn hot_pages_get_their_share() {
        let (workload, pages) = draw("hot-cold:0.8", 10_000, 100_000);
        let hot = pages.iter().filter(|&&p| p < 2000).count();
        // Three deviations of 100,000 draws with a chance of 0.8.
        assert!((79_620..80_380).contains(&hot), "{hot}");
        let rates = workload.rates().unwrap();
        assert!((rates.iter().sum::<f32>() - 1.0).abs() < 1e-3);
        assert!((rates[0] / rates[9999] - 16.0).abs() < 0.01);
    }

    /// Hot pages have no neighbouring numbers, and their rates follow them.
    #[test]
    fn ranks_are_scattered_over_the_pages() {
        let mut workload = Synthetic::new("hot-cold:0.8".parse().unwrap(), 10_000, 3).unwrap();
        let rates = workload.rates().unwrap();
        let hot = |page: usize| rates[page] > rates.iter().sum::<f32>() / 10_000.0;
        assert_eq!((0..10_000).filter(|&page| hot(page)).count(), 2000);
        let pairs = (1..10_000).filter(|&page| hot(page) && hot(page - 1));
        let pairs = pairs.count();
        assert!((350..450).contains(&pairs), "400 by chance: {pairs}");
        let mut ops = vec![Op::write(0); 10_000];
        workload.fill(&mut ops);
        let hits = ops.iter().filter(|op| hot(op.page() as usize)).count();
        // Three deviations of 10,000 draws.
        assert!((7880..8120).contains(&hits), "{hits}");
    }

    #[test]
    fn a_share_of_the_updates_cycles_in_order() {
        let (_, pages) = draw("sequential:1:1", 1000, 2500);
        assert!((0..2500).all(|at| pages[at] == at as u32 % 1000));
        let (workload, pages) = draw("sequential:0.5:0.8", 10_000, 10_000);
        assert!(
            // Three deviations of 10,000 draws with a chance of one half.
            (4850..5150).contains(&workload.offset),
            "{}",
            workload.offset
        );
        let random = pages.iter().filter(|&&page| page >= 8000).count() as u32;
        assert_eq!(random + workload.offset, 10_000, "the others elsewhere");
        assert!(!workload.kind.is_stationary());
    }

    #[test]
    fn a_sliding_window_turns_once_per_period() {
        let (workload, _) = draw("sliding:0.8:0.2:3", 1000, 1500);
        assert_eq!(workload.offset, 500);
        let (_, pages) = draw("sliding:0.99:0.01:3", 1000, 1500);
        let late = pages[1470..]
            .iter()
            .filter(|&&p| (485..515).contains(&p))
            .count();
        assert!(late > 28, "{late}");
    }

    #[test]
    fn the_moving_head_makes_the_coldest_page_the_hottest() {
        let (workload, pages) = draw("zipf-moving:2:10", 1000, 100);
        assert_eq!(workload.offset, 990);
        assert!(pages[90..].iter().any(|&p| p >= 985), "{pages:?}");
    }

    #[test]
    fn the_hot_set_jumps() {
        let (workload, _) = draw("shifting:0.8:0.2:1", 1000, 1001);
        assert_ne!(workload.offset, 0);
        assert!(
            workload.rates().is_none(),
            "an oracle cannot know a moving law"
        );
    }
}
