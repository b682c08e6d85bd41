//! The four functions of paper 004 for contents, and export.

use std::ffi::{CString, c_char, c_void};

use isobath_files::{Attributes, FileKind, FileView, ImportOptions, Stat};

use super::open::kvs_files;
use super::result::{Failure, kvs_files_result};
use super::{guard, host_path, object, text};
use kvs_files_result::*;

/// Replaces the entry at the path, with all below it.
pub const KVS_CREATE_REPLACE: u32 = 1;
/// Leaves out sockets, pipes and devices.
pub const KVS_CREATE_SKIP_SPECIAL: u32 = 2;

/// What an entry is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum kvs_file_kind {
    /// A regular file.
    KVS_FILE_REGULAR = 0,
    /// A directory.
    KVS_FILE_DIRECTORY = 1,
    /// A symbolic link.
    KVS_FILE_SYMLINK = 2,
}

/// Properties of a file, directory or link.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_file_stat {
    /// Its number, the same under all of its names.
    pub inode: u64,
    /// Bytes of contents, or of a link's target.
    pub size: u64,
    /// When it was changed last: seconds since 1970.
    pub mtime_seconds: i64,
    /// And nanoseconds.
    pub mtime_nanoseconds: u32,
    /// CRC-32C of the contents, or of a link's target.
    pub crc32c: u32,
    /// Permission bits.
    pub mode: u32,
    /// Names that it has.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The owning group.
    pub gid: u32,
    /// What it is.
    pub kind: kvs_file_kind,
}

impl kvs_file_stat {
    pub(super) fn of(stat: &Stat) -> kvs_file_stat {
        let attributes = stat.attributes;
        kvs_file_stat {
            inode: stat.inode,
            size: stat.size,
            mtime_seconds: attributes.mtime.seconds,
            mtime_nanoseconds: attributes.mtime.nanoseconds,
            crc32c: stat.crc,
            mode: attributes.mode,
            links: stat.links,
            uid: attributes.uid,
            gid: attributes.gid,
            kind: match stat.kind {
                FileKind::File => kvs_file_kind::KVS_FILE_REGULAR,
                FileKind::Directory => kvs_file_kind::KVS_FILE_DIRECTORY,
                FileKind::Symlink => kvs_file_kind::KVS_FILE_SYMLINK,
            },
        }
    }
}

/// Copies a directory and all below it, or a file, from the file system outside to `path`: in one
/// step, which a crash leaves whole or not at all. `flags` are KVS_CREATE_REPLACE and
/// KVS_CREATE_SKIP_SPECIAL, or 0. `bytes`, if it is not NULL, gets how many bytes of contents there
/// are. Any thread.
///
/// # Safety
///
/// As of all: pointers are valid or NULL; texts end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_create(
    files: *mut kvs_files,
    from: *const c_char,
    path: *const c_char,
    flags: u32,
    bytes: *mut u64,
) -> kvs_files_result {
    guard(|| {
        let (files, from, path) = given!((object(files)?, host_path(from)?, text(path)?));
        if flags & !(KVS_CREATE_REPLACE | KVS_CREATE_SKIP_SPECIAL) != 0 {
            return Err(Failure::argument("there is no such flag"));
        }
        let options = ImportOptions {
            replace: flags & KVS_CREATE_REPLACE != 0,
            skip_special: flags & KVS_CREATE_SKIP_SPECIAL != 0,
        };
        let imported = files.0.import(from, path, options, &())?;
        if !bytes.is_null() {
            given!(bytes.write(imported.bytes));
        }
        Ok(())
    })
}

/// Files, or entries of a directory, as they were at one moment, with numbers from 0. Every
/// function may be called from any thread, also at the same time.
pub struct kvs_file_map {
    view: FileView,
    entries: Vec<Mapped>,
}

struct Mapped {
    path: CString,
    stat: Stat,
}

/// An entry of a map.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvs_file_entry {
    /// Its path from the root; of a list its name. Valid until the map is freed.
    pub path: *const c_char,
    /// Its properties.
    pub stat: kvs_file_stat,
}

/// Gives a map to C.
///
/// # Safety
///
/// `out` is NULL or can be written.
unsafe fn give(out: *mut *mut kvs_file_map, map: kvs_file_map) -> Result<(), Failure> {
    crate::not_null(out)?;
    given!(out.write(Box::into_raw(Box::new(map))));
    Ok(())
}

fn mapped(path: Vec<u8>, stat: Stat) -> Result<Mapped, Failure> {
    let path = CString::new(path).map_err(|_| Failure::argument("a name has a byte 0"))?;
    Ok(Mapped { path, stat })
}

/// Maps all regular files at and below `path`, in the order of a walk: data and keys, sizes and
/// checksums. What is stored, moved or removed later does not change what the map retrieves. It is
/// freed by kvs_map_free. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_map(
    files: *mut kvs_files,
    path: *const c_char,
    out: *mut *mut kvs_file_map,
) -> kvs_files_result {
    guard(|| {
        let (files, path) = given!((object(files)?, text(path)?));
        let view = files.0.view()?;
        let mut entries = Vec::new();
        for item in view.walk(path)? {
            let (path, stat) = item?;
            if stat.kind == FileKind::File {
                entries.push(mapped(path, stat)?);
            }
        }
        given!(give(out, kvs_file_map { view, entries }))
    })
}

/// Lists the entries of a directory, of all kinds, in the order of their names. It is freed by
/// kvs_map_free. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_list(
    files: *mut kvs_files,
    path: *const c_char,
    out: *mut *mut kvs_file_map,
) -> kvs_files_result {
    guard(|| {
        let (files, path) = given!((object(files)?, text(path)?));
        let view = files.0.view()?;
        let mut entries = Vec::new();
        for entry in view.list(path)? {
            let stat = view.stat_inode(entry.inode, &entry.name)?;
            entries.push(mapped(entry.name, stat)?);
        }
        given!(give(out, kvs_file_map { view, entries }))
    })
}

/// How many entries a map has; 0 for NULL. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_map_count(map: *const kvs_file_map) -> usize {
    given!(map.as_ref()).map_or(0, |map| map.entries.len())
}

/// One entry of a map. KVS_FILES_ERR_ARGUMENT for an index that it has not. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_map_entry(
    map: *const kvs_file_map,
    index: usize,
    out: *mut kvs_file_entry,
) -> kvs_files_result {
    guard(|| {
        let map = given!(object(map)?);
        let entry = map.entry(index)?;
        let entry = kvs_file_entry {
            path: entry.path.as_ptr(),
            stat: kvs_file_stat::of(&entry.stat),
        };
        crate::not_null(out)?;
        given!(out.write(entry));
        Ok(())
    })
}

impl kvs_file_map {
    fn entry(&self, index: usize) -> Result<&Mapped, Failure> {
        let entry = self.entries.get(index);
        entry.ok_or_else(|| Failure::argument(format!("the map has no entry {index}")))
    }
}

/// Frees a map. Does nothing for NULL. No other thread may be using it.
///
/// # Safety
///
/// It came from the library and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_map_free(map: *mut kvs_file_map) {
    if !map.is_null() {
        drop(given!(Box::from_raw(map)));
    }
}

/// Stores the whole contents of a file: a new one, which gets the permission bits `mode`, or an
/// existing one, which keeps its own. When it returns, they are as durable as the device's or
/// store's durability says. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_store(
    files: *mut kvs_files,
    path: *const c_char,
    data: *const c_void,
    length: usize,
    mode: u32,
) -> kvs_files_result {
    guard(|| {
        let (files, path) = given!((object(files)?, text(path)?));
        let contents: &[u8] = match (data.is_null(), length) {
            (_, 0) => &[],
            (true, _) => return Err(Failure::Null),
            (false, _) => given!(std::slice::from_raw_parts(data.cast(), length)),
        };
        files
            .0
            .write(path, contents, &Attributes::with_mode(mode))?;
        Ok(())
    })
}

/// Retrieves bytes of a mapped file from `offset` on, verified against the CRC-32C of the pieces
/// that they are in. `*actual`, which may be NULL, gets how many bytes were read: fewer than
/// `length` only at the end of the file. An offset beyond the end is KVS_FILES_ERR_ARGUMENT. Any
/// thread.
///
/// # Safety
///
/// As of all; `buffer` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_retrieve(
    map: *const kvs_file_map,
    index: usize,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
    actual: *mut usize,
) -> kvs_files_result {
    guard(|| {
        let map = given!(object(map)?);
        let entry = map.entry(index)?;
        let into: &mut [u8] = match (buffer.is_null(), length) {
            (_, 0) => &mut [],
            (true, _) => return Err(Failure::Null),
            (false, _) => {
                // SAFETY: the caller guarantees this. What the program left there is defined before
                // it is a slice.
                unsafe {
                    buffer.cast::<u8>().write_bytes(0, length);
                    std::slice::from_raw_parts_mut(buffer.cast(), length)
                }
            }
        };
        let mut reader = map
            .view
            .open_inode(entry.stat.inode, entry.path.to_bytes())?;
        if offset > entry.stat.size {
            return Err(Failure::argument(
                "the offset is beyond the end of the file",
            ));
        }
        let count = reader.read_at(offset, into)?;
        if !actual.is_null() {
            given!(actual.write(count));
        }
        Ok(())
    })
}

/// Copies the entry at `path`, and all below it, to `to` in the file system outside, which must not
/// exist. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_export(
    files: *mut kvs_files,
    path: *const c_char,
    to: *const c_char,
) -> kvs_files_result {
    guard(|| {
        let (files, path, to) = given!((object(files)?, text(path)?, host_path(to)?));
        files.0.view()?.export(path, to, &())?;
        Ok(())
    })
}

/// What a path names. Symbolic links are not followed. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_stat(
    files: *mut kvs_files,
    path: *const c_char,
    out: *mut kvs_file_stat,
) -> kvs_files_result {
    guard(|| {
        let (files, path) = given!((object(files)?, text(path)?));
        let stat = files.0.view()?.stat(path)?;
        crate::not_null(out)?;
        given!(out.write(kvs_file_stat::of(&stat)));
        Ok(())
    })
}

/// The target of a symbolic link, with a zero behind it. `*length` is the buffer's length and gets
/// the target's with its zero; if the buffer is too small, that is KVS_FILES_ERR_BUFFER and
/// nothing is written to it. Any thread.
///
/// # Safety
///
/// As of all; `buffer` has `*length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_read_link(
    files: *mut kvs_files,
    path: *const c_char,
    buffer: *mut c_char,
    length: *mut usize,
) -> kvs_files_result {
    guard(|| {
        let (files, path) = given!((object(files)?, text(path)?));
        let target = files.0.view()?.read_link(path)?;
        let needed = target.len() + 1;
        crate::not_null(length)?;
        let there = given!(length.replace(needed));
        if there < needed {
            let reason = format!("the target and its zero have {needed} bytes");
            return Err(Failure::Code(KVS_FILES_ERR_BUFFER, reason));
        }
        crate::not_null(buffer)?;
        given! {
            buffer.copy_from_nonoverlapping(target.as_ptr().cast(), target.len());
            buffer.add(target.len()).write(0);
        }
        Ok(())
    })
}

/// Reads everything and verifies it: names against inodes, contents against checksums. `*problems`
/// gets how many there are; the message is that of the first one. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_files_check(
    files: *mut kvs_files,
    problems: *mut u64,
) -> kvs_files_result {
    guard(|| {
        let files = given!(object(files)?);
        let report = files.0.view()?.check(&())?;
        crate::not_null(problems)?;
        given!(problems.write(report.problems.len() as u64 + report.more_problems));
        if let Some(first) = report.problems.first() {
            crate::message::set(first.clone());
        }
        Ok(())
    })
}
