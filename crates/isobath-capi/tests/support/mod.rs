//! Calls of the key value interface from Rust, as a C program makes them.

#![allow(dead_code, unsafe_code, clippy::unwrap_used)]

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::mpsc;

use isobath_c::kvs::types::{kvs_result::*, *};
use isobath_c::kvs::*;

/// The message of the last failed call.
pub(crate) fn said() -> String {
    // SAFETY: a string that ends with a zero.
    unsafe { CStr::from_ptr(kvs_isobath_last_error()) }
        .to_string_lossy()
        .into_owned()
}

/// Opens a device.
pub(crate) fn open(uri: &str) -> Result<kvs_device_handle, kvs_result> {
    let uri = CString::new(uri).unwrap();
    let mut device = null_mut();
    // SAFETY: valid pointers.
    match unsafe { kvs_open_device(uri.as_ptr(), &mut device) } {
        KVS_SUCCESS => Ok(device),
        code => Err(code),
    }
}

/// A small device in a directory, made if it is not there; `more` options as in a URI.
pub(crate) fn device(directory: &Path, more: &str) -> kvs_device_handle {
    let path = directory.join("dev.iso");
    let uri = format!("{}?create=yes&pool=8MiB&workers=1{more}", path.display());
    open(&uri).unwrap_or_else(|code| panic!("{code:?}: {}", said()))
}

/// Makes a key space.
pub(crate) fn create(
    device: kvs_device_handle,
    name: &str,
    size: u64,
    ordering: u32,
) -> kvs_result {
    let mut text = name.as_bytes().to_vec();
    let mut name = kvs_key_space_name {
        name_len: text.len() as u32,
        name: text.as_mut_ptr().cast(),
    };
    // SAFETY: valid pointers.
    unsafe { kvs_create_key_space(device, &mut name, size, kvs_option_key_space { ordering }) }
}

/// Deletes a key space.
pub(crate) fn drop_space(device: kvs_device_handle, name: &str) -> kvs_result {
    let mut text = name.as_bytes().to_vec();
    let mut name = kvs_key_space_name {
        name_len: text.len() as u32,
        name: text.as_mut_ptr().cast(),
    };
    // SAFETY: valid pointers.
    unsafe { kvs_delete_key_space(device, &mut name) }
}

/// Opens a key space.
pub(crate) fn open_space(
    device: kvs_device_handle,
    name: &str,
) -> Result<kvs_key_space_handle, kvs_result> {
    let name = CString::new(name).unwrap();
    let mut space = null_mut();
    // SAFETY: valid pointers.
    match unsafe { kvs_open_key_space(device, name.as_ptr(), &mut space) } {
        KVS_SUCCESS => Ok(space),
        code => Err(code),
    }
}

/// Makes and opens a key space.
pub(crate) fn space(device: kvs_device_handle, name: &str) -> kvs_key_space_handle {
    assert_eq!(create(device, name, 0, 0), KVS_SUCCESS);
    open_space(device, name).unwrap()
}

pub(crate) fn key_of(key: &[u8]) -> kvs_key {
    kvs_key {
        key: key.as_ptr().cast_mut().cast(),
        length: key.len() as u16,
    }
}

pub(crate) fn value_of(value: &[u8]) -> kvs_value {
    kvs_value {
        value: value.as_ptr().cast_mut().cast(),
        length: value.len() as u32,
        actual_value_size: 0,
        offset: 0,
    }
}

/// Stores in one of the four ways.
pub(crate) fn store_as(
    space: kvs_key_space_handle,
    key: &[u8],
    value: &[u8],
    st_type: u32,
) -> kvs_result {
    let mut option = kvs_option_store {
        st_type,
        assoc: null_mut(),
    };
    // SAFETY: valid pointers.
    unsafe { kvs_store_kvp(space, &mut key_of(key), &mut value_of(value), &mut option) }
}

pub(crate) fn store(space: kvs_key_space_handle, key: &[u8], value: &[u8]) -> kvs_result {
    store_as(space, key, value, 0)
}

/// Retrieves into a buffer of `room` bytes: the code, the copied bytes, and the whole length.
pub(crate) fn retrieve(
    space: kvs_key_space_handle,
    key: &[u8],
    room: usize,
    offset: u32,
    deletes: bool,
) -> (kvs_result, Vec<u8>, u32) {
    let mut buffer = vec![0xEE; room];
    let mut value = kvs_value {
        value: buffer.as_mut_ptr().cast(),
        length: room as u32,
        actual_value_size: 0,
        offset,
    };
    let mut option = kvs_option_retrieve {
        kvs_retrieve_delete: u8::from(deletes),
    };
    // SAFETY: valid pointers.
    let code = unsafe { kvs_retrieve_kvp(space, &mut key_of(key), &mut option, &mut value) };
    buffer.truncate(value.length as usize);
    (code, buffer, value.actual_value_size)
}

/// The whole value, if there is one.
pub(crate) fn get(space: kvs_key_space_handle, key: &[u8]) -> Option<Vec<u8>> {
    match retrieve(space, key, 4 << 20, 0, false) {
        (KVS_SUCCESS, value, _) => Some(value),
        (KVS_ERR_KEY_NOT_EXIST, ..) => None,
        (code, ..) => panic!("{code:?}: {}", said()),
    }
}

pub(crate) fn delete(space: kvs_key_space_handle, key: &[u8], is_error: bool) -> kvs_result {
    let mut option = kvs_option_delete {
        kvs_delete_error: u8::from(is_error),
    };
    // SAFETY: valid pointers.
    unsafe { kvs_delete_kvp(space, &mut key_of(key), &mut option) }
}

pub(crate) fn filter(mask: [u8; 4], pattern: [u8; 4]) -> kvs_key_group_filter {
    kvs_key_group_filter {
        bitmask: mask,
        bit_pattern: pattern,
    }
}

/// Opens an iterator.
pub(crate) fn iterator(
    space: kvs_key_space_handle,
    iter_type: u32,
    mut filter: kvs_key_group_filter,
) -> Result<u8, kvs_result> {
    let mut handle = 0;
    let mut option = kvs_option_iterator { iter_type };
    // SAFETY: valid pointers.
    match unsafe { kvs_create_iterator(space, &mut option, &mut filter, &mut handle) } {
        KVS_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// One step of an iterator: entries as keys and values, and whether it was the last step.
pub(crate) fn step(
    space: kvs_key_space_handle,
    iterator: u8,
    room: usize,
    has_values: bool,
) -> Result<(Vec<Pair>, bool), kvs_result> {
    let mut buffer = vec![0u8; room];
    let mut list = kvs_iterator_list {
        num_entries: 77,
        end: 7,
        size: room as u32,
        it_list: buffer.as_mut_ptr(),
    };
    // SAFETY: valid pointers.
    match unsafe { kvs_iterate_next(space, iterator, &mut list) } {
        KVS_SUCCESS => {}
        code => return Err(code),
    }
    let mut rest = &buffer[..list.size as usize];
    let mut part = || {
        let (length, behind) = rest.split_first_chunk::<4>().unwrap();
        let (bytes, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        rest = behind;
        bytes.to_vec()
    };
    let entries = (0..list.num_entries)
        .map(|_| (part(), if has_values { part() } else { Vec::new() }))
        .collect();
    assert!(rest.is_empty());
    Ok((entries, list.end == 1))
}

/// All entries of a group.
pub(crate) fn all(
    space: kvs_key_space_handle,
    iter_type: u32,
    filter: kvs_key_group_filter,
    room: usize,
) -> Vec<Pair> {
    let handle = iterator(space, iter_type, filter).unwrap();
    let mut found = Vec::new();
    loop {
        let (entries, is_last) = step(space, handle, room, iter_type == 1).unwrap();
        found.extend(entries);
        if is_last {
            break;
        }
    }
    assert_eq!(kvs_delete_iterator(space, handle), KVS_SUCCESS);
    found
}

/// A callback that sends its result code and operation through `private1`, a sender.
pub(crate) unsafe extern "C" fn tell(context: *mut kvs_postprocess_context) {
    // SAFETY: the test keeps the sender while requests are in flight.
    let (context, sender) = unsafe {
        let context = &*context;
        let sender = context.private1.cast::<mpsc::Sender<Completed>>();
        (context, &*sender)
    };
    sender
        .send((context.result, context.context, context.private2 as usize))
        .unwrap();
}

/// A channel for [`tell`]. Its sender is never dropped: a callback may still use it when the
/// receiver has its message.
pub(crate) fn channel() -> (&'static mpsc::Sender<Completed>, mpsc::Receiver<Completed>) {
    let (sender, completed) = mpsc::channel();
    (Box::leak(Box::new(sender)), completed)
}

/// What [`tell`] sends.
pub(crate) type Completed = (kvs_result, kvs_context, usize);

pub(crate) fn pointer<T>(to: &T) -> *mut c_void {
    std::ptr::from_ref(to).cast_mut().cast()
}

/// A callback of requests that must not come so far.
pub(crate) unsafe extern "C" fn never(_: *mut kvs_postprocess_context) {
    std::process::abort();
}

/// A list of existing keys over these bits, which must outlive it.
pub(crate) fn exist_list(bits: &mut [u8]) -> kvs_exist_list {
    kvs_exist_list {
        num_keys: 0,
        keys: null_mut(),
        length: bits.len() as u32,
        result_buffer: bits.as_mut_ptr(),
    }
}

/// What a call writes what it knows of a pair to.
pub(crate) fn no_info() -> kvs_kvp_info {
    kvs_kvp_info {
        key_len: 0,
        key: null_mut(),
        value_len: 0,
    }
}

/// The codes of all functions that take a key space, with arguments that are right.
pub(crate) fn of_space(
    space: kvs_key_space_handle,
    iterator: u8,
) -> Vec<(&'static str, kvs_result)> {
    let (mut key, mut value) = (key_of(b"key1"), value_of(b"value"));
    let mut bits = [0u8];
    let mut list = exist_list(&mut bits);
    let mut buffer = [0u8; 64];
    let mut entries = kvs_iterator_list {
        num_entries: 0,
        end: 0,
        size: 64,
        it_list: buffer.as_mut_ptr(),
    };
    let mut group = filter([0; 4], [0; 4]);
    let mut other = 0;
    let mut info = no_info();
    let mut known = std::mem::MaybeUninit::<kvs_key_space>::zeroed();
    let (no, key, value) = (null_mut::<c_void>(), &raw mut key, &raw mut value);
    let never = Some(never as _);
    // SAFETY: valid pointers; requests of handles that are wrong never reach their callback.
    unsafe {
        vec![
            ("info", kvs_get_key_space_info(space, known.as_mut_ptr())),
            ("kvp info", kvs_get_kvp_info(space, key, &mut info)),
            ("retrieve", kvs_retrieve_kvp(space, key, null_mut(), value)),
            (
                "retrieve later",
                kvs_retrieve_kvp_async(space, key, null_mut(), no, no, value, never),
            ),
            ("store", kvs_store_kvp(space, key, value, null_mut())),
            (
                "store later",
                kvs_store_kvp_async(space, key, value, null_mut(), no, no, never),
            ),
            ("delete", kvs_delete_kvp(space, key, null_mut())),
            (
                "delete later",
                kvs_delete_kvp_async(space, key, null_mut(), no, no, never),
            ),
            ("delete group", kvs_delete_key_group(space, &mut group)),
            (
                "delete group later",
                kvs_delete_key_group_async(space, &mut group, no, no, never),
            ),
            ("exist", kvs_exist_kv_pairs(space, 1, key, &mut list)),
            (
                "exist later",
                kvs_exist_kv_pairs_async(space, 1, key, &mut list, no, no, never),
            ),
            (
                "create iterator",
                kvs_create_iterator(space, null_mut(), &mut group, &mut other),
            ),
            ("next", kvs_iterate_next(space, iterator, &mut entries)),
            (
                "next later",
                kvs_iterate_next_async(space, iterator, &mut entries, no, no, never),
            ),
            ("delete iterator", kvs_delete_iterator(space, iterator)),
            ("close", kvs_close_key_space(space)),
        ]
    }
}
