//! What others have committed counts for a transaction, however it changes and reads much.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use common::{key, value};
use isobath::{
    Error, Isolation, Options, Store, Transaction, TransactionError, TransactionOptions, Tree,
};

/// Transactions spill from 64 KiB on.
fn store() -> (Store, Tree) {
    let options = Options::new()
        .pool_bytes(8 << 20)
        .workers(2)
        .log_bytes(8 << 20)
        .transaction_bytes(64 << 10);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    (store, tree)
}

fn conflicts(result: Result<(), TransactionError>) -> bool {
    match result {
        Ok(()) => false,
        Err(TransactionError::Conflict { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

type Removal = fn(&mut Transaction, &Tree) -> Result<(), Error>;

/// Each removes all that a transaction sees, which is one record at least.
const REMOVALS: [Removal; 8] = [
    |transaction, tree| transaction.clear(tree).map(drop),
    |transaction, tree| transaction.remove_range(tree, ..).map(drop),
    |transaction, tree| transaction.retain(tree, .., |_, _| false).map(drop),
    |transaction, tree| {
        let mut records = transaction.extract_if(tree, .., |_, _| true)?;
        records.try_for_each(|record| record.map(drop))
    },
    |transaction, tree| {
        while transaction.pop_first(tree)?.is_some() {}
        Ok(())
    },
    |transaction, tree| {
        while transaction.pop_last(tree)?.is_some() {}
        Ok(())
    },
    |transaction, tree| {
        while let Some(record) = transaction.iter(tree)?.next() {
            transaction.remove(tree, record?.0)?;
        }
        Ok(())
    },
    |transaction, tree| {
        while let Some(record) = transaction.iter(tree)?.next_back() {
            transaction.remove(tree, record?.0)?;
        }
        Ok(())
    },
];

/// A key that a transaction has written is one that it changes, whatever it did to it afterwards:
/// the first committer wins.
#[test]
fn an_insertion_that_is_removed_again_conflicts_with_that_of_another() {
    for (at, removal) in REMOVALS.iter().enumerate() {
        for case in 0..16 {
            let (is_large, is_saved) = (case & 1 != 0, case & 2 != 0);
            let (is_repeated, is_rolled_back) = (case & 4 != 0, case & 8 != 0);
            let (store, tree) = store();
            (0..100).for_each(|n| tree.insert(key(2 * n), b"old").unwrap());
            let mut transaction = store.begin().unwrap();
            if is_saved {
                transaction.savepoint();
            }
            transaction.insert(&tree, key(61), b"own").unwrap();
            removal(&mut transaction, &tree).unwrap();
            if is_repeated {
                transaction.insert(&tree, key(61), b"again").unwrap();
                removal(&mut transaction, &tree).unwrap();
            }
            let savepoint = transaction.savepoint();
            transaction.insert(&tree, key(61), b"third").unwrap();
            if is_large {
                let other = store.create_tree("other").unwrap();
                for n in 0..1000 {
                    transaction.insert(&other, key(n), value(n, 200)).unwrap();
                }
            }
            match is_rolled_back {
                true => transaction.rollback_to(savepoint).unwrap(),
                false => drop(transaction.remove(&tree, key(61)).unwrap()),
            }
            assert_eq!(transaction.count(&tree, ..).unwrap(), 0);
            tree.insert(key(61), b"another's").unwrap();
            let is_conflict = conflicts(transaction.commit());
            assert!(is_conflict, "removal {at}, case {case}");
            assert_eq!(tree.count(..).unwrap(), 101);
            store.close().unwrap();
        }
    }
}

/// What others insert in a range that a transaction has removed stays, and is no conflict.
#[test]
fn what_a_transaction_has_not_seen_stays_in_a_range_that_it_removes() {
    for is_large in [false, true] {
        for (at, removal) in REMOVALS.iter().enumerate() {
            let (store, tree) = store();
            (0..100).for_each(|n| tree.insert(key(2 * n), b"old").unwrap());
            let mut transaction = store.begin().unwrap();
            removal(&mut transaction, &tree).unwrap();
            if is_large {
                let other = store.create_tree("other").unwrap();
                for n in 0..1000 {
                    transaction.insert(&other, key(n), value(n, 200)).unwrap();
                }
            }
            tree.insert(key(61), b"another's").unwrap();
            assert!(!conflicts(transaction.commit()), "removal {at}");
            assert_eq!(tree.count(..).unwrap(), 1);
            store.close().unwrap();
        }
    }
}

/// The changes of a transaction end a batch of its scan. What is older, or was read, is noted of
/// all of the batch.
#[test]
fn a_scan_past_many_own_changes_reads_and_validates_all_of_its_range() {
    for is_reverse in [false, true] {
        let (store, tree) = store();
        let key = |number: u32| format!("{number:08}").into_bytes();
        let first = |is_first: bool| if is_first { key(0) } else { key(9999) };
        tree.insert(first(true), b"old").unwrap();
        tree.insert(first(false), b"old").unwrap();
        let options = TransactionOptions::new().isolation(Isolation::Serializable);
        let mut transaction = store.begin_with(options).unwrap();
        for n in 1..1000 {
            transaction.insert(&tree, key(n), b"own").unwrap();
        }
        tree.insert(first(!is_reverse), b"another's").unwrap();
        let mut found = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            false
        };
        match is_reverse {
            false => transaction.scan(&tree, .., &mut visit).unwrap(),
            true => transaction.scan_reverse(&tree, .., &mut visit).unwrap(),
        }
        assert_eq!(found, [(first(!is_reverse), b"old".to_vec())]);
        assert!(conflicts(transaction.commit()));
        store.close().unwrap();
    }
}

/// A scan has passed what was removed one by one, ahead of where extracting begins.
#[test]
fn what_was_removed_before_is_not_extracted_again() {
    let (store, tree) = store();
    let key = |n: u32| format!("{n:05}").into_bytes();
    for n in 0..400 {
        tree.insert(key(n), "v").unwrap();
    }
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let options = TransactionOptions::new().isolation(isolation);
        let mut transaction = store.begin_with(options).unwrap();
        for n in 200..400 {
            assert!(transaction.remove(&tree, key(n)).unwrap());
        }
        assert!(
            transaction
                .range(&tree, key(200)..)
                .unwrap()
                .next()
                .is_none()
        );
        let records = transaction.extract_if(&tree, .., |_, _| true).unwrap();
        let extracted: Vec<_> = records.map(|record| record.unwrap().0).collect();
        assert_eq!(extracted, (0..200).map(key).collect::<Vec<_>>());
        assert!(transaction.iter(&tree).unwrap().next().is_none());
    }
    store.close().unwrap();
}
