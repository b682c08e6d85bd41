//! The Raft log: an entry per index, and the vote.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use isobath::{Store, Tree};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    Entry, LogId, LogState, OptionalSend, RaftLogId, RaftLogReader, StorageIOError, Vote,
};

use crate::{NodeId, StorageError, Types, blocking, decode, encode, read, transact};

const VOTE: &[u8] = b"vote";
const COMMITTED: &[u8] = b"committed";
const PURGED: &[u8] = b"purged";

/// The Raft log in trees of a store.
#[derive(Clone)]
pub struct Log {
    store: Arc<Store>,
    /// Index, most significant byte first, to entry.
    entries: Tree,
    /// The vote, and the ids of the last entries that were committed and purged.
    marks: Tree,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// A key whose order is that of the indexes: the most significant byte first.
fn key(index: u64) -> [u8; 8] {
    index.swap_bytes().to_le_bytes()
}

impl Log {
    /// The log in `store`, made if there is none.
    ///
    /// # Errors
    ///
    /// Any of the store's.
    pub fn open(store: Arc<Store>) -> Result<Log, isobath::Error> {
        Ok(Log {
            entries: store.open_or_create_tree("log")?,
            marks: store.open_or_create_tree("log marks")?,
            store,
        })
    }

    async fn mark<T>(&self, name: &'static [u8]) -> io::Result<Option<T>>
    where
        T: serde::de::DeserializeOwned + Send + 'static,
    {
        let marks = self.marks.clone();
        blocking(move || read(&marks, name)).await
    }

    async fn set_mark(&self, name: &'static [u8], value: Vec<u8>) -> io::Result<()> {
        let marks = self.marks.clone();
        blocking(move || marks.insert(name, &value).map_err(io::Error::other)).await
    }

    /// Entries in `range`, in order.
    async fn entries(
        &self,
        range: (Bound<u64>, Bound<u64>),
        most: usize,
    ) -> io::Result<Vec<Entry<Types>>> {
        let entries = self.entries.clone();
        blocking(move || {
            let (from, to) = (range.0.map(key), range.1.map(key));
            let bounds = (from.as_ref().map(|k| &k[..]), to.as_ref().map(|k| &k[..]));
            let found = entries.range(bounds).take(most);
            found
                .map(|record| decode(&record.map_err(io::Error::other)?.1))
                .collect()
        })
        .await
    }

    /// Removes the entries in `range`, and notes `purged`, in one transaction.
    async fn remove(
        &self,
        range: (Bound<u64>, Bound<u64>),
        purged: Option<LogId<NodeId>>,
    ) -> io::Result<()> {
        let gone = self.entries(range, usize::MAX).await?;
        let purged = purged.map(|id| encode(&id)).transpose()?;
        let log = self.clone();
        blocking(move || {
            transact(&log.store, |txn| {
                for entry in &gone {
                    txn.remove(&log.entries, &key(entry.log_id.index))?;
                }
                match &purged {
                    Some(id) => txn.insert(&log.marks, PURGED, id),
                    None => Ok(()),
                }
            })
        })
        .await
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<Types>>, StorageError> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let found = self.entries(bounds, usize::MAX).await;
        found.map_err(|error| StorageIOError::read_logs(&error).into())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let entries = self.entries.clone();
        let last = blocking(move || {
            let all = (Bound::Unbounded::<&[u8]>, Bound::Unbounded);
            let last = entries.range(all).next_back().transpose();
            let last = last.map_err(io::Error::other)?;
            last.map(|(_, bytes)| decode::<Entry<Types>>(&bytes))
                .transpose()
        });
        let state = async {
            let purged: Option<LogId<NodeId>> = self.mark(PURGED).await?;
            let last = last.await?.map(|entry| *entry.get_log_id());
            io::Result::Ok(LogState {
                last_purged_log_id: purged,
                last_log_id: last.or(purged),
            })
        };
        let state = state.await;
        state.map_err(|error| StorageIOError::read_logs(&error).into())
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<NodeId>) -> Result<(), StorageError> {
        let saved = async { self.set_mark(VOTE, encode(vote)?).await };
        let saved = saved.await;
        saved.map_err(|error| StorageIOError::write_vote(&error).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, StorageError> {
        let vote = self.mark(VOTE).await;
        vote.map_err(|error| StorageIOError::read_vote(&error).into())
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<NodeId>>,
    ) -> Result<(), StorageError> {
        let saved = async { self.set_mark(COMMITTED, encode(&committed)?).await };
        let saved = saved.await;
        saved.map_err(|error| StorageIOError::write(&error).into())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<NodeId>>, StorageError> {
        let committed = self.mark::<Option<LogId<NodeId>>>(COMMITTED).await;
        committed
            .map(Option::flatten)
            .map_err(|error| StorageIOError::read(&error).into())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let encoded = entries
            .into_iter()
            .map(|entry| Ok((key(entry.log_id.index), encode(&entry)?)))
            .collect::<io::Result<Vec<_>>>();
        let log = self.clone();
        let written = blocking(move || {
            let encoded = encoded?;
            transact(&log.store, |txn| {
                let insert = |(at, entry): &([u8; 8], Vec<u8>)| txn.insert(&log.entries, at, entry);
                encoded.iter().try_for_each(insert)
            })
        });
        match written.await {
            // The commit was synced: it is durable by now.
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => {
                let answer = StorageIOError::write_logs(&error);
                callback.log_io_completed(Err(error));
                Err(answer.into())
            }
        }
    }

    async fn truncate(&mut self, log_id: LogId<NodeId>) -> Result<(), StorageError> {
        let range = (Bound::Included(log_id.index), Bound::Unbounded);
        let removed = self.remove(range, None).await;
        removed.map_err(|error| StorageIOError::write_logs(&error).into())
    }

    async fn purge(&mut self, log_id: LogId<NodeId>) -> Result<(), StorageError> {
        let range = (Bound::Unbounded, Bound::Included(log_id.index));
        let removed = self.remove(range, Some(log_id)).await;
        removed.map_err(|error| StorageIOError::write_logs(&error).into())
    }
}
