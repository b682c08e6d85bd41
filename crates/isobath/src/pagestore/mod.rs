//! The out-of-place page store: where pages are on the volume, and which space is free.

mod allocations;
mod allocator;
pub(crate) mod chunk_frees;
mod cleaner;
mod discard;
pub(crate) mod growth;
mod history;
mod ids;
mod live;
mod page_frees;
pub(crate) mod pending_frees;
pub(crate) mod provisional;
pub(crate) mod resize;
pub(crate) mod shrink;
#[cfg(test)]
mod shrink_tests;
pub(crate) mod stall;
mod summary;
mod trace;
pub(crate) mod writeback;

pub(crate) use allocator::{
    CleaningEnd, Content, NoSegment, Placement, Request, SealedSegment, SegmentAllocator, Victim,
    page_payload, worst_case_bytes,
};
pub(crate) use ids::PageIds;
pub(crate) use summary::Entry;
pub use trace::PageTrace;
pub(crate) use writeback::flush;
pub(crate) mod summaries {
    //! Segment summaries on disk.
    pub(crate) use super::summary::{address, decode, encode, size};
}
