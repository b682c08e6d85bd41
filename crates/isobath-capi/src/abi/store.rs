//! Stores: opening, closing, trees.

use std::ffi::c_char;

use isobath::Store;

use super::options::{isobath_options, options_of};
use super::status::{Failure, isobath_status};
use super::tree::isobath_tree;
use super::{done, free, give, guard, object, paths_of, text_of};
use isobath_status::*;

/// An open store. Every function may be called from any thread, also at the same time.
pub struct isobath_store(pub(crate) Store);

/// Which way a store is opened.
type Open = fn(Vec<std::path::PathBuf>, &isobath::Options) -> Result<Store, isobath::OpenError>;

/// Opens a store some way.
///
/// # Safety
///
/// As of all.
unsafe fn open(
    paths: *const *const c_char,
    count: usize,
    options: *const isobath_options,
    out: *mut *mut isobath_store,
    how: Open,
) -> isobath_status {
    guard(|| {
        crate::not_null(out)?;
        let (paths, options) = given!((paths_of(paths, count)?, options_of(options)));
        let store = how(paths, &options)?;
        given!(give(out, isobath_store(store)));
        Ok(ISOBATH_OK)
    })
}

/// Creates a store on files that do not exist yet, or block devices that hold no data; several are
/// striped. `options` may be NULL. The store is closed by isobath_store_close and freed by
/// isobath_store_free. Any thread.
///
/// # Safety
///
/// As of all: pointers are valid or NULL; texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_store_create(
    paths: *const *const c_char,
    count: usize,
    options: *const isobath_options,
    out: *mut *mut isobath_store,
) -> isobath_status {
    given! {
        open(paths, count, options, out, |paths, options| {
            Store::create(paths, options)
        })
    }
}

/// Opens an existing store, with the paths in the order of its creation; recovers one that was not
/// closed. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_store_open(
    paths: *const *const c_char,
    count: usize,
    options: *const isobath_options,
    out: *mut *mut isobath_store,
) -> isobath_status {
    given! {
        open(paths, count, options, out, |paths, options| {
            Store::open(paths, options)
        })
    }
}

/// Opens a store, or creates it if nothing is there yet. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_store_open_or_create(
    paths: *const *const c_char,
    count: usize,
    options: *const isobath_options,
    out: *mut *mut isobath_store,
) -> isobath_status {
    given! {
        open(paths, count, options, out, |paths, options| {
            Store::open_or_create(paths, options)
        })
    }
}

/// A store in memory, gone when it is closed. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_store_in_memory(
    options: *const isobath_options,
    out: *mut *mut isobath_store,
) -> isobath_status {
    guard(|| {
        crate::not_null(out)?;
        let store = Store::in_memory(&given!(options_of(options)))?;
        given!(give(out, isobath_store(store)));
        Ok(ISOBATH_OK)
    })
}

/// Whether a store was not closed, so that its next opening for writing recovers it: ISOBATH_OK if
/// so, ISOBATH_NOT_FOUND if not. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_store_needs_recovery(
    paths: *const *const c_char,
    count: usize,
    options: *const isobath_options,
) -> isobath_status {
    guard(|| {
        let (paths, options) = given!((paths_of(paths, count)?, options_of(options)));
        Ok(super::found(Store::needs_recovery(paths, &options)?))
    })
}

/// Writes a checkpoint and closes the store. Calls under way end first; later ones on the store and
/// everything of it answer ISOBATH_CLOSED. Closing a closed store answers as the first time. Any
/// thread, but not in a callback of a queue.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_store_close(store: *mut isobath_store) -> isobath_status {
    guard(|| done(given!(object(store)?).0.clone().close()))
}

/// Frees a store; one that is open is closed when nothing of it is left. NULL does nothing. Any
/// thread; no other may use the store any more.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_store_free(store: *mut isobath_store) {
    given!(free(store));
}

/// The function that gets a tree.
type GetTree = fn(&Store, &str) -> Result<isobath::Tree, isobath::Error>;

/// Gets a tree some way.
///
/// # Safety
///
/// As of all.
unsafe fn tree(
    store: *const isobath_store,
    name: *const c_char,
    out: *mut *mut isobath_tree,
    how: GetTree,
) -> isobath_status {
    guard(|| {
        let (store, name) = given!((object(store)?, text_of(name)?));
        crate::not_null(out)?;
        let tree = how(&store.0, name)?;
        given!(give(out, isobath_tree(tree)));
        Ok(ISOBATH_OK)
    })
}

/// Makes the tree `name`. Its handle is freed by isobath_tree_free. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_tree_create(
    store: *const isobath_store,
    name: *const c_char,
    out: *mut *mut isobath_tree,
) -> isobath_status {
    given!(tree(store, name, out, |store, name| store.create_tree(name)))
}

/// The existing tree `name`. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_tree_open(
    store: *const isobath_store,
    name: *const c_char,
    out: *mut *mut isobath_tree,
) -> isobath_status {
    given!(tree(store, name, out, |store, name| store.tree(name)))
}

/// The tree `name`, made if there is none. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_tree_open_or_create(
    store: *const isobath_store,
    name: *const c_char,
    out: *mut *mut isobath_tree,
) -> isobath_status {
    given! {
        tree(store, name, out, |store, name| {
            store.open_or_create_tree(name)
        })
    }
}

/// Drops the tree `name` with all its records. Handles on it answer ISOBATH_TREE_DROPPED from now
/// on. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_tree_drop(
    store: *const isobath_store,
    name: *const c_char,
) -> isobath_status {
    guard(|| {
        let (store, name) = given!((object(store)?, text_of(name)?));
        done(store.0.drop_tree(name))
    })
}

/// Called with the name of each tree, which ends with a zero and is valid during the call.
pub type isobath_tree_visitor =
    Option<unsafe extern "C" fn(argument: *mut std::ffi::c_void, name: *const c_char)>;

/// Calls `visit` for all trees, by name. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_trees(
    store: *const isobath_store,
    visit: isobath_tree_visitor,
    argument: *mut std::ffi::c_void,
) -> isobath_status {
    guard(|| {
        let store = given!(object(store)?);
        let visit = visit.ok_or(Failure::Null)?;
        for tree in store.0.trees()? {
            let name = std::ffi::CString::new(tree.name).unwrap_or_default();
            // SAFETY: a function of the program's.
            unsafe { visit(argument, name.as_ptr()) };
        }
        Ok(ISOBATH_OK)
    })
}
