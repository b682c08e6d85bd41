//! One file or block device of a volume: opening, locking, measuring, growing.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::aligned::AlignedBuf;
use crate::error::{IoError, IoErrorKind, VolumeError};
use crate::file::flushes::Flushes;
use crate::file::label::{LABEL_AREA, LABEL_BLOCK, Label, LabelError, VERSION};
use crate::file::lock::{BUSY_PAUSE, BUSY_TRIES, LOCKS_READS, parse_lock, tries_in, wait_for_lock};
use crate::file::{probe, sys};
use crate::input::open_to_read;
use crate::io::Op;
use crate::options::{Access, DirectMode, VolumeOptions};
use crate::words::dangling_target;

/// Alignment assumed for direct I/O if the system does not report one.
const SAFE_BLOCK: u32 = 4096;
/// Zeros written at once if the file system cannot allocate without writing.
const ZEROS: usize = 1 << 20;
/// Bytes at the start of a file that say what it is: the labels of a volume's member, the header of
/// a log.
const HEAD_BYTES: usize = 64 << 10;
/// The first bytes of both magics.
const MAGIC_START: &[u8] = b"ISOB";
/// Bytes at the start of a block device that must be zero before a volume is created on it: where
/// file systems, partition tables and volume managers have their signatures.
const SIGNATURE_AREA: usize = 1 << 20;
/// The byte that a writer locks, for readers beside it.
const WRITER: u64 = sys::LOCKS;
/// The byte that a reader beside a writer locks for the number 0; the next numbers follow.
const PINS: u64 = sys::LOCKS + 1;
/// Numbers that have a byte.
const PIN_NUMBERS: u64 = 1 << 61;

/// Retries of a blocking call after EAGAIN.
const RETRIES: u32 = 64;

/// A member's state before a volume was created on it.
enum Before {
    /// A member that exists already was opened.
    Member,
    /// Nothing: the file is new.
    Nothing,
    /// A file without a byte.
    Empty,
    /// A block device whose first bytes, so many, were zeros.
    Zeros(usize),
    /// A block device that began with this.
    Bytes(AlignedBuf),
}

pub(super) struct Member {
    pub(super) path: PathBuf,
    /// The same without symbolic links, wherever the process's working directory is by now.
    real: PathBuf,
    pub(super) file: File,
    /// Whether it is a block device, whose size is fixed.
    pub(super) block_device: bool,
    pub(super) direct: bool,
    /// Why O_DIRECT is not in use although it was wished for.
    pub(super) direct_refused: bool,
    /// Alignment for offsets, lengths and memory.
    pub(super) block: u32,
    flushes: Flushes,
    before: Before,
    /// Whether what creating the member has changed stays.
    kept: AtomicBool,
}

/// Whether `file` says that it is a file of a volume; a corrupt label counts.
///
/// # Errors
/// Those of reading it.
pub(crate) fn is_member(file: &File) -> io::Result<bool> {
    let mut area = [0; LABEL_AREA];
    let mut filled = 0;
    while filled < area.len() {
        match file.read_at(&mut area[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(!matches!(
        Label::read(&area[..filled]),
        Err(LabelError::Foreign)
    ))
}

/// Whether a file is what a creation leaves that was cut off: it begins as our files do, and has
/// nothing but zeros behind that. A store's superblocks and a log's records lie there, and are
/// written after the head; so nothing that was ever acknowledged is lost with such a file.
fn is_unfinished(path: &Path) -> bool {
    let looked = || -> io::Result<bool> {
        let file = File::open(path)?;
        let mut bytes = vec![0; ZEROS];
        let mut at = 0;
        loop {
            let n = match file.read_at(&mut bytes, at) {
                Ok(0) => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let head = HEAD_BYTES.saturating_sub(at as usize).min(n);
            let written = bytes[..head].iter().position(|byte| *byte != 0);
            if written.is_some_and(|first| !bytes[first..head].starts_with(MAGIC_START))
                || bytes[head..n].iter().any(|byte| *byte != 0)
            {
                return Ok(false);
            }
            at += n as u64;
        }
    };
    looked().unwrap_or(false)
}

/// Whether `path` is a file or block device of a store, as its first bytes say. What cannot be read
/// is none.
#[must_use]
pub fn is_store_file(path: &Path) -> bool {
    open_to_read(path).is_ok_and(|file| is_member(&file).unwrap_or(false))
}

impl Member {
    /// Whether `found` is this file or block device. A node of a block device has a number of its
    /// own; two nodes of one device have the same.
    pub(super) fn is(&self, found: &fs::Metadata) -> io::Result<bool> {
        let ours = self.file.metadata()?;
        let same_device =
            self.block_device && found.file_type().is_block_device() && ours.rdev() == found.rdev();
        Ok(same_device || (ours.dev(), ours.ino()) == (found.dev(), found.ino()))
    }

    /// How the file was displaced, if it is not where it was opened any more. A place that cannot
    /// be looked at gives no answer.
    pub(super) fn displaced(&self) -> Option<VolumeError> {
        let path = || self.path.clone();
        let ours = self.file.metadata().ok()?;
        match fs::metadata(&self.real) {
            Ok(found) if self.is(&found).ok()? => None,
            _ if ours.nlink() == 0 => Some(VolumeError::Removed { path: path() }),
            Ok(_) => Some(VolumeError::Moved { path: path() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Some(VolumeError::Moved { path: path() })
            }
            Err(_) => None,
        }
    }

    /// Opens an existing file or device and locks it.
    pub(super) fn open(path: &Path, options: &VolumeOptions) -> Result<Member, VolumeError> {
        let meta = fs::metadata(path).map_err(|e| os(path, "look up", e))?;
        let kind = meta.file_type();
        if kind.is_dir() {
            return Err(VolumeError::IsDirectory { path: path.into() });
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(VolumeError::NotAFile { path: path.into() });
        }
        let block_device = kind.is_block_device();
        let write = options.access == Access::ReadWrite;
        let mut open = OpenOptions::new();
        open.read(true).write(write);
        // On a block device O_EXCL claims it: a mounted one, or one of a volume manager, is
        // refused.
        let flags = if block_device && write {
            libc::O_EXCL
        } else {
            0
        };
        Member::finish(path, &mut open, flags, block_device, options)
    }

    /// Makes a new file, or opens a block device, and locks it.
    pub(super) fn create(path: &Path, options: &VolumeOptions) -> Result<Member, VolumeError> {
        match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => {
                let mut member = Member::open(path, options)?;
                member.before = member.device_before(options.overwrite_device)?;
                member.kept = AtomicBool::new(false);
                Ok(member)
            }
            Ok(meta) if meta.is_dir() => Err(VolumeError::IsDirectory { path: path.into() }),
            // As `mktemp` makes one.
            Ok(meta) if meta.is_file() && meta.len() == 0 => {
                let mut member = Member::open(path, options)?;
                // Another process may have made a volume of it before this one had the lock.
                if member.size()? > 0 {
                    return Err(VolumeError::AlreadyExists { path: path.into() });
                }
                member.before = Before::Empty;
                member.kept = AtomicBool::new(false);
                Ok(member)
            }
            Ok(meta) if options.over_unfinished && meta.is_file() && is_unfinished(path) => {
                let mut member = Member::open(path, options)?;
                // Another process may have gone on before this one had the lock.
                if !is_unfinished(path) {
                    return Err(VolumeError::AlreadyExists { path: path.into() });
                }
                let emptied = member.file.set_len(0);
                emptied.map_err(|e| os(path, "empty", e))?;
                member.before = Before::Empty;
                member.kept = AtomicBool::new(false);
                Ok(member)
            }
            Ok(_) => Err(VolumeError::AlreadyExists { path: path.into() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Creating through it is refused by the system, in other words.
                if dangling_target(path).is_some() {
                    return Err(VolumeError::missing(path));
                }
                let mut open = OpenOptions::new();
                open.read(true).write(true).create_new(true);
                let made = Member::finish(path, &mut open, 0, false, options);
                if !matches!(made, Ok(_) | Err(VolumeError::AlreadyExists { .. })) {
                    // Whatever is there now was made by this failed call.
                    let _ = fs::remove_file(path);
                }
                let mut member = made?;
                member.before = Before::Nothing;
                member.kept = AtomicBool::new(false);
                Ok(member)
            }
            Err(e) => Err(os(path, "look up", e)),
        }
    }

    fn finish(
        path: &Path,
        open: &mut OpenOptions,
        flags: i32,
        block_device: bool,
        options: &VolumeOptions,
    ) -> Result<Member, VolumeError> {
        let wanted = options.direct != DirectMode::Off;
        let direct_flag = if wanted { libc::O_DIRECT } else { 0 };
        open.custom_flags(flags | direct_flag);
        let mut opened = open.open(path);
        // A process that looks at a new device (the device manager, say) may claim it for a moment.
        for _ in 0..BUSY_TRIES.max(tries_in(options.lock_timeout)) {
            match &opened {
                Err(e) if block_device && e.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(BUSY_PAUSE);
                    opened = open.open(path);
                }
                _ => break,
            }
        }
        let (file, direct) = match opened {
            Err(e) if wanted && e.raw_os_error() == Some(libc::EINVAL) => {
                if options.direct == DirectMode::Required {
                    return Err(VolumeError::DirectRefused { path: path.into() });
                }
                // A refused open with O_CREAT may have made the file: it is ours, for `create_new`
                // came first.
                let again = open.create_new(false).custom_flags(flags).open(path);
                (again.map_err(|e| os(path, "open", e))?, false)
            }
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && block_device => {
                return Err(VolumeError::Locked {
                    path: path.into(),
                    pid: None,
                    writer: true,
                    advice: "unmount the device or detach it from its volume manager first",
                });
            }
            Err(e) => return Err(os(path, "open", e)),
            Ok(file) => (file, wanted),
        };
        let mut member = Member {
            path: path.to_owned(),
            real: path.canonicalize().map_err(|e| os(path, "look up", e))?,
            flushes: Flushes::of(path, &file, options.access == Access::ReadWrite),
            file,
            block_device,
            direct,
            direct_refused: wanted && !direct,
            block: 512,
            before: Before::Member,
            kept: AtomicBool::new(true),
        };
        member.lock(options.access, options.lock_timeout)?;
        if direct {
            member.block = member.direct_block()?;
            if member.is_direct_refused(options.access == Access::ReadWrite)? {
                if options.direct == DirectMode::Required {
                    return Err(VolumeError::DirectRefused { path: path.into() });
                }
                // Opened again: some file systems decide by the flags of the opening.
                drop(member);
                let buffered = options.clone().direct(DirectMode::Off);
                let open = open.create_new(false);
                member = Member::finish(path, open, flags, block_device, &buffered)?;
                member.direct_refused = true;
            }
        }
        Ok(member)
    }

    /// Whether the file system takes `O_DIRECT` for opening and refuses it for I/O, as some in user
    /// space and some versions of ZFS do. Asked by reading one block, or by writing one of a file
    /// that is empty; the file is locked.
    fn is_direct_refused(&self, may_write: bool) -> Result<bool, VolumeError> {
        let is_refusal = |e: io::Error| e.raw_os_error() == Some(libc::EINVAL);
        let mut block = AlignedBuf::new(SAFE_BLOCK as usize);
        let read = self.file.read_at(&mut block, 0);
        if self.block_device || !may_write || !matches!(read, Ok(0)) {
            return Ok(read.is_err_and(is_refusal));
        }
        let written = self.file.write_at(&block, 0);
        let emptied = self.file.set_len(0);
        emptied.map_err(|e| os(&self.path, "empty", e))?;
        Ok(written.is_err_and(is_refusal))
    }

    fn lock(&self, access: Access, timeout: Duration) -> Result<(), VolumeError> {
        if access == Access::Beside {
            return Ok(());
        }
        let write = access == Access::ReadWrite;
        let attempt = || match write {
            true => self.file.try_lock(),
            false => self.file.try_lock_shared(),
        };
        let result = wait_for_lock(attempt, || self.holder(), tries_in(timeout));
        match result {
            Ok(()) if write => {
                // For readers beside this writer, which must not try the lock itself: a writer
                // could meet that. If the file system has no such locks they learn less.
                let _ = sys::lock_range(&self.file, libc::F_WRLCK, WRITER, 1);
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => {
                let holder = self.holder();
                // A reader is refused by a writer only.
                let writer = holder.is_none_or(|(_, w)| w) || !write;
                Err(VolumeError::Locked {
                    path: self.path.clone(),
                    pid: holder.map(|(pid, _)| pid),
                    writer,
                    advice: match (write, writer) {
                        (true, true) => "close it there first; only one process may write",
                        (true, false) => "close it there first, or open it read-only",
                        (false, _) => {
                            "close it there first; readers may share a volume only with readers"
                        }
                    },
                })
            }
            Err(TryLockError::Error(e)) => Err(os(&self.path, "lock", e)),
        }
    }

    /// Whether another opening of the file may write, as far as the system reports.
    pub(super) fn has_writer(&self) -> bool {
        sys::is_range_locked(&self.file, libc::F_RDLCK, WRITER, 1).unwrap_or(false)
    }

    /// The process of that opening, as far as the system reports.
    pub(super) fn writer_pid(&self) -> Option<u32> {
        let (pid, _) = self.holder().filter(|(_, writes)| *writes)?;
        Some(pid)
    }

    /// Locks the byte that stands for `number`, and no other, for readers.
    pub(super) fn pin(&self, number: u64) -> bool {
        let all = sys::lock_range(&self.file, libc::F_UNLCK, PINS, PIN_NUMBERS);
        let pinned = number < PIN_NUMBERS
            && sys::lock_range(&self.file, libc::F_RDLCK, PINS + number, 1).is_ok();
        all.is_ok() && pinned
    }

    /// Whether another opening has pinned one of these numbers.
    pub(super) fn is_pinned(&self, numbers: RangeInclusive<u64>) -> bool {
        let last = (*numbers.end()).min(PIN_NUMBERS - 1);
        let Some(count) = (last + 1).checked_sub(*numbers.start()).filter(|n| *n > 0) else {
            return false;
        };
        let first = PINS + numbers.start();
        sys::is_range_locked(&self.file, libc::F_WRLCK, first, count).unwrap_or(false)
    }

    /// The process that holds the lock and whether it writes, as far as /proc/locks says. The
    /// kernel prints its device number in its own encoding, so the inode and the device's minor and
    /// major are compared in that form.
    fn holder(&self) -> Option<(u32, bool)> {
        let meta = self.file.metadata().ok()?;
        let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let place = format!("{major:02x}:{minor:02x}:{}", meta.ino());
        let named = |_| {
            let locks = fs::read_to_string("/proc/locks").ok()?;
            locks.lines().find_map(|line| parse_lock(line, &place))
        };
        (0..LOCKS_READS).find_map(named)
    }

    /// The alignment that direct I/O needs on this member.
    fn direct_block(&self) -> Result<u32, VolumeError> {
        let block = if self.block_device {
            sys::device_block(&self.file)
                .map_err(|e| os(&self.path, "ask for the block size of", e))?
        } else {
            match sys::direct_alignment(&self.file) {
                Some(0) | None => SAFE_BLOCK,
                Some(block) => block,
            }
        };
        match block {
            0..=512 => Ok(512),
            513..=4096 if block.is_power_of_two() => Ok(4096),
            _ => Err(VolumeError::BadOption {
                option: "logical block of the device",
                must: "a power of two up to 4096",
                found: u64::from(block),
            }),
        }
    }

    /// How a device begins that is to become a member. It must hold no data, unless that may be
    /// overwritten.
    fn device_before(&self, overwrite: bool) -> Result<Before, VolumeError> {
        let mut area = AlignedBuf::new(SIGNATURE_AREA);
        let n = self.read_start(&mut area)?;
        let what = match Label::read(&area[..n]) {
            _ if overwrite && n == area.len() => return Ok(Before::Bytes(area)),
            Err(LabelError::Foreign) if area[..n].iter().all(|b| *b == 0) => {
                return Ok(Before::Zeros(n));
            }
            _ if overwrite => return Ok(Before::Zeros(0)),
            Err(LabelError::Foreign) => "not zero at its start",
            _ => "an Isobath volume",
        };
        Err(VolumeError::DeviceInUse {
            path: self.path.clone(),
            what,
        })
    }

    /// Lets what creating the member has changed stay when it is closed.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// Whether it is a file that this call has made, or one that was empty; its name may not be
    /// durable.
    pub(super) fn is_new_file(&self) -> bool {
        matches!(self.before, Before::Nothing | Before::Empty)
    }

    /// Undoes the creation of the member: removes the file, or has the device begin as it did.
    /// Failing to do so leaves what a person can remove, and the error that led here matters more.
    pub(super) fn undo_creation(&self) {
        match &self.before {
            Before::Member => {}
            Before::Nothing => {
                // As the function says.
                let _ = fs::remove_file(&self.path);
            }
            Before::Empty => {
                // As the function says.
                let _ = self.file.set_len(0);
            }
            Before::Zeros(n) => {
                let zeros = AlignedBuf::new(*n);
                // As the function says.
                let _ = self.write_all(&zeros, 0);
                let _ = self.file.sync_data();
            }
            Before::Bytes(bytes) => {
                // As the function says.
                let _ = self.write_all(bytes, 0);
                let _ = self.file.sync_data();
            }
        }
    }

    /// Reads the first bytes, as many as there are.
    fn read_start(&self, buf: &mut AlignedBuf) -> Result<usize, VolumeError> {
        let mut done = 0;
        while done < buf.len() {
            let n = match self.file.read_at(&mut buf[done..], done as u64) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(os(&self.path, "read the label of", e)),
            };
            done += n;
            if n == 0 || !done.is_multiple_of(self.block as usize) {
                break;
            }
        }
        Ok(done)
    }

    /// Reads all of `buf`, whole blocks, at byte `at`.
    pub(super) fn read_all(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let len = buf.len();
        self.transfer(len, io::ErrorKind::UnexpectedEof, |done| {
            self.file.read_at(&mut buf[done..], at + done as u64)
        })
    }

    /// Writes all of `buf`, whole blocks, at byte `at`.
    pub(super) fn write_all(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.transfer(buf.len(), io::ErrorKind::WriteZero, |done| {
            self.file.write_at(&buf[done..], at + done as u64)
        })
    }

    /// Calls `step`, which transfers the rest from a byte on, until all `len` bytes are done.
    /// Of a short transfer only whole blocks count: the rest must begin aligned.
    fn transfer(
        &self,
        len: usize,
        ended: io::ErrorKind,
        mut step: impl FnMut(usize) -> io::Result<usize>,
    ) -> io::Result<()> {
        let block = self.block as usize;
        let (mut done, mut retries) = (0, 0);
        while done < len {
            match step(done) {
                Ok(n) if done + n >= len => break,
                Ok(n) if n < block => return Err(ended.into()),
                Ok(n) => done += n / block * block,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && retries < RETRIES => {
                    retries += 1
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(super) fn read_label(&self) -> Result<Label, VolumeError> {
        let mut area = AlignedBuf::new(LABEL_AREA);
        let n = self.read_start(&mut area)?;
        Label::read(&area[..n]).map_err(|fault| {
            let path = self.path.clone();
            match fault {
                LabelError::Foreign => VolumeError::Foreign { path },
                LabelError::Corrupt => VolumeError::LabelCorrupt { path },
                LabelError::Newer(found) => VolumeError::NewerFormat {
                    path,
                    found,
                    supported: VERSION,
                },
            }
        })
    }

    /// Writes both copies of a new member's label and makes them durable.
    pub(super) fn write_first_label(&self, label: &Label) -> Result<(), VolumeError> {
        let mut area = AlignedBuf::new(LABEL_AREA);
        // The copies differ in nothing, so either one alone is enough to open the volume.
        label.encode(&mut area[..LABEL_BLOCK]);
        label.encode(&mut area[LABEL_BLOCK..]);
        self.write_durably(&area, 0)
    }

    /// Writes the copy of the label that belongs to its generation and makes it durable.
    pub(super) fn write_label(&self, label: &Label) -> Result<(), VolumeError> {
        let mut block = AlignedBuf::new(LABEL_BLOCK);
        label.encode(&mut block);
        self.write_durably(&block, label.slot())
    }

    fn write_durably(&self, buf: &AlignedBuf, offset: u64) -> Result<(), VolumeError> {
        self.write_all(buf, offset)
            .map_err(|e| os(&self.path, "write the label of", e))?;
        Ok(self.sync()?)
    }

    /// Makes every completed write durable, blocking.
    pub(super) fn sync(&self) -> Result<(), IoError> {
        let synced = loop {
            match sys::sync(self.fd()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => break other,
            }
        };
        let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        let synced = synced.map_err(|e| IoErrorKind::from_errno(errno(e)));
        self.flushed(synced)
            .map_err(|kind| IoError::new(kind, Op::Flush, 0, 0).on(&self.path))
    }

    /// The outcome of a flush or a durable write, to which the system has answered `result`: an
    /// error also if it has reported that to another descriptor.
    pub(super) fn flushed(&self, result: Result<(), IoErrorKind>) -> Result<(), IoErrorKind> {
        self.flushes.judge(result)
    }

    /// Bytes of the file or device.
    pub(super) fn size(&self) -> Result<u64, VolumeError> {
        let size = if self.block_device {
            (&self.file).seek(SeekFrom::End(0))
        } else {
            self.file.metadata().map(|m| m.len())
        };
        size.map_err(|e| os(&self.path, "measure", e))
    }

    /// Makes the bytes from `from` to `to` exist with blocks behind them, durably. Gives back what
    /// it took when it fails.
    pub(super) fn extend(&self, from: u64, to: u64) -> Result<(), VolumeError> {
        if self.block_device || to <= from {
            return Ok(());
        }
        let result = match sys::allocate(&self.file, from, to - from) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => self.write_zeros(from, to),
            other => other,
        };
        result.map_err(|e| self.not_extended(to - from, e))?;
        // A flush that fails for lack of space is not about this range alone: writes of others may
        // be lost.
        Ok(self.sync()?)
    }

    fn not_extended(&self, needed: u64, error: io::Error) -> VolumeError {
        let path = self.path.clone();
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => VolumeError::NoSpace { path, needed },
            Some(libc::EFBIG) => VolumeError::FileTooLarge { path, needed },
            _ => os(&path, "extend", error),
        }
    }

    /// Gives the file's first `len` bytes the blocks that a sparse copy or
    /// [`punch`](Self::punch) has left out. A file system that allocates no blocks in advance is
    /// left alone.
    pub(super) fn fill_holes(&self, len: u64) -> Result<(), VolumeError> {
        if self.block_device {
            return Ok(());
        }
        let found = self.file.metadata();
        let found = found.map_err(|e| os(&self.path, "look up", e))?;
        // What is shorter than its label says stays as it is.
        let len = len.min(found.len());
        let missing = len.saturating_sub(512 * found.blocks());
        if missing == 0 {
            return Ok(());
        }
        match sys::fill_holes(&self.file, len, missing) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            other => other.map_err(|e| self.not_extended(missing, e)),
        }
    }

    /// Gives a range of the file back to the file system.
    pub(super) fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        if self.block_device {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        sys::punch(self.fd(), at, len)
    }

    fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let zeros = AlignedBuf::new(ZEROS);
        let mut at = from;
        while at < to {
            let n = (to - at).min(ZEROS as u64);
            self.write_all(&zeros[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }

    /// Gives back the file's bytes from `to` on, durably.
    pub(super) fn cut(&self, to: u64) -> Result<(), VolumeError> {
        if self.size()? > to {
            self.file
                .set_len(to)
                .map_err(|e| os(&self.path, "shorten", e))?;
        }
        Ok(self.sync()?)
    }

    /// Undoes [`extend`](Self::extend), as far as possible.
    pub(super) fn shrink_back(&self, to: u64) {
        if !self.block_device && self.size().is_ok_and(|size| size > to) {
            // Failing to give space back loses only that space.
            let _ = self.file.set_len(to);
        }
    }

    pub(super) fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if !*self.kept.get_mut() {
            self.undo_creation();
        }
        // Closing alone would not release the lock at once: a ring is taken down by the kernel in
        // the background, and holds its registered files until then. An error cannot be handled,
        // and closing releases the lock in the end.
        let _ = sys::lock_range(&self.file, libc::F_UNLCK, sys::LOCKS, 1 + PIN_NUMBERS);
        let _ = self.file.unlock();
    }
}

/// Turns an operating system's error about `path` into ours.
pub(super) fn os(path: &Path, action: &'static str, source: io::Error) -> VolumeError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOENT) => VolumeError::missing(&path),
        Some(libc::EEXIST) => VolumeError::AlreadyExists { path },
        Some(libc::EISDIR) => VolumeError::IsDirectory { path },
        Some(libc::EACCES | libc::EPERM) => VolumeError::PermissionDenied { path },
        Some(libc::EROFS) => VolumeError::ReadOnly { path },
        Some(libc::ENOSPC | libc::EDQUOT) => VolumeError::NoSpace {
            path,
            needed: LABEL_AREA as u64,
        },
        Some(libc::EFBIG) => VolumeError::FileTooLarge {
            path,
            needed: LABEL_AREA as u64,
        },
        Some(libc::EMFILE) => VolumeError::Os {
            path,
            action,
            source: io::Error::new(source.kind(), probe::explain(&source)),
        },
        _ => VolumeError::Os {
            path,
            action,
            source,
        },
    }
}
