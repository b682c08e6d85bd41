//! The laboratory: loading real data, the export format, the demonstration,
//! workloads, engine adapters and raw I/O.
//!
//! Everything that the `isobath` command does is a function here; the command
//! itself only parses arguments and prints results. Long work reports to a
//! [`Monitor`] and can be cancelled through it.
//!
//! ```
//! use isobath::{Options, Store};
//! use isobath_lab::Silent;
//! use isobath_lab::load::{LineFormat, Lines, OnBad};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("lakes.tsv");
//! std::fs::write(&path, "Erie\t64\nBaikal\t1642\n")?;
//! let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
//! let lakes = store.create_tree("lakes")?;
//! let loaded = Lines::open(Some(&path), &Silent)?.load(&lakes, LineFormat::Raw, OnBad::Stop)?;
//! assert_eq!(loaded.records, 2);
//! assert_eq!(lakes.first()?, Some((b"Baikal".to_vec(), b"1642".to_vec())));
//! # store.close()?;
//! # Ok(())
//! # }
//! ```

pub mod accuracy;
pub mod advice_report;
pub mod bench;
mod bytes;
pub mod calibrate;
pub mod clean;
pub mod clean_analysis;
pub mod clean_compare;
pub mod clean_report;
mod clean_row;
mod csv_table;
pub mod drive_model;
mod engine;
mod error;
pub mod export;
mod files;
pub mod load;
mod machine;
pub mod model_report;
mod monitor;
mod names;
pub mod overlay;
mod page_trace;
pub mod paper;
mod parallel;
mod pipeline;
pub mod probe;
pub mod quickstart;
pub mod raw;
mod raw_sweep;
mod read_limit;
mod report;
pub mod ssd;
mod synced;
mod system;
pub mod vssd;
mod write_limit;

pub use bytes::{escape, escape_controls, hex, text_or_hex, unescape, unhex};
pub use engine::{
    Callers, DriveProfile, DriveState, EngineConfig, EngineKind, IsolationLevel, Schema,
    SimulatedDrive, SpaceConfig, Tuning,
};
pub use error::LabError;
pub use isobath_io::{ByteSize, VolumeError, ignore_file_size_signal, is_store_file, partial_path};
pub use machine::{FreeSpace, Machine, cpu_time, free_space};
pub(crate) use monitor::Unseen;
pub use monitor::{Monitor, Silent, Stage, Unit};
pub use raw_sweep::sweep;
pub use report::{Sheet, SheetColumn, separated};
pub use write_limit::WriteLimit;
