//! What a store takes of the machine's memory, as the operating system counts it:
//! the pool, 8 bytes per page of data and 4 more for the default cleaning policy, and at most 64
//! MiB.
//!
//! A test program of its own, so that nothing else allocates beside it.

#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use isobath::{Options, Store, TransactionOptions};

mod common;
use common::{Random, key, value};

const POOL: u64 = 24 << 20;
const BESIDE: u64 = 64 << 20;
const RECORDS: u64 = 300_000;

/// Bytes of a line of the process's status.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Lookups, updates, scans and transactions from as many tasks as there may be,
/// beside a snapshot that keeps old values alive.
fn everything_at_once(store: &Store) {
    let tree = store.tree("records").unwrap();
    let snapshot = store.snapshot().unwrap();
    let tasks: Vec<_> = (0..256)
        .map(|number| {
            let (tree, handle) = (tree.clone(), store.clone());
            store.spawn(move || {
                let mut random = Random::new(number);
                for _ in 0..200 {
                    let picked = key(random.below(RECORDS));
                    match random.below(4) {
                        0 => drop(tree.get(&picked).unwrap()),
                        1 => tree.insert(&picked, &value(random.bits(), 100)).unwrap(),
                        2 => {
                            let mut left = 50;
                            tree.scan(picked.as_slice().., |_, _| {
                                left -= 1;
                                left > 0
                            })
                            .unwrap();
                        }
                        _ => {
                            let options = TransactionOptions::new();
                            let mut transaction = handle.begin_with(options).unwrap();
                            // Others may have been first, or old values too many.
                            let written =
                                transaction.insert(&tree, &picked, &value(random.bits(), 100));
                            let _ = written.is_ok() && transaction.commit().is_ok();
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    drop(snapshot);
}

#[test]
fn a_store_keeps_to_the_memory_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let path = [dir.path().join("store.iso")];
    let options = Options::new()
        .pool_bytes(POOL)
        .workers(4)
        .tasks_per_worker(64);
    let before = status("VmRSS");
    let store = Store::create(&path, &options).unwrap();
    let tree = store.create_tree("records").unwrap();
    let mut keys: Vec<u64> = (0..RECORDS).collect();
    keys.sort_by_key(|&n| key(n));
    let keys_bytes = RECORDS * 8;
    let records = keys.iter().map(|&n| (key(n), value(n, 100)));
    tree.bulk_load(records).unwrap();
    everything_at_once(&store);
    tree.insert(b"large", &vec![7; 8 << 20]).unwrap();
    let pages = store.stats().allocated_bytes / 4096;
    store.close().unwrap();
    let peak = status("VmHWM") - before;
    // The keys and the large value are the test's own.
    let allowed = POOL + (8 + 4) * pages + BESIDE + keys_bytes + (8 << 20);
    println!("{} MiB of at most {} MiB", peak >> 20, allowed >> 20);
    assert!(
        RECORDS * 100 > POOL && peak > POOL / 2,
        "a pool that nothing fills"
    );
    assert!(peak <= allowed, "{peak} bytes instead of {allowed}");
}
