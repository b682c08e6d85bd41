//! Futures and streams under tokio and under smol: they answer, and dropping them at any point
//! leaves the store whole.

#![allow(
    clippy::big_endian_bytes,
    reason = "keys that compare as their numbers do"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use futures_core::Stream;
use isobath::{Durability, Error, Options, Store, TransactionOptions, Tree};

const RECORDS: u32 = 3_000;
/// What all accounts hold together.
const TOTAL: u32 = 1_000;

fn store() -> Store {
    // A small pool: most reads miss.
    let options = Options::new()
        .pool_bytes(4 << 20)
        .workers(2)
        .segment_bytes(128 << 10)
        .durability(Durability::None);
    Store::in_memory(&options).unwrap()
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 700 + number as usize % 3_000]
}

fn filled(store: &Store) -> Tree {
    let tree = store.create_tree("t").unwrap();
    for number in 0..RECORDS {
        tree.insert(key(number), value(number)).unwrap();
    }
    tree
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// Every operation answers as its blocking form does.
async fn everything_answers(store: Store) {
    let tree = filled(&store);
    assert_eq!(tree.get_async(key(7)).await.unwrap(), Some(value(7)));
    assert_eq!(tree.get_async(b"absent").await.unwrap(), None);
    assert!(tree.contains_async(key(8)).await.unwrap());
    assert!(tree.contains_key_async(key(8)).await.unwrap());
    let mut all = tree.iter_async();
    assert_eq!(
        next(&mut all).await.unwrap().unwrap(),
        (key(0).to_vec(), value(0))
    );
    drop(all);
    let scratch = store.create_tree("scratch").unwrap();
    for number in 0..300 {
        scratch.insert_async(key(number), "").await.unwrap();
    }
    assert_eq!(scratch.clear_async().await.unwrap(), 300);
    assert!(scratch.is_empty().unwrap());
    let keys: Vec<_> = (0..RECORDS).step_by(7).map(key).collect();
    let many = tree.get_many_async(&keys).await.unwrap();
    let expected: Vec<_> = (0..RECORDS)
        .step_by(7)
        .map(|number| Some(value(number)))
        .collect();
    assert_eq!(many, expected);
    let mut stream = tree.range_async(key(100)..key(900));
    let mut expected = 100;
    while let Some(record) = next(&mut stream).await {
        assert_eq!(record.unwrap(), (key(expected).to_vec(), value(expected)));
        expected += 1;
    }
    assert_eq!(expected, 900);
    tree.insert_async(b"new", b"v").await.unwrap();
    assert!(tree.remove_async(b"new").await.unwrap());
    let moved = store.transact_async(TransactionOptions::new(), {
        let tree = tree.clone();
        move |transaction| {
            let value = transaction.get(&tree, key(1))?.unwrap();
            transaction.insert(&tree, b"copy", &value)?;
            Ok::<usize, Error>(value.len())
        }
    });
    assert_eq!(moved.await.unwrap(), value(1).len());
    assert_eq!(tree.get(b"copy").unwrap(), Some(value(1)));
}

/// Drops each kind of future after 0, 1, 2, ... polls; the store is whole afterwards.
async fn dropping_leaves_the_store_whole<Y: Future<Output = ()>>(
    store: Store,
    pause: impl Fn() -> Y,
) {
    let tree = filled(&store);
    let accounts = store.create_tree("accounts").unwrap();
    accounts.insert("a", TOTAL.to_be_bytes()).unwrap();
    accounts.insert("b", 0u32.to_be_bytes()).unwrap();
    for round in 0..60u32 {
        let polls = round % 6;
        let number = round * 17 % RECORDS;
        let keys: Vec<_> = (number..(number + 200).min(RECORDS)).map(key).collect();
        poll_some(tree.get_async(key(number)), polls, &pause).await;
        poll_some(tree.get_many_async(&keys), polls, &pause).await;
        poll_some(tree.insert_async(key(number), value(number)), polls, &pause).await;
        let mut stream = tree.range_async(..);
        for _ in 0..polls * 20 {
            poll_some(next(&mut stream), polls, &pause).await;
        }
        drop(stream);
        let accounts = accounts.clone();
        let transfer = store.transact_async(TransactionOptions::new(), move |transaction| {
            let amount =
                |bytes: Option<Vec<u8>>| u32::from_be_bytes(bytes.unwrap().try_into().unwrap());
            let from = amount(transaction.get(&accounts, "a")?);
            let to = amount(transaction.get(&accounts, "b")?);
            transaction.insert(&accounts, "a", (from - 1).to_be_bytes())?;
            transaction.insert(&accounts, "b", (to + 1).to_be_bytes())?;
            Ok::<(), Error>(())
        });
        poll_some(transfer, polls, &pause).await;
    }
    // Dropped futures go on: all have ended once a task of each worker has.
    let report = loop {
        let report = store.check(&mut |_, _| {}).unwrap();
        if report.problems.is_empty() {
            break report;
        }
        pause().await;
    };
    assert_eq!(report.records, u64::from(RECORDS) + 2);
    let snapshot = store.snapshot().unwrap();
    let amount = |name| {
        let bytes = snapshot.get(&accounts, name).unwrap().unwrap();
        u32::from_be_bytes(bytes.try_into().unwrap())
    };
    assert_eq!(amount("a") + amount("b"), TOTAL);
    for number in 0..RECORDS {
        assert_eq!(tree.get(key(number)).unwrap(), Some(value(number)));
    }
}

/// Polls `future` so often at most, then drops it.
async fn poll_some<F: Future, Y: Future<Output = ()>>(
    future: F,
    polls: u32,
    pause: &impl Fn() -> Y,
) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if future.as_mut().poll(&mut context).is_ready() {
            return;
        }
        pause().await;
    }
}

fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap()
}

#[test]
fn under_tokio() {
    let store = store();
    tokio().block_on(everything_answers(store.clone()));
    store.close().unwrap();
}

#[test]
fn under_smol() {
    let store = store();
    smol::block_on(everything_answers(store.clone()));
    store.close().unwrap();
}

#[test]
fn dropped_under_tokio() {
    let store = store();
    tokio().block_on(dropping_leaves_the_store_whole(
        store.clone(),
        tokio::task::yield_now,
    ));
    store.close().unwrap();
}

#[test]
fn dropped_under_smol() {
    let store = store();
    smol::block_on(dropping_leaves_the_store_whole(
        store.clone(),
        smol::future::yield_now,
    ));
    store.close().unwrap();
}

/// `select!` and timeouts drop futures: an insertion that timed out is there or not, whole.
#[test]
fn timeouts_under_tokio() {
    let store = store();
    let tree = filled(&store);
    tokio().block_on(async {
        for number in 0..200 {
            let insertion = tree.insert_async(key(RECORDS + number), value(number));
            let _ = tokio::time::timeout(std::time::Duration::ZERO, insertion).await;
        }
    });
    store.close().unwrap();
    drop(tree);
}

#[test]
fn futures_of_a_closed_store_say_so() {
    let store = store();
    let tree = filled(&store);
    let pending = tree.get_async(key(1));
    store.close().unwrap();
    smol::block_on(async {
        assert!(matches!(pending.await, Ok(Some(_)) | Err(Error::Closed)));
        assert!(matches!(tree.get_async(key(1)).await, Err(Error::Closed)));
        let mut stream = tree.range_async(..);
        assert!(matches!(next(&mut stream).await, Some(Err(Error::Closed))));
    });
}
