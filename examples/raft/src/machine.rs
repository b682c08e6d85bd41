//! The state machine: keys and values, and the snapshots that bring another node up to date.

use std::io::{self, Cursor};
use std::sync::Arc;

use isobath::{Error, Store, Tree};
use openraft::storage::RaftStateMachine;
use openraft::{
    BasicNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageIOError, StoredMembership,
};
use serde::{Deserialize, Serialize};

use crate::{
    NodeId, Request, Response, StorageError, Types, blocking, decode, encode, read, transact,
};

type Membership = StoredMembership<NodeId, BasicNode>;
type Meta = SnapshotMeta<NodeId, BasicNode>;

const APPLIED: &[u8] = b"applied";
const SNAPSHOT: &[u8] = b"snapshot";

/// Up to where entries are applied, and the members then.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Applied {
    last: Option<LogId<NodeId>>,
    membership: Membership,
    /// Snapshots built, so that each has an id of its own.
    snapshots: u64,
}

/// A snapshot as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    meta: Meta,
    /// All records, encoded for other nodes.
    records: Vec<u8>,
}

/// The state machine in trees of a store.
#[derive(Clone)]
pub struct Machine {
    store: Arc<Store>,
    state: Tree,
    /// The last entry applied, and the newest snapshot.
    marks: Tree,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

impl Machine {
    /// The state machine in `store`, made if there is none.
    ///
    /// # Errors
    ///
    /// Any of the store's.
    pub fn open(store: Arc<Store>) -> Result<Machine, Error> {
        Ok(Machine {
            state: store.open_or_create_tree("state")?,
            marks: store.open_or_create_tree("state marks")?,
            store,
        })
    }

    /// The value of `key`, as of the last entry applied.
    ///
    /// # Errors
    ///
    /// Any of the store's.
    pub fn get(&self, key: &str) -> Result<Option<String>, Error> {
        let value = self.state.get(key.as_bytes())?;
        Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

impl Machine {
    async fn applied(&self) -> io::Result<Applied> {
        let marks = self.marks.clone();
        blocking(move || Ok(read(&marks, APPLIED)?.unwrap_or_default())).await
    }

    async fn snapshot(&self) -> io::Result<Option<Stored>> {
        let marks = self.marks.clone();
        blocking(move || read(&marks, SNAPSHOT)).await
    }

    /// Applies `requests` and notes `applied`, in one transaction.
    fn apply_all(
        &self,
        requests: &[Option<Request>],
        applied: &Applied,
    ) -> io::Result<Vec<Response>> {
        let applied = encode(applied)?;
        let mut responses = Vec::with_capacity(requests.len());
        transact(&self.store, |txn| {
            responses.clear();
            for request in requests {
                let mut before = None;
                if let Some(Request::Set { key, .. } | Request::Remove { key }) = request {
                    before = txn.get(&self.state, key.as_bytes())?;
                }
                match request {
                    Some(Request::Set { key, value }) => {
                        txn.insert(&self.state, key.as_bytes(), value.as_bytes())?;
                    }
                    Some(Request::Remove { key }) => {
                        txn.remove(&self.state, key.as_bytes())?;
                    }
                    None => {}
                }
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                responses.push(Response(before.map(text)));
            }
            txn.insert(&self.marks, APPLIED, &applied)
        })?;
        Ok(responses)
    }

    /// Builds a snapshot of one moment and stores it.
    fn build(&self) -> io::Result<Stored> {
        let view = self.store.snapshot().map_err(io::Error::other)?;
        let applied = view.get(&self.marks, APPLIED).map_err(io::Error::other)?;
        let mut applied: Applied = match applied {
            Some(bytes) => decode(&bytes)?,
            None => Applied::default(),
        };
        let records = view
            .range(&self.state, ..)
            .map_err(io::Error::other)?
            .collect::<Result<Vec<(Vec<u8>, Vec<u8>)>, Error>>();
        let records = encode(&records.map_err(io::Error::other)?)?;
        drop(view);
        applied.snapshots += 1;
        let index = applied.last.map_or(0, |id| id.index);
        let meta = Meta {
            last_log_id: applied.last,
            last_membership: applied.membership,
            snapshot_id: format!("{index}-{}", applied.snapshots),
        };
        let stored = Stored { meta, records };
        let bytes = encode(&stored)?;
        self.marks
            .insert(SNAPSHOT, &bytes)
            .map_err(io::Error::other)?;
        Ok(stored)
    }

    /// Replaces the whole state by a snapshot's, in one transaction.
    fn install(&self, stored: &Stored) -> io::Result<()> {
        let records: Vec<(Vec<u8>, Vec<u8>)> = decode(&stored.records)?;
        let snapshot = encode(stored)?;
        let applied = encode(&Applied {
            last: stored.meta.last_log_id,
            membership: stored.meta.last_membership.clone(),
            snapshots: 0,
        })?;
        transact(&self.store, |txn| {
            let old = txn
                .range(&self.state, ..)?
                .map(|record| record.map(|(key, _)| key))
                .collect::<Result<Vec<Vec<u8>>, Error>>()?;
            for key in old {
                txn.remove(&self.state, &key)?;
            }
            for (key, value) in &records {
                txn.insert(&self.state, key, value)?;
            }
            txn.insert(&self.marks, SNAPSHOT, &snapshot)?;
            txn.insert(&self.marks, APPLIED, &applied)
        })
    }
}

fn sent(stored: Stored) -> Snapshot<Types> {
    Snapshot {
        meta: stored.meta,
        snapshot: Box::new(Cursor::new(stored.records)),
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError> {
        let machine = self.clone();
        let built = blocking(move || machine.build()).await;
        let built = built.map_err(|error| StorageIOError::read_state_machine(&error))?;
        Ok(sent(built))
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId<NodeId>>, Membership), StorageError> {
        let applied = self.applied().await;
        let applied = applied.map_err(|error| StorageIOError::read_state_machine(&error))?;
        Ok((applied.last, applied.membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Response>, StorageError>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry<Types>> = entries.into_iter().collect();
        let applied = async {
            let mut applied = self.applied().await?;
            let mut requests = Vec::with_capacity(entries.len());
            for entry in entries {
                applied.last = Some(entry.log_id);
                requests.push(match entry.payload {
                    EntryPayload::Normal(request) => Some(request),
                    EntryPayload::Blank => None,
                    EntryPayload::Membership(members) => {
                        applied.membership = Membership::new(applied.last, members);
                        None
                    }
                });
            }
            let machine = self.clone();
            blocking(move || machine.apply_all(&requests, &applied)).await
        };
        let applied = applied.await;
        applied.map_err(|error| StorageIOError::write_state_machine(&error).into())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let stored = Stored {
            meta: meta.clone(),
            records: snapshot.into_inner(),
        };
        let machine = self.clone();
        let installed = blocking(move || machine.install(&stored)).await;
        installed.map_err(|error| StorageIOError::write_state_machine(&error).into())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError> {
        let stored = self.snapshot().await;
        let stored = stored.map_err(|error| StorageIOError::read_state_machine(&error))?;
        Ok(stored.map(sent))
    }
}
