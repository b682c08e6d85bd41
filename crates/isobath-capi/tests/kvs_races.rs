//! Threads that ask for the same thing at the same time: one of them gets it.

#![allow(unsafe_code, clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};

use isobath_c::kvs::types::kvs_result::*;
use isobath_c::kvs::*;
use support::*;

/// How often the threads meet.
const ROUNDS: usize = 3000;

/// Key spaces' handles are numbers.
#[derive(Clone, Copy)]
struct Shared(isobath_c::kvs::types::kvs_key_space_handle);

// SAFETY: a number.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(self) -> isobath_c::kvs::types::kvs_key_space_handle {
        self.0
    }
}

#[test]
fn a_pair_is_retrieved_with_deletion_once() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "&durability=none");
    for (name, size) in [("free", 0), ("bounded", 1 << 20)] {
        assert_eq!(create(device, name, size, 0), KVS_SUCCESS);
        let space = Shared(open_space(device, name).unwrap());
        let (begin, got) = (Barrier::new(2), AtomicU32::new(0));
        let others = Mutex::new(BTreeSet::new());
        std::thread::scope(|scope| {
            for is_first in [true, false] {
                let (begin, got, others) = (&begin, &got, &others);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        if is_first {
                            store(space.get(), b"pair", b"value");
                        }
                        begin.wait();
                        match retrieve(space.get(), b"pair", 5, 0, true) {
                            (KVS_SUCCESS, ..) => got.fetch_add(1, Ordering::Relaxed),
                            (code, ..) => {
                                others.lock().unwrap().insert(code as u32);
                                0
                            }
                        };
                        begin.wait();
                    }
                });
            }
        });
        assert_eq!(got.into_inner(), ROUNDS as u32, "{name}");
        let others = others.into_inner().unwrap();
        assert!(others.into_iter().eq([KVS_ERR_KEY_NOT_EXIST as u32]));
    }
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn an_iterator_is_opened_once() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "&durability=none");
    let everything = || filter([0; 4], [0; 4]);
    let space = Shared(space(device, "space"));
    let begin = Barrier::new(2);
    let opened = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (begin, opened) = (&begin, &opened);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    begin.wait();
                    let found = iterator(space.get(), 0, everything());
                    begin.wait();
                    if let Ok(handle) = found {
                        opened.fetch_add(1, Ordering::Relaxed);
                        kvs_delete_iterator(space.get(), handle);
                    }
                    begin.wait();
                }
            });
        }
    });
    assert_eq!(opened.into_inner(), ROUNDS as u32);
    assert_eq!(kvs_close_key_space(space.get()), KVS_SUCCESS);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}
