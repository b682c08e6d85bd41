//! A log that grows: a larger area is made while the smaller one is in use, and then takes over
//! (docs/decisions/0028).
//!
//! The order is what matters. The new area is on the volume, zeroed and durable, before a superblock names it; both
//! superblocks name it before a record lies in it; and the old one is free once a checkpoint needs no record there.

use std::time::Duration;

use isobath_io::AlignedBuf;

use crate::canary::{self, Canary};
use crate::checkpoint::SUPERBLOCK_OFFSETS;
use crate::checkpoint::writer::CheckpointIo;
use crate::engine::Engine;
use crate::log::{Log, ReservationRequest};
use crate::pagestore::NotGrown;
use crate::runtime::{WorkerState, clock};
use crate::shared::{Counters, Run, SegmentSizes};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::{Error, trace};

/// Bytes that are zeroed at a time; between two such writes a checkpoint may begin.
const FILL_BYTES: u64 = 256 << 10;
/// A log is no longer than this, or than this many times the data, if a transaction does not need more.
const SMALL_LOG: u64 = 16 << 20;
const DATA_SHARE: u64 = 4;
/// How long a transaction that waits for a larger log sleeps between two looks.
const RETRY: Duration = Duration::from_millis(1);

/// How far the log has grown, and whether it should.
pub(crate) struct LogGrowth {
    /// Small and large segments of its area, of the one before it, and of one in the making.
    segments: [AtomicU32; 2],
    sizes: SegmentSizes,
    /// Bytes that the area should have at least.
    wanted: AtomicU64,
    /// The volume had no room, since the store was opened.
    refused: AtomicBool,
    /// A transaction waits for the log to leave the area that it had before.
    checkpoint: AtomicBool,
    /// A larger area is being made.
    making: AtomicBool,
}

impl LogGrowth {
    /// That of a log that has these runs.
    pub(crate) fn new(runs: &[Run], sizes: SegmentSizes) -> LogGrowth {
        let growth = LogGrowth {
            segments: [AtomicU32::new(0), AtomicU32::new(0)],
            sizes,
            wanted: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            checkpoint: AtomicBool::new(false),
            making: AtomicBool::new(false),
        };
        runs.iter().for_each(|run| growth.count(*run));
        growth
    }

    /// Those of the segments like `run`'s.
    fn like(&self, run: Run) -> &AtomicU32 {
        &self.segments[usize::from(run.first >= self.sizes.first_large)]
    }

    fn count(&self, run: Run) {
        self.like(run).fetch_add(run.count, Ordering::Relaxed);
    }

    /// Whether a larger area is being made.
    pub(crate) fn is_making(&self) -> bool {
        self.making.load(Ordering::SeqCst)
    }

    /// The log need not be larger than it is, as far as anything is known.
    pub(crate) fn forget_wanted(&self) {
        self.wanted.store(0, Ordering::Relaxed);
    }

    /// Whether a checkpoint is asked for that needs nothing of the log so far.
    #[inline]
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.checkpoint.load(Ordering::Relaxed)
    }

    /// Segments that the log has, of those that a volume of `segments` segments uses.
    pub(crate) fn segments(&self, segments: u32) -> u32 {
        let large = self.sizes.are_outgrown_by(segments);
        self.segments[usize::from(large)].load(Ordering::Relaxed)
    }
}

/// A larger area in the making.
pub(crate) struct Larger {
    run: Run,
    /// Bytes that are zeroed.
    filled: u64,
}

impl Larger {
    /// An area in `run`, nothing of it zeroed.
    pub(crate) fn in_run(run: Run) -> Larger {
        Larger { run, filled: 0 }
    }
}

impl Engine {
    /// A checkpoint was due: a log twice as long would need fewer, if the store is so large that it is worth the room.
    pub(crate) fn request_larger_log(&self) {
        let double = 2 * self.log.area_bytes();
        let data = self.pagestore.allocated_bytes();
        self.log_tasks
            .growth
            .checkpoint
            .store(false, Ordering::Relaxed);
        if double <= SMALL_LOG.max(DATA_SHARE * data) {
            self.log_tasks
                .growth
                .wanted
                .fetch_max(double, Ordering::Relaxed);
        }
    }

    /// Whether the log should grow, and may.
    #[inline]
    pub(crate) fn log_grows(&self) -> bool {
        let growth = &self.log_tasks.growth;
        let bytes = self.log.area_bytes();
        growth.wanted.load(Ordering::Relaxed) > bytes
            && bytes < self.log.max_area_bytes()
            && !growth.refused.load(Ordering::Relaxed)
            && !self.pagestore.is_shrinking()
            && !self.shared.is_recovering()
            && !self.shared.is_poisoned()
            && self.log.area().is_some_and(|area| area.is_alone())
    }

    /// A task waits for so much room in the log that its area has to be larger.
    pub(crate) fn request_log_growth(&self, need: &ReservationRequest) {
        let wanted = need.area_bytes();
        if wanted > self.log.area_bytes() {
            self.log_tasks
                .growth
                .wanted
                .fetch_max(wanted, Ordering::Relaxed);
        }
    }

    /// A checkpoint needs nothing of the area that the log had before, which lay in `run`.
    pub(crate) fn log_left(&self, run: Run) {
        self.log.forget_area_before();
        self.log_not_moved(run);
    }

    /// The log does not lie in `run`, or no longer.
    pub(crate) fn log_not_moved(&self, run: Run) {
        let segments = self.log_tasks.growth.like(run);
        segments.fetch_sub(run.count, Ordering::Relaxed);
        self.pagestore.release_log_run(run, &self.log_tasks);
    }

    /// Counts the segments of a new area as the log's, before others can take them.
    pub(crate) fn count_log_segments(&self, run: Run) {
        self.log_tasks.growth.count(run);
    }
}

impl WorkerState {
    /// A step towards a larger log, if it should grow; `false` where there is nothing to do.
    pub(crate) fn enlarge_log(&self, larger: &mut Option<Larger>) -> bool {
        let growth = &self.engine.log_tasks.growth;
        if larger.is_none() {
            // Who shortens the volume stops this first, then looks whether an area is being made: of the two, one sees the
            // other.
            growth.making.store(true, Ordering::SeqCst);
            if !self.engine.log_grows() {
                growth.making.store(false, Ordering::SeqCst);
                return false;
            }
        }
        let step = match larger {
            None => self.space_for_larger_log().map(|made| *larger = made),
            Some(area) if !self.is_filled(area) => self.fill(area),
            Some(area) => self.move_log(area.run).map(|moved| {
                if moved {
                    *larger = None;
                }
            }),
        };
        if let Err(error) = step {
            self.engine.shared.poison(error);
            *larger = None;
        }
        growth.making.store(larger.is_some(), Ordering::SeqCst);
        true
    }

    /// Segments for a larger area, at the volume's end; `None` where there is no room.
    fn space_for_larger_log(&self) -> Result<Option<Larger>, Error> {
        let engine = &self.engine;
        let wanted = engine.log_tasks.growth.wanted.load(Ordering::Relaxed);
        let bytes = wanted.max(2 * engine.log.area_bytes());
        let bytes = bytes.min(engine.log.max_area_bytes());
        match self.grow_by_run(bytes) {
            Ok(run) => Ok(Some(Larger { run, filled: 0 })),
            Err(NotGrown::NoSpace(_)) => {
                engine
                    .log_tasks
                    .growth
                    .refused
                    .store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(NotGrown::Failed(error)) => Err(error),
        }
    }

    pub(crate) fn bytes_of(&self, run: Run) -> u64 {
        let sizes = self.engine.shared.config.sizes;
        sizes.start_of(run.first + run.count) - sizes.start_of(run.first)
    }

    fn is_filled(&self, area: &Larger) -> bool {
        area.filled >= self.bytes_of(area.run)
    }

    /// Zeroes all of the area.
    pub(crate) fn fill_all(&self, area: &mut Larger) -> Result<(), Error> {
        while !self.is_filled(area) {
            self.fill(area)?;
        }
        Ok(())
    }

    /// Zeroes the next part of the area, and makes all of it durable at its end.
    fn fill(&self, area: &mut Larger) -> Result<(), Error> {
        let length = FILL_BYTES.min(self.bytes_of(area.run) - area.filled);
        let zeros = AlignedBuf::new(length as usize);
        let start = self.engine.shared.config.sizes.start_of(area.run.first);
        let written = self.worker.write(start + area.filled, zeros.as_slice());
        written.map_err(Error::Io)?;
        Counters::add(&self.engine.shared.counters.bytes_written, length);
        area.filled += length;
        if self.is_filled(area) {
            self.worker.flush().map_err(Error::Io)?;
        }
        Ok(())
    }

    /// Has the log go on in `run`; `false` while a backup has the right to write superblocks.
    pub(crate) fn move_log(&self, run: Run) -> Result<bool, Error> {
        let engine = &self.engine;
        let Some(mut current) = engine.checkpoints.take() else {
            self.worker.sleep_until(clock::now() + RETRY);
            return Ok(false);
        };
        let switch = engine.log.pause();
        let mut next = current.superblock.clone();
        let before = Run {
            first: next.log_first,
            count: next.log_segments,
        };
        next.log_before = Some((switch.0, before));
        next.log_first = run.first;
        next.log_segments = run.count;
        let last = next.sequence + SUPERBLOCK_OFFSETS.len() as u64;
        next.segments = engine.pagestore.superblock_begins(last).segments;
        next.log_durable = engine.log.durable().0;
        let area = crate::recovery::open::log_area(&next);
        let early = canary::sings(Canary::MoveLogEarly);
        if let Some(area) = area.clone().filter(|_| early) {
            engine.log.go_on_in(area);
        }
        // Both of them: were only one to name the new area and be corrupted later, the other would vouch for a log that
        // ends where the old area was left.
        let result = SUPERBLOCK_OFFSETS.iter().try_for_each(|_| {
            next.sequence += 1;
            CheckpointIo::Task(self).superblock(&next)
        });
        if result.is_ok() {
            current.superblock = next;
        }
        engine.checkpoints.give_back(current);
        result?;
        if let Some(area) = area.filter(|_| !early) {
            engine.log.go_on_in(area);
        }
        trace::tell!(info, "the log has moved", bytes = engine.log.area_bytes());
        engine.workers.notify_all();
        Ok(true)
    }

    /// Waits until the log has grown so far that a transaction's record of `bytes` bytes fits.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionTooLarge`]; [`Error::Poisoned`].
    pub(crate) fn wait_for_larger_log(&self, bytes: u64) -> Result<(), Error> {
        let engine = &self.engine;
        let too_large = |limit| Error::TransactionTooLarge { bytes, limit };
        if bytes > engine.log.transaction_limit() {
            return Err(too_large(engine.log.transaction_limit()));
        }
        self.await_log_for(bytes)
    }

    /// Waits until the log has grown so far that one record of `bytes` bytes, which it can hold once it has grown, fits.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionTooLarge`] where the volume has no space for that; [`Error::Poisoned`].
    pub(crate) fn await_log_for(&self, bytes: u64) -> Result<(), Error> {
        let engine = &self.engine;
        if bytes <= engine.log.record_limit_now() {
            return Ok(());
        }
        let wanted = Log::area_for(bytes);
        let since = clock::now();
        // Bound: growth ends, or is refused.
        while bytes > engine.log.record_limit_now() {
            engine.shared.writable()?;
            if engine.log_tasks.growth.refused.load(Ordering::Relaxed) {
                let limit = engine.log.record_limit_now();
                return Err(Error::TransactionTooLarge { bytes, limit });
            }
            if engine
                .log_tasks
                .growth
                .wanted
                .fetch_max(wanted, Ordering::Relaxed)
                < wanted
            {
                engine.workers.notify_all();
            }
            if engine.log.area().is_some_and(|area| !area.is_alone()) {
                engine
                    .log_tasks
                    .growth
                    .checkpoint
                    .store(true, Ordering::Relaxed);
            }
            self.worker.sleep_until(clock::now() + RETRY);
        }
        engine.shared.counters.stalled(clock::now() - since);
        Ok(())
    }
}
