//! Trees: records one by one, many at once, loading.

use std::ffi::c_void;
use std::ops::ControlFlow;

use isobath::{Loader, Tree};

use super::bytes::{isobath_bytes, isobath_slice};
use super::iterator::{isobath_bound, range_of};
use super::status::{Failure, isobath_status};
use super::{bytes_of, done, found, free, give, guard, object, object_mut};
use isobath_status::*;

/// A named tree of a store: an ordered map from bytes to bytes. Every function may be called from
/// any thread, also at the same time.
pub struct isobath_tree(pub(crate) Tree);

/// Frees a handle; the tree stays. NULL does nothing. Any thread; no other may use the handle any
/// more.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL; bytes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_tree_free(tree: *mut isobath_tree) {
    given!(free(tree));
}

/// Reads the value of a key, to be freed by isobath_bytes_free. ISOBATH_NOT_FOUND if there is
/// none. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_get(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    value: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        crate::not_null(value)?;
        let read = tree.0.get(key)?;
        let status = found(read.is_some());
        given!(value.write(isobath_bytes::of(read)));
        Ok(status)
    })
}

/// Reads the value of a key into the program's buffer, and its whole length. ISOBATH_BUFFER where
/// it is longer than the buffer, which then has its beginning. Any thread.
///
/// # Safety
///
/// As of all; `capacity` bytes can be written to `buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_get_into(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> isobath_status {
    guard(|| {
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        if length.is_null() || buffer.is_null() && capacity > 0 {
            return Err(Failure::Null);
        }
        thread_local! {
            static VALUE: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
        }
        let mut value = VALUE.try_with(std::cell::Cell::take).unwrap_or_default();
        let is_there = tree.0.get_into(key, &mut value)?;
        let copied = value.len().min(capacity);
        if is_there {
            given! {
                length.write(value.len());
                std::ptr::copy_nonoverlapping(value.as_ptr(), buffer.cast(), copied);
            }
        }
        let is_short = copied < value.len();
        if value.capacity() <= 64 << 10 {
            // The thread ends: its entries are gone.
            let _ = VALUE.try_with(|kept| kept.set(value));
        }
        match is_there && is_short {
            true => Err(Failure::Status(
                ISOBATH_BUFFER,
                "the value is longer than the buffer".to_owned(),
            )),
            false => Ok(found(is_there)),
        }
    })
}

/// Whether a key has a value: ISOBATH_OK or ISOBATH_NOT_FOUND. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_contains(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
) -> isobath_status {
    guard(|| {
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        Ok(found(tree.0.contains(key)?))
    })
}

/// Reads the values of many keys at once, which is the fastest way to read many. `values` has space
/// for `count`; each has `data` NULL if there is none, and is freed by isobath_bytes_free. Any
/// thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_get_many(
    tree: *const isobath_tree,
    keys: *const isobath_slice,
    count: usize,
    values: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        let (tree, keys) = given!((object(tree)?, keys_of(keys, count)?));
        if values.is_null() && count > 0 {
            return Err(Failure::Null);
        }
        let read = tree.0.get_many(&keys)?;
        for (at, value) in read.into_iter().enumerate() {
            given!(values.add(at).write(isobath_bytes::of(value)));
        }
        Ok(ISOBATH_OK)
    })
}

/// Keys that C gives.
///
/// # Safety
///
/// `count` slices can be read, and what they name.
pub(crate) unsafe fn keys_of<'a>(
    keys: *const isobath_slice,
    count: usize,
) -> Result<Vec<&'a [u8]>, Failure> {
    if keys.is_null() && count > 0 {
        return Err(Failure::Null);
    }
    (0..count)
        .map(|at| {
            let key = given!(&*keys.add(at));
            given!(bytes_of(key.data, key.length))
        })
        .collect()
}

/// Gives a key a value, whether it had one or not. Durable when this returns, unless the store's
/// options say otherwise. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_put(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> isobath_status {
    guard(|| {
        let (tree, key, value) = given! {
            (
                object(tree)?,
                bytes_of(key, key_length)?,
                bytes_of(value, value_length)?,
            )
        };
        done(tree.0.insert(key, value))
    })
}

/// Removes a key: ISOBATH_NOT_FOUND if it had no value. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_delete(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
) -> isobath_status {
    guard(|| {
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        Ok(found(tree.0.remove(key)?))
    })
}

/// Gives a key the value `new_value` if it has the value `old_value`, in one step; NULL stands for
/// no value. Else ISOBATH_DIFFERENT, and what it has instead in `current` (which may be NULL). Any
/// thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_compare_and_swap(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    old_value: *const isobath_slice,
    new_value: *const isobath_slice,
    current: *mut isobath_bytes,
) -> isobath_status {
    guard(|| {
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        let value = |slice: *const isobath_slice| {
            given! {
                let slice = slice.as_ref();
                slice
                    .map(|slice| bytes_of(slice.data, slice.length))
                    .transpose()
            }
        };
        match tree
            .0
            .compare_and_swap(key, value(old_value)?, value(new_value)?)?
        {
            Ok(()) => Ok(ISOBATH_OK),
            Err(different) => {
                if !current.is_null() {
                    given!(current.write(isobath_bytes::of(different.current)));
                }
                Ok(ISOBATH_DIFFERENT)
            }
        }
    })
}

/// Called with what a key has, `old_value`, or NULL if it has nothing. Returns what it is to
/// have: `new_value` is the program's memory until the next call or isobath_update's return; one
/// whose `data` is NULL removes the key. Must not call the library.
pub type isobath_update_function = Option<
    unsafe extern "C" fn(
        argument: *mut c_void,
        old_value: *const isobath_slice,
        new_value: *mut isobath_slice,
    ),
>;

/// Changes a record by what it has, in one step: if another change comes between, `change` is
/// called again with what the key has then. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_update(
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    change: isobath_update_function,
    argument: *mut c_void,
) -> isobath_status {
    guard(|| {
        let (tree, key) = given!((object(tree)?, bytes_of(key, key_length)?));
        let change = change.ok_or(Failure::Null)?;
        tree.0.update(key, |old| {
            let old = old.map(|old| isobath_slice {
                data: old.as_ptr().cast(),
                length: old.len(),
            });
            let old = old.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let mut new = isobath_slice {
                data: std::ptr::null(),
                length: 0,
            };
            // SAFETY: a function of the program's, whose bytes stay.
            unsafe {
                change(argument, old, &mut new);
                let is_there = !new.data.is_null();
                is_there.then(|| std::slice::from_raw_parts(new.data.cast(), new.length).to_vec())
            }
        })?;
        Ok(ISOBATH_OK)
    })
}

/// Counts the records of a range. A bound that is NULL is none. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_count(
    tree: *const isobath_tree,
    lower: *const isobath_bound,
    upper: *const isobath_bound,
    count: *mut u64,
) -> isobath_status {
    guard(|| {
        let (tree, range) = given!((object(tree)?, range_of(lower, upper)?));
        crate::not_null(count)?;
        let counted = tree.0.count(range)?;
        given!(count.write(counted));
        Ok(ISOBATH_OK)
    })
}

/// Removes the records of a range, some hundred in each commit, and counts them. `removed` may be
/// NULL. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_delete_range(
    tree: *const isobath_tree,
    lower: *const isobath_bound,
    upper: *const isobath_bound,
    removed: *mut u64,
) -> isobath_status {
    guard(|| {
        let (tree, range) = given!((object(tree)?, range_of(lower, upper)?));
        let count = tree.0.remove_range(range)?;
        if !removed.is_null() {
            given!(removed.write(count));
        }
        Ok(ISOBATH_OK)
    })
}

/// Takes records in any order and stores them sorted. One thread at a time.
pub struct isobath_loader(Option<Loader>);

/// Begins to load records. Freed by isobath_loader_free. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_loader_new(
    tree: *const isobath_tree,
    out: *mut *mut isobath_loader,
) -> isobath_status {
    guard(|| {
        let tree = given!(object(tree)?);
        crate::not_null(out)?;
        let loader = tree.0.loader()?;
        given!(give(out, isobath_loader(Some(loader))));
        Ok(ISOBATH_OK)
    })
}

/// Takes one record. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_loader_push(
    loader: *mut isobath_loader,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> isobath_status {
    guard(|| {
        let (loader, key, value) = given! {
            (
                object_mut(loader)?,
                bytes_of(key, key_length)?,
                bytes_of(value, value_length)?,
            )
        };
        let loader = loader.0.as_mut();
        let loader = loader.ok_or(Failure::Argument("the loader has finished"))?;
        done(loader.push(key, value))
    })
}

/// Stores all records, and says how many there are, those of the same key counted once. `stored`
/// may be NULL. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_loader_finish(
    loader: *mut isobath_loader,
    stored: *mut u64,
) -> isobath_status {
    guard(|| {
        let loader = given!(object_mut(loader)?).0.take();
        let loader = loader.ok_or(Failure::Argument("the loader has finished"))?;
        let count = loader.finish(&mut |_, _, _| ControlFlow::Continue(()))?;
        if !stored.is_null() {
            given!(stored.write(count));
        }
        Ok(ISOBATH_OK)
    })
}

/// Frees a loader; one that has not finished leaves the tree as it was. NULL does nothing. One
/// thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_loader_free(loader: *mut isobath_loader) {
    given!(free(loader));
}
