//! A log that grows: a larger area is made while the smaller one is in use, and then takes over
//! (docs/decisions/0028).
//!
//! The order is what matters. The new area is on the volume, zeroed and durable, before a
//! superblock names it; both superblocks name it before a record lies in it; and the old one is
//! free once a checkpoint needs no record there.

use std::time::Duration;

use isobath_io::AlignedBuf;

use super::log_device::log_area;
use super::superblock::LogBefore;
use super::writer::CheckpointIo;
use super::{Checkpoints, SUPERBLOCK_OFFSETS};
use crate::canary::{self, Canary};
use crate::pagestore::NotGrown;
use crate::runtime::{Worker, clock};
use crate::shared::{Counters, Run};
use crate::{Error, trace};

/// Bytes that are zeroed at a time; between two such writes a checkpoint may begin.
const FILL_BYTES: u64 = 256 << 10;
/// A log is no longer than this, or than this many times the data, if a transaction does not need
/// more.
const SMALL_LOG: u64 = 16 << 20;
const DATA_SHARE: u64 = 4;
/// How long the checkpointer waits for the right to write superblocks.
const RETRY: Duration = Duration::from_millis(1);

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

impl Checkpoints {
    /// A checkpoint was due: a log twice as long would need fewer, if the store is so large that it
    /// is worth the room.
    pub(super) fn request_larger_log(&self) {
        let double = 2 * self.lower.log.area_bytes();
        let data = self.pagestore.allocated_bytes();
        self.lower.log_tasks.has_checkpoint();
        if double <= SMALL_LOG.max(DATA_SHARE * data) {
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

    /// A checkpoint needs nothing of the area that the log had before, which lay in `run`.
    pub(super) fn log_left(&self, run: Run) {
        self.lower.log.forget_area_before();
        self.pagestore.release_log_run(run);
    }

    /// A step towards a larger log, if it should grow; `false` if there is nothing to do.
    pub(super) fn enlarge_log(&self, worker: &Worker, larger: &mut Option<Larger>) -> bool {
        let log = &self.lower.log_tasks;
        if larger.is_none() {
            // Who shortens the volume stops this first, then looks whether an area is being made:
            // of the two, one sees the other.
            log.set_moving(true);
            if !self.log_grows() {
                log.set_moving(false);
                return false;
            }
        }
        let step = match larger {
            None => self.space_for_larger_log(worker).map(|made| *larger = made),
            Some(area) if !self.is_filled(area) => self.fill(worker, area),
            Some(area) => self.move_log(worker, area.run).map(|moved| {
                if moved {
                    *larger = None;
                }
            }),
        };
        if let Err(error) = step {
            self.lower.shared.poison(error);
            *larger = None;
        }
        log.set_moving(larger.is_some());
        true
    }

    /// Segments for a larger area, at the volume's end; `None` if there is no room.
    fn space_for_larger_log(&self, worker: &Worker) -> Result<Option<Larger>, Error> {
        let (log, log_tasks) = (&self.lower.log, &self.lower.log_tasks);
        let bytes = log_tasks.wanted_bytes().max(2 * log.area_bytes());
        let bytes = bytes.min(log.max_area_bytes());
        match self.pagestore.grow_by_run(worker, bytes) {
            Ok(run) => Ok(Some(Larger { run, filled: 0 })),
            Err(NotGrown::NoSpace(_)) => {
                log_tasks.refuse_growth();
                Ok(None)
            }
            Err(NotGrown::Failed(error)) => Err(error),
        }
    }

    pub(super) fn bytes_of(&self, run: Run) -> u64 {
        let sizes = self.lower.shared.config.sizes;
        sizes.start_of(run.first + run.count) - sizes.start_of(run.first)
    }

    fn is_filled(&self, area: &Larger) -> bool {
        area.filled >= self.bytes_of(area.run)
    }

    /// Zeroes all of the area.
    pub(super) fn fill_all(&self, worker: &Worker, area: &mut Larger) -> Result<(), Error> {
        while !self.is_filled(area) {
            self.fill(worker, area)?;
        }
        Ok(())
    }

    /// Zeroes the next part of the area, and makes all of it durable at its end.
    fn fill(&self, worker: &Worker, area: &mut Larger) -> Result<(), Error> {
        let length = FILL_BYTES.min(self.bytes_of(area.run) - area.filled);
        let zeros = AlignedBuf::new(length as usize);
        let start = self.lower.shared.config.sizes.start_of(area.run.first);
        let written = worker.write(start + area.filled, zeros.as_slice());
        written.map_err(Error::Io)?;
        Counters::add(&self.lower.shared.counters.bytes_written, length);
        area.filled += length;
        if self.is_filled(area) {
            worker.flush().map_err(Error::Io)?;
        }
        Ok(())
    }

    /// Has the log go on in `run`; `false` while a backup has the right to write superblocks.
    pub(super) fn move_log(&self, worker: &Worker, run: Run) -> Result<bool, Error> {
        let (log, pagestore) = (&self.lower.log, &self.pagestore);
        let Some(mut current) = self.take() else {
            worker.sleep_until(clock::now() + RETRY);
            return Ok(false);
        };
        let switch = log.pause();
        let mut next = current.superblock.clone();
        let before = Run {
            first: next.log_first,
            count: next.log_segments,
        };
        next.log_before = LogBefore::new(switch.0, before);
        next.log_first = run.first;
        next.log_segments = run.count;
        let last = next.sequence + SUPERBLOCK_OFFSETS.len() as u64;
        next.segments = pagestore.superblock_begins(last).segments;
        next.log_durable = log.durable().0;
        let area = log_area(&next);
        let early = canary::is_on(Canary::MoveLogEarly);
        if let Some(area) = area.clone().filter(|_| early) {
            log.go_on_in(area);
        }
        // Both of them: were only one to name the new area and be corrupted later, the other would
        // vouch for a log that ends where the old area was left.
        let places = match canary::is_on(Canary::MoveOneSuperblock) {
            true => &SUPERBLOCK_OFFSETS[..1],
            false => &SUPERBLOCK_OFFSETS[..],
        };
        let result = places.iter().try_for_each(|_| {
            next.sequence += 1;
            CheckpointIo::Task(worker).superblock(&next)
        });
        if result.is_ok() {
            current.superblock = next;
        }
        self.give_back(current);
        result?;
        if let Some(area) = area.filter(|_| !early) {
            log.go_on_in(area);
        }
        trace::tell!(info, "the log has moved", bytes = log.area_bytes());
        self.lower.workers.notify_all();
        Ok(true)
    }
}
