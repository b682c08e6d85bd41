//! Which changes no durable copy has yet, and so where a recovery has to start reading the log (docs/decisions/0014).

use std::collections::VecDeque;

use crate::Error;
use crate::canary::{self, Canary};
use crate::engine::Engine;
use crate::log::record::{Copied, Kind, Mapped, Token, mapping_body};
use crate::page::Lsn;
use crate::runtime::WorkerState;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// A floor that holds nothing back.
const NONE: u64 = u64::MAX;

/// Changes that have left their dirty frames and are not yet in a copy that a durable record names.
pub(crate) struct UnflushedBatches {
    /// Per system task: the oldest change in the batch that it is writing.
    floors: Vec<AtomicU64>,
    /// Batches that were written: the oldest change in them, and their mapping record.
    written: Mutex<VecDeque<(u64, Lsn)>>,
    /// Mapping records with pages that were freed before them, but not before the first
    /// LSN: a recovery that reads such a record has to read the frees, too.
    late: Mutex<Vec<(Lsn, Lsn)>>,
}

impl UnflushedBatches {
    /// For as many tasks that write batches as `writers`.
    pub(crate) fn new(writers: usize) -> UnflushedBatches {
        UnflushedBatches {
            floors: (0..writers).map(|_| AtomicU64::new(NONE)).collect(),
            written: Mutex::default(),
            late: Mutex::default(),
        }
    }

    /// A change as old as `oldest` is in the batch of the writing task `slot`.
    /// Called before the frame says that it is clean.
    pub(crate) fn hold(&self, slot: usize, oldest: Lsn) {
        self.floors[slot].fetch_min(oldest.0, AcqRel);
    }

    /// The batch of `slot` was written; `record` says where to. Some page in it has
    /// ended before that record, but not before `late_since`, if that is given.
    ///
    /// The floor of a batch that could not be written stays for good: what is in it
    /// is in no copy, and the store, which is poisoned, writes it no more.
    pub(crate) fn written(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        let floor = self.floors[slot].load(Acquire);
        if floor != NONE {
            self.written.lock().push_back((floor, record));
            // A page ends after all its changes.
            let late_since = late_since.map(|since| since.max(Lsn(floor)));
            self.release(slot, record, late_since);
        }
    }

    /// The pages that the task `slot` has moved are where `record` says; they held
    /// no changes. For the rest see [`UnflushedBatches::written`].
    pub(crate) fn release(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        if let Some(since) = late_since {
            self.late.lock().push((since, record));
        }
        // Last: who finds no floor finds what it has become.
        self.floors[slot].store(NONE, Release);
    }

    /// Whether some batch holds the log.
    #[cfg(test)]
    pub(crate) fn is_held(&self) -> bool {
        self.floors.iter().any(|floor| floor.load(Acquire) != NONE)
    }

    /// Mapping records of an earlier opening with pages that may have ended before them; see [`UnflushedBatches::late`].
    pub(crate) fn add_late(&self, late: &[(Lsn, Lsn)]) {
        self.late.lock().extend(late);
    }
}

impl Engine {
    /// The LSN whose durability implies that of every record so far.
    pub(crate) fn newest_record(&self) -> Lsn {
        Lsn(self.log.next().0.saturating_sub(1))
    }

    /// Where a recovery from a checkpoint that begins now has to start reading the
    /// log, or earlier. Called by who has the right to write checkpoints.
    ///
    /// A change moves from the log's incomplete end, or a commit in flight, to a
    /// dirty frame, from there to the floor of who writes it, to the written batches, and
    /// to the mapping table. These are read in the same order, so that each change
    /// is seen at least once, however long that takes; see docs/decisions/0014. So `pause` may yield.
    pub(crate) fn recovery_start(&self, pause: impl FnMut()) -> Lsn {
        let complete = self.log.contiguous_lsn();
        let start = match canary::sings(Canary::IgnoreUnapplied) {
            true => complete,
            false => self.oldest_commit(complete),
        };
        let start = self.oldest_unflushed(start, pause);
        // Whatever moves it back may move it into the range of a late record.
        let start = start.min(self.backup.log_floor());
        let start = self.before_late_records(start);
        // A floor may be older than what it holds back. The checkpoint before this
        // needed nothing older, so neither does this; and the log has nothing older.
        start.max(self.log.start())
    }

    /// A lower bound of the records of all ends that the mapping table does not show
    /// yet: a page that it shows now ends with this record or a later one.
    pub(crate) fn oldest_end(&self) -> Lsn {
        if canary::sings(Canary::MissLateEnds) {
            return self.log.next();
        }
        self.oldest_commit(self.log.contiguous_lsn())
    }

    /// The oldest change that no durable copy contains, as of now and of
    /// `complete`, which was read before. For `pause` see [`Engine::recovery_start`].
    pub(crate) fn oldest_unflushed(&self, complete: Lsn, pause: impl FnMut()) -> Lsn {
        if canary::sings(Canary::CutLogEarly) {
            return complete;
        }
        let mut oldest = complete.0;
        for frame in self.buffer.pool.frames.each_used(pause) {
            if let Some(change) = self.buffer.pool.frames.header(frame).oldest_change() {
                oldest = oldest.min(change.0);
            }
        }
        for floor in &self.checkpoints.unflushed.floors {
            if !canary::sings(Canary::IgnoreBatches) {
                oldest = oldest.min(floor.load(Acquire));
            }
        }
        let durable = self.log.durable();
        let mut written = self.checkpoints.unflushed.written.lock();
        written.retain(|(_, record)| *record >= durable && !canary::sings(Canary::IgnoreRecords));
        let waiting = written.iter().map(|(floor, _)| *floor);
        Lsn(waiting.fold(oldest, u64::min))
    }

    /// Where the log may start at `start` or earlier, so that no record is behind
    /// that place which is wrong without one before it.
    pub(crate) fn before_late_records(&self, start: Lsn) -> Lsn {
        let mut late = self.checkpoints.unflushed.late.lock();
        late.retain(|(_, record)| *record >= self.log.start());
        // Bound: each round but the last moves it to before another record.
        let mut start = start;
        loop {
            let behind = late.iter().filter(|(_, record)| *record >= start);
            match behind.map(|(since, _)| *since).min() {
                Some(since) if since < start => start = since,
                _ => return start,
            }
        }
    }

    /// Where the log may start at `start` or later, so that no record is behind that place which is wrong without one before
    /// it. A checkpoint that leaves changes before this dirty is moved back to before such a record, and however
    /// often it is repeated frees no log.
    pub(crate) fn after_late_records(&self, start: Lsn) -> Lsn {
        let late = self.checkpoints.unflushed.late.lock();
        // Bound: each round but the last moves it behind another record.
        let mut start = start;
        loop {
            let around = late
                .iter()
                .filter(|(since, record)| *since < start && *record >= start);
            match around.map(|(_, record)| record.0 + 1).max() {
                Some(after) => start = Lsn(after),
                None => return start,
            }
        }
    }
}

impl WorkerState {
    /// Waits until every batch that is being written or moved now has its mapping record.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn wait_for_batches(&self) -> Result<(), Error> {
        for floor in &self.engine.checkpoints.unflushed.floors {
            let held = floor.load(Acquire);
            // The next batch of the same task holds back something newer.
            while held != NONE && floor.load(Acquire) == held {
                self.engine.shared.writable()?;
                self.worker.yield_now();
            }
        }
        Ok(())
    }

    /// Appends a mapping record; where nothing is logged, an LSN. The caller has
    /// changed the mapping already.
    pub(crate) fn log_copies(&self, token: Token, copies: &[Mapped]) -> Lsn {
        let engine = &self.engine;
        let body = if engine.log.is_on() {
            mapping_body(token, copies)
        } else {
            Vec::new()
        };
        let mark = || {
            copies
                .iter()
                .for_each(|copy| engine.checkpoints.mark(copy.page))
        };
        let late = canary::sings(Canary::MarkLate);
        // Before the record is complete: a checkpoint that starts behind the record
        // stores the words instead.
        if !late {
            mark();
        }
        let record = engine
            .log
            .append(self.worker.index, Kind::Mapping, &[&body], |lsn| {
                let unflushed = copies
                    .iter()
                    .filter(|copy| copy.what == Copied::UnflushedChunk);
                let bytes = unflushed.map(|copy| u64::from(copy.address.length())).sum();
                if bytes > 0 {
                    engine.log.names_unflushed(lsn, bytes);
                }
            });
        if late {
            // As if others ran for a while.
            (0..3_000).for_each(|_| self.worker.yield_now());
            mark();
        }
        record
    }
}
