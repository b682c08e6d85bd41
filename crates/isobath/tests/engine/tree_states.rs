//! Trees that are made, loaded and dropped beside each other, in an order drawn from a
//! seed: every handle notices a drop, a load appears beside nothing else, and what is
//! left behind is sound after the store was opened again.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{LOG, Random, assert_sound, contents, parameter, tiny, value};
use isobath::{
    Canary, Durability, Error, How, Isolation, LoadError, Options, Simulation, Store, Switches,
    TaskHandle, TransactionError, TransactionOptions, Volume,
};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

fn options() -> Options {
    tiny(2, 12).log_bytes(LOG)
}

fn create(seed: u64) -> (Arc<FaultDevice>, Simulation) {
    let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=20));
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options(), seed).unwrap();
    (device, simulation)
}

fn join(tasks: Vec<TaskHandle<()>>) {
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

/// Whether `test` fails with a known bug switched on.
fn finds(canary: Canary, test: fn()) -> bool {
    let run = std::thread::spawn(move || {
        canary.switch_on();
        test();
    });
    run.join().is_err()
}

#[test]
fn the_bugs_that_these_tests_are_for_are_found() {
    assert!(finds(
        Canary::SeparateTreeStates,
        every_handle_notices_a_drop
    ));
    assert!(finds(
        Canary::LoadBesideOthers,
        loads_of_one_tree_beside_each_other
    ));
    assert!(finds(
        Canary::LoadBesideOthers,
        loads_beside_the_drop_of_their_tree
    ));
    assert!(finds(
        Canary::LoadBesideCommits,
        loads_beside_commits_of_the_same_keys
    ));
    assert!(finds(
        Canary::DropBesideCommits,
        transactions_beside_the_drop_of_one_of_their_trees
    ));
}

/// Opens what a power cut leaves now, and what closing leaves: both are sound.
fn assert_survives(device: &Arc<FaultDevice>, simulation: Simulation, trees: usize) {
    let cut = device.crash_image(Survivors::Executed, 1);
    assert_sound(simulation.store(), None);
    simulation.close().unwrap();
    for device in [cut, device.clone()] {
        let volume = Volume::from_device(device);
        let simulation = Simulation::open(volume, &options(), 5).unwrap();
        assert_sound(simulation.store(), None);
        assert_eq!(simulation.store().trees().unwrap().len(), trees);
        simulation.close().unwrap();
    }
}

/// Looks for the tree over and over, until `over`.
fn looker(store: Store, over: Arc<AtomicBool>, changes: bool) -> impl FnOnce() + Send {
    move || {
        while !over.load(Ordering::Relaxed) {
            match store.tree("a") {
                Ok(tree) if changes => match tree.insert(b"looker", b"was here") {
                    Ok(()) | Err(Error::TreeDropped { .. }) => {}
                    Err(error) => panic!("{error}"),
                },
                Ok(_) | Err(Error::NoSuchTree { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            isobath::yield_now();
        }
    }
}

#[test]
fn every_handle_notices_a_drop() {
    for seed in 0..parameter("ISOBATH_SEEDS", 6) {
        let (device, simulation) = create(seed);
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for n in 0..4 {
            let (store, over) = (simulation.store().clone(), Arc::clone(&over));
            tasks.push(simulation.spawn(n, looker(store, over, n % 2 == 1)));
        }
        let store = simulation.store().clone();
        tasks.push(simulation.spawn(0, move || {
            for round in 0..40 {
                let tree = store.create_tree("a").unwrap();
                let same = store.tree("a").unwrap();
                tree.insert(b"k", &value(round, 2000)).unwrap();
                same.insert(b"l", b"v").unwrap();
                store.drop_tree("a").unwrap();
                for handle in [tree, same] {
                    let late = handle.insert(b"late", b"v");
                    assert!(matches!(late, Err(Error::TreeDropped { .. })), "{late:?}");
                    let late = handle.get(b"k");
                    assert!(matches!(late, Err(Error::TreeDropped { .. })), "{late:?}");
                }
            }
            over.store(true, Ordering::Relaxed);
        }));
        join(tasks);
        assert_survives(&device, simulation, 0);
    }
}

/// Records inserted into a tree are there until that tree is dropped.
#[test]
fn trees_of_one_name_come_and_go_beside_each_other() {
    for seed in 0..parameter("ISOBATH_SEEDS", 6) {
        let (device, simulation) = create(seed);
        let (made, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = Vec::new();
        for n in 0..6 {
            let store = simulation.store().clone();
            let (made, dropped) = (Arc::clone(&made), Arc::clone(&dropped));
            tasks.push(simulation.spawn(n as usize, move || {
                let mut random = Random::new(seed * 100 + n);
                for round in 0..25 {
                    if random.below(3) == 0 {
                        match store.drop_tree("a") {
                            Ok(()) => drop(dropped.fetch_add(1, Ordering::Relaxed)),
                            Err(Error::NoSuchTree { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                        continue;
                    }
                    let tree = match store.create_tree("a") {
                        Ok(tree) => {
                            made.fetch_add(1, Ordering::Relaxed);
                            tree
                        }
                        Err(Error::TreeExists { .. }) => store.open_or_create_tree("b").unwrap(),
                        Err(error) => panic!("{error}"),
                    };
                    let length = random.one_of(&[10, 900, 5000]);
                    match tree.insert(&value(n << 32 | round, 8), &value(round, length)) {
                        Ok(()) | Err(Error::TreeDropped { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }));
        }
        join(tasks);
        let (made, dropped) = (
            made.load(Ordering::Relaxed),
            dropped.load(Ordering::Relaxed),
        );
        let trees = simulation.store().trees().unwrap();
        let left = trees.iter().filter(|tree| tree.name == "a").count() as u64;
        assert_eq!(made, dropped + left, "seed {seed}");
        let _ = simulation.store().drop_tree("b");
        assert_survives(&device, simulation, left as usize);
    }
}

fn records(prefix: &str, count: u64, length: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let key = |n| format!("{prefix}{n:06}").into_bytes();
    (0..count).map(|n| (key(n), value(n, length))).collect()
}

/// Of loads beside each other each appears whole or not at all, new transactions see
/// what appeared, and old snapshots see nothing of it.
#[test]
fn loads_of_one_tree_beside_each_other() {
    for seed in 0..parameter("ISOBATH_SEEDS", 200) {
        // A load appears in a few steps without a wait: others come between them only by
        // interruption.
        let how = How::EveryPlace {
            rate: if seed % 4 < 2 { 0.0 } else { 0.5 },
            max_steps: 300,
        };
        Switches::new(how).switch_on();
        let (device, simulation) = create(seed);
        let tree = simulation.store().create_tree("t").unwrap();
        let old = simulation.store().snapshot().unwrap();
        let prefixes = if seed % 2 == 0 {
            ["a", "a"]
        } else {
            ["a", "b"]
        };
        let tasks: Vec<_> = prefixes
            .iter()
            .enumerate()
            .map(|(n, prefix)| {
                let (tree, records) = (tree.clone(), records(prefix, 50, 20));
                simulation.spawn(n, move || match tree.bulk_load(records) {
                    Ok(count) => {
                        assert_eq!(count, 50);
                        true
                    }
                    Err(LoadError::LoadOrder { .. }) => false,
                    Err(error) => panic!("{error}"),
                })
            })
            .collect();
        let loaded: Vec<bool> = tasks.into_iter().map(|task| task.join().unwrap()).collect();
        let seen = old.get(&tree, b"a000001");
        assert!(
            matches!(seen, Err(Error::SnapshotTooOld)),
            "seed {seed}: {seen:?}"
        );
        drop(old);
        let expected = prefixes
            .iter()
            .zip(&loaded)
            .filter(|(_, loaded)| **loaded)
            .flat_map(|(prefix, _)| records(prefix, 50, 20))
            .collect();
        assert_eq!(contents(&tree), expected, "seed {seed}: {loaded:?}");
        let transaction = simulation.store().begin().unwrap();
        for (key, value) in &expected {
            assert_eq!(transaction.get(&tree, key).unwrap().as_ref(), Some(value));
        }
        drop((transaction, tree));
        assert_survives(&device, simulation, 1);
    }
}

/// A commit and a load of the same key: the later one knows of the other.
#[test]
fn loads_beside_commits_of_the_same_keys() {
    let mut outcomes = [0; 3];
    for seed in 0..parameter("ISOBATH_SEEDS", 60) {
        let (device, simulation) = create(seed);
        let store = simulation.store().clone();
        let tree = store.create_tree("t").unwrap();
        let isolation = match seed % 2 {
            0 => Isolation::Snapshot,
            _ => Isolation::Serializable,
        };
        let mut transaction = store
            .begin_with(TransactionOptions::new().isolation(isolation))
            .unwrap();
        assert_eq!(transaction.get(&tree, b"k").unwrap(), None);
        transaction.insert(&tree, b"k", b"committed").unwrap();
        for n in 0..20u64 {
            let key = format!("l{n}").into_bytes();
            transaction.insert(&tree, &key, &value(n, 100)).unwrap();
        }
        let pause = Random::new(seed).below(60);
        let committer = simulation.spawn(0, move || {
            (0..pause).for_each(|_| isobath::yield_now());
            transaction.commit()
        });
        let loader = {
            let (tree, store) = (tree.clone(), store.clone());
            simulation.spawn(1, move || {
                let loaded = tree.bulk_load([(b"k", &value(1, 300)[..])]);
                let seen = store.snapshot().unwrap().get(&tree, b"k").unwrap();
                assert!(loaded.is_err() || seen.is_some(), "{loaded:?}");
                loaded
            })
        };
        let (committed, loaded) = (committer.join().unwrap(), loader.join().unwrap());
        let found = tree.get(b"k").unwrap();
        match (&committed, &loaded) {
            (Ok(()), Err(LoadError::LoadOrder { .. })) => {
                outcomes[0] += 1;
                assert_eq!(found.as_deref(), Some(&b"committed"[..]));
            }
            (Err(TransactionError::Conflict { .. } | TransactionError::SnapshotTooOld), Ok(1)) => {
                outcomes[1] += 1;
                assert_eq!(found, Some(value(1, 300)));
            }
            _ => panic!("seed {seed}: {committed:?}, {loaded:?}"),
        }
        drop((tree, store));
        assert_survives(&device, simulation, 1);
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// Auto-commits replace what a load brings, and nothing of the load's large values stays
/// behind that nothing names.
#[test]
fn loads_beside_single_changes() {
    for seed in 0..parameter("ISOBATH_SEEDS", 30) {
        let (device, simulation) = create(seed);
        let tree = simulation.store().create_tree("t").unwrap();
        let records = records("k", 30, 2500);
        let keys: Vec<Vec<u8>> = records.iter().map(|(key, _)| key.clone()).collect();
        let mut tasks = Vec::new();
        for n in 0..3 {
            let (tree, keys) = (tree.clone(), keys.clone());
            tasks.push(simulation.spawn(n as usize, move || {
                let mut random = Random::new(seed * 10 + n);
                for _ in 0..40 {
                    let key = &keys[random.below(30) as usize];
                    // A load has come if it has a value.
                    if tree.get(key).unwrap().is_some() {
                        tree.remove(key).unwrap();
                    }
                    let _ = tree.remove(key).unwrap();
                }
            }));
        }
        let loader = tree.clone();
        tasks.push(simulation.spawn(1, move || {
            assert_eq!(loader.bulk_load(records).unwrap(), 30);
        }));
        join(tasks);
        let rest = contents(&tree).into_keys().collect::<Vec<_>>();
        rest.iter()
            .for_each(|key| assert!(tree.remove(key).unwrap()));
        drop(tree);
        assert_survives(&device, simulation, 1);
    }
}

/// A load beside the drop of its tree leaves nothing that nothing leads to.
#[test]
fn loads_beside_the_drop_of_their_tree() {
    let mut outcomes = [0; 2];
    for seed in 0..parameter("ISOBATH_SEEDS", 40) {
        let (device, simulation) = create(seed);
        let store = simulation.store().clone();
        let kept = store.create_tree("kept").unwrap();
        kept.insert(b"k", &value(1, 9000)).unwrap();
        let tree = store.create_tree("t").unwrap();
        for n in 0..seed % 3 * 20 {
            let key = format!("!{n}").into_bytes();
            tree.insert(&key, &value(n, 300)).unwrap();
        }
        let loader = {
            let tree = tree.clone();
            simulation.spawn(0, move || {
                let records = records("k", 200, 200);
                match tree.bulk_load(records) {
                    Ok(200) => true,
                    Err(LoadError::TreeDropped { .. }) => false,
                    other => panic!("{other:?}"),
                }
            })
        };
        let pause = Random::new(seed).below(300);
        let dropper = {
            let store = store.clone();
            simulation.spawn(1, move || {
                (0..pause).for_each(|_| isobath::yield_now());
                store.drop_tree("t")
            })
        };
        let loaded = loader.join().unwrap();
        dropper.join().unwrap().unwrap();
        outcomes[usize::from(loaded)] += 1;
        assert_eq!(kept.get(b"k").unwrap(), Some(value(1, 9000)));
        drop((tree, kept, store));
        assert_survives(&device, simulation, 1);
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

/// A transaction over two trees, beside the drop of one of them, is in the other one as a whole or
/// not at all, and the store goes on. Nothing waits for durability here: the drop alone waits for
/// such commits.
#[test]
fn transactions_beside_the_drop_of_one_of_their_trees() {
    let mut outcomes = [0; 2];
    for seed in 0..parameter("ISOBATH_SEEDS", 40) {
        let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=20));
        let volume = Volume::from_device(device.clone());
        let options = options().durability(Durability::None);
        let simulation = Simulation::new(volume, &options, seed).unwrap();
        let store = simulation.store().clone();
        let (kept, dropped) = (
            store.create_tree("kept").unwrap(),
            store.create_tree("t").unwrap(),
        );
        for n in 0..400 {
            let key = format!("{n:03}").into_bytes();
            kept.insert(&key, &value(n, 200)).unwrap();
            dropped.insert(&key, &value(n, 200)).unwrap();
        }
        let change = |writer: u64| {
            let (store, kept, dropped) = (store.clone(), kept.clone(), dropped.clone());
            simulation.spawn(writer as usize, move || {
                let mut random = Random::new(seed << 8 | writer);
                let mut done = Vec::new();
                for turn in 0..6 {
                    let key = format!("new {writer} {turn}").into_bytes();
                    let changed = store.transact(TransactionOptions::new(), |transaction| {
                        transaction.insert(&kept, &key, b"both")?;
                        for _ in 0..12 {
                            let number = random.below(400);
                            let old = format!("{number:03}").into_bytes();
                            transaction.insert(&dropped, &old, &value(number + 1, 200))?;
                        }
                        Ok::<_, Error>(())
                    });
                    match changed {
                        Ok(()) => done.push((key, true)),
                        Err(Error::TreeDropped { .. }) => done.push((key, false)),
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
                done
            })
        };
        let writers: Vec<_> = (0..4).map(change).collect();
        let pause = Random::new(seed).below(200);
        let dropper = {
            let store = store.clone();
            simulation.spawn(1, move || {
                (0..pause).for_each(|_| isobath::yield_now());
                store.drop_tree("t")
            })
        };
        let done: Vec<_> = writers
            .into_iter()
            .flat_map(|writer| writer.join().unwrap())
            .collect();
        dropper.join().unwrap().unwrap();
        for (key, is_there) in done {
            outcomes[usize::from(is_there)] += 1;
            assert_eq!(
                kept.get(&key).unwrap().is_some(),
                is_there,
                "seed {seed}: {key:?}"
            );
        }
        kept.insert(b"k", b"the store goes on").unwrap();
        drop((kept, dropped, store));
        assert_sound(simulation.store(), None);
        simulation.close().unwrap();
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

#[test]
fn a_load_is_durable_when_it_returns() {
    for seed in 0..parameter("ISOBATH_SEEDS", 10) {
        let (device, simulation) = create(seed);
        let tree = simulation.store().create_tree("t").unwrap();
        let records = records("k", 40 + seed * 30, 100);
        let count = tree.bulk_load(records.clone()).unwrap();
        let cut = device.crash_image(Survivors::None, 1);
        drop(tree);
        simulation.close().unwrap();
        let simulation = Simulation::open(Volume::from_device(cut), &options(), seed).unwrap();
        let tree = simulation.store().tree("t").unwrap();
        assert_eq!(count, records.len() as u64);
        assert_eq!(
            contents(&tree),
            records.into_iter().collect(),
            "seed {seed}"
        );
        drop(tree);
        simulation.close().unwrap();
    }
}
