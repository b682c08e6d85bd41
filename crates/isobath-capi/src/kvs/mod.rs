//! The SNIA Key Value Storage API 1.1 over the engine (`kvs_api.h`).

mod code;
mod config;
mod device;
mod devices;
mod extensions;
mod filter;
mod iterator;
mod pairs;
mod registry;
mod request;
mod space;
pub mod types;

use std::panic::{AssertUnwindSafe, catch_unwind};

use code::Code;
use types::kvs_result;

pub use devices::*;
pub use extensions::*;
pub use pairs::*;

/// Runs the work of a function for C: a panic becomes an error.
fn guard(work: impl FnOnce() -> Result<(), Code>) -> kvs_result {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => code::result(result),
        Err(payload) => {
            crate::message::set(crate::message::of_panic(&*payload));
            kvs_result::KVS_ERR_SYS_IO
        }
    }
}
