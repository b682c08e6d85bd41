//! Functions beyond the standard: memory, messages, polling, limits and counters.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::types::*;
use super::{guard, registry};
use crate::message;
use kvs_result::*;

/// The least alignment of memory that is handed out, in bytes.
const MIN_ALIGNMENT: usize = align_of::<u128>();

/// Memory, or NULL if there is none, or the alignment is no power of two.
#[unsafe(no_mangle)]
pub extern "C" fn _kvs_malloc(
    size_bytes: usize,
    alignment: usize,
    _file: *const c_char,
) -> *mut c_void {
    let alignment = alignment.max(MIN_ALIGNMENT);
    let Some(size) = size_bytes.max(1).checked_next_multiple_of(alignment) else {
        return std::ptr::null_mut();
    };
    match alignment.is_power_of_two() {
        // SAFETY: a power of two, and a size that is a multiple of it.
        true => unsafe { libc::aligned_alloc(alignment, size) },
        false => std::ptr::null_mut(),
    }
}

/// As [`_kvs_malloc`], filled with zeros.
#[unsafe(no_mangle)]
pub extern "C" fn _kvs_zalloc(
    size_bytes: usize,
    alignment: usize,
    file: *const c_char,
) -> *mut c_void {
    let memory = _kvs_malloc(size_bytes, alignment, file);
    if !memory.is_null() {
        // SAFETY: it has that size at least.
        unsafe { memory.cast::<u8>().write_bytes(0, size_bytes) };
    }
    memory
}

/// Frees what the two give.
///
/// # Safety
///
/// `buf` is what one of them gave, and was not freed, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _kvs_free(buf: *mut c_void, _file: *const c_char) {
    given!(libc::free(buf));
}

/// The name of a result code.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_errstr(result: i32) -> *const c_char {
    const NAMES: [&std::ffi::CStr; 25] = [
        c"KVS_SUCCESS",
        c"KVS_ERR_BUFFER_SMALL",
        c"KVS_ERR_DEV_CAPAPCITY",
        c"KVS_ERR_DEV_NOT_EXIST",
        c"KVS_ERR_KS_CAPACITY",
        c"KVS_ERR_KS_EXIST",
        c"KVS_ERR_KS_INDEX",
        c"KVS_ERR_KS_NAME",
        c"KVS_ERR_KS_NOT_EXIST",
        c"KVS_ERR_KS_NOT_OPEN",
        c"KVS_ERR_KS_OPEN",
        c"KVS_ERR_ITERATOR_FILTER_INVALID",
        c"KVS_ERR_ITERATOR_MAX",
        c"KVS_ERR_ITERATOR_NOT_EXIST",
        c"KVS_ERR_ITERATOR_OPEN",
        c"KVS_ERR_KEY_LENGTH_INVALID",
        c"KVS_ERR_KEY_NOT_EXIST",
        c"KVS_ERR_OPTION_INVALID",
        c"KVS_ERR_PARAM_INVALID",
        c"KVS_ERR_SYS_IO",
        c"KVS_ERR_VALUE_LENGTH_INVALID",
        c"KVS_ERR_VALUE_OFFSET_INVALID",
        c"KVS_ERR_VALUE_OFFSET_MISALIGNED",
        c"KVS_ERR_VALUE_UPDATE_NOT_ALLOWED",
        c"KVS_ERR_DEV_NOT_OPENED",
    ];
    let name = usize::try_from(result).ok().and_then(|at| NAMES.get(at));
    name.map_or(c"no result code of this interface".as_ptr(), |name| {
        name.as_ptr()
    })
}

/// Calls the callbacks of what the calling thread issued and has completed; how many, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_get_ioevents(ks_hd: kvs_key_space_handle, maxevents: c_int) -> i32 {
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let mut space = None;
        // Keeps a message, as other calls do.
        guard(|| {
            space = Some(registry::space(ks_hd)?);
            Ok(())
        });
        let Some(space) = space else {
            return -1;
        };
        if !space.device.is_polled() {
            return 0;
        }
        let queues = space.device.queues();
        let mut events = 0;
        while events < maxevents {
            let Some(request) = queues.port.poll() else {
                break;
            };
            request.complete();
            events += 1;
        }
        events
    }));
    polled.unwrap_or(-1)
}

/// The message of the calling thread's last failed call.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_isobath_last_error() -> *const c_char {
    message::get()
}

/// Sets the limits of parallel data access.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_isobath_set_limits(
    dev_hd: kvs_device_handle,
    queue_depth: u32,
    data_tasks: u32,
) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        if queue_depth == 0 || data_tasks == 0 {
            return Err(KVS_ERR_PARAM_INVALID);
        }
        device.limits.set(queue_depth, data_tasks);
        Ok(())
    })
}

/// Sets whether all threads share one data channel.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_isobath_set_channel(dev_hd: kvs_device_handle, channel: u32) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        match channel {
            0 => device.set_serial(false),
            1 => device.set_serial(true),
            _ => return Err(KVS_ERR_OPTION_INVALID),
        }
        Ok(())
    })
}

/// The numbers of all threads, or the calling one's.
///
/// # Safety
///
/// `counters` is valid or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_isobath_get_counters(
    dev_hd: kvs_device_handle,
    of_this_thread: u8,
    counters: *mut kvs_isobath_counters,
) -> kvs_result {
    guard(|| {
        let device = registry::device(dev_hd)?;
        crate::not_null(counters)?;
        let (numbers, threads) = match of_this_thread != 0 {
            true => (device.queues().port.counters(), 1),
            false => device.counters(),
        };
        let answer = kvs_isobath_counters {
            issued: numbers.issued,
            in_flight: numbers.in_flight,
            completed: numbers.completed,
            failed: numbers.failed,
            in_flight_max: numbers.in_flight_max,
            waits: numbers.waits,
            bytes: numbers.bytes,
            threads,
            queue_depth: device.limits.depth(),
            data_tasks: device.limits.data_tasks(),
            channel: u32::from(device.is_serial()),
        };
        given!(counters.write(answer));
        Ok(())
    })
}
