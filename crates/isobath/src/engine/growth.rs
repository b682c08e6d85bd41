//! Growing the volume, and what it means that it cannot grow.

use std::sync::Arc;

use isobath_io::VolumeError;

use super::open::FIRST_SEGMENTS;
use super::{Counters, Engine, FULL_PERCENT, MAX_GROW, MIN_GROW};
use crate::Error;
use crate::log::Durability;
use crate::pagestore::{MAX_SEGMENTS, Run};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::trace;

/// Segments cleaned after which a volume that had no room is asked again: the file system may
/// have some by then, and cleaning a volume that is too full costs much more than asking.
const ASK_AGAIN: u64 = 64;
/// Where the volume grew by no more than this between two flushes of the log, on average, grown space is initialized. The first
/// write to a block that the file system has allocated changes the file's metadata, and the next flush waits for the file
/// system's journal, a few milliseconds under load: as long as writing some MiB takes.
const BYTES_PER_FLUSH: u64 = 2 << 20;
/// Bytes that are initialized at once, at most: writers wait for them.
const MAX_INITIALIZED: u64 = 8 << 20;
/// The volume has not been refused room.
const NEVER: u64 = u64::MAX;

/// Why the volume did not grow.
#[derive(Debug)]
pub(crate) enum NotGrown {
    /// There is no room in the file system, or within the limit.
    NoSpace(VolumeError),
    /// Anything else: writes of others may be lost, so the store is poisoned.
    Failed(Error),
}

/// How far the volume may grow, and whether it could the last time.
pub(super) struct Growth {
    one_at_a_time: Mutex<()>,
    /// Segments that had been cleaned when the volume had no room, or [`NEVER`].
    refused_at: AtomicU64,
    /// Segments that the volume may have.
    most: u32,
    /// Flushes of the log when it grew last, and the bytes that it grew by then.
    last: Mutex<(u64, u64)>,
}

impl Growth {
    /// Up to `limit` segments, or without a limit for 0. A volume that is longer stays so.
    pub(super) fn up_to(limit: u32) -> Growth {
        Growth {
            one_at_a_time: Mutex::new(()),
            refused_at: AtomicU64::new(NEVER),
            most: match limit {
                0 => MAX_SEGMENTS,
                limit => limit.min(MAX_SEGMENTS),
            },
            last: Mutex::new((0, 0)),
        }
    }

    /// Whether the store has a limit, so that room for writing has to be kept within it.
    pub(super) fn is_limited(&self) -> bool {
        self.most < MAX_SEGMENTS
    }
}

impl Engine {
    /// Whether the volume had no room a short while ago: clean instead, at whatever fill.
    pub(super) fn growth_was_refused(&self) -> bool {
        let at = self.growth.refused_at.load(Ordering::Relaxed);
        let cleaned = self.counters.segments_cleaned.load(Ordering::Relaxed);
        at != NEVER && cleaned < at.saturating_add(ASK_AGAIN)
    }

    /// Grows the volume by a step, unless it has more than `segments` segments already:
    /// another worker saw the same need first.
    pub(crate) fn grow_beyond(&self, segments: u32) -> Result<(), NotGrown> {
        let _one_at_a_time = self.growth.one_at_a_time.lock();
        if self.space.lock().segments() > segments {
            return Ok(());
        }
        self.grow_locked(0)
    }

    /// Grows the volume by a step, or by what `bytes` more need, unless there is room for
    /// them by now.
    pub(super) fn grow(&self, bytes: u64) -> Result<(), NotGrown> {
        let _one_at_a_time = self.growth.one_at_a_time.lock();
        let reserved = self.reserved_bytes.load(Ordering::Acquire);
        if reserved + bytes <= self.capacity_bytes.load(Ordering::Acquire) {
            return Ok(());
        }
        self.grow_locked(bytes)
    }

    /// Grows the volume by segments for `bytes` bytes and takes them for the log. All of them are of one size.
    pub(super) fn grow_by_run(&self, bytes: u64) -> Result<Run, NotGrown> {
        let _one_at_a_time = self.growth.one_at_a_time.lock();
        self.writable().map_err(NotGrown::Failed)?;
        let sizes = self.config.sizes;
        let before = self.space.lock().segments();
        let needed = |segments| bytes.div_ceil(u64::from(sizes.used_by(segments))) as u32;
        let is_small = !sizes.are_outgrown_by(before.saturating_add(needed(before)));
        let first = match is_small || sizes.are_outgrown_by(before) {
            true => before,
            // What pages need comes first.
            false => sizes.first_large + FIRST_SEGMENTS,
        };
        let count = match is_small {
            true => needed(before),
            false => needed(first),
        };
        self.extend_to(first.saturating_add(count))?;
        let run = Run { first, count };
        let mut space = self.space.lock();
        space.grow(first + count);
        let taken = space.adopt_run(run);
        debug_assert!(taken, "new segments are free");
        self.count_log_segments(run);
        self.update_capacity(&space);
        drop(space);
        if first > before {
            self.segment_waiters.wake_all();
        }
        Ok(run)
    }

    /// Has the volume outgrow its small segments, if it has none but those.
    ///
    /// # Errors
    ///
    /// [`Error::VolumeFull`] where there is no room for large ones.
    pub(crate) fn outgrow_small_segments(&self) -> Result<(), Error> {
        let sizes = self.config.sizes;
        if self.used_segment_bytes() == sizes.large {
            return Ok(());
        }
        let _one_at_a_time = self.growth.one_at_a_time.lock();
        self.writable()?;
        let before = self.space.lock().segments();
        if sizes.are_outgrown_by(before) {
            return Ok(());
        }
        let grown = self.extend_by(before, self.to_large(0) - before);
        grown.map_err(|error| match error {
            NotGrown::NoSpace(reason) => Error::VolumeFull {
                used: self.reserved_bytes.load(Ordering::Acquire),
                limit: self.capacity_bytes.load(Ordering::Acquire),
                reason: Arc::new(reason),
            },
            NotGrown::Failed(error) => error,
        })
    }

    /// Segments of a volume that has just outgrown its small ones, and needs room for `bytes` more bytes. What is in the small
    /// ones will be written to large ones.
    fn to_large(&self, bytes: u64) -> u32 {
        let sizes = self.config.sizes;
        let bytes = bytes + self.reserved_bytes.load(Ordering::Acquire);
        let needed = (bytes * 100 / FULL_PERCENT).div_ceil(u64::from(sizes.large)) as u32;
        sizes.first_large + FIRST_SEGMENTS + needed
    }

    /// For the holder of `one_at_a_time`.
    fn grow_locked(&self, bytes: u64) -> Result<(), NotGrown> {
        self.writable().map_err(NotGrown::Failed)?;
        if self.space.lock().unfence() {
            // What was to be given back is needed.
            self.segment_waiters.wake_all();
            return Ok(());
        }
        let sizes = self.config.sizes;
        let before = self.space.lock().segments();
        let segment_bytes = u64::from(sizes.used_by(before));
        let mut needed = (bytes * 100 / FULL_PERCENT).div_ceil(segment_bytes) as u32 + 1;
        let mut step = match sizes.are_outgrown_by(before) {
            true => (sizes.usable_of(before) / 16).clamp(MIN_GROW, MAX_GROW),
            // Each step costs flushes, and the volume has outgrown them soon.
            false => (before / 4).max(MIN_GROW).min(sizes.first_large - before),
        };
        step = step.max(needed);
        if self.growth_is_flushed_often() {
            step = needed.max(step.min((MAX_INITIALIZED / segment_bytes) as u32));
        }
        if !sizes.are_outgrown_by(before) && sizes.are_outgrown_by(before.saturating_add(step)) {
            needed = self.to_large(bytes) - before;
            step = needed;
        }
        loop {
            match self.extend_by(before, step) {
                Ok(()) => return Ok(()),
                // The last bit before the limit counts, too.
                Err(NotGrown::NoSpace(_)) if step > needed => step = needed.max(step / 2),
                Err(NotGrown::NoSpace(error)) => {
                    let cleaned = self.counters.segments_cleaned.load(Ordering::Relaxed);
                    self.growth.refused_at.store(cleaned, Ordering::Relaxed);
                    trace::tell!(warn, "the volume cannot grow", segments = before);
                    return Err(NotGrown::NoSpace(error));
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Makes the volume, which has `before` segments, longer by `step`, and hands these out. For the holder of
    /// `one_at_a_time`.
    fn extend_by(&self, before: u32, step: u32) -> Result<(), NotGrown> {
        let sizes = self.config.sizes;
        let is_flushed_often = self.growth_is_flushed_often();
        self.extend_to(before.saturating_add(step))?;
        if is_flushed_often {
            // No small ones that the volume outgrows with this step.
            let from = match sizes.are_outgrown_by(before + step) {
                true => before.max(sizes.first_large),
                false => before,
            };
            let most = (MAX_INITIALIZED / u64::from(sizes.bytes_of(from))) as u32;
            self.initialize(from, (before + step - from).min(most.max(1)))?;
        }
        let grown = sizes.start_of(before + step) - sizes.start_of(before);
        *self.growth.last.lock() = (self.log.counters().flushes, grown);
        self.growth.refused_at.store(NEVER, Ordering::Relaxed);
        trace::tell!(
            info,
            "the volume has grown",
            from = before,
            to = before + step
        );
        let mut space = self.space.lock();
        space.grow(before + step);
        self.update_capacity(&space);
        drop(space);
        self.segment_waiters.wake_all();
        Ok(())
    }

    /// Whether the log was flushed so often since the volume grew last that it is worth the bytes to write what it grows by
    /// before it is used.
    fn growth_is_flushed_often(&self) -> bool {
        let (flushes, grown) = *self.growth.last.lock();
        let since = self.log.counters().flushes.saturating_sub(flushes);
        // Where nothing waits for flushes, the bytes that they save are not worth those that are written.
        let is_awaited = matches!(self.config.durability, Durability::Synced);
        let costs_more = self
            .volume()
            .is_ok_and(|volume| volume.first_writes_cost_more());
        costs_more && is_awaited && grown > 0 && since.saturating_mul(BYTES_PER_FLUSH) >= grown
    }

    /// Writes zeros to `count` segments from `first` on, which nothing uses yet.
    fn initialize(&self, first: u32, count: u32) -> Result<(), NotGrown> {
        let sizes = self.config.sizes;
        let volume = self.volume().map_err(NotGrown::Failed)?;
        let start = sizes.start_of(first);
        let written = sizes.start_of(first + count) - start;
        let zeroed = volume.write_zeros(start, written);
        zeroed.map_err(|error| {
            let error = Error::Io(error);
            self.poison(error.clone());
            NotGrown::Failed(error)
        })?;
        Counters::add(&self.counters.bytes_written, written);
        Counters::add(&self.counters.growth_bytes, written);
        Ok(())
    }

    /// Cuts off what the volume has beyond its segments, which both superblocks know.
    pub(super) fn cut_volume(&self) -> Result<(), Error> {
        let _one_at_a_time = self.growth.one_at_a_time.lock();
        self.writable()?;
        let segments = self.space.lock().segments();
        let bytes = self.config.sizes.start_of(segments);
        let volume = self.volume()?;
        volume.shrink(bytes).map_err(|error| {
            // Labels have an unknown outcome.
            let error = Error::Volume(Arc::new(error));
            self.poison(error.clone());
            error
        })?;
        trace::tell!(info, "the volume is shorter", segments = segments);
        Ok(())
    }

    /// Makes the volume `segments` segments long.
    fn extend_to(&self, segments: u32) -> Result<(), NotGrown> {
        let sizes = self.config.sizes;
        let asked = sizes.start_of(segments);
        if segments > self.growth.most {
            let limit = sizes.start_of(self.growth.most);
            return Err(NotGrown::NoSpace(VolumeError::Limit { limit, asked }));
        }
        let volume = self.volume().map_err(NotGrown::Failed)?;
        volume.grow(asked).map_err(|error| {
            if error.is_no_space() {
                return NotGrown::NoSpace(error);
            }
            // Growth flushes what others write: it may have been told of a lost write, and
            // its own have an unknown outcome.
            let error = Error::Volume(Arc::new(error));
            self.poison(error.clone());
            NotGrown::Failed(error)
        })
    }
}
