//! The simulated SSD: a page-mapped flash translation layer over superblocks, cleaned by any policy
//! of this crate.
//!
//! [`FlashDevice`] is a pure state machine: a caller hands it reads, writes, trims and flushes,
//! each with a virtual time, and gets data and completion times. Where page contents live is the
//! business of a [`PageData`].

mod config;
mod data;
mod device;
mod timing;

pub use config::{FlashConfig, FlashError};
pub use data::{MemoryData, NoData, PageData};
pub use device::{FlashDevice, FlashState, Smart};
pub use timing::{Nanos, Timing};
