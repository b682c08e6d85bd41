//! Devices: closing one inside of callbacks, what opening one keeps, what failed calls say.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod support;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;
use isobath_c::omp::isobath_omp_load;
use support::*;

/// What callbacks have seen; `device` is closed by the first one.
#[derive(Default)]
struct Seen {
    device: AtomicUsize,
    closed: AtomicU32,
    called: AtomicU32,
}

unsafe extern "C" fn close(context: *mut kvs_postprocess_context) {
    let seen = unsafe { &*(*context).private1.cast::<Seen>() };
    let device = seen.device.swap(0, Ordering::Relaxed);
    if device != 0 {
        seen.closed
            .store(kvs_close_device(device as _) as u32 + 1, Ordering::Relaxed);
    }
    seen.called.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn count(context: *mut kvs_postprocess_context) {
    std::thread::sleep(Duration::from_micros(200));
    let seen = unsafe { &*(*context).private1.cast::<Seen>() };
    seen.called.fetch_add(1, Ordering::Relaxed);
}

/// Submits a store that succeeds later.
fn submit(space: kvs_key_space_handle, seen: &Seen, callback: kvs_postprocess_function) {
    static KEY: [u8; 4] = *b"pair";
    let key = Box::leak(Box::new(key_of(&KEY)));
    let value = Box::leak(Box::new(value_of(b"value")));
    let (no, seen) = (null_mut(), pointer(seen));
    let code = unsafe { kvs_store_kvp_async(space, key, value, null_mut(), seen, no, callback) };
    assert_eq!(code, KVS_SUCCESS, "{}", said());
}

/// Polls until so many callbacks were called, and 20 seconds at most.
fn await_calls(space: kvs_key_space_handle, seen: &Seen, count: u32) {
    let begin = Instant::now();
    while seen.called.load(Ordering::Relaxed) < count && begin.elapsed().as_secs() < 20 {
        kvs_get_ioevents(space, 1);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_device_that_is_closed_in_a_callback_calls_all_others() {
    for completion in ["thread", "polling"] {
        let directory = tempfile::tempdir().unwrap();
        let opened = device(directory.path(), &format!("&completion={completion}"));
        let space = space(opened, "space");
        let seen = Box::leak(Box::new(Seen::default()));
        for _ in 0..100 {
            submit(space, seen, Some(close));
        }
        seen.device.store(opened as usize, Ordering::Relaxed);
        await_calls(space, seen, 100);
        // A callback that was called before it was to close the device closed nothing.
        if seen.closed.load(Ordering::Relaxed) == 0 {
            assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
        }
        assert!(seen.closed.load(Ordering::Relaxed) <= 1, "{completion}");
        assert_eq!(seen.called.load(Ordering::Relaxed), 100, "{completion}");
        assert_eq!(kvs_close_device(opened), KVS_ERR_DEV_NOT_EXIST);
    }
}

#[test]
fn a_device_that_is_closed_in_another_one_s_callback_calls_its_own() {
    for completion in ["thread", "polling"] {
        let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let opened = device(places[0].path(), &format!("&completion={completion}"));
        let other = device(places[1].path(), "");
        let (one, two) = (space(opened, "space"), space(other, "space"));
        let (first, second) = (Seen::default(), Seen::default());
        let (first, second) = (Box::leak(Box::new(first)), Box::leak(Box::new(second)));
        for _ in 0..200 {
            submit(two, second, Some(count));
        }
        first.device.store(other as usize, Ordering::Relaxed);
        submit(one, first, Some(close));
        await_calls(one, first, 1);
        assert_eq!(first.closed.load(Ordering::Relaxed), KVS_SUCCESS as u32 + 1);
        assert_eq!(second.called.load(Ordering::Relaxed), 200, "{completion}");
        assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
    }
}

unsafe extern "C" fn close_at_work(device: *mut c_void, _: usize, _: *const c_void, _: usize) {
    assert_eq!(kvs_close_device(device), KVS_ERR_SYS_IO);
    assert!(said().contains("load"), "{}", said());
}

#[test]
fn a_device_is_not_closed_by_what_works_on_its_objects() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "space");
    assert_eq!(store(space, b"pair", b"value"), KVS_SUCCESS);
    // One more, which is in flight while the first one is worked on.
    assert_eq!(store(space, b"next", b"value"), KVS_SUCCESS);
    let keys = [key_of(b"pair"), key_of(b"next")];
    let work = Some(close_at_work as _);
    let loaded = unsafe { isobath_omp_load(space, 2, keys.as_ptr(), 1, work, device) };
    assert_eq!(loaded, KVS_SUCCESS);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn opening_a_store_as_a_device_keeps_the_trees_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dev.iso");
    let options = isobath::Options::new().pool_bytes(8 << 20).workers(1);
    let names = ["kvs.7", "kvs.0", "kvs.2", "kvs.next", "other"];
    let made = isobath::Store::create(&path, &options).unwrap();
    for name in names {
        let tree = made.create_tree(name).unwrap();
        tree.insert(b"key", b"value").unwrap();
    }
    made.close().unwrap();
    for _ in 0..3 {
        let device = device(directory.path(), "");
        assert_eq!(create(device, "space", 0, 0), KVS_SUCCESS);
        assert_eq!(drop_space(device, "space"), KVS_SUCCESS);
        for n in 0..3 {
            assert_eq!(create(device, &format!("space {n}"), 0, 0), KVS_SUCCESS);
            assert_eq!(drop_space(device, &format!("space {n}")), KVS_SUCCESS);
        }
        assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    }
    let opened = isobath::Store::open(&path, &options).unwrap();
    for name in names {
        let tree = opened.tree(name).unwrap();
        assert_eq!(tree.get(b"key").unwrap(), Some(b"value".to_vec()), "{name}");
    }
    opened.close().unwrap();
}

#[test]
fn what_a_crash_leaves_of_a_key_space_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let made = device(directory.path(), "");
    assert_eq!(create(made, "space", 0, 0), KVS_SUCCESS);
    assert_eq!(kvs_close_device(made), KVS_SUCCESS);
    let path = directory.path().join("dev.iso");
    let options = isobath::Options::new().pool_bytes(8 << 20).workers(1);
    let trees = |store: &isobath::Store| -> Vec<String> {
        let trees = store.trees().unwrap();
        trees.into_iter().map(|tree| tree.name).collect()
    };
    // As creating or deleting leaves it: with its tree, and before or after there was one.
    let opened = isobath::Store::open(&path, &options).unwrap();
    let catalog = opened.tree("kvs").unwrap();
    for id in [8u64, 9] {
        let key = [b"u", &id.to_le_bytes()[..]].concat();
        catalog.insert(key, b"").unwrap();
    }
    opened.create_tree("kvs.8").unwrap();
    opened.close().unwrap();
    assert_eq!(kvs_close_device(device(directory.path(), "")), KVS_SUCCESS);
    let opened = isobath::Store::open(&path, &options).unwrap();
    assert_eq!(trees(&opened), ["kvs", "kvs.1"]);
    assert_eq!(opened.tree("kvs").unwrap().count(..).unwrap(), 2);
    opened.close().unwrap();
}

#[test]
fn each_failed_call_says_what_it_found() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "space");
    let again = format!("{}?pool=8MiB", directory.path().join("dev.iso").display());
    // A later call does not repeat an earlier one's message.
    let in_use = || {
        assert_eq!(open(&again), Err(KVS_ERR_SYS_IO));
        assert!(said().contains("in use"), "{}", said());
    };
    let everything = || filter([0; 4], [0; 4]);
    in_use();
    assert_eq!(
        retrieve(space, b"none", 1, 0, false).0,
        KVS_ERR_KEY_NOT_EXIST
    );
    assert_eq!(said(), "the key does not exist");
    in_use();
    assert_eq!(store(space, b"abc", b""), KVS_ERR_KEY_LENGTH_INVALID);
    assert_eq!(said(), "a key has 4 to 255 bytes");
    in_use();
    assert_eq!(create(device, "space", 0, 0), KVS_ERR_KS_EXIST);
    assert_eq!(said(), "there is a key space of that name");
    in_use();
    iterator(space, 0, everything()).unwrap();
    assert_eq!(iterator(space, 0, everything()), Err(KVS_ERR_ITERATOR_OPEN));
    assert!(said().contains("iterator"), "{}", said());
    in_use();
    assert_eq!(kvs_get_ioevents(null_mut(), 1), -1);
    assert_eq!(said(), "there is no such key space");
    // A call that succeeds leaves the message.
    assert_eq!(store(space, b"pair", b"value"), KVS_SUCCESS);
    assert_eq!(said(), "there is no such key space");
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    in_use_no_more(&again);
    assert_eq!(kvs_close_device(device), KVS_ERR_DEV_NOT_EXIST);
    assert!(said().contains("handle"), "{}", said());
}

fn in_use_no_more(uri: &str) {
    assert_eq!(kvs_close_device(open(uri).unwrap()), KVS_SUCCESS);
}
