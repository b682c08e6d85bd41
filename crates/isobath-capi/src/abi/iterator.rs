//! Iterators over ranges, from both ends.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Bound;

use isobath::{Range, Record, Tree};

use super::bytes::isobath_slice;
use super::status::{Failure, isobath_status};
use super::transaction::isobath_transaction;
use super::tree::isobath_tree;
use super::{bytes_of, found, free, give, guard, object, object_mut};
use isobath_status::*;

/// Records that an iterator of a transaction fetches at a time.
const FETCHED: usize = 64;

/// One end of a range.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_bound {
    /// The key.
    pub key: isobath_slice,
    /// Whether the key itself belongs to the range.
    pub inclusive: bool,
}

/// A range of keys of its own.
pub(crate) type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A range that C gives.
///
/// # Safety
///
/// As of all.
pub(crate) unsafe fn range_of(
    lower: *const isobath_bound,
    upper: *const isobath_bound,
) -> Result<KeyRange, Failure> {
    // SAFETY: the caller guarantees this.
    unsafe { Ok((bound_of(lower)?, bound_of(upper)?)) }
}

unsafe fn bound_of(bound: *const isobath_bound) -> Result<Bound<Vec<u8>>, Failure> {
    // SAFETY: the caller guarantees this.
    let Some(bound) = (unsafe { bound.as_ref() }) else {
        return Ok(Bound::Unbounded);
    };
    // SAFETY: the same.
    let key = unsafe { bytes_of(bound.key.data, bound.key.length)? }.to_vec();
    Ok(match bound.inclusive {
        true => Bound::Included(key),
        false => Bound::Excluded(key),
    })
}

/// Records in key order. One thread at a time.
pub struct isobath_iterator {
    source: Source,
    /// What was handed out last.
    record: Record,
}

enum Source {
    Tree(Box<Range>),
    Transaction(Box<View>),
}

/// An iterator of a transaction: it fetches some records at a time from either end.
struct View {
    transaction: *const isobath_transaction,
    tree: Tree,
    range: KeyRange,
    front: VecDeque<Record>,
    back: VecDeque<Record>,
}

impl View {
    /// The next record from one end: what was fetched there, what is fetched now, what was fetched at the other end.
    fn next(&mut self, is_reverse: bool) -> Result<Option<Record>, Failure> {
        let queue = |view: &mut View| match is_reverse {
            false => view.front.pop_front(),
            true => view.back.pop_front(),
        };
        if let Some(record) = queue(self) {
            return Ok(Some(record));
        }
        self.fetch(is_reverse)?;
        Ok(queue(self).or_else(|| match is_reverse {
            false => self.back.pop_back(),
            true => self.front.pop_back(),
        }))
    }

    fn fetch(&mut self, is_reverse: bool) -> Result<(), Failure> {
        // SAFETY: the program keeps the transaction as long as its iterators, and uses both on one thread.
        let transaction = unsafe { object(self.transaction)? }.open()?;
        let range = transaction.range(&self.tree, self.range.clone())?;
        let records: Result<VecDeque<Record>, isobath::Error> = match is_reverse {
            false => range.take(FETCHED).collect(),
            true => range.rev().take(FETCHED).collect(),
        };
        let records = records?;
        let Some((last, _)) = records.back() else {
            return Ok(());
        };
        match is_reverse {
            false => self.range.0 = Bound::Excluded(last.clone()),
            true => self.range.1 = Bound::Excluded(last.clone()),
        }
        match is_reverse {
            false => self.front = records,
            true => self.back = records,
        }
        Ok(())
    }
}

/// The records of a range, in key order from both ends; a bound that is NULL is none. Safe beside writers: a record that is
/// there during the whole iteration is found exactly once. Freed by isobath_iterator_free. Any thread.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL; bytes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_range(
    tree: *const isobath_tree,
    lower: *const isobath_bound,
    upper: *const isobath_bound,
    out: *mut *mut isobath_iterator,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let (tree, range) = unsafe { (object(tree)?, range_of(lower, upper)?) };
        // SAFETY: the same.
        unsafe { give_iterator(out, Source::Tree(Box::new(tree.0.range(range)))) }
    })
}

/// The records whose keys begin with a prefix. Otherwise as isobath_range. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_prefix(
    tree: *const isobath_tree,
    prefix: *const c_void,
    prefix_length: usize,
    out: *mut *mut isobath_iterator,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let (tree, prefix) = unsafe { (object(tree)?, bytes_of(prefix, prefix_length)?) };
        // SAFETY: the same.
        unsafe { give_iterator(out, Source::Tree(Box::new(tree.0.prefix(prefix)))) }
    })
}

/// The records of a range as a transaction sees them, its own changes included; whether it finds those that the transaction makes
/// while it iterates is not said. To be freed before the transaction ends. The transaction's thread.
///
/// # Safety
///
/// As of all; the transaction outlives the iterator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_range(
    transaction: *const isobath_transaction,
    tree: *const isobath_tree,
    lower: *const isobath_bound,
    upper: *const isobath_bound,
    out: *mut *mut isobath_iterator,
) -> isobath_status {
    guard(|| {
        // SAFETY: as the caller's.
        let (tree, range) = unsafe { (object(tree)?, range_of(lower, upper)?) };
        // SAFETY: the same.
        unsafe { object(transaction)?.open()? };
        let view = View {
            transaction,
            tree: tree.0.clone(),
            range,
            front: VecDeque::new(),
            back: VecDeque::new(),
        };
        // SAFETY: the same.
        unsafe { give_iterator(out, Source::Transaction(Box::new(view))) }
    })
}

unsafe fn give_iterator(
    out: *mut *mut isobath_iterator,
    source: Source,
) -> Result<isobath_status, Failure> {
    if out.is_null() {
        return Err(Failure::Null);
    }
    let iterator = isobath_iterator {
        source,
        record: Record::default(),
    };
    // SAFETY: checked.
    unsafe { give(out, iterator) };
    Ok(ISOBATH_OK)
}

/// The next record by key; ISOBATH_NOT_FOUND at the end. Key and value are the iterator's, valid until its next call. Either
/// may be NULL. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_iterator_next(
    iterator: *mut isobath_iterator,
    key: *mut isobath_slice,
    value: *mut isobath_slice,
) -> isobath_status {
    // SAFETY: as the caller's.
    guard(|| unsafe { step(iterator, false, key, value) })
}

/// The next record from the range's end. Otherwise as isobath_iterator_next; the two meet. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_iterator_previous(
    iterator: *mut isobath_iterator,
    key: *mut isobath_slice,
    value: *mut isobath_slice,
) -> isobath_status {
    // SAFETY: as the caller's.
    guard(|| unsafe { step(iterator, true, key, value) })
}

unsafe fn step(
    iterator: *mut isobath_iterator,
    is_reverse: bool,
    key: *mut isobath_slice,
    value: *mut isobath_slice,
) -> Result<isobath_status, Failure> {
    // SAFETY: the caller guarantees this.
    let iterator = unsafe { object_mut(iterator)? };
    let next = match &mut iterator.source {
        Source::Tree(range) if is_reverse => range.next_back().transpose()?,
        Source::Tree(range) => range.next().transpose()?,
        Source::Transaction(view) => view.next(is_reverse)?,
    };
    let is_there = next.is_some();
    iterator.record = next.unwrap_or_default();
    for (out, bytes) in [(key, &iterator.record.0), (value, &iterator.record.1)] {
        if is_there && !out.is_null() {
            let slice = isobath_slice {
                data: bytes.as_ptr().cast(),
                length: bytes.len(),
            };
            // SAFETY: checked.
            unsafe { out.write(slice) };
        }
    }
    Ok(found(is_there))
}

/// Frees an iterator. NULL does nothing. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_iterator_free(iterator: *mut isobath_iterator) {
    // SAFETY: as the caller's.
    unsafe { free(iterator) };
}
