//! The message of the calling thread's last failed call.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};

/// A text for C.
enum Text {
    Own(CString),
    Fixed(&'static CStr),
}

thread_local! {
    static LAST: RefCell<Text> = const { RefCell::new(Text::Fixed(c"")) };
    /// Whether the call that runs has kept a message.
    static IS_NEW: Cell<bool> = const { Cell::new(false) };
}

fn keep(text: Text) {
    // A thread that ends asks no more.
    let _ = LAST.try_with(|last| last.replace(text));
    let _ = IS_NEW.try_with(|is_new| is_new.set(true));
}

/// Keeps `message` for the calling thread.
pub(crate) fn set(message: impl Into<String>) {
    let text: String = message.into().replace('\0', " ");
    keep(Text::Own(CString::new(text).unwrap_or_default()));
}

/// Keeps a message that takes no memory.
pub(crate) fn set_fixed(message: &'static CStr) {
    keep(Text::Fixed(message));
}

/// Does the work of a call; whether it has kept a message. Calls inside of callbacks have their
/// own.
pub(crate) fn watch<T>(work: impl FnOnce() -> T) -> (T, bool) {
    let replace = |value| IS_NEW.try_with(|is_new| is_new.replace(value));
    let outer = replace(false).unwrap_or(false);
    let done = work();
    (done, replace(outer).unwrap_or(true))
}

/// The message, valid until the thread's next call that fails.
pub(crate) fn get() -> *const c_char {
    let get = |last: &RefCell<Text>| match &*last.borrow() {
        Text::Own(text) => text.as_ptr(),
        Text::Fixed(text) => text.as_ptr(),
    };
    LAST.try_with(get).unwrap_or(c"".as_ptr())
}

/// The message of a panic.
pub(crate) fn of_panic(payload: &(dyn std::any::Any + Send)) -> String {
    let said = payload
        .downcast_ref::<&str>()
        .map(|said| (*said).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    format!("panic: {}", said.unwrap_or_default())
}
