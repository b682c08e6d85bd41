//! Large values as streams.

use std::ffi::c_void;
use std::io::Read;

use isobath::{ValueReader, ValueWriter};

use super::status::{Failure, isobath_status};
use super::transaction::isobath_transaction;
use super::tree::isobath_tree;
use super::{bytes_of, done, free, give, guard, object, object_mut};
use isobath_status::*;

/// A value that is being written. One thread at a time.
pub struct isobath_writer(Option<ValueWriter>);

/// A value that is being read. One thread at a time.
pub struct isobath_reader(ValueReader);

/// Begins a value of up to ISOBATH_MAX_VALUE_BYTES, which appears under its key when
/// isobath_writer_finish returns. Freed by isobath_writer_free. Any thread.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL; bytes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_writer_new(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    out: *mut *mut isobath_writer,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let (tree, key) = unsafe { (object(tree)?, bytes_of(key, key_length)?) };
        if out.is_null() {
            return Err(Failure::Null);
        }
        let writer = tree.0.writer(key)?;
        // SAFETY: checked.
        unsafe { give(out, isobath_writer(Some(writer))) };
        Ok(ISOBATH_OK)
    })
}

/// Appends bytes; nothing of them if it fails. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_writer_append(
    writer: *mut isobath_writer,
    data: *const c_void,
    length: usize,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let (writer, data) = unsafe { (object_mut(writer)?, bytes_of(data, length)?) };
        let writer = writer.0.as_mut();
        let writer = writer.ok_or(Failure::Argument("the value is finished"))?;
        done(writer.append(data))
    })
}

/// Makes the value visible under its key. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_writer_finish(writer: *mut isobath_writer) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let writer = unsafe { object_mut(writer)? }.0.take();
        done(
            writer
                .ok_or(Failure::Argument("the value is finished"))?
                .finish(),
        )
    })
}

/// Frees a writer; one that has not finished leaves the tree as it was. NULL does nothing. One
/// thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_writer_free(writer: *mut isobath_writer) {
    // SAFETY: as the caller's.
    unsafe { free(writer) };
}

/// Begins to read a value; ISOBATH_NOT_FOUND if there is none. Once a large value is replaced or
/// removed, reading it answers ISOBATH_REPLACED. Freed by isobath_reader_free. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_reader_new(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    out: *mut *mut isobath_reader,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let (tree, key) = unsafe { (object(tree)?, bytes_of(key, key_length)?) };
        // SAFETY: the same.
        unsafe { give_reader(tree.0.reader(key)?, out) }
    })
}

/// Begins to read a value as a transaction sees it. The transaction's thread; the reader may
/// outlive it.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_reader_new(
    transaction: *const isobath_transaction,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    out: *mut *mut isobath_reader,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let (transaction, tree) = unsafe { (object(transaction)?.open()?, object(tree)?) };
        // SAFETY: the same.
        unsafe {
            give_reader(
                transaction.reader(&tree.0, bytes_of(key, key_length)?)?,
                out,
            )
        }
    })
}

unsafe fn give_reader(
    reader: Option<ValueReader>,
    out: *mut *mut isobath_reader,
) -> Result<isobath_status, Failure> {
    if out.is_null() {
        return Err(Failure::Null);
    }
    let Some(reader) = reader else {
        // SAFETY: checked.
        unsafe { out.write(std::ptr::null_mut()) };
        return Ok(ISOBATH_NOT_FOUND);
    };
    // SAFETY: checked.
    unsafe { give(out, isobath_reader(reader)) };
    Ok(ISOBATH_OK)
}

/// Bytes of the whole value; 0 for NULL. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_reader_length(reader: *const isobath_reader) -> u64 {
    // SAFETY: as the caller's.
    unsafe { object(reader) }.map_or(0, |reader| reader.0.len())
}

/// Reads the next bytes, at most `capacity`; `length` says how many, 0 at the end. One thread at a
/// time.
///
/// # Safety
///
/// As of all; `capacity` bytes can be written to `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_reader_read(
    reader: *mut isobath_reader,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let reader = unsafe { object_mut(reader)? };
        if length.is_null() || buffer.is_null() && capacity > 0 {
            return Err(Failure::Null);
        }
        let into = match capacity {
            0 => &mut [],
            // SAFETY: checked, or guaranteed by the caller.
            _ => unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), capacity) },
        };
        let count = reader.0.read(into).map_err(Failure::of_stream)?;
        // SAFETY: checked.
        unsafe { length.write(count) };
        Ok(ISOBATH_OK)
    })
}

/// Frees a reader. NULL does nothing. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_reader_free(reader: *mut isobath_reader) {
    // SAFETY: as the caller's.
    unsafe { free(reader) };
}
