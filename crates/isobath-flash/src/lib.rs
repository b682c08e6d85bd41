//! Log-structured space: cleaning policies, their analysis and the simulated SSD.
//!
//! A *cleaning policy* decides which segments to clean, which stream (open segment) each page goes
//! to, and in which order a batch of pages is written. It exists once, here, and serves three
//! users: the simulator of paper 003 (Lomet, Luo: *Efficiently Reclaiming Space in a Log Structured
//! Store*), the simulated SSD's translation layer, and the engine's page store. Everything in this
//! crate is pure: no threads, no I/O, no clock, and every random choice comes from a seed.
//!
//! How many pages a policy moves for each page that is written, on a small device that is 80% full:
//!
//! ```
//! use isobath_flash::policy::PolicyKind;
//! use isobath_flash::sim::{RunLength, SimConfig, simulate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = SimConfig::paper(512, 0.8);
//! let moved = |policy: PolicyKind, workload: &str| {
//!     let length = RunLength::DeviceWrites(4.0);
//!     Ok::<f64, Box<dyn std::error::Error>>(simulate(policy, &config, workload.parse()?, length)?.steady.wamp())
//! };
//! let uniform = moved(PolicyKind::Greedy, "uniform")?;
//! assert!((1.0..2.5).contains(&uniform));
//! // Where one page in ten gets nine writes in ten, a policy that keeps hot and cold pages apart moves far less.
//! assert!(moved(PolicyKind::LifeTable, "hot-cold:0.9")? < uniform / 2.0);
//! # Ok(())
//! # }
//! ```
//!
//! | what | where |
//! | --- | --- |
//! | policies, and the trait for another one | [`policy`] |
//! | a log-structured space that holds page numbers | [`sim`] |
//! | what a tree of records writes, with and without overlays | [`overlay`] |
//! | synthetic workloads; recorded ones | [`workload`], [`trace`] |
//! | what cleaning must cost | [`analysis`] |
//! | the translation layer of a simulated SSD | [`ftl`] |

#![deny(missing_docs)]

pub mod analysis;
pub mod ftl;
mod log_space;
pub mod overlay;
pub mod policy;
pub mod rng;
pub mod sim;
mod space;
pub mod trace;
pub mod workload;
