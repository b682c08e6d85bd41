//! Crashes after pages were written beside trees: sealing, and loads.

use std::collections::BTreeMap;

use isobath::{Durability, Small};
use isobath_io::Survivors;

use super::common::{assert_sound, contents, key, value};
use super::{KEYS, create, fill, open, options, value_of};

/// Small memories of overlays, and no checkpoint before a store is closed.
fn small_without_checkpoints() {
    Small {
        words_per_page: None,
        checkpoint_bytes: Some(8 << 20),
        spill_bytes: None,
        overlay_bytes: Some(4 << 10),
    }
    .switch_on();
}

/// Leaves are changed, then their tree gets overlays, whose memory is sealed, then the power goes
/// before any of these leaves was written: the log has what was changed in them.
#[test]
fn a_crash_after_sealing_keeps_what_was_changed_before_the_tree_had_overlays() {
    small_without_checkpoints();
    for seed in 0..4 {
        let options = options(16 << 20);
        let (device, simulation) = create(&options, seed);
        let tree = simulation.store().create_tree("t").unwrap();
        let mut model = fill(&tree);
        let mut changed = 0;
        while simulation.store().stats().sealed_runs == 0 {
            assert!(changed < KEYS, "nothing is sealed");
            tree.insert(&key(changed), value_of(changed)).unwrap();
            model.insert(key(changed).to_vec(), value_of(changed));
            changed += 1;
        }
        let image = device.crash_image(Survivors::None, seed);
        simulation.close().unwrap();
        for device in [&image, &device] {
            let opened = open(device, &options, seed + 1);
            let found = contents(&opened.store().tree("t").unwrap());
            assert!(found == model, "seed {seed}: {changed} changes");
            assert_sound(opened.store(), Some(KEYS));
            opened.close().unwrap();
        }
    }
}

/// Each load links its records with all of their pages, whatever else is dirty.
#[test]
fn a_crash_after_a_load_keeps_all_of_its_pages() {
    for seed in 0..6 {
        let options = options(16 << 20).durability(Durability::Synced);
        let (device, simulation) = create(&options, seed);
        let tree = simulation.store().create_tree("t").unwrap();
        let records: BTreeMap<Vec<u8>, Vec<u8>> = (0..4_000 + 97 * seed)
            .map(|n| (key(n).to_vec(), value(n, 60)))
            .collect();
        tree.bulk_load(records.clone()).unwrap();
        let image = device.crash_image(Survivors::None, seed);
        simulation.close().unwrap();
        for device in [&image, &device] {
            let opened = open(device, &options, seed + 1);
            assert_sound(opened.store(), Some(records.len() as u64));
            let found = contents(&opened.store().tree("t").unwrap());
            assert!(found == records, "seed {seed}");
            opened.close().unwrap();
        }
    }
}

/// A store's first large values are in the log alone when the power goes; then their tree gets
/// overlays, and changes replace them.
#[test]
fn a_crash_before_the_first_checkpoint_forgets_no_large_value() {
    small_without_checkpoints();
    let options = options(16 << 20).durability(Durability::Synced);
    let (device, simulation) = create(&options.clone().overlays(false), 1);
    let tree = simulation.store().create_tree("t").unwrap();
    let mut model = fill(&tree);
    for number in 0..4 {
        tree.insert(&key(number), value(number, 5000)).unwrap();
        model.insert(key(number), value(number, 5000));
    }
    let image = device.crash_image(Survivors::None, 1);
    simulation.close().unwrap();
    // Readers need no older value until a change is durable, so it need not be read.
    let blind = options.durability(Durability::Buffered { window_ms: 10 });
    for device in [&image, &device] {
        let mut model = model.clone();
        let opened = open(device, &blind, 2);
        let tree = opened.store().tree("t").unwrap();
        assert!(contents(&tree) == model);
        let mut changed = 4;
        while opened.store().stats().sealed_runs == 0 {
            assert!(changed < KEYS, "nothing is sealed");
            tree.insert(&key(changed), value_of(changed)).unwrap();
            model.insert(key(changed), value_of(changed));
            changed += 1;
        }
        for number in 0..4 {
            tree.insert(&key(number), value_of(number)).unwrap();
            model.insert(key(number), value_of(number));
        }
        assert!(contents(&tree) == model);
        assert_sound(opened.store(), Some(KEYS));
        opened.close().unwrap();
    }
}
