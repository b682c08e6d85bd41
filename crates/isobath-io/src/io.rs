//! A channel's requests and their results.
#![allow(unsafe_code)]

use crate::error::IoError;

/// The kind of an [`Io`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Reads `len` bytes at `offset` into `buf`.
    Read,
    /// Writes `len` bytes from `buf` at `offset`.
    Write,
    /// Writes the `len` memory ranges of the [`IoVec`] array at `buf`, one after another, at
    /// `offset`.
    WriteV,
    /// Makes every write whose completion has been reaped durable on all devices of the volume but
    /// its [log device](crate::LOG_OFFSET).
    Flush,
    /// Discards `len` bytes at `offset`, which are no longer needed (hole punching, TRIM). What
    /// they hold afterwards is undefined until they are written again: old bytes or zeros. On a
    /// file this gives the space back to the file system, so a later write there can fail with
    /// [`IoErrorKind::NoSpace`](crate::IoErrorKind).
    Discard,
}

impl Op {
    /// The lower-case name, for messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write | Op::WriteV => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
        }
    }
}

/// One range of memory of a vectored write; the same layout as `struct iovec`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct IoVec {
    /// First byte; aligned to the volume's logical block.
    pub buf: *const u8,
    /// Bytes; a multiple of the volume's logical block.
    pub len: usize,
}

impl IoVec {
    /// The bytes of all ranges, and whether every one is aligned to `block` and their total is a
    /// legal length.
    pub fn total(ranges: &[IoVec], block: u32) -> (u64, bool) {
        let bits = ranges.iter().fold(0, |b, r| b | r.buf.addr() | r.len);
        let total = ranges
            .iter()
            .fold(0u64, |t, r| t.saturating_add(r.len as u64));
        let aligned = bits.is_multiple_of(block as usize);
        (total, aligned && total > 0 && total <= Io::MAX_LEN)
    }
}

/// One operation, submitted to a [`Channel`](crate::Channel).
///
/// For reads and writes `offset`, `len` and the address `buf` are multiples of
/// [`Volume::logical_block`](crate::Volume::logical_block), and `offset + len` is at most the
/// volume's length; anything else is answered by a completion with
/// [`IoErrorKind::Misaligned`](crate::IoErrorKind) or
/// [`IoErrorKind::OutOfRange`](crate::IoErrorKind).
#[derive(Debug, Clone, Copy)]
pub struct Io {
    /// The operation.
    pub op: Op,
    /// Logical byte offset in the volume (unused by [`Op::Flush`]).
    pub offset: u64,
    /// Memory (unused by [`Op::Flush`] and [`Op::Discard`]); for [`Op::WriteV`] an array of
    /// [`IoVec`], which is copied by `submit`, while the memory that it names is not.
    pub buf: *mut u8,
    /// Bytes, at most 1 GiB for reads and writes; for [`Op::WriteV`] the number of [`IoVec`]s.
    pub len: u32,
    /// Returned unchanged in the [`Completion`].
    pub user_data: u64,
    /// A write that completes only when its data is durable (`RWF_DSYNC`: a FUA write where the
    /// drive has them, else a write and a flush).
    pub durable: bool,
}

impl Io {
    /// Reads `len` bytes at `offset` into `buf`.
    pub fn read(offset: u64, buf: *mut u8, len: u32, user_data: u64) -> Io {
        Io {
            op: Op::Read,
            offset,
            buf,
            len,
            user_data,
            durable: false,
        }
    }

    /// Writes `len` bytes from `buf` at `offset`.
    pub fn write(offset: u64, buf: *const u8, len: u32, user_data: u64) -> Io {
        Io {
            op: Op::Write,
            offset,
            buf: buf.cast_mut(),
            len,
            user_data,
            durable: false,
        }
    }

    /// Writes `count` memory ranges one after another at `offset`.
    pub fn write_v(offset: u64, ranges: *const IoVec, count: u32, user_data: u64) -> Io {
        Io {
            op: Op::WriteV,
            offset,
            buf: ranges.cast_mut().cast(),
            len: count,
            user_data,
            durable: false,
        }
    }

    /// Flushes every device of the volume but the log device.
    pub fn flush(user_data: u64) -> Io {
        Io {
            op: Op::Flush,
            offset: 0,
            buf: std::ptr::null_mut(),
            len: 0,
            user_data,
            durable: false,
        }
    }

    /// Discards `len` bytes at `offset`.
    pub fn discard(offset: u64, len: u32, user_data: u64) -> Io {
        Io {
            op: Op::Discard,
            offset,
            buf: std::ptr::null_mut(),
            len,
            user_data,
            durable: false,
        }
    }

    /// The longest read or write in bytes (1 GiB).
    pub const MAX_LEN: u64 = 1 << 30;

    /// The ranges of a vectored write, copied; empty for other operations.
    ///
    /// # Safety
    /// For [`Op::WriteV`], `buf` must point to `len` valid [`IoVec`]s.
    pub unsafe fn copy_ranges(&self) -> Vec<IoVec> {
        if self.op != Op::WriteV || self.len == 0 {
            return Vec::new();
        }
        let first: *const IoVec = self.buf.cast_const().cast();
        // SAFETY: by contract.
        unsafe { std::slice::from_raw_parts(first, self.len as usize) }.to_vec()
    }

    /// The same write, durable at its completion. Has no effect on other operations.
    #[must_use]
    pub fn durable(mut self) -> Io {
        self.durable = true;
        self
    }
}

/// The end of one [`Io`]. `Ok` means that *all* of its bytes were transferred.
#[derive(Debug, Clone)]
pub struct Completion {
    /// As given in the [`Io`].
    pub user_data: u64,
    /// Success, or what went wrong.
    pub result: Result<(), IoError>,
}

const _: () = assert!(size_of::<Completion>() == 16);
