//! Memory is taken with use, and given back when a store is closed. One test: it looks at the whole
//! process.

#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{key, value};
use isobath::{Error, Options, Store};

/// Bytes of the process that are resident.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn memory_comes_with_use_and_goes_with_the_store() {
    let before = resident();
    let more = || resident().saturating_sub(before) >> 20;
    let large = Options::new().workers(2).pool_bytes(2 << 30);
    let store = Store::in_memory(&large.log_bytes(4 << 20)).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert(b"k", b"v").unwrap();
    assert!(more() < 64, "{} MiB for one record", more());

    // The volume's own memory counts twice.
    for n in 0..60_000 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    let full = more();
    assert!(full > 50, "{full} MiB for 54 MB");
    let snapshot = store.begin().unwrap();
    let range = tree.range(..);
    store.close().unwrap();
    assert!(more() < 24, "{} MiB after closing, {full} before", more());
    assert!(matches!(tree.get(b"k"), Err(Error::Closed)));
    drop((snapshot, range));
}
