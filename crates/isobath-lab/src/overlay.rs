//! Sweeps of the overlay simulator: workload × design × space, in parallel, as rows.

pub use isobath_flash::overlay::{Design, OverlayParams, RecordLaw};
use isobath_flash::overlay::{OverlayError, OverlayReport, simulate_overlay};
use isobath_flash::sim::SimError;
use serde::Serialize;

use crate::parallel::simulate_all;
use crate::{LabError, Monitor};

/// One simulation, as a row of CSV or JSON. Ratios are per byte of upserted records (written and
/// read bytes) or per byte of data (memory and space); measurements are those of
/// [`OverlayReport`], and absent if `error` says why there are none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverlayRow {
    /// Design, as users write it.
    pub design: String,
    /// Workload, as users write it.
    pub workload: String,
    /// Records.
    pub records_count: u32,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// Bytes of a leaf.
    pub page_bytes: u32,
    /// Memory in all.
    pub memory_ratio: f64,
    /// Records that the overlay takes per record.
    pub overlay_records_ratio: f64,
    /// Bits of a filter per record.
    pub filter_bits: f64,
    /// How the volume is cleaned.
    pub policy: String,
    /// Seed.
    pub seed: u64,
    /// Upserts measured.
    pub updates_count: u64,
    /// Bytes written before cleaning.
    pub written_ratio: Option<f64>,
    /// Bytes that the cleaner moves per byte written.
    pub wamp_ratio: Option<f64>,
    /// Bytes written, those that the cleaner moves included.
    pub written_cleaned_ratio: Option<f64>,
    /// Bytes that merges read.
    pub merge_read_ratio: Option<f64>,
    /// Device reads per upsert, merges excluded.
    pub reads_per_update: Option<f64>,
    /// Device reads per lookup.
    pub reads_per_lookup: Option<f64>,
    /// Pages read per scan of 100.
    pub reads_per_scan: Option<f64>,
    /// Memory of the overlay.
    pub overlay_memory_ratio: Option<f64>,
    /// Memory of filters.
    pub filter_memory_ratio: Option<f64>,
    /// Memory of the page cache.
    pub cache_memory_ratio: Option<f64>,
    /// Mean live bytes.
    pub live_ratio: Option<f64>,
    /// Most live bytes.
    pub live_max_ratio: Option<f64>,
    /// Bytes of the volume.
    pub space_ratio: f64,
    /// Mean number of runs, levels or deltas per leaf.
    pub parts_mean: Option<f64>,
    /// Why there are no measurements.
    pub error: Option<String>,
    /// How long the simulation took.
    pub seconds: f64,
}

impl OverlayRow {
    fn new(params: &OverlayParams, result: Result<OverlayReport, String>, seconds: f64) -> Self {
        let (report, error) = match result {
            Ok(report) => (Some(report), None),
            Err(error) => (None, Some(error)),
        };
        let of = |value: fn(&OverlayReport) -> f64| report.as_ref().map(value);
        Self {
            design: params.design.to_string(),
            workload: params.law.to_string(),
            records_count: params.records,
            record_bytes: params.record_bytes,
            page_bytes: params.page_bytes,
            memory_ratio: params.memory,
            overlay_records_ratio: params.overlay,
            filter_bits: params.filter_bits,
            policy: params.policy.to_string(),
            seed: params.seed,
            updates_count: report.map_or(0, |report| report.updates),
            written_ratio: of(|r| r.written),
            wamp_ratio: of(|r| r.wamp),
            written_cleaned_ratio: of(|r| r.written_cleaned),
            merge_read_ratio: of(|r| r.merge_read),
            reads_per_update: of(|r| r.reads_per_update),
            reads_per_lookup: of(|r| r.reads_per_lookup),
            reads_per_scan: of(|r| r.reads_per_scan),
            overlay_memory_ratio: of(|r| r.overlay_memory),
            filter_memory_ratio: of(|r| r.filter_memory),
            cache_memory_ratio: of(|r| r.cache_memory),
            live_ratio: of(|r| r.live),
            live_max_ratio: of(|r| r.live_max),
            space_ratio: report.map_or(params.space, |report| report.space),
            parts_mean: of(|r| r.parts),
            error,
            seconds,
        }
    }
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
    let result = match simulate_overlay(params, observe) {
        Ok(report) => Ok(report),
        Err(OverlayError::Cleaning(SimError::Stopped)) => return Err(LabError::Interrupted),
        Err(error @ (OverlayError::Space { .. } | OverlayError::Cleaning(_))) => {
            Err(error.to_string())
        }
        Err(error) => return Err(LabError::Request(error.to_string())),
    };
    Ok(OverlayRow::new(
        params,
        result,
        began.elapsed().as_secs_f64(),
    ))
}
