//! `isobath.h`: the engine for C and C++. The header is generated from these modules; a test
//! compares.
//!
//! Objects are opaque and freed by their own function. A store that was closed stays valid until it
//! is freed: calls on it and on its trees answer `ISOBATH_CLOSED`. Memory that the library gives is
//! freed by the library's functions.

pub mod admin;
pub mod batch;
pub mod bytes;
pub mod changes;
pub mod iterator;
pub mod options;
pub mod queue;
pub mod status;
pub mod store;
pub mod transaction;
pub mod tree;
pub mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};

use isobath::Error;
use status::{Failure, isobath_status};

/// Runs the work of a function for C: errors and panics become a status, and their message is kept.
fn guard(work: impl FnOnce() -> Result<isobath_status, Failure>) -> isobath_status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.tell(),
        Err(payload) => {
            crate::message::set(crate::message::of_panic(&*payload));
            isobath_status::ISOBATH_PANIC
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

/// As [`object`], to be changed.
///
/// # Safety
///
/// As for [`object`], and no other thread uses it.
unsafe fn object_mut<'a, T>(pointer: *mut T) -> Result<&'a mut T, Failure> {
    given!(pointer.as_mut()).ok_or(Failure::Null)
}

/// Gives C an object.
///
/// # Safety
///
/// `out` can be written.
unsafe fn give<T>(out: *mut *mut T, value: T) {
    given!(out.write(Box::into_raw(Box::new(value))));
}

/// Frees what C was given.
///
/// # Safety
///
/// As for [`object`]; nothing uses it any more.
unsafe fn free<T>(pointer: *mut T) {
    if pointer.is_null() {
        return;
    }
    // SAFETY: the caller guarantees that it came from `give`.
    let boxed = unsafe { Box::from_raw(pointer) };
    // A panic must not cross into C, and freeing has no error.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(boxed)));
}

/// Bytes that C gives: `length` at `data`, which may be NULL if that is 0.
///
/// # Safety
///
/// They can be read as long as the result lives.
unsafe fn bytes_of<'a>(data: *const std::ffi::c_void, length: usize) -> Result<&'a [u8], Failure> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::Null),
        (false, _) => Ok(given!(std::slice::from_raw_parts(data.cast(), length))),
    }
}

/// A string that C gives.
///
/// # Safety
///
/// It is NULL or ends with a zero, and can be read as long as the result lives.
unsafe fn text_of<'a>(text: *const std::ffi::c_char) -> Result<&'a str, Failure> {
    crate::not_null(text)?;
    let text = given!(std::ffi::CStr::from_ptr(text));
    text.to_str()
        .map_err(|_| Failure::Argument("the text is not UTF-8"))
}

/// A path that C gives.
///
/// # Safety
///
/// As for [`text_of`].
unsafe fn path_of(path: *const std::ffi::c_char) -> Result<std::path::PathBuf, Failure> {
    use std::os::unix::ffi::OsStrExt;
    crate::not_null(path)?;
    let path = given!(std::ffi::CStr::from_ptr(path));
    Ok(std::ffi::OsStr::from_bytes(path.to_bytes()).into())
}

/// Several paths.
///
/// # Safety
///
/// `count` pointers can be read, each as for [`path_of`].
unsafe fn paths_of(
    paths: *const *const std::ffi::c_char,
    count: usize,
) -> Result<Vec<std::path::PathBuf>, Failure> {
    crate::not_null(paths)?;
    if count == 0 {
        return Err(Failure::Argument("at least one path is needed"));
    }
    (0..count)
        .map(|at| given!(path_of(*paths.add(at))))
        .collect()
}

/// `ISOBATH_OK`, or an error's status.
fn done(result: Result<(), impl Into<Error>>) -> Result<isobath_status, Failure> {
    result?;
    Ok(isobath_status::ISOBATH_OK)
}

/// `ISOBATH_OK`, or `ISOBATH_NOT_FOUND`.
fn found(is_there: bool) -> isobath_status {
    match is_there {
        true => isobath_status::ISOBATH_OK,
        false => isobath_status::ISOBATH_NOT_FOUND,
    }
}
