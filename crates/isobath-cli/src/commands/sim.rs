//! sim clean, sim analysis.

use std::path::PathBuf;

use isobath_lab::clean::{
    self, CleanRow, CleanSweep, CleanWorkload, Duplicates, PageSizes, PolicyKind, RunLength,
    SimConfig, TraceFormat, WorkloadKind,
};
use isobath_lab::clean_analysis;
use isobath_lab::clean_compare::{self, Verdict};
use isobath_lab::{LabError, Sheet, SheetColumn, clean_report, drive_model, escape};
use serde::Serialize;

use crate::args::{
    DuplicatesName, Fills, GlobalArgs, PageSizesName, SimAnalysisArgs, SimCleanArgs, Size,
};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

/// The device's size unless one is given.
const DEVICE_BYTES: u64 = 4 << 30;

pub(crate) fn clean(
    args: &SimCleanArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let sweeps = sweeps(args)?;
    // Plans that cannot run are refused before anything runs.
    sweeps.iter().try_for_each(CleanSweep::check)?;
    let progress = Progress::start(global)?;
    let mut rows = Vec::new();
    for sweep in &sweeps {
        rows.extend(sweep.run(&progress)?);
    }
    progress.clear();
    if let Some(path) = &args.csv {
        write_csv(path, |out| clean::write_csv(&rows, out))?;
    }
    if let Some(path) = &args.html {
        drive_model::write_whole(path, &clean_report::html_report(&rows))?;
    }
    let verdicts = match args.compare {
        true => clean_compare::verdicts(&rows),
        false => Vec::new(),
    };
    if out.json() {
        rows.iter().try_for_each(|row| out.document(row))?;
        verdicts.iter().try_for_each(|v| out.document(v))?;
    } else {
        print_rows(&rows, args.compare, out)?;
        if args.repeat > 1 {
            out.paragraph(clean_report::NO_BOUND_OF_REPEATS)?;
        }
        print_verdicts(&verdicts, out)?;
        written(&[&args.csv, &args.html], out)?;
    }
    refuse_if_empty(rows.iter().map(|row| row.error.as_deref()))
}

/// Rows that say why they have no numbers are an answer as long as others have some.
pub(super) fn refuse_if_empty<'a>(
    mut errors: impl Iterator<Item = Option<&'a str>> + Clone,
) -> Result<(), Failure> {
    let first = errors.clone().flatten().next();
    match first.filter(|_| errors.all(|error| error.is_some())) {
        Some(first) => {
            let sentence = format!("no simulation measured anything: {first}");
            Err(LabError::Request(sentence).into())
        }
        None => Ok(()),
    }
}

fn sweeps(args: &SimCleanArgs) -> Result<Vec<CleanSweep>, Failure> {
    let length = match args.updates {
        Some(0) => return Err(Failure::Usage("--updates must be at least 1".into())),
        Some(updates) => RunLength::Updates(updates),
        None if args.writes.is_finite() && args.writes > 0.0 => {
            RunLength::DeviceWrites(args.writes)
        }
        None => return Err(Failure::Usage("--writes must be a number above 0".into())),
    };
    let base = space(args)?;
    let threads = args.threads.map(std::num::NonZeroUsize::get);
    let fills = flat(&args.fill);
    if args.compare {
        let (policies, laws) = (policies(&args.policy)?, workloads(args, &base, &fills)?);
        return Ok(clean_compare::sweeps(
            &base, &policies, &laws, &fills, length, threads,
        ));
    }
    Ok(vec![CleanSweep {
        policies: policies(&args.policy)?,
        workloads: workloads(args, &base, &fills)?,
        fills,
        sort_buffers: args.sort_buffer.clone(),
        base,
        paper_spare: args.spare.is_none(),
        length,
        threads,
    }])
}

/// The device; fill factor and sort buffer are the sweep's.
fn space(args: &SimCleanArgs) -> Result<SimConfig, Failure> {
    let bytes = |name: &str, size: Size| {
        u32::try_from(size.0)
            .ok()
            .filter(|&bytes| bytes > 0)
            .ok_or_else(|| Failure::Usage(format!("--{name} must be 1 byte to 4 GiB, not {size}")))
    };
    let (segment_bytes, page_bytes) = (bytes("segment", args.segment)?, bytes("page", args.page)?);
    let device = args.device.map_or(DEVICE_BYTES, |size| size.0);
    if !device.is_multiple_of(u64::from(segment_bytes)) {
        return Err(Failure::Usage(format!(
            "--device must be a multiple of --segment ({segment_bytes} bytes), not {device} bytes"
        )));
    }
    let segments = u32::try_from(device / u64::from(segment_bytes)).map_err(|_| {
        Failure::Usage(format!(
            "a device of {device} bytes has too many segments of {segment_bytes} bytes; use larger ones"
        ))
    })?;
    Ok(SimConfig {
        segment_bytes,
        page_bytes,
        clean_below: args.reserve,
        clean_batch: args.batch,
        open_segments_max: args.open_segments.map(std::num::NonZeroU32::get),
        spare_segments: args.spare.unwrap_or(0),
        matches_reserve: args.spare.is_none(),
        duplicates: match args.duplicates {
            DuplicatesName::Written => Duplicates::Written,
            DuplicatesName::Absorbed => Duplicates::Absorbed,
        },
        page_sizes: match args.page_sizes {
            PageSizesName::Fixed => PageSizes::Fixed,
            PageSizesName::Spread => PageSizes::Spread,
        },
        seed: args.seed,
        ..SimConfig::paper(segments, 0.8)
    })
}

pub(super) fn flat(fills: &[Fills]) -> Vec<f64> {
    fills.iter().flat_map(|fills| fills.0.clone()).collect()
}

fn policies(names: &[String]) -> Result<Vec<PolicyKind>, Failure> {
    let mut policies = Vec::new();
    for name in names {
        if name == "all" {
            policies.extend(PolicyKind::ALL);
        } else {
            policies.push(name.parse::<PolicyKind>().map_err(usage)?);
        }
    }
    Ok(policies)
}

fn law(text: &str) -> Result<WorkloadKind, Failure> {
    text.parse::<WorkloadKind>().map_err(usage)
}

fn format(name: &str) -> Result<TraceFormat, Failure> {
    name.parse::<TraceFormat>().map_err(usage)
}

pub(super) fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::Usage(error.to_string())
}

fn workloads(
    args: &SimCleanArgs,
    base: &SimConfig,
    fills: &[f64],
) -> Result<Vec<CleanWorkload>, Failure> {
    let mut workloads = Vec::new();
    for text in &args.workload {
        workloads.push(CleanWorkload::Synthetic(law(text)?));
    }
    if args.repeat == 0 {
        return Err(Failure::Usage("--repeat must be at least 1".into()));
    }
    let format = format(&args.trace_format)?;
    let smallest = fills.iter().copied().fold(1.0, f64::min);
    let device_pages = args.device.map(|_| {
        let space = SimConfig {
            fill: smallest,
            ..base.clone()
        };
        u64::from(space.user_pages())
    });
    for path in &args.trace {
        let mut input =
            clean::read_trace_file(path, format, base.page_bytes, device_pages, args.repeat)?;
        // Of files of one name in several directories, rows name the directory, too.
        let named = args
            .trace
            .iter()
            .filter(|other| other.file_name() == path.file_name());
        if named.count() > 1 {
            input.name = path.display().to_string();
        }
        workloads.push(CleanWorkload::Trace(input));
    }
    if workloads.is_empty() {
        workloads.push(CleanWorkload::Synthetic(WorkloadKind::Uniform));
    }
    Ok(workloads)
}

/// Prints the results of a comparison; a goal counts as reached only if it is under both terms.
fn print_verdicts(verdicts: &[Verdict], out: &mut Output) -> Result<(), Failure> {
    if verdicts.is_empty() {
        return Ok(());
    }
    fn percent(gain: Option<f64>) -> String {
        gain.map_or_else(|| "-".to_owned(), |gain| format!("{:.1}%", 100.0 * gain))
    }
    out.line("")?;
    out.sheet(&Sheet::of(
        verdicts,
        &[
            ("workload", |v| escape(v.workload.as_bytes())),
            ("F", |v| v.fill_ratio.to_string()),
            ("life-table below", |v| v.rival.clone()),
            ("as an engine", |v| percent(v.gain_as_engine_ratio)),
            ("as the paper", |v| percent(v.gain_as_paper_ratio)),
            ("goal", |v| percent(v.goal_ratio)),
            ("reached", |v| match v.goal_reached {
                Some(true) => "under both".to_owned(),
                Some(false) => "no".to_owned(),
                None => "-".to_owned(),
            }),
        ],
    ))
}

/// The note that rows of several policies are unequal unless one batch is given.
const OWN_BATCHES: &str = "Each policy cleans a batch of its own choice at a time: one segment for multi-log, 16 for life-table, 64 for the others. --batch gives all of them the same, and --compare compares on equal terms.";

fn print_rows(rows: &[CleanRow], compared: bool, out: &mut Output) -> Result<(), Failure> {
    let buffers = !compared
        && rows
            .iter()
            .any(|row| row.sort_buffer_segments != rows[0].sort_buffer_segments);
    fn number(value: f64, digits: usize) -> String {
        match value.is_nan() {
            true => "-".to_owned(),
            false => format!("{value:.digits$}"),
        }
    }
    let mut columns: Vec<SheetColumn<CleanRow>> = vec![
        ("workload", |row| escape(row.workload.as_bytes())),
        ("F", |row| row.fill_ratio.to_string()),
        ("policy", |row| row.policy.clone()),
    ];
    if compared {
        columns.insert(
            0,
            ("cleans as", |row| match row.duplicates_absorbed {
                true => "an engine".to_owned(),
                false => "the paper".to_owned(),
            }),
        );
    }
    if buffers {
        columns.push(("sort buffer", |row| row.sort_buffer_segments.to_string()));
    }
    let measured: [SheetColumn<CleanRow>; 8] = [
        ("Wamp steady", |row| number(row.wamp_steady_ratio, 4)),
        ("whole", |row| number(row.wamp_whole_ratio, 4)),
        ("bound", |row| {
            number(row.wamp_bound_ratio.unwrap_or(f64::NAN), 4)
        }),
        ("E", |row| number(row.emptiness_steady_ratio, 3)),
        ("emptiness 0-100%", |row| {
            let spread = row.emptiness_histogram_count.iter();
            let spread: Vec<f64> = spread.map(|&n| n as f64).collect();
            sparkline(&binned(&spread, false))
        }),
        ("over time", |row| {
            sparkline(&binned(&row.wamp_series_ratio, true))
        }),
        ("bytes/page", |row| row.history_bytes_per_page.to_string()),
        ("M writes/s", |row| number(row.page_writes_per_s / 1e6, 1)),
    ];
    columns.extend(measured);
    out.sheet(&Sheet::of(rows, &columns))?;
    if rows.iter().any(|row| row.wamp_bound_ratio.is_some()) {
        out.paragraph(clean_report::BOUND_LIMITS)?;
    }
    let differ = rows.iter().any(|row| row.policy != rows[0].policy);
    if differ && rows.iter().any(|row| row.clean_batch_segments.is_none()) {
        out.paragraph(OWN_BATCHES)?;
    }
    for row in rows {
        if let Some(error) = &row.error {
            let (workload, fill) = (escape(row.workload.as_bytes()), row.fill_ratio);
            out.line(&format!("{workload} F={fill}: {error}"))?;
        }
    }
    Ok(())
}

/// Ten bins of consecutive values: their means, or their sums.
fn binned(values: &[f64], means: bool) -> Vec<f64> {
    let width = values.len().div_ceil(10).max(1);
    let total = |part: &[f64]| part.iter().sum::<f64>();
    let value = |part: &[f64]| total(part) / if means { part.len() as f64 } else { 1.0 };
    values.chunks(width).take(10).map(value).collect()
}

/// A row of bars, the highest one full.
fn sparkline(values: &[f64]) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let bar = |value: &f64| BARS[((value / top * 8.0).ceil() as usize).min(8)];
    let line: String = values.iter().map(bar).collect();
    format!("[{line}]")
}

pub(crate) fn analysis(args: &SimAnalysisArgs, out: &mut Output) -> Result<(), Failure> {
    let fills = flat(&args.fill);
    if args.workload.is_empty() && args.trace.is_empty() {
        return tables(args, &fills, out);
    }
    let fills = if fills.is_empty() { vec![0.8] } else { fills };
    let page = u32::try_from(args.page.0)
        .map_err(|_| Failure::Usage(format!("--page must be below 4 GiB, not {}", args.page)))?;
    let mut rows = Vec::new();
    for text in &args.workload {
        rows.extend(clean_analysis::law_bounds(law(text)?, args.pages, &fills)?);
    }
    let format = format(&args.trace_format)?;
    for path in &args.trace {
        rows.extend(clean_analysis::trace_bounds(path, format, page, &fills)?);
    }
    outputs(args, &rows, &clean_report::bounds_report(&rows))?;
    if out.json() {
        return documents(&rows, out);
    }
    out.sheet(&clean_analysis::bounds_sheet(&rows))?;
    out.paragraph(clean_report::BOUND_LIMITS)?;
    written(&[&args.csv, &args.html], out)
}

fn tables(args: &SimAnalysisArgs, fills: &[f64], out: &mut Output) -> Result<(), Failure> {
    let first = clean_analysis::emptiness_rows(fills)?;
    let second = clean_analysis::split_rows();
    outputs(args, &first, &clean_report::html_report(&[]))?;
    if out.json() {
        documents(&first, out)?;
        return documents(&second, out);
    }
    out.paragraph("Table 1: emptiness E of segments when they are cleaned, uniform updates")?;
    out.sheet(&clean_analysis::emptiness_sheet(&first))?;
    out.line("")?;
    out.paragraph("Table 2: least cost at F = 0.8 with hot and cold data apart (the paper's 4.80 and 5.46 are slips)")?;
    out.sheet(&clean_analysis::split_sheet(&second))?;
    written(&[&args.csv, &args.html], out)
}

fn outputs(args: &SimAnalysisArgs, rows: &[impl Serialize], html: &str) -> Result<(), Failure> {
    if let Some(path) = &args.csv {
        write_csv(path, |out| clean_analysis::write_csv(rows, out))?;
    }
    match &args.html {
        Some(path) => Ok(drive_model::write_whole(path, html)?),
        None => Ok(()),
    }
}

pub(super) fn documents(rows: &[impl Serialize], out: &mut Output) -> Result<(), Failure> {
    rows.iter().try_for_each(|row| out.document(row))
}

pub(super) fn write_csv(
    path: &std::path::Path,
    write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    write(&mut bytes).map_err(LabError::io("write", path))?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(drive_model::write_whole(path, &text)?)
}

pub(super) fn written(paths: &[&Option<PathBuf>], out: &mut Output) -> Result<(), Failure> {
    paths
        .iter()
        .filter_map(|path| path.as_ref())
        .try_for_each(|path| out.line(&format!("written: {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_the_shape() {
        assert_eq!(sparkline(&[0.0, 0.5, 1.0]), "[ ▄█]");
        assert_eq!(sparkline(&[]), "[]");
        assert_eq!(binned(&[1.0; 100], true), vec![1.0; 10]);
        assert_eq!(binned(&[1.0; 100], false), vec![10.0; 10]);
        assert_eq!(binned(&[1.0; 3], true).len(), 3);
    }
}
