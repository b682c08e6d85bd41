//! Sweeps of the cleaning simulator: policy × workload × fill factor, in parallel, as tidy rows.

use isobath_flash::policy::PolicyKind;
use isobath_flash::sim::{Duplicates, RunLength, SimConfig, SimError, SimReport, simulate};
use isobath_flash::workload::WorkloadKind;
use rayon::prelude::*;
use serde::Serialize;

/// What to simulate: every combination of policy, workload and fill factor.
#[derive(Debug, Clone)]
pub struct CleanSweep {
    /// Policies.
    pub policies: Vec<PolicyKind>,
    /// Workloads.
    pub workloads: Vec<WorkloadKind>,
    /// Fill factors, each above 0 and below 1.
    pub fills: Vec<f64>,
    /// Everything else; its fill factor is replaced.
    pub base: SimConfig,
    /// Length of each run.
    pub length: RunLength,
}

/// One simulation, as a row of CSV or JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CleanRow {
    /// Cleaning policy.
    pub policy: String,
    /// Workload, as users write it.
    pub workload: String,
    /// Fill factor F.
    pub fill_ratio: f64,
    /// Segments that the fill factor refers to.
    pub segments_count: u32,
    /// Spare segments.
    pub spare_segments_count: u32,
    /// Segment size.
    pub segment_bytes: u32,
    /// Page size.
    pub page_bytes: u32,
    /// Free segments that start cleaning.
    pub clean_below_segments: u32,
    /// Sort buffer.
    pub sort_buffer_segments: u32,
    /// True if rewrites of buffered pages are absorbed.
    pub duplicates_absorbed: bool,
    /// Seed.
    pub seed: u64,
    /// Updates simulated.
    pub updates_count: u64,
    /// Extra writes per user write, (1−E)/E, in the second half of the run.
    pub wamp_steady_ratio: f64,
    /// The same over the whole run.
    pub wamp_whole_ratio: f64,
    /// Page writes in all per update in the second half.
    pub page_writes_per_update_steady: f64,
    /// Mean emptiness of the segments cleaned in the second half.
    pub emptiness_steady_ratio: f64,
    /// Least `Wamp` by the fluid bound, for stationary workloads.
    pub wamp_bound_ratio: Option<f64>,
    /// Bytes that the policy keeps per page.
    pub history_bytes_per_page: u8,
    /// Streams in use at the end.
    pub streams_count: u32,
    /// `Wamp` in each hundredth of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wamp_series_ratio: Vec<f64>,
    /// Segments cleaned in the second half per percent of emptiness, 0 to 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub emptiness_histogram_count: Vec<u64>,
}

/// A sweep or its output that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CleanError {
    /// One simulation failed.
    #[error("policy {policy}, workload {workload}, fill factor {fill}: {source}")]
    Sim {
        /// Policy.
        policy: PolicyKind,
        /// Workload.
        workload: WorkloadKind,
        /// Fill factor.
        fill: f64,
        /// Why.
        source: SimError,
    },
    /// The rows could not be written.
    #[error("cannot write the rows: {0}")]
    Write(#[from] std::io::Error),
    /// The rows could not be turned into JSON.
    #[error("cannot write the rows as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl CleanSweep {
    /// Every combination, with the fill factor varying fastest.
    pub fn points(&self) -> Vec<(PolicyKind, WorkloadKind, f64)> {
        let mut points = Vec::new();
        for &workload in &self.workloads {
            for &policy in &self.policies {
                points.extend(self.fills.iter().map(|&fill| (policy, workload, fill)));
            }
        }
        points
    }

    /// Runs every combination on all cores and returns the rows in the order of [`points`](Self::points). `done` is
    /// called after each one, from whatever thread ran it.
    ///
    /// # Errors
    /// The first combination that failed; those after it may not have run.
    pub fn run(&self, done: impl Fn(&CleanRow) + Sync) -> Result<Vec<CleanRow>, CleanError> {
        let run = |(policy, workload, fill)| {
            let config = SimConfig {
                fill,
                ..self.base.clone()
            };
            let report = simulate(policy, &config, workload, self.length).map_err(|source| {
                CleanError::Sim {
                    policy,
                    workload,
                    fill,
                    source,
                }
            })?;
            let row = CleanRow::new(
                &config,
                &workload.to_string(),
                bound(&config, workload),
                &report,
            );
            done(&row);
            Ok(row)
        };
        self.points().into_par_iter().map(run).collect()
    }
}

fn bound(config: &SimConfig, workload: WorkloadKind) -> Option<f64> {
    let groups = isobath_flash::analysis::groups_of(workload, config.user_pages())?;
    Some(isobath_flash::analysis::fluid_bound(config.fill, &groups).wamp)
}

impl CleanRow {
    /// The row of a finished simulation; `bound` is the least `Wamp`, if known.
    pub fn new(config: &SimConfig, workload: &str, bound: Option<f64>, report: &SimReport) -> Self {
        Self {
            policy: report.policy.to_owned(),
            workload: workload.to_owned(),
            fill_ratio: config.fill,
            segments_count: config.segments,
            spare_segments_count: config.spare_segments,
            segment_bytes: config.segment_bytes,
            page_bytes: config.page_bytes,
            clean_below_segments: config.clean_below,
            sort_buffer_segments: config.sort_buffer_segments,
            duplicates_absorbed: config.duplicates == Duplicates::Absorbed,
            seed: config.seed,
            updates_count: report.whole.updates,
            wamp_steady_ratio: report.steady.wamp(),
            wamp_whole_ratio: report.whole.wamp(),
            page_writes_per_update_steady: report.steady.page_writes_per_update(),
            emptiness_steady_ratio: report.steady.emptiness(),
            wamp_bound_ratio: bound,
            history_bytes_per_page: report.history_bytes,
            streams_count: report.streams_used,
            wamp_series_ratio: report.series.iter().map(|window| window.wamp()).collect(),
            emptiness_histogram_count: report.emptiness_histogram.clone(),
        }
    }
}

/// Writes the rows as CSV, without the series and the histogram, which only JSON carries.
///
/// # Errors
/// Those of `out`.
pub fn write_csv(rows: &[CleanRow], mut out: impl std::io::Write) -> Result<(), CleanError> {
    let mut header = None;
    for row in rows {
        let flat = CleanRow {
            wamp_series_ratio: Vec::new(),
            emptiness_histogram_count: Vec::new(),
            ..row.clone()
        };
        let serde_json::Value::Object(fields) = serde_json::to_value(flat)? else {
            continue;
        };
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        if header.is_none() {
            writeln!(out, "{}", names.join(","))?;
            header = Some(());
        }
        // Names and numbers hold neither commas nor quotes.
        let cell = |value: &serde_json::Value| match value {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let cells: Vec<String> = fields.values().map(cell).collect();
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

/// Writes the rows as a JSON array.
///
/// # Errors
/// Those of `out`.
pub fn write_json(rows: &[CleanRow], out: impl std::io::Write) -> Result<(), CleanError> {
    Ok(serde_json::to_writer_pretty(out, rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> CleanSweep {
        let mut base = SimConfig::paper(200, 0.5);
        base.segment_bytes = 64 * 4096;
        base.clean_below = 8;
        base.clean_batch = Some(8);
        base.sort_buffer_segments = 2;
        CleanSweep {
            policies: vec![PolicyKind::Greedy, PolicyKind::Mdc],
            workloads: vec![WorkloadKind::Uniform, WorkloadKind::Zipf { exponent: 0.99 }],
            fills: vec![0.6, 0.8],
            base,
            length: RunLength::DeviceWrites(2.0),
        }
    }

    #[test]
    fn rows_come_in_order_with_progress_and_units_in_their_names() {
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let rows = sweep()
            .run(|_| {
                seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            })
            .unwrap();
        assert_eq!((rows.len(), seen.into_inner()), (8, 8));
        assert_eq!(
            (rows[1].policy.as_str(), rows[1].fill_ratio),
            ("greedy", 0.8)
        );
        assert!(rows[1].wamp_steady_ratio > rows[0].wamp_steady_ratio);
        let mut csv = Vec::new();
        write_csv(&rows, &mut csv).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        assert_eq!(csv.lines().count(), 9);
        assert!(
            csv.lines()
                .all(|line| line.split(',').count()
                    == csv.lines().next().unwrap().split(',').count())
        );
        let mut json = Vec::new();
        write_json(&rows, &mut json).unwrap();
        assert!(
            String::from_utf8(json)
                .unwrap()
                .contains("\"wamp_series_ratio\"")
        );
    }

    #[test]
    fn a_failing_point_is_named() {
        let mut sweep = sweep();
        sweep.fills = vec![1.5];
        let error = sweep.run(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("policy greedy, workload uniform, fill factor 1.5"),
            "{error}"
        );
    }
}
