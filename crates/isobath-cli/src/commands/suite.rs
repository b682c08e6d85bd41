//! bench campaign: the named rows of a campaign.

use std::path::Path;

use isobath_lab::bench::{self, Campaign, EngineSummary, RowSummary, Suite, SuiteChoice, Workload};
use isobath_lab::drive_model::write_whole;
use isobath_lab::load::InputFile;
use isobath_lab::{LabError, Monitor, Sheet, Silent};

use super::campaign::{FailedRun, child, make_region, run_in_order, tune_all, virtual_ssd};
use super::records::{or_unknown, print_sampling, print_steady};
use crate::args::{CampaignArgs, GlobalArgs};
use crate::failure::Failure;
use crate::output::{Output, count, counted};
use crate::progress::Progress;

const REPORT: &str = "report.html";

/// Runs the rows; whether every run ended well.
pub(crate) fn campaign(
    args: &CampaignArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<bool, Failure> {
    let suite = suite(&args.campaign)?;
    let Some(directory) = args.out.as_deref().filter(|_| !args.list) else {
        return list(&suite, args, out).map(|()| true);
    };
    let choice = choice(args, directory)?;
    let mut cases = suite.cases(&choice)?;
    let mut campaign = Campaign::open(directory)?.with_child(child()?);
    if let Some(place) = &args.directory {
        std::fs::create_dir_all(place).map_err(LabError::io("make", place))?;
    }
    let progress = Progress::in_order(global, &[])?;
    let region_bytes = args.region_bytes.map(|bytes| bytes.0);
    make_region(args.region.as_deref(), region_bytes, &cases, &progress)?;
    tune_all(
        &mut campaign,
        &mut cases,
        &args.search,
        args.seed,
        &progress,
    )?;
    let (mut records, mut failed) = run_in_order(&mut campaign, &cases, true, out, &progress)?;
    let at_half_rate = match args.half_rate {
        true => bench::at_half_rate(&cases, &records),
        false => Vec::new(),
    };
    if !at_half_rate.is_empty() {
        progress.say("once more at half of the slowest engine's throughput");
        let (more, more_failed) = run_in_order(&mut campaign, &at_half_rate, true, out, &progress)?;
        records.extend(more);
        failed.extend(more_failed);
    }
    progress.clear();
    bench::write_csv(directory, &records)?;
    bench::write_summary(directory, &records)?;
    write_whole(
        &directory.join(REPORT),
        &bench::html(&records, &[], &campaign.failed()),
    )?;
    let summaries = bench::summarize(&records);
    if out.json() {
        summaries.iter().try_for_each(|row| out.document(row))?;
    } else {
        print(&summaries, out)?;
        print_steady(&records, out)?;
        print_sampling(&records, out)?;
        let report = directory.join(REPORT);
        out.paragraph(&format!(
            "{} in {}; the report is {}",
            counted(records.len() as u64, "run"),
            directory.display(),
            report.display()
        ))?;
    }
    failed.iter().for_each(FailedRun::tell);
    Ok(failed.is_empty())
}

/// The campaign of this name, or in this file.
fn suite(name: &str) -> Result<Suite, Failure> {
    if name == "first" {
        return Ok(Suite::first()?);
    }
    if !name.ends_with(".toml") {
        return Err(Failure::Usage(format!(
            "`{name}` is no campaign; there is `first`, and files that end in .toml"
        )));
    }
    let path = Path::new(name);
    let text = InputFile::text(path, &Silent)?;
    Ok(Suite::from_toml(name, &text)?)
}

fn choice(args: &CampaignArgs, directory: &Path) -> Result<SuiteChoice, Failure> {
    Ok(SuiteChoice {
        full: args.full,
        engines: (!args.engines.is_empty()).then(|| args.engines.clone()),
        rows: args.rows.clone(),
        duration: args.duration,
        warm_up: args.warm_up,
        data_bytes: args.bytes.map(|bytes| bytes.0),
        sizes: args.sizes.clone(),
        repeats: args.repeats.get(),
        block_align: args.block_align,
        directory: args.directory.as_deref().unwrap_or(directory).to_owned(),
        region: args.region.clone(),
        virtual_ssd: args.vssd.as_deref().map(virtual_ssd).transpose()?,
        measures_drive: !args.no_drive,
        seed: args.seed,
    })
}

fn list(suite: &Suite, args: &CampaignArgs, out: &mut Output) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for row in suite.chosen(&args.rows)? {
        rows.push((row, Workload::named(&row.workload)?));
    }
    out.texts(&Sheet::of(
        &rows,
        &[
            ("row", |(row, _)| row.name.clone()),
            ("data", |(row, _)| row.data.name().to_owned()),
            ("log", |(row, _)| row.log.name().to_owned()),
            ("workload", |(_, workload)| workload.about.clone()),
        ],
    ))
}

/// Throughput of each row, latencies of the rows at half rate, and what each row's numbers may be
/// used for.
fn print(summaries: &[RowSummary], out: &mut Output) -> Result<(), Failure> {
    let full = summaries.iter().filter(|row| row.rate_per_s.is_none());
    let full: Vec<&RowSummary> = full.collect();
    print_throughput(&full, out)?;
    print_amplification(&full, out)?;
    print_stalls(summaries, out)?;
    fn or_none(names: String) -> String {
        match names.is_empty() {
            true => "none".to_owned(),
            false => names,
        }
    }
    out.paragraph(
        "a row that commits a pitfall has no headline number; one with unknowns is quoted only as ratios within its run",
    )?;
    let pitfalls = Sheet::of(
        summaries,
        &[
            ("row", |row| row.row.clone()),
            ("sizes", |row| row.sizes_count.to_string()),
            ("pitfalls committed", |row| or_none(row.violated_names())),
            ("unknown here", |row| or_none(row.unknown_names())),
        ],
    );
    out.texts(&pitfalls)?;
    print_repeats(&full, out)
}

/// An engine in a row.
type Line<'s> = (&'s RowSummary, &'s EngineSummary);

fn lines_of<'s>(
    summaries: impl IntoIterator<Item = &'s RowSummary>,
    may: fn(&Line<'_>) -> bool,
) -> Vec<Line<'s>> {
    let rows = summaries.into_iter();
    let lines = rows.flat_map(|row| row.engines.iter().map(move |engine| (row, engine)));
    lines.filter(may).collect()
}

/// Latencies of the rows that were offered one rate for all engines, if there are any.
pub(super) fn print_stalls(summaries: &[RowSummary], out: &mut Output) -> Result<(), Failure> {
    let lines = lines_of(summaries, |(row, _)| row.rate_per_s.is_some());
    if lines.is_empty() {
        return Ok(());
    }
    out.paragraph(
        "at half of the slowest engine's throughput, offered to all; latencies count from when an operation was due",
    )?;
    out.sheet(&Sheet::of(
        &lines,
        &[
            ("row", |(row, _)| row.row.clone()),
            ("engine", |(_, engine)| engine.engine.clone()),
            ("offered/s", |(row, _)| {
                count(row.rate_per_s.unwrap_or_default().round() as u64)
            }),
            ("op/s", |(_, engine)| {
                count(engine.operations_per_s.round() as u64)
            }),
            ("p99 µs", |(_, engine)| {
                format!("{:.0}", engine.latency_us_p99)
            }),
            ("p99.9 µs", |(_, engine)| {
                format!("{:.0}", engine.latency_us_p999)
            }),
            ("longest stall ms", |(_, engine)| {
                format!("{:.1}", engine.latency_us_max / 1e3)
            }),
        ],
    ))
}

/// One line per row: each engine's throughput, and the first engine's over it.
fn print_throughput(summaries: &[&RowSummary], out: &mut Output) -> Result<(), Failure> {
    let mut engines: Vec<&str> = Vec::new();
    for engine in summaries.iter().flat_map(|row| row.engines.iter()) {
        if !engines.contains(&engine.engine.as_str()) {
            engines.push(&engine.engine);
        }
    }
    let mut header = vec!["row".to_owned()];
    for (at, engine) in engines.iter().enumerate() {
        header.push(format!("{engine} op/s"));
        if at > 0 {
            header.push("first ÷ it".to_owned());
        }
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let line = |row: &&RowSummary| {
        let mut cells = vec![row.row.clone()];
        for (at, name) in engines.iter().enumerate() {
            let engine = row.engines.iter().find(|engine| engine.engine == *name);
            cells.push(engine.map_or("–".to_owned(), |engine| {
                count(engine.operations_per_s.round() as u64)
            }));
            if at > 0 {
                let ratio = engine.and_then(|engine| engine.first_over_this);
                cells.push(ratio.map_or("–".to_owned(), |ratio| format!("{:.2}", ratio.ratio)));
            }
        }
        cells
    };
    out.table(
        &header,
        &summaries.iter().map(line).collect::<Vec<_>>(),
        true,
    )?;
    Ok(())
}

/// Prints the engines' writes to drives that count them, if there are any.
fn print_amplification(summaries: &[&RowSummary], out: &mut Output) -> Result<(), Failure> {
    let lines = lines_of(summaries.iter().copied(), |(_, engine)| {
        engine.wa_d.is_some()
    });
    if lines.is_empty() {
        return Ok(());
    }
    out.paragraph(
        "on drives that count flash writes, the largest of all sizes and repeats; rates of simulated and virtual SSDs are no drive's, \
         and what their flash would allow is modelled",
    )?;
    out.sheet(&Sheet::of(
        &lines,
        &[
            ("row", |(row, _)| row.row.clone()),
            ("engine", |(_, engine)| engine.engine.clone()),
            ("WA-A", |(_, engine)| or_unknown(engine.wa_a)),
            ("WA-D", |(_, engine)| or_unknown(engine.wa_d)),
            ("both", |(_, engine)| {
                or_unknown(engine.wa_a.zip(engine.wa_d).map(|(a, d)| a * d))
            }),
            ("space max", |(_, engine)| {
                or_unknown(engine.space_amplification_max)
            }),
            ("modelled op/s", |(_, engine)| {
                let modelled = engine.modelled_operations_per_s;
                modelled.map_or("–".to_owned(), |rate| count(rate.round() as u64))
            }),
        ],
    ))
}

fn print_repeats(summaries: &[&RowSummary], out: &mut Output) -> Result<(), Failure> {
    let is_judged = |row: &&RowSummary| {
        let repeats = row.engines.iter().map(|engine| engine.repeats_count);
        repeats.min().unwrap_or(0) >= bench::REPEATS_MIN
    };
    match summaries.iter().all(is_judged) {
        true => Ok(()),
        false => out.paragraph(
            "with fewer than 5 repeats nothing is said of a ratio; the verdicts on each row stand in the report",
        ),
    }
}
