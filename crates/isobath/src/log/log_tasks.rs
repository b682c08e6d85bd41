//! What tasks share of the log, beside the log itself.

use std::sync::Arc;

use super::Log;
use super::growth::LogGrowth;
use super::tasks::Awaited;
use super::volume_flush::VolumeFlush;
use crate::runtime::WorkerPool;
use crate::shared::{Run, Shared};

/// How far the log has grown, what tasks of each worker wait for in it, and flushes that they share.
pub(crate) struct LogTasks {
    pub(super) growth: LogGrowth,
    /// Per worker: what its tasks wait for in the log.
    pub(super) awaited: Vec<Awaited>,
    pub(super) volume_flush: VolumeFlush,
    pub(super) shared: Arc<Shared>,
    pub(super) workers: Arc<WorkerPool>,
    pub(super) log: Arc<Log>,
}

impl LogTasks {
    /// For a log that has these runs.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        workers: &Arc<WorkerPool>,
        log: &Arc<Log>,
        runs: &[Run],
    ) -> LogTasks {
        if log.is_on() {
            let (log, workers) = (Arc::clone(log), Arc::clone(workers));
            // Nothing more is written; tasks that wait for the log wake and find the reason.
            shared.on_poison(move || {
                log.fail();
                workers.notify_all();
            });
        }
        LogTasks {
            growth: LogGrowth::new(runs, shared.config.sizes),
            awaited: (0..workers.count()).map(|_| Awaited::new()).collect(),
            volume_flush: VolumeFlush::new(),
            shared: Arc::clone(shared),
            workers: Arc::clone(workers),
            log: Arc::clone(log),
        }
    }

    /// Segments that the log has, of those that a volume of `segments` segments uses.
    pub(crate) fn segments(&self, segments: u32) -> u32 {
        self.growth.segments(segments)
    }

    /// Whether a checkpoint is asked for that needs nothing of the log so far.
    #[inline]
    pub(crate) fn checkpoint_is_wanted(&self) -> bool {
        self.growth.wants_checkpoint()
    }

    /// Whether another area is being made for the log.
    pub(crate) fn is_moving(&self) -> bool {
        self.growth.is_making()
    }

    /// The log need not be larger than it is, as far as anything is known.
    pub(crate) fn forget_wanted(&self) {
        self.growth.forget_wanted();
    }
}
