//! A store on the model of a controller: created, loaded, cut off from power, opened again.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use isobath::{Options, Store, Volume};
use isobath_nvme::{
    Bus, Controller, ControllerOptions, ModelController, ModelFault, ModelOptions, NvmeDevice,
};

const KEYS: u64 = 2_000;

fn volume(model: &Arc<ModelController>) -> Volume {
    let bus: Arc<dyn Bus> = model.clone();
    let controller = Controller::open(bus, &ControllerOptions::default()).unwrap();
    Volume::from_device(Arc::new(NvmeDevice::open(&controller, 1).unwrap()))
}

fn options() -> Options {
    Options::new()
        .pool_bytes(2 << 20)
        .log_bytes(4 << 20)
        .workers(2)
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:08}").into_bytes()
}

fn value(n: u64, round: u64) -> Vec<u8> {
    let len = 100 + (n * 7 + round) % 300;
    (0..len).map(|at| (n + round * 31 + at) as u8).collect()
}

/// The round in which a key was written last, found from its value.
fn round_of(n: u64, found: &[u8], rounds: u64) -> Option<u64> {
    (0..=rounds).find(|round| value(n, *round) == found)
}

fn drive(options: ModelOptions) -> Arc<ModelController> {
    Arc::new(ModelController::new(ModelOptions {
        blocks: (64 << 20) >> options.block_shift,
        ..options
    }))
}

/// Rounds of commits, after each of which the power is cut in the midst of the next ones.
fn cut_power(mut model: Arc<ModelController>) {
    let store = Store::create_on_volume(volume(&model), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.bulk_load((0..KEYS).map(|n| (key(n), value(n, 0))))
        .unwrap();
    let (mut store, mut tree) = (store, tree);
    let mut known = vec![0; KEYS as usize];
    for round in 1..=4 {
        let mut acknowledged = 0;
        for n in (0..KEYS).step_by(round as usize) {
            tree.insert(&key(n), &value(n, round)).unwrap();
            known[n as usize] = round;
            acknowledged += 1;
            if acknowledged == 300 {
                break;
            }
        }
        // Others are being committed while the power goes.
        let after = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in KEYS..KEYS + 200 {
                    tree.insert(&key(n), &value(n, round)).unwrap();
                }
            });
            std::thread::yield_now();
            let after = model.after_power_loss(round);
            writer.join().unwrap();
            after
        });
        drop((tree, store));
        assert_eq!(model.violations(), [""; 0]);
        assert_eq!(model.mapped_regions(), 0);
        model = Arc::new(after);
        store = Store::open_on_volume(volume(&model), &options()).unwrap();
        tree = store.tree("t").unwrap();
        for n in 0..KEYS {
            let found = tree.get(&key(n)).unwrap().unwrap();
            let expected = known[n as usize];
            assert_eq!(
                round_of(n, &found, round),
                Some(expected),
                "key {n}, cut {round}"
            );
        }
        for n in KEYS..KEYS + 200 {
            let found = tree.get(&key(n)).unwrap();
            assert!(found.is_none_or(|found| round_of(n, &found, round).is_some()));
        }
    }
    store.close().unwrap();
    assert_eq!(model.violations(), [""; 0]);
    assert_eq!(model.mapped_regions(), 0);
}

#[test]
fn a_store_survives_power_losses() {
    for (block_shift, volatile_cache) in [(9, true), (12, true), (12, false)] {
        cut_power(drive(ModelOptions {
            block_shift,
            volatile_cache,
            seed: u64::from(block_shift),
            ..ModelOptions::default()
        }));
    }
}

#[test]
fn a_namespace_that_is_too_small_is_refused() {
    let model = Arc::new(ModelController::new(ModelOptions {
        blocks: 64,
        ..ModelOptions::default()
    }));
    let error = Store::create_on_volume(volume(&model), &options()).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("needs at least"), "{said}");
    assert_eq!(model.mapped_regions(), 0);
}

#[test]
fn resets_of_a_drive_without_a_volatile_cache_are_not_noticed() {
    let model = drive(ModelOptions {
        volatile_cache: false,
        fault_rates: vec![(ModelFault::Fatal, 1), (ModelFault::Aborted, 2)],
        ..ModelOptions::default()
    });
    let bus: Arc<dyn Bus> = model.clone();
    let controller = Controller::open(bus, &ControllerOptions::default()).unwrap();
    let device = NvmeDevice::open(&controller, 1).unwrap();
    let volume = Volume::from_device(Arc::new(device));
    let store = Store::create_on_volume(volume, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..KEYS {
        tree.insert(&key(n), &value(n, 1)).unwrap();
    }
    for n in 0..KEYS {
        assert_eq!(tree.get(&key(n)).unwrap().unwrap(), value(n, 1));
    }
    drop(tree);
    store.close().unwrap();
    assert!(controller.resets() > 0, "there was nothing to notice");
    assert_eq!(model.violations(), [""; 0]);
}

#[test]
fn a_lost_volatile_cache_stops_the_writer_and_loses_nothing_acknowledged() {
    let model = drive(ModelOptions::default());
    let store = Store::create_on_volume(volume(&model), &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..100 {
        tree.insert(&key(n), &value(n, 1)).unwrap();
    }
    model.inject(ModelFault::Fatal);
    let mut acknowledged = 100;
    // Checkpoints flush, and the flush fails.
    let failed = (100..KEYS).find_map(|n| {
        let outcome = tree.insert(&key(n), &value(n, 1)).and_then(|()| {
            acknowledged = n + 1;
            if n % 100 == 0 {
                store.checkpoint()
            } else {
                Ok(())
            }
        });
        outcome.err()
    });
    assert!(failed.is_some(), "a failed flush refuses further writes");
    assert_eq!(
        tree.get(&key(5)).unwrap().unwrap(),
        value(5, 1),
        "reads go on"
    );
    drop((tree, store));
    let after = Arc::new(model.after_power_loss(3));
    let store = Store::open_on_volume(volume(&after), &options()).unwrap();
    let tree = store.tree("t").unwrap();
    for n in 0..acknowledged {
        assert_eq!(tree.get(&key(n)).unwrap().unwrap(), value(n, 1), "key {n}");
    }
}
