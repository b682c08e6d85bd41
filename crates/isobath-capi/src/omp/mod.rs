//! Parallel compute and parallel data access for OpenMP programs (`isobath_omp.h`; paper 004,
//! sections 3.2 and 3.3).
//!
//! Compute threads (PC) are OpenMP's; their number changes between parallel regions. Data accesses
//! (PDA) are data tasks of the concurrency manager; their number per compute thread changes at any
//! time. A session measures each named region and asks its controller for both numbers. Controllers
//! are deterministic: samples in, decisions out, no clock.

mod abi;
mod budget;
mod controller;
mod log;
mod machine;
mod queueing;
mod search;
mod session;
mod settings;
#[cfg(test)]
mod tests;
mod transfer;

pub use abi::*;
