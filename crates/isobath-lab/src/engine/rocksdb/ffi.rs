//! The part of RocksDB's C API that the benchmark uses, behind a safe face.
//!
//! Ownership: every pointer in these structs is created by the library's own
//! constructor, is never null after construction, belongs to its struct alone,
//! and is given back in `Drop`. `rocksdb_t`, its options and its write options
//! may be used from many threads at once (the library's documentation says
//! so), hence `Db: Send + Sync`.
#![expect(unsafe_code, reason = "foreign function interface of RocksDB")]

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::slice;

use super::super::Key;
use super::sys::*;

/// How a database is opened.
pub(super) struct Config<'c> {
    pub(super) create: bool,
    /// Names of the tables after the first, which is RocksDB's default column family.
    pub(super) tables: &'c [&'static str],
    /// Options in RocksDB's own text form, over all others: what its C API has no function for, and
    /// what the caller chose.
    pub(super) options: String,
    pub(super) background_jobs: i32,
    pub(super) write_buffer_bytes: usize,
    /// Of all tables together.
    pub(super) memtable_bytes: usize,
    pub(super) file_bytes: u64,
    pub(super) level_base_bytes: u64,
    pub(super) log: bool,
    pub(super) sync: bool,
    /// Whether transactions are needed.
    pub(super) transactions: bool,
}

/// An open database.
pub(super) struct Db {
    db: *mut Opaque,
    transactions: Option<*mut Opaque>,
    tables: Vec<*mut Opaque>,
    read: *mut Opaque,
    write: *mut Opaque,
}

// SAFETY: RocksDB's database, table and option objects are thread-safe once
// configured; nothing here is tied to the thread that made it.
unsafe impl Send for Db {}
// SAFETY: as above; the options are only read after `open`.
unsafe impl Sync for Db {}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Another transaction was in the way.
    Conflict,
    /// The library's message.
    Other(String),
}

/// Takes an error message from the library; `Ok` if it left none.
fn taken(error: *mut c_char) -> Result<(), Failed> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is a NUL-terminated string that the library
    // allocated for us; it is copied before it is freed, and freed once.
    let message = unsafe {
        let message = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        message
    };
    // Statuses Busy and TryAgain, as their texts begin.
    let conflicts = ["Resource busy", "Operation failed. Try again."];
    match conflicts.iter().any(|start| message.starts_with(start)) {
        true => Err(Failed::Conflict),
        false => Err(Failed::Other(message)),
    }
}

/// Calls `work` with a place for the library's error message.
fn checked<T>(work: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, Failed> {
    let mut error = ptr::null_mut();
    let answer = work(&raw mut error);
    taken(error)?;
    Ok(answer)
}

fn text(text: &[u8]) -> Result<CString, Failed> {
    CString::new(text).map_err(|_| Failed::Other("a text contains a zero byte".to_owned()))
}

/// Visits a pinned value and gives it back; `false` if there is none.
fn visit_pinned(pinned: *mut Opaque, visit: impl FnOnce(&[u8])) -> bool {
    if pinned.is_null() {
        return false;
    }
    let mut bytes = 0;
    // SAFETY: the pinned value stays valid until it is destroyed, which
    // happens after `visit`, once.
    unsafe {
        let value = rocksdb_pinnableslice_value(pinned, &raw mut bytes);
        visit(match value.is_null() {
            true => &[],
            false => slice::from_raw_parts(value.cast(), bytes),
        });
        rocksdb_pinnableslice_destroy(pinned);
    }
    true
}

/// Visits records from `from` on until `visit` says `false`, and destroys the iterator.
fn visit_records(
    iterator: *mut Opaque,
    from: &[u8],
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), Failed> {
    // SAFETY: the iterator is live until it is destroyed, once; key and
    // value are valid until it moves, and `visit` is called before that.
    unsafe {
        rocksdb_iter_seek(iterator, from.as_ptr().cast(), from.len());
        while rocksdb_iter_valid(iterator) != 0 {
            let (mut key_bytes, mut value_bytes) = (0, 0);
            let key = rocksdb_iter_key(iterator, &raw mut key_bytes);
            let value = rocksdb_iter_value(iterator, &raw mut value_bytes);
            let goes_on = visit(
                slice::from_raw_parts(key.cast(), key_bytes),
                slice::from_raw_parts(value.cast(), value_bytes),
            );
            if !goes_on {
                break;
            }
            rocksdb_iter_next(iterator);
        }
        let ended = checked(|error| rocksdb_iter_get_error(iterator, error));
        rocksdb_iter_destroy(iterator);
        ended
    }
}

impl Db {
    pub(super) fn open(path: &Path, config: &Config<'_>) -> Result<Db, Failed> {
        let name = text(path.as_os_str().as_bytes())?;
        let option_text = text(config.options.as_bytes())?;
        let names = std::iter::once("default").chain(config.tables.iter().copied());
        let names = names
            .map(|name| text(name.as_bytes()))
            .collect::<Result<Vec<_>, _>>()?;
        let name_pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        let count = i32::try_from(names.len()).unwrap_or(i32::MAX);
        let mut tables = vec![ptr::null_mut(); names.len()];
        // SAFETY: every object is made by its constructor and used before it is destroyed; the
        // database copies the options. Names, pointers and handles outlive the calls, and all
        // arrays have `count` elements.
        unsafe {
            let base = rocksdb_options_create();
            let options = rocksdb_options_create();
            configure(base, config);
            let parsed = checked(|error| {
                rocksdb_get_options_from_string(base, option_text.as_ptr(), options, error);
            });
            rocksdb_options_destroy(base);
            let opened = parsed.and_then(|()| {
                let table_options = vec![options.cast_const(); names.len()];
                let open = match config.transactions {
                    true => rocksdb_optimistictransactiondb_open_column_families,
                    false => rocksdb_open_column_families,
                };
                checked(|error| {
                    open(
                        options,
                        name.as_ptr(),
                        count,
                        name_pointers.as_ptr(),
                        table_options.as_ptr(),
                        tables.as_mut_ptr(),
                        error,
                    )
                })
            });
            rocksdb_options_destroy(options);
            let opened = opened?;
            let write = rocksdb_writeoptions_create();
            rocksdb_writeoptions_disable_WAL(write, (!config.log).into());
            rocksdb_writeoptions_set_sync(write, (config.log && config.sync).into());
            Ok(Db {
                db: match config.transactions {
                    true => rocksdb_optimistictransactiondb_get_base_db(opened),
                    false => opened,
                },
                transactions: config.transactions.then_some(opened),
                tables,
                read: rocksdb_readoptions_create(),
                write,
            })
        }
    }

    /// Inserts or replaces a record, in the open transaction if there is one.
    pub(super) fn put(
        &self,
        open: Option<&Transaction<'_>>,
        table: usize,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Failed> {
        let table = self.tables[table];
        let (k, k_bytes) = (key.as_ptr().cast(), key.len());
        let (v, v_bytes) = (value.as_ptr().cast(), value.len());
        // SAFETY: key and value are valid for the lengths given; the library copies them.
        checked(|error| unsafe {
            match open {
                None => rocksdb_put_cf(self.db, self.write, table, k, k_bytes, v, v_bytes, error),
                Some(open) => rocksdb_transaction_put_cf(
                    open.transaction,
                    table,
                    k,
                    k_bytes,
                    v,
                    v_bytes,
                    error,
                ),
            }
        })
    }

    /// Removes a record, in the open transaction if there is one.
    pub(super) fn delete(
        &self,
        open: Option<&Transaction<'_>>,
        table: usize,
        key: &[u8],
    ) -> Result<(), Failed> {
        let table = self.tables[table];
        let (k, k_bytes) = (key.as_ptr().cast(), key.len());
        // SAFETY: the key is valid for its length.
        checked(|error| unsafe {
            match open {
                None => rocksdb_delete_cf(self.db, self.write, table, k, k_bytes, error),
                Some(open) => {
                    rocksdb_transaction_delete_cf(open.transaction, table, k, k_bytes, error);
                }
            }
        })
    }

    /// Writes the batch and empties it.
    pub(super) fn write(&self, batch: &mut Batch) -> Result<(), Failed> {
        // SAFETY: both objects are live; the batch is borrowed exclusively.
        let result = checked(|error| unsafe { rocksdb_write(self.db, self.write, batch.0, error) });
        // SAFETY: as above.
        unsafe { rocksdb_writebatch_clear(batch.0) };
        result
    }

    /// Adds a record to a batch.
    pub(super) fn add(&self, batch: &mut Batch, table: usize, key: &[u8], value: &[u8]) {
        // SAFETY: key and value are valid for their lengths; the batch copies them.
        unsafe {
            rocksdb_writebatch_put_cf(
                batch.0,
                self.tables[table],
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    /// `false` if the key is absent.
    pub(super) fn get(
        &self,
        open: Option<&Transaction<'_>>,
        table: usize,
        key: &[u8],
        visit: impl FnOnce(&[u8]),
    ) -> Result<bool, Failed> {
        let table = self.tables[table];
        let (k, k_bytes) = (key.as_ptr().cast(), key.len());
        // SAFETY: the key is valid for its length.
        let pinned = checked(|error| unsafe {
            match open {
                None => rocksdb_get_pinned_cf(self.db, self.read, table, k, k_bytes, error),
                Some(open) => rocksdb_transaction_get_pinned_cf(
                    open.transaction,
                    open.read,
                    table,
                    k,
                    k_bytes,
                    error,
                ),
            }
        })?;
        Ok(visit_pinned(pinned, visit))
    }

    pub(super) fn multi_get(
        &self,
        keys: &[Key],
        visit: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Failed> {
        let count = keys.len();
        let pointers: Vec<*const c_char> = keys.iter().map(|k| k.as_ptr().cast()).collect();
        let lengths: Vec<usize> = keys.iter().map(|k| k.len()).collect();
        let mut values = vec![ptr::null_mut::<Opaque>(); count];
        let mut errors = vec![ptr::null_mut::<c_char>(); count];
        // SAFETY: all arrays have `count` elements; the keys outlive the call.
        unsafe {
            rocksdb_batched_multi_get_cf(
                self.db,
                self.read,
                self.tables[0],
                count,
                pointers.as_ptr(),
                lengths.as_ptr(),
                values.as_mut_ptr(),
                errors.as_mut_ptr(),
                false,
            );
        }
        let mut result = Ok(());
        for (at, (value, error)) in values.iter().zip(&errors).enumerate() {
            if let (Err(failed), Ok(())) = (taken(*error), &result) {
                result = Err(failed);
            }
            if !visit_pinned(*value, |value| visit(at, Some(value))) {
                visit(at, None);
            }
        }
        result
    }

    pub(super) fn scan(
        &self,
        open: Option<&Transaction<'_>>,
        table: usize,
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Failed> {
        let table = self.tables[table];
        // SAFETY: database, transaction, options and table are live; `visit_records` destroys the
        // iterator.
        let iterator = unsafe {
            match open {
                None => rocksdb_create_iterator_cf(self.db, self.read, table),
                Some(open) => {
                    rocksdb_transaction_create_iterator_cf(open.transaction, open.read, table)
                }
            }
        };
        visit_records(iterator, from, visit)
    }

    /// Writes memtables to files.
    pub(super) fn flush(&self) -> Result<(), Failed> {
        self.tables.iter().try_for_each(|&table| {
            // SAFETY: the flush options live across the call and are destroyed once.
            unsafe {
                let options = rocksdb_flushoptions_create();
                let result = checked(|error| rocksdb_flush_cf(self.db, options, table, error));
                rocksdb_flushoptions_destroy(options);
                result
            }
        })
    }

    /// Merges all files of each table into one sorted run.
    pub(super) fn compact(&self) {
        for &table in &self.tables {
            // SAFETY: null bounds mean the whole key space.
            unsafe { rocksdb_compact_range_cf(self.db, table, ptr::null(), 0, ptr::null(), 0) };
        }
    }

    /// A property of a table, as the library prints it.
    pub(super) fn property(&self, table: usize, name: &CStr) -> Option<String> {
        // SAFETY: table and name are live; the answer is a NUL-terminated string that is ours to
        // free, once.
        unsafe {
            let value = rocksdb_property_value_cf(self.db, self.tables[table], name.as_ptr());
            if value.is_null() {
                return None;
            }
            let answer = CStr::from_ptr(value).to_string_lossy().into_owned();
            rocksdb_free(value.cast());
            Some(answer)
        }
    }

    /// Begins a transaction that reads a snapshot of now; none if the database was opened without
    /// them.
    pub(super) fn begin(&self) -> Option<Transaction<'_>> {
        let transactions = self.transactions?;
        // SAFETY: the options live across the call; the library copies them. The snapshot belongs
        // to the transaction, but the object around it is freed by us, in `Drop`.
        unsafe {
            let options = rocksdb_optimistictransaction_options_create();
            rocksdb_optimistictransaction_options_set_set_snapshot(options, 1);
            let transaction = rocksdb_optimistictransaction_begin(
                transactions,
                self.write,
                options,
                ptr::null_mut(),
            );
            rocksdb_optimistictransaction_options_destroy(options);
            let snapshot = rocksdb_transaction_get_snapshot(transaction);
            let read = rocksdb_readoptions_create();
            rocksdb_readoptions_set_snapshot(read, snapshot);
            Some(Transaction {
                _db: self,
                transaction,
                snapshot,
                read,
            })
        }
    }
}

/// # Safety
/// `options` is a live options object.
unsafe fn configure(options: *mut Opaque, config: &Config<'_>) {
    // SAFETY: the caller guarantees this.
    unsafe {
        rocksdb_options_set_create_if_missing(options, config.create.into());
        rocksdb_options_set_create_missing_column_families(options, config.create.into());
        rocksdb_options_set_error_if_exists(options, config.create.into());
        rocksdb_options_set_use_direct_reads(options, 1);
        rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
        rocksdb_options_set_compression(options, 0);
        rocksdb_options_set_max_background_jobs(options, config.background_jobs);
        rocksdb_options_set_max_open_files(options, -1);
        rocksdb_options_set_write_buffer_size(options, config.write_buffer_bytes);
        rocksdb_options_set_db_write_buffer_size(options, config.memtable_bytes);
        rocksdb_options_set_target_file_size_base(options, config.file_bytes);
        rocksdb_options_set_max_bytes_for_level_base(options, config.level_base_bytes);
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: nothing else holds these pointers; the tables' handles go first, then the
        // database, then what it was used with.
        unsafe {
            for &table in &self.tables {
                rocksdb_column_family_handle_destroy(table);
            }
            match self.transactions {
                Some(transactions) => {
                    rocksdb_optimistictransactiondb_close_base_db(self.db);
                    rocksdb_optimistictransactiondb_close(transactions);
                }
                None => rocksdb_close(self.db),
            }
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
        }
    }
}

/// Records that are written together.
pub(super) struct Batch(*mut Opaque);

impl Batch {
    pub(super) fn new() -> Batch {
        // SAFETY: a plain constructor.
        Batch(unsafe { rocksdb_writebatch_create() })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe { rocksdb_writebatch_destroy(self.0) };
    }
}

/// An optimistic transaction over a snapshot; dropping it rolls it back.
pub(super) struct Transaction<'d> {
    _db: &'d Db,
    transaction: *mut Opaque,
    snapshot: *const Opaque,
    read: *mut Opaque,
}

impl Transaction<'_> {
    pub(super) fn commit(self) -> Result<(), Failed> {
        // SAFETY: the transaction is live; `Drop` destroys it afterwards.
        checked(|error| unsafe { rocksdb_transaction_commit(self.transaction, error) })
    }

    pub(super) fn roll_back(self) -> Result<(), Failed> {
        // SAFETY: as above.
        checked(|error| unsafe { rocksdb_transaction_rollback(self.transaction, error) })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `begin`, each given back once; the snapshot's object before what it
        // points into.
        unsafe {
            rocksdb_free(self.snapshot.cast_mut());
            rocksdb_readoptions_destroy(self.read);
            rocksdb_transaction_destroy(self.transaction);
        }
    }
}
