//! The out-of-place page store: where pages are on the volume, and which space is free.

mod address;
mod allocator;
pub(crate) mod checkpoint;
mod history;
mod ids;
mod reserved;
mod sizes;
mod summary;
mod superblock;
mod trace;

pub(crate) use address::{
    Address, GRANULE, MAX_LENGTH, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MIN_SEGMENT_BYTES,
};
pub(crate) use allocator::{
    CleaningEnd, Content, NoSegment, Placement, Request, SealedSegment, SegmentAllocator, Victim,
    page_payload, worst_case_bytes,
};
pub(crate) use ids::PageIds;
pub(crate) use reserved::ReservedWords;
pub(crate) use sizes::SegmentSizes;
pub(crate) use summary::Entry;
pub(crate) use superblock::{
    ArrayRoot, FORMAT_VERSION, MAX_PATH_BYTES, OFFSETS as SUPERBLOCK_OFFSETS, Run, Superblock,
    Unreadable,
};
pub use trace::PageTrace;
pub(crate) mod summaries {
    //! Segment summaries on disk.
    pub(crate) use super::summary::{address, decode, encode, size};
}
