//! Handles on running tasks.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use crate::engine::{Engine, WorkerState};
use crate::error::{Error, StorageError, panic_message};
use crate::runtime::{OfProcess, Work, Worker, block_on};

/// The task panicked; the store goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the task panicked: {message}")]
pub struct TaskPanic {
    /// The panic's message.
    pub message: String,
}

impl TaskPanic {
    pub(crate) fn of(payload: &(dyn Any + Send)) -> TaskPanic {
        TaskPanic {
            message: panic_message(payload),
        }
    }

    fn not_run(reason: &StorageError) -> TaskPanic {
        TaskPanic {
            message: format!("the task did not run to its end: {reason}"),
        }
    }
}

/// A task that [`Store::spawn`](crate::Store::spawn) started.
///
/// Await it on any runtime, or [`join`](TaskHandle::join) it. Dropping the
/// handle lets the task run on. A task that waits for another one before that has begun runs it in
/// its place.
#[must_use = "dropping the handle lets the task run on unobserved"]
pub struct TaskHandle<T>(OfProcess<Awaited<T>>);

/// A task that is awaited.
struct Awaited<T> {
    done: oneshot::AsyncReceiver<Result<T, TaskPanic>>,
    /// Work that a waiting task of the engine may run itself.
    work: Option<Arc<dyn Work>>,
    engine: Weak<Engine>,
    /// Why the work was not taken.
    refused: Option<StorageError>,
}

impl<T> std::fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskHandle").finish_non_exhaustive()
    }
}

impl<T> TaskHandle<T> {
    /// The result of a task of `engine` comes from `done`; `work`, if given, is what a waiting task
    /// of that engine may run.
    pub(crate) fn new(
        done: oneshot::AsyncReceiver<Result<T, TaskPanic>>,
        work: Option<Arc<dyn Work>>,
        engine: Weak<Engine>,
    ) -> TaskHandle<T> {
        TaskHandle(OfProcess::new(Awaited {
            done,
            work,
            engine,
            refused: None,
        }))
    }

    /// The handle of a task that was not taken.
    pub(crate) fn refused(reason: StorageError) -> TaskHandle<T> {
        let (_, done) = oneshot::async_channel();
        TaskHandle(OfProcess::new(Awaited {
            done,
            work: None,
            engine: Weak::new(),
            refused: Some(reason),
        }))
    }

    /// Waits for the task: blocks an ordinary thread; inside a task, runs it if it has not begun,
    /// and else yields.
    ///
    /// # Errors
    ///
    /// [`TaskPanic`] if it panicked, or was not run to its end: because the store was closed, a
    /// worker died, or the process was forked.
    pub fn join(self) -> Result<T, TaskPanic> {
        block_on(self)
    }
}

impl<T> Awaited<T> {
    /// Why there is no result and never will be.
    fn no_result(&self) -> StorageError {
        let poisoned = || self.engine.upgrade()?.shared.not_poisoned().err();
        self.refused
            .clone()
            .or_else(poisoned)
            .unwrap_or(StorageError::Closed)
    }

    /// Runs the work here if it has not begun, and this is a task that could keep it from
    /// beginning.
    fn run_here(&self) {
        let Some(work) = &self.work else {
            return;
        };
        if !Worker::with_current(|worker| worker.is_some_and(Worker::has_stack)) {
            return;
        }
        let of_this_engine = (self.engine.upgrade())
            .is_some_and(|engine| WorkerState::with_current(&engine, |local| local.is_some()));
        if of_this_engine {
            work.run();
        }
    }

    /// Its result, or why there is none.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Result<T, TaskPanic>, StorageError>> {
        self.run_here();
        let received = Pin::new(&mut self.done).poll(context);
        received.map(|received| received.map_err(|_| self.no_result()))
    }
}

impl<T, E> TaskHandle<Result<T, E>> {
    /// The task's own result, with everything that can come between as its errors.
    pub(crate) fn flat(self) -> OperationFuture<T, E> {
        OperationFuture(self)
    }
}

/// An operation that runs as a task, for any async runtime. It runs whether this is polled or not;
/// dropping this lets it run on.
#[must_use = "without it the operation's result is not known"]
pub struct OperationFuture<T, E = Error>(TaskHandle<Result<T, E>>);

impl<T, E> std::fmt::Debug for OperationFuture<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperationFuture").finish_non_exhaustive()
    }
}

impl<T, E: From<StorageError>> Future for OperationFuture<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = match self.0.0.get_mut() {
            Ok(awaited) => awaited.poll(context),
            Err(forked) => Poll::Ready(Err(forked)),
        };
        ended.map(|ended| match ended {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(E::from(StorageError::TaskPanicked {
                message: panic.message,
            })),
            Err(reason) => Err(E::from(reason)),
        })
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, TaskPanic>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = match self.0.get_mut() {
            Ok(awaited) => awaited.poll(context),
            Err(forked) => Poll::Ready(Err(forked)),
        };
        ended.map(|ended| ended.unwrap_or_else(|reason| Err(TaskPanic::not_run(&reason))))
    }
}
