//! Bookkeeping of the log-structured volume: free, open and sealed segments, the next place of each
//! stream, and obsolete places.
//!
//! Pure state behind one lock that is held for one batch of pages at a time;
//! the I/O that it implies is the caller's.

mod cleaning;
mod fence;
mod placing;
mod retained;
mod stored;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use isobath_flash::policy::{
    Cause, CleaningPolicy, History, PageWrite, SegmentId, SegmentState, SegmentTable, Selector,
    StreamId,
};

use super::history::PageHistories;
use super::summary::{self, Entry};
use super::trace::PageTrace;
use crate::canary::{self, Canary};
use crate::page::{PAGE_SIZE, PageId};
use crate::shared::{Address, ReservedWords, SegmentSize};
use cleaning::CleaningProgress;
pub(crate) use cleaning::{CleaningEnd, Victim};
use fence::Fence;
use retained::Retained;

/// The content of a write: pages of the buffer, or chunks of large values. They go to different
/// segments, because chunks need not start at page boundaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    Pages,
    Chunks,
}

/// One page or chunk that asks for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The policy's view; `token` is the caller's index.
    pub(crate) write: PageWrite,
    pub(crate) page: PageId,
    /// A new page of a run of overlays. These go to segments of their own: they die in the order of
    /// their keys, all of a run's together, as merges pass them. What the cleaner moves does not:
    /// all of a victim fits one segment.
    pub(crate) is_run: bool,
}

/// A page or chunk that got a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) token: u64,
    pub(crate) page: PageId,
    pub(crate) address: Address,
    pub(crate) history: History,
}

/// A segment that is full: its summary is to be written.
#[derive(Debug)]
pub(crate) struct SealedSegment {
    pub(crate) segment: u32,
    /// Byte offset of the summary in the segment.
    pub(crate) offset: u32,
    pub(crate) entries: Vec<Entry>,
}

/// Segments that may be open at a time in however small a volume: two streams of pages and two of
/// chunks.
const MIN_OPEN: u32 = 4;

/// No free segment for `cause`: clean, or grow the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoSegment;

/// Whether a place of this length is a chunk's; a chunk of a page's length
/// packs like a page.
fn is_chunk(length: u32) -> bool {
    length as usize != PAGE_SIZE
}

/// No chunk is longer than this part of what a segment holds.
const CHUNK_SHARE: u32 = 8;

/// Bytes at the ends of segments that `bytes` of chunks can waste at most.
fn chunk_waste(bytes: u64) -> u64 {
    bytes.div_ceil(u64::from(CHUNK_SHARE) - 1)
}

/// The most space, in bytes, that a page or chunk of `length` bytes takes, internal fragmentation
/// included.
pub(crate) fn worst_case_bytes(length: u32) -> u64 {
    let waste = if is_chunk(length) {
        chunk_waste(u64::from(length))
    } else {
        0
    };
    u64::from(length) + waste
}

/// Bytes of pages that fit into a segment beside its summary.
pub(crate) fn page_payload(segment_bytes: u32) -> u64 {
    let mut pages = segment_bytes / PAGE_SIZE as u32;
    while pages * PAGE_SIZE as u32 + summary::size(pages as usize) > segment_bytes {
        pages -= 1;
    }
    u64::from(pages) * PAGE_SIZE as u64
}

/// A segment that a stream is filling.
struct OpenSegment {
    segment: u32,
    cursor: u32,
    entries: Vec<Entry>,
    /// Which kind of request opened it.
    cause: Cause,
}

/// The state of every segment, and the streams' open segments.
pub(crate) struct SegmentAllocator {
    pub(crate) table: SegmentTable,
    sizes: SegmentSize,
    /// Segments of the volume; the table may have more, which were cut off and are free.
    count: u32,
    /// Segments that are being emptied.
    fence: Option<Fence>,
    pub(crate) policy: Box<dyn CleaningPolicy>,
    histories: PageHistories,
    /// Receives every page write, if there is a trace.
    trace: Option<Box<dyn PageTrace>>,
    /// The update clock: user page writes so far (paper 003, section 4.2).
    pub(crate) now: u64,
    pub(crate) next_seq: u64,
    free: Vec<u32>,
    open: Vec<Option<OpenSegment>>,
    /// Writes in flight per segment, one more while it is open.
    busy: Vec<u32>,
    /// Byte offset of the summary of a sealed segment; 0 before it is sealed.
    summaries: Vec<u32>,
    /// Segments that only cleaning and checkpoints may take.
    reserve: u32,
    /// Of these, what a checkpoint may need.
    checkpoint: u32,
    /// A checkpoint may be written at any time: what it may need is kept free.
    keeps_checkpoint: bool,
    /// User writes may take a part of the reserve.
    lends_reserve: bool,
    /// Streams beyond this many share the segments of others.
    open_limit: u32,
    live_bytes: u64,
    /// Of these, chunks of large values.
    live_chunk_bytes: u64,
    /// Bytes at the end of a sealed segment of chunks that no chunk fitted
    /// into. The policy counts them as one live page: moving the chunks would
    /// not win them back.
    waste: Vec<u32>,
    /// Victims that are being cleaned.
    cleaning: u32,
    /// Whether cleaning gains space.
    progress: CleaningProgress,
    /// Of the emptiest segments.
    by_live: Selector,
    /// Segments that the cleaner could not empty, because something in them is corrupt.
    bad: BTreeSet<u32>,
    /// Bytes of the device's logical block. What is written together lies without gaps;
    /// what is written next begins at a block of its own.
    block: u32,
    /// Contents of sealed segments without a summary, as after a crash.
    unsummarized: HashMap<u32, Vec<Entry>>,
    /// Segments that hold no pages of the store: superblocks, log, checkpoints.
    system: u32,
    /// No segment becomes free: a reader needs obsolete pages.
    keeps_dead: bool,
    /// Per segment: the newest superblock that may have been on the volume when it became free, 0
    /// if it was never in use.
    freed_at: Vec<u64>,
    retained: Retained,
}

impl SegmentAllocator {
    /// A space of `segments` segments, all free but the first `system`, which
    /// hold the superblocks and the log.
    pub(crate) fn new(
        segments: u32,
        sizes: SegmentSize,
        block: u32,
        system: u32,
        policy: Box<dyn CleaningPolicy>,
    ) -> SegmentAllocator {
        let streams = usize::from(policy.streams()) * 2 + 1;
        let mut space = SegmentAllocator {
            table: SegmentTable::new(system, sizes.bytes).keeping(policy.history_kind()),
            sizes,
            count: system,
            fence: None,
            histories: PageHistories::new(&*policy),
            trace: None,
            policy,
            now: 0,
            next_seq: 1,
            free: Vec::new(),
            open: (0..streams).map(|_| None).collect(),
            busy: vec![1; system as usize],
            summaries: vec![0; system as usize],
            reserve: 0,
            checkpoint: 0,
            keeps_checkpoint: true,
            lends_reserve: false,
            open_limit: 0,
            live_bytes: 0,
            live_chunk_bytes: 0,
            waste: vec![0; system as usize],
            cleaning: 0,
            progress: CleaningProgress::default(),
            by_live: Selector::new(),
            bad: BTreeSet::new(),
            block,
            unsummarized: HashMap::new(),
            system,
            keeps_dead: false,
            freed_at: vec![0; system as usize],
            retained: Retained::default(),
        };
        // Open without end, so that nothing frees them.
        for segment in 0..system {
            space.table.open(SegmentId(segment), StreamId(0));
        }
        space.grow(segments);
        space
    }

    /// Adds free segments until there are `segments`.
    pub(crate) fn grow(&mut self, segments: u32) {
        self.unfence();
        let before = std::mem::replace(&mut self.count, segments);
        self.table.grow(segments);
        let slots = self.table.len() as usize;
        self.busy.resize(slots, 0);
        self.summaries.resize(slots, 0);
        self.waste.resize(slots, 0);
        self.freed_at.resize(slots, 0);
        // Low numbers are taken first, so that a small store stays compact.
        self.free.splice(0..0, (before..segments).rev());
        self.has_grown(segments.saturating_sub(before));
        self.resized();
    }

    /// The number of segments has changed.
    fn resized(&mut self) {
        let segments = self.count;
        let pages = self.sizes.start_of(segments) / PAGE_SIZE as u64;
        if self.policy.is_outgrown(pages) {
            self.begin_policy_anew(pages);
        }
        self.restart_progress();
        let shares = self.shares(segments);
        self.checkpoint = shares.checkpoint;
        self.open_limit = shares.open;
        self.reserve = shares.reserve;
    }

    /// Says whether a checkpoint may be written from now on. While none may, as in a store without
    /// a log before it is closed, cleaning does not keep free what it would need.
    pub(crate) fn reserve_for_checkpoint(&mut self, keeps: bool) {
        self.keeps_checkpoint = keeps;
    }

    /// Says whether user writes may take half of what cleaning has of the reserve, beyond what the
    /// victims under way may need.
    pub(crate) fn lend_reserve(&mut self, lends: bool) {
        self.lends_reserve = lends && !canary::is_on(Canary::KeepReserve);
    }

    /// Free segments that user writes leave to cleaning and to checkpoints now.
    fn kept(&self) -> u32 {
        let cleaning = self.reserve - self.checkpoint;
        let kept = match self.keeps_checkpoint {
            true => self.reserve,
            false => cleaning.max(1),
        };
        match self.lends_reserve {
            true => (kept - cleaning / 2).max(self.cleaning),
            false => kept,
        }
    }

    /// Takes a free segment for the system's own use: nothing frees it, and no
    /// policy sees it, until [`SegmentAllocator::release_system`].
    pub(crate) fn take_system(&mut self) -> Option<u32> {
        let segment = self.pop_free()?;
        self.hold(segment);
        Some(segment)
    }

    /// Takes these free segments as [`SegmentAllocator::take_system`] does; one that is not free,
    /// if there is any.
    pub(crate) fn adopt_system(&mut self, segments: impl Iterator<Item = u32>) -> Result<(), u32> {
        let mut wanted: HashSet<u32> = HashSet::new();
        for segment in segments {
            if !wanted.insert(segment) {
                return Err(segment);
            }
        }
        let mut taken: Vec<u32> = Vec::with_capacity(wanted.len());
        self.free.retain(|&free| {
            let is_wanted = wanted.remove(&free);
            if is_wanted {
                taken.push(free);
            }
            !is_wanted
        });
        taken.sort_unstable();
        taken.into_iter().for_each(|segment| self.hold(segment));
        wanted.into_iter().min().map_or(Ok(()), Err)
    }

    fn hold(&mut self, segment: u32) {
        self.table.open(SegmentId(segment), StreamId(0));
        self.busy[segment as usize] = 1;
        self.summaries[segment as usize] = 0;
        self.system += 1;
    }

    /// Gives a segment of the system back.
    pub(crate) fn release_system(&mut self, segment: u32) {
        let id = SegmentId(segment);
        self.table.seal(id, self.now);
        self.table.begin_cleaning(id);
        self.table.free(id);
        self.busy[segment as usize] = 0;
        self.system -= 1;
        self.put_free(segment);
    }

    /// Contents of a sealed segment without a summary; `None` if it has one.
    pub(crate) fn unsummarized(&self, segment: u32) -> Option<Vec<Entry>> {
        self.unsummarized.get(&segment).cloned()
    }

    /// Whether `segment` holds pages but no summary, as one does that was open
    /// when the store crashed.
    pub(crate) fn lacks_summary(&self, segment: u32) -> bool {
        self.summaries[segment as usize] == 0
            && self.table.state(SegmentId(segment)) == SegmentState::Sealed
    }

    /// Notes what lives in a segment without summary.
    pub(crate) fn add_unsummarized(&mut self, segment: u32, entry: Entry) {
        self.unsummarized.entry(segment).or_default().push(entry);
    }

    /// Segments of the volume.
    pub(crate) fn segments(&self) -> u32 {
        self.count
    }

    pub(crate) fn free_segments(&self) -> u32 {
        self.free.len() as u32
    }

    /// The free segments.
    pub(crate) fn free(&self) -> &[u32] {
        &self.free
    }

    /// Free segments beyond those that only cleaning and checkpoints may take now.
    pub(crate) fn spare_segments(&self) -> u32 {
        self.free_segments().saturating_sub(self.kept())
    }

    /// Most segments that are open at a time.
    pub(crate) fn streams(&self) -> u32 {
        self.open_limit
    }

    /// Segments that only cleaning and checkpoints may take, once a checkpoint is due.
    pub(crate) fn reserve(&self) -> u32 {
        self.reserve
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Segments that hold no pages of the store: superblocks, log, checkpoints.
    pub(crate) fn system_segments(&self) -> u32 {
        self.system
    }

    /// Bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> u32 {
        self.table.segment_bytes()
    }

    /// Where segments lie.
    pub(crate) fn sizes(&self) -> SegmentSize {
        self.sizes
    }

    /// Byte offset of the summary of `segment`; 0 if it has none.
    pub(crate) fn summary_offset(&self, segment: u32) -> u32 {
        self.summaries[segment as usize]
    }

    /// Takes up to `most` free segments, and at most half of the spare ones, out of use: those from
    /// place `from` on in the list of free segments. For [`SegmentAllocator::give_spare`].
    pub(crate) fn take_spare(&mut self, from: usize, most: usize) -> Vec<u32> {
        let most = most.min(self.spare_segments().div_ceil(2) as usize);
        let from = from.min(self.free.len());
        let to = (from + most).min(self.free.len());
        self.free.drain(from..to).collect()
    }

    /// Puts segments back that [`SegmentAllocator::take_spare`] took, in front of place `before`.
    pub(crate) fn give_spare(&mut self, before: usize, segments: Vec<u32>) {
        let at = before.saturating_sub(segments.len()).min(self.free.len());
        let (fenced, others): (Vec<u32>, Vec<u32>) = segments
            .into_iter()
            .partition(|&segment| self.is_behind_fence(segment));
        self.free.splice(at..at, others);
        fenced
            .into_iter()
            .for_each(|segment| self.add_free(segment));
    }

    fn count_live(&mut self, length: u32) {
        self.live_bytes += u64::from(length);
        if is_chunk(length) {
            self.live_chunk_bytes += u64::from(length);
        }
    }

    fn count_dead(&mut self, length: u32) {
        self.live_bytes -= u64::from(length);
        if is_chunk(length) {
            self.live_chunk_bytes -= u64::from(length);
        }
    }

    /// Ends the open segment of `slot`; its summary keeps it busy. What is unused of a segment that
    /// is `full` is too short for the next chunk; the rest of another one is worth cleaning.
    fn close(&mut self, slot: usize, full: bool, closing: &mut Vec<SealedSegment>) {
        if let Some(open) = self.open[slot].take() {
            let size = summary::size(open.entries.len());
            let offset = self.sizes.bytes - size;
            self.summaries[open.segment as usize] = offset;
            let waste = offset.saturating_sub(open.cursor) / PAGE_SIZE as u32;
            let full = full || canary::is_on(Canary::CountUnusedAsLive);
            let of_chunks = self.chunk_slots().contains(&slot);
            if full && of_chunks && waste > 0 {
                self.set_waste(open.segment, waste * PAGE_SIZE as u32);
            }
            closing.push(SealedSegment {
                segment: open.segment,
                offset,
                entries: open.entries,
            });
        }
    }

    /// Counts `waste` bytes of `segment` as one live page.
    fn set_waste(&mut self, segment: u32, waste: u32) {
        let id = SegmentId(segment);
        let mut record = self.table.record(id);
        record.live_bytes += waste;
        record.live_pages += 1;
        if record.state == SegmentState::Open {
            self.table.append(id, waste, History::UNKNOWN);
        } else {
            self.table.restore(id, &record);
        }
        self.waste[segment as usize] = waste;
    }

    /// Bytes of the pages and chunks that live in `segment`.
    pub(crate) fn live_bytes_of(&self, segment: u32) -> u32 {
        self.table.live_bytes(SegmentId(segment)) - self.waste[segment as usize]
    }

    /// Ends every open segment, as before a checkpoint.
    pub(crate) fn close_all(&mut self, closing: &mut Vec<SealedSegment>) {
        for slot in 0..self.open.len() {
            self.close(slot, false, closing);
        }
    }

    /// One write into `segment`, or its summary's, has completed. The segment becomes free
    /// if all that it holds is obsolete already.
    pub(crate) fn written(&mut self, segment: u32) {
        self.unpin(segment);
    }

    /// Invalidates the copy at `address`. Its segment becomes free if it holds nothing else.
    pub(crate) fn invalidate(&mut self, address: Address) {
        let segment = SegmentId(address.segment());
        self.table.invalidate(segment, address.length());
        self.policy.died(&self.table, segment, 0.0, self.now);
        self.count_dead(address.length());
        self.free_if_empty(address.segment());
    }

    fn free_if_empty(&mut self, segment: u32) {
        let id = SegmentId(segment);
        let closed = matches!(
            self.table.state(id),
            SegmentState::Sealed | SegmentState::Cleaning
        );
        let waste = u32::from(self.waste[segment as usize] > 0);
        if !closed || self.table.live_pages(id) > waste || self.busy[segment as usize] > 0 {
            return;
        }
        if self.keeps_dead {
            return;
        }
        self.waste[segment as usize] = 0;
        if self.table.state(id) == SegmentState::Sealed {
            self.table.begin_cleaning(id);
        }
        self.table.free(id);
        self.policy.freed(id);
        self.histories.segment_freed(segment);
        self.summaries[segment as usize] = 0;
        self.unsummarized.remove(&segment);
        self.bad.remove(&segment);
        self.put_free(segment);
    }

    /// From now on no segment becomes free, so that obsolete pages can still be read, until
    /// [`SegmentAllocator::release_dead`].
    pub(crate) fn retain_obsolete(&mut self) {
        self.keeps_dead = true;
    }

    /// Ends [`SegmentAllocator::retain_obsolete`]; frees the segments in which everything is
    /// obsolete by now.
    pub(crate) fn release_dead(&mut self) {
        self.keeps_dead = false;
        self.restart_progress();
        for segment in 0..self.segments() {
            self.free_if_empty(segment);
        }
    }

    /// Whether [`SegmentAllocator::retain_obsolete`] holds.
    pub(crate) fn retains_obsolete(&self) -> bool {
        self.keeps_dead
    }

    /// Keeps a segment from being reused while something reads it outside the
    /// mapping table's protection.
    pub(crate) fn pin(&mut self, segment: u32) {
        self.busy[segment as usize] += 1;
    }

    /// Pins `segment` if it is sealed; whether it is.
    pub(crate) fn pin_sealed(&mut self, segment: u32) -> bool {
        let is_sealed = self.table.state(SegmentId(segment)) == SegmentState::Sealed;
        if is_sealed {
            self.pin(segment);
        }
        is_sealed
    }

    /// Ends a pin of a sealed segment.
    pub(crate) fn unpin(&mut self, segment: u32) {
        let busy = &mut self.busy[segment as usize];
        *busy -= 1;
        if *busy > 0 {
            return;
        }
        if self.table.state(SegmentId(segment)) == SegmentState::Open {
            // The pin outlasted the open segment's last write.
            let id = SegmentId(segment);
            self.table.seal(id, self.now);
            self.policy.sealed(&self.table, id);
        }
        self.free_if_empty(segment);
    }

    /// Describes the contents of the volume, to explain why nothing is free.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn describe(&self) -> String {
        let in_state = |state: SegmentState| {
            let all = (0..self.segments()).map(SegmentId);
            let those = all.filter(|&id| self.table.state(id) == state);
            those
                .map(|id| self.table.live_bytes(id) >> 10)
                .collect::<Vec<_>>()
        };
        format!(
            "; {} segments, {} the system's, {} free, {} in reserve, {} being cleaned; KiB live in the open ones: \
             {:?}, sealed: {:?}, given up or being cleaned: {:?}",
            self.segments(),
            self.system,
            self.free_segments(),
            self.reserve,
            self.cleaning,
            in_state(SegmentState::Open),
            in_state(SegmentState::Sealed),
            in_state(SegmentState::Cleaning),
        )
    }

    /// The history of `page`, stored at `address`: its own if the policy keeps one per page, else
    /// its segment's.
    pub(crate) fn inherited(&self, page: PageId, address: Address) -> History {
        let segment = (!address.is_none()).then(|| address.segment());
        if self.histories.wanted() {
            return self.histories.get(page, segment);
        }
        segment.map_or(History::UNKNOWN, |segment| {
            self.table.history(SegmentId(segment))
        })
    }

    /// Whether pages have histories of their own, so that the one that a frame carries may be
    /// older.
    pub(crate) fn keeps_page_histories(&self) -> bool {
        self.histories.wanted()
    }

    /// The observer of page writes from now on.
    pub(crate) fn set_trace(&mut self, trace: Option<Box<dyn PageTrace>>) {
        self.trace = trace;
    }

    /// Whether page writes are traced.
    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    /// A changed page was written.
    #[inline]
    pub(crate) fn trace_written(&mut self, page: PageId) {
        if let Some(trace) = &mut self.trace {
            trace.written(page.0);
        }
    }

    /// A page that was stored at `address` exists no longer.
    pub(crate) fn page_freed(&mut self, page: PageId, address: Address) {
        if self.histories.wanted() {
            self.policy.forgotten(self.inherited(page, address));
            self.histories.set(page, History::UNKNOWN);
        }
        if let Some(trace) = &mut self.trace {
            trace.freed(page.0);
        }
    }

    /// Sealed segments by emptiness: bin i counts i·10% ≤ E < (i+1)·10%, the last one E = 100% too.
    pub(crate) fn emptiness_histogram(&self) -> [u64; 10] {
        let mut bins = [0; 10];
        for segment in (0..self.segments()).map(SegmentId) {
            if self.table.state(segment) == SegmentState::Sealed {
                let bin = (f64::from(self.table.emptiness(segment)) * 10.0) as usize;
                bins[bin.min(9)] += 1;
            }
        }
        bins
    }
}

#[cfg(test)]
#[path = "allocator_tests.rs"]
mod tests;
