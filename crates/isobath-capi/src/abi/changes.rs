//! The stream of a store's committed changes.

use std::collections::VecDeque;
use std::ffi::c_char;
use std::time::Duration;

use isobath::{Change, Changes, ChangesStop, Committed, LogPosition, Store};

use super::bytes::isobath_slice;
use super::options::{isobath_options, options_of};
use super::status::{Failure, isobath_status};
use super::store::isobath_store;
use super::{free, give, guard, object, object_mut, paths_of, text_of};
use isobath_status::*;

/// Records of a replaced tree that are fetched at a time, and bytes after which no more are.
const FETCHED: usize = 256;
const FETCHED_BYTES: usize = 1 << 20;

/// The kind of a change.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum isobath_change_kind {
    /// The key has the value from now on.
    ISOBATH_CHANGE_PUT = 0,
    /// The key has no value any more.
    ISOBATH_CHANGE_REMOVE = 1,
    /// The tree was created, without records.
    ISOBATH_CHANGE_CREATE = 2,
    /// The tree was dropped.
    ISOBATH_CHANGE_DROP = 3,
    /// The tree has no records from the key on, but those that follow, each as a put.
    ISOBATH_CHANGE_REPLACE = 4,
    /// First of all: the store has no trees but those that follow.
    ISOBATH_CHANGE_WHOLE = 5,
}

use isobath_change_kind::*;

/// One change. What it points at is the stream's, valid until the next call.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_change {
    /// What was changed.
    pub kind: isobath_change_kind,
    /// The tree's name, in UTF-8, without a zero at its end.
    pub tree: isobath_slice,
    /// The key.
    pub key: isobath_slice,
    /// The value of a put.
    pub value: isobath_slice,
}

/// The committed changes of a store, in order. One thread at a time, but for isobath_changes_stop.
pub struct isobath_changes {
    changes: Changes,
    stop: ChangesStop,
    /// The transaction whose changes are given out.
    committed: Option<Committed>,
    /// The next of its changes; the first one says whether it is the whole store.
    next: usize,
    /// Records of the tree that was replaced last, and how far they were fetched.
    records: VecDeque<(Vec<u8>, Vec<u8>)>,
    last: Option<Vec<u8>>,
    /// All of its changes were given out.
    is_done: bool,
    given: Vec<u8>,
    given_value: Vec<u8>,
}

unsafe fn position_of(from: *const c_char) -> Result<Option<LogPosition>, Failure> {
    if from.is_null() {
        return Ok(None);
    }
    let from = given!(text_of(from)?);
    Ok(Some(from.parse::<LogPosition>()?))
}

unsafe fn write_position(
    position: LogPosition,
    text: *mut c_char,
    length: usize,
) -> Result<isobath_status, Failure> {
    crate::not_null(text)?;
    let shown = position.to_string();
    if shown.len() >= length {
        return Err(Failure::Status(
            ISOBATH_BUFFER,
            "a position needs a buffer of 64 bytes".to_owned(),
        ));
    }
    for (at, byte) in shown.bytes().chain([0]).enumerate() {
        given!(text.add(at).write(byte as c_char));
    }
    Ok(ISOBATH_OK)
}

/// Writes the position in the log behind all that is durable into `text`, which has `length` bytes
/// (64 suffice), as text with a zero at its end. Changes from a position before a backup began can
/// be applied to what is restored from that. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_log_position(
    store: *const isobath_store,
    text: *mut c_char,
    length: usize,
) -> isobath_status {
    guard(|| {
        let position = given!(object(store)?).0.log_position()?;
        given!(write_position(position, text, length))
    })
}

unsafe fn give_changes(
    out: *mut *mut isobath_changes,
    changes: Changes,
) -> Result<isobath_status, Failure> {
    let stream = isobath_changes {
        stop: changes.stop_handle(),
        changes,
        committed: None,
        next: 0,
        records: VecDeque::new(),
        last: None,
        is_done: false,
        given: Vec::new(),
        given_value: Vec::new(),
    };
    given!(give(out, stream));
    Ok(ISOBATH_OK)
}

/// The changes that are committed from the position `from` on; where that is NULL all trees as they
/// are now, then the changes. ISOBATH_OVERRUN where the log no longer has what is asked for; so
/// answers isobath_changes_next of a stream that has fallen behind. Freed by isobath_changes_free.
/// Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_changes_open(
    store: *const isobath_store,
    from: *const c_char,
    out: *mut *mut isobath_changes,
) -> isobath_status {
    guard(|| {
        crate::not_null(out)?;
        let (store, from) = given!((object(store)?, position_of(from)?));
        let changes = store.0.changes(from)?;
        given!(give_changes(out, changes))
    })
}

/// As isobath_changes_open, of a store that another process may write. Once that has closed it, the
/// stream ends with ISOBATH_CLOSED. `options` may be NULL. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_changes_open_beside(
    paths: *const *const c_char,
    path_count: usize,
    options: *const isobath_options,
    from: *const c_char,
    out: *mut *mut isobath_changes,
) -> isobath_status {
    guard(|| {
        crate::not_null(out)?;
        let (paths, options, from) = given! {
            (paths_of(paths, path_count)?, options_of(options), position_of(from)?)
        };
        let changes = Store::changes_beside(&paths, &options, from)?;
        given!(give_changes(out, changes))
    })
}

/// Goes to the next transaction, whatever is left of the one before; ISOBATH_NOT_FOUND if there is
/// none after `timeout_ms` milliseconds, or the stream was stopped. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_changes_next(
    changes: *mut isobath_changes,
    timeout_ms: u64,
) -> isobath_status {
    guard(|| {
        let stream = given!(object_mut(changes)?);
        stream.committed = None;
        stream.records.clear();
        let timeout = Duration::from_millis(timeout_ms);
        stream.committed = stream.changes.next_within(timeout)?;
        (stream.next, stream.last, stream.is_done) = (0, None, false);
        Ok(super::found(stream.committed.is_some()))
    })
}

/// The next change of the transaction; ISOBATH_NOT_FOUND behind the last one. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_changes_change(
    changes: *mut isobath_changes,
    change: *mut isobath_change,
) -> isobath_status {
    guard(|| {
        let stream = given!(object_mut(changes)?);
        crate::not_null(change)?;
        let Some(found) = stream.step()? else {
            return Ok(ISOBATH_NOT_FOUND);
        };
        given!(change.write(found));
        Ok(ISOBATH_OK)
    })
}

fn slice(bytes: &[u8]) -> isobath_slice {
    isobath_slice {
        data: bytes.as_ptr().cast(),
        length: bytes.len(),
    }
}

impl isobath_changes {
    fn step(&mut self) -> Result<Option<isobath_change>, Failure> {
        let Some(committed) = self.committed.as_ref().filter(|_| !self.is_done) else {
            return Ok(None);
        };
        if self.next == 0 {
            self.next = 1;
            if committed.is_whole {
                return Ok(Some(change_of(ISOBATH_CHANGE_WHOLE, "", &[], &[])));
            }
        }
        let before = self
            .next
            .checked_sub(2)
            .and_then(|at| committed.changes.get(at));
        if let Some(Change::Replace { tree, .. }) = before {
            if self.records.is_empty() {
                let records = match &self.last {
                    None => committed.records(tree)?,
                    Some(last) => committed.records_behind(tree, last)?,
                };
                let mut bytes = 0;
                for record in records.take(FETCHED) {
                    let record = record?;
                    bytes += record.0.len() + record.1.len();
                    self.records.push_back(record);
                    if bytes >= FETCHED_BYTES {
                        break;
                    }
                }
            }
            if let Some((key, value)) = self.records.pop_front() {
                self.last = Some(key.clone());
                (self.given, self.given_value) = (key, value);
                let (key, value) = (&self.given[..], &self.given_value[..]);
                return Ok(Some(change_of(ISOBATH_CHANGE_PUT, tree, key, value)));
            }
        }
        let change = committed.changes.get(self.next - 1);
        // Behind the last change the call answers the same again.
        if change.is_some() {
            self.next += 1;
            self.last = None;
        } else {
            self.is_done = true;
        }
        Ok(change.and_then(|change| match change {
            Change::Put { tree, key, value } => {
                Some(change_of(ISOBATH_CHANGE_PUT, tree, key, value))
            }
            Change::Remove { tree, key } => Some(change_of(ISOBATH_CHANGE_REMOVE, tree, key, &[])),
            Change::Create { tree } => Some(change_of(ISOBATH_CHANGE_CREATE, tree, &[], &[])),
            Change::Drop { tree } => Some(change_of(ISOBATH_CHANGE_DROP, tree, &[], &[])),
            Change::Replace { tree, from } => {
                Some(change_of(ISOBATH_CHANGE_REPLACE, tree, from, &[]))
            }
            _ => None,
        }))
    }
}

fn change_of(kind: isobath_change_kind, tree: &str, key: &[u8], value: &[u8]) -> isobath_change {
    isobath_change {
        kind,
        tree: slice(tree.as_bytes()),
        key: slice(key),
        value: slice(value),
    }
}

/// Writes the position behind the transaction that was given out last into `text`, as
/// isobath_log_position. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_changes_position(
    changes: *const isobath_changes,
    text: *mut c_char,
    length: usize,
) -> isobath_status {
    guard(|| {
        let position = given!(object(changes)?).changes.position();
        given!(write_position(position, text, length))
    })
}

/// Ends the waiting of isobath_changes_next, now and from now on. Any thread, while another one
/// waits.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_changes_stop(changes: *const isobath_changes) -> isobath_status {
    guard(|| {
        crate::not_null(changes)?;
        // Only this field: another thread changes the others.
        given!((&raw const (*changes).stop).as_ref())
            .ok_or(Failure::Null)?
            .stop();
        Ok(ISOBATH_OK)
    })
}

/// Frees a stream. NULL does nothing. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_changes_free(changes: *mut isobath_changes) {
    given!(free(changes));
}
