//! Measurements of benchmark runs, as tables and sentences.

use isobath_lab::Sheet;
use isobath_lab::bench::{self, LoadRow, Medium, Pitfall, RunRecord, Search, Verdict};

use crate::failure::Failure;
use crate::output::{Output, count, counted, size};

pub(super) fn print(records: &[RunRecord], out: &mut Output) -> Result<(), Failure> {
    if out.json() {
        return records.iter().try_for_each(|record| out.document(record));
    }
    if let [record] = records
        && let Some(load) = &record.load
    {
        print_load(load, out)?;
    }
    out.sheet(&Sheet::of(
        records,
        &[
            ("engine", RunRecord::side),
            ("data", |r| size(r.data_bytes)),
            ("op/s", |r| count(r.operations_per_s.round() as u64)),
            ("steady", |r| {
                let is_steady = r.steady_from.is_some();
                if is_steady { "yes" } else { "no" }.to_owned()
            }),
            ("p99 µs", |r| format!("{:.0}", r.latency_us_p99)),
            ("CPU µs/op", |r| format!("{:.2}", r.cpu_us_per_operation)),
            ("of it the benchmark", |r| {
                let share = r.harness_share();
                share.map_or("–".to_owned(), |share| format!("{:.1}%", share * 100.0))
            }),
            ("WA-A", |r| or_unknown(r.wa_a)),
            ("WA-D", |r| or_unknown(r.wa_d)),
            ("space max", |r| or_unknown(r.space_amplification_max)),
        ],
    ))?;
    if let [record] = records {
        print_calls(record, out)?;
    }
    print_drive_limits(records, out)?;
    print_components(records, out)?;
    for record in records {
        let Some(tpcc) = &record.tpcc else { continue };
        let rates = record.calls.iter();
        let rates: Vec<String> = rates
            .map(|calls| format!("{} {:.0}/s", calls.operation, calls.operations_per_s))
            .collect();
        out.paragraph(&format!(
            "TPC-C-derived, not TPC-C: {}; {} conflicts, {} rollbacks; consistency conditions 1 to 4 and the indexes of {}: {}",
            rates.join(", "),
            count(tpcc.conflicts_count),
            count(tpcc.rolled_back_count),
            counted(tpcc.warehouses_checked, "warehouse"),
            match tpcc.violations.len() {
                0 => "kept".to_owned(),
                violations => format!("{violations} violated under the least isolation"),
            }
        ))?;
    }
    if records.iter().any(RunRecord::is_modelled) {
        out.paragraph(
            "rates and latencies on a simulated SSD are modelled; WA-A and WA-D are counts",
        )?;
    }
    let mut shown: Vec<String> = Vec::new();
    for record in records {
        let side = record.side();
        if shown.contains(&side) {
            continue;
        }
        let settings = record.settings.iter();
        let settings: Vec<String> = settings
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        out.paragraph(&format!("{side}: {}", settings.join(", ")))?;
        if let Some(search) = &record.search {
            print_search(&side, search, out)?;
        }
        shown.push(side);
    }
    print_verdicts(&bench::verdicts(records), out)?;
    print_steady(records, out)?;
    print_sampling(records, out)
}

/// With two digits behind the point, or that it is unknown.
pub(super) fn or_unknown(value: Option<f64>) -> String {
    value.map_or("unknown".to_owned(), |value| format!("{value:.2}"))
}

/// Prints what one run says of each kind of operation, of reads and of space.
fn print_calls(record: &RunRecord, out: &mut Output) -> Result<(), Failure> {
    out.sheet(&Sheet::of(
        &record.calls,
        &[
            ("operation", |calls| calls.operation.clone()),
            ("op/s", |calls| count(calls.operations_per_s.round() as u64)),
            ("p50 µs", |calls| format!("{:.0}", calls.latency_us_p50)),
            ("p99 µs", |calls| format!("{:.0}", calls.latency_us_p99)),
            ("p99.9 µs", |calls| format!("{:.0}", calls.latency_us_p999)),
        ],
    ))?;
    let ratio = record.operations_per_drive_read();
    let ratio = ratio.map(|ratio| format!("; operations / drive's limit of reads: {ratio:.2}"));
    out.paragraph(&format!(
        "{:.2} reads of the device per operation{}",
        record.device_reads_per_operation,
        ratio.unwrap_or_default()
    ))?;
    let space = record.space.as_ref();
    if let Some(space) = space.filter(|space| space.page_writes_per_update > 0.0) {
        out.paragraph(&format!(
            "pages written per update: {:.3}; the cleaner moved {:.3} pages for each (Wamp), at fill {:.3}; longest stall {:.0} ms",
            space.page_writes_per_update, space.wamp_ratio, space.fill_ratio, space.stall_ms_max
        ))?;
    }
    match &record.setting.medium {
        Medium::MemoryFiles { name } => out.paragraph(&format!(
            "the data are on {name}, which is memory: this says nothing of a drive"
        )),
        _ => Ok(()),
    }
}

pub(super) fn print_load(load: &LoadRow, out: &mut Output) -> Result<(), Failure> {
    out.paragraph(&format!(
        "loaded {} ({}) in {:.1} s: {}/s, {:.2} µs of CPU per record, {} on disk",
        counted(load.records, "record"),
        size(load.bytes),
        load.seconds,
        size((load.megabytes_per_s * 1e6) as u64),
        load.cpu_us_per_record,
        size(load.space_bytes)
    ))
}

/// How latencies were taken, and where the keys came from, of rows where that is not each call and
/// its own draw.
pub(super) fn print_sampling(records: &[RunRecord], out: &mut Output) -> Result<(), Failure> {
    print_lines(records, RunRecord::sampling_line, out)
}

/// Prints the parameters and the series by which steadiness was judged.
pub(super) fn print_steady(records: &[RunRecord], out: &mut Output) -> Result<(), Failure> {
    print_lines(records, RunRecord::steady_line, out)
}

fn print_lines(
    records: &[RunRecord],
    of: fn(&RunRecord) -> Option<String>,
    out: &mut Output,
) -> Result<(), Failure> {
    let mut said: Vec<String> = Vec::new();
    for record in records {
        if let Some(line) = of(record).filter(|line| !said.contains(line)) {
            out.paragraph(&line)?;
            said.push(line);
        }
    }
    Ok(())
}

/// Prints the CPU time by component, of runs that were sampled.
fn print_components(records: &[RunRecord], out: &mut Output) -> Result<(), Failure> {
    let sampled: Vec<&RunRecord> = records.iter().filter(|r| r.cpu_sampled).collect();
    if sampled.is_empty() {
        return Ok(());
    }
    let sides: Vec<String> = sampled
        .iter()
        .map(|r| format!("{}, {}", r.side(), size(r.data_bytes)))
        .collect();
    let header: Vec<&str> = ["CPU µs per operation"]
        .into_iter()
        .chain(sides.iter().map(String::as_str))
        .collect();
    out.table(&header, &bench::components(&sampled), true)
}

/// Prints the drive's own limit for each run that has it.
fn print_drive_limits(records: &[RunRecord], out: &mut Output) -> Result<(), Failure> {
    fn limit(record: &RunRecord, at: usize) -> String {
        record.drive_limits()[at].map_or("–".to_owned(), |(before, after)| {
            let [before, after] = [before, after].map(|rate| count(rate.round() as u64));
            format!("{before} / {after}")
        })
    }
    let rows = records.iter();
    let rows = rows.filter(|record| record.drive_limits().iter().any(Option::is_some));
    let rows: Vec<&RunRecord> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    out.paragraph("the drive's own limit, before / after each run")?;
    out.sheet(&Sheet::of(
        &rows,
        &[
            ("engine", |record| record.side()),
            ("data", |record| size(record.data_bytes)),
            ("reads/s", |record| limit(record, 0)),
            ("writes/s", |record| limit(record, 1)),
            ("flushed", |record| limit(record, 2)),
            ("sequential MB/s", |record| limit(record, 3)),
            ("flushed", |record| limit(record, 4)),
        ],
    ))
}

fn print_search(side: &str, search: &Search, out: &mut Output) -> Result<(), Failure> {
    out.paragraph(&format!(
        "{side}: {} of {} s each, drawn with seed {}; the fastest was measured",
        counted(search.trials.len() as u64, "trial"),
        search.trial_s,
        search.seed
    ))?;
    let trials = search.trials.iter().enumerate();
    let rows: Vec<Vec<String>> = trials
        .map(|(at, trial)| {
            vec![
                trial.text(),
                count(trial.operations_per_s.round() as u64),
                if at == search.best { "fastest" } else { "" }.to_owned(),
            ]
        })
        .collect();
    out.table(&["settings", "op/s", ""], &rows, true)
}

fn print_verdicts(verdicts: &[(Pitfall, Verdict)], out: &mut Output) -> Result<(), Failure> {
    let rows = verdicts.iter();
    let rows = rows.map(|(pitfall, verdict)| (pitfall.name(), verdict.to_string()));
    out.facts(&[], rows, false)?;
    if !bench::has_headline(verdicts) {
        return out.paragraph(
            "no headline number: a pitfall was committed; the rows describe these runs only",
        );
    }
    let has_unknown = verdicts.iter().any(|(_, v)| v.is_unknown());
    match has_unknown {
        true => out.line("quote these numbers only as ratios within this run"),
        false => Ok(()),
    }
}
