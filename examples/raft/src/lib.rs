//! A replicated key-value server: openraft over [`isobath_raft`], three processes or more, TCP.
//!
//! - [`registers`]: the application, keys with values, and what the entries of the log do to them.
//! - [`wire`]: what nodes and clients say to each other.
//! - [`network`]: openraft's requests to other nodes, and snapshots, of which it sends the missing
//!   files.
//! - [`server`]: a node.
//! - [`linear`]: whether the answers of a run are those of one register per key.
//! - [`mod@bench`]: writes per second.

pub mod bench;
pub mod linear;
pub mod network;
pub mod registers;
#[cfg(feature = "rocksdb")]
mod rocksdb;
pub mod server;
pub mod wire;
