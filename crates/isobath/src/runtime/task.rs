//! One task: a coroutine in a slot of its worker.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use isobath_io::IoError;

use super::worker::Worker;
use super::worker_handle::{Work, WorkerHandle};

pub(super) type Fiber = Coroutine<(), (), (), DefaultStack>;

/// A task's slot in its worker, and which of the slot's tasks it is: a stale
/// id resumes no task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TaskId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

#[cfg(test)]
impl TaskId {
    /// A task that no worker can have: a worker that is to resume it panics.
    pub(crate) const IMPOSSIBLE: TaskId = TaskId {
        slot: u32::MAX,
        generation: 0,
    };
}

/// The storage of one task.
pub(super) struct TaskSlot {
    pub(super) generation: Cell<u32>,
    pub(super) fiber: Cell<Option<Fiber>>,
    /// The fiber's work, if it is user work.
    pub(super) work: Cell<Option<Arc<dyn Work>>>,
    /// The end of the fiber's stack.
    pub(super) stack_limit: Cell<usize>,
    /// Set by the running fiber itself; valid while the fiber lives.
    pub(super) yielder: Cell<*const Yielder<(), ()>>,
    /// I/Os of this task in flight.
    pub(super) pending: Cell<u32>,
    /// The task waits until `pending` is zero.
    pub(super) waits_for_io: Cell<bool>,
    /// First error of this task's I/Os since it last waited.
    pub(super) error: RefCell<Option<IoError>>,
    pub(super) parked: Cell<bool>,
    pub(super) unparked: Cell<bool>,
    /// The place at which the task last yielded.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) suspended_at: Cell<Option<&'static std::panic::Location<'static>>>,
}

impl TaskSlot {
    pub(super) fn new() -> TaskSlot {
        TaskSlot {
            generation: Cell::new(0),
            fiber: Cell::new(None),
            work: Cell::new(None),
            stack_limit: Cell::new(0),
            yielder: Cell::new(std::ptr::null()),
            pending: Cell::new(0),
            waits_for_io: Cell::new(false),
            error: RefCell::new(None),
            parked: Cell::new(false),
            unparked: Cell::new(false),
            #[cfg(any(test, feature = "simulation"))]
            suspended_at: Cell::new(None),
        }
    }
}

/// A handle with which any thread can resume a parked task.
#[derive(Clone)]
pub(crate) struct TaskRef {
    pub(super) handle: Arc<WorkerHandle>,
    pub(super) task: TaskId,
}

impl TaskRef {
    /// Resumes the task, or has its next park return at once.
    pub(crate) fn unpark(&self) {
        self.handle.unpark(self.task);
    }
}

impl Wake for TaskRef {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
}

/// Whether a task runs on this thread, of whatever store.
pub(crate) fn in_any_task() -> bool {
    Worker::with_current(|worker| worker.is_some_and(Worker::in_task))
}

/// Resumes the task that runs on this thread, or else the thread, from [`park_within`].
pub(crate) fn waker() -> Waker {
    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let task = Worker::with_current(|worker| {
        let worker = worker.filter(|worker| worker.in_task());
        worker.and_then(Worker::current_task)
    });
    match task {
        Some(task) => Waker::from(Arc::new(task)),
        None => Waker::from(Arc::new(Thread(std::thread::current()))),
    }
}

/// Suspends the task that runs on this thread, or else the thread, until its [`waker`] wakes it,
/// which may have come first; for `timeout` at most, or a little longer. May return for no reason.
#[cfg_attr(any(test, feature = "simulation"), track_caller)]
pub(crate) fn park_within(timeout: Duration) {
    let in_task = Worker::with_current(|worker| {
        let worker = worker.filter(|worker| worker.in_task());
        if let Some(worker) = worker {
            match super::clock::now().checked_add(timeout) {
                Some(wake_at) => worker.park_until(wake_at),
                None => worker.park(),
            }
        }
        worker.is_some()
    });
    if !in_task && !crate::sync::drive() {
        std::thread::park_timeout(timeout);
    }
}

/// Waits for `future`: inside a task by yielding, elsewhere by blocking the thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let in_task = in_any_task();
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        if in_task {
            Worker::with_current(|worker| {
                if let Some(worker) = worker {
                    worker.park();
                }
            });
        } else if !crate::sync::drive() {
            std::thread::park();
        }
    }
}

/// Sleeps until `wake_at`, or a little longer: inside a task other tasks run until then, elsewhere
/// the thread sleeps.
pub fn sleep_until(wake_at: Instant) {
    let in_task = Worker::with_current(|worker| {
        let worker = worker.filter(|worker| worker.in_task());
        if let Some(worker) = worker {
            worker.sleep_until(wake_at);
        }
        worker.is_some()
    });
    if !in_task {
        #[allow(clippy::disallowed_methods, reason = "a thread that is no task")]
        std::thread::sleep(wake_at.saturating_duration_since(super::clock::wall()));
    }
}

/// Inside a task, lets every other ready task of its worker run once; elsewhere
/// yields the thread. A task that computes for long calls it now and then.
pub fn yield_now() {
    if !yield_task() {
        std::thread::yield_now();
    }
}

/// Inside a task, lets every other ready task of its worker run once; elsewhere does nothing.
/// Whether this is a task.
pub(crate) fn yield_task() -> bool {
    Worker::with_current(|worker| {
        let worker = worker.filter(|worker| worker.in_task());
        if let Some(worker) = worker {
            worker.yield_now();
        }
        worker.is_some()
    })
}
