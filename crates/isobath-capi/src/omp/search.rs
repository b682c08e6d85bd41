//! The search for the best number of parallel data accesses, by measuring: growth, refinement, and
//! a hold that looks again.

use std::collections::BTreeMap;

/// Samples whose mean is one measurement.
const SAMPLES: u32 = 2;
/// One sample is enough of what differs from the best that is known by more than this share: noise
/// does not.
const CLEAR: f64 = 0.25;
/// A throughput is better or worse than another one where it differs by more than this share.
pub(super) const HYSTERESIS: f64 = 0.05;
/// Numbers that one search measures at most.
const MEASURED_MAX: usize = 16;
/// Samples of a hold after which its neighbours are measured.
const PROBE_AFTER: u32 = 60;
/// A throughput outside this range of the held one is another load, if it is so for
/// [`CHANGED_AFTER`] samples.
const SAME_LOAD: std::ops::Range<f64> = 0.7..1.4;
const CHANGED_AFTER: u32 = 3;
/// Samples without full memory after which the limit that it has set is raised; twice as many after
/// each time that it was full.
const CALM_AFTER: u32 = 20;
const CALM_MAX: u32 = 640;

/// The measurements of one number of accesses.
#[derive(Debug, Default, Clone, Copy)]
struct Rate {
    sum: f64,
    samples: u32,
    /// There are samples enough.
    is_known: bool,
}

/// Throughputs that were measured, by number of accesses.
#[derive(Debug, Default, Clone)]
pub(super) struct Rates(BTreeMap<u32, Rate>);

impl Rates {
    fn add(&mut self, accesses: u32, rate: f64) {
        let others = self.best().filter(|(best, _)| *best != accesses);
        let is_clear = others.is_some_and(|(_, best)| (rate / best - 1.0).abs() > CLEAR);
        let known = self.0.entry(accesses).or_default();
        known.sum += rate;
        known.samples += 1;
        known.is_known |= is_clear || known.samples >= SAMPLES;
    }

    /// The rate of `accesses`, once it was sampled often enough.
    fn rate(&self, accesses: u32) -> Option<f64> {
        let known = self.0.get(&accesses).filter(|known| known.is_known)?;
        Some(known.sum / f64::from(known.samples))
    }

    /// All that is known, in ascending order.
    pub(super) fn all(&self) -> Vec<(u32, f64)> {
        let accesses = self.0.keys();
        accesses
            .filter_map(|accesses| Some((*accesses, self.rate(*accesses)?)))
            .collect()
    }

    fn best(&self) -> Option<(u32, f64)> {
        self.all().into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The fewest accesses that are no worse than the best.
    fn fewest(&self) -> Option<(u32, f64)> {
        let (_, best) = self.best()?;
        let enough = best * (1.0 - HYSTERESIS);
        self.all().into_iter().find(|(_, rate)| *rate >= enough)
    }
}

/// What to measure next: growth while throughput does not fall (paper 004: KV-ins), then towards
/// fewer if the fewest were best, then between the best and its neighbours. `None` if nothing
/// is left to learn.
pub(super) fn grow_and_refine(rates: &Rates, limit: u32) -> Option<u32> {
    let known = rates.all();
    let (first, last) = (known.first()?, known.last()?);
    let (best, best_rate) = rates.best()?;
    if last.1 >= best_rate * (1.0 - HYSTERESIS) && last.0 < limit {
        return Some((last.0 * 2).min(limit));
    }
    if first.0 == best && best > 1 {
        return Some(best / 2);
    }
    refine(rates, limit)
}

/// The middle of the wider gap beside the best one.
pub(super) fn refine(rates: &Rates, limit: u32) -> Option<u32> {
    let known = rates.all();
    let (best, _) = rates.best()?;
    let below = known.iter().rev().find(|(accesses, _)| *accesses < best);
    let above = known.iter().find(|(accesses, _)| *accesses > best);
    let below = below.map_or(0, |(accesses, _)| best - accesses);
    let above = above.map_or(0, |(accesses, _)| accesses - best);
    // Finer than an eighth is not worth its samples.
    let is_wide = |gap: u32| gap >= 2 && gap > best / 8;
    match () {
        () if is_wide(above) && above >= below => Some((best + above / 2).min(limit)),
        () if is_wide(below) => Some(best - below / 2),
        () => None,
    }
}

#[derive(Debug, Clone)]
enum SearchState {
    /// The current number is being measured.
    Measure,
    Hold {
        rate: f64,
        changed: u32,
        samples: u32,
    },
}

/// A search, and afterwards a hold that ends where the load changes, a neighbour has become better,
/// or memory is full.
#[derive(Debug, Clone)]
pub(super) struct Search {
    rates: Rates,
    /// To be measured before the rule is asked.
    candidates: Vec<u32>,
    current: u32,
    max: u32,
    /// The most accesses that full memory allows.
    cap: u32,
    calm: u32,
    calm_after: u32,
    state: SearchState,
    /// Neighbours of this one are measured; the rule is asked only if one of them is better.
    home: Option<u32>,
}

impl Search {
    /// Begins at `start`, and never leaves 1 to `max`.
    pub(super) fn new(start: u32, max: u32) -> Search {
        Search {
            rates: Rates::default(),
            candidates: Vec::new(),
            current: start.clamp(1, max),
            max,
            cap: max,
            calm: 0,
            calm_after: CALM_AFTER,
            state: SearchState::Measure,
            home: None,
        }
    }

    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// The throughput that is held, once something is.
    pub(super) fn held(&self) -> Option<f64> {
        match self.state {
            SearchState::Hold { rate, .. } => Some(rate),
            SearchState::Measure => None,
        }
    }

    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Searches again from `start`.
    pub(super) fn restart(&mut self, start: u32) {
        self.rates = Rates::default();
        self.candidates.clear();
        self.home = None;
        self.state = SearchState::Measure;
        self.current = start.clamp(1, self.cap);
    }

    /// Searches again, now that each of `new` threads instead of `old` ones has so many accesses:
    /// from as many in all, and with as many in all if memory was full.
    pub(super) fn rescale(&mut self, old: u32, new: u32) {
        let scaled = |accesses: u32| (accesses * old / new.max(1)).clamp(1, self.max);
        if self.cap < self.max {
            self.cap = scaled(self.cap);
        }
        let home = scaled(self.current);
        self.restart(home);
        let home = self.current;
        self.home = Some(home);
        self.candidates = vec![(home * 2).min(self.cap)];
        self.candidates.retain(|accesses| *accesses != home);
    }

    /// Takes the throughput of the current number; `rule` says what a search measures next. Returns
    /// why it did what it did.
    pub(super) fn step(
        &mut self,
        rate: f64,
        is_memory_full: bool,
        rule: impl Fn(&Rates, u32) -> Option<u32>,
    ) -> &'static str {
        if is_memory_full {
            return self.shrink();
        }
        self.calm = self.calm.saturating_add(1);
        match &mut self.state {
            SearchState::Measure => {
                self.rates.add(self.current, rate);
                self.advance(rule)
            }
            SearchState::Hold {
                rate: held,
                changed,
                samples,
            } => {
                *samples += 1;
                if SAME_LOAD.contains(&(rate / *held)) {
                    *changed = 0;
                    *held = 0.9 * *held + 0.1 * rate;
                } else {
                    *changed += 1;
                    if *changed >= CHANGED_AFTER {
                        self.restart(self.current);
                        return "the load has changed";
                    }
                }
                if *samples >= PROBE_AFTER {
                    self.probe();
                    return "looks at neighbours";
                }
                "holds"
            }
        }
    }

    /// Memory is full: fewer accesses, and no more than so many for a while.
    fn shrink(&mut self) -> &'static str {
        let had_room = self.calm > 0;
        self.calm = 0;
        if had_room {
            self.calm_after = (self.calm_after * 2).min(CALM_MAX);
        }
        self.cap = (self.current * 3 / 4).max(1);
        let start = self.cap;
        let cap = self.cap;
        self.rates.0.retain(|accesses, _| *accesses < cap);
        self.candidates.clear();
        self.home = None;
        self.state = SearchState::Measure;
        self.current = start;
        "memory is full"
    }

    fn probe(&mut self) {
        let home = self.current;
        let step = (home / 4).max(1);
        if self.cap < self.max && self.calm >= self.calm_after {
            self.cap = (self.cap + (self.cap / 4).max(1)).min(self.max);
            self.calm = 0;
        }
        self.restart(home);
        self.home = Some(home);
        self.candidates = [home.saturating_sub(step), (home + step).min(self.cap)]
            .into_iter()
            .filter(|accesses| *accesses >= 1 && *accesses != home)
            .collect();
    }

    /// Goes on to the next number once the current one is measured.
    fn advance(&mut self, rule: impl Fn(&Rates, u32) -> Option<u32>) -> &'static str {
        if self.rates.rate(self.current).is_none() {
            return "measures";
        }
        if let Some(next) = self.candidates.pop() {
            self.current = next;
            return "measures";
        }
        // The home is left only for a number that is better by more than noise.
        let stays = self.home.take().filter(|home| {
            let best = self.rates.best().map_or(0.0, |(_, rate)| rate);
            let home = self.rates.rate(*home).unwrap_or(0.0);
            home >= best * (1.0 - HYSTERESIS)
        });
        if let Some(home) = stays {
            return self.hold(home);
        }
        if self.rates.0.len() < MEASURED_MAX
            && let Some(next) = rule(&self.rates, self.cap)
            && self.rates.rate(next).is_none()
        {
            self.current = next.clamp(1, self.cap);
            return "measures";
        }
        match self.rates.fewest() {
            Some((accesses, _)) => self.hold(accesses),
            None => "measures",
        }
    }

    fn hold(&mut self, accesses: u32) -> &'static str {
        self.current = accesses;
        self.state = SearchState::Hold {
            rate: self.rates.rate(accesses).unwrap_or(0.0),
            changed: 0,
            samples: 0,
        };
        "has found the best"
    }
}
