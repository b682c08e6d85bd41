//! The sole source of atomics, locks and threads for code that is model-checked.
//!
//! Under `--cfg loom` the primitives come from `loom`, which explores every
//! interleaving that the memory model allows; otherwise they are `std`'s and
//! `parking_lot`'s.

#[cfg(loom)]
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(not(loom))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(any(test, feature = "simulation"))]
thread_local! {
    /// The time of the simulation that this thread runs.
    static SIMULATED: std::cell::Cell<Option<std::time::Instant>> =
        const { std::cell::Cell::new(None) };
}

/// What time it is; inside a simulation, its own time, which passes with its steps.
#[inline]
pub(crate) fn now() -> std::time::Instant {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(now) = SIMULATED.get() {
        return now;
    }
    std::time::Instant::now()
}

/// Sets the time of the simulation that this thread runs, or ends it.
#[cfg(any(test, feature = "simulation"))]
pub(crate) fn set_now(now: Option<std::time::Instant>) {
    SIMULATED.set(now);
}
