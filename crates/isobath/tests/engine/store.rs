//! Whole stores through the public API: loading beyond the pool, reopening,
//! large values, many trees, bad input.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isobath::{Error, LoadError, Options, Store, Tree, Volume};
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, Op, Trigger};

fn small() -> Options {
    Options::new()
        .pool_bytes(4 << 20)
        .workers(2)
        .segment_bytes(256 << 10)
}

fn key(n: u64) -> Vec<u8> {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

fn value(n: u64, length: usize) -> Vec<u8> {
    (0..length).map(|i| (n as usize * 31 + i) as u8).collect()
}

#[test]
fn data_of_ten_pools_survives_reopening() {
    let volume = Volume::in_memory(0, None);
    let count = 300_000u64;
    let store = Store::create_on_volume(volume.clone(), &small()).unwrap();
    let tree = store.create_tree("records").unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|part| {
            let tree = tree.clone();
            store.spawn(move || {
                for n in (part..count).step_by(8) {
                    tree.insert(&key(n), &value(n, 120)).unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.records, count);
    store.close().unwrap();

    let store = Store::open_on_volume(volume, &small()).unwrap();
    let tree = store.tree("records").unwrap();
    for n in (0..count).step_by(37) {
        assert_eq!(
            tree.get(&key(n)).unwrap(),
            Some(value(n, 120)),
            "record {n}"
        );
    }
    assert_eq!(tree.get(b"absent").unwrap(), None);
    let mut seen = 0;
    tree.scan(.., |_, _| {
        seen += 1;
        true
    })
    .unwrap();
    assert_eq!(seen, count);
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    println!("{:?}", store.stats());
    store.close().unwrap();
}

#[test]
fn large_values_come_back_and_their_space_too() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &small()).unwrap();
    let tree = store.create_tree("values").unwrap();
    let sizes = [0, 1, 1024, 1025, 4000, 32_000, 65_536, 1 << 20, 5_000_000];
    let before = store.stats().allocated_bytes;
    for (n, &size) in sizes.iter().enumerate() {
        tree.insert(&key(n as u64), &value(n as u64, size)).unwrap();
    }
    for (n, &size) in sizes.iter().enumerate() {
        assert_eq!(
            tree.get(&key(n as u64)).unwrap(),
            Some(value(n as u64, size))
        );
    }
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    store.close().unwrap();
    let store = Store::open_on_volume(volume, &small()).unwrap();
    let tree = store.tree("values").unwrap();
    for (n, &size) in sizes.iter().enumerate() {
        assert_eq!(
            tree.get(&key(n as u64)).unwrap(),
            Some(value(n as u64, size))
        );
        assert!(tree.remove(&key(n as u64)).unwrap());
    }
    assert_eq!(store.stats().allocated_bytes, before);
    store.close().unwrap();
}

#[test]
fn a_full_volume_refuses_and_takes_again_after_deletes() {
    let options = small().volume_limit_bytes(Some(16 << 20));
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut count = 0;
    let error = loop {
        match tree.insert(&key(count), &value(count, 500)) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 100_000, "a 16 MiB volume took everything");
    };
    assert!(matches!(error, Error::VolumeFull { .. }), "{error}");
    for n in 0..count {
        assert_eq!(tree.get(&key(n)).unwrap(), Some(value(n, 500)));
    }
    // Updates in place need no space.
    for n in 0..count {
        tree.insert(&key(n), &value(n + 1, 500)).unwrap();
    }
    for n in 0..count / 2 {
        assert!(tree.remove(&key(n)).unwrap());
    }
    for n in 0..count / 4 {
        tree.insert(&key(n), &value(n, 500)).unwrap();
    }
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    store.close().unwrap();
}

#[test]
fn random_operations_agree_with_a_map_across_reopenings() {
    let volume = Volume::in_memory(0, None);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut store = Store::create_on_volume(volume.clone(), &small()).unwrap();
    store.create_tree("t").unwrap();
    for round in 0..6 {
        let tree = store.tree("t").unwrap();
        for _ in 0..4000 {
            let n = random(6000);
            let mut k = key(n);
            k.resize(random(3) as usize * 40 + 8, b'x');
            match random(10) {
                0..6 => {
                    let size = [8, 100, 900, 1500, 20_000][random(5) as usize];
                    let v = value(random(1 << 20), size);
                    tree.insert(&k, &v).unwrap();
                    model.insert(k, v);
                }
                6..9 => assert_eq!(tree.remove(&k).unwrap(), model.remove(&k).is_some()),
                _ => assert_eq!(tree.get(&k).unwrap(), model.get(&k).cloned()),
            }
        }
        let got: Vec<_> = tree.range(..).map(Result::unwrap).collect();
        let want: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(got == want, "round {round}");
        let got: Vec<_> = tree.range(..).rev().map(|r| r.unwrap().0).collect();
        let want: Vec<_> = model.keys().rev().cloned().collect();
        assert!(got == want, "round {round} reversed");
        let report = store.check(&mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        store.close().unwrap();
        store = Store::open_on_volume(volume.clone(), &small()).unwrap();
    }
    store.close().unwrap();
}

#[test]
fn many_keys_at_once_from_threads_and_tasks() {
    let store = Store::in_memory(&small()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let count = 60_000u64;
    let mut keys: Vec<Vec<u8>> = (0..count).map(|n| n.to_be_bytes().to_vec()).collect();
    tree.bulk_load(keys.iter().map(|k| (k, value(u64::from(k[7]), 100))))
        .unwrap();
    tree.insert(&keys[77], &value(1, 5000)).unwrap();
    keys.push(b"absent".to_vec());
    keys.reverse();
    let check = |values: Vec<Option<Vec<u8>>>| {
        for (key, got) in keys.iter().zip(values) {
            let want = match &key[..] {
                b"absent" => None,
                key if key == 77u64.to_be_bytes() => Some(value(1, 5000)),
                key => Some(value(u64::from(key[7]), 100)),
            };
            assert!(got == want, "{key:?}");
        }
    };
    check(tree.get_many(&keys).unwrap());
    let (inner, task_keys) = (tree.clone(), keys.clone());
    check(
        store
            .spawn(move || inner.get_many(&task_keys).unwrap())
            .join()
            .unwrap(),
    );
    store.drop_tree("t").unwrap();
    assert!(matches!(tree.get(b"x"), Err(Error::TreeDropped { .. })));
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!((report.problems.len(), report.pages), (0, 1));
    store.close().unwrap();
    assert!(matches!(
        tree.get(b"x"),
        Err(Error::TreeDropped { .. } | Error::Closed)
    ));
}

#[test]
fn unsorted_bulk_loads_change_nothing() {
    let store = Store::in_memory(&small()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let before = store.stats().allocated_bytes;
    let mut records: Vec<(Vec<u8>, Vec<u8>)> = (0..50_000u64)
        .map(|n| (n.to_be_bytes().to_vec(), value(n, 100)))
        .collect();
    records.swap(40_000, 40_001);
    assert!(matches!(
        tree.bulk_load(records.clone()),
        Err(LoadError::LoadOrder { .. })
    ));
    records.sort();
    records[30_000].0 = vec![1; 2000];
    assert!(matches!(
        tree.bulk_load(records),
        Err(LoadError::KeyTooLong { .. })
    ));
    assert_eq!(tree.range(..).count(), 0);
    assert_eq!(store.stats().allocated_bytes, before);
    let panicking = (0..30_000u64).map(|n| {
        assert!(n < 20_000, "the caller's iterator fails");
        (n.to_be_bytes(), [7u8; 200])
    });
    let caught =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tree.bulk_load(panicking)));
    assert!(caught.is_err());
    // The task ends once the sender is gone.
    while store.stats().allocated_bytes != before {
        std::thread::yield_now();
    }
    store.close().unwrap();
}

#[test]
fn more_short_tasks_than_slots_all_run() {
    let store = Store::in_memory(&small().workers(1).tasks_per_worker(4)).unwrap();
    for _ in 0..20 {
        let tasks: Vec<_> = (0..50).map(|n| store.spawn(move || n)).collect();
        let sum: u64 = tasks.into_iter().map(|task| task.join().unwrap()).sum();
        assert_eq!(sum, 49 * 50 / 2);
    }
    store.close().unwrap();
}

/// Scans of `limit` records each, from so many places; how many pages they read, and how many they
/// needed.
fn read_by_short_scans(store: &Store, tree: &Tree, limits: &[u64], places: u64) -> (u64, u64) {
    let before = store.stats().page_reads;
    for &limit in limits {
        for from in (0..places).map(|n| n * (398_920 / places)) {
            let mut seen = Vec::new();
            let first = from.to_be_bytes();
            tree.scan_first(&first[..].., limit as usize, |key, _| {
                seen.push(key.to_vec());
            })
            .unwrap();
            let all = from..400_000;
            let expected: Vec<_> = all.take(limit as usize).map(u64::to_be_bytes).collect();
            assert_eq!(seen, expected);
        }
    }
    // A page holds about 29 records; the pool holds few of the pages.
    let needed = limits.iter().map(|limit| places * (limit / 29 + 2)).sum();
    (store.stats().page_reads - before, needed)
}

#[test]
fn short_scans_read_what_they_need_and_hardly_more() {
    let store = Store::create_on_volume(Volume::in_memory(0, None), &small()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let records = (0..400_000u64).map(|n| (n.to_be_bytes(), value(n, 120)));
    tree.bulk_load(records).unwrap();
    let limits = [1, 2, 29, 30, 100, 1000];
    let (read, needed) = read_by_short_scans(&store, &tree, &limits, 40);
    let scans = 40 * limits.len() as u64;
    assert!(
        read < needed + scans * 2,
        "{read} pages read, {needed} needed"
    );
    store.close().unwrap();
}

/// Beside commits that are not durable yet, scans ask the versions, too.
#[test]
fn short_scans_beside_commits_read_hardly_more() {
    let device = FaultDevice::new(0, FaultPlan::new(1).sleeps(true));
    let store = Store::create_on_volume(Volume::from_device(device.clone()), &small()).unwrap();
    let tree = store.create_tree("t").unwrap();
    let records = (0..400_000u64).map(|n| (n.to_be_bytes(), value(n, 120)));
    tree.bulk_load(records).unwrap();
    let slow = Fault::Delay(Duration::from_millis(3));
    device.add_rule(FaultRule::new(slow, Trigger::From(0)).ops(&[Op::Flush]));
    let ended = AtomicBool::new(false);
    let other = store.create_tree("other").unwrap();
    std::thread::scope(|scope| {
        let (other, ended) = (&other, &ended);
        for thread in 0..2u64 {
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    other.insert(thread.to_be_bytes(), [7; 20]).unwrap();
                }
            });
        }
        let limits = [100];
        let (read, needed) = read_by_short_scans(&store, &tree, &limits, 600);
        ended.store(true, Ordering::Relaxed);
        // Batches longer than needed read 3,900.
        assert!(read < needed + 300, "{read} pages read, {needed} needed");
    });
    store.close().unwrap();
}

/// A load waits for its pages to be written, by writers of other threads that may be
/// done at any moment.
#[test]
fn loads_end_whenever_their_pages_are_written() {
    let options = Options::new().pool_bytes(512 << 20).workers(2);
    let store = Store::create_on_volume(Volume::in_memory(0, None), &options).unwrap();
    for round in 0..40_u64 {
        let tree = store.create_tree("t").unwrap();
        // More than may stay dirty: some of it is being written when the load ends.
        let records = (0..100_000 + round).map(|n| (n.to_be_bytes(), [7; 500]));
        assert_eq!(tree.bulk_load(records).unwrap(), 100_000 + round);
        store.drop_tree("t").unwrap();
    }
    store.close().unwrap();
}

#[test]
fn a_check_of_one_large_tree_tells_of_its_progress_all_along() {
    let store = Store::in_memory(&Options::new().pool_bytes(16 << 20).workers(1)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let records = (0..20_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 200]));
    tree.bulk_load(records).unwrap();
    // A task gets every count, a thread the newest.
    let checked = store.clone();
    let check = move || {
        let mut told = Vec::new();
        let report = checked.check(&mut |done, total| told.push((done, total)));
        (report.unwrap(), told)
    };
    let (report, told) = store.spawn(check).join().unwrap();
    assert!(
        report.problems.is_empty() && report.pages > 1000,
        "{report:?}"
    );
    assert!(told.is_sorted(), "{told:?}");
    let gaps = told.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(gaps.max().unwrap() <= 256, "{told:?}");
    let last = told.last().unwrap();
    assert_eq!(last.0, last.1);
}

/// The only worker has one task at a time: the check's, which must not wait for the callback.
#[test]
fn the_progress_of_a_check_may_wait_for_tasks_of_the_store() {
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let store = Store::in_memory(&options.tasks_per_worker(1)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let records = (0..20_000u32).map(|n| (n.to_be_bytes(), [7; 200]));
    tree.bulk_load(records).unwrap();
    let mut told = Vec::new();
    let mut progress = |done, total| {
        told.push((done, total));
        let (other, tree) = (store.clone(), tree.clone());
        let read = move || other.spawn(move || tree.get(7u32.to_be_bytes())).join();
        let found = std::thread::spawn(read).join();
        assert_eq!(found.unwrap().unwrap().unwrap(), Some(vec![7; 200]));
    };
    let report = store.check(&mut progress).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    assert!(told.is_sorted(), "{told:?}");
    let last = told.last().unwrap();
    assert_eq!(last.0, last.1);
    store.close().unwrap();
}

/// A writer whose file is gone must stop acknowledging commits, which are lost with the file.
#[test]
fn a_file_that_is_removed_or_moved_is_noticed() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let displaced = |error: &Error| match error {
        Error::Poisoned { cause } => matches!(**cause, Error::Volume(_)),
        error => matches!(error, Error::Volume(_)),
    };
    let make = |name: &str| {
        let store = Store::create(&[path(name)], &Options::new().pool_bytes(8 << 20)).unwrap();
        let tree = store.create_tree("t").unwrap();
        tree.insert(b"key", b"value").unwrap();
        (store, tree)
    };
    let (store, tree) = make("removed");
    fs::remove_file(path("removed")).unwrap();
    let noticed = store.checkpoint().unwrap_err();
    assert!(displaced(&noticed), "{noticed}");
    let refused = tree.insert(b"key", b"lost").unwrap_err();
    assert!(displaced(&refused), "{refused}");
    assert_eq!(tree.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    let refused = store.close().unwrap_err();
    assert!(displaced(&refused), "{refused}");

    let (store, tree) = make("moved");
    fs::rename(path("moved"), path("there")).unwrap();
    tree.insert(b"key", b"kept").unwrap();
    let told = store.close().unwrap_err();
    assert!(displaced(&told), "{told}");
    let store = Store::open(path("there"), &Options::new()).unwrap();
    let tree = store.tree("t").unwrap();
    assert_eq!(tree.get(b"key").unwrap().as_deref(), Some(&b"kept"[..]));
    store.close().unwrap();
}
