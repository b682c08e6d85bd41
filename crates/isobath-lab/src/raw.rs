//! Raw I/O: the one runner that issues measured I/O.
//!
//! A [`RawPlan`] is one point: what is read and written, how much is in flight, through which
//! backend, for how long. [`run`] measures it. The experiments of "What Modern NVMe Storage Can Do,
//! And How To Exploit It" (Haas, Leis) are plans: Figure 2 and 6 vary threads and backend, Figure 3
//! the page size, Figure 4 the depth, Figure 11 the [`IoModel`].
//!
//! What makes numbers comparable:
//!
//! - The range is first written in full with incompressible data and then read once in full
//!   ([`RawPlan::prepare`]): allocated but unwritten blocks are answered without the drive, and
//!   hosts of virtual drives cache.
//! - Latencies are those of the I/O layer, from the hand-over of an I/O to the kernel until its
//!   completion was reaped.
//! - CPU time is that of the whole process, user and system, kernel threads working for it
//!   included.

mod cpu;
mod dedicated;
mod load;
mod plan;
mod prepare;
mod result;
mod worker;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isobath_io::{ChannelError, ChannelStats, IoError, Volume, VolumeError};

use crate::{Monitor, Stage, Unit};
use cpu::Cpu;
use load::Shared;
pub use plan::{IoModel, RawBackend, RawPlan, RawTarget};
pub(crate) use prepare::{Scratch, make, options};
pub use prepare::{fill, read_in_full};
pub use result::{LatencySummary, RawResult};
use worker::Measured;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// A file or device could not be opened or made.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// An I/O failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A channel broke.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The plan contradicts itself.
    #[error("{field} must be {must}, not {found}")]
    BadPlan {
        /// The field of [`RawPlan`].
        field: &'static str,
        /// The required value.
        must: String,
        /// What it is.
        found: String,
    },
    /// A measuring thread panicked.
    #[error("a measuring thread panicked: this is a defect of Isobath")]
    Panicked,
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// How often the coordinator looks up, and the resolution of [`RawResult::ios_per_s_series`]'s
/// clock.
const TICK: Duration = Duration::from_millis(50);

/// Runs one measurement. Files that it made are removed at the end, also after an error.
///
/// # Errors
/// [`RawError`]; the first failed I/O ends the run.
pub fn run(plan: &RawPlan, monitor: &dyn Monitor) -> Result<RawResult, RawError> {
    let (volume, _scratch) = prepare::open(plan)?;
    let region = plan.check(&volume)?;
    if plan.prepare {
        prepare::fill_and_warm(plan, &volume, region, monitor)?;
    }
    let shared = Shared::new(plan, &volume, region);
    let parts = measure(plan, &volume, &shared, monitor)?;
    Ok(result::assemble(plan, &volume, parts))
}

/// The parts of a measurement.
struct Parts {
    workers: Vec<Measured>,
    /// CPU time within the measured window.
    cpu: Cpu,
    window: Duration,
    series: Vec<f64>,
}

fn measure(
    plan: &RawPlan,
    volume: &Volume,
    shared: &Shared,
    monitor: &dyn Monitor,
) -> Result<Parts, RawError> {
    monitor.begin(Stage {
        name: "measuring",
        total: Some(u64::from(plan.warmup_ms) + u64::from(plan.duration_ms)),
        unit: Unit::Milliseconds,
    });
    std::thread::scope(|scope| {
        let threads: Vec<_> = match plan.model {
            IoModel::DedicatedThreads { io_threads } => {
                dedicated::spawn(scope, plan, volume, shared, io_threads)
            }
            IoModel::AllToAll | IoModel::Assigned => (0..plan.threads)
                .map(|index| scope.spawn(move || worker::run(plan, volume, shared, index)))
                .collect(),
        };
        let watched = watch(plan, shared, monitor);
        shared.stop();
        let mut workers = Vec::new();
        let mut failure = None;
        for thread in threads {
            match thread.join() {
                Ok(Ok(Some(measured))) => workers.push(measured),
                Ok(Ok(None)) => {}
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(_) => failure = Some(RawError::Panicked),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => watched.map(|parts| Parts { workers, ..parts }),
        }
    })
}

/// Lets the threads warm up, then opens and closes the measured window; what they measured is
/// theirs to say.
fn watch(plan: &RawPlan, shared: &Shared, monitor: &dyn Monitor) -> Result<Parts, RawError> {
    let pass = |total: Duration, mut each: Box<dyn FnMut() + '_>| -> Result<(), RawError> {
        let start = Instant::now();
        let mut shown = 0;
        while let Some(left) = total.checked_sub(start.elapsed()) {
            if monitor.cancelled() {
                return Err(RawError::Interrupted);
            }
            if shared.failed.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(left.min(TICK));
            each();
            let ms = start.elapsed().min(total).as_millis() as u64;
            monitor.advance(ms - shown);
            shown = ms;
        }
        Ok(())
    };
    shared.wait_until_all_run();
    pass(
        Duration::from_millis(plan.warmup_ms.into()),
        Box::new(|| ()),
    )?;
    shared.open_window();
    let (start, cpu) = (Instant::now(), Cpu::now());
    let mut series = Vec::new();
    let (mut second, mut before) = (start, shared.ios());
    let each = Box::new(|| {
        let elapsed = second.elapsed();
        if elapsed >= Duration::from_secs(1) {
            let ios = shared.ios();
            series.push((ios - before) as f64 / elapsed.as_secs_f64());
            (second, before) = (Instant::now(), ios);
        }
    });
    pass(Duration::from_millis(plan.duration_ms.into()), each)?;
    let window = start.elapsed();
    let cpu = Cpu::now() - cpu;
    Ok(Parts {
        workers: Vec::new(),
        cpu,
        window,
        series,
    })
}

/// The statistics of a channel over the measured window.
fn within(after: &ChannelStats, before: &ChannelStats) -> ChannelStats {
    let mut stats = after.clone();
    stats.subtract(before);
    stats
}

#[cfg(test)]
mod tests;
