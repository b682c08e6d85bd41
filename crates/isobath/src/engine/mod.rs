//! The engine: the parts, put together.

mod context;
mod forward;
pub(crate) mod publish;

pub(crate) use context::{InlineContext, PoolHandle, TaskContext};
pub(crate) use publish::Publisher;

use std::any::Any;
use std::sync::Arc;

use crate::Error;
use crate::buffer::Buffer;
use crate::checkpoint::Checkpoints;
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
    pub(crate) log_tasks: LogTasks,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) pagestore: Arc<PageStore>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) opening: Opening,
    pub(crate) transactions: Transactions,
    pub(crate) publishing: Publishing,
}

impl Engine {
    /// Puts the parts together; what is left to do once the workers run.
    pub(crate) fn new(parts: EngineParts) -> (Arc<Engine>, Plan) {
        let plan = parts.plan;
        let workers = parts.config.workers;
        let superblock = &parts.current.superblock;
        let sequence = superblock.sequence;
        let was_closed = superblock.clean;
        let log_runs: Vec<Run> = superblock.log_runs().collect();
        let retains = !parts.config.read_only && parts.volume.sees_pins();
        let transactions = Transactions::new(&parts.config, &parts.log);
        let volume = parts.volume.clone();
        let shared = Shared::new(parts.config, volume, parts.seqs, parts.recovering);
        let shared = Arc::new(shared);
        let pool = Arc::new(WorkerPool::new(workers));
        let log = Arc::new(parts.log);
        let writers = workers * WRITING_TASKS;
        let buffer = Arc::new(Buffer::new(parts.pool, &shared, &pool, &log, writers));
        let below_pagestore = LowerParts {
            shared: Arc::clone(&shared),
            workers: Arc::clone(&pool),
            log: Arc::clone(&log),
            buffer: Arc::clone(&buffer),
        };
        let limit_segments = superblock.limit_segments;
        let pagestore = Arc::new(PageStore::new(
            below_pagestore,
            parts.space,
            parts.ids,
            (parts.allocated_bytes, parts.reserved_bytes),
            limit_segments,
            retains,
        ));
        let current = parts.current;
        let engine = Engine {
            checkpoints: Checkpoints::new(current, &shared, &pool, &log, &buffer, &pagestore),
            buffer,
            log_tasks: LogTasks::new(&shared, &pool, &log, &log_runs),
            transactions,
            pagestore,
            opening: Opening::new(&shared),
            publishing: Publishing::default(),
            shared,
            workers: pool,
            log,
        };
        engine.pagestore.begin(
            engine.log.is_on(),
            &engine.log_tasks,
            parts.volume,
            sequence,
            was_closed,
        );
        let engine = Arc::new(engine);
        let weak = Arc::downgrade(&engine);
        let wake = move |engine: Arc<Engine>| engine.pagestore.wake_all();
        engine
            .shared
            .on_poison(move || weak.upgrade().into_iter().for_each(wake));
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
    }

    /// See [`Shared::poison`].
    pub(crate) fn poison(&self, cause: Error) {
        self.shared.poison(cause);
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
