//! The SNIA Key Value Storage API 1.1 over the engine (`kvs_api.h`).

mod cache;
pub(crate) mod code;
mod config;
pub(crate) mod device;
mod devices;
mod extensions;
mod filter;
mod iterator;
mod pairs;
pub(crate) mod registry;
pub(crate) mod request;
pub(crate) mod space;
pub mod types;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::message;
use code::Code;
use types::kvs_result;

pub use devices::*;
pub use extensions::*;
pub use pairs::*;

/// Runs the work of a function for C: a panic becomes an error.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Code>) -> kvs_result {
    let (done, is_told) = message::watch(|| catch_unwind(AssertUnwindSafe(work)));
    match done {
        Ok(result) => {
            // Else the message would be that of an earlier call.
            if let (Err(code), false) = (&result, is_told) {
                message::set_fixed(code::sentence(*code));
            }
            code::result(result)
        }
        Err(payload) => {
            message::set(message::of_panic(&*payload));
            kvs_result::KVS_ERR_SYS_IO
        }
    }
}
