//! A store in a child that was forked after it was opened.

#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use common::tiny;
use isobath::{Error, StorageError, Store, TransactionError};

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
                store.begin().and_then(|t| t.commit()),
                Ok(()) | Err(TransactionError::Storage(StorageError::Forked))
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
