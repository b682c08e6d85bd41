//! The part of RocksDB's C API (`rocksdb/c.h`, 7.8) that the benchmark uses,
//! behind a safe face. All `unsafe` of the adapter is here.
//!
//! Ownership: every pointer in these structs is created by the library's own
//! constructor, is never null after construction, belongs to its struct alone,
//! and is given back in `Drop`. `rocksdb_t`, its options and its read and
//! write options may be used from many threads at once (the library's
//! documentation says so), hence `Db: Send + Sync`.
#![expect(unsafe_code, reason = "foreign function interface of RocksDB")]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::slice;

use super::Key;

/// An object that only the library looks into.
type Opaque = c_void;

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut Opaque;
    fn rocksdb_options_destroy(options: *mut Opaque);
    fn rocksdb_options_set_create_if_missing(options: *mut Opaque, yes: c_uchar);
    fn rocksdb_options_set_error_if_exists(options: *mut Opaque, yes: c_uchar);
    fn rocksdb_options_set_use_direct_reads(options: *mut Opaque, yes: c_uchar);
    fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(
        options: *mut Opaque,
        yes: c_uchar,
    );
    fn rocksdb_options_set_compression(options: *mut Opaque, kind: c_int);
    fn rocksdb_options_set_max_background_jobs(options: *mut Opaque, jobs: c_int);
    fn rocksdb_options_set_max_open_files(options: *mut Opaque, files: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: *mut Opaque, table: *mut Opaque);
    fn rocksdb_block_based_options_create() -> *mut Opaque;
    fn rocksdb_block_based_options_destroy(table: *mut Opaque);
    fn rocksdb_block_based_options_set_block_size(table: *mut Opaque, bytes: usize);
    fn rocksdb_block_based_options_set_block_cache(table: *mut Opaque, cache: *mut Opaque);
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut Opaque;
    fn rocksdb_cache_destroy(cache: *mut Opaque);
    fn rocksdb_readoptions_create() -> *mut Opaque;
    fn rocksdb_readoptions_destroy(options: *mut Opaque);
    fn rocksdb_writeoptions_create() -> *mut Opaque;
    fn rocksdb_writeoptions_destroy(options: *mut Opaque);
    fn rocksdb_writeoptions_disable_WAL(options: *mut Opaque, disable: c_int);
    fn rocksdb_flushoptions_create() -> *mut Opaque;
    fn rocksdb_flushoptions_destroy(options: *mut Opaque);
    fn rocksdb_open(
        options: *const Opaque,
        path: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    fn rocksdb_close(db: *mut Opaque);
    fn rocksdb_put(
        db: *mut Opaque,
        options: *const Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_write(
        db: *mut Opaque,
        options: *const Opaque,
        batch: *mut Opaque,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned(
        db: *mut Opaque,
        options: *const Opaque,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    fn rocksdb_pinnableslice_value(slice: *const Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: *mut Opaque);
    fn rocksdb_multi_get(
        db: *mut Opaque,
        options: *const Opaque,
        count: usize,
        keys: *const *const c_char,
        key_bytes: *const usize,
        values: *mut *mut c_char,
        value_bytes: *mut usize,
        errors: *mut *mut c_char,
    );
    fn rocksdb_create_iterator(db: *mut Opaque, options: *const Opaque) -> *mut Opaque;
    fn rocksdb_iter_destroy(iterator: *mut Opaque);
    fn rocksdb_iter_valid(iterator: *const Opaque) -> c_uchar;
    fn rocksdb_iter_seek(iterator: *mut Opaque, key: *const c_char, key_bytes: usize);
    fn rocksdb_iter_next(iterator: *mut Opaque);
    fn rocksdb_iter_key(iterator: *const Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: *const Opaque, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: *const Opaque, error: *mut *mut c_char);
    fn rocksdb_flush(db: *mut Opaque, options: *const Opaque, error: *mut *mut c_char);
    fn rocksdb_compact_range(
        db: *mut Opaque,
        from: *const c_char,
        from_bytes: usize,
        to: *const c_char,
        to_bytes: usize,
    );
    fn rocksdb_writebatch_create() -> *mut Opaque;
    fn rocksdb_writebatch_destroy(batch: *mut Opaque);
    fn rocksdb_writebatch_clear(batch: *mut Opaque);
    fn rocksdb_writebatch_put(
        batch: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
    fn rocksdb_free(memory: *mut c_void);
}

/// How a database is opened.
pub(super) struct Config {
    pub(super) create: bool,
    pub(super) cache_bytes: u64,
    pub(super) block_bytes: usize,
    pub(super) background_jobs: i32,
}

/// An open database.
pub(super) struct Db {
    db: *mut Opaque,
    read: *mut Opaque,
    write: *mut Opaque,
    cache: *mut Opaque,
}

// SAFETY: RocksDB's database, cache and option objects are thread-safe once
// configured; nothing here is tied to the thread that made it.
unsafe impl Send for Db {}
// SAFETY: as above; the options are only read after `open`.
unsafe impl Sync for Db {}

/// Takes an error message from the library; `Ok` where it left none.
fn taken(error: *mut c_char) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null error is a NUL-terminated string that the library
    // allocated for us; it is copied before it is freed, and freed once.
    unsafe {
        let message = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        Err(message)
    }
}

/// Calls `work` with a place for the library's error message.
fn checked<T>(work: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, String> {
    let mut error = ptr::null_mut();
    let answer = work(&raw mut error);
    taken(error)?;
    Ok(answer)
}

impl Db {
    pub(super) fn open(path: &Path, config: &Config) -> Result<Db, String> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| "the path contains a zero byte".to_owned())?;
        let cache_bytes =
            usize::try_from(config.cache_bytes).map_err(|_| "the cache is too large".to_owned())?;
        // SAFETY: every object is made by its constructor and used before it
        // is destroyed; the database copies the options, and the table factory
        // keeps its own reference to the cache. `name` outlives the call.
        unsafe {
            let cache = rocksdb_cache_create_lru(cache_bytes);
            let table = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_block_size(table, config.block_bytes);
            rocksdb_block_based_options_set_block_cache(table, cache);
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, config.create.into());
            rocksdb_options_set_error_if_exists(options, config.create.into());
            rocksdb_options_set_use_direct_reads(options, 1);
            rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
            rocksdb_options_set_compression(options, 0);
            rocksdb_options_set_max_background_jobs(options, config.background_jobs);
            rocksdb_options_set_max_open_files(options, -1);
            rocksdb_options_set_block_based_table_factory(options, table);
            let opened = checked(|error| rocksdb_open(options, name.as_ptr(), error));
            rocksdb_options_destroy(options);
            rocksdb_block_based_options_destroy(table);
            let db = match opened {
                Ok(db) => db,
                Err(message) => {
                    rocksdb_cache_destroy(cache);
                    return Err(message);
                }
            };
            let write = rocksdb_writeoptions_create();
            rocksdb_writeoptions_disable_WAL(write, 1);
            Ok(Db {
                db,
                read: rocksdb_readoptions_create(),
                write,
                cache,
            })
        }
    }

    pub(super) fn put(&self, key: &Key, value: &[u8]) -> Result<(), String> {
        // SAFETY: key and value are valid for the lengths given; the library
        // copies them.
        checked(|error| unsafe {
            rocksdb_put(
                self.db,
                self.write,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                error,
            );
        })
    }

    /// Writes the batch and empties it.
    pub(super) fn write(&self, batch: &mut Batch) -> Result<(), String> {
        // SAFETY: both objects are live; the batch is borrowed exclusively.
        let result = checked(|error| unsafe { rocksdb_write(self.db, self.write, batch.0, error) });
        // SAFETY: as above.
        unsafe { rocksdb_writebatch_clear(batch.0) };
        result
    }

    /// `false` where the key is absent.
    pub(super) fn get(&self, key: &Key, visit: impl FnOnce(&[u8])) -> Result<bool, String> {
        // SAFETY: the key is valid for its length.
        let pinned = checked(|error| unsafe {
            rocksdb_get_pinned(self.db, self.read, key.as_ptr().cast(), key.len(), error)
        })?;
        if pinned.is_null() {
            return Ok(false);
        }
        let mut bytes = 0;
        // SAFETY: the pinned value stays valid until it is destroyed, which
        // happens after `visit`, once.
        unsafe {
            let value = rocksdb_pinnableslice_value(pinned, &raw mut bytes);
            if !value.is_null() {
                visit(slice::from_raw_parts(value.cast(), bytes));
            }
            rocksdb_pinnableslice_destroy(pinned);
        }
        Ok(true)
    }

    pub(super) fn multi_get(
        &self,
        keys: &[Key],
        visit: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), String> {
        let count = keys.len();
        let pointers: Vec<*const c_char> = keys.iter().map(|k| k.as_ptr().cast()).collect();
        let lengths: Vec<usize> = keys.iter().map(|k| k.len()).collect();
        let mut values = vec![ptr::null_mut::<c_char>(); count];
        let mut value_bytes = vec![0usize; count];
        let mut errors = vec![ptr::null_mut::<c_char>(); count];
        // SAFETY: all arrays have `count` elements; the keys outlive the call.
        unsafe {
            rocksdb_multi_get(
                self.db,
                self.read,
                count,
                pointers.as_ptr(),
                lengths.as_ptr(),
                values.as_mut_ptr(),
                value_bytes.as_mut_ptr(),
                errors.as_mut_ptr(),
            );
        }
        let mut result = Ok(());
        for (at, ((value, bytes), error)) in
            values.iter().zip(&value_bytes).zip(&errors).enumerate()
        {
            if let (Err(message), Ok(())) = (taken(*error), &result) {
                result = Err(message);
            }
            if value.is_null() {
                visit(at, None);
            } else {
                // SAFETY: the library allocated `bytes` bytes for us; they are
                // freed once, after `visit`.
                unsafe {
                    visit(at, Some(slice::from_raw_parts(value.cast(), *bytes)));
                    rocksdb_free(value.cast());
                }
            }
        }
        result
    }

    pub(super) fn scan(
        &self,
        from: &Key,
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, String> {
        let mut seen = 0;
        // SAFETY: the iterator is live until it is destroyed, once; key and
        // value are valid until it moves, and `visit` is called before that.
        unsafe {
            let iterator = rocksdb_create_iterator(self.db, self.read);
            rocksdb_iter_seek(iterator, from.as_ptr().cast(), from.len());
            while seen < limit && rocksdb_iter_valid(iterator) != 0 {
                let (mut key_bytes, mut value_bytes) = (0, 0);
                let key = rocksdb_iter_key(iterator, &raw mut key_bytes);
                let value = rocksdb_iter_value(iterator, &raw mut value_bytes);
                visit(
                    slice::from_raw_parts(key.cast(), key_bytes),
                    slice::from_raw_parts(value.cast(), value_bytes),
                );
                seen += 1;
                rocksdb_iter_next(iterator);
            }
            let ended = checked(|error| rocksdb_iter_get_error(iterator, error));
            rocksdb_iter_destroy(iterator);
            ended?;
        }
        Ok(seen)
    }

    /// Writes what is in memory to files.
    pub(super) fn flush(&self) -> Result<(), String> {
        // SAFETY: the flush options live across the call and are destroyed once.
        unsafe {
            let options = rocksdb_flushoptions_create();
            let result = checked(|error| rocksdb_flush(self.db, options, error));
            rocksdb_flushoptions_destroy(options);
            result
        }
    }

    /// Merges all files into one sorted run.
    pub(super) fn compact(&self) {
        // SAFETY: null bounds mean the whole key space.
        unsafe { rocksdb_compact_range(self.db, ptr::null(), 0, ptr::null(), 0) };
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: nothing else holds these pointers; the database goes first,
        // then what it was used with.
        unsafe {
            rocksdb_close(self.db);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
            rocksdb_cache_destroy(self.cache);
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

    pub(super) fn put(&mut self, key: &Key, value: &[u8]) {
        // SAFETY: key and value are valid for their lengths; the batch copies them.
        unsafe {
            rocksdb_writebatch_put(
                self.0,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        unsafe { rocksdb_writebatch_destroy(self.0) };
    }
}
