//! Typed errors: one enum for opening and growing volumes, one for single I/Os, one for channels.

use std::io;
use std::path::{Path, PathBuf};

use crate::device::LOG_OFFSET;
use crate::io::Op;
use crate::words::{ByteSize, dangling_target, missing_directory, two_sizes};

/// Why a volume could not be created, opened or grown. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// A file of the volume does not exist.
    #[error("{} does not exist: check the path, or create the store first", path.display())]
    NotFound {
        /// The missing file.
        path: PathBuf,
    },
    /// A symbolic link leads to nothing.
    #[error("{} is a symbolic link to {}, which does not exist: check the link, or remove it", path.display(), target.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// What it says that it leads to.
        target: PathBuf,
    },
    /// The directory that a file is in, or is to be in, does not exist.
    #[error("the directory {} does not exist, and so no {}: check the path, or make the directory first", directory.display(), path.display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
        /// The first directory on the way to it that is missing.
        directory: PathBuf,
    },
    /// A file to be created is already there.
    #[error("{} exists already: choose another path, or remove it first", path.display())]
    AlreadyExists {
        /// The file that is in the way.
        path: PathBuf,
    },
    /// A block device to be created on holds data.
    #[error("{} holds data ({what}): wipe the device first, or allow overwriting explicitly", path.display())]
    DeviceInUse {
        /// The device.
        path: PathBuf,
        /// Its contents.
        what: &'static str,
    },
    /// A directory was given where a file or block device belongs.
    #[error("{} is a directory: name a file inside it, or a block device", path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{} is neither a regular file nor a block device", path.display())]
    NotAFile {
        /// The object.
        path: PathBuf,
    },
    /// The operating system denies access.
    #[error("no permission to access {}: run as a user who may, or change its mode", path.display())]
    PermissionDenied {
        /// The file.
        path: PathBuf,
    },
    /// The medium or its mount is read-only, or the volume was opened read-only.
    #[error("{} is read-only: open it read-only, or put it on writable media", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// Another process has the volume open.
    #[error("{} is in use by {}: {advice}", path.display(), holder(pid, *writer))]
    Locked {
        /// The locked file.
        path: PathBuf,
        /// The process that holds the lock, if the system reports it.
        pid: Option<u32>,
        /// Whether the holder writes (else it only reads).
        writer: bool,
        /// The remedy.
        advice: &'static str,
    },
    /// The file is not part of an Isobath volume.
    #[error("{} is not an Isobath store: check the path (it was not changed)", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file begins like a volume but both copies of its label are corrupt.
    #[error("both labels of {} are corrupt: restore the file from a backup, or salvage it", path.display())]
    LabelCorrupt {
        /// The file.
        path: PathBuf,
    },
    /// Written by a newer version of Isobath.
    #[error("{} has volume format {found}, this program reads up to {supported}: use a newer Isobath", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version known here.
        supported: u32,
    },
    /// The file is shorter than its label says.
    #[error(
        "{} is truncated: it has {} and must have {}: restore it from a backup, or salvage it",
        path.display(), two_sizes(*found, *expected).0, two_sizes(*found, *expected).1
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes there must be.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// The devices are those of the volume, in another order.
    #[error("files in the wrong order: {} is number {found} of the store, but was given as number {given}; give them as {}", path.display(), list(right_order))]
    WrongOrder {
        /// The first misplaced file.
        path: PathBuf,
        /// Its position in the list given (from 0).
        given: u32,
        /// Its position in the volume (from 0).
        found: u32,
        /// All paths in the right order.
        right_order: Vec<PathBuf>,
    },
    /// Fewer or more devices than the volume has.
    #[error("the store of {} has {} in all, {given} given; missing: {}", path.display(), files(*expected), numbers(missing))]
    WrongCount {
        /// The first file given.
        path: PathBuf,
        /// Devices of the volume.
        expected: u32,
        /// Devices given.
        given: u32,
        /// The positions (from 0) for which no device was given.
        missing: Vec<u32>,
    },
    /// Devices of different volumes.
    #[error("{} and {} belong to different stores: give the files of one", a.display(), b.display())]
    DifferentVolumes {
        /// One file.
        a: PathBuf,
        /// Another file.
        b: PathBuf,
    },
    /// One device is named twice.
    #[error("{} and {} are the same file: name each once", a.display(), b.display())]
    Duplicate {
        /// First mention.
        a: PathBuf,
        /// Second mention.
        b: PathBuf,
    },
    /// The volume cannot take a log device.
    #[error("{} cannot become the log of this store: it has one already, or is not made of files", path.display())]
    LogRefused {
        /// The file that was to hold the log.
        path: PathBuf,
    },
    /// The file system or device has no space.
    #[error("no space on {} for {} more: free some, or move the store", path.display(), ByteSize(*needed))]
    NoSpace {
        /// The file that could not grow.
        path: PathBuf,
        /// Bytes that were asked for on it.
        needed: u64,
    },
    /// The system lets a file become no longer: a limit on the length of files (`RLIMIT_FSIZE`,
    /// `ulimit -f`), or what its file system knows.
    #[error("the system lets {} have no more bytes, of which it needs {}: raise the limit on the length of files (ulimit -f), or use another file system", path.display(), ByteSize(*needed))]
    FileTooLarge {
        /// The file that could not grow.
        path: PathBuf,
        /// Bytes that were asked for on it.
        needed: u64,
    },
    /// The volume may not become so long.
    #[error(
        "the store may have at most {} and needs {}: raise its limit, or delete data",
        two_sizes(*limit, *asked).0, two_sizes(*limit, *asked).1
    )]
    Limit {
        /// Bytes allowed (the option `max_bytes`, or the devices' own size).
        limit: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// A file was removed while it was in use; what it holds is gone once it is closed.
    #[error("{} was removed while it was in use, and what it holds is lost when it is closed: copy it from the open store (a backup), then stop", path.display())]
    Removed {
        /// Its former path.
        path: PathBuf,
    },
    /// A file was moved while it was in use, or another one took its place.
    #[error("{} was moved or replaced while it was in use: everything was written to the file that was opened, wherever it is now", path.display())]
    Moved {
        /// Its former path.
        path: PathBuf,
    },
    /// O_DIRECT was required and is refused.
    #[error("the file system of {} refuses O_DIRECT: allow buffered I/O, or use another file system", path.display())]
    DirectRefused {
        /// The file.
        path: PathBuf,
    },
    /// A backend was named explicitly and cannot be used.
    #[error("backend {backend} cannot be used: {reason}")]
    BackendRefused {
        /// Its name.
        backend: &'static str,
        /// Why.
        reason: String,
    },
    /// An option has a value that makes no sense.
    #[error("option {option} must be {must}, not {found}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// The required value.
        must: &'static str,
        /// What it is.
        found: u64,
    },
    /// The operating system failed in another way.
    #[error("cannot {action} {}: {source}", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Reading or writing the volume failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// An in-process device failed in a way of its own.
    #[error("{0}")]
    Device(String),
}

impl VolumeError {
    /// Why nothing is at `path`: its directory does not exist, it is a link that leads to nothing,
    /// or there is just nothing.
    pub fn missing(path: &Path) -> VolumeError {
        let directory = missing_directory(path).map(Path::to_owned);
        let path = path.to_owned();
        match (directory, dangling_target(&path)) {
            (Some(directory), _) => VolumeError::NoDirectory { directory, path },
            (None, Some(target)) => VolumeError::DanglingLink { path, target },
            (None, None) => VolumeError::NotFound { path },
        }
    }

    /// Whether there was merely no space to grow, in the file system or within a limit. After any
    /// other failure to grow, writes of others may be lost.
    pub fn is_no_space(&self) -> bool {
        matches!(
            self,
            VolumeError::NoSpace { .. }
                | VolumeError::FileTooLarge { .. }
                | VolumeError::Limit { .. }
        )
    }
}

fn holder(pid: &Option<u32>, writer: bool) -> String {
    let role = if writer { "a writer" } else { "a reader" };
    match pid {
        Some(pid) => format!("process {pid} ({role})"),
        None => format!("{role} in another process"),
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    names.join(" ")
}

fn files(count: u32) -> String {
    match count {
        1 => "one file".to_owned(),
        count => format!("{count} files"),
    }
}

fn numbers(missing: &[u32]) -> String {
    if missing.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = missing.iter().map(|m| format!("number {m}")).collect();
    names.join(", ")
}

/// The failure of one I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoErrorKind {
    /// `EIO` and its relatives: the device could not read or write the medium.
    Media,
    /// `ENOSPC`, `EDQUOT`: the file system could not give a block that a write needs.
    NoSpace,
    /// `EFBIG`: the file may not become so long (`RLIMIT_FSIZE`, or the file system's own limit).
    TooLarge,
    /// `EAGAIN`: the kernel had no resources, also after a bounded number of retries.
    Again,
    /// The device transferred fewer bytes, also after the rest was asked for again (a file that
    /// became shorter).
    Short {
        /// Bytes transferred.
        done: u32,
    },
    /// Beyond the volume's end.
    OutOfRange,
    /// Offset, length or memory is not a multiple of the logical block, or the length is zero or
    /// over 1 GiB.
    Misaligned,
    /// A write to a volume that was opened read-only.
    ReadOnly,
    /// The device cannot do this operation.
    Unsupported,
    /// Any other error number.
    Os(i32),
}

impl IoErrorKind {
    /// The kind that an operating system's error number stands for.
    pub fn from_errno(errno: i32) -> IoErrorKind {
        match errno {
            libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EREMOTEIO | libc::ETIMEDOUT => {
                IoErrorKind::Media
            }
            libc::ENOSPC | libc::EDQUOT => IoErrorKind::NoSpace,
            libc::EFBIG => IoErrorKind::TooLarge,
            libc::EAGAIN => IoErrorKind::Again,
            libc::EROFS | libc::EPERM | libc::EBADF => IoErrorKind::ReadOnly,
            libc::EOPNOTSUPP | libc::ENOSYS => IoErrorKind::Unsupported,
            other => IoErrorKind::Os(other),
        }
    }
}

/// One failed I/O: what it was, where, and why. Small (one pointer), so that completions are.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct IoError(Box<Detail>);

#[derive(Debug, Clone)]
struct Detail {
    kind: IoErrorKind,
    op: Op,
    offset: u64,
    len: u64,
    path: Option<PathBuf>,
}

impl IoError {
    /// An error of operation `op` on `len` bytes at logical `offset`.
    pub fn new(kind: IoErrorKind, op: Op, offset: u64, len: u64) -> IoError {
        IoError(Box::new(Detail {
            kind,
            op,
            offset,
            len,
            path: None,
        }))
    }

    /// The same error, naming the file or device on which it happened.
    #[must_use]
    pub fn on(mut self, path: &Path) -> IoError {
        self.0.path = Some(path.to_owned());
        self
    }

    /// The failure.
    pub fn kind(&self) -> IoErrorKind {
        self.0.kind
    }

    /// The failed operation.
    pub fn op(&self) -> Op {
        self.0.op
    }

    /// The logical byte offset of the failed I/O.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Bytes of the failed I/O.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether the failed I/O had no bytes (a flush).
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The file or device on which it happened, where known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }
}

impl std::fmt::Display for Detail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.op.name())?;
        if self.op != Op::Flush && self.offset >= LOG_OFFSET {
            let offset = self.offset - LOG_OFFSET;
            write!(f, " of {} bytes at offset {offset} of the log", self.len)?;
        } else if self.op != Op::Flush {
            write!(f, " of {} bytes at offset {}", self.len, self.offset)?;
        }
        if let Some(path) = &self.path {
            write!(f, " on {}", path.display())?;
        }
        write!(f, " failed: ")?;
        match self.kind {
            IoErrorKind::Media => write!(
                f,
                "the device reports a media error; check it and restore from a backup"
            ),
            IoErrorKind::NoSpace => write!(f, "no space left; free some and reopen"),
            IoErrorKind::TooLarge => write!(
                f,
                "the system lets the file become no longer; raise the limit on the length of files (ulimit -f) and reopen"
            ),
            IoErrorKind::Again => {
                write!(f, "the kernel is out of resources; lower the queue depth")
            }
            IoErrorKind::Short { done } => {
                write!(
                    f,
                    "only {done} bytes were transferred; is the file truncated?"
                )
            }
            IoErrorKind::OutOfRange => write!(f, "beyond the end of the store"),
            IoErrorKind::Misaligned => write!(
                f,
                "offset, length or memory address is not a multiple of the logical block, or the length is 0 or over 1 GiB"
            ),
            IoErrorKind::ReadOnly => write!(f, "the store is read-only"),
            IoErrorKind::Unsupported => write!(f, "the device does not support it"),
            IoErrorKind::Os(errno) => {
                write!(f, "{}", io::Error::from_raw_os_error(errno))
            }
        }
    }
}

/// The channel itself failed (not one I/O): the ring was refused or broke. I/Os in flight stay in
/// flight.
#[derive(Debug, thiserror::Error)]
#[error("{backend} channel: {action} failed: {source}")]
pub struct ChannelError {
    /// Name of the backend.
    pub backend: &'static str,
    /// The attempted action.
    pub action: &'static str,
    /// The system's error.
    pub source: io::Error,
}
