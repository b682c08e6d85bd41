//! The work of each client, and the results of all of them.

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
/// For how long a client waits for an operation to be due before it looks whether the run has
/// ended.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// State shared by all clients of a run.
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
    /// Each client's published counts.
    shown: Vec<Shown>,
    results: Mutex<Vec<Results>>,
    /// State shared by clients of the TPC-C-derived workload.
    pub(super) tpcc: Option<Arc<Tpcc>>,
    /// Each client's list of drawn records; without one, the client uses its own picker.
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

    /// Draws so many records for each client before the run, so that none of their operations draws
    /// one or makes its key. Operations on the latest records go on to draw, since what is the
    /// latest changes; so do transactions.
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

    /// The results of all clients, which have ended.
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
        // When the operation before ended, if that one was timed, which is when this one begins:
        // a client does nothing in between, and a look at the clock is a good part of what the
        // benchmark costs.
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
            // What is counted has ended in the measured time, as the samples count; what is timed
            // has begun in it, so that a run's end hides no long wait. A fill ends with its last
            // records.
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

    /// Waits until an operation is due; whether the run goes on. An operation may be due long after
    /// the run's end.
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

    /// Performs one call; answers how many keys or records it processed and how many bytes of them
    /// it wrote, `None` if a fill has nothing left.
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

    /// Performs one call; answers how many keys or records it processed, `None` if a fill has
    /// nothing left.
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
                session.put(0, &key, value)?;
            }
            Operation::Insert => {
                let index = self.shared.inserted.reserve();
                if index >= self.shared.fill_to {
                    return Ok(None);
                }
                session.put(0, &records.key(index), records.value(index))?;
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
        let found = session.get(0, key, &mut self.value)?;
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
        let seen = session.scan_up_to(&key, limit, &mut |found, value| {
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

    /// Every answer is compared: byte by byte if no value is replaced, by
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
mod tests;
