//! Clients of an engine in a map.

use super::*;
use crate::bench::keys::KeyOrder;
use crate::engine::{Tables, Visit, VisitMany};
use std::collections::BTreeMap;

/// An engine in a map, to test the clients themselves.
struct MapSession(BTreeMap<Vec<u8>, Vec<u8>>, Option<Arc<Shared>>, u64);

impl Tables for MapSession {
    fn get(&mut self, _: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
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

    fn scan(&mut self, _: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        // Whether it was visited to the end is the visitor's choice.
        let _ = self.0.range(from.to_vec()..).all(|(k, v)| visit(k, v));
        Ok(())
    }

    fn put(&mut self, _: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        self.0.insert(key.to_vec(), value.to_vec());
        Ok(())
    }
}

impl Session for MapSession {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        for (at, key) in keys.iter().enumerate() {
            visit(at, self.0.get(&key[..]).map(|v| &v[..]));
        }
        Ok(())
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

fn map(records: &Records) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let records = records.sorted();
    records.map(|(k, v)| (k.to_vec(), v.into_owned())).collect()
}

#[test]
fn every_operation_verifies_and_counts() {
    let shared = shared("get:4,get-many,scan,update,insert,rmw");
    shared.measure();
    let mut session = MapSession(map(&shared.records), Some(Arc::clone(&shared)), 0);
    shared.client(0, &mut session).unwrap();
    let results = shared.take_results();
    let gets = [Operation::Get, Operation::ReadModifyWrite].map(|o| results.operations[o as usize]);
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
struct Log<'s>(MapSession, &'s Shared, Vec<(Vec<u8>, usize)>);

impl Log<'_> {
    fn note(&mut self, key: &[u8], bytes: usize) {
        self.2.push((key.to_vec(), bytes));
        if self.2.len() >= 300 {
            self.1.stop();
        }
    }
}

impl Tables for Log<'_> {
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
        self.note(key, 0);
        self.0.get(table, key, value)
    }
    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError> {
        self.0.scan(table, from, visit)
    }
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), LabError> {
        self.note(key, value.len());
        self.0.put(table, key, value)
    }
}

impl Session for Log<'_> {
    fn get_many(&mut self, keys: &[Key], visit: &mut VisitMany<'_>) -> Result<(), LabError> {
        keys.iter().for_each(|key| self.note(key, 0));
        self.0.get_many(keys, visit)
    }
    fn scan_up_to(
        &mut self,
        from: &Key,
        limit: usize,
        visit: &mut (dyn FnMut(&[u8], &[u8]) + Send),
    ) -> Result<usize, LabError> {
        self.note(from, limit);
        self.0.scan_up_to(from, limit, visit)
    }
    fn wait_until(&mut self, _: Instant) {}
}

fn calls(workload: &Workload, seed: u64) -> Vec<(Vec<u8>, usize)> {
    calls_of(shared_of(workload, seed), workload)
}

fn calls_of(shared: Shared, workload: &Workload) -> Vec<(Vec<u8>, usize)> {
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
            let keys: std::collections::BTreeSet<_> = first.iter().map(|c| &c.0).collect();
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
        let keys: Vec<&Vec<u8>> = calls_with.iter().map(|call| &call.0).collect();
        assert!(keys[..32] == keys[32..64], "{name}");
        // The law is the workload's: what each call would have drawn for itself, where it draws
        // nothing else.
        let drawn = calls(&workload, 5);
        let mut pairs = keys[..32].iter().zip(&drawn);
        let reads = !workload.mix.writes();
        assert!(!reads || pairs.all(|(key, call)| **key == call.0), "{name}");
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

impl Tables for Waits {
    fn get(&mut self, _: usize, _: &[u8], _: &mut Vec<u8>) -> Result<bool, LabError> {
        unreachable!("updates alone")
    }
    fn scan(&mut self, _: usize, _: &[u8], _: &mut Visit<'_>) -> Result<(), LabError> {
        unreachable!("updates alone")
    }
    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<(), LabError> {
        self.0.stop();
        Ok(())
    }
}

impl Session for Waits {
    fn get_many(&mut self, _: &[Key], _: &mut VisitMany<'_>) -> Result<(), LabError> {
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

impl Tables for Slow<'_> {
    fn get(&mut self, _: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError> {
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
    fn scan(&mut self, _: usize, _: &[u8], _: &mut Visit<'_>) -> Result<(), LabError> {
        unreachable!("only lookups")
    }
}

impl Session for Slow<'_> {
    fn get_many(&mut self, _: &[Key], _: &mut VisitMany<'_>) -> Result<(), LabError> {
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
        // A call takes as long as the engine, and at most from the end of the call before to the
        // beginning of the one behind.
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
