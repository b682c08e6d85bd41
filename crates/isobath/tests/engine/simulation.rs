//! Whole stores of several workers in one thread, in an order drawn from a
//! seed, on a device whose I/Os overtake each other: operations against a
//! model, with the pool and the volume as small as they may be.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{Random, assert_sound, key, parameter, tiny, value};
use isobath::{Error, Options, Simulation, Tree, Volume};
use isobath_io::{FaultDevice, FaultPlan};

fn device(seed: u64, limit: Option<u64>) -> Arc<FaultDevice> {
    let plan = FaultPlan::new(seed).latency_us(0..=40).max_bytes(limit);
    FaultDevice::new(0, plan)
}

/// Lengths of values: in the leaf, and in one or several chunks.
const LENGTHS: [usize; 8] = [0, 8, 60, 400, 1000, 1100, 6000, 30_000];

fn value_of(tag: u64) -> Vec<u8> {
    value(tag, LENGTHS[(tag % 8) as usize])
}

fn tag_of(bytes: Option<&Vec<u8>>, candidates: &BTreeSet<Option<u64>>) -> Option<Option<u64>> {
    let Some(bytes) = bytes else {
        return candidates.contains(&None).then_some(None);
    };
    candidates
        .iter()
        .flatten()
        .find(|&&tag| value_of(tag) == *bytes)
        .map(|&tag| Some(tag))
}

/// One key that several tasks change: which values it may have now.
struct Shared {
    possible: BTreeSet<Option<u64>>,
    writes: HashMap<u64, Write>,
    reads: HashMap<u64, BTreeSet<Option<u64>>>,
}

struct Write {
    value: Option<u64>,
    /// Values written during this write.
    beside: BTreeSet<Option<u64>>,
}

impl Shared {
    fn new() -> Shared {
        Shared {
            possible: BTreeSet::from([None]),
            writes: HashMap::new(),
            reads: HashMap::new(),
        }
    }

    fn begin_write(&mut self, op: u64, value: Option<u64>) {
        let mut beside = BTreeSet::new();
        for write in self.writes.values_mut() {
            write.beside.insert(value);
            beside.insert(write.value);
        }
        for seen in self.reads.values_mut() {
            seen.insert(value);
        }
        self.writes.insert(op, Write { value, beside });
    }

    /// The write took effect at some moment since it began: what was there
    /// before it began is gone.
    fn end_write(&mut self, op: u64) {
        let write = self.writes.remove(&op).unwrap();
        self.possible = write.beside;
        self.possible.insert(write.value);
    }

    fn begin_read(&mut self, op: u64) {
        let mut seen = self.possible.clone();
        seen.extend(self.writes.values().map(|write| write.value));
        self.reads.insert(op, seen);
    }

    fn end_read(&mut self, op: u64, found: Option<&Vec<u8>>) {
        let seen = self.reads.remove(&op).unwrap();
        assert!(
            tag_of(found, &seen).is_some(),
            "read {} bytes, but only {seen:?} were possible",
            found.map_or(0, Vec::len)
        );
    }
}

type Table = Arc<Mutex<Vec<Shared>>>;

const SHARED_KEYS: u64 = 24;
const OWN_KEYS: u64 = 260;

struct Actor {
    tree: Tree,
    shared: Table,
    random: Random,
    number: u64,
    next_op: u64,
    /// The volume may be full at times.
    limited: bool,
    own: BTreeMap<Vec<u8>, u64>,
}

impl Actor {
    fn own_key(&mut self) -> Vec<u8> {
        let n = self.random.below(OWN_KEYS);
        let length = [0, 3, 90, 700][(n % 4) as usize];
        let mut key = vec![b'o', self.number as u8];
        key.extend_from_slice(&(n as u32).to_be_bytes());
        key.resize(key.len() + length, b'k');
        key
    }

    fn op(&mut self) -> u64 {
        self.next_op += 1;
        self.number << 32 | self.next_op
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..30 => {
                let (key, tag) = (self.own_key(), self.op());
                if self.inserts(&key, tag) {
                    self.own.insert(key, tag);
                }
            }
            30..48 => {
                let key = self.own_key();
                let existed = self.tree.remove(&key).unwrap();
                assert_eq!(existed, self.own.remove(&key).is_some());
            }
            48..70 => {
                let key = self.own_key();
                let found = self.tree.get(&key).unwrap();
                assert_eq!(found, self.own.get(&key).map(|&tag| value_of(tag)));
            }
            70..72 => self.scan(),
            72..86 => self.read_shared(),
            _ => self.write_shared(),
        }
    }

    /// Whether the value went in; on a full volume it may not, and then changes
    /// nothing.
    fn inserts(&self, key: &[u8], tag: u64) -> bool {
        match self.tree.insert(key, &value_of(tag)) {
            Ok(()) => true,
            Err(Error::VolumeFull { .. }) if self.limited => false,
            Err(error) => panic!("insert: {error}"),
        }
    }

    fn scan(&mut self) {
        let prefix = [b'o', self.number as u8];
        let mut want = self.own.iter();
        for record in self.tree.prefix(&prefix) {
            let (key, found) = record.unwrap();
            let (wanted, &tag) = want.next().unwrap();
            assert_eq!(&key, wanted);
            assert_eq!(found, value_of(tag));
        }
        assert_eq!(want.next(), None);
        let mut last = Vec::new();
        for record in self.tree.prefix(b"s").rev() {
            let (key, _) = record.unwrap();
            assert!(last.is_empty() || key < last);
            last = key;
        }
    }

    fn read_shared(&mut self) {
        let (at, op) = (self.random.below(SHARED_KEYS), self.op());
        self.shared.lock().unwrap()[at as usize].begin_read(op);
        let found = self.tree.get(&[b's', at as u8]).unwrap();
        self.shared.lock().unwrap()[at as usize].end_read(op, found.as_ref());
    }

    fn write_shared(&mut self) {
        let (at, op) = (self.random.below(SHARED_KEYS), self.op());
        let removes = self.random.below(4) == 0;
        let value = (!removes).then_some(op);
        self.shared.lock().unwrap()[at as usize].begin_write(op, value);
        let key = [b's', at as u8];
        let done = match value {
            Some(tag) => self.inserts(&key, tag),
            None => {
                self.tree.remove(&key).unwrap();
                true
            }
        };
        let shared = &mut self.shared.lock().unwrap()[at as usize];
        if done {
            shared.end_write(op);
        } else {
            shared.writes.remove(&op);
        }
    }
}

/// What a run left: its digests, for comparison with another run.
#[derive(PartialEq, Eq, Debug)]
struct Trace(u64, u64, u64);

struct Case {
    workers: usize,
    actors: u64,
    ops: u64,
    limit: Option<u64>,
}

fn options(case: &Case) -> Options {
    tiny(case.workers, 8).volume_limit_bytes(case.limit)
}

/// Runs a case to its end and returns the device with the closed store.
fn run(seed: u64, case: &Case) -> Trace {
    let device = device(seed, case.limit);
    let volume = Volume::from_device(device.clone());
    let mut models: Vec<BTreeMap<Vec<u8>, u64>> = vec![BTreeMap::new(); case.actors as usize];
    let shared: Table = Arc::new(Mutex::new(
        (0..SHARED_KEYS).map(|_| Shared::new()).collect(),
    ));
    let mut hash = 0u64;
    for round in 0..2 {
        let mut simulation = if round == 0 {
            let simulation = Simulation::new(volume.clone(), &options(case), seed).unwrap();
            simulation.store().create_tree("model").unwrap();
            simulation
        } else {
            Simulation::open(volume.clone(), &options(case), seed + round).unwrap()
        };
        let tree = simulation.store().tree("model").unwrap();
        verify(&tree, &models, &shared);
        models = act(
            &mut simulation,
            &tree,
            models,
            &shared,
            seed ^ round << 40,
            case,
        );
        verify(&tree, &models, &shared);
        assert_sound(simulation.store(), None);
        let stats = simulation.store().stats();
        assert_eq!(simulation.accounted_frames() as u64, stats.pool_frames);
        hash = simulation.trace_hash().wrapping_add(hash.rotate_left(7));
        simulation.close().unwrap();

        let simulation = Simulation::open(volume.clone(), &options(case), seed + 77).unwrap();
        let after = simulation.store().stats();
        assert_eq!(
            after.allocated_bytes, stats.allocated_bytes,
            "space is lost"
        );
        assert_eq!(after.live_bytes, stats.allocated_bytes, "space is lost");
        let tree = simulation.store().tree("model").unwrap();
        verify(&tree, &models, &shared);
        assert_sound(simulation.store(), None);
        simulation.close().unwrap();
    }
    Trace(hash, device.digest(), device.io_count())
}

/// Counts the tasks that have ended, by a panic too.
struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn act(
    simulation: &mut Simulation,
    tree: &Tree,
    models: Vec<BTreeMap<Vec<u8>, u64>>,
    shared: &Table,
    seed: u64,
    case: &Case,
) -> Vec<BTreeMap<Vec<u8>, u64>> {
    let ended = Arc::new(AtomicUsize::new(0));
    let (count, ops) = (models.len(), case.ops);
    let mut handles = Vec::new();
    for (number, own) in models.into_iter().enumerate() {
        let mut actor = Actor {
            tree: tree.clone(),
            shared: Arc::clone(shared),
            random: Random::new(seed ^ (number as u64) << 20),
            number: number as u64,
            limited: case.limit.is_some(),
            next_op: seed & 0xff << 16 | (seed >> 40) << 24,
            own,
        };
        let mine = Arc::clone(&ended);
        handles.push(simulation.spawn(number, move || {
            let _ended = Ended(mine);
            for _ in 0..ops {
                actor.step();
            }
            actor.own
        }));
    }
    simulation
        .run_until(|| ended.load(Ordering::Relaxed) == count, 20_000_000)
        .unwrap();
    handles
        .into_iter()
        .map(|handle| handle.join().unwrap())
        .collect()
}

fn verify(tree: &Tree, models: &[BTreeMap<Vec<u8>, u64>], shared: &Table) {
    let mut want: BTreeMap<&[u8], u64> = BTreeMap::new();
    for model in models {
        want.extend(model.iter().map(|(key, &tag)| (&key[..], tag)));
    }
    let mut own = 0;
    let mut present = BTreeSet::new();
    let mut guard = shared.lock().unwrap();
    let table = &mut *guard;
    tree.scan(.., |key, found| {
        if key[0] == b's' {
            let at = usize::from(key[1]);
            let tag = tag_of(Some(&found.to_vec()), &table[at].possible);
            assert!(tag.is_some(), "shared key {at} has an impossible value");
            // From now on it is known.
            table[at].possible = tag.into_iter().collect();
            present.insert(at);
        } else {
            assert!(want.get(key).is_some_and(|&tag| value_of(tag) == found));
            own += 1;
        }
        true
    })
    .unwrap();
    assert_eq!(own, want.len());
    for (at, shared) in table.iter_mut().enumerate() {
        if !present.contains(&at) {
            assert!(shared.possible.contains(&None), "shared key {at} is lost");
            shared.possible = BTreeSet::from([None]);
        }
    }
}

#[test]
fn a_seed_repeats_its_run_and_another_seed_runs_otherwise() {
    let case = Case {
        workers: 3,
        actors: 8,
        ops: 120,
        limit: None,
    };
    let first = run(1, &case);
    assert_eq!(first, run(1, &case));
    let other = run(2, &case);
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
}

#[test]
fn many_tasks_on_several_workers_agree_with_their_models() {
    let seeds = parameter("ISOBATH_SEEDS", 6);
    let first = parameter("ISOBATH_FIRST_SEED", 100);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let case = Case {
            workers: 1 + (seed % 4) as usize,
            actors: 12,
            ops: parameter("ISOBATH_OPS", 500),
            // Tight: live data fills most of what such a volume can take.
            limit: (seed % 3 != 0).then_some((10 << 20) + (seed % 5) * (1 << 20)),
        };
        run(seed, &case);
    }
}

/// The worker that drops a tree frees its frames; another one's commit may wait for one of them,
/// and be waited for.
#[test]
fn frames_of_dropped_trees_are_for_every_worker() {
    let volume = Volume::from_device(device(1, None));
    let mut simulation = Simulation::new(volume, &tiny(2, 16), 1).unwrap();
    let store = simulation.store().clone();
    for _ in 0..20 {
        let tree = store.create_tree("t").unwrap();
        let ended = Arc::new(AtomicUsize::new(0));
        for task in 0..16u64 {
            let (tree, ended) = (tree.clone(), Arc::clone(&ended));
            let inserts = move || {
                for n in 0..40 {
                    match tree.insert(&key(task << 32 | n), &value(n, 300)) {
                        Ok(()) => {}
                        Err(Error::TreeDropped { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                ended.fetch_add(1, Ordering::Relaxed);
            };
            drop(store.spawn(inserts));
        }
        for _ in 0..100 {
            simulation.step();
        }
        store.drop_tree("t").unwrap();
        let all = || ended.load(Ordering::Relaxed) == 16;
        simulation.run_until(all, 1_000_000).unwrap();
    }
    let stats = store.stats();
    let kept = simulation.free_frames_kept();
    let fair = stats.pool_frames as usize / 32;
    assert!(kept.iter().all(|&kept| kept <= fair), "{kept:?}");
    drop(store);
    simulation.close().unwrap();
}
