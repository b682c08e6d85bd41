//! Directory trees to the file system outside.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::ffi::CString;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RawMode, RenameFlags, Timespec, Timestamps, UTIME_OMIT};

use crate::import::{c_string, host};
use crate::layout::FileKind;
use crate::view::Stat;
use crate::{Attributes, Copied, FileView, FilesError, Span, Watcher};

/// Longer paths are followed part by part: the system takes none of 4096 bytes.
const MAX_HOST_PATH: usize = 4000;

impl FileView {
    /// Copies the entry at `path`, and all below it, to `to` in the file system outside, which must
    /// not exist: contents, holes, symbolic and hard links, permissions, times, and where the
    /// process is root owners. It is made under another name beside `to` and renamed once it is
    /// complete and on the drive; if that fails, it is removed. A process that is killed before
    /// that leaves what it has made, under a name that begins with `.isobath-export-`.
    ///
    /// # Errors
    ///
    /// [`FilesError::Refused`] if `to` exists, [`FilesError::Host`],
    /// [`FilesError::Interrupted`], and as for [`FileView::read`].
    pub fn export(
        &self,
        path: impl AsRef<[u8]>,
        to: &Path,
        watcher: &dyn Watcher,
    ) -> Result<Copied, FilesError> {
        let path = path.as_ref();
        self.stat(path)?;
        let exists = || FilesError::refused(to, "exists already; choose another name");
        if to.symlink_metadata().is_ok() {
            return Err(exists());
        }
        let above = match to.parent() {
            Some(above) if above != Path::new("") => above.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let into = rustix::fs::open(&above, flags, Mode::empty()).map_err(host("open", &above))?;
        let name = to.file_name().ok_or_else(exists)?;
        // One that nothing else has: other exports, of this process or another one, may go to the
        // same directory.
        let unique = RandomState::new().build_hasher().finish();
        let temporary = format!(".isobath-export-{unique:016x}");
        let partial = above.join(&temporary);
        let mut export = Export {
            view: self,
            watcher,
            to: &partial,
            is_root: rustix::process::geteuid().is_root(),
            links: HashMap::new(),
            done: Copied::default(),
        };
        let temporary = c_string(Path::new(&temporary))?;
        let result = export.run(path, &into, &temporary).and_then(|()| {
            rustix::fs::syncfs(&into).map_err(host("write", to))?;
            let name = c_string(Path::new(name))?;
            let renamed =
                rustix::fs::renameat_with(&into, &temporary, &into, &name, RenameFlags::NOREPLACE);
            renamed.map_err(host("make", to))?;
            rustix::fs::fsync(&into).map_err(host("write", to))
        });
        if result.is_err() {
            // The error that led here matters more.
            let _ = remove(&partial);
        }
        result.map(|()| export.done)
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

struct Export<'e> {
    view: &'e FileView,
    watcher: &'e dyn Watcher,
    /// For errors.
    to: &'e Path,
    is_root: bool,
    /// Where an inode with several names was made: its path from the exported directory on.
    links: HashMap<u64, Vec<u8>>,
    done: Copied,
}

/// A path from the exported one on, without a slash at its beginning.
fn relative<'p>(path: &'p [u8], top: &[u8]) -> &'p [u8] {
    let rest = path.strip_prefix(top).unwrap_or(path);
    rest.strip_prefix(b"/").unwrap_or(rest)
}

/// The last name of a path, and how many directories are above it.
fn last_name(path: &[u8]) -> (CString, usize) {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let depth = path.iter().filter(|byte| **byte == b'/').count();
    (CString::new(name).unwrap_or_default(), depth)
}

impl Export<'_> {
    fn shown(&self, relative: &[u8]) -> PathBuf {
        self.to.join(std::ffi::OsStr::from_bytes(relative))
    }

    fn check(&self) -> Result<(), FilesError> {
        match self.watcher.cancelled() {
            true => Err(FilesError::Interrupted),
            false => Ok(()),
        }
    }

    fn run(&mut self, path: &[u8], into: &OwnedFd, name: &CString) -> Result<(), FilesError> {
        let mut walk = self.view.walk(path)?;
        let Some(first) = walk.next() else {
            return Ok(());
        };
        let (top, stat) = first?;
        if stat.kind != FileKind::Directory {
            return self.entry(&top, b"", &stat, into, name, into);
        }
        let root = self.directory(into, name, b"")?;
        let mut at = ShownPlace::new(&root, self.to)?;
        for item in walk {
            self.check()?;
            let (path, stat) = item?;
            let below = relative(&path, &top);
            let (name, depth) = last_name(below);
            at.up_to(depth)?;
            if stat.kind == FileKind::Directory {
                let inner = self.directory(&at.fd, &name, below)?;
                at.enter(inner, None);
            } else {
                self.entry(&path, below, &stat, &at.fd, &name, &root)?;
            }
        }
        self.finish_directories(&top, &root)
    }

    fn directory(
        &mut self,
        at: &OwnedFd,
        name: &CString,
        below: &[u8],
    ) -> Result<OwnedFd, FilesError> {
        let shown = self.shown(below);
        rustix::fs::mkdirat(at, name, Mode::RWXU).map_err(host("make", &shown))?;
        self.done.directories += 1;
        self.watcher.advance(1, 0);
        open_directory(at, name).map_err(host("open", &shown))
    }

    fn entry(
        &mut self,
        path: &[u8],
        below: &[u8],
        stat: &Stat,
        at: &OwnedFd,
        name: &CString,
        root: &OwnedFd,
    ) -> Result<(), FilesError> {
        let shown = self.shown(below);
        if let Some(first) = self.links.get(&stat.inode) {
            link(root, first, at, name).map_err(host("link", &shown))?;
            self.done.hard_links += 1;
            self.watcher.advance(1, 0);
            return Ok(());
        }
        match stat.kind {
            FileKind::Symlink => {
                let target = self.view.read_link_inode(stat.inode, path)?;
                let target = CString::new(target)
                    .map_err(|_| FilesError::corrupt(path, "its target has a byte 0"))?;
                rustix::fs::symlinkat(&target, at, name).map_err(host("make", &shown))?;
                self.finish_link(at, name, &stat.attributes)
                    .map_err(host("set the attributes of", &shown))?;
                self.done.symlinks += 1;
            }
            _ => {
                self.file(path, stat, at, name, &shown)?;
                self.done.files += 1;
            }
        }
        if stat.links > 1 {
            self.links.insert(stat.inode, below.to_vec());
        }
        self.watcher.advance(1, 0);
        Ok(())
    }

    fn file(
        &mut self,
        path: &[u8],
        stat: &Stat,
        at: &OwnedFd,
        name: &CString,
        shown: &Path,
    ) -> Result<(), FilesError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR);
        let mut file = std::fs::File::from(file.map_err(host("make", shown))?);
        let mut reader = self.view.open_inode(stat.inode, path)?;
        while let Some(span) = reader.next_span()? {
            self.check()?;
            let bytes = match span {
                Span::Bytes(bytes) => {
                    file.write_all(bytes)
                        .map_err(FilesError::host("write", shown))?;
                    bytes.len() as u64
                }
                Span::Hole(bytes) => {
                    let to = rustix::fs::SeekFrom::Current(bytes as i64);
                    rustix::fs::seek(&file, to).map_err(host("write", shown))?;
                    bytes
                }
            };
            self.done.bytes += bytes;
            self.watcher.advance(0, bytes);
        }
        file.set_len(stat.size)
            .map_err(FilesError::host("write", shown))?;
        self.finish(&file, &stat.attributes)
            .map_err(host("set the attributes of", shown))
    }

    /// Owner, permissions and time of the open file, in an order in which none undoes another.
    fn finish(&self, file: impl AsFd, attributes: &Attributes) -> Result<(), rustix::io::Errno> {
        let file = file.as_fd();
        if self.is_root {
            let (uid, gid) = owner(attributes);
            rustix::fs::fchown(file, uid, gid)?;
        }
        let mode = Mode::from_raw_mode(attributes.mode as RawMode);
        rustix::fs::fchmod(file, mode)?;
        rustix::fs::futimens(file, &times(attributes))
    }

    fn finish_link(
        &self,
        at: &OwnedFd,
        name: &CString,
        attributes: &Attributes,
    ) -> Result<(), rustix::io::Errno> {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        if self.is_root {
            let (uid, gid) = owner(attributes);
            rustix::fs::chownat(at, name, uid, gid, nofollow)?;
        }
        rustix::fs::utimensat(at, name, &times(attributes), nofollow)
    }

    /// Gives directories their attributes once nothing is made in them any more, the inner ones
    /// first.
    fn finish_directories(&self, top: &[u8], root: &OwnedFd) -> Result<(), FilesError> {
        let mut at = ShownPlace::new(root, self.to)?;
        let finish = |at: &OwnedFd, attributes: &Attributes| {
            let done = self.finish(at, attributes);
            done.map_err(host("set the attributes of", self.to))
        };
        let mut root_attributes = None;
        for item in self.view.walk(top)? {
            let (path, stat) = item?;
            if stat.kind != FileKind::Directory {
                continue;
            }
            let below = relative(&path, top);
            if below.is_empty() {
                root_attributes = Some(stat.attributes);
                continue;
            }
            self.check()?;
            let (name, depth) = last_name(below);
            at.leave_to(depth, finish)?;
            let inner = open_directory(&at.fd, &name);
            at.enter(
                inner.map_err(host("open", &self.shown(below)))?,
                Some(stat.attributes),
            );
        }
        at.leave_to(0, finish)?;
        match root_attributes {
            Some(attributes) => finish(root, &attributes),
            None => Ok(()),
        }
    }
}

/// A directory that was made, and the way back up.
struct ShownPlace<'p> {
    fd: OwnedFd,
    /// Of the directories between the exported one and this.
    attributes: Vec<Option<Attributes>>,
    to: &'p Path,
}

impl<'p> ShownPlace<'p> {
    fn new(root: &OwnedFd, to: &'p Path) -> Result<ShownPlace<'p>, FilesError> {
        let fd = root.try_clone().map_err(FilesError::host("open", to))?;
        Ok(ShownPlace {
            fd,
            attributes: Vec::new(),
            to,
        })
    }

    fn enter(&mut self, inner: OwnedFd, attributes: Option<Attributes>) {
        self.fd = inner;
        self.attributes.push(attributes);
    }

    fn up_to(&mut self, depth: usize) -> Result<(), FilesError> {
        self.leave_to(depth, |_, _| Ok(()))
    }

    /// Goes up, and calls `leave` for each directory that is left, from above it: it may forbid to
    /// be entered.
    fn leave_to(
        &mut self,
        depth: usize,
        leave: impl Fn(&OwnedFd, &Attributes) -> Result<(), FilesError>,
    ) -> Result<(), FilesError> {
        while self.attributes.len() > depth {
            let up = open_directory(&self.fd, c"..").map_err(host("open", self.to))?;
            let left = std::mem::replace(&mut self.fd, up);
            if let Some(Some(attributes)) = self.attributes.pop() {
                leave(&left, &attributes)?;
            }
        }
        Ok(())
    }
}

fn open_directory(at: &OwnedFd, name: &std::ffi::CStr) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

/// Gives the file made at `first`, below `root`, a further name.
fn link(
    root: &OwnedFd,
    first: &[u8],
    at: &OwnedFd,
    name: &CString,
) -> Result<(), rustix::io::Errno> {
    if first.len() <= MAX_HOST_PATH {
        return rustix::fs::linkat(root, first, at, name, AtFlags::empty());
    }
    let (last, _) = last_name(first);
    let above = first.strip_suffix(last.to_bytes()).unwrap_or(first);
    let mut directory = root.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
    for part in above.split(|byte| *byte == b'/').filter(|p| !p.is_empty()) {
        let part = CString::new(part).unwrap_or_default();
        directory = open_directory(&directory, &part)?;
    }
    rustix::fs::linkat(&directory, &last, at, name, AtFlags::empty())
}

fn owner(attributes: &Attributes) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (
        Some(rustix::fs::Uid::from_raw(attributes.uid)),
        Some(rustix::fs::Gid::from_raw(attributes.gid)),
    )
}

fn times(attributes: &Attributes) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: attributes.mtime.seconds,
            tv_nsec: i64::from(attributes.mtime.nanoseconds),
        },
    }
}
