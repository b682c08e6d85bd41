//! Concurrent transactions as tasks of several workers, in an order drawn from a
//! seed. Every version of a key names its writer and its predecessor, so the
//! history can be rebuilt and searched for cycles that an isolation level forbids
//! (Adya's G0, G1c, G-single; for serializable transactions any cycle).

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Random, assert_sound, parameter, perhaps_logged, tiny};
use isobath::{Error, Isolation, Simulation, Transaction, TransactionOptions, Tree, yield_now};
use isobath_io::{FaultDevice, FaultPlan};

/// The transaction that wrote a version; 0 is none.
type Writer = u64;

const KEYS: u64 = 12;
const TASKS: u64 = 24;
const ROUNDS: u64 = 12;

#[derive(Default)]
struct Committed {
    number: Writer,
    began: u64,
    ended: u64,
    /// Key and the version that was read.
    reads: Vec<(u64, Writer)>,
    /// Key and the version that was replaced.
    writes: Vec<(u64, Writer)>,
}

struct Shared {
    tree: Tree,
    clock: AtomicU64,
    history: Mutex<Vec<Committed>>,
    conflicts: AtomicU64,
    /// Per task: what its single operations have been acknowledged for.
    acknowledged: Vec<AtomicU64>,
}

fn key(n: u64) -> Vec<u8> {
    let mut key = vec![b'h'; 400];
    key.extend_from_slice(&n.to_be_bytes());
    key
}

fn own_key(task: u64) -> Vec<u8> {
    let mut key = vec![b'o'; 300];
    key.extend_from_slice(&task.to_be_bytes());
    key
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| {
        u64::from_le_bytes(value[..8].try_into().unwrap())
    })
}

fn version(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    // Some of them large values.
    value.resize(
        if number.is_multiple_of(7) { 3000 } else { 200 },
        number as u8,
    );
    value
}

impl Shared {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn read_one(&self, t: &Transaction, n: u64, record: &mut Committed) -> Result<(), Error> {
        let found = t.get(&self.tree, &key(n))?;
        self.note(record, n, number(found.as_deref()));
        Ok(())
    }

    fn note(&self, record: &mut Committed, n: u64, found: Writer) {
        if found != record.number {
            record.reads.push((n, found));
        }
    }

    fn read_all(
        &self,
        t: &Transaction,
        backwards: bool,
        record: &mut Committed,
    ) -> Result<(), Error> {
        let mut found = BTreeMap::new();
        let range = t.prefix(&self.tree, b"h")?;
        let mut take = |item: Result<(Vec<u8>, Vec<u8>), Error>| {
            let (key, value) = item?;
            let n = u64::from_be_bytes(key[400..].try_into().unwrap());
            found.insert(n, number(Some(&value)));
            Ok::<(), Error>(())
        };
        if backwards {
            range.rev().try_for_each(&mut take)?;
        } else {
            range.into_iter().try_for_each(&mut take)?;
        }
        for n in 0..KEYS {
            self.note(record, n, found.get(&n).copied().unwrap_or(0));
        }
        Ok(())
    }

    fn write(&self, t: &mut Transaction, n: u64, record: &mut Committed) -> Result<(), Error> {
        let found = number(t.get(&self.tree, &key(n))?.as_deref());
        if found != record.number {
            record.reads.push((n, found));
            record.writes.push((n, found));
            t.insert(&self.tree, &key(n), &version(record.number))?;
        }
        Ok(())
    }

    /// What single operations were acknowledged for is there, and stays as it is.
    fn watch(
        &self,
        t: &Transaction,
        before: &[u64],
        seen: &mut HashMap<usize, u64>,
    ) -> Result<(), Error> {
        for (task, least) in before.iter().enumerate() {
            let now = number(t.get(&self.tree, &own_key(task as u64))?.as_deref());
            assert!(now >= *least, "an acknowledged operation is not there");
            let first = *seen.entry(task).or_insert(now);
            assert_eq!(first, now, "a snapshot has changed");
        }
        Ok(())
    }

    fn transaction(
        &self,
        store: &isobath::Store,
        options: TransactionOptions,
        random: &mut Random,
    ) {
        let before: Vec<u64> = self
            .acknowledged
            .iter()
            .map(|a| a.load(Ordering::SeqCst))
            .collect();
        let began = self.tick();
        let mut t = store.begin_with(options).unwrap();
        let mut record = Committed {
            number: self.tick(),
            began,
            ..Committed::default()
        };
        let mut seen = HashMap::new();
        let mut work = |t: &mut Transaction,
                        record: &mut Committed,
                        random: &mut Random|
         -> Result<(), Error> {
            for _ in 0..1 + random.below(5) {
                let n = random.below(KEYS);
                match random.below(10) {
                    0..4 => self.read_one(t, n, record)?,
                    4..5 => self.read_all(t, n.is_multiple_of(2), record)?,
                    5..6 => self.watch(t, &before, &mut seen)?,
                    _ => self.write(t, n, record)?,
                }
                (0..random.below(3)).for_each(|_| yield_now());
            }
            Ok(())
        };
        let worked = work(&mut t, &mut record, random);
        let read_only = record.writes.is_empty();
        match worked.and_then(|()| Ok(t.commit()?)) {
            Ok(()) => {
                // One that only reads happened when it began.
                record.ended = if read_only { u64::MAX } else { self.tick() };
                self.history.lock().unwrap().push(record);
            }
            Err(Error::Conflict { .. }) => {
                self.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The dependencies between committed transactions: (from, to, whether `from`
/// only read what `to` replaced).
fn edges(history: &[Committed]) -> Vec<(Writer, Writer, bool)> {
    let mut next: HashMap<(u64, Writer), Writer> = HashMap::new();
    let mut edges = Vec::new();
    for t in history {
        for &(key, before) in &t.writes {
            let other = next.insert((key, before), t.number);
            assert_eq!(
                other, None,
                "a lost update: two replaced version {before} of key {key}"
            );
            edges.push((before, t.number, false));
        }
    }
    for t in history {
        for &(key, found) in &t.reads {
            edges.push((found, t.number, false));
            if let Some(&later) = next.get(&(key, found))
                && later != t.number
            {
                edges.push((t.number, later, true));
            }
        }
        // A transaction that begins after an acknowledgement sees it.
        for later in history.iter().filter(|later| later.began > t.ended) {
            edges.push((t.number, later.number, false));
        }
    }
    let known: std::collections::HashSet<_> = history.iter().map(|t| t.number).collect();
    for (from, _, _) in &edges {
        assert!(
            *from == 0 || known.contains(from),
            "read what {from} never committed"
        );
    }
    edges.retain(|(from, _, _)| *from != 0);
    edges
}

fn reaches(graph: &HashMap<Writer, Vec<Writer>>, from: Writer, to: Writer) -> bool {
    let (mut stack, mut visited) = (vec![from], std::collections::HashSet::new());
    while let Some(at) = stack.pop() {
        if at == to {
            return true;
        }
        if visited.insert(at) {
            stack.extend(graph.get(&at).into_iter().flatten());
        }
    }
    false
}

fn graph(edges: &[(Writer, Writer, bool)], with_reads: bool) -> HashMap<Writer, Vec<Writer>> {
    let mut graph: HashMap<Writer, Vec<Writer>> = HashMap::new();
    for &(from, to, only_read) in edges {
        if with_reads || !only_read {
            graph.entry(from).or_default().push(to);
        }
    }
    graph
}

/// Whether there is a cycle at all.
fn is_serializable(edges: &[(Writer, Writer, bool)]) -> bool {
    let graph = graph(edges, true);
    edges
        .iter()
        .all(|&(from, to, _)| !reaches(&graph, to, from))
}

/// No cycle of dependencies, and none with one anti-dependency.
fn is_snapshot_isolated(edges: &[(Writer, Writer, bool)]) -> bool {
    let graph = graph(edges, false);
    edges
        .iter()
        .all(|&(from, to, _)| !reaches(&graph, to, from))
}

fn run(seed: u64, isolation: Isolation) -> (Vec<(Writer, Writer, bool)>, u64) {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=40));
    let volume = isobath::Volume::from_device(device);
    let options = perhaps_logged(tiny(3, 12), seed);
    let mut simulation = Simulation::new(volume, &options, seed).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let shared = Arc::new(Shared {
        tree,
        clock: AtomicU64::new(0),
        history: Mutex::new(Vec::new()),
        conflicts: AtomicU64::new(0),
        acknowledged: (0..4).map(|_| AtomicU64::new(0)).collect(),
    });
    let live = Arc::new(AtomicU64::new(TASKS));
    for task in 0..TASKS {
        let (shared, live, store) = (
            Arc::clone(&shared),
            Arc::clone(&live),
            simulation.store().clone(),
        );
        let work = move || {
            let mut random = Random::new(seed << 8 | task);
            for round in 0..ROUNDS {
                if task < 4 {
                    // Single operations, which leave no versions if no snapshot is open.
                    for n in 1..4 {
                        let n = round * 4 + n;
                        shared.tree.insert(&own_key(task), &version(n)).unwrap();
                        shared.acknowledged[task as usize].store(n, Ordering::SeqCst);
                        (0..random.below(30)).for_each(|_| yield_now());
                    }
                } else {
                    let options = TransactionOptions::new().isolation(isolation);
                    let options = options.read_only(false);
                    shared.transaction(&store, options, &mut random);
                    (0..random.below(20)).for_each(|_| yield_now());
                }
            }
            live.fetch_sub(1, Ordering::SeqCst);
        };
        drop(simulation.spawn(task as usize, work));
    }
    let done = simulation.run_until(|| live.load(Ordering::SeqCst) == 0, 2_000_000);
    done.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
    assert_eq!(simulation.store().stats().versions, 0);
    assert_sound(simulation.store(), None);
    let history = std::mem::take(&mut *shared.history.lock().unwrap());
    let conflicts = shared.conflicts.load(Ordering::Relaxed);
    drop(shared);
    simulation.close().unwrap();
    assert!(
        history.len() as u64 > TASKS * ROUNDS / 8,
        "hardly any transaction commits"
    );
    (edges(&history), conflicts)
}

#[test]
fn snapshot_isolation_has_no_cycle_with_less_than_two_antidependencies() {
    let (mut skews, mut conflicts) = (0, 0);
    for seed in 0..parameter("ISOBATH_HISTORY_SEEDS", 12) {
        let (edges, lost) = run(seed, Isolation::Snapshot);
        assert!(is_snapshot_isolated(&edges), "seed {seed}");
        skews += u64::from(!is_serializable(&edges));
        conflicts += lost;
    }
    // Else the search for cycles would find nothing either.
    assert!(
        skews > 0 && conflicts > 0,
        "{skews} skews, {conflicts} conflicts"
    );
}

#[test]
fn serializable_transactions_have_no_cycle() {
    let mut conflicts = 0;
    for seed in 0..parameter("ISOBATH_HISTORY_SEEDS", 12) {
        let (edges, lost) = run(seed + 1000, Isolation::Serializable);
        assert!(is_serializable(&edges), "seed {seed}");
        conflicts += lost;
    }
    assert!(conflicts > 0);
}

/// Single operations leave no versions while no snapshot is open.
/// One that begins while they wait for pages must not see them happen.
#[test]
fn snapshots_that_begin_beside_single_operations_do_not_change() {
    const RECORDS: u64 = 9000;
    const WRITERS: u64 = 10;
    let wide = |n: u64| [&n.to_be_bytes()[..], &[b'w'; 60]].concat();
    for seed in 0..parameter("ISOBATH_HISTORY_SEEDS", 6) {
        let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=60));
        let volume = isobath::Volume::from_device(device);
        let options = perhaps_logged(tiny(2, 8), seed);
        let mut simulation = Simulation::new(volume, &options, seed).unwrap();
        let tree = simulation.store().create_tree("t").unwrap();
        let records = (0..RECORDS).map(|n| (wide(n), vec![0; 300]));
        tree.bulk_load(records).unwrap();
        let current: Arc<Vec<AtomicU64>> = Arc::new((0..WRITERS).map(AtomicU64::new).collect());
        let live = Arc::new(AtomicU64::new(WRITERS));
        for writer in 0..WRITERS {
            let (tree, current, live) = (tree.clone(), Arc::clone(&current), Arc::clone(&live));
            drop(simulation.spawn(writer as usize, move || {
                let mut random = Random::new(seed << 8 | writer);
                for round in 1..150u64 {
                    let n = random.below(RECORDS);
                    current[writer as usize].store(n, Ordering::SeqCst);
                    tree.insert(&wide(n), &round.to_le_bytes()).unwrap();
                }
                live.fetch_sub(1, Ordering::SeqCst);
            }));
        }
        let (store, watched) = (simulation.store().clone(), tree.clone());
        let ends = Arc::clone(&live);
        let reader = simulation.spawn(1, move || {
            let mut random = Random::new(seed);
            let mut looks = 0;
            while ends.load(Ordering::SeqCst) > 0 {
                let writer = random.below(WRITERS) as usize;
                let n = current[writer].load(Ordering::SeqCst);
                let snapshot = store.snapshot().unwrap();
                let first = snapshot.get(&watched, &wide(n)).unwrap();
                (0..random.below(60)).for_each(|_| yield_now());
                let second = snapshot.get(&watched, &wide(n)).unwrap();
                assert!(first == second, "seed {seed}: a snapshot has changed");
                looks += 1;
                drop(snapshot);
                (0..random.below(60)).for_each(|_| yield_now());
            }
            looks
        });
        let done = simulation.run_until(|| live.load(Ordering::SeqCst) == 0, 4_000_000);
        done.unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
        assert!(reader.join().unwrap() > 10);
        // Versions of the last snapshot go with the next change at the latest.
        tree.insert(&wide(0), &[1]).unwrap();
        assert_eq!(simulation.store().stats().versions, 0);
        drop(tree);
        simulation.close().unwrap();
    }
}
