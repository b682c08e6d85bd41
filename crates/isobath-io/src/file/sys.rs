//! The system calls that the standard library does not offer.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsRawFd, RawFd};

/// `BLKDISCARD`, `_IO(0x12, 119)`: not in the libc crate.
const BLKDISCARD: libc::Ioctl = 0x1277;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn off(value: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(value).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

/// Has the process go on where a file would become longer than it may make one (`RLIMIT_FSIZE`,
/// `ulimit -f`): the write or the growth fails, and says so. Without this the kernel's signal
/// `SIGXFSZ` ends a process that does not handle it.
///
/// For programs; a library does not change what signals do. A handler that the program has stays;
/// processes that it starts inherit that the signal is ignored.
pub fn ignore_file_size_signal() {
    // SAFETY: SIG_IGN and SIG_DFL are no functions; a handler that was there is put back as it was.
    unsafe {
        let before = libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        if before != libc::SIG_DFL && before != libc::SIG_IGN && before != libc::SIG_ERR {
            libc::signal(libc::SIGXFSZ, before);
        }
    }
}

/// From this many bytes on, a file system that has less is not asked for them.
const LARGE_BYTES: u64 = 1 << 30;

/// Allocates blocks for a range of a file and extends it.
///
/// A file system with too little space may give all that it has before it fails, and leave none to
/// other programs. So a large request is compared with the free space first. A smaller one may take
/// blocks that are kept for the superuser.
pub(super) fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    if len >= LARGE_BYTES && available_bytes(file).is_some_and(|available| available < len) {
        // No space helps if no file can be so long.
        let end = io::SeekFrom::Start(offset.saturating_add(len));
        let is_possible = (&mut &*file).seek(end).is_ok();
        let error = if is_possible {
            libc::ENOSPC
        } else {
            libc::EFBIG
        };
        return Err(io::Error::from_raw_os_error(error));
    }
    allocate_all(file, offset, len)
}

/// Allocates the blocks that a file's first `len` bytes lack, of which there are `missing` bytes.
pub(super) fn fill_holes(file: &File, len: u64, missing: u64) -> io::Result<()> {
    if missing >= LARGE_BYTES && available_bytes(file).is_some_and(|available| available < missing)
    {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    allocate_all(file, 0, len)
}

fn allocate_all(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (off(offset)?, off(len)?);
    loop {
        // SAFETY: no memory is passed.
        let result = check(unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, len) });
        match result {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            other => return other,
        }
    }
}

/// Free bytes of the file system that holds `file`; `None` if it does not say.
fn available_bytes(file: &File) -> Option<u64> {
    // SAFETY: all-zero is a valid `statvfs`.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the result goes to `stat`.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut stat) }).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// The mode of `fallocate` that discards.
pub(super) const PUNCH: libc::c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Gives a range of a file back to the file system.
pub(super) fn punch(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fallocate(fd, PUNCH, off(offset)?, off(len)?) })
}

/// Discards a range of a block device.
pub(super) fn discard_blocks(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from the pointer.
    check(unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) })
}

/// The logical block of a block device.
pub(super) fn device_block(file: &File) -> io::Result<u32> {
    let mut size: libc::c_int = 0;
    // SAFETY: BLKSSZGET writes one int to the pointer.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET, &raw mut size) })?;
    u32::try_from(size).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The alignment that direct I/O on a file needs (Linux 6.1 and newer): the larger one of memory's
/// and offsets'. `None` if the system does not report it; 0 if direct I/O is not supported.
pub(super) fn direct_alignment(file: &File) -> Option<u32> {
    // SAFETY: all-zero is a valid `statx`.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an empty path with AT_EMPTY_PATH names the descriptor; the result goes to `stat`.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut stat,
        )
    };
    if result != 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    if stat.stx_dio_offset_align == 0 {
        return Some(0);
    }
    Some(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align))
}

/// `preadv` or `pwritev2` of ranges of raw memory. Returns the bytes transferred.
///
/// # Safety
/// The iovecs must be valid, and their memory valid for the transfer.
pub(super) unsafe fn transfer(
    fd: RawFd,
    write: bool,
    vec: &[libc::iovec],
    offset: u64,
    durable: bool,
) -> io::Result<usize> {
    let offset = off(offset)?;
    let count = vec.len() as libc::c_int;
    // SAFETY: by contract.
    let n = unsafe {
        match (write, durable) {
            (false, _) => libc::preadv(fd, vec.as_ptr(), count, offset),
            (true, false) => libc::pwritev(fd, vec.as_ptr(), count, offset),
            (true, true) => libc::pwritev2(fd, vec.as_ptr(), count, offset, libc::RWF_DSYNC),
        }
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Whether the process with this id has ended: there is none, or its parent has only not asked how
/// it ended.
pub(super) fn is_gone(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return false;
    };
    // The state is the field behind the name, which is in parentheses and may contain any
    // character.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    if matches!(state, Some('Z' | 'X')) {
        return true;
    }
    // SAFETY: signal 0 only asks; no memory is passed.
    let asked = unsafe { libc::kill(pid, 0) };
    asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// `fdatasync`.
pub(super) fn sync(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fdatasync(fd) })
}

/// An offset at which no file has anything.
const BEYOND: libc::off64_t = 1 << 62;

/// Whether every write-back of the file has succeeded since this descriptor was opened or last
/// asked; the error number of one that has not. Writes nothing and waits for nothing. `Ok` where
/// the system does not report that.
pub(super) fn written_back(fd: RawFd) -> Result<(), libc::c_int> {
    // Waiting for a range also reports what went wrong anywhere in the file.
    // SAFETY: no memory is passed.
    let result = unsafe { libc::sync_file_range(fd, BEYOND, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(errno @ (libc::EIO | libc::ENOSPC | libc::EDQUOT)) => Err(errno),
        _ => Ok(()),
    }
}

/// Where a range of bytes that is locked begins: at an offset at which no file has anything.
pub(super) const LOCKS: u64 = 1 << 61;

fn range_lock(kind: libc::c_int, start: u64, len: u64) -> io::Result<libc::flock> {
    // SAFETY: all-zero is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (off(start)?, off(len)?);
    Ok(lock)
}

/// Locks (`F_RDLCK`, `F_WRLCK`) or unlocks (`F_UNLCK`) a range of bytes for this open file
/// description, without waiting.
pub(super) fn lock_range(file: &File, kind: libc::c_int, start: u64, len: u64) -> io::Result<()> {
    let lock = range_lock(kind, start, len)?;
    // SAFETY: F_OFD_SETLK reads one `flock` from the pointer.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })
}

/// Whether another open file description has a lock in the range that a lock of this kind would
/// have to wait for.
pub(super) fn is_range_locked(
    file: &File,
    kind: libc::c_int,
    start: u64,
    len: u64,
) -> io::Result<bool> {
    let mut lock = range_lock(kind, start, len)?;
    // SAFETY: F_OFD_GETLK reads one `flock` from the pointer and writes it.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_the_file_system_does_not_have_takes_nothing_from_it() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let available = available_bytes(&file).unwrap();
        let error = allocate(&file, 0, available + (4 << 30)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        let error = allocate(&file, 0, 1 << 62).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    }
}
