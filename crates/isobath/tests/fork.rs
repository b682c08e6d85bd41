//! A store in a child that was forked after it was opened.

#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use common::tiny;
use futures_core::Stream as _;
use isobath::{Durability, Error, StorageError, Store, TransactionError};

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_forked_child_gets_an_error_and_the_parent_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let store = Store::create(&path, &tiny(2, 8)).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert("before", "1").unwrap();
    // SAFETY: the child uses what it has alone, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let told = matches!(tree.insert("in the child", ""), Err(Error::Forked))
            && matches!(
                store.begin().map(drop),
                Err(TransactionError::Storage(StorageError::Forked))
            )
            && store.spawn(|| ()).join().is_err()
            && matches!(
                poll_once(tree.get_async("before")),
                Poll::Ready(Err(Error::Forked))
            )
            && matches!(store.clone().close(), Err(Error::Forked));
        // Handles can be dropped.
        drop((store, tree));
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    tree.insert("after", "2").unwrap();
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert_eq!(tree.count(..).unwrap(), 2);
    store.close().unwrap();
    let store = Store::open(&path, &tiny(2, 8)).unwrap();
    assert_eq!(store.tree("t").unwrap().count(..).unwrap(), 2);
    store.close().unwrap();
}

/// Runs `work` in a forked child, which has ten seconds; whether it said yes.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses what it has alone, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: ends the child if it hangs.
        unsafe { libc::alarm(10) };
        let told = work();
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status == 0
}

fn is_forked<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked))
}

/// Writers of the parent hold any lock at the moment of a fork: the child may wait for none of
/// them.
#[test]
fn a_child_waits_for_nothing_that_the_parents_threads_hold() {
    let options = tiny(2, 8).durability(Durability::None);
    let store = Store::in_memory(&options).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.insert("large", vec![1; 100_000]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3u32 {
            let (store, tree, stop) = (&store, &tree, &stop);
            scope.spawn(move || {
                for round in 0..u32::MAX {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = (writer * 1000 + round % 100).to_le_bytes();
                    tree.insert(key, round.to_le_bytes()).unwrap();
                    if round.is_multiple_of(16) {
                        let mut transaction = store.begin().unwrap();
                        transaction.insert(tree, key, "in one").unwrap();
                        // Others may have been faster.
                        let _ = transaction.commit();
                        drop(store.snapshot().unwrap());
                    }
                }
            });
        }
        let mut failed = Vec::new();
        for round in 0..12 {
            // Made before the fork.
            let snapshot = store.snapshot().unwrap();
            let mut transaction = store.begin().unwrap();
            transaction.insert(&tree, "of the child", "").unwrap();
            let mut reader = tree.reader("large").unwrap().unwrap();
            let writer = tree.writer("written").unwrap();
            let future = tree.get_async("large");
            let task = store.spawn(|| 1);
            let unread = (tree.insert_async("x", ""), store.spawn(|| 2));
            let mut stream = tree.range_async(..);
            let name = format!("operation {round}");
            let (store, tree) = (store.clone(), tree.clone());
            let told = in_child(|| match round {
                0 => store.begin().is_err() && store.snapshot().is_err(),
                1 => is_forked(tree.get("large")) && is_forked(tree.contains("large")),
                2 => tree.range(..).any(is_forked) && is_forked(tree.count(..)),
                3 => snapshot.get(&tree, "large").is_err() && transaction.commit().is_err(),
                4 => {
                    drop((snapshot, transaction, reader, writer, unread, stream));
                    drop((store, tree));
                    true
                }
                5 => matches!(poll_once(future), Poll::Ready(Err(Error::Forked))),
                6 => task.join().is_err() && reader.read(&mut [0; 10]).is_err(),
                7 => {
                    let mut context = Context::from_waker(Waker::noop());
                    let next = pin!(&mut stream).poll_next(&mut context);
                    matches!(next, Poll::Ready(Some(Err(Error::Forked))))
                }
                8 => is_forked(tree.get_many(&["large"])) && is_forked(tree.first()),
                9 => is_forked(writer.finish()) && is_forked(tree.update("a", |_| None)),
                10 => {
                    let loaded = tree.bulk_load([("a", "b")]);
                    loaded.is_err() && tree.load([("a", "b")]).is_err()
                }
                _ => {
                    let stats = store.stats();
                    stats == isobath::Stats::default()
                        && is_forked(store.trees().map(drop))
                        && is_forked(store.checkpoint())
                        && is_forked(store.close())
                }
            });
            if !told {
                failed.push(name);
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{failed:?}");
    });
    assert!(!tree.contains("of the child").unwrap());
    drop(tree);
    store.close().unwrap();
}
