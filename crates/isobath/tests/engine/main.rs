//! Tests of the engine through its public API, in one program: a test of its own is in
//! `tests/` needs the process for itself.

#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod api;
mod async_runtimes;
mod backup;
mod backup_beside_waiting;
mod changes;
mod compact;
mod corruption;
mod drops;
mod faults;
mod growth;
mod growth_beside;
mod large_transactions;
mod large_values;
mod limits;
mod loading;
mod log_full;
mod long_reads;
mod moved_chunks;
mod overlays;
mod policies;
mod published;
mod ranges;
mod readers;
mod recovery;
mod salvage;
mod separate_log;
mod simulation;
mod small_first;
mod space;
mod store;
mod streams;
mod switches;
mod transaction_conflicts;
mod transaction_histories;
mod transaction_model;
mod transaction_prefixes;
mod transaction_recovery;
mod transaction_sizes;
mod transactions;
mod tree_states;
mod tree_stats;
mod tree_visibility;
mod turns;
mod typed;
mod visibility;
