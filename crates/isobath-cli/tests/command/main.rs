//! Tests of the command, in one program.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read and write files as they like"
)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../../../../xtask/skipped.rs"]
mod skipped;

mod backup;
mod bad_input;
mod book;
mod data;
mod first_hour;
mod follow;
mod help;
mod info;
mod interrupt;
mod load;
mod log_path;
mod nvme;
mod outputs;
mod transfer;
mod words;
