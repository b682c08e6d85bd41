//! The laboratory: loading real data, the export format, the demonstration,
//! workloads, engine adapters and raw I/O.
//!
//! Everything that the `isobath` command does is a function here; the command
//! itself only parses arguments and prints results. Long work reports to a
//! [`Monitor`] and can be cancelled through it.

pub mod accuracy;
pub mod advice_report;
pub mod bench;
mod bytes;
pub mod clean;
pub mod clean_analysis;
pub mod clean_report;
mod drive;
pub mod drive_model;
mod engine;
mod error;
pub mod export;
mod files;
pub mod load;
mod machine;
pub mod model_report;
mod model_report_svg;
mod monitor;
mod page_trace;
mod pipeline;
pub mod probe;
pub mod quickstart;
pub mod raw;
mod raw_sweep;
pub mod ssd;

pub use bytes::{escape, hex, text_or_hex, unhex};
pub use drive::DriveLimit;
pub use engine::{Callers, EngineConfig, EngineKind, SpaceConfig};
pub use error::LabError;
pub use isobath_io::{ByteSize, VolumeError, missing_directory};
pub use machine::{FreeSpace, Machine, cpu_time, free_space};
pub use monitor::{Monitor, Silent, Stage, Unit};
pub use raw_sweep::sweep;

/// The examples of the documentation, compiled and run as tests.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guide.md")]
    struct Guide;
}
