//! Random clients of a store, the record of their calls, and its judgement: the same in simulations
//! (`simulate`) and in processes with real threads and files (`processes`).

pub(crate) mod actor;
mod calls;
mod calls_in;
pub(crate) mod data;
pub(crate) mod judge;
mod passing;
pub(crate) mod plan;
pub(crate) mod recorder;
pub(crate) mod records;
pub(crate) mod state;
mod transact;
