//! Changes that no durable copy has yet. A recovery has to start before the oldest of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Buffer;
use super::changed_pages::ChangedMapPages;
use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::log::record::{Copied, Kind, Mapped, Token, mapping_body};
use crate::page::{Lsn, PageId};
use crate::runtime::{WaitQueue, Worker};
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// A floor that holds nothing back.
const NONE: u64 = u64::MAX;

/// Changes that have left their dirty frames and are not yet in a copy that a durable record names.
struct UnflushedBatches {
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
    fn new(writers: usize) -> UnflushedBatches {
        UnflushedBatches {
            floors: (0..writers).map(|_| AtomicU64::new(NONE)).collect(),
            written: Mutex::default(),
            late: Mutex::default(),
        }
    }

    /// A change as old as `oldest` is in the batch of the writing task `slot`.
    /// Called before the frame says that it is clean.
    fn hold(&self, slot: usize, oldest: Lsn) {
        self.floors[slot].fetch_min(oldest.0, AcqRel);
    }

    /// The batch of `slot` was written; `record` says where to. Some page in it has
    /// ended before that record, but not before `late_since`, if that is given.
    ///
    /// The floor of a batch that could not be written stays: what is in it
    /// is in no copy, and the store, which is poisoned, writes it no more.
    fn written(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
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
    fn release(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        if let Some(since) = late_since {
            self.late.lock().push((since, record));
        }
        // Last: a look that finds no floor finds the batch that it has become.
        self.floors[slot].store(NONE, Release);
    }

    /// Whether some batch holds the log.
    #[cfg(test)]
    fn is_held(&self) -> bool {
        self.floors.iter().any(|floor| floor.load(Acquire) != NONE)
    }

    /// Mapping records of an earlier opening with pages that may have ended before them; see
    /// [`UnflushedBatches::late`].
    fn add_late(&self, late: &[(Lsn, Lsn)]) {
        self.late.lock().extend(late);
    }
}

/// Changes between dirty frames and the mapping table on the volume: those that have left their
/// frames, and words that the next checkpoint has to write.
pub(crate) struct ChangeTracker {
    pages: ChangedMapPages,
    batches: UnflushedBatches,
    /// Tasks that wait until old changes are on the drive.
    flush_waiters: Arc<WaitQueue>,
}

impl ChangeTracker {
    /// `pages` ids have words in the mapping table, and `writers` tasks write pages.
    pub(super) fn new(
        pages: u64,
        writers: usize,
        flush_waiters: &Arc<WaitQueue>,
    ) -> Arc<ChangeTracker> {
        Arc::new(ChangeTracker {
            pages: ChangedMapPages::new(pages),
            batches: UnflushedBatches::new(writers),
            flush_waiters: Arc::clone(flush_waiters),
        })
    }

    /// `written` dirty pages have been written back so far: tasks that wait for this many go on.
    pub(super) fn pages_written(&self, written: u64) {
        self.flush_waiters.wake(written);
    }

    /// Has the task wait until `written` dirty pages have been written back, unless `is_over`.
    pub(crate) fn wait_for_written(
        &self,
        worker: &Worker,
        written: u64,
        is_over: impl Fn() -> bool,
    ) {
        self.flush_waiters.wait(worker, written, is_over);
    }

    /// Whether tasks wait for dirty pages to be written, however few there are.
    #[inline]
    pub(crate) fn wants_pages_written(&self) -> bool {
        self.flush_waiters.has_waiters()
    }

    /// The next checkpoint has to write the word of `id`.
    #[inline]
    pub(crate) fn mark(&self, id: PageId) {
        self.pages.mark(id);
    }

    /// Pages of the mapping table that the next checkpoint has to write.
    #[inline]
    pub(crate) fn map_pages(&self) -> &ChangedMapPages {
        &self.pages
    }

    /// A change as old as `oldest` is in the batch of the writing task `slot`. Called before the
    /// frame says that it is clean.
    pub(crate) fn hold_batch(&self, slot: usize, oldest: Lsn) {
        self.batches.hold(slot, oldest);
    }

    /// The batch of `slot` was written; `record` says where to. Some page in it has ended before
    /// that record, but not before `late_since`, if that is given.
    pub(crate) fn batch_written(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        self.batches.written(slot, record, late_since);
    }

    /// The pages that the task `slot` has moved are where `record` says; they held no changes.
    pub(crate) fn batch_moved(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        self.batches.release(slot, record, late_since);
    }

    /// Mapping records of an earlier opening with pages that may have ended before them.
    pub(crate) fn add_late(&self, late: &[(Lsn, Lsn)]) {
        self.batches.add_late(late);
    }

    /// Whether some batch holds the log.
    #[cfg(test)]
    pub(crate) fn is_held(&self) -> bool {
        self.batches.is_held()
    }
}

impl Buffer {
    /// The oldest change that no durable copy contains, as of now and of
    /// `complete`, which was read before. For `pause` see `Checkpoints::recovery_start`.
    pub(crate) fn oldest_unflushed(&self, complete: Lsn, pause: impl FnMut()) -> Lsn {
        if canary::is_on(Canary::CutLogEarly) {
            return complete;
        }
        let mut oldest = complete.0;
        for frame in self.pool.frames.each_used(pause) {
            if let Some(change) = self.pool.frames.header(frame).oldest_change() {
                oldest = oldest.min(change.0);
            }
        }
        for floor in &self.changes.batches.floors {
            if !canary::is_on(Canary::IgnoreBatches) {
                oldest = oldest.min(floor.load(Acquire));
            }
        }
        let durable = self.log.durable();
        let mut written = self.changes.batches.written.lock();
        written.retain(|(_, record)| *record >= durable && !canary::is_on(Canary::IgnoreRecords));
        let waiting = written.iter().map(|(floor, _)| *floor);
        Lsn(waiting.fold(oldest, u64::min))
    }

    /// Where the log may start at `start` or earlier, so that no record is behind
    /// that place which is wrong without one before it.
    pub(crate) fn before_late_records(&self, start: Lsn) -> Lsn {
        let mut late = self.changes.batches.late.lock();
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

    /// Where the log may start at `start` or later, so that no record is behind that place which is
    /// wrong without one before it. A checkpoint that leaves changes before this dirty is moved
    /// back to before such a record, and however often it is repeated frees no log.
    pub(crate) fn after_late_records(&self, start: Lsn) -> Lsn {
        let late = self.changes.batches.late.lock();
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

    /// Waits until every batch that is being written or moved now has its mapping record.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn wait_for_batches(&self, worker: &Worker) -> Result<(), StorageError> {
        for floor in &self.changes.batches.floors {
            let held = floor.load(Acquire);
            // The next batch of the same task holds back something newer.
            while held != NONE && floor.load(Acquire) == held {
                self.shared.writable()?;
                worker.yield_now();
            }
        }
        Ok(())
    }

    /// Appends a mapping record; if nothing is logged, an LSN. The caller has
    /// changed the mapping already.
    pub(crate) fn log_copies(&self, worker: &Worker, token: Token, copies: &[Mapped]) -> Lsn {
        let body = if self.log.is_on() {
            mapping_body(token, copies)
        } else {
            Vec::new()
        };
        let mark = || copies.iter().for_each(|copy| self.changes.mark(copy.page));
        let late = canary::is_on(Canary::MarkLate);
        // Before the record is complete: a checkpoint that starts behind the record
        // stores the words instead.
        if !late {
            mark();
        }
        let record = self
            .log
            .append(worker.index, Kind::Mapping, &[&body], |lsn| {
                let unflushed = copies
                    .iter()
                    .filter(|copy| copy.what == Copied::UnflushedChunk);
                let bytes = unflushed.map(|copy| u64::from(copy.address.length())).sum();
                if bytes > 0 {
                    self.log.names_unflushed(lsn, bytes);
                }
            });
        if late {
            // As if others ran for a while.
            (0..3_000).for_each(|_| worker.yield_now());
            mark();
        }
        record
    }

    /// Dirty frames with a change older than `before`, each as it is when it is looked at; `pause`
    /// may yield.
    pub(crate) fn count_older(&self, before: Lsn, pause: impl FnMut()) -> usize {
        (self.pool.frames.each_used(pause))
            .filter_map(|frame| self.pool.frames.header(frame).oldest_change())
            .filter(|&change| change < before)
            .count()
    }

    /// Waits until no page that has ended is still being written: only then its
    /// last place dies.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn wait_for_ended_pages(&self, worker: &Worker) -> Result<(), StorageError> {
        let frames = &self.pool.frames;
        let is_written = |frame| {
            let header = frames.header(frame);
            header.is_freed() && header.is_written()
        };
        while frames.each_used(|| worker.yield_now()).any(is_written) {
            self.shared.writable()?;
            worker.yield_now();
        }
        Ok(())
    }
}
