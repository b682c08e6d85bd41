//! What every part may know: sizes, addresses, counters.

mod address;
mod config;
mod counters;
mod reserved;
mod run;
mod sizes;

pub(crate) use address::{
    Address, GRANULE, MAX_LENGTH, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MIN_SEGMENT_BYTES,
};
pub(crate) use config::Config;
pub(crate) use counters::Counters;
pub(crate) use reserved::ReservedWords;
pub(crate) use run::Run;
pub(crate) use sizes::SegmentSizes;
