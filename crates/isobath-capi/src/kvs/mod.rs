//! The SNIA Key Value Storage API 1.1 over the engine (`kvs_api.h`).

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

use code::Code;
use types::kvs_result;

pub use devices::*;
pub use extensions::*;
pub use pairs::*;

/// Runs the work of a function for C: a panic becomes an error.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Code>) -> kvs_result {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => code::result(result),
        Err(payload) => {
            crate::message::set(crate::message::of_panic(&*payload));
            kvs_result::KVS_ERR_SYS_IO
        }
    }
}
