//! Log-structured space: cleaning policies, their analysis and the simulated SSD.
//!
//! A *cleaning policy* decides which segments to clean, which stream (open segment) each page goes to, and in which
//! order a batch of pages is written. It exists once, here, and serves three users: the simulator of paper 003
//! (Lomet, Luo: *Efficiently Reclaiming Space in a Log Structured Store*), the simulated SSD's translation layer, and
//! the engine's page store. Everything in this crate is pure: no threads, no I/O, no clock, and every random choice
//! comes from a seed.

#![deny(missing_docs)]

pub mod analysis;
pub mod ftl;
pub mod policy;
pub mod rng;
pub mod sim;
mod space;
pub mod trace;
pub mod workload;
