//! Ranges from both ends, of records and of keys alone, and counts: what they give, and how much
//! they read for it.

#![allow(
    clippy::big_endian_bytes,
    reason = "keys that compare as their numbers do"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use super::common;

use std::ops::Bound;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use common::{Model, Random};
use futures_core::Stream;
use isobath::{
    Durability, Error, Isolation, Options, Store, Transaction, TransactionOptions, Tree,
};

/// Bytes of a large value, and most that are read for one, with the rest of its chunk.
const LARGE: usize = 12_000;
const ONE_VALUE: u64 = 16 << 10;

fn store(pool_bytes: u64) -> Store {
    let options = Options::new()
        .pool_bytes(pool_bytes)
        .workers(1)
        .durability(Durability::None);
    Store::in_memory(&options).unwrap()
}

fn all<T>(range: impl Iterator<Item = Result<T, Error>>) -> Vec<T> {
    range.map(Result::unwrap).collect()
}

struct Woken(std::thread::Thread);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    let waker = Waker::from(std::sync::Arc::new(Woken(std::thread::current())));
    loop {
        match Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(item) => return item,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// What asks for one record reads one value, and what asks for keys reads none.
#[test]
fn no_more_values_are_read_than_are_given() {
    let store = store(8 << 20);
    let tree = store.create_tree("t").unwrap();
    for number in 0..64u32 {
        tree.insert(number.to_be_bytes(), vec![number as u8; LARGE])
            .unwrap();
    }
    let key = |number: u32| number.to_be_bytes().to_vec();
    let lengths: Vec<_> = (0..64).map(|number| (key(number), LARGE as u64)).collect();
    let reads = |what: &str, most: u64, work: &mut dyn FnMut()| {
        let before = store.stats().bytes_read;
        work();
        let read = store.stats().bytes_read - before;
        assert!(read <= most, "{what} reads {read} bytes");
    };
    let snapshot = store.snapshot().unwrap();
    reads("first", ONE_VALUE, &mut || {
        assert_eq!(tree.first().unwrap().unwrap().1, vec![0; LARGE]);
    });
    reads("last", ONE_VALUE, &mut || {
        assert_eq!(tree.last().unwrap().unwrap().1, vec![63; LARGE]);
    });
    reads("is_empty", 0, &mut || assert!(!tree.is_empty().unwrap()));
    reads("count", 0, &mut || {
        assert_eq!(tree.count(..).unwrap(), 64);
        assert_eq!(snapshot.count(&tree, ..).unwrap(), 64);
    });
    reads("keys", 0, &mut || {
        assert_eq!(all(tree.keys(..)), lengths);
        assert_eq!(all(snapshot.keys(&tree, ..).unwrap()), lengths);
        let mut last = all(tree.keys(key(60)..).rev());
        last.reverse();
        assert_eq!(last, lengths[60..]);
        let mut stream = tree.keys_async(..);
        assert!(
            lengths
                .iter()
                .all(|record| next(&mut stream).unwrap().unwrap() == *record)
        );
        assert!(next(&mut stream).is_none());
        let mut visited = Vec::new();
        let mut visit = |key: &[u8], length| {
            visited.push((key.to_vec(), length));
            true
        };
        tree.visit_keys(.., false, &mut visit).unwrap();
        assert_eq!(visited, lengths);
    });
    reads("a range", 2 * ONE_VALUE, &mut || {
        let mut range = tree.range(..);
        assert_eq!(range.next().unwrap().unwrap().0, key(0));
        assert_eq!(range.next_back().unwrap().unwrap().0, key(63));
    });
    reads("a snapshot's range", 2 * ONE_VALUE, &mut || {
        let mut range = snapshot.range(&tree, ..).unwrap();
        assert_eq!(range.next().unwrap().unwrap().0, key(0));
        assert_eq!(range.next_back().unwrap().unwrap().0, key(63));
    });
    reads("a stream", ONE_VALUE, &mut || {
        assert_eq!(next(&mut tree.iter_async()).unwrap().unwrap().0, key(0));
    });
    drop(snapshot);
    reads("pop_first", ONE_VALUE, &mut || {
        assert_eq!(tree.pop_first().unwrap().unwrap(), (key(0), vec![0; LARGE]));
    });
    reads("pop_last", ONE_VALUE, &mut || {
        assert_eq!(tree.pop_last().unwrap().unwrap().0, key(63));
    });
    store.close().unwrap();
}

fn bound(random: &mut Random, records: u64) -> Bound<Vec<u8>> {
    let key = random.below(records + 2).to_be_bytes().to_vec();
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn part_of(model: &Model, bounds: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Vec<(Vec<u8>, u64)> {
    let is_within = |key: &Vec<u8>| std::ops::RangeBounds::contains(bounds, key);
    let records = model.iter().filter(|(key, _)| is_within(key));
    records
        .map(|(key, value)| (key.clone(), value.len() as u64))
        .collect()
}

/// Takes all of a range, from the ends in turn.
fn from_both_ends<T>(
    mut range: impl DoubleEndedIterator<Item = Result<T, Error>>,
    random: &mut Random,
) -> Vec<T> {
    let (mut front, mut back) = (Vec::new(), Vec::new());
    loop {
        let is_front = random.below(3) > 0;
        let next = match is_front {
            true => range.next(),
            false => range.next_back(),
        };
        match next {
            None => break,
            Some(record) if is_front => front.push(record.unwrap()),
            Some(record) => back.push(record.unwrap()),
        }
    }
    front.extend(back.into_iter().rev());
    front
}

fn lengths(records: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(Vec<u8>, u64)> {
    let lengths = records
        .into_iter()
        .map(|(key, value)| (key, value.len() as u64));
    lengths.collect()
}

fn change(tree: &Tree, model: &mut Model, random: &mut Random, records: u64) {
    let key = random.below(records).to_be_bytes().to_vec();
    if random.below(2) == 0 {
        assert_eq!(tree.remove(&key).unwrap(), model.remove(&key).is_some());
    } else {
        let length = random.one_of(&[0, 30, 300, 900, 3_000]);
        let value = vec![random.bits() as u8; length];
        tree.insert(&key, &value).unwrap();
        model.insert(key, value);
    }
}

fn assert_sees(transaction: &Transaction, tree: &Tree, model: &Model, random: &mut Random, n: u64) {
    let bounds = (bound(random, n), bound(random, n));
    let expected = part_of(model, &bounds);
    let count = transaction.count(tree, &bounds).unwrap();
    assert_eq!(count, expected.len() as u64, "{bounds:?}");
    let keys = transaction.keys(tree, &bounds).unwrap();
    assert_eq!(from_both_ends(keys, random), expected);
    let range = transaction.range(tree, &bounds).unwrap();
    assert_eq!(lengths(from_both_ends(range, random)), expected);
}

/// Ranges, ranges of keys and counts agree with a model: of the tree, of snapshots that others'
/// changes came after, and of transactions with changes of their own; in memory, and with a pool
/// that most pages are not in.
#[test]
fn ranges_keys_and_counts_equal_a_model() {
    for (seed, (pool, records)) in
        (0..).zip([(64 << 20, 6_000u64), (3 << 20, 6_000), (8 << 20, 40)])
    {
        let store = store(pool);
        let tree = store.create_tree("t").unwrap();
        let mut random = Random::new(seed);
        let mut model = Model::new();
        for number in 0..records {
            let value = vec![7; random.one_of(&[10, 100, 900, 5_000])];
            tree.insert(number.to_be_bytes(), &value).unwrap();
            model.insert(number.to_be_bytes().to_vec(), value);
        }
        for _ in 0..12 {
            let bounds = (bound(&mut random, records), bound(&mut random, records));
            let expected = part_of(&model, &bounds);
            assert_eq!(
                tree.count(&bounds).unwrap(),
                expected.len() as u64,
                "{bounds:?}"
            );
            assert_eq!(from_both_ends(tree.keys(&bounds), &mut random), expected);
            let records_of = from_both_ends(tree.range(&bounds), &mut random);
            assert_eq!(lengths(records_of), expected);
            let snapshot = store.snapshot().unwrap();
            let before = model.clone();
            assert_sees(&snapshot, &tree, &before, &mut random, records);
            for _ in 0..random.below(40) {
                change(&tree, &mut model, &mut random, records);
            }
            assert_sees(&snapshot, &tree, &before, &mut random, records);
            let options = TransactionOptions::new()
                .isolation(random.one_of(&[Isolation::Snapshot, Isolation::Serializable]));
            let mut transaction = store.begin_with(options).unwrap();
            let mut own = model.clone();
            for _ in 0..random.below(20) {
                let key = random.below(records).to_be_bytes().to_vec();
                match random.below(2) {
                    0 => {
                        transaction.remove(&tree, &key).unwrap();
                        own.remove(&key);
                    }
                    _ => {
                        let value = vec![1; random.one_of(&[5, 4_000])];
                        transaction.insert(&tree, &key, &value).unwrap();
                        own.insert(key, value);
                    }
                }
            }
            change(&tree, &mut model, &mut random, records);
            assert_sees(&transaction, &tree, &own, &mut random, records);
        }
        store.close().unwrap();
    }
}

/// Beside writers a count has every record that stays once, and one that comes and goes at most
/// once; a snapshot's is exact.
#[test]
fn counts_beside_writers_miss_and_repeat_nothing() {
    for durability in [Durability::Synced, Durability::None] {
        let options = Options::new()
            .pool_bytes(32 << 20)
            .workers(2)
            .durability(durability);
        let store = Store::in_memory(&options).unwrap();
        let tree = store.create_tree("t").unwrap();
        // Odd numbers stay; even ones come and go, so that leaves split and merge.
        let stays = 20_000u64;
        let records = (0..stays).map(|number| ((2 * number + 1).to_be_bytes(), [1; 60]));
        tree.bulk_load(records).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = Random::new(3);
                while !stop.load(SeqCst) {
                    let from = random.below(stays - 300);
                    for number in from..from + 300 {
                        tree.insert((2 * number).to_be_bytes(), [2; 400]).unwrap();
                    }
                    for number in from..from + 300 {
                        tree.remove((2 * number).to_be_bytes()).unwrap();
                    }
                }
            });
            for _ in 0..30 {
                let count = tree.count(..).unwrap();
                assert!((stays..=stays + 300).contains(&count), "{count}");
                let snapshot = store.snapshot().unwrap();
                let count = snapshot.count(&tree, ..).unwrap();
                assert_eq!(count, snapshot.iter(&tree).unwrap().count() as u64);
                assert_eq!(count, snapshot.count(&tree, ..).unwrap());
            }
            stop.store(true, SeqCst);
            writer.join().unwrap();
        });
        assert_eq!(tree.count(..).unwrap(), stays);
        store.close().unwrap();
    }
}
