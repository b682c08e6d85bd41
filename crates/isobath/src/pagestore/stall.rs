//! Tasks that wait for space, in the volume or in the log, and get none.
//!
//! Cleaning frees space as long as what is live is less than the volume holds. But
//! a segment with a corrupt page is lost, with all its space: once too many are,
//! no writer gets a place any more, and no delete, which would have to write too.
//! Writers then get an error instead of waiting, and reads go on. The same happens
//! if nothing moves at all, whatever the reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isobath_io::VolumeError;

use crate::error::StorageError;
use crate::pagestore::PageStore;
use crate::runtime::clock;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;

/// Time without any page written or segment freed after which writers get an error.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time in which nothing was written at all, nor logged, after which they get an error.
/// Longer than the kernel takes to report a drive that does not answer.
const STANDSTILL: Duration = Duration::from_secs(90);
/// How often a worker looks.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// The state of waiting tasks.
#[derive(Default)]
pub(crate) struct Stall {
    seen: Mutex<Option<Seen>>,
}

/// How far the store has got. Waiting is in order while this changes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Progress {
    room: RoomProgress,
    /// Bytes written to the volume and the log.
    written: u64,
    /// The log's start and end.
    log: (u64, u64),
}

/// The numbers that change as soon as writers can get a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RoomProgress {
    pages_written: u64,
    segments_opened: u64,
    segments_free: u32,
}

/// The result of the last look.
struct Seen {
    next_look: Instant,
    progress: Progress,
    /// Since when the one and the other are the same.
    room_since: Instant,
    all_since: Instant,
}

impl Seen {
    /// The result of a look at `now` that has found `progress`.
    fn after(before: Option<&Seen>, progress: Progress, now: Instant) -> Seen {
        let room = before.filter(|seen| seen.progress.room == progress.room);
        let all = before.filter(|seen| seen.progress == progress);
        Seen {
            next_look: now + PERIOD,
            progress,
            room_since: room.map_or(now, |seen| seen.room_since),
            all_since: all.map_or(now, |seen| seen.all_since),
        }
    }
}

impl PageStore {
    /// Looks whether tasks have waited for too long: the store takes no more writes then, and they
    /// get an error.
    pub(super) fn look_at_stall(&self) {
        if let Some(error) = self.stalled() {
            self.lower.shared.poison(error);
        }
    }

    /// Why writers get an error, where tasks have waited for too long.
    fn stalled(&self) -> Option<StorageError> {
        let stall = &self.stall;
        let now = clock::now();
        let mut seen = stall.seen.try_lock()?;
        if seen.as_ref().is_some_and(|seen| now < seen.next_look) {
            return None;
        }
        // In this order: a task that begins to wait after the look sets it again.
        self.lower.shared.has_space();
        if !self.waits_for_room() {
            *seen = None;
            return None;
        }
        self.lower.shared.watch_for_space();
        // Readers in other processes end without a word.
        self.space.lock().release_retained();
        let looked = Seen::after(seen.as_ref(), self.progress(), now);
        let (room, all) = (now - looked.room_since, now - looked.all_since);
        *seen = Some(looked);
        drop(seen);
        if room > PATIENCE
            && let Some(reason) = self.why_no_room()
        {
            return Some(self.no_room(reason));
        }
        // A backup's target may be slow.
        let is_held = self.lower.log_tasks.is_held() && !self.lower.shared.is_recovering();
        let stands = all > STANDSTILL && !is_held && !self.is_resizing();
        stands.then(|| self.no_room("nothing moves any more; reopen the store".into()))
    }

    /// Whether a task waits for a segment, for log space, or for the end of a cleaning.
    fn waits_for_room(&self) -> bool {
        self.space.has_waiters()
            || self.lower.log.has_reservation_waiters()
            || self.space.lock().cleaning() > 0
    }

    fn progress(&self) -> Progress {
        let space = self.space.lock();
        Progress {
            room: RoomProgress {
                pages_written: space.now,
                segments_opened: space.next_seq,
                segments_free: space.free_segments(),
            },
            written: self
                .lower
                .shared
                .counters
                .bytes_written
                .load(Ordering::Relaxed),
            log: (self.lower.log.start().0, self.lower.log.next().0),
        }
    }

    /// Why no cleaning will give the tasks that wait a segment; `None` if it may.
    fn why_no_room(&self) -> Option<String> {
        if !self.space.has_waiters() {
            return None;
        }
        let space = self.space.lock();
        let bad = space.bad_segments();
        if bad > 0 {
            return Some(format!(
                "{bad} segments hold corrupt pages and cannot be cleaned; salvage the store"
            ));
        }
        let may_come = self.cleaning_wanted.load(Ordering::Acquire)
            || space.cleaning() > 0
            || space.retains_obsolete()
            || self.is_resizing()
            || self.has_pending_frees();
        (!may_come).then(|| "cleaning gains nothing, and the volume cannot grow".into())
    }

    fn no_room(&self, reason: String) -> StorageError {
        StorageError::VolumeFull {
            used: self.allocated_bytes.load(Ordering::Relaxed),
            limit: self.capacity_bytes.load(Ordering::Relaxed),
            reason: Arc::new(VolumeError::Device(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(free: u32, written: u64) -> Progress {
        Progress {
            room: RoomProgress {
                pages_written: 1,
                segments_opened: 2,
                segments_free: free,
            },
            written,
            log: (3, 4),
        }
    }

    #[test]
    fn only_what_has_not_moved_grows_old() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let first = Seen::after(None, progress(1, 1), begin);
        // Something is written, but no segment gets free.
        let second = Seen::after(Some(&first), progress(1, 2), at(1));
        assert_eq!((second.room_since, second.all_since), (begin, at(1)));
        let third = Seen::after(Some(&second), progress(1, 2), at(2));
        assert_eq!((third.room_since, third.all_since), (begin, at(1)));
        let fourth = Seen::after(Some(&third), progress(2, 2), at(3));
        assert_eq!((fourth.room_since, fourth.all_since), (at(3), at(3)));
    }
}
