//! Savepoints, and how large transactions may be.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;
use super::transactions::{options, store, text};

use common::{assert_sound, key, value};
use isobath::{Error, Options, Store, Volume};
use isobath_io::{FaultDevice, FaultPlan, Survivors};

#[test]
fn savepoints_undo_what_came_after_them() {
    let (store, tree) = store();
    tree.insert(b"a", b"0").unwrap();
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, b"a", b"1").unwrap();
    let first = transaction.savepoint();
    transaction.insert(&tree, b"a", b"2").unwrap();
    transaction.insert(&tree, b"b", &value(1, 5000)).unwrap();
    let second = transaction.savepoint();
    assert!(transaction.remove(&tree, b"a").unwrap());
    transaction.insert(&tree, b"b", b"small").unwrap();
    transaction.rollback_to(second).unwrap();
    assert_eq!(text(transaction.get(&tree, b"a").unwrap()).unwrap(), "2");
    assert_eq!(transaction.get(&tree, b"b").unwrap(), Some(value(1, 5000)));
    // It can be gone back to again.
    transaction.insert(&tree, b"b", &value(2, 9000)).unwrap();
    transaction.rollback_to(second).unwrap();
    assert_eq!(transaction.get(&tree, b"b").unwrap(), Some(value(1, 5000)));
    transaction.rollback_to(first).unwrap();
    assert_eq!(text(transaction.get(&tree, b"a").unwrap()).unwrap(), "1");
    assert!(!transaction.contains(&tree, b"b").unwrap());
    assert!(matches!(
        transaction.rollback_to(second),
        Err(Error::NoSuchSavepoint)
    ));
    let mut other = store.begin().unwrap();
    assert!(matches!(
        other.rollback_to(first),
        Err(Error::NoSuchSavepoint)
    ));
    drop(other);
    transaction.commit().unwrap();
    assert_eq!(text(tree.get(b"a").unwrap()).unwrap(), "1");
    assert_sound(&store, Some(1));
    store.close().unwrap();
}

#[test]
fn savepoints_in_any_order_undo_as_copies_would() {
    let (store, tree) = store();
    let mut random = common::Random::new(11);
    for _ in 0..40 {
        let mut transaction = store.begin().unwrap();
        let mut now = std::collections::BTreeMap::new();
        let mut kept: Vec<(isobath::Savepoint, std::collections::BTreeMap<_, _>)> = Vec::new();
        for _ in 0..60 {
            let one = key(random.below(5));
            match random.below(8) {
                0 | 1 => kept.push((transaction.savepoint(), now.clone())),
                2 if !kept.is_empty() => {
                    let at = random.below(kept.len() as u64) as usize;
                    transaction.rollback_to(kept[at].0).unwrap();
                    now = kept[at].1.clone();
                    kept.truncate(at + 1);
                }
                3 => {
                    transaction.remove(&tree, &one).unwrap();
                    now.remove(&one);
                }
                _ => {
                    let length = random.one_of(&[10, 10, 3000]);
                    let new = value(random.below(100), length);
                    transaction.insert(&tree, &one, &new).unwrap();
                    now.insert(one, new);
                }
            }
            for n in 0..5 {
                let found = transaction.get(&tree, &key(n)).unwrap();
                assert_eq!(found.as_ref(), now.get(&key(n)));
            }
        }
    }
    assert_sound(&store, None);
    store.close().unwrap();
}

#[test]
fn what_savepoints_keep_is_bounded() {
    let (store, tree) = store();
    let mut transaction = store.begin().unwrap();
    // However often a key changes between two of them, they keep it once.
    transaction.savepoint();
    for n in 0..50_000 {
        transaction.insert(&tree, b"k", &value(n, 900)).unwrap();
    }
    let refused = (0..50_000).find_map(|n| {
        transaction.savepoint();
        transaction.insert(&tree, b"k", &value(n, 900)).err()
    });
    assert!(matches!(
        refused,
        Some(Error::TooManySavepoints { limit: 1024 })
    ));
    // The last value is one that was not refused.
    let last = transaction.get(&tree, b"k").unwrap().unwrap();
    transaction.commit().unwrap();
    assert_eq!(tree.get(b"k").unwrap(), Some(last));
    store.close().unwrap();
}

#[test]
fn transactions_that_are_larger_than_a_record_spill() {
    larger(&options(), 2_000);
    larger(&options().log_bytes(0), 6_000);
}

#[test]
fn an_option_lets_transactions_be_larger() {
    let usual = Options::new().pool_bytes(8 << 20).workers(2);
    let large = usual.clone().transaction_bytes(16 << 20);
    let refused = Store::in_memory(&usual.clone().transaction_bytes(17 << 20));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("transaction_bytes")
    );
    // Of an existing store, too, whose log may grow.
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let volume = || Volume::from_device(device.clone());
    Store::create_on_volume(volume(), &usual)
        .unwrap()
        .close()
        .unwrap();
    let store = Store::open_on_volume(volume(), &large).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut transaction = store.begin().unwrap();
    for n in 0..12_000 {
        transaction.insert(&tree, &key(n), &value(n, 1000)).unwrap();
    }
    transaction.commit().unwrap();
    // All of it is recovered from its one record.
    let image = device.crash_image(Survivors::None, 0);
    store.close().unwrap();
    let recovered = Store::open_on_volume(Volume::from_device(image), &usual).unwrap();
    assert_sound(&recovered, Some(12_000));
    recovered.close().unwrap();
}

fn larger(options: &Options, count: u64) {
    let store = Store::in_memory(options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut transaction = store.begin().unwrap();
    for n in 0..count {
        transaction.insert(&tree, &key(n), &value(n, 1000)).unwrap();
    }
    assert!(!transaction.contains(&tree, &key(count)).unwrap());
    assert!(!tree.contains(key(0)).unwrap());
    transaction.commit().unwrap();
    assert_eq!(
        tree.get(key(count - 1)).unwrap(),
        Some(value(count - 1, 1000))
    );
    assert_sound(&store, Some(count));
    store.close().unwrap();
}
