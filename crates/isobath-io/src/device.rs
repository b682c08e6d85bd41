//! The two traits: devices, and the channels that workers open to them.
#![allow(unsafe_code)]

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ChannelError, IoError, IoErrorKind, VolumeError};
use crate::io::{Completion, Io, Op};
use crate::options::BackendReport;
use crate::stats::ChannelStats;
use crate::waker::Waker;

/// Options of one channel.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChannelOptions {
    /// I/Os that may be in flight at once, 1 to 32768; default 128. More than the drive's own queue
    /// (often 256) makes the kernel block the submitter.
    pub depth: u32,
    /// Whether latencies are measured; default true. Costs two clock readings per system call.
    pub latencies: bool,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions {
            depth: 128,
            latencies: true,
        }
    }
}

impl ChannelOptions {
    /// Defaults with `depth` I/Os in flight.
    pub fn with_depth(depth: u32) -> ChannelOptions {
        ChannelOptions {
            depth,
            ..ChannelOptions::default()
        }
    }

    /// The largest depth.
    pub const MAX_DEPTH: u32 = 32768;

    /// Checks the values.
    ///
    /// # Errors
    /// [`VolumeError::BadOption`] for a depth of 0 or over [`MAX_DEPTH`](Self::MAX_DEPTH).
    pub fn check(&self) -> Result<(), VolumeError> {
        if self.depth == 0 || self.depth > Self::MAX_DEPTH {
            return Err(VolumeError::BadOption {
                option: "depth",
                must: "1 to 32768",
                found: u64::from(self.depth),
            });
        }
        Ok(())
    }
}

/// The channel has as many I/Os in flight as its depth allows: reap some and submit again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel's queue is full: reap completions first")]
pub struct QueueFull;

/// One worker's way to all devices of a volume. Belongs to the thread that opened it.
///
/// Dropping a channel waits until nothing is in flight any more, because the kernel still writes to
/// the buffers. I/Os that were queued and not handed over may or may not be executed then.
pub trait Channel {
    /// Queues one I/O; [`poll`](Self::poll) or [`wait`](Self::wait) hands it to the device. Every
    /// accepted I/O gets exactly one [`Completion`], also when its arguments are wrong.
    ///
    /// # Safety
    /// The memory of `io` must stay valid and unmoved until its completion was reaped (or the
    /// channel dropped), must not be written before it completes, and for a read must not be
    /// accessed at all. The [`IoVec`](crate::IoVec) array of a vectored write must be valid during
    /// this call only.
    ///
    /// # Errors
    /// [`QueueFull`] when [`depth`](Self::depth) I/Os are in flight; nothing was queued.
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull>;

    /// Hands everything queued to the devices in one system call and appends completions to
    /// `out`, without blocking (the blocking backend executes the I/Os here). Returns the number of
    /// completions appended. Makes no system call when nothing is queued and nothing has completed.
    ///
    /// # Errors
    /// [`ChannelError`] when the ring itself fails; completions already appended are valid.
    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError>;

    /// Like [`poll`](Self::poll), but sleeps until at least `min` completions have been appended
    /// (at most as many as are in flight are waited for), the [`Waker`] was used, or `timeout` has
    /// passed. With nothing in flight it sleeps until woken or the timeout. `min` 0 means 1. May
    /// return early with fewer completions, or none.
    ///
    /// A larger `min` saves system calls and context switches at the price of latency; on a busy
    /// channel a part of the I/Os in flight, such as an eighth, costs little. Deterministic
    /// in-process devices never sleep: their time is simulated.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    fn wait(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError>;

    /// Registers memory with the kernel, so that I/Os that lie within one region skip the pinning
    /// of their pages. Any address may still be used. Returns whether the regions are registered; a
    /// refusal (memory-lock limit) is noted in
    /// [`Volume::backend_report`](crate::Volume::backend_report) and I/O goes on without.
    ///
    /// Call it once, with nothing in flight; a second call replaces the regions.
    ///
    /// # Safety
    /// The regions must stay mapped until the channel is dropped.
    unsafe fn register_buffers(&mut self, regions: &[(*mut u8, usize)]) -> bool;

    /// Registers one more region of at most 1 GiB, whatever is in flight: for memory that comes
    /// into use as a cache grows. It takes the place of regions that
    /// [`register_buffers`](Self::register_buffers) registered. Neighbouring regions of equal
    /// length, in ascending order, are found fastest. Returns whether it is registered; after a
    /// refusal, which is noted as above, the next ones would be refused, too.
    ///
    /// # Safety
    /// As for [`register_buffers`](Self::register_buffers).
    unsafe fn register_more(&mut self, _region: (*mut u8, usize)) -> bool {
        false
    }

    /// A handle that ends this channel's [`wait`](Self::wait) from any thread.
    fn waker(&self) -> Waker;

    /// I/Os submitted and not yet reaped.
    fn in_flight(&self) -> u32;

    /// The most I/Os that may be in flight.
    fn depth(&self) -> u32;

    /// Counters since the channel was opened.
    fn stats(&self) -> &ChannelStats;
}

/// The logical byte at which a volume's log device begins, if it has one: beyond every byte that
/// data can have.
///
/// A log device is one more file or block device, not striped with the others, for what is flushed
/// often. Reads, writes and channels reach it like everything else; [`Op::Flush`](crate::Op::Flush)
/// leaves it alone, so that flushing data does not hold up the log nor the other way round. What is
/// written there becomes durable by [`Io::durable`](crate::Io::durable) or
/// [`Volume::sync`](crate::Volume::sync).
pub const LOG_OFFSET: u64 = 1 << 62;

/// How a volume's bytes are spread over its devices: consecutive stripe units lie on consecutive
/// members, in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Devices.
    pub members: u32,
    /// Bytes of a stripe unit; of no meaning with one member.
    pub stripe_unit: u64,
}

/// Storage behind a [`Volume`](crate::Volume): files and block devices, memory, or a simulation.
///
/// An in-process device uses no thread, clock or randomness other than a seed given to it, so that
/// whatever runs on it can be simulated deterministically; it decides the order of completions in
/// its own channels.
pub trait Device: Send + Sync {
    /// Bytes that can be addressed.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most bytes that [`grow`](Self::grow) may ever reach, if there is a limit.
    fn limit(&self) -> Option<u64>;

    /// The alignment in bytes that offsets, lengths and memory need: 512 or 4096.
    fn logical_block(&self) -> u32;

    /// Makes the volume at least `new_len` bytes long, with the space really allocated. Blocks; a
    /// smaller length changes nothing.
    ///
    /// # Errors
    /// [`VolumeError::Limit`], [`VolumeError::NoSpace`], [`VolumeError::ReadOnly`],
    /// [`VolumeError::BadOption`] when `new_len` is not a multiple of 4096, or a failure of the
    /// system.
    fn grow(&self, new_len: u64) -> Result<(), VolumeError>;

    /// Whether the first write to space that [`grow`](Self::grow) has allocated costs more than
    /// later ones: file systems note which blocks have been written, and a flush waits until that
    /// note is in their journal.
    fn first_writes_cost_more(&self) -> bool {
        false
    }

    /// Whether [`shrink`](Self::shrink) gives space back.
    fn can_shrink(&self) -> bool {
        false
    }

    /// Makes the volume `new_len` bytes long and gives the space behind that back; a larger length
    /// changes nothing, nor does any where [`can_shrink`](Self::can_shrink) says no. Blocks. No I/O
    /// behind `new_len` may be under way.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`], [`VolumeError::BadOption`] when `new_len` is not a multiple of
    /// 4096, or a failure of the system, after which the volume has the one length or the other
    /// when it is opened again.
    fn shrink(&self, _new_len: u64) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Gives a range back, as [`Op::Discard`] does: its bytes are old or zero
    /// afterwards. Blocks.
    ///
    /// # Errors
    /// [`IoErrorKind::Unsupported`] where that cannot be; as a
    /// completion would give.
    fn discard_at(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let kind = IoErrorKind::Unsupported;
        Err(IoError::new(kind, Op::Discard, offset, len))
    }

    /// Bytes of the log device, which are addressed from [`LOG_OFFSET`] on; 0 if there is none.
    fn log_len(&self) -> u64 {
        0
    }

    /// Makes `path`, a new file or an empty block device, the log device, with `bytes` bytes at
    /// least (a multiple of 4096). Called before the first channel is opened.
    ///
    /// # Errors
    /// Any [`VolumeError`]; a file made by the failed call is removed again.
    /// [`VolumeError::LogRefused`] if the device has one already, or cannot have one.
    fn create_log(&self, path: &Path, _bytes: u64) -> Result<(), VolumeError> {
        Err(VolumeError::LogRefused { path: path.into() })
    }

    /// Takes the existing file or block device `path` as log device; whether it is the right one is
    /// for the caller to find out. Called before the first channel is opened.
    ///
    /// # Errors
    /// As for [`create_log`](Self::create_log).
    fn open_log(&self, path: &Path) -> Result<(), VolumeError> {
        Err(VolumeError::LogRefused { path: path.into() })
    }

    /// Whether `file` is one of the files or block devices that this lies on, the log device
    /// included, under any name.
    fn holds(&self, _file: &std::fs::Metadata) -> bool {
        false
    }

    /// See [`Volume::displaced`](crate::Volume::displaced).
    fn displaced(&self) -> Option<VolumeError> {
        None
    }

    /// Undoes the creation of what this volume was created on: files are removed, block devices
    /// begin as they did. For a caller that cannot use a volume that it has just created; the
    /// volume must not be used afterwards.
    fn undo_creation(&self) {}

    /// See [`Volume::sees_pins`](crate::Volume::sees_pins).
    fn sees_pins(&self) -> bool {
        false
    }

    /// See [`Volume::pin`](crate::Volume::pin).
    fn pin(&self, _number: u64) -> bool {
        false
    }

    /// See [`Volume::is_pinned`](crate::Volume::is_pinned).
    fn is_pinned(&self, _numbers: RangeInclusive<u64>) -> bool {
        false
    }

    /// See [`Volume::refresh_len`](crate::Volume::refresh_len).
    ///
    /// # Errors
    /// Any of reading the labels.
    fn refresh_len(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// See [`Volume::has_writer`](crate::Volume::has_writer).
    fn has_writer(&self) -> bool {
        false
    }

    /// See [`Volume::writer_pid`](crate::Volume::writer_pid).
    fn writer_pid(&self) -> Option<u32> {
        None
    }

    /// Opens a channel for the calling thread.
    ///
    /// # Errors
    /// [`VolumeError::BadOption`] or [`VolumeError::BackendRefused`].
    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError>;

    /// Reads all of `buf` at `offset`, blocking. Any alignment.
    ///
    /// # Errors
    /// As a completion would give.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError>;

    /// Writes all of `buf` at `offset`, blocking. `offset` and the length are multiples of the
    /// logical block; the memory may have any alignment.
    ///
    /// # Errors
    /// As a completion would give.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError>;

    /// Makes every completed write durable, those to the log device included, blocking.
    ///
    /// # Errors
    /// As a completion would give.
    fn sync(&self) -> Result<(), IoError>;

    /// How the bytes are spread over devices.
    fn layout(&self) -> Layout {
        Layout {
            members: 1,
            stripe_unit: u64::MAX,
        }
    }

    /// The backend in use, and the refused ones.
    fn backend_report(&self) -> BackendReport;
}
