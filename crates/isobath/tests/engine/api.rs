//! The API as users write it: keys, ranges and paths of many types, changes in one step, batches,
//! futures.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::{Random, assert_sound, tiny, value};
use futures_core::stream::{FusedStream, Stream};
use isobath::{
    Error, Isolation, OpenError, Options, RangeStream, Record, StorageError, Store,
    TransactionError, TransactionOptions, Tree, WriteBatch,
};

fn store() -> (Store, Tree) {
    let store = Store::in_memory(&tiny(2, 8).volume_limit_bytes(Some(64 << 20))).unwrap();
    let tree = store.create_tree("t").unwrap();
    (store, tree)
}

fn keys(range: isobath::Range) -> String {
    range
        .map(|record| String::from_utf8(record.unwrap().0).unwrap())
        .collect()
}

#[test]
fn keys_values_and_ranges_are_whatever_has_bytes() {
    let (store, tree) = store();
    tree.insert("a", "1").unwrap();
    tree.insert(b"b", [2]).unwrap();
    tree.insert(String::from("c"), vec![3]).unwrap();
    tree.insert(&b"d"[..], &String::from("4")).unwrap();
    assert_eq!(keys(tree.range(..)), "abcd");
    assert_eq!(keys(tree.range(b"b"..b"d")), "bc");
    assert_eq!(keys(tree.range("b"..="d")), "bcd");
    assert_eq!(keys(tree.range(vec![b'c']..)), "cd");
    assert_eq!(keys(tree.range(..String::from("b"))), "a");
    assert_eq!(keys(tree.range(..=&b"b"[..])), "ab");
    assert_eq!(
        keys(tree.range((Bound::Excluded("a"), Bound::Unbounded))),
        "bcd"
    );
    assert_eq!(keys(tree.range(&("a".."c"))), "ab");
    assert_eq!(keys(tree.range("c".."a")), "");
    assert_eq!(keys(tree.prefix("c")), "c");
    let mut seen = Vec::new();
    tree.scan("b".., |key, _| {
        seen.extend_from_slice(key);
        true
    })
    .unwrap();
    assert_eq!(seen, b"bcd");
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, "e", "5").unwrap();
    assert!(transaction.remove(&tree, "a").unwrap());
    let keys: Vec<_> = transaction
        .range(&tree, "a".."z")
        .unwrap()
        .map(|r| r.unwrap().0)
        .collect();
    assert_eq!(keys, [b"b", b"c", b"d", b"e"]);
    // A slice makes one of an array of another length.
    assert_eq!(self::keys(tree.range(b"b".as_slice()..b"zz")), "bcd");
    assert_eq!(self::keys(tree.range(&b"b"[..]..=b"d")), "bcd");
    let mut range = tree.range("a".."b");
    assert!(range.next().is_some() && range.next().is_none() && range.next().is_none());
    assert!(format!("{store:?} {tree:?} {range:?} {transaction:?}").contains("\"t\""));
    transaction.rollback();
    store.close().unwrap();
}

#[test]
fn one_path_is_as_good_as_several() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = tiny(1, 8);
    let one: PathBuf = at("one");
    for round in 0..2 {
        let store = Store::open_or_create(&one, &options).unwrap();
        let tree = store.open_or_create_tree("t").unwrap();
        assert_eq!(tree.count(..).unwrap(), round);
        tree.insert(round.to_le_bytes(), "").unwrap();
        // Another one finds it in use, and changes nothing.
        assert!(Store::open_or_create(&one, &options).is_err());
        store.close().unwrap();
    }
    let path: &Path = &one;
    let text: &str = one.to_str().unwrap();
    assert!(matches!(
        Store::create(path, &options),
        Err(OpenError::Storage(StorageError::Volume(_)))
    ));
    Store::open(text, &options).unwrap().close().unwrap();
    Store::open([path], &options).unwrap().close().unwrap();
    let several = vec![at("a"), at("b")];
    Store::open_or_create(&several, &options)
        .unwrap()
        .close()
        .unwrap();
    let store = Store::open(&several[..], &options).unwrap();
    assert_eq!(store.paths(), several);
    store.close().unwrap();
    let missing = Store::open_or_create(at("c"), &options.clone().read_only(true));
    assert!(missing.is_err() && !at("c").exists());
}

/// Of every kind: inline, at the edge, large, of several chunks.
const LENGTHS: [usize; 5] = [0, 8, 1200, 9_000, 300_000];

#[test]
fn changes_in_one_step_keep_a_model() {
    let (store, tree) = store();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut random = Random::new(1);
    for n in 0..1500 {
        let key = vec![random.below(12) as u8];
        let new = (random.below(4) > 0).then(|| value(n, random.one_of(&LENGTHS)));
        let old = model.get(&key).cloned();
        match random.below(6) {
            0 | 1 => {
                let mut shown = None;
                let answer = tree.update(&key, |was| {
                    shown = was.map(<[u8]>::to_vec);
                    new.clone()
                });
                assert_eq!((answer.unwrap(), shown), (new.clone(), old));
            }
            2 => {
                let answer = tree.compare_and_swap(&key, old.as_deref(), new.as_deref());
                assert_eq!(answer.unwrap(), Ok(()));
            }
            3 => {
                let other = old.as_ref().map_or(Some(&b"x"[..]), |_| None);
                let answer = tree.compare_and_swap(&key, other, new.as_deref());
                assert_eq!(answer.unwrap().unwrap_err().current, old);
                continue;
            }
            4 => {
                let (ours, theirs) = if random.below(2) == 0 {
                    (tree.pop_first().unwrap(), model.pop_first())
                } else {
                    (tree.pop_last().unwrap(), model.pop_last())
                };
                assert_eq!(ours, theirs);
                continue;
            }
            _ => {
                assert_eq!(
                    tree.first().unwrap().map(|r| r.0),
                    model.keys().next().cloned()
                );
                assert_eq!(
                    tree.last().unwrap().map(|r| r.0),
                    model.keys().last().cloned()
                );
                assert_eq!(tree.count(..).unwrap(), model.len() as u64);
                assert_eq!(tree.is_empty().unwrap(), model.is_empty());
                continue;
            }
        }
        match new {
            Some(new) => model.insert(key, new),
            None => model.remove(&key),
        };
    }
    let ours: Vec<Record> = tree.range(..).map(Result::unwrap).collect();
    assert_eq!(ours, model.into_iter().collect::<Vec<_>>());
    assert_sound(&store, Some(ours.len() as u64));
    store.close().unwrap();
}

/// All records by every way to iterate that there is.
fn all_records(store: &Store, tree: &Tree) -> Vec<Record> {
    let ours: Vec<Record> = tree.iter().map(Result::unwrap).collect();
    let mut looped = Vec::new();
    for record in tree {
        looped.push(record.unwrap());
    }
    assert_eq!(looped, ours);
    let mut reversed: Vec<Record> = tree.iter().rev().map(Result::unwrap).collect();
    reversed.reverse();
    assert_eq!(reversed, ours);
    // From both ends in turn.
    let (mut range, mut front, mut back) = (tree.iter(), Vec::new(), Vec::new());
    while let Some(record) = range.next() {
        front.push(record.unwrap());
        back.extend(range.next_back().map(Result::unwrap));
    }
    back.reverse();
    assert_eq!([front, back].concat(), ours);
    let in_task = tree.clone();
    let task = store.spawn(move || in_task.iter().map(Result::unwrap).collect::<Vec<_>>());
    assert_eq!(task.join().unwrap(), ours);
    assert_eq!(collect(tree.iter_async()), ours);
    let snapshot = store.snapshot().unwrap();
    let seen: Vec<Record> = snapshot.iter(tree).unwrap().map(Result::unwrap).collect();
    assert_eq!(seen, ours);
    ours
}

#[test]
fn iterating_and_clearing_keep_a_model() {
    let (store, tree) = store();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut random = Random::new(3);
    for round in 0..24 {
        // At times more than are removed in one commit.
        let many = random.one_of(&[0, 3, 255, 256, 257, 900]);
        for n in 0..many {
            let key = random.below(2_000).to_be_bytes().to_vec();
            let length = if n % 100 == 7 { 9_000 } else { 30 };
            tree.insert(&key, value(n, length)).unwrap();
            model.insert(key, value(n, length));
        }
        for _ in 0..30 {
            let key = random.below(2_000).to_be_bytes();
            let has = model.contains_key(&key[..]);
            assert_eq!(tree.contains_key(key).unwrap(), has);
            assert_eq!(block_on(tree.contains_key_async(key)).unwrap(), has);
            let snapshot = store.snapshot().unwrap();
            assert_eq!(snapshot.contains_key(&tree, key).unwrap(), has);
        }
        let expected: Vec<Record> = model.clone().into_iter().collect();
        assert_eq!(all_records(&store, &tree), expected);
        let count = model.len() as u64;
        let cleared = match round % 6 {
            0 => tree.clear().unwrap(),
            1 => block_on(tree.clear_async()).unwrap(),
            2 => {
                let tree = tree.clone();
                store.spawn(move || tree.clear().unwrap()).join().unwrap()
            }
            3 => {
                let mut transaction = store.begin().unwrap();
                let key = random.below(2_000).to_be_bytes();
                transaction.insert(&tree, key, "its own").unwrap();
                let own = u64::from(!model.contains_key(&key[..]));
                let cleared = transaction.clear(&tree).unwrap();
                assert_eq!(transaction.iter(&tree).unwrap().count(), 0);
                assert_eq!(all_records(&store, &tree), expected);
                transaction.commit().unwrap();
                cleared - own
            }
            4 => {
                let mut transaction = store.begin().unwrap();
                assert_eq!(transaction.clear(&tree).unwrap(), count);
                transaction.rollback();
                continue;
            }
            _ => {
                let (from, to) = (random.below(2_000), random.below(2_000));
                let keys = from.to_be_bytes()..to.to_be_bytes();
                let before = model.len();
                model.retain(|key, _| !(keys.start[..] <= key[..] && key[..] < keys.end[..]));
                let mut transaction = store.begin().unwrap();
                let removed = transaction.remove_range(&tree, keys).unwrap();
                assert_eq!(removed, (before - model.len()) as u64);
                transaction.commit().unwrap();
                continue;
            }
        };
        assert_eq!(cleared, count);
        model.clear();
        assert!(tree.is_empty().unwrap() && tree.iter().next().is_none());
    }
    assert_sound(&store, Some(model.len() as u64));
    store.close().unwrap();
}

#[test]
fn a_range_that_a_transaction_removes_is_read() {
    let (store, tree) = store();
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        tree.clear().unwrap();
        tree.insert("a", "").unwrap();
        let options = TransactionOptions::new().isolation(isolation);
        let mut transaction = store.begin_with(options).unwrap();
        assert_eq!(transaction.clear(&tree).unwrap(), 1);
        tree.insert("b", "").unwrap();
        let committed = transaction.commit();
        match isolation {
            Isolation::Snapshot => {
                committed.unwrap();
                assert_eq!(keys(tree.iter()), "b");
            }
            _ => {
                assert!(matches!(committed, Err(TransactionError::Conflict { .. })));
                assert_eq!(keys(tree.iter()), "ab");
            }
        }
    }
    let mut reading = store
        .begin_with(TransactionOptions::new().read_only(true))
        .unwrap();
    assert!(matches!(
        reading.clear(&tree),
        Err(Error::ReadOnlyTransaction)
    ));
    drop(reading);
    store.drop_tree("t").unwrap();
    assert!(matches!(tree.clear(), Err(Error::TreeDropped { .. })));
    assert!(matches!(
        tree.contains_key("a"),
        Err(Error::TreeDropped { .. })
    ));
    assert!(matches!(
        tree.iter().next(),
        Some(Err(Error::TreeDropped { .. }))
    ));
    store.close().unwrap();
}

#[test]
fn no_update_of_many_threads_is_lost() {
    let (store, tree) = store();
    let count = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let tree = &tree;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..150 {
                    // A value that changes between inline and large as it is counted up.
                    let length = random.one_of(&[8, 6_000]);
                    tree.update("counter", |old| {
                        let mut new = (old.map_or(0, count) + 1).to_le_bytes().to_vec();
                        new.resize(length, 7);
                        Some(new)
                    })
                    .unwrap();
                    tree.insert([b'q', random.below(50) as u8], "").unwrap();
                }
            });
        }
    });
    assert_eq!(count(&tree.get("counter").unwrap().unwrap()), 600);
    // Each record is popped by one.
    let before = tree.count("q".."r").unwrap();
    tree.remove("counter").unwrap();
    let popped = std::thread::scope(|scope| {
        let pop = || {
            (0..)
                .take_while(|_| tree.pop_last().unwrap().is_some())
                .count() as u64
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(pop)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum::<u64>()
    });
    assert_eq!(popped, before);
    assert_sound(&store, Some(0));
    store.close().unwrap();
}

#[test]
fn a_range_is_removed_and_nothing_beside_it() {
    let (store, tree) = store();
    for n in 0..3_000u16 {
        let length = if n % 500 == 0 { 20_000 } else { 4 };
        tree.insert(n.to_be_bytes(), value(u64::from(n), length))
            .unwrap();
    }
    let key = |n: u16| n.to_be_bytes();
    assert_eq!(tree.remove_range(key(100)..key(2_000)).unwrap(), 1_900);
    assert_eq!(tree.remove_range(key(100)..key(2_000)).unwrap(), 0);
    assert_eq!(tree.remove_range(key(50)..=key(99)).unwrap(), 50);
    assert_eq!(tree.remove_range(key(9)..key(3)).unwrap(), 0);
    assert_eq!(tree.count(..).unwrap(), 1_050);
    assert_eq!(tree.first().unwrap().unwrap().0, key(0));
    assert_eq!(tree.count(key(50)..).unwrap(), 1_000);
    assert_eq!(tree.remove_range(..).unwrap(), 1_050);
    assert!(tree.is_empty().unwrap());
    assert_sound(&store, Some(0));
    store.close().unwrap();
}

#[test]
fn a_batch_is_written_whole_and_meets_no_conflict() {
    let (store, tree) = store();
    let other = store.create_tree("u").unwrap();
    let mut batch = WriteBatch::new();
    assert!(batch.is_empty());
    store.write(&batch).unwrap();
    batch.insert(&tree, "a", "1");
    batch.insert(&tree, "a", "2");
    batch.remove(&tree, "none");
    batch.insert(&other, "large", value(1, 100_000));
    assert_eq!(batch.len(), 3);
    let mut transaction = store.begin().unwrap();
    transaction.insert(&tree, "a", "mine").unwrap();
    store.write(&batch).unwrap();
    assert!(matches!(
        transaction.commit(),
        Err(TransactionError::Conflict { .. })
    ));
    assert_eq!(tree.get("a").unwrap().unwrap(), b"2");
    assert_eq!(other.get("large").unwrap(), Some(value(1, 100_000)));
    // A record that cannot be written whole is not written at all.
    let before = store.stats().allocated_bytes;
    batch.remove(&tree, "a");
    batch.insert(&other, "again", value(2, 100_000));
    batch.insert(&other, vec![0; 2_000], "a key that is too long");
    assert!(matches!(store.write(&batch), Err(Error::KeyTooLong { .. })));
    assert!(tree.contains("a").unwrap() && !other.contains("again").unwrap());
    tree.insert("b", "").unwrap();
    assert_eq!(store.stats().allocated_bytes, before);
    batch.clear();
    store.drop_tree("u").unwrap();
    batch.insert(&other, "a", "");
    assert!(matches!(
        store.write(&batch),
        Err(Error::TreeDropped { .. })
    ));
    assert_sound(&store, Some(2));
    store.close().unwrap();
}

#[derive(Debug, PartialEq)]
enum Problem {
    Mine,
    Store(String),
}

impl<E: Into<Error>> From<E> for Problem {
    fn from(error: E) -> Problem {
        Problem::Store(error.into().to_string())
    }
}

#[test]
fn an_error_of_the_application_rolls_back_and_comes_out() {
    let (store, tree) = store();
    let mut calls = 0;
    let result = store.transact(TransactionOptions::new(), |transaction| {
        calls += 1;
        transaction.insert(&tree, "k", "v")?;
        Err::<(), _>(Problem::Mine)
    });
    assert_eq!((result, calls), (Err(Problem::Mine), 1));
    assert!(!tree.contains("k").unwrap());
    // A conflict is tried again, whatever the error type; the last one comes out.
    calls = 0;
    let result = store.transact(TransactionOptions::new().attempts(3), |transaction| {
        calls += 1;
        transaction.insert(&tree, "k", "mine")?;
        tree.insert("k", "another's")?;
        Ok::<(), Problem>(())
    });
    assert!(matches!(result, Err(Problem::Store(text)) if text.contains('t')) && calls == 3);
    // A snapshot that is too old for a read is the store's doing, too.
    calls = 0;
    let loaded = store.create_tree("loaded").unwrap();
    store
        .transact(TransactionOptions::new(), |transaction| {
            calls += 1;
            transaction.contains(&tree, "k")?;
            if calls == 1 {
                loaded.bulk_load([("a", "1")])?;
            }
            transaction.get(&loaded, "a").map_err(|_| Problem::Mine)
        })
        .unwrap();
    assert_eq!(calls, 2);
    store.close().unwrap();
}

/// Polls until it is ready, as a runtime of one thread that never sleeps would.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}

fn collect(stream: RangeStream) -> Vec<Record> {
    let mut stream = pin!(stream);
    let mut records = Vec::new();
    while let Some(record) = block_on(std::future::poll_fn(|context| {
        stream.as_mut().poll_next(context)
    })) {
        records.push(record.unwrap());
    }
    assert!(stream.is_terminated());
    records
}

#[test]
fn everything_is_there_as_a_future() {
    let (store, tree) = store();
    let other = tree.clone();
    block_on(async {
        for n in 0..1_000u16 {
            tree.insert_async(n.to_be_bytes(), value(u64::from(n), 30))
                .await?;
        }
        assert!(tree.contains_async([0, 3]).await?);
        assert!(tree.remove_async([0, 3]).await?);
        assert_eq!(tree.get_async([0, 3]).await?, None);
        let many = tree.get_many_async(&[[0, 3], [0, 4]]).await?;
        assert_eq!(many, [None, Some(value(4, 30))]);
        let options = TransactionOptions::new();
        let moved = store.transact_async(options, move |transaction| {
            let four = transaction.get(&other, [0, 4])?.unwrap_or_default();
            transaction.insert(&other, [0, 3], &four)?;
            Ok::<_, Problem>(four.len())
        });
        assert_eq!(moved.await, Ok(30));
        let mut transaction = store.begin()?;
        transaction.insert(&tree, [9, 9], "")?;
        Ok::<(), Error>(transaction.commit_async().await?)
    })
    .unwrap();
    let all: Vec<Record> = tree.range(..).map(Result::unwrap).collect();
    assert_eq!(all.len(), 1_001);
    assert_eq!(collect(tree.range_async(..)), all);
    assert_eq!(collect(tree.prefix_async([1])), all[256..512]);
    // One that is dropped half-way leaves nothing behind.
    let mut stream = Box::pin(tree.range_async(..));
    let first = block_on(std::future::poll_fn(|context| {
        stream.as_mut().poll_next(context)
    }));
    assert_eq!(first.unwrap().unwrap(), all[0]);
    drop(stream);
    drop(tree.get_async("x"));
    store.close().unwrap();
    assert!(matches!(block_on(tree.get_async("x")), Err(Error::Closed)));
    let closed = block_on(std::future::poll_fn({
        let mut stream = Box::pin(tree.range_async(..));
        move |context| stream.as_mut().poll_next(context)
    }));
    assert!(matches!(closed, Some(Err(Error::Closed))));
}

#[test]
fn options_are_checked_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    assert!(Store::create(&path, &Options::new().workers(0)).is_err());
    assert!(!path.exists());
}
