//! Sweeps of the overlay simulator: workload × design × space, in parallel, as rows.

pub use crate::csv_table::write_csv;
pub use isobath_flash::overlay::{Design, OverlayParams, RecordLaw};
use isobath_flash::overlay::{OverlayError, OverlayReport, simulate_overlay};
use isobath_flash::sim::SimError;

use crate::parallel::simulate_all;
use crate::{LabError, Monitor};

/// One simulation, as a row of CSV or JSON. Ratios are per byte of upserted records (written and
/// read bytes) or per byte of data (memory and space); measurements are those of
/// [`OverlayReport`], and null if `error` says why there are none.
pub type OverlayRow = serde_json::Value;

fn row(
    params: &OverlayParams,
    report: Option<&OverlayReport>,
    error: Option<String>,
    seconds: f64,
) -> OverlayRow {
    serde_json::json!({
        "design": params.design.to_string(),
        "workload": params.law.to_string(),
        "records_count": params.records,
        "record_bytes": params.record_bytes,
        "page_bytes": params.page_bytes,
        "memory_ratio": params.memory,
        "overlay_records_ratio": params.overlay,
        "filter_bits": params.filter_bits,
        "policy": params.policy.to_string(),
        "seed": params.seed,
        "updates_count": report.map_or(0, |r| r.updates),
        "written_ratio": report.map(|r| r.written),
        "wamp_ratio": report.map(|r| r.wamp),
        "written_cleaned_ratio": report.map(|r| r.written_cleaned),
        "merge_read_ratio": report.map(|r| r.merge_read),
        "reads_per_update": report.map(|r| r.reads_per_update),
        "reads_per_lookup": report.map(|r| r.reads_per_lookup),
        "reads_per_scan": report.map(|r| r.reads_per_scan),
        "overlay_memory_ratio": report.map(|r| r.overlay_memory),
        "filter_memory_ratio": report.map(|r| r.filter_memory),
        "cache_memory_ratio": report.map(|r| r.cache_memory),
        "live_ratio": report.map(|r| r.live),
        "live_max_ratio": report.map(|r| r.live_max),
        "space_ratio": report.map_or(params.space, |r| r.space),
        "parts_mean": report.map(|r| r.parts),
        "error": error,
        "seconds": seconds,
    })
}

/// Runs every combination on `threads` threads (one per core if `None`), and returns the rows in
/// order: by workload, space and design. One whose data does not fit its volume has a row that says
/// so.
///
/// # Errors
/// The first parameter that is out of range; [`LabError::Interrupted`].
pub fn sweep(
    base: &OverlayParams,
    designs: &[Design],
    laws: &[RecordLaw],
    spaces: &[f64],
    threads: Option<usize>,
    monitor: &dyn Monitor,
) -> Result<Vec<OverlayRow>, LabError> {
    let mut points = Vec::new();
    for &law in laws {
        for &space in spaces {
            points.extend(designs.iter().map(|&design| OverlayParams {
                design,
                law,
                space,
                ..base.clone()
            }));
        }
    }
    for point in &points {
        point
            .validate()
            .map_err(|error| LabError::Request(error.to_string()))?;
    }
    simulate_all(points, threads, monitor, |point, observe| {
        run(&point, observe)
    })
}

fn run(
    params: &OverlayParams,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<OverlayRow, LabError> {
    let began = std::time::Instant::now();
    let (report, error) = match simulate_overlay(params, observe) {
        Ok(report) => (Some(report), None),
        Err(OverlayError::Cleaning(SimError::Stopped)) => return Err(LabError::Interrupted),
        Err(error @ (OverlayError::Space { .. } | OverlayError::Cleaning(_))) => {
            (None, Some(error.to_string()))
        }
        Err(error) => return Err(LabError::Request(error.to_string())),
    };
    let seconds = began.elapsed().as_secs_f64();
    Ok(row(params, report.as_ref(), error, seconds))
}
