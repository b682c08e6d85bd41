//! The Raft log and the vote, in a store of their own.
//!
//! What openraft may tell another node is on the drive before openraft hears of it: the vote when
//! [`save_vote`](RaftLogStorage::save_vote) returns, entries when their callback is called, and the
//! end of a truncated log. Each is one synced transaction.
//!
//! The committed id and a purge are not synced. The store's log keeps the order of commits: a crash
//! loses the last of them, never one that precedes a synced append. A node that lost them applies
//! entries again, or purges again. A purge must not precede what makes its entries dispensable: it
//! waits for a snapshot that is being installed ([`arrivals`](crate::arrivals)).
//!
//! A leader that restarts has to be elected again: opening takes the mark *committed* from its
//! vote. With the mark openraft would let it lead at once, and confirm reads up to the committed id
//! that it still knows. That one may be older than a write that was acknowledged before the crash,
//! because it was not synced. A leader that is elected confirms reads only once it has committed an
//! entry of its own, behind all others. Who was voted for is kept, and so no vote is given twice.
//!
//! The store's own durability is [`Durability::None`], so that these are read back at once. An
//! entry can therefore be read before it is durable; openraft asks for none before its callback.

use std::fmt::{self, Debug};
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use isobath::{Durability, Store, Transaction, TransactionOptions, Tree};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    ErrorSubject, ErrorVerb, LogId, LogState, OptionalSend, RaftLogId, RaftLogReader, StorageError,
    Vote,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arrivals::Arrivals;
use crate::record::{decode, encode, from_found, read};
use crate::{Error, Types};

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const ENTRY: &str = "entry";

/// The Raft log and the vote, for [`openraft::Raft::new`]. Clones share them.
pub struct LogStore<C> {
    store: Store,
    /// Index, most significant byte first, to entry.
    entries: Tree,
    /// The vote, and the ids of the last entries that were committed and purged.
    marks: Tree,
    durability: Durability,
    arrivals: Arrivals,
    types: PhantomData<fn() -> C>,
}

impl<C> Clone for LogStore<C> {
    fn clone(&self) -> Self {
        LogStore {
            store: self.store.clone(),
            entries: self.entries.clone(),
            marks: self.marks.clone(),
            durability: self.durability,
            arrivals: self.arrivals.clone(),
            types: PhantomData,
        }
    }
}

impl<C> Debug for LogStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogStore")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// A key whose order is that of the indexes: the most significant byte first.
fn key(index: u64) -> [u8; 8] {
    index.swap_bytes().to_le_bytes()
}

type Indexes = (Bound<u64>, Bound<u64>);

impl<C: Types> LogStore<C> {
    pub(crate) fn open(store: Store, arrivals: Arrivals) -> Result<LogStore<C>, Error> {
        let marks = store.open_or_create_tree("marks")?;
        let vote: Option<Vote<C::NodeId>> = read(&marks, VOTE)?;
        if let Some(mut vote) = vote.filter(|vote| vote.committed) {
            vote.committed = false;
            // Not synced: the next opening does it again if a crash undoes it.
            marks.insert(VOTE, encode(VOTE, &vote)?)?;
        }
        Ok(LogStore {
            entries: store.open_or_create_tree("log")?,
            marks,
            store,
            durability: Durability::Synced,
            arrivals,
            types: PhantomData,
        })
    }

    /// Whether the state has what was purged.
    pub(crate) fn check(&self, applied: Option<u64>) -> Result<(), Error> {
        let purged: Option<LogId<C::NodeId>> = read(&self.marks, PURGED)?;
        match purged.map(|id| id.index) {
            Some(purged) if applied < Some(purged) => Err(Error::Gap { purged, applied }),
            _ => Ok(()),
        }
    }

    /// Plants a known bug, for tests that have to find it: votes and entries are acknowledged
    /// before they are on the drive.
    #[doc(hidden)]
    #[must_use]
    pub fn acknowledging_too_early(mut self) -> LogStore<C> {
        self.durability = Durability::None;
        self
    }

    /// Runs `work` as one transaction, in a task of the store.
    async fn transact<W>(&self, durability: Durability, work: W) -> Result<(), Error>
    where
        W: FnMut(&mut Transaction) -> Result<(), isobath::Error> + Send + 'static,
    {
        let options = TransactionOptions::new().durability(durability);
        Ok(self.store.transact_async(options, work).await?)
    }

    /// Runs `work` on one moment's state, in a task of the store.
    async fn view<T, W>(&self, work: W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: FnMut(&mut Transaction) -> Result<T, isobath::Error> + Send + 'static,
    {
        let options = TransactionOptions::new().read_only(true);
        Ok(self.store.transact_async(options, work).await?)
    }

    async fn mark<T: DeserializeOwned>(&self, name: &'static str) -> Result<Option<T>, Error> {
        from_found(name, self.marks.get_async(name).await)
    }

    async fn set_mark(
        &self,
        name: &'static str,
        value: &impl Serialize,
        durability: Durability,
    ) -> Result<(), Error> {
        let (marks, value) = (self.marks.clone(), encode(name, value)?);
        let work = move |txn: &mut Transaction| txn.insert(&marks, name, &value);
        self.transact(durability, work).await
    }

    /// The entries of `indexes` at one moment, encoded and in order.
    async fn encoded(&self, indexes: Indexes) -> Result<Vec<Vec<u8>>, Error> {
        let entries = self.entries.clone();
        let keys = (indexes.0.map(key), indexes.1.map(key));
        let work = move |view: &mut Transaction| {
            let (from, to) = (keys.0.as_ref(), keys.1.as_ref());
            let bounds = (from.map(|key| &key[..]), to.map(|key| &key[..]));
            let found = view.range(&entries, bounds)?;
            found.map(|record| Ok(record?.1)).collect()
        };
        self.view(work).await
    }

    async fn state(&self) -> Result<LogState<C>, Error> {
        let (entries, marks) = (self.entries.clone(), self.marks.clone());
        let work = move |view: &mut Transaction| {
            let last = view.range(&entries, ..)?.next_back().transpose()?;
            Ok((last, view.get(&marks, PURGED)?))
        };
        let (last, purged) = self.view(work).await?;
        let purged: Option<LogId<C::NodeId>> = from_found(PURGED, Ok(purged))?;
        let last = last.map(|(_, bytes)| decode::<C::Entry>(ENTRY, &bytes));
        let last = last.transpose()?.map(|entry| entry.get_log_id().clone());
        Ok(LogState {
            last_log_id: last.or_else(|| purged.clone()),
            last_purged_log_id: purged,
        })
    }

    async fn insert(&self, entries: impl IntoIterator<Item = C::Entry>) -> Result<(), Error> {
        let encoded = entries.into_iter().map(|entry| {
            let index = entry.get_log_id().index;
            Ok((key(index), encode(ENTRY, &entry)?))
        });
        let encoded = encoded.collect::<Result<Vec<_>, Error>>()?;
        let tree = self.entries.clone();
        let work = move |txn: &mut Transaction| {
            let mut records = encoded.iter();
            records.try_for_each(|(key, entry)| txn.insert(&tree, key, entry))
        };
        self.transact(self.durability, work).await
    }
}

impl<C: Types> RaftLogReader<C> for LogStore<C> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        let indexes = (range.start_bound().cloned(), range.end_bound().cloned());
        let entries = async {
            let encoded = self.encoded(indexes).await?;
            encoded
                .iter()
                .map(|bytes| decode(ENTRY, bytes))
                .collect::<Result<_, _>>()
        };
        let failed = Error::during(ErrorSubject::Logs, ErrorVerb::Read);
        entries.await.map_err(failed)
    }
}

impl<C: Types> RaftLogStorage<C> for LogStore<C> {
    type LogReader = LogStore<C>;

    async fn get_log_state(&mut self) -> Result<LogState<C>, StorageError<C::NodeId>> {
        let failed = Error::during(ErrorSubject::Logs, ErrorVerb::Read);
        self.state().await.map_err(failed)
    }

    async fn get_log_reader(&mut self) -> LogStore<C> {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let saved = self.set_mark(VOTE, vote, self.durability).await;
        saved.map_err(Error::during(ErrorSubject::Vote, ErrorVerb::Write))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        let failed = Error::during(ErrorSubject::Vote, ErrorVerb::Read);
        self.mark(VOTE).await.map_err(failed)
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<C::NodeId>>,
    ) -> Result<(), StorageError<C::NodeId>> {
        let saved = self.set_mark(COMMITTED, &committed, Durability::None).await;
        saved.map_err(Error::during(ErrorSubject::Store, ErrorVerb::Write))
    }

    async fn read_committed(
        &mut self,
    ) -> Result<Option<LogId<C::NodeId>>, StorageError<C::NodeId>> {
        let committed = self.mark::<Option<LogId<C::NodeId>>>(COMMITTED).await;
        let failed = Error::during(ErrorSubject::Store, ErrorVerb::Read);
        committed.map(Option::flatten).map_err(failed)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<C>,
    ) -> Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<C::Entry> = entries.into_iter().collect();
        match self.insert(entries).await {
            // The commit was synced: the entries are on the drive.
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => {
                callback.log_io_completed(Err(io::Error::other(error.to_string())));
                Err(Error::during(ErrorSubject::Logs, ErrorVerb::Write)(error))
            }
        }
    }

    async fn truncate(&mut self, from: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let (entries, from) = (self.entries.clone(), key(from.index));
        let work = move |txn: &mut Transaction| txn.remove_range(&entries, from..).map(|_| ());
        let removed = self.transact(self.durability, work).await;
        removed.map_err(Error::during(ErrorSubject::Logs, ErrorVerb::Write))
    }

    async fn purge(&mut self, upto: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let (entries, marks) = (self.entries.clone(), self.marks.clone());
        let purged = async {
            if !self.arrivals.allow_purge(upto.index).await {
                return Err(Error::NotInstalled { index: upto.index });
            }
            let (last, id) = (key(upto.index), encode(PURGED, &upto)?);
            let work = move |txn: &mut Transaction| {
                txn.remove_range(&entries, ..=last)?;
                txn.insert(&marks, PURGED, &id)
            };
            self.transact(Durability::None, work).await
        };
        let failed = Error::during(ErrorSubject::Logs, ErrorVerb::Write);
        purged.await.map_err(failed)
    }
}
