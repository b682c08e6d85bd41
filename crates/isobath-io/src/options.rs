//! Options for creating and opening a volume, and the report of the result.

use std::time::Duration;

use crate::error::VolumeError;

/// The most files or devices a volume may be striped over.
pub const MAX_MEMBERS: usize = 256;

/// The way in which I/Os reach the kernel. Chosen at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backend {
    /// The best that works: io_uring (interrupt-driven), else libaio, else pread. Each refusal is
    /// reported once.
    #[default]
    Auto,
    /// io_uring. A refused ring is an error; a refused mode falls back to interrupts and is
    /// reported.
    IoUring {
        /// Poll the drive for completions instead of taking interrupts (`IORING_SETUP_IOPOLL`).
        /// Needs a drive with poll queues and O_DIRECT.
        iopoll: bool,
        /// Let a kernel thread submit (`IORING_SETUP_SQPOLL`): no system calls, but that thread
        /// takes a core.
        sqpoll: bool,
    },
    /// Linux native asynchronous I/O (`io_submit`), the library-free way.
    Libaio,
    /// Blocking `pread`/`pwrite`: one I/O at a time per channel.
    Pread,
}

/// Whether the page cache is by-passed (`O_DIRECT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectMode {
    /// O_DIRECT, or buffered I/O with one reported warning if the file system refuses.
    #[default]
    Auto,
    /// O_DIRECT, or [`VolumeError::DirectRefused`].
    Required,
    /// Buffered I/O.
    Off,
}

/// The access that the volume is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Exclusive: no other opener, reader or writer.
    #[default]
    ReadWrite,
    /// Shared with other readers; refused while a writer has the volume open.
    ReadOnly,
    /// Reading, beside other readers and beside a writer. The writer's writes are seen, in no
    /// order: the reader checks by what it reads whether that belongs together. See
    /// [`Volume::pin`](crate::Volume::pin).
    Beside,
}

/// Options of [`Volume::create`](crate::Volume::create) and [`Volume::open`](crate::Volume::open).
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    pub(crate) backend: Backend,
    pub(crate) direct: DirectMode,
    pub(crate) stripe_unit: u32,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) access: Access,
    pub(crate) overwrite_device: bool,
    pub(crate) over_unfinished: bool,
    pub(crate) lock_timeout: Duration,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            backend: Backend::Auto,
            direct: DirectMode::Auto,
            stripe_unit: Self::DEFAULT_STRIPE_UNIT,
            max_bytes: None,
            access: Access::ReadWrite,
            overwrite_device: false,
            over_unfinished: false,
            lock_timeout: Duration::ZERO,
        }
    }
}

impl VolumeOptions {
    /// 2 MiB: a whole number of the engine's segments. A segment then lies on one drive in one piece,
    /// so no I/O of the engine is split, and a segment that is freed releases an aligned range of one
    /// drive. Stripes alternate between the drives, and random pages spread evenly.
    pub const DEFAULT_STRIPE_UNIT: u32 = 2 << 20;

    /// Defaults: best backend, O_DIRECT where possible, read-write, stripe unit 2 MiB, no size
    /// limit.
    pub fn new() -> VolumeOptions {
        VolumeOptions::default()
    }

    /// The backend; default [`Backend::Auto`].
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Whether the page cache is by-passed; default [`DirectMode::Auto`].
    #[must_use]
    pub fn direct(mut self, direct: DirectMode) -> Self {
        self.direct = direct;
        self
    }

    /// Consecutive bytes on one member before the next one follows; 4 KiB to 1 GiB, a multiple of 4
    /// KiB; default 2 MiB. Used by `create`; `open` takes what the volume was created with.
    #[must_use]
    pub fn stripe_unit(mut self, bytes: u32) -> Self {
        self.stripe_unit = bytes;
        self
    }

    /// The most bytes to which the volume may grow; default none (the devices' and file systems'
    /// own size).
    #[must_use]
    pub fn max_bytes(mut self, bytes: Option<u64>) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Reading and writing, or reading only; default read-write.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Whether `create` may replace files of a volume, or of a log, in which nothing was ever
    /// written behind their labels and headers: what a creation leaves that was cut off. Default
    /// false.
    #[must_use]
    pub fn over_unfinished(mut self, allow: bool) -> Self {
        self.over_unfinished = allow;
        self
    }

    /// Whether `create` may overwrite a block device that holds data; default false.
    #[must_use]
    pub fn overwrite_device(mut self, allow: bool) -> Self {
        self.overwrite_device = allow;
        self
    }

    /// How long opening waits for each file that another process has open; default not at all. A
    /// holder that has ended is waited for anyway, for a few seconds.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`VolumeError::BadOption`] naming the first bad one.
    pub fn check(&self) -> Result<(), VolumeError> {
        let unit = self.stripe_unit;
        if !(4096..=1 << 30).contains(&unit) || !unit.is_multiple_of(4096) {
            return Err(VolumeError::BadOption {
                option: "stripe_unit",
                must: "a multiple of 4096 from 4096 to 1 GiB",
                found: u64::from(unit),
            });
        }
        Ok(())
    }
}

/// A backend that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendKind {
    /// io_uring with these modes.
    IoUring {
        /// Completions are polled from the drive.
        iopoll: bool,
        /// A kernel thread submits.
        sqpoll: bool,
    },
    /// Linux native asynchronous I/O.
    Libaio,
    /// Blocking calls.
    Pread,
    /// An in-process device of this name.
    InProcess(&'static str),
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BackendKind::IoUring { iopoll, sqpoll } => {
                f.write_str("io_uring")?;
                if *iopoll {
                    f.write_str(" iopoll")?;
                }
                if *sqpoll {
                    f.write_str(" sqpoll")?;
                }
                Ok(())
            }
            BackendKind::Libaio => f.write_str("libaio"),
            BackendKind::Pread => f.write_str("pread"),
            BackendKind::InProcess(name) => f.write_str(name),
        }
    }
}

/// The backend of a volume.
#[derive(Debug, Clone)]
pub struct BackendReport {
    /// The backend in use.
    pub backend: BackendKind,
    /// Whether the page cache is by-passed on every member.
    pub direct: bool,
    /// Refusals and replacements, each reason once, in sentences for a person.
    pub notes: Vec<String>,
}
