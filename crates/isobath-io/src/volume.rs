//! The handle that everything above uses.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::aligned::AlignedBuf;
use crate::device::{Channel, ChannelOptions, Device, Layout};
use crate::error::{IoError, VolumeError};
use crate::file::FileDevice;
use crate::memory::MemoryDevice;
use crate::options::{BackendReport, VolumeOptions};

/// One logical, growing range of bytes on one or several devices. Cheap to clone; all clones are
/// the same volume, which closes (and unlocks) when the last clone and the last channel are
/// dropped.
#[derive(Clone)]
pub struct Volume(Arc<dyn Device>);

impl Volume {
    /// Creates a volume of length 0 on `paths`: files that do not exist yet, or block devices that
    /// hold no data. Its logical bytes are striped over them in the order given.
    ///
    /// # Errors
    /// Any [`VolumeError`]; files made by the failed call are removed again.
    pub fn create(paths: &[PathBuf], options: &VolumeOptions) -> Result<Volume, VolumeError> {
        FileDevice::create(paths, options).map(|d| Volume(Arc::new(d)))
    }

    /// Opens the volume on `paths`, given in the order of its creation. For writing, files get all
    /// their blocks, of which a sparse copy or [`discard_at`](Self::discard_at) may have left some
    /// out: no later write fails for want of space.
    ///
    /// # Errors
    /// Any [`VolumeError`]; nothing was changed on disk. [`VolumeError::NoSpace`] if the file
    /// system has no room for those blocks.
    pub fn open(paths: &[PathBuf], options: &VolumeOptions) -> Result<Volume, VolumeError> {
        FileDevice::open(paths, options).map(|d| Volume(Arc::new(d)))
    }

    /// Opens any files or block devices for reading, as they are: without labels, all their bytes
    /// (as many as the shortest one has, if there are several) striped by the option
    /// `stripe_unit`. For measuring drives on existing files. Other readers may share them; a
    /// writer of a volume on them may not have it open.
    ///
    /// # Errors
    /// Any [`VolumeError`]; [`VolumeError::Truncated`] for files below 4 KiB.
    pub fn open_unlabelled(
        paths: &[PathBuf],
        options: &VolumeOptions,
    ) -> Result<Volume, VolumeError> {
        FileDevice::open_unlabelled(paths, options).map(|d| Volume(Arc::new(d)))
    }

    /// Opens a volume for reading whose files may be shorter than they were: with what
    /// [`open`](Self::open) says of each that is. What lies in the missing parts cannot be read.
    ///
    /// # Errors
    /// As for [`open`](Self::open), except for [`VolumeError::Truncated`].
    pub fn open_truncated(
        paths: &[PathBuf],
        options: &VolumeOptions,
    ) -> Result<(Volume, Vec<VolumeError>), VolumeError> {
        let (device, truncated) = FileDevice::open_truncated(paths, options)?;
        Ok((Volume(Arc::new(device)), truncated))
    }

    /// A volume in memory, zeroed, of `bytes` bytes (rounded up to 4096), that may grow to `max`
    /// bytes (`None`: as far as memory goes). Memory is taken when it is first written. Logical
    /// block 512.
    pub fn in_memory(bytes: u64, max: Option<u64>) -> Volume {
        Volume::from_device(Arc::new(MemoryDevice::new(bytes, max)))
    }

    /// A volume on an in-process device.
    pub fn from_device(device: Arc<dyn Device>) -> Volume {
        Volume(device)
    }

    /// The device behind it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }

    /// Bytes that can be addressed now.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The most bytes to which it can grow, if there is a limit: the option `max_bytes`, or the
    /// size of block devices.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit()
    }

    /// The alignment in bytes that offsets, lengths and memory need: 512 or 4096.
    pub fn logical_block(&self) -> u32 {
        self.0.logical_block()
    }

    /// Makes the volume at least `new_len` bytes long (a multiple of 4096). The space is really
    /// allocated on every device, so that later writes there do not run out of it. Blocks; callable
    /// from any thread; a smaller length changes nothing.
    ///
    /// # Errors
    /// [`VolumeError::Limit`], [`VolumeError::NoSpace`], [`VolumeError::ReadOnly`],
    /// [`VolumeError::BadOption`], or a failure of the system. The length is unchanged then.
    pub fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        self.0.grow(new_len)
    }

    /// Whether the first write to space that [`grow`](Self::grow) has allocated costs more than
    /// later ones: in files, whose file system notes in its journal which blocks have been written.
    pub fn first_writes_cost_more(&self) -> bool {
        self.0.first_writes_cost_more()
    }

    /// Whether [`shrink`](Self::shrink) gives space back: not on block devices.
    pub fn can_shrink(&self) -> bool {
        self.0.can_shrink()
    }

    /// Makes the volume `new_len` bytes long (a multiple of 4096) and gives the space behind that
    /// back to the file system. A crash leaves the one length or the other, never labels that speak
    /// of more than there is. A larger length changes nothing, nor does any where
    /// [`can_shrink`](Self::can_shrink) says no. Blocks; no I/O behind `new_len` may be under way.
    ///
    /// # Errors
    /// [`VolumeError::ReadOnly`], [`VolumeError::BadOption`], or a failure of the system.
    pub fn shrink(&self, new_len: u64) -> Result<(), VolumeError> {
        self.0.shrink(new_len)
    }

    /// Makes `path`, a file that does not exist yet or an empty block device, the log device of
    /// this volume, with `bytes` bytes at least (a multiple of 4096). Its bytes are addressed from
    /// [`LOG_OFFSET`](crate::LOG_OFFSET) on. Which volume it belongs to is not noted on it: that is
    /// for the caller to write and to verify. Call it before the first channel is opened.
    ///
    /// # Errors
    /// Any [`VolumeError`]: [`VolumeError::Duplicate`] for a file of the volume itself,
    /// [`VolumeError::NoSpace`] for a device that is too small, [`VolumeError::LogRefused`] where
    /// there is a log device already or this is no volume of files. A file made by the failed call
    /// is removed again.
    pub fn create_log(&self, path: &Path, bytes: u64) -> Result<(), VolumeError> {
        self.0.create_log(path, bytes)
    }

    /// Takes the existing file or block device `path` as log device, with the access that the
    /// volume was opened with.
    ///
    /// # Errors
    /// As for [`create_log`](Self::create_log); [`VolumeError::NotFound`], [`VolumeError::Locked`].
    pub fn open_log(&self, path: &Path) -> Result<(), VolumeError> {
        self.0.open_log(path)
    }

    /// Bytes of the log device; 0 if there is none.
    pub fn log_len(&self) -> u64 {
        self.0.log_len()
    }

    /// Whether `file` is one of the files or block devices that the volume lies on, its log device
    /// included, under any name.
    pub fn holds(&self, file: &std::fs::Metadata) -> bool {
        self.0.holds(file)
    }

    /// What happened to a file of the volume, its log's included, that is not where it was opened
    /// any more: [`VolumeError::Removed`] or [`VolumeError::Moved`]. Reads and writes go on in both
    /// cases.
    pub fn displaced(&self) -> Option<VolumeError> {
        self.0.displaced()
    }

    /// Undoes the creation of a volume that was just made and is of no use: its files and its log's
    /// are removed, block devices begin with what they held before. Does nothing to a volume that
    /// was opened. No clone may be used afterwards.
    pub fn undo_creation(&self) {
        self.0.undo_creation();
    }

    /// Whether this volume lies where other openings of it may [pin](Self::pin) what they read.
    pub fn sees_pins(&self) -> bool {
        self.0.sees_pins()
    }

    /// Notes for a writer that this opening, beside it, reads what the number stands for: a version
    /// of what is on the volume. Another number takes the place of an earlier one. The note goes
    /// with the opening, also if its process is killed. Answers whether there is such a note
    /// now: in-process devices have none, nor has a file system without locks.
    pub fn pin(&self, number: u64) -> bool {
        self.0.pin(number)
    }

    /// Whether another opening has [pinned](Self::pin) one of these numbers, which are below 2^61.
    pub fn is_pinned(&self, numbers: RangeInclusive<u64>) -> bool {
        self.0.is_pinned(numbers)
    }

    /// Takes over the length that a writer in another process has given the volume since this one
    /// was opened for reading.
    ///
    /// # Errors
    /// What is wrong with the labels, as for [`open`](Self::open); the length is unchanged then.
    pub fn refresh_len(&self) -> Result<(), VolumeError> {
        self.0.refresh_len()
    }

    /// Whether another opening may write, as far as the system reports.
    pub fn has_writer(&self) -> bool {
        self.0.has_writer()
    }

    /// The process of the opening that may write, as far as the system reports.
    pub fn writer_pid(&self) -> Option<u32> {
        self.0.writer_pid()
    }

    /// Opens a channel for the calling thread, which alone may use it. If the backend was not
    /// asked for by name and refuses the channel, the next one serves it
    /// ([`backend_report`](Self::backend_report) says so).
    ///
    /// # Errors
    /// [`VolumeError::BadOption`] or [`VolumeError::BackendRefused`].
    pub fn channel(&self, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        options.check()?;
        Arc::clone(&self.0).channel(options)
    }

    /// Reads all of `buf` at `offset`, blocking. Any alignment.
    ///
    /// # Errors
    /// As a completion would give.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.0.read_at(offset, buf)
    }

    /// Writes all of `buf` at `offset`, blocking. `offset` and the length are multiples of the
    /// logical block; the memory may have any alignment.
    ///
    /// # Errors
    /// As a completion would give.
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.0.write_at(offset, buf)
    }

    /// Writes `bytes` zeros from `offset` on, both multiples of
    /// [`logical_block`](Self::logical_block). Blocks.
    ///
    /// # Errors
    /// The first write that failed; zeros may lie before it.
    pub fn write_zeros(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        const AT_ONCE: u64 = 1 << 20;
        let zeros = AlignedBuf::new(AT_ONCE.min(bytes.max(1)) as usize);
        let mut done = 0;
        while done < bytes {
            let count = (bytes - done).min(AT_ONCE);
            self.write_at(offset + done, &zeros[..count as usize])?;
            done += count;
        }
        Ok(())
    }

    /// Gives `len` bytes from `offset` on, both multiples of
    /// [`logical_block`](Self::logical_block), back to the file system: they are old or zero
    /// afterwards, and [`open`](Self::open) for writing finds room for them again. Blocks.
    ///
    /// # Errors
    /// [`IoErrorKind::Unsupported`](crate::IoErrorKind::Unsupported) where that cannot be, as on
    /// block devices; as a completion would give.
    pub fn discard_at(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.0.discard_at(offset, len)
    }

    /// Makes every completed write durable, those to the log device included, blocking.
    ///
    /// # Errors
    /// As a completion would give.
    pub fn sync(&self) -> Result<(), IoError> {
        self.0.sync()
    }

    /// How the bytes are spread over devices.
    pub fn layout(&self) -> Layout {
        self.0.layout()
    }

    /// The backend in use, whether the page cache is by-passed, and the refused backends.
    pub fn backend_report(&self) -> BackendReport {
        self.0.backend_report()
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let report = self.backend_report();
        write!(f, "Volume({} bytes on {})", self.len(), report.backend)
    }
}
