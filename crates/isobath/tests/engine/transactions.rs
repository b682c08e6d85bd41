//! Transactions: what each promises, one test after another. Random
//! histories are in `transaction_histories.rs`.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{assert_sound, key, tiny, value};
use isobath::{
    Durability, Error, Isolation, LoadError, Options, Snapshot, Store, Transaction,
    TransactionError, TransactionOptions, Tree, WriteBatch,
};

pub(super) fn options() -> Options {
    Options::new()
        .pool_bytes(8 << 20)
        .workers(2)
        .log_bytes(8 << 20)
}

pub(super) fn store() -> (Store, Tree) {
    let store = Store::in_memory(&options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    (store, tree)
}

fn serializable() -> TransactionOptions {
    TransactionOptions::new().isolation(Isolation::Serializable)
}

pub(super) fn text(value: Option<Vec<u8>>) -> Option<String> {
    value.map(|value| String::from_utf8(value).unwrap())
}

fn is_conflict(result: Result<(), TransactionError>) -> bool {
    match result {
        Ok(()) => false,
        Err(error) => {
            assert!(
                matches!(error, TransactionError::Conflict { .. }),
                "{error}"
            );
            assert!(error.is_retryable());
            true
        }
    }
}

fn all(transaction: &Transaction, tree: &Tree) -> Vec<(Vec<u8>, Vec<u8>)> {
    let range = transaction.range(tree, ..).unwrap();
    range.map(Result::unwrap).collect()
}

#[test]
fn a_transaction_sees_its_own_changes_and_no_other_does() {
    let (store, tree) = store();
    let other = store.create_tree("other").unwrap();
    tree.insert(b"a", b"1").unwrap();
    tree.insert(b"b", b"2").unwrap();
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, b"a", b"10").unwrap();
    transaction.insert(&tree, b"c", b"30").unwrap();
    assert!(transaction.remove(&tree, b"b").unwrap());
    assert!(!transaction.remove(&tree, b"b").unwrap());
    assert!(!transaction.remove(&tree, b"nothing").unwrap());
    transaction.insert(&other, b"a", b"other").unwrap();
    let seen = |key: &[u8]| text(transaction.get(&tree, key).unwrap());
    assert_eq!(seen(b"a").as_deref(), Some("10"));
    assert_eq!(seen(b"b"), None);
    assert_eq!(seen(b"c").as_deref(), Some("30"));
    assert!(!transaction.contains(&tree, b"b").unwrap());
    assert!(transaction.contains(&tree, b"c").unwrap());
    let pair = |k: &[u8], v: &[u8]| (k.to_vec(), v.to_vec());
    let own = vec![pair(b"a", b"10"), pair(b"c", b"30")];
    assert_eq!(all(&transaction, &tree), own);
    let many = transaction.get_many(&tree, &["c", "b", "a"]).unwrap();
    assert_eq!(many, [Some(b"30".to_vec()), None, Some(b"10".to_vec())]);
    let mut backwards = Vec::new();
    transaction
        .scan_reverse(&tree, .., |key, _| {
            backwards.push(key.to_vec());
            true
        })
        .unwrap();
    assert_eq!(backwards, [b"c", b"a"]);
    // The others.
    assert_eq!(text(tree.get(b"a").unwrap()).as_deref(), Some("1"));
    assert!(tree.contains(b"b").unwrap() && !tree.contains(b"c").unwrap());
    let before = store.snapshot().unwrap();
    transaction.commit().unwrap();
    assert_eq!(text(tree.get(b"a").unwrap()).as_deref(), Some("10"));
    assert!(!tree.contains(b"b").unwrap() && other.contains(b"a").unwrap());
    assert_eq!(all(&before, &tree), [pair(b"a", b"1"), pair(b"b", b"2")]);
    assert!(all(&before, &other).is_empty());
    drop(before);
    assert_sound(&store, Some(3));
    store.close().unwrap();
}

#[test]
fn the_first_committer_wins() {
    let (store, tree) = store();
    tree.insert(b"k", b"0").unwrap();
    let (mut first, mut second) = (store.begin().unwrap(), store.begin().unwrap());
    for (transaction, value) in [(&mut first, b"1"), (&mut second, b"2")] {
        assert_eq!(text(transaction.get(&tree, b"k").unwrap()).unwrap(), "0");
        transaction.insert(&tree, b"k", value).unwrap();
    }
    second.commit().unwrap();
    let error = first.commit().unwrap_err();
    assert!(
        matches!(&error, TransactionError::Conflict { tree, key } if tree == "t" && key == b"k"),
        "{error}"
    );
    assert!(error.to_string().contains("run it again"));
    assert_eq!(text(tree.get(b"k").unwrap()).unwrap(), "2");
    // Against a single operation, too, and against one that removes.
    for removes in [false, true] {
        let mut late = store.begin().unwrap();
        late.insert(&tree, b"k", b"3").unwrap();
        if removes {
            tree.remove(b"k").unwrap();
        } else {
            tree.insert(b"k", b"4").unwrap();
        }
        assert!(is_conflict(late.commit()));
    }
    // Other keys are no conflict.
    let mut late = store.begin().unwrap();
    late.insert(&tree, b"other", b"3").unwrap();
    tree.insert(b"k", b"4").unwrap();
    late.commit().unwrap();
    assert_eq!(store.stats().conflicts, 3);
    store.close().unwrap();
}

#[test]
fn write_skew_is_for_snapshot_isolation_only() {
    for (options, skews) in [(TransactionOptions::new(), true), (serializable(), false)] {
        let (store, tree) = store();
        tree.insert(b"x", b"1").unwrap();
        tree.insert(b"y", b"1").unwrap();
        let mut first = store.begin_with(options).unwrap();
        let mut second = store.begin_with(options).unwrap();
        for (transaction, changes) in [(&mut first, b"x"), (&mut second, b"y")] {
            assert!(transaction.contains(&tree, b"x").unwrap());
            assert!(transaction.contains(&tree, b"y").unwrap());
            transaction.insert(&tree, changes, b"0").unwrap();
        }
        first.commit().unwrap();
        assert_eq!(is_conflict(second.commit()), !skews);
        store.close().unwrap();
    }
}

#[test]
fn phantoms_are_conflicts_for_serializable_transactions() {
    let readings: [fn(&Transaction, &Tree); 5] = [
        |t, tree| assert_eq!(t.range(tree, ..).unwrap().count(), 2),
        |t, tree| assert_eq!(t.prefix(tree, b"m").unwrap().rev().count(), 2),
        |t, tree| t.scan(tree, .., |_, _| true).unwrap(),
        |t, tree| assert!(!t.contains(tree, b"mm").unwrap()),
        |t, tree| assert_eq!(t.get_many(tree, &["q", "mm"]).unwrap(), [None, None]),
    ];
    for (at, read) in readings.into_iter().enumerate() {
        let (store, tree) = store();
        tree.insert(b"ma", b"").unwrap();
        tree.insert(b"mz", b"").unwrap();
        let mut reader = store.begin_with(serializable()).unwrap();
        read(&reader, &tree);
        reader.insert(&tree, b"result", b"").unwrap();
        tree.insert(b"mm", b"").unwrap();
        assert!(is_conflict(reader.commit()), "reading {at}");
        // What was not read does not matter.
        let mut reader = store.begin_with(serializable()).unwrap();
        assert_eq!(reader.prefix(&tree, b"m").unwrap().count(), 3);
        reader.insert(&tree, b"result", b"").unwrap();
        tree.insert(b"n", b"").unwrap();
        reader.commit().unwrap();
        // Under snapshot isolation it is none either.
        let mut reader = store.begin().unwrap();
        assert_eq!(reader.prefix(&tree, b"m").unwrap().count(), 3);
        reader.insert(&tree, b"result", b"2").unwrap();
        tree.insert(b"mmm", b"").unwrap();
        reader.commit().unwrap();
        store.close().unwrap();
    }
}

#[test]
fn a_snapshot_never_changes() {
    let (store, tree) = store();
    for n in 0..2000 {
        tree.insert(&key(n), &value(n, 40)).unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    let before: Vec<_> = tree.range(..).map(Result::unwrap).collect();
    for n in 0..2000 {
        match n % 4 {
            0 => assert!(tree.remove(&key(n)).unwrap()),
            1 => tree.insert(&key(n), &value(n + 7, 90)).unwrap(),
            2 => tree.insert(&key(n + 10_000), b"new").unwrap(),
            _ => {}
        }
    }
    assert_eq!(all(&snapshot, &tree), before);
    let backwards: Vec<_> = snapshot.range(&tree, ..).unwrap().rev().collect();
    let backwards: Vec<_> = backwards.into_iter().rev().map(Result::unwrap).collect();
    assert_eq!(backwards, before);
    for n in 0..2000 {
        assert_eq!(snapshot.get(&tree, &key(n)).unwrap(), Some(value(n, 40)));
        assert!(!snapshot.contains(&tree, &key(n + 10_000)).unwrap());
    }
    // From both ends at once, each record once.
    let mut range = snapshot.range(&tree, ..).unwrap();
    let mut met = Vec::new();
    while let Some(front) = range.next() {
        met.push(front.unwrap());
        met.extend(range.next_back().map(Result::unwrap));
    }
    met.sort();
    assert_eq!(met, before);
    let some = (
        Bound::Excluded(&before[3].0[..]),
        Bound::Included(&before[9].0[..]),
    );
    let some: Vec<_> = snapshot
        .range(&tree, some)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(some, before[4..=9]);
    assert!(store.stats().versions >= 1500);
    drop(snapshot);
    assert_eq!(store.stats().versions, 0);
    assert_eq!(store.stats().version_bytes, 0);
    store.close().unwrap();
}

#[test]
fn a_rollback_leaves_nothing_behind() {
    let (store, tree) = store();
    tree.insert(b"big", &value(9, 50_000)).unwrap();
    let allocated = store.stats().allocated_bytes;
    let mut transaction = store.begin().unwrap();
    for n in 0..50 {
        transaction
            .insert(&tree, &key(n), &value(n, 20_000))
            .unwrap();
    }
    transaction.insert(&tree, b"big", b"small").unwrap();
    let mut writer = transaction.writer(&tree, b"stream").unwrap();
    writer.append(&value(3, 600_000)).unwrap();
    writer.finish().unwrap();
    let mut unfinished = transaction.writer(&tree, b"none").unwrap();
    unfinished.append(&value(3, 600_000)).unwrap();
    drop(unfinished);
    assert!(store.stats().allocated_bytes > allocated + 1_500_000);
    assert_eq!(
        transaction.get(&tree, b"stream").unwrap(),
        Some(value(3, 600_000))
    );
    transaction.rollback();
    assert_eq!(store.stats().allocated_bytes, allocated);
    assert_eq!(tree.get(b"big").unwrap(), Some(value(9, 50_000)));
    assert_sound(&store, Some(1));
    store.close().unwrap();
}

#[test]
fn large_values_stay_as_long_as_a_reader_can_read_them() {
    use std::io::Read;
    let (store, tree) = store();
    tree.insert(b"k", &value(1, 300_000)).unwrap();
    let first = store.snapshot().unwrap();
    tree.insert(b"k", &value(2, 200_000)).unwrap();
    let second = store.snapshot().unwrap();
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, b"k", &value(3, 100_000)).unwrap();
    transaction.commit().unwrap();
    let third = store.snapshot().unwrap();
    tree.remove(b"k").unwrap();
    for (snapshot, tag, length) in [
        (&first, 1, 300_000),
        (&second, 2, 200_000),
        (&third, 3, 100_000),
    ] {
        assert_eq!(snapshot.get(&tree, b"k").unwrap(), Some(value(tag, length)));
        let mut reader = snapshot.reader(&tree, b"k").unwrap().unwrap();
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, value(tag, length));
        let scanned = all(snapshot, &tree);
        assert_eq!(scanned, [(b"k".to_vec(), value(tag, length))]);
    }
    let held = store.stats().allocated_bytes;
    drop(second);
    assert_eq!(
        store.stats().allocated_bytes,
        held,
        "the first may need it for validation"
    );
    drop(first);
    assert!(store.stats().allocated_bytes + 450_000 < held);
    assert_eq!(third.get(&tree, b"k").unwrap(), Some(value(3, 100_000)));
    drop(third);
    assert!(store.stats().allocated_bytes < 64 << 10);
    assert_sound(&store, Some(0));
    store.close().unwrap();
}

#[test]
fn a_full_version_store_fails_only_the_oldest() {
    let options = options().version_store_bytes(64 << 10);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..1000 {
        tree.insert(&key(n), &value(n, 100)).unwrap();
    }
    let oldest = store.snapshot().unwrap();
    let mut writer = store.begin().unwrap();
    writer.insert(&tree, b"w", b"w").unwrap();
    let mut serial = store.begin_with(serializable()).unwrap();
    assert!(serial.contains(&tree, &key(1)).unwrap());
    serial.insert(&tree, b"s", b"s").unwrap();
    let mut young: Option<Snapshot> = None;
    for n in 0..1000 {
        tree.insert(&key(n), &value(n + 1, 100)).unwrap();
        if n == 990 {
            young = Some(store.snapshot().unwrap());
        }
    }
    let too_old = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::SnapshotTooOld), "{error}");
        assert!(error.is_retryable());
    };
    too_old(oldest.get(&tree, &key(5)).map(drop));
    too_old(oldest.contains(&tree, &key(5)).map(drop));
    too_old(oldest.range(&tree, ..).unwrap().next().unwrap().map(drop));
    too_old(oldest.get_many(&tree, &[key(5)]).map(drop));
    too_old(writer.commit().map_err(Error::from));
    too_old(serial.commit().map_err(Error::from));
    let young = young.unwrap();
    assert_eq!(young.get(&tree, &key(990)).unwrap(), Some(value(991, 100)));
    assert_eq!(young.get(&tree, &key(991)).unwrap(), Some(value(991, 100)));
    let stats = store.stats();
    assert!(stats.version_bytes <= 64 << 10, "{}", stats.version_bytes);
    assert_eq!(stats.snapshots_aborted, 3);
    assert!(!tree.contains(b"w").unwrap() && !tree.contains(b"s").unwrap());
    drop((oldest, young));
    store.close().unwrap();
}

#[test]
fn what_a_transaction_must_not_do_is_refused() {
    let (store, tree) = store();
    let (elsewhere, foreign) = self::store();
    let mut reader = store
        .begin_with(TransactionOptions::new().read_only(true))
        .unwrap();
    assert!(matches!(
        reader.insert(&tree, b"k", b"v"),
        Err(Error::ReadOnlyTransaction)
    ));
    assert!(matches!(
        reader.remove(&tree, b"k"),
        Err(Error::ReadOnlyTransaction)
    ));
    assert!(matches!(
        reader.get(&foreign, b"k"),
        Err(Error::OtherStore { .. })
    ));
    assert!(matches!(
        reader.get(&tree, &[0; 2000]),
        Err(Error::KeyTooLong { .. })
    ));
    reader.commit().unwrap();
    let mut transaction = store.begin().unwrap();
    assert!(matches!(
        transaction.insert(&tree, &[0; 2000], b""),
        Err(Error::KeyTooLong { .. })
    ));
    drop(foreign);
    elsewhere.close().unwrap();
    store.close().unwrap();
    assert!(matches!(transaction.get(&tree, b"k"), Err(Error::Closed)));
    assert!(matches!(
        transaction.insert(&tree, b"k", b""),
        Err(Error::Closed)
    ));
    transaction.commit().unwrap();
}

#[test]
fn dropping_a_tree_ends_what_transactions_wanted_of_it() {
    let (store, tree) = store();
    let kept = store.create_tree("kept").unwrap();
    tree.insert(b"k", &value(1, 100_000)).unwrap();
    let snapshot = store.snapshot().unwrap();
    tree.insert(b"k", b"new").unwrap();
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, b"k", b"v").unwrap();
    transaction.insert(&kept, b"k", b"v").unwrap();
    store.drop_tree("t").unwrap();
    let error = transaction.commit().unwrap_err();
    assert!(
        matches!(&error, TransactionError::TreeDropped { name } if name == "t"),
        "{error}"
    );
    assert!(!kept.contains(b"k").unwrap());
    assert!(matches!(
        snapshot.get(&tree, b"k"),
        Err(Error::TreeDropped { .. })
    ));
    assert!(matches!(
        tree.insert(b"k", b"v"),
        Err(Error::TreeDropped { .. })
    ));
    // A new tree of the same name is another one.
    let again = store.create_tree("t").unwrap();
    assert!(!snapshot.contains(&again, b"k").unwrap());
    again.insert(b"k", b"v").unwrap();
    assert!(!snapshot.contains(&again, b"k").unwrap());
    drop(snapshot);
    assert_sound(&store, Some(1));
    store.close().unwrap();
}

#[test]
fn drops_beside_commits_leave_whole_trees_or_none() {
    let store = Store::in_memory(&tiny(2, 16)).unwrap();
    for round in 0..20u64 {
        let tree = store.create_tree("t").unwrap();
        let tasks: Vec<_> = (0..16u64)
            .map(|task| {
                let (inner, tree) = (store.clone(), tree.clone());
                store.spawn(move || {
                    for n in 0..40 {
                        let done = inner.transact(TransactionOptions::new(), |transaction| {
                            transaction.insert(&tree, &key(task << 32 | n), &value(n, 300))
                        });
                        match done {
                            Ok(()) => {}
                            Err(Error::TreeDropped { .. }) => return,
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        if round % 2 == 0 {
            isobath::yield_now();
        }
        store.drop_tree("t").unwrap();
        for task in tasks {
            task.join().unwrap();
        }
    }
    assert_sound(&store, Some(0));
    assert!(store.trees().unwrap().is_empty());
    store.close().unwrap();
}

#[test]
fn counters_of_thousands_of_transactions_on_two_workers_add_up() {
    let options = tiny(2, 128).durability(Durability::None);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    const TASKS: u64 = 3000;
    const KEYS: u64 = 40;
    let tries = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (inner, tree, tries) = (store.clone(), tree.clone(), Arc::clone(&tries));
            store.spawn(move || {
                // Moves one unit from a key to another, from nothing at first.
                let options = TransactionOptions::new().attempts(100_000);
                inner.transact(options, |transaction| {
                    tries.fetch_add(1, Ordering::Relaxed);
                    let (from, to) = (key(task % KEYS), key((task * 7 + 1) % KEYS));
                    let mut add = |key: &[u8], amount: i64| {
                        let old = transaction.get(&tree, key)?;
                        let old = old.map_or(0, |old| i64::from_le_bytes(old.try_into().unwrap()));
                        isobath::yield_now();
                        transaction.insert(&tree, key, &(old + amount).to_le_bytes())
                    };
                    add(&from, -1)?;
                    add(&to, 1)
                })
            })
        })
        .collect();
    for task in tasks {
        task.join().unwrap().unwrap();
    }
    let sums: i64 = tree
        .range(..)
        .map(|record| i64::from_le_bytes(record.unwrap().1.try_into().unwrap()))
        .sum();
    assert_eq!(sums, 0);
    let mut expected = [0i64; KEYS as usize];
    for task in 0..TASKS {
        expected[(task % KEYS) as usize] -= 1;
        expected[((task * 7 + 1) % KEYS) as usize] += 1;
    }
    for n in 0..KEYS {
        let found = tree.get(&key(n)).unwrap();
        let found = found.map_or(0, |value| i64::from_le_bytes(value.try_into().unwrap()));
        assert_eq!(found, expected[n as usize]);
    }
    assert!(tries.load(Ordering::Relaxed) >= TASKS);
    assert_eq!(store.stats().versions, 0);
    assert_sound(&store, None);
    store.close().unwrap();
}

#[test]
fn attempts_are_bounded() {
    let (store, tree) = store();
    let attempts = AtomicUsize::new(0);
    let result = store.transact(TransactionOptions::new().attempts(5), |transaction| {
        attempts.fetch_add(1, Ordering::Relaxed);
        transaction.insert(&tree, b"k", b"mine")?;
        tree.insert(b"k", b"another writer's")
    });
    assert!(matches!(result, Err(Error::Conflict { .. })));
    assert_eq!(attempts.into_inner(), 5);
    // An error of the closure is not tried again, and nothing is committed.
    let mut calls = 0;
    let result: Result<(), Error> = store.transact(TransactionOptions::new(), |transaction| {
        calls += 1;
        transaction.insert(&tree, b"k", b"mine")?;
        Err(Error::NoSuchSavepoint)
    });
    assert!(matches!(result, Err(Error::NoSuchSavepoint)) && calls == 1);
    assert_eq!(text(tree.get(b"k").unwrap()).unwrap(), "another writer's");
    store.close().unwrap();
}

#[test]
fn a_panic_inside_a_transaction_rolls_it_back() {
    let (store, tree) = store();
    let (inner, in_task) = (store.clone(), tree.clone());
    let task = store.spawn(move || {
        let result: Result<(), Error> = inner.transact(TransactionOptions::new(), |transaction| {
            transaction.insert(&in_task, b"k", &value(1, 40_000))?;
            panic!("on purpose");
        });
        result
    });
    assert!(task.join().unwrap_err().message.contains("on purpose"));
    assert!(!tree.contains(b"k").unwrap());
    assert_eq!(store.stats().open_snapshots, 0);
    // The next commit frees what the panic left.
    tree.insert(b"other", b"").unwrap();
    assert_sound(&store, Some(1));
    store.close().unwrap();
}

#[test]
fn commits_can_be_awaited_and_moved_between_threads() {
    let (store, tree) = store();
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, b"k", b"v").unwrap();
    let moved = std::thread::spawn(move || {
        transaction.insert(&tree, b"l", b"w").unwrap();
        (transaction, tree)
    });
    let (transaction, tree) = moved.join().unwrap();
    let done = Arc::new(Mutex::new(None));
    let (tell, commit) = (Arc::clone(&done), transaction.commit_async());
    // Any executor will do; the one at hand is a task of the store.
    let task = store.spawn(move || {
        let mut commit = std::pin::pin!(commit);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            if let std::task::Poll::Ready(result) = commit.as_mut().poll(&mut context) {
                *tell.lock().unwrap() = Some(result);
                return;
            }
            isobath::yield_now();
        }
    });
    task.join().unwrap();
    done.lock().unwrap().take().unwrap().unwrap();
    assert_eq!(tree.range(..).count(), 2);
    store.close().unwrap();
}

#[test]
fn a_bulk_load_is_no_phantom() {
    let (store, tree) = store();
    let other = store.create_tree("other").unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut serial = store.begin_with(serializable()).unwrap();
    assert_eq!(serial.range(&tree, ..).unwrap().count(), 0);
    serial.insert(&other, b"k", b"").unwrap();
    let mut blind = store.begin().unwrap();
    blind.insert(&tree, b"zzz", b"").unwrap();
    tree.bulk_load((0..5000u32).map(|n| (n.to_be_bytes(), b"loaded")))
        .unwrap();
    let key = 7u32.to_be_bytes();
    assert!(matches!(
        snapshot.get(&tree, &key),
        Err(Error::SnapshotTooOld)
    ));
    assert!(!snapshot.contains(&other, &key).unwrap());
    assert!(is_conflict(serial.commit()));
    assert!(is_conflict(blind.commit()));
    let after = store.begin().unwrap();
    assert!(after.contains(&tree, &key).unwrap());
    assert_eq!(after.range(&tree, ..).unwrap().count(), 5000);
    drop((after, snapshot));
    // One that failed has changed nothing.
    let before = store.snapshot().unwrap();
    let unsorted = [(b"zz", b""), (b"zy", b"")];
    assert!(matches!(
        tree.bulk_load(unsorted),
        Err(LoadError::LoadOrder { .. })
    ));
    assert!(before.contains(&tree, &key).unwrap());
    drop(before);
    store.close().unwrap();
}

#[test]
fn a_commit_that_replaces_more_than_the_version_store_holds_ends_the_snapshots() {
    let options = options().version_store_bytes(32 << 10);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..100 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    let snapshot = store.snapshot().unwrap();
    let mut large = store.begin().unwrap();
    for n in 0..100 {
        assert!(large.remove(&tree, &key(n)).unwrap());
    }
    large.commit().unwrap();
    assert!(matches!(
        snapshot.get(&tree, &key(1)),
        Err(Error::SnapshotTooOld)
    ));
    let stats = store.stats();
    assert_eq!(
        (
            stats.versions,
            stats.snapshots_aborted,
            stats.open_snapshots
        ),
        (0, 1, 0)
    );
    drop(snapshot);
    assert_sound(&store, Some(0));
    store.close().unwrap();
}

/// A commit whose keys have more than the version store holds keeps new snapshots out: it aborts
/// each thread's snapshot once.
#[test]
fn short_snapshots_do_not_hold_up_a_commit_that_replaces_more_than_the_version_store_holds() {
    const COMMITS: u64 = 20;
    const READERS: u64 = 3;
    for durability in [Durability::None, Durability::Synced] {
        let options = options()
            .version_store_bytes(32 << 10)
            .durability(durability);
        let store = Store::in_memory(&options).unwrap();
        let tree = store.create_tree("t").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let snapshot = store.snapshot().unwrap();
                        // All or none of a commit, or no answer.
                        let count = snapshot
                            .range(&tree, ..)
                            .and_then(|range| range.collect::<Result<Vec<_>, _>>())
                            .map(|records| records.len());
                        assert!(
                            matches!(count, Ok(0 | 100) | Err(Error::SnapshotTooOld)),
                            "{count:?}"
                        );
                    }
                });
            }
            for commit in 0..2 * COMMITS {
                let mut batch = WriteBatch::new();
                for n in 0..100 {
                    match commit % 2 {
                        0 => batch.insert(&tree, &key(n), &value(n, 900)),
                        _ => batch.remove(&tree, &key(n)),
                    };
                }
                store.write(&batch).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let stats = store.stats();
        // Each commit aborts each open snapshot at most once.
        assert!(
            stats.snapshots_aborted <= 2 * COMMITS * READERS,
            "{}",
            stats.snapshots_aborted
        );
        assert_eq!(stats.open_snapshots, 0);
        assert_sound(&store, Some(0));
        store.close().unwrap();
    }
}

/// Far more has changed than a scan takes at a time.
#[test]
fn a_snapshot_reads_from_both_ends_what_very_many_commits_have_changed_since() {
    let store = Store::in_memory(&options().version_store_bytes(4 << 20)).unwrap();
    let tree = store.create_tree("t").unwrap();
    let key = |n: u64| n.to_be_bytes();
    let load = (0..3000).map(|n| (key(2 * n), value(n, 20)));
    tree.bulk_load(load).unwrap();
    let expected: Vec<_> = tree.range(..).map(Result::unwrap).collect();
    let snapshot = store.snapshot().unwrap();
    for n in 0..3000 {
        match n % 3 {
            0 => {
                tree.insert(key(2 * n), b"new").unwrap();
            }
            1 => {
                tree.insert(key(2 * n + 1), b"new").unwrap();
            }
            _ => {
                tree.remove(key(2 * n)).unwrap();
            }
        }
    }
    let range = || snapshot.range(&tree, ..).unwrap();
    assert!(range().map(Result::unwrap).eq(expected.iter().cloned()));
    assert!(
        range()
            .rev()
            .map(Result::unwrap)
            .eq(expected.iter().rev().cloned())
    );
    let (mut both, mut front, mut back) = (range(), Vec::new(), Vec::new());
    while let Some(record) = both.next() {
        front.push(record.unwrap());
        back.extend(both.next_back().map(Result::unwrap));
    }
    front.extend(back.into_iter().rev());
    assert_eq!(front, expected);
    drop(snapshot);
    store.close().unwrap();
}

#[test]
fn a_check_knows_what_snapshots_can_still_read() {
    let (store, tree) = store();
    tree.insert(b"k", &value(1, 100_000)).unwrap();
    let snapshot = store.snapshot().unwrap();
    tree.remove(b"k").unwrap();
    assert_sound(&store, Some(0));
    assert_eq!(snapshot.get(&tree, b"k").unwrap(), Some(value(1, 100_000)));
    drop(snapshot);
    assert_sound(&store, Some(0));
    store.close().unwrap();
}
