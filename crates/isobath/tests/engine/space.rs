//! Space is freed again: what one opening leaves, what snapshots keep, what a recovery needs beside
//! a full log. Every store is judged by its contents after it was opened again.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use common::{LOG, Random, assert_sound, key, tiny, value};
use isobath::{
    BackupError, BackupOptions, Durability, Error, Options, Simulation, Snapshot, Store,
    TransactionOptions, Tree, Volume,
};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

fn device(seed: u64, limit: Option<u64>) -> Arc<FaultDevice> {
    FaultDevice::new(0, FaultPlan::new(seed).max_bytes(limit))
}

fn open(device: &Arc<FaultDevice>, options: &Options, seed: u64) -> Simulation {
    Simulation::open(Volume::from_device(device.clone()), options, seed).unwrap()
}

/// One opening for each large value, with one worker and with more: each leaves segments that are
/// not full.
#[test]
fn many_openings_that_write_one_value_each_take_as_long_as_that_many() {
    const OPENINGS: u64 = 60;
    const BYTES: usize = 40_000;
    for workers in [1, 3] {
        let options = tiny(workers, 6).segment_bytes(256 << 10).log_bytes(LOG);
        let device = device(1, None);
        let volume = Volume::from_device(device.clone());
        let simulation = Simulation::new(volume, &options, 1).unwrap();
        simulation.store().create_tree("t").unwrap();
        simulation.close().unwrap();
        let mut cleaned = 0;
        for n in 0..OPENINGS {
            let simulation = open(&device, &options, n);
            let tree = simulation.store().tree("t").unwrap();
            tree.insert(&key(n), &value(n, BYTES)).unwrap();
            cleaned += simulation.store().stats().cleaning_bytes_written;
            simulation.close().unwrap();
        }
        let live = OPENINGS * BYTES as u64;
        let length = Volume::from_device(device.clone()).len();
        assert!(cleaned < 4 * live, "{workers} workers: {cleaned} cleaned");
        // Segments of a new store, its log, and its live data with some free space.
        assert!(length < 40 * (256 << 10) + LOG + 2 * live, "{length}");
        let simulation = open(&device, &options, 99);
        let tree = simulation.store().tree("t").unwrap();
        for n in 0..OPENINGS {
            assert!(tree.get(&key(n)).unwrap() == Some(value(n, BYTES)), "{n}");
        }
        assert_sound(simulation.store(), Some(OPENINGS));
        simulation.close().unwrap();
    }
}

/// What lives here is the same however many workers change it, so the volume stays as small:
/// cleaners that wait for each other, and pages that are counted twice while they are moved, are no
/// reason to grow.
#[test]
fn many_workers_clean_instead_of_growing() {
    const RECORDS: u64 = 24_000;
    let length_with = |workers: usize| {
        let options = tiny(workers, 4).log_bytes(LOG).pool_bytes(9 << 20);
        let device = device(3, None);
        let volume = Volume::from_device(device.clone());
        let options = options.durability(Durability::None);
        let simulation = Simulation::new(volume, &options, 3).unwrap();
        let tree = simulation.store().create_tree("t").unwrap();
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let tree = tree.clone();
                simulation.spawn(task, move || {
                    let mut random = Random::new(task as u64);
                    let each = RECORDS / 16;
                    for n in 0..each * 4 {
                        let n = if n < each { n } else { random.below(each) };
                        let n = task as u64 * each + n;
                        tree.insert(&key(n), &value(random.bits(), 700)).unwrap();
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        let stats = simulation.store().stats();
        simulation.close().unwrap();
        let simulation = open(&device, &options, 4);
        assert_sound(simulation.store(), Some(RECORDS));
        simulation.close().unwrap();
        println!(
            "{workers} workers: {} bytes, {} cleaned",
            stats.volume_bytes, stats.segments_cleaned
        );
        stats.volume_bytes
    };
    let (one, many) = (length_with(1), length_with(16));
    assert!(many < one + one / 4, "{many} bytes instead of {one}");
}

fn is_too_old(snapshot: &Snapshot, tree: &Tree) -> bool {
    matches!(snapshot.get(tree, b"k"), Err(Error::SnapshotTooOld))
}

/// A snapshot that is never read, while a large value is overwritten again and again.
#[test]
fn an_idle_snapshot_fails_before_the_volume_is_full_of_old_values() {
    const LIMIT: u64 = 24 << 20;
    for newer in [0, 3] {
        let options = tiny(2, 6)
            .segment_bytes(256 << 10)
            .log_bytes(LOG)
            .volume_limit_bytes(Some(LIMIT))
            .durability(Durability::None);
        let device = device(2, Some(LIMIT));
        let volume = Volume::from_device(device.clone());
        let simulation = Simulation::new(volume, &options, 2).unwrap();
        let store = simulation.store();
        let tree = store.create_tree("t").unwrap();
        tree.insert(b"k", &value(0, 200_000)).unwrap();
        let idle = store.snapshot().unwrap();
        let mut snapshots = Vec::new();
        for n in 1..300 {
            if n <= newer {
                snapshots.push(store.snapshot().unwrap());
            }
            tree.insert(b"k", &value(n, 200_000)).unwrap();
            tree.insert(&key(n), &value(n, 300)).unwrap();
        }
        assert!(is_too_old(&idle, &tree));
        assert!(snapshots.iter().all(|snapshot| is_too_old(snapshot, &tree)));
        assert_eq!(store.stats().snapshots_aborted, 1 + newer);
        // A new one sees the present state, and one overwrite does not end it.
        let now = store.snapshot().unwrap();
        tree.insert(b"k", &value(300, 200_000)).unwrap();
        assert!(now.get(&tree, b"k").unwrap() == Some(value(299, 200_000)));
        drop((idle, now, snapshots));
        simulation.close().unwrap();

        let simulation = open(&device, &options, 3);
        let tree = simulation.store().tree("t").unwrap();
        assert!(tree.get(b"k").unwrap() == Some(value(300, 200_000)));
        assert_sound(simulation.store(), Some(300));
        simulation.close().unwrap();
    }
}

/// Where the volume may grow, old values take no more of it than everything else does.
#[test]
fn an_idle_snapshot_does_not_let_a_volume_grow_for_ever() {
    const BYTES: usize = 2 << 20;
    let options = tiny(1, 6)
        .segment_bytes(1 << 20)
        .log_bytes(LOG)
        .durability(Durability::None);
    let device = device(4, None);
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options, 4).unwrap();
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let bytes = value(7, BYTES);
    tree.insert(b"k", &bytes).unwrap();
    let idle = store.snapshot().unwrap();
    for _ in 0..30 {
        tree.insert(b"k", &bytes).unwrap();
    }
    assert!(idle.get(&tree, b"k").unwrap().as_ref() == Some(&bytes));
    for _ in 0..30 {
        tree.insert(b"k", &bytes).unwrap();
    }
    assert!(is_too_old(&idle, &tree));
    assert!(store.stats().volume_bytes < 176 << 20);
    simulation.close().unwrap();
    let simulation = open(&device, &options, 5);
    let tree = simulation.store().tree("t").unwrap();
    assert!(tree.get(b"k").unwrap().as_ref() == Some(&bytes));
    assert_sound(simulation.store(), Some(1));
    simulation.close().unwrap();
}

/// Changes random records until `bytes` more of the log are written.
fn log_more(store: &Store, tree: &Tree, random: &mut Random, records: u64, bytes: u64) {
    let end = store.stats().log_bytes_written + bytes;
    while store.stats().log_bytes_written < end {
        let n = random.below(records);
        tree.insert(&key(n), &random.bits().to_le_bytes()).unwrap();
    }
}

/// A log that is nearly as full as commits may make it, of small changes to more pages than the
/// pool holds.
#[test]
fn a_recovery_frees_space_in_a_log_that_is_too_full_for_it() {
    const RECORDS: u64 = 60_000;
    let options = tiny(1, 6).log_bytes(LOG).durability(Durability::None);
    let device = device(6, None);
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options, 6).unwrap();
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let mut random = Random::new(6);
    for n in 0..RECORDS {
        let mut bytes = value(n, 60);
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        tree.insert(&key(n), &bytes).unwrap();
    }
    // Only the last round of a backup keeps the log from being shortened.
    let place = tempfile::tempdir().unwrap();
    let mut image = None;
    let (mut rounds, mut last) = (0, u64::MAX);
    let mut watch = |_: &str, done: u64, _: u64| {
        let begins = done <= last;
        last = done;
        rounds += u64::from(begins);
        if begins && rounds < 8 {
            log_more(store, &tree, &mut random, RECORDS, LOG * 40 / 100);
        }
        if rounds == 8 {
            log_more(store, &tree, &mut random, RECORDS, LOG * 58 / 100);
            let synced = TransactionOptions::new().durability(Durability::Synced);
            let put = store.transact(synced, |transaction| {
                transaction.insert(&tree, b"last", b"")
            });
            put.unwrap();
            image = Some(device.crash_image(Survivors::Executed, 0));
        }
        match image {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(()),
        }
    };
    let to = place.path().join("b");
    let ended = store.backup(&to, &BackupOptions::new(), &mut watch);
    assert!(matches!(ended, Err(BackupError::Interrupted)), "{ended:?}");
    let expected = common::contents(&tree);
    simulation.close().unwrap();

    let image = image.unwrap();
    for seed in 7..9 {
        let simulation = open(&image, &options, seed);
        let tree = simulation.store().tree("t").unwrap();
        assert!(tree.contains(b"last").unwrap());
        assert!(common::contents(&tree) == expected);
        assert_sound(simulation.store(), Some(expected.len() as u64));
        simulation.close().unwrap();
    }
}

fn back_up(store: &Store, to: &Path, mut each: impl FnMut(&str) + Send) -> u64 {
    let mut watch = |stage: &str, _: u64, _: u64| {
        each(stage);
        ControlFlow::Continue(())
    };
    let report = store.backup(to, &BackupOptions::new(), &mut watch);
    report.unwrap().rounds
}

/// What only the log names when the last round has ended stays until the backup has copied it, although others replace it
/// and use space again. Large values: much to copy, and little log.
#[test]
fn what_a_backup_has_still_to_copy_stays() {
    const VALUES: u64 = 36;
    const BYTES: usize = 200_000;
    const LIMIT: u64 = 40 << 20;
    let options = tiny(2, 6)
        .log_bytes(LOG)
        .volume_limit_bytes(Some(LIMIT))
        .durability(Durability::None);
    let device = device(8, Some(LIMIT));
    let volume = Volume::from_device(device);
    let simulation = Simulation::new(volume, &options, 8).unwrap();
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("b");
    let mut batches = 0;
    back_up(store, &to, |stage| match stage {
        "copying" if tree.is_empty().unwrap() => {
            for n in 0..VALUES {
                tree.insert(&key(n), &value(n, BYTES)).unwrap();
            }
        }
        "copying new pages" => {
            batches += 1;
            if batches == 1 {
                tree.clear().unwrap();
                // More than the volume has.
                for n in 0..LIMIT / BYTES as u64 + VALUES {
                    tree.insert(&key(n % 8), &value(n, BYTES)).unwrap();
                }
            }
        }
        _ => {}
    });
    assert!(batches > 1, "there is something to copy after the writes");
    simulation.close().unwrap();

    let path = place.path().join("r");
    Store::restore(&[&to], &[&path], &options, &mut |_, _, _| {
        ControlFlow::Continue(())
    })
    .unwrap();
    let restored = Store::open(&[&path], &options).unwrap();
    assert_sound(&restored, Some(VALUES));
    restored.close().unwrap();
}

/// Writers that fill the log and the volume more than once while a backup copies what only the log
/// names, and while it verifies: both wait for nothing but the target.
#[test]
fn writers_go_on_beside_a_slow_target() {
    const RECORDS: u64 = 6_000;
    const LIMIT: u64 = 12 << 20;
    let options = tiny(2, 6)
        .log_bytes(LOG)
        .volume_limit_bytes(Some(LIMIT))
        .durability(Durability::None);
    let device = device(8, Some(LIMIT));
    let volume = Volume::from_device(device.clone());
    let simulation = Simulation::new(volume, &options, 8).unwrap();
    let store = simulation.store();
    let tree = store.create_tree("t").unwrap();
    for n in 0..RECORDS {
        tree.insert(&key(n), &value(n, 500)).unwrap();
    }
    let change = |random: &mut Random, bytes: u64| {
        let end = store.stats().log_bytes + bytes;
        while store.stats().log_bytes < end {
            let n = random.below(RECORDS);
            tree.insert(&key(n), &value(random.bits(), 500)).unwrap();
        }
    };
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("b");
    let mut random = Random::new(8);
    let mut seen = std::collections::BTreeMap::new();
    back_up(store, &to, |stage| {
        let times: &mut u64 = seen.entry(stage.to_owned()).or_default();
        *times += 1;
        match stage {
            "copying" if *times == 1 => {
                for n in 0..60 {
                    tree.insert(&key(RECORDS + n), &value(n, 3000)).unwrap();
                }
                change(&mut random, LOG / 10);
            }
            "copying new pages" if *times == 1 => change(&mut random, LOG / 4),
            "verifying" if *times == 1 => change(&mut random, 3 * LOG),
            _ => {}
        }
    });
    assert!(seen.contains_key("copying new pages"), "{seen:?}");
    assert_eq!(store.stats().corrupt_pages, 0);
    let records = RECORDS + 60;
    simulation.close().unwrap();
    let simulation = open(&device, &options, 9);
    assert_sound(simulation.store(), Some(records));
    simulation.close().unwrap();

    let path = place.path().join("r");
    Store::restore(&[&to], &[&path], &options, &mut |_, _, _| {
        ControlFlow::Continue(())
    })
    .unwrap();
    // Opened, closed, and opened again.
    for _ in 0..2 {
        let restored = Store::open(&[&path], &options).unwrap();
        assert_sound(&restored, Some(records));
        restored.close().unwrap();
    }
}
