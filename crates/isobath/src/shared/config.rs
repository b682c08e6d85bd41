//! Sizes and bounds that were fixed when the store was opened.

use std::path::PathBuf;

use super::{Durability, SegmentSize};

/// Sizes and bounds that were fixed when the store was opened.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) workers: usize,
    pub(crate) tasks: usize,
    pub(crate) depth: u32,
    pub(crate) stack_bytes: usize,
    pub(crate) sizes: SegmentSize,
    /// Alignment of what is read and written, in bytes.
    pub(crate) block_bytes: u32,
    pub(crate) fill_factor: f64,
    pub(crate) read_only: bool,
    /// Whether others may see the statistics of a store in files.
    pub(crate) publish_stats: bool,
    /// Large trees get overlays.
    pub(crate) overlays: bool,
    /// Frames that memories of overlays may have at most: half of them for each of two, while one
    /// is sealed.
    pub(crate) lent_frames: u32,
    /// Bytes that the version store may take.
    pub(crate) version_bytes: u64,
    /// Bytes of the largest transaction's record, as far as the log allows.
    pub(crate) transaction_bytes: u64,
    /// How lasting an operation is that does not say.
    pub(crate) durability: Durability,
    /// Bytes that the log of a new store is to have; none if nothing is logged.
    pub(crate) log_bytes: u64,
    /// Segments of the log area; none if nothing is logged, or on a device of
    /// its own.
    pub(crate) log_segments: u32,
    /// The path of a separate log device, as the superblock has it.
    pub(crate) log_path: PathBuf,
    /// A new store's segments are as long as fits a volume whose size is known.
    pub(crate) segments_fit_volume: bool,
    /// A new store's log takes at most a sixteenth of its volume.
    pub(crate) log_fits_volume: bool,
    /// A new store's log begins small and grows to the size that is given.
    pub(crate) log_grows: bool,
    /// The limit of the volume's bytes, where one was given, or none was asked for; else
    /// what the store says counts.
    pub(crate) limit_bytes: Option<Option<u64>>,
}
