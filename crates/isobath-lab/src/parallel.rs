//! Simulations in parallel, with the progress of all of them.

use rayon::prelude::*;

use crate::{LabError, Monitor, Stage, Unit};

/// Parts in which a simulation reports its progress.
pub(crate) const PARTS: u64 = 100;

/// Simulates every point on `threads` threads (one per core if `None`); the results in the order of
/// the points. Each simulation says which share of it is done, from 0 to 1, and ends when it is
/// answered `false`.
///
/// # Errors
/// The first simulation that failed; [`LabError::Interrupted`].
pub(crate) fn simulate_all<P: Send, R: Send>(
    points: Vec<P>,
    threads: Option<usize>,
    monitor: &dyn Monitor,
    simulate: impl Fn(P, &mut dyn FnMut(f64) -> bool) -> Result<R, LabError> + Sync,
) -> Result<Vec<R>, LabError> {
    monitor.begin(Stage {
        name: "simulating",
        total: Some(points.len() as u64 * PARTS),
        unit: Unit::Items,
    });
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(0))
        .build()
        .map_err(|error| LabError::Request(format!("no threads to simulate in: {error}")))?;
    let one = |point| {
        monitor.check()?;
        let mut told = 0;
        let result = simulate(point, &mut |done| {
            let now = (done * PARTS as f64) as u64;
            monitor.advance(now - told);
            told = now;
            !monitor.cancelled()
        })?;
        monitor.advance(PARTS - told);
        Ok(result)
    };
    pool.install(|| points.into_par_iter().map(one).collect())
}
