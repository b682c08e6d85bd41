//! What each client does, and what all of them did together.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;
use isobath_flash::rng::Rng as ZipfRng;
use isobath_flash::workload::Zipf;

use super::workload::{Mix, Operation, Records, key_of};
use crate::LabError;
use crate::engine::{Key, Session};

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// Longest latency that is told apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

/// What all clients of a run share.
pub(super) struct Shared {
    pub(super) records: Arc<Records>,
    pub(super) mix: Mix,
    /// By which law records are chosen; `None` is uniform.
    zipf: Option<Ranks>,
    pub(super) batch: usize,
    pub(super) scan_records: usize,
    pub(super) seed: u64,
    /// Every how many operations a latency is taken.
    pub(super) latency_every: u32,
    /// Open loop: when operations are due.
    pub(super) arrivals: Option<Arrivals>,
    phase: AtomicU8,
    /// Keys processed so far, per client; each on its own cache line.
    progress: Vec<Line>,
    results: Mutex<Vec<Results>>,
}

/// A Zipf law over records, with neighbouring ranks far apart, so that hot records do not share pages.
struct Ranks {
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

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// What one client, or all together, did while it was measured.
pub(super) struct Results {
    /// Keys or records processed, per operation.
    pub(super) operations: [u64; 5],
    /// Calls, per operation; a get-many or scan is one.
    pub(super) calls: [u64; 5],
    /// Latencies of calls in nanoseconds, per operation.
    pub(super) latency_ns: [Histogram<u64>; 5],
}

impl Results {
    /// Operations that wrote.
    pub(super) fn written(&self) -> u64 {
        self.operations[Operation::Update as usize] + self.operations[Operation::Insert as usize]
    }

    pub(super) fn new() -> Results {
        Results {
            operations: [0; 5],
            calls: [0; 5],
            latency_ns: std::array::from_fn(|_| histogram()),
        }
    }

    pub(super) fn add(&mut self, other: &Results) {
        for at in 0..5 {
            self.operations[at] += other.operations[at];
            self.calls[at] += other.calls[at];
            // Both histograms have the same bounds, so this cannot fail.
            let _ = self.latency_ns[at].add(&other.latency_ns[at]);
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "the bounds are constants that the library accepts"
)]
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(64, LATENCY_NS_MAX, 2).expect("valid bounds")
}

impl Shared {
    pub(super) fn new(
        records: Arc<Records>,
        mix: Mix,
        clients: usize,
        arrivals: Option<Arrivals>,
        seed: u64,
    ) -> Shared {
        Shared {
            records,
            mix,
            zipf: None,
            batch: 1,
            scan_records: 1,
            seed,
            latency_every: 1,
            arrivals,
            phase: AtomicU8::new(WARM_UP),
            progress: (0..clients).map(|_| Line::default()).collect(),
            results: Mutex::new(Vec::new()),
        }
    }

    /// Chooses records by a Zipf law with this exponent; `None` is uniform.
    pub(super) fn choose_by(&mut self, exponent: Option<f64>) {
        self.zipf = exponent.map(|exponent| Ranks::new(self.records.records, exponent));
    }

    pub(super) fn measure(&self) {
        // A client that failed has stopped the run already; that must stay.
        let _ = self
            .phase
            .compare_exchange(WARM_UP, MEASURE, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn stop(&self) {
        self.phase.store(STOP, Ordering::Relaxed);
    }

    pub(super) fn stopped(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == STOP
    }

    /// Keys processed by all clients so far, warm-up included.
    pub(super) fn progress(&self) -> u64 {
        self.progress
            .iter()
            .map(|line| line.0.load(Ordering::Relaxed))
            .sum()
    }

    /// What all clients did; they have ended.
    pub(super) fn take_results(&self) -> Results {
        let mut total = Results::new();
        for part in self.results().drain(..) {
            total.add(&part);
        }
        total
    }

    fn results(&self) -> MutexGuard<'_, Vec<Results>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One client's life; `index` is below the number of clients.
    pub(super) fn client(&self, index: usize, session: &mut dyn Session) -> Result<(), LabError> {
        let ended = self.drive(index, session);
        if ended.is_err() {
            self.stop();
        }
        ended
    }

    fn drive(&self, index: usize, session: &mut dyn Session) -> Result<(), LabError> {
        let mut client = Client {
            shared: self,
            rng: Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(index as u64)),
            ranks: ZipfRng::new(self.seed.wrapping_mul(7_000_003).wrapping_add(index as u64)),
            keys: vec![Key::default(); self.batch],
            indexes: vec![0; self.batch],
            value: Vec::with_capacity(self.records.value_bytes),
        };
        let mut results = Results::new();
        let mut done = 0u64;
        let mut turn = 0u32;
        loop {
            let phase = self.phase.load(Ordering::Relaxed);
            if phase == STOP {
                break;
            }
            turn = turn.wrapping_add(1);
            let timed = turn.is_multiple_of(self.latency_every);
            let due = match &self.arrivals {
                Some(arrivals) => {
                    let due = arrivals.next();
                    session.wait_until(due);
                    Some(due)
                }
                None => timed.then(Instant::now),
            };
            let operation = match self.mix.only() {
                Some(operation) => operation,
                None => self.mix.draw(client.rng.u32(..self.mix.total())),
            };
            let processed = client.perform(operation, session)?;
            if phase == MEASURE {
                let at = operation as usize;
                results.operations[at] += processed;
                results.calls[at] += 1;
                if let Some(due) = due {
                    let ns = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    results.latency_ns[at].saturating_record(ns.clamp(64, LATENCY_NS_MAX));
                }
            }
            done += processed;
            self.progress[index].0.store(done, Ordering::Relaxed);
        }
        self.results().push(results);
        Ok(())
    }
}

/// One client's state between operations.
struct Client<'s> {
    shared: &'s Shared,
    rng: Rng,
    ranks: ZipfRng,
    keys: Vec<Key>,
    indexes: Vec<u64>,
    value: Vec<u8>,
}

impl Client<'_> {
    /// The next record.
    fn pick(&mut self) -> u64 {
        match &self.shared.zipf {
            Some(ranks) => ranks.draw(&mut self.ranks),
            None => self.rng.u64(..self.shared.records.records),
        }
    }

    /// Performs one call; answers how many keys or records it processed.
    fn perform(
        &mut self,
        operation: Operation,
        session: &mut dyn Session,
    ) -> Result<u64, LabError> {
        let records = &*self.shared.records;
        match operation {
            Operation::Get => {
                let index = self.pick();
                let found = session.get(&records.key(index), &mut self.value)?;
                self.verify(index, found.then_some(&self.value[..]))?;
                Ok(1)
            }
            Operation::GetMany => self.get_many(session),
            Operation::Scan => {
                let from = self.pick();
                let (mut bytes, mut first) = (0usize, None);
                let seen = session.scan(
                    &records.key(from),
                    self.shared.scan_records,
                    &mut |key, value| {
                        first.get_or_insert_with(|| key == records.key(from));
                        bytes += value.len();
                    },
                )?;
                if first != Some(true) || bytes != seen * records.value_bytes {
                    return Err(LabError::Verify(format!(
                        "a scan from record {from} read other records than were stored"
                    )));
                }
                Ok(seen as u64)
            }
            Operation::Update => {
                let index = self.pick();
                let value = records.value(self.rng.u64(..));
                session.put(&records.key(index), value)?;
                Ok(1)
            }
            Operation::Insert => {
                let key = key_of(self.rng.u64(..));
                session.put(&key, records.value(self.rng.u64(..)))?;
                Ok(1)
            }
        }
    }

    fn get_many(&mut self, session: &mut dyn Session) -> Result<u64, LabError> {
        let records = &*self.shared.records;
        for at in 0..self.keys.len() {
            self.indexes[at] = self.pick();
            self.keys[at] = records.key(self.indexes[at]);
        }
        let mut wrong = None;
        session.get_many(&self.keys, &mut |at, value| {
            if let Err(error) = self.verify(self.indexes[at], value) {
                wrong.get_or_insert(error);
            }
        })?;
        match wrong {
            Some(error) => Err(error),
            None => Ok(self.keys.len() as u64),
        }
    }

    /// Every answer is compared: byte by byte where nothing writes, by length
    /// otherwise.
    fn verify(&self, index: u64, value: Option<&[u8]>) -> Result<(), LabError> {
        let records = &*self.shared.records;
        let right = match value {
            None => false,
            Some(value) if self.shared.mix.writes() => value.len() == records.value_bytes,
            Some(value) => value == records.value(index),
        };
        if right {
            return Ok(());
        }
        Err(LabError::Verify(format!(
            "record {index} {}",
            if value.is_some() {
                "has another value than was stored"
            } else {
                "is missing"
            }
        )))
    }
}

/// When operations are due in an open loop: a Poisson process, that is,
/// exponential distances. All clients draw from one sequence, so an operation
/// waits only while every client is busy, and that waiting counts as latency.
pub(super) struct Arrivals {
    mean_ns: f64,
    state: Mutex<(Rng, Instant)>,
}

impl Arrivals {
    pub(super) fn new(per_second: f64, seed: u64) -> Arrivals {
        Arrivals {
            mean_ns: 1e9 / per_second,
            state: Mutex::new((Rng::with_seed(seed), Instant::now())),
        }
    }

    fn next(&self) -> Instant {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // 1 - u lies in (0, 1], so the logarithm is finite.
        let distance = -(1.0 - state.0.f64()).ln() * self.mean_ns;
        state.1 += Duration::from_nanos(distance as u64);
        state.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// An engine in a map, to test the clients themselves.
    struct MapSession(BTreeMap<Key, Vec<u8>>, Option<Arc<Shared>>, u64);

    impl Session for MapSession {
        fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
            self.2 += 1;
            if self.2 == 500
                && let Some(shared) = &self.1
            {
                shared.stop();
            }
            value.clear();
            Ok(match self.0.get(key) {
                Some(found) => {
                    value.extend_from_slice(found);
                    true
                }
                None => false,
            })
        }

        fn get_many(
            &mut self,
            keys: &[Key],
            visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
        ) -> Result<(), LabError> {
            for (at, key) in keys.iter().enumerate() {
                visit(at, self.0.get(key).map(|v| &v[..]));
            }
            Ok(())
        }

        fn scan(
            &mut self,
            from: &Key,
            limit: usize,
            visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
        ) -> Result<usize, LabError> {
            Ok(self
                .0
                .range(*from..)
                .take(limit)
                .map(|(k, v)| visit(k, v))
                .count())
        }

        fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError> {
            self.0.insert(*key, value.to_vec());
            Ok(())
        }

        fn wait_until(&mut self, _: Instant) {}
    }

    fn shared(mix: &str) -> Arc<Shared> {
        let records = Arc::new(Records::new(100, 20, false));
        let mut shared = Shared::new(records, mix.parse().unwrap(), 1, None, 7);
        (shared.batch, shared.scan_records) = (8, 10);
        Arc::new(shared)
    }

    fn map(records: &Records) -> BTreeMap<Key, Vec<u8>> {
        records.sorted().map(|(k, v)| (k, v.to_vec())).collect()
    }

    #[test]
    fn every_operation_verifies_and_counts() {
        let shared = shared("get:4,get-many,scan,update,insert");
        shared.measure();
        let mut session = MapSession(map(&shared.records), Some(Arc::clone(&shared)), 0);
        shared.client(0, &mut session).unwrap();
        let results = shared.take_results();
        assert_eq!(results.operations[Operation::Get as usize], 500);
        let many = Operation::GetMany as usize;
        assert!(results.calls[many] > 0);
        assert_eq!(results.operations[many], results.calls[many] * 8);
        assert_eq!(shared.progress(), results.operations.iter().sum::<u64>());
        assert_eq!(
            results.latency_ns[Operation::Scan as usize].len(),
            results.calls[Operation::Scan as usize]
        );
    }

    #[test]
    fn wrong_and_missing_values_are_found() {
        for mix in ["get", "get-many", "scan"] {
            let shared = shared(mix);
            let mut session = MapSession(map(&shared.records), None, 0);
            for value in session.0.values_mut() {
                value.pop();
            }
            let error = shared.client(0, &mut session).unwrap_err();
            assert!(matches!(error, LabError::Verify(_)), "{mix}: {error}");
            assert!(shared.stopped());

            let shared = self::shared(mix);
            let mut session = MapSession(BTreeMap::new(), None, 0);
            assert!(shared.client(0, &mut session).is_err(), "{mix}");
        }
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
        assert!(counts[top[0]] > 20_000 && counts.iter().all(|&n| n > 0));
        assert!(top[0].abs_diff(top[1]) > 100, "hot records lie apart");
    }

    #[test]
    fn arrivals_have_the_rate_asked_for() {
        let arrivals = Arrivals::new(1000.0, 3);
        let first = arrivals.next();
        let mut last = first;
        for _ in 0..100_000 {
            let next = arrivals.next();
            assert!(next >= last);
            last = next;
        }
        let seconds = (last - first).as_secs_f64();
        assert!((98.0..102.0).contains(&seconds), "{seconds}");
    }
}
