//! The C interfaces of Isobath.
//!
//! [`abi`] is `isobath.h`, the engine for C and C++. [`kvs`] is `kvs_api.h`, the SNIA Key Value
//! Storage API 1.1, over the same engine. Both issue asynchronous calls through the concurrency
//! manager. [`omp`] is `isobath_omp.h`, which chooses numbers of threads for OpenMP programs,
//! [`files`] is `kvs_files.h`: directory trees in a device.
//!
//! No panic crosses the boundary: each function catches what its work panics with and answers with
//! an error code. Messages are kept per thread (`isobath_last_error`).

// Functions for C have unmangled names and take what C gives; objects are opaque to it.
#![allow(unsafe_code, non_camel_case_types, missing_debug_implementations)]

/// Uses what a function for C was given.
///
/// Every function for C asks the program to keep what its `# Safety` section says: a pointer to an
/// object is NULL or one that the library gave and that was not freed; bytes, texts and lists can
/// be read as far as their lengths say, and results can be written, unless the pointer is NULL. An
/// object that is changed or freed is in no other call, and what an asynchronous request names
/// stays until its completion.
/// Helpers (`object`, `bytes_of`, `not_null` and their kind) refuse NULL before anything is read or
/// written; the library cannot check the rest. Code that relies on more than this has an `unsafe`
/// block of its own with its reason.
macro_rules! given {
    ($($work:tt)*) => {{
        // SAFETY: the program keeps these promises, and NULL was refused before.
        #[allow(unused_unsafe, reason = "helpers use each other")]
        unsafe {
            $($work)*
        }
    }};
}

pub mod abi;
mod concurrency;
pub mod files;
pub mod kvs;
mod message;
pub mod omp;

/// A pointer that must not be NULL is; each interface has its own answer.
struct Null;

impl From<Null> for abi::status::Failure {
    fn from(_: Null) -> abi::status::Failure {
        abi::status::Failure::Null
    }
}

impl From<Null> for files::result::Failure {
    fn from(_: Null) -> files::result::Failure {
        files::result::Failure::Null
    }
}

impl From<Null> for kvs::types::kvs_result {
    fn from(_: Null) -> kvs::types::kvs_result {
        kvs::types::kvs_result::KVS_ERR_PARAM_INVALID
    }
}

/// Refuses a pointer that is NULL.
fn not_null<T>(pointer: *const T) -> Result<(), Null> {
    match pointer.is_null() {
        true => Err(Null),
        false => Ok(()),
    }
}
