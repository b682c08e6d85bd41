//! `kvs_files.h`: directory trees in a device or a store. The header is generated from these
//! modules; a test compares.

pub mod change;
pub mod data;
pub mod open;
pub mod result;

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use result::{Failure, kvs_files_result};

/// Runs the work of a function for C: errors and panics become a code, and their message is kept.
fn guard(work: impl FnOnce() -> Result<(), Failure>) -> kvs_files_result {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => kvs_files_result::KVS_FILES_OK,
        Ok(Err(failure)) => failure.tell(),
        Err(payload) => {
            crate::message::set(crate::message::of_panic(&*payload));
            kvs_files_result::KVS_FILES_ERR_PANIC
        }
    }
}

/// The object behind a pointer that C gives.
///
/// # Safety
///
/// The pointer is NULL or one that the library gave and that was not freed.
unsafe fn object<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    given!(pointer.as_ref()).ok_or(Failure::Null)
}

/// Bytes of a path, name or text that C gives.
///
/// # Safety
///
/// It is NULL or ends with a zero, and can be read as long as the result lives.
unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a [u8], Failure> {
    crate::not_null(pointer)?;
    Ok(given!(CStr::from_ptr(pointer)).to_bytes())
}

/// A path of the file system outside.
///
/// # Safety
///
/// As for [`text`].
unsafe fn host_path<'a>(pointer: *const c_char) -> Result<&'a std::path::Path, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = given!(text(pointer)?);
    Ok(std::path::Path::new(std::ffi::OsStr::from_bytes(bytes)))
}
