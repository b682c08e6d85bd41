//! LSM trees under the MQSSD model (section 5).
//!
//! [`PrintedLsm`] is the paper's own analysis. [`LsmStore`] and [`EngineModel`] are what an advisor
//! can rely on: discrete levels, queries that stop when they have found their key, the part of
//! compaction that no thread can overlap, and constants from a few runs of the engine itself.

mod engine;
mod levels;
mod movement;
mod printed;

pub use engine::{CalibrationError, Cell, CompactionCosts, EngineModel, Mix, QueryCosts};
pub use levels::{Layout, LayoutWork, LsmStore};
pub use movement::{MovementOutcome, MovementSimulation};
pub use printed::{AccessCosts, PrintedLsm};
