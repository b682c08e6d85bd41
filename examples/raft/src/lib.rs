//! A replicated key-value service's storage on Isobath: the Raft log and the state machine, as
//! [openraft](https://docs.rs/openraft) asks for them.
//!
//! One store holds both. Each call of openraft is one transaction, so a crash leaves none half
//! done: the entries of an append, the changes of applied entries with the id of the last of them,
//! a snapshot with the state that it replaces. What it reports to openraft as durable is durable,
//! because commits are synced by default.
//!
//! Isobath's calls block until the drive has answered, so they run on tokio's threads for blocking
//! work.

mod log;
mod machine;

use std::io::{self, Cursor};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use log::Log;
pub use machine::Machine;

openraft::declare_raft_types!(
    /// The types of this service.
    pub Types:
        D = Request,
        R = Response,
        NodeId = u64,
        Node = openraft::BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
);

/// A change that clients ask for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Gives a key a value.
    Set {
        /// The key.
        key: String,
        /// Its value from now on.
        value: String,
    },
    /// Removes a key.
    Remove {
        /// The key.
        key: String,
    },
}

/// The key's previous value.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Response(pub Option<String>);

type NodeId = u64;
type StorageError = openraft::StorageError<NodeId>;

/// Does `work` where blocking is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(bytes)?)
}

fn read<T: DeserializeOwned>(tree: &isobath::Tree, key: &[u8]) -> io::Result<Option<T>> {
    let bytes = tree.get(key).map_err(io::Error::other)?;
    bytes.map(|bytes| decode(&bytes)).transpose()
}

/// Runs `work` as one transaction of `store`, again where it conflicts with another.
fn transact(
    store: &isobath::Store,
    work: impl FnMut(&mut isobath::Transaction) -> Result<(), isobath::Error>,
) -> io::Result<()> {
    store
        .transact(isobath::TransactionOptions::default(), work)
        .map_err(io::Error::other)
}
