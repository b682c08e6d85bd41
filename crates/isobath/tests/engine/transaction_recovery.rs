//! Transactions across power loss: what was acknowledged is there, and of every
//! transaction all or nothing.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Random, assert_sound, parameter, tiny, value};
use isobath::{Durability, Options, Simulation, Store, TransactionOptions, Tree, Volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

const GROUPS: usize = 6;

fn options() -> Options {
    tiny(2, 8)
        .volume_limit_bytes(Some(96 << 20))
        .log_bytes(4 << 20)
}

/// A group of keys that always have the same number, in two trees.
struct Group {
    begun: AtomicU64,
    acknowledged: AtomicU64,
}

type Groups = Arc<Vec<Group>>;

/// The keys of a group, and how long their values are.
fn keys(group: usize) -> [(usize, Vec<u8>, usize); 4] {
    let key = |n: u8| {
        let mut key = vec![n; 20];
        key.push(group as u8);
        key
    };
    [
        (0, key(1), 50),
        (0, key(2), 600),
        (1, key(3), 50),
        (1, key(4), 9_000),
    ]
}

fn write(store: &Store, trees: &[Tree; 2], group: usize, number: u64, durability: Durability) {
    let options = TransactionOptions::new().durability(durability);
    let written = store.transact(options, |transaction| {
        for (tree, key, length) in keys(group) {
            if number % 5 == 4 {
                transaction.remove(&trees[tree], &key)?;
            } else {
                transaction.insert(&trees[tree], &key, &value(number, length))?;
            }
        }
        Ok::<(), isobath::Error>(())
    });
    written.unwrap();
}

fn work(store: &Store, trees: &[Tree; 2], groups: &Groups, group: usize, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..30 {
        let number = groups[group].begun.fetch_add(1, Ordering::SeqCst) + 1;
        let synced = random.below(3) > 0;
        let durability = if synced {
            Durability::Synced
        } else {
            Durability::None
        };
        write(store, trees, group, number, durability);
        if synced {
            groups[group].acknowledged.store(number, Ordering::SeqCst);
        }
        match random.below(4) {
            // Large values that only a snapshot can read are there at the crash.
            0 => {
                let snapshot = store.snapshot().unwrap();
                (0..random.below(40)).for_each(|_| isobath::yield_now());
                let numbers = seen(group, |tree, key| snapshot.get(&trees[tree], key).unwrap());
                assert!(numbers.is_some(), "a snapshot saw half a transaction");
            }
            1 => {
                let mut given_up = store.begin().unwrap();
                given_up
                    .insert(&trees[0], b"never", &value(1, 20_000))
                    .unwrap();
                (0..random.below(20)).for_each(|_| isobath::yield_now());
            }
            _ => {}
        }
    }
}

/// The number that all keys of a group have, `Some(0)` if none has a value;
/// `None` if they differ.
fn seen(group: usize, get: impl Fn(usize, &[u8]) -> Option<Vec<u8>>) -> Option<u64> {
    let mut numbers = Vec::new();
    for (tree, key, length) in keys(group) {
        let found = get(tree, &key);
        let number = (1..4000)
            .find(|&number| found.as_ref() == Some(&value(number, length)))
            .unwrap_or(0);
        assert!(
            found.is_none() || number > 0,
            "a value that was never written"
        );
        numbers.push(number);
    }
    numbers
        .windows(2)
        .all(|w| w[0] == w[1])
        .then_some(numbers[0])
}

struct Image {
    device: Arc<FaultDevice>,
    acknowledged: Vec<u64>,
    begun: Vec<u64>,
}

#[test]
fn transactions_survive_power_loss_whole_or_not_at_all() {
    for seed in 0..parameter("ISOBATH_SEEDS", 4) {
        let plan = FaultPlan::new(seed).latency_us(0..=20);
        let device = FaultDevice::new(0, plan.max_bytes(Some(96 << 20)));
        let volume = Volume::from_device(device.clone());
        let mut simulation = Simulation::new(volume, &options(), seed).unwrap();
        let trees = ["a", "b"].map(|name| simulation.store().create_tree(name).unwrap());
        let groups: Groups = Arc::new(
            (0..GROUPS)
                .map(|_| Group {
                    begun: AtomicU64::new(0),
                    acknowledged: AtomicU64::new(0),
                })
                .collect(),
        );
        let mut images = Vec::new();
        let mut random = Random::new(seed);
        for round in 0..4 {
            let tasks: Vec<_> = (0..GROUPS)
                .map(|group| {
                    let (store, trees) = (simulation.store().clone(), trees.clone());
                    let groups = Arc::clone(&groups);
                    simulation.spawn(group, move || {
                        let seed = seed * 100 + round * 10 + group as u64;
                        work(&store, &trees, &groups, group, seed);
                    })
                })
                .collect();
            for variant in 0..3 {
                let wanted = 100 + random.below(3000);
                let mut steps = 0;
                let enough = || {
                    steps += 1;
                    steps > wanted
                };
                simulation.run_until(enough, 1 << 40).unwrap();
                let load = |of: fn(&Group) -> &AtomicU64| -> Vec<u64> {
                    groups
                        .iter()
                        .map(|g| of(g).load(Ordering::SeqCst))
                        .collect()
                };
                let acknowledged = load(|group| &group.acknowledged);
                let survivors = [Survivors::Random, Survivors::None, Survivors::Executed];
                images.push(Image {
                    device: device.crash_image(survivors[variant], round),
                    acknowledged,
                    begun: load(|group| &group.begun),
                });
            }
            tasks.into_iter().for_each(|task| task.join().unwrap());
        }
        drop(trees);
        simulation.close().unwrap();
        for (number, image) in images.into_iter().enumerate() {
            let volume = Volume::from_device(image.device.clone());
            let simulation = Simulation::open(volume, &options(), seed)
                .unwrap_or_else(|error| panic!("seed {seed}, image {number}: {error}"));
            let store = simulation.store();
            let trees = ["a", "b"].map(|name| store.tree(name).unwrap());
            for group in 0..GROUPS {
                let what = format!("seed {seed}, image {number}, group {group}");
                let found = seen(group, |tree, key| trees[tree].get(key).unwrap());
                let found = found.unwrap_or_else(|| panic!("{what}: half a transaction"));
                let (least, most) = (image.acknowledged[group], image.begun[group]);
                let is_possible = |n: u64| if n % 5 == 4 { 0 } else { n };
                assert!(
                    (least..=most).any(|number| is_possible(number) == found),
                    "{what}: {found} is not in {least}..={most}"
                );
                assert!(!trees[0].contains(b"never").unwrap());
            }
            assert_sound(store, None);
            drop(trees);
            simulation.close().unwrap();
        }
    }
}
