//! Checkpoints: the mapping table on the volume, and the start of a recovery from it
//! (docs/protocol.md).

mod checkpoints;
pub(crate) mod format;
pub(crate) mod log_device;
mod log_extents;
#[cfg(test)]
mod log_extents_tests;
mod recovery_floor;
mod shrink;
#[cfg(test)]
mod shrink_tests;
mod superblock;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

pub(crate) use checkpoints::Checkpoints;
pub(crate) use log_device::{create_log, log_area, log_path, open_log};
pub(crate) use superblock::{
    ArrayRoot, FORMAT_VERSION, MAX_PATH_BYTES, OFFSETS as SUPERBLOCK_OFFSETS, Superblock,
    Unreadable,
};
