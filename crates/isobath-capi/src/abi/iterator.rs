//! Iterators over ranges, from both ends.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Bound;

use isobath::{Error, Part, Range, Transaction, TransactionRange, Tree};

use super::bytes::isobath_slice;
use super::status::{Failure, isobath_status};
use super::transaction::isobath_transaction;
use super::tree::isobath_tree;
use super::{bytes_of, found, free, give, guard, object, object_mut};
use isobath_status::*;

/// Records that an iterator of a transaction fetches at a time, and bytes of these after which it
/// fetches no more: at first about a leaf's, so that one that is left early has read little more
/// than it gave, then each time twice as many.
const FETCHED: usize = 64;
const FETCHED_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=256 << 10;

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
    given!(Ok((bound_of(lower)?, bound_of(upper)?)))
}

unsafe fn bound_of(bound: *const isobath_bound) -> Result<Bound<Vec<u8>>, Failure> {
    let Some(bound) = (given!(bound.as_ref())) else {
        return Ok(Bound::Unbounded);
    };
    let key = given!(bytes_of(bound.key.data, bound.key.length)?).to_vec();
    Ok(match bound.inclusive {
        true => Bound::Included(key),
        false => Bound::Excluded(key),
    })
}

/// Records in key order. One thread at a time.
pub struct isobath_iterator {
    source: Source,
    /// The last record handed out.
    record: FoundRecord,
}

enum Source {
    Tree(Box<Range>),
    TreeKeys(Box<Range<u64>>),
    Transaction(Box<View<Vec<u8>>>),
    TransactionKeys(Box<View<u64>>),
}

impl Source {
    fn next(&mut self, is_reverse: bool) -> Result<Option<FoundRecord>, Failure> {
        match self {
            Source::Tree(range) => next_of(&mut **range, is_reverse),
            Source::TreeKeys(range) => next_of(&mut **range, is_reverse),
            Source::Transaction(view) => view.next(is_reverse),
            Source::TransactionKeys(view) => view.next(is_reverse),
        }
    }
}

fn next_of<V: Value>(
    range: &mut Range<V>,
    is_reverse: bool,
) -> Result<Option<FoundRecord>, Failure> {
    let next = match is_reverse {
        false => range.next(),
        true => range.next_back(),
    };
    Ok(next.transpose()?.map(V::record))
}

/// A record for C.
#[derive(Default)]
struct FoundRecord {
    key: Vec<u8>,
    /// `None` of an iterator over keys.
    value: Option<Vec<u8>>,
    value_length: usize,
}

/// The part of a record's value that an iterator returns: all of it, or its length.
trait Value: Part {
    fn range<'t>(
        transaction: &'t Transaction,
        tree: &'t Tree,
        range: KeyRange,
    ) -> Result<TransactionRange<'t, Self>, Error>;

    fn record(record: (Vec<u8>, Self)) -> FoundRecord;
}

impl Value for Vec<u8> {
    fn range<'t>(
        transaction: &'t Transaction,
        tree: &'t Tree,
        range: KeyRange,
    ) -> Result<TransactionRange<'t, Vec<u8>>, Error> {
        transaction.range(tree, range)
    }

    fn record((key, value): (Vec<u8>, Vec<u8>)) -> FoundRecord {
        let value_length = value.len();
        FoundRecord {
            key,
            value: Some(value),
            value_length,
        }
    }
}

impl Value for u64 {
    fn range<'t>(
        transaction: &'t Transaction,
        tree: &'t Tree,
        range: KeyRange,
    ) -> Result<TransactionRange<'t, u64>, Error> {
        transaction.keys(tree, range)
    }

    fn record((key, length): (Vec<u8>, u64)) -> FoundRecord {
        FoundRecord {
            key,
            value: None,
            value_length: length as usize,
        }
    }
}

/// An iterator of a transaction: it fetches some records at a time from either end.
struct View<V> {
    transaction: *const isobath_transaction,
    tree: Tree,
    range: KeyRange,
    front: VecDeque<(Vec<u8>, V)>,
    back: VecDeque<(Vec<u8>, V)>,
    /// Bytes that are fetched the next time.
    bytes: usize,
}

impl<V: Value> View<V> {
    /// # Safety
    ///
    /// As of all; the transaction outlives it.
    unsafe fn new(
        transaction: *const isobath_transaction,
        tree: *const isobath_tree,
        lower: *const isobath_bound,
        upper: *const isobath_bound,
    ) -> Result<Box<View<V>>, Failure> {
        let (tree, range) = given!((object(tree)?, range_of(lower, upper)?));
        given!(object(transaction)?.open()?);
        Ok(Box::new(View {
            transaction,
            tree: tree.0.clone(),
            range,
            front: VecDeque::new(),
            back: VecDeque::new(),
            bytes: *FETCHED_BYTES.start(),
        }))
    }

    /// The next record from one end: what was fetched there, what is fetched now, what was fetched
    /// at the other end.
    fn next(&mut self, is_reverse: bool) -> Result<Option<FoundRecord>, Failure> {
        let queue = |view: &mut View<V>| match is_reverse {
            false => view.front.pop_front(),
            true => view.back.pop_front(),
        };
        if let Some(record) = queue(self) {
            return Ok(Some(V::record(record)));
        }
        self.fetch(is_reverse)?;
        let record = queue(self).or_else(|| match is_reverse {
            false => self.back.pop_back(),
            true => self.front.pop_back(),
        });
        Ok(record.map(V::record))
    }

    fn fetch(&mut self, is_reverse: bool) -> Result<(), Failure> {
        // SAFETY: the program keeps the transaction as long as its iterators, and uses both on one
        // thread.
        let transaction = unsafe { object(self.transaction)? }.open()?;
        let mut range = V::range(transaction, &self.tree, self.range.clone())?;
        let mut records = VecDeque::new();
        let mut bytes = 0;
        while records.len() < FETCHED && bytes < self.bytes {
            let next = match is_reverse {
                false => range.next(),
                true => range.next_back(),
            };
            let Some((key, value)) = next.transpose()? else {
                break;
            };
            bytes += key.len() + value.bytes();
            records.push_back((key, value));
        }
        self.bytes = (2 * self.bytes).min(*FETCHED_BYTES.end());
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

/// The records of a range, in key order from both ends; a bound that is NULL is none. Safe beside
/// writers: a record that is there during the whole iteration is found exactly once. Freed by
/// isobath_iterator_free. Any thread.
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
        let (tree, range) = given!((object(tree)?, range_of(lower, upper)?));
        given!(give_iterator(
            out,
            Source::Tree(Box::new(tree.0.range(range)))
        ))
    })
}

/// The keys of a range with the lengths of their values, in key order from both ends; no large
/// value is read. Each value that the iterator gives has the data NULL, and its length. Otherwise
/// as isobath_range. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_keys(
    tree: *const isobath_tree,
    lower: *const isobath_bound,
    upper: *const isobath_bound,
    out: *mut *mut isobath_iterator,
) -> isobath_status {
    guard(|| {
        let (tree, range) = given!((object(tree)?, range_of(lower, upper)?));
        given!(give_iterator(
            out,
            Source::TreeKeys(Box::new(tree.0.keys(range)))
        ))
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
        let (tree, prefix) = given!((object(tree)?, bytes_of(prefix, prefix_length)?));
        given!(give_iterator(
            out,
            Source::Tree(Box::new(tree.0.prefix(prefix)))
        ))
    })
}

/// The records of a range as a transaction sees them, its own changes included; whether it finds
/// those that the transaction makes while it iterates is not said. To be freed before the
/// transaction ends. The transaction's thread.
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
        let view = given!(View::new(transaction, tree, lower, upper)?);
        given!(give_iterator(out, Source::Transaction(view)))
    })
}

/// The keys of a range as a transaction sees them, as isobath_keys. Otherwise as
/// isobath_transaction_range. The transaction's thread.
///
/// # Safety
///
/// As of all; the transaction outlives the iterator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_transaction_keys(
    transaction: *const isobath_transaction,
    tree: *const isobath_tree,
    lower: *const isobath_bound,
    upper: *const isobath_bound,
    out: *mut *mut isobath_iterator,
) -> isobath_status {
    guard(|| {
        let view = given!(View::new(transaction, tree, lower, upper)?);
        given!(give_iterator(out, Source::TransactionKeys(view)))
    })
}

unsafe fn give_iterator(
    out: *mut *mut isobath_iterator,
    source: Source,
) -> Result<isobath_status, Failure> {
    crate::not_null(out)?;
    let iterator = isobath_iterator {
        source,
        record: FoundRecord::default(),
    };
    given!(give(out, iterator));
    Ok(ISOBATH_OK)
}

/// The next record by key; ISOBATH_NOT_FOUND at the end. Key and value are the iterator's, valid
/// until its next call. Either may be NULL. One thread at a time.
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
    guard(|| given!(step(iterator, false, key, value)))
}

/// The next record from the range's end. Otherwise as isobath_iterator_next; the two meet. One
/// thread at a time.
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
    guard(|| given!(step(iterator, true, key, value)))
}

unsafe fn step(
    iterator: *mut isobath_iterator,
    is_reverse: bool,
    key: *mut isobath_slice,
    value: *mut isobath_slice,
) -> Result<isobath_status, Failure> {
    let iterator = given!(object_mut(iterator)?);
    let next = iterator.source.next(is_reverse)?;
    let is_there = next.is_some();
    iterator.record = next.unwrap_or_default();
    let record = &iterator.record;
    let value_data = record
        .value
        .as_ref()
        .map_or(std::ptr::null(), |v| v.as_ptr());
    for (out, data, length) in [
        (key, record.key.as_ptr(), record.key.len()),
        (value, value_data, record.value_length),
    ] {
        if is_there && !out.is_null() {
            let data = data.cast();
            given!(out.write(isobath_slice { data, length }));
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
    given!(free(iterator));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

    use std::ptr::null;

    use isobath::{Options, Store};

    use super::super::store::isobath_store;
    use super::super::transaction::{isobath_transaction_begin, isobath_transaction_free};
    use super::super::value::{isobath_reader_free, isobath_reader_new, isobath_reader_read};
    use super::*;

    const LARGE: usize = 100_000;

    fn large_values() -> (Store, Tree) {
        let options = Options::new().pool_bytes(8 << 20).workers(1);
        let store = Store::in_memory(&options).unwrap();
        let tree = store.create_tree("t").unwrap();
        for key in 0..40u8 {
            tree.insert([key], vec![key; LARGE]).unwrap();
        }
        (store, tree)
    }

    unsafe fn next(
        iterator: *mut isobath_iterator,
        step: unsafe extern "C" fn(
            *mut isobath_iterator,
            *mut isobath_slice,
            *mut isobath_slice,
        ) -> isobath_status,
    ) -> Option<(Vec<u8>, isobath_slice)> {
        let none = isobath_slice {
            data: null(),
            length: 0,
        };
        let (mut key, mut value) = (none, none);
        match unsafe { step(iterator, &raw mut key, &raw mut value) } {
            ISOBATH_OK => Some((
                unsafe { bytes_of(key.data, key.length) }.ok()?.to_vec(),
                value,
            )),
            status => {
                assert_eq!(status, ISOBATH_NOT_FOUND);
                None
            }
        }
    }

    /// Iterators over keys give the lengths of values without reading them, and those over records
    /// read what they give.
    #[test]
    fn iterators_read_no_more_values_than_they_give() {
        let (store, tree) = large_values();
        let stats = store.clone();
        let read = || stats.stats().bytes_read;
        let (store, tree) = (isobath_store(store), isobath_tree(tree));
        let mut transaction = std::ptr::null_mut();
        unsafe {
            isobath_transaction_begin(&raw const store, null(), &raw mut transaction);
            let before = read();
            for is_of_transaction in [false, true] {
                let mut keys = std::ptr::null_mut();
                let status = match is_of_transaction {
                    false => isobath_keys(&raw const tree, null(), null(), &raw mut keys),
                    true => isobath_transaction_keys(
                        transaction,
                        &raw const tree,
                        null(),
                        null(),
                        &raw mut keys,
                    ),
                };
                assert_eq!(status, ISOBATH_OK);
                let (last, value) = next(keys, isobath_iterator_previous).unwrap();
                assert_eq!((&last[..], value.length), (&[39][..], LARGE));
                for expected in 0..39u8 {
                    let (key, value) = next(keys, isobath_iterator_next).unwrap();
                    assert_eq!((&key[..], value.length), (&[expected][..], LARGE));
                    assert!(value.data.is_null());
                }
                assert!(next(keys, isobath_iterator_next).is_none());
                isobath_iterator_free(keys);
            }
            assert_eq!(read(), before);
            for is_of_transaction in [false, true] {
                let before = read();
                let mut range = std::ptr::null_mut();
                let status = match is_of_transaction {
                    false => isobath_range(&raw const tree, null(), null(), &raw mut range),
                    true => isobath_transaction_range(
                        transaction,
                        &raw const tree,
                        null(),
                        null(),
                        &raw mut range,
                    ),
                };
                assert_eq!(status, ISOBATH_OK);
                let (key, value) = next(range, isobath_iterator_next).unwrap();
                assert_eq!((&key[..], value.length), (&[0][..], LARGE));
                let bytes = read() - before;
                assert!(bytes < LARGE as u64 * 3 / 2, "{bytes} bytes for one value");
                isobath_iterator_free(range);
            }
            isobath_transaction_free(transaction);
        }
        store.0.close().unwrap();
    }

    #[test]
    fn a_reader_whose_value_was_replaced_has_a_status_of_its_own() {
        let (store, tree) = large_values();
        let tree = isobath_tree(tree);
        tree.0.insert("a", vec![1; 4 << 20]).unwrap();
        let (mut reader, mut bytes, mut length) = (std::ptr::null_mut(), [0u8; 4096], 0);
        unsafe {
            let key = b"a".as_ptr().cast();
            assert_eq!(
                isobath_reader_new(&raw const tree, key, 1, &raw mut reader),
                ISOBATH_OK
            );
            tree.0.insert("a", "short").unwrap();
            // Records read ahead come first.
            let status = loop {
                let into = bytes.as_mut_ptr().cast();
                match isobath_reader_read(reader, into, bytes.len(), &raw mut length) {
                    ISOBATH_OK if length > 0 => {}
                    status => break status,
                }
            };
            assert_eq!(status, ISOBATH_REPLACED);
            assert!(super::super::status::isobath_status_is_retryable(
                status as i32
            ));
            isobath_reader_free(reader);
        }
        store.close().unwrap();
    }
}
