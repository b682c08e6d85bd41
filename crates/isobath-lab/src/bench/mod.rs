//! Benchmarks of engines: one workload, any engine, the drive's own limit
//! beside it, and result rows with units in their column names.

mod clients;
mod lookup;
mod row;
mod workload;

pub(crate) use lookup::{Data, run};
pub use lookup::{LookupPlan, LookupReport, lookup};
pub use row::{LoadRow, Row, Setting};
pub use workload::Mix;
