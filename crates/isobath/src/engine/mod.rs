//! The engine: the parts, put together, the workers that run them, and how work gets to these.

pub(crate) mod publish;
mod task_handle;
mod threads;
#[cfg(any(debug_assertions, test, feature = "simulation"))]
mod watchdog;
mod worker_state;

pub(crate) use publish::Publisher;
pub use task_handle::{OperationFuture, TaskHandle, TaskPanic};
pub(crate) use threads::{Admitted, Job, Runtime};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use watchdog::what_waits;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use worker_state::Interrupted;
pub(crate) use worker_state::WorkerState;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::checkpoint::Checkpoints;
use crate::context::{OldValues, TaskParts, TaskWorker};
use crate::error::StorageError;
use crate::error::panic_message;
use crate::log::LogTasks;
use crate::merging::Merging;
use crate::pagestore::{LowerParts, PageStore, WRITING_TASKS};
use crate::recovery::{EngineParts, Opening, Plan};
use crate::runtime::WorkerPool;
use crate::shared::Shared;
use crate::txn::Transactions;
use publish::Publishing;

/// The parts of an open store. Each owns its state, so a change is judged from its folder alone.
pub(crate) struct Engine {
    /// Those that tasks use; reached as if they were fields of this.
    parts: TaskParts,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) transactions: Transactions,
    pub(crate) merging: Merging,
    pub(crate) publishing: Publishing,
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    watchdog: watchdog::Watchdog,
}

impl Deref for Engine {
    type Target = TaskParts;

    #[inline(always)]
    fn deref(&self) -> &TaskParts {
        &self.parts
    }
}

impl Engine {
    /// Puts the parts together; returns the work that is left once the workers run.
    pub(crate) fn new(parts: EngineParts) -> (Arc<Engine>, Plan) {
        let plan = parts.plan;
        let workers = parts.config.workers;
        let superblock = &parts.current.superblock;
        let log_segments = superblock.log_segments();
        let retains = !parts.config.read_only && parts.volume.sees_pins();
        let volume = parts.volume.clone();
        let shared = Shared::new(parts.config, volume, parts.seqs, parts.recovering);
        let (shared, pool) = (Arc::new(shared), Arc::new(WorkerPool::new(workers)));
        let log = Arc::new(parts.log);
        let log_tasks = Arc::new(LogTasks::new(&shared, &pool, &log, &log_segments));
        let writers = workers * WRITING_TASKS;
        let buffer = Buffer::new(parts.pool, &shared, &pool, &log, &log_tasks, writers);
        let lower = LowerParts {
            shared,
            workers: pool,
            log,
            log_tasks,
            buffer: Arc::new(buffer),
        };
        let pagestore = Arc::new(PageStore::new(
            lower.clone(),
            parts.space,
            parts.ids,
            (parts.allocated_bytes, parts.reserved_bytes),
            superblock.limit_segments,
            superblock.may_have_large,
            retains,
        ));
        pagestore.begin(parts.volume, superblock.sequence, superblock.clean);
        let (config, commits) = (&lower.shared.config, lower.log_tasks.commits());
        let engine = Arc::new(Engine {
            transactions: Transactions::new(config, &lower.log, commits),
            merging: Merging::new(lower.clone()),
            checkpoints: Checkpoints::new(parts.current, lower.clone(), &pagestore),
            publishing: Publishing::default(),
            #[cfg(any(debug_assertions, test, feature = "simulation"))]
            watchdog: watchdog::Watchdog::default(),
            parts: TaskParts {
                opening: Arc::new(Opening::new(&lower.shared)),
                lower,
                pagestore,
            },
        });
        plan.touched()
            .for_each(|page| engine.buffer.changes.mark(page));
        engine.log.set_recovering(!plan.is_empty());
        engine.buffer.changes.add_late(&plan.late);
        (engine, plan)
    }

    /// Releases the volume and the memory, whatever handles remain; the workers have stopped.
    pub(crate) fn release(&self) {
        self.shared.release_volume();
        if self.shared.config.read_only {
            self.opening.release();
        }
        self.pagestore.release();
        self.buffer.release();
        self.log.discard();
        // Behind the volume: without one they end.
        self.log_tasks.streams().wake_all();
    }

    /// A worker has panicked outside its tasks, or one of the engine's own tasks has. What its
    /// tasks hold is never given back, so all workers end, and their tasks' waiters get an error.
    pub(crate) fn die(&self, payload: &(dyn Any + Send)) {
        self.shared.poison(StorageError::TaskPanicked {
            message: format!("a worker: {}", panic_message(payload)),
        });
        self.workers.die();
    }
}

impl OldValues for Engine {
    fn give_way(&self, local: &TaskWorker) -> bool {
        self.transactions.free_old_values(local)
    }
}
