//! The engine: the parts, put together, the workers that run them, and how work gets to these.

pub(crate) mod publish;
mod task_handle;
mod threads;
mod worker_state;

pub(crate) use publish::Publisher;
pub use task_handle::{OperationFuture, TaskHandle, TaskPanic};
pub(crate) use threads::{Job, Runtime};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use worker_state::Interrupted;
pub(crate) use worker_state::WorkerState;

use std::any::Any;
use std::sync::Arc;

use crate::Error;
use crate::buffer::Buffer;
use crate::checkpoint::Checkpoints;
use crate::context::{OldValues, TaskParts, TaskWorker};
use crate::error::panic_message;
use crate::log::{Log, LogTasks};
use crate::pagestore::{LowerParts, PageStore, WRITING_TASKS};
use crate::recovery::{EngineParts, Opening, Plan};
use crate::runtime::WorkerPool;
use crate::shared::{Run, Shared};
use crate::txn::Transactions;
use publish::Publishing;

/// The parts of a store that is open, each with the state that it owns (docs/decisions/0088).
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: Arc<WorkerPool>,
    pub(crate) log: Arc<Log>,
    pub(crate) log_tasks: Arc<LogTasks>,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) pagestore: Arc<PageStore>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) opening: Arc<Opening>,
    pub(crate) transactions: Transactions,
    pub(crate) publishing: Publishing,
}

impl Engine {
    /// Puts the parts together; what is left to do once the workers run.
    pub(crate) fn new(parts: EngineParts) -> (Arc<Engine>, Plan) {
        let plan = parts.plan;
        let workers = parts.config.workers;
        let superblock = &parts.current.superblock;
        let log_runs: Vec<Run> = superblock.log_runs().collect();
        let retains = !parts.config.read_only && parts.volume.sees_pins();
        let volume = parts.volume.clone();
        let shared = Shared::new(parts.config, volume, parts.seqs, parts.recovering);
        let shared = Arc::new(shared);
        let pool = Arc::new(WorkerPool::new(workers));
        let log = Arc::new(parts.log);
        let log_tasks = Arc::new(LogTasks::new(&shared, &pool, &log, &log_runs));
        let writers = workers * WRITING_TASKS;
        let buffer = Buffer::new(parts.pool, &shared, &pool, &log, &log_tasks, writers);
        let buffer = Arc::new(buffer);
        let lower = LowerParts {
            shared: Arc::clone(&shared),
            workers: Arc::clone(&pool),
            log: Arc::clone(&log),
            log_tasks: Arc::clone(&log_tasks),
            buffer: Arc::clone(&buffer),
        };
        let pagestore = Arc::new(PageStore::new(
            lower.clone(),
            parts.space,
            parts.ids,
            (parts.allocated_bytes, parts.reserved_bytes),
            superblock.limit_segments,
            retains,
        ));
        pagestore.begin(parts.volume, superblock.sequence, superblock.clean);
        let engine = Arc::new(Engine {
            transactions: Transactions::new(&shared.config, &log, log_tasks.commits()),
            checkpoints: Checkpoints::new(parts.current, lower, &pagestore),
            opening: Arc::new(Opening::new(&shared)),
            publishing: Publishing::default(),
            shared,
            workers: pool,
            log,
            log_tasks,
            buffer,
            pagestore,
        });
        plan.touched()
            .for_each(|page| engine.buffer.changes.mark(page));
        engine.log.set_recovering(!plan.is_empty());
        engine.buffer.changes.add_late(&plan.late);
        (engine, plan)
    }

    /// What tasks of a worker use of it.
    fn task_parts(&self) -> TaskParts {
        TaskParts {
            shared: Arc::clone(&self.shared),
            log: Arc::clone(&self.log),
            log_tasks: Arc::clone(&self.log_tasks),
            buffer: Arc::clone(&self.buffer),
            pagestore: Arc::clone(&self.pagestore),
            opening: Arc::clone(&self.opening),
        }
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
    }

    /// A worker has panicked outside its tasks, or one of the engine's own tasks has. What its tasks hold is never
    /// given back, so all workers end, and their tasks' waiters get an error.
    pub(crate) fn die(&self, payload: &(dyn Any + Send)) {
        self.shared.poison(Error::TaskPanicked {
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
