//! Which record an operation is about: uniform, Zipf, and YCSB's scrambled Zipf and latest.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fastrand::Rng;
use isobath_flash::rng::Rng as ZipfRng;
use isobath_flash::workload::Zipf;
use serde::{Deserialize, Serialize};

use super::keys::mix;

/// The law by which records are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// Every record equally often.
    #[default]
    Uniform,
    /// Zipf with this exponent over all records; neighbouring ranks lie far apart.
    Zipf(f64),
    /// YCSB's scrambled Zipf: ranks of a Zipf law over 10¹⁰ items, hashed to the records.
    ScrambledZipf(f64),
    /// YCSB's latest: Zipf by age, the newest record most often.
    Latest(f64),
}

/// Items over which YCSB's scrambled law ranks.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// A [`Choice`] over so many records, shared by all clients.
pub(super) enum Chooser {
    Uniform,
    Zipf(Ranks),
    Scrambled(Zipfian),
    Latest(f64),
}

impl Chooser {
    pub(super) fn new(choice: Choice, records: u64) -> Chooser {
        match choice {
            Choice::Uniform => Chooser::Uniform,
            Choice::Zipf(exponent) => Chooser::Zipf(Ranks::new(records, exponent)),
            Choice::ScrambledZipf(theta) => {
                Chooser::Scrambled(Zipfian::new(SCRAMBLED_ITEMS, theta))
            }
            Choice::Latest(theta) => Chooser::Latest(theta),
        }
    }
}

/// One client's random choices.
pub(super) struct Picker {
    pub(super) rng: Rng,
    ranks: ZipfRng,
    latest: Option<Zipfian>,
}

impl Picker {
    /// The choices of client `index`; equal for equal seeds.
    pub(super) fn new(seed: u64, index: usize) -> Picker {
        Picker {
            rng: Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(index as u64)),
            ranks: ZipfRng::new(seed.wrapping_mul(7_000_003).wrapping_add(index as u64)),
            latest: None,
        }
    }

    /// The next record, of `loaded` ones and those that were inserted after them.
    pub(super) fn pick(&mut self, chooser: &Chooser, loaded: u64, inserted: &Inserted) -> u64 {
        match chooser {
            Chooser::Uniform => self.rng.u64(..loaded),
            Chooser::Zipf(ranks) => ranks.draw(&mut self.ranks),
            Chooser::Scrambled(zipf) => scale(mix(zipf.rank(self.ranks.unit())), loaded),
            Chooser::Latest(theta) => {
                let count = inserted.visible().max(1);
                let zipf = self
                    .latest
                    .get_or_insert_with(|| Zipfian::new(count, *theta));
                zipf.resize(count);
                count - 1 - zipf.rank(self.ranks.unit()).min(count - 1)
            }
        }
    }
}

/// A number of 64 random bits as one below `limit`: a multiplication, where a remainder would take
/// a division.
fn scale(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

/// Numbers of new records: handed out at once, visible to reads once all before them are stored.
pub(super) struct Inserted {
    next: AtomicU64,
    visible: AtomicU64,
    ahead: Mutex<BTreeSet<u64>>,
}

impl Inserted {
    pub(super) fn from(first: u64) -> Inserted {
        Inserted {
            next: AtomicU64::new(first),
            visible: AtomicU64::new(first),
            ahead: Mutex::new(BTreeSet::new()),
        }
    }

    /// A number that no other insert has.
    pub(super) fn reserve(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Record `index` is stored.
    pub(super) fn stored(&self, index: u64) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.insert(index);
        let mut visible = self.visible.load(Ordering::Relaxed);
        while ahead.remove(&visible) {
            visible += 1;
        }
        self.visible.store(visible, Ordering::Release);
    }

    /// All records below this number are stored.
    pub(super) fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }
}

/// A Zipf law over records, with neighbouring ranks far apart, so that hot records do not share
/// pages.
pub(super) struct Ranks {
    zipf: Zipf,
    records: u64,
    /// Shares no factor with `records`: rank × step modulo records visits every record once.
    step: u64,
}

impl Ranks {
    fn new(records: u64, exponent: f64) -> Ranks {
        let mut step = (records as f64 * 0.618_034) as u64 | 1;
        while gcd(step, records) != 1 {
            step += 2;
        }
        Ranks {
            // The plan allows no more than 2³² − 1.
            zipf: Zipf::new(u32::try_from(records).unwrap_or(u32::MAX), exponent),
            records,
            step,
        }
    }

    fn draw(&self, rng: &mut ZipfRng) -> u64 {
        let rank = u64::from(self.zipf.sample(rng));
        ((u128::from(rank) * u128::from(self.step)) % u128::from(self.records)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Zipf ranks by the closed form that YCSB uses (Gray et al., "Quickly generating billion-record
/// synthetic databases", SIGMOD 1994, section 3.2), for exponents below 1 and any number of items.
pub(super) struct Zipfian {
    items: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
    /// 1 / (1 − θ), where it is a whole number, as it is for YCSB's 0.99: the power of it takes a
    /// few multiplications.
    whole_power: Option<i32>,
    /// Scaled draws below this have one of the first two ranks; a power that each draw would
    /// compute again.
    second_below: f64,
}

impl Zipfian {
    pub(super) fn new(items: u64, theta: f64) -> Zipfian {
        let power = 1.0 / (1.0 - theta);
        let whole = (power - power.round()).abs() < 1e-9 * power && power < 1000.0;
        let mut zipf = Zipfian {
            items: 0,
            theta,
            zeta: 0.0,
            eta: 0.0,
            whole_power: whole.then(|| power.round() as i32),
            second_below: 1.0 + 0.5_f64.powf(theta),
        };
        zipf.set(items);
        zipf
    }

    /// Follows a number of items that grows; steps below a thousandth change no rank that matters
    /// and are skipped.
    fn resize(&mut self, items: u64) {
        if items.abs_diff(self.items) > self.items / 1024 {
            self.set(items);
        }
    }

    fn set(&mut self, items: u64) {
        self.items = items.max(1);
        self.zeta = zeta(self.items, self.theta);
        let two = (2.0 / self.items as f64).powf(1.0 - self.theta);
        self.eta = (1.0 - two) / (1.0 - zeta(2, self.theta) / self.zeta);
    }

    /// The rank, from 0, for a uniform draw in `[0, 1)`.
    fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.zeta;
        if scaled < 1.0 || self.items < 2 {
            return 0;
        }
        if scaled < self.second_below || self.items < 3 {
            return 1;
        }
        let base = self.eta * unit - self.eta + 1.0;
        let share = match self.whole_power {
            Some(power) => base.powi(power),
            None => base.powf(1.0 / (1.0 - self.theta)),
        };
        ((self.items as f64 * share) as u64).min(self.items - 1)
    }
}

/// Σ i^−θ for i in 1..=n: the first hundred terms, then Euler's and Maclaurin's formula.
fn zeta(n: u64, theta: f64) -> f64 {
    const EXACT: u64 = 100;
    let term = |i: f64| i.powf(-theta);
    let sum: f64 = (1..=n.min(EXACT)).map(|i| term(i as f64)).sum();
    if n <= EXACT {
        return sum;
    }
    let (a, b) = (EXACT as f64, n as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (term(b) - term(a)) / 2.0;
    let slopes = theta / 12.0 * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0));
    sum + integral + ends + slopes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zeta_function_is_that_of_ycsb() {
        // The constant that YCSB's source has for 10^10 items and 0.99.
        assert!((zeta(10_000_000_000, 0.99) - 26.469_028_201_783_02).abs() < 1e-6);
        let exact: f64 = (1..=5000u32).map(|i| f64::from(i).powf(-0.99)).sum();
        assert!((zeta(5000, 0.99) - exact).abs() < 1e-9);
    }

    #[test]
    fn ranks_follow_the_law() {
        let zipf = Zipfian::new(1000, 0.99);
        let mut rng = ZipfRng::new(5);
        let draws = 400_000;
        let mut counts = vec![0u32; 1000];
        (0..draws).for_each(|_| counts[zipf.rank(rng.unit()) as usize] += 1);
        for rank in [0usize, 1] {
            let expected = (rank as f64 + 1.0).powf(-0.99) / zeta(1000, 0.99);
            let seen = f64::from(counts[rank]) / f64::from(draws);
            // 1.006 and 1.001.
            assert!(
                (seen / expected - 1.0).abs() < 0.007,
                "{rank}: {seen} {expected}"
            );
        }
        let head: f64 = (1..=100).map(|i| f64::from(i).powf(-0.99)).sum();
        let expected = head / zeta(1000, 0.99);
        let seen = f64::from(counts[..100].iter().sum::<u32>()) / f64::from(draws);
        // 1.0166: the method approximates the law from the third rank on.
        assert!((seen / expected - 1.0).abs() < 0.017, "{seen} {expected}");
        assert!(counts.iter().all(|c| *c > 0));
    }

    #[test]
    fn a_zipf_law_reaches_every_record_and_prefers_some() {
        let ranks = Ranks::new(1000, 0.99);
        let mut rng = ZipfRng::new(1);
        let mut counts = vec![0; 1000];
        (0..200_000).for_each(|_| counts[ranks.draw(&mut rng) as usize] += 1);
        let top: Vec<usize> = (0..3u64)
            .map(|r| (r * ranks.step % 1000) as usize)
            .collect();
        assert!(counts[top[0]] > counts[top[1]] && counts[top[1]] > counts[top[2]]);
        // 25,966 of 200,000: 1 / ζ(1000, 0.99) is 0.13.
        assert!(counts[top[0]] > 25_900 && counts.iter().all(|&n| n > 0));
        assert!(top[0].abs_diff(top[1]) > 100, "hot records lie apart");
    }

    #[test]
    fn latest_prefers_the_newest_and_never_names_what_is_not_stored() {
        let chooser = Chooser::new(Choice::Latest(0.99), 1000);
        let inserted = Inserted::from(1000);
        let mut picker = Picker::new(1, 0);
        let mut newest = 0;
        for _ in 0..10_000 {
            let index = inserted.reserve();
            let waits = inserted.reserve();
            // The second is stored first: neither is visible before the first is.
            inserted.stored(waits);
            assert_eq!(inserted.visible(), index);
            let picked = picker.pick(&chooser, 1000, &inserted);
            assert!(picked < index);
            newest += u64::from(index - 1 - picked < 10);
            inserted.stored(index);
            assert_eq!(inserted.visible(), waits + 1);
        }
        // Measured 3,041.
        assert!(newest > 3000, "{newest}");
    }

    #[test]
    fn equal_seeds_choose_alike_and_clients_differ() {
        for choice in [
            Choice::Uniform,
            Choice::Zipf(1.2),
            Choice::ScrambledZipf(0.99),
            Choice::Latest(0.99),
        ] {
            let chooser = Chooser::new(choice, 5000);
            let inserted = Inserted::from(5000);
            let draw = |seed, client| {
                let mut picker = Picker::new(seed, client);
                let picks = (0..200).map(|_| picker.pick(&chooser, 5000, &inserted));
                picks.collect::<Vec<u64>>()
            };
            assert_eq!(draw(3, 0), draw(3, 0));
            assert_ne!(draw(3, 0), draw(3, 1));
            assert_ne!(draw(3, 0), draw(4, 0));
            assert!(draw(3, 0).iter().all(|i| *i < 5000));
        }
    }
}
