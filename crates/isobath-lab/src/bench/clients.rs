//! What each client does, and what all of them did together.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::catalogue::{ScanLength, Workload};
use super::choice::{Chooser, Inserted, Picker};
use super::keys::Records;
use super::latencies::Total;
use super::tally::{Results, Shown, Tally};
use super::tpcc::{Terminal, Tpcc};
use super::workload::Operation;
use crate::LabError;
use crate::engine::{Key, Session};

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;
/// For how long a client waits for an operation to be due before it looks whether the run has ended.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// What all clients of a run share.
pub(super) struct Shared {
    pub(super) records: Arc<Records>,
    workload: Workload,
    chooser: Chooser,
    inserted: Inserted,
    /// The number at which inserts end the run.
    fill_to: u64,
    pub(super) seed: u64,
    /// Every how many operations a latency is taken, at least 1.
    pub(super) latency_every: u32,
    /// Open loop: when operations are due.
    pub(super) arrivals: Option<Arrivals>,
    phase: AtomicU8,
    /// What each client shows.
    shown: Vec<Shown>,
    results: Mutex<Vec<Results>>,
    /// What clients of the TPC-C-derived workload share.
    pub(super) tpcc: Option<Arc<Tpcc>>,
    /// What each client draws its records from; its own picker where there is none for it.
    drawn: Vec<Arc<[Drawn]>>,
}

/// A record that was drawn before the run, and its key.
#[derive(Clone, Copy)]
struct Drawn {
    index: u64,
    key: Key,
}

impl Shared {
    pub(super) fn new(
        records: Arc<Records>,
        workload: &Workload,
        clients: usize,
        arrivals: Option<Arrivals>,
        seed: u64,
    ) -> Shared {
        Shared {
            chooser: Chooser::new(workload.choice, records.records),
            inserted: Inserted::from(if workload.fill { 0 } else { records.records }),
            fill_to: if workload.fill {
                records.records
            } else {
                u64::MAX
            },
            records,
            workload: workload.clone(),
            seed,
            latency_every: 1,
            arrivals,
            phase: AtomicU8::new(WARM_UP),
            shown: (0..clients).map(|_| Shown::new()).collect(),
            results: Mutex::new(Vec::new()),
            tpcc: None,
            drawn: Vec::new(),
        }
    }

    /// Draws so many records for each client before the run, so that none of their operations draws one or makes its key. Operations on
    /// the latest records go on to draw, since what is the latest changes; so do transactions.
    pub(super) fn draw_keys(&mut self, keys: usize) {
        if self.tpcc.is_some() || matches!(self.chooser, Chooser::Latest(_)) || keys == 0 {
            return;
        }
        let of_client = |client| {
            let mut picker = Picker::new(self.seed, client);
            let draw = |_| {
                let index = picker.pick(&self.chooser, self.records.records, &self.inserted);
                let key = self.records.key(index);
                Drawn { index, key }
            };
            (0..keys).map(draw).collect()
        };
        self.drawn = (0..self.shown.len()).map(of_client).collect();
    }

    /// How many keys were drawn before the run, by all clients together.
    pub(super) fn keys_drawn_before(&self) -> Option<u64> {
        let drawn = self.drawn.iter().map(|keys| keys.len() as u64).sum();
        (drawn > 0).then_some(drawn)
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
        self.shown.iter().map(Shown::processed).sum()
    }

    /// Bytes of keys and values written by all clients so far, warm-up included.
    pub(super) fn bytes_written(&self) -> u64 {
        self.shown.iter().map(Shown::bytes_written).sum()
    }

    /// Latencies that all clients counted so far.
    pub(super) fn latencies(&self) -> Total {
        Total::of(self.shown.iter().map(Shown::latencies))
    }

    /// What all clients did; they have ended.
    pub(super) fn take_results(&self) -> Results {
        let mut total = Results::new(&self.workload.mix);
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
        let mut worker = match &self.tpcc {
            Some(tpcc) => Worker::Terminal(Terminal::new(tpcc, index)),
            None => Worker::Client(Client {
                shared: self,
                picker: Picker::new(self.seed, index),
                drawn: self.drawn.get(index).map(|drawn| (Arc::clone(drawn), 0)),
                keys: vec![Key::default(); self.workload.batch],
                indexes: vec![0; self.workload.batch],
                value: Vec::with_capacity(self.records.value_bytes),
            }),
        };
        let mut tally = Tally::new(&self.workload.mix, self.latency_every, &self.shown[index]);
        // Operations until one is timed.
        let mut untimed = self.latency_every;
        // When the operation before ended, where that one was timed, which is when this one begins: a client does nothing in between, and a
        // look at the clock is a good part of what the benchmark costs.
        let mut ended: Option<Instant> = None;
        loop {
            let mut phase = self.phase.load(Ordering::Relaxed);
            if phase == STOP {
                break;
            }
            untimed -= 1;
            let timed = untimed == 0;
            if timed {
                untimed = self.latency_every;
            }
            let due = match &self.arrivals {
                Some(arrivals) => {
                    let due = arrivals.next();
                    if !self.wait_until(due, session) {
                        break;
                    }
                    // The warm-up may have ended while it waited.
                    phase = self.phase.load(Ordering::Relaxed);
                    Some(due)
                }
                None => timed.then(|| ended.take().unwrap_or_else(Instant::now)),
            };
            let mix = &self.workload.mix;
            let operation = match mix.only() {
                Some(operation) => operation,
                None => mix.draw(worker.rng().u32(..mix.total())),
            };
            let Some((processed, bytes)) = worker.perform(operation, session)? else {
                // Every record of a fill is inserted.
                self.stop();
                break;
            };
            let now = due.map(|_| Instant::now());
            ended = now;
            tally.count(processed, bytes);
            // What is counted has ended in the measured time, as the samples count; what is timed has begun in it, so that a run's end hides
            // no long wait. A fill ends with its last records.
            let now_phase = self.phase.load(Ordering::Relaxed);
            if now_phase == MEASURE || (phase == MEASURE && self.workload.fill) {
                tally.measure(operation, processed);
            }
            if phase == MEASURE {
                tally.time(operation, due.zip(now));
            }
            tally.show(now);
        }
        let results = tally.end();
        self.results().push(results);
        Ok(())
    }

    /// Waits until an operation is due; whether the run goes on. An operation may be due long after the run's end.
    fn wait_until(&self, due: Instant, session: &mut dyn Session) -> bool {
        loop {
            let step = due.min(Instant::now() + WAIT_STEP);
            session.wait_until(step);
            if self.stopped() {
                return false;
            }
            if step == due {
                return true;
            }
        }
    }
}

/// One client of any workload.
enum Worker<'s> {
    Client(Client<'s>),
    Terminal(Terminal),
}

impl Worker<'_> {
    fn rng(&mut self) -> &mut Rng {
        match self {
            Worker::Client(client) => &mut client.picker.rng,
            Worker::Terminal(terminal) => &mut terminal.rng,
        }
    }

    /// Performs one call; answers how many keys or records it processed and how many bytes of them it wrote, `None` where
    /// a fill has nothing left.
    fn perform(
        &mut self,
        operation: Operation,
        session: &mut dyn Session,
    ) -> Result<Option<(u64, u64)>, LabError> {
        match self {
            Worker::Terminal(terminal) => {
                let bytes = terminal.perform(operation, session)?;
                Ok(Some((1, bytes)))
            }
            Worker::Client(client) => {
                let processed = client.perform(operation, session)?;
                let record = match operation.writes() {
                    true => client.shared.records.record_bytes(),
                    false => 0,
                };
                Ok(processed.map(|processed| (processed, processed * record)))
            }
        }
    }
}

/// One client's state between operations.
struct Client<'s> {
    shared: &'s Shared,
    picker: Picker,
    /// Records drawn before, and which of them is next.
    drawn: Option<(Arc<[Drawn]>, usize)>,
    keys: Vec<Key>,
    indexes: Vec<u64>,
    value: Vec<u8>,
}

impl Client<'_> {
    /// The next record and its key.
    fn pick(&mut self) -> (u64, Key) {
        if let Some((drawn, next)) = &mut self.drawn {
            let Drawn { index, key } = drawn[*next];
            *next = if *next + 1 == drawn.len() {
                0
            } else {
                *next + 1
            };
            return (index, key);
        }
        let shared = self.shared;
        let index = self
            .picker
            .pick(&shared.chooser, shared.records.records, &shared.inserted);
        (index, shared.records.key(index))
    }

    /// Performs one call; answers how many keys or records it processed, `None` where a fill has nothing left.
    fn perform(
        &mut self,
        operation: Operation,
        session: &mut dyn Session,
    ) -> Result<Option<u64>, LabError> {
        let records = &*self.shared.records;
        match operation {
            Operation::Get => {
                let (index, key) = self.pick();
                self.get(index, &key, session)?;
            }
            Operation::GetMany => return self.get_many(session).map(Some),
            Operation::Scan => return self.scan(session).map(Some),
            Operation::Update | Operation::ReadModifyWrite => {
                let (index, key) = self.pick();
                if operation == Operation::ReadModifyWrite {
                    self.get(index, &key, session)?;
                }
                let value = records.value(self.picker.rng.u64(..));
                session.put(&key, value)?;
            }
            Operation::Insert => {
                let index = self.shared.inserted.reserve();
                if index >= self.shared.fill_to {
                    return Ok(None);
                }
                session.put(&records.key(index), records.value(index))?;
                self.shared.inserted.stored(index);
            }
            Operation::NewOrder
            | Operation::Payment
            | Operation::OrderStatus
            | Operation::Delivery
            | Operation::StockLevel => {
                return Err(LabError::Request(
                    "transactions belong to the TPC-C-derived workload".to_owned(),
                ));
            }
        }
        Ok(Some(1))
    }

    fn get(&mut self, index: u64, key: &Key, session: &mut dyn Session) -> Result<(), LabError> {
        let found = session.get(key, &mut self.value)?;
        self.verify(index, found.then_some(&self.value[..]))
    }

    fn scan(&mut self, session: &mut dyn Session) -> Result<u64, LabError> {
        let records = &*self.shared.records;
        let (from, key) = self.pick();
        let limit = match self.shared.workload.scan {
            ScanLength::Fixed(records) => records,
            ScanLength::UpTo(records) => self.picker.rng.usize(1..=records),
        };
        let (mut bytes, mut first) = (0usize, None);
        let seen = session.scan(&key, limit, &mut |found, value| {
            first.get_or_insert_with(|| found == &key[..]);
            bytes += value.len();
        })?;
        if first != Some(true) || bytes != seen * records.value_bytes {
            return Err(LabError::Verify(format!(
                "a scan from record {from} read other records than were stored"
            )));
        }
        Ok(seen as u64)
    }

    fn get_many(&mut self, session: &mut dyn Session) -> Result<u64, LabError> {
        for at in 0..self.keys.len() {
            (self.indexes[at], self.keys[at]) = self.pick();
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

    /// Every answer is compared: byte by byte where no value is replaced, by
    /// length otherwise.
    fn verify(&self, index: u64, value: Option<&[u8]>) -> Result<(), LabError> {
        let records = &*self.shared.records;
        let right = match value {
            None => false,
            Some(value) if self.shared.workload.mix.replaces() => {
                value.len() == records.value_bytes
            }
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
    /// The time of the last operation; nothing before a client asked for the first.
    state: Mutex<(Rng, Option<Instant>)>,
}

impl Arrivals {
    pub(super) fn new(per_second: f64, seed: u64) -> Arrivals {
        Arrivals {
            mean_ns: 1e9 / per_second,
            state: Mutex::new((Rng::with_seed(seed), None)),
        }
    }

    fn next(&self) -> Instant {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // 1 - u lies in (0, 1], so the logarithm is finite.
        let distance = -(1.0 - state.0.f64()).ln() * self.mean_ns;
        // From the first client on: keys are drawn before, and nothing is due then.
        let due = state.1.unwrap_or_else(Instant::now) + Duration::from_nanos(distance as u64);
        state.1 = Some(due);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::keys::KeyOrder;
    use crate::engine::{Access, Ended, Work};
    use std::collections::BTreeMap;

    /// An engine in a map, to test the clients themselves.
    struct MapSession(BTreeMap<Key, Vec<u8>>, Option<Arc<Shared>>, u64);

    impl Session for MapSession {
        fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
            self.2 += 1;
            if let Some(shared) = self.1.as_ref().filter(|s| s.latency_every > 1) {
                assert_eq!(shared.progress(), self.2 - 1);
            }
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

        fn transact(&mut self, _: Access, _: &mut Work<'_>) -> Result<Ended, LabError> {
            unreachable!("no workload of single operations asks for it")
        }

        fn wait_until(&mut self, _: Instant) {}
    }

    fn shared(mix: &str) -> Arc<Shared> {
        let workload = Workload {
            mix: mix.parse().unwrap(),
            key_order: KeyOrder::Hashed,
            value_bytes: 20,
            batch: 8,
            scan: ScanLength::UpTo(10),
            ..Workload::named("lookup").unwrap()
        };
        Arc::new(shared_of(&workload, 7))
    }

    fn shared_of(workload: &Workload, seed: u64) -> Shared {
        let (format, order) = (workload.key_format, workload.key_order);
        let records = Arc::new(Records::new(100, workload.value_bytes, format, order));
        Shared::new(records, workload, 1, None, seed)
    }

    fn map(records: &Records) -> BTreeMap<Key, Vec<u8>> {
        let records = records.sorted();
        records.map(|(k, v)| (k, v.into_owned())).collect()
    }

    #[test]
    fn every_operation_verifies_and_counts() {
        let shared = shared("get:4,get-many,scan,update,insert,rmw");
        shared.measure();
        let mut session = MapSession(map(&shared.records), Some(Arc::clone(&shared)), 0);
        shared.client(0, &mut session).unwrap();
        let results = shared.take_results();
        let gets =
            [Operation::Get, Operation::ReadModifyWrite].map(|o| results.operations[o as usize]);
        // The last one ends after the run.
        let counted = gets.iter().sum::<u64>();
        assert_eq!(counted, 499);
        let many = Operation::GetMany as usize;
        assert!(results.calls[many] > 0);
        assert_eq!(results.operations[many], results.calls[many] * 8);
        // The run is stopped within the last operation, which then counts as one after the end.
        assert_eq!(
            shared.progress(),
            results.operations.iter().sum::<u64>() + 1
        );
        let writes = [
            Operation::Update,
            Operation::Insert,
            Operation::ReadModifyWrite,
        ];
        let written: u64 = writes.iter().map(|o| results.operations[*o as usize]).sum();
        assert_eq!(results.written(), written);
        let record = (shared.records.key(0).len() + shared.records.value_bytes) as u64;
        let after_the_end = shared.bytes_written() - written * record;
        assert!(after_the_end == 0 || after_the_end == record);
        assert_eq!(
            results.latency_ns[Operation::Scan as usize].len(),
            results.calls[Operation::Scan as usize]
        );
        // It is timed all the same.
        assert_eq!(
            results.all_latencies().len(),
            results.calls.iter().sum::<u64>() + 1
        );
    }

    #[test]
    fn progress_is_shown_at_once_where_few_operations_are_timed() {
        let mut shared = shared_of(&Workload::lookup(), 7);
        shared.latency_every = 16;
        let shared = Arc::new(shared);
        shared.measure();
        let mut session = MapSession(map(&shared.records), Some(Arc::clone(&shared)), 0);
        shared.client(0, &mut session).unwrap();
        let results = shared.take_results();
        assert_eq!(session.2, 500);
        assert_eq!(results.operations[Operation::Get as usize], 499);
        assert_eq!(results.latency_ns[Operation::Get as usize].len(), 500 / 16);
    }

    /// Records every key that is asked for, and stops the run at the 300th.
    struct Log<'s>(MapSession, &'s Shared, Vec<(Key, usize)>);

    impl Log<'_> {
        fn note(&mut self, key: &Key, bytes: usize) {
            self.2.push((*key, bytes));
            if self.2.len() >= 300 {
                self.1.stop();
            }
        }
    }

    impl Session for Log<'_> {
        fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
            self.note(key, 0);
            self.0.get(key, value)
        }
        fn get_many(
            &mut self,
            keys: &[Key],
            visit: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
        ) -> Result<(), LabError> {
            keys.iter().for_each(|key| self.note(key, 0));
            self.0.get_many(keys, visit)
        }
        fn scan(
            &mut self,
            from: &Key,
            limit: usize,
            visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
        ) -> Result<usize, LabError> {
            self.note(from, limit);
            self.0.scan(from, limit, visit)
        }
        fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), LabError> {
            self.note(key, value.len());
            self.0.put(key, value)
        }
        fn transact(&mut self, access: Access, work: &mut Work<'_>) -> Result<Ended, LabError> {
            self.0.transact(access, work)
        }
        fn wait_until(&mut self, _: Instant) {}
    }

    fn calls(workload: &Workload, seed: u64) -> Vec<(Key, usize)> {
        calls_of(shared_of(workload, seed), workload)
    }

    fn calls_of(shared: Shared, workload: &Workload) -> Vec<(Key, usize)> {
        shared.measure();
        let loaded = match workload.fill {
            true => BTreeMap::new(),
            false => map(&shared.records),
        };
        let mut log = Log(MapSession(loaded, None, 0), &shared, Vec::new());
        shared.client(0, &mut log).unwrap();
        log.2
    }

    #[test]
    fn every_workload_runs_verified_and_repeats_by_its_seed() {
        // The TPC-C-derived one has its own such test.
        for workload in Workload::all().iter().filter(|w| w.tpcc.is_none()) {
            let name = &workload.name;
            let first = calls(workload, 5);
            assert!(first == calls(workload, 5), "{name}");
            // A fill inserts in one order, whatever the seed, each record once.
            assert_eq!(first == calls(workload, 6), workload.fill, "{name}");
            if workload.fill {
                let keys: std::collections::BTreeSet<_> = first.iter().map(|c| c.0).collect();
                assert_eq!((keys.len(), first.len()), (100, 100), "{name}");
            }
        }
    }

    #[test]
    fn keys_drawn_before_are_the_same_in_turn_and_cost_no_draw() {
        let named = |name| Workload::named(name).unwrap();
        for name in ["lookup", "lookup-zipf", "update-small", "ycsb-c"] {
            let workload = named(name);
            let mut shared = shared_of(&workload, 5);
            shared.draw_keys(32);
            assert_eq!(shared.keys_drawn_before(), Some(32), "{name}");
            let calls_with = calls_of(shared, &workload);
            let keys: Vec<Key> = calls_with.iter().map(|call| call.0).collect();
            assert!(keys[..32] == keys[32..64], "{name}");
            // The law is the workload's: what each call would have drawn for itself, where it draws nothing else.
            let drawn = calls(&workload, 5);
            let mut pairs = keys[..32].iter().zip(&drawn);
            let reads = !workload.mix.writes();
            assert!(!reads || pairs.all(|(key, call)| *key == call.0), "{name}");
        }
        let latest = named("ycsb-d");
        let mut shared = shared_of(&latest, 5);
        shared.draw_keys(32);
        assert_eq!(shared.keys_drawn_before(), None);
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
            let is_scan = mix == "scan";
            let says = |error: &LabError, what| is_scan || error.to_string().contains(what);
            assert!(says(&error, "has another value"), "{mix}: {error}");
            assert!(shared.stopped());

            let shared = self::shared(mix);
            let mut session = MapSession(BTreeMap::new(), None, 0);
            let error = shared.client(0, &mut session).unwrap_err();
            assert!(says(&error, "is missing"), "{mix}: {error}");
        }
    }

    #[test]
    fn nothing_is_due_before_the_clients_begin() {
        let arrivals = Arrivals::new(1e6, 3);
        std::thread::sleep(Duration::from_millis(30));
        let begun = Instant::now();
        assert!(arrivals.next() >= begun);
    }

    #[test]
    fn a_client_that_waits_for_an_operation_ends_with_the_run() {
        let mut shared = shared_of(&Workload::named("update").unwrap(), 7);
        shared.arrivals = Some(Arrivals::new(1e-6, 3));
        let shared = Arc::new(shared);
        shared.measure();
        // Waiting takes no time here, and the run ends while the client waits.
        let mut session = Waits(Arc::clone(&shared), 0, |shared, waits| {
            if waits == 3 {
                shared.stop();
            }
        });
        shared.client(0, &mut session).unwrap();
        assert_eq!((session.1, shared.progress()), (3, 0));
    }

    #[test]
    fn what_is_due_after_the_warm_up_is_measured() {
        let mut shared = shared_of(&Workload::named("update").unwrap(), 7);
        shared.arrivals = Some(Arrivals::new(1e6, 3));
        let shared = Arc::new(shared);
        // The warm-up ends while the client waits for the first operation, which ends the run.
        let mut session = Waits(Arc::clone(&shared), 0, |shared, _| shared.measure());
        shared.client(0, &mut session).unwrap();
        assert_eq!(shared.take_results().all_latencies().len(), 1);
    }

    /// Does this when it waits, told how often it has; its first operation ends the run.
    struct Waits(Arc<Shared>, u32, fn(&Shared, u32));

    impl Session for Waits {
        fn get(&mut self, _: &Key, _: &mut Vec<u8>) -> Result<bool, LabError> {
            unreachable!("updates alone")
        }
        fn get_many(
            &mut self,
            _: &[Key],
            _: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
        ) -> Result<(), LabError> {
            unreachable!("updates alone")
        }
        fn scan(
            &mut self,
            _: &Key,
            _: usize,
            _: &mut (dyn FnMut(&[u8], &[u8]) + Send),
        ) -> Result<usize, LabError> {
            unreachable!("updates alone")
        }
        fn put(&mut self, _: &Key, _: &[u8]) -> Result<(), LabError> {
            self.0.stop();
            Ok(())
        }
        fn transact(&mut self, _: Access, _: &mut Work<'_>) -> Result<Ended, LabError> {
            unreachable!("updates alone")
        }
        fn wait_until(&mut self, _: Instant) {
            self.1 += 1;
            (self.2)(&self.0, self.1);
        }
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

    #[test]
    fn warming_up_is_progress_and_no_result() {
        let shared = shared("get,update");
        let mut session = MapSession(map(&shared.records), Some(Arc::clone(&shared)), 0);
        shared.client(0, &mut session).unwrap();
        let results = shared.take_results();
        assert!(shared.progress() >= 500);
        assert_eq!(results.operations.iter().sum::<u64>(), 0);
        assert_eq!(results.all_latencies().len(), 0);
    }

    #[test]
    fn a_run_that_a_client_ended_does_not_begin_again() {
        let shared = shared("get");
        shared.stop();
        shared.measure();
        assert!(shared.stopped());
    }

    #[test]
    fn replaced_values_and_the_beginning_of_scans_are_verified() {
        let shared = shared("get,update");
        let mut session = MapSession(map(&shared.records), Some(Arc::clone(&shared)), 0);
        for value in session.0.values_mut() {
            value.pop();
        }
        let error = shared.client(0, &mut session).unwrap_err();
        assert!(matches!(error, LabError::Verify(_)), "{error}");
        // Each second record is missing: a scan from one begins at the next.
        let shared = self::shared("scan");
        let mut kept = map(&shared.records);
        let mut at = 0;
        kept.retain(|_, _| {
            at += 1;
            at % 2 == 0
        });
        let mut log = Log(MapSession(kept, None, 0), &shared, Vec::new());
        let error = shared.client(0, &mut log).unwrap_err();
        assert!(matches!(error, LabError::Verify(_)), "{error}");
    }

    #[test]
    fn waiting_for_a_client_counts_as_latency_in_an_open_loop() {
        let mut shared = shared_of(&Workload::lookup(), 7);
        let late = Duration::from_secs(10);
        // All operations were due long ago, within less than a second.
        let Some(first) = Instant::now().checked_sub(late) else {
            return;
        };
        let mut arrivals = Arrivals::new(1e6, 7);
        arrivals.state = Mutex::new((Rng::with_seed(7), Some(first)));
        shared.arrivals = Some(arrivals);
        let shared = Arc::new(shared);
        shared.measure();
        let mut session = MapSession(map(&shared.records), Some(Arc::clone(&shared)), 0);
        shared.client(0, &mut session).unwrap();
        let latencies = shared.take_results().all_latencies();
        assert_eq!(latencies.len(), 500);
        assert!(latencies.min() > 9_000_000_000, "{}", latencies.min());
    }

    /// Takes a while for each lookup, and notes when each begins and ends.
    struct Slow<'s>(&'s Shared, Vec<(Instant, Instant)>);

    impl Session for Slow<'_> {
        fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool, LabError> {
            let began = Instant::now();
            std::thread::sleep(Duration::from_millis(1));
            value.clear();
            let records = &self.0.records;
            value.extend_from_slice(records.value(records.index(key)));
            self.1.push((began, Instant::now()));
            if self.1.len() == 48 {
                self.0.stop();
            }
            Ok(true)
        }
        fn get_many(
            &mut self,
            _: &[Key],
            _: &mut (dyn FnMut(usize, Option<&[u8]>) + Send),
        ) -> Result<(), LabError> {
            unreachable!("only lookups")
        }
        fn scan(
            &mut self,
            _: &Key,
            _: usize,
            _: &mut (dyn FnMut(&[u8], &[u8]) + Send),
        ) -> Result<usize, LabError> {
            unreachable!("only lookups")
        }
        fn put(&mut self, _: &Key, _: &[u8]) -> Result<(), LabError> {
            unreachable!("only lookups")
        }
        fn transact(&mut self, _: Access, _: &mut Work<'_>) -> Result<Ended, LabError> {
            unreachable!("only lookups")
        }
    }

    #[test]
    fn a_timed_call_has_its_own_latency_alone() {
        for every in [1, 8] {
            let mut shared = shared_of(&Workload::lookup(), 7);
            shared.latency_every = every;
            shared.measure();
            let mut session = Slow(&shared, Vec::new());
            let began = Instant::now();
            shared.client(0, &mut session).unwrap();
            let ended = Instant::now();
            let calls = session.1;
            let latencies = shared.take_results().all_latencies();
            let timed = (0..calls.len()).filter(|at| (at + 1) % every as usize == 0);
            // A call takes as long as the engine, and at most from the end of the call before to the beginning of the one behind.
            let (mut least, mut most) = (Duration::ZERO, Duration::ZERO);
            for at in timed {
                let before = at.checked_sub(1).map_or(began, |before| calls[before].1);
                let behind = calls.get(at + 1).map_or(ended, |behind| behind.0);
                least += calls[at].1 - calls[at].0;
                most += behind - before;
            }
            assert_eq!(latencies.len(), 48 / u64::from(every));
            let sum = latencies.mean() * latencies.len() as f64;
            // Histograms have two significant digits.
            assert!(
                sum >= least.as_nanos() as f64 * 0.98,
                "{every}: {sum} {least:?}"
            );
            assert!(
                sum <= most.as_nanos() as f64 * 1.02,
                "{every}: {sum} {most:?}"
            );
        }
    }
}
