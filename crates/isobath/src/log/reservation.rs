//! Reservations of space in the ring and in the log's area. Writers reserve before they
//! append, so that appending never fails and never waits.
//!
//! Every flush frees space in the ring, every checkpoint space in the area. Both have
//! thresholds per [`ReservationClass`]: what frees space, or ends what was begun, goes on
//! while new commits already wait.
//!
//! Who waits for whom: a commit for the area, before it begins anything. A mapping record or a checkpoint for the area, which
//! commits in flight hold until they end. These wait for structure modifications, which need the ring alone, since the
//! commit holds the area for them. And the ring is freed by flushes, which reserve nothing. So a waiter that lacks the area
//! must not hold up those that need none of it.
//!
//! A checkpoint waits for pages. A page waits for log space for its mapping record, and for a
//! segment. The records take a small part of the area, since few pages are dirty
//! (`buffer/dirty_limits.rs`). Cleaning, which frees segments, logs as much for each page that it
//! moves, and may fill the area. Once a checkpoint could free nothing, pages get the last of the
//! area, and a part of the cleaner's reserve, until one frees something.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::Log;
use super::MAX_RING_BYTES;
use super::layout::HEADER_BYTES;
use crate::canary::{self, Canary};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Most bytes of one transaction that are kept in memory and are one log record: its keys and values inline,
/// and 17 bytes for each write. [`Options::transaction_bytes`](crate::Options::transaction_bytes) allows more; a store
/// with a small log keeps less. Larger values and bulk loads do not count. What a transaction has beyond that goes to a temporary file.
pub const MAX_TRANSACTION_BYTES: u64 = 4 << 20;
/// Most that the option may allow. A recovery looks for records as far behind the log's end as twice the ring for it.
pub(crate) const TRANSACTION_LIMIT: u64 = MAX_RING_BYTES / RING_PER_TRANSACTION;
/// Bytes of the ring for each byte of the largest transaction: its record and stamps take half of a ring at most.
pub(super) const RING_PER_TRANSACTION: u64 = 4;

/// Share of the area that one transaction's record may take: one part in this many.
const TRANSACTION_SHARE: u64 = 32;

/// Which reservations come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReservationClass {
    /// Commits, which begin something.
    Commit,
    /// Structure modifications of what has begun.
    Structure,
    /// Mapping records and checkpoints, which free space.
    System,
}

/// Classes, the most urgent first.
const CLASSES: [ReservationClass; 3] = [
    ReservationClass::System,
    ReservationClass::Structure,
    ReservationClass::Commit,
];

impl ReservationClass {
    /// Sixteenths of the ring up to which this class may fill it. The last one is
    /// for padding, stamps, and modifications that are longer than foreseen.
    fn ring_share(self) -> u64 {
        match self {
            ReservationClass::Commit => 8,
            ReservationClass::Structure => 12,
            ReservationClass::System => 15,
        }
    }

    /// Percent of the area up to which this class may fill it.
    pub(super) fn area_percent(self) -> u64 {
        match self {
            ReservationClass::Commit => MAX_SLOW,
            ReservationClass::Structure => 85,
            ReservationClass::System => 92,
        }
    }
}

/// Percent of the area that a recovery may fill: it needs space beside a log that is full. So does the page write-back that the one
/// checkpoint waits for that can free a full log.
const MAX_LAST: u64 = 98;
/// Percent of the area from which on a recovery frees space before it goes on.
const RECOVERY_SHORT: u64 = 85;
/// Share of the space left for what a recovery logs that the next stretch of the log may be long.
const STRETCH_SHARE: u64 = 8;
/// Least bytes of such a stretch.
const MIN_STRETCH: u64 = 64 << 10;

/// Percent of the area from which on commits are delayed, and at which they stop.
const SLOW_FROM: u64 = 50;
const MAX_SLOW: u64 = 70;
/// The delay just before that; shorter ones than the least are none.
const MAX_DELAY: Duration = Duration::from_millis(4);
const MIN_DELAY: Duration = Duration::from_micros(20);
/// A checkpoint is requested when the log since the last one fills this much of the area.
const CHECKPOINT_PERCENT: u64 = 25;

/// Bytes of structure modifications that a commit may cause: so many for each
/// of its own, and for small ones these.
const CAUSED_FACTOR: u64 = 8;
const CAUSED_BYTES: u64 = 32 << 10;
/// Bytes that are logged where a leaf splits: three pages, both halves and the node above.
const SPLIT_BYTES: u64 = 13 << 10;
/// Percent of the area that a commit reserves at most for the leaves that it may split: with what the log has when a checkpoint is
/// requested less than commits may fill, or it would never begin. Nothing of the log is free before the commit is applied, and what a
/// recovery logs to apply it has to find space, too: one that may split more leaves is none of one record.
const MAX_SPLITS_PERCENT: u64 = 40;
/// Of the area, what one of several commits that are in flight may take for that: one part in this many.
const SPLITS_SHARE: u64 = 4;
/// Space in the ring for one structure modification: three pages, and as much
/// for each of two ancestors.
const STRUCTURE_RING_BYTES: u64 = 40 << 10;

/// What a task reserves, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReservationRequest {
    ring: u64,
    area: u64,
    /// Of the area, what is for the records, and what small ones cause.
    records: u64,
    class: ReservationClass,
}

impl ReservationRequest {
    /// For records of `bytes` bytes, headers aside.
    pub(crate) fn records(bytes: u64, class: ReservationClass) -> ReservationRequest {
        let bytes = bytes + HEADER_BYTES as u64 + 8;
        let (ring, area) = match class {
            // Applying takes a stamp of 8 bytes for some of the writes.
            ReservationClass::Commit => (bytes + bytes / 2, bytes * CAUSED_FACTOR + CAUSED_BYTES),
            ReservationClass::Structure | ReservationClass::System => (bytes, bytes),
        };
        ReservationRequest {
            ring,
            area,
            records: area,
            class,
        }
    }

    /// The same where so many leaves may be split.
    pub(crate) fn with_splits(mut self, splits: u64) -> ReservationRequest {
        self.area = self.area.max(splits * SPLIT_BYTES);
        self
    }

    /// The same, as one of `class`.
    pub(crate) fn of_class(self, class: ReservationClass) -> ReservationRequest {
        ReservationRequest { class, ..self }
    }

    /// Whether the task is delayed where the log is short.
    pub(super) fn is_delayed(&self) -> bool {
        self.class == ReservationClass::Commit
    }

    /// Releases what changes that are applied have reserved for the leaves that they may have split: that is logged by now, and counts
    /// as used. `left` may still be split. Would both count, the log would be full for the mapping records of the
    /// pages that this commit waits for.
    fn release_splits(&mut self, left: u64) -> u64 {
        let before = self.area;
        self.area = before.min(self.records.max(left * SPLIT_BYTES));
        before - self.area
    }

    /// Bytes that the area has at least where this is granted.
    pub(crate) fn area_bytes(&self) -> u64 {
        (self.area * 100).div_ceil(self.class.area_percent()) + 100
    }

    /// For one structure modification, whose space in the area is held already.
    pub(crate) fn structure() -> ReservationRequest {
        ReservationRequest {
            ring: STRUCTURE_RING_BYTES,
            area: 0,
            records: 0,
            class: ReservationClass::Structure,
        }
    }
}

/// A task that waits for a reservation.
pub(crate) struct ReservationWaiter {
    request: ReservationRequest,
    granted: AtomicBool,
    waker: Waker,
}

/// What a request found too little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Short {
    Ring,
    Area,
}

/// Space that is reserved, and the tasks that wait for some.
pub(super) struct Reservations {
    ring_held: AtomicU64,
    area_held: AtomicU64,
    /// The oldest position that a recovery would read.
    start: AtomicU64,
    /// A recovery is under way.
    recovering: AtomicBool,
    /// A checkpoint would free nothing before pages are written for whose records there is no space.
    is_stuck: AtomicBool,
    waiting: AtomicUsize,
    /// By [`CLASSES`].
    queues: Mutex<[VecDeque<Arc<ReservationWaiter>>; 3]>,
}

impl Reservations {
    pub(super) fn new(start: u64) -> Reservations {
        Reservations {
            ring_held: AtomicU64::new(0),
            area_held: AtomicU64::new(0),
            start: AtomicU64::new(start),
            recovering: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            queues: Mutex::default(),
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start.load(Ordering::SeqCst)
    }

    /// Bytes of an area of `bytes` up to which `class` may fill it now.
    pub(super) fn max_share_of_area(&self, bytes: u64, class: ReservationClass) -> u64 {
        let gets_last = class == ReservationClass::System
            && (self.recovering.load(Ordering::Relaxed) || self.is_stuck.load(Ordering::SeqCst));
        let percent = match gets_last {
            true => MAX_LAST,
            false => class.area_percent(),
        };
        bytes / 100 * percent
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

/// Takes `need` of what is held, if with it and with `used` no more than `most` is taken.
fn take(held: &AtomicU64, used: u64, need: u64, most: u64) -> bool {
    need == 0
        || held
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
                (used + held + need <= most).then_some(held + need)
            })
            .is_ok()
}

impl super::On {
    fn record_limit(&self, area_bytes: u64) -> u64 {
        let ring = self.ring.bytes() / RING_PER_TRANSACTION;
        ring.min(area_bytes / TRANSACTION_SHARE)
    }

    fn transaction_limit(&self, area_bytes: u64) -> u64 {
        self.transaction_bytes.min(self.record_limit(area_bytes))
    }
}

impl Log {
    /// Most bytes of one transaction's record, once the log has grown.
    pub(crate) fn transaction_limit(&self) -> u64 {
        self.on.as_ref().map_or(MAX_TRANSACTION_BYTES, |on| {
            on.transaction_limit(on.max_bytes)
        })
    }

    /// The same in the area that the log has now.
    pub(crate) fn transaction_limit_now(&self) -> u64 {
        self.on.as_ref().map_or(MAX_TRANSACTION_BYTES, |on| {
            on.transaction_limit(on.area_bytes())
        })
    }

    /// Changes that a commit may have, each of which may split a leaf, where others like it are in flight.
    pub(crate) fn splits_per_commit(&self) -> usize {
        self.on.as_ref().map_or(usize::MAX, |on| {
            (on.area_bytes() / SPLITS_SHARE / SPLIT_BYTES).max(1) as usize
        })
    }

    /// Leaves that one commit may split, once the log has grown.
    pub(crate) fn split_limit(&self) -> u64 {
        self.on
            .as_ref()
            .map_or(u64::MAX, |on| splits_in(on.max_bytes))
    }

    /// The same in the area that the log has now.
    pub(crate) fn split_limit_now(&self) -> u64 {
        self.on
            .as_ref()
            .map_or(u64::MAX, |on| splits_in(on.area_bytes()))
    }

    /// Bytes of the area in which one commit may split so many leaves.
    pub(crate) fn area_to_split(leaves: u64) -> u64 {
        (leaves * SPLIT_BYTES).div_ceil(MAX_SPLITS_PERCENT) * 100
    }

    /// Whether a merge finds space in the area, which no commit has reserved for it: as much as
    /// lets commits in. Before a commit of many changes is applied, pages that it has changed may
    /// have to be written for those that follow, and nothing of the log becomes free: its merges
    /// leave the space for their records.
    pub(crate) fn has_space_to_merge(&self, among_many: bool) -> bool {
        let most = if among_many { SLOW_FROM } else { MAX_SLOW };
        self.area_use() < most * 100 || canary::is_on(Canary::MergeInFullLog)
    }

    /// Most bytes of one record, once the log has grown: that of a large transaction may be larger
    /// than [`Log::transaction_limit`].
    pub(crate) fn record_limit(&self) -> u64 {
        self.on
            .as_ref()
            .map_or(u64::MAX, |on| on.record_limit(on.max_bytes))
    }

    /// The same in the area that the log has now.
    pub(crate) fn record_limit_now(&self) -> u64 {
        self.on
            .as_ref()
            .map_or(u64::MAX, |on| on.record_limit(on.area_bytes()))
    }

    /// Bytes of a log that takes transactions of `bytes` bytes.
    pub(crate) fn bytes_for(bytes: u64) -> u64 {
        Log::area_for(bytes)
    }

    /// Bytes of the area that a transaction's record of `bytes` bytes needs.
    pub(crate) fn area_for(bytes: u64) -> u64 {
        bytes.saturating_mul(TRANSACTION_SHARE)
    }

    /// Reserves if there is space enough and no task waits already.
    pub(crate) fn try_reserve(&self, request: ReservationRequest) -> Option<LogReservation<'_>> {
        let Some(on) = &self.on else {
            return Some(LogReservation::none());
        };
        (!on.reservations.has_waiters() && self.try_take(request).is_ok())
            .then(|| self.reservation(request))
    }

    /// What `request` says has been taken.
    fn reservation(&self, request: ReservationRequest) -> LogReservation<'_> {
        LogReservation(Some((self, request)))
    }

    fn try_take(&self, request: ReservationRequest) -> Result<(), Short> {
        let Some(on) = &self.on else { return Ok(()) };
        let held = &on.reservations;
        let next = self.in_flight.next();
        let most = on.ring.bytes() / 16 * request.class.ring_share();
        // The counter may be older than the durable end that is read after it.
        let used = next.saturating_sub(on.flushing.durable());
        if !take(&held.ring_held, used, request.ring, most) {
            return Err(Short::Ring);
        }
        let area = on.area_bytes();
        let most = held.max_share_of_area(area, request.class);
        let used = next.saturating_sub(held.start());
        if !take(&held.area_held, used, request.area, most) {
            held.ring_held.fetch_sub(request.ring, Ordering::SeqCst);
            return Err(Short::Area);
        }
        // Of this and `measure_by`, one sees the other.
        if request.area > 0 && on.area_bytes.load(Ordering::SeqCst) < area {
            held.ring_held.fetch_sub(request.ring, Ordering::SeqCst);
            held.area_held.fetch_sub(request.area, Ordering::SeqCst);
            return Err(Short::Area);
        }
        Ok(())
    }

    /// Reserves from now on as if the area had no more than `bytes` bytes: it is to leave the rest.
    /// `false`, and nothing changes, where more is in use or a task waits.
    pub(crate) fn measure_by(&self, bytes: u64) -> bool {
        let Some(on) = &self.on else { return false };
        let bytes = bytes.min(on.area_bytes());
        let before = on.area_bytes.swap(bytes, Ordering::SeqCst);
        let used = self
            .in_flight
            .next()
            .saturating_sub(on.reservations.start());
        let held = on.reservations.area_held.load(Ordering::SeqCst);
        let fits = used + held
            <= on
                .reservations
                .max_share_of_area(bytes, ReservationClass::Commit);
        if fits && !on.reservations.has_waiters() {
            return true;
        }
        self.measure_again_by(before);
        false
    }

    /// Undoes [`Log::measure_by`].
    pub(crate) fn measure_again_by(&self, before: u64) {
        if let Some(on) = &self.on {
            on.area_bytes.store(before, Ordering::SeqCst);
            self.grant_reservations();
        }
    }

    /// Queues for a reservation; `waker` is called when it is granted, or when `wake_reservation_waiters` was.
    pub(crate) fn queue_for_reservation(
        &self,
        request: ReservationRequest,
        waker: Waker,
    ) -> Arc<ReservationWaiter> {
        let waiter = Arc::new(ReservationWaiter {
            request,
            granted: AtomicBool::new(false),
            waker,
        });
        if let Some(on) = &self.on {
            let mut queues = on.reservations.queues.lock();
            queues[place(request.class)].push_back(Arc::clone(&waiter));
            on.reservations.waiting.fetch_add(1, Ordering::SeqCst);
            drop(queues);
            // Space may have become free before the waiter was listed.
            self.grant_reservations();
        }
        waiter
    }

    /// The reservation that the waiter was granted, if it was; once.
    pub(crate) fn granted(&self, waiter: &ReservationWaiter) -> Option<LogReservation<'_>> {
        waiter
            .granted
            .swap(false, Ordering::AcqRel)
            .then(|| self.reservation(waiter.request))
    }

    /// Leaves the queue; a reservation that was granted since is released.
    pub(crate) fn leave_queue(&self, waiter: &Arc<ReservationWaiter>) {
        let Some(on) = &self.on else { return };
        let mut queues = on.reservations.queues.lock();
        let queue = &mut queues[place(waiter.request.class)];
        let before = queue.len();
        queue.retain(|other| !Arc::ptr_eq(other, waiter));
        on.reservations
            .waiting
            .fetch_sub(before - queue.len(), Ordering::SeqCst);
        drop(queues);
        drop(self.granted(waiter));
    }

    /// Space may have become free: grants it to the waiters, the most urgent first and in their order. Those that need nothing of
    /// the area pass the ones that lack it.
    pub(crate) fn grant_reservations(&self) {
        let Some(on) = &self.on else { return };
        if !on.reservations.has_waiters() {
            return;
        }
        let mut served = Vec::new();
        let mut queues = on.reservations.queues.lock();
        let mut short = None;
        'queues: for (queue, class) in queues.iter_mut().zip(CLASSES) {
            let needs_area = class == ReservationClass::Commit;
            if short.is_some() && (needs_area || canary::is_on(Canary::HoldStructuresUp)) {
                break;
            }
            let mut at = 0;
            while let Some(waiter) = queue.get(at) {
                let lacks = match short {
                    Some(Short::Area) if waiter.request.area > 0 => Err(Short::Area),
                    _ => self.try_take(waiter.request),
                };
                match lacks {
                    Ok(()) => {
                        waiter.granted.store(true, Ordering::Release);
                        served.extend(queue.remove(at));
                        on.reservations.waiting.fetch_sub(1, Ordering::SeqCst);
                    }
                    Err(Short::Area) if !needs_area => {
                        short = Some(Short::Area);
                        at += 1;
                    }
                    Err(_) => break 'queues,
                }
            }
        }
        drop(queues);
        for waiter in served {
            waiter.waker.wake_by_ref();
        }
    }

    /// Wakes all waiters: the log has failed.
    pub(crate) fn wake_reservation_waiters(&self) {
        let Some(on) = &self.on else { return };
        let queues = on.reservations.queues.lock();
        let all: Vec<_> = queues.iter().flatten().cloned().collect();
        drop(queues);
        for waiter in all {
            waiter.waker.wake_by_ref();
        }
    }

    /// Recovery would start at `start` from now on: the checkpoint that says so is durable.
    pub(crate) fn set_start(&self, start: crate::page::Lsn) {
        if let Some(on) = &self.on {
            if on.reservations.start.fetch_max(start.0, Ordering::SeqCst) < start.0 {
                on.reservations.is_stuck.store(false, Ordering::SeqCst);
            }
            self.grant_reservations();
        }
    }

    /// Says whether a recovery is under way, which may fill the area further than others.
    pub(crate) fn set_recovering(&self, recovering: bool) {
        if let Some(on) = &self.on {
            on.reservations
                .recovering
                .store(recovering, Ordering::Relaxed);
        }
    }

    /// A checkpoint would free nothing before pages are written for whose records the area has no space: they get the last of it,
    /// until a checkpoint frees some.
    pub(crate) fn give_last_space(&self) {
        if let Some(on) = &self.on
            && !canary::is_on(Canary::KeepLastSpace)
        {
            on.reservations.is_stuck.store(true, Ordering::SeqCst);
            self.grant_reservations();
        }
    }

    /// Whether a recovery should free space before it goes on, by a checkpoint of what it has applied.
    pub(crate) fn recovery_is_short(&self) -> bool {
        self.area_use() > RECOVERY_SHORT * 100
    }

    /// Most bytes of the log that a recovery applies before it looks again how much space is left.
    pub(crate) fn recovery_stretch(&self) -> u64 {
        self.on.as_ref().map_or(u64::MAX, |on| {
            let used = self
                .in_flight
                .next()
                .saturating_sub(on.reservations.start());
            let most = on.area_bytes() / 100 * MAX_LAST;
            (most.saturating_sub(used) / STRETCH_SHARE).max(MIN_STRETCH)
        })
    }

    /// How much of the area is used or reserved, in hundredths of a percent.
    fn area_use(&self) -> u64 {
        self.on.as_ref().map_or(0, |on| {
            let used = self
                .in_flight
                .next()
                .saturating_sub(on.reservations.start());
            let held = on.reservations.area_held.load(Ordering::Relaxed);
            (used + held) * 10_000 / on.area_bytes()
        })
    }

    /// How many tasks wait for log space.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(crate) fn reservation_waiters(&self) -> usize {
        self.on
            .as_ref()
            .map_or(0, |on| on.reservations.waiting.load(Ordering::SeqCst))
    }

    /// Whether any task waits for a reservation.
    pub(crate) fn has_reservation_waiters(&self) -> bool {
        self.on
            .as_ref()
            .is_some_and(|on| on.reservations.has_waiters())
    }

    /// Whether the log since the last checkpoint is so long that another one should begin.
    pub(crate) fn checkpoint_wanted(&self) -> bool {
        self.on.as_ref().is_some_and(|on| {
            let used = self
                .in_flight
                .next()
                .saturating_sub(on.reservations.start());
            used * 100 >= on.area_bytes() * CHECKPOINT_PERCENT
        })
    }

    /// Whether a task waits for space in the area, which only a checkpoint frees.
    pub(crate) fn area_is_short(&self) -> bool {
        self.area_is_short_for(&CLASSES)
    }

    /// Whether a task waits for space in the area without which no page is written, nor any segment cleaned.
    pub(crate) fn area_is_short_for_system(&self) -> bool {
        self.area_is_short_for(&[ReservationClass::System])
    }

    fn area_is_short_for(&self, classes: &[ReservationClass]) -> bool {
        self.on.as_ref().is_some_and(|on| {
            let taken = self
                .in_flight
                .next()
                .saturating_sub(on.reservations.start())
                + on.reservations.area_held.load(Ordering::SeqCst);
            let lacks = |waiter: &Arc<ReservationWaiter>| {
                classes.contains(&waiter.request.class)
                    && taken + waiter.request.area > on.max_share_of_area(waiter.request.class)
            };
            let waiting = on.reservations.has_waiters();
            waiting
                && on
                    .reservations
                    .queues
                    .lock()
                    .iter()
                    .flat_map(VecDeque::front)
                    .any(lacks)
        })
    }

    /// How long a commit should wait before it reserves: nothing while half of
    /// the area is free, then more and more.
    pub(crate) fn commit_delay(&self) -> Option<Duration> {
        let over = self.area_use().checked_sub(SLOW_FROM * 100)?;
        let share = (over as f64 / ((MAX_SLOW - SLOW_FROM) * 100) as f64).min(1.0);
        let delay = MAX_DELAY.mul_f64(share * share);
        (delay >= MIN_DELAY).then_some(delay)
    }

    /// Whether so much waits in the ring that it should be written, requested or not.
    pub(crate) fn ring_is_filling(&self) -> bool {
        self.on.as_ref().is_some_and(|on| {
            let unwritten = self
                .in_flight
                .next()
                .saturating_sub(on.flushing.durable_hint());
            unwritten > on.ring.bytes() / 8
        })
    }
}

/// Leaves that one commit may split in an area of so many bytes.
fn splits_in(area_bytes: u64) -> u64 {
    area_bytes / 100 * MAX_SPLITS_PERCENT / SPLIT_BYTES
}

/// Where a class's queue is.
fn place(class: ReservationClass) -> usize {
    CLASSES
        .iter()
        .position(|&other| other == class)
        .unwrap_or(0)
}

/// Space in the log, released when this is dropped: once what it was for has been
/// appended, and what that causes as well.
#[must_use]
pub(crate) struct LogReservation<'l>(Option<(&'l Log, ReservationRequest)>);

impl LogReservation<'_> {
    /// The reservation of a log that keeps nothing.
    pub(crate) fn none() -> LogReservation<'static> {
        LogReservation(None)
    }

    /// The commit may still split `left` leaves; see [`ReservationRequest::with_splits`].
    pub(crate) fn release_splits(&mut self, left: u64) {
        if let Some((log, request)) = &mut self.0
            && let Some(on) = &log.on
        {
            let released = request.release_splits(left);
            if released > 0 {
                let held = &on.reservations.area_held;
                held.fetch_sub(released, Ordering::SeqCst);
                log.grant_reservations();
            }
        }
    }
}

impl Drop for LogReservation<'_> {
    fn drop(&mut self) {
        if let Some((log, request)) = self.0
            && let Some(on) = &log.on
        {
            on.reservations
                .ring_held
                .fetch_sub(request.ring, Ordering::SeqCst);
            on.reservations
                .area_held
                .fetch_sub(request.area, Ordering::SeqCst);
            log.grant_reservations();
        }
    }
}
