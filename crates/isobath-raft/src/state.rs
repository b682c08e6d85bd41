//! One generation of the state machine: a store, the application's trees in it, and the last entry
//! applied.

use std::path::Path;
use std::sync::Arc;

use isobath::{Durability, Options, Store, Transaction, TransactionOptions, Tree};
use openraft::{Entry, EntryPayload, LogId, SnapshotMeta, StoredMembership};
use serde::{Deserialize, Serialize};

use crate::record::{encode, read};
use crate::{Application, Error, Types};

const MARKS: &str = "raft";
const APPLIED: &str = "applied";

/// Up to where entries are applied, and the members then.
#[derive(Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(bound = "")]
pub(crate) struct Applied<C: Types> {
    pub(crate) last: Option<LogId<C::NodeId>>,
    pub(crate) membership: StoredMembership<C::NodeId, C::Node>,
}

impl<C: Types> Applied<C> {
    /// Refuses a snapshot that says to hold something else.
    pub(crate) fn check(&self, meta: &SnapshotMeta<C::NodeId, C::Node>) -> Result<(), Error> {
        let refused = |reason| Error::Snapshot {
            id: meta.snapshot_id.clone(),
            reason,
        };
        if self.last != meta.last_log_id {
            return Err(refused(
                "its files end with another entry than it says; send it with its own id",
            ));
        }
        if self.membership != meta.last_membership {
            return Err(refused(
                "its files have other members than it says; send it with its own id",
            ));
        }
        Ok(())
    }
}

/// What is applied in the state's store at `path`, which nothing has opened.
pub(crate) fn applied_in<C: Types>(path: &Path, options: &Options) -> Result<Applied<C>, Error> {
    let store = Store::open(path, &options.clone().read_only(true))?;
    let applied = read(&store.tree(MARKS)?, APPLIED)?;
    store.close()?;
    Ok(applied.unwrap_or_default())
}

pub(crate) struct State<A> {
    pub(crate) store: Store,
    pub(crate) application: Arc<A>,
    marks: Tree,
}

impl<A> State<A> {
    /// Opens the store of the state, or makes it if `is_new`.
    ///
    /// Its commits are not synced. A crash takes the state back to an earlier entry, whole, because
    /// each commit has the changes of entries together with the id of the last; openraft applies
    /// the rest again from the log. What a purge has taken from the log is durable here: a snapshot
    /// was made of it.
    pub(crate) fn open<C: Types>(
        path: &Path,
        options: &Options,
        is_new: bool,
    ) -> Result<State<A>, Error>
    where
        A: Application<C>,
    {
        let options = options.clone().durability(Durability::None);
        let store = match is_new {
            true => Store::open_or_create(path, &options)?,
            false => Store::open(path, &options)?,
        };
        Ok(State {
            application: Arc::new(A::open(&store)?),
            marks: store.open_or_create_tree(MARKS)?,
            store,
        })
    }

    pub(crate) fn applied<C: Types>(&self) -> Result<Applied<C>, Error> {
        Ok(read(&self.marks, APPLIED)?.unwrap_or_default())
    }

    /// Applies `entries` and notes the last of them, in one transaction.
    pub(crate) fn apply<C: Types>(&self, entries: &[Entry<C>]) -> Result<Vec<C::R>, Error>
    where
        A: Application<C>,
    {
        let applied = encode(APPLIED, &after(self.applied::<C>()?, entries))?;
        let work = |txn: &mut Transaction| {
            let responses = entries.iter().map(|entry| match &entry.payload {
                EntryPayload::Normal(request) => self.application.apply(txn, request),
                EntryPayload::Blank | EntryPayload::Membership(_) => Ok(C::R::default()),
            });
            let responses = responses.collect::<Result<Vec<C::R>, isobath::Error>>()?;
            txn.insert(&self.marks, APPLIED, &applied)?;
            Ok::<_, isobath::Error>(responses)
        };
        Ok(self.store.transact(TransactionOptions::new(), work)?)
    }
}

/// What is applied once `entries` are.
fn after<C: Types>(mut applied: Applied<C>, entries: &[Entry<C>]) -> Applied<C> {
    for entry in entries {
        applied.last = Some(entry.log_id.clone());
        if let EntryPayload::Membership(members) = &entry.payload {
            applied.membership = StoredMembership::new(applied.last.clone(), members.clone());
        }
    }
    applied
}
