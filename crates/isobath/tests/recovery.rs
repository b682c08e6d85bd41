//! Stores that lose power, again and again: what is recovered is sound, to the
//! last page and segment.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Random, assert_sound, key, parameter, tiny, value};
use isobath::{Options, Simulation, Tree, Volume};
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
    for seed in parameter("ISOBATH_FROM", 0)..parameter("ISOBATH_SEEDS", 3) {
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
