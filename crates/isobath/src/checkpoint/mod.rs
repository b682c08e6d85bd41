//! Checkpoints: the mapping table on the volume, and where a recovery from it begins (docs/decisions/0014).

mod checkpoints;
mod flush_older;
pub(crate) mod format;
mod recovery_floor;
mod superblock;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

pub(crate) use checkpoints::Checkpoints;
pub(crate) use superblock::{
    ArrayRoot, FORMAT_VERSION, MAX_PATH_BYTES, OFFSETS as SUPERBLOCK_OFFSETS, Superblock,
    Unreadable,
};
