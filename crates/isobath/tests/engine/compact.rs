//! Stores whose records are gone give their file space back, and keep every other record.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::big_endian_bytes,
    reason = "keys that compare as their numbers do"
)]

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use isobath::{Durability, Error, Options, Store};

fn options() -> Options {
    Options::new()
        .pool_bytes(16 << 20)
        .workers(2)
        .segment_bytes(256 << 10)
        .durability(Durability::None)
}

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b9).to_be_bytes()
}

fn value(number: u32) -> Vec<u8> {
    let length = if number % 100 == 7 { 40_000 } else { 700 };
    vec![number as u8; length]
}

const RECORDS: u32 = 16_000;

fn length(paths: &[PathBuf]) -> u64 {
    paths
        .iter()
        .map(|path| std::fs::metadata(path).unwrap().len())
        .sum()
}

fn expect(store: &Store, kept: impl Fn(u32) -> bool) {
    let tree = store.tree("t").unwrap();
    for number in 0..RECORDS {
        let found = tree.get(key(number)).unwrap();
        assert_eq!(found, kept(number).then(|| value(number)), "{number}");
    }
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

fn shrinks(files: usize) {
    let directory = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..files)
        .map(|file| directory.path().join(format!("s{file}.isobath")))
        .collect();
    let store = Store::create(&paths, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    for number in 0..RECORDS {
        tree.insert(key(number), value(number)).unwrap();
    }
    for number in (0..RECORDS).filter(|number| number % 50 != 0) {
        tree.remove(key(number)).unwrap();
    }
    let before = length(&paths);
    let gained = store.compact().unwrap();
    let after = length(&paths);
    assert_eq!(gained.bytes_before - gained.bytes_after, before - after);
    assert!(after < before / 2 + (2 << 20), "{before} {after}");
    expect(&store, |number| number % 50 == 0);
    // It grows again, and what it had before does not come back.
    for number in 0..RECORDS / 2 {
        tree.insert(key(number), value(number)).unwrap();
    }
    assert!(length(&paths) > after);
    let kept = |number| number % 50 == 0 || number < RECORDS / 2;
    store.close().unwrap();
    let store = Store::open(&paths, &options()).unwrap();
    expect(&store, kept);
    store.tree("t").unwrap();
    store.drop_tree("t").unwrap();
    let gained = store.compact().unwrap();
    assert!(gained.bytes_after <= after, "{gained:?} {after}");
    // Nothing more is gained.
    let again = store.compact().unwrap();
    assert_eq!(again.bytes_before, again.bytes_after);
    store.close().unwrap();
    let store = Store::open(&paths, &options()).unwrap();
    assert_eq!(store.trees().unwrap(), vec![]);
    store.close().unwrap();
}

#[test]
fn one_file_becomes_short() {
    shrinks(1);
}

#[test]
fn striped_files_become_short() {
    shrinks(3);
}

#[test]
fn a_store_without_a_log_says_what_it_lacks() {
    let options = options().log_bytes(0);
    let store = Store::in_memory(&options).unwrap();
    for refused in [store.compact().map(|_| ()), store.checkpoint()] {
        assert!(
            matches!(refused, Err(Error::NeedsLog { .. })),
            "{refused:?}"
        );
    }
    store.close().unwrap();
}

#[test]
fn a_checkpoint_leaves_nothing_to_recover() {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    for number in 0..2_000u32 {
        tree.insert(key(number), value(number)).unwrap();
    }
    let before = store.stats();
    store.checkpoint().unwrap();
    let after = store.stats();
    assert!(after.checkpoints > before.checkpoints);
    assert_eq!(after.dirty_pages, 0);
    tree.insert(b"later", b"v").unwrap();
    store.close().unwrap();
    assert!(matches!(store_closed(&tree), Error::Closed));
}

fn store_closed(tree: &isobath::Tree) -> Error {
    tree.get(b"x").unwrap_err()
}

/// Bytes that the file system has given the file.
fn allocated(path: &PathBuf) -> u64 {
    512 * std::fs::metadata(path).unwrap().blocks()
}

/// A compacted store that was closed takes little more than its records, whatever came before, and
/// finds room for what it needs beside them when it is opened.
#[test]
fn a_compacted_file_takes_little_more_than_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new()
        .pool_bytes(8 << 20)
        .workers(2)
        .durability(Durability::None);
    let wide = |number: u32| [key(number).to_vec(), vec![b'k'; 20]].concat();
    for records in [1, 1_000, 10_000, 100_000u32] {
        let path = directory.path().join(format!("{records}.isobath"));
        let store = Store::create(&[&path], &options).unwrap();
        let tree = store.create_tree("t").unwrap();
        for number in 0..records {
            tree.insert(wide(number), [number as u8; 150]).unwrap();
        }
        store.compact().unwrap();
        store.close().unwrap();
        let data = u64::from(records) * 174;
        let most = (4 << 20) + data + data / 5;
        let taken = allocated(&path);
        assert!(taken <= most, "{taken} for {data}");
        for _ in 0..2 {
            let store = Store::open(&[&path], &options).unwrap();
            assert!(allocated(&path) >= std::fs::metadata(&path).unwrap().len());
            let tree = store.tree("t").unwrap();
            assert_eq!(tree.count(..).unwrap(), u64::from(records));
            for number in (0..records).step_by(37) {
                let found = tree.get(wide(number)).unwrap();
                assert_eq!(found, Some(vec![number as u8; 150]), "{number}");
            }
            let report = store.check(&mut |_, _| {}).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            tree.insert(b"one more", b"v").unwrap();
            tree.remove(b"one more").unwrap();
            store.close().unwrap();
        }
    }
}

/// Snapshots, transactions, readers and writers go on while the records move.
#[test]
fn trees_are_used_while_their_records_move() {
    let options = options().version_store_bytes(8 << 20);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    const COUNT: u32 = 20_000;
    for number in 0..COUNT {
        tree.insert(key(number), [0; 100]).unwrap();
    }
    let leaves = tree.stats().unwrap().leaf_pages;
    let snapshot = store.snapshot().unwrap();
    let mut transaction = store.begin().unwrap();
    for number in (0..COUNT).step_by(3) {
        tree.insert(key(number), [1; 100]).unwrap();
    }
    transaction.insert(&tree, key(1), [2; 100]).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            let (tree, is_done) = (&tree, &is_done);
            scope.spawn(move || {
                // As many changes as the old versions for the snapshot may be.
                let mut changes = 0;
                let mut number = thread;
                while !is_done.load(Ordering::SeqCst) {
                    number = (number + 7) % COUNT;
                    let seen = tree.get(key(number)).unwrap().unwrap();
                    if number % 3 == 2 && changes < 2_000 {
                        changes += 1;
                        tree.insert(key(number), &seen).unwrap();
                    }
                }
            });
        }
        for _ in 0..3 {
            store.compact().unwrap();
        }
        is_done.store(true, Ordering::SeqCst);
    });
    assert!(tree.stats().unwrap().leaf_pages < leaves * 9 / 10);
    for number in 0..COUNT {
        let old = snapshot.get(&tree, key(number)).unwrap();
        assert_eq!(old, Some(vec![0; 100]), "{number}");
    }
    transaction.commit().unwrap();
    for number in 0..COUNT {
        let wanted = if number == 1 {
            2
        } else {
            u8::from(number % 3 == 0)
        };
        let found = tree.get(key(number)).unwrap();
        assert_eq!(found, Some(vec![wanted; 100]), "{number}");
    }
    drop(snapshot);
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    store.close().unwrap();
}
