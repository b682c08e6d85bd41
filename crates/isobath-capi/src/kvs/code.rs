//! Result codes, and what the engine's errors become.

use isobath::Error;

use super::types::kvs_result::{self, *};
use crate::message;

/// A result code that is no success.
pub(crate) type Code = kvs_result;

/// The code of an engine's error, whose message is kept for the calling thread.
pub(crate) fn of(error: &Error) -> Code {
    message::set(error.to_string());
    match error {
        Error::VolumeFull { .. } => KVS_ERR_KS_CAPACITY,
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

/// The code of a result.
pub(crate) fn result(result: Result<(), Code>) -> kvs_result {
    match result {
        Ok(()) => KVS_SUCCESS,
        Err(code) => code,
    }
}
