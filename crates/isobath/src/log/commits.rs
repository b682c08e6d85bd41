//! Commits in flight, and the watermark below which all are applied.

use std::collections::BTreeSet;

use super::{Log, LogTasks};
use crate::canary::{self, Canary};
use crate::page::Lsn;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// LSNs are multiples of 8; a slot's word keeps two things below.
const LSN: u64 = !7;
/// Which of its slot's commits it is, modulo 4.
const GENERATION: u64 = 6;
const GENERATION_STEP: u64 = 2;
/// The commit may leave out its versions.
const UNVERSIONED: u64 = 1;
/// Beside the LSN of an applied commit: it stays until it is durable.
const LASTS: u64 = 1;

/// Slots beyond a worker's tasks: for its background work.
const SYSTEM_SLOTS: usize = 8;

/// The slots of one worker. Only its thread occupies and empties them.
#[repr(align(128))]
struct WorkerSlots {
    /// All slots from here on are empty.
    high: AtomicUsize,
    /// All slots below this are occupied.
    low: AtomicUsize,
    /// Snapshots that do not begin here or later would miss changes that have left
    /// no versions.
    unversioned_end: AtomicU64,
    slots: Box<[AtomicU64]>,
    /// For each slot: 0, or the LSN of its commit once that is applied and stays
    /// only until the watermark has passed it; with [`LASTS`], which happens no earlier than it is
    /// durable.
    applied: Box<[AtomicU64]>,
}

/// A slot per task, for the commit that it has in flight: a lower bound of its
/// LSN, and the LSN once the record has one.
pub(crate) struct Tracker {
    workers: Box<[WorkerSlots]>,
    /// The highest watermark that was reported. A commit may publish a lower bound that is older
    /// than this; its LSN never is.
    reported: AtomicU64,
    /// Serializable commits that have begun to validate, and those of them that
    /// have appended their record, or are cancelled.
    validating: [AtomicU64; 2],
    /// Records of large commits that are visible while what they free is not free yet.
    ending: Mutex<BTreeSet<Lsn>>,
}

/// A record whose frees have not ended until this is dropped.
pub(crate) struct Ending<'t> {
    tracker: &'t Tracker,
    lsn: Lsn,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.tracker.ending.lock().remove(&self.lsn);
    }
}

/// Between the validation of what a serializable commit has read and its LSN.
pub(crate) struct Validating<'t>(&'t AtomicU64);

impl Drop for Validating<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl WorkerSlots {
    /// Lower bound of each commit in a slot and, if it is applied already, its LSN and [`LASTS`].
    fn commits(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let high = self.high.load(Ordering::Acquire);
        let slots = self.slots[..high].iter().zip(&self.applied);
        // In this order: a commit that empties a slot, or takes an empty one, does the opposite.
        slots.filter_map(|(slot, applied)| {
            let bound = slot.load(Ordering::Acquire) & LSN;
            (bound != 0).then(|| (bound, applied.load(Ordering::Acquire)))
        })
    }
}

/// A commit in flight. Dropping it says that the commit is fully applied, or
/// was cancelled before it had a record.
pub(crate) struct Slot<'t> {
    worker: &'t WorkerSlots,
    index: usize,
}

impl Tracker {
    pub(crate) fn new(workers: usize, tasks: usize) -> Tracker {
        let slots = |_| WorkerSlots {
            high: AtomicUsize::new(0),
            low: AtomicUsize::new(0),
            unversioned_end: AtomicU64::new(0),
            slots: zeros(tasks + SYSTEM_SLOTS),
            applied: zeros(tasks + SYSTEM_SLOTS),
        };
        Tracker {
            workers: (0..workers).map(slots).collect(),
            reported: AtomicU64::new(0),
            validating: [AtomicU64::new(0), AtomicU64::new(0)],
            ending: Mutex::default(),
        }
    }

    /// Pages and chunks end with the record at `lsn`, one after another, from now on: no log may
    /// begin behind it until this is dropped.
    pub(crate) fn begin_ending(&self, lsn: Lsn) -> Ending<'_> {
        self.ending.lock().insert(lsn);
        Ending { tracker: self, lsn }
    }

    /// Whether some record frees what is not free yet.
    #[cfg(test)]
    pub(crate) fn is_ending(&self) -> bool {
        !self.ending.lock().is_empty()
    }

    /// The LSN at which replaying commits would have to start, with the pages as they are now.
    fn oldest_unapplied(&self, log: &Log) -> Lsn {
        // In this order: what a record frees is noted before the watermark passes it.
        let watermark = Lsn(self.watermark(log));
        let ending = self.ending.lock().first().copied();
        match ending.filter(|_| !canary::is_on(Canary::IgnoreEnding)) {
            Some(oldest) => oldest.min(watermark),
            None => watermark,
        }
    }

    /// Says that a serializable commit validates from now on.
    pub(crate) fn begin_validating(&self) -> Validating<'_> {
        let [begun, ended] = &self.validating;
        begun.fetch_add(1, Ordering::SeqCst);
        Validating(ended)
    }

    /// Whether a serializable commit may have validated already and has no LSN yet.
    /// It has not seen the versions that the caller has just published; the caller
    /// is not to get a lower LSN.
    #[inline]
    pub(crate) fn is_validating(&self) -> bool {
        fence(Ordering::SeqCst);
        let [begun, ended] = &self.validating;
        // In this order: as many have ended as had begun, or more.
        let ended = ended.load(Ordering::SeqCst);
        begun.load(Ordering::SeqCst) != ended
    }

    /// Announces a commit of a task of worker `worker`, on that worker's thread:
    /// from now on the watermark stays below whatever LSN it gets. The commit
    /// counts as blind until [`Slot::adds_versions`].
    #[inline]
    pub(crate) fn register(&self, worker: usize, log: &Log) -> Slot<'_> {
        let worker = &self.workers[worker];
        let low = worker.low.load(Ordering::Relaxed);
        let mut above = worker.slots[low..].iter();
        let index = above
            .position(|slot| slot.load(Ordering::Relaxed) & LSN == 0)
            .map(|index| low + index);
        #[expect(
            clippy::expect_used,
            reason = "a task has one commit in flight, and every task has a slot"
        )]
        let index = index.expect("a free slot for every task");
        worker.low.store(index + 1, Ordering::Relaxed);
        let slot = &worker.slots[index];
        let generation = slot.load(Ordering::Relaxed).wrapping_add(GENERATION_STEP) & GENERATION;
        slot.store(
            log.next().0 & LSN | generation | UNVERSIONED,
            Ordering::Release,
        );
        if index >= worker.high.load(Ordering::Relaxed) {
            worker.high.store(index + 1, Ordering::Release);
        }
        // A task that sees the log's next position move sees the slot (`watermark`);
        // of this and a task that opens a snapshot or drops a tree, one sees the
        // other (`drain`).
        fence(Ordering::SeqCst);
        Slot { worker, index }
    }

    /// Every commit whose LSN is below this is fully applied, and none will get
    /// an LSN below it. Never goes back.
    #[inline]
    pub(crate) fn watermark(&self, log: &Log) -> u64 {
        let mut lowest = log.next().0;
        fence(Ordering::SeqCst);
        let durable = log.durable().0;
        let mut stay = false;
        for (bound, applied) in self.workers.iter().flat_map(WorkerSlots::commits) {
            let lsn = applied & LSN;
            if applied == 0 || applied & LASTS != 0 && lsn >= durable {
                lowest = lowest.min(bound);
            } else if bound < lsn {
                stay = true;
            }
        }
        // Bound: each round but the last lowers it to another slot's bound.
        while stay {
            let commits = self.workers.iter().flat_map(WorkerSlots::commits);
            let above = commits.filter(|(_, applied)| *applied & LSN >= lowest);
            let bound = above.map(|(bound, _)| bound).min().unwrap_or(lowest);
            stay = bound < lowest;
            lowest = lowest.min(bound);
        }
        // Read last: a commit that has left its slot since has reported that the watermark passed
        // it, or was visible before.
        let told = self.reported.load(Ordering::SeqCst);
        if told < lowest {
            self.reported
                .fetch_max(lowest, Ordering::SeqCst)
                .max(lowest)
        } else {
            told
        }
    }

    /// Whether a commit beside `own` keeps the watermark from passing the record at `lsn` once that
    /// is durable: its own may be older, and it is not applied, or not durable.
    pub(crate) fn waits_for_others(&self, log: &Log, lsn: Lsn, own: &Slot<'_>) -> bool {
        let durable = log.durable().0;
        self.workers.iter().any(|worker| {
            let high = worker.high.load(Ordering::Acquire);
            (0..high).any(|index| {
                let bound = worker.slots[index].load(Ordering::Acquire) & LSN;
                let applied = worker.applied[index].load(Ordering::Acquire);
                let is_own = std::ptr::eq(worker, own.worker) && index == own.index;
                let is_older = bound != 0 && bound < lsn.0 && !is_own;
                is_older && (applied == 0 || applied & LASTS != 0 && applied & LSN >= durable)
            })
        })
    }

    /// The highest watermark that was reported. Every commit that was acknowledged, and every one
    /// that a reader was shown, is below it.
    #[inline]
    pub(crate) fn reported(&self) -> u64 {
        self.reported.load(Ordering::SeqCst)
    }

    /// The watermark that a new snapshot must reach to see all changes of blind commits. Asked once
    /// they have ended.
    pub(crate) fn unversioned_end(&self) -> u64 {
        let ends = self.workers.iter();
        let ends = ends.map(|worker| worker.unversioned_end.load(Ordering::Acquire));
        ends.max().unwrap_or(0)
    }

    /// Waits until the commits that are in flight now have ended, or only the
    /// blind ones of them; `wait` lets others run, and says when to give up.
    pub(crate) fn drain<E>(
        &self,
        unversioned_only: bool,
        mut wait: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        fence(Ordering::SeqCst);
        let concerns =
            |word: u64| word & LSN != 0 && (!unversioned_only || word & UNVERSIONED != 0);
        for worker in &self.workers {
            let high = worker.high.load(Ordering::Acquire);
            for slot in &worker.slots[..high] {
                let seen = slot.load(Ordering::Acquire);
                let mut now = seen;
                while concerns(now) && now & GENERATION == seen & GENERATION {
                    wait()?;
                    now = slot.load(Ordering::Acquire);
                }
            }
        }
        Ok(())
    }
}

impl LogTasks {
    /// The oldest commit in flight that has not been applied, or `complete`.
    pub(crate) fn oldest_commit(&self, complete: Lsn) -> Lsn {
        complete.min(self.commits.oldest_unapplied(&self.log))
    }

    /// A lower bound of the records of all ends that the mapping table does not show
    /// yet: a page that it shows now ends with this record or a later one.
    pub(crate) fn oldest_end(&self) -> Lsn {
        if canary::is_on(Canary::MissLateEnds) {
            return self.log.next();
        }
        self.oldest_commit(self.log.contiguous_lsn())
    }
}

impl Slot<'_> {
    fn word(&self) -> &AtomicU64 {
        &self.worker.slots[self.index]
    }

    /// The commit adds versions: no snapshot has to wait for it.
    pub(crate) fn adds_versions(&self) {
        let word = self.word().load(Ordering::Relaxed);
        self.word().store(word & !UNVERSIONED, Ordering::Release);
    }

    /// If the commit leaves out its versions, snapshots have to begin at `end` or
    /// later. Said before the slot is emptied.
    pub(crate) fn ends_at(&self, end: u64) {
        let noted = &self.worker.unversioned_end;
        if self.word().load(Ordering::Relaxed) & UNVERSIONED != 0
            && noted.load(Ordering::Relaxed) < end
        {
            noted.store(end, Ordering::Release);
        }
    }

    /// The commit's record has this LSN.
    pub(crate) fn is_at(&self, lsn: Lsn) {
        self.ends_at(lsn.0 + 8);
        let word = self.word().load(Ordering::Relaxed);
        self.word()
            .store(lsn.0 & LSN | word & !LSN, Ordering::Release);
    }

    /// The commit is applied, but stays: the watermark goes from its lower bound, or
    /// less, to beyond its LSN, and to nothing between.
    pub(crate) fn is_applied(&self, lsn: Lsn) {
        self.ends_at(lsn.0 + 8);
        self.adds_versions();
        self.worker.applied[self.index].store(lsn.0, Ordering::Release);
    }

    /// The commit is applied, and stays until it is durable: till then the watermark stops before
    /// it. No task has to wake for the watermark to go on then.
    pub(crate) fn lasts(&self, lsn: Lsn) {
        self.ends_at(lsn.0 + 8);
        self.worker.applied[self.index].store(lsn.0 | LASTS, Ordering::Release);
    }

    /// The commit is partially applied, or its caller got the error that it may not last: it never
    /// becomes visible, also if it becomes durable later.
    pub(crate) fn abandon(self) {
        self.worker.applied[self.index].store(0, Ordering::SeqCst);
        self.adds_versions();
        std::mem::forget(self);
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let generation = self.word().load(Ordering::Relaxed) & GENERATION;
        self.worker.applied[self.index].store(0, Ordering::Release);
        self.word().store(generation, Ordering::Release);
        if self.index < self.worker.low.load(Ordering::Relaxed) {
            self.worker.low.store(self.index, Ordering::Relaxed);
        }
        let slots = &self.worker.slots;
        let mut high = self.worker.high.load(Ordering::Relaxed);
        if high == self.index + 1 {
            while high > 0 && slots[high - 1].load(Ordering::Relaxed) & LSN == 0 {
                high -= 1;
            }
            self.worker.high.store(high, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::Kind;

    fn append(log: &Log, slot: &Slot<'_>) -> Lsn {
        log.append(0, Kind::Commit, &[], |lsn| slot.is_at(lsn))
    }

    #[test]
    fn the_watermark_waits_for_the_oldest_commit() {
        let log = Log::off(Lsn(8));
        let tracker = Tracker::new(2, 4);
        assert_eq!(tracker.watermark(&log), 8);
        let first = tracker.register(0, &log);
        let second = tracker.register(0, &log);
        let third = tracker.register(1, &log);
        let at_third = append(&log, &third);
        let at_first = append(&log, &first);
        let at_second = append(&log, &second);
        assert!(at_third < at_first && at_first < at_second);
        assert_eq!(tracker.watermark(&log), at_third.0);
        drop(first);
        assert_eq!(tracker.watermark(&log), at_third.0);
        drop(third);
        assert_eq!(tracker.watermark(&log), at_second.0);
        let late = tracker.register(0, &log);
        drop(second);
        assert_eq!(tracker.watermark(&log), log.next().0);
        drop(late);
        assert_eq!(tracker.watermark(&log), log.next().0);
    }

    #[test]
    fn the_watermark_passes_a_serializable_commit_in_one_step() {
        let log = Log::off(Lsn(8));
        let tracker = Tracker::new(2, 4);
        let serial = tracker.register(0, &log);
        let early = tracker.register(1, &log);
        append(&log, &early);
        drop(early);
        let late = tracker.register(1, &log);
        let lsn = log.append(0, Kind::Commit, &[], |_| ());
        serial.is_applied(lsn);
        // `late` may get an LSN below: neither `early` nor `serial` shows.
        assert_eq!(tracker.watermark(&log), 8);
        let at_late = append(&log, &late);
        assert!(lsn < at_late);
        assert_eq!(tracker.watermark(&log), at_late.0);
        drop(serial);
        drop(late);
        assert_eq!(tracker.watermark(&log), log.next().0);
    }

    #[test]
    fn the_watermark_never_goes_back() {
        let log = Log::off(Lsn(8));
        let tracker = Tracker::new(1, 1);
        for _ in 0..5 {
            log.stamp(0);
        }
        let told = tracker.watermark(&log);
        // As if a commit had read the log's next position long ago.
        let late = tracker.register(0, &Log::off(Lsn(8)));
        assert_eq!(tracker.watermark(&log), told);
        drop(late);
    }

    #[test]
    fn draining_waits_for_those_in_flight_and_for_no_others() {
        let log = Log::off(Lsn(8));
        let tracker = Tracker::new(1, 4);
        let mut blind = Some(tracker.register(0, &log));
        let open = tracker.register(0, &log);
        open.adds_versions();
        let mut waits = 0;
        let mut replacement = None;
        let drained: Result<(), ()> = tracker.drain(true, || {
            waits += 1;
            // The slot is empty for no moment that the drain could see.
            drop(blind.take());
            replacement = Some(tracker.register(0, &log));
            Ok(())
        });
        assert!(drained.is_ok() && waits == 1 && replacement.is_some());
        drop(replacement);
        let mut patience = 3;
        let given_up: Result<(), &str> = tracker.drain(false, || {
            patience -= 1;
            if patience == 0 { Err("enough") } else { Ok(()) }
        });
        assert_eq!(given_up, Err("enough"));
        drop(open);
        assert!(tracker.drain(false, || Err("no commit is left")).is_ok());
    }
}
