//! Changes that are collected and committed together.

use std::ffi::c_void;

use isobath::WriteBatch;

use super::status::isobath_status;
use super::store::isobath_store;
use super::tree::isobath_tree;
use super::{bytes_of, done, free, guard, object, object_mut};
use isobath_status::*;

/// Changes of any trees of one store. One thread at a time.
pub struct isobath_batch(WriteBatch);

/// A batch without changes. Freed by isobath_batch_free. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn isobath_batch_new() -> *mut isobath_batch {
    Box::into_raw(Box::new(isobath_batch(WriteBatch::new())))
}

/// Frees a batch. NULL does nothing. One thread at a time.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL; bytes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_batch_free(batch: *mut isobath_batch) {
    given!(free(batch));
}

/// Adds a change: the key is to have the value. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_batch_put(
    batch: *mut isobath_batch,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> isobath_status {
    guard(|| {
        let (batch, tree) = given!((object_mut(batch)?, object(tree)?));
        let (key, value) = given!((bytes_of(key, key_length)?, bytes_of(value, value_length)?));
        batch.0.insert(&tree.0, key, value);
        Ok(ISOBATH_OK)
    })
}

/// Adds a change: the key is to have no value. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_batch_delete(
    batch: *mut isobath_batch,
    tree: *const isobath_tree,
    key: *const c_void,
    key_length: usize,
) -> isobath_status {
    guard(|| {
        let (batch, tree, key) = given! {
            (
                object_mut(batch)?,
                object(tree)?,
                bytes_of(key, key_length)?,
            )
        };
        batch.0.remove(&tree.0, key);
        Ok(ISOBATH_OK)
    })
}

/// Keys that the batch changes; 0 for NULL. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_batch_length(batch: *const isobath_batch) -> usize {
    given!(object(batch)).map_or(0, |batch| batch.0.len())
}

/// Forgets all changes. One thread at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_batch_clear(batch: *mut isobath_batch) {
    if let Ok(batch) = given!(object_mut(batch)) {
        batch.0.clear();
    }
}

/// Commits all changes at once. The batch stays as it is. Any thread, while none changes the batch.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_batch_write(
    store: *const isobath_store,
    batch: *const isobath_batch,
) -> isobath_status {
    guard(|| {
        let (store, batch) = given!((object(store)?, object(batch)?));
        done(store.0.write(&batch.0))
    })
}
