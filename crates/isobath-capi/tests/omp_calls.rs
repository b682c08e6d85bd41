//! Calls of `isobath_omp.h` as a C program makes them: order, nesting, errors. One test, for a
//! process has one session.

#![allow(unsafe_code, clippy::unwrap_used)]

mod support;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use isobath_c::kvs::kvs_close_device;
use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::omp::*;
use support::{device, get, key_of, said, space, store, value_of};

/// What a callback has seen, and where it stores on its own.
struct Seen {
    values: Vec<(usize, Vec<u8>)>,
    space: kvs_key_space_handle,
}

/// Keeps the value, and stores a copy of it while the load goes on.
unsafe extern "C" fn work(context: *mut c_void, index: usize, value: *const c_void, length: usize) {
    // SAFETY: the test's own, used by this thread alone; the value is valid during the call.
    let (seen, value) = unsafe {
        let value = std::slice::from_raw_parts(value.cast::<u8>(), length);
        (&mut *context.cast::<Seen>(), value.to_vec())
    };
    let key = format!("copy{index:04}");
    let (keys, values) = ([key_of(key.as_bytes())], [value_of(&value)]);
    // SAFETY: valid pointers.
    let stored = unsafe { isobath_omp_store(seen.space, 1, keys.as_ptr(), values.as_ptr()) };
    assert_eq!(stored, KVS_SUCCESS, "{}", said());
    seen.values.push((index, value));
}

fn load(seen: &mut Seen, names: &[String], in_order: bool) -> kvs_result {
    let keys: Vec<kvs_key> = names.iter().map(|name| key_of(name.as_bytes())).collect();
    let context = std::ptr::from_mut(seen).cast();
    let space = seen.space;
    // SAFETY: valid pointers.
    unsafe {
        isobath_omp_load(
            space,
            keys.len(),
            keys.as_ptr(),
            i32::from(in_order),
            Some(work),
            context,
        )
    }
}

fn value_number(number: usize) -> Vec<u8> {
    vec![number as u8; 1 + number * 700]
}

#[test]
fn objects_are_loaded_and_stored() {
    // SAFETY: NULL is allowed here.
    let init = || unsafe { isobath_omp_start(null_mut(), null_mut(), 2) };
    assert_eq!(isobath_omp_finish(), KVS_ERR_PARAM_INVALID);
    assert_eq!(init(), KVS_SUCCESS);
    assert_eq!(init(), KVS_ERR_PARAM_INVALID);
    assert_eq!(isobath_omp_attach(null_mut()), KVS_ERR_DEV_NOT_EXIST);
    for options in ["", "&completion=polling", "&channel=serial"] {
        let directory = tempfile::tempdir().unwrap();
        let device = device(directory.path(), &format!("{options}&durability=none"));
        assert_eq!(isobath_omp_attach(device), KVS_SUCCESS);
        transfers(space(device, "objects"));
        assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    }
    assert_eq!(isobath_omp_finish(), KVS_SUCCESS);
    // Without a session: one thread, one channel.
    assert_eq!(
        (isobath_omp_data_accesses(), isobath_omp_is_serial()),
        (1, 1)
    );
    // SAFETY: NULL is allowed here.
    assert_eq!(unsafe { isobath_omp_region_begin(null()) }, 1);
}

fn transfers(space: kvs_key_space_handle) {
    let mut names: Vec<String> = (0..50).map(|number| format!("name{number:04}")).collect();
    for (number, name) in names.iter().enumerate() {
        assert_eq!(
            store(space, name.as_bytes(), &value_number(number)),
            KVS_SUCCESS
        );
    }
    let mut seen = Seen {
        values: Vec::new(),
        space,
    };
    // SAFETY: NULL is allowed here.
    assert_eq!(unsafe { isobath_omp_region_begin(null()) }, 2);
    let before = totals();
    assert_eq!(load(&mut seen, &names, true), KVS_SUCCESS);
    isobath_omp_region_end(1);
    for (at, (index, value)) in seen.values.iter().enumerate() {
        assert_eq!((at, *value == value_number(at)), (*index, true));
        let copy = get(space, format!("copy{at:04}").as_bytes());
        assert_eq!(copy, Some(value_number(at)));
    }
    // Each was loaded and stored.
    assert_eq!(totals().requests - before.requests, 100);

    seen.values.clear();
    assert_eq!(load(&mut seen, &names, false), KVS_SUCCESS);
    let mut indices: Vec<usize> = seen.values.iter().map(|(index, _)| *index).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..50).collect::<Vec<_>>());
    assert_eq!(load(&mut seen, &[], false), KVS_SUCCESS);

    names[20] = "no such name".to_owned();
    assert_eq!(load(&mut seen, &names, true), KVS_ERR_KEY_NOT_EXIST);
    assert!(said().contains("no such name"), "{}", said());
    names[20] = "abc".to_owned();
    assert_eq!(load(&mut seen, &names, true), KVS_ERR_KEY_LENGTH_INVALID);
    bad_pointers(space);
    // Nothing is left in flight, and the queues are of use.
    names.truncate(10);
    assert_eq!(load(&mut seen, &names, true), KVS_SUCCESS);
}

fn bad_pointers(space: kvs_key_space_handle) {
    let keys = [key_of(b"name0000")];
    let mut value = value_of(b"value");
    // SAFETY: valid pointers or NULL.
    unsafe {
        let load = |space, keys, work| isobath_omp_load(space, 1, keys, 0, work, null_mut());
        assert_eq!(load(space, null(), Some(work)), KVS_ERR_PARAM_INVALID);
        assert_eq!(load(space, keys.as_ptr(), None), KVS_ERR_PARAM_INVALID);
        let of_none = load(null_mut(), keys.as_ptr(), Some(work));
        assert_eq!(of_none, KVS_ERR_KS_NOT_EXIST);
        let store = |value| isobath_omp_store(space, 1, keys.as_ptr(), value);
        assert_eq!(store(null()), KVS_ERR_PARAM_INVALID);
        value.offset = 512;
        assert_eq!(store(&value), KVS_ERR_VALUE_OFFSET_INVALID);
        value.offset = 0;
        value.value = null_mut();
        assert_eq!(store(&value), KVS_ERR_PARAM_INVALID);
        value.length = (2 << 20) + 1;
        assert_eq!(store(&value), KVS_ERR_VALUE_LENGTH_INVALID);
        assert_eq!(isobath_omp_get_totals(null_mut()), KVS_ERR_PARAM_INVALID);
    }
}

fn totals() -> isobath_omp_totals {
    let mut totals = isobath_omp_totals::default();
    // SAFETY: a valid pointer.
    let code = unsafe { isobath_omp_get_totals(&mut totals) };
    assert_eq!(code, KVS_SUCCESS);
    totals
}
