//! Storage for [openraft] on [Isobath](isobath): a Raft log, a state machine, and snapshots.
//!
//! [`open`] opens the storage of one node, a directory, and returns what [`openraft::Raft::new`]
//! takes. The program brings an [`Application`]: its trees, and what a request does to them.
//!
//! - Votes and entries are on the drive before openraft hears of them.
//! - Entries are applied in transactions together with the id of the last of them. These are not
//!   synced: after a crash openraft applies from the log what the state lacks.
//! - Purging and truncating the log are range deletes.
//! - A snapshot is a chain of backup files, of which a receiver gets those that it lacks. A crash
//!   while it is installed leaves the old state or the new one.
//!
//! ```
//! use isobath::{Options, Store, Transaction, Tree};
//! use openraft::BasicNode;
//! use serde::{Deserialize, Serialize};
//!
//! /// A request: a word to count.
//! #[derive(Debug, Clone, Serialize, Deserialize)]
//! pub struct Word(String);
//!
//! /// The answer: how often it was counted before.
//! #[derive(Debug, Clone, Default, Serialize, Deserialize)]
//! pub struct Before(u64);
//!
//! openraft::declare_raft_types!(
//!     pub Counting:
//!         D = Word,
//!         R = Before,
//!         Node = BasicNode,
//!         SnapshotData = isobath_raft::SnapshotFiles,
//! );
//!
//! pub struct Words {
//!     counts: Tree,
//! }
//!
//! impl isobath_raft::Application<Counting> for Words {
//!     fn open(store: &Store) -> Result<Words, isobath::Error> {
//!         let counts = store.open_or_create_tree("counts")?;
//!         Ok(Words { counts })
//!     }
//!
//!     fn apply(&self, txn: &mut Transaction, word: &Word) -> Result<Before, isobath::Error> {
//!         let bytes = txn.get(&self.counts, &word.0)?.unwrap_or_default();
//!         let count = bytes.try_into().map_or(0, u64::from_le_bytes);
//!         txn.insert(&self.counts, &word.0, (count + 1).to_le_bytes())?;
//!         Ok(Before(count))
//!     }
//! }
//!
//! # fn main() -> Result<(), isobath_raft::Error> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let directory = directory.path().join("node-1");
//! let options = Options::new().pool_bytes(16 << 20);
//! let (log, words) = isobath_raft::open::<Counting, Words>(&directory, &options, &options)?;
//! // openraft::Raft::new(1, config, network, log, words.clone()).await?
//! assert_eq!(words.application().counts.iter().count(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # The network's part
//!
//! openraft's feature `generic-snapshot-data` is on, so a program's network implements
//! `full_snapshot`: it sends [`SnapshotFiles::pieces`], the receiver answers what is
//! [missing](SnapshotReceiver::missing) after [`StateMachine::receive`], gets that from
//! [`SnapshotFiles::read_at`], and hands what [`SnapshotReceiver::finish`] returns to
//! [`openraft::Raft::install_full_snapshot`] with the `SnapshotMeta` that `finish` was given. A
//! snapshot that `finish` refuses does not end the node: it answers the sender, which tries again.

#[cfg(test)]
extern crate self as isobath_raft;

mod arrivals;
mod cut;
mod directory;
mod error;
mod log;
mod machine;
mod record;
mod snapshot;
mod state;

use std::path::Path;

use isobath::{Durability, Options, Store, Transaction};
use openraft::{Entry, RaftTypeConfig};

use arrivals::Arrivals;
pub use error::Error;
pub use log::LogStore;
pub use machine::StateMachine;
pub use snapshot::{Piece, SnapshotFiles, SnapshotReceiver};

/// The types that this storage works for: openraft's own entries, and snapshots of
/// [`SnapshotFiles`]. Answers have a default, which is that to entries without a request.
pub trait Types:
    RaftTypeConfig<Entry = Entry<Self>, SnapshotData = SnapshotFiles, R: Default>
{
}

impl<C> Types for C where
    C: RaftTypeConfig<Entry = Entry<C>, SnapshotData = SnapshotFiles, R: Default>
{
}

/// What the entries of the log do: trees in a store, and how requests change them.
pub trait Application<C: Types>: Sized + Send + Sync + 'static {
    /// Opens the application's trees, or makes them. The tree `raft` is taken.
    ///
    /// # Errors
    ///
    /// Any of the store's.
    fn open(store: &Store) -> Result<Self, isobath::Error>;

    /// Applies one request and answers it. The same state and request must give the same changes
    /// and answer on every node: no clock, no randomness. It may be called again if the transaction
    /// is tried again. Nothing but this changes the trees. The program takes no backups of the
    /// store: one at a time can run, and a snapshot that finds another ends the node.
    ///
    /// # Errors
    ///
    /// Any of the store's; they end the node. A request that is refused is an answer.
    fn apply(&self, transaction: &mut Transaction, request: &C::D) -> Result<C::R, isobath::Error>;
}

/// Opens the storage of a node in `directory`, or makes it: the log and the state machine, each a
/// store with these options. Their durability is set here. Blocks until both are recovered; only
/// one process can have them open. Must be called before, or on a thread for blocking work of, a
/// tokio runtime.
///
/// # Errors
///
/// [`Error::Store`] with what [`Store::open_or_create`] fails with, [`Error::File`],
/// [`Error::Record`], [`Error::Gap`].
pub fn open<C: Types, A: Application<C>>(
    directory: impl AsRef<Path>,
    log_options: &Options,
    state_options: &Options,
) -> Result<(LogStore<C>, StateMachine<C, A>), Error> {
    let directory = directory::Directory::open(directory.as_ref())?;
    let options = log_options.clone().durability(Durability::None);
    let store = Store::open_or_create(directory.log(), &options)?;
    let arrivals = Arrivals::default();
    let log = LogStore::open(store.clone(), arrivals.clone())?;
    let machine = StateMachine::open(directory, store, arrivals, state_options)?;
    log.check(machine.applied()?)?;
    Ok((log, machine))
}
