//! An embedded, transactional, ordered key-value engine for NVMe SSDs.
//!
//! A [`Store`] is one file (or block device, or several that data is striped over). It holds named
//! [`Tree`]s; each is an ordered map from byte strings to byte strings. One process at a time has a
//! store open for writing, with any number of threads; any number of others read it beside that one
//! ([`Options::read_only`]).
//!
//! # Open, write, read
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("people.isobath");
//! use isobath::{Options, Store};
//!
//! // The pool is a limit: memory is taken as pages come in.
//! let options = Options::new().pool_bytes(64 << 20);
//! let store = Store::open_or_create(&path, &options)?;
//! let people = store.open_or_create_tree("people")?;
//!
//! people.insert("ada", "Analytical Engine")?;
//! people.insert("grace", "compiler")?;
//! assert_eq!(people.get("ada")?, Some(b"Analytical Engine".to_vec()));
//! assert!(people.remove("ada")?);
//!
//! store.close()?; // writes a checkpoint and reports errors, which dropping the store cannot
//! # Ok(())
//! # }
//! ```
//!
//! Keys have up to [`MAX_KEY_BYTES`], values up to [`MAX_VALUE_BYTES`]; [`Tree::writer`] and
//! [`Tree::reader`] stream large ones. Keys compare as byte strings, so numbers belong into keys in
//! big-endian order.
//!
//! # Ranges
//!
//! Ranges take whatever has bytes as bounds, run in both directions, and are safe beside writers:
//!
//! ```
//! # fn main() -> Result<(), isobath::Error> {
//! # use isobath::{Options, Store};
//! # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
//! let visits = store.create_tree("visits")?;
//! for day in 1..=30u32 {
//!     visits.insert(day.to_be_bytes(), format!("{} visitors", day * 7))?;
//! }
//! let first_week = visits.range(1u32.to_be_bytes()..8u32.to_be_bytes());
//! assert_eq!(first_week.count(), 7);
//! let (day, _) = visits.range(..).next_back().transpose()?.expect("there are 30 days");
//! assert_eq!(day, 30u32.to_be_bytes());
//! assert_eq!(visits.prefix([0, 0, 0]).count(), 30);
//! # store.close()
//! # }
//! ```
//!
//! # Transactions and snapshots
//!
//! [`Store::transact`] runs a closure over all trees as one transaction and commits it. Nothing is
//! locked: if another transaction was first, the closure runs again. Its own errors roll the
//! transaction back and come out as they are.
//!
//! ```
//! # fn main() -> Result<(), isobath::Error> {
//! # use isobath::{Options, Store};
//! # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
//! use isobath::TransactionOptions;
//!
//! let stock = store.create_tree("stock")?;
//! let orders = store.create_tree("orders")?;
//! stock.insert("apples", [3])?;
//!
//! store.transact(TransactionOptions::new(), |transaction| {
//!     let apples = transaction.get(&stock, "apples")?.map_or(0, |count| count[0]);
//!     if apples > 0 {
//!         transaction.insert(&stock, "apples", [apples - 1])?;
//!         transaction.insert(&orders, "order 1", "one apple")?;
//!     }
//!     Ok::<(), isobath::Error>(())
//! })?;
//!
//! // A state that no writer changes any more:
//! let snapshot = store.snapshot()?;
//! stock.insert("apples", [9])?;
//! assert_eq!(snapshot.get(&stock, "apples")?, Some(vec![2]));
//! # drop(snapshot);
//! # store.close()
//! # }
//! ```
//!
//! A transaction reads the store as it was when it began ([`Isolation::Snapshot`]);
//! With [`Isolation::Serializable`] reads conflict, too. Changes of one record need no
//! transaction: [`Tree::update`], [`Tree::compare_and_swap`], [`Tree::pop_first`]. [`WriteBatch`]
//! changes many records at once without reading.
//!
//! # Durability
//!
//! A change is durable when the call that made it returns: it is in the write-ahead log, and the
//! drive has said that the log is flushed. Commits of many threads or tasks share a flush. After a
//! crash the next [`Store::open`] recovers every change that was acknowledged, and of each
//! transaction all or nothing. [`Durability`] relaxes that for a store ([`Options::durability`]) or
//! a transaction ([`TransactionOptions::durability`]).
//!
//! # Many operations at once
//!
//! An NVMe drive answers hundreds of reads in the time of one. Three ways to have that many under
//! way:
//!
//! - [`Tree::get_many`] reads many keys in one call.
//! - [`Store::spawn`] runs a closure as a *task*: a coroutine on one of the store's worker threads.
//!   An ordinary call that waits for the drive inside a task lets other tasks run. A task must not
//!   block its thread by other means.
//! - Futures: [`Tree::get_async`], [`Tree::range_async`] (a stream), [`Store::transact_async`] and
//!   others run on any runtime.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use isobath::{Options, Store};
//! # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
//! let squares = store.create_tree("squares")?;
//! let tasks: Vec<_> = (0..100u32)
//!     .map(|n| {
//!         let squares = squares.clone();
//!         store.spawn(move || squares.insert(n.to_be_bytes(), (n * n).to_be_bytes()))
//!     })
//!     .collect();
//! for task in tasks {
//!     task.join()??; // a panic of the task, then an error of the operation
//! }
//! let values = squares.get_many(&[7u32.to_be_bytes(), 9u32.to_be_bytes()])?;
//! assert_eq!(values[1], Some(81u32.to_be_bytes().to_vec()));
//! # store.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! The text of every error names the file, the problem and the remedy. The type says what an
//! operation can fail with:
//!
//! | operation | error |
//! | --- | --- |
//! | [`Store::create`], [`Store::open`] and those like them | [`OpenError`] |
//! | [`Store::begin`], [`Store::snapshot`], [`Transaction::commit`] | [`TransactionError`] |
//! | [`Tree::load`], [`Tree::bulk_load`], [`Loader`] | [`LoadError`] |
//! | [`Store::backup`] | [`BackupError`] |
//! | [`Store::restore`], [`Store::restore_on_volume`] | [`RestoreError`] |
//! | reading, writing and all others | [`Error`] |
//!
//! `?` makes an [`Error`] of each of them, with the same variant and message. What any operation
//! may meet, such as a page that cannot be read, is a [`StorageError`] in the group `Storage` of
//! each. After a failed write the store refuses changes ([`Error::Poisoned`]), and reads go on:
//! close it, look at the drive, open it again. [`Error::is_retryable`] says after which errors a
//! transaction may be run again.
//!
//! ```
//! # fn main() -> Result<(), isobath::Error> {
//! # use isobath::{Options, Store};
//! # let store = Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(1))?;
//! use isobath::Error;
//!
//! match store.tree("missing") {
//!     Err(Error::NoSuchTree { name }) => assert_eq!(name, "missing"),
//!     other => panic!("{other:?}"),
//! }
//! # store.close()
//! # }
//! ```
//!
//! # Features
//!
//! - `profile`: `Options::profile`, settings from the profile of a drive that `isobath probe`
//!   wrote. Off by default: it brings numerics and parsers that nothing else needs.
//! - `serde`: `Stats` and `TreeStats` can be serialized. Off by default.
//! - `tracing`: spans and events of rare work: opening, recovery, checkpoints, cleaning,
//!   growth, failed writes. Off by default.
//! - `simulation`: workers without threads, stepped in an order drawn from a seed, for tests of the
//!   engine itself. No part of the stable API.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests have threads and clocks of their own"
    )
)]

mod api;
mod backup;
mod bounds;
mod btree;
mod buffer;
mod canary;
mod checkpoint;
mod context;
mod engine;
mod error;
mod extent;
mod levels;
mod log;
mod merging;
mod node;
mod output;
mod overlay;
mod page;
mod pagestore;
mod paths;
mod recovery;
mod replay;
mod runtime;
mod salvage;
mod shared;
mod sim;
mod small;
mod sort;
mod sync;
mod trace;
mod txn;
mod types;

pub use api::{
    Change, Changes, ChangesStop, CheckReport, Committed, Compaction, CompareAndSwapError,
    EncodeKey, ExtractIf, Isolation, Key, Loader, Options, Part, Progress, Range, RangeStream,
    Savepoint, Snapshot, Stat, StatKind, Stats, Store, StoreInfo, StoreState, Transaction,
    TransactionExtractIf, TransactionOptions, TransactionRange, TransactionWriter, Tree, TreeInfo,
    TreeStats, TypedRange, TypedTree, Value, ValueReader, ValueWriter, WriteBatch,
};
pub use backup::{BackupOptions, BackupReport, RestoreReport, Watch};
pub use bounds::{KeyRange, prefix_range};
#[cfg(any(test, feature = "simulation"))]
pub use canary::Canary;
pub use engine::{OperationFuture, TaskHandle, TaskPanic};
pub use error::{
    BackupError, BackupFileError, Error, LoadError, OpenError, RestoreError, StorageError,
    TransactionError,
};
pub use isobath_flash::policy::PolicyKind;
pub use isobath_io::{Backend, DirectMode, Volume, ignore_file_size_signal};
pub use log::MAX_TRANSACTION_BYTES;
pub use output::OutputFile;
pub use page::{PAGE_SIZE, PageCorruption};
pub use pagestore::PageTrace;
pub use paths::StorePaths;
pub use runtime::{sleep_until, yield_now};
pub use salvage::{SalvageOptions, SalvageReport, SalvagedTree, salvage, salvage_volume};
pub use shared::Durability;
#[cfg(any(test, feature = "simulation"))]
pub use sim::{How, Place, Simulation, Stuck, Switch, Switches, Who};
#[cfg(any(test, feature = "simulation"))]
pub use small::Small;

pub use types::LogPosition;

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

/// Most bytes that a key can have.
pub const MAX_KEY_BYTES: usize = 1024;
/// Most bytes that a value can have: 1 GiB.
pub const MAX_VALUE_BYTES: u64 = 1 << 30;
