//! The concurrency manager: submission and completion queues per thread, a slot table of requests
//! in flight, counters, and limits that may change at any time (paper 004, section 3.2, "Key-Value
//! Concurrency Manager").
//!
//! A thread that issues requests has a [`Port`]: its slot table, its completion queue and its
//! counters. Requests wait in a [`Lane`], a submission queue that *data tasks* of the engine empty:
//! coroutines on the engine's workers, each of which works on one request at a time. How many of
//! them a lane may have is the number of parallel data accesses (PDA); a request in flight is one
//! that is queued or being worked on, and a port has at most queue depth × PDA of them.
//!
//! Usually every port has a lane of its own. A serial channel is one lane with one data task for
//! all ports.
//!
//! Nothing here is locked by all threads: slots belong to one request at a time, queues are
//! lock-free rings, and counters are the port's own. Data coherence is the engine's: each operation
//! on a record is atomic, and changes that depend on what a record has compare before they replace.
//! There is no cache above the engine whose entries could differ from it.

mod lane;
mod port;
mod process;
mod thread;

pub(crate) use lane::{Lane, Refused};
pub(crate) use port::Port;
pub(crate) use process::generation;
pub(crate) use thread::{CompletionThread, in_callback, run_callback};

use std::sync::atomic::{AtomicU32, Ordering};

/// A request: run once, by a data task.
pub(crate) trait Request: Send + 'static {
    /// Does the work and keeps its result.
    fn run(&mut self);

    /// `run` has panicked: keeps an error as its result.
    fn fail(&mut self);

    /// The store is closed, and `run` is never called: keeps that as its result.
    fn refuse(&mut self);

    /// Bytes of the value that was moved, once it has run.
    fn bytes(&self) -> u64;

    /// Whether it has failed, once it has run.
    fn has_failed(&self) -> bool;
}

/// Requests that a port's slot table can hold.
pub(crate) const MAX_IN_FLIGHT: u32 = 2048;

/// Limits that the controllers may change at any time.
#[derive(Debug)]
pub(crate) struct Limits {
    depth: AtomicU32,
    data_tasks: AtomicU32,
}

impl Limits {
    pub(crate) fn new(depth: u32, data_tasks: u32) -> Limits {
        let limits = Limits {
            depth: AtomicU32::new(1),
            data_tasks: AtomicU32::new(1),
        };
        limits.set(depth, data_tasks);
        limits
    }

    /// Sets queue depth per data task, and data tasks per lane; both at least 1.
    pub(crate) fn set(&self, depth: u32, data_tasks: u32) {
        let clamp = |value: u32| value.clamp(1, MAX_IN_FLIGHT);
        self.depth.store(clamp(depth), Ordering::Relaxed);
        self.data_tasks.store(clamp(data_tasks), Ordering::Relaxed);
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    pub(crate) fn data_tasks(&self) -> u32 {
        self.data_tasks.load(Ordering::Relaxed)
    }

    /// Requests that a port may have in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.depth()
            .saturating_mul(self.data_tasks())
            .min(MAX_IN_FLIGHT)
    }
}

/// The numbers of one port, or of several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Requests that were accepted.
    pub(crate) issued: u64,
    /// Requests whose results were handed over.
    pub(crate) completed: u64,
    /// Of those, the ones that failed.
    pub(crate) failed: u64,
    /// Requests that are accepted and not handed over.
    pub(crate) in_flight: u64,
    /// The most that ever were.
    pub(crate) in_flight_max: u64,
    /// Times that a thread waited because its limit was reached.
    pub(crate) waits: u64,
    /// Bytes of values that were moved.
    pub(crate) bytes: u64,
}

impl Counters {
    /// Adds the numbers of another port.
    pub(crate) fn add(&mut self, other: Counters) {
        self.issued += other.issued;
        self.completed += other.completed;
        self.failed += other.failed;
        self.in_flight += other.in_flight;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
        self.waits += other.waits;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests;
