//! Directory trees from the file system outside.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat as HostStat};
use rustix::io::Errno;

use crate::change::{Change, symlink};
use crate::layout::{FileKind, FileTime, Inode, Named, PIECE_BYTES, Pending, pending_key};
use crate::writer::FileWriter;
use crate::{Attributes, Copied, FileTree, FilesError, Watcher};

/// Bytes of contents that are collected before a transaction stores them.
const BATCH_BYTES: usize = 4 << 20;
/// Bytes of log that a transaction of collected entries may take, roughly: little compared with
/// what any log allows.
const BATCH_LOG_BYTES: usize = 48 << 10;
/// Log that an entry takes beside its contents: keys, inode, name.
const ENTRY_LOG_BYTES: usize = 512;
/// Contents up to this may lie in a leaf, and so in the log.
const INLINE_BYTES: usize = 1024;

/// How a tree is imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportOptions {
    /// Replace the entry at the path, with all below it.
    pub replace: bool,
    /// Leave out sockets, pipes and devices instead of stopping.
    pub skip_special: bool,
}

impl FileTree {
    /// Copies a directory and all below it, or a single file or symbolic link, from the file system
    /// outside to `path`. Links are not followed. It appears in one step, with everything; a crash,
    /// an error or a cancellation leaves nothing of it.
    ///
    /// The directory that `path` is in must exist. An empty root may be imported over.
    ///
    /// # Errors
    ///
    /// [`FilesError::Host`] for files that cannot be read, [`FilesError::Refused`] for one that is
    /// neither file, directory nor link, [`FilesError::Exists`], [`FilesError::Interrupted`], and
    /// as for [`FileTree::create_directory`].
    pub fn import(
        &self,
        from: &Path,
        path: impl AsRef<[u8]>,
        options: ImportOptions,
        watcher: &dyn Watcher,
    ) -> Result<Copied, FilesError> {
        let path = path.as_ref();
        self.check_free(path, options.replace)?;
        let mut import = Import {
            files: self,
            options,
            watcher,
            batch: Batch::default(),
            links: HashMap::new(),
            buffer: Vec::new(),
            done: Copied::default(),
        };
        let top = self.new_number()?;
        let hidden = Inode::new(FileKind::Directory, &Attributes::with_mode(0o700));
        let pending = Pending {
            is_directory: true,
            session: self.session(),
        };
        // All is made in a directory without a name, which the next opening removes if this does
        // not come to its end.
        self.run(|transaction| {
            let mut change = Change::new(&self.tree, transaction);
            change.put_inode(top, &hidden)?;
            change.put(pending_key(top), &pending.encode())
        })?;
        let result = import.run(from, top).and_then(|number| {
            self.change(|change| {
                // It moves out of the hidden directory, which goes.
                change.remove(crate::layout::name_key(top, b"top"))?;
                change.remove(crate::layout::inode_key(top))?;
                change.remove(pending_key(top))?;
                change.install(number, path, options.replace)
            })?;
            Ok(import.done)
        });
        if result.is_err() {
            self.reclaim_now(vec![top]);
        }
        result
    }

    /// Finds out before the work whether its result will have a place.
    fn check_free(&self, path: &[u8], replace: bool) -> Result<(), FilesError> {
        let view = self.view()?;
        let place = view.records().place(path)?;
        let Some(named) = place.named else {
            return Ok(());
        };
        let is_empty_root = place.directory == crate::layout::ABOVE_ROOT
            && view.list_inode(named.inode, None, 1)?.is_empty();
        match replace || is_empty_root {
            true => Ok(()),
            false => Err(FilesError::Exists { path: path.into() }),
        }
    }
}

/// An entry that is not stored yet.
enum New {
    Inode {
        number: u64,
        inode: Inode,
        contents: Vec<u8>,
    },
    /// A further name of an inode.
    Link { number: u64 },
}

struct NewEntry {
    directory: u64,
    name: Vec<u8>,
    new: New,
}

/// Entries that a transaction stores together.
#[derive(Default)]
struct Batch {
    entries: Vec<NewEntry>,
    bytes: usize,
    log_bytes: usize,
}

/// A directory outside that is being read.
struct Level {
    /// Its identity, to find it again.
    identity: (u64, u64),
    path: PathBuf,
    directory: u64,
    names: std::vec::IntoIter<CString>,
}

struct Import<'i> {
    files: &'i FileTree,
    options: ImportOptions,
    watcher: &'i dyn Watcher,
    batch: Batch,
    /// Inodes of files outside that have several names.
    links: HashMap<(u64, u64), u64>,
    /// For contents, a piece and a byte.
    buffer: Vec<u8>,
    done: Copied,
}

impl Import<'_> {
    /// Imports `from` into the hidden directory `top`; the number of the inode that it became.
    fn run(&mut self, from: &Path, top: u64) -> Result<u64, FilesError> {
        let at = rustix::fs::CWD;
        let name = c_string(from)?;
        let stat = rustix::fs::statat(at, &name, AtFlags::empty()).map_err(host("read", from))?;
        // The path itself may be a link; what it leads to is imported.
        let number = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directories(from, &stat, top)?,
            _ => self
                .entry(at, &name, from, top, b"top", true)?
                .ok_or_else(|| {
                    FilesError::refused(from, "is neither a file, a directory nor a link")
                })?,
        };
        self.store_batch()?;
        Ok(number)
    }

    /// Imports a directory and all below it, without recursion: trees may be deeper than a thread's
    /// stack, and than paths may be long.
    fn directories(&mut self, from: &Path, stat: &HostStat, top: u64) -> Result<u64, FilesError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(from, flags, Mode::empty()).map_err(host("open", from))?;
        let number = self.add_directory(stat, top, b"top")?;
        let mut levels = vec![self.level(&at, from.to_path_buf(), number)?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                levels.pop();
                if let Some(above) = levels.last() {
                    at = back_to(&at, above)?;
                }
                continue;
            };
            self.check()?;
            let (directory, path) = (level.directory, level.path.join(os(&name)));
            let stat = rustix::fs::statat(&at, &name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(host("read", &path))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                self.entry(at.as_fd(), &name, &path, directory, name.to_bytes(), false)?;
                continue;
            }
            let flags = flags | OFlags::NOFOLLOW;
            let inner = rustix::fs::openat(&at, &name, flags, Mode::empty())
                .map_err(host("open", &path))?;
            let number = self.add_directory(&stat, directory, name.to_bytes())?;
            levels.push(self.level(&inner, path, number)?);
            at = inner;
        }
        Ok(number)
    }

    fn check(&self) -> Result<(), FilesError> {
        match self.watcher.cancelled() {
            true => Err(FilesError::Interrupted),
            false => Ok(()),
        }
    }

    fn level(&self, at: &OwnedFd, path: PathBuf, directory: u64) -> Result<Level, FilesError> {
        let stat = rustix::fs::fstat(at).map_err(host("read", &path))?;
        let mut names = Vec::new();
        let entries = Dir::read_from(at).map_err(host("read", &path))?;
        for entry in entries {
            let entry = entry.map_err(host("read", &path))?;
            let name = entry.file_name();
            if name.to_bytes() != b"." && name.to_bytes() != b".." {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(Level {
            identity: (stat.st_dev, stat.st_ino),
            path,
            directory,
            names: names.into_iter(),
        })
    }

    fn add_directory(
        &mut self,
        stat: &HostStat,
        directory: u64,
        name: &[u8],
    ) -> Result<u64, FilesError> {
        let mut inode = Inode::new(FileKind::Directory, &attributes(stat));
        inode.parent = directory;
        self.done.directories += 1;
        self.add_inode(directory, name, inode, Vec::new())
    }

    /// Imports a file or link; `None` if it was left out.
    fn entry(
        &mut self,
        at: BorrowedFd<'_>,
        name: &CString,
        path: &Path,
        directory: u64,
        stored_name: &[u8],
        follow: bool,
    ) -> Result<Option<u64>, FilesError> {
        let nofollow = match follow {
            true => (AtFlags::empty(), OFlags::empty()),
            false => (AtFlags::SYMLINK_NOFOLLOW, OFlags::NOFOLLOW),
        };
        let mut stat = rustix::fs::statat(at, name, nofollow.0).map_err(host("read", path))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut file = None;
        if kind == FileType::RegularFile {
            let (opened, found) = open_regular(at, name, path, nofollow.1)?;
            (file, stat) = (Some(opened), found);
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(number) = self.links.get(&identity).copied() {
            self.done.hard_links += 1;
            self.push(directory, stored_name, New::Link { number }, 0, 0)?;
            return Ok(Some(number));
        }
        let number = match (file, kind) {
            (None, FileType::Symlink) => {
                let target = rustix::fs::readlinkat(at, name, Vec::new());
                let target = target.map_err(host("read", path))?;
                let target = target.to_bytes();
                crate::path::check_target(path.as_os_str().as_bytes(), target)?;
                self.done.symlinks += 1;
                let inode = symlink(target, &attributes(&stat));
                self.add_inode(directory, stored_name, inode, Vec::new())?
            }
            (Some(file), _) => {
                let found = file.metadata().map_err(FilesError::host("read", path))?;
                if self.files.store.holds(&found) {
                    let reason = "is the store that it would be imported into";
                    return Err(FilesError::refused(path, reason));
                }
                self.done.files += 1;
                self.file(&file, path, directory, stored_name, &attributes(&stat))?
            }
            _ if self.options.skip_special => {
                self.done.skipped += 1;
                return Ok(None);
            }
            _ => {
                let reason = "is a socket, a pipe or a device, which cannot be stored; leave it out (--skip-special)";
                return Err(FilesError::refused(path, reason));
            }
        };
        if stat.st_nlink > 1 {
            self.links.insert(identity, number);
        }
        Ok(Some(number))
    }

    /// Imports a regular file.
    fn file(
        &mut self,
        file: &std::fs::File,
        path: &Path,
        directory: u64,
        name: &[u8],
        attributes: &Attributes,
    ) -> Result<u64, FilesError> {
        // One byte more than a piece shows whether there is more than one.
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(PIECE_BYTES + 1, 0);
        let size = rustix::fs::fstat(file).map_err(host("read", path))?.st_size as u64;
        let length = match size > PIECE_BYTES as u64 {
            true => buffer.len(),
            false => read_full(file, &mut buffer).map_err(host("read", path))?,
        };
        let number = match buffer.get(..length).filter(|_| length <= PIECE_BYTES) {
            Some(contents) => {
                let mut inode = Inode::new(FileKind::File, attributes);
                inode.size = length as u64;
                inode.crc = crc32c::crc32c(contents);
                self.done.bytes += inode.size;
                self.watcher.advance(0, inode.size);
                self.add_inode(directory, name, inode, contents.to_vec())?
            }
            None => {
                rustix::fs::seek(file, SeekFrom::Start(0)).map_err(host("read", path))?;
                // Its directory is stored before it: a name in a directory that does not exist is
                // never found again.
                self.store_batch()?;
                let shown = path.as_os_str().as_bytes();
                let mut writer = FileWriter::hidden(self.files, directory, name, shown, attributes);
                self.large(file, path, &mut writer, &mut buffer)?;
                let stat = writer.finish()?;
                self.watcher.advance(1, 0);
                stat.inode
            }
        };
        self.buffer = buffer;
        Ok(number)
    }

    /// Copies contents of any length, holes as holes.
    fn large(
        &mut self,
        file: &std::fs::File,
        path: &Path,
        writer: &mut FileWriter,
        buffer: &mut [u8],
    ) -> Result<(), FilesError> {
        loop {
            let at = writer.len();
            // If the file system knows no holes, all is data.
            let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => {
                    let size = rustix::fs::fstat(file).map_err(host("read", path))?.st_size;
                    let hole = (size as u64).saturating_sub(at);
                    self.hole(writer, hole)?;
                    return Ok(());
                }
                Err(_) => {
                    rustix::fs::seek(file, SeekFrom::Start(at)).map_err(host("read", path))?
                }
            };
            self.hole(writer, data.saturating_sub(at))?;
            let end = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(u64::MAX);
            rustix::fs::seek(file, SeekFrom::Start(data)).map_err(host("read", path))?;
            while writer.len() < end {
                self.check()?;
                let most = (end - writer.len()).min(buffer.len() as u64) as usize;
                let count = read_full(file, &mut buffer[..most]).map_err(host("read", path))?;
                writer.append(&buffer[..count])?;
                self.done.bytes += count as u64;
                self.watcher.advance(0, count as u64);
                if count < most {
                    return Ok(());
                }
            }
        }
    }

    fn hole(&mut self, writer: &mut FileWriter, bytes: u64) -> Result<(), FilesError> {
        if bytes > 0 {
            writer.append_hole(bytes)?;
            self.done.bytes += bytes;
            self.watcher.advance(0, bytes);
        }
        Ok(())
    }

    fn add_inode(
        &mut self,
        directory: u64,
        name: &[u8],
        mut inode: Inode,
        contents: Vec<u8>,
    ) -> Result<u64, FilesError> {
        let number = self.files.new_number()?;
        if !contents.is_empty() {
            inode.content = self.files.new_number()?;
        }
        let bytes = contents.len();
        let inline = match bytes <= INLINE_BYTES {
            true => bytes,
            false => 0,
        };
        let new = New::Inode {
            number,
            inode,
            contents,
        };
        self.push(directory, name, new, bytes, inline)?;
        Ok(number)
    }

    fn push(
        &mut self,
        directory: u64,
        name: &[u8],
        new: New,
        bytes: usize,
        inline: usize,
    ) -> Result<(), FilesError> {
        self.batch.entries.push(NewEntry {
            directory,
            name: name.to_vec(),
            new,
        });
        self.batch.bytes += bytes;
        self.batch.log_bytes += ENTRY_LOG_BYTES + inline;
        if self.batch.bytes >= BATCH_BYTES || self.batch.log_bytes >= BATCH_LOG_BYTES {
            self.store_batch()?;
        }
        Ok(())
    }

    fn store_batch(&mut self) -> Result<(), FilesError> {
        let batch = std::mem::take(&mut self.batch);
        if batch.entries.is_empty() {
            return Ok(());
        }
        self.files.run(|transaction| {
            let mut change = Change::new(&self.files.tree, transaction);
            batch.entries.iter().try_for_each(|e| e.store(&mut change))
        })?;
        self.watcher.advance(batch.entries.len() as u64, 0);
        Ok(())
    }
}

impl NewEntry {
    fn store(&self, change: &mut Change<'_>) -> Result<(), FilesError> {
        match &self.new {
            New::Link { number } => {
                change.add_link(self.directory, &self.name, *number, &self.name)
            }
            New::Inode {
                number,
                inode,
                contents,
            } => {
                if inode.content != 0 {
                    change.put_piece(inode.content, contents)?;
                }
                change.put_inode(*number, inode)?;
                let named = Named {
                    inode: *number,
                    kind: inode.kind,
                };
                change.put_name(self.directory, &self.name, named)
            }
        }
    }
}

/// Opens a regular file. Its name may have something else by now than when it was looked at: what
/// is open counts.
fn open_regular(
    at: BorrowedFd<'_>,
    name: &CString,
    path: &Path,
    nofollow: OFlags,
) -> Result<(std::fs::File, HostStat), FilesError> {
    // A pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | nofollow;
    let file = rustix::fs::openat(at, name, flags, Mode::empty()).map_err(host("open", path))?;
    let stat = rustix::fs::fstat(&file).map_err(host("read", path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file.into(), stat)),
        _ => {
            let reason = "was replaced while it was read; import again";
            Err(FilesError::refused(path, reason))
        }
    }
}

/// The directory above one that was read to its end; that it is still the one that it was is
/// verified.
fn back_to(at: &OwnedFd, above: &Level) -> Result<OwnedFd, FilesError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let up = rustix::fs::openat(at, c"..", flags, Mode::empty());
    let up = up.map_err(host("open", &above.path))?;
    let stat = rustix::fs::fstat(&up).map_err(host("read", &above.path))?;
    if (stat.st_dev, stat.st_ino) != above.identity {
        let reason = "directories were moved while they were read; import again";
        return Err(FilesError::refused(&above.path, reason));
    }
    Ok(up)
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &std::fs::File, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::read(file, &mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn attributes(stat: &HostStat) -> Attributes {
    Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: FileTime {
            seconds: stat.st_mtime,
            nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
        },
    }
}

pub(crate) fn os(name: &CString) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

pub(crate) fn c_string(path: &Path) -> Result<CString, FilesError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| FilesError::refused(path, "a path has no byte 0"))
}

/// For `map_err`: what the system refused, and where.
pub(crate) fn host(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> FilesError {
    let of = FilesError::host(action, path);
    move |error| of(error.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_as_such() {
        let place = tempfile::tempdir().unwrap();
        let at = rustix::fs::CWD;
        let open = |name: &str| {
            let path = place.path().join(name);
            open_regular(at, &c_string(&path).unwrap(), &path, OFlags::NOFOLLOW)
        };
        std::fs::write(place.path().join("file"), "contents").unwrap();
        assert_eq!(open("file").unwrap().1.st_size, 8);
        let pipe = place.path().join("pipe");
        rustix::fs::mknodat(at, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::fs::create_dir(place.path().join("directory")).unwrap();
        for name in ["pipe", "directory"] {
            assert!(
                matches!(open(name), Err(FilesError::Refused { .. })),
                "{name}"
            );
        }
        std::os::unix::fs::symlink("file", place.path().join("link")).unwrap();
        assert!(matches!(open("link"), Err(FilesError::Host { .. })));
    }
}
