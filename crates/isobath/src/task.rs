//! Handles on running tasks.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use std::time::Instant;

use crate::sched::{Worker, block_on};

/// The task panicked; the store goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the task panicked: {message}")]
pub struct TaskPanic {
    /// What the panic said.
    pub message: String,
}

impl TaskPanic {
    pub(crate) fn of(payload: &(dyn Any + Send)) -> TaskPanic {
        let message = payload
            .downcast_ref::<&str>()
            .map(|message| (*message).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        TaskPanic { message }
    }

    fn closed() -> TaskPanic {
        TaskPanic {
            message: "the store was closed before the task ran".to_owned(),
        }
    }
}

/// A task that [`Store::spawn`](crate::Store::spawn) started.
///
/// Await it on any runtime, or [`join`](TaskHandle::join) it. Dropping the
/// handle lets the task run on.
#[derive(Debug)]
#[must_use = "dropping the handle lets the task run on unobserved"]
pub struct TaskHandle<T>(oneshot::AsyncReceiver<Result<T, TaskPanic>>);

impl<T> TaskHandle<T> {
    pub(crate) fn new(done: oneshot::AsyncReceiver<Result<T, TaskPanic>>) -> TaskHandle<T> {
        TaskHandle(done)
    }

    /// Waits for the task: blocks an ordinary thread, yields inside a task.
    ///
    /// # Errors
    ///
    /// [`TaskPanic`] if it panicked, or was never run because the store closed.
    pub fn join(self) -> Result<T, TaskPanic> {
        block_on(self)
    }
}

impl<T> TaskHandle<Result<T, crate::Error>> {
    /// The task's own result, with everything that can come between as its errors.
    pub(crate) async fn flat(self) -> Result<T, crate::Error> {
        match self.0.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(crate::Error::TaskPanicked {
                message: panic.message,
            }),
            Err(_) => Err(crate::Error::Closed),
        }
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, TaskPanic>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|received| received.unwrap_or_else(|_| Err(TaskPanic::closed())))
    }
}

/// Sleeps until `wake_at`, or a little longer: inside a task other tasks run
/// meanwhile, elsewhere the thread sleeps.
pub fn sleep_until(wake_at: Instant) {
    let in_task = Worker::with_current(|worker| {
        let worker = worker.filter(|worker| worker.in_task());
        if let Some(worker) = worker {
            worker.sleep_until(wake_at);
        }
        worker.is_some()
    });
    if !in_task {
        std::thread::sleep(wake_at.saturating_duration_since(Instant::now()));
    }
}

/// Inside a task, lets every other ready task of its worker run once; elsewhere
/// yields the thread. A task that computes for long calls it now and then.
pub fn yield_now() {
    let in_task = Worker::with_current(|worker| {
        let worker = worker.filter(|worker| worker.in_task());
        if let Some(worker) = worker {
            worker.yield_now();
        }
        worker.is_some()
    });
    if !in_task {
        std::thread::yield_now();
    }
}
