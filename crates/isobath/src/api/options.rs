//! How a store is created and opened.

mod memory;
#[cfg(feature = "profile")]
mod profile;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use isobath_flash::policy::{CleaningPolicy, PolicyKind};
use isobath_io::{Access, Backend, ByteSize, DirectMode, VolumeOptions};

use crate::buffer::FRAME_COST;
use crate::checkpoint::Superblock;
use crate::error::OpenError;
use crate::log::{Log, MAX_TRANSACTION_BYTES, MIN_AREA_BYTES, TRANSACTION_LIMIT};
use crate::page::PAGE_SIZE;
use crate::shared::Durability;
use crate::shared::{
    Config, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SEGMENT_BYTES, SegmentSize, segment_bytes_for,
};
use memory::Memory;

/// Frames that a pool needs at least, and more for each worker.
const MIN_FRAMES: u64 = 128;
const MIN_FRAMES_PER_WORKER: u64 = 64;
/// And for each task: a task holds up to two frames reserved for a split while
/// it waits for the frame of a page that it has to read. Were there no frame
/// beyond those, all tasks would wait for each other. The rest is for pages that
/// tasks make dirty after all of them saw that there was still room for more.
const FRAMES_PER_TASK: u64 = 4;
/// Part of the pool's size that the version store may take unless an option says
/// otherwise.
const VERSION_SHARE: u64 = 16;
/// Share of the memory that a pool takes by default: one part in this many.
const MEMORY_SHARE: u64 = 4;
/// Volumes with a lower limit are cleaned by [`PolicyKind::Mdc`] by default:
/// [`PolicyKind::LifeTable`] keeps more segments open, up to a 32nd of them, which is less room for
/// data.
const LIFE_TABLE_BYTES: u64 = 1 << 30;
/// Address space of a task's stack, which is also the least; memory is used only as it is touched.
const STACK_BYTES: usize = 256 << 10;
const MAX_STACK_BYTES: usize = 1 << 30;
/// Least that a transaction may be limited to.
const MIN_TRANSACTION_BYTES: u64 = 64 << 10;
/// Most bytes of a log.
const MAX_LOG_BYTES: u64 = 1 << 40;
/// Most workers that a store can have.
const MAX_WORKERS: usize = 256;
/// Most tasks and I/Os in flight that a worker can have.
const MAX_TASKS: usize = 4096;
const MAX_DEPTH: u32 = 4096;

/// How a store is created or opened. Every option has a default that fits the
/// machine; sizes are bytes.
///
/// ```
/// # fn main() -> Result<(), isobath::Error> {
/// let options = isobath::Options::new().pool_bytes(16 << 20).workers(1);
/// let store = isobath::Store::in_memory(&options)?;
/// # store.close()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    pool_bytes: u64,
    workers: usize,
    tasks: usize,
    stack_bytes: usize,
    transaction_bytes: u64,
    depth: u32,
    /// By default as the volume's limit is.
    segment_bytes: Option<u32>,
    /// Bytes that a new store is given at once, as far as that is known.
    expected_bytes: u64,
    /// By default what the store says.
    volume_limit: VolumeLimit,
    fill_factor: f64,
    read_only: bool,
    open_timeout: Duration,
    backend: Backend,
    direct: DirectMode,
    stripe_unit: u32,
    /// `None` is the default.
    policy: Option<PolicyKind>,
    version_store_bytes: Option<u64>,
    durability: Durability,
    /// By default as the pool is.
    log_bytes: Option<u64>,
    pub(super) log_path: Option<PathBuf>,
    pub(crate) on_recovery: RecoveryListener,
    publish_stats: bool,
    overlays: bool,
}

/// How far a volume may grow.
#[derive(Debug, Clone, Copy)]
enum VolumeLimit {
    /// As the store says, which is without a limit for a new one.
    AsStored,
    /// Up to so many bytes, or without a limit, from now on.
    Given(Option<u64>),
}

/// The listener that is told how a recovery progresses.
#[derive(Clone, Default)]
pub(crate) struct RecoveryListener(pub(crate) Option<Arc<dyn Fn(u64, u64) + Send + Sync>>);

impl std::fmt::Debug for RecoveryListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "set" } else { "none" })
    }
}

impl Default for Options {
    fn default() -> Self {
        Options::new()
    }
}

impl Options {
    /// The defaults: a quarter of the memory that the machine has and that the
    /// process's control groups allow as pool, one worker per core, 64 tasks and an
    /// I/O depth of 64 each, 256 KiB segments, a volume that grows without limit,
    /// cleaned beyond a fill factor of 0.8.
    #[must_use]
    pub fn new() -> Options {
        Options {
            pool_bytes: Memory::there_is().bytes / MEMORY_SHARE,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            tasks: 64,
            stack_bytes: STACK_BYTES,
            transaction_bytes: MAX_TRANSACTION_BYTES,
            depth: 64,
            segment_bytes: None,
            expected_bytes: 0,
            volume_limit: VolumeLimit::AsStored,
            fill_factor: 0.8,
            read_only: false,
            open_timeout: Duration::ZERO,
            backend: Backend::Auto,
            direct: DirectMode::Auto,
            stripe_unit: VolumeOptions::DEFAULT_STRIPE_UNIT,
            policy: None,
            version_store_bytes: None,
            durability: Durability::Synced,
            log_bytes: None,
            log_path: None,
            on_recovery: RecoveryListener::default(),
            publish_stats: true,
            overlays: true,
        }
    }

    /// Memory for the buffer pool, in bytes: frames of 4 KiB with 64 bytes of
    /// header each, and the version store. It is a limit: memory is taken as pages
    /// come in, and given back when the store is closed. Beside it a store takes 8
    /// bytes per page of data, 12 with cleaning policies that keep a history per page, and at most
    /// 64 MiB.
    #[must_use]
    pub fn pool_bytes(mut self, bytes: u64) -> Options {
        self.pool_bytes = bytes;
        self
    }

    /// As [`Options::pool_bytes`], but no more than a quarter of the memory that there is, which is
    /// the default: for programs whose own default has to fit into a small container, too.
    #[must_use]
    pub fn pool_bytes_at_most(self, bytes: u64) -> Options {
        self.pool_of_memory(bytes, Memory::there_is().bytes)
    }

    fn pool_of_memory(self, most: u64, memory: u64) -> Options {
        self.pool_bytes(most.min(memory / MEMORY_SHARE))
    }

    /// Number of worker threads, 1 to 256; by default one per core.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Options {
        self.workers = workers;
        self
    }

    /// Most tasks that a worker runs at a time; each can wait for one I/O.
    /// Further work waits in a queue. By default 64; fewer in a small pool, which
    /// needs four frames for each.
    #[must_use]
    pub fn tasks_per_worker(mut self, tasks: usize) -> Options {
        self.tasks = tasks;
        self
    }

    /// Bytes of a task's stack, 256 KiB (the default) to 1 GiB: for work given to
    /// [`Store::spawn`](crate::Store::spawn) and the closures of transactions that runs in tasks. A
    /// task that needs more ends the process, which says so. Stacks are address space; memory is
    /// used as far as a task has touched its stack, and kept for the next task.
    #[must_use]
    pub fn task_stack_bytes(mut self, bytes: usize) -> Options {
        self.stack_bytes = bytes;
        self
    }

    /// Bytes of one transaction's changes from which on they go to a temporary file, 64 KiB to 16
    /// MiB: keys and values, and 17 for each; values in extents do not count. A commit of more has
    /// its trees to itself. By default 4 MiB
    /// ([`MAX_TRANSACTION_BYTES`](crate::MAX_TRANSACTION_BYTES)). A transaction may also take a
    /// 32nd of what the log may grow to: this option lets a log whose size was not given grow so
    /// far; where [`Options::log_bytes`] was given, give it 32 times as much. More than the default
    /// takes four times as much memory.
    #[must_use]
    pub fn transaction_bytes(mut self, bytes: u64) -> Options {
        self.transaction_bytes = bytes;
        self
    }

    /// Most I/Os that a worker keeps in flight. By default 64: more than a
    /// drive's queue takes makes submission block.
    #[must_use]
    pub fn depth_per_worker(mut self, depth: u32) -> Options {
        self.depth = depth;
        self
    }

    /// Bytes of a segment, the unit of allocation and cleaning: a multiple of
    /// 4096 from 64 KiB to 64 MiB. Fixed when the store is created; by default a 512th of the
    /// volume's limit, at most 2 MiB: small segments leave more of a small volume for data. Without
    /// a limit 256 KiB, so that a small store has a small file, or up to 2 MiB if
    /// [`Options::expected_bytes`] are many.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u32) -> Options {
        self.segment_bytes = Some(bytes);
        self
    }

    /// About how many bytes of keys and values will be stored at once, which a new store may be
    /// laid out for: without a limit its segments are a 512th of that, from 256 KiB to 2 MiB. By
    /// default nothing is known. Says nothing to a store that exists.
    #[must_use]
    pub fn expected_bytes(mut self, bytes: u64) -> Options {
        self.expected_bytes = bytes;
        self
    }

    /// Most bytes that the volume may grow to, rounded down to whole pages; `None` as far as the
    /// file system goes, which is a new store's default. The store keeps its limit, in whole
    /// segments, until it is opened with another one; what it has beyond a lower one stays. In
    /// front of the volume each of its files has 64 KiB for its labels: a file is as much longer
    /// than its part of the limit.
    #[must_use]
    pub fn volume_limit_bytes(mut self, bytes: Option<u64>) -> Options {
        self.volume_limit = VolumeLimit::Given(bytes);
        self
    }

    /// Share of the volume that live data fills before the volume grows rather
    /// than being cleaned: 0.1 to 0.9, by default 0.8. Lower means less write
    /// amplification and more space.
    #[must_use]
    pub fn fill_factor(mut self, share: f64) -> Options {
        self.fill_factor = share;
        self
    }

    /// Bytes of the write-ahead log, rounded up to whole segments; fixed when the
    /// store is created, and taken at once. By default it begins with 4 MiB and grows with
    /// load and data up to a quarter of the pool, 16 MiB to 1 GiB, and at
    /// most a sixteenth of the volume's limit. A larger log makes for fewer
    /// checkpoints and longer recoveries; where the store fits in the pool, for fewer
    /// page writes, too.
    ///
    /// With 0 nothing is logged: a mode for benchmarks. Commits are then neither
    /// durable nor atomic across a crash, and a store that was not closed cannot be
    /// opened again.
    #[must_use]
    pub fn log_bytes(mut self, bytes: u64) -> Options {
        self.log_bytes = Some(bytes);
        self
    }

    /// Puts the log of a new store into a file of its own that does not exist yet, or on an empty
    /// block device, instead of the store's own files: on another drive it takes the flushes of
    /// commits away from the drives of the data. The store remembers the path (relative to its
    /// first file's directory if the log lies below that) and finds the log when it is opened; say
    /// it again only after the log was moved. Without its log a store cannot be opened, so both
    /// belong into the same backup.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let (data, log) = (directory.path().join("a.isobath"), directory.path().join("a.log"));
    /// use isobath::{Options, Store};
    ///
    /// let options = Options::new().pool_bytes(16 << 20);
    /// Store::create(&[&data], &options.clone().log_path(&log))?.close()?;
    /// Store::open(&[&data], &options)?.close()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn log_path(mut self, path: impl Into<PathBuf>) -> Options {
        self.log_path = Some(path.into());
        self
    }

    /// Whether processes of the same user may watch the statistics of the store while it is in use
    /// ([`Stats::of_store_in_use`](crate::Stats::of_store_in_use), `isobath stats --watch`). They
    /// are in a small file in memory, renewed at most four times a second while anything happens.
    /// By default on; stores without files and stores opened for reading publish nothing.
    #[must_use]
    pub fn publish_stats(mut self, publish: bool) -> Options {
        self.publish_stats = publish;
        self
    }

    /// Whether trees that are larger than the pool get *overlays*, so that they take changes like
    /// an LSM tree: a change goes to an ordered map in memory, which is written as a whole, and
    /// merged into the tree later, range by range. By default on. These maps take frames of the
    /// pool, up to half of them, while there are such trees. A tree gets overlays only if its map may
    /// have a MiB. So a pool has to have 4 MiB for each such tree, and at least 3 MiB and 1.5 MiB
    /// per worker; a volume of limited size has to have 64 MiB.
    ///
    /// Updates spread over a large tree write a fraction of what they write otherwise; lookups may
    /// look into several places, and scans read all of them. If the volume lacks space for these
    /// maps and cannot grow, all is merged, and changes go to the leaves.
    /// [`Store::compact`](crate::Store::compact), large transactions that remove whole ranges,
    /// drops of trees with large values, and loads of these or beside newer keys first merge all
    /// that the overlays have, for which changes of the tree wait. Estimates of a tree are of its
    /// merged part. A recovery keeps the log's changes of such trees in memory that no run has.
    ///
    /// Opened without this, trees that have overlays keep them, and others get none.
    #[must_use]
    pub fn overlays(mut self, overlays: bool) -> Options {
        self.overlays = overlays;
        self
    }

    /// Calls `listen` while a store that was not closed is recovered, with the
    /// bytes of the log that have been read and all that will be, each byte twice.
    #[must_use]
    pub fn on_recovery(mut self, listen: impl Fn(u64, u64) + Send + Sync + 'static) -> Options {
        self.on_recovery = RecoveryListener(Some(Arc::new(listen)));
        self
    }

    /// Opens for reading only: nothing on the volume changes. Readers and a writer, in any
    /// processes, may have the store open at a time, in any order; none waits for another.
    ///
    /// A reader sees the store as it was when it was opened: every commit that was durable before,
    /// as synced ones are once they are acknowledged, and of each commit all or nothing. What is
    /// not in a checkpoint yet is replayed from the log, in the reader's memory and a temporary
    /// file; so a store whose process was killed can be read before a writer recovers it. The
    /// writer keeps for its readers what they may still need, up to a quarter of the volume. A
    /// reader that needs what the writer has used again gets
    /// [`Error::ReaderOverrun`](crate::Error::ReaderOverrun), never anything wrong: open it again
    /// to see a newer state.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Options {
        self.read_only = read_only;
        self
    }

    /// How long opening for writing waits for each of the store's files that another process
    /// writes; by default not at all (a store in use is an error at once, and a process that was
    /// killed is waited for until the kernel has taken down what it had open).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("a.isobath");
    /// use isobath::{Options, Store};
    /// use std::time::Duration;
    ///
    /// let options = Options::new().pool_bytes(16 << 20);
    /// let first = Store::create(&path, &options)?;
    /// assert!(Store::open(&path, &options).is_err());
    /// let second = std::thread::spawn({
    ///     let options = options.clone().open_timeout(Duration::from_secs(60));
    ///     let path = path.clone();
    ///     move || Store::open(&path, &options)
    /// });
    /// first.close()?;
    /// second.join().unwrap()?.close()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn open_timeout(mut self, timeout: Duration) -> Options {
        self.open_timeout = timeout;
        self
    }

    /// The way to the kernel; by default the best that works.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Options {
        self.backend = backend;
        self
    }

    /// Whether the page cache is by-passed; by default if the file system allows.
    #[must_use]
    pub fn direct(mut self, direct: DirectMode) -> Options {
        self.direct = direct;
        self
    }

    /// Bytes on one file before the next one of a striped volume follows; fixed
    /// when the store is created. By default 2 MiB.
    #[must_use]
    pub fn stripe_unit(mut self, bytes: u32) -> Options {
        self.stripe_unit = bytes;
        self
    }

    /// How segments to clean are chosen; by default [`PolicyKind::LifeTable`], and
    /// [`PolicyKind::Mdc`] if the volume has a limit below 1 GiB. It is no property of the store,
    /// which may be opened with another one each time.
    #[must_use]
    pub fn cleaning_policy(mut self, policy: PolicyKind) -> Options {
        self.policy = Some(policy);
        self
    }

    /// Bytes that old values may take which open snapshots can still see, over
    /// all trees. When they take more, the oldest snapshots and transactions fail
    /// with [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld). By default a sixteenth of the
    /// pool.
    #[must_use]
    pub fn version_store_bytes(mut self, bytes: u64) -> Options {
        self.version_store_bytes = Some(bytes);
        self
    }

    /// When single operations, and transactions that do not say otherwise, are
    /// acknowledged; by default [`Durability::Synced`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Options {
        self.durability = durability;
        self
    }

    pub(crate) fn volume_options(&self) -> VolumeOptions {
        VolumeOptions::new()
            .backend(self.backend)
            .direct(self.direct)
            .stripe_unit(self.stripe_unit)
            .max_bytes(self.volume_limit())
            .lock_timeout(self.open_timeout)
            .over_unfinished(true)
            .access(if self.read_only {
                Access::Beside
            } else {
                Access::ReadWrite
            })
    }

    /// The log's path, and the least bytes of its device: those asked for, or, on a device of a
    /// given size, those that can be used.
    pub(crate) fn log_place(&self) -> Option<(&Path, u64)> {
        let path = self.log_path.as_deref()?;
        let is_device = path
            .metadata()
            .is_ok_and(|meta| meta.file_type().is_block_device());
        let least = if is_device && self.log_bytes.is_none() {
            MIN_AREA_BYTES
        } else {
            self.wanted_log_bytes()
        };
        Some((path, least))
    }

    /// The same, with the log on the store's own volume.
    pub(crate) fn with_log_on_volume(mut self) -> Options {
        self.log_path = None;
        self
    }

    pub(crate) fn lock_timeout(&self) -> Duration {
        self.open_timeout
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn volume_limit(&self) -> Option<u64> {
        match self.volume_limit {
            VolumeLimit::AsStored => None,
            VolumeLimit::Given(bytes) => {
                bytes.map(|bytes| bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64)
            }
        }
    }

    /// The cleaning policy of a new store.
    pub(crate) fn policy(&self) -> Result<Box<dyn CleaningPolicy>, OpenError> {
        self.policy_within(self.volume_limit())
    }

    /// The cleaning policy of the store with this superblock.
    pub(crate) fn policy_of(
        &self,
        superblock: &Superblock,
    ) -> Result<Box<dyn CleaningPolicy>, OpenError> {
        let stored = match superblock.limit_segments {
            0 => None,
            segments => Some(superblock.sizes.start_of(segments)),
        };
        self.policy_within(match self.volume_limit {
            VolumeLimit::AsStored => stored,
            VolumeLimit::Given(_) => self.volume_limit(),
        })
    }

    /// The cleaning policy of a volume with this limit; the `-opt` ones need exact update rates,
    /// which no engine knows.
    fn policy_within(&self, limit: Option<u64>) -> Result<Box<dyn CleaningPolicy>, OpenError> {
        let usual = match limit {
            Some(bytes) if bytes < LIFE_TABLE_BYTES => PolicyKind::Mdc,
            _ => PolicyKind::LifeTable,
        };
        let policy = self.policy.unwrap_or(usual);
        if policy.needs_rates() {
            return Err(bad(
                "cleaning_policy",
                format!(
                    "{} needs exact update rates; only the simulator has them",
                    policy.name()
                ),
            ));
        }
        Ok(policy.build(u64::from(self.frames())))
    }

    /// Bytes of the log, whole pages.
    fn wanted_log_bytes(&self) -> u64 {
        self.log_bytes
            .unwrap_or_else(|| {
                let usual = (self.pool_bytes / 4).clamp(16 << 20, 1 << 30);
                match self.transaction_bytes > MAX_TRANSACTION_BYTES {
                    true => usual.max(Log::bytes_for(self.transaction_bytes)),
                    false => usual,
                }
            })
            .next_multiple_of(PAGE_SIZE as u64)
    }

    /// Bytes of a segment of a new store.
    fn segment_size(&self) -> u32 {
        self.segment_bytes
            .unwrap_or_else(|| match self.volume_limit() {
                Some(limit) => segment_bytes_for(limit),
                None => segment_bytes_for(self.expected_bytes).max(SEGMENT_BYTES),
            })
    }

    /// Segments of the log.
    fn log_segments(&self) -> u32 {
        let bytes = self.wanted_log_bytes();
        bytes.div_ceil(u64::from(self.segment_size())) as u32
    }

    /// Bytes of the pool that the version store may take.
    fn version_bytes(&self) -> u64 {
        self.version_store_bytes
            .unwrap_or(self.pool_bytes / VERSION_SHARE)
    }

    /// Frames of the pool.
    pub(crate) fn frames(&self) -> u32 {
        let bytes = self.pool_bytes.saturating_sub(self.version_bytes());
        (bytes / FRAME_COST as u64).min(u64::from(u32::MAX >> 2)) as u32
    }

    /// The smallest pool that has `frames` frames beside the version store.
    fn pool_of(&self, frames: u64) -> u64 {
        let bytes = frames * FRAME_COST as u64;
        match self.version_store_bytes {
            Some(versions) => bytes + versions,
            None => (bytes * VERSION_SHARE).div_ceil(VERSION_SHARE - 1),
        }
    }

    /// Checks every option and computes what follows from them.
    pub(crate) fn config(&self) -> Result<Config, OpenError> {
        if self.workers == 0 || self.workers > MAX_WORKERS {
            return Err(bad(
                "workers",
                format!("1 to {MAX_WORKERS}, not {}", self.workers),
            ));
        }
        if self.tasks == 0 || self.tasks > MAX_TASKS {
            return Err(bad(
                "tasks_per_worker",
                format!("1 to {MAX_TASKS}, not {}", self.tasks),
            ));
        }
        if self.depth == 0 || self.depth > MAX_DEPTH {
            return Err(bad(
                "depth_per_worker",
                format!("1 to {MAX_DEPTH}, not {}", self.depth),
            ));
        }
        let segment = self.segment_size();
        let memory = Memory::there_is();
        if self.pool_bytes > memory.bytes {
            return Err(bad(
                "pool_bytes",
                format!(
                    "{} is more than the memory there is: {} by {}",
                    ByteSize(self.pool_bytes),
                    ByteSize(memory.bytes),
                    memory.said_by
                ),
            ));
        }
        let sizes = MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES;
        if !sizes.contains(&segment) || !segment.is_multiple_of(PAGE_SIZE as u32) {
            return Err(bad(
                "segment_bytes",
                format!("a multiple of {PAGE_SIZE} from 64 KiB to 64 MiB, not {segment}"),
            ));
        }
        if !(0.1..=0.9).contains(&self.fill_factor) {
            return Err(bad(
                "fill_factor",
                format!("0.1 to 0.9, not {}", self.fill_factor),
            ));
        }
        let workers = self.workers as u64;
        let base = MIN_FRAMES + MIN_FRAMES_PER_WORKER * workers;
        let least = base + FRAMES_PER_TASK * workers;
        if u64::from(self.frames()) < least {
            return Err(bad(
                "pool_bytes",
                format!(
                    "{} is too small a pool: with {} it needs at least {}",
                    ByteSize(self.pool_bytes),
                    match self.workers {
                        1 => "1 worker".to_owned(),
                        workers => format!("{workers} workers"),
                    },
                    ByteSize::at_least(self.pool_of(least))
                ),
            ));
        }
        if let Some(bytes) = self.log_bytes
            && (bytes != 0 && bytes < MIN_AREA_BYTES || bytes > MAX_LOG_BYTES)
        {
            return Err(bad(
                "log_bytes",
                format!(
                    "0 for none, or {} to {}, not {}",
                    ByteSize(MIN_AREA_BYTES),
                    ByteSize(MAX_LOG_BYTES),
                    ByteSize(bytes)
                ),
            ));
        }
        if !(MIN_TRANSACTION_BYTES..=TRANSACTION_LIMIT).contains(&self.transaction_bytes) {
            let reason = format!("{MIN_TRANSACTION_BYTES} to {TRANSACTION_LIMIT}");
            return Err(bad("transaction_bytes", reason));
        }
        if !(STACK_BYTES..=MAX_STACK_BYTES).contains(&self.stack_bytes) {
            let reason = format!("{STACK_BYTES} to {MAX_STACK_BYTES}");
            return Err(bad("task_stack_bytes", reason));
        }
        if self.log_path.is_some() && self.log_bytes == Some(0) {
            let reason = "a log of 0 bytes is none, and needs no path".to_owned();
            return Err(bad("log_path", reason));
        }
        // For two memories of overlays, one of which is sealed; tasks come first.
        let frames = u64::from(self.frames());
        let wanted = base + FRAMES_PER_TASK * workers * self.tasks as u64;
        let lent = (frames / 2).min(frames.saturating_sub(wanted)) as u32;
        let affordable = (frames - base) / (FRAMES_PER_TASK * workers);
        Ok(Config {
            workers: self.workers,
            tasks: self.tasks.min(affordable as usize),
            depth: self.depth,
            stack_bytes: self.stack_bytes,
            transaction_bytes: self.transaction_bytes,
            sizes: SegmentSize::of(segment),
            block_bytes: 0,
            fill_factor: self.fill_factor,
            read_only: self.read_only,
            publish_stats: self.publish_stats,
            overlays: self.overlays,
            lent_frames: lent,
            version_bytes: self.version_bytes(),
            durability: self.durability,
            log_bytes: self.wanted_log_bytes(),
            log_segments: self.log_segments(),
            log_path: PathBuf::new(),
            segments_fit_volume: self.segment_bytes.is_none() && self.volume_limit().is_none(),
            log_fits_volume: self.log_bytes.is_none(),
            log_grows: self.log_bytes.is_none(),
            limit_bytes: match self.volume_limit {
                VolumeLimit::AsStored => None,
                VolumeLimit::Given(_) => Some(self.volume_limit()),
            },
        })
    }
}

fn bad(option: &'static str, reason: String) -> OpenError {
    OpenError::BadOption { option, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_pool_fits_into_little_memory() {
        let pool = |memory| Options::new().pool_of_memory(256 << 20, memory).pool_bytes;
        assert_eq!(pool(24 << 30), 256 << 20);
        assert_eq!(pool(128 << 20), 32 << 20);
        let there_is = Memory::there_is().bytes;
        assert!(Options::new().pool_bytes_at_most(u64::MAX).pool_bytes <= there_is / 2);
    }

    #[test]
    fn a_pool_larger_than_the_memory_is_refused() {
        let there_is = Memory::there_is().bytes;
        assert!(Options::new().config().is_ok());
        assert!(Options::new().pool_bytes(there_is).config().is_ok());
        let error = Options::new()
            .pool_bytes(there_is + 1)
            .config()
            .unwrap_err();
        let text = error.to_string();
        let says = |part: String| assert!(text.contains(&part), "{text}");
        says("pool_bytes".into());
        says(ByteSize(there_is).to_string());
    }

    #[test]
    fn the_default_policy_is_life_table_but_in_small_volumes() {
        let within = |limit| Options::new().policy_within(limit).unwrap().name();
        assert_eq!(within(None), "life-table");
        assert_eq!(within(Some(1 << 30)), "life-table");
        assert_eq!(within(Some((1 << 30) - 1)), "mdc");
        let asked = Options::new().cleaning_policy(PolicyKind::Greedy);
        assert_eq!(asked.policy_within(None).unwrap().name(), "greedy");
    }

    #[test]
    fn segments_of_a_small_volume_are_small() {
        let size = |limit| Options::new().volume_limit_bytes(limit).segment_size();
        assert_eq!(size(None), SEGMENT_BYTES);
        assert_eq!(size(Some(1 << 40)), 2 << 20);
        assert_eq!(size(Some(100 << 20)), 128 << 10);
        assert_eq!(size(Some(4096)), MIN_SEGMENT_BYTES);
        let given = Options::new().segment_bytes(1 << 20);
        assert_eq!(
            given.volume_limit_bytes(Some(100 << 20)).segment_size(),
            1 << 20
        );
    }

    #[test]
    fn a_store_of_which_much_is_expected_has_large_segments() {
        let expected = |bytes| Options::new().expected_bytes(bytes).segment_size();
        assert_eq!(expected(1 << 20), SEGMENT_BYTES);
        assert_eq!(expected(1 << 30), 2 << 20);
        let limited = Options::new().volume_limit_bytes(Some(100 << 20));
        assert_eq!(limited.expected_bytes(1 << 30).segment_size(), 128 << 10);
    }
}
