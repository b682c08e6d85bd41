//! The log's extents: how a log becomes longer, and leaves segments that are to be given back
//! (docs/decisions/0028).
//!
//! A list of extents that has become longer agrees with the one before for a whole lap of the log,
//! behind which no record lies until reservations know of it. A list that leaves segments agrees up
//! to an LSN at which flushes are stopped meanwhile. So what a recovery reads stays where it is.
//! The order is what matters ([`Checkpoints::relay_log`]):
//!
//! 1. New segments are zeroed, durably, before a superblock names them: else the first flushes there
//!    wait for the file system.
//! 2. Both superblocks are durable before flushes go on by the new list: else acknowledged records
//!    lie where no superblock leads (canaries `RelayLogEarly`, `RelayOneSuperblock`).
//! 3. Both are durable before segments that are not in the list are free: else pages overwrite the
//!    log that the older one leads to.
//!
//! A segment with a part that a recovery reads stays in the list (canary `LeaveLogEarly`). It is
//! left by a second change, once a checkpoint starts behind that part.

use std::time::Duration;

use isobath_io::AlignedBuf;

use super::superblock::MAX_LOG_EXTENTS;
use super::writer::CheckpointIo;
use super::{Checkpoints, SUPERBLOCK_OFFSETS};
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::log::{BLOCK, LogArea, MIN_AREA_BYTES};
use crate::page::Lsn;
use crate::pagestore::{NotGrown, POLL};
use crate::runtime::{Worker, clock};
use crate::shared::{Counters, Run};
use crate::trace;

/// Bytes that are zeroed at a time; between two such writes a checkpoint may begin.
const FILL_BYTES: u64 = 256 << 10;
/// A log is no longer than this, or than this many times the data, if a transaction does not need
/// more.
const SMALL_LOG: u64 = 16 << 20;
const DATA_SHARE: u64 = 4;
/// So little data is worth no longer log than this.
const LITTLE_DATA: u64 = 1 << 20;
const LITTLE_LOG: u64 = 8 << 20;
/// How long the checkpointer waits for the right to write superblocks.
const RETRY: Duration = Duration::from_millis(1);
/// Attempts to have the log leave segments: they fail while much of it is in use.
const MAX_MOVES: u32 = 50;

/// Segments in the making for the log.
pub(crate) struct Addition {
    segments: Run,
    /// Bytes that are zeroed.
    filled: u64,
}

impl Addition {
    fn of(segments: Run) -> Addition {
        Addition {
            segments,
            filled: 0,
        }
    }
}

/// Where the log goes on behind what a recovery reads.
enum Rest<'a> {
    /// In the rest of its area, and then in these segments.
    Longer(Run),
    /// In these segments alone.
    Only(&'a [u32]),
}

impl Checkpoints {
    /// A checkpoint was due: a log twice as long would need fewer, if that is worth the room.
    pub(super) fn request_longer_log(&self) {
        let double = 2 * self.lower.log.area_bytes();
        let data = self.pagestore.allocated_bytes();
        let most = match data < LITTLE_DATA {
            true => LITTLE_LOG,
            false => SMALL_LOG.max(DATA_SHARE * data),
        };
        if double <= most && !self.pagestore.is_shrinking() {
            self.lower.log_tasks.request_area(double);
        }
    }

    /// Whether the log should grow, and may.
    #[inline]
    pub(crate) fn log_grows(&self) -> bool {
        self.lower.log_tasks.should_grow()
            && !self.pagestore.is_shrinking()
            && !self.lower.shared.is_recovering()
            && !self.lower.shared.is_poisoned()
    }

    /// A step towards a longer log, if it should grow; `false` if there is nothing to do.
    pub(super) fn lengthen_log(&self, worker: &Worker, addition: &mut Option<Addition>) -> bool {
        let log = &self.lower.log_tasks;
        if addition.is_none() {
            // Who shortens the volume stops this first, then looks whether the area is being
            // changed: of the two, one sees the other.
            log.set_changing(true);
            if !self.log_grows() {
                log.set_changing(false);
                return false;
            }
        }
        let step = match addition {
            None => self.space_for_log(worker).map(|new| *addition = new),
            Some(new) if !self.is_filled(new) => self.fill(worker, new),
            Some(new) => self.add_to_log(worker, new.segments).map(|is_done| {
                if is_done {
                    *addition = None;
                }
            }),
        };
        if let Err(error) = step {
            self.lower.shared.poison(error);
            *addition = None;
        }
        log.set_changing(addition.is_some());
        true
    }

    /// Segments for a longer log, at the volume's end; `None` if there is no room.
    fn space_for_log(&self, worker: &Worker) -> Result<Option<Addition>, StorageError> {
        let (log, log_tasks) = (&self.lower.log, &self.lower.log_tasks);
        let bytes = log_tasks.wanted_bytes().max(2 * log.area_bytes());
        let bytes = bytes.min(log.max_area_bytes());
        match self
            .pagestore
            .grow_for_log(worker, bytes.saturating_sub(log.area_bytes()))
        {
            Ok(run) => Ok(Some(Addition::of(run))),
            Err(NotGrown::NoSpace(_)) => {
                log_tasks.refuse_growth();
                Ok(None)
            }
            Err(NotGrown::Failed(error)) => Err(error),
        }
    }

    /// Has the log become longer by `segments`; `false` while a backup has the right to write
    /// superblocks.
    fn add_to_log(&self, worker: &Worker, segments: Run) -> Result<bool, StorageError> {
        match self.relay_log(worker, &Rest::Longer(segments))? {
            Relaid::Done => Ok(true),
            Relaid::Later => Ok(false),
            Relaid::Refused => {
                self.lower.log_tasks.refuse_growth();
                for segment in segments.first..segments.first + segments.count {
                    self.pagestore.release_log_segment(segment);
                }
                Ok(true)
            }
        }
    }

    fn is_filled(&self, addition: &Addition) -> bool {
        addition.filled >= self.extent_of(addition.segments).1
    }

    /// Zeroes the next part of the segments, and makes all of them durable at the end: on many
    /// drives and file systems a flushed write to blocks that were written before takes half as
    /// long as one to blocks that are merely allocated.
    fn fill(&self, worker: &Worker, addition: &mut Addition) -> Result<(), StorageError> {
        let (start, bytes) = self.extent_of(addition.segments);
        let length = FILL_BYTES.min(bytes - addition.filled);
        let zeros = AlignedBuf::new(length as usize);
        let written = worker.write(start + addition.filled, zeros.as_slice());
        written.map_err(StorageError::Io)?;
        Counters::add(&self.lower.shared.counters.bytes_written, length);
        addition.filled += length;
        if self.is_filled(addition) {
            worker.flush().map_err(StorageError::Io)?;
        }
        Ok(())
    }

    /// The extent of these segments.
    fn extent_of(&self, segments: Run) -> (u64, u64) {
        let sizes = self.lower.shared.config.sizes;
        let start = sizes.start_of(segments.first);
        (
            start,
            sizes.start_of(segments.first + segments.count) - start,
        )
    }

    fn extents_of<'s>(&'s self, segments: &'s [u32]) -> impl Iterator<Item = (u64, u64)> + 's {
        let one = |&first: &u32| self.extent_of(Run { first, count: 1 });
        segments.iter().map(one)
    }

    /// The next list of extents of a log that a recovery reads from `start` on, a whole block.
    /// Stops flushes if it agrees with the present one only up to where they are.
    fn next_area(&self, area: &LogArea, start: u64, rest: &Rest<'_>) -> Option<LogArea> {
        match rest {
            Rest::Longer(segments) => {
                let lap = start + area.bytes();
                area.relaid(start, lap, [self.extent_of(*segments)])
            }
            Rest::Only(segments) => {
                let end = self.lower.log.pause().0;
                let kept = match canary::is_on(Canary::LeaveLogEarly) {
                    true => end,
                    false => start,
                };
                let rest = area.without(kept, end, self.extents_of(segments));
                area.relaid(kept, end, rest)
            }
        }
    }

    /// Has the log go on in `rest`, and frees the segments that it leaves.
    fn relay_log(&self, worker: &Worker, rest: &Rest<'_>) -> Result<Relaid, StorageError> {
        let (log, pagestore) = (&self.lower.log, &self.pagestore);
        let Some(mut current) = self.take() else {
            worker.sleep_until(clock::now() + RETRY);
            return Ok(Relaid::Later);
        };
        let Some(area) = log.area() else {
            self.give_back(current);
            return Ok(Relaid::Refused);
        };
        let mut next = current.superblock.clone();
        let start = next.log_start / BLOCK * BLOCK;
        let relaid = self.next_area(&area, start, rest);
        let Some(new) = relaid.filter(|new| new.extents().len() <= MAX_LOG_EXTENTS) else {
            log.go_on_in(LogArea::clone(&area));
            self.give_back(current);
            return Ok(Relaid::Refused);
        };
        let before = next.log_segments();
        next.log = Some(new.clone());
        let last = next.sequence + SUPERBLOCK_OFFSETS.len() as u64;
        next.segments = pagestore.superblock_begins(last).segments;
        next.log_durable = log.durable().0;
        let early = canary::is_on(Canary::RelayLogEarly);
        if early {
            log.go_on_in(new.clone());
        }
        // Both of them: were only one to have the new list and be corrupted later, the other would
        // vouch for a log that ends where the lists differ.
        let places = match canary::is_on(Canary::RelayOneSuperblock) {
            true => &SUPERBLOCK_OFFSETS[..1],
            false => &SUPERBLOCK_OFFSETS[..],
        };
        let result = places.iter().try_for_each(|_| {
            next.sequence += 1;
            CheckpointIo::Task(worker).superblock(&next)
        });
        let after = next.log_segments();
        if result.is_ok() {
            current.superblock = next;
        }
        self.give_back(current);
        result?;
        if !early {
            log.go_on_in(new);
        }
        for segment in before {
            if after.binary_search(&segment).is_err() {
                pagestore.release_log_segment(segment);
            }
        }
        trace::tell!(info, "the log has other extents", bytes = log.area_bytes());
        self.lower.workers.notify_all();
        Ok(Relaid::Done)
    }

    // ---- giving segments back -------------------------------------------------

    /// The log's segments in the volume, in ascending order, and whether their number may change.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(super) fn log_segments(&self, worker: &Worker) -> Result<(Vec<u32>, bool), StorageError> {
        loop {
            self.lower.shared.writable()?;
            if let Some(superblock) = self.superblock() {
                return Ok((superblock.log_segments(), superblock.max_log_segments > 0));
            }
            // A checkpoint is being written.
            worker.sleep_until(clock::now() + POLL);
        }
    }

    /// Waits until the log's area is not being changed.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(super) fn wait_for_log(&self, worker: &Worker) -> Result<(), StorageError> {
        // Bound: a change under way ends.
        while self.lower.log_tasks.is_changing() {
            worker.sleep_until(clock::now() + POLL);
            self.lower.shared.writable()?;
        }
        Ok(())
    }

    /// Those of the log's segments, in ascending order, that make it as long as it has to be; all
    /// of them if their number may not change.
    pub(super) fn min_log<'s>(&self, segments: &'s [u32], changes: bool) -> &'s [u32] {
        let segment = u64::from(self.lower.shared.config.sizes.bytes);
        let least = MIN_AREA_BYTES.div_ceil(segment) as usize;
        match changes {
            true => &segments[..segments.len().min(least)],
            false => segments,
        }
    }

    /// Has the log leave all segments but `kept`. Those of them that it `leaves`, too, are replaced
    /// by free ones. `false` if it cannot: much of it is in use all the time, or no segment is
    /// free.
    ///
    /// # Errors
    ///
    /// Any of the volume's, which poisons the store.
    pub(super) fn leave_segments(
        &self,
        worker: &Worker,
        kept: &[u32],
        leaves: impl Fn(u32) -> bool,
    ) -> Result<bool, StorageError> {
        let bytes_of = |segments: &[u32]| -> u64 {
            let extents = self.extents_of(segments);
            extents.map(|(_, length)| length).sum()
        };
        let least = bytes_of(kept);
        let mut next: Vec<u32> = kept.iter().copied().filter(|&s| !leaves(s)).collect();
        let mut taken = Vec::new();
        while bytes_of(&next) < least
            && let Some(segment) = self.pagestore.take_log_segment()
        {
            next.push(segment);
            taken.push(segment);
        }
        next.sort_unstable();
        let left = match bytes_of(&next) < least {
            true => Ok(Left::Nothing),
            false => self
                .fill_all(worker, &taken)
                .and_then(|()| self.try_to_leave(worker, &next)),
        };
        if let Err(error) = &left {
            self.lower.shared.poison(error.clone());
        }
        if matches!(left, Ok(Left::Nothing)) {
            for segment in taken {
                self.pagestore.release_log_segment(segment);
            }
        }
        Ok(matches!(left?, Left::All))
    }

    fn fill_all(&self, worker: &Worker, segments: &[u32]) -> Result<(), StorageError> {
        for &first in segments {
            let mut addition = Addition::of(Run { first, count: 1 });
            while !self.is_filled(&addition) {
                self.fill(worker, &mut addition)?;
            }
        }
        Ok(())
    }

    /// Has the log leave all segments but `kept`. It may take two changes of the list: a segment of
    /// which a recovery reads a part is left once a checkpoint starts behind that.
    fn try_to_leave(&self, worker: &Worker, kept: &[u32]) -> Result<Left, StorageError> {
        let bytes: u64 = self.extents_of(kept).map(|(_, length)| length).sum();
        let (mut left, mut read_to) = (Left::Nothing, Lsn(0));
        for _ in 0..MAX_MOVES {
            self.checkpoint_now(worker)?;
            if self.lower.log.start() < read_to {
                // Something holds the log, as a backup does: another change would leave no more.
                worker.sleep_until(clock::now() + POLL);
                continue;
            }
            self.lower.log_tasks.forget_wanted();
            let before = self.lower.log.area_bytes();
            if !self.lower.log.measure_by(bytes) {
                worker.sleep_until(clock::now() + POLL);
                continue;
            }
            let few_are_dirty = self.lower.buffer.pool.dirty.unwritten()
                <= self.lower.buffer.min_dirty_limit(self.pagestore.stored());
            let relaid = match few_are_dirty {
                true => self.relay_log(worker, &Rest::Only(kept))?,
                false => Relaid::Later,
            };
            match relaid {
                Relaid::Done if self.log_segments(worker)?.0 == kept => return Ok(Left::All),
                Relaid::Done => (left, read_to) = (Left::Some, self.lower.log.durable()),
                Relaid::Later => self.lower.log.measure_again_by(before),
                Relaid::Refused => {
                    self.lower.log.measure_again_by(before);
                    break;
                }
            }
        }
        Ok(left)
    }
}

/// The outcome of a change of the list.
enum Relaid {
    Done,
    /// A backup has the right to write superblocks, for a moment.
    Later,
    /// There would be too many extents.
    Refused,
}

/// What the log has left.
enum Left {
    /// Its list is as it was.
    Nothing,
    /// It has the segments that it keeps, and others.
    Some,
    All,
}
