//! What must be durable before something else may happen: addresses that die
//! only with the record that replaces them, writes whose mapping record is not
//! durable yet, pages and chunks that nothing reachable names yet
//! (docs/decisions/0014).

#![allow(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};

use isobath_io::Io;

use super::provisional::Provisional;
use super::{Engine, WorkerState};
use crate::Error;
use crate::buffer::flag;
use crate::canary::{self, Canary};
use crate::log::record::{Copied, Kind, Mapped, Token, free_body, mapping_body};
use crate::log::{LogRoom, Tier};
use crate::page::{Lsn, PageId};
use crate::pagestore::Address;
use crate::sched::TaskRef;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicU64, AtomicUsize};

/// A floor that holds nothing back.
const NONE: u64 = u64::MAX;

/// The waiting rooms between a change and its durability.
pub(crate) struct Settling {
    /// Addresses that die once the record at their LSN is durable; about in order.
    pending: Mutex<VecDeque<(Lsn, Address)>>,
    pending_count: AtomicUsize,
    /// Per system task: the oldest change in the batch that it is writing.
    floors: Vec<AtomicU64>,
    /// Batches that were written: the oldest change in them, and their mapping record.
    unsettled: Mutex<VecDeque<(u64, Lsn)>>,
    /// Mapping records with pages that ended before them, but not before the first
    /// LSN: a recovery that reads such a record has to read the ends, too.
    late: Mutex<Vec<(Lsn, Lsn)>>,
    /// What belongs to something that is not committed yet.
    provisional: Provisional,
    /// Chunks that are being freed.
    frees: Mutex<Frees>,
    /// Who waits for old changes to be written, and how many frames have to have
    /// turned clean, since the store was opened, before it looks again.
    flush_waiters: Mutex<Vec<(usize, TaskRef)>>,
    /// How many wait, for reading without the lock.
    flush_waiting: AtomicUsize,
    flush: SharedFlush,
}

impl Settling {
    /// For as many tasks that write batches as `writers`.
    pub(super) fn new(writers: usize) -> Settling {
        Settling {
            pending: Mutex::new(VecDeque::new()),
            pending_count: AtomicUsize::new(0),
            floors: (0..writers).map(|_| AtomicU64::new(NONE)).collect(),
            unsettled: Mutex::new(VecDeque::new()),
            late: Mutex::new(Vec::new()),
            provisional: Provisional::default(),
            frees: Mutex::new(Frees::default()),
            flush_waiters: Mutex::new(Vec::new()),
            flush_waiting: AtomicUsize::new(0),
            flush: SharedFlush::default(),
        }
    }

    /// A change as old as `oldest` is in the batch of the writing task `slot`.
    /// Called before the frame says that it is clean.
    pub(super) fn hold(&self, slot: usize, oldest: u64) {
        self.floors[slot].fetch_min(oldest, AcqRel);
    }

    /// The batch of `slot` was written; `record` says where to. Some page in it has
    /// ended before that record, but not before `late_since`, if that is given.
    ///
    /// The floor of a batch that could not be written stays for good: what is in it
    /// is in no copy, and the store, which is poisoned, writes it no more.
    pub(super) fn written(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        let floor = self.floors[slot].load(Acquire);
        if floor != NONE {
            self.unsettled.lock().push_back((floor, record));
            // A page ends after all its changes.
            let late_since = late_since.map(|since| since.max(Lsn(floor)));
            self.release(slot, record, late_since);
        }
    }

    /// The pages that the task `slot` has moved are where `record` says; they held
    /// no changes. For the rest see [`Settling::written`].
    pub(super) fn release(&self, slot: usize, record: Lsn, late_since: Option<Lsn>) {
        if let Some(since) = late_since {
            self.late.lock().push((since, record));
        }
        // Last: who finds no floor finds what it has become.
        self.floors[slot].store(NONE, Release);
    }

    /// Mapping records of an earlier opening with pages that may have ended before them; see [`Settling::late`].
    pub(super) fn add_late(&self, late: &[(Lsn, Lsn)]) {
        self.late.lock().extend(late);
    }

    /// Whether writers are to write however few pages are dirty.
    pub(super) fn flush_wanted(&self) -> bool {
        self.flush_waiting.load(Relaxed) > 0
    }

    /// Wakes those who wait for no more than `cleaned` frames.
    fn wake_flush_waiters(&self, cleaned: usize) {
        let mut waiters = self.flush_waiters.lock();
        waiters.retain(|(target, task)| {
            let waits = *target > cleaned;
            if !waits {
                task.unpark();
            }
            waits
        });
        self.flush_waiting.store(waiters.len(), Relaxed);
    }
}

/// Those who take chunks out of the mapping table before their record is appended, by number.
#[derive(Default)]
struct Frees {
    begun: u64,
    open: BTreeSet<u64>,
}

/// From before the first chunk is taken out of the mapping table until the record of that is appended.
pub(crate) struct Freeing<'e> {
    engine: &'e Engine,
    number: u64,
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.engine.settling.frees.lock().open.remove(&self.number);
    }
}

impl Engine {
    /// Chunks are going to be taken out of the mapping table. The caller has room for the record that says so.
    pub(crate) fn begin_freeing(&self) -> Freeing<'_> {
        let mut frees = self.settling.frees.lock();
        frees.begun += 1;
        let number = frees.begun;
        frees.open.insert(number);
        Freeing {
            engine: self,
            number,
        }
    }

    /// Whether chunks are being freed, and were when as many had begun as `begun`.
    fn frees_since(&self, begun: u64) -> bool {
        let frees = self.settling.frees.lock();
        frees.open.first().is_some_and(|oldest| *oldest <= begun)
    }

    /// All that is provisionally allocated: token and pages.
    pub(crate) fn provisional(&self) -> Vec<(Token, Vec<PageId>)> {
        self.settling.provisional.list()
    }

    /// What is at `addresses` dies once the record at `record` is durable.
    pub(crate) fn defer_free(&self, record: Lsn, addresses: impl Iterator<Item = Address>) {
        let mut pending = self.settling.pending.lock();
        let before = pending.len();
        pending.extend(
            addresses
                .filter(|address| !address.is_none())
                .map(|address| (record, address)),
        );
        let added = pending.len() - before;
        self.settling.pending_count.fetch_add(added, Relaxed);
    }

    /// The LSN whose durability implies that of every record so far.
    pub(crate) fn newest_record(&self) -> Lsn {
        Lsn(self.log.next().0.saturating_sub(1))
    }

    /// Whether addresses wait for records to become durable.
    pub(crate) fn has_pending_frees(&self) -> bool {
        self.settling.pending_count.load(Relaxed) > 0
    }

    /// Where a recovery from a checkpoint that begins now has to start reading the
    /// log, or earlier. Called by who has the right to write checkpoints.
    ///
    /// A change moves from the log's incomplete end, or a commit in flight, to a
    /// dirty frame, from there to the floor of who writes it, to the unsettled, and
    /// to the mapping table. These are read in the same order, so that each change
    /// is seen at least once; see docs/decisions/0014.
    pub(crate) fn recovery_start(&self) -> Lsn {
        let complete = self.log.complete();
        let start = match canary::sings(Canary::IgnoreUnapplied) {
            true => complete,
            false => self.oldest_commit(complete),
        };
        let start = self.oldest_unflushed(start);
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
        self.oldest_commit(self.log.complete())
    }

    /// The oldest change that no durable copy contains, as of now and of
    /// `complete`, which was read before.
    fn oldest_unflushed(&self, complete: Lsn) -> Lsn {
        if canary::sings(Canary::CutLogEarly) {
            return complete;
        }
        let mut oldest = complete.0;
        for frame in 0..self.pool.frames.used() {
            let header = self.pool.frames.header(frame);
            let flags = header.flags.load(Acquire);
            if flags & flag::DIRTY != 0 && flags & flag::FREED == 0 {
                oldest = oldest.min(header.oldest_lsn.load(Acquire));
            }
        }
        for floor in &self.settling.floors {
            if !canary::sings(Canary::IgnoreBatches) {
                oldest = oldest.min(floor.load(Acquire));
            }
        }
        let durable = self.log.durable();
        let mut unsettled = self.settling.unsettled.lock();
        unsettled.retain(|(_, record)| *record >= durable && !canary::sings(Canary::IgnoreRecords));
        let waiting = unsettled.iter().map(|(floor, _)| *floor);
        Lsn(waiting.fold(oldest, u64::min))
    }

    /// Where the log may start at `start` or earlier, so that no record is behind
    /// that place which is wrong without one before it.
    fn before_late_records(&self, start: Lsn) -> Lsn {
        let mut late = self.settling.late.lock();
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

    /// Dirty frames with a change older than `before`.
    fn count_older(&self, before: Lsn) -> usize {
        (0..self.pool.frames.used())
            .filter(|&frame| {
                let header = self.pool.frames.header(frame);
                let flags = header.flags.load(Acquire);
                flags & flag::DIRTY != 0
                    && flags & flag::FREED == 0
                    && header.oldest_lsn.load(Acquire) < before.0
            })
            .count()
    }

    /// `pages` belong to `token` until a record confirms it. They are listed
    /// before the record that says so is appended.
    pub(crate) fn add_provisional(&self, token: Token, pages: &[PageId]) {
        if !canary::sings(Canary::ForgetProvisional) {
            self.settling.provisional.add(token, pages);
        }
    }

    /// The record that confirms `tokens`, or gives them up, and says that `ended`
    /// exist no longer, has been appended. Called before it counts as complete: no
    /// checkpoint that starts behind the record may still hold them open.
    pub(crate) fn confirm_allocations(&self, tokens: &[Token], ended: &[PageId]) {
        let ended = match canary::sings(Canary::KeepProvisionalOfFreedPages) {
            true => &[],
            false => ended,
        };
        let tokens = match canary::sings(Canary::KeepConfirmed) {
            true => &[],
            false => tokens,
        };
        self.settling.provisional.confirm(tokens, ended);
    }

    /// Writing has failed: nobody waits for old pages any longer.
    pub(super) fn settling_failed(&self) {
        self.settling.wake_flush_waiters(usize::MAX);
    }

    /// Lists `task` among those to wake when as many frames as `target` have turned
    /// clean; `false` if they have, or none will.
    fn wait_for_cleaned(&self, target: usize, task: TaskRef) -> bool {
        let mut waiters = self.settling.flush_waiters.lock();
        if self.pool.dirty.cleaned() >= target || self.poison.get().is_some() {
            return false;
        }
        waiters.push((target, task));
        self.settling.flush_waiting.store(waiters.len(), Relaxed);
        true
    }

    /// Frames have turned clean: whoever waits for old ones may look again.
    pub(super) fn flush_progress(&self) {
        // The lock orders this after the count, which a waiter reads under it.
        self.settling.wake_flush_waiters(self.pool.dirty.cleaned());
    }
}

impl WorkerState {
    /// Lets die what waited for records that are durable by now.
    pub(crate) fn drain_pending_frees(&self) -> bool {
        let engine = &self.engine;
        if !engine.has_pending_frees() {
            return false;
        }
        let durable = engine.log.durable();
        let Some(mut pending) = engine.settling.pending.try_lock() else {
            return false;
        };
        let mut dead: Vec<Address> = Vec::new();
        while let Some(&(record, address)) = pending.front()
            && (record < durable || canary::sings(Canary::ReuseSegmentsAtOnce))
        {
            pending.pop_front();
            dead.push(address);
        }
        drop(pending);
        if dead.is_empty() {
            return false;
        }
        engine.settling.pending_count.fetch_sub(dead.len(), Relaxed);
        let mut space = engine.space.lock();
        let mut freed = false;
        for address in dead {
            freed |= space.invalidate(address);
        }
        let spare = space.spare_segments();
        drop(space);
        self.after_space_change(freed, spare);
        true
    }

    /// Waits until no page that has ended is still being written: only then its
    /// last place dies.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn wait_for_ended_pages(&self) -> Result<(), Error> {
        let frames = &self.engine.pool.frames;
        let both = flag::FREED | flag::WRITING;
        let is_written = |frame| frames.header(frame).flags.load(Acquire) & both == both;
        while (0..frames.used()).any(is_written) {
            self.engine.writable()?;
            self.worker.yield_now();
        }
        Ok(())
    }

    /// Waits until every chunk that the mapping table does not name any more has the record of its end appended. Who
    /// keeps what the table says waits for this, and then until that record is durable.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn wait_for_frees(&self) -> Result<(), Error> {
        let begun = self.engine.settling.frees.lock().begun;
        while self.engine.frees_since(begun) && !canary::sings(Canary::FreeBeforeRecord) {
            self.engine.writable()?;
            self.worker.yield_now();
        }
        Ok(())
    }

    /// Waits until every batch that is being written or moved now has its mapping record.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn wait_for_batches(&self) -> Result<(), Error> {
        for floor in &self.engine.settling.floors {
            let held = floor.load(Acquire);
            // The next batch of the same task holds back something newer.
            while held != NONE && floor.load(Acquire) == held {
                self.engine.writable()?;
                self.worker.yield_now();
            }
        }
        Ok(())
    }

    /// Waits until everything that is dead by now counts as dead.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn wait_for_pending_frees(&self) -> Result<(), Error> {
        while self.engine.has_pending_frees() {
            self.wait_durable(self.engine.newest_record())?;
            if !self.drain_pending_frees() {
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
                .for_each(|copy| engine.changes.mark(copy.page))
        };
        let late = canary::sings(Canary::MarkLate);
        // Before the record is complete: a checkpoint that starts behind the record
        // stores the words instead.
        if !late {
            mark();
        }
        let record = engine
            .log
            .append(self.worker.index, Kind::Mapping, &[&body], |_| {});
        if late {
            // As if others ran for a while.
            (0..3_000).for_each(|_| self.worker.yield_now());
            mark();
        }
        record
    }

    /// Notes that `pages`, which no copy exists of yet, belong to `token`.
    pub(crate) fn log_provisional(&self, token: Token, pages: &[PageId]) {
        self.engine.add_provisional(token, pages);
        if !self.engine.log.is_on() || canary::sings(Canary::ForgetProvisional) {
            return;
        }
        let provisional: Vec<Mapped> = pages
            .iter()
            .map(|&page| Mapped {
                what: Copied::Provisional,
                page,
                version: Lsn(0),
                address: Address::NONE,
                seq: 0,
            })
            .collect();
        let _ = self.log_copies(token, &provisional);
    }

    /// Room for a free record. Without it the store is poisoned, and nothing is written any more.
    pub(crate) fn free_room(&self, tokens: usize, pages: usize) -> Option<LogRoom<'_>> {
        let bytes = 8 * (tokens + pages + 1) as u64;
        self.log_room(bytes, Tier::System).ok()
    }

    /// Appends a free record: pages without a copy that are gone, tokens given up. The
    /// mapping table does not name them. May wait for room in the log.
    pub(crate) fn log_free(&self, tokens: &[Token], pages: &[PageId]) -> Lsn {
        let _room = self.free_room(tokens.len(), pages.len());
        self.append_free(tokens, pages)
    }

    /// Appends a free record: chunks or pages that are gone, tokens given up. The
    /// caller has room for it.
    pub(crate) fn append_free(&self, tokens: &[Token], pages: &[PageId]) -> Lsn {
        let engine = &self.engine;
        let body = if engine.log.is_on() {
            free_body(tokens, pages)
        } else {
            Vec::new()
        };
        pages.iter().for_each(|&page| engine.changes.mark(page));
        let confirm = |_| engine.confirm_allocations(tokens, pages);
        engine
            .log
            .append(self.worker.index, Kind::Free, &[&body], confirm)
    }

    /// Waits until every change that is older than `before` is in a copy on
    /// the drive that a durable record names.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn flush_older_than(&self, before: Lsn) -> Result<(), Error> {
        let engine = &self.engine;
        loop {
            self.flush_older(before)?;
            // Copies may still be in flight, or their records.
            while engine.count_older(before) == 0 {
                engine.writable()?;
                let complete = engine.log.complete();
                if engine.oldest_unflushed(complete) >= before.min(complete) {
                    return Ok(());
                }
                self.wait_durable(engine.newest_record())?;
                self.worker.yield_now();
            }
            // A commit that was logged before has changed a page since.
        }
    }

    /// Waits until no dirty page has a change older than `before`.
    fn flush_older(&self, before: Lsn) -> Result<(), Error> {
        let engine = &self.engine;
        loop {
            engine.writable()?;
            // Of the frames that are counted, each adds one to this by and by.
            let cleaned = engine.pool.dirty.cleaned();
            let left = engine.count_older(before);
            if left == 0 {
                return Ok(());
            }
            let Some(task) = self.worker.current_task() else {
                return Err(Error::Closed);
            };
            if !engine.wait_for_cleaned(cleaned + left, task) {
                continue;
            }
            for handle in &engine.worker_handles {
                handle.notify();
            }
            self.worker.park();
        }
    }
}

/// Flushes of the volume that many writers share: whoever finds none under way
/// starts one, which covers every write that ended before it began.
#[derive(Default)]
pub(crate) struct SharedFlush(Mutex<FlushState>);

#[derive(Default)]
struct FlushState {
    is_running: bool,
    started: u64,
    finished: u64,
    /// Tasks that wait for a flush.
    waiters: Vec<TaskRef>,
}

impl WorkerState {
    /// Waits until what this task has written to the volume is on the drive.
    ///
    /// # Errors
    ///
    /// A failed flush, which poisons the store; [`Error::Poisoned`] where it
    /// was another task's.
    pub(crate) fn flush_volume(&self) -> Result<(), Error> {
        let flush = &self.engine.settling.flush.0;
        let needed = flush.lock().started + 1;
        loop {
            let mut state = flush.lock();
            if state.finished >= needed {
                return Ok(());
            }
            if !state.is_running {
                state.is_running = true;
                state.started += 1;
                drop(state);
                return self.run_flush();
            }
            let Some(task) = self.worker.current_task() else {
                return Err(Error::Closed);
            };
            state.waiters.push(task);
            drop(state);
            self.worker.park();
            self.engine.writable()?;
        }
    }

    fn run_flush(&self) -> Result<(), Error> {
        let engine = &self.engine;
        // SAFETY: a flush has no buffer.
        unsafe { self.worker.start_io(Io::flush(0)) };
        let result = self.worker.wait_io().map_err(Error::Io);
        if let Err(error) = &result {
            engine.poison(error.clone());
        }
        let mut state = engine.settling.flush.0.lock();
        state.is_running = false;
        if result.is_ok() {
            state.finished = state.started;
        }
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        for task in waiters {
            task.unpark();
        }
        result
    }
}

/// Which pages of the checkpointed mapping table have changed since they were
/// written: a bit each.
pub(crate) struct Changes(Vec<AtomicU64>);

impl Changes {
    /// For `capacity` page ids.
    pub(super) fn new(capacity: u64) -> Changes {
        let pages = capacity.div_ceil(crate::pagestore::checkpoint::words_per_page());
        let mut bits = Vec::new();
        bits.resize_with(pages.div_ceil(64) as usize, || AtomicU64::new(0));
        Changes(bits)
    }

    /// The word of `id` was changed.
    pub(crate) fn mark(&self, id: PageId) {
        let page = id.0 / crate::pagestore::checkpoint::words_per_page();
        self.mark_page(page);
    }

    /// Page `page` of the table is to be written again.
    pub(super) fn mark_page(&self, page: u64) {
        if let Some(word) = self.0.get((page / 64) as usize) {
            // Orders the change before whoever clears the bit.
            word.fetch_or(1 << (page % 64), AcqRel);
        }
    }

    /// Whether page `page` of the table is to be written.
    #[cfg(test)]
    pub(super) fn is_marked(&self, page: u64) -> bool {
        self.0[(page / 64) as usize].load(Acquire) & 1 << (page % 64) != 0
    }

    /// Clears the bit of `page`; whether it was set.
    pub(super) fn take(&self, page: u64) -> bool {
        let bit = 1 << (page % 64);
        self.0.get((page / 64) as usize).is_some_and(|word| {
            word.load(Acquire) & bit != 0 && word.fetch_and(!bit, AcqRel) & bit != 0
        })
    }
}
