//! Changes of names and attributes.

use std::ffi::c_char;

use isobath_files::{Attributes, FileTime, FileTree, FilesError, RenameMode};

use super::open::kvs_files;
use super::result::{Failure, kvs_files_result};
use super::{guard, object, text};

/// Does something with one path.
///
/// # Safety
///
/// As of all.
unsafe fn with_path(
    files: *mut kvs_files,
    path: *const c_char,
    work: impl FnOnce(&FileTree, &[u8]) -> Result<(), FilesError>,
) -> kvs_files_result {
    guard(|| {
        let (files, path) = given!((object(files)?, text(path)?));
        Ok(work(&files.0, path)?)
    })
}

/// Does something with two texts.
///
/// # Safety
///
/// As of all.
unsafe fn with_two(
    files: *mut kvs_files,
    one: *const c_char,
    two: *const c_char,
    work: impl FnOnce(&FileTree, &[u8], &[u8]) -> Result<(), FilesError>,
) -> kvs_files_result {
    guard(|| {
        let (files, one, two) = given!((object(files)?, text(one)?, text(two)?));
        Ok(work(&files.0, one, two)?)
    })
}

/// Makes an empty directory. Any thread.
///
/// # Safety
///
/// As of all: pointers are valid or NULL; texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_mkdir(
    files: *mut kvs_files,
    path: *const c_char,
    mode: u32,
) -> kvs_files_result {
    let attributes = Attributes::with_mode(mode);
    given! {
        with_path(files, path, |files, path| {
            files.create_directory(path, &attributes)
        })
    }
}

/// Makes a symbolic link with any text as its target. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_symlink(
    files: *mut kvs_files,
    target: *const c_char,
    path: *const c_char,
) -> kvs_files_result {
    let attributes = Attributes::with_mode(0o777);
    given! {
        with_two(files, target, path, |files, target, path| {
            files.create_link(path, target, &attributes)
        })
    }
}

/// Gives a file or symbolic link a further name (hard link). Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_link(
    files: *mut kvs_files,
    existing: *const c_char,
    path: *const c_char,
) -> kvs_files_result {
    given! {
        with_two(files, existing, path, |files, existing, path| {
            files.link(existing, path)
        })
    }
}

/// Moves a file, link or directory, as rename(2) does; without `replace`, a name that is taken is
/// KVS_FILES_ERR_EXISTS. The cost of moving a directory does not depend on its size. Any
/// thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_rename(
    files: *mut kvs_files,
    from: *const c_char,
    to: *const c_char,
    replace: bool,
) -> kvs_files_result {
    let mode = match replace {
        true => RenameMode::Replace,
        false => RenameMode::NoReplace,
    };
    given! {
        with_two(files, from, to, |files, from, to| {
            files.rename_with(from, to, mode)
        })
    }
}

/// Removes a name of a file or symbolic link, and with the last one the file. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_unlink(
    files: *mut kvs_files,
    path: *const c_char,
) -> kvs_files_result {
    given!(with_path(files, path, |files, path| files.remove(path)))
}

/// Removes an empty directory. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_rmdir(
    files: *mut kvs_files,
    path: *const c_char,
) -> kvs_files_result {
    given!(with_path(files, path, |files, path| files.remove_directory(path)))
}

/// Removes whatever has this name, of a directory everything below it, in one step. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_remove_all(
    files: *mut kvs_files,
    path: *const c_char,
) -> kvs_files_result {
    given!(with_path(files, path, |files, path| files.remove_all(path)))
}

/// Sets the permission bits. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_set_mode(
    files: *mut kvs_files,
    path: *const c_char,
    mode: u32,
) -> kvs_files_result {
    given! {
        with_path(files, path, |files, path| {
            files.set_attributes(path, |attributes| attributes.mode = mode)
        })
    }
}

/// Sets the time of the last change. KVS_FILES_ERR_ARGUMENT for a second of nanoseconds or more.
/// Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_set_mtime(
    files: *mut kvs_files,
    path: *const c_char,
    seconds: i64,
    nanoseconds: u32,
) -> kvs_files_result {
    if nanoseconds >= 1_000_000_000 {
        return Failure::argument("nanoseconds are below 1000000000").tell();
    }
    let mtime = FileTime {
        seconds,
        nanoseconds,
    };
    given! {
        with_path(files, path, |files, path| {
            files.set_attributes(path, |attributes| attributes.mtime = mtime)
        })
    }
}
