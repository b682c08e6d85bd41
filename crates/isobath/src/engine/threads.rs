//! The workers' threads, and how work gets to them.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Engine, TaskHandle, TaskPanic, WorkerState};
use crate::buffer::BufferPool;
use crate::context::PoolHandle;
use crate::error::StorageError;
use crate::runtime::{
    FOR_A_RESULT, OfProcess, Spin, Urgency, Work, WorkerPool, block_on, in_any_task, overflow,
};
use crate::shared::Config;
use crate::small;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Work for a worker; it may borrow from the thread or task that waits for it.
pub(crate) type Job<'j, E> = Box<dyn FnOnce(&WorkerState) -> Result<(), E> + Send + 'j>;

/// Receives the result of a task.
type Done<R> = oneshot::AsyncReceiver<Result<R, TaskPanic>>;

/// Accepted work: until this is dropped it counts, and keeps the store from closing.
pub(crate) struct Admitted(Arc<Engine>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.workers.admission.leave();
    }
}

/// Lent to a task: what its work borrows must stay until the task has ended. The lender holds this
/// until then and ends it afterwards. If the lender's stack were unwound before, by a panic or
/// because the fiber that it waits in is dropped, the task would work on freed memory: so the
/// process ends first.
struct Lent {
    /// After a panic the workers of a simulation are not stepped again.
    simulated: bool,
}

impl Lent {
    /// The task has ended.
    fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.simulated {
            return;
        }
        eprintln!("isobath: a caller ends before the task that borrows from it");
        std::process::abort();
    }
}

/// Work, and the receiver of its result.
struct Piece<R, W> {
    /// `None` once it has begun.
    work: Mutex<Option<W>>,
    /// `None` once its result is sent. The work counts until then.
    end: Mutex<Option<(oneshot::Sender<R>, Admitted)>>,
}

impl<R, W: FnOnce() -> R> Piece<R, W> {
    fn new(work: W, tell: oneshot::Sender<R>, admitted: Admitted) -> Piece<R, W> {
        Piece {
            work: Mutex::new(Some(work)),
            end: Mutex::new(Some((tell, admitted))),
        }
    }
}

impl<R: Send, W: FnOnce() -> R + Send> Work for Piece<R, W> {
    fn run(&self) {
        let work = self.work.lock().take();
        let Some(work) = work else { return };
        let result = work();
        let end = self.end.lock().take();
        if let Some((tell, admitted)) = end {
            // The receiver may be gone.
            let _ = tell.send(result);
            drop(admitted);
        }
    }

    fn give_up(&self) {
        // In this order: what the work borrows may end once the receiver is notified.
        let work = self.work.lock().take();
        drop(work);
        let end = self.end.lock().take();
        drop(end);
    }
}

/// A worker that takes longer than this for a task is busy with others: a commit waits less for the
/// drive.
const PROMPT: Duration = Duration::from_millis(1);
/// No worker's index.
const NONE: usize = usize::MAX;

thread_local! {
    /// The worker that this thread has handed work to, where it did that soon.
    static LAST: Cell<usize> = const { Cell::new(NONE) };
}

/// A running engine: its shared state and its workers.
pub(crate) struct Runtime {
    /// All that a handle of the store reaches.
    inside: OfProcess<Inside>,
    /// For what runs once [`Runtime::admit`] has let it in, and for drops in this process.
    engine: Arc<Engine>,
    workers: Arc<WorkerPool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next_worker: AtomicUsize,
    /// The workers have no threads: a simulation steps them.
    simulated: bool,
    /// Of threads that wait for what they have handed over.
    spin: Spin,
    /// The directory of temporary files: the store's own, if it is in files.
    pub(crate) directory: PathBuf,
}

/// State that handles read without a task.
struct Inside {
    engine: Arc<Engine>,
    pool: PoolHandle,
}

impl Runtime {
    /// Starts the workers of `engine`.
    ///
    /// # Errors
    ///
    /// The first worker's that has no channel or thread; the others are stopped.
    pub(crate) fn start(engine: Arc<Engine>) -> Result<Runtime, StorageError> {
        let workers = engine.shared.config.workers;
        let runtime = Runtime::new(engine, false);
        for index in 0..workers {
            if let Err(error) = runtime.start_worker(index) {
                runtime.stop();
                return Err(error);
            }
        }
        Ok(runtime)
    }

    /// The runtime of an engine whose workers a simulation steps.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn simulated(engine: Arc<Engine>) -> Runtime {
        Runtime::new(engine, true)
    }

    fn new(engine: Arc<Engine>, simulated: bool) -> Runtime {
        let inside = Inside {
            engine: Arc::clone(&engine),
            pool: PoolHandle::of(&engine.buffer),
        };
        Runtime {
            inside: OfProcess::new(inside),
            workers: Arc::clone(&engine.workers),
            engine,
            threads: Mutex::default(),
            next_worker: AtomicUsize::new(0),
            simulated,
            spin: Spin::new(FOR_A_RESULT),
            directory: std::env::temp_dir(),
        }
    }

    /// Starts a worker, which opens its channel.
    fn start_worker(&self, index: usize) -> Result<(), StorageError> {
        let (tell, started) = oneshot::channel();
        let engine = Arc::clone(&self.engine);
        let work = small::inherited(move || match WorkerState::new(Arc::clone(&engine), index) {
            Ok(local) => {
                // The thread that starts the worker waits for this.
                let _ = tell.send(Ok(()));
                let _watch = overflow::Watch::this_thread();
                let ran = catch_unwind(AssertUnwindSafe(|| local.run()));
                if let Err(payload) = ran {
                    engine.die(&*payload);
                }
                if engine.workers.has_died() {
                    // No worker resumes the tasks any more. They keep their latches, so that no
                    // other task reads what one has changed in part, and the buffers of I/O in
                    // flight.
                    local.worker.give_up();
                    std::mem::forget(local);
                }
            }
            Err(error) => {
                // The thread that starts the worker waits for this.
                let _ = tell.send(Err(error));
            }
        });
        #[allow(clippy::disallowed_methods, reason = "the one that starts workers")]
        let thread = std::thread::Builder::new()
            .name(format!("isobath-{index}"))
            .spawn(work)
            .map_err(|source| StorageError::Memory {
                what: "a worker's thread",
                source: Arc::new(source),
            })?;
        self.threads.lock().push(thread);
        started.recv().unwrap_or(Err(StorageError::Closed))
    }

    /// Whether this is a child that was forked from the process that has the workers' threads.
    pub(crate) fn is_forked(&self) -> bool {
        self.inside.is_forked()
    }

    /// The engine, for whatever a handle does without a task.
    ///
    /// # Errors
    ///
    /// [`StorageError::Forked`].
    #[inline]
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, StorageError> {
        self.inside.get().map(|inside| &inside.engine)
    }

    /// The pages in memory, for reads without a task.
    ///
    /// # Errors
    ///
    /// [`StorageError::Forked`].
    #[inline]
    pub(crate) fn pool(&self) -> Result<&BufferPool, StorageError> {
        self.inside.get().map(|inside| &*inside.pool)
    }

    /// The settings that the store runs with, which no one changes.
    pub(crate) fn config(&self) -> &Config {
        &self.engine.shared.config
    }

    /// Refuses once the store is closing or closed; not so for its own tasks, for
    /// which closing waits.
    ///
    /// # Errors
    ///
    /// [`StorageError::Forked`], [`StorageError::Closed`].
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), StorageError> {
        self.inside.get()?;
        match self.workers.admission.is_closing() && !self.is_in_task() {
            true => Err(StorageError::Closed),
            false => Ok(()),
        }
    }

    /// Whether closing has begun, and waits for the task that runs here.
    pub(crate) fn is_closing_around_this(&self) -> bool {
        self.workers.admission.is_closing() && self.is_in_task()
    }

    /// The worker that the next piece of work goes to.
    fn pick(&self) -> usize {
        self.next_worker.fetch_add(1, Ordering::Relaxed) % self.engine.shared.config.workers
    }

    /// The worker for what the calling thread hands over: the last one again, which may still be
    /// awake, unless another thread waits for that, or its last result took so long that it seems
    /// to be busy.
    fn pick_for_thread(&self) -> usize {
        let last = LAST.get();
        let handle = self.workers.handles().get(last);
        match handle.is_some_and(|handle| !handle.is_called()) {
            true => last,
            false => self.pick(),
        }
    }

    /// Runs `work` as a task and waits for it: directly if the caller is a
    /// task of this engine, else on a worker.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`] once the store is closing; the panic of `work`.
    pub(crate) fn run<T: Send, E: From<StorageError> + Send>(
        &self,
        urgency: Urgency,
        work: impl FnOnce(&WorkerState) -> Result<T, E> + Send,
    ) -> Result<T, E> {
        self.inside.get()?;
        if self.is_in_task() {
            return WorkerState::in_task(&self.engine, |local| {
                local.worker.count_operations(1);
                work(local)
            });
        }
        let admitted = self.admit(urgency)?;
        let lent = self.lend();
        // Not a task of another store either: its worker has other tasks.
        let is_thread = !self.simulated && !in_any_task();
        let worker = match is_thread {
            true => self.pick_for_thread(),
            false => self.pick(),
        };
        let (call, is_alone) = self.workers.handles()[worker].call();
        let began = crate::runtime::clock::wall();
        let work = || WorkerState::in_task(&self.engine, work);
        // SAFETY: what `work` borrows outlives this function, which returns only
        // after the task has ended.
        let (done, _) = unsafe { self.send(worker, urgency, admitted, work) };
        if is_thread && is_alone {
            let has_ended = || done.has_message() || done.is_closed();
            self.spin.until(has_ended, || false);
        }
        let result = self.receive(done);
        drop(call);
        if is_thread {
            let is_prompt = began.elapsed() < PROMPT;
            LAST.set(if is_prompt { worker } else { NONE });
        }
        lent.end();
        result
    }

    /// Runs each of `jobs` as a task of a worker of its own, as far as there are
    /// that many, and waits for all of them; the first error.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`] once the store is closing; a job's error or panic.
    pub(crate) fn run_all<E: From<StorageError> + Send>(
        &self,
        jobs: Vec<Job<'_, E>>,
    ) -> Result<(), E> {
        let mut admitted = Vec::with_capacity(jobs.len());
        for _ in &jobs {
            admitted.push(self.admit(Urgency::Ordinary)?);
        }
        let mut waiting = Vec::with_capacity(jobs.len());
        let lent = self.lend();
        for (job, admitted) in jobs.into_iter().zip(admitted) {
            let job = || WorkerState::in_task(&self.engine, job);
            // SAFETY: what the jobs borrow outlives this function, which returns
            // only after every job has ended: each is awaited below, and between
            // here and there nothing returns or panics.
            let (done, _) = unsafe { self.send(self.pick(), Urgency::Ordinary, admitted, job) };
            waiting.push(done);
        }
        let mut first = Ok(());
        for done in waiting {
            first = first.and(self.receive(done));
        }
        lent.end();
        first
    }

    /// Waits for the result of a task that was handed over. One that was given up may have been a
    /// commit that has become durable.
    fn receive<T, E: From<StorageError>>(&self, done: Done<Result<T, E>>) -> Result<T, E> {
        match block_on(done) {
            Ok(Ok(result)) => result,
            Ok(Err(TaskPanic { message })) => Err(StorageError::TaskPanicked { message }.into()),
            Err(_) => Err((self.engine.shared.not_poisoned().err())
                .unwrap_or(StorageError::Closed)
                .into()),
        }
    }

    /// Counts a piece of work, which may consist of several tasks. While the store is closing, only
    /// tasks that are running already, which closing waits for, may add some.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`] once the store is closing; [`StorageError::Forked`].
    pub(crate) fn admit(&self, urgency: Urgency) -> Result<Admitted, StorageError> {
        self.inside.get()?;
        let admission = &self.workers.admission;
        admission.live.fetch_add(1, Ordering::SeqCst);
        let admitted = Admitted(Arc::clone(&self.engine));
        let is_closing = admission.closing.load(Ordering::SeqCst);
        match is_closing && urgency != Urgency::Closing && !self.is_in_task() {
            true => Err(StorageError::Closed),
            false => Ok(admitted),
        }
    }

    /// Accepts no more work, and waits for accepted work. A task that waits
    /// for something that never comes keeps the store open.
    pub(crate) fn refuse_and_drain(&self) {
        let admission = &self.workers.admission;
        admission.closing.store(true, Ordering::SeqCst);
        // Those that wait in tasks end: closing waits for the tasks.
        self.engine.log_tasks.streams().wake_all();
        loop {
            let (tell, idle) = oneshot::async_channel();
            *admission.idle.lock() = Some(tell);
            if admission.live.load(Ordering::SeqCst) == 0 {
                return;
            }
            // Dropped by another closer: look again.
            let _ = block_on(idle);
        }
    }

    fn lend(&self) -> Lent {
        Lent {
            simulated: self.simulated,
        }
    }

    /// Sends `work` to a worker, as a task. The receiver gets its result, or learns that the task
    /// was dropped before it ran.
    ///
    /// # Safety
    ///
    /// What `work` borrows must stay valid until the receiver has answered.
    unsafe fn send<R: Send>(
        &self,
        worker: usize,
        urgency: Urgency,
        admitted: Admitted,
        work: impl FnOnce() -> R + Send,
    ) -> (Done<R>, Arc<dyn Work>) {
        let (tell, done) = oneshot::async_channel();
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            result.map_err(|payload| TaskPanic::of(&*payload))
        };
        let task: Arc<dyn Work + '_> = Arc::new(Piece::new(work, tell, admitted));
        // SAFETY: only the lifetime changes. The caller keeps the borrows valid until the receiver
        // has answered, and then the work is gone: it has run, or was cancelled, or is suspended in
        // a task that is never resumed.
        let task: Arc<dyn Work + 'static> = unsafe { std::mem::transmute(task) };
        let may_block = !self.simulated && !self.is_in_task();
        self.workers.handles()[worker].run(Arc::clone(&task), urgency, may_block);
        (done, task)
    }

    /// Runs `work` as a task of worker `worker`, or of the next one in turn. A task that waits for
    /// it before it has begun runs it itself, unless it is urgent: otherwise all tasks that there
    /// can be could wait for work that none is left for.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        urgency: Urgency,
        worker: Option<usize>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> TaskHandle<T> {
        let admitted = match self.admit(urgency) {
            Ok(admitted) => admitted,
            Err(reason) => return TaskHandle::refused(reason),
        };
        let worker = worker.unwrap_or_else(|| self.pick()) % self.engine.shared.config.workers;
        // SAFETY: `work` borrows nothing that ends.
        let (done, task) = unsafe { self.send(worker, urgency, admitted, work) };
        let may_be_run_by_waiters = urgency != Urgency::Urgent;
        let engine = Arc::downgrade(&self.engine);
        TaskHandle::new(done, may_be_run_by_waiters.then_some(task), engine)
    }

    /// Stops every worker once its tasks have finished. Idempotent.
    pub(crate) fn stop(&self) {
        self.workers.admission.closing.store(true, Ordering::SeqCst);
        self.workers.stop();
        if self.simulated {
            crate::sync::drive_to_end();
        }
        for thread in self.threads.lock().drain(..) {
            // A worker's panic was printed by its thread; there is no result to take.
            let _ = thread.join();
        }
        self.engine.pagestore.end_resizing();
    }
}

impl Runtime {
    /// Whether the caller is a task of this engine.
    pub(crate) fn is_in_task(&self) -> bool {
        WorkerState::with_current(&self.engine, |local| local.is_some())
    }

    /// Counts what the caller does in memory, if it is a task of this engine; see
    /// [`Worker::count_operations`].
    ///
    /// [`Worker::count_operations`]: super::worker::Worker::count_operations
    #[inline]
    pub(crate) fn count_operations(&self, count: u32) {
        WorkerState::with_current(&self.engine, |local| {
            if let Some(local) = local {
                local.worker.count_operations(count);
            }
        });
    }

    /// As [`Runtime::count_operations`], of this many records that follow one another: a leaf of
    /// them counts as one operation.
    pub(crate) fn count_records(&self, records: usize) {
        self.count_operations(1 + records as u32 / 32);
    }

    /// Whether a simulation steps the workers.
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated
    }
}

#[cfg(test)]
#[path = "threads_tests.rs"]
mod tests;
