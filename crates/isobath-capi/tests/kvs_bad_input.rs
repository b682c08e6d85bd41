//! Bad input, one by one: the standard's result code, never a crash.

// SAFETY, of every call: what its pointers point to outlives it, or its callback, as a C program
// has to see to.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod support;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;
use support::*;

/// Handles that were never given out.
const FOREIGN: [*mut c_void; 3] = [null_mut(), usize::MAX as _, 0x10_0000_0000usize as _];

/// The codes of all functions that take a device.
fn of_device(device: kvs_device_handle) -> Vec<kvs_result> {
    let (mut long, mut short) = (0u64, 0u32);
    let mut info = std::mem::MaybeUninit::<kvs_device>::uninit();
    let mut name = kvs_key_space_name {
        name_len: 4,
        name: c"name".as_ptr().cast_mut(),
    };
    let mut space = null_mut();
    let mut counters = kvs_isobath_counters::default();
    unsafe {
        vec![
            kvs_get_device_info(device, info.as_mut_ptr()),
            kvs_get_device_capacity(device, &mut long),
            kvs_get_device_utilization(device, &mut short),
            kvs_get_min_key_length(device, &mut short),
            kvs_get_max_key_length(device, &mut short),
            kvs_get_min_value_length(device, &mut short),
            kvs_get_max_value_length(device, &mut short),
            kvs_get_optimal_value_length(device, &mut short),
            kvs_create_key_space(device, &mut name, 0, kvs_option_key_space { ordering: 0 }),
            kvs_delete_key_space(device, &mut name),
            kvs_list_key_spaces(device, 1, 16, &mut name, &mut short),
            kvs_open_key_space(device, c"name".as_ptr(), &mut space),
            kvs_isobath_set_limits(device, 1, 1),
            kvs_isobath_set_channel(device, 0),
            kvs_isobath_get_counters(device, 0, &mut counters),
            kvs_close_device(device),
        ]
    }
}

fn all_are(codes: Vec<kvs_result>, code: kvs_result) {
    assert_eq!(codes, vec![code; codes.len()]);
}

/// Every function that takes a key space, with an iterator that was never opened.
fn spaces_are(space: kvs_key_space_handle, code: kvs_result) {
    for (what, found) in of_space(space, 1) {
        assert_eq!(found, code, "{what}");
    }
}

#[test]
fn handles_that_are_null_closed_or_foreign() {
    let directory = tempfile::tempdir().unwrap();
    let opened = device(directory.path(), "");
    let one = space(opened, "one");
    let two = space(opened, "two");
    for handle in FOREIGN {
        all_are(of_device(handle), KVS_ERR_DEV_NOT_EXIST);
        spaces_are(handle, KVS_ERR_KS_NOT_EXIST);
        assert_eq!(kvs_get_ioevents(handle, 1), -1);
    }
    // One kind of handle in place of the other.
    all_are(of_device(one), KVS_ERR_DEV_NOT_EXIST);
    spaces_are(opened, KVS_ERR_KS_NOT_EXIST);
    assert_eq!(store(one, b"key1", b"value"), KVS_SUCCESS);
    assert_eq!(kvs_close_key_space(one), KVS_SUCCESS);
    spaces_are(one, KVS_ERR_KS_NOT_OPEN);
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
    all_are(of_device(opened), KVS_ERR_DEV_NOT_EXIST);
    spaces_are(two, KVS_ERR_KS_NOT_OPEN);
    // On a thread that has used neither.
    let (one, two) = (one as usize, two as usize);
    let other = std::thread::spawn(move || {
        for space in [one, two] {
            spaces_are(space as _, KVS_ERR_KS_NOT_OPEN);
        }
    });
    other.join().unwrap();
}

#[test]
fn devices_that_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dev.iso");
    let uri = path.display().to_string();
    unsafe {
        let mut device = null_mut();
        assert_eq!(kvs_open_device(null(), &mut device), KVS_ERR_PARAM_INVALID);
        assert_eq!(
            kvs_open_device(c"x".as_ptr(), null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_open_device(c"\xff".as_ptr(), &mut device),
            KVS_ERR_PARAM_INVALID
        );
    }
    assert_eq!(open(""), Err(KVS_ERR_PARAM_INVALID));
    assert_eq!(open(&uri), Err(KVS_ERR_DEV_NOT_EXIST));
    assert!(said().contains("dev.iso"), "{}", said());
    assert!(!path.exists());
    assert_eq!(
        open(&format!("{uri}?config=/nonexistent/kvs.conf")),
        Err(KVS_ERR_PARAM_INVALID)
    );
    assert!(said().contains("/nonexistent/kvs.conf"), "{}", said());
    assert_eq!(
        open(&format!("{uri}?create=yes&pool=1")),
        Err(KVS_ERR_PARAM_INVALID)
    );
    assert_eq!(
        open(&format!("{uri}?colour=red")),
        Err(KVS_ERR_PARAM_INVALID)
    );
    std::fs::write(&path, vec![1; 1 << 16]).unwrap();
    let foreign = open(&uri).unwrap_err();
    assert!(
        matches!(foreign, KVS_ERR_DEV_NOT_EXIST | KVS_ERR_SYS_IO),
        "{foreign:?}"
    );
    std::fs::remove_file(&path).unwrap();

    let opened = device(directory.path(), "");
    assert_eq!(open(&format!("{uri}?pool=8MiB")), Err(KVS_ERR_SYS_IO));
    assert!(said().contains("in use"), "{}", said());
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
}

#[test]
fn names_of_key_spaces() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    assert_eq!(create(device, "", 0, 0), KVS_ERR_KS_NAME);
    assert_eq!(create(device, &"n".repeat(256), 0, 0), KVS_ERR_KS_NAME);
    assert_eq!(create(device, "a\0b", 0, 0), KVS_ERR_KS_NAME);
    assert_eq!(create(device, "x", 0, 9), KVS_ERR_OPTION_INVALID);
    for name in ["", &"n".repeat(256), "a\0b"] {
        assert_eq!(drop_space(device, name), KVS_ERR_KS_NAME);
    }
    assert_eq!(open_space(device, ""), Err(KVS_ERR_KS_NAME));
    assert_eq!(open_space(device, &"n".repeat(256)), Err(KVS_ERR_KS_NAME));
    assert_eq!(open_space(device, "missing"), Err(KVS_ERR_KS_NOT_EXIST));
    assert_eq!(drop_space(device, "missing"), KVS_ERR_KS_NOT_EXIST);
    let long = "n".repeat(255);
    let opened = space(device, &long);

    let mut count = 0;
    let mut buffer = [0u8; 256];
    let mut name = kvs_key_space_name {
        name_len: 254,
        name: buffer.as_mut_ptr().cast(),
    };
    let option = kvs_option_key_space { ordering: 0 };
    unsafe {
        assert_eq!(
            kvs_create_key_space(device, null_mut(), 0, option),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_delete_key_space(device, null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_open_key_space(device, null(), null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_open_key_space(device, c"x".as_ptr(), null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_list_key_spaces(device, 1, 16, null_mut(), &mut count),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_list_key_spaces(device, 1, 16, &mut name, null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        // No space for a name, and for its bytes.
        assert_eq!(
            kvs_list_key_spaces(device, 1, 15, &mut name, &mut count),
            KVS_ERR_BUFFER_SMALL
        );
        assert_eq!(
            kvs_list_key_spaces(device, 1, 16, &mut name, &mut count),
            KVS_ERR_BUFFER_SMALL
        );
        assert_eq!(count, 0);
        name.name_len = 255;
        assert_eq!(
            kvs_list_key_spaces(device, 1, 16, &mut name, &mut count),
            KVS_SUCCESS
        );
        // All of it, and nothing behind it.
        assert_eq!((&buffer[..255], buffer[255]), (long.as_bytes(), 0));
        let mut bare = kvs_key_space_name {
            name_len: 3,
            name: null_mut(),
        };
        assert_eq!(
            kvs_create_key_space(device, &mut bare, 0, option),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_delete_key_space(device, &mut bare),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_list_key_spaces(device, 1, 16, &mut bare, &mut count),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_get_key_space_info(opened, null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        for out in [
            kvs_get_device_info(device, null_mut()),
            kvs_get_device_capacity(device, null_mut()),
            kvs_get_device_utilization(device, null_mut()),
            kvs_get_min_key_length(device, null_mut()),
            kvs_get_max_key_length(device, null_mut()),
            kvs_get_min_value_length(device, null_mut()),
            kvs_get_max_value_length(device, null_mut()),
            kvs_get_optimal_value_length(device, null_mut()),
            kvs_isobath_get_counters(device, 0, null_mut()),
        ] {
            assert_eq!(out, KVS_ERR_PARAM_INVALID);
        }
    }
    assert_eq!(kvs_isobath_set_limits(device, 0, 1), KVS_ERR_PARAM_INVALID);
    assert_eq!(kvs_isobath_set_limits(device, 1, 0), KVS_ERR_PARAM_INVALID);
    assert_eq!(kvs_isobath_set_channel(device, 2), KVS_ERR_OPTION_INVALID);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn keys_and_values() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "pairs");
    for key in [&b""[..], b"abc", &[b'k'; 256]] {
        assert_eq!(store(space, key, b"v"), KVS_ERR_KEY_LENGTH_INVALID);
        assert_eq!(
            retrieve(space, key, 9, 0, false).0,
            KVS_ERR_KEY_LENGTH_INVALID
        );
        assert_eq!(delete(space, key, false), KVS_ERR_KEY_LENGTH_INVALID);
    }
    assert_eq!(store(space, &[b'k'; 255], b"v"), KVS_SUCCESS);
    assert_eq!(
        store(space, b"key1", &vec![0; (2 << 20) + 1]),
        KVS_ERR_VALUE_LENGTH_INVALID
    );
    assert_eq!(store_as(space, b"key1", b"v", 4), KVS_ERR_OPTION_INVALID);
    assert_eq!(store(space, b"key1", &[1; 1000]), KVS_SUCCESS);
    for offset in [1, 511, 513] {
        assert_eq!(
            retrieve(space, b"key1", 9, offset, false).0,
            KVS_ERR_VALUE_OFFSET_MISALIGNED
        );
    }
    assert_eq!(
        retrieve(space, b"key1", 9, 1024, false).0,
        KVS_ERR_VALUE_OFFSET_INVALID
    );
    assert_eq!(
        retrieve(space, b"none", 9, 0, false).0,
        KVS_ERR_KEY_NOT_EXIST
    );

    let (mut key, mut value) = (key_of(b"key1"), value_of(b"value"));
    let mut bare_key = kvs_key {
        key: null_mut(),
        length: 9,
    };
    let mut bare_value = kvs_value {
        value: null_mut(),
        ..value
    };
    let mut offset = kvs_value {
        offset: 512,
        ..value
    };
    let mut misaligned = kvs_value { offset: 8, ..value };
    let mut info = no_info();
    let no = null_mut();
    unsafe {
        for code in [
            kvs_store_kvp(space, null_mut(), &mut value, null_mut()),
            kvs_store_kvp(space, &mut key, null_mut(), null_mut()),
            kvs_store_kvp(space, &mut bare_key, &mut value, null_mut()),
            kvs_store_kvp(space, &mut key, &mut bare_value, null_mut()),
            kvs_store_kvp_async(space, &mut key, &mut value, null_mut(), no, no, None),
            kvs_store_kvp_async(
                space,
                null_mut(),
                &mut value,
                null_mut(),
                no,
                no,
                Some(never),
            ),
            kvs_retrieve_kvp(space, null_mut(), null_mut(), &mut value),
            kvs_retrieve_kvp(space, &mut key, null_mut(), null_mut()),
            kvs_retrieve_kvp_async(space, &mut key, null_mut(), no, no, &mut value, None),
            kvs_retrieve_kvp_async(space, &mut key, null_mut(), no, no, null_mut(), Some(never)),
            kvs_delete_kvp(space, null_mut(), null_mut()),
            kvs_delete_kvp_async(space, &mut key, null_mut(), no, no, None),
            kvs_get_kvp_info(space, null_mut(), &mut info),
            kvs_get_kvp_info(space, &mut key, null_mut()),
            kvs_delete_key_group(space, null_mut()),
            kvs_delete_key_group_async(space, null_mut(), no, no, Some(never)),
        ] {
            assert_eq!(code, KVS_ERR_PARAM_INVALID);
        }
        assert_eq!(
            kvs_store_kvp(space, &mut key, &mut offset, null_mut()),
            KVS_ERR_VALUE_OFFSET_INVALID
        );
        assert_eq!(
            kvs_store_kvp(space, &mut key, &mut misaligned, null_mut()),
            KVS_ERR_VALUE_OFFSET_MISALIGNED
        );
        let late = kvs_retrieve_kvp_async(
            space,
            &mut key,
            null_mut(),
            no,
            no,
            &mut misaligned,
            Some(never),
        );
        assert_eq!(late, KVS_ERR_VALUE_OFFSET_MISALIGNED);
        let mut missing = key_of(b"none");
        assert_eq!(
            kvs_get_kvp_info(space, &mut missing, &mut info),
            KVS_ERR_KEY_NOT_EXIST
        );
        // The standard: "buffer space of value is not allocated or not enough".
        assert_eq!(
            kvs_retrieve_kvp(space, &mut key, null_mut(), &mut bare_value),
            KVS_ERR_BUFFER_SMALL
        );
        assert_eq!((bare_value.length, bare_value.actual_value_size), (0, 1000));
        // A value of no bytes needs no buffer.
        let mut empty = kvs_value {
            value: null_mut(),
            length: 0,
            ..value
        };
        assert_eq!(
            kvs_store_kvp(space, &mut missing, &mut empty, null_mut()),
            KVS_SUCCESS
        );
        assert_eq!(
            kvs_retrieve_kvp(space, &mut missing, null_mut(), &mut empty),
            KVS_SUCCESS
        );
        let mut wrong = filter([0xf0, 0, 0, 0], [0xff, 0, 0, 0]);
        assert_eq!(
            kvs_delete_key_group(space, &mut wrong),
            KVS_ERR_ITERATOR_FILTER_INVALID
        );
    }
    assert_eq!(get(space, b"key1"), Some(vec![1; 1000]));
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn lists_of_keys() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "lists");
    let mut keys = [key_of(b"key1"); 9];
    let mut bits = [0u8; 2];
    let mut list = kvs_exist_list {
        num_keys: 0,
        keys: null_mut(),
        length: 1,
        result_buffer: bits.as_mut_ptr(),
    };
    let mut nowhere = kvs_exist_list {
        length: 2,
        result_buffer: null_mut(),
        ..list
    };
    let at = keys.as_mut_ptr();
    unsafe {
        assert_eq!(
            kvs_exist_kv_pairs(space, 9, at, &mut list),
            KVS_ERR_BUFFER_SMALL
        );
        assert_eq!(
            kvs_exist_kv_pairs(space, 9, null_mut(), &mut list),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_exist_kv_pairs(space, 9, at, null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_exist_kv_pairs(space, 0, at, &mut list),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_exist_kv_pairs(space, 9, at, &mut nowhere),
            KVS_ERR_PARAM_INVALID
        );
        let late = kvs_exist_kv_pairs_async(space, 8, at, &mut list, null_mut(), null_mut(), None);
        assert_eq!(late, KVS_ERR_PARAM_INVALID);
        keys[8] = key_of(b"no");
        list.length = 2;
        let at = keys.as_mut_ptr();
        assert_eq!(
            kvs_exist_kv_pairs(space, 9, at, &mut list),
            KVS_ERR_KEY_LENGTH_INVALID
        );
    }
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn an_iterator_too_many_and_iterators_that_are_none() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let (one, two) = (space(device, "one"), space(device, "two"));
    let group = |number: u8| filter([0xff, 0, 0, 0], [number, 0, 0, 0]);
    assert_eq!(iterator(one, 2, group(0)), Err(KVS_ERR_OPTION_INVALID));
    let handles: Vec<u8> = (0..16)
        .map(|n| iterator(one, 0, group(n)).unwrap())
        .collect();
    assert_eq!(iterator(one, 0, group(3)), Err(KVS_ERR_ITERATOR_OPEN));
    assert_eq!(iterator(one, 0, group(16)), Err(KVS_ERR_ITERATOR_MAX));
    assert_eq!(iterator(two, 0, group(0)), Err(KVS_ERR_ITERATOR_MAX));
    for handle in [0, 17, 255] {
        assert_eq!(
            step(one, handle, 64, false),
            Err(KVS_ERR_ITERATOR_NOT_EXIST)
        );
        assert_eq!(kvs_delete_iterator(one, handle), KVS_ERR_ITERATOR_NOT_EXIST);
    }
    // Of another key space, closed, closed with its key space.
    assert_eq!(
        kvs_delete_iterator(two, handles[0]),
        KVS_ERR_ITERATOR_NOT_EXIST
    );
    assert_eq!(
        step(two, handles[0], 64, false),
        Err(KVS_ERR_ITERATOR_NOT_EXIST)
    );
    assert_eq!(kvs_delete_iterator(one, handles[5]), KVS_SUCCESS);
    assert_eq!(
        step(one, handles[5], 64, false),
        Err(KVS_ERR_ITERATOR_NOT_EXIST)
    );
    assert_eq!(iterator(one, 0, group(16)), Ok(handles[5]));
    assert_eq!(kvs_close_key_space(one), KVS_SUCCESS);
    assert!(iterator(two, 0, group(0)).is_ok());

    let mut option = kvs_option_iterator { iter_type: 0 };
    let mut some = group(1);
    let mut handle = 0;
    let mut list = kvs_iterator_list {
        num_entries: 0,
        end: 0,
        size: 64,
        it_list: null_mut(),
    };
    unsafe {
        assert_eq!(
            kvs_create_iterator(two, &mut option, null_mut(), &mut handle),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_create_iterator(two, &mut option, &mut some, null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_create_iterator(two, null_mut(), &mut some, &mut handle),
            KVS_SUCCESS
        );
        assert_eq!(
            kvs_iterate_next(two, handle, null_mut()),
            KVS_ERR_PARAM_INVALID
        );
        assert_eq!(
            kvs_iterate_next(two, handle, &mut list),
            KVS_ERR_PARAM_INVALID
        );
        let late = kvs_iterate_next_async(two, handle, &mut list, null_mut(), null_mut(), None);
        assert_eq!(late, KVS_ERR_PARAM_INVALID);
        let no = null_mut();
        let later = |list| kvs_iterate_next_async(two, handle, list, no, no, Some(never));
        assert_eq!(later(null_mut()), KVS_ERR_PARAM_INVALID);
        assert_eq!(later(&mut list), KVS_ERR_PARAM_INVALID);
        let mut buffer = [0u8; 64];
        list.it_list = buffer.as_mut_ptr();
        let late = kvs_iterate_next_async(two, 17, &mut list, no, no, Some(never));
        assert_eq!(late, KVS_ERR_ITERATOR_NOT_EXIST);
    }
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn memory_and_names_of_codes() {
    for (size, alignment) in [(0, 0), (1, 1), (4096, 4096), (100, 512)] {
        let memory = _kvs_zalloc(size, alignment, null());
        assert!(!memory.is_null());
        assert_eq!(memory as usize % alignment.max(1), 0);
        unsafe { _kvs_free(memory, null()) };
    }
    assert!(_kvs_malloc(8, 48, null()).is_null());
    assert!(_kvs_malloc(usize::MAX, 8, null()).is_null());
    let name = |code| {
        unsafe { std::ffi::CStr::from_ptr(kvs_errstr(code)) }
            .to_str()
            .unwrap()
    };
    assert_eq!(
        name(KVS_ERR_DEV_NOT_OPENED as i32),
        "KVS_ERR_DEV_NOT_OPENED"
    );
    assert!(name(-1).starts_with("no result code") && name(25).starts_with("no result code"));
}

/// What all asynchronous calls of a key or a value say to ones that are NULL, before they return:
/// `never` is never called.
#[test]
fn asynchronous_calls_without_a_key_a_value_or_a_callback() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "async");
    assert_eq!(store(space, b"key1", b"value"), KVS_SUCCESS);
    let (mut key, mut value) = (key_of(b"key1"), value_of(b"other"));
    let mut bare_key = kvs_key {
        key: null_mut(),
        length: 4,
    };
    let mut bare_value = kvs_value {
        value: null_mut(),
        ..value
    };
    let mut bits = [0u8];
    let mut list = exist_list(&mut bits);
    let mut nowhere = kvs_exist_list {
        result_buffer: null_mut(),
        ..list
    };
    let mut group = filter([0xff, 0, 0, 0], [b'k', 0, 0, 0]);
    let (no, never) = (null_mut(), Some(never as _));
    let (n, nv) = (null_mut(), null_mut());
    unsafe {
        let codes = [
            kvs_retrieve_kvp(space, &mut bare_key, null_mut(), &mut value),
            kvs_retrieve_kvp_async(space, n, null_mut(), no, no, &mut value, never),
            kvs_retrieve_kvp_async(space, &mut bare_key, null_mut(), no, no, &mut value, never),
            kvs_store_kvp_async(space, &mut key, nv, null_mut(), no, no, never),
            kvs_store_kvp_async(space, &mut key, &mut bare_value, null_mut(), no, no, never),
            kvs_store_kvp_async(space, &mut bare_key, &mut value, null_mut(), no, no, never),
            kvs_delete_kvp(space, &mut bare_key, null_mut()),
            kvs_delete_kvp_async(space, n, null_mut(), no, no, never),
            kvs_delete_kvp_async(space, &mut bare_key, null_mut(), no, no, never),
            kvs_get_kvp_info(space, &mut bare_key, &mut no_info()),
            kvs_exist_kv_pairs(space, 1, &mut bare_key, &mut list),
            kvs_exist_kv_pairs_async(space, 1, n, &mut list, no, no, never),
            kvs_exist_kv_pairs_async(space, 1, &mut bare_key, &mut list, no, no, never),
            kvs_exist_kv_pairs_async(space, 1, &mut key, null_mut(), no, no, never),
            kvs_exist_kv_pairs_async(space, 1, &mut key, &mut nowhere, no, no, never),
            kvs_exist_kv_pairs_async(space, 0, &mut key, &mut list, no, no, never),
            kvs_delete_key_group_async(space, &mut group, no, no, None),
        ];
        all_are(codes.to_vec(), KVS_ERR_PARAM_INVALID);
        let mut wrong = filter([0xf0, 0, 0, 0], [0xff, 0, 0, 0]);
        assert_eq!(
            kvs_delete_key_group_async(space, &mut wrong, no, no, never),
            KVS_ERR_ITERATOR_FILTER_INVALID
        );
    }
    // Nothing of it was done.
    assert_eq!(get(space, b"key1"), Some(b"value".to_vec()));
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

/// Lengths that are wrong, in every call that has them and that other tests do not ask.
#[test]
fn lengths_of_asynchronous_calls() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "lengths");
    let (no, never) = (null_mut(), Some(never as _));
    let mut value = value_of(b"value");
    let mut option = kvs_option_delete {
        kvs_delete_error: 1,
    };
    for key in [&b""[..], b"abc", &[b'k'; 256]] {
        let mut key = key_of(key);
        let mut info = no_info();
        let mut bits = [0u8];
        let mut list = exist_list(&mut bits);
        let key = &raw mut key;
        let codes = unsafe {
            [
                kvs_get_kvp_info(space, key, &mut info),
                kvs_store_kvp_async(space, key, &mut value, null_mut(), no, no, never),
                kvs_retrieve_kvp_async(space, key, null_mut(), no, no, &mut value, never),
                kvs_delete_kvp_async(space, key, &mut option, no, no, never),
                kvs_exist_kv_pairs(space, 1, key, &mut list),
                kvs_exist_kv_pairs_async(space, 1, key, &mut list, no, no, never),
            ]
        };
        all_are(codes.to_vec(), KVS_ERR_KEY_LENGTH_INVALID);
    }
    let long = vec![0; (2 << 20) + 1];
    let mut value = value_of(&long);
    let mut keys = [key_of(b"key1"); 9];
    let mut bits = [0u8; 2];
    let mut list = kvs_exist_list {
        num_keys: 0,
        keys: null_mut(),
        length: 1,
        result_buffer: bits.as_mut_ptr(),
    };
    unsafe {
        let key = keys.as_mut_ptr();
        assert_eq!(
            kvs_store_kvp_async(space, key, &mut value, null_mut(), no, no, never),
            KVS_ERR_VALUE_LENGTH_INVALID
        );
        assert_eq!(
            kvs_exist_kv_pairs_async(space, 9, key, &mut list, no, no, never),
            KVS_ERR_BUFFER_SMALL
        );
    }
    assert_eq!(get(space, b"key1"), None);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

/// What is found out while a request runs is in its callback: a buffer that is too short, a key
/// that is not there.
#[test]
fn what_asynchronous_retrieves_tell_their_callbacks() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "buffers");
    assert_eq!(store(space, b"key1", &[7; 3000]), KVS_SUCCESS);
    let (sender, completed) = channel();
    let mut buffer = vec![0xEE; 1001];
    let mut value = kvs_value {
        length: 1000,
        ..value_of(&buffer)
    };
    value.value = buffer.as_mut_ptr().cast();
    let ask = |key: &[u8], value: *mut kvs_value| {
        let mut key = key_of(key);
        let (private, no) = (pointer(sender), null_mut());
        let code = unsafe {
            kvs_retrieve_kvp_async(space, &mut key, null_mut(), private, no, value, Some(tell))
        };
        assert_eq!(code, KVS_SUCCESS);
        completed.recv().unwrap().0
    };
    assert_eq!(ask(b"key1", &mut value), KVS_ERR_BUFFER_SMALL);
    // The part that fits, the whole length, and nothing behind the buffer's end.
    assert_eq!((value.length, value.actual_value_size), (1000, 3000));
    assert_eq!((&buffer[..1000], buffer[1000]), (&[7; 1000][..], 0xEE));
    let mut none = kvs_value {
        value: null_mut(),
        length: 1000,
        actual_value_size: 0,
        offset: 0,
    };
    assert_eq!(ask(b"key1", &mut none), KVS_ERR_BUFFER_SMALL);
    assert_eq!((none.length, none.actual_value_size), (0, 3000));
    value.length = 1000;
    assert_eq!(ask(b"none", &mut value), KVS_ERR_KEY_NOT_EXIST);
    (value.length, value.offset) = (1000, 3072);
    assert_eq!(ask(b"key1", &mut value), KVS_ERR_VALUE_OFFSET_INVALID);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}
