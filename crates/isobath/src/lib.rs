//! The Isobath engine: an embedded, transactional, ordered key-value store for
//! NVMe SSDs.

mod asynchronous;
mod backup;
mod batch;
mod bounds;
mod btree;
mod buffer;
mod bulk;
mod canary;
mod catalog;
mod check;
mod context;
mod engine;
mod error;
mod extent;
mod load;
mod log;
mod many;
mod options;
mod output;
mod page;
mod pagestore;
mod paths;
mod range;
mod recovery;
mod runtime;
mod salvage;
mod scan;
mod sched;
mod sim;
mod small;
mod sort;
mod stats;
mod store;
mod sync;
mod task;
mod terms;
mod transaction;
mod tree;
mod txn;
mod update;
mod value;

pub use asynchronous::RangeStream;
pub use backup::{BackupOptions, BackupReport, RestoreReport, Watch};
pub use batch::WriteBatch;
pub use bounds::KeyRange;
#[cfg(any(test, feature = "simulation"))]
pub use canary::Canary;
pub use check::CheckReport;
pub use error::{BackupFault, Error};
pub use isobath_flash::policy::PolicyKind;
pub use isobath_io::{Backend, DirectMode, Volume};
pub use load::Loader;
pub use log::{Durability, MAX_TRANSACTION_BYTES};
pub use options::Options;
pub use output::OutputFile;
pub use page::{PAGE_SIZE, PageFault};
pub use pagestore::PageTrace;
pub use paths::StorePaths;
pub use range::Range;
pub use salvage::{SalvageOptions, SalvageReport, SalvagedTree, salvage, salvage_volume};
#[cfg(any(test, feature = "simulation"))]
pub use sim::{How, Place, Simulation, Stuck, Switch, Switches, Who};
#[cfg(any(test, feature = "simulation"))]
pub use small::Small;
pub use stats::Stats;
pub use store::{Progress, Store, TreeInfo};
pub use task::{OperationFuture, TaskHandle, TaskPanic, sleep_until, yield_now};
pub use transaction::{
    Isolation, Savepoint, Snapshot, Transaction, TransactionOptions, TransactionRange,
    TransactionWriter,
};
pub use tree::Tree;
pub use update::CompareAndSwapError;
pub use value::{ValueReader, ValueWriter};

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// Most bytes that a key can have.
pub const MAX_KEY_BYTES: usize = 1024;
/// Most bytes that a value can have: 1 GiB.
pub const MAX_VALUE_BYTES: u64 = 1 << 30;
