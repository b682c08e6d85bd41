//! The plan of a measurement.

use std::path::PathBuf;

use clap::ValueEnum;
use isobath_io::{Backend, Io, Volume};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::raw::RawError;

/// The target of the I/Os.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawTarget {
    /// New files (or block devices that hold no data), one per path, striped; files are removed
    /// afterwards.
    Scratch(Vec<PathBuf>),
    /// Existing files or devices, as they are, for reading only.
    Files(Vec<PathBuf>),
    /// Memory: what the CPU alone allows.
    Memory,
    /// A volume that the caller has opened.
    #[serde(skip)]
    Volume(Volume),
}

/// How I/Os reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum RawBackend {
    /// The best that works.
    #[default]
    Auto,
    /// io_uring, interrupts.
    IoUring,
    /// io_uring that polls the drive.
    #[value(name = "iopoll")]
    IoUringIopoll,
    /// io_uring whose submissions a kernel thread takes.
    #[value(name = "sqpoll")]
    IoUringSqpoll,
    /// io_uring, both.
    #[value(name = "iopoll-sqpoll")]
    IoUringIopollSqpoll,
    /// Linux native asynchronous I/O.
    Libaio,
    /// Blocking calls; a thread's depth is 1.
    Pread,
}

impl From<RawBackend> for Backend {
    fn from(backend: RawBackend) -> Backend {
        let uring = |iopoll, sqpoll| Backend::IoUring { iopoll, sqpoll };
        match backend {
            RawBackend::Auto => Backend::Auto,
            RawBackend::IoUring => uring(false, false),
            RawBackend::IoUringIopoll => uring(true, false),
            RawBackend::IoUringSqpoll => uring(false, true),
            RawBackend::IoUringIopollSqpoll => uring(true, true),
            RawBackend::Libaio => Backend::Libaio,
            RawBackend::Pread => Backend::Pread,
        }
    }
}

/// Which threads use which drive: the three models of paper 001, Figure 10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoModel {
    /// Every thread has its own channel to all drives (Figure 10c): what the engine does.
    #[default]
    AllToAll,
    /// Threads send their I/Os to this many I/O threads and get messages back (Figure 10a). Those
    /// threads come on top of [`RawPlan::threads`].
    DedicatedThreads {
        /// I/O threads.
        io_threads: u32,
    },
    /// Thread *i* uses drive *i* mod *n* only (Figure 10b), as in microbenchmarks: no thread ever
    /// needs another drive, so the messages that a real system would need do not occur.
    Assigned,
}

/// One measurement. Every field has a default; see [`RawPlan::default`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct RawPlan {
    /// The target of the I/Os; by default a file `isobath-raw.scratch` in the current directory.
    pub target: RawTarget,
    /// Bytes that are used, from the start; `None`: all there are (1 GiB of a scratch target).
    /// Rounded down to pages.
    pub bytes: Option<u64>,
    /// Bytes on one drive before the next one follows, for targets of several files; default 2 MiB.
    pub stripe_unit_bytes: u32,
    /// Bytes of one I/O, a multiple of 4096 (512 if the drive allows); default 4096.
    pub page_bytes: u32,
    /// Share of reads among the I/Os in percent, the rest being writes; default 100.
    pub read_percent: u32,
    /// Share of randomly placed I/Os in percent, the rest being sequential; default 100.
    pub random_percent: u32,
    /// Sequential streams of a thread, which take turns; default 1. With one, the kernel merges
    /// neighbours that are submitted together into one larger I/O; with as many as I/Os are in
    /// flight, a thread does what that many threads with one I/O each do.
    pub streams: u32,
    /// Whether each write is to be durable when it completes; default false.
    pub durable: bool,
    /// Threads that issue I/Os; default 1.
    pub threads: u32,
    /// I/Os in flight per thread; default 128.
    pub depth: u32,
    /// Bytes of memory that the I/Os of all threads cycle through; default 0, a page for each I/O
    /// in flight, which the processor's caches hold. The pool of an engine does not fit there.
    pub buffer_bytes: u64,
    /// Completions that a thread waits for before it goes on (at most half of those in flight);
    /// default 16. Fewer cost more CPU per I/O.
    pub wait_min: u32,
    /// Which threads use which drive.
    pub model: IoModel,
    /// How I/Os reach the kernel.
    pub backend: RawBackend,
    /// By-pass the page cache (O_DIRECT; buffered with a note if that is refused); default true.
    pub direct: bool,
    /// Register buffers with the kernel if the backend can; default true.
    pub register_buffers: bool,
    /// Write the range in full and read it once in full before (scratch targets), or only read it
    /// once (others); default true.
    pub prepare: bool,
    /// Milliseconds before the measured window; default 500.
    pub warmup_ms: u32,
    /// Milliseconds of the measured window; default 5000.
    pub duration_ms: u32,
    /// Seed of the offsets; default 1.
    pub seed: u64,
}

impl Default for RawPlan {
    fn default() -> RawPlan {
        RawPlan {
            target: RawTarget::Scratch(vec!["isobath-raw.scratch".into()]),
            bytes: None,
            stripe_unit_bytes: 2 << 20,
            page_bytes: 4096,
            read_percent: 100,
            random_percent: 100,
            streams: 1,
            durable: false,
            threads: 1,
            depth: 128,
            buffer_bytes: 0,
            wait_min: 16,
            model: IoModel::AllToAll,
            backend: RawBackend::Auto,
            direct: true,
            register_buffers: true,
            prepare: true,
            warmup_ms: 500,
            duration_ms: 5000,
            seed: 1,
        }
    }
}

/// Bytes of a scratch target unless said otherwise.
pub(super) const SCRATCH_BYTES: u64 = 1 << 30;

impl RawPlan {
    /// Whether the target may be written.
    pub(super) fn writable(&self) -> bool {
        !matches!(self.target, RawTarget::Files(_))
    }

    /// Pages of memory of each thread: at least one for each I/O in flight.
    pub(super) fn buffers_per_thread(&self) -> u32 {
        let pages = self.buffer_bytes / u64::from(self.page_bytes) / u64::from(self.threads);
        u32::try_from(pages).unwrap_or(u32::MAX).max(self.depth)
    }

    /// Checks everything that can be checked without the target.
    pub(super) fn check_fields(&self) -> Result<(), RawError> {
        let io_threads = match self.model {
            IoModel::DedicatedThreads { io_threads } => io_threads,
            _ => 1,
        };
        between("read_percent", self.read_percent, 0, 100)?;
        between("random_percent", self.random_percent, 0, 100)?;
        between("threads", self.threads, 1, 1024)?;
        between("streams", self.streams, 1, 32768)?;
        between("io_threads", io_threads, 1, 256)?;
        between("depth", self.depth, 1, 32768)?;
        between("wait_min", self.wait_min, 1, 32768)?;
        between("duration_ms", self.duration_ms, 1, u32::MAX)?;
        let page = self.page_bytes;
        if page == 0 || !page.is_multiple_of(512) || u64::from(page) > Io::MAX_LEN {
            return Err(bad("page_bytes", "a multiple of 512 up to 1 GiB", page));
        }
        let most = machine::memory_bytes() / 2;
        // 0: unknown.
        if most > 0 && self.buffer_bytes > most {
            let must = format!("at most {most}, half of this machine's memory");
            return Err(bad("buffer_bytes", &must, self.buffer_bytes));
        }
        if self.read_percent < 100 && !self.writable() {
            let found = self.read_percent;
            return Err(bad("read_percent", "100 on existing files", found));
        }
        Ok(())
    }

    /// Checks the plan against its target; returns the bytes to use.
    pub(super) fn check(&self, volume: &Volume) -> Result<u64, RawError> {
        let (page, block) = (self.page_bytes, volume.logical_block());
        if !page.is_multiple_of(block) {
            let must = format!("a multiple of the drive's block, {block}");
            return Err(bad("page_bytes", &must, page));
        }
        let layout = volume.layout();
        let page = u64::from(page);
        let whole = self.bytes.unwrap_or(u64::MAX).min(volume.len());
        let mut region = whole / page * page;
        if self.model == IoModel::Assigned && layout.members > 1 {
            if self.threads < layout.members {
                let must = format!("at least {}, one per drive", layout.members);
                return Err(bad("threads", &must, self.threads));
            }
            if !layout.stripe_unit.is_multiple_of(page) {
                return Err(bad("page_bytes", "a divisor of the stripe unit", page));
            }
            let row = layout.stripe_unit * u64::from(layout.members);
            region = region / row * row;
        }
        if region < page * u64::from(self.threads) {
            let must = format!(
                "at least {} (a page per thread)",
                page * u64::from(self.threads)
            );
            return Err(bad("bytes", &must, region));
        }
        Ok(region)
    }
}

fn bad(field: &'static str, must: &str, found: impl std::fmt::Display) -> RawError {
    RawError::BadPlan {
        field,
        must: must.to_owned(),
        found: found.to_string(),
    }
}

fn between(field: &'static str, value: u32, low: u32, high: u32) -> Result<(), RawError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(bad(field, &format!("{low} to {high}"), value))
}
