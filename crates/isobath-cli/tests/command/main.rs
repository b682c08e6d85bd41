//! Tests of the command, in one program.

#[path = "../support/mod.rs"]
mod support;

mod backup;
mod bad_input;
mod data;
mod first_hour;
mod help;
mod load;
mod log_path;
mod outputs;
mod transfer;
