//! Opening: what the superblocks, the last checkpoint and the log behind it say. `replay` brings
//! the pages up to that.

mod as_far;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod compare;
pub(crate) mod open;
mod opening;
mod readers;
pub(crate) mod scan;
pub(crate) mod unflushed_chunks;

pub(crate) use as_far::AsFar;
pub(crate) use open::{EngineParts, create, open, read_superblock};
pub(crate) use opening::Opening;
use readers::Beside;
pub(crate) use readers::{keep_log, overlay, pin_newest};
pub(crate) use scan::{
    Base as LogBase, Loads, Plan, Scan as LogScan, reader as log_reader, unknown_record,
};
