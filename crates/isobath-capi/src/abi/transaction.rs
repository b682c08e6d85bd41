//! Transactions and snapshots.

use std::ffi::c_void;
use std::time::Duration;

use isobath::{Isolation, Savepoint, Transaction, TransactionOptions};

use super::bytes::{isobath_bytes, isobath_slice};
use super::options::durability;
use super::status::{Failure, isobath_status, isobath_status_is_retryable};
use super::store::isobath_store;
use super::tree::{isobath_tree, keys_of};
use super::{bytes_of, done, found, free, give, guard, object, object_mut};
use isobath_status::*;

/// A transaction over all trees of a store. It reads the store as it was when it began, together
/// with its own changes. One thread at a time; it may move between threads.
pub struct isobath_transaction {
    transaction: Option<Transaction>,
    savepoints: Vec<Savepoint>,
}

impl isobath_transaction {
    pub(crate) fn open(&self) -> Result<&Transaction, Failure> {
        self.transaction.as_ref().ok_or_else(ended)
    }

    fn open_mut(&mut self) -> Result<&mut Transaction, Failure> {
        self.transaction.as_mut().ok_or_else(ended)
    }

    pub(crate) fn take(&mut self) -> Result<Transaction, Failure> {
        self.transaction.take().ok_or_else(ended)
    }
}

fn ended() -> Failure {
    Failure::Status(ISOBATH_CLOSED, "the transaction has ended".to_owned())
}

/// The isolation of a transaction.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum isobath_isolation {
    /// It commits only if nothing that it writes was changed since it began.
    ISOBATH_SNAPSHOT = 0,
    /// And nothing that it has read.
    ISOBATH_SERIALIZABLE = 1,
}

/// How a transaction runs. All zeros: snapshot isolation, the store's durability, reading and
/// writing.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_transaction_options {
    /// An isobath_isolation.
    pub isolation: i32,
    /// Refuses changes: a snapshot of the store.
    pub read_only: bool,
    /// Whether `durability` counts; else the store's does.
    pub has_durability: bool,
    /// An isobath_durability.
    pub durability: i32,
    /// Milliseconds, if that is ISOBATH_BUFFERED.
    pub window_ms: u32,
}

/// Options that C gives.
///
/// # Safety
///
/// They can be read, or the pointer is NULL.
unsafe fn options_of(
    options: *const isobath_transaction_options,
) -> Result<TransactionOptions, Failure> {
    let Some(options) = (given!(options.as_ref())) else {
        return Ok(TransactionOptions::new());
    };
    let isolation = match options.isolation {
        0 => Isolation::Snapshot,
        1 => Isolation::Serializable,
        _ => return Err(Failure::Argument("there is no such isolation")),
    };
    let mut chosen = TransactionOptions::new()
        .isolation(isolation)
        .read_only(options.read_only);
    if options.has_durability {
        chosen = chosen.durability(durability(options.durability, options.window_ms)?);
    }
    Ok(chosen)
}

/// Begins a transaction; `options` may be NULL. Freed by isobath_transaction_free, whether it was
/// committed or not. Any thread.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL; bytes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_begin(
    store: *const isobath_store,
    options: *const isobath_transaction_options,
    out: *mut *mut isobath_transaction,
) -> isobath_status {
    guard(|| {
        let (store, options) = given!((object(store)?, options_of(options)?));
        crate::not_null(out)?;
        let transaction = isobath_transaction {
            transaction: Some(store.0.begin_with(options)?),
            savepoints: Vec::new(),
        };
        given!(give(out, transaction));
        Ok(ISOBATH_OK)
    })
}

/// Makes all changes visible and lasting, or none; either way the transaction has ended. After
/// ISOBATH_CONFLICT and ISOBATH_TOO_OLD the same may succeed in a new one. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_commit(
    transaction: *mut isobath_transaction,
) -> isobath_status {
    guard(|| done(given!(object_mut(transaction)?).take()?.commit()))
}

/// Ends a transaction without changing anything. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_rollback(
    transaction: *mut isobath_transaction,
) -> isobath_status {
    guard(|| {
        given!(object_mut(transaction)?).take()?.rollback();
        Ok(ISOBATH_OK)
    })
}

/// Frees a transaction; one that has not ended is rolled back. NULL does nothing. One thread at a
/// time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_free(transaction: *mut isobath_transaction) {
    given!(free(transaction));
}

/// What isobath_transact runs: ISOBATH_OK has it commit, anything else has it roll back. It must
/// not end the transaction.
pub type isobath_work = Option<
    unsafe extern "C" fn(argument: *mut c_void, transaction: *mut isobath_transaction) -> i32,
>;

/// Times that isobath_transact tries.
const ATTEMPTS: u32 = 64;

/// Runs `work` in a transaction and commits it. If other transactions were first, in the work or
/// at its commit, runs it again in a new transaction, at most 64 times. The status of the work, or
/// of the commit. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transact(
    store: *const isobath_store,
    options: *const isobath_transaction_options,
    work: isobath_work,
    argument: *mut c_void,
) -> i32 {
    let mut status = ISOBATH_OTHER as i32;
    let ran = guard(|| {
        let (store, options) = given!((object(store)?, options_of(options)?));
        let work = work.ok_or(Failure::Null)?;
        for attempt in 0..ATTEMPTS {
            let mut transaction = isobath_transaction {
                transaction: Some(store.0.begin_with(options)?),
                savepoints: Vec::new(),
            };
            // SAFETY: a function of the program's.
            status = unsafe { work(argument, &mut transaction) };
            if status == ISOBATH_OK as i32 {
                status = guard(|| done(transaction.take()?.commit())) as i32;
            }
            if !isobath_status_is_retryable(status) {
                break;
            }
            std::thread::sleep(Duration::from_micros(20 << attempt.min(9)));
        }
        Ok(ISOBATH_OK)
    });
    match ran {
        ISOBATH_OK => status,
        failed => failed as i32,
    }
}

/// The value of a key for this transaction, to be freed by isobath_bytes_free. ISOBATH_NOT_FOUND
/// if there is none. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_get(
    transaction: *const isobath_transaction,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    value: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        let (transaction, tree) = given!((object(transaction)?.open()?, object(tree)?));
        let key = given!(bytes_of(key, key_length)?);
        crate::not_null(value)?;
        let read = transaction.get(&tree.0, key)?;
        let status = found(read.is_some());
        given!(value.write(isobath_bytes::of(read)));
        Ok(status)
    })
}

/// Whether a key has a value for this transaction: ISOBATH_OK or ISOBATH_NOT_FOUND. One thread at a
/// time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_contains(
    transaction: *const isobath_transaction,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
) -> isobath_status {
    guard(|| {
        let (transaction, tree) = given!((object(transaction)?.open()?, object(tree)?));
        let key = given!(bytes_of(key, key_length)?);
        Ok(found(transaction.contains(&tree.0, key)?))
    })
}

/// The values of many keys, as isobath_get_many. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_get_many(
    transaction: *const isobath_transaction,
    tree: *const isobath_tree,
    keys: *const isobath_slice,
    count: usize,
    values: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        let (transaction, tree) = given!((object(transaction)?.open()?, object(tree)?));
        let keys = given!(keys_of(keys, count)?);
        if values.is_null() && count > 0 {
            return Err(Failure::Null);
        }
        let read = transaction.get_many(&tree.0, &keys)?;
        for (at, value) in read.into_iter().enumerate() {
            given!(values.add(at).write(isobath_bytes::of(value)));
        }
        Ok(ISOBATH_OK)
    })
}

/// Gives a key a value. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_put(
    transaction: *mut isobath_transaction,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> isobath_status {
    guard(|| {
        let (transaction, tree) = given!((object_mut(transaction)?.open_mut()?, object(tree)?));
        let (key, value) = given!((bytes_of(key, key_length)?, bytes_of(value, value_length)?));
        done(transaction.insert(&tree.0, key, value))
    })
}

/// Fills `buffer` with up to `capacity` bytes of a value and says how many in `length`, 0 at the
/// end. Anything but ISOBATH_OK ends the work with that status.
pub type isobath_source = Option<
    unsafe extern "C" fn(
        argument: *mut c_void,
        buffer: *mut c_void,
        capacity: usize,
        length: *mut usize,
    ) -> i32,
>;

/// Gives a key a large value that `source` hands out in pieces. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_put_from(
    transaction: *mut isobath_transaction,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    source: isobath_source,
    argument: *mut c_void,
) -> isobath_status {
    guard(|| {
        let (transaction, tree) = given!((object_mut(transaction)?.open_mut()?, object(tree)?));
        let key = given!(bytes_of(key, key_length)?);
        let source = source.ok_or(Failure::Null)?;
        let mut writer = transaction.writer(&tree.0, key)?;
        let mut buffer = vec![0u8; 256 << 10];
        loop {
            let mut length = 0;
            // SAFETY: a function of the program's.
            let status = unsafe {
                source(
                    argument,
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    &mut length,
                )
            };
            if status != ISOBATH_OK as i32 || length > buffer.len() {
                let reason = "the source of the value has failed".to_owned();
                return Err(Failure::Status(ISOBATH_INTERRUPTED, reason));
            }
            if length == 0 {
                break;
            }
            writer.append(&buffer[..length])?;
        }
        done(writer.finish())
    })
}

/// Removes a key: ISOBATH_NOT_FOUND if it had no value. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_delete(
    transaction: *mut isobath_transaction,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
) -> isobath_status {
    guard(|| {
        let (transaction, tree) = given!((object_mut(transaction)?.open_mut()?, object(tree)?));
        let key = given!(bytes_of(key, key_length)?);
        Ok(found(transaction.remove(&tree.0, key)?))
    })
}

/// Remembers the changes so far; the savepoint's number. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_savepoint(
    transaction: *mut isobath_transaction,
    number: *mut usize,
) -> isobath_status {
    guard(|| {
        let transaction = given!(object_mut(transaction)?);
        crate::not_null(number)?;
        let savepoint = transaction.open_mut()?.savepoint();
        given!(number.write(transaction.savepoints.len()));
        transaction.savepoints.push(savepoint);
        Ok(ISOBATH_OK)
    })
}

/// Undoes all changes since a savepoint, which stays usable; those made after it are gone. One
/// thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_rollback_to(
    transaction: *mut isobath_transaction,
    number: usize,
) -> isobath_status {
    guard(|| {
        let transaction = given!(object_mut(transaction)?);
        let savepoint = transaction.savepoints.get(number).copied();
        let savepoint = savepoint.ok_or(Failure::Argument("there is no such savepoint"))?;
        transaction.open_mut()?.rollback_to(savepoint)?;
        transaction.savepoints.truncate(number + 1);
        Ok(ISOBATH_OK)
    })
}
