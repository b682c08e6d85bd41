//! A row of CSV or JSON for one simulation of the cleaner.

use isobath_flash::sim::{Duplicates, SimConfig, SimReport};
use serde::Serialize;

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
    /// Segments cleaned at a time; `None`: as many as the policy prefers.
    pub clean_batch_segments: Option<u32>,
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
    /// Least `Wamp` by the fluid bound: of laws that do not change over time, and of traces that
    /// are played once, in which it knows updates that come in order. It holds for updates that are
    /// otherwise independent of each other.
    pub wamp_bound_ratio: Option<f64>,
    /// Share of the updates in the second half of a trace that come in the order of earlier ones,
    /// which the bound counts as free.
    pub in_order_updates_ratio: Option<f64>,
    /// Bytes that the policy keeps per page.
    pub history_bytes_per_page: u8,
    /// Streams in use at the end.
    pub streams_count: u32,
    /// Why there are no measurements.
    pub error: Option<String>,
    /// How long the simulation took.
    pub seconds: f64,
    /// Page writes, relocations included, per second of it: the simulator's own speed.
    pub page_writes_per_s: f64,
    /// `Wamp` in each hundredth of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wamp_series_ratio: Vec<f64>,
    /// Segments cleaned in the second half per percent of emptiness, 0 to 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub emptiness_histogram_count: Vec<u64>,
}

impl CleanRow {
    /// The row of a finished simulation; `bound` is the least `Wamp`, if known, and of a trace the
    /// share of updates in order.
    pub fn new(
        config: &SimConfig,
        workload: &str,
        bound: Option<(f64, Option<f64>)>,
        report: &SimReport,
    ) -> Self {
        Self {
            spare_segments_count: report.spare_segments,
            updates_count: report.whole.updates,
            wamp_steady_ratio: report.steady.wamp(),
            wamp_whole_ratio: report.whole.wamp(),
            page_writes_per_update_steady: report.steady.page_writes_per_update(),
            emptiness_steady_ratio: report.steady.emptiness(),
            history_bytes_per_page: report.history_bytes,
            streams_count: report.streams_used,
            wamp_series_ratio: report.series.iter().map(|window| window.wamp()).collect(),
            emptiness_histogram_count: report.emptiness_histogram.clone(),
            ..Self::unmeasured(config, report.policy, workload, bound)
        }
    }

    /// The columns that are known before a simulation ran.
    pub(crate) fn unmeasured(
        config: &SimConfig,
        policy: &str,
        workload: &str,
        bound: Option<(f64, Option<f64>)>,
    ) -> Self {
        Self {
            policy: policy.to_owned(),
            workload: workload.to_owned(),
            fill_ratio: config.fill,
            segments_count: config.segments,
            spare_segments_count: config.spare_segments,
            segment_bytes: config.segment_bytes,
            page_bytes: config.page_bytes,
            clean_below_segments: config.clean_below,
            clean_batch_segments: config.clean_batch,
            sort_buffer_segments: config.sort_buffer_segments,
            duplicates_absorbed: config.duplicates == Duplicates::Absorbed,
            seed: config.seed,
            updates_count: 0,
            wamp_steady_ratio: f64::NAN,
            wamp_whole_ratio: f64::NAN,
            page_writes_per_update_steady: f64::NAN,
            emptiness_steady_ratio: f64::NAN,
            wamp_bound_ratio: bound.map(|(wamp, _)| wamp),
            in_order_updates_ratio: bound.and_then(|(_, in_order)| in_order),
            history_bytes_per_page: 0,
            streams_count: 0,
            error: None,
            seconds: 0.0,
            page_writes_per_s: f64::NAN,
            wamp_series_ratio: Vec::new(),
            emptiness_histogram_count: Vec::new(),
        }
    }
}
