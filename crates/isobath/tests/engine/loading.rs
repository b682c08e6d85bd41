//! Loads of records in any order, into empty and filled trees, in memory and beyond it.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::ops::ControlFlow;
use std::sync::{RwLock, mpsc};
use std::time::Duration;

use common::{Model, Random, assert_sound, tiny, value};
use isobath::{Durability, LoadError, Options, Record, Store, Tree};

fn assert_holds(tree: &Tree, model: &Model) {
    let ours: Vec<Record> = tree.range(..).map(Result::unwrap).collect();
    assert!(ours.iter().map(|(k, v)| (k, v)).eq(model), "{}", ours.len());
}

fn drawn(random: &mut Random, count: u64, keys: std::ops::Range<u64>) -> Vec<Record> {
    (0..count)
        .map(|_| {
            let key = keys.start + random.below(keys.end - keys.start);
            let length = match random.below(100) {
                0 => 20_000,
                n => n as usize,
            };
            (key.to_be_bytes().to_vec(), value(random.bits(), length))
        })
        .collect()
}

#[test]
fn records_in_any_order_are_there_whatever_was_there_before() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let options = tiny(2, 8);
    let mut random = Random::new(1);
    let mut model = Model::new();
    // Into an empty tree, behind its records, between them, before them.
    for (round, keys) in [1000..2000, 3000..4000, 500..5000, 0..1100]
        .into_iter()
        .enumerate()
    {
        let store = Store::open_or_create(&path, &options).unwrap();
        let tree = store.open_or_create_tree("t").unwrap();
        let records = drawn(&mut random, 3_000, keys);
        let distinct = records
            .iter()
            .map(|r| &r.0)
            .collect::<std::collections::BTreeSet<_>>();
        let before = store.stats().commits;
        assert_eq!(
            tree.load(records_of(&records)).unwrap(),
            distinct.len() as u64
        );
        // At the end they come as one, elsewhere in commits of some hundred.
        let commits = store.stats().commits - before;
        assert!(
            if round < 2 {
                commits < 5
            } else {
                commits < 200
            },
            "{round}: {commits}"
        );
        model.extend(records);
        assert_holds(&tree, &model);
        assert_eq!(tree.load(Vec::<Record>::new()).unwrap(), 0);
        assert_sound(&store, Some(model.len() as u64));
        store.close().unwrap();
        let store = Store::open(&path, &options).unwrap();
        assert_holds(&store.tree("t").unwrap(), &model);
        store.close().unwrap();
    }
    // Nothing but the store is left in its directory.
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
}

fn records_of(records: &[Record]) -> Vec<(&[u8], &[u8])> {
    records.iter().map(|(k, v)| (&k[..], &v[..])).collect()
}

#[test]
fn more_records_than_are_sorted_in_memory_come_in_order() {
    let store = Store::in_memory(&tiny(2, 8)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut random = Random::new(2);
    let mut model = Model::new();
    let mut loader = tree.loader().unwrap();
    for n in 0..60_000 {
        let key = random.below(40_000).to_be_bytes().to_vec();
        loader.push(&key, value(n, 900)).unwrap();
        model.insert(key, value(n, 900));
    }
    let mut seen = 0;
    let loaded = loader.finish(&mut |_, done, total| {
        seen = done.max(seen);
        assert!(done <= total && total == 60_000);
        ControlFlow::Continue(())
    });
    assert_eq!(loaded.unwrap(), model.len() as u64);
    assert!(seen > 20_000);
    assert_holds(&tree, &model);
    assert_sound(&store, Some(model.len() as u64));
    store.close().unwrap();
}

#[test]
fn a_load_that_does_not_end_leaves_the_tree_as_it_was() {
    let store = Store::in_memory(&tiny(1, 8)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let records = || {
        (0..9_000u64)
            .rev()
            .map(|n| (n.to_be_bytes(), value(n, 3_000)))
    };
    let mut loader = tree.loader().unwrap();
    records().for_each(|(k, v)| loader.push(k, v).unwrap());
    let ended = loader.finish(&mut |_, _, _| ControlFlow::Break(()));
    assert!(matches!(ended, Err(LoadError::Interrupted)));
    // Dropped, with records in memory and in its file.
    let mut loader = tree.loader().unwrap();
    records().for_each(|(k, v)| loader.push(k, v).unwrap());
    drop(loader);
    // A record that cannot be stored is refused at once, and those beside it are not.
    let mut loader = tree.loader().unwrap();
    assert!(matches!(
        loader.push(vec![0; 2_000], ""),
        Err(LoadError::KeyTooLong { .. })
    ));
    drop(loader);
    // No space for what does not fit into memory.
    let mut loader = tree.loader().unwrap().temporary_files_in("/does/not/exist");
    let failed = records()
        .try_for_each(|(k, v)| loader.push(k, v))
        .unwrap_err();
    assert!(failed.to_string().contains("/does/not/exist"), "{failed}");
    assert_sound(&store, Some(0));
    store.drop_tree("t").unwrap();
    assert!(matches!(tree.loader(), Err(LoadError::TreeDropped { .. })));
    store.close().unwrap();
}

#[test]
fn loads_of_the_same_keys_beside_each_other_leave_one_of_them() {
    let store = Store::in_memory(&tiny(2, 8)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let load = &|tag: u8| {
        tree.load((0..4_000u64).rev().map(|n| (n.to_be_bytes(), [tag])))
            .unwrap()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|tag| scope.spawn(move || load(tag))).collect();
        threads
            .into_iter()
            .for_each(|thread| assert_eq!(thread.join().unwrap(), 4_000));
    });
    assert!(tree.range(..).map(Result::unwrap).all(|(_, v)| v[0] < 3));
    assert_sound(&store, Some(4_000));
    // In a task, which does the work itself.
    let inner = tree.clone();
    let loaded = store.spawn(move || inner.load([("b", "1"), ("a", "2"), ("b", "3")]));
    assert_eq!(loaded.join().unwrap().unwrap(), 2);
    assert_eq!(tree.get("b").unwrap().unwrap(), b"3");
    store.close().unwrap();
}

/// Commits whose every record splits a leaf log far more than their records, and all of them
/// together no more than the log has.
#[test]
fn a_load_that_splits_each_leaf_gets_along_with_a_small_log() {
    let options = Options::new()
        .workers(2)
        .pool_bytes(64 << 20)
        .log_bytes(4 << 20)
        .durability(Durability::None);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let key = |n: u64| format!("{n:08}");
    let count = 66_000;
    // In this order leaves stay full: eleven of these records, and no space for another one.
    for n in 0..count {
        tree.insert(key(n), value(n, 340)).unwrap();
    }
    let between = |n: u64| (key(n) + "x", value(n + 1, 340));
    let added = tree.load((0..count).step_by(11).map(between)).unwrap();
    assert_eq!(added, count / 11);
    // The same in transactions, of as many splits as such a log holds.
    for first in (5..count).step_by(11 * 120) {
        let mut transaction = store.begin().unwrap();
        for n in (first..(first + 11 * 120).min(count)).step_by(11) {
            let (key, value) = between(n);
            transaction.insert(&tree, key, value).unwrap();
        }
        transaction.commit().unwrap();
    }
    let expected = count + 2 * (count / 11);
    assert_eq!(tree.count(..).unwrap(), expected);
    for n in (0..count).step_by(11) {
        let (key, value) = between(n);
        assert_eq!(tree.get(key).unwrap(), Some(value));
    }
    assert_sound(&store, Some(expected));
    store.close().unwrap();
}

/// Each of as many loads as there are tasks waits for its caller, and none of them keeps others
/// from getting a task.
#[test]
fn loads_that_wait_for_their_records_take_no_task() {
    const TASKS: usize = 4;
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let store = Store::in_memory(&options.tasks_per_worker(TASKS)).unwrap();
    let gate = RwLock::new(());
    let closed = gate.write().unwrap();
    std::thread::scope(|scope| {
        let (begun, all_begun) = mpsc::channel();
        for load in 0..2 * TASKS {
            let (store, gate, begun) = (&store, &gate, begun.clone());
            scope.spawn(move || {
                let tree = store.create_tree(&load.to_string()).unwrap();
                let records = (0..3000u32).map(|n| {
                    // The first batch is full before that.
                    if n == 2000 {
                        begun.send(()).unwrap();
                        drop(gate.read().unwrap());
                    }
                    (n.to_be_bytes(), [7; 1000])
                });
                assert_eq!(tree.bulk_load(records).unwrap(), 3000);
            });
        }
        let wait = Duration::from_secs(60);
        let begun = (0..2 * TASKS).all(|_| all_begun.recv_timeout(wait).is_ok());
        let (told, goes_on) = mpsc::channel();
        let store = &store;
        scope.spawn(move || {
            let tree = store.create_tree("other").unwrap();
            tree.insert("key", "value").unwrap();
            told.send(()).unwrap();
        });
        let went_on = begun && goes_on.recv_timeout(wait).is_ok();
        drop(closed);
        assert!(
            went_on,
            "loads hold tasks while they wait for their callers"
        );
    });
    for load in 0..2 * TASKS {
        let tree = store.tree(&load.to_string()).unwrap();
        assert_eq!(tree.count(..).unwrap(), 3000);
    }
    assert_sound(&store, None);
    store.close().unwrap();
}

/// Where the caller's iterator ends a load between two batches, nothing of these is left.
#[test]
fn a_load_that_its_caller_gives_up_leaves_nothing() {
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let records = |bad: u32| {
        (0..9000u32).map(move |n| match n == bad {
            true => (n.to_be_bytes().to_vec(), vec![7; isobath::MAX_KEY_BYTES]),
            false => (n.to_be_bytes().to_vec(), vec![7; 500]),
        })
    };
    let too_long = records(6000).map(|(key, value)| match value.len() > 500 {
        true => (vec![255; isobath::MAX_KEY_BYTES + 1], value),
        false => (key, value),
    });
    assert!(tree.bulk_load(too_long).is_err());
    let panics = records(u32::MAX).inspect(|(key, _)| assert_ne!(key[..], 7000u32.to_be_bytes()));
    let load = std::panic::AssertUnwindSafe(|| tree.bulk_load(panics));
    assert!(std::panic::catch_unwind(load).is_err());
    assert!(tree.is_empty().unwrap());
    assert_sound(&store, None);
    assert_eq!(tree.bulk_load(records(u32::MAX)).unwrap(), 9000);
    store.close().unwrap();
}

/// What a scan shows it shows on its caller's thread, also if tasks read the pages.
#[test]
fn a_scan_calls_its_visitor_where_its_caller_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let store = Store::create(&path, &tiny(1, 8)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut model = Model::new();
    let records = (0..20_000u64).map(|n| (n.to_be_bytes().to_vec(), value(n, 400)));
    for (key, value) in records {
        model.insert(key, value);
    }
    tree.insert(0u64.to_be_bytes(), "").unwrap();
    tree.remove(0u64.to_be_bytes()).unwrap();
    assert_eq!(tree.bulk_load(&model).unwrap(), 20_000);
    tree.insert(7u64.to_be_bytes(), value(7, 40_000)).unwrap();
    model.insert(7u64.to_be_bytes().to_vec(), value(7, 40_000));
    drop(tree);
    store.close().unwrap();
    // Nothing is in memory.
    let store = Store::open(&path, &tiny(1, 8)).unwrap();
    let tree = store.tree("t").unwrap();
    let here = std::thread::current().id();
    let mut seen = Model::new();
    let visit = |key: &[u8], value: &[u8]| {
        assert_eq!(std::thread::current().id(), here);
        seen.insert(key.to_vec(), value.to_vec());
        true
    };
    tree.scan(.., visit).unwrap();
    assert!(seen == model);
    drop(tree);
    store.close().unwrap();
    let store = Store::open(&path, &tiny(1, 8)).unwrap();
    let tree = store.tree("t").unwrap();
    let reads = store.stats().page_reads;
    let mut keys = Vec::new();
    tree.scan_first(.., 12, |key, _| keys.push(key.to_vec()))
        .unwrap();
    assert!(keys.iter().eq(model.keys().take(12)));
    let reads = store.stats().page_reads - reads;
    assert!(reads < 20, "{reads} pages were read for twelve records");
    drop(tree);
    store.close().unwrap();
}
