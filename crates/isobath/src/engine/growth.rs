//! Growing the volume, and what it means that it cannot grow.

use std::sync::Arc;

use isobath_io::VolumeError;

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

    /// Grows the volume by `count` segments and takes them for the log.
    pub(super) fn grow_by_run(&self, count: u32) -> Result<Run, NotGrown> {
        let _one_at_a_time = self.growth.one_at_a_time.lock();
        self.writable().map_err(NotGrown::Failed)?;
        let first = self.space.lock().segments();
        self.extend_to(first.saturating_add(count))?;
        let run = Run { first, count };
        let mut space = self.space.lock();
        space.grow(first + count);
        let taken = space.adopt_run(run);
        debug_assert!(taken, "new segments are free");
        self.count_log_segments(count);
        self.update_capacity(&space);
        Ok(run)
    }

    /// For the holder of `one_at_a_time`.
    fn grow_locked(&self, bytes: u64) -> Result<(), NotGrown> {
        self.writable().map_err(NotGrown::Failed)?;
        if self.space.lock().unfence() {
            // What was to be given back is needed.
            self.segment_waiters.wake_all();
            return Ok(());
        }
        let segment_bytes = u64::from(self.config.segment_bytes);
        let before = self.space.lock().segments();
        let needed = (bytes * 100 / FULL_PERCENT).div_ceil(segment_bytes) as u32 + 1;
        let mut step = (before / 16).clamp(MIN_GROW, MAX_GROW).max(needed);
        let is_flushed_often = self.growth_is_flushed_often();
        if is_flushed_often {
            step = needed.max(step.min((MAX_INITIALIZED / segment_bytes) as u32));
        }
        loop {
            match self.extend_to(before.saturating_add(step)) {
                Ok(()) => break,
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
        if is_flushed_often {
            self.initialize(before, step)?;
        }
        *self.growth.last.lock() = (self.log.counters().flushes, u64::from(step) * segment_bytes);
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
        let segment_bytes = u64::from(self.config.segment_bytes);
        let volume = self.volume().map_err(NotGrown::Failed)?;
        let written = u64::from(count) * segment_bytes;
        let zeroed = volume.write_zeros(u64::from(first) * segment_bytes, written);
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
        let bytes = u64::from(segments) * u64::from(self.config.segment_bytes);
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
        let segment_bytes = u64::from(self.config.segment_bytes);
        let asked = u64::from(segments) * segment_bytes;
        if segments > self.growth.most {
            let limit = u64::from(self.growth.most) * segment_bytes;
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
