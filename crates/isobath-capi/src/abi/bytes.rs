//! Bytes that the library gives.

use std::ffi::c_void;

/// Most bytes of a key.
pub const ISOBATH_MAX_KEY_BYTES: usize = 1024;
/// Most bytes of a value.
pub const ISOBATH_MAX_VALUE_BYTES: u64 = 1 << 30;

const _: () = assert!(ISOBATH_MAX_KEY_BYTES == isobath::MAX_KEY_BYTES);
const _: () = assert!(ISOBATH_MAX_VALUE_BYTES == isobath::MAX_VALUE_BYTES);

/// Bytes of the library's memory, to be freed by isobath_bytes_free. `data` is NULL only where
/// nothing was found.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_bytes {
    /// Where they are.
    pub data: *mut u8,
    /// How many.
    pub length: usize,
}

/// Bytes of the program's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_slice {
    /// Where they are; may be NULL if there are none.
    pub data: *const c_void,
    /// How many.
    pub length: usize,
}

impl isobath_bytes {
    pub(crate) const NONE: isobath_bytes = isobath_bytes {
        data: std::ptr::null_mut(),
        length: 0,
    };

    /// Gives `bytes` away.
    pub(crate) fn new(bytes: Vec<u8>) -> isobath_bytes {
        let bytes = Box::leak(bytes.into_boxed_slice());
        isobath_bytes {
            data: bytes.as_mut_ptr(),
            length: bytes.len(),
        }
    }

    pub(crate) fn of(bytes: Option<Vec<u8>>) -> isobath_bytes {
        bytes.map_or(isobath_bytes::NONE, isobath_bytes::new)
    }
}

/// Frees what the library gave. Does nothing if `data` is NULL. Any thread.
///
/// # Safety
///
/// The bytes came from the library, and were not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_bytes_free(bytes: isobath_bytes) {
    if !bytes.data.is_null() {
        let slice = std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.length);
        // SAFETY: the caller guarantees that they were leaked by `new`.
        drop(unsafe { Box::from_raw(slice) });
    }
}
