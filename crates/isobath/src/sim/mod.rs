//! Whole stores in one thread: workers that a seed steps.
//!
//! A worker only ever advances by `step()`. Here no worker has a thread; each
//! step of the simulation draws one worker, and each worker draws the order of
//! its ready tasks. Together with a deterministic in-process device
//! ([`isobath_io::FaultDevice`]) a run is a function of its seed. The engine
//! that runs is the one that runs with threads, line by line: only where a
//! thread would block, the simulation takes steps instead.

#[cfg(any(test, feature = "simulation"))]
mod driver;
#[cfg(any(test, feature = "simulation"))]
mod simulation;

#[cfg(any(test, feature = "simulation"))]
pub use crate::sync::interrupt::{How, Place, Switch, Switches, Who};
#[cfg(any(test, feature = "simulation"))]
pub use simulation::{Simulation, Stuck};
