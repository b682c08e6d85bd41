//! Functions of devices and key spaces.

use std::ffi::{CStr, c_char};
use std::slice;
use std::sync::Arc;

use super::code::{self, Code};
use super::config::Config;
use super::device::{self, Device};
use super::types::*;
use super::{guard, registry};
use kvs_result::*;

/// Opens a device.
///
/// # Safety
///
/// As `kvs_api.h` says of all: pointers are valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_open_device(
    uri: *const c_char,
    dev_hd: *mut kvs_device_handle,
) -> kvs_result {
    guard(|| {
        if uri.is_null() || dev_hd.is_null() {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        // SAFETY: a string that ends with a zero.
        let uri = unsafe { CStr::from_ptr(uri) };
        let uri = uri.to_str().map_err(|_| KVS_ERR_PARAM_INVALID)?;
        let config =
            Config::of_uri(uri).map_err(|reason| code::because(KVS_ERR_PARAM_INVALID, reason))?;
        let device = Device::open(config, device::new_device_handle())?;
        let handle = device.handle;
        registry::add_device(device);
        given!(*dev_hd = handle as kvs_device_handle);
        Ok(())
    })
}

/// Closes a device.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_close_device(dev_hd: kvs_device_handle) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        device.check_no_transfer()?;
        let closed = device.close();
        registry::remove_device(device.handle);
        closed
    })
}

/// Properties of a device.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_device_info(
    dev_hd: kvs_device_handle,
    dev_info: *mut kvs_device,
) -> kvs_result {
    given! {
        answer(dev_hd, dev_info, |device| {
            Ok(kvs_device {
                capacity: device.capacity(),
                unalloc_capacity: device.unallocated()?,
                max_value_len: device.max_value(),
                max_key_len: limits::MAX_KEY_LENGTH,
                optimal_value_len: limits::OPTIMAL_VALUE_LENGTH,
                optimal_value_granularity: 1,
                extended_info: std::ptr::null_mut(),
            })
        })
    }
}

/// Writes what a question to a device is answered with.
///
/// # Safety
///
/// `out` is valid or NULL.
unsafe fn answer<T>(
    handle: kvs_device_handle,
    out: *mut T,
    ask: impl FnOnce(&Arc<Device>) -> Result<T, Code>,
) -> kvs_result {
    guard(|| {
        let device = registry::device(handle)?;
        crate::not_null(out)?;
        let value = ask(&device)?;
        given!(out.write(value));
        Ok(())
    })
}

/// Bytes that a device can hold.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_device_capacity(
    dev_hd: kvs_device_handle,
    dev_capacity: *mut u64,
) -> kvs_result {
    given!(answer(dev_hd, dev_capacity, |device| Ok(device.capacity())))
}

/// How full a device is, 0 to 10000.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_device_utilization(
    dev_hd: kvs_device_handle,
    dev_utilization: *mut u32,
) -> kvs_result {
    given! {
        answer(dev_hd, dev_utilization, |device| {
            let share = u128::from(device.used()) * 10_000 / u128::from(device.capacity().max(1));
            Ok(share.min(10_000) as u32)
        })
    }
}

/// Fewest bytes of a key.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_min_key_length(
    dev_hd: kvs_device_handle,
    min_key_length: *mut u32,
) -> kvs_result {
    given!(answer(dev_hd, min_key_length, |_| Ok(
        limits::MIN_KEY_LENGTH
    )))
}

/// Most bytes of a key.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_max_key_length(
    dev_hd: kvs_device_handle,
    max_key_length: *mut u32,
) -> kvs_result {
    given!(answer(dev_hd, max_key_length, |_| Ok(
        limits::MAX_KEY_LENGTH
    )))
}

/// Fewest bytes of a value.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_min_value_length(
    dev_hd: kvs_device_handle,
    min_value_length: *mut u32,
) -> kvs_result {
    given!(answer(dev_hd, min_value_length, |_| Ok(0)))
}

/// Most bytes of a value.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_max_value_length(
    dev_hd: kvs_device_handle,
    max_value_length: *mut u32,
) -> kvs_result {
    given!(answer(dev_hd, max_value_length, |device| Ok(
        device.max_value()
    )))
}

/// The length of a value that a device likes best.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_optimal_value_length(
    dev_hd: kvs_device_handle,
    opt_value_length: *mut u32,
) -> kvs_result {
    given! {
        answer(dev_hd, opt_value_length, |_| {
            Ok(limits::OPTIMAL_VALUE_LENGTH)
        })
    }
}

/// A key space's name.
///
/// # Safety
///
/// The pointer is valid or NULL, and so is the name's.
unsafe fn name_of<'n>(name: *const kvs_key_space_name) -> Result<&'n [u8], Code> {
    crate::not_null(name)?;
    let name = given!(name.read());
    if name.name.is_null() {
        return Err(KVS_ERR_PARAM_INVALID);
    }
    let length = name.name_len as usize;
    if length == 0 || length > limits::MAX_KEYSPACE_NAME_LEN {
        return Err(KVS_ERR_KS_NAME);
    }
    // SAFETY: the name has that length, as the program says.
    let bytes = unsafe { slice::from_raw_parts(name.name.cast::<u8>(), length) };
    match bytes.contains(&0) {
        true => Err(KVS_ERR_KS_NAME),
        false => Ok(bytes),
    }
}

/// Makes a key space.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_create_key_space(
    dev_hd: kvs_device_handle,
    key_space_name: *mut kvs_key_space_name,
    size: u64,
    opt: kvs_option_key_space,
) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        let name = given!(name_of(key_space_name)?);
        if opt.ordering > 2 {
            return Err(KVS_ERR_OPTION_INVALID);
        }
        device.create_space(name, size, opt.ordering as u8)
    })
}

/// Deletes a key space.
///
/// # Safety
///
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_delete_key_space(
    dev_hd: kvs_device_handle,
    key_space_name: *mut kvs_key_space_name,
) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        device.delete_space(given!(name_of(key_space_name)?))
    })
}

/// The names of key spaces.
///
/// # Safety
///
/// As above; `names` has `buffer_size` bytes, and each of its names a buffer of `name_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_list_key_spaces(
    dev_hd: kvs_device_handle,
    index: u32,
    buffer_size: u32,
    names: *mut kvs_key_space_name,
    ks_cnt: *mut u32,
) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        if names.is_null() || ks_cnt.is_null() {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        given!(ks_cnt.write(0));
        let entries = device.entries()?;
        let first = (index as usize).checked_sub(1).ok_or(KVS_ERR_KS_INDEX)?;
        if first >= entries.len() && !entries.is_empty() {
            return Err(KVS_ERR_KS_INDEX);
        }
        let room = buffer_size as usize / size_of::<kvs_key_space_name>();
        if room == 0 && !entries.is_empty() {
            return Err(KVS_ERR_BUFFER_SMALL);
        }
        for (at, (name, _)) in entries.iter().skip(first).take(room).enumerate() {
            let out = given!(&mut *names.add(at));
            if out.name.is_null() {
                return Err(KVS_ERR_PARAM_INVALID);
            }
            if name.len() > out.name_len as usize {
                return Err(KVS_ERR_BUFFER_SMALL);
            }
            // SAFETY: the buffer has that length.
            unsafe { write_name(name, out.name, out.name_len as usize) };
            out.name_len = name.len() as u32;
            given!(ks_cnt.write(at as u32 + 1));
        }
        Ok(())
    })
}

/// Copies a name, with a zero behind it if that fits.
///
/// # Safety
///
/// `room` bytes can be written at `to`.
unsafe fn write_name(name: &[u8], to: *mut c_char, room: usize) {
    let copied = name.len().min(room);
    given! {
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), to, copied);
        if copied < room {
            to.add(copied).write(0);
        }
    }
}

/// Opens a key space.
///
/// # Safety
///
/// As above; the name ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_open_key_space(
    dev_hd: kvs_device_handle,
    name: *const c_char,
    ks_hd: *mut kvs_key_space_handle,
) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        if name.is_null() || ks_hd.is_null() {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        // SAFETY: a string that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        if name.is_empty() || name.len() > limits::MAX_KEYSPACE_NAME_LEN {
            return Err(KVS_ERR_KS_NAME);
        }
        let space = device.open_space(name, device::new_space_handle())?;
        let handle = space.handle as kvs_key_space_handle;
        registry::add_space(space)?;
        given!(ks_hd.write(handle));
        Ok(())
    })
}

/// Closes a key space.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_close_key_space(ks_hd: kvs_key_space_handle) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        space.device.close_space(&space);
        registry::remove_space(space.handle);
        Ok(())
    })
}

/// Properties of a key space.
///
/// # Safety
///
/// As above; the name's buffer has `MAX_KEYSPACE_NAME_LEN` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_get_key_space_info(
    ks_hd: kvs_key_space_handle,
    ks: *mut kvs_key_space,
) -> kvs_result {
    guard(|| {
        let space = registry::space(ks_hd)?;
        crate::not_null(ks)?;
        let count = space.tree.count(..).map_err(|error| code::of(&error))?;
        let (capacity, free) = match space.capacity {
            0 => {
                let capacity = space.device.capacity();
                (capacity, capacity.saturating_sub(space.device.used()))
            }
            capacity => (capacity, capacity.saturating_sub(space.used())),
        };
        // SAFETY: checked; the name and its buffer may be NULL.
        unsafe {
            (*ks).opened = 1;
            (*ks).capacity = capacity;
            (*ks).free_size = free;
            (*ks).count = count;
            let name = (*ks).name;
            if !name.is_null() {
                if !(*name).name.is_null() {
                    write_name(&space.name, (*name).name, limits::MAX_KEYSPACE_NAME_LEN);
                }
                (*name).name_len = space.name.len() as u32;
            }
        }
        Ok(())
    })
}
