//! Room in the ring and in the log's area, given out before it is used, so that
//! appending never fails and never waits.
//!
//! Room in the ring comes back with every flush, room in the area with every
//! checkpoint. Both have thresholds per [`Tier`]: what makes room, or ends what
//! was begun, may still go on when beginners already wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::Log;
use super::MAX_RING_BYTES;
use super::layout::HEADER_BYTES;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Most bytes of the log record of one transaction: its keys and values inline,
/// and 17 bytes for each write. [`Options::transaction_bytes`](crate::Options::transaction_bytes) allows more; a store
/// with a small log takes less. Larger values and bulk loads do not count.
pub const MAX_TRANSACTION_BYTES: u64 = 4 << 20;
/// Most that the option may allow. A recovery looks for records as far behind the log's end as twice the ring for it.
pub(crate) const TRANSACTION_LIMIT: u64 = MAX_RING_BYTES / RING_PER_TRANSACTION;
/// Bytes of the ring for each byte of the largest transaction: its record and stamps take half of a ring at most.
pub(super) const RING_PER_TRANSACTION: u64 = 4;

/// Share of the area that one transaction's record may take: one part in this many.
const TRANSACTION_SHARE: u64 = 32;

/// Whose need for room comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tier {
    /// Commits, which begin something.
    Commit,
    /// Structure modifications of what has begun.
    Structure,
    /// Mapping records and checkpoints, which make room.
    System,
}

/// Tiers, the most urgent first.
const TIERS: [Tier; 3] = [Tier::System, Tier::Structure, Tier::Commit];

impl Tier {
    /// Sixteenths of the ring up to which this tier may fill it. The last one is
    /// for padding, stamps, and modifications that are longer than foreseen.
    fn ring_share(self) -> u64 {
        match self {
            Tier::Commit => 8,
            Tier::Structure => 12,
            Tier::System => 15,
        }
    }

    /// Percent of the area up to which this tier may fill it.
    pub(super) fn area_percent(self) -> u64 {
        match self {
            Tier::Commit => MAX_SLOW,
            Tier::Structure => 85,
            Tier::System => 92,
        }
    }
}

/// Percent of the area that a recovery may fill: it needs room beside a log that is full.
const MAX_RECOVERY: u64 = 98;
/// Percent of the area from which on a recovery makes room before it goes on.
const RECOVERY_SHORT: u64 = 85;
/// Share of the room that is left for what a recovery logs, that the next stretch of the log may be long.
const STRETCH_SHARE: u64 = 8;
/// Least bytes of such a stretch.
const MIN_STRETCH: u64 = 64 << 10;

/// Percent of the area from which on commits are delayed, and at which they stop.
const SLOW_FROM: u64 = 50;
const MAX_SLOW: u64 = 70;
/// The delay just before that; shorter ones than the least are none.
const MAX_DELAY: Duration = Duration::from_millis(4);
const MIN_DELAY: Duration = Duration::from_micros(20);
/// A checkpoint is wanted when the log since the last one fills this much of the area.
const CHECKPOINT_PERCENT: u64 = 25;

/// Bytes of structure modifications that a commit may cause: so many for each
/// of its own, and for small ones these.
const CAUSED_FACTOR: u64 = 8;
const CAUSED_BYTES: u64 = 32 << 10;
/// Room in the ring for one structure modification: three pages, and as much
/// for each of two ancestors.
const STRUCTURE_RING_BYTES: u64 = 40 << 10;

/// Room that somebody asks for or holds, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    ring: u64,
    area: u64,
    tier: Tier,
}

impl Need {
    /// For records of `bytes` bytes, headers aside.
    pub(crate) fn records(bytes: u64, tier: Tier) -> Need {
        let bytes = bytes + HEADER_BYTES as u64 + 8;
        match tier {
            Tier::Commit => Need {
                // Applying takes a stamp of 8 bytes for some of the writes.
                ring: bytes + bytes / 2,
                area: bytes * CAUSED_FACTOR + CAUSED_BYTES,
                tier,
            },
            Tier::Structure | Tier::System => Need {
                ring: bytes,
                area: bytes,
                tier,
            },
        }
    }

    /// Bytes that the area has at least where this is granted.
    pub(crate) fn area_bytes(&self) -> u64 {
        (self.area * 100).div_ceil(self.tier.area_percent()) + 100
    }

    /// For one structure modification, whose room in the area is held already.
    pub(crate) fn structure() -> Need {
        Need {
            ring: STRUCTURE_RING_BYTES,
            area: 0,
            tier: Tier::Structure,
        }
    }
}

/// Somebody who waits for room.
pub(crate) struct RoomWaiter {
    need: Need,
    granted: AtomicBool,
    waker: Waker,
}

/// Room given out, and who waits for some.
pub(super) struct Rooms {
    ring_held: AtomicU64,
    area_held: AtomicU64,
    /// The oldest position that a recovery would read.
    start: AtomicU64,
    /// A recovery is under way.
    recovering: AtomicBool,
    waiting: AtomicUsize,
    /// By [`TIERS`].
    queues: Mutex<[VecDeque<Arc<RoomWaiter>>; 3]>,
}

impl Rooms {
    pub(super) fn new(start: u64) -> Rooms {
        Rooms {
            ring_held: AtomicU64::new(0),
            area_held: AtomicU64::new(0),
            start: AtomicU64::new(start),
            recovering: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            queues: Mutex::default(),
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start.load(Ordering::SeqCst)
    }

    /// Bytes of an area of `bytes` up to which `tier` may fill it now.
    pub(super) fn max_share_of_area(&self, bytes: u64, tier: Tier) -> u64 {
        let recovers = tier == Tier::System && self.recovering.load(Ordering::Relaxed);
        let percent = match recovers {
            true => MAX_RECOVERY,
            false => tier.area_percent(),
        };
        bytes / 100 * percent
    }

    pub(super) fn anybody_waits(&self) -> bool {
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
    fn transaction_limit(&self, area_bytes: u64) -> u64 {
        let ring = self.ring.bytes() / RING_PER_TRANSACTION;
        let area = area_bytes / TRANSACTION_SHARE;
        self.transaction_bytes.min(ring).min(area)
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

    /// Bytes of a log that takes transactions of `bytes` bytes.
    pub(crate) fn bytes_for(bytes: u64) -> u64 {
        Log::area_for(bytes)
    }

    /// Bytes of the area that a transaction's record of `bytes` bytes needs.
    pub(crate) fn area_for(bytes: u64) -> u64 {
        bytes.saturating_mul(TRANSACTION_SHARE)
    }

    /// Takes room if there is enough; nothing waits before the caller unless it is more urgent.
    pub(crate) fn try_room(&self, need: Need) -> Option<LogRoom<'_>> {
        let Some(on) = &self.on else {
            return Some(LogRoom::none());
        };
        (!on.rooms.anybody_waits() && self.take_room(need)).then(|| self.room(need))
    }

    /// What `need` says has been taken.
    fn room(&self, need: Need) -> LogRoom<'_> {
        LogRoom(Some((self, need)))
    }

    fn take_room(&self, need: Need) -> bool {
        let Some(on) = &self.on else { return true };
        let next = self.marks.next();
        let most = on.ring.bytes() / 16 * need.tier.ring_share();
        // The counter may be older than the durable end that is read after it.
        let used = next.saturating_sub(on.flushing.durable());
        if !take(&on.rooms.ring_held, used, need.ring, most) {
            return false;
        }
        let area = on.area_bytes();
        let most = on.rooms.max_share_of_area(area, need.tier);
        let used = next.saturating_sub(on.rooms.start());
        if !take(&on.rooms.area_held, used, need.area, most) {
            on.rooms.ring_held.fetch_sub(need.ring, Ordering::SeqCst);
            return false;
        }
        // Of this and `measure_by`, one sees the other.
        if need.area > 0 && on.area_bytes.load(Ordering::SeqCst) < area {
            on.rooms.ring_held.fetch_sub(need.ring, Ordering::SeqCst);
            on.rooms.area_held.fetch_sub(need.area, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Gives out room from now on as if the area had `bytes` bytes, fewer than it has: it is to move to one of that size.
    /// `false`, and nothing changes, where more is in use or a task waits.
    pub(crate) fn measure_by(&self, bytes: u64) -> bool {
        let Some(on) = &self.on else { return false };
        let before = on.area_bytes.swap(bytes, Ordering::SeqCst);
        let used = self.marks.next().saturating_sub(on.rooms.start());
        let held = on.rooms.area_held.load(Ordering::SeqCst);
        let fits = used + held <= on.rooms.max_share_of_area(bytes, Tier::Commit);
        if fits && !on.rooms.anybody_waits() {
            return true;
        }
        self.measure_again_by(before);
        false
    }

    /// Undoes [`Log::measure_by`].
    pub(crate) fn measure_again_by(&self, before: u64) {
        if let Some(on) = &self.on {
            on.area_bytes.store(before, Ordering::SeqCst);
            self.serve_rooms();
        }
    }

    /// Queues for room; `waker` is called when it is granted, or when `wake_rooms` was.
    pub(crate) fn queue_for_room(&self, need: Need, waker: Waker) -> Arc<RoomWaiter> {
        let waiter = Arc::new(RoomWaiter {
            need,
            granted: AtomicBool::new(false),
            waker,
        });
        if let Some(on) = &self.on {
            let mut queues = on.rooms.queues.lock();
            queues[place(need.tier)].push_back(Arc::clone(&waiter));
            on.rooms.waiting.fetch_add(1, Ordering::SeqCst);
            drop(queues);
            // Room may have come back before the waiter was listed.
            self.serve_rooms();
        }
        waiter
    }

    /// The room that the waiter was granted, if it was.
    pub(crate) fn granted(&self, waiter: &RoomWaiter) -> Option<LogRoom<'_>> {
        waiter
            .granted
            .load(Ordering::Acquire)
            .then(|| self.room(waiter.need))
    }

    /// Leaves the queue; room that was granted meanwhile is given back.
    pub(crate) fn leave_queue(&self, waiter: &Arc<RoomWaiter>) {
        let Some(on) = &self.on else { return };
        let mut queues = on.rooms.queues.lock();
        let queue = &mut queues[place(waiter.need.tier)];
        let before = queue.len();
        queue.retain(|other| !Arc::ptr_eq(other, waiter));
        on.rooms
            .waiting
            .fetch_sub(before - queue.len(), Ordering::SeqCst);
        drop(queues);
        drop(self.granted(waiter));
    }

    /// Room may have come back: grants it to those who wait, the most urgent
    /// first and in their order.
    pub(crate) fn serve_rooms(&self) {
        let Some(on) = &self.on else { return };
        if !on.rooms.anybody_waits() {
            return;
        }
        let mut served = Vec::new();
        let mut queues = on.rooms.queues.lock();
        for queue in queues.iter_mut() {
            while let Some(first) = queue.front()
                && self.take_room(first.need)
            {
                first.granted.store(true, Ordering::Release);
                served.extend(queue.pop_front());
                on.rooms.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            // Who is less urgent does not pass who is more so.
            if !queue.is_empty() {
                break;
            }
        }
        drop(queues);
        for waiter in served {
            waiter.waker.wake_by_ref();
        }
    }

    /// Wakes all who wait for room: the log has failed.
    pub(crate) fn wake_rooms(&self) {
        let Some(on) = &self.on else { return };
        let queues = on.rooms.queues.lock();
        let all: Vec<_> = queues.iter().flatten().cloned().collect();
        drop(queues);
        for waiter in all {
            waiter.waker.wake_by_ref();
        }
    }

    /// Recovery would start at `start` from now on: the checkpoint that says so is durable.
    pub(crate) fn set_start(&self, start: crate::page::Lsn) {
        if let Some(on) = &self.on {
            on.rooms.start.fetch_max(start.0, Ordering::SeqCst);
            self.serve_rooms();
        }
    }

    /// Says whether a recovery is under way, which may fill the area further than others.
    pub(crate) fn set_recovering(&self, recovering: bool) {
        if let Some(on) = &self.on {
            on.rooms.recovering.store(recovering, Ordering::Relaxed);
        }
    }

    /// Whether a recovery should make room before it goes on: by a checkpoint that lets go of what it has applied.
    pub(crate) fn recovery_is_short(&self) -> bool {
        self.area_use() > RECOVERY_SHORT * 100
    }

    /// Most bytes of the log that a recovery applies before it looks again how much room is left.
    pub(crate) fn recovery_stretch(&self) -> u64 {
        self.on.as_ref().map_or(u64::MAX, |on| {
            let used = self.marks.next().saturating_sub(on.rooms.start());
            let most = on.area_bytes() / 100 * MAX_RECOVERY;
            (most.saturating_sub(used) / STRETCH_SHARE).max(MIN_STRETCH)
        })
    }

    /// How much of the area is used or reserved, in hundredths of a percent.
    fn area_use(&self) -> u64 {
        self.on.as_ref().map_or(0, |on| {
            let used = self.marks.next().saturating_sub(on.rooms.start());
            let held = on.rooms.area_held.load(Ordering::Relaxed);
            (used + held) * 10_000 / on.area_bytes()
        })
    }

    /// Whether anybody waits for room.
    pub(crate) fn room_is_awaited(&self) -> bool {
        self.on.as_ref().is_some_and(|on| on.rooms.anybody_waits())
    }

    /// Whether the log since the last checkpoint is so long that another one should begin.
    pub(crate) fn checkpoint_wanted(&self) -> bool {
        self.on.as_ref().is_some_and(|on| {
            let used = self.marks.next().saturating_sub(on.rooms.start());
            used * 100 >= on.area_bytes() * CHECKPOINT_PERCENT
        })
    }

    /// Whether somebody waits for room in the area, which only a checkpoint brings.
    pub(crate) fn area_is_short(&self) -> bool {
        self.on.as_ref().is_some_and(|on| {
            let taken = self.marks.next().saturating_sub(on.rooms.start())
                + on.rooms.area_held.load(Ordering::SeqCst);
            let lacks = |waiter: &Arc<RoomWaiter>| {
                taken + waiter.need.area > on.max_share_of_area(waiter.need.tier)
            };
            let waiting = on.rooms.anybody_waits();
            waiting
                && on
                    .rooms
                    .queues
                    .lock()
                    .iter()
                    .flat_map(VecDeque::front)
                    .any(lacks)
        })
    }

    /// How long a commit should wait before it takes room: nothing while half of
    /// the area is free, then more and more.
    pub(crate) fn commit_delay(&self) -> Option<Duration> {
        let over = self.area_use().checked_sub(SLOW_FROM * 100)?;
        let share = (over as f64 / ((MAX_SLOW - SLOW_FROM) * 100) as f64).min(1.0);
        let delay = MAX_DELAY.mul_f64(share * share);
        (delay >= MIN_DELAY).then_some(delay)
    }

    /// Whether so much waits in the ring that it should be written, wanted or not.
    pub(crate) fn ring_is_filling(&self) -> bool {
        self.on.as_ref().is_some_and(|on| {
            let unwritten = self.marks.next().saturating_sub(on.flushing.durable_hint());
            unwritten > on.ring.bytes() / 8
        })
    }
}

/// Where a tier's queue is.
fn place(tier: Tier) -> usize {
    TIERS.iter().position(|&other| other == tier).unwrap_or(0)
}

/// Room in the log, given back when this is dropped: when what it was for has
/// been appended, and what that causes as well.
#[must_use]
pub(crate) struct LogRoom<'l>(Option<(&'l Log, Need)>);

impl LogRoom<'_> {
    /// The room of a log that keeps nothing.
    pub(crate) fn none() -> LogRoom<'static> {
        LogRoom(None)
    }
}

impl Drop for LogRoom<'_> {
    fn drop(&mut self) {
        if let Some((log, need)) = self.0
            && let Some(on) = &log.on
        {
            on.rooms.ring_held.fetch_sub(need.ring, Ordering::SeqCst);
            on.rooms.area_held.fetch_sub(need.area, Ordering::SeqCst);
            log.serve_rooms();
        }
    }
}
