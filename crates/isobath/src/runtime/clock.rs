//! The time that timers go by: the system's, or a simulation's own.

#![allow(
    clippy::disallowed_methods,
    reason = "the engine asks for the time here, and where it spins"
)]

/// The machine's time, for what is only counted or told.
#[inline]
pub(crate) fn wall() -> std::time::Instant {
    std::time::Instant::now()
}

/// Now.
#[cfg(not(any(test, feature = "simulation")))]
#[inline]
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Whether a simulation runs on this thread: it does not.
#[cfg(all(debug_assertions, not(any(test, feature = "simulation"))))]
pub(crate) fn is_simulated() -> bool {
    false
}

#[cfg(any(test, feature = "simulation"))]
pub(crate) use simulated::{advance, is_simulated, now, simulate};

#[cfg(any(test, feature = "simulation"))]
mod simulated {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Now: the time of the simulation that this thread runs, if it runs one.
    pub(crate) fn now() -> Instant {
        NOW.get().unwrap_or_else(Instant::now)
    }

    /// Whether this thread runs a simulation.
    pub(crate) fn is_simulated() -> bool {
        NOW.get().is_some()
    }

    /// Begins or ends simulated time on this thread.
    pub(crate) fn simulate(on: bool) {
        NOW.set(on.then(Instant::now));
    }

    /// Lets simulated time pass.
    pub(crate) fn advance(time: Duration) {
        if let Some(now) = NOW.get() {
            NOW.set(Some(now + time));
        }
    }
}
