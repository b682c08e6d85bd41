//! Sweeps of the cleaning simulator: policy × workload × fill factor × sort buffer, in parallel, as
//! tidy rows.

use std::path::Path;
use std::sync::Arc;

use isobath_flash::analysis::bound_of;
pub use isobath_flash::policy::PolicyKind;
pub use isobath_flash::sim::{Duplicates, PageSizes, RunLength, SimConfig};
use isobath_flash::sim::{SimError, SimReport, simulate_workload};
pub use isobath_flash::trace::TraceFormat;
use isobath_flash::trace::{Trace, TraceError, read_trace};
use isobath_flash::workload::Synthetic;
pub use isobath_flash::workload::WorkloadKind;

pub use crate::clean_row::CleanRow;
pub use crate::csv_table::write_csv;
use crate::parallel::simulate_all;
use crate::{LabError, Monitor};

/// The source of page writes.
#[derive(Debug, Clone)]
pub enum CleanWorkload {
    /// A law.
    Synthetic(WorkloadKind),
    /// A recording.
    Trace(TraceInput),
}

/// A trace and how it is played.
#[derive(Debug, Clone)]
pub struct TraceInput {
    /// Its name in reports.
    pub name: String,
    /// The page writes and trims.
    pub trace: Arc<Trace>,
    /// Times that it is played.
    pub repeats: u32,
    /// Whether its pages alone are to fill the device to the fill factor, whatever size that gives
    /// the device. Otherwise the device has the size asked for.
    pub sizes_device: bool,
}

impl CleanWorkload {
    /// Its name on the command line.
    pub fn name(&self) -> String {
        match self {
            Self::Synthetic(kind) => kind.to_string(),
            Self::Trace(input) => input.name.clone(),
        }
    }
}

/// Reads a trace for a sweep. Without `device_pages` every page number is allowed, and pages are
/// renumbered, so that the trace has as many as were ever live at a time.
///
/// # Errors
/// [`LabError::Input`] with the file and the line.
pub fn read_trace_file(
    path: &Path,
    format: TraceFormat,
    page_bytes: u32,
    device_pages: Option<u64>,
    repeats: u32,
) -> Result<TraceInput, LabError> {
    let file = std::fs::File::open(path).map_err(LabError::io("read", path))?;
    let source = std::io::BufReader::new(file);
    let trace = read_trace(format, source, page_bytes, device_pages)
        .map_err(|error: TraceError| LabError::input(path, error.to_string()))?;
    let name = path
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(TraceInput {
        name,
        trace: Arc::new(trace),
        repeats,
        sizes_device: device_pages.is_none(),
    })
}

/// The simulations: every combination of policy, workload, fill factor and sort buffer.
#[derive(Debug, Clone)]
pub struct CleanSweep {
    /// Policies.
    pub policies: Vec<PolicyKind>,
    /// Workloads.
    pub workloads: Vec<CleanWorkload>,
    /// Fill factors, each above 0 and below 1.
    pub fills: Vec<f64>,
    /// Sizes of the sort buffer in segments.
    pub sort_buffers: Vec<u32>,
    /// Everything else; its fill factor and sort buffer are replaced.
    pub base: SimConfig,
    /// Whether the base's spare segments are replaced by those that leave as large a share of a
    /// device idle as of the paper's; see [`SimConfig::matches_reserve`].
    pub paper_spare: bool,
    /// Length of each run with a synthetic workload; traces are played to their end.
    pub length: RunLength,
    /// Simulations at a time; `None` is one per core.
    pub threads: Option<usize>,
}

/// One simulation to run.
#[derive(Debug, Clone)]
struct Point {
    policy: PolicyKind,
    workload: CleanWorkload,
    fill: f64,
    sort_buffer: u32,
}

impl Point {
    /// Why the policy cannot run: it needs rates that the workload does not have.
    fn no_rates(&self) -> Option<SimError> {
        let exact = match &self.workload {
            CleanWorkload::Synthetic(kind) => kind.is_stationary(),
            CleanWorkload::Trace(_) => false,
        };
        let policy = self.policy.name();
        (self.policy.needs_rates() && !exact).then_some(SimError::NoRates { policy })
    }
}

/// Segments that policies clean at a time by themselves, at most.
const BATCH: u32 = 64;
/// Free segments that start cleaning unless told otherwise.
const RESERVE: u32 = 32;

impl CleanSweep {
    /// Number of simulations.
    pub fn len(&self) -> usize {
        self.policies.len() * self.workloads.len() * self.fills.len() * self.sort_buffers.len()
    }

    /// True if there is nothing to simulate.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every combination, with the sort buffer varying fastest, then the fill factor, the policy
    /// and the workload.
    fn points(&self) -> Vec<Point> {
        let mut points = Vec::with_capacity(self.len());
        for workload in &self.workloads {
            for &policy in &self.policies {
                for &fill in &self.fills {
                    points.extend(self.sort_buffers.iter().map(|&sort_buffer| Point {
                        policy,
                        workload: workload.clone(),
                        fill,
                        sort_buffer,
                    }));
                }
            }
        }
        points
    }

    /// Checks every combination without running any. A policy that one workload gives no rates to
    /// is no error as long as anything else can run: its rows say so.
    ///
    /// # Errors
    /// [`LabError::Request`] naming the first combination that cannot be.
    pub fn check(&self) -> Result<(), LabError> {
        let (mut runs, mut without_rates) = (false, None);
        for point in self.points() {
            let config = self.config(&point);
            if let Some(wrong) = self.too_large(&point, &config) {
                return Err(LabError::Request(wrong));
            }
            config.check().map_err(|error| request(&point, &error))?;
            match point.no_rates() {
                None => runs = true,
                Some(error) => {
                    without_rates.get_or_insert_with(|| request(&point, &error));
                }
            }
        }
        match without_rates {
            Some(error) if !runs => Err(error),
            _ => Ok(()),
        }
    }

    /// What is wrong with a batch or a reserve that is too large for the device whatever else is
    /// set, and how large it may be: no larger than the device, though even the smallest may have
    /// the defaults.
    fn too_large(&self, point: &Point, config: &SimConfig) -> Option<String> {
        let segments = config.segments;
        let most = segments.max(BATCH);
        if let Some(batch) = config.clean_batch.filter(|&batch| batch > most) {
            return Some(format!(
                "--batch {batch} is too large for a device of {segments} segments; give at most {most}"
            ));
        }
        let cap = segments.max(RESERVE);
        let holds = |reserve: u32| {
            let mut sweep = self.clone();
            sweep.base.clean_below = reserve;
            reserve <= cap && sweep.config(point).check().is_ok()
        };
        let reserve = config.clean_below;
        if holds(reserve) || !holds(0) {
            return None;
        }
        let (mut most, mut above) = (0, reserve);
        while above - most > 1 {
            let middle = most + (above - most) / 2;
            match holds(middle) {
                true => most = middle,
                false => above = middle,
            }
        }
        let cure = match most < cap {
            true => ", lower the fill factor, or give more --spare segments",
            false => "",
        };
        Some(format!(
            "--reserve {reserve} is too large for {segments} segments at fill factor {}; give at most {most}{cure}",
            point.fill
        ))
    }

    /// The space of one simulation.
    fn config(&self, point: &Point) -> SimConfig {
        let mut config = SimConfig {
            fill: point.fill,
            sort_buffer_segments: point.sort_buffer,
            ..self.base.clone()
        };
        if let CleanWorkload::Trace(input) = &point.workload
            && input.sizes_device
        {
            let bytes = f64::from(input.trace.pages()) * config.mean_page_bytes();
            let segments = bytes / f64::from(config.segment_bytes.max(1)) / point.fill;
            config.segments = segments.ceil().clamp(1.0, f64::from(u32::MAX)) as u32;
            // A space of whole segments is a little less full than was asked for.
            while config.user_pages() < input.trace.pages() && config.segments < u32::MAX {
                config.segments += 1;
            }
        }
        config.matches_reserve = self.paper_spare;
        if self.paper_spare {
            let batch = config.clean_batch.unwrap_or(BATCH);
            config.spare_segments =
                SimConfig::paper_spare(config.segments, config.clean_below, batch);
        }
        config
    }

    /// Runs every combination and returns the rows in order: by workload, policy, fill factor, sort
    /// buffer. One in which the policy cannot run, runs out of space or writes nothing has a row
    /// without measurements, which says so.
    ///
    /// # Errors
    /// The first combination that failed; [`LabError::Interrupted`].
    pub fn run(&self, monitor: &dyn Monitor) -> Result<Vec<CleanRow>, LabError> {
        self.check()?;
        simulate_all(self.points(), self.threads, monitor, |point, observe| {
            self.run_point(&point, observe)
        })
    }

    fn run_point(
        &self,
        point: &Point,
        observe: &mut dyn FnMut(f64) -> bool,
    ) -> Result<CleanRow, LabError> {
        let config = self.config(point);
        let began = std::time::Instant::now();
        let (report, bound) = match &point.workload {
            CleanWorkload::Synthetic(kind) => {
                let bound = bound_of(*kind, config.user_pages(), config.fill)
                    .map(|bound| (bound.wamp, None));
                let workload = Synthetic::new(*kind, config.user_pages(), config.seed);
                let run = workload.map_err(SimError::from).and_then(|workload| {
                    let length = self.length;
                    simulate_workload(point.policy, &config, workload, length, observe)
                });
                (run, bound)
            }
            CleanWorkload::Trace(input) => {
                let bound = (input.repeats == 1).then(|| trace_bound(&config, &input.trace));
                let workload = input.trace.replay(input.repeats);
                let length = RunLength::ToEnd;
                let run = simulate_workload(point.policy, &config, workload, length, observe);
                (run, bound)
            }
        };
        let name = point.workload.name();
        let failed = match &report {
            Err(SimError::Stopped) => return Err(LabError::Interrupted),
            Err(error @ (SimError::OutOfSpace { .. } | SimError::NoRates { .. })) => {
                Some(error.to_string())
            }
            Ok(report) if report.steady.user_pages == 0 => {
                Some(nothing_written(point, &config, report))
            }
            _ => None,
        };
        if let Some(error) = failed {
            let policy = point.policy.name();
            return Ok(CleanRow {
                error: Some(error),
                ..CleanRow::unmeasured(&config, policy, &name, bound)
            });
        }
        let report = report.map_err(|error| request(point, &error))?;
        let mut row = CleanRow::new(&config, &name, bound, &report);
        row.seconds = began.elapsed().as_secs_f64();
        let pages = report.whole.user_pages + report.whole.relocated_pages;
        row.page_writes_per_s = (pages + u64::from(report.pages)) as f64 / row.seconds;
        Ok(row)
    }
}

/// The least `Wamp` of the second half of a trace, at the fill that its pages make of the whole
/// space, and the share of updates in it that come in order.
fn trace_bound(config: &SimConfig, trace: &Trace) -> (f64, Option<f64>) {
    let half = trace.ops().len() / 2;
    let contents = trace.contents(half);
    let bytes = f64::from(trace.pages_in_use(half)) * config.mean_page_bytes();
    let space = f64::from(config.segments) * f64::from(config.segment_bytes);
    let bound = contents.bound((bytes / space).min(0.999));
    (bound.wamp, Some(contents.in_order))
}

/// Why a run whose second half wrote no page measured nothing, and what to do.
fn nothing_written(point: &Point, config: &SimConfig, report: &SimReport) -> String {
    let policy = point.policy.name();
    let buffer = config.sort_buffer_segments;
    match report.steady.updates {
        0 => format!("policy {policy} measured nothing: the second half of the run has no update"),
        updates => format!(
            "policy {policy} measured nothing: the sort buffer of {buffer} segments took all {updates} updates of the \
             second half, and no page was written; give a smaller --sort-buffer or a longer run"
        ),
    }
}

fn request(point: &Point, error: &SimError) -> LabError {
    LabError::Request(format!(
        "policy {}, workload {}, fill factor {}: {error}",
        point.policy,
        point.workload.name(),
        point.fill
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::parallel::PARTS;
    use isobath_flash::workload::Op;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn sweep() -> CleanSweep {
        let mut base = SimConfig::paper(200, 0.5);
        base.segment_bytes = 64 * 4096;
        base.clean_below = 8;
        base.clean_batch = Some(8);
        let synthetic = |text: &str| CleanWorkload::Synthetic(text.parse().unwrap());
        CleanSweep {
            policies: vec![PolicyKind::Greedy, PolicyKind::Mdc],
            workloads: vec![synthetic("uniform"), synthetic("zipf:0.99")],
            fills: vec![0.6, 0.8],
            sort_buffers: vec![2],
            base,
            paper_spare: true,
            length: RunLength::DeviceWrites(2.0),
            threads: Some(2),
        }
    }

    /// As it is read from a file.
    fn trace(ops: Vec<Op>, sizes_device: bool) -> CleanWorkload {
        let line = |op: Op| format!("{},{}\n", if op.is_trim() { 'T' } else { 'W' }, op.page());
        let text: String = ops.into_iter().map(line).collect();
        let trace = read_trace(TraceFormat::Csv, text.as_bytes(), 4096, None).unwrap();
        CleanWorkload::Trace(TraceInput {
            name: "a,b.csv".into(),
            trace: Arc::new(trace),
            repeats: 1,
            sizes_device,
        })
    }

    fn repeated(mut workload: CleanWorkload, times: u32) -> CleanWorkload {
        if let CleanWorkload::Trace(input) = &mut workload {
            input.repeats = times;
        }
        workload
    }

    /// Counts progress, and cancels at a point of it.
    struct Watcher(AtomicU64, u64);

    impl Monitor for Watcher {
        fn advance(&self, amount: u64) {
            self.0.fetch_add(amount, Ordering::Relaxed);
        }
        fn cancelled(&self) -> bool {
            self.0.load(Ordering::Relaxed) >= self.1
        }
    }

    #[test]
    fn rows_come_in_order_with_progress_and_units_in_their_names() {
        let watcher = Watcher(AtomicU64::new(0), u64::MAX);
        let rows = sweep().run(&watcher).unwrap();
        assert_eq!((rows.len(), watcher.0.into_inner()), (8, 8 * PARTS));
        assert_eq!(
            (rows[1].policy.as_str(), rows[1].fill_ratio),
            ("greedy", 0.8)
        );
        assert!(rows[1].wamp_steady_ratio > rows[0].wamp_steady_ratio);
        let mut csv = Vec::new();
        write_csv(&rows, &mut csv).unwrap();
        let mut csv = csv::Reader::from_reader(csv.as_slice());
        assert!(
            csv.headers()
                .unwrap()
                .iter()
                .any(|h| h == "wamp_steady_ratio")
        );
        assert_eq!(csv.records().map(Result::unwrap).count(), 8);
        assert!(
            serde_json::to_string(&rows)
                .unwrap()
                .contains("\"wamp_series_ratio\"")
        );
    }

    /// Multi-log keeps a segment open per log, for which this space is too small; the other
    /// policies' rows are there.
    #[test]
    fn a_policy_that_runs_out_of_space_has_an_error_row() {
        let mut sweep = sweep();
        sweep.policies = vec![PolicyKind::MultiLog, PolicyKind::Greedy];
        sweep.workloads.remove(0);
        sweep.fills = vec![0.97];
        sweep.base.spare_segments = 2;
        sweep.base.clean_below = 4;
        sweep.paper_spare = false;
        let rows = sweep.run(&Silent).unwrap();
        let error = rows[0].error.as_deref().unwrap();
        assert!(error.contains("ran out of free segments"), "{error}");
        assert!(rows[0].wamp_steady_ratio.is_nan() && rows[1].wamp_steady_ratio > 1.0);
        assert_eq!(rows[1].error, None);
        let mut csv = Vec::new();
        write_csv(&rows, &mut csv).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        assert!(
            csv.contains("ran out of free segments") && !csv.contains("NaN"),
            "{csv}"
        );
    }

    /// A ratio to no page written would be 0.
    #[test]
    fn a_run_that_fits_the_sort_buffer_measures_nothing() {
        let mut sweep = sweep();
        sweep.workloads.truncate(1);
        sweep.fills = vec![0.8];
        sweep.sort_buffers = vec![2, 1000];
        let rows = sweep.run(&Silent).unwrap();
        let (greedy, mdc) = (&rows[..2], &rows[2..]);
        assert!(
            greedy.iter().all(|row| row.error.is_none()),
            "sorts nothing"
        );
        assert_eq!(mdc[0].error, None);
        assert!(mdc[1].wamp_steady_ratio.is_nan(), "{:?}", mdc[1]);
        let error = mdc[1].error.as_deref().unwrap();
        assert!(
            error.contains("the sort buffer of 1000 segments took all 12800 updates"),
            "{error}"
        );
        assert!(error.contains("smaller --sort-buffer"), "{error}");
    }

    #[test]
    fn an_interruption_ends_the_sweep() {
        let stopped = sweep().run(&Watcher(AtomicU64::new(0), 30));
        assert!(matches!(stopped, Err(LabError::Interrupted)));
    }

    #[test]
    fn a_trace_sizes_its_device_and_gets_a_bound() {
        let mut rng = isobath_flash::rng::Rng::new(1);
        let mut ops: Vec<Op> = (0..20_000).map(|page| Op::write(3 * page)).collect();
        ops.extend((0..200_000).map(|_| Op::write(3 * rng.below(20_000))));
        let mut sweep = sweep();
        sweep.workloads = vec![trace(ops, true)];
        sweep.fills = vec![0.8];
        let rows = sweep.run(&Silent).unwrap();
        let row = &rows[0];
        let user_bytes = f64::from(row.segments_count) * 64.0 * row.fill_ratio;
        // 1.00096: whole segments of 64 pages.
        assert!((user_bytes / 20_000.0 - 1.0).abs() < 0.001, "{row:?}");
        let bound = row.wamp_bound_ratio.unwrap();
        let uniform = isobath_flash::analysis::wamp(isobath_flash::analysis::emptiness(0.8));
        // 0.992: pages were counted ten times each, and some of that noise stays.
        assert!((bound / uniform - 1.0).abs() < 0.008, "{bound} {uniform}");
        let mut csv = Vec::new();
        write_csv(&rows, &mut csv).unwrap();
        assert!(String::from_utf8(csv).unwrap().contains("\"a,b.csv\""));
    }

    /// A trace that cycles through its pages in order has next to nothing to clean, and the bound
    /// says so.
    #[test]
    fn the_bound_of_a_cyclic_trace_is_next_to_nothing() {
        let ops = (0..200_000).map(|n| Op::write(n % 20_000)).collect();
        let mut sweep = sweep();
        sweep.workloads = vec![trace(ops, true)];
        sweep.fills = vec![0.8];
        let row = &sweep.run(&Silent).unwrap()[0];
        assert!(row.in_order_updates_ratio.unwrap() > 0.9999, "{row:?}");
        assert!(row.wamp_bound_ratio.unwrap() < 1e-9, "{row:?}");
        assert!(row.wamp_steady_ratio < 1e-9, "greedy: {row:?}");
    }

    /// The bound is that of independent updates. Those of a permutation of the pages are, and come
    /// again in the same order when it is played again: then a policy costs less than the bound of
    /// one play, which is shown of one play only.
    #[test]
    fn a_trace_that_is_repeated_has_no_bound() {
        let mut order: Vec<u32> = (0..20_000).collect();
        let mut rng = isobath_flash::rng::Rng::new(1);
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u32 + 1) as usize);
        }
        let load = (0..20_000).map(Op::write);
        let ops: Vec<Op> = load.chain(order.into_iter().map(Op::write)).collect();
        let mut sweep = sweep();
        sweep.policies.truncate(1);
        sweep.workloads = vec![trace(ops.clone(), true), repeated(trace(ops, true), 10)];
        sweep.fills = vec![0.8];
        let rows = sweep.run(&Silent).unwrap();
        let bound = rows[0].wamp_bound_ratio.unwrap();
        assert!(rows[1].wamp_steady_ratio < 0.9 * bound, "{rows:?}");
        assert_eq!(rows[1].wamp_bound_ratio, None);
    }

    #[test]
    fn failing_points_are_named_before_anything_runs() {
        let error = |change: &dyn Fn(&mut CleanSweep)| {
            let mut sweep = sweep();
            change(&mut sweep);
            match sweep.run(&Silent) {
                Err(LabError::Request(text)) => text,
                other => panic!("{other:?}"),
            }
        };
        let text = error(&|sweep| sweep.fills = vec![0.5, 1.5]);
        assert!(
            text.starts_with("policy greedy, workload uniform, fill factor 1.5"),
            "{text}"
        );
        let text = error(&|sweep| {
            sweep.fills = vec![0.99];
            sweep.paper_spare = false;
            sweep.base.spare_segments = 0;
        });
        assert!(text.contains("cannot be sustained"), "{text}");
        // Of a number that is too large, the largest that is not, whether spare segments grow with
        // it or not.
        let text = error(&|sweep| sweep.base.clean_batch = Some(u32::MAX));
        let said = "--batch 4294967295 is too large for a device of 200 segments; give at most 200";
        assert_eq!(text, said);
        for (paper_spare, most) in [(true, 200), (false, 113)] {
            let with = |reserve: u32| {
                move |sweep: &mut CleanSweep| {
                    sweep.fills = vec![0.6];
                    sweep.base.clean_below = reserve;
                    sweep.base.spare_segments = 36;
                    sweep.paper_spare = paper_spare;
                }
            };
            let text = error(&with(u32::MAX));
            let said = format!(
                "--reserve 4294967295 is too large for 200 segments at fill factor 0.6; give at most {most}"
            );
            assert!(text.starts_with(&said), "{text}");
            let check = |reserve: u32| {
                let mut sweep = sweep();
                with(reserve)(&mut sweep);
                sweep.check()
            };
            assert!(check(most).is_ok() && check(most + 1).is_err());
        }
        let text = error(&|sweep| {
            sweep.policies = vec![PolicyKind::MdcOpt];
            sweep.workloads = vec![trace((0..9_000).map(Op::write).collect(), true)];
        });
        assert!(text.contains("exact update frequency"), "{text}");
        let text = error(&|sweep| {
            sweep.workloads = vec![trace((0..12_000).map(Op::write).collect(), false)];
        });
        assert!(text.contains("12000 pages"), "{text}");
    }
}
