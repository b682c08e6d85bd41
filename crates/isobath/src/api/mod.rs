//! The public interface: stores, named trees, transactions, streams, futures.

pub(crate) mod asynchronous;
mod backup;
pub(crate) mod batch;
pub(crate) mod bulk;
pub(crate) mod catalog;
mod changes;
pub(crate) mod check;
mod info;
pub(crate) mod load;
pub(crate) mod many;
pub(crate) mod options;
mod packed;
pub(crate) mod range;
pub(crate) mod reader;
pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod stats;
pub(crate) mod store;
pub(crate) mod transaction;
pub(crate) mod tree;
pub(crate) mod tree_stats;
pub(crate) mod typed;
pub(crate) mod update;
pub(crate) mod upkeep;
pub(crate) mod value;

pub use asynchronous::RangeStream;
pub use batch::WriteBatch;
pub use changes::{Change, Changes, ChangesStop, Committed};
pub use check::CheckReport;
pub use info::{StoreInfo, StoreState};
pub use load::Loader;
pub use options::Options;
pub use range::{Part, Range};
pub use stats::{Stat, StatKind, Stats};
pub use store::{Progress, Store, TreeInfo};
pub use transaction::{
    Isolation, Savepoint, Snapshot, Transaction, TransactionExtractIf, TransactionOptions,
    TransactionRange, TransactionWriter,
};
pub use tree::Tree;
pub use tree_stats::TreeStats;
pub use typed::{EncodeKey, Key, TypedRange, TypedTree, Value};
pub use update::{CompareAndSwapError, ExtractIf};
pub use upkeep::Compaction;
pub use value::{ValueReader, ValueWriter};
