//! Trees with overlays against a plain map: memories of a few KiB, so that some hundred changes
//! seal, merge and free runs.

#![allow(missing_docs, clippy::unwrap_used)]

mod backups;
mod crashes;

use super::common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Random, assert_sound, key, parameter, value};
use isobath::{
    Durability, Error, Isolation, LoadError, Options, Simulation, Small, Snapshot, Store,
    TransactionError, TransactionOptions, Tree, Volume,
};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 1500;

fn options(log: u64) -> Options {
    let frames = 128 + 64 * 2 + 4 * 12;
    Options::new()
        .pool_bytes(2 * frames * 4224 + (2 << 20) + 8192)
        .version_store_bytes(2 << 20)
        .workers(2)
        .tasks_per_worker(6)
        .depth_per_worker(16)
        .segment_bytes(64 << 10)
        .log_bytes(log)
        .overlays(true)
}

/// Memories of overlays of so many bytes in the stores of this thread.
fn small(bytes: u64) {
    small_with_spills(bytes, None);
}

/// The same; transactions of more than `spill` bytes are large.
fn small_with_spills(bytes: u64, spill: Option<u64>) {
    Small {
        words_per_page: None,
        checkpoint_bytes: Some(64 << 10),
        spill_bytes: spill,
        overlay_bytes: Some(bytes),
    }
    .switch_on();
}

fn device(seed: u64) -> Arc<FaultDevice> {
    FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=20))
}

fn create(options: &Options, seed: u64) -> (Arc<FaultDevice>, Simulation) {
    let device = device(seed);
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, options, seed).unwrap();
    (device, simulation)
}

fn open(device: &Arc<FaultDevice>, options: &Options, seed: u64) -> Simulation {
    Simulation::open(Volume::from_device(device.clone()), options, seed)
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

/// A tree, the map that it should be, and snapshots with the maps that they should see.
struct Compared {
    tree: Tree,
    model: Model,
    snapshots: Vec<(Snapshot, Model)>,
}

/// A key above all others, in the order of the numbers.
fn high(number: u64) -> Vec<u8> {
    [&[0xff; 9][..], format!("{number:09}").as_bytes()].concat()
}

fn number_of_high(key: &[u8]) -> Option<u64> {
    let number = key.strip_prefix(&[0xff; 9])?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn bounds(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let (from, to) = (key(random.below(KEYS)), key(random.below(KEYS)));
    (from.clone().min(to.clone()), from.max(to))
}

fn within<'m>(model: &'m Model, from: &'m [u8], to: &'m [u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    model
        .range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

impl Compared {
    fn new(tree: Tree, model: Model) -> Compared {
        Compared {
            tree,
            model,
            snapshots: Vec::new(),
        }
    }

    fn step(&mut self, store: &Store, random: &mut Random) {
        let Compared {
            tree,
            model,
            snapshots,
        } = self;
        let number = random.below(KEYS);
        let key = key(number);
        let length = match random.below(300) {
            0 => 5000,
            _ => random.one_of(&[0, 10, 100, 200]),
        };
        match random.below(100) {
            0..40 => {
                let new = value(random.bits(), length);
                tree.insert(&key, &new).unwrap();
                model.insert(key, new);
            }
            40..55 => {
                let existed = tree.remove(&key).unwrap();
                assert_eq!(existed, model.remove(&key).is_some());
            }
            55..72 => assert_eq!(tree.get(&key).unwrap().as_ref(), model.get(&key)),
            72..76 => {
                let (from, to) = bounds(random);
                let wanted = within(model, &from, &to);
                let found = tree.range(from.clone()..to.clone());
                let mut found: Vec<_> = found.map(|record| record.unwrap()).collect();
                assert!(found == wanted, "a range differs");
                found = tree
                    .range(from.clone()..to.clone())
                    .rev()
                    .map(|record| record.unwrap())
                    .collect();
                found.reverse();
                assert!(found == wanted, "a reverse range differs");
                assert_eq!(tree.count(from..to).unwrap(), wanted.len() as u64);
            }
            76..80 => {
                let keys: Vec<_> = (0..20).map(|_| common::key(random.below(KEYS))).collect();
                let found = tree.get_many(&keys).unwrap();
                for (key, found) in keys.iter().zip(found) {
                    assert_eq!(found.as_ref(), model.get(key));
                }
            }
            80..88 => {
                let mut new = model.clone();
                let mut transaction = store.begin().unwrap();
                let count = random.one_of(&[20, 20, 20, 120]);
                for _ in 0..1 + random.below(count) {
                    let key = common::key(random.below(KEYS));
                    if random.below(3) == 0 {
                        let existed = transaction.remove(tree, &key).unwrap();
                        assert_eq!(existed, new.remove(&key).is_some());
                    } else {
                        let value = value(random.bits(), random.one_of(&[0, 50, 300]));
                        transaction.insert(tree, &key, &value).unwrap();
                        new.insert(key, value);
                    }
                }
                let (from, to) = bounds(random);
                let found = transaction.range(tree, from.clone()..to.clone()).unwrap();
                let found: Vec<_> = found.map(|record| record.unwrap()).collect();
                assert!(
                    found == within(&new, &from, &to),
                    "a transaction's range differs"
                );
                if random.below(4) > 0 {
                    transaction.commit().unwrap();
                    *model = new;
                }
            }
            88..91 => {
                let options = TransactionOptions::default();
                let end = key.clone()..common::key(number + 1).max(key.clone());
                store
                    .transact(options, |transaction| {
                        transaction.remove_range(tree, end.clone()).map(drop)
                    })
                    .unwrap();
                model.retain(|key, _| !end.contains(key));
            }
            91..94 if snapshots.len() < 3 => {
                snapshots.push((store.snapshot().unwrap(), model.clone()));
            }
            94..97 if !snapshots.is_empty() => {
                let at = random.below(snapshots.len() as u64) as usize;
                let (snapshot, seen) = &snapshots[at];
                match snapshot.get(tree, &key) {
                    // A large transaction came since.
                    Err(Error::SnapshotTooOld) => {
                        snapshots.remove(at);
                        return;
                    }
                    found => assert_eq!(found.unwrap().as_ref(), seen.get(&key)),
                }
                let (from, to) = bounds(random);
                let found = snapshot.range(tree, from.clone()..to.clone()).unwrap();
                let found: Vec<_> = found.map(|record| record.unwrap()).collect();
                assert!(
                    found == within(seen, &from, &to),
                    "a snapshot's range differs"
                );
                if random.below(3) == 0 {
                    snapshots.remove(at);
                }
            }
            97 if random.below(4) == 0 => {
                let last = model.last_key_value().map(|(key, _)| &key[..]);
                let from = last.and_then(number_of_high).map_or(0, |last| last + 1);
                let length = match random.below(8) {
                    0 => 5000,
                    _ => 100,
                };
                let records = (from..from + 1 + random.below(60))
                    .map(|number| (high(number), value(number, length)));
                let records: Vec<_> = records.collect();
                assert_eq!(
                    tree.bulk_load(records.clone()).unwrap(),
                    records.len() as u64
                );
                model.extend(records);
                let refused = tree.bulk_load([(high(from), b"again")]);
                assert!(matches!(refused, Err(LoadError::LoadOrder { .. })));
                // The next load may bring these again.
                for _ in 0..random.below(4) {
                    assert_eq!(tree.pop_last().unwrap(), model.pop_last());
                }
            }
            97 => {
                let first = tree.first().unwrap();
                let wanted = model.first_key_value();
                assert_eq!(first.as_ref().map(|(key, value)| (key, value)), wanted);
                let last = tree.last().unwrap();
                let wanted = model.last_key_value();
                assert_eq!(last.as_ref().map(|(key, value)| (key, value)), wanted);
            }
            98 => {
                let popped = tree.pop_first().unwrap();
                assert_eq!(popped, model.pop_first());
            }
            _ => {
                let old = model.get(&key).cloned();
                let new = value(random.bits(), 30);
                let swapped = tree
                    .compare_and_swap(&key, old.as_deref(), Some(&new))
                    .unwrap();
                assert!(swapped.is_ok());
                model.insert(key, new);
            }
        }
    }

    fn compare(&self) {
        let found: Model = self.tree.range(..).map(|record| record.unwrap()).collect();
        assert!(found == self.model, "the tree differs");
    }
}

fn against_a_map(seed: u64, log: u64, durability: Durability, steps: u64) {
    small_with_spills(6 << 10, (seed % 2 == 1).then_some(3 << 10));
    let options = options(log).durability(durability);
    let (device, mut simulation) = create(&options, seed);
    let mut random = Random::new(seed);
    let mut compared = Compared::new(
        simulation.store().create_tree("t").unwrap(),
        Model::default(),
    );
    let (mut sealed, mut merged, mut large) = (0, 0, 0);
    for round in 0..6 {
        for _ in 0..steps {
            compared.step(simulation.store(), &mut random);
        }
        compared.compare();
        let stats = simulation.store().stats();
        (sealed, merged) = (sealed + stats.sealed_runs, merged + stats.merged_runs);
        large += stats.large_commits;
        let Compared { model, .. } = compared;
        // Everything that was acknowledged is there, whatever has been written.
        let survivors = match durability {
            Durability::Synced => Survivors::None,
            _ => Survivors::Executed,
        };
        let image = device.crash_image(survivors, round);
        if log > 0 {
            let options = options.clone();
            simulation.close().unwrap();
            let recovered = open(&image, &options, seed + round);
            let tree = recovered.store().tree("t").unwrap();
            let found: Model = tree.range(..).map(|record| record.unwrap()).collect();
            if durability == Durability::Synced {
                assert!(found == model, "seed {seed}: what was recovered differs");
            }
            assert_sound(recovered.store(), Some(found.len() as u64));
            recovered.close().unwrap();
        } else {
            simulation.close().unwrap();
        }
        // Without the option what there is is honoured.
        let again = match random.below(4) {
            0 => options.clone().overlays(false),
            _ => options.clone(),
        };
        simulation = open(&device, &again, seed + 100 + round);
        let tree = simulation.store().tree("t").unwrap();
        compared = Compared::new(tree, model);
        compared.compare();
        assert_sound(simulation.store(), Some(compared.model.len() as u64));
    }
    simulation.close().unwrap();
    assert!(
        sealed > 3 && merged > 3,
        "seed {seed}: {sealed} sealed, {merged} merged"
    );
    assert_eq!(
        large > 0,
        seed % 2 == 1,
        "seed {seed}: {large} large commits"
    );
}

#[test]
fn overlays_are_a_map_and_what_is_synced_is_recovered() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 2) {
        against_a_map(seed, 4 << 20, Durability::Synced, 800);
    }
}

#[test]
fn overlays_are_a_map_with_a_buffered_log() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 2) {
        against_a_map(seed, 4 << 20, Durability::Buffered { window_ms: 10 }, 1500);
    }
}

#[test]
fn overlays_are_a_map_without_a_log() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 2) {
        against_a_map(seed, 0, Durability::None, 1500);
    }
}

/// Threads that write keys of their own, beside others that read and scan, while runs are sealed,
/// merged and freed: each reader finds what its writer has acknowledged, or something newer.
#[test]
fn readers_beside_writers_miss_nothing() {
    const WRITERS: u64 = 4;
    const OWN_KEYS: u64 = 400;
    const ROUNDS: u64 = 40;
    small(16 << 10);
    let options = options(8 << 20).durability(Durability::Buffered { window_ms: 10 });
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let number = |writer: u64, n: u64| common::key(n * WRITERS + writer);
    let round_of = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().unwrap());
    for n in 0..WRITERS * OWN_KEYS {
        tree.insert(common::key(n), value_of(0)).unwrap();
    }
    let acknowledged: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (tree, acknowledged, ended) = (tree.clone(), &acknowledged, &ended);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for n in 0..OWN_KEYS {
                        tree.insert(number(writer, n), value_of(round)).unwrap();
                    }
                    acknowledged[writer as usize].store(round, Ordering::SeqCst);
                }
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        for reader in 0..2 {
            let (tree, store) = (tree.clone(), store.clone());
            let (acknowledged, ended) = (&acknowledged, &ended);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                while ended.load(Ordering::SeqCst) < WRITERS {
                    let writer = random.below(WRITERS);
                    let least = acknowledged[writer as usize].load(Ordering::SeqCst);
                    for _ in 0..50 {
                        let key = number(writer, random.below(OWN_KEYS));
                        let found = tree.get(&key).unwrap().unwrap();
                        assert!(round_of(&found) >= least);
                    }
                    let mut count = 0;
                    let least: Vec<_> = acknowledged
                        .iter()
                        .map(|a| a.load(Ordering::SeqCst))
                        .collect();
                    let least = least.into_iter().min().unwrap();
                    let mut see = |_: &[u8], value: &[u8]| {
                        assert!(round_of(value) >= least);
                        count += 1;
                        true
                    };
                    match random.below(2) {
                        0 => tree.scan(.., &mut see).unwrap(),
                        _ => tree.scan_reverse(.., &mut see).unwrap(),
                    }
                    assert_eq!(count, WRITERS * OWN_KEYS);
                    let snapshot = store.snapshot().unwrap();
                    let all = |snapshot: &Snapshot| -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
                        snapshot
                            .range(&tree, ..)
                            .ok()?
                            .collect::<Result<_, _>>()
                            .ok()
                    };
                    if let (Some(first), Some(again)) = (all(&snapshot), all(&snapshot)) {
                        assert!(first == again, "a snapshot has changed");
                        assert_eq!(first.len() as u64, WRITERS * OWN_KEYS);
                    }
                }
            });
        }
    });
    let stats = store.stats();
    assert!(stats.sealed_runs > 3 && stats.merged_runs > 3, "{stats}");
    assert_sound(&store, Some(WRITERS * OWN_KEYS));
    store.close().unwrap();
}

/// A store that was closed goes on merging once it is open again.
#[test]
fn runs_are_merged_after_a_reopening() {
    small(16 << 10);
    let options = options(0);
    let volume = Volume::in_memory(0, None);
    let mut model = Model::new();
    let mut random = Random::new(5);
    for session in 0..4 {
        let store = match session {
            0 => Store::create_on_volume(volume.clone(), &options).unwrap(),
            _ => Store::open_on_volume(volume.clone(), &options).unwrap(),
        };
        let tree = store.open_or_create_tree("t").unwrap();
        for round in 0..4000 {
            let name = key(random.below(KEYS));
            tree.insert(&name, value_of(round)).unwrap();
            model.insert(name.to_vec(), value_of(round));
        }
        let stats = store.stats();
        assert!(stats.merged_runs > 3, "session {session}: {stats}");
        assert_sound(&store, Some(model.len() as u64));
        drop(tree);
        store.close().unwrap();
    }
}

/// A volume that changes fill says so, takes removals, and changes again once these have freed
/// space; what it has acknowledged is there after it was closed, without a log too.
#[test]
fn a_full_volume_takes_removals_and_goes_on() {
    for (log, seed) in [(0, 1), (4 << 20, 2)] {
        let limit = (12 << 20) + log;
        small(64 << 10);
        let durability = match log {
            0 => Durability::default(),
            _ => Durability::Buffered { window_ms: 10 },
        };
        let options = options(log)
            .durability(durability)
            .volume_limit_bytes(Some(limit));
        let volume = Volume::in_memory(0, Some(limit));
        let store = Store::create_on_volume(volume.clone(), &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let mut model = Model::new();
        let mut random = Random::new(seed);
        let fill = |model: &mut Model, random: &mut Random| loop {
            let (name, round) = (key(random.below(1 << 40)), random.below(1 << 30));
            match tree.insert(&name, value_of(round)) {
                Ok(()) => drop(model.insert(name.to_vec(), value_of(round))),
                Err(Error::VolumeFull { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        };
        fill(&mut model, &mut random);
        let first = model.len();
        assert!(first > 5_000, "{first}");
        assert!(store.stats().sealed_runs > 3, "{}", store.stats());
        let gone: Vec<_> = model.keys().step_by(2).cloned().collect();
        for name in gone {
            assert!(tree.remove(&name).unwrap());
            model.remove(&name);
        }
        let left = model.len();
        fill(&mut model, &mut random);
        assert!(
            model.len() > left + first / 8,
            "{left} of {first}, {}",
            model.len()
        );
        let compare = |tree: &Tree, model: &Model| {
            let mut expected = model.iter();
            tree.scan(.., |name, value| {
                let (key, bytes) = expected.next().unwrap();
                assert!(&key[..] == name && &bytes[..] == value);
                true
            })
            .unwrap();
            assert!(expected.next().is_none());
        };
        compare(&tree, &model);
        drop(tree);
        store.close().unwrap();
        let store = Store::open_on_volume(volume, &options).unwrap();
        assert_sound(&store, Some(model.len() as u64));
        compare(&store.tree("t").unwrap(), &model);
        store.drop_tree("t").unwrap();
        let tree = store.create_tree("t").unwrap();
        let mut model = Model::new();
        for n in 0..first as u64 / 2 {
            tree.insert(key(n), value_of(n)).unwrap();
            model.insert(key(n).to_vec(), value_of(n));
        }
        compare(&tree, &model);
        drop(tree);
        store.close().unwrap();
    }
}

/// What a large transaction changes is a run of each tree. A tree that had no overlays keeps them if
/// it has several leaves with that. Older snapshots and transactions are told. A crash leaves all
/// of it or nothing, and no older change above it.
#[test]
fn a_large_transaction_becomes_a_run_of_each_of_its_trees() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 12) {
        // No checkpoint comes before the crash.
        Small {
            words_per_page: None,
            checkpoint_bytes: None,
            spill_bytes: Some(4 << 10),
            overlay_bytes: Some(6 << 10),
        }
        .switch_on();
        let options = options(4 << 20).durability(Durability::Synced);
        let (device, simulation) = create(&options, seed);
        let store = simulation.store();
        let (tree, other) = (
            store.create_tree("t").unwrap(),
            store.create_tree("u").unwrap(),
        );
        let mut random = Random::new(seed);
        let mut models = [Model::default(), Model::default()];
        while store.stats().runs < 2 {
            let (key, value) = (key(random.below(KEYS)), value(random.bits(), 60));
            tree.insert(&key, &value).unwrap();
            models[0].insert(key, value);
        }
        other.insert(key(5), b"other").unwrap();
        models[1].insert(key(5), b"other".to_vec());
        let before = store.stats();
        let snapshot = store.snapshot().unwrap();
        let mut late = store.begin().unwrap();
        late.insert(&tree, key(4), b"late").unwrap();
        let mut new = models.clone();
        // One that has read what it changes is no conflict with itself.
        let isolation = match seed % 2 {
            0 => Isolation::Snapshot,
            _ => Isolation::Serializable,
        };
        let serializable = TransactionOptions::new().isolation(isolation);
        let mut transaction = store.begin_with(serializable).unwrap();
        transaction.get(&tree, key(2)).unwrap();
        for n in 0..300 {
            let at = usize::from(n % 3 == 0);
            let (tree, key) = ([&tree, &other][at], key(random.below(KEYS)));
            let length = if n % 97 == 0 { 6000 } else { 40 };
            match random.below(4) {
                0 => {
                    let existed = transaction.remove(tree, &key).unwrap();
                    assert_eq!(existed, new[at].remove(&key).is_some());
                }
                _ => {
                    let value = value(random.bits(), length);
                    transaction.insert(tree, &key, &value).unwrap();
                    new[at].insert(key, value);
                }
            }
        }
        // What the log has of it is from before the tree had overlays.
        transaction.insert(&other, key(5), b"newest").unwrap();
        new[1].insert(key(5), b"newest".to_vec());
        transaction.commit().unwrap();
        let after = store.stats();
        assert_eq!(after.large_commits - before.large_commits, 1);
        assert_eq!(after.overlaid_trees, 2);
        let read = snapshot.get(&tree, key(1));
        assert!(matches!(read, Err(Error::SnapshotTooOld)), "{read:?}");
        let late = late.commit();
        assert!(
            matches!(late, Err(TransactionError::Conflict { .. })),
            "{late:?}"
        );
        let compare = |store: &Store, models: &[Model; 2]| {
            for (name, model) in ["t", "u"].into_iter().zip(models) {
                let tree = store.tree(name).unwrap();
                let found: Model = tree.range(..).map(|record| record.unwrap()).collect();
                assert!(found == *model, "seed {seed}: {name} differs");
                let missing = (0..KEYS)
                    .map(key)
                    .find(|key| tree.get(key).unwrap().as_ref() != model.get(key));
                assert_eq!(missing, None);
            }
            assert_sound(
                store,
                Some(models.iter().map(|model| model.len() as u64).sum()),
            );
        };
        compare(store, &new);
        // Newer changes are above it.
        tree.insert(key(9), b"newer").unwrap();
        new[0].insert(key(9), b"newer".to_vec());
        let image = device.crash_image(Survivors::None, seed);
        simulation.close().unwrap();
        for device in [&image, &device] {
            let opened = open(device, &options, seed + 1);
            compare(opened.store(), &new);
            opened.close().unwrap();
        }
    }
}

/// Records above all that a tree has are loaded beside its overlays, which stay; they go where they
/// have something there, be it removals alone.
#[test]
fn a_load_above_all_keys_leaves_the_overlays_alone() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 6) {
        small(6 << 10);
        let options = options(4 << 20).durability(Durability::Synced);
        let (device, simulation) = create(&options, seed);
        let store = simulation.store();
        let tree = store.create_tree("t").unwrap();
        let mut random = Random::new(seed);
        let mut model: Model = (0..KEYS).map(|n| (key(n), value(n, 60))).collect();
        tree.bulk_load(&model).unwrap();
        while store.stats().runs < 2 {
            let (key, value) = (key(random.below(KEYS)), value(random.bits(), 60));
            tree.insert(&key, &value).unwrap();
            model.insert(key, value);
        }
        let load = |model: &mut Model, from: u64| {
            let records = (from..from + 50).map(|n| (high(n), value(n + seed, 80)));
            let records: Vec<_> = records.collect();
            tree.bulk_load(records.clone()).unwrap();
            model.extend(records);
            store.stats().overlaid_trees
        };
        assert_eq!(load(&mut model, 0), 1);
        assert_eq!(load(&mut model, 200), 1);
        // One that was inserted above all and removed again would hide what is loaded there.
        tree.insert(high(310), b"x").unwrap();
        tree.remove(high(310)).unwrap();
        assert_eq!(load(&mut model, 300), 0);
        let image = device.crash_image(Survivors::None, seed);
        simulation.close().unwrap();
        for device in [&image, &device] {
            let opened = open(device, &options, seed + 1);
            let tree = opened.store().tree("t").unwrap();
            let found: Model = tree.range(..).map(|record| record.unwrap()).collect();
            assert!(found == model, "seed {seed}: what was loaded differs");
            assert_sound(opened.store(), Some(model.len() as u64));
            opened.close().unwrap();
        }
    }
}

/// Records at the end are loaded, removed and loaded again while merges go round: a run that has
/// the removal still, merged or not, does not count once the store is opened again.
#[test]
fn what_is_loaded_again_is_there_whatever_merges_have_passed() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 12) {
        small(6 << 10);
        let options = options(4 << 20).durability(Durability::Synced);
        let (device, mut simulation) = create(&options, seed);
        let mut random = Random::new(seed);
        let tree = simulation.store().create_tree("t").unwrap();
        let mut model = fill(&tree);
        for round in 0..6 {
            let tree = simulation.store().tree("t").unwrap();
            for step in 0..8 {
                let records = (0..3).map(|n| (high(n), value(step, 20)));
                let records: Vec<_> = records.collect();
                tree.bulk_load(records.clone()).unwrap();
                model.extend(records);
                if step == 7 {
                    break;
                }
                for n in 0..3 {
                    assert!(tree.remove(high(n)).unwrap());
                    model.remove(&high(n));
                }
                for _ in 0..50 + random.below(250) {
                    let (key, value) = (key(random.below(KEYS)), value(random.bits(), 60));
                    tree.insert(&key, &value).unwrap();
                    model.insert(key, value);
                }
            }
            simulation.close().unwrap();
            simulation = open(&device, &options, seed + round);
            let tree = simulation.store().tree("t").unwrap();
            let found: Model = tree.range(..).map(|record| record.unwrap()).collect();
            assert!(found == model, "seed {seed}, round {round}");
            for n in 0..3 {
                assert!(tree.remove(high(n)).unwrap());
                model.remove(&high(n));
            }
        }
        simulation.close().unwrap();
    }
}

/// A tree goes with its overlays unmerged; what has a large value somewhere is merged first, since
/// the leaves say which chunks are to be freed. Nothing of it is left, also after a crash.
#[test]
fn dropping_a_tree_merges_no_more_than_it_has_to() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 6) {
        let has_large = seed % 2 == 1;
        small(6 << 10);
        let options = options(4 << 20).durability(Durability::Synced);
        let (device, simulation) = create(&options, seed);
        let store = simulation.store();
        let tree = store.create_tree("t").unwrap();
        let mut random = Random::new(seed);
        // No more large values are possible once none was found.
        while !has_large && store.stats().merged_runs < 4 || store.stats().sealed_runs < 20 {
            let key = key(random.below(KEYS));
            let value = value(random.bits(), random.one_of(&[0, 10, 100]));
            tree.insert(key, value).unwrap();
        }
        if has_large {
            tree.insert(key(1), value(1, 9000)).unwrap();
        }
        let snapshot = store.snapshot().unwrap();
        let mut begun = tree.range(..);
        begun.next().unwrap().unwrap();
        let before = store.stats();
        store.drop_tree("t").unwrap();
        let after = store.stats();
        assert_eq!(has_large, after.sealed_runs > before.sealed_runs);
        assert_eq!(
            (after.runs, after.overlay_bytes, after.overlaid_trees),
            (0, 0, 0)
        );
        let rest: Result<Vec<_>, Error> = begun.collect();
        assert!(matches!(rest, Err(Error::TreeDropped { .. })), "{rest:?}");
        let read = snapshot.get(&tree, key(3));
        assert!(matches!(read, Err(Error::TreeDropped { .. })), "{read:?}");
        drop(snapshot);
        let new = store.create_tree("t").unwrap();
        new.insert(key(7), b"new").unwrap();
        assert_sound(store, Some(1));
        let image = device.crash_image(Survivors::None, seed);
        simulation.close().unwrap();
        let recovered = open(&image, &options, seed + 1);
        let tree = recovered.store().tree("t").unwrap();
        assert_eq!(tree.get(key(7)).unwrap(), Some(b"new".to_vec()));
        assert_eq!(tree.count(..).unwrap(), 1);
        assert_sound(recovered.store(), Some(1));
        recovered.close().unwrap();
    }
}

/// Loads all keys.
fn fill(tree: &Tree) -> Model {
    let model: Model = (0..KEYS).map(|n| (key(n), value(n, 60))).collect();
    tree.bulk_load(model.clone()).unwrap();
    model
}

fn value_of(round: u64) -> Vec<u8> {
    let mut value = round.to_le_bytes().to_vec();
    value.resize(100, b'v');
    value
}
