//! Statistics of trees, compared with what the trees hold.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::big_endian_bytes,
    reason = "keys that compare as their numbers do"
)]

use isobath::{Durability, Options, Store, Tree};

fn store() -> Store {
    let options = Options::new()
        .pool_bytes(32 << 20)
        .workers(1)
        .durability(Durability::None);
    Store::in_memory(&options).unwrap()
}

/// Each estimate is within `share` of the truth.
fn is_near(found: u64, expected: u64, share: f64) -> bool {
    (found as f64 - expected as f64).abs() <= expected as f64 * share
}

fn counted(tree: &Tree) -> (u64, u64, u64) {
    let (mut records, mut keys, mut values) = (0, 0, 0);
    for record in tree.range(..) {
        let (key, value) = record.unwrap();
        records += 1;
        keys += key.len() as u64;
        values += value.len() as u64;
    }
    (records, keys, values)
}

#[test]
fn statistics_of_small_trees_are_exact() {
    let store = store();
    let tree = store.create_tree("t").unwrap();
    let empty = tree.stats().unwrap();
    assert_eq!((empty.records, empty.levels, empty.is_exact), (0, 1, true));
    for number in 0..1_500u32 {
        tree.insert(number.to_be_bytes(), vec![7; number as usize % 50])
            .unwrap();
    }
    tree.insert("large", vec![1; 100_000]).unwrap();
    let stats = tree.stats().unwrap();
    let (records, keys, values) = counted(&tree);
    assert!(stats.is_exact);
    assert_eq!(
        (stats.records, stats.key_bytes, stats.value_bytes),
        (records, keys, values)
    );
    assert_eq!((stats.large_values, stats.large_value_bytes), (1, 100_000));
    assert_eq!(
        stats.bytes,
        (stats.leaf_pages + stats.inner_pages) * 4096 + 100_000
    );
    assert_eq!(tree.estimate_len().unwrap(), records);
    let report = store.check(&mut |_, _| {}).unwrap();
    // The catalog is a page of its own.
    assert_eq!(stats.leaf_pages + stats.inner_pages + 1, report.pages);
    store.close().unwrap();
}

#[test]
fn large_trees_are_estimated() {
    let store = store();
    let tree = store.create_tree("t").unwrap();
    for number in 0..120_000u32 {
        let key = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        tree.insert(key, vec![7; 20 + number as usize % 60])
            .unwrap();
    }
    // A stretch whose leaves are nearly empty, and one of longer records.
    let stretch = [0x20, 0, 0, 0]..[0x60, 0, 0, 0];
    let keys: Vec<_> = tree
        .range(stretch)
        .map(|record| record.unwrap().0)
        .collect();
    for key in keys.iter().skip(1).step_by(2) {
        tree.remove(key).unwrap();
    }
    for number in 0..2_000u32 {
        let key = (0x8000_0000 + number * 1_000).to_be_bytes();
        tree.insert(key, vec![7; 600]).unwrap();
    }
    let (records, keys, values) = counted(&tree);
    let stats = tree.stats().unwrap();
    assert!(!stats.is_exact);
    assert!(is_near(stats.records, records, 0.05), "{stats:?} {records}");
    assert!(is_near(stats.key_bytes, keys, 0.05), "{stats:?} {keys}");
    assert!(
        is_near(stats.value_bytes, values, 0.1),
        "{stats:?} {values}"
    );
    assert!((0.3..1.0).contains(&stats.leaf_fill), "{stats:?}");
    let estimate = tree.estimate_len().unwrap();
    assert!(is_near(estimate, records, 0.1), "{estimate} {records}");
    let report = store.check(&mut |_, _| {}).unwrap();
    let pages = stats.leaf_pages + stats.inner_pages;
    assert!(
        is_near(pages, report.pages - 1, 0.02),
        "{pages} {}",
        report.pages
    );
    store.close().unwrap();
}

/// A stretch of short keys, of which a leaf has hundreds, beside long ones, of which a leaf has
/// three and an inner page few leaves: nearly all inner pages have hardly any of the records.
#[test]
fn trees_with_keys_of_different_length_are_estimated() {
    let store = store();
    let tree = store.create_tree("t").unwrap();
    let long = |number: u32| {
        let group = (number / 6).wrapping_mul(0x9e37_79b9).to_be_bytes();
        let mut key = [b"long".as_slice(), &group, &[group[0]; 900]].concat();
        key.push(number as u8 % 6);
        key
    };
    for number in 0..60_000u32 {
        tree.insert([b"a".as_slice(), &number.to_be_bytes()].concat(), [])
            .unwrap();
    }
    for number in 0..15_000u32 {
        tree.insert(long(number), []).unwrap();
    }
    let (records, keys, _) = counted(&tree);
    let stats = tree.stats().unwrap();
    assert!(!stats.is_exact);
    assert!(is_near(stats.records, records, 0.1), "{stats:?} {records}");
    assert!(is_near(stats.key_bytes, keys, 0.1), "{stats:?} {keys}");
    let report = store.check(&mut |_, _| {}).unwrap();
    let pages = stats.leaf_pages + stats.inner_pages;
    assert_eq!(pages, report.pages - 1);
    store.close().unwrap();
}

#[test]
fn statistics_of_trees_are_there_while_they_change() {
    let store = store();
    let tree = store.create_tree("t").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..4u32 {
                for number in 0..8_000u32 {
                    let key = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
                    if round % 2 == 0 {
                        tree.insert(key, [1; 40]).unwrap();
                    } else {
                        tree.remove(key).unwrap();
                    }
                }
            }
        });
        while !writer.is_finished() {
            let stats = tree.stats().unwrap();
            assert!(stats.records < 16_000, "{stats:?}");
            assert!(tree.estimate_len().unwrap() < 16_000);
        }
    });
    store.close().unwrap();
}
