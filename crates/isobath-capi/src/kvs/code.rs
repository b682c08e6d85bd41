//! Result codes, and their mapping from the engine's errors.

use std::ffi::CStr;

use isobath::Error;

use super::types::kvs_result::{self, *};
use crate::message;

/// A result code that is no success.
pub(crate) type Code = kvs_result;

/// The code of an engine's error, whose message is kept for the calling thread.
pub(crate) fn of(error: &Error) -> Code {
    message::set(error.to_string());
    match error {
        error if error.is_no_space() => KVS_ERR_KS_CAPACITY,
        Error::KeyTooLong { .. } => KVS_ERR_KEY_LENGTH_INVALID,
        Error::ValueTooLong { .. } => KVS_ERR_VALUE_LENGTH_INVALID,
        Error::TreeDropped { .. } | Error::NoSuchTree { .. } => KVS_ERR_KS_NOT_EXIST,
        Error::Closed => KVS_ERR_DEV_NOT_OPENED,
        _ => KVS_ERR_SYS_IO,
    }
}

/// `code`, and why.
pub(crate) fn because(code: Code, reason: impl Into<String>) -> Code {
    message::set(reason);
    code
}

/// The sentence of a code alone.
pub(crate) fn sentence(code: Code) -> &'static CStr {
    match code {
        KVS_SUCCESS => c"",
        KVS_ERR_BUFFER_SMALL => c"the buffer is too short",
        KVS_ERR_DEV_CAPAPCITY => c"the device has not so many bytes that no key space has",
        KVS_ERR_DEV_NOT_EXIST => c"the device's handle is NULL, closed, or none",
        KVS_ERR_KS_CAPACITY => c"there is no space left",
        KVS_ERR_KS_EXIST => c"there is a key space of that name",
        KVS_ERR_KS_INDEX => c"there is no key space of that index; the first one has index 1",
        KVS_ERR_KS_NAME => c"a key space's name has 1 to 255 bytes, none of which is 0",
        KVS_ERR_KS_NOT_EXIST => c"there is no such key space",
        KVS_ERR_KS_NOT_OPEN => c"the key space is closed",
        KVS_ERR_KS_OPEN => c"the key space is open already",
        KVS_ERR_ITERATOR_FILTER_INVALID => c"the filter's pattern has bits that its mask has not",
        KVS_ERR_ITERATOR_MAX => c"a device has at most 16 iterators",
        KVS_ERR_ITERATOR_NOT_EXIST => c"the key space has no such iterator",
        KVS_ERR_ITERATOR_OPEN => c"the key space has an iterator with that filter",
        KVS_ERR_KEY_LENGTH_INVALID => c"a key has 4 to 255 bytes",
        KVS_ERR_KEY_NOT_EXIST => c"the key does not exist",
        KVS_ERR_OPTION_INVALID => c"an option has a value that there is not",
        KVS_ERR_PARAM_INVALID => c"a pointer is NULL, or a number is none that is allowed",
        KVS_ERR_SYS_IO => c"the operation has failed",
        KVS_ERR_VALUE_LENGTH_INVALID => c"the value has more bytes than the device's max_value",
        KVS_ERR_VALUE_OFFSET_INVALID => {
            c"the offset is not less than the value's length, or not 0 for storing"
        }
        KVS_ERR_VALUE_OFFSET_MISALIGNED => c"the offset is no multiple of 512",
        KVS_ERR_VALUE_UPDATE_NOT_ALLOWED => c"the key has a value already",
        KVS_ERR_DEV_NOT_OPENED => c"the device is closed, or being closed",
    }
}

/// The code of a result.
pub(crate) fn result(result: Result<(), Code>) -> kvs_result {
    match result {
        Ok(()) => KVS_SUCCESS,
        Err(code) => code,
    }
}
