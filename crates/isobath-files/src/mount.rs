//! A tree of files as a file system of FUSE, for reading: a view, which nothing changes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, Request, Session, SessionACL,
};
use rustix::mount::UnmountFlags;

use crate::layout::{FileKind, FileTime, MAX_NAME_BYTES};
use crate::unmount::SOURCE_PREFIX;
use crate::{Entry, FileReader, FileView, FilesError, Stat};

/// How long the kernel may cache answers: a view does not change.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// Threads that take requests; each reads while another one waits for the drive.
const THREADS: usize = 4;
/// Entries of a directory that are read at a time.
const ENTRIES_AT_ONCE: usize = 1024;
/// How often the process looks whether it is asked to end.
const PATIENCE: Duration = Duration::from_millis(50);
/// The block size reported to programs, for their reads.
const READ_BYTES: u32 = 128 << 10;
/// Directories above a file that a message names.
const MAX_SHOWN: usize = 64;

/// How a tree is mounted.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// The store, for the kernel's list of mounts.
    pub source: String,
    /// Let other users in; what they may read their permissions say.
    pub allow_other: bool,
    /// Bytes that `statfs` reports: those of the store's files.
    pub bytes: u64,
}

/// Serves a view as a file system at `mount_point`, an empty directory, until it is unmounted or
/// `stops` says that it is to end: then it unmounts, and programs that use it get errors. `ready`
/// is called once the file system is there, `log` with each failed read.
///
/// # Errors
///
/// [`FilesError::Refused`] for a mount point that is none, [`FilesError::Host`] if FUSE refuses.
pub fn serve(
    view: FileView,
    mount_point: &Path,
    options: &MountOptions,
    log: impl Fn(&str) + Send + Sync + 'static,
    stops: impl Fn() -> bool,
    ready: impl FnOnce(),
) -> Result<(), FilesError> {
    check_mount_point(mount_point)?;
    let root = view.stat("/")?.inode;
    let mounted = Mounted {
        view,
        root,
        bytes: options.bytes,
        log: Box::new(log),
        names: Mutex::default(),
        files: Mutex::default(),
        directories: Mutex::default(),
        next_handle: AtomicU64::new(1),
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
        MountOption::DefaultPermissions,
        MountOption::FSName(source(&options.source)),
        MountOption::Subtype("isobath-files".into()),
    ];
    if options.allow_other {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(THREADS);
    let at_mount = || FilesError::host("mount files at", mount_point);
    let session = Session::new(mounted, mount_point, &config).map_err(at_mount())?;
    let served = std::thread::Builder::new()
        .name("files-mount".into())
        .spawn(move || session.run())
        .map_err(at_mount())?;
    ready();
    while !served.is_finished() {
        if stops() {
            end(mount_point);
        }
        std::thread::sleep(PATIENCE);
    }
    match served.join() {
        Ok(ended) => ended.map_err(at_mount()),
        Err(_) => Err(at_mount()(std::io::Error::other("the server panicked"))),
    }
}

/// A store's name in the kernel's list of mounts. `fusermount3` gets it among options, which commas
/// separate and backslashes escape.
fn source(store: &str) -> String {
    let store = store.replace(|c: char| c == ',' || c == '\\' || c.is_control(), "_");
    format!("{SOURCE_PREFIX}{store}")
}

/// Ends the connection with the kernel, whatever uses it.
fn end(mount_point: &Path) {
    if crate::unmount(mount_point).is_err() {
        // Programs are in it, which get errors from now on.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        if rustix::mount::unmount(mount_point, flags).is_err() {
            let mut helper = std::process::Command::new("fusermount3");
            // The mount is detached anyway once its process ends.
            let _ = helper.args(["-u", "-z"]).arg(mount_point).status();
        }
    }
}

/// A mount point is an empty directory where nothing is mounted. What a killed process has left
/// there is removed.
fn check_mount_point(path: &Path) -> Result<(), FilesError> {
    if crate::is_mounted(path) {
        match crate::unmount::is_dead(path) {
            true => crate::unmount(path)?,
            false => return Err(FilesError::refused(path, "files are mounted there already")),
        }
    }
    let found = std::fs::metadata(path).map_err(FilesError::host("open", path))?;
    if !found.is_dir() {
        return Err(FilesError::refused(path, "the mount point is no directory"));
    }
    let mut entries = std::fs::read_dir(path).map_err(FilesError::host("read", path))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(FilesError::refused(
            path,
            "the mount point is not empty; what it holds would be hidden",
        )),
    }
}

/// By what name the kernel has found an inode, and how often.
struct Found {
    directory: u64,
    name: Vec<u8>,
    lookups: u64,
}

/// Entries of a directory that is open: those from number `start` on.
struct Listing {
    directory: u64,
    start: u64,
    entries: Vec<Entry>,
}

struct Mounted {
    view: FileView,
    root: u64,
    bytes: u64,
    log: Box<dyn Fn(&str) + Send + Sync>,
    /// For messages; the kernel says when it forgets an inode.
    names: Mutex<HashMap<u64, Found>>,
    files: Mutex<HashMap<u64, Arc<Mutex<FileReader>>>>,
    directories: Mutex<HashMap<u64, Listing>>,
    next_handle: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
    }
}

fn time(time: FileTime) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds < 0 {
        true => UNIX_EPOCH.checked_sub(seconds),
        false => UNIX_EPOCH.checked_add(seconds),
    };
    whole
        .and_then(|at| at.checked_add(nanoseconds))
        .unwrap_or(UNIX_EPOCH)
}

impl Mounted {
    /// The root has number 1 for the kernel, whatever it is in the tree; everything else its own,
    /// which is never 1 then, for the first root was replaced.
    fn inode(&self, number: INodeNo) -> u64 {
        match number {
            INodeNo::ROOT => self.root,
            other => other.0,
        }
    }

    fn number(&self, inode: u64) -> INodeNo {
        match inode == self.root {
            true => INodeNo::ROOT,
            false => INodeNo(inode),
        }
    }

    /// A path for messages, as the kernel has come there.
    fn path(&self, mut inode: u64) -> Vec<u8> {
        let names = lock(&self.names);
        let mut path = Vec::new();
        for _ in 0..MAX_SHOWN {
            let Some(found) = names.get(&inode) else {
                break;
            };
            path = [&b"/"[..], &found.name, &path].concat();
            inode = found.directory;
        }
        path
    }

    /// The error number that the kernel gets; a failure of the store is logged too.
    fn errno(&self, error: &FilesError) -> Errno {
        match error {
            FilesError::NotFound { .. } => Errno::ENOENT,
            FilesError::NotADirectory { .. } => Errno::ENOTDIR,
            FilesError::IsADirectory { .. } => Errno::EISDIR,
            FilesError::NotALink { .. } | FilesError::NotAFile { .. } => Errno::EINVAL,
            FilesError::Engine(isobath::Error::ReaderOverrun { .. }) => {
                (self.log)(&format!(
                    "{error}; unmount and mount again to read on from a newer state"
                ));
                Errno::ESTALE
            }
            error => {
                (self.log)(&error.to_string());
                Errno::EIO
            }
        }
    }

    fn attributes(&self, stat: &Stat) -> FileAttr {
        let mtime = time(stat.attributes.mtime);
        FileAttr {
            ino: self.number(stat.inode),
            size: stat.size,
            blocks: stat.size.div_ceil(512),
            atime: mtime,
            mtime,
            ctime: mtime,
            crtime: mtime,
            kind: kind(stat.kind),
            perm: (stat.attributes.mode & 0o7777) as u16,
            nlink: stat.links,
            uid: stat.attributes.uid,
            gid: stat.attributes.gid,
            rdev: 0,
            blksize: READ_BYTES,
            flags: 0,
        }
    }

    fn stat(&self, inode: u64) -> Result<Stat, Errno> {
        let found = self.view.stat_inode(inode, self.path(inode));
        found.map_err(|error| self.errno(&error))
    }

    fn look_up(&self, directory: u64, name: &[u8]) -> Result<Stat, Errno> {
        if name.len() > MAX_NAME_BYTES {
            return Err(Errno::ENAMETOOLONG);
        }
        let entry = self.view.lookup(directory, name);
        let entry = entry.map_err(|error| self.errno(&error))?;
        let inode = entry.ok_or(Errno::ENOENT)?.inode;
        let mut names = lock(&self.names);
        let found = names.entry(inode).or_insert_with(|| Found {
            directory,
            name: name.to_vec(),
            lookups: 0,
        });
        found.lookups += 1;
        drop(names);
        self.stat(inode)
    }

    fn handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn read(&self, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let reader = lock(&self.files).get(&handle).cloned();
        let reader = reader.ok_or(Errno::EBADF)?;
        let mut bytes = vec![0; size as usize];
        let read = lock(&reader).read_at(offset, &mut bytes);
        let count = read.map_err(|error| self.errno(&error))?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Adds entries from number `offset` on; 0 and 1 are the directory itself and the one above.
    fn list(&self, handle: u64, offset: u64, reply: &mut ReplyDirectory) -> Result<(), Errno> {
        let mut directories = lock(&self.directories);
        let listing = directories.get_mut(&handle).ok_or(Errno::EBADF)?;
        let failed = |error: FilesError| self.errno(&error);
        let directory = listing.directory;
        for number in offset.. {
            let (inode, what, name) = match number {
                0 => (directory, FileKind::Directory, b".".to_vec()),
                1 => {
                    let above = self.view.parent_of(directory).map_err(failed)?;
                    (above, FileKind::Directory, b"..".to_vec())
                }
                _ => match listing.entry(&self.view, number - 2).map_err(failed)? {
                    Some(entry) => (entry.inode, entry.kind, entry.name.clone()),
                    None => break,
                },
            };
            let name = OsStr::from_bytes(&name);
            if reply.add(self.number(inode), number + 1, kind(what), name) {
                break;
            }
        }
        Ok(())
    }
}

impl Listing {
    /// The entry with a number from 0; those around it are read with it.
    fn entry(&mut self, view: &FileView, number: u64) -> Result<Option<&Entry>, FilesError> {
        if number < self.start {
            (self.start, self.entries) = (0, Vec::new());
        }
        while number - self.start >= self.entries.len() as u64 {
            let last = self.entries.last().map(|entry| entry.name.clone());
            if self.start > 0 && last.is_none() {
                return Ok(None);
            }
            let more = view.list_inode(self.directory, last.as_deref(), ENTRIES_AT_ONCE)?;
            if more.is_empty() {
                return Ok(None);
            }
            self.start += self.entries.len() as u64;
            self.entries = more;
        }
        Ok(self.entries.get((number - self.start) as usize))
    }
}

impl Filesystem for Mounted {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // The kernel's own limits are fine if it allows no more.
        let _ = config.set_max_readahead(1 << 20);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(self.inode(parent), name.as_bytes()) {
            Ok(stat) => reply.entry(&TTL, &self.attributes(&stat), Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let inode = self.inode(ino);
        let mut names = lock(&self.names);
        if let Some(found) = names.get_mut(&inode) {
            found.lookups = found.lookups.saturating_sub(nlookup);
            if found.lookups == 0 {
                names.remove(&inode);
            }
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.stat(self.inode(ino)) {
            Ok(stat) => reply.attr(&TTL, &self.attributes(&stat)),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let inode = self.inode(ino);
        match self.view.read_link_inode(inode, self.path(inode)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let inode = self.inode(ino);
        match self.view.open_inode(inode, self.path(inode)) {
            Ok(reader) => {
                let handle = self.handle();
                lock(&self.files).insert(handle, Arc::new(Mutex::new(reader)));
                // What the kernel has of the file stays true; all of it was verified when it was
                // read.
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match Mounted::read(self, fh.0, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing was written.
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.files).remove(&fh.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.handle();
        let listing = Listing {
            directory: self.inode(ino),
            start: 0,
            entries: Vec::new(),
        };
        lock(&self.directories).insert(handle, listing);
        let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
        reply.opened(FileHandle(handle), flags);
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.list(fh.0, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        lock(&self.directories).remove(&fh.0);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const BLOCK: u32 = 4096;
        let blocks = self.bytes.div_ceil(u64::from(BLOCK));
        reply.statfs(blocks, 0, 0, 0, 0, BLOCK, MAX_NAME_BYTES as u32, BLOCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_s_name_is_one_option() {
        assert_eq!(source("/my.iso"), "isobath-files:/my.iso");
        let odd = source("/my,allow_other\\,\n.iso");
        assert_eq!(odd, "isobath-files:/my_allow_other___.iso");
    }
}
