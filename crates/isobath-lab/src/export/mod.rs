//! Export and import: all trees of a store in a format that does not depend on
//! the store's own (`docs/export-format.md`).

mod block;
mod read;
mod write;

use serde::Serialize;

pub use read::ImportFile;
pub use write::{ExportPlan, export};

/// The format that this version writes, and the newest that it reads.
pub const EXPORT_FORMAT: u16 = 1;

/// Values longer than this get blocks of their own, so that neither side holds
/// a large value in memory.
const LARGE_VALUE: u64 = 256 << 10;
/// Bytes of a large value per block.
const VALUE_PART: usize = 1 << 20;
/// Records are collected up to this many bytes before a block is written.
const RECORDS_BLOCK: usize = 1 << 20;

/// Counts of an export or import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Transferred {
    /// Trees.
    pub trees: u64,
    /// Records of all trees.
    pub records: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Bytes of the export file.
    pub file_bytes: u64,
}

/// Counts of one tree, as its end block states them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    records: u64,
    key_bytes: u64,
    value_bytes: u64,
}

impl Counts {
    fn record(&mut self, key: usize, value: u64) {
        self.records += 1;
        self.key_bytes += key as u64;
        self.value_bytes += value;
    }

    fn add_to(self, total: &mut Transferred) {
        total.trees += 1;
        total.records += self.records;
        total.key_bytes += self.key_bytes;
        total.value_bytes += self.value_bytes;
    }
}
