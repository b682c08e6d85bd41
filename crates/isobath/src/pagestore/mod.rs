//! The out-of-place page store: where pages are on the volume, and which space is free.

mod allocations;
mod allocator;
mod chunk_frees;
mod cleaner;
mod discard;
mod growth;
mod history;
mod ids;
mod live;
mod page_frees;
mod page_store;
mod pending_frees;
mod pins;
mod provisional;
mod resize;
mod shrink;
mod space;
mod stall;
mod summary;
mod trace;
mod worker_tasks;
mod writeback;

pub(crate) use allocator::{
    CleaningEnd, Content, NoSegment, Placement, Request, SealedSegment, SegmentAllocator, Victim,
    page_payload, worst_case_bytes,
};
pub(crate) use growth::{MAX_GROW_BYTES, NotGrown, first_segments};
pub(crate) use ids::PageIds;
pub(crate) use page_store::{LowerParts, PageStore, Pins};
pub(crate) use shrink::{Fence, MAX_IDLE_LOOKS, POLL};
pub(crate) use stall::PERIOD as STALL_PERIOD;
pub(crate) use summary::Entry;
pub use trace::PageTrace;
pub(crate) use worker_tasks::{WRITERS, WRITING_TASKS};
pub(crate) mod summaries {
    //! Segment summaries on disk.
    pub(crate) use super::summary::{address, decode, encode, size};
}
