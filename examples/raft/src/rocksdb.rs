//! The same server on RocksDB, for comparison: a database for log and vote, another for the state,
//! as [`isobath_raft`] has two stores. Options are RocksDB's own but for what is said here. What is
//! synced is the same: votes and entries before they are acknowledged, nothing else. Snapshots are
//! left out.
#![expect(unsafe_code, reason = "foreign function interface of RocksDB")]

mod sys;

use std::ffi::{CStr, CString, c_char};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::Arc;

use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine};
use openraft::{
    AnyError, BasicNode, Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, LogState,
    OptionalSend, RaftLogReader, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError,
    StorageIOError, StoredMembership, Vote,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::registers::{Answer, Request, Types, text};
use crate::server::Storage;

use isobath_raft::SnapshotFiles;
use sys::Opaque;

/// Keys of the log's marks, before and behind all entries' (which begin with [`ENTRIES`]).
const VOTE: &[u8] = b"a vote";
const COMMITTED: &[u8] = b"a committed";
const PURGED: &[u8] = b"a purged";
const ENTRIES: u8 = b'e';
/// Before all registers' keys, which are text.
const APPLIED: &[u8] = b"\0applied";

/// A database, with options for commits that are synced and that are not.
struct Db {
    db: *mut Opaque,
    read: *mut Opaque,
    synced: *mut Opaque,
    buffered: *mut Opaque,
}

// SAFETY: RocksDB's database and option objects are thread-safe once configured; nothing here is
// tied to the thread that made it.
unsafe impl Send for Db {}
// SAFETY: as above; the options are only read after `open`.
unsafe impl Sync for Db {}

/// Calls `work` with a place for the library's error message.
fn checked<T>(work: impl FnOnce(*mut *mut c_char) -> T) -> io::Result<T> {
    let mut error = ptr::null_mut();
    let answer = work(&raw mut error);
    if error.is_null() {
        return Ok(answer);
    }
    // SAFETY: a non-null error is a NUL-terminated string that the library allocated for us; it is
    // copied before it is freed, and freed once.
    let message = unsafe {
        let message = CStr::from_ptr(error).to_string_lossy().into_owned();
        sys::rocksdb_free(error.cast());
        message
    };
    Err(io::Error::other(message))
}

/// Changes that are made together.
struct Batch(*mut Opaque);

impl Batch {
    fn new() -> Batch {
        // SAFETY: it is destroyed once, when this is dropped.
        Batch(unsafe { sys::rocksdb_writebatch_create() })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        // SAFETY: the batch is live, and copies key and value.
        unsafe {
            sys::rocksdb_writebatch_put(
                self.0,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        // SAFETY: the batch is live, and copies both keys.
        unsafe {
            sys::rocksdb_writebatch_delete_range(
                self.0,
                from.as_ptr().cast(),
                from.len(),
                to.as_ptr().cast(),
                to.len(),
            );
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe { sys::rocksdb_writebatch_destroy(self.0) }
    }
}

impl Db {
    fn open(path: &Path) -> io::Result<Db> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: all objects are live; the options for opening are destroyed once, after it.
        unsafe {
            let options = sys::rocksdb_options_create();
            sys::rocksdb_options_set_create_if_missing(options, 1);
            let db = checked(|error| sys::rocksdb_open(options, path.as_ptr(), error));
            sys::rocksdb_options_destroy(options);
            let db = db?;
            let synced = sys::rocksdb_writeoptions_create();
            sys::rocksdb_writeoptions_set_sync(synced, 1);
            Ok(Db {
                db,
                read: sys::rocksdb_readoptions_create(),
                synced,
                buffered: sys::rocksdb_writeoptions_create(),
            })
        }
    }

    fn write(&self, batch: &Batch, is_synced: bool) -> io::Result<()> {
        let options = if is_synced {
            self.synced
        } else {
            self.buffered
        };
        // SAFETY: database, options and batch are live.
        checked(|error| unsafe { sys::rocksdb_write(self.db, options, batch.0, error) })
    }

    fn get(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut length = 0;
        // SAFETY: database and options are live; the value is ours, copied and then freed once.
        unsafe {
            let value = checked(|error| {
                let (at, bytes) = (key.as_ptr().cast(), key.len());
                sys::rocksdb_get(self.db, self.read, at, bytes, &raw mut length, error)
            })?;
            if value.is_null() {
                return Ok(None);
            }
            let copy = slice::from_raw_parts(value.cast(), length).to_vec();
            sys::rocksdb_free(value.cast());
            Ok(Some(copy))
        }
    }

    /// The values of the entries in `[from, to)`.
    fn entries(&self, from: u64, to: u64) -> io::Result<Vec<Vec<u8>>> {
        let (from, to) = (key(from), key(to));
        let mut values = Vec::new();
        // SAFETY: the iterator is live until it is destroyed, once; key and value are valid until
        // it moves, and are copied before that.
        unsafe {
            let iterator = sys::rocksdb_create_iterator(self.db, self.read);
            sys::rocksdb_iter_seek(iterator, from.as_ptr().cast(), from.len());
            while sys::rocksdb_iter_valid(iterator) != 0 && at(iterator) < &to[..] {
                let mut length = 0;
                let value = sys::rocksdb_iter_value(iterator, &raw mut length);
                values.push(slice::from_raw_parts(value.cast(), length).to_vec());
                sys::rocksdb_iter_next(iterator);
            }
            let ended = checked(|error| sys::rocksdb_iter_get_error(iterator, error));
            sys::rocksdb_iter_destroy(iterator);
            ended?;
        }
        Ok(values)
    }

    /// The last entry.
    fn last(&self) -> io::Result<Option<Vec<u8>>> {
        // SAFETY: as in `entries`.
        unsafe {
            let iterator = sys::rocksdb_create_iterator(self.db, self.read);
            sys::rocksdb_iter_seek_to_last(iterator);
            let mut found = None;
            if sys::rocksdb_iter_valid(iterator) != 0 && at(iterator).first() == Some(&ENTRIES) {
                let mut length = 0;
                let value = sys::rocksdb_iter_value(iterator, &raw mut length);
                found = Some(slice::from_raw_parts(value.cast(), length).to_vec());
            }
            let ended = checked(|error| sys::rocksdb_iter_get_error(iterator, error));
            sys::rocksdb_iter_destroy(iterator);
            ended?;
            Ok(found)
        }
    }

    fn mark<T: DeserializeOwned>(&self, name: &[u8]) -> io::Result<Option<T>> {
        let found = self.get(name)?;
        Ok(found
            .map(|bytes| serde_json::from_slice(&bytes))
            .transpose()?)
    }

    fn set_mark(&self, name: &[u8], value: &impl Serialize, is_synced: bool) -> io::Result<()> {
        let mut batch = Batch::new();
        batch.put(name, &serde_json::to_vec(value)?);
        self.write(&batch, is_synced)
    }
}

/// The key that a valid iterator is at, until it moves.
unsafe fn at<'a>(iterator: *mut Opaque) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: the caller's iterator is valid; the key is until the iterator moves.
    unsafe {
        let key = sys::rocksdb_iter_key(iterator, &raw mut length);
        slice::from_raw_parts(key.cast(), length)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: all were made by `open`, and are destroyed once.
        unsafe {
            sys::rocksdb_close(self.db);
            sys::rocksdb_readoptions_destroy(self.read);
            sys::rocksdb_writeoptions_destroy(self.synced);
            sys::rocksdb_writeoptions_destroy(self.buffered);
        }
    }
}

/// The key of an entry: in the order of the indexes.
fn key(index: u64) -> [u8; 9] {
    let mut key = [ENTRIES; 9];
    key[1..].copy_from_slice(&index.swap_bytes().to_le_bytes());
    key
}

type Failed = StorageError<u64>;

fn during(subject: ErrorSubject<u64>, verb: ErrorVerb) -> impl FnOnce(io::Error) -> Failed {
    move |error| StorageIOError::new(subject, verb, AnyError::new(&error)).into()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Log and vote.
#[derive(Clone)]
pub(crate) struct RocksLog(Arc<Db>);

impl RaftLogReader<Types> for RocksLog {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>, Failed> {
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&last) => last + 1,
            Bound::Excluded(&to) => to,
            Bound::Unbounded => u64::MAX,
        };
        let db = Arc::clone(&self.0);
        let entries = blocking(move || {
            let entries = db.entries(from, to)?;
            let decoded = entries
                .iter()
                .map(|bytes| Ok(serde_json::from_slice(bytes)?));
            decoded.collect()
        });
        entries
            .await
            .map_err(during(ErrorSubject::Logs, ErrorVerb::Read))
    }
}

impl RaftLogStorage<Types> for RocksLog {
    type LogReader = RocksLog;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Failed> {
        let state = || {
            let purged: Option<LogId<u64>> = self.0.mark(PURGED)?;
            let last = self.0.last()?;
            let last = last.map(|bytes| serde_json::from_slice::<Entry<Types>>(&bytes));
            Ok(LogState {
                last_purged_log_id: purged,
                last_log_id: last.transpose()?.map(|entry| entry.log_id).or(purged),
            })
        };
        state().map_err(during(ErrorSubject::Logs, ErrorVerb::Read))
    }

    async fn get_log_reader(&mut self) -> RocksLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), Failed> {
        let (db, vote) = (Arc::clone(&self.0), *vote);
        let saved = blocking(move || db.set_mark(VOTE, &vote, true)).await;
        saved.map_err(during(ErrorSubject::Vote, ErrorVerb::Write))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, Failed> {
        self.0
            .mark(VOTE)
            .map_err(during(ErrorSubject::Vote, ErrorVerb::Read))
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<(), Failed> {
        // It only goes to memory and the page cache: not worth another thread.
        let saved = self.0.set_mark(COMMITTED, &committed, false);
        saved.map_err(during(ErrorSubject::Store, ErrorVerb::Write))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>, Failed> {
        let committed = self.0.mark::<Option<LogId<u64>>>(COMMITTED);
        let failed = during(ErrorSubject::Store, ErrorVerb::Read);
        committed.map(Option::flatten).map_err(failed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), Failed>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry<Types>> = entries.into_iter().collect();
        let db = Arc::clone(&self.0);
        let written = blocking(move || {
            let mut batch = Batch::new();
            for entry in &entries {
                batch.put(&key(entry.log_id.index), &serde_json::to_vec(entry)?);
            }
            db.write(&batch, true)
        });
        written
            .await
            .map_err(during(ErrorSubject::Logs, ErrorVerb::Write))?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<(), Failed> {
        let db = Arc::clone(&self.0);
        let removed = blocking(move || {
            let mut batch = Batch::new();
            batch.delete_range(&key(from.index), &key(u64::MAX));
            db.write(&batch, true)
        });
        removed
            .await
            .map_err(during(ErrorSubject::Logs, ErrorVerb::Write))
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Result<(), Failed> {
        let db = Arc::clone(&self.0);
        let removed = blocking(move || {
            let mut batch = Batch::new();
            batch.delete_range(&key(0), &key(upto.index + 1));
            batch.put(PURGED, &serde_json::to_vec(&upto)?);
            db.write(&batch, false)
        });
        removed
            .await
            .map_err(during(ErrorSubject::Logs, ErrorVerb::Write))
    }
}

type Applied = (Option<LogId<u64>>, StoredMembership<u64, BasicNode>);

/// The state machine.
#[derive(Clone)]
pub(crate) struct RocksMachine(Arc<Db>);

impl RocksMachine {
    fn apply_all(&self, entries: Vec<Entry<Types>>) -> io::Result<Vec<Answer>> {
        let mut applied: Applied = self.0.mark(APPLIED)?.unwrap_or_default();
        let mut answers = Vec::with_capacity(entries.len());
        let mut batch = Batch::new();
        for entry in entries {
            applied.0 = Some(entry.log_id);
            answers.push(match entry.payload {
                EntryPayload::Blank => Answer::Done,
                EntryPayload::Membership(members) => {
                    applied.1 = StoredMembership::new(applied.0, members);
                    Answer::Done
                }
                EntryPayload::Normal(Request::Put { key, value }) => {
                    batch.put(key.as_bytes(), value.as_bytes());
                    Answer::Done
                }
                EntryPayload::Normal(Request::Swap { key, old, new }) => {
                    // What the batch has so far must be seen.
                    self.0.write(&batch, false)?;
                    batch = Batch::new();
                    let found = self.0.get(key.as_bytes())?.map(text);
                    if found == old {
                        batch.put(key.as_bytes(), new.as_bytes());
                        Answer::Done
                    } else {
                        Answer::Other(found)
                    }
                }
            });
        }
        batch.put(APPLIED, &serde_json::to_vec(&applied)?);
        self.0.write(&batch, false)?;
        Ok(answers)
    }
}

fn left_out() -> Failed {
    let error = io::Error::other("the server on RocksDB makes no snapshots");
    during(ErrorSubject::Snapshot(None), ErrorVerb::Write)(error)
}

impl RaftSnapshotBuilder<Types> for RocksMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, Failed> {
        Err(left_out())
    }
}

impl RaftStateMachine<Types> for RocksMachine {
    type SnapshotBuilder = RocksMachine;

    async fn applied_state(&mut self) -> Result<Applied, Failed> {
        let failed = during(ErrorSubject::StateMachine, ErrorVerb::Read);
        Ok(self.0.mark(APPLIED).map_err(failed)?.unwrap_or_default())
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Answer>, Failed>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry<Types>> = entries.into_iter().collect();
        let machine = self.clone();
        let applied = blocking(move || machine.apply_all(entries)).await;
        applied.map_err(during(ErrorSubject::StateMachine, ErrorVerb::Write))
    }

    async fn get_snapshot_builder(&mut self) -> RocksMachine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotFiles>, Failed> {
        Err(left_out())
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta<u64, BasicNode>,
        _snapshot: Box<SnapshotFiles>,
    ) -> Result<(), Failed> {
        Err(left_out())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, Failed> {
        Ok(None)
    }
}

/// Opens the storage of a node.
pub(crate) fn open(directory: &Path) -> io::Result<Storage<RocksLog, RocksMachine>> {
    std::fs::create_dir_all(directory)?;
    let log = Arc::new(Db::open(&directory.join("log"))?);
    let state = Arc::new(Db::open(&directory.join("state"))?);
    let reading = Arc::clone(&state);
    Ok(Storage {
        log: RocksLog(log),
        machine: RocksMachine(state),
        read: Box::new(move |key| Ok(reading.get(key.as_bytes())?.map(text))),
        receive: Box::new(|_| {
            Err(isobath_raft::Error::Snapshot {
                id: "from another node".to_owned(),
                reason: "the server on RocksDB takes no snapshots",
            })
        }),
    })
}
