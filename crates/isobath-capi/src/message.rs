//! The message of the calling thread's last failed call.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps `message` for the calling thread.
pub(crate) fn set(message: impl Into<String>) {
    let text: String = message.into().replace('\0', " ");
    let text = CString::new(text).unwrap_or_default();
    // A thread that ends asks no more.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// The message, valid until the thread's next call that fails.
pub(crate) fn get() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// What a panic said.
pub(crate) fn of_panic(payload: &(dyn std::any::Any + Send)) -> String {
    let said = payload
        .downcast_ref::<&str>()
        .map(|said| (*said).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    format!("panic: {}", said.unwrap_or_default())
}
