//! Log state that tasks share, other than the log itself.

use std::sync::Arc;
use std::task::Waker;

use super::growth::LogGrowth;
use super::hold::Hold;
use super::tasks::{Awaited, Own};
use super::volume_flush::VolumeFlush;
use super::{Log, Tracker};
use crate::runtime::{PerWorker, WaitQueue, WorkerPool};
use crate::shared::Shared;

/// How far the log has grown, what tasks of each worker wait for in it, and flushes that they
/// share.
pub(crate) struct LogTasks {
    pub(super) growth: LogGrowth,
    pub(super) hold: Hold,
    pub(super) commits: Arc<Tracker>,
    /// Per worker: what its tasks wait for in the log.
    pub(super) awaited: Vec<Awaited>,
    pub(super) volume_flush: VolumeFlush,
    /// Tasks that wait until old changes are on the drive, a checkpoint among them: it goes on
    /// without them where the log has no space for the records of what is written.
    pub(super) flush_waiters: Arc<WaitQueue>,
    /// Streams of changes, each until the log is durable beyond an LSN. They are woken, too, where
    /// that comes no more.
    pub(super) streams: Arc<WaitQueue<Waker>>,
    pub(super) own: PerWorker<Own>,
    pub(super) shared: Arc<Shared>,
    pub(super) workers: Arc<WorkerPool>,
    pub(super) log: Arc<Log>,
}

impl LogTasks {
    /// For a log that lies in these segments.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        workers: &Arc<WorkerPool>,
        log: &Arc<Log>,
        segments: &[u32],
    ) -> LogTasks {
        if log.is_on() {
            let (log, workers) = (Arc::clone(log), Arc::clone(workers));
            // Nothing more is written; tasks that wait for the log wake and find the reason.
            shared.on_poison(move || {
                log.fail();
                workers.notify_all();
            });
        }
        let flush_waiters = Arc::new(WaitQueue::new());
        let streams = Arc::new(WaitQueue::new());
        let (waiters, streaming) = (Arc::clone(&flush_waiters), Arc::clone(&streams));
        shared.on_poison(move || {
            waiters.wake_all();
            streaming.wake_all();
        });
        LogTasks {
            hold: Hold::new(),
            commits: Arc::new(Tracker::new(workers.count(), shared.config.tasks)),
            growth: LogGrowth::new(segments.len()),
            awaited: (0..workers.count()).map(|_| Awaited::new()).collect(),
            volume_flush: VolumeFlush::new(),
            flush_waiters,
            streams,
            own: PerWorker::new(workers, |_| Own::new()),
            shared: Arc::clone(shared),
            workers: Arc::clone(workers),
            log: Arc::clone(log),
        }
    }

    /// Commits in flight.
    pub(crate) fn commits(&self) -> &Arc<Tracker> {
        &self.commits
    }

    /// Counts of the tasks that wait here, by reason.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(crate) fn waits(&self) -> [(usize, &'static str); 4] {
        let awaited = self.awaited.iter().filter(|awaited| awaited.is_any());
        [
            (awaited.count(), "durable records, at least"),
            (self.log.reservation_waiters(), "log space"),
            (self.volume_flush.waiters(), "a flush of the volume"),
            (self.flush_waiters.waiters(), "older changes on the drive"),
        ]
    }

    /// Streams of changes that wait for durable records, each for one at its LSN.
    pub(crate) fn streams(&self) -> &WaitQueue<Waker> {
        &self.streams
    }

    /// Tasks that wait until old changes are on the drive. They are woken, too, where the log has
    /// no space for the records of what is written.
    pub(crate) fn flush_waiters(&self) -> &Arc<WaitQueue> {
        &self.flush_waiters
    }
}
