//! Opening: what the superblocks, the last checkpoint and the log behind it say, and bringing the pages up to that
//! (docs/decisions/0014).

#[cfg(any(test, feature = "simulation"))]
pub(crate) mod compare;
pub(crate) mod open;
mod opening;
mod readers;
mod redo;
pub(crate) mod scan;
pub(crate) mod unflushed_chunks;

#[cfg(any(test, feature = "simulation"))]
pub(crate) use open::Opened;
pub(crate) use open::{create, mark_open, open, read_superblock};
pub(crate) use opening::Opening;
use readers::Beside;
pub(crate) use readers::{keep_log, overlay, pin_newest};
pub(crate) use scan::{Base as LogBase, Loads, Plan, Scan as LogScan, reader as log_reader};
