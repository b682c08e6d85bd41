//! One worker's share of the engine: its tasks, its free frames, its page
//! loads in flight, and what it does between tasks and I/O.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use isobath_io::IoError;

use super::Engine;
use crate::context::{OldValues, PoolHandle, TaskWorker};
use crate::error::StorageError;
use crate::log::LOG_WRITERS;
use crate::pagestore::{PageStore, STALL_PERIOD, WRITERS};
use crate::runtime::{BackgroundHandler, Limits, Worker};

/// A worker and its share of the engine; belongs to the thread that steps it.
pub(crate) struct WorkerState {
    tasks: TaskWorker,
    pub(crate) engine: Arc<Engine>,
    /// System tasks that still run.
    pub(crate) system_tasks: Cell<usize>,
    /// Log writers that still run.
    log_writers: Cell<usize>,
    /// Standstills that the worker has told what its tasks wait for in.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(super) standstills: Cell<u64>,
}

thread_local! {
    static LOCAL: Cell<*const WorkerState> = const { Cell::new(std::ptr::null()) };
}

/// The worker that is being stepped, while a simulation interrupts it.
#[cfg(any(test, feature = "simulation"))]
pub(crate) struct Interrupted(*const WorkerState, crate::runtime::Stepped);

#[cfg(any(test, feature = "simulation"))]
impl Interrupted {
    /// From now on no worker is being stepped on this thread.
    pub(crate) fn leave() -> Interrupted {
        let local = LOCAL.replace(std::ptr::null());
        Interrupted(local, crate::runtime::Stepped::leave())
    }

    /// The worker goes on with its step.
    pub(crate) fn go_on(self) {
        LOCAL.set(self.0);
        self.1.go_on();
    }
}

impl Deref for WorkerState {
    type Target = TaskWorker;

    #[inline(always)]
    fn deref(&self) -> &TaskWorker {
        &self.tasks
    }
}

impl WorkerState {
    /// Worker `index` of `engine`; call it on the thread that will step it.
    ///
    /// # Errors
    ///
    /// [`StorageError::Volume`] if the volume refuses a channel, [`StorageError::Memory`].
    pub(crate) fn new(engine: Arc<Engine>, index: usize) -> Result<Rc<WorkerState>, StorageError> {
        let config = &engine.shared.config;
        let channel = engine
            .shared
            .volume()?
            .channel(&isobath_io::ChannelOptions::with_depth(config.depth))
            .map_err(|source| StorageError::Volume(Arc::new(source)))?;
        let limits = Limits {
            tasks: config.tasks,
            system_tasks: WRITERS + 2 + LOG_WRITERS + 2,
            stack_bytes: config.stack_bytes,
        };
        let worker = Worker::new(
            index,
            limits,
            Arc::clone(&engine.workers.handles()[index]),
            channel,
        )
        .map_err(|source| StorageError::Memory {
            what: "the stacks of a worker's tasks",
            source: Arc::new(source),
        })?;
        let local = Rc::new(WorkerState {
            tasks: TaskWorker {
                worker,
                pool: PoolHandle::of(&engine.buffer),
                parts: engine.parts.clone(),
                old_values: Arc::clone(&engine) as Arc<dyn OldValues>,
            },
            system_tasks: Cell::new(0),
            log_writers: Cell::new(0),
            #[cfg(any(debug_assertions, test, feature = "simulation"))]
            standstills: Cell::new(0),
            engine,
        });
        if !local.engine.shared.config.read_only {
            local.start_system_tasks();
        }
        Ok(local)
    }

    fn start_system_tasks(self: &Rc<Self>) {
        let is_logged = self.engine.log.is_on();
        for slot in PageStore::writer_slots(&self.worker) {
            self.spawn_system(move |local| local.parts.pagestore.run_writer(&local.worker, slot));
        }
        self.spawn_system(|local| {
            let is_last = || local.system_tasks.get() == 1;
            local.parts.pagestore.run_cleaner(&local.worker, is_last);
        });
        if self.worker.index == 0 && is_logged {
            self.spawn_system(|local| local.engine.checkpoints.run_checkpointer(&local.worker));
        }
        self.start_merging();
        for _ in 0..if is_logged { LOG_WRITERS } else { 0 } {
            // Counted apart: they outlive the others, which may wait for the log.
            self.spawn_counted(
                |local| &local.log_writers,
                |local| {
                    let has_ended = || local.flushes_are_over();
                    local.parts.log_tasks.run_writer(&local.worker, has_ended);
                },
            );
        }
    }

    /// The first worker and the last one share the work on overlays.
    fn start_merging(self: &Rc<Self>) {
        if self.worker.index == 0 {
            self.spawn_system(|local| {
                let engine = &local.engine;
                engine.merging.run(&engine.transactions, local);
            });
        }
        if self.worker.index + 1 == self.engine.workers.handles().len() {
            self.spawn_system(|local| {
                let engine = &local.engine;
                engine.merging.run_merges(&engine.transactions, local);
            });
        }
    }

    fn spawn_system(self: &Rc<Self>, work: impl FnOnce(&WorkerState) + 'static) {
        self.spawn_counted(|local| &local.system_tasks, work);
    }

    /// Runs a system task that `counter` counts while it lives. If one has panicked, pages are
    /// written or segments freed no longer: the store closes, as where a worker has.
    fn spawn_counted(
        self: &Rc<Self>,
        counter: fn(&WorkerState) -> &Cell<usize>,
        work: impl FnOnce(&WorkerState) + 'static,
    ) {
        let local = Rc::downgrade(self);
        counter(self).set(counter(self).get() + 1);
        let started = self.worker.spawn_system(Box::new(move || {
            let Some(local) = local.upgrade() else { return };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(&local))) {
                local.engine.die(&*payload);
            }
            counter(&local).set(counter(&local).get() - 1);
        }));
        debug_assert!(started, "a slot for every system task");
    }

    /// Calls `with` with the worker of `engine` whose task runs on this thread, if any.
    #[inline]
    pub(crate) fn with_current<R>(
        engine: &Engine,
        with: impl FnOnce(Option<&WorkerState>) -> R,
    ) -> R {
        let current = LOCAL.get();
        // SAFETY: non-null only during `step`, which borrows the local.
        let local = unsafe { current.as_ref() };
        with(local.filter(|local| {
            std::ptr::eq(Arc::as_ptr(&local.engine), engine) && local.worker.in_task()
        }))
    }

    /// Calls `work` with the worker on which the caller is a task of `engine`.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`] if it is none; those of `work`.
    #[inline]
    pub(crate) fn in_task<T, E: From<StorageError>>(
        engine: &Engine,
        work: impl FnOnce(&WorkerState) -> Result<T, E>,
    ) -> Result<T, E> {
        let closed = || Err(StorageError::Closed.into());
        WorkerState::with_current(engine, |local| local.map_or_else(closed, work))
    }

    /// Advances the worker once; see [`Worker::step`].
    pub(crate) fn step(&self, block: bool) -> bool {
        let outer = LOCAL.replace(self);
        let progress = self.worker.step(self, block);
        LOCAL.set(outer);
        progress
    }

    /// Runs until the engine stops and nothing is left to do, or a worker has panicked.
    pub(crate) fn run(&self) {
        while !self.engine.workers.has_died() && !self.has_ended() {
            self.step(!self.engine.workers.is_stopping());
        }
    }

    /// Whether the engine stops and nothing is left to do. Messages that come
    /// later are refused.
    pub(crate) fn has_ended(&self) -> bool {
        let ended = self.engine.workers.is_stopping()
            && self.worker.is_quiescent()
            && self.system_tasks.get() == 0
            && self.log_writers.get() == 0;
        if ended {
            self.worker.handle().close();
        }
        ended
    }

    /// Whether no task is left on this worker that could request a flush of the log.
    fn flushes_are_over(&self) -> bool {
        self.engine.workers.is_stopping()
            && self.system_tasks.get() == 0
            && self.worker.has_no_user_tasks()
    }

    /// Describes the worker's waits, to explain a standstill.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn describe(&self) -> String {
        format!(
            "worker {}: {} tasks, {} I/Os, {}, {} writers idle, tasks at {:?}",
            self.worker.index,
            self.worker.live_user_tasks(),
            self.worker.in_flight(),
            self.engine.buffer.describe(&self.worker),
            self.engine.pagestore.idle_writers(&self.worker),
            self.worker.tasks_suspended_at(),
        ) + &self.engine.pagestore.describe()
    }
}

impl BackgroundHandler for WorkerState {
    fn completed(&self, worker: &Worker, token: u64, result: Result<(), IoError>) {
        debug_assert_eq!(worker.index, self.worker.index);
        self.engine.buffer.completed(worker, token, result);
    }

    fn poll_background(&self, _worker: &Worker) -> bool {
        #[cfg(any(debug_assertions, test, feature = "simulation"))]
        self.watch();
        let mut progress = false;
        progress |= self.engine.buffer.poll(&self.worker);
        let stopping = self.engine.workers.is_stopping();
        progress |= self.engine.pagestore.poll(&self.worker, stopping);
        progress |= self.engine.checkpoints.poll(&self.worker, stopping);
        progress |= self.engine.merging.poll(&self.worker, stopping);
        if self.engine.publishing.is_on() {
            self.publish_stats();
        }
        if self.log_writers.get() > 0 {
            let has_ended = || self.flushes_are_over();
            progress |= self.engine.log_tasks.poll(&self.worker, has_ended);
        }
        progress
    }

    fn max_wait(&self) -> Option<Duration> {
        let frames = self.engine.buffer.max_wait(&self.worker);
        #[cfg(any(debug_assertions, test, feature = "simulation"))]
        let frames = frames.into_iter().chain(self.until_watch()).min();
        frames
            .into_iter()
            .chain(self.engine.log_tasks.until_deadline(&self.worker))
            .chain(self.until_publishing())
            .chain(self.engine.merging.max_wait(&self.worker))
            .chain(self.engine.shared.awaits_space().then_some(STALL_PERIOD))
            .min()
    }
}
