//! What the key value interface does, as the standard says.

// SAFETY, of every call: what its pointers point to outlives it, or its callback, as a C program
// has to see to.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]

mod support;

use std::ptr::null_mut;

use isobath_c::kvs::types::{kvs_context::*, kvs_result::*, *};
use isobath_c::kvs::*;
use support::*;

#[test]
fn pairs_are_stored_in_four_ways() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "pairs");
    assert_eq!(store_as(space, b"key1", b"one", 1), KVS_ERR_KEY_NOT_EXIST);
    assert_eq!(get(space, b"key1"), None);
    assert_eq!(store_as(space, b"key1", b"one", 2), KVS_SUCCESS);
    assert_eq!(
        store_as(space, b"key1", b"two", 2),
        KVS_ERR_VALUE_UPDATE_NOT_ALLOWED
    );
    assert_eq!(store_as(space, b"key1", b"three", 1), KVS_SUCCESS);
    assert_eq!(store_as(space, b"key1", b"four", 3), KVS_SUCCESS);
    assert_eq!(get(space, b"key1"), Some(b"threefour".to_vec()));
    assert_eq!(store_as(space, b"key2", b"new", 3), KVS_SUCCESS);
    assert_eq!(get(space, b"key2"), Some(b"new".to_vec()));
    assert_eq!(store_as(space, b"key2", b"", 0), KVS_SUCCESS);
    assert_eq!(get(space, b"key2"), Some(Vec::new()));

    // Without options: as usual.
    let stored =
        unsafe { kvs_store_kvp(space, &mut key_of(b"key3"), &mut value_of(b"x"), null_mut()) };
    assert_eq!(stored, KVS_SUCCESS);
    assert_eq!(delete(space, b"key3", true), KVS_SUCCESS);
    assert_eq!(delete(space, b"key3", false), KVS_SUCCESS);
    assert_eq!(delete(space, b"key3", true), KVS_ERR_KEY_NOT_EXIST);

    let mut buffer = [0u8; 255];
    let mut info = kvs_kvp_info {
        key_len: 0,
        key: buffer.as_mut_ptr(),
        value_len: 0,
    };
    assert_eq!(
        unsafe { kvs_get_kvp_info(space, &mut key_of(b"key1"), &mut info) },
        KVS_SUCCESS
    );
    assert_eq!(
        (info.key_len, info.value_len, &buffer[..4]),
        (4, 9, &b"key1"[..])
    );
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn large_values_come_in_parts_and_short_buffers_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "large");
    for length in [600usize, 1025, 100_000, 2 << 20] {
        let value: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        assert_eq!(store(space, b"large", &value), KVS_SUCCESS);
        assert_eq!(get(space, b"large").as_deref(), Some(&value[..]));
        // A buffer that is too short has the part that fits; the whole length is known.
        for room in [0, 1, 512, length - 1] {
            let (code, part, whole) = retrieve(space, b"large", room, 0, false);
            assert_eq!((code, whole as usize), (KVS_ERR_BUFFER_SMALL, length));
            assert_eq!(part, value[..room]);
        }
        let (code, part, whole) = retrieve(space, b"large", 4 << 20, 512, false);
        assert_eq!((code, whole as usize), (KVS_SUCCESS, length));
        assert_eq!(part, value[512..]);
        let behind = (length as u32 / 512 + 1) * 512;
        assert_eq!(
            retrieve(space, b"large", 9, behind, false).0,
            KVS_ERR_VALUE_OFFSET_INVALID
        );
    }
    // A value that does not fit is not deleted, nor one with an offset at its end.
    for offset in [2 << 20, (2 << 20) + 512] {
        for (room, deletes) in [(0, false), (9, false), (9, true)] {
            assert_eq!(
                retrieve(space, b"large", room, offset, deletes).0,
                KVS_ERR_VALUE_OFFSET_INVALID
            );
        }
    }
    let (code, _, whole) = retrieve(space, b"large", 512, 0, true);
    assert_eq!((code, whole), (KVS_ERR_BUFFER_SMALL, 2 << 20));
    let (code, value, _) = retrieve(space, b"large", 2 << 20, 0, true);
    assert_eq!((code, value.len()), (KVS_SUCCESS, 2 << 20));
    assert_eq!(
        retrieve(space, b"large", 1, 0, true).0,
        KVS_ERR_KEY_NOT_EXIST
    );
    assert_eq!(get(space, b"large"), None);
    // A value without bytes has an offset 0 and no other.
    assert_eq!(store(space, b"empty", b""), KVS_SUCCESS);
    let at = |offset| retrieve(space, b"empty", 9, offset, false).0;
    assert_eq!(
        (at(0), at(512)),
        (KVS_SUCCESS, KVS_ERR_VALUE_OFFSET_INVALID)
    );
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn values_may_be_longer_where_the_configuration_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "&max_value=3MiB");
    let space = space(device, "long");
    let mut most = 0;
    assert_eq!(
        unsafe { kvs_get_max_value_length(device, &mut most) },
        KVS_SUCCESS
    );
    assert_eq!(most, 3 << 20);
    assert_eq!(store(space, b"long", &vec![7; 3 << 20]), KVS_SUCCESS);
    assert_eq!(
        store_as(space, b"long", b"x", 3),
        KVS_ERR_VALUE_LENGTH_INVALID
    );
    assert_eq!(get(space, b"long").map(|value| value.len()), Some(3 << 20));
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn key_spaces_are_apart_and_outlive_the_device() {
    let directory = tempfile::tempdir().unwrap();
    let opened = device(directory.path(), "");
    let mut count = 9;
    let mut none = kvs_key_space_name {
        name_len: 0,
        name: null_mut(),
    };
    let bytes = size_of::<kvs_key_space_name>() as u32;
    let listed = unsafe { kvs_list_key_spaces(opened, 1, bytes, &mut none, &mut count) };
    assert_eq!((listed, count), (KVS_SUCCESS, 0));

    let (one, two) = (space(opened, "one"), space(opened, "two"));
    assert_eq!(create(opened, "one", 0, 0), KVS_ERR_KS_EXIST);
    assert_eq!(open_space(opened, "one"), Err(KVS_ERR_KS_OPEN));
    assert_eq!(store(one, b"same", b"1"), KVS_SUCCESS);
    assert_eq!(store(two, b"same", b"2"), KVS_SUCCESS);
    assert_eq!(get(one, b"same"), Some(b"1".to_vec()));
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);

    let opened = device(directory.path(), "");
    let mut buffers = [[0u8; 8]; 3];
    let mut names = buffers.each_mut().map(|buffer| kvs_key_space_name {
        name_len: 8,
        name: buffer.as_mut_ptr().cast(),
    });
    let at = names.as_mut_ptr();
    let listed = unsafe { kvs_list_key_spaces(opened, 1, 3 * bytes, at, &mut count) };
    assert_eq!((listed, count), (KVS_SUCCESS, 2));
    assert_eq!((names[0].name_len, &buffers[0][..4]), (3, &b"one\0"[..]));
    names[0].name_len = 8;
    let at = names.as_mut_ptr();
    let listed = unsafe { kvs_list_key_spaces(opened, 2, 3 * bytes, at, &mut count) };
    assert_eq!(
        (listed, count, &buffers[0][..4]),
        (KVS_SUCCESS, 1, &b"two\0"[..])
    );
    for index in [0, 3] {
        let at = names.as_mut_ptr();
        let listed = unsafe { kvs_list_key_spaces(opened, index, 3 * bytes, at, &mut count) };
        assert_eq!(listed, KVS_ERR_KS_INDEX);
    }

    // A key space that was deleted is closed for all, and a new one of its name is empty.
    let one = open_space(opened, "one").unwrap();
    assert_eq!(get(one, b"same"), Some(b"1".to_vec()));
    assert_eq!(drop_space(opened, "one"), KVS_SUCCESS);
    assert_eq!(store(one, b"same", b"1"), KVS_ERR_KS_NOT_EXIST);
    assert_eq!(open_space(opened, "one"), Err(KVS_ERR_KS_NOT_EXIST));
    assert_eq!(drop_space(opened, "one"), KVS_ERR_KS_NOT_EXIST);
    let one = space(opened, "one");
    assert_eq!(get(one, b"same"), None);
    assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
}

#[test]
fn what_is_known_of_key_spaces_and_devices() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "&capacity=256MiB");
    let mut capacity = 0;
    let mut used = 77;
    assert_eq!(
        unsafe { kvs_get_device_capacity(device, &mut capacity) },
        KVS_SUCCESS
    );
    assert_eq!(
        unsafe { kvs_get_device_utilization(device, &mut used) },
        KVS_SUCCESS
    );
    assert_eq!(capacity, 256 << 20);
    assert!(used < 10_000);
    assert_eq!(create(device, "much", 1 << 40, 0), KVS_ERR_DEV_CAPAPCITY);

    assert_eq!(create(device, "small", 4000, 0), KVS_SUCCESS);
    let small = open_space(device, "small").unwrap();
    assert_eq!(store(small, b"key1", &[1; 2000]), KVS_SUCCESS);
    assert_eq!(store(small, b"key2", &[1; 2000]), KVS_ERR_KS_CAPACITY);
    assert_eq!(store_as(small, b"key1", &[1; 1997], 3), KVS_ERR_KS_CAPACITY);
    assert_eq!(store_as(small, b"key1", &[1; 1900], 3), KVS_SUCCESS);
    assert_eq!(store(small, b"key1", &[2; 100]), KVS_SUCCESS);
    assert_eq!(store(small, b"key2", &[1; 1000]), KVS_SUCCESS);
    let info = |space| {
        let mut buffer = [0u8; 255];
        let mut name = kvs_key_space_name {
            name_len: 0,
            name: buffer.as_mut_ptr().cast(),
        };
        let mut info = kvs_key_space {
            opened: 0,
            capacity: 0,
            free_size: 0,
            count: 0,
            name: &mut name,
        };
        assert_eq!(
            unsafe { kvs_get_key_space_info(space, &mut info) },
            KVS_SUCCESS
        );
        (
            info.opened,
            info.capacity,
            info.free_size,
            info.count,
            buffer[..name.name_len as usize].to_vec(),
        )
    };
    assert_eq!(info(small), (1, 4000, 4000 - 1108, 2, b"small".to_vec()));
    assert_eq!(delete(small, b"key1", true), KVS_SUCCESS);
    assert_eq!(retrieve(small, b"key2", 1000, 0, true).0, KVS_SUCCESS);
    assert_eq!(info(small), (1, 4000, 4000, 0, b"small".to_vec()));
    assert_eq!(store(small, b"key3", &[3; 10]), KVS_SUCCESS);
    assert_eq!(kvs_close_key_space(small), KVS_SUCCESS);
    // Its contents are counted again.
    let small = open_space(device, "small").unwrap();
    assert_eq!(info(small).2, 4000 - 14);

    let mut known = std::mem::MaybeUninit::<kvs_device>::uninit();
    assert_eq!(
        unsafe { kvs_get_device_info(device, known.as_mut_ptr()) },
        KVS_SUCCESS
    );
    let known = unsafe { known.assume_init() };
    assert_eq!((known.max_key_len, known.max_value_len), (255, 2 << 20));
    assert!(known.unalloc_capacity <= known.capacity - 4000);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

/// Keys of four groups, with values.
fn fill(space: kvs_key_space_handle) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    for group in ["aaaa", "aab0", "bbbb", "\u{7f}zzz"] {
        for number in 0..60 {
            let key = format!("{group}-{number:03}").into_bytes();
            let value = vec![number; 20 + usize::from(number) * 40];
            assert_eq!(store(space, &key, &value), KVS_SUCCESS);
            pairs.push((key, value));
        }
    }
    pairs.sort();
    pairs
}

#[test]
fn iterators_find_each_pair_of_their_group_once() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "groups");
    let pairs = fill(space);
    let keys = |wanted: &dyn Fn(&[u8]) -> bool| -> Vec<(Vec<u8>, Vec<u8>)> {
        let keys = pairs.iter().filter(|(key, _)| wanted(key));
        keys.map(|(key, _)| (key.clone(), Vec::new())).collect()
    };
    let everything = filter([0; 4], [0; 4]);
    assert_eq!(all(space, 0, everything, 32 << 10), keys(&|_| true));
    assert_eq!(all(space, 0, everything, 100), keys(&|_| true));
    assert_eq!(all(space, 1, everything, 32 << 10), pairs);
    let prefix = filter([0xff; 4], *b"aab0");
    assert_eq!(
        all(space, 0, prefix, 512),
        keys(&|key| key.starts_with(b"aab0"))
    );
    // As the sample program for key-value drives leaves its filter: with bits of the pattern that
    // the mask has not.
    let more = filter([0xff, 0xff, 0xff, 0], *b"aab0");
    assert_eq!(
        all(space, 0, more, 512),
        keys(&|key| key.starts_with(b"aab"))
    );
    // The second byte only: no range of keys.
    let second = filter([0, 0xff, 0, 0], [0, b'a', 0, 0]);
    assert_eq!(all(space, 0, second, 512), keys(&|key| key[1] == b'a'));
    assert_eq!(
        all(space, 0, filter([0xff, 0, 0, 0], [9, 0, 0, 0]), 512),
        []
    );

    // An entry that does not fit stays the next one.
    let values = iterator(space, 1, prefix).unwrap();
    assert_eq!(step(space, values, 10, true), Err(KVS_ERR_BUFFER_SMALL));
    let (entries, is_last) = step(space, values, 40, true).unwrap();
    assert_eq!(
        (entries[0].0.as_slice(), entries.len(), is_last),
        (&b"aab0-000"[..], 1, false)
    );
    // One that was stored since is found, one that was deleted is not.
    assert_eq!(delete(space, b"aab0-001", true), KVS_SUCCESS);
    assert_eq!(store(space, b"aab0-0005", b"new"), KVS_SUCCESS);
    let (entries, _) = step(space, values, 32 << 10, true).unwrap();
    assert_eq!(entries[0], (b"aab0-0005".to_vec(), b"new".to_vec()));
    assert_eq!(entries[1].0, b"aab0-002");
    // Nothing after the end.
    while !step(space, values, 32 << 10, true).unwrap().1 {}
    assert_eq!(
        step(space, values, 32 << 10, true).unwrap(),
        (Vec::new(), true)
    );
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn iterators_of_several_threads_keep_apart() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "") as usize;
    let space = space(device as _, "groups") as usize;
    fill(space as _);
    std::thread::scope(|scope| {
        for group in [*b"aaaa", *b"aab0", *b"bbbb", *b"\x7fzzz"] {
            scope.spawn(move || {
                for _ in 0..30 {
                    // Small steps: others open and close theirs in between.
                    let found = all(space as _, 0, filter([0xff; 4], group), 40);
                    assert_eq!(found.len(), 60);
                    assert!(found.iter().all(|(key, _)| key.starts_with(&group)));
                }
            });
        }
    });
    assert_eq!(kvs_close_device(device as _), KVS_SUCCESS);
}

#[test]
fn a_key_space_may_be_in_descending_order() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    assert_eq!(create(device, "down", 0, 3), KVS_ERR_OPTION_INVALID);
    assert_eq!(create(device, "down", 0, 2), KVS_SUCCESS);
    let space = open_space(device, "down").unwrap();
    let mut pairs = fill(space);
    pairs.reverse();
    let everything = filter([0; 4], [0; 4]);
    assert_eq!(all(space, 1, everything, 8 << 10), pairs);
    let keys: Vec<_> = all(space, 0, everything, 50)
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert!(keys.is_sorted_by(|a, b| a > b) && keys.len() == pairs.len());
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn groups_are_deleted_and_keys_asked_for_in_lists() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "");
    let space = space(device, "groups");
    let pairs = fill(space);
    let mut range = filter([0xff; 4], *b"aaaa");
    assert_eq!(
        unsafe { kvs_delete_key_group(space, &mut range) },
        KVS_SUCCESS
    );
    let mut scattered = filter([0, 0, 0, 0xff], [0, 0, 0, b'z']);
    assert_eq!(
        unsafe { kvs_delete_key_group(space, &mut scattered) },
        KVS_SUCCESS
    );
    let mut keys: Vec<kvs_key> = pairs.iter().map(|(key, _)| key_of(key)).collect();
    let mut bits = vec![0xff; keys.len().div_ceil(8) + 3];
    let mut list = kvs_exist_list {
        num_keys: 0,
        keys: null_mut(),
        length: bits.len() as u32,
        result_buffer: bits.as_mut_ptr(),
    };
    let count = keys.len() as u32;
    let asked = unsafe { kvs_exist_kv_pairs(space, count, keys.as_mut_ptr(), &mut list) };
    assert_eq!(
        (asked, list.length, list.num_keys),
        (KVS_SUCCESS, count.div_ceil(8), count)
    );
    for (at, (key, _)) in pairs.iter().enumerate() {
        let is_kept = !key.starts_with(b"aaaa") && key[3] != b'z';
        assert_eq!(bits[at / 8] >> (at % 8) & 1 == 1, is_kept, "{at}");
    }
    // The buffer's rest is left alone.
    assert_eq!(bits[bits.len() - 3..], [0xff; 3]);
    assert_eq!(kvs_close_device(device), KVS_SUCCESS);
}

#[test]
fn asynchronous_calls_tell_their_results() {
    for completion in ["thread", "polling"] {
        let directory = tempfile::tempdir().unwrap();
        let device = device(
            directory.path(),
            &format!("&completion={completion}&queue_depth=4&data_tasks=3"),
        );
        let space = space(device, "later");
        let (sender, completed) = channel();
        let private = pointer(sender);
        let polled = || match completion {
            "polling" => loop {
                kvs_get_ioevents(space, 1);
                if let Ok(completed) = completed.try_recv() {
                    return completed;
                }
                std::thread::yield_now();
            },
            _ => completed.recv().unwrap(),
        };
        // More than may be in flight: submitting waits, and hands over while it does.
        let keys: Vec<Vec<u8>> = (0..100).map(|n| format!("key-{n}").into_bytes()).collect();
        let mut keys: Vec<kvs_key> = keys.iter().map(|key| key_of(key)).collect();
        let mut values = vec![value_of(b"value"); keys.len()];
        for (at, (key, value)) in keys.iter_mut().zip(&mut values).enumerate() {
            let code = unsafe {
                kvs_store_kvp_async(
                    space,
                    key,
                    value,
                    null_mut(),
                    private,
                    at as *mut _,
                    Some(tell),
                )
            };
            assert_eq!(code, KVS_SUCCESS);
        }
        let mut numbers: Vec<usize> = (0..keys.len())
            .map(|_| {
                let (code, context, number) = polled();
                assert_eq!((code, context), (KVS_SUCCESS, KVS_CMD_STORE));
                number
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..keys.len()).collect::<Vec<_>>());
        assert_eq!(get(space, b"key-99"), Some(b"value".to_vec()));

        let buffer = [0u8; 64];
        let mut value = value_of(&buffer);
        let code = unsafe {
            kvs_retrieve_kvp_async(
                space,
                &mut keys[5],
                null_mut(),
                private,
                null_mut(),
                &mut value,
                Some(tell),
            )
        };
        assert_eq!(code, KVS_SUCCESS);
        assert_eq!(polled(), (KVS_SUCCESS, KVS_CMD_RETRIEVE, 0));
        assert_eq!(
            (value.length, value.actual_value_size, &buffer[..5]),
            (5, 5, &b"value"[..])
        );

        // A key that does not exist is reported at completion, a key that is too short at once.
        let mut option = kvs_option_delete {
            kvs_delete_error: 1,
        };
        let mut missing = key_of(b"missing");
        let code = unsafe {
            kvs_delete_kvp_async(
                space,
                &mut missing,
                &mut option,
                private,
                null_mut(),
                Some(tell),
            )
        };
        assert_eq!(code, KVS_SUCCESS);
        assert_eq!(polled(), (KVS_ERR_KEY_NOT_EXIST, KVS_CMD_DELETE, 0));
        let code = unsafe {
            kvs_delete_kvp_async(
                space,
                &mut key_of(b"abc"),
                &mut option,
                private,
                null_mut(),
                Some(tell),
            )
        };
        assert_eq!(code, KVS_ERR_KEY_LENGTH_INVALID);

        let mut bits = [0u8; 1];
        let mut list = kvs_exist_list {
            num_keys: 0,
            keys: null_mut(),
            length: 1,
            result_buffer: bits.as_mut_ptr(),
        };
        let mut asked = [keys[0], missing, keys[1]];
        let code = unsafe {
            kvs_exist_kv_pairs_async(
                space,
                3,
                asked.as_mut_ptr(),
                &mut list,
                private,
                null_mut(),
                Some(tell),
            )
        };
        assert_eq!(code, KVS_SUCCESS);
        assert_eq!(polled(), (KVS_SUCCESS, KVS_CMD_EXIST, 0));
        assert_eq!(bits, [0b101]);

        let handle = iterator(space, 0, filter([0; 4], [0; 4])).unwrap();
        let mut entries = vec![0u8; 32 << 10];
        let mut list = kvs_iterator_list {
            num_entries: 0,
            end: 0,
            size: 32 << 10,
            it_list: entries.as_mut_ptr(),
        };
        let code = unsafe {
            kvs_iterate_next_async(space, handle, &mut list, private, null_mut(), Some(tell))
        };
        assert_eq!(code, KVS_SUCCESS);
        assert_eq!(polled(), (KVS_SUCCESS, KVS_CMD_ITER_NEXT, 0));
        assert_eq!((list.num_entries, list.end), (100, 1));

        let mut group = filter([0; 4], [0; 4]);
        let code = unsafe {
            kvs_delete_key_group_async(space, &mut group, private, null_mut(), Some(tell))
        };
        assert_eq!(code, KVS_SUCCESS);
        assert_eq!(polled(), (KVS_SUCCESS, KVS_CMD_DELETE_GROUP, 0));
        assert_eq!(get(space, b"key-1"), None);

        let mut counters = kvs_isobath_counters::default();
        assert_eq!(
            unsafe { kvs_isobath_get_counters(device, 0, &mut counters) },
            KVS_SUCCESS
        );
        assert_eq!(counters.issued, counters.completed);
        assert_eq!((counters.queue_depth, counters.data_tasks), (4, 3));
        assert!(counters.in_flight_max <= 12, "{counters:?}");
        assert_eq!(kvs_close_device(device), KVS_SUCCESS);
    }
}

/// A callback that submits the next request of its chain.
unsafe extern "C" fn chain(context: *mut kvs_postprocess_context) {
    unsafe {
        let context = &mut *context;
        assert_eq!(context.result, KVS_SUCCESS);
        let left = context.private2 as usize;
        if left == 0 {
            return tell(context);
        }
        let next = (left - 1) as *mut _;
        let code = kvs_store_kvp_async(
            context.ks_hd,
            context.key,
            context.value,
            null_mut(),
            context.private1,
            next,
            Some(chain),
        );
        assert_eq!(code, KVS_SUCCESS);
    }
}

#[test]
fn callbacks_may_submit_and_closing_waits_for_what_is_in_flight() {
    for completion in ["thread", "polling"] {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("&completion={completion}&queue_depth=1&data_tasks=2");
        let opened = device(directory.path(), &options);
        let chained = space(opened, "chain");
        let (sender, completed) = channel();
        let mut key = key_of(b"chain");
        let mut value = value_of(b"+");
        for _ in 0..5 {
            let code = unsafe {
                kvs_store_kvp_async(
                    chained,
                    &mut key,
                    &mut value,
                    null_mut(),
                    pointer(sender),
                    40 as *mut _,
                    Some(chain),
                )
            };
            assert_eq!(code, KVS_SUCCESS);
        }
        let mut ended = 0;
        while ended < 5 {
            kvs_get_ioevents(chained, 3);
            ended += completed.try_iter().count();
        }
        // Requests in flight when the device is closed complete before that returns.
        for number in 0..2 {
            let code = unsafe {
                kvs_store_kvp_async(
                    chained,
                    &mut key,
                    &mut value,
                    null_mut(),
                    pointer(sender),
                    number as *mut _,
                    Some(tell),
                )
            };
            assert_eq!(code, KVS_SUCCESS);
        }
        assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
        assert_eq!(completed.try_iter().count(), 2);
        let opened = device(directory.path(), "");
        let chained = open_space(opened, "chain").unwrap();
        assert_eq!(get(chained, b"chain"), Some(b"+".to_vec()));
        assert_eq!(kvs_close_device(opened), KVS_SUCCESS);
    }
}

#[test]
fn no_append_of_any_thread_is_lost_in_either_channel() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path(), "&durability=none") as usize;
    let shared = space(device as _, "shared") as usize;
    for serial in [0, 1] {
        assert_eq!(kvs_isobath_set_channel(device as _, serial), KVS_SUCCESS);
        assert_eq!(delete(shared as _, b"log!", false), KVS_SUCCESS);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let (sender, completed) = channel();
                    let piece = [b'a' + thread];
                    for round in 0..60 {
                        // Directly and asynchronously in turns.
                        if round % 2 == 0 {
                            assert_eq!(store_as(shared as _, b"log!", &piece, 3), KVS_SUCCESS);
                            continue;
                        }
                        let mut option = kvs_option_store {
                            st_type: 3,
                            assoc: null_mut(),
                        };
                        let (mut key, mut value) = (key_of(b"log!"), value_of(&piece));
                        let code = unsafe {
                            kvs_store_kvp_async(
                                shared as _,
                                &mut key,
                                &mut value,
                                &mut option,
                                pointer(sender),
                                null_mut(),
                                Some(tell),
                            )
                        };
                        assert_eq!(code, KVS_SUCCESS);
                        assert_eq!(completed.recv().unwrap().0, KVS_SUCCESS);
                    }
                });
            }
        });
        let log = get(shared as _, b"log!").unwrap();
        for thread in 0..4 {
            let count = log.iter().filter(|piece| **piece == b'a' + thread).count();
            assert_eq!(count, 60, "channel {serial}");
        }
    }
    assert_eq!(kvs_close_device(device as _), KVS_SUCCESS);
}

#[test]
fn limits_may_change_while_threads_work() {
    let directory = tempfile::tempdir().unwrap();
    let device = device(
        directory.path(),
        "&durability=none&queue_depth=2&data_tasks=1",
    ) as usize;
    let shared = space(device as _, "shared") as usize;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let (sender, completed) = channel();
                let keys: Vec<Vec<u8>> = (0..400)
                    .map(|n| format!("{thread}-{n:04}").into_bytes())
                    .collect();
                let mut keys: Vec<kvs_key> = keys.iter().map(|key| key_of(key)).collect();
                let mut value = value_of(b"value");
                for key in &mut keys {
                    let code = unsafe {
                        kvs_store_kvp_async(
                            shared as _,
                            key,
                            &mut value,
                            null_mut(),
                            pointer(sender),
                            null_mut(),
                            Some(tell),
                        )
                    };
                    assert_eq!(code, KVS_SUCCESS);
                }
                for _ in 0..keys.len() {
                    assert_eq!(completed.recv().unwrap().0, KVS_SUCCESS);
                }
            });
        }
        for round in 0..200 {
            assert_eq!(
                kvs_isobath_set_limits(device as _, 1 + round % 5, 1 + round % 7),
                KVS_SUCCESS
            );
            assert_eq!(
                kvs_isobath_set_channel(device as _, round / 20 % 2),
                KVS_SUCCESS
            );
            std::thread::yield_now();
        }
        assert_eq!(kvs_isobath_set_channel(device as _, 0), KVS_SUCCESS);
    });
    let mut counters = kvs_isobath_counters::default();
    assert_eq!(
        unsafe { kvs_isobath_get_counters(device as _, 0, &mut counters) },
        KVS_SUCCESS
    );
    assert_eq!(
        (counters.issued, counters.in_flight, counters.failed),
        (1200, 0, 0)
    );
    assert_eq!(
        all(shared as _, 0, filter([0; 4], [0; 4]), 32 << 10).len(),
        1200
    );
    assert_eq!(kvs_close_device(device as _), KVS_SUCCESS);
}
