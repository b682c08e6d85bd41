//! The part of RocksDB's C API (`rocksdb/c.h`, 7.8) that the benchmark uses.
#![expect(unsafe_code, reason = "foreign function interface of RocksDB")]

use std::ffi::{c_char, c_int, c_uchar, c_void};

/// An object that only the library looks into.
pub(super) type Opaque = c_void;

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub(super) fn rocksdb_options_create() -> *mut Opaque;
    pub(super) fn rocksdb_options_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_options_set_create_if_missing(options: *mut Opaque, yes: c_uchar);
    pub(super) fn rocksdb_options_set_error_if_exists(options: *mut Opaque, yes: c_uchar);
    pub(super) fn rocksdb_options_set_use_direct_reads(options: *mut Opaque, yes: c_uchar);
    pub(super) fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(
        options: *mut Opaque,
        yes: c_uchar,
    );
    pub(super) fn rocksdb_options_set_compression(options: *mut Opaque, kind: c_int);
    pub(super) fn rocksdb_options_set_max_background_jobs(options: *mut Opaque, jobs: c_int);
    pub(super) fn rocksdb_options_set_max_open_files(options: *mut Opaque, files: c_int);
    pub(super) fn rocksdb_readoptions_create() -> *mut Opaque;
    pub(super) fn rocksdb_readoptions_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_writeoptions_create() -> *mut Opaque;
    pub(super) fn rocksdb_writeoptions_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_writeoptions_disable_WAL(options: *mut Opaque, disable: c_int);
    pub(super) fn rocksdb_flushoptions_create() -> *mut Opaque;
    pub(super) fn rocksdb_flushoptions_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_close(db: *mut Opaque);
    pub(super) fn rocksdb_write(
        db: *mut Opaque,
        options: *const Opaque,
        batch: *mut Opaque,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_pinnableslice_value(
        slice: *const Opaque,
        bytes: *mut usize,
    ) -> *const c_char;
    pub(super) fn rocksdb_pinnableslice_destroy(slice: *mut Opaque);
    pub(super) fn rocksdb_iter_destroy(iterator: *mut Opaque);
    pub(super) fn rocksdb_iter_valid(iterator: *const Opaque) -> c_uchar;
    pub(super) fn rocksdb_iter_seek(iterator: *mut Opaque, key: *const c_char, key_bytes: usize);
    pub(super) fn rocksdb_iter_next(iterator: *mut Opaque);
    pub(super) fn rocksdb_iter_key(iterator: *const Opaque, bytes: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_value(iterator: *const Opaque, bytes: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_get_error(iterator: *const Opaque, error: *mut *mut c_char);
    pub(super) fn rocksdb_writebatch_create() -> *mut Opaque;
    pub(super) fn rocksdb_writebatch_destroy(batch: *mut Opaque);
    pub(super) fn rocksdb_writebatch_clear(batch: *mut Opaque);
    pub(super) fn rocksdb_free(memory: *mut c_void);
    pub(super) fn rocksdb_get_options_from_string(
        base: *const Opaque,
        text: *const c_char,
        options: *mut Opaque,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_options_set_create_missing_column_families(
        options: *mut Opaque,
        yes: c_uchar,
    );
    pub(super) fn rocksdb_options_set_write_buffer_size(options: *mut Opaque, bytes: usize);
    pub(super) fn rocksdb_options_set_db_write_buffer_size(options: *mut Opaque, bytes: usize);
    pub(super) fn rocksdb_options_set_target_file_size_base(options: *mut Opaque, bytes: u64);
    pub(super) fn rocksdb_options_set_max_bytes_for_level_base(options: *mut Opaque, bytes: u64);
    pub(super) fn rocksdb_writeoptions_set_sync(options: *mut Opaque, yes: c_uchar);
    pub(super) fn rocksdb_readoptions_set_snapshot(options: *mut Opaque, snapshot: *const Opaque);
    pub(super) fn rocksdb_property_value_cf(
        db: *mut Opaque,
        table: *mut Opaque,
        name: *const c_char,
    ) -> *mut c_char;
    pub(super) fn rocksdb_open_column_families(
        options: *const Opaque,
        path: *const c_char,
        count: c_int,
        names: *const *const c_char,
        table_options: *const *const Opaque,
        tables: *mut *mut Opaque,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    pub(super) fn rocksdb_column_family_handle_destroy(table: *mut Opaque);
    pub(super) fn rocksdb_put_cf(
        db: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_delete_cf(
        db: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_get_pinned_cf(
        db: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    pub(super) fn rocksdb_batched_multi_get_cf(
        db: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
        count: usize,
        keys: *const *const c_char,
        key_bytes: *const usize,
        values: *mut *mut Opaque,
        errors: *mut *mut c_char,
        sorted: bool,
    );
    pub(super) fn rocksdb_create_iterator_cf(
        db: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
    ) -> *mut Opaque;
    pub(super) fn rocksdb_flush_cf(
        db: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_compact_range_cf(
        db: *mut Opaque,
        table: *mut Opaque,
        from: *const c_char,
        from_bytes: usize,
        to: *const c_char,
        to_bytes: usize,
    );
    pub(super) fn rocksdb_writebatch_put_cf(
        batch: *mut Opaque,
        table: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
    pub(super) fn rocksdb_optimistictransactiondb_open_column_families(
        options: *const Opaque,
        path: *const c_char,
        count: c_int,
        names: *const *const c_char,
        table_options: *const *const Opaque,
        tables: *mut *mut Opaque,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    pub(super) fn rocksdb_optimistictransactiondb_get_base_db(db: *mut Opaque) -> *mut Opaque;
    pub(super) fn rocksdb_optimistictransactiondb_close_base_db(base: *mut Opaque);
    pub(super) fn rocksdb_optimistictransactiondb_close(db: *mut Opaque);
    pub(super) fn rocksdb_optimistictransaction_options_create() -> *mut Opaque;
    pub(super) fn rocksdb_optimistictransaction_options_destroy(options: *mut Opaque);
    pub(super) fn rocksdb_optimistictransaction_options_set_set_snapshot(
        options: *mut Opaque,
        yes: c_uchar,
    );
    pub(super) fn rocksdb_optimistictransaction_begin(
        db: *mut Opaque,
        write: *const Opaque,
        options: *const Opaque,
        old: *mut Opaque,
    ) -> *mut Opaque;
    pub(super) fn rocksdb_transaction_get_snapshot(transaction: *mut Opaque) -> *const Opaque;
    pub(super) fn rocksdb_transaction_commit(transaction: *mut Opaque, error: *mut *mut c_char);
    pub(super) fn rocksdb_transaction_rollback(transaction: *mut Opaque, error: *mut *mut c_char);
    pub(super) fn rocksdb_transaction_destroy(transaction: *mut Opaque);
    pub(super) fn rocksdb_transaction_get_pinned_cf(
        transaction: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut Opaque;
    pub(super) fn rocksdb_transaction_put_cf(
        transaction: *mut Opaque,
        table: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_transaction_delete_cf(
        transaction: *mut Opaque,
        table: *mut Opaque,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_transaction_create_iterator_cf(
        transaction: *mut Opaque,
        options: *const Opaque,
        table: *mut Opaque,
    ) -> *mut Opaque;
}
