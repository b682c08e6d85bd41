//! The controllers: KV-ins, which grows while that helps, and KV-mod, which fits a queueing model
//! (paper 004, section 3.2).
//!
//! A controller belongs to one region of the program. It takes samples and says how many compute
//! threads the region's next execution gets, and how many data accesses each of them may have at
//! once from now on. It reads no clock and nothing random.

use super::queueing::{Bottleneck, Saturation, bottleneck, response_seconds};
use super::search::{HYSTERESIS, Rates, Search, grow_and_refine, refine};

/// Compute threads that KV-ins begins with, as in the paper.
const FIRST_COMPUTE: u32 = 2;
/// Bytes that cost about as much as a request itself does.
const PAGE_BYTES: f64 = 4096.0;
/// Data accesses that both begin with: if a device is best with few of them, that costs less
/// than one at a time costs where it is best with many.
const FIRST_ACCESSES: u32 = 4;
/// Parallel accesses of a thread that KV-mod measures before it fits its curve, in this order; then
/// a third one, on the better one's side.
const SPREAD: [u32; 2] = [FIRST_ACCESSES, 16];
const BEYOND: [u32; 2] = [1, 64];
/// A prediction that differs more from the measurement calls for measuring beside it.
const PREDICTION_ERROR: f64 = 0.1;
/// Samples after which other compute threads are tried again if the last try was taken back: the
/// load may have changed since.
const PC_STAYS: u32 = 600;
/// Samples of a trial of more compute threads.
const TRIED: u32 = 2;
/// Compute threads that are busy for more than this share of the time gain nothing by more data
/// accesses.
const BUSY: f64 = 0.9;
/// Samples after which the model as printed is asked again.
const PRINTED_EVERY: u32 = 20;

/// How threads are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Instrumented: grows until processors are busy, throughput falls, or memory is full.
    Ins,
    /// Modelled: a saturation curve, Erlang's C formula, the roofline; verified by measuring.
    Mod,
    /// Modelled as the paper prints it, with one service rate for every number of threads: it has
    /// no interior optimum.
    ModPrinted,
}

/// Bounds of a controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    /// Most compute threads.
    pub(super) pc_max: u32,
    /// Most data accesses of a compute thread at once.
    pub(super) pda_max: u32,
    /// Processors of the machine.
    pub(super) processors: u32,
    /// Share of the processors' time above which no compute thread is added, 0 to 1.
    pub(super) cpu_limit: f64,
    /// Share of the memory above which accesses are taken away, 0 to 1.
    pub(super) memory_limit: f64,
    /// Compute threads, if they are fixed.
    pub(super) pc: Option<u32>,
    /// Data accesses, if they are fixed.
    pub(super) pda: Option<u32>,
}

/// A measurement over some time in one region.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    /// Compute threads and data accesses of that time.
    pub(super) pc: u32,
    pub(super) pda: u32,
    /// Data accesses that completed, and their bytes.
    pub(super) requests: u64,
    pub(super) bytes: u64,
    /// What the program said that it has done, in a unit of its own; counts if there was no
    /// access.
    pub(super) items: u64,
    /// Processor time of this process.
    pub(super) cpu_seconds: f64,
    /// Busy share of the machine's processors, 0 to 1.
    pub(super) cpu: f64,
    /// Used share of the memory, 0 to 1.
    pub(super) memory: f64,
}

impl Sample {
    /// Data accesses in pages: each counts as one, and its bytes by the page.
    fn pages(&self) -> f64 {
        self.requests as f64 + self.bytes as f64 / PAGE_BYTES
    }
}

/// Numbers of threads, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) pc: u32,
    pub(super) pda: u32,
    pub(super) reason: &'static str,
}

/// The state held before the number of compute threads was changed.
#[derive(Debug, Clone, Copy)]
struct Before {
    pc: u32,
    pda: u32,
    rate: f64,
}

/// More compute threads than KV-mod's model wants, for as long as it takes to see what they are
/// worth.
#[derive(Debug)]
struct Trial {
    /// The state to restore if they gain nothing: compute threads, throughput, and the search that
    /// held the best.
    pc: u32,
    rate: f64,
    search: Search,
    /// Throughputs with them: sum and samples.
    tried: (f64, u32),
}

/// The controller of one region.
#[derive(Debug)]
pub(super) struct Controller {
    kind: Kind,
    bounds: Bounds,
    /// The compute threads of the next execution.
    pc: u32,
    /// The compute threads of the last sample.
    pc_in_force: u32,
    search: Search,
    before: Option<Before>,
    trial: Option<Trial>,
    /// A trial has failed: the search that goes on once the region begins with fewer threads again.
    resumed: Option<Search>,
    /// Compute threads that a trial has shown to be worth more than fewer, whatever the model says.
    pc_least: u32,
    /// A change of the compute threads made things worse: none for this many samples, or until the
    /// load changes.
    pc_stays: u32,
    /// Processor seconds per page, smoothed.
    cpu_per_page: f64,
    /// Throughput without data accesses, at the compute threads in force: sum and samples.
    compute_rate: (f64, u32),
    printed_in: u32,
}

impl Controller {
    pub(super) fn new(kind: Kind, bounds: Bounds) -> Controller {
        let first = match kind {
            Kind::Ins => FIRST_COMPUTE.min(bounds.pc_max),
            Kind::Mod | Kind::ModPrinted => bounds.processors.clamp(1, bounds.pc_max),
        };
        let pc = bounds.pc.unwrap_or(first);
        let first = match kind {
            Kind::ModPrinted => 1,
            Kind::Ins | Kind::Mod => FIRST_ACCESSES,
        };
        let mut search = Search::new(first, bounds.pda_max);
        if let Some(pda) = bounds.pda {
            search = Search::new(pda, pda);
        }
        Controller {
            kind,
            bounds,
            pc,
            pc_in_force: pc,
            search,
            before: None,
            trial: None,
            resumed: None,
            pc_least: 1,
            pc_stays: 0,
            cpu_per_page: 0.0,
            compute_rate: (0.0, 0),
            printed_in: 0,
        }
    }

    fn decision(&self, reason: &'static str) -> Decision {
        Decision {
            pc: self.pc,
            pda: self.bounds.pda.unwrap_or(self.search.current()),
            reason,
        }
    }

    /// Takes a sample.
    pub(super) fn step(&mut self, sample: &Sample) -> Decision {
        if sample.seconds <= 0.0 {
            return self.decision("no time has passed");
        }
        self.pc_stays = self.pc_stays.saturating_sub(1);
        if sample.requests == 0 {
            return self.step_compute(sample);
        }
        let rate = sample.pages() / sample.seconds;
        let cost = sample.cpu_seconds / sample.pages();
        self.cpu_per_page = match self.cpu_per_page {
            0.0 => cost,
            known => 0.8 * known + 0.2 * cost,
        };
        if let Some(reason) = self.judge_trial(rate) {
            return self.decision(reason);
        }
        let reason = match self.bounds.pda {
            Some(_) => return self.step_fixed_access(sample, rate),
            None if self.kind == Kind::ModPrinted => self.printed(rate, sample.pda),
            None => self.step_search(sample, rate),
        };
        match reason {
            "has found the best" => {
                let reason = self
                    .consider_compute(self.search.held().unwrap_or(rate), sample)
                    .unwrap_or(reason);
                self.decision(reason)
            }
            "the load has changed" => {
                self.before = None;
                self.pc_stays = 0;
                self.pc_least = 1;
                self.decision(reason)
            }
            _ => self.decision(reason),
        }
    }

    /// The region begins with the number of compute threads that was decided. If that is another
    /// one than before, as many accesses in all go on, and a new search begins.
    pub(super) fn enter(&mut self) -> Decision {
        if self.pc != self.pc_in_force {
            match self.resumed.take() {
                Some(search) => self.search = search,
                None => self.search.rescale(self.pc_in_force, self.pc),
            }
            self.pc_in_force = self.pc;
            self.compute_rate = (0.0, 0);
        }
        self.decision("begins")
    }

    fn step_search(&mut self, sample: &Sample, rate: f64) -> &'static str {
        let is_full = sample.memory > self.bounds.memory_limit;
        if self.kind == Kind::Ins
            && !is_full
            && self.before.is_none()
            && sample.cpu_seconds > BUSY * sample.seconds * f64::from(self.pc_in_force)
            && let Some(reason) = self.consider_compute(rate, sample)
        {
            return reason;
        }
        let pc = self.pc_in_force;
        let demand = self.compute_roof(pc.min(self.bounds.processors));
        match self.kind {
            Kind::Ins => self.search.step(rate, is_full, grow_and_refine),
            _ => self.search.step(rate, is_full, |rates, limit| {
                modelled(rates, limit, pc, demand)
            }),
        }
    }

    /// A step that may only change the compute threads.
    fn step_fixed_access(&mut self, sample: &Sample, rate: f64) -> Decision {
        self.average(rate, sample)
    }

    fn step_compute(&mut self, sample: &Sample) -> Decision {
        if sample.items == 0 {
            return self.decision("nothing was done");
        }
        self.average(sample.items as f64 / sample.seconds, sample)
    }

    /// Two samples of a throughput, then the question of compute threads.
    fn average(&mut self, rate: f64, sample: &Sample) -> Decision {
        let (sum, count) = (self.compute_rate.0 + rate, self.compute_rate.1 + 1);
        if count < 2 {
            self.compute_rate = (sum, count);
            return self.decision("measures");
        }
        self.compute_rate = (0.0, 0);
        let rate = sum / f64::from(count);
        let reason = self.consider_compute(rate, sample);
        self.decision(reason.unwrap_or("holds"))
    }

    /// Pages per second that `threads` compute threads could work on.
    fn compute_roof(&self, threads: u32) -> f64 {
        match self.cpu_per_page > 0.0 {
            true => f64::from(threads) / self.cpu_per_page,
            false => f64::INFINITY,
        }
    }

    /// Whether another number of compute threads is worth a try, or the last try is to be taken
    /// back; why.
    fn consider_compute(&mut self, rate: f64, sample: &Sample) -> Option<&'static str> {
        if self.bounds.pc.is_some() || self.pc != self.pc_in_force {
            return None;
        }
        if let Some(before) = self.before.take()
            && rate < before.rate * (1.0 - HYSTERESIS)
        {
            self.pc = before.pc;
            self.pc_stays = PC_STAYS;
            // Unless the region begins again, the search goes on from where it was.
            self.search.restart(before.pda);
            return Some("as many compute threads as before were better");
        }
        if self.pc_stays > 0 {
            return None;
        }
        let wanted = match (self.kind, sample.requests) {
            (Kind::Ins, _) | (_, 0) => self.grown(sample),
            _ => self.needed().max(self.pc_least),
        };
        if wanted == self.pc {
            return self.begin_trial(rate, sample);
        }
        self.before = Some(Before {
            pc: self.pc,
            pda: self.search.current(),
            rate,
        });
        self.pc = wanted;
        Some(match wanted > self.before.map_or(0, |before| before.pc) {
            true => "processors have time for more compute threads",
            false => "data is the bottleneck: fewer compute threads",
        })
    }

    /// KV-mod: by the model there are compute threads enough, and yet processors have time. Threads
    /// wait for each other then, or for accesses that they need one after the other, which no roof
    /// says: more threads are tried.
    fn begin_trial(&mut self, rate: f64, sample: &Sample) -> Option<&'static str> {
        let more = self.grown(sample);
        if self.kind != Kind::Mod || sample.requests == 0 || more == self.pc {
            return None;
        }
        self.trial = Some(Trial {
            pc: std::mem::replace(&mut self.pc, more),
            rate,
            search: self.search.clone(),
            tried: (0.0, 0),
        });
        Some("processors have time for more compute threads")
    }

    /// A sample of a trial, with as many accesses in all as before; `None` once it is known to
    /// gain, and where there is none.
    fn judge_trial(&mut self, rate: f64) -> Option<&'static str> {
        if self.pc != self.pc_in_force {
            return None;
        }
        let trial = self.trial.as_mut()?;
        trial.tried = (trial.tried.0 + rate, trial.tried.1 + 1);
        if trial.tried.1 < TRIED {
            return Some("measures");
        }
        let trial = self.trial.take()?;
        if trial.tried.0 / f64::from(TRIED) > trial.rate * (1.0 + HYSTERESIS) {
            self.pc_least = self.pc;
            return None;
        }
        self.pc = trial.pc;
        self.pc_stays = PC_STAYS;
        self.resumed = Some(trial.search);
        Some("as many compute threads as before were better")
    }

    /// KV-ins: more until processors are busy, memory is full, or there are no more.
    fn grown(&self, sample: &Sample) -> u32 {
        let has_room =
            sample.cpu <= self.bounds.cpu_limit && sample.memory <= self.bounds.memory_limit;
        match has_room {
            true => (self.pc * 2).min(self.bounds.pc_max),
            false => self.pc,
        }
    }

    /// KV-mod: all, if the roofline says that computing is the bottleneck; else as many as the
    /// data needs.
    fn needed(&self) -> u32 {
        let known = self.search.rates().all();
        let data = known.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let processors = self.bounds.processors.min(self.bounds.pc_max);
        match bottleneck(self.compute_roof(processors) * self.bounds.cpu_limit, data) {
            Bottleneck::Compute => self.bounds.pc_max,
            Bottleneck::Data => {
                let threads = data * self.cpu_per_page / self.bounds.cpu_limit;
                (threads.ceil() as u32).clamp(1, self.bounds.pc_max)
            }
        }
    }

    /// The model as printed: the service rate of one access is what it is now, however many there
    /// are.
    fn printed(&mut self, rate: f64, pda: u32) -> &'static str {
        if self.printed_in > 0 {
            self.printed_in -= 1;
            return "holds";
        }
        self.printed_in = PRINTED_EVERY;
        let pc = self.pc_in_force.max(1);
        let service = rate / f64::from(pc * pda.max(1));
        let demand = self.compute_roof(pc.min(self.bounds.processors));
        let chosen = best_response(self.bounds.pda_max, pc, demand, |_| service);
        self.search.restart(chosen.unwrap_or(self.bounds.pda_max));
        "the model as printed"
    }
}

/// What KV-mod measures next: a spread of numbers, then what the fitted curve says is best, then,
/// if the curve was wrong, the numbers next to the best.
fn modelled(rates: &Rates, limit: u32, pc: u32, demand: f64) -> Option<u32> {
    let known = rates.all();
    let find = |pda: u32| known.iter().find(|(known, _)| *known == pda);
    let mut spread = SPREAD.map(|pda| pda.min(limit)).to_vec();
    spread.dedup();
    if known.len() >= spread.len() {
        // The third one lies on the side of the better one, if that is clear.
        let is_rising = match known[..] {
            [(_, few), .., (_, many)] => many > few * (1.0 + HYSTERESIS),
            _ => false,
        };
        spread.push(BEYOND[usize::from(is_rising)].min(limit));
    }
    if known.len() <= SPREAD.len()
        && let Some(pda) = spread.into_iter().find(|pda| find(*pda).is_none())
    {
        return Some(pda);
    }
    let points: Vec<(f64, f64)> = known
        .iter()
        .map(|(pda, rate)| (f64::from(pda * pc), *rate))
        .collect();
    let Some(curve) = Saturation::fit(&points) else {
        return refine(rates, limit);
    };
    let service = |accesses: u32| {
        let accesses = f64::from(accesses);
        curve.at(accesses) / accesses
    };
    let chosen = best_response(limit, pc, demand, service)
        .unwrap_or_else(|| fewest_at_peak(limit, pc, service));
    let Some((_, measured)) = find(chosen) else {
        return Some(chosen);
    };
    let best = known.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let predicted = curve.at(f64::from(chosen * pc));
    let is_wrong = (predicted / measured - 1.0).abs() > PREDICTION_ERROR
        || *measured < best * (1.0 - HYSTERESIS);
    if is_wrong {
        return refine(rates, limit);
    }
    None
}

/// The accesses per thread with the shortest response to `demand`; `None` if no number keeps up
/// with it.
fn best_response(limit: u32, pc: u32, demand: f64, service: impl Fn(u32) -> f64) -> Option<u32> {
    let mut best = None;
    for pda in 1..=limit {
        let accesses = pda * pc;
        let Some(seconds) = response_seconds(accesses, service(accesses), demand) else {
            continue;
        };
        if best.is_none_or(|(_, least)| seconds < least) {
            best = Some((pda, seconds));
        }
    }
    best.map(|(pda, _)| pda)
}

/// The fewest accesses per thread whose throughput is, by the curve, no worse than its peak.
fn fewest_at_peak(limit: u32, pc: u32, service: impl Fn(u32) -> f64) -> u32 {
    let rate = |pda: u32| service(pda * pc) * f64::from(pda * pc);
    let peak = (1..=limit).map(&rate).fold(0.0, f64::max);
    let enough = peak * (1.0 - HYSTERESIS);
    (1..=limit).find(|pda| rate(*pda) >= enough).unwrap_or(1)
}
