//! The part of RocksDB's C API (`rocksdb/c.h`, 7.8) that the server uses.
#![expect(unsafe_code, reason = "foreign function interface of RocksDB")]

use std::ffi::{c_char, c_uchar, c_void};

/// An object that only the library looks into.
pub(super) type Opaque = c_void;

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub(super) fn rocksdb_options_create() -> *mut Opaque;
    pub(super) fn rocksdb_options_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_options_set_create_if_missing(options: *mut Opaque, yes: c_uchar);
    pub(super) fn rocksdb_open(
        options: *const Opaque,
        path: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    pub(super) fn rocksdb_close(db: *mut Opaque);
    pub(super) fn rocksdb_readoptions_create() -> *mut Opaque;
    pub(super) fn rocksdb_readoptions_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_writeoptions_create() -> *mut Opaque;
    pub(super) fn rocksdb_writeoptions_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_writeoptions_set_sync(options: *mut Opaque, yes: c_uchar);
    pub(super) fn rocksdb_get(
        db: *mut Opaque,
        options: *const Opaque,
        key: *const c_char,
        key_bytes: usize,
        value_bytes: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    pub(super) fn rocksdb_write(
        db: *mut Opaque,
        options: *const Opaque,
        batch: *mut Opaque,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_writebatch_create() -> *mut Opaque;
    pub(super) fn rocksdb_writebatch_destroy(batch: *mut Opaque);
    pub(super) fn rocksdb_writebatch_put(
        batch: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
    pub(super) fn rocksdb_writebatch_delete_range(
        batch: *mut Opaque,
        from: *const c_char,
        from_bytes: usize,
        to: *const c_char,
        to_bytes: usize,
    );
    pub(super) fn rocksdb_create_iterator(db: *mut Opaque, options: *const Opaque) -> *mut Opaque;
    pub(super) fn rocksdb_iter_destroy(iterator: *mut Opaque);
    pub(super) fn rocksdb_iter_valid(iterator: *const Opaque) -> c_uchar;
    pub(super) fn rocksdb_iter_seek(iterator: *mut Opaque, key: *const c_char, key_bytes: usize);
    pub(super) fn rocksdb_iter_seek_to_last(iterator: *mut Opaque);
    pub(super) fn rocksdb_iter_next(iterator: *mut Opaque);
    pub(super) fn rocksdb_iter_key(iterator: *const Opaque, bytes: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_value(iterator: *const Opaque, bytes: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_get_error(iterator: *const Opaque, error: *mut *mut c_char);
    pub(super) fn rocksdb_free(memory: *mut c_void);
}
