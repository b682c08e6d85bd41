//! Values that a device keeps in memory are the store's, whichever thread changes them.

#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

mod support;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use isobath_c::kvs::kvs_close_device;
use isobath_c::kvs::types::kvs_result::*;
use support::*;

const LENGTH: usize = 5000;

/// A value whose every eight bytes are its number.
fn numbered(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(LENGTH / 8)
}

/// The number of a value, which is not torn.
fn number_of(value: &[u8]) -> u64 {
    let (first, rest) = value.split_first_chunk::<8>().unwrap();
    assert!(rest.chunks(8).all(|part| part == first), "torn");
    u64::from_le_bytes(*first)
}

fn shared(handle: *mut c_void) -> usize {
    handle as usize
}

/// Sets its flag when it is dropped.
struct Ends<'f>(&'f AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads that read one key see its values in the order in which another one stores them, and that
/// one sees its own at once. Most reads find the value kept.
#[test]
fn readers_never_see_an_older_value_again() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "&value_cache=1MiB&durability=none");
    let space = space(device, "values");
    assert_eq!(store(space, b"key1", &numbered(0)), KVS_SUCCESS);
    let has_ended = AtomicBool::new(false);
    let handle = shared(space);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                let mut last = 0;
                while !has_ended.load(Ordering::Relaxed) {
                    let found = number_of(&get(handle as *mut c_void, b"key1").unwrap());
                    assert!(found >= last, "{found} after {last}");
                    last = found;
                }
            });
        }
        // Also if this thread fails.
        let _end = Ends(&has_ended);
        for number in 1..4000 {
            assert_eq!(store(space, b"key1", &numbered(number)), KVS_SUCCESS);
            if number % 3 == 0 {
                let found = number_of(&get(space, b"key1").unwrap());
                assert_eq!(found, number);
            }
        }
    });
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

/// Appends of several threads, with reads between them: none is lost, and what a thread has
/// appended it reads.
#[test]
fn appends_of_several_threads_are_all_there() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "&value_cache=4MiB&durability=none");
    let space = space(device, "values");
    assert_eq!(store(space, b"key1", &[b'.'; 2000]), KVS_SUCCESS);
    let handle = shared(space);
    std::thread::scope(|threads| {
        for name in 0..4u8 {
            threads.spawn(move || {
                let space = handle as *mut c_void;
                for count in 1..=250 {
                    assert_eq!(store_as(space, b"key1", &[name], 3), KVS_SUCCESS);
                    let found = get(space, b"key1").unwrap();
                    let own = found.iter().filter(|byte| **byte == name).count();
                    assert_eq!(own, count);
                }
            });
        }
    });
    assert_eq!(get(space, b"key1").unwrap().len(), 2000 + 4 * 250);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

/// Every way to change or remove a value, after the value was read and so is kept.
#[test]
fn every_change_is_seen_by_the_next_read() {
    for capacity in [0, 8 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let device = device(directory.path(), "&value_cache=4MiB");
        assert_eq!(create(device, "values", capacity, 0), KVS_SUCCESS);
        let space = open_space(device, "values").unwrap();
        let kept = |key: &[u8]| {
            assert_eq!(store(space, key, &numbered(1)), KVS_SUCCESS);
            for _ in 0..2 {
                assert_eq!(get(space, key), Some(numbered(1)));
            }
        };
        kept(b"key1");
        assert_eq!(store(space, b"key1", &numbered(2)), KVS_SUCCESS);
        assert_eq!(get(space, b"key1"), Some(numbered(2)));
        assert_eq!(store_as(space, b"key1", &numbered(3), 1), KVS_SUCCESS);
        assert_eq!(get(space, b"key1"), Some(numbered(3)));
        assert_eq!(store_as(space, b"key1", b"more", 3), KVS_SUCCESS);
        assert_eq!(get(space, b"key1").unwrap().len(), LENGTH + 4);
        assert_eq!(delete(space, b"key1", false), KVS_SUCCESS);
        assert_eq!(get(space, b"key1"), None);
        kept(b"key2");
        assert_eq!(retrieve(space, b"key2", LENGTH, 0, true).0, KVS_SUCCESS);
        assert_eq!(get(space, b"key2"), None);
        kept(b"key3");
        kept(b"else");
        let mut group = filter([0xff, 0, 0, 0], [b'k', 0, 0, 0]);
        assert_eq!(
            unsafe { isobath_c::kvs::kvs_delete_key_group(space, &mut group) },
            KVS_SUCCESS
        );
        assert_eq!(get(space, b"key3"), None);
        assert_eq!(get(space, b"else"), Some(numbered(1)));
        // Short buffers and offsets are answered as without a cache.
        let (code, _, whole) = retrieve(space, b"else", 16, 512, false);
        assert_eq!((code, whole as usize), (KVS_ERR_BUFFER_SMALL, LENGTH));
        assert_eq!(
            retrieve(space, b"else", 16, 1 << 20, false).0,
            KVS_ERR_VALUE_OFFSET_INVALID
        );
        // A key space that is made again is empty.
        assert_eq!(drop_space(device, "values"), KVS_SUCCESS);
        assert_eq!(create(device, "values", 0, 0), KVS_SUCCESS);
        let again = open_space(device, "values").unwrap();
        assert_eq!(get(again, b"else"), None);
        assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    }
}
