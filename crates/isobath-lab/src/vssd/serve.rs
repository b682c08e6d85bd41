//! The process that serves a drive: FUSE's requests become operations of [`Files`].

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session,
    TimeOrNow, WriteFlags,
};

use super::files::{Files, Node};
use super::{OpenAs, PAGE_BYTES, Profile, VirtualDrive, fuse_directory};
use crate::LabError;

/// How long the kernel may cache attributes of files: they never change.
const TTL: Duration = Duration::from_secs(3600);
/// I/Os that the kernel may have in flight.
const MAX_IN_FLIGHT: u16 = 256;
/// Threads that take requests.
const THREADS: usize = 2;
/// Between two lines of the history.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// See [`super::serve`].
pub(super) fn serve(
    directory: &Path,
    open_as: OpenAs,
    profile: Option<Profile>,
    ready: impl FnOnce(),
) -> Result<(), LabError> {
    let drive = Arc::new(VirtualDrive::open(directory, open_as)?);
    drive.check_declared(open_as)?;
    drive.begin_use(profile.clone())?;
    let mount_point = fuse_directory(directory);
    let at_mount = || LabError::io("mount a FUSE file system at", &mount_point);
    let files = Files::new(drive.clone(), profile.as_ref());
    let files = Arc::new(files.map_err(LabError::io("serve", directory))?);
    // Memory that this process allocates must not wait for writes to the drive that it serves.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("isobath-vssd:{}", directory.display())),
        MountOption::Subtype("isobath-vssd".into()),
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.n_threads = Some(THREADS);
    let session = Session::new(Mounted(files.clone()), &mount_point, &config);
    let session = session.map_err(|error| {
        // Nothing was done yet.
        let _ = drive.end_use();
        at_mount()(error)
    })?;
    let history = History::start(files.clone(), directory)
        .map_err(LabError::io("write the history of", directory))?;
    ready();
    let served = session.run();
    drop(history);
    drive.end_use()?;
    served.map_err(at_mount())
}

struct Mounted(Arc<Files>);

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

impl Mounted {
    fn node(number: INodeNo) -> Result<Node, Errno> {
        Node::of_number(number.0).ok_or(Errno::ENOENT)
    }

    fn attributes(&self, node: Node) -> FileAttr {
        let size = self.0.size(node);
        FileAttr {
            ino: INodeNo(node as u64),
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: match node {
                Node::Root => FileType::Directory,
                _ => FileType::RegularFile,
            },
            perm: node.permissions(),
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: PAGE_BYTES as u32,
            flags: 0,
        }
    }
}

impl Filesystem for Mounted {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // The kernel's own limits are fine if it allows no more.
        let _ = config.set_max_background(MAX_IN_FLIGHT);
        let _ = config.set_congestion_threshold(MAX_IN_FLIGHT);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let node = match Mounted::node(parent) {
            Ok(Node::Root) => Files::lookup(name.as_bytes()).map_err(errno),
            _ => Err(Errno::ENOTDIR),
        };
        match node {
            Ok(node) => reply.entry(&TTL, &self.attributes(node), Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match Mounted::node(ino) {
            Ok(node) => reply.attr(&TTL, &self.attributes(node)),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let node = Mounted::node(ino).and_then(|node| self.0.resize(node, size).map_err(errno));
        match node {
            Ok(()) => self.getattr(req, ino, fh, reply),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = Mounted::node(ino).and_then(|node| self.0.open(node).map_err(errno));
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        match opened {
            Ok(number) => reply.opened(FileHandle(number), flags),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = Mounted::node(ino)
            .and_then(|node| self.0.read(node, fh.0, offset, size).map_err(errno));
        match read {
            Ok((data, done)) => self.0.complete(done, move || reply.data(&data)),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written =
            Mounted::node(ino).and_then(|node| self.0.write(node, offset, data).map_err(errno));
        // A request has at most `max_write` bytes.
        let len = data.len() as u32;
        match written {
            Ok(done) => self.0.complete(done, move || reply.written(len)),
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
        // A file was closed: that is no flush of the drive.
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
        self.0.release(fh.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match Mounted::node(ino).and_then(|node| self.0.fsync(node).map_err(errno)) {
            Ok(done) => self.0.complete(done, move || reply.ok()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let dots = [(Node::Root, "."), (Node::Root, "..")];
        let files = Node::FILES.map(|node| (node, node.name()));
        let entries = (1u64..).zip(dots.into_iter().chain(files));
        for (next, (node, name)) in entries.skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            let kind = self.attributes(node).kind;
            if reply.add(INodeNo(node as u64), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // The loop device takes the unit of its discards from the block size.
        let block = PAGE_BYTES as u32;
        reply.statfs(self.0.blocks(), 0, 0, 5, 0, block, 255, block);
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = Mounted::node(ino)
            .and_then(|node| self.0.fallocate(node, offset, length, mode).map_err(errno));
        match done {
            Ok(done) => self.0.complete(done, move || reply.ok()),
            Err(error) => reply.error(error),
        }
    }
}

/// Whether the history ends, and the bell that says so.
type Ends = (AtomicBool, Mutex<()>, Condvar);

/// Appends a line to `history.csv` for each second in which the drive's counters changed.
struct History {
    ends: Arc<Ends>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl History {
    fn start(files: Arc<Files>, directory: &Path) -> std::io::Result<History> {
        let mut options = std::fs::OpenOptions::new();
        let options = options.append(true).create(true);
        let mut file = options.open(directory.join("history.csv"))?;
        if file.metadata()?.len() == 0 {
            file.write_all(super::stats::HISTORY_HEADER.as_bytes())?;
        }
        let ends = Arc::new(Ends::default());
        let for_thread = ends.clone();
        let thread = std::thread::Builder::new()
            .name("vssd-history".into())
            .spawn(move || sample(&files, &mut file, &for_thread))?;
        Ok(History {
            ends,
            thread: Some(thread),
        })
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.ends.0.store(true, Ordering::Relaxed);
        self.ends.2.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
    }
}

/// Samples until it is stopped, and once more then.
fn sample(files: &Files, file: &mut std::fs::File, ends: &Ends) {
    let mut before = files.stats();
    loop {
        let is_last = ends.0.load(Ordering::Relaxed);
        if !is_last {
            let bell = ends.1.lock().unwrap_or_else(PoisonError::into_inner);
            drop(ends.2.wait_timeout(bell, SAMPLE_EVERY));
        }
        let now = files.stats();
        if now.life != before.life {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let line = now.history_line(&before, since.unwrap_or_default());
            // A full disk costs history, not the drive.
            let _ = file.write_all(line.as_bytes());
            before = now;
        }
        if is_last {
            return;
        }
    }
}
