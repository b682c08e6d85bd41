//! The engine: what the layers share, and the workers that drive them.

mod admission;
mod allocations;
mod backup;
mod blocks;
mod changes;
mod checkpoint;
#[cfg(test)]
mod checkpoint_tests;
mod chunk_frees;
mod cleaner;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod compare;
mod context;
mod discard;
mod flush_older;
mod growth;
mod leaf_records;
mod log_growth;
#[cfg(test)]
mod log_growth_tests;
#[cfg(test)]
mod log_space_tests;
mod logging;
#[cfg(test)]
mod logging_tests;
mod long_read;
#[cfg(test)]
mod long_read_tests;
mod open;
mod page_frees;
mod page_miss;
#[cfg(test)]
mod page_miss_tests;
mod pending_frees;
mod provisional;
pub(crate) mod publish;
mod read_buffers;
mod readers;
pub(crate) mod recovery;
mod recovery_start;
mod registered;
mod resize;
mod separate_log;
mod shrink;
#[cfg(test)]
mod shrink_tests;
mod stall;
mod summaries;
mod unflushed_chunks;
mod volume_flush;
mod worker_state;
mod writeback;

pub(crate) use admission::Admission;
pub(crate) use backup::{Backing, CopyBatch, DeadKept, MapEntry, PassStart};
pub(crate) use blocks::Stretch;
pub(crate) use context::{InlineContext, TaskContext};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use open::Opened;
pub(crate) use open::{create, log_area, mark_open, open, read_superblock};
pub(crate) use publish::Publisher;
pub(crate) use read_buffers::{ReadBuffer, ReadBuffers, SharedBuffer};
pub(crate) use readers::{keep_log, overlay, pin_newest};
pub(crate) use recovery::{Base as LogBase, Loads, Plan, Scan as LogScan, reader as log_reader};
pub(crate) use separate_log::{create_log, log_path, open_log};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use worker_state::Interrupted;
pub(crate) use worker_state::WorkerState;
pub(crate) use writeback::flush;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use isobath_io::Volume;

use changes::ChangedMapPages;
use checkpoint::Current;
use chunk_frees::ChunkFrees;
use pending_frees::PendingFrees;
use provisional::Provisional;
use recovery_start::UnflushedBatches;
use volume_flush::VolumeFlush;

use crate::Error;
use crate::buffer::{BufferPool, FrameId, FreeFrames, Partition, Place};
use crate::error::panic_message;
use crate::log::record::MAPPED_BYTES;
use crate::log::{Durability, Log};
use crate::page::{PAGE_SIZE, PageId};
use crate::pagestore::{
    Address, PageIds, PageTrace, ReservedWords, Run, SegmentAllocator, SegmentSizes, page_payload,
    worst_case_bytes,
};
use crate::sched::{WaitQueue, WorkerHandle};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};
use crate::trace;
use crate::txn::Transactions;

/// Share of the pool that may be dirty where the store is larger than it: one frame in
/// this many (DESIGN.md).
const DIRTY_SHARE: usize = 8;
/// Share of the log's area that writing all dirty pages may take: one part in this many.
/// Commits leave more than a quarter for that, but pages turn dirty meanwhile.
const DIRTY_LOG_SHARE: u64 = 32;
/// Frames that may be dirty for every one that the store does not need.
const SPARE_WORTH: usize = 4;
/// Share of the volume that live pages may fill at the very most, in percent.
/// The rest lets the cleaner find segments with obsolete pages in them.
const FULL_PERCENT: u64 = 92;
/// Bytes of large values on the volume that snapshots may keep in however small a store.
const MIN_OLD_VALUES: u64 = 64 << 20;
/// Segments that the volume grows by at least and at most.
const MIN_GROW: u32 = 8;
const MAX_GROW: u32 = 256;

/// Sizes and bounds that were fixed when the store was opened.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) workers: usize,
    pub(crate) tasks: usize,
    pub(crate) depth: u32,
    pub(crate) stack_bytes: usize,
    pub(crate) sizes: SegmentSizes,
    /// Alignment of what is read and written, in bytes.
    pub(crate) block_bytes: u32,
    pub(crate) fill_factor: f64,
    pub(crate) read_only: bool,
    /// Whether others may see the statistics of a store in files.
    pub(crate) publish_stats: bool,
    /// Bytes that the version store may take.
    pub(crate) version_bytes: u64,
    pub(crate) early_visibility: bool,
    /// Bytes of the largest transaction's record, as far as the log allows.
    pub(crate) transaction_bytes: u64,
    /// How lasting an operation is that does not say.
    pub(crate) durability: Durability,
    /// Bytes that the log of a new store is to have; none where nothing is logged.
    pub(crate) log_bytes: u64,
    /// Segments of the log area; none where nothing is logged, or on a device of
    /// its own.
    pub(crate) log_segments: u32,
    /// What the superblock says of the path of a log on a device of its own.
    pub(crate) log_path: PathBuf,
    /// A new store's log takes at most a sixteenth of its volume.
    pub(crate) log_fits_volume: bool,
    /// A new store's log begins small and grows to the size that is given.
    pub(crate) log_grows: bool,
    /// The limit of the volume's bytes, where one was given, or none was asked for; else
    /// what the store says counts.
    pub(crate) limit_bytes: Option<Option<u64>>,
}

/// Counters of the whole engine since it was opened.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) page_reads: AtomicU64,
    pub(crate) page_writes: AtomicU64,
    pub(crate) relocated: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) cleaning_bytes: AtomicU64,
    pub(crate) user_bytes: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) segments_cleaned: AtomicU64,
    pub(crate) corrupt_pages: AtomicU64,
    pub(crate) unreadable_summaries: AtomicU64,
    pub(crate) summary_bytes: AtomicU64,
    pub(crate) checkpoint_bytes: AtomicU64,
    pub(crate) growth_bytes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) recovered_bytes: AtomicU64,
    pub(crate) recovery_ns: AtomicU64,
    pub(crate) value_bytes: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) stall_ns: AtomicU64,
    pub(crate) stall_ns_max: AtomicU64,
    pub(crate) growth_stalls: AtomicU64,
    pub(crate) growth_stall_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// The same for growth of the volume.
    pub(crate) fn stalled_by_growth(&self, time: std::time::Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&self.growth_stalls, 1);
        Counters::add(&self.growth_stall_ns, ns);
        self.stalled(time);
    }

    /// A change, or a write, waited this long for others' writes, for cleaning or for space.
    pub(crate) fn stalled(&self, time: std::time::Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&self.stalls, 1);
        Counters::add(&self.stall_ns, ns);
        self.stall_ns_max.fetch_max(ns, Ordering::Relaxed);
    }
}

/// The state that all workers and callers share.
pub(crate) struct Engine {
    /// What the store said of itself when it was closed.
    #[cfg(any(test, feature = "simulation"))]
    layout: OnceLock<compare::Layout>,
    pub(crate) read_buffers: ReadBuffers,
    pub(crate) config: Config,
    pub(crate) pool: BufferPool,
    pub(crate) log: Log,
    /// Bytes of the segments that are in use.
    used_segment_bytes: AtomicU32,
    log_growth: log_growth::LogGrowth,
    /// Taken out when the store closes, so that its files are free for others
    /// whatever handles remain.
    volume: Mutex<Option<Volume>>,
    /// See [`Engine::reads_beside`].
    beside: Mutex<Option<readers::Beside>>,
    /// What readers in other processes may need is retained.
    retains: bool,
    /// Present sequence number of every segment; what a page read must carry.
    pub(crate) seqs: ReservedWords,
    pub(crate) space: Mutex<SegmentAllocator>,
    pub(crate) ids: Mutex<PageIds>,
    /// Bytes of all pages and chunks that exist, whether written yet or not.
    pub(crate) allocated_bytes: AtomicU64,
    /// Bytes that they take at most, with what is wasted beside chunks.
    reserved_bytes: AtomicU64,
    /// Bytes that they may take; grows with the volume.
    pub(crate) capacity_bytes: AtomicU64,
    pub(crate) partitions: Vec<Mutex<Partition>>,
    pub(crate) free_frames: Mutex<FreeFrames>,
    pub(crate) worker_handles: Vec<Arc<WorkerHandle>>,
    /// Per worker: some page that its tasks wait for was loaded elsewhere.
    pub(crate) page_news: Vec<AtomicBool>,
    /// Free segments run low: cleaners work.
    pub(crate) cleaning_wanted: AtomicBool,
    /// Dirty pages are to be written however few there are.
    pub(crate) flush_all: AtomicBool,
    /// Workers leave their loops.
    pub(crate) stopping: AtomicBool,
    /// A worker has ended by a panic; the others end, too.
    died: AtomicBool,
    pub(crate) segment_waiters: WaitQueue,
    pub(crate) stall: stall::Stall,
    pub(crate) dirty_waiters: WaitQueue,
    /// The first failed write; no more writes are accepted after it.
    pub(crate) poison: OnceLock<Error>,
    /// Per worker: what its tasks wait for in the log.
    awaited: Vec<logging::Awaited>,
    pub(crate) counters: Counters,
    pending_frees: PendingFrees,
    unflushed: UnflushedBatches,
    /// What belongs to something that is not committed yet.
    provisional: Provisional,
    chunk_frees: Mutex<ChunkFrees>,
    flush_waiters: WaitQueue,
    volume_flush: VolumeFlush,
    /// Pages of the mapping table that the next checkpoint has to write.
    pub(crate) changes: ChangedMapPages,
    /// The checkpoint on the volume; taken out by the task that writes the next one.
    pub(crate) current: Mutex<Option<Box<Current>>>,
    /// Where the log ended when the last checkpoint began.
    checkpointed_at: AtomicU64,
    /// The superblocks do not say yet that the store is open, or what the log says is not all in the pages: no checkpoint may be written.
    pub(crate) recovering: AtomicBool,
    /// Which user work is accepted.
    pub(crate) admission: Admission,
    pub(crate) transactions: Transactions,
    /// What a backup under way asks of the others.
    pub(crate) backup: Backing,
    growth: growth::Growth,
    resizing: resize::Resizing,
    shrinking: shrink::Shrinking,
    /// Shows the statistics to others, if they may see them.
    publisher: Mutex<Option<Arc<Publisher>>>,
    pub(crate) publishes: AtomicBool,
}

/// The parts that an engine is made of when it is opened.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) pool: BufferPool,
    pub(crate) log: Log,
    pub(crate) volume: Volume,
    pub(crate) seqs: ReservedWords,
    pub(crate) space: SegmentAllocator,
    pub(crate) ids: PageIds,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) current: Current,
    pub(crate) recovering: bool,
}

/// Bytes of log for the new place of one dirty page at worst: a record for each batch, in a flushed block of its own, and
/// one more such flush before it (decision 0019).
fn dirty_log_bytes(segment_bytes: u32) -> usize {
    let batch = writeback::BATCH.min(segment_bytes as usize / PAGE_SIZE);
    MAPPED_BYTES + 2 * PAGE_SIZE / batch.max(1)
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Arc<Engine> {
        let workers = parts.config.workers;
        let limit_segments = parts.current.superblock.limit_segments;
        let sequence = parts.current.superblock.sequence;
        let was_closed = parts.current.superblock.clean;
        let retains = !parts.config.read_only && parts.volume.sees_pins();
        let log_runs: Vec<Run> = parts.current.superblock.log_runs().collect();
        let sizes = parts.config.sizes;
        let frames = parts.pool.frames.count();
        let transactions = Transactions::new(&parts.config, &parts.log);
        let changes = ChangedMapPages::new(parts.pool.mapping.capacity());
        let engine = Engine {
            #[cfg(any(test, feature = "simulation"))]
            layout: OnceLock::new(),
            read_buffers: ReadBuffers::default(),
            partitions: (0..workers)
                .map(|_| Mutex::new(Partition::new(frames as usize / workers)))
                .collect(),
            free_frames: Mutex::default(),
            worker_handles: (0..workers)
                .map(|_| Arc::new(WorkerHandle::new()))
                .collect(),
            page_news: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            config: parts.config,
            pool: parts.pool,
            log: parts.log,
            used_segment_bytes: AtomicU32::new(sizes.large),
            log_growth: log_growth::LogGrowth::new(&log_runs, sizes),
            volume: Mutex::new(Some(parts.volume.clone())),
            beside: Mutex::default(),
            retains,
            seqs: parts.seqs,
            space: Mutex::new(parts.space),
            ids: Mutex::new(parts.ids),
            allocated_bytes: AtomicU64::new(parts.allocated_bytes),
            reserved_bytes: AtomicU64::new(parts.reserved_bytes),
            capacity_bytes: AtomicU64::new(0),
            cleaning_wanted: AtomicBool::new(false),
            flush_all: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            died: AtomicBool::new(false),
            segment_waiters: WaitQueue::new(),
            stall: stall::Stall::default(),
            dirty_waiters: WaitQueue::new(),
            poison: OnceLock::new(),
            awaited: (0..workers).map(|_| logging::Awaited::new()).collect(),
            counters: Counters::default(),
            pending_frees: PendingFrees::default(),
            unflushed: UnflushedBatches::new(workers * worker_state::WRITING_TASKS),
            provisional: Provisional::default(),
            chunk_frees: Mutex::default(),
            flush_waiters: WaitQueue::new(),
            volume_flush: VolumeFlush::new(),
            changes,
            current: Mutex::new(Some(Box::new(parts.current))),
            checkpointed_at: AtomicU64::new(0),
            recovering: AtomicBool::new(parts.recovering),
            admission: Admission::default(),
            transactions,
            backup: Backing::default(),
            growth: growth::Growth::up_to(limit_segments),
            resizing: resize::Resizing::new(),
            shrinking: shrink::Shrinking::default(),
            publisher: Mutex::new(None),
            publishes: AtomicBool::new(false),
        };
        let mut space = engine.space.lock();
        // Without a log there is one checkpoint, when the store is closed.
        space.reserve_for_checkpoint(engine.log.is_on());
        if engine.retains {
            let volume = parts.volume;
            let is_pinned = Box::new(move |superblocks| volume.is_pinned(superblocks));
            // Opening writes two before anything becomes free.
            space.retain_for_readers(sequence + 2, is_pinned);
            // Readers of the last state of a store that was closed, which both superblocks name, need nothing that is free.
            space.retain_freed(if was_closed {
                sequence.saturating_sub(2)
            } else {
                sequence
            });
        }
        engine.update_capacity(&space);
        drop(space);
        Arc::new(engine)
    }

    /// The volume.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] once the store has been closed.
    pub(crate) fn volume(&self) -> Result<Volume, Error> {
        self.volume.lock().clone().ok_or(Error::Closed)
    }

    /// Releases the volume and the memory, whatever handles remain; the workers have stopped.
    pub(crate) fn release(&self) {
        self.volume.lock().take();
        if self.config.read_only {
            self.beside.lock().take();
        }
        if self.retains {
            self.space.lock().forget_readers();
        }
        self.pool.discard();
        self.log.discard();
    }

    /// Notes what the store says of itself, for a comparison with what is on the drive.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn note_layout(&self) {
        let _ = self.layout.set(compare::Layout::of(self));
    }

    /// What the store said of itself when it was closed.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn closed_layout(&self) -> Option<&compare::Layout> {
        self.layout.get()
    }

    /// The byte offset of `address` in the volume.
    pub(crate) fn offset_of(&self, address: Address) -> u64 {
        self.config.sizes.start_of(address.segment()) + u64::from(address.offset())
    }

    /// Bytes of the segments that are in use.
    pub(crate) fn used_segment_bytes(&self) -> u32 {
        self.used_segment_bytes.load(Ordering::Acquire)
    }

    /// Where the page in `frame` is stored; nowhere before its first write.
    pub(crate) fn stored_address(&self, frame: FrameId) -> Address {
        self.pool.frames.header(frame).address()
    }

    /// The present sequence number of the segment at `address`.
    pub(crate) fn seq_of(&self, address: Address) -> u64 {
        self.seqs
            .at(u64::from(address.segment()))
            .load(Ordering::Acquire)
    }

    /// Dirty frames above which changes wait.
    ///
    /// Where pages have to leave the pool, that is quick only for clean ones. While
    /// the pool holds all of them, a page is better left until a checkpoint needs it
    /// written: it is changed again meanwhile. The same holds during recovery, when
    /// no reader waits.
    pub(crate) fn dirty_limit(&self) -> usize {
        let frames = self.pool.frames.count() as usize;
        let most = frames / 8 * 7;
        if self.recovering.load(Ordering::Relaxed) {
            return most;
        }
        let pages = self.allocated_bytes.load(Ordering::Relaxed) / PAGE_SIZE as u64;
        let spare = frames.saturating_sub(usize::try_from(pages).unwrap_or(usize::MAX));
        let logged = self.dirty_logged();
        let useful = (SPARE_WORTH * spare).min(most).min(logged);
        useful.max(self.min_dirty_limit())
    }

    /// Dirty frames whose new places fit into the log.
    fn dirty_logged(&self) -> usize {
        if !self.log.is_on() {
            return usize::MAX;
        }
        (self.log.area_bytes() / DIRTY_LOG_SHARE) as usize
            / dirty_log_bytes(self.used_segment_bytes())
    }

    /// The limit of a store that is larger than its pool.
    pub(super) fn min_dirty_limit(&self) -> usize {
        let share = self.pool.frames.count() as usize / DIRTY_SHARE;
        // A log that has not grown yet holds fewer.
        let grows = self.log.area_bytes() < self.log.max_area_bytes();
        share
            .min(if grows { self.dirty_logged() } else { share })
            .max(8)
    }

    /// Dirty frames above which they are written back.
    pub(crate) fn dirty_target(&self) -> usize {
        let limit = self.dirty_limit();
        let least = self.min_dirty_limit();
        if limit > 2 * least {
            limit - least
        } else {
            limit / 2
        }
    }

    /// Refuses changes to a store that is read-only or whose writes failed.
    pub(crate) fn writable(&self) -> Result<(), Error> {
        if self.config.read_only {
            return Err(Error::ReadOnly);
        }
        self.not_poisoned()
    }

    /// Refuses where a write has failed.
    pub(crate) fn not_poisoned(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(cause) => Err(Error::Poisoned {
                cause: Arc::new(cause.clone()),
            }),
            None => Ok(()),
        }
    }

    /// A write failed: no more changes from here on, with this as the reason.
    pub(crate) fn poison(&self, cause: Error) {
        // The first cause is the one that matters.
        if self.poison.set(cause).is_ok() {
            let cause = || self.poison.get().map_or_else(String::new, Error::to_string);
            trace::tell!(
                error,
                "a write failed: the store takes no more",
                cause = cause().as_str()
            );
        }
        self.stop_log();
        for waiters in [
            &self.segment_waiters,
            &self.dirty_waiters,
            &self.flush_waiters,
        ] {
            waiters.wake_all();
        }
        self.resizing.wake_waiters();
    }

    /// A worker has panicked outside its tasks, or one of the engine's own tasks has. What its tasks hold is never
    /// given back, so all workers end, and their tasks' waiters get an error.
    pub(crate) fn die(&self, payload: &(dyn Any + Send)) {
        self.poison(Error::TaskPanicked {
            message: format!("a worker: {}", panic_message(payload)),
        });
        self.died.store(true, Ordering::SeqCst);
        for handle in &self.worker_handles {
            handle.notify();
        }
    }

    /// Whether a worker has ended by a panic.
    #[inline]
    pub(crate) fn has_died(&self) -> bool {
        self.died.load(Ordering::SeqCst)
    }

    /// `count` frames are no longer dirty nor being written: changes that wait
    /// for fewer dirty pages may go on.
    pub(crate) fn frames_written_back(&self, count: usize) {
        self.pool.dirty.written(count);
        if self.pool.dirty.unwritten() <= self.dirty_limit() {
            self.dirty_waiters.wake_all();
        }
        self.flush_waiters
            .wake(self.pool.dirty.written_back() as u64);
    }

    // ---- reservations --------------------------------------------------------

    fn update_capacity(&self, space: &SegmentAllocator) {
        // Beside the reserve, every stream has a segment open and the cleaner needs some spare ones
        // to work towards.
        self.used_segment_bytes
            .store(space.segment_bytes(), Ordering::Release);
        let segments = space.usable_segments();
        let checkpoints = segments / 250 + 2;
        let log = self.log_growth.segments(space.segments());
        let kept =
            1 + log + checkpoints + space.reserve() + space.streams() + writeback::SPARE_ENOUGH;
        let usable = u64::from(segments.saturating_sub(kept));
        let bytes = usable * page_payload(space.segment_bytes()) * FULL_PERCENT / 100;
        self.capacity_bytes.store(bytes, Ordering::Release);
        let payload = page_payload(space.segment_bytes());
        self.growth.set_capacity(bytes, segments, payload);
    }

    /// Accounts for `pages` new pages of an operation that frees space, like dropping a tree, even
    /// above the limit for user data.
    pub(crate) fn reserve_beyond_limit(&self, pages: u64) {
        let bytes = pages * PAGE_SIZE as u64;
        self.reserved_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.allocated_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives back the space of `pages` pages that exist no longer.
    pub(crate) fn release_pages(&self, pages: u64) {
        let bytes = pages * PAGE_SIZE as u64;
        self.release_bytes(bytes, bytes);
    }

    /// Bytes of large values on the volume that only snapshots may read, beyond which the oldest snapshots fail: as many
    /// as everything else takes.
    pub(crate) fn old_values_limit(&self) -> u64 {
        let all = self.allocated_bytes.load(Ordering::Relaxed);
        let others = all.saturating_sub(self.transactions.versions.volume_bytes());
        others.max(MIN_OLD_VALUES)
    }

    /// Gives back the space of a chunk that exists no longer.
    pub(crate) fn release_chunk(&self, length: u32) {
        self.release_bytes(u64::from(length), worst_case_bytes(length));
    }

    fn release_bytes(&self, bytes: u64, room: u64) {
        self.allocated_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.reserved_bytes.fetch_sub(room, Ordering::AcqRel);
    }

    /// Whether the volume should grow instead of being cleaned: live data
    /// fills it beyond the fill factor.
    pub(crate) fn prefers_growth(&self, space: &SegmentAllocator) -> bool {
        if self.growth_was_refused() {
            return false;
        }
        if space.grows_for_readers() {
            return true;
        }
        let room = u64::from(space.usable_segments() - space.system_segments());
        let total = room * u64::from(space.segment_bytes());
        // Not what the space counts: that has pages twice while they are moved.
        let live = self.allocated_bytes.load(Ordering::Relaxed);
        live as f64 > self.config.fill_factor * total as f64
    }

    // ---- publishing ---------------------------------------------------------

    /// Shows the statistics to others from now on.
    pub(crate) fn start_publishing(&self, publisher: Option<Publisher>) {
        let mut slot = self.publisher.lock();
        *slot = publisher.map(Arc::new);
        self.publishes.store(slot.is_some(), Ordering::Release);
    }

    /// Stops publishing statistics.
    pub(crate) fn stop_publishing(&self) {
        self.publishes.store(false, Ordering::Release);
        self.publisher.lock().take();
    }

    /// The publisher of the statistics, if they are published.
    pub(crate) fn publisher(&self) -> Option<Arc<Publisher>> {
        if !self.publishes.load(Ordering::Relaxed) {
            return None;
        }
        self.publisher.lock().clone()
    }

    /// A number that changes when something worth publishing happens.
    pub(crate) fn activity(&self) -> u64 {
        let counters = &self.counters;
        [
            &counters.bytes_read,
            &counters.bytes_written,
            &counters.user_bytes,
        ]
        .iter()
        .map(|counter| counter.load(Ordering::Relaxed))
        .fold(0, u64::wrapping_add)
    }

    // ---- tracing ------------------------------------------------------------

    /// Calls `trace` for every page that is stored now, in order of their numbers, then for every
    /// page write and freed page; `None` ends that.
    pub(crate) fn trace_pages(&self, mut trace: Option<Box<dyn PageTrace>>) {
        let high_water = self.ids.lock().high_water();
        let mut space = self.space.lock();
        if let Some(trace) = &mut trace {
            (1..high_water)
                .map(PageId)
                .filter(|&id| self.is_stored_page(id))
                .for_each(|id| trace.written(id.0));
        }
        space.set_trace(trace);
    }

    /// Whether `id` is a page, not a chunk of a large value, that was written before.
    fn is_stored_page(&self, id: PageId) -> bool {
        let address = match self.pool.mapping.place(id) {
            Place::Free => return false,
            Place::Stored(address) => address,
            Place::Resident(frame) | Place::Loading(frame) => self.stored_address(frame),
        };
        !address.is_none() && address.length() as usize == PAGE_SIZE
    }

    // ---- page ids -----------------------------------------------------------

    /// A page id whose bytes the caller has reserved.
    pub(crate) fn allocate_id(&self) -> Result<PageId, Error> {
        self.ids
            .lock()
            .allocate(&self.pool.mapping)
            .ok_or(Error::TooManyPages)
    }

    /// Frees the id of a page whose place, at `address` until now, is free already.
    pub(crate) fn free_id(&self, id: PageId, address: Address) {
        self.space.lock().page_freed(id, address);
        self.ids.lock().free(&self.pool.mapping, id);
        self.release_pages(1);
    }
}
