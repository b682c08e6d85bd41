//! sim overlay.

use isobath_lab::clean::PolicyKind;
use isobath_lab::overlay::{self, OverlayParams, OverlayRow};
use isobath_lab::{Sheet, clean_analysis};

use super::sim::{documents, flat, usage, write_csv, written};
use crate::args::{GlobalArgs, SimOverlayArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

pub(crate) fn overlay(
    args: &SimOverlayArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let base = OverlayParams {
        records: args.records,
        record_bytes: args.record_bytes,
        memory: args.memory,
        overlay: args.overlay,
        filter_bits: args.filter_bits,
        policy: args.policy.parse::<PolicyKind>().map_err(usage)?,
        updates_per_record: args.updates,
        lookups_per_update: args.lookups,
        seed: args.seed,
        ..OverlayParams::default()
    };
    let designs = parsed(&args.design)?;
    let laws = parsed(&args.workload)?;
    let threads = args.threads.map(std::num::NonZeroUsize::get);
    let progress = Progress::start(global)?;
    let rows = overlay::sweep(
        &base,
        &designs,
        &laws,
        &flat(&args.space),
        threads,
        &progress,
    )?;
    progress.clear();
    if let Some(path) = &args.csv {
        write_csv(path, |out| clean_analysis::write_csv(&rows, out))?;
    }
    if out.json() {
        documents(&rows, out)?;
    } else {
        print(&rows, out)?;
        written(&[&args.csv], out)?;
    }
    super::sim::refuse_if_empty(rows.iter().map(|row| row.error.as_deref()))
}

fn parsed<T>(words: &[String]) -> Result<Vec<T>, Failure>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let parse = |word: &String| word.parse::<T>().map_err(usage);
    words.iter().map(parse).collect()
}

fn print(rows: &[OverlayRow], out: &mut Output) -> Result<(), Failure> {
    fn number(value: Option<f64>, digits: usize) -> String {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    }
    out.sheet(&Sheet::of(
        rows,
        &[
            ("workload", |row| row.workload.clone()),
            ("design", |row| row.design.clone()),
            ("space", |row| number(Some(row.space_ratio), 2)),
            ("written", |row| number(row.written_ratio, 2)),
            ("cleaned", |row| number(row.written_cleaned_ratio, 2)),
            ("merges read", |row| number(row.merge_read_ratio, 2)),
            ("reads/upsert", |row| number(row.reads_per_update, 2)),
            ("reads/lookup", |row| number(row.reads_per_lookup, 3)),
            ("pages/scan", |row| number(row.reads_per_scan, 2)),
            ("live", |row| number(row.live_ratio, 3)),
            ("parts", |row| number(row.parts_mean, 1)),
            ("filters", |row| number(row.filter_memory_ratio, 4)),
        ],
    ))?;
    for row in rows {
        if let Some(error) = &row.error {
            let (workload, design) = (&row.workload, &row.design);
            out.line(&format!("{workload} {design}: {error}"))?;
        }
    }
    Ok(())
}
