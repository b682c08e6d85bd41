//! Trees of files in devices and stores.

use std::ffi::{c_char, c_void};

use isobath::Store;
use isobath_files::FileTree;

use super::result::{Failure, kvs_files_result};
use super::{guard, object, text};
use crate::abi::store::isobath_store;
use crate::kvs::registry;
use kvs_files_result::*;

/// A tree of directories, files and links. Every function may be called from any thread, also at
/// the same time.
pub struct kvs_files(pub(super) FileTree);

/// Opens the tree `name`.
///
/// # Safety
///
/// As of all.
unsafe fn open(
    store: &Store,
    name: *const c_char,
    create: bool,
    out: *mut *mut kvs_files,
) -> Result<(), Failure> {
    crate::not_null(out)?;
    let name = given!(text(name)?);
    let name = std::str::from_utf8(name);
    let name = name.map_err(|_| Failure::argument("the name of a tree is UTF-8"))?;
    let files = match create {
        true => FileTree::open_or_create(store, name)?,
        false => FileTree::open(store, name)?,
    };
    given!(out.write(Box::into_raw(Box::new(kvs_files(files)))));
    Ok(())
}

/// Opens the tree of files `name` in a device of kvs_api.h; with `create` it is made where it is
/// missing. The tree stands beside the device's key spaces; its name must not be one of theirs,
/// `kvs` or `kvs.` and more. Free it before the device is closed: later calls answer
/// KVS_FILES_ERR_CLOSED. Any thread.
///
/// # Safety
///
/// As of all: pointers are valid or NULL; texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_open(
    device: *mut c_void,
    name: *const c_char,
    create: bool,
    out: *mut *mut kvs_files,
) -> kvs_files_result {
    guard(|| {
        let device = registry::device(device).map_err(|_| {
            let reason = "the device's handle is NULL, closed, or none";
            Failure::Code(KVS_FILES_ERR_CLOSED, reason.into())
        })?;
        if crate::kvs::device::is_own_tree(given!(text(name)?)) {
            let reason = "names that begin with `kvs` are those of the device's own trees";
            return Err(Failure::argument(reason));
        }
        given!(open(device.store(), name, create, out))
    })
}

/// The same in a store of isobath.h. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_open_store(
    store: *const isobath_store,
    name: *const c_char,
    create: bool,
    out: *mut *mut kvs_files,
) -> kvs_files_result {
    guard(|| given!(open(&object(store)?.0, name, create, out)))
}

/// Frees the handle; the tree stays. Does nothing for NULL. No other thread may be using it.
///
/// # Safety
///
/// It came from the library and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_free(files: *mut kvs_files) {
    if !files.is_null() {
        drop(given!(Box::from_raw(files)));
    }
}
