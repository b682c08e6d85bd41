//! The page store's state: its space, and the reservations of it.

use std::sync::Arc;

use isobath_flash::policy::{SegmentId, SegmentState};
use isobath_io::Volume;

use super::chunk_frees::ChunkFrees;
use super::growth::Growth;
use super::pending_frees::PendingFrees;
use super::provisional::Provisional;
use super::resize::Resizing;
use super::shrink::Shrinking;
use super::space::Space;
use super::stall::Stall;
use super::worker_tasks::WorkerSpace;
use super::{PageIds, PageTrace, SealedSegment, SegmentAllocator, page_payload, worst_case_bytes};
use crate::buffer::{Buffer, MappingTable};
use crate::error::StorageError;
use crate::log::{Log, LogTasks};
use crate::page::{PAGE_SIZE, PageId};
use crate::runtime::{PerWorker, WorkerPool};
use crate::shared::{Address, ReservedWords, Shared};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex};

/// Room on the volume.
pub(crate) struct PageStore {
    pub(super) space: Space,
    pub(super) ids: Mutex<PageIds>,
    /// Bytes of all pages and chunks that exist, whether written yet or not.
    pub(super) allocated_bytes: AtomicU64,
    /// Bytes that they take at most, with what is wasted beside chunks.
    pub(super) reserved_bytes: AtomicU64,
    /// Bytes that they may take; grows with the volume.
    pub(super) capacity_bytes: AtomicU64,
    /// The store may have, or have had, a large value. Said before it gets space.
    pub(super) may_have_large: AtomicBool,
    pub(super) pending_frees: PendingFrees,
    /// Allocations of work that is not committed yet.
    pub(super) provisional: Provisional,
    pub(super) chunk_frees: Mutex<ChunkFrees>,
    pub(super) growth: Growth,
    pub(super) resizing: Resizing,
    pub(super) shrinking: Shrinking,
    pub(super) stall: Stall,
    /// Free segments run low: cleaners work.
    pub(super) cleaning_wanted: AtomicBool,
    /// Dirty pages are to be written however few there are.
    pub(super) flush_all: AtomicBool,
    /// Segments that readers in other processes may need are retained.
    pub(super) retains: bool,
    pub(super) own: PerWorker<WorkerSpace>,
    pub(super) lower: LowerParts,
}

/// The lower parts that the page store and checkpoints use.
#[derive(Clone)]
pub(crate) struct LowerParts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: Arc<WorkerPool>,
    pub(crate) log: Arc<Log>,
    pub(crate) log_tasks: Arc<LogTasks>,
    pub(crate) buffer: Arc<Buffer>,
}

impl PageStore {
    /// The page store of a volume of at most `limit` segments (0: no limit), as opening has found
    /// it.
    pub(crate) fn new(
        lower: LowerParts,
        space: SegmentAllocator,
        ids: PageIds,
        (allocated, reserved): (u64, u64),
        limit: u32,
        may_have_large: bool,
        retains: bool,
    ) -> PageStore {
        let resizing = Resizing::new();
        resizing.wake_on_poison(&lower.shared);
        PageStore {
            space: Space::new(space, &lower.shared),
            ids: Mutex::new(ids),
            allocated_bytes: AtomicU64::new(allocated),
            reserved_bytes: AtomicU64::new(reserved),
            capacity_bytes: AtomicU64::new(0),
            may_have_large: AtomicBool::new(may_have_large),
            pending_frees: PendingFrees::default(),
            provisional: Provisional::default(),
            chunk_frees: Mutex::default(),
            growth: Growth::up_to(limit),
            resizing,
            shrinking: Shrinking::default(),
            stall: Stall::default(),
            cleaning_wanted: AtomicBool::new(false),
            flush_all: AtomicBool::new(false),
            retains,
            own: PerWorker::new(&lower.workers, WorkerSpace::new),
            lower,
        }
    }

    /// Sets what the log, and readers in other processes, keep of the space; `sequence` is that of
    /// the newest superblock, and `was_closed` whether it says that the store was closed.
    pub(crate) fn begin(&self, volume: Volume, sequence: u64, was_closed: bool) {
        let mut space = self.space.lock();
        // Without a log there is one checkpoint, when the store is closed.
        space.reserve_for_checkpoint(self.lower.log.is_on());
        if self.retains {
            let is_pinned = Box::new(move |superblocks| volume.is_pinned(superblocks));
            // Opening writes two before anything becomes free.
            space.retain_for_readers(sequence + 2, is_pinned);
            // A reader of the last state of a store that was closed needs nothing that is free.
            space.retain_freed(if was_closed {
                sequence.saturating_sub(1)
            } else {
                sequence
            });
        }
        self.update_capacity(&space);
    }

    /// Lets go of what other processes pin, when the store closes.
    pub(crate) fn release(&self) {
        if self.retains {
            self.space.lock().forget_readers();
        }
    }

    /// Bytes of all pages and chunks that exist, whether written yet or not.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that pages and chunks may take.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Acquire)
    }

    /// Whether the store may have, or have had, a large value.
    pub(crate) fn may_have_large(&self) -> bool {
        self.may_have_large.load(Ordering::SeqCst)
    }

    // ---- reservations --------------------------------------------------------

    pub(super) fn update_capacity(&self, space: &SegmentAllocator) {
        // Beside the reserve, every stream has a segment open and the cleaner needs some spare ones
        // to work towards.
        let segments = space.segments();
        let checkpoints = segments / 250 + 2;
        let log = self.lower.log_tasks.segments();
        let spare = self.growth.spare_of(segments);
        let kept = 1 + log + checkpoints + space.reserve() + space.streams() + spare;
        let usable = u64::from(segments.saturating_sub(kept));
        let bytes = usable * page_payload(space.segment_bytes()) * self.growth.full_percent() / 100;
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

    /// Gives back the space of a chunk that exists no longer.
    pub(crate) fn release_chunk(&self, length: u32) {
        self.release_bytes(u64::from(length), worst_case_bytes(length));
    }

    pub(crate) fn release_bytes(&self, bytes: u64, room: u64) {
        self.allocated_bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.reserved_bytes.fetch_sub(room, Ordering::AcqRel);
    }

    // ---- page ids -----------------------------------------------------------

    /// A page id whose bytes the caller has reserved.
    pub(crate) fn allocate_id(&self, mapping: &MappingTable) -> Result<PageId, StorageError> {
        self.ids
            .lock()
            .allocate(mapping)
            .ok_or(StorageError::TooManyPages)
    }

    /// Frees the id of a page whose place, at `address` until now, is free already.
    pub(crate) fn free_id(&self, mapping: &MappingTable, id: PageId, address: Address) {
        self.space.lock().page_freed(id, address);
        self.ids.lock().free(mapping, id);
        self.release_pages(1);
    }

    /// Gives back an id that no page has been made with.
    pub(crate) fn unallocate_id(&self, mapping: &MappingTable, id: PageId) {
        self.ids.lock().free(mapping, id);
    }

    /// Ids that were ever in use are below this.
    pub(crate) fn high_water(&self) -> u64 {
        self.ids.lock().high_water()
    }

    // ---- tracing ------------------------------------------------------------

    /// Calls `trace` for every page that is stored now, in order of their numbers, then for every
    /// page write and freed page; `None` ends that.
    pub(crate) fn trace_pages(&self, buffer: &Buffer, mut trace: Option<Box<dyn PageTrace>>) {
        let high_water = self.ids.lock().high_water();
        let mut space = self.space.lock();
        if let Some(trace) = &mut trace {
            (1..high_water)
                .map(PageId)
                .filter(|&id| buffer.is_stored_page(id))
                .for_each(|id| trace.written(id.0));
        }
        space.set_trace(trace);
    }

    /// Takes `count` ids in a row, or fewer unless they have to be `whole`; the first one and how
    /// many they are.
    pub(crate) fn allocate_ids(
        &self,
        mapping: &MappingTable,
        count: u64,
        whole: bool,
    ) -> Result<(PageId, u64), StorageError> {
        let taken = self.ids.lock().allocate_some(mapping, count, whole);
        taken.ok_or(StorageError::TooManyPages)
    }

    /// Gives back runs of ids: the first one, and how many.
    pub(crate) fn free_ids(&self, mapping: &MappingTable, runs: impl Iterator<Item = (u64, u64)>) {
        let mut ids = self.ids.lock();
        for (first, count) in runs.filter(|(_, count)| *count > 0) {
            ids.free_run(mapping, PageId(first), count);
        }
    }

    /// How many ids are in use.
    pub(crate) fn ids_in_use(&self) -> u64 {
        let ids = self.ids.lock();
        ids.high_water() - PageId::FIRST_FREE.0 - ids.free_count()
    }

    // ---- segments -----------------------------------------------------------

    /// Segments of the volume.
    pub(crate) fn segments(&self) -> u32 {
        self.space.lock().segments()
    }

    /// The update clock.
    pub(crate) fn tick(&self) -> u64 {
        self.space.lock().now
    }

    /// The sequence number of the next segment that is filled.
    pub(crate) fn next_seq(&self) -> u64 {
        self.space.lock().next_seq
    }

    /// How the space is used, all at one time.
    pub(crate) fn usage(&self) -> SpaceUsage {
        let space = self.space.lock();
        SpaceUsage {
            segments: space.segments(),
            free_segments: space.free_segments(),
            segment_bytes: space.segment_bytes(),
            emptiness: space.emptiness_histogram(),
            live_bytes: space.live_bytes(),
        }
    }

    /// Keeps a sealed segment from reuse until it is unpinned; `false` if `segment` is none.
    pub(crate) fn pin_sealed(&self, segment: u32) -> bool {
        self.space.lock().pin_sealed(segment)
    }

    /// Calls `look` under the lock under which segments are freed, after their last word in the
    /// mapping table changed: a place that is read there, and pinned, stays as it is.
    pub(crate) fn pin_places<R>(&self, look: impl FnOnce(&mut Pins<'_>) -> R) -> R {
        look(&mut Pins(&mut self.space.lock()))
    }

    /// Obsolete pages stay readable from now on, in all segments.
    pub(crate) fn retain_obsolete(&self) {
        self.space.lock().retain_obsolete();
    }

    /// Of all that [`PageStore::retain_obsolete`] keeps, only these segments stay readable.
    pub(crate) fn retain_only(&self, segments: &[u32]) {
        let mut space = self.space.lock();
        for &segment in segments {
            space.pin(segment);
        }
        space.release_dead();
    }

    /// Ends what [`PageStore::retain_obsolete`] began, or [`PageStore::retain_only`] if `segments`
    /// are given.
    pub(crate) fn release_retained(&self, segments: Option<Vec<u32>>) {
        let mut space = self.space.lock();
        match segments {
            Some(segments) => {
                segments
                    .into_iter()
                    .for_each(|segment| space.unpin(segment));
            }
            None => space.release_dead(),
        }
    }

    /// Segments whose live bytes are not those that `counted` has for each, with what they count.
    pub(crate) fn miscounted(&self, count: impl FnOnce(&mut [u64])) -> Vec<(u32, u64, u64)> {
        let space = self.space.lock();
        let mut live = vec![0; space.segments() as usize];
        count(&mut live);
        let segments = live.iter().enumerate().skip(1);
        segments
            .filter_map(|(segment, &bytes)| {
                let counted = u64::from(space.live_bytes_of(segment as u32));
                // Writes in flight count already, though no page names them yet.
                let is_sealed = space.table.state(SegmentId(segment as u32)) != SegmentState::Open;
                (is_sealed && counted != bytes).then_some((segment as u32, counted, bytes))
            })
            .collect()
    }

    // ---- for checkpoints ------------------------------------------------------

    /// A segment for a checkpoint's pages, from those that are kept for it.
    pub(crate) fn take_for_checkpoint(&self) -> Option<u32> {
        self.space.lock().take_for_checkpoint()
    }

    /// A segment for a checkpoint's pages, from what a victim may need.
    pub(crate) fn take_system(&self) -> Option<u32> {
        self.space.lock().take_system()
    }

    /// A superblock of this sequence number is about to be written: what it says of the space.
    pub(crate) fn superblock_begins(&self, sequence: u64) -> SpaceState {
        let mut space = self.space.lock();
        space.superblock_begins(sequence);
        SpaceState {
            segments: space.segments(),
            next_seq: space.next_seq,
            tick: space.now,
        }
    }

    /// The words of all segments, as a checkpoint has them.
    pub(crate) fn segment_words(&self, seqs: &ReservedWords) -> Vec<u64> {
        let space = self.space.lock();
        (0..space.segments())
            .flat_map(|segment| space.to_words(segment, seqs))
            .collect()
    }

    /// Frees segments of checkpoints: of all that are given those that `is_free`.
    pub(crate) fn release_system(
        &self,
        segments: &mut HashMap<u32, u32>,
        is_free: impl Fn(u32, u32) -> bool,
    ) {
        let mut space = self.space.lock();
        segments.retain(|&segment, live| {
            let free = is_free(segment, *live);
            if free {
                space.release_system(segment);
            }
            !free
        });
    }

    /// Calls `look` with what says whether a segment is being emptied, if any is.
    pub(crate) fn while_fenced(&self, look: impl FnOnce(&dyn Fn(u32) -> bool)) {
        let space = self.space.lock();
        if space.is_fenced() {
            look(&|segment| space.is_behind_fence(segment));
        }
    }

    /// Closes all open segments, whose summaries are then to be written.
    pub(crate) fn close_all(&self) -> Vec<SealedSegment> {
        let mut closing = Vec::new();
        self.space.lock().close_all(&mut closing);
        closing
    }

    /// The summary of `segment` was written, once the workers have ended.
    pub(crate) fn summary_written(&self, segment: u32) {
        self.space.lock().written(segment);
    }

    /// A free segment for the log, at the volume's beginning rather than its end.
    pub(crate) fn take_log_segment(&self) -> Option<u32> {
        let mut space = self.space.lock();
        let segment = space.take_system()?;
        self.lower.log_tasks.count_segments(1);
        self.update_capacity(&space);
        Some(segment)
    }

    /// The log does not lie in `segment`, or no longer.
    pub(crate) fn release_log_segment(&self, segment: u32) {
        self.lower.log_tasks.discount_segment();
        let mut space = self.space.lock();
        space.release_system(segment);
        self.update_capacity(&space);
    }

    // ---- what is wanted of the cleaners, and who waits -------------------------

    /// Whether cleaners have something to do.
    #[inline]
    pub(super) fn cleaner_is_wanted(&self) -> bool {
        self.cleaning_wanted.load(Ordering::Relaxed) || self.growth.is_requested()
    }

    /// Whether the volume is being shortened: the log does not grow during that.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrinking.is_running()
    }

    /// Live bytes of each segment that is sealed and not in use, if there `is_rest` otherwise.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn live_at_rest(&self, is_rest: bool) -> Vec<Option<u64>> {
        let space = self.space.lock();
        let live = |segment| {
            let counts = is_rest && space.is_at_rest(segment);
            counts.then(|| u64::from(space.live_bytes_of(segment)))
        };
        (0..space.segments()).map(live).collect()
    }

    /// The offset of `segment`'s summary; 0 without one.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn summary_offset(&self, segment: u32) -> u32 {
        self.space.lock().summary_offset(segment)
    }

    /// Says whether changed pages may take a part of the cleaner's reserve.
    pub(crate) fn lend_reserve(&self, lends: bool) {
        self.space.lock().lend_reserve(lends);
    }

    /// The allocator of segments.
    #[cfg(test)]
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// The allocator of page ids.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> &Mutex<PageIds> {
        &self.ids
    }

    /// Counts of the tasks that wait here, by reason.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(crate) fn waits(&self) -> [(usize, &'static str); 2] {
        [
            (self.space.waiters(), "a free segment"),
            (self.resizing.waiters(), "the volume's new length"),
        ]
    }

    /// Describes the space, to explain a standstill.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn describe(&self) -> String {
        let space = self.space.try_lock();
        space.map_or_else(String::new, |space| space.describe())
    }
}

/// Pins places under the allocator's lock; see [`PageStore::pin_places`].
pub(crate) struct Pins<'s>(&'s mut SegmentAllocator);

impl Pins<'_> {
    /// Keeps the segment at `address` from reuse until it is unpinned.
    pub(crate) fn pin(&mut self, address: Address) {
        self.0.pin(address.segment());
    }
}

/// How the space is used.
pub(crate) struct SpaceUsage {
    /// Segments that may be filled, and those of them that are free.
    pub(crate) segments: u32,
    pub(crate) free_segments: u32,
    pub(crate) segment_bytes: u32,
    pub(crate) emptiness: [u64; 10],
    pub(crate) live_bytes: u64,
}

/// The state of the space in a superblock.
pub(crate) struct SpaceState {
    pub(crate) segments: u32,
    pub(crate) next_seq: u64,
    pub(crate) tick: u64,
}
