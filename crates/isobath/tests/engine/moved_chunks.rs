//! Chunks that the cleaner has moved are found after a crash, also those that
//! are exactly as long as a page.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::collections::BTreeMap;

use common::{Random, assert_sound, key, tiny, value};
use isobath::{Durability, Simulation, TransactionOptions, Volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

/// Records that stay as they are, and records that are replaced all the time.
const COLD: u64 = 200;
const HOT: u64 = 60;
/// Long enough for everything that is written: a chunk's birth and its moves are
/// all in the part that a recovery reads.
const LOG: u64 = 16 << 20;

#[test]
fn chunks_as_long_as_pages_are_recovered_where_the_cleaner_put_them() {
    let limit = Some(LOG + (5 << 19));
    let options = tiny(2, 6).log_bytes(LOG).volume_limit_bytes(limit);
    let options = options.durability(Durability::None);
    let device = FaultDevice::new(0, FaultPlan::new(5).max_bytes(limit));
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options, 5).unwrap();
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let mut random = Random::new(5);
    let mut model = BTreeMap::new();
    let mut images = Vec::new();
    for round in 0..6 * COLD {
        // Every segment gets some of both, so that its rest has to be moved.
        let hot = 1000 + random.below(HOT);
        let cold = (round < COLD).then_some(round);
        for number in [Some(hot), cold].into_iter().flatten() {
            // With their headers 4096 and 2048 bytes.
            let v = value(random.bits(), random.one_of(&[4000, 4000, 4000, 1900]));
            tree.insert(&key(number), &v).unwrap();
            model.insert(key(number), v);
        }
        if round % 100 == 99 {
            // One that is synced makes all before it last.
            let synced = TransactionOptions::new().durability(Durability::Synced);
            let v = round.to_le_bytes().to_vec();
            let put = store.transact(synced, |transaction| {
                transaction.insert(&tree, b"synced", &v)
            });
            put.unwrap();
            model.insert(b"synced".to_vec(), v);
            images.push((device.crash_image(Survivors::None, 0), model.clone()));
        }
    }
    let stats = store.stats();
    assert_eq!(stats.checkpoints, 0, "the log was shortened");
    assert!(stats.relocations > COLD, "{} moves", stats.relocations);
    assert!(stats.segments_cleaned > 20, "{}", stats.segments_cleaned);
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
