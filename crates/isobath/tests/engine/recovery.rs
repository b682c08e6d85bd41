//! Stores that lose power, again and again: the recovered store is sound, to the
//! last page and segment.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::Arc;

use common::{Random, assert_sound, key, parameter, tiny, value};
use isobath::{Options, Simulation, Store, Transaction, TransactionOptions, Tree, Volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

fn options() -> Options {
    tiny(2, 6)
        .volume_limit_bytes(Some(48 << 20))
        .log_bytes(4 << 20)
}

fn device(seed: u64) -> Arc<FaultDevice> {
    let plan = FaultPlan::new(seed).latency_us(0..=20);
    FaultDevice::new(0, plan.max_bytes(Some(48 << 20)))
}

/// Random changes to `tree` by one task.
fn change(tree: &Tree, seed: u64, count: u64) {
    let mut random = Random::new(seed);
    for _ in 0..count {
        let key = key(random.below(4_000));
        if random.below(4) == 0 {
            tree.remove(&key).unwrap();
        } else {
            let length = random.one_of(&[10, 100, 300, 900]);
            tree.insert(&key, &value(random.bits(), length)).unwrap();
        }
    }
}

#[test]
fn the_structure_survives_power_loss_at_any_time() {
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 2) {
        let device = device(seed);
        let volume = Volume::from_device(device.clone());
        let mut simulation = Simulation::new(volume, &options(), seed).unwrap();
        let tree = simulation.store().create_tree("t").unwrap();
        let mut images = vec![device.crash_image(Survivors::Random, 0)];
        for round in 0..12 {
            let tasks: Vec<_> = (0..4)
                .map(|part| {
                    let tree = tree.clone();
                    simulation.spawn(part, move || {
                        change(&tree, seed * 1000 + round * 10 + part as u64, 400);
                    })
                })
                .collect();
            for variant in 0..3 {
                let mut steps = 0;
                let wanted = 700 * (variant + 1);
                simulation
                    .run_until(
                        || {
                            steps += 1;
                            steps > wanted
                        },
                        1 << 40,
                    )
                    .unwrap();
                images.push(device.crash_image(Survivors::Random, variant));
            }
            tasks.into_iter().for_each(|task| task.join().unwrap());
        }
        let stats = simulation.store().stats();
        assert!(stats.checkpoints > 0, "the log was never shortened");
        simulation.close().unwrap();
        for (number, image) in images.into_iter().enumerate() {
            let volume = Volume::from_device(image.clone());
            let simulation = Simulation::open(volume, &options(), seed)
                .unwrap_or_else(|error| panic!("seed {seed}, image {number}: {error}"));
            assert_sound(simulation.store(), None);
            simulation.close().unwrap();
            let simulation =
                Simulation::open(Volume::from_device(image), &options(), seed).unwrap();
            assert_sound(simulation.store(), None);
            simulation.close().unwrap();
        }
    }
}

/// A log of so many changes that the stamps that recovering takes do not fit into the ring,
/// in a pool that holds all pages: nothing but the changes themselves writes the log.
#[test]
fn many_small_changes_are_recovered_in_the_pool() {
    const KEYS: u64 = 1_200_000;
    const AT_ONCE: u64 = 40_000;
    // Coprime to the number of keys.
    const STEP: u64 = 1_000_003;
    let options = Options::new().pool_bytes(256 << 20).workers(2);
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let create = options.clone().log_bytes(512 << 20);
    let store = Store::create_on_volume(Volume::from_device(device.clone()), &create).unwrap();
    let tree = store.create_tree("t").unwrap();
    let ordered = |n: u64| n.swap_bytes().to_le_bytes();
    tree.bulk_load((0..KEYS).map(|n| (ordered(n), [0])))
        .unwrap();
    let durable = TransactionOptions::default();
    for first in (0..KEYS).step_by(AT_ONCE as usize) {
        let change = |transaction: &mut Transaction| {
            (first..first + AT_ONCE)
                .try_for_each(|n| transaction.insert(&tree, &ordered(n * STEP % KEYS), &[1]))
        };
        store.transact(durable, change).unwrap();
    }
    let crashed = device.crash_image(Survivors::None, 0);
    assert_eq!(store.stats().checkpoints, 0, "the log is to hold all of it");
    drop(store);
    let store = Store::open_on_volume(Volume::from_device(crashed), &options).unwrap();
    let tree = store.open_or_create_tree("t").unwrap();
    let changed = tree
        .range(..)
        .filter(|record| record.as_ref().unwrap().1 == [1]);
    assert_eq!(changed.count() as u64, KEYS);
    assert!(store.stats().recovered_log_bytes > 32 << 20);
}

/// A bulk load is newer than all commits before it: recovery must not repeat them over it.
#[test]
fn what_was_loaded_over_removed_records_is_there_after_a_crash() {
    for length in [50, 20_000] {
        let device = FaultDevice::new(0, FaultPlan::new(1));
        let volume = Volume::from_device(device.clone());
        let options = Options::new()
            .pool_bytes(8 << 20)
            .workers(1)
            .segment_bytes(256 << 10)
            .log_bytes(4 << 20);
        let store = Store::create_on_volume(volume, &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        tree.insert(b"a", &[1; 50]).unwrap();
        tree.insert(b"k", &[1; 50]).unwrap();
        tree.remove(b"k").unwrap();
        tree.bulk_load([(b"k", vec![2; length])]).unwrap();
        tree.insert(b"z", &[3; 50]).unwrap();
        let image = Volume::from_device(device.crash_image(Survivors::None, 0));
        let store = Store::open_on_volume(image, &options).unwrap();
        let tree = store.tree("t").unwrap();
        assert_eq!(tree.get(b"k").unwrap(), Some(vec![2; length]));
        assert_eq!(tree.get(b"a").unwrap(), Some(vec![1; 50]));
        assert_eq!(tree.get(b"z").unwrap(), Some(vec![3; 50]));
        assert_eq!(
            store.check(&mut |_, _| {}).unwrap().problems,
            Vec::<String>::new()
        );
    }
}
