//! What one run of the benchmark is to measure.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::catalogue::{ScanLength, Workload};
use super::choice::Choice;
use super::components::Profiler;
use super::medium::Medium;
use super::record::LeftOut;
use super::row::Setting;
use super::workload::Operation;
use crate::LabError;
use crate::engine::{Callers, EngineConfig, EngineKind};
use crate::machine::memory_bytes;

/// Samples that a run is divided into, and how far apart they are.
const SAMPLES: u32 = 120;
const SAMPLE_MIN: Duration = Duration::from_millis(20);
const SAMPLE_MAX: Duration = Duration::from_secs(1);

/// The plan of a measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The engine and its configuration.
    pub engine: EngineConfig,
    /// The directory of the virtual SSD on which the engine's path lies, and whose counters are
    /// read.
    pub virtual_ssd: Option<PathBuf>,
    /// Bytes of the region of a drive on which the engine's path lies, where it can write nowhere
    /// else.
    pub region_bytes: Option<u64>,
    /// Whether the pool holds everything and is filled before.
    pub in_pool: bool,
    /// Records loaded.
    pub records: u64,
    /// The clients' work.
    pub workload: Workload,
    /// Operations offered per second; `None` is a closed loop.
    pub rate_per_s: Option<f64>,
    /// How long to run before measuring.
    pub warm_up: Duration,
    /// How long to measure.
    pub duration: Duration,
    /// Whether to stop after the sorted load.
    pub load_only: bool,
    /// Whether to keep the data, and to use existing data.
    pub keep: bool,
    /// Depth of the drive's own limit; `None` does not measure it.
    pub drive_depth: Option<u32>,
    /// How long each measurement of the drive takes.
    pub drive_duration: Duration,
    /// How often counters are read.
    pub sample_every: Duration,
    /// End before `duration` once throughput and write amplification are steady.
    pub until_steady: bool,
    /// Calls of a client of which one is timed; `None` times all that may wait for a drive, and one
    /// in 16 of others.
    pub latency_every: Option<u32>,
    /// Whether `perf` says where the CPU time goes.
    pub components: bool,
    /// Measurements left out although they are possible: a pitfall, which the benchmark's self-test
    /// commits.
    pub left_out: LeftOut,
    /// Seed of keys and arrivals.
    pub seed: u64,
}

impl Plan {
    /// A run of `workload` over `records` records for so long, at once and as fast as it goes; the
    /// drive's own limit is not measured.
    #[must_use]
    pub fn new(engine: EngineConfig, workload: Workload, records: u64, duration: Duration) -> Plan {
        Plan {
            engine,
            virtual_ssd: None,
            region_bytes: None,
            in_pool: false,
            records,
            workload,
            rate_per_s: None,
            warm_up: Duration::ZERO,
            duration,
            load_only: false,
            keep: false,
            drive_depth: None,
            drive_duration: Duration::ZERO,
            sample_every: (duration / SAMPLES).clamp(SAMPLE_MIN, SAMPLE_MAX),
            until_steady: false,
            latency_every: None,
            components: false,
            left_out: LeftOut::default(),
            seed: 1,
        }
    }

    /// The medium under the engine.
    #[must_use]
    pub fn medium(&self) -> Medium {
        Medium::of(&self.engine, self.region_bytes)
    }

    /// Clients at the same time.
    #[must_use]
    pub fn clients(&self) -> usize {
        let engine = &self.engine;
        match (engine.kind, engine.callers) {
            (EngineKind::Isobath, Callers::Tasks) => workers(engine) * engine.tasks_per_worker,
            _ => engine.threads,
        }
    }

    /// Calls of a client of which one is timed.
    pub(super) fn timed_one_in(&self) -> u32 {
        let by_place = match self.in_pool || self.engine.path.is_none() {
            true => LATENCY_EVERY_IN_MEMORY,
            false => 1,
        };
        self.latency_every.unwrap_or(by_place).max(1)
    }

    /// What a row says of it.
    pub(super) fn setting(&self, engine: &str, clients: usize) -> Setting {
        let tasks =
            self.engine.kind == EngineKind::Isobath && self.engine.callers == Callers::Tasks;
        Setting {
            kind: self.engine.kind,
            engine: engine.to_owned(),
            workload: self.workload.name.clone(),
            mix: self.workload.mix.to_string(),
            choice: self.workload.choice,
            records: self.records,
            key_bytes: self.workload.key_format.bytes(),
            value_bytes: self.workload.value_bytes,
            pool_bytes: self.engine.pool_bytes,
            in_pool: self.in_pool,
            medium: self.medium(),
            callers: if tasks {
                Callers::Tasks
            } else {
                Callers::Threads
            },
            clients,
            workers: match self.engine.kind {
                EngineKind::Isobath => workers(&self.engine),
                _ => 0,
            },
            zipf: match self.workload.choice {
                Choice::Uniform => None,
                Choice::Zipf(s) | Choice::ScrambledZipf(s) | Choice::Latest(s) => Some(s),
            },
            space: self.engine.space.clone(),
            batch: self.workload.batch,
            scan_records: match self.workload.scan {
                ScanLength::Fixed(records) | ScanLength::UpTo(records) => records,
            },
            rate_per_s: self.rate_per_s,
            warm_up_s: self.warm_up.as_secs_f64(),
            duration_s: self.duration.as_secs_f64(),
            tuning: self.engine.tuning.clone(),
            seed: self.seed,
        }
    }
}

/// Latencies are taken at every operation if it waits for a drive; where it
/// does not, reading the clock would be a good part of it.
const LATENCY_EVERY_IN_MEMORY: u32 = 16;

/// Workers of Isobath.
fn workers(engine: &EngineConfig) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    engine.workers.unwrap_or_else(cores)
}

/// Threads of one run at most.
const THREADS_MAX: usize = 8192;

/// Says why a plan cannot be run.
pub(super) fn check_plan(plan: &Plan) -> Result<(), LabError> {
    let request = |text: &str| Err(LabError::Request(text.to_owned()));
    plan.workload.check(plan.records)?;
    if plan.components {
        Profiler::check()?;
    }
    if plan.engine.threads > THREADS_MAX {
        return Err(LabError::Request(format!(
            "{} threads are asked for; the benchmark runs {THREADS_MAX} at most, since each takes several of the 65,530 mappings that Linux gives a process",
            plan.engine.threads
        )));
    }
    if plan.rate_per_s.is_some_and(|r| !r.is_finite() || r <= 0.0) {
        return request("the rate must be a number above 0");
    }
    check_memory(plan)?;
    if plan.keep && plan.workload.mix.has(Operation::Insert) {
        return request("inserts change what is kept; leave out --keep, or insert from the mix");
    }
    if let Some(path) = &plan.engine.path {
        if path.exists() && !plan.keep {
            return Err(LabError::Request(format!(
                "{} exists already; the benchmark makes and removes it, so remove it, or name a path that is free",
                path.display()
            )));
        }
        // Small drives have no room to spare; an engine that runs out of it says so.
        if !path.exists() && plan.virtual_ssd.is_none() {
            let free = crate::free_space(path)?;
            let data = plan.records.saturating_mul(plan.workload.record_bytes());
            let needed = data.saturating_mul(2).saturating_add(256 << 20);
            if free.available_bytes < needed {
                return Err(LabError::NoSpace {
                    path: path.clone(),
                    available_bytes: free.available_bytes,
                    needed_bytes: needed,
                    option: "--path",
                });
            }
        }
    }
    Ok(())
}

/// Bytes of its value that a client holds in a call: what it writes or has read, and the engine's
/// copy.
const VALUES_HELD: u64 = 2;

/// Refuses clients that would hold more than half of the memory in values.
fn check_memory(plan: &Plan) -> Result<(), LabError> {
    // Transactions have small rows, whatever a warehouse has.
    if plan.workload.tpcc.is_some() {
        return Ok(());
    }
    let value = (plan.workload.value_bytes as u64).max(1);
    let of_each = value.saturating_mul(VALUES_HELD);
    let clients = plan.clients() as u64;
    // Values are cut from as many bytes of noise.
    let room = (memory_bytes() / 2).saturating_sub(value);
    if memory_bytes() == 0 || clients.saturating_mul(of_each) <= room {
        return Ok(());
    }
    Err(LabError::Request(format!(
        "{clients} clients would hold {} of values in memory, more than half of what this machine has; {} at most fit: ask for fewer with --tasks, --workers or --threads",
        isobath_io::ByteSize(clients.saturating_mul(of_each)),
        room / of_each
    )))
}
