//! A small application, and entries for it.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;

use isobath::{Options, Store, Transaction, Tree};
use isobath_raft::{Application, LogStore, SnapshotFiles, StateMachine};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};

openraft::declare_raft_types!(
    /// Requests and answers are a key and a value.
    pub(crate) Types:
        D = (String, String),
        R = Option<String>,
        Node = openraft::BasicNode,
        SnapshotData = SnapshotFiles,
);

pub(crate) struct Map {
    pub(crate) tree: Tree,
}

impl Application<Types> for Map {
    fn open(store: &Store) -> Result<Map, isobath::Error> {
        let tree = store.open_or_create_tree("map")?;
        Ok(Map { tree })
    }

    fn apply(
        &self,
        txn: &mut Transaction,
        (key, value): &(String, String),
    ) -> Result<Option<String>, isobath::Error> {
        let before = txn.get(&self.tree, key)?;
        txn.insert(&self.tree, key, value)?;
        Ok(before.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

pub(crate) type Machine = StateMachine<Types, Map>;

pub(crate) fn options() -> Options {
    Options::new()
        .pool_bytes(8 << 20)
        .workers(1)
        .segment_bytes(64 << 10)
        .log_bytes(4 << 20)
}

pub(crate) fn open(directory: &Path) -> (LogStore<Types>, Machine) {
    isobath_raft::open(directory, &options(), &options()).unwrap()
}

pub(crate) fn id(index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(1, 1), index)
}

pub(crate) fn put(index: u64, key: &str, value: &str) -> Entry<Types> {
    Entry {
        log_id: id(index),
        payload: EntryPayload::Normal((key.to_owned(), value.to_owned())),
    }
}

/// All records, in order.
pub(crate) fn records(machine: &Machine) -> Vec<(String, String)> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let application = machine.application();
    let records = application.tree.iter().map(|record| record.unwrap());
    records.map(|(k, v)| (text(k), text(v))).collect()
}

/// The names of all files, in order.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}
