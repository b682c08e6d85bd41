//! Chunks that the cleaner has moved are found after a crash, also those that
//! are exactly as long as a page.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{Random, assert_sound, key, tiny, value};
use isobath::{Simulation, Volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

#[test]
fn chunks_as_long_as_pages_are_recovered_where_the_cleaner_put_them() {
    let limit = Some((4 << 20) + (3 << 20));
    let options = tiny(2, 6).log_bytes(4 << 20).volume_limit_bytes(limit);
    let device = FaultDevice::new(0, FaultPlan::new(5).max_bytes(limit));
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options, 5).unwrap();
    let tree = simulation.store().create_tree("t").unwrap();
    let mut random = Random::new(5);
    let mut model = BTreeMap::new();
    let mut images = Vec::new();
    for round in 0..2500 {
        // With their headers 4096 and 2048 bytes.
        let v = value(random.bits(), random.one_of(&[4000, 1900]));
        let k = key(random.below(250));
        tree.insert(&k, &v).unwrap();
        model.insert(k, v);
        if round % 100 == 99 {
            images.push((device.crash_image(Survivors::None, 0), model.clone()));
        }
    }
    assert!(simulation.store().stats().segments_cleaned > 0);
    simulation.close().unwrap();

    for (image, model) in images {
        let simulation = Simulation::open(Volume::from_device(image), &options, 6).unwrap();
        let tree = simulation.store().tree("t").unwrap();
        for (k, v) in &model {
            assert!(tree.get(k).unwrap().as_ref() == Some(v));
        }
        assert_sound(simulation.store(), Some(model.len() as u64));
        simulation.close().unwrap();
    }
}
