//! Which snapshots are open.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::canary::{self, Canary};
use crate::error::TransactionError;
use crate::log::{Log, Tracker};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

const SHARDS: usize = 8;
const NONE: u64 = u64::MAX;
/// Beside the number of active snapshots: a commit keeps new ones out.
const CLOSED: u64 = 1 << 63;

/// An open snapshot.
#[derive(Debug)]
pub(crate) struct Registered {
    /// It sees exactly the commits whose LSN is below this.
    pub(crate) lsn: u64,
    number: u64,
    too_old: AtomicBool,
}

impl Registered {
    /// No other snapshot of the store ever has it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether what was found so far is complete: versions that the snapshot
    /// needed may be gone. To be asked after looking into the version store.
    pub(crate) fn check(&self) -> Result<(), TransactionError> {
        if self.too_old.load(Ordering::Acquire) {
            Err(TransactionError::SnapshotTooOld)
        } else {
            Ok(())
        }
    }
}

#[repr(align(128))]
struct Shard {
    /// The oldest snapshot; 0 while one is being opened.
    oldest: AtomicU64,
    live: Mutex<BTreeMap<(u64, u64), Arc<Registered>>>,
}

impl Shard {
    /// The oldest snapshot: its LSN and number. If one is being opened waits until it is.
    fn oldest(&self) -> Option<(u64, u64)> {
        self.live.lock().keys().next().copied()
    }

    fn note_oldest(&self, live: &BTreeMap<(u64, u64), Arc<Registered>>) {
        let oldest = live.first_key_value().map_or(NONE, |(at, _)| at.0);
        self.oldest.store(oldest, Ordering::SeqCst);
    }
}

/// Waits for the commits that have not seen that a snapshot begins, and have left
/// no versions: until they have ended, and until the watermark has passed them,
/// which others in flight may keep below.
fn await_unversioned_commits<E>(
    log: &Log,
    tracker: &Tracker,
    mut wait: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    tracker.drain(true, &mut wait)?;
    let end = tracker.unversioned_end();
    while tracker.watermark(log) < end {
        wait()?;
    }
    Ok(())
}

/// No snapshot begins until this is dropped.
pub(crate) struct KeptOut<'s>(&'s AtomicU64);

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(!CLOSED, Ordering::SeqCst);
    }
}

/// All open snapshots of a store.
pub(crate) struct Snapshots {
    /// Open ones and those being opened; not those that have failed. And [`CLOSED`].
    active: AtomicU64,
    next: AtomicU64,
    shards: [Shard; SHARDS],
}

impl Snapshots {
    pub(crate) fn new() -> Snapshots {
        Snapshots {
            active: AtomicU64::new(0),
            next: AtomicU64::new(1),
            shards: std::array::from_fn(|_| Shard {
                oldest: AtomicU64::new(NONE),
                live: Mutex::new(BTreeMap::new()),
            }),
        }
    }

    /// Snapshots that are open or being opened.
    #[inline]
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::SeqCst) & !CLOSED
    }

    fn shard(&self, number: u64) -> &Shard {
        &self.shards[number as usize % SHARDS]
    }

    /// Opens a snapshot at the watermark; `wait` lets commits go on, and says when
    /// to give up.
    pub(crate) fn begin<E>(
        &self,
        log: &Log,
        tracker: &Tracker,
        mut wait: impl FnMut() -> Result<(), E>,
    ) -> Result<Arc<Registered>, E> {
        let one_more = |active| (active & CLOSED == 0).then_some(active + 1);
        while self
            .active
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more)
            .is_err()
        {
            wait()?;
        }
        let waited = await_unversioned_commits(log, tracker, wait);
        waited.inspect_err(|_| {
            self.active.fetch_sub(1, Ordering::SeqCst);
        })?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let shard = self.shard(number);
        let mut live = shard.live.lock();
        // Until the snapshot is in the list nothing may be collected that it
        // could need: a task that has computed a horizon before this has reported
        // the watermark that this one starts from (`horizon`).
        shard.oldest.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let lsn = tracker.watermark(log);
        let registered = Arc::new(Registered {
            lsn,
            number,
            too_old: AtomicBool::new(false),
        });
        live.insert((lsn, number), Arc::clone(&registered));
        shard.note_oldest(&live);
        Ok(registered)
    }

    /// Closes a snapshot.
    pub(crate) fn end(&self, registered: &Registered) {
        let shard = self.shard(registered.number);
        let mut live = shard.live.lock();
        if live.remove(&(registered.lsn, registered.number)).is_some() {
            shard.note_oldest(&live);
            self.active.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// No open snapshot, and none that begins later, is below this. Uses the reported watermark:
    /// what lies above it counts as not passed.
    pub(super) fn horizon(&self, tracker: &Tracker) -> u64 {
        let watermark = tracker.reported();
        if canary::is_on(Canary::DropVersionsEarly) {
            return watermark;
        }
        fence(Ordering::SeqCst);
        let oldest = self.shards.iter().map(|s| s.oldest.load(Ordering::SeqCst));
        oldest.fold(watermark, u64::min)
    }

    /// As [`Snapshots::horizon`], and waits for those that are being opened, which let nothing go
    /// until their LSNs are known.
    pub(super) fn exact_horizon(&self, tracker: &Tracker) -> u64 {
        // Read first: one that is opened in a shard after the look at that begins here or later.
        let watermark = tracker.reported();
        let oldest = self.shards.iter().filter_map(Shard::oldest);
        oldest.map(|oldest| oldest.0).fold(watermark, u64::min)
    }

    fn abort(&self, snapshot: &Registered) {
        // In this order: see `others`.
        snapshot.too_old.store(true, Ordering::SeqCst);
        self.active.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a snapshot beside `own` is open or being opened. A commit asks after it
    /// has occupied its slot.
    #[inline]
    pub(crate) fn others(&self, own: Option<&Registered>) -> bool {
        let active = self.active();
        // If `own` has failed by now, and is counted still, the answer is yes for no
        // reason, which is harmless.
        let counts = own.is_some_and(|own| !own.too_old.load(Ordering::SeqCst));
        active > u64::from(counts)
    }

    /// Keeps new snapshots out; `wait` is called while another commit does, and says when to give
    /// up. Those that are being opened are counted already, and will be open.
    pub(super) fn close<E>(
        &self,
        mut wait: impl FnMut() -> Result<(), E>,
    ) -> Result<KeptOut<'_>, E> {
        while self.active.fetch_or(CLOSED, Ordering::SeqCst) & CLOSED != 0 {
            wait()?;
        }
        Ok(KeptOut(&self.active))
    }

    /// Aborts every snapshot but `own`; returns how many.
    pub(super) fn abort_others(&self, own: Option<&Registered>) -> u64 {
        let mut aborted = 0;
        for shard in &self.shards {
            let mut live = shard.live.lock();
            live.retain(|_, snapshot| {
                let stays = own.is_some_and(|own| own.number == snapshot.number);
                if !stays {
                    self.abort(snapshot);
                    aborted += 1;
                }
                stays
            });
            shard.note_oldest(&live);
        }
        aborted
    }

    /// Aborts the oldest snapshot; `false` if none is open.
    pub(crate) fn abort_oldest(&self) -> bool {
        // Not by what the shards say is their oldest: one whose snapshot is being opened says 0,
        // and may have no other.
        let Some(oldest) = self.shards.iter().filter_map(Shard::oldest).min() else {
            return false;
        };
        let shard = self.shard(oldest.1);
        let mut live = shard.live.lock();
        // If it has ended since, that is as good.
        if let Some(aborted) = live.remove(&oldest) {
            self.abort(&aborted);
            shard.note_oldest(&live);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::page::Lsn;

    #[test]
    fn the_horizon_is_the_oldest_open_snapshot() {
        let log = Log::off(Lsn(8));
        let tracker = Tracker::new(1, 1);
        let snapshots = Snapshots::new();
        let never = || -> Result<(), Infallible> { unreachable!("no commit is in flight") };
        let begin = || snapshots.begin(&log, &tracker, never).unwrap();
        let first = begin();
        log.stamp(0);
        let second = begin();
        log.stamp(0);
        assert!(first.lsn < second.lsn);
        assert_eq!(snapshots.horizon(&tracker), first.lsn);
        assert_eq!(snapshots.active(), 2);
        assert!(snapshots.abort_oldest());
        assert!(first.check().is_err() && second.check().is_ok());
        assert_eq!(snapshots.active(), 1);
        assert!(!snapshots.others(Some(&second)) && snapshots.others(Some(&first)));
        assert_eq!(snapshots.horizon(&tracker), second.lsn);
        snapshots.end(&first);
        snapshots.end(&second);
        assert_eq!(snapshots.active(), 0);
        assert!(snapshots.horizon(&tracker) <= tracker.watermark(&log));
        assert_eq!(snapshots.horizon(&tracker), log.next().0);
        assert!(!snapshots.abort_oldest());
    }

    #[test]
    fn the_oldest_snapshot_is_aborted_while_another_is_being_opened() {
        let (log, tracker) = (Log::off(Lsn(8)), Tracker::new(1, 1));
        let snapshots = Snapshots::new();
        let first = snapshots.begin(&log, &tracker, || Err(())).unwrap();
        log.stamp(0);
        let second = snapshots.begin(&log, &tracker, || Err(())).unwrap();
        // As `begin` does before it knows where the snapshot is.
        for shard in &snapshots.shards {
            if shard.live.lock().is_empty() {
                shard.oldest.store(0, Ordering::SeqCst);
            }
        }
        assert_eq!(snapshots.horizon(&tracker), 0);
        assert_eq!(snapshots.exact_horizon(&tracker), first.lsn);
        assert!(snapshots.abort_oldest());
        assert!(first.check().is_err() && second.check().is_ok());
        assert!(snapshots.abort_oldest() && second.check().is_err());
        assert!(!snapshots.abort_oldest() && snapshots.active() == 0);
    }

    #[test]
    fn no_snapshot_begins_while_a_commit_keeps_them_out() {
        let (log, tracker) = (Log::off(Lsn(8)), Tracker::new(1, 1));
        let snapshots = Snapshots::new();
        let own = snapshots.begin(&log, &tracker, || Err(())).unwrap();
        let mut kept_out = Some(snapshots.close(|| Err(())).unwrap());
        assert!(snapshots.close(|| Err(())).is_err());
        assert!(snapshots.begin(&log, &tracker, || Err(())).is_err());
        assert!(snapshots.active() == 1 && !snapshots.others(Some(&own)));
        let mut waits = 0;
        let begun = snapshots.begin(&log, &tracker, || {
            waits += 1;
            drop(kept_out.take());
            Ok::<(), ()>(())
        });
        assert!(begun.is_ok() && waits == 1 && snapshots.others(Some(&own)));
    }
}
