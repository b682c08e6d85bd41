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

pub mod abi;
mod concurrency;
pub mod files;
pub mod kvs;
mod message;
pub mod omp;
