//! Functions of key value pairs and iterators.

use std::ffi::c_void;
use std::sync::Arc;

use super::code::Code;
use super::device::is_key_length;
use super::filter::Filter;
use super::request::{Bytes, Operation, Reply, Request};
use super::space::{Space, Store};
use super::types::*;
use super::{guard, registry};
use kvs_result::*;

/// An asynchronous call's further arguments.
struct Async {
    private: [*mut c_void; 2],
    callback: kvs_postprocess_function,
}

/// Does the operation now, or submits it.
fn issue(
    space: Arc<Space>,
    operation: Operation,
    reply: Reply,
    later: Option<Async>,
) -> Result<(), Code> {
    let device = Arc::clone(&space.device);
    let Some(later) = later else {
        return device.call(Request::new(space, operation, reply));
    };
    let reply = Reply {
        private: later.private,
        callback: later.callback,
        ..reply
    };
    device.submit(Request::new(space, operation, reply))
}

/// A callback that is there.
fn later(
    private1: *mut c_void,
    private2: *mut c_void,
    callback: kvs_postprocess_function,
) -> Result<Option<Async>, Code> {
    callback.ok_or(KVS_ERR_PARAM_INVALID)?;
    Ok(Some(Async {
        private: [private1, private2],
        callback,
    }))
}

/// A key whose length is allowed.
///
/// # Safety
///
/// The pointer is valid or NULL.
unsafe fn key_of(key: *const kvs_key) -> Result<Bytes, Code> {
    crate::not_null(key)?;
    let key = given!(key.read());
    if !is_key_length(usize::from(key.length)) {
        return Err(KVS_ERR_KEY_LENGTH_INVALID);
    }
    if key.key.is_null() {
        return Err(KVS_ERR_PARAM_INVALID);
    }
    Ok(Bytes::new(key.key, usize::from(key.length)))
}

/// A value, and the offset.
///
/// # Safety
///
/// The pointer is valid or NULL.
unsafe fn value_of(value: *const kvs_value) -> Result<(Bytes, u32), Code> {
    let (bytes, offset) = given!(buffer_of(value)?);
    if bytes.length() != given!((*value).length) as usize {
        return Err(KVS_ERR_PARAM_INVALID);
    }
    Ok((bytes, offset))
}

/// A buffer for a value, and the offset. One that is NULL has no bytes, whatever its length says:
/// the standard's code for it is that of a short buffer.
///
/// # Safety
///
/// The pointer is valid or NULL.
unsafe fn buffer_of(value: *const kvs_value) -> Result<(Bytes, u32), Code> {
    crate::not_null(value)?;
    let value = given!(value.read());
    if value.offset % limits::ALIGNMENT_UNIT != 0 {
        return Err(KVS_ERR_VALUE_OFFSET_MISALIGNED);
    }
    let length = match value.value.is_null() {
        true => 0,
        false => value.length as usize,
    };
    Ok((Bytes::new(value.value, length), value.offset))
}

/// Properties of a pair.
///
/// # Safety
///
/// As `kvs_api.h` says of all: pointers are valid or NULL, and what they point to is left alone
/// until the call returns, or until the callback of an asynchronous one is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_kvp_info(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    info: *mut kvs_kvp_info,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        crate::not_null(info)?;
        let bytes = given!(key_of(key)?.get());
        let length = space.value_length(bytes)?.ok_or(KVS_ERR_KEY_NOT_EXIST)?;
        // SAFETY: checked; the key's buffer has space for the key, or is NULL.
        unsafe {
            (*info).key_len = bytes.len() as u16;
            (*info).value_len = length as u32;
            let to = (*info).key;
            if !to.is_null() && to.cast_const() != bytes.as_ptr() {
                std::ptr::copy(bytes.as_ptr(), to, bytes.len());
            }
        }
        Ok(())
    })
}

unsafe fn retrieve(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    opt: *mut kvs_option_retrieve,
    value: *mut kvs_value,
    later: Option<Async>,
) -> Result<(), Code> {
    let space = registry::space(ks_hd)?;
    let (bytes, (into, offset)) = given!((key_of(key)?, buffer_of(value)?));
    let deletes = given!(opt.as_ref()).is_some_and(|opt| opt.kvs_retrieve_delete != 0);
    let operation = Operation::Retrieve {
        key: bytes,
        into,
        offset,
        deletes,
        out: value,
    };
    let reply = Reply {
        key,
        value,
        option: opt.cast(),
        ..Reply::nothing()
    };
    issue(space, operation, reply, later)
}

/// Retrieves a value.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_retrieve_kvp(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    opt: *mut kvs_option_retrieve,
    value: *mut kvs_value,
) -> kvs_result {
    guard(|| given!(retrieve(ks_hd, key, opt, value, None)))
}

/// Retrieves a value, later.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_retrieve_kvp_async(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    opt: *mut kvs_option_retrieve,
    private1: *mut c_void,
    private2: *mut c_void,
    value: *mut kvs_value,
    post_fn: kvs_postprocess_function,
) -> kvs_result {
    guard(|| {
        given!(retrieve(
            ks_hd,
            key,
            opt,
            value,
            later(private1, private2, post_fn)?
        ))
    })
}

unsafe fn store(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    value: *mut kvs_value,
    opt: *mut kvs_option_store,
    later: Option<Async>,
) -> Result<(), Code> {
    let space = registry::space(ks_hd)?;
    let (bytes, (from, offset)) = given!((key_of(key)?, value_of(value)?));
    if offset != 0 {
        return Err(KVS_ERR_VALUE_OFFSET_INVALID);
    }
    if given!((*value).length) > space.device.max_value() {
        return Err(KVS_ERR_VALUE_LENGTH_INVALID);
    }
    let how = match given!(opt.as_ref()).map_or(0, |opt| opt.st_type) {
        0 => Store::Post,
        1 => Store::UpdateOnly,
        2 => Store::NoOverwrite,
        3 => Store::Append,
        _ => return Err(KVS_ERR_OPTION_INVALID),
    };
    let operation = Operation::Store {
        key: bytes,
        value: from,
        how,
    };
    let reply = Reply {
        key,
        value,
        option: opt.cast(),
        ..Reply::nothing()
    };
    issue(space, operation, reply, later)
}

/// Stores a value.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_store_kvp(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    value: *mut kvs_value,
    opt: *mut kvs_option_store,
) -> kvs_result {
    guard(|| given!(store(ks_hd, key, value, opt, None)))
}

/// Stores a value, later.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_store_kvp_async(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    value: *mut kvs_value,
    opt: *mut kvs_option_store,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: kvs_postprocess_function,
) -> kvs_result {
    guard(|| {
        given!(store(
            ks_hd,
            key,
            value,
            opt,
            later(private1, private2, post_fn)?
        ))
    })
}

unsafe fn delete(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    opt: *mut kvs_option_delete,
    later: Option<Async>,
) -> Result<(), Code> {
    let space = registry::space(ks_hd)?;
    let bytes = given!(key_of(key)?);
    let is_error = given!(opt.as_ref()).is_some_and(|opt| opt.kvs_delete_error != 0);
    let operation = Operation::Delete {
        key: bytes,
        is_error,
    };
    let reply = Reply {
        key,
        option: opt.cast(),
        ..Reply::nothing()
    };
    issue(space, operation, reply, later)
}

/// Deletes a pair.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_kvp(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    opt: *mut kvs_option_delete,
) -> kvs_result {
    guard(|| given!(delete(ks_hd, key, opt, None)))
}

/// Deletes a pair, later.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_kvp_async(
    ks_hd: kvs_key_space_handle,
    key: *mut kvs_key,
    opt: *mut kvs_option_delete,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: kvs_postprocess_function,
) -> kvs_result {
    guard(|| given!(delete(ks_hd, key, opt, later(private1, private2, post_fn)?)))
}

/// A filter of deletions, which must be exact.
///
/// # Safety
///
/// The pointer is valid or NULL.
unsafe fn doomed(filter: *const kvs_key_group_filter) -> Result<Filter, Code> {
    let filter = given!(filter.as_ref()).ok_or(KVS_ERR_PARAM_INVALID)?;
    Filter::literal(filter).ok_or(KVS_ERR_ITERATOR_FILTER_INVALID)
}

/// Deletes the pairs of a group.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_key_group(
    ks_hd: kvs_key_space_handle,
    grp_fltr: *mut kvs_key_group_filter,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        let filter = given!(doomed(grp_fltr)?);
        issue(
            space,
            Operation::DeleteGroup { filter },
            Reply::nothing(),
            None,
        )
    })
}

/// Deletes the pairs of a group, later.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_key_group_async(
    ks_hd: kvs_key_space_handle,
    grp_fltr: *mut kvs_key_group_filter,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: kvs_postprocess_function,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        let filter = given!(doomed(grp_fltr)?);
        let reply = Reply {
            option: grp_fltr.cast(),
            ..Reply::nothing()
        };
        let later = later(private1, private2, post_fn)?;
        issue(space, Operation::DeleteGroup { filter }, reply, later)
    })
}

unsafe fn exist(
    ks_hd: kvs_key_space_handle,
    key_cnt: u32,
    keys: *mut kvs_key,
    list: *mut kvs_exist_list,
    later: Option<Async>,
) -> Result<(), Code> {
    let space = registry::space(ks_hd)?;
    if keys.is_null() || list.is_null() || key_cnt == 0 {
        return Err(KVS_ERR_PARAM_INVALID);
    }
    // SAFETY: as many keys as the program says.
    let bytes: Result<Vec<Bytes>, Code> = (0..key_cnt as usize)
        .map(|at| unsafe { key_of(keys.add(at)) })
        .collect();
    let bytes = bytes?;
    let needed = key_cnt.div_ceil(8);
    let buffer = given! {
        (*list).keys = keys;
        (*list).num_keys = key_cnt;
        if (*list).length < needed {
            return Err(KVS_ERR_BUFFER_SMALL);
        }
        if (*list).result_buffer.is_null() {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        (*list).result_buffer
    };
    let operation = Operation::Exist {
        keys: bytes,
        bits: Bytes::new(buffer.cast(), needed as usize),
        out: list,
    };
    let reply = Reply {
        key: keys,
        ..Reply::nothing()
    };
    issue(space, operation, reply, later)
}

/// Asks which keys exist.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_exist_kv_pairs(
    ks_hd: kvs_key_space_handle,
    key_cnt: u32,
    keys: *mut kvs_key,
    list: *mut kvs_exist_list,
) -> kvs_result {
    guard(|| given!(exist(ks_hd, key_cnt, keys, list, None)))
}

/// Asks which keys exist, and is answered later.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_exist_kv_pairs_async(
    ks_hd: kvs_key_space_handle,
    key_cnt: u32,
    keys: *mut kvs_key,
    list: *mut kvs_exist_list,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: kvs_postprocess_function,
) -> kvs_result {
    guard(|| {
        given! {
            exist(
                ks_hd,
                key_cnt,
                keys,
                list,
                later(private1, private2, post_fn)?,
            )
        }
    })
}

/// Opens an iterator.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_create_iterator(
    ks_hd: kvs_key_space_handle,
    iter_op: *mut kvs_option_iterator,
    iter_fltr: *mut kvs_key_group_filter,
    iter_hd: *mut kvs_iterator_handle,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        if iter_hd.is_null() || iter_fltr.is_null() {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        let has_values = match given!(iter_op.as_ref()).map_or(0, |opt| opt.iter_type) {
            0 => false,
            1 => true,
            _ => return Err(KVS_ERR_OPTION_INVALID),
        };
        let filter = given!(iter_fltr.as_ref()).ok_or(KVS_ERR_PARAM_INVALID)?;
        let filter = Filter::new(filter);
        let handle = space.device.iterators.open(&space, filter, has_values)?;
        given!(iter_hd.write(handle));
        Ok(())
    })
}

/// Closes an iterator.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_delete_iterator(
    ks_hd: kvs_key_space_handle,
    iter_hd: kvs_iterator_handle,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        space.device.iterators.close(&space, iter_hd)
    })
}

unsafe fn next(
    ks_hd: kvs_key_space_handle,
    iter_hd: kvs_iterator_handle,
    iter_list: *mut kvs_iterator_list,
    later: Option<Async>,
) -> Result<(), Code> {
    let space = registry::space(ks_hd)?;
    crate::not_null(iter_list)?;
    let (buffer, size) = given!(((*iter_list).it_list, (*iter_list).size));
    crate::not_null(buffer)?;
    space.device.iterators.check(&space, iter_hd)?;
    let operation = Operation::Next {
        handle: iter_hd,
        into: Bytes::new(buffer.cast(), size as usize),
        out: iter_list,
    };
    issue(space, operation, Reply::nothing(), later)
}

/// The next entries of an iterator.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_iterate_next(
    ks_hd: kvs_key_space_handle,
    iter_hd: kvs_iterator_handle,
    iter_list: *mut kvs_iterator_list,
) -> kvs_result {
    guard(|| given!(next(ks_hd, iter_hd, iter_list, None)))
}

/// The next entries of an iterator, later.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_iterate_next_async(
    ks_hd: kvs_key_space_handle,
    iter_hd: kvs_iterator_handle,
    iter_list: *mut kvs_iterator_list,
    private1: *mut c_void,
    private2: *mut c_void,
    post_fn: kvs_postprocess_function,
) -> kvs_result {
    guard(|| {
        given! {
            next(
                ks_hd,
                iter_hd,
                iter_list,
                later(private1, private2, post_fn)?,
            )
        }
    })
}
