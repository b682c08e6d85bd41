//! The simulator of paper 003 (section 6.1.1): a log-structured space that holds page numbers
//! instead of pages.

mod config;
mod engine;
mod report;

pub use config::{Duplicates, PageSizes, SimConfig, SimError};
pub use engine::{RunLength, Simulator, simulate, simulate_workload};
pub use report::{SimReport, Window};
