//! Watching the statistics of a store that is in use.

#![allow(missing_docs, clippy::unwrap_used)]

use isobath::{Options, Stats, Store};

#[test]
fn a_store_in_use_can_be_watched_until_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.iso");
    let absent = Stats::of_store_in_use(&path).unwrap_err();
    assert!(absent.to_string().contains("no such file"), "{absent}");
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let store = Store::create(&[&path], &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..1000u32 {
        tree.insert(&n.to_le_bytes(), &[1; 50]).unwrap();
    }
    let user_bytes = store.stats().user_bytes_written;
    // The last changes are published within a period, though no call follows.
    let seen = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        Stats::of_store_in_use(&path).is_ok_and(|seen| seen.user_bytes_written == user_bytes)
    });
    assert!(seen);
    store.close().unwrap();
    let closed = Stats::of_store_in_use(&path).unwrap_err();
    assert!(closed.to_string().contains("open for writing"), "{closed}");
    let quiet = Store::open(&[&path], &options.publish_stats(false)).unwrap();
    assert!(Stats::of_store_in_use(&path).is_err());
    quiet.close().unwrap();
}
