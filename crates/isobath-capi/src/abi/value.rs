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
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        crate::not_null(out)?;
        let writer = tree.0.writer(key)?;
        given!(give(out, isobath_writer(Some(writer))));
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
        let (writer, data) = given!((object_mut(writer)?, bytes_of(data, length)?));
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
        let writer = given!(object_mut(writer)?).0.take();
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
    given!(free(writer));
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
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        given!(give_reader(tree.0.reader(key)?, out))
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
        let (transaction, tree) = given!((object(transaction)?.open()?, object(tree)?));
        given! {
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
    crate::not_null(out)?;
    let Some(reader) = reader else {
        given!(out.write(std::ptr::null_mut()));
        return Ok(ISOBATH_NOT_FOUND);
    };
    given!(give(out, isobath_reader(reader)));
    Ok(ISOBATH_OK)
}

/// Bytes of the whole value; 0 for NULL. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_reader_length(reader: *const isobath_reader) -> u64 {
    given!(object(reader)).map_or(0, |reader| reader.0.len())
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
        let reader = given!(object_mut(reader)?);
        if length.is_null() || buffer.is_null() && capacity > 0 {
            return Err(Failure::Null);
        }
        let into = match capacity {
            0 => &mut [],
            _ => given!(std::slice::from_raw_parts_mut(
                buffer.cast::<u8>(),
                capacity
            )),
        };
        let count = reader.0.read(into).map_err(Failure::of_stream)?;
        given!(length.write(count));
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
    given!(free(reader));
}
