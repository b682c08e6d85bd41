//! Calls of `isobath_omp.h` by several threads: objects come whole and once, whatever other threads
//! change or close; wrong calls get a code and a message.

// SAFETY, of every call: what its pointers point to outlives it, as a C program has to see to.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod support;

use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;
use isobath_c::omp::*;
use parking_lot::Mutex;
use support::*;

/// A process has one session, which counts what all its threads load and store: tests run one at a
/// time.
static SESSION: Mutex<()> = Mutex::new(());

/// Begins a session with these arguments; those that it leaves.
fn start(arguments: &[&str]) -> Result<Vec<String>, String> {
    let texts: Vec<CString> = arguments
        .iter()
        .map(|text| CString::new(*text).unwrap())
        .collect();
    let mut pointers: Vec<*mut c_char> =
        texts.iter().map(|text| text.as_ptr().cast_mut()).collect();
    pointers.push(null_mut());
    let mut count = arguments.len() as i32;
    match unsafe { isobath_omp_start(&mut count, pointers.as_mut_ptr(), 4) } {
        KVS_SUCCESS => {}
        KVS_ERR_PARAM_INVALID => return Err(said()),
        code => panic!("{code:?}"),
    }
    let left = &pointers[..count as usize];
    assert!(pointers[count as usize].is_null());
    let index = |pointer: &*mut c_char| {
        let at = texts
            .iter()
            .position(|text| text.as_ptr() == pointer.cast_const());
        arguments[at.unwrap()].to_owned()
    };
    Ok(left.iter().map(index).collect())
}

type Found = Vec<(usize, Vec<u8>)>;

unsafe extern "C" fn collect(
    context: *mut c_void,
    index: usize,
    value: *const c_void,
    length: usize,
) {
    let found = unsafe { &mut *context.cast::<Found>() };
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length) };
    found.push((index, value.to_vec()));
}

fn load(space: kvs_key_space_handle, names: &[String], in_order: bool) -> (kvs_result, Found) {
    let keys: Vec<kvs_key> = names.iter().map(|name| key_of(name.as_bytes())).collect();
    let mut found = Found::new();
    let context = (&raw mut found).cast();
    let in_order = i32::from(in_order);
    let code = unsafe {
        isobath_omp_load(
            space,
            keys.len(),
            keys.as_ptr(),
            in_order,
            Some(collect),
            context,
        )
    };
    (code, found)
}

fn name(at: usize) -> String {
    format!("object/{at:05}")
}

/// The value of an object: lengths from nothing to more than some pages.
fn content(at: usize) -> Vec<u8> {
    let length = match at % 8 {
        0 => at % 3,
        7 => 30_000 + at,
        _ => 100 * (at % 50),
    };
    (0..length).map(|byte| (at * 31 + byte) as u8).collect()
}

fn store_objects(space: kvs_key_space_handle, objects: impl Iterator<Item = usize>) -> kvs_result {
    let pairs: Vec<(String, Vec<u8>)> = objects.map(|at| (name(at), content(at))).collect();
    let keys: Vec<kvs_key> = pairs
        .iter()
        .map(|(name, _)| key_of(name.as_bytes()))
        .collect();
    let values: Vec<kvs_value> = pairs.iter().map(|(_, value)| value_of(value)).collect();
    unsafe { isobath_omp_store(space, keys.len(), keys.as_ptr(), values.as_ptr()) }
}

/// All objects of `names` must be there, once, in order if that was asked for.
fn check(objects: &[usize], found: Found, in_order: bool) {
    let mut indexes: Vec<usize> = found.iter().map(|(index, _)| *index).collect();
    if !in_order {
        indexes.sort_unstable();
    }
    assert_eq!(indexes, (0..objects.len()).collect::<Vec<usize>>());
    for (index, value) in found {
        assert!(value == content(objects[index]), "{}", name(objects[index]));
    }
}

#[test]
fn a_session_begins_once_and_takes_its_options() {
    let _one = SESSION.lock();
    let mut totals = isobath_omp_totals::default();
    unsafe {
        assert_eq!(isobath_omp_get_totals(&mut totals), KVS_ERR_PARAM_INVALID);
        assert!(said().contains("isobath_omp_init was not called"));
        assert_eq!(isobath_omp_region_begin(null()), 1);
    }
    isobath_omp_region_end(1);
    isobath_omp_count(1, 1);
    assert_eq!(
        (isobath_omp_data_accesses(), isobath_omp_is_serial()),
        (1, 1)
    );
    assert_eq!(isobath_omp_finish(), KVS_ERR_PARAM_INVALID);

    for (argument, message) in [
        ("--isobath-omp-mode=fast", "none of seq"),
        ("--isobath-omp-log=/nowhere/log.csv", "/nowhere/log.csv"),
    ] {
        let error = start(&["program", argument]).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
    let left = start(&["program", "--isobath-omp-pda=5", "-x", "--isobath-omp-pc=3"]);
    assert_eq!(left.unwrap(), ["program", "-x"]);
    let again = start(&["program"]).unwrap_err();
    assert!(again.contains("before"), "{again}");
    unsafe {
        assert_eq!(isobath_omp_get_totals(null_mut()), KVS_ERR_PARAM_INVALID);
        assert_eq!(isobath_omp_region_begin(c"region".as_ptr()), 3);
    }
    assert_eq!(
        (isobath_omp_data_accesses(), isobath_omp_is_serial()),
        (5, 0)
    );
    // Another region ends the one before it, and an end too many ends nothing.
    assert_eq!(unsafe { isobath_omp_region_begin(null()) }, 3);
    isobath_omp_region_end(0);
    isobath_omp_region_end(0);
    for device in [null_mut(), 7usize as *mut c_void] {
        assert_eq!(isobath_omp_attach(device), KVS_ERR_DEV_NOT_EXIST);
    }
    assert_eq!(isobath_omp_finish(), KVS_SUCCESS);
    assert_eq!(
        unsafe { isobath_omp_start(null_mut(), null_mut(), 0) },
        KVS_SUCCESS
    );
    assert_eq!(isobath_omp_finish(), KVS_SUCCESS);
}

#[test]
fn parameters_that_are_wrong() {
    let _one = SESSION.lock();
    let directory = tempfile::tempdir().unwrap();
    let opened = device(directory.path(), "&max_value=64KiB");
    let objects = space(opened, "objects");
    let one = [name(1)];
    for handle in [null_mut(), usize::MAX as *mut c_void, opened] {
        assert_eq!(load(handle, &one, false).0, KVS_ERR_KS_NOT_EXIST);
        assert_eq!(store_objects(handle, 1..2), KVS_ERR_KS_NOT_EXIST);
    }
    let mut found = Found::new();
    let context = (&raw mut found).cast::<c_void>();
    let load_key =
        |key: *const kvs_key, work| unsafe { isobath_omp_load(objects, 1, key, 0, work, context) };
    let store_one = |key: *const kvs_key, value: *const kvs_value| unsafe {
        isobath_omp_store(objects, 1, key, value)
    };
    let (good, value) = (key_of(b"good"), value_of(b"value"));
    assert_eq!(load_key(null(), Some(collect)), KVS_ERR_PARAM_INVALID);
    assert_eq!(load_key(&good, None), KVS_ERR_PARAM_INVALID);
    assert_eq!(store_one(null(), &value), KVS_ERR_PARAM_INVALID);
    assert_eq!(store_one(&good, null()), KVS_ERR_PARAM_INVALID);
    let long = [b'k'; 256];
    for key in [&b""[..], b"abc", &long] {
        assert_eq!(
            load_key(&key_of(key), Some(collect)),
            KVS_ERR_KEY_LENGTH_INVALID
        );
        assert_eq!(store_one(&key_of(key), &value), KVS_ERR_KEY_LENGTH_INVALID);
    }
    let mut nowhere = good;
    nowhere.key = null_mut();
    assert_eq!(load_key(&nowhere, Some(collect)), KVS_ERR_PARAM_INVALID);
    assert_eq!(store_one(&nowhere, &value), KVS_ERR_PARAM_INVALID);
    let mut wrong = value;
    wrong.value = null_mut();
    assert_eq!(store_one(&good, &wrong), KVS_ERR_PARAM_INVALID);
    let large = vec![0; (64 << 10) + 1];
    assert_eq!(
        store_one(&good, &value_of(&large)),
        KVS_ERR_VALUE_LENGTH_INVALID
    );
    let mut wrong = value;
    wrong.offset = 512;
    assert_eq!(store_one(&good, &wrong), KVS_ERR_VALUE_OFFSET_INVALID);
    // Nothing of all that was stored, and none of no objects is no error.
    let good_name = ["good".to_owned()];
    assert_eq!(load(objects, &good_name, false).0, KVS_ERR_KEY_NOT_EXIST);
    assert_eq!(load(objects, &[], true).0, KVS_SUCCESS);
    assert_eq!(store_objects(objects, 0..0), KVS_SUCCESS);
    assert!(found.is_empty());

    assert_eq!(kvs_close_key_space(objects), KVS_SUCCESS);
    assert_eq!(load(objects, &one, false).0, KVS_ERR_KS_NOT_OPEN);
    assert_eq!(store_objects(objects, 1..2), KVS_ERR_KS_NOT_OPEN);
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
}

#[test]
fn the_log_never_replaces_a_store() {
    let _one = SESSION.lock();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("objects.iso");
    let options = isobath::Options::new().pool_bytes(8 << 20);
    let store = isobath::Store::create([&path], &options).unwrap();
    store.close().unwrap();
    let before = std::fs::read(&path).unwrap();
    let argument = format!("--isobath-omp-log={}", path.display());
    let error = start(&["program", &argument]).unwrap_err();
    assert!(error.contains("a file of a store"), "{error}");
    assert!(std::fs::read(&path).unwrap() == before);
}

/// An object that is missing among others is named, and what follows is not disturbed by what was
/// in flight.
#[test]
fn missing_objects_are_named() {
    let _one = SESSION.lock();
    let directory = tempfile::tempdir().unwrap();
    let opened = device(directory.path(), "&durability=none");
    let objects = space(opened, "objects");
    let all: Vec<usize> = (0..100).collect();
    assert_eq!(
        store_objects(objects, all.iter().copied().filter(|at| *at != 50)),
        KVS_SUCCESS
    );
    let names: Vec<String> = all.iter().map(|at| name(*at)).collect();
    for in_order in [false, true] {
        let (code, found) = load(objects, &names, in_order);
        assert_eq!(code, KVS_ERR_KEY_NOT_EXIST);
        assert!(said().contains(&name(50)), "{}", said());
        assert!(found.iter().all(|(index, value)| *value == content(*index)));
        if in_order {
            assert!(found.iter().map(|(index, _)| *index).eq(0..found.len()));
        }
        let (code, found) = load(objects, &names[..50], in_order);
        assert_eq!(code, KVS_SUCCESS);
        check(&all[..50], found, in_order);
    }
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
}

/// Several threads store and load at once while limits and channel change.
#[test]
fn objects_come_whole_and_once() {
    let _one = SESSION.lock();
    let directory = tempfile::tempdir().unwrap();
    for completion in ["thread", "polling"] {
        let opened = device(
            directory.path(),
            &format!("&durability=none&completion={completion}"),
        );
        let objects = space(opened, completion);
        let has_ended = AtomicBool::new(false);
        let (device, space) = (opened as usize, objects as usize);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn(move || {
                        let space = space as kvs_key_space_handle;
                        let own: Vec<usize> = (0..120).map(|at| at * 3 + thread).collect();
                        assert_eq!(store_objects(space, own.iter().copied()), KVS_SUCCESS);
                        let names: Vec<String> = own.iter().map(|at| name(*at)).collect();
                        for round in 0..6 {
                            let in_order = round % 2 == 0;
                            let (code, found) = load(space, &names, in_order);
                            assert_eq!(code, KVS_SUCCESS);
                            check(&own, found, in_order);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let device = device as kvs_device_handle;
                for round in 0.. {
                    let tasks = [1, 32, 3][round % 3];
                    assert_eq!(kvs_isobath_set_limits(device, 4, tasks), KVS_SUCCESS);
                    let serial = u32::from(round % 5 == 0);
                    assert_eq!(kvs_isobath_set_channel(device, serial as _), KVS_SUCCESS);
                    if has_ended.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::yield_now();
                }
            });
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            has_ended.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok));
        });
        assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
    }
}

/// A device that is closed while threads load from it ends their loads with an error.
#[test]
fn a_device_may_be_closed_during_loads() {
    let _one = SESSION.lock();
    let directory = tempfile::tempdir().unwrap();
    let opened = device(directory.path(), "&durability=none");
    let objects = space(opened, "objects");
    assert_eq!(store_objects(objects, 0..60), KVS_SUCCESS);
    let space = objects as usize;
    let names: Vec<String> = (0..60).map(name).collect();
    let loads = std::sync::Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut has_waited = false;
                let code = loop {
                    let (code, found) = load(space as kvs_key_space_handle, &names, true);
                    if code != KVS_SUCCESS {
                        break code;
                    }
                    assert_eq!(found.len(), names.len());
                    if !has_waited {
                        loads.wait();
                        has_waited = true;
                    }
                };
                assert!(
                    matches!(code, KVS_ERR_DEV_NOT_OPENED | KVS_ERR_KS_NOT_OPEN),
                    "{code:?}"
                );
            });
        }
        loads.wait();
        assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
    });
    // Another device gets queues of its own.
    let opened = device(directory.path(), "&durability=none");
    let objects = open_space(opened, "objects").unwrap();
    let (code, found) = load(objects, &names, true);
    assert_eq!(code, KVS_SUCCESS);
    check(&(0..60).collect::<Vec<usize>>(), found, true);
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
}

/// A session decides a device's limits, counts transfers, and logs them.
#[test]
fn a_session_measures_a_device() {
    let _one = SESSION.lock();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log.csv");
    let log_option = format!("--isobath-omp-log={}", log.display());
    start(&["program", &log_option, "--isobath-omp-interval-ms=1"]).unwrap();
    let opened = device(directory.path(), "&durability=none");
    let objects = space(opened, "objects");
    assert_eq!(isobath_omp_attach(opened), KVS_SUCCESS);
    assert_eq!(isobath_omp_attach(opened), KVS_SUCCESS);
    let names: Vec<String> = (0..60).map(name).collect();
    let bytes: usize = (0..60).map(|at| content(at).len()).sum();
    unsafe { isobath_omp_region_begin(c"objects".as_ptr()) };
    assert_eq!(store_objects(objects, 0..60), KVS_SUCCESS);
    assert_eq!(load(objects, &names, false).0, KVS_SUCCESS);
    isobath_omp_region_end(60);
    let mut totals = isobath_omp_totals::default();
    assert_eq!(unsafe { isobath_omp_get_totals(&mut totals) }, KVS_SUCCESS);
    assert_eq!((totals.requests, totals.bytes), (120, 2 * bytes as u64));
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
    assert_eq!(isobath_omp_finish(), KVS_SUCCESS);

    let text = std::fs::read_to_string(log).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| lines[0].iter().position(|head| *head == name).unwrap();
    let sum = |name: &str| -> u64 {
        let column = column(name);
        lines[1..]
            .iter()
            .map(|line| line[column].parse::<u64>().unwrap())
            .sum()
    };
    assert_eq!((sum("requests"), sum("bytes")), (120, 2 * bytes as u64));
    assert_eq!(sum("items"), 60);
}
