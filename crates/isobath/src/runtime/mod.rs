//! Workers and tasks.
//!
//! A worker is one thread's loop over one I/O channel. Work runs in stackful
//! coroutines that never leave their worker (paper 001, section 3.2). The loop
//! is one function, [`Worker::step`], so that a test can drive several workers
//! from one thread in any order.

mod admission;
pub(crate) mod clock;
mod io_scope;
mod of_process;
pub(crate) mod overflow;
mod patience;
mod per_worker;
mod spin;
mod task;
mod wait_queue;
#[cfg(all(test, loom))]
mod wait_queue_loom;
mod worker;
mod worker_handle;
mod worker_pool;

pub(crate) use admission::Admission;
pub(crate) use io_scope::IoScope;
pub(crate) use of_process::OfProcess;
pub(crate) use patience::Patience;
pub(crate) use per_worker::PerWorker;
pub(crate) use spin::{FOR_A_RESULT, Spin};
pub(crate) use task::{TaskId, TaskRef, block_on, in_any_task, park_within, waker, yield_task};
pub use task::{sleep_until, yield_now};
pub(crate) use wait_queue::WaitQueue;
#[cfg(test)]
pub(crate) use worker::NO_STACKS;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use worker::Stepped;
pub(crate) use worker::{BackgroundHandler, Limits, Worker};
pub(crate) use worker_handle::{Urgency, Work, WorkerHandle};
pub(crate) use worker_pool::WorkerPool;
