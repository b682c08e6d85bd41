//! When the volume grows, by how much, and what it means that it cannot. How, and in which order: `resize.rs`.

use std::sync::Arc;
use std::time::Duration;

use isobath_io::{AlignedBuf, VolumeError};

use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::page::PAGE_SIZE;
use crate::pagestore::resize::{Resize, Turn};
use crate::pagestore::writeback::SPARE_ENOUGH;
use crate::pagestore::{PageStore, SegmentAllocator, worst_case_bytes};
use crate::runtime::{Worker, clock};
use crate::shared::{Counters, Durability, MAX_SEGMENTS, Run};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::trace;

/// Segments of a volume with a limit, at least.
const FIRST_SEGMENTS: u32 = 24;
/// Segments of one that grows.
const FIRST_GROWING: u32 = 15;
/// Share of a volume with a limit that live pages may fill at the very most, in percent. The rest
/// lets the cleaner find segments with obsolete pages in them.
const FULL_PERCENT: u64 = 92;
/// And of one that grows, whose cleaner grows it before that ([`PageStore::prefers_growth`]).
const PACKED_PERCENT: u64 = 97;
/// Segments that the volume grows by at least.
const MIN_GROW: u32 = 8;
/// Bytes up to which it grows by a quarter, and those that it grows by at most.
const QUARTER_BYTES: u64 = 16 << 20;
pub(crate) const MAX_GROW_BYTES: u64 = 512 << 20;
/// Segments cleaned after which a volume that had no room is asked again: the file system may
/// have some by then, and cleaning a volume that is too full costs much more than asking.
const ASK_AGAIN: u64 = 64;
/// Where the volume grew by no more than this between two flushes of the log, on average, grown space is initialized. The first
/// write to a block that the file system has allocated changes the file's metadata, and the next flush waits for the file
/// system's journal, a few milliseconds under load: as long as writing some MiB takes.
const BYTES_PER_FLUSH: u64 = 2 << 20;
/// Bytes that are initialized at once, at most: growth ends when they are.
const MAX_INITIALIZED: u64 = 8 << 20;
/// Bytes of one such write.
const ZEROS: usize = 1 << 20;
/// Bytes that a volume without a limit has free beside what the fill factor says: as many as its
/// data has beyond so much, up to so many.
const SLACK_FROM: u64 = 16 << 20;
const SLACK_BYTES: u64 = 48 << 20;
/// The volume grows ahead of need when this part of a step is left, one in so many.
const AHEAD_SHARE: u32 = 2;
/// The volume has not been refused room; it does not grow ahead of need.
const NEVER: u64 = u64::MAX;

/// Why the volume did not grow.
#[derive(Debug)]
pub(crate) enum NotGrown {
    /// There is no room in the file system, or within the limit.
    NoSpace(Arc<VolumeError>),
    /// Anything else: writes of others may be lost, so the store is poisoned.
    Failed(StorageError),
}

/// How far the volume may grow, and whether it could the last time.
pub(crate) struct Growth {
    /// Segments that had been cleaned when the volume had no room, or [`NEVER`].
    refused_at: AtomicU64,
    /// Segments that the volume may have.
    most: u32,
    /// Flushes of the log when it grew last, and the bytes that it grew by then.
    last: Mutex<(u64, u64)>,
    /// It has grown because it had to, so it will have to again.
    goes_on: AtomicBool,
    /// Reserved bytes beyond which it grows ahead of need, or [`NEVER`]; once for each length.
    ahead_at: AtomicU64,
    /// A cleaner is to do so.
    is_requested: AtomicBool,
}

impl Growth {
    /// Up to `limit` segments, or without a limit for 0. A volume that is longer stays so.
    pub(crate) fn up_to(limit: u32) -> Growth {
        Growth {
            refused_at: AtomicU64::new(NEVER),
            most: match limit {
                0 => MAX_SEGMENTS,
                limit => limit.min(MAX_SEGMENTS),
            },
            last: Mutex::new((0, 0)),
            goes_on: AtomicBool::new(false),
            ahead_at: AtomicU64::new(NEVER),
            is_requested: AtomicBool::new(false),
        }
    }

    /// Whether the store has a limit, so that room for writing has to be kept within it.
    pub(crate) fn is_limited(&self) -> bool {
        self.most < MAX_SEGMENTS
    }

    /// Spare segments that a volume which uses `segments` keeps for the cleaner to work towards. One
    /// that grows needs few while it is short: then few pages are dirty.
    pub(crate) fn spare_of(&self, segments: u32) -> u32 {
        match self.is_limited() {
            true => SPARE_ENOUGH,
            false => (1 + segments / 32).min(SPARE_ENOUGH),
        }
    }

    /// Share of the segments that are for pages that live ones may fill, in percent.
    pub(crate) fn full_percent(&self) -> u64 {
        match self.is_limited() {
            true => FULL_PERCENT,
            false => PACKED_PERCENT,
        }
    }

    /// Segments by which a volume grows that uses `segments`, of some `bytes` bytes each: a
    /// sixteenth; without a limit a 32nd, and a quarter of a short one, since each step costs
    /// flushes.
    fn step_of(&self, segments: u32, bytes: u64) -> u32 {
        let most = |limit: u64| u32::try_from(limit / bytes.max(1)).unwrap_or(u32::MAX);
        let step = match self.is_limited() {
            true => segments / 16,
            false => (segments / 32).max((segments / 4).min(most(QUARTER_BYTES))),
        };
        step.min(most(MAX_GROW_BYTES)).max(MIN_GROW)
    }

    /// Whether a cleaner is to have the volume grow ahead of need.
    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed)
    }

    /// The volume has `segments` usable segments of `payload` bytes, and so room for `capacity` bytes.
    pub(crate) fn set_capacity(&self, capacity: u64, segments: u32, payload: u64) {
        let at = match self.goes_on.load(Ordering::Relaxed) {
            true => capacity
                .saturating_sub(u64::from(self.step_of(segments, payload) / AHEAD_SHARE) * payload),
            false => NEVER,
        };
        self.ahead_at.store(at, Ordering::Relaxed);
    }
}

/// Segments of a new volume, beside the log's.
pub(crate) fn first_segments(is_limited: bool) -> u32 {
    match is_limited {
        true => FIRST_SEGMENTS,
        false => FIRST_GROWING,
    }
}

impl PageStore {
    /// Whether the volume had no room a short while ago: clean instead, at whatever fill.
    pub(crate) fn growth_was_refused(&self) -> bool {
        let at = self.growth.refused_at.load(Ordering::Relaxed);
        let cleaned = self.segments_cleaned();
        at != NEVER && cleaned < at.saturating_add(ASK_AGAIN)
    }

    /// Pages that cleaning a segment gains on average, if the volume could not grow when that was
    /// last tried.
    pub(crate) fn pages_gained_by_cleaning(&self) -> Option<u64> {
        if self.growth.refused_at.load(Ordering::Relaxed) == NEVER {
            return None;
        }
        let room = (self.capacity_bytes() * 100 / self.growth.full_percent()).max(1);
        let free = room.saturating_sub(self.allocated_bytes());
        let pages = u64::from(self.lower.shared.config.sizes.bytes) / PAGE_SIZE as u64;
        Some(pages * free / room)
    }

    fn segments_cleaned(&self) -> u64 {
        let counters = &self.lower.shared.counters;
        counters.segments_cleaned.load(Ordering::Relaxed)
    }

    /// Segments by which a volume of `before` segments grows, and those that `bytes` more bytes need.
    fn next_step(&self, before: u32, bytes: u64) -> (u32, u32) {
        let segment_bytes = u64::from(self.lower.shared.config.sizes.bytes);
        let needed = (bytes * 100 / self.growth.full_percent()).div_ceil(segment_bytes) as u32 + 1;
        let step = self.growth.step_of(before, segment_bytes).max(needed);
        match self.growth_is_flushed_often() {
            true => {
                let most = (MAX_INITIALIZED / segment_bytes) as u32;
                (needed.max(step.min(most)), needed)
            }
            false => (step, needed),
        }
    }

    /// Whether the log was flushed so often since the volume grew last that it is worth the bytes to write what it grows by
    /// before it is used.
    fn growth_is_flushed_often(&self) -> bool {
        let (flushes, grown) = *self.growth.last.lock();
        let since = self.lower.log.counters().flushes.saturating_sub(flushes);
        // Where nothing waits for flushes, the bytes that they save are not worth those that are written.
        let is_awaited = matches!(self.lower.shared.config.durability, Durability::Synced);
        let volume = self.lower.shared.volume();
        let costs_more = volume.is_ok_and(|volume| volume.first_writes_cost_more());
        costs_more && is_awaited && grown > 0 && since.saturating_mul(BYTES_PER_FLUSH) >= grown
    }

    /// Makes a cleaner grow the volume ahead of need, where nothing speaks against it.
    #[cold]
    fn request_growth(&self) {
        let unwanted = self.shrinking.is_running()
            || self.growth_was_refused()
            || self.lower.shared.is_recovering()
            || self.lower.workers.is_stopping();
        // Once for each length: of the tasks that see the need one asks.
        if unwanted || self.growth.ahead_at.swap(NEVER, Ordering::Relaxed) == NEVER {
            return;
        }
        self.growth.is_requested.store(true, Ordering::Release);
        self.lower.workers.notify_all();
    }

    /// Accounts for `bytes` more, which take `room` bytes at most; the bytes in use and the limit where there is no room.
    fn try_reserve(&self, bytes: u64, room: u64) -> Result<(), (u64, u64)> {
        let now = self.reserved_bytes.fetch_add(room, Ordering::AcqRel) + room;
        let capacity = self.capacity_bytes.load(Ordering::Acquire);
        if now > capacity {
            self.reserved_bytes.fetch_sub(room, Ordering::AcqRel);
            return Err((now - room, capacity));
        }
        self.allocated_bytes.fetch_add(bytes, Ordering::AcqRel);
        if now > self.growth.ahead_at.load(Ordering::Relaxed) {
            self.request_growth();
        }
        Ok(())
    }

    /// Whether there is room for `bytes` more without growing.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        let reserved = self.reserved_bytes.load(Ordering::Acquire);
        reserved.saturating_add(bytes) <= self.capacity_bytes.load(Ordering::Acquire)
    }

    /// Whether there is room for `bytes` more, or may be once the volume has grown.
    pub(crate) fn may_have_room_for(&self, bytes: u64) -> bool {
        let limit = self.limit_bytes().unwrap_or(u64::MAX);
        let length = self.lower.shared.config.sizes.start_of(self.segments());
        let grows_by = match self.growth_was_refused() {
            true => 0,
            false => limit.saturating_sub(length),
        };
        let share = self.growth.full_percent();
        self.has_room_for(bytes.saturating_sub(grows_by / 100 * share))
    }

    /// Bytes of the volume's limit, if it has one.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        let sizes = self.lower.shared.config.sizes;
        let growth = &self.growth;
        growth.is_limited().then(|| sizes.start_of(growth.most))
    }

    /// Whether the volume should grow instead of being cleaned: live data fills it beyond the fill
    /// factor, and no segment is nearly empty.
    pub(crate) fn prefers_growth(&self, space: &mut SegmentAllocator) -> bool {
        if self.growth_was_refused() {
            return false;
        }
        space.grows_for_readers() || self.is_beyond_fill(space) && !space.has_nearly_empty()
    }

    /// Whether live data fills the volume beyond the fill factor.
    pub(crate) fn is_beyond_fill(&self, space: &SegmentAllocator) -> bool {
        let room = u64::from(space.segments() - space.system_segments());
        let total = room * u64::from(space.segment_bytes());
        // Not what the space counts: that has pages twice while they are moved.
        let live = self.allocated_bytes.load(Ordering::Relaxed);
        // What a short volume has free until it is closed costs less than cleaning it.
        let slack = match self.growth.is_limited() {
            true => 0,
            false => live.saturating_sub(SLACK_FROM).min(SLACK_BYTES),
        };
        let room = total.saturating_sub(slack);
        live as f64 > self.lower.shared.config.fill_factor * room as f64
    }

    /// Where the volume cannot grow in place of what readers may need, frees what was retained for the longest time;
    /// whether there was anything.
    pub(super) fn overrun_readers_for_space(&self) -> bool {
        if !self.retains || !self.growth_was_refused() {
            return false;
        }
        self.space.lock().overrun_readers()
    }

    /// Hands out the segments of a volume that has become `segments` segments long.
    fn use_grown(&self, segments: u32) {
        let mut space = self.space.lock();
        space.grow(segments);
        self.update_capacity(&space);
    }

    // ---- reservations --------------------------------------------------------

    /// Accounts for `pages` new pages, growing the volume where needed.
    ///
    /// # Errors
    ///
    /// [`StorageError::VolumeFull`] where it cannot grow; nothing is accounted for then.
    pub(crate) fn reserve_pages(&self, worker: &Worker, pages: u64) -> Result<(), StorageError> {
        let bytes = pages * PAGE_SIZE as u64;
        self.reserve_bytes(worker, bytes, bytes)
    }

    /// Accounts for a new chunk of `length` bytes; see [`PageStore::reserve_pages`].
    pub(crate) fn reserve_one_chunk(
        &self,
        worker: &Worker,
        length: u32,
    ) -> Result<(), StorageError> {
        self.may_have_large.store(true, Ordering::SeqCst);
        self.reserve_bytes(worker, u64::from(length), worst_case_bytes(length))
    }

    fn reserve_bytes(&self, worker: &Worker, bytes: u64, room: u64) -> Result<(), StorageError> {
        // Bound: each round but the last finds that the volume has grown.
        loop {
            if self.try_reserve(bytes, room).is_ok() {
                return Ok(());
            }
            match self.stalled_by_growth(|| self.grow(worker, room)) {
                Ok(()) => {}
                Err(NotGrown::NoSpace(reason)) => {
                    // The task may have waited for others that grew the volume, or freed something, meanwhile.
                    let reserved = self.try_reserve(bytes, room);
                    return reserved.map_err(|(used, limit)| StorageError::VolumeFull {
                        used,
                        limit,
                        reason,
                    });
                }
                Err(NotGrown::Failed(error)) => return Err(error),
            }
        }
    }

    // ---- growing -------------------------------------------------------------

    /// Calls `grow`, and counts how long the task has waited for it.
    pub(crate) fn stalled_by_growth<R>(&self, grow: impl FnOnce() -> R) -> R {
        let since = crate::runtime::clock::wall();
        let grown = grow();
        let counters = &self.lower.shared.counters;
        counters.stalled_by_growth(since.elapsed());
        grown
    }

    /// Grows the volume by a step, unless it has more than `segments` segments already:
    /// another task saw the same need first.
    pub(crate) fn grow_beyond(&self, worker: &Worker, segments: u32) -> Result<(), NotGrown> {
        let turn = self.begin_resizing(worker, || self.space.lock().segments() > segments);
        match turn.map_err(NotGrown::Failed)? {
            Some(turn) => self.grow_by_step(worker, &turn, 0),
            None => Ok(()),
        }
    }

    /// Grows the volume by a step, or by what `bytes` more need, unless there is room for
    /// them by now.
    fn grow(&self, worker: &Worker, bytes: u64) -> Result<(), NotGrown> {
        let turn = self.begin_resizing(worker, || {
            let reserved = self.reserved_bytes.load(Ordering::Acquire);
            reserved + bytes <= self.capacity_bytes.load(Ordering::Acquire)
        });
        match turn.map_err(NotGrown::Failed)? {
            Some(turn) => self.grow_by_step(worker, &turn, bytes),
            None => Ok(()),
        }
    }

    /// Grows the volume by a step before a task needs it, if that was requested; whether it was.
    pub(crate) fn grow_ahead(&self, worker: &Worker) -> bool {
        let growth = &self.growth;
        if !growth.is_requested() || !growth.is_requested.swap(false, Ordering::AcqRel) {
            return false;
        }
        let before = self.space.lock().segments();
        let is_met = || {
            self.space.lock().segments() != before
                || self.shrinking.is_running()
                || self.lower.workers.is_stopping()
        };
        // Failure poisons the store; what has no room is refused when it is needed.
        if let Ok(Some(turn)) = self.begin_resizing(worker, is_met) {
            let (mut step, _) = self.next_step(before, 0);
            while step > 0 {
                match self.extend_by(worker, &turn, before, step) {
                    Err(NotGrown::NoSpace(_)) => step /= 2,
                    Ok(()) | Err(NotGrown::Failed(_)) => break,
                }
            }
        }
        true
    }

    /// Grows the volume by segments for `bytes` bytes and takes them for the log.
    pub(crate) fn grow_for_log(&self, worker: &Worker, bytes: u64) -> Result<Run, NotGrown> {
        let turn = self.resizing_turn(worker).map_err(NotGrown::Failed)?;
        let segment = u64::from(self.lower.shared.config.sizes.bytes);
        let first = self.space.lock().segments();
        let count = bytes.div_ceil(segment) as u32;
        self.extend_to(worker, &turn, first.saturating_add(count))?;
        let run = Run { first, count };
        let mut space = self.space.lock();
        space.grow(first + count);
        let taken = space.adopt_system(first..first + count);
        debug_assert!(taken.is_ok(), "new segments are free");
        self.lower.log_tasks.count_segments(count);
        self.update_capacity(&space);
        Ok(run)
    }

    fn grow_by_step(&self, worker: &Worker, turn: &Turn<'_>, bytes: u64) -> Result<(), NotGrown> {
        if self.space.lock().unfence() {
            // What was to be given back is needed.
            return Ok(());
        }
        self.growth.goes_on.store(true, Ordering::Relaxed);
        let before = self.space.lock().segments();
        let (mut step, needed) = self.next_step(before, bytes);
        let least = before.saturating_add(needed);
        loop {
            let grown = match turn.refused(least) {
                Some(reason) => Err(NotGrown::NoSpace(reason)),
                None => self.extend_by(worker, turn, before, step),
            };
            match grown {
                Ok(()) => return Ok(()),
                // The last bit before the limit counts, too.
                Err(NotGrown::NoSpace(_)) if step > needed => step = needed.max(step / 2),
                Err(NotGrown::NoSpace(reason)) => {
                    let cleaned = self.segments_cleaned();
                    self.growth.refused_at.store(cleaned, Ordering::Relaxed);
                    trace::tell!(warn, "the volume cannot grow", segments = before);
                    turn.note_refusal(least, Arc::clone(&reason));
                    return Err(NotGrown::NoSpace(reason));
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Makes the volume, which has `before` segments, longer by `step`, and hands these out.
    fn extend_by(
        &self,
        worker: &Worker,
        turn: &Turn<'_>,
        before: u32,
        step: u32,
    ) -> Result<(), NotGrown> {
        let sizes = self.lower.shared.config.sizes;
        let is_flushed_often = self.growth_is_flushed_often();
        if canary::is_on(Canary::UseSpaceEarly) {
            self.use_grown(before + step);
        }
        self.extend_to(worker, turn, before.saturating_add(step))?;
        if canary::is_on(Canary::InitializeLate) {
            self.use_grown(before + step);
            // So late that the space is in use.
            worker.sleep_until(clock::now() + Duration::from_millis(20));
        }
        if is_flushed_often {
            let most = (MAX_INITIALIZED / u64::from(sizes.bytes)) as u32;
            self.initialize(worker, before, step.min(most.max(1)))?;
        }
        let grown = sizes.start_of(before + step) - sizes.start_of(before);
        *self.growth.last.lock() = (self.lower.log.counters().flushes, grown);
        self.growth.refused_at.store(NEVER, Ordering::Relaxed);
        trace::tell!(
            info,
            "the volume has grown",
            from = before,
            to = before + step
        );
        self.use_grown(before + step);
        Ok(())
    }

    /// Writes zeros to `count` segments from `first` on, which no task can take yet.
    fn initialize(&self, worker: &Worker, first: u32, count: u32) -> Result<(), NotGrown> {
        let sizes = self.lower.shared.config.sizes;
        let (mut at, end) = (sizes.start_of(first), sizes.start_of(first + count));
        let bytes = end - at;
        let zeros = AlignedBuf::new(ZEROS.min(bytes as usize));
        while at < end {
            let length = (end - at).min(ZEROS as u64);
            let written = worker.write(at, &zeros.as_slice()[..length as usize]);
            written.map_err(|error| {
                let error = StorageError::Io(error);
                self.lower.shared.poison(error.clone());
                NotGrown::Failed(error)
            })?;
            at += length;
        }
        Counters::add(&self.lower.shared.counters.bytes_written, bytes);
        Counters::add(&self.lower.shared.counters.growth_bytes, bytes);
        Ok(())
    }

    /// Cuts off what the volume has beyond its segments, which both superblocks know.
    pub(crate) fn cut_volume(&self, worker: &Worker) -> Result<(), StorageError> {
        let turn = self.resizing_turn(worker)?;
        let segments = self.space.lock().segments();
        let bytes = self.lower.shared.config.sizes.start_of(segments);
        let volume = self.lower.shared.volume()?;
        self.resize(worker, &turn, &volume, Resize::Shrink(bytes))
            .map_err(|error| {
                // Labels have an unknown outcome.
                let error = StorageError::Volume(Arc::new(error));
                self.lower.shared.poison(error.clone());
                error
            })?;
        // It was made as short as it can be: it does not grow before it has to.
        self.growth.goes_on.store(false, Ordering::Relaxed);
        self.growth.ahead_at.store(NEVER, Ordering::Relaxed);
        trace::tell!(info, "the volume is shorter", segments = segments);
        Ok(())
    }

    /// Makes the volume `segments` segments long.
    fn extend_to(&self, worker: &Worker, turn: &Turn<'_>, segments: u32) -> Result<(), NotGrown> {
        let sizes = self.lower.shared.config.sizes;
        let asked = sizes.start_of(segments);
        if segments > self.growth.most {
            let limit = sizes.start_of(self.growth.most);
            let reason = VolumeError::Limit { limit, asked };
            return Err(NotGrown::NoSpace(Arc::new(reason)));
        }
        let volume = self.lower.shared.volume().map_err(NotGrown::Failed)?;
        self.resize(worker, turn, &volume, Resize::Grow(asked))
            .map_err(|error| {
                if error.is_no_space() {
                    return NotGrown::NoSpace(Arc::new(error));
                }
                // Growth flushes what others write: it may have been told of a lost write, and
                // its own have an unknown outcome.
                let error = StorageError::Volume(Arc::new(error));
                self.lower.shared.poison(error.clone());
                NotGrown::Failed(error)
            })
    }
}
