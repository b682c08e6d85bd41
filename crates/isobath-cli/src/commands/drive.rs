//! model and advise.

use std::path::{Path, PathBuf};

use isobath_lab::accuracy::AccuracyPlan;
use isobath_lab::calibrate::{self, Calibration};
use isobath_lab::drive_model::{self, Beyond, Evaluation, ModelRow};
use isobath_lab::{LabError, Monitor, advice_report, model_report};
use serde_json::json;

use crate::args::{AdviseArgs, GlobalArgs, ModelArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

pub(crate) fn model(
    args: &ModelArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    // The parser does not ask for what would contradict a PROFILE.
    if args.accuracy.is_none() && (args.quick || args.resume) {
        let text = "--quick and --resume belong to --accuracy".to_owned();
        return Err(LabError::Request(text).into());
    }
    let inputs = [&args.profile, &args.evaluate];
    keeps_inputs(&[("--html", &args.html)], &inputs)?;
    let evaluation = match (&args.profile, &args.accuracy, &args.evaluate) {
        (_, Some(path), _) => accuracy(args, path, global)?,
        (Some(profile), None, Some(test)) => drive_model::evaluate(profile, test)?,
        (Some(profile), None, None) => return fitted(args, profile, out),
        // The parser asks for one of them.
        (None, None, _) => return Ok(()),
    };
    if let (Some(html), Some(train), Some(test)) = (&args.html, &args.profile, &args.evaluate) {
        let train_profile = drive_model::read_profile(train)?;
        let unseen = drive_model::read_profile(test)?;
        let report = drive_model::fit(train, &train_profile, Some(&unseen))?;
        drive_model::write_whole(html, &model_report::render(&report, &train_profile))?;
    }
    match out.json() {
        true => out.document(&evaluation),
        false => print_evaluation(&evaluation, out),
    }
}

fn accuracy(args: &ModelArgs, path: &Path, global: &GlobalArgs) -> Result<Evaluation, Failure> {
    let plan = AccuracyPlan {
        path: path.to_path_buf(),
        output: args.output.clone(),
        quick: args.quick,
        resume: args.resume,
    };
    let (least, most) = plan.seconds()?;
    // The test file has no name once it is open, so there is nothing to remove.
    let progress = Progress::in_order(global, &[])?;
    progress.say(&format!(
        "This makes a test file in {}, writes and measures it and removes it, for {:.0} to {:.0} minutes.",
        path.display(),
        least / 60.0,
        most / 60.0
    ));
    let outcome = plan.run(&progress);
    progress.clear();
    if outcome.is_err() {
        progress.say(&format!(
            "What was measured is in {}; add --resume to go on.",
            args.output.display()
        ));
    }
    Ok(outcome?)
}

fn fitted(args: &ModelArgs, path: &Path, out: &mut Output) -> Result<(), Failure> {
    let profile = drive_model::read_profile(path)?;
    let report = drive_model::fit(path, &profile, None)?;
    if let Some(html) = &args.html {
        drive_model::write_whole(html, &model_report::render(&report, &profile))?;
    }
    if out.json() {
        return out.document(&json!({
            "profile": path,
            "points_fitted": report.samples.len(),
            "points_measured": profile.points.len(),
            "repeat_noise": profile.repeat_noise,
            "models": report.rows,
            "residuals": report.residuals,
        }));
    }
    let header = [
        "model",
        "R2",
        "held out",
        "p90",
        "largest k",
        "largest I/Os",
    ];
    let beyond = |row: &ModelRow, beyond| {
        let own = row.extrapolation.iter().find(|e| e.beyond == beyond);
        percent(own.and_then(|e| Some(e.error?.median)))
    };
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .filter(|row| row.failure.is_none())
        .map(|row| {
            vec![
                starred(&row.kind.to_string(), row.chosen),
                row.r_squared.map_or_else(dash, |r| format!("{r:.3}")),
                percent(row.held_out.map(|e| e.median)),
                percent(row.held_out.map(|e| e.p90)),
                beyond(row, Beyond::Concurrency),
                beyond(row, Beyond::IoPages),
            ]
        })
        .collect();
    out.table(&header, &rows, true)?;
    for failure in report.rows.iter().filter_map(|row| row.failure.as_ref()) {
        out.paragraph(&format!("not fitted: {failure}"))?;
    }
    let noise = &profile.repeat_noise;
    out.paragraph(&format!(
        "{} of {} points fitted; repeats differ by {} (reads), {} (writes)",
        report.samples.len(),
        profile.points.len(),
        percent(noise.read),
        percent(noise.write)
    ))?;
    if profile.is_fitted_across_levels() {
        out.paragraph(drive_model::ACROSS_LEVELS)?;
    }
    if !profile.complete {
        out.paragraph(
            "the probe was interrupted: `isobath probe --resume` measures what is missing",
        )?;
    }
    if let Some(chosen) = report.rows.iter().find(|row| row.chosen) {
        let rows: Vec<Vec<String>> = chosen
            .coefficients
            .iter()
            .map(|c| {
                let operation = c.operation.map_or_else(dash, |o| o.to_string());
                vec![
                    c.name.to_string(),
                    format!("{:.4}", c.value),
                    c.unit.to_string(),
                    operation,
                ]
            })
            .collect();
        out.line("")?;
        out.line(&format!("the {} model:", chosen.kind))?;
        out.table(&["coefficient", "value", "unit", "for"], &rows, true)?;
    }
    match &args.html {
        Some(html) => out.line(&format!("report: {}", html.display())),
        None => Ok(()),
    }
}

fn print_evaluation(evaluation: &Evaluation, out: &mut Output) -> Result<(), Failure> {
    let header = [
        "model",
        "fitted to",
        "held out, median",
        "as met, median",
        "as met, p90",
        "at training's levels, median",
        "at training's levels, p90",
        "reads, median",
        "writes, median",
    ];
    let rows: Vec<Vec<String>> = evaluation
        .models
        .iter()
        .filter(|m| m.failure.is_none())
        .map(|m| {
            vec![
                starred(&m.kind.to_string(), m.chosen),
                m.trained_on.to_string(),
                percent(m.held_out.map(|e| e.median)),
                percent(m.as_met.map(|e| e.median)),
                percent(m.as_met.map(|e| e.p90)),
                percent(m.unseen.map(|e| e.median)),
                percent(m.unseen.map(|e| e.p90)),
                percent(m.unseen_reads.map(|e| e.median)),
                percent(m.unseen_writes.map(|e| e.median)),
            ]
        })
        .collect();
    out.table(&header, &rows, true)?;
    for failure in evaluation.models.iter().filter_map(|m| m.failure.as_ref()) {
        out.paragraph(&format!("not fitted: {failure}"))?;
    }
    out.paragraph(&format!(
        "trained on {} points, judged on {} of another run as they were met, {} of them at the levels seen in training; repeats \
         within that run differ by {} (reads), {} (writes)",
        evaluation.train_points,
        evaluation.met_points,
        evaluation.test_points,
        percent(evaluation.repeat_noise_read),
        percent(evaluation.repeat_noise_write)
    ))?;
    if let Some(between) = evaluation.between_runs {
        out.paragraph(&format!(
            "{} points that both runs measured differ by {} at the median, {} at the 90th percentile",
            between.point_count,
            percent(Some(between.median)),
            percent(Some(between.p90))
        ))?;
    }
    for warning in &evaluation.warnings {
        out.paragraph(warning)?;
    }
    Ok(())
}

/// Measures Isobath's costs and writes them.
fn calibrate(
    path: &std::path::Path,
    records: u32,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let calibration = Calibration {
        records: records.max(1),
        ..Calibration::default()
    };
    drive_model::writable(path)?;
    let progress = Progress::in_order(global, &[])?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(std::path::Path::new("."));
    let costs = calibrate::calibrate_all(calibration, directory, &progress)?;
    progress.clear();
    calibrate::write_costs(path, &costs)?;
    if out.json() {
        return out.document(&costs);
    }
    let own = &costs.isobath;
    let mut rows = vec![
        ("Isobath: lookup in the pool", own.hit_us),
        ("Isobath: page miss beside its I/O", own.miss_us),
        ("Isobath: update in the pool", own.write_us),
        ("Isobath: record scanned", own.scanned_record_us),
        ("Isobath: wake after a flush", own.synced.wake_us),
        ("Isobath: synced commit", own.synced.commit_us),
        ("Isobath: page written beside its I/O", own.page_written_us),
    ];
    if let Some(rocksdb) = &costs.rocksdb {
        rows.extend([
            ("RocksDB: lookup", rocksdb.lookup_us),
            (
                "RocksDB: block read beside its I/O",
                rocksdb.block_above_io_us,
            ),
            ("RocksDB: write", rocksdb.write_us),
            ("RocksDB: record rewritten", rocksdb.rewritten_record_us),
            ("RocksDB: byte rewritten", rocksdb.rewritten_byte_us),
            ("RocksDB: record scanned", rocksdb.scanned_record_us),
            ("RocksDB: scan that reads ahead", rocksdb.scan_ahead_us),
            ("RocksDB: byte of a long record", rocksdb.write_byte_us),
            ("RocksDB: write that waits", rocksdb.write_wait_us),
            ("RocksDB: interrupts of an I/O", rocksdb.interrupt_us),
            ("RocksDB: wake after a flush", rocksdb.synced.wake_us),
            ("RocksDB: synced commit", rocksdb.synced.commit_us),
        ]);
        rows.extend(
            rocksdb
                .block_us
                .map(|us| ("RocksDB: block read with its I/O", us)),
        );
    }
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(what, us)| vec![(*what).to_owned(), format!("{us:.5}")])
        .collect();
    out.table(&["measured", "µs"], &cells, true)?;
    if let Some(rocksdb) = &costs.rocksdb {
        out.paragraph(&format!(
            "a large read into ordinary memory takes {:.2} times as long as one into huge pages",
            rocksdb.scattered_ratio
        ))?;
    }
    if costs.rocksdb.is_none() {
        out.paragraph("RocksDB is not built in and was not measured: its constants stay those of the reference machine; rebuild with `--features rocksdb`")?;
    }
    out.line(&format!("written: {}", path.display()))
}

/// Predicted rates of RocksDB beside measured ones.
#[cfg(feature = "rocksdb")]
fn rates(
    args: &AdviseArgs,
    profile: &std::path::Path,
    path: &std::path::Path,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    use isobath_lab::rocksdb_rates::{InTurn, RatesPlan, WORKLOADS, rates, spreads};
    let duration = std::time::Duration::from_secs(u64::from(args.seconds));
    let plan = RatesPlan {
        path: path.to_owned(),
        workloads: match args.only.as_slice() {
            [] => WORKLOADS.map(str::to_owned).to_vec(),
            some => some.to_vec(),
        },
        data_bytes: args.bytes.0,
        memory_bytes: args.memory.0,
        clients: args.threads,
        warm_up: duration / 2,
        duration,
        in_turn: args.in_turn.map(|runs| InTurn {
            runs,
            operations: PART_OPERATIONS,
        }),
    };
    let profile = drive_model::read_profile(profile)?;
    let costs = args.calibration.as_deref().map(calibrate::read_costs);
    let costs = costs.transpose()?;
    let source = costs.as_ref().and_then(|costs| costs.rocksdb.as_ref());
    let source = source
        .map_or("the reference machine", |rocksdb| &rocksdb.source)
        .to_owned();
    let progress = Progress::in_order(global, &[])?;
    let rows = rates(&plan, &profile, costs, &progress)?;
    progress.clear();
    if out.json() {
        return out.document(&rows);
    }
    let pair = |predicted: f64, measured: f64, digits: usize| {
        format!("{predicted:.digits$} / {measured:.digits$}")
    };
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.workload.clone(),
                format!("{:.0}", row.predicted_per_s),
                row.predicted_per_s_range
                    .map_or_else(dash, |(least, most)| format!("{least:.0} to {most:.0}")),
                format!("{:.0}", row.measured_per_s),
                format!("{:+.0}%", 100.0 * row.error_ratio),
                row.limited_by.to_owned(),
                pair(
                    row.predicted_reads_per_operation,
                    row.measured_reads_per_operation,
                    2,
                ),
                pair(row.predicted_cpu_us, row.measured_cpu_us, 1),
                pair(row.predicted_written_bytes, row.measured_written_bytes, 0),
                row.drive_reads_per_s
                    .map_or_else(|| "-".to_owned(), |(before, after)| pair(before, after, 0)),
                format!("{:.0}", row.profile_reads_per_s),
            ]
        })
        .collect();
    let columns = [
        "RocksDB",
        "predicted/s",
        "by single calibrations",
        "measured/s",
        "error",
        "limit",
        "reads/op",
        "CPU µs/op",
        "bytes/op",
        "drive's reads/s",
        "profile's",
    ];
    out.table(&columns, &cells, true)?;
    out.line("pairs are predicted / measured; the drive's reads are random ones of 4 KiB before / after each run, and what the profile says")?;
    if let Some(runs) = args.in_turn {
        let text = format!(
            "costs of RocksDB and rates of the drive: medians of {} calibrations with as many bytes, in turn with the runs of each workload",
            runs + 1
        );
        out.line(&text)?;
        let spreads = spreads(&rows).into_iter();
        let spreads = spreads.map(|spread| {
            format!(
                "{} {:.2} to {:.2}",
                spread.what, spread.least_us, spread.most_us
            )
        });
        let spreads: Vec<String> = spreads.collect();
        return out.line(&format!("over all of them, µs: {}", spreads.join(", ")));
    }
    out.line(&format!("CPU constants of RocksDB: measured, {source}"))
}

/// Operations per cost of a calibration in turn with runs: some fifteen seconds with 512 MiB.
#[cfg(feature = "rocksdb")]
const PART_OPERATIONS: u32 = 100_000;

#[cfg(not(feature = "rocksdb"))]
fn rates(
    _: &AdviseArgs,
    _: &std::path::Path,
    _: &std::path::Path,
    _: &GlobalArgs,
    _: &mut Output,
) -> Result<(), Failure> {
    Err(isobath_lab::LabError::NotBuilt {
        what: "RocksDB",
        cure: "install librocksdb-dev and rebuild with `cargo build --release --features rocksdb`",
    }
    .into())
}

pub(crate) fn advise(
    args: &AdviseArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    if let Some(path) = &args.calibrate {
        return calibrate(path, args.records, global, out);
    }
    if let (Some(profile), Some(path)) = (&args.profile, &args.rates) {
        return rates(args, profile, path, global, out);
    }
    let (Some(profile), Some(workload_path)) = (&args.profile, &args.workload) else {
        return Err(Failure::Usage(
            "PROFILE and WORKLOAD.toml are required".into(),
        ));
    };
    let outputs = [
        ("--options-file", &args.options_file),
        ("--html", &args.html),
    ];
    keeps_inputs(
        &outputs,
        &[&args.profile, &args.workload, &args.calibration],
    )?;
    let costs = args.calibration.as_deref().map(calibrate::read_costs);
    let (workload, advice) = drive_model::advise(profile, workload_path, costs.transpose()?)?;
    if let Some(path) = &args.options_file {
        drive_model::write_whole(path, &advice.rocksdb_options_file())?;
    }
    if let Some(path) = &args.html {
        let name = workload_path.display().to_string();
        drive_model::write_whole(path, &advice_report::render(&advice, &name))?;
    }
    if out.json() {
        return out.document(&json!({ "workload": workload, "advice": advice }));
    }
    out.paragraph(&format!(
        "{} fits better: {}",
        advice_report::verdict(&advice),
        advice.structure_because
    ))?;
    let ours = advice_report::predicted(&advice.isobath.predicted);
    let theirs = advice_report::predicted(&advice.rocksdb.predicted);
    let rows: Vec<Vec<String>> = ours
        .into_iter()
        .zip(theirs)
        .map(|((name, ours), (_, theirs))| vec![name.to_owned(), ours, theirs])
        .collect();
    out.table(&["predicted", "Isobath", "RocksDB"], &rows, true)?;
    for (engine, reasons) in [
        ("Isobath", &advice.isobath.reasons),
        ("RocksDB", &advice.rocksdb.reasons),
    ] {
        let rows: Vec<Vec<String>> = reasons
            .iter()
            .map(|r| {
                vec![
                    r.setting.to_owned(),
                    advice_report::readable(r.setting, &r.value),
                ]
            })
            .collect();
        out.line("")?;
        out.table(&[engine, "value"], &rows, false)?;
        // Sentences beside a table: as a column they would make it wider than any terminal.
        for reason in reasons {
            out.paragraph(&format!("{}: {}", reason.setting, reason.because))?;
        }
    }
    out.line("")?;
    let rows: Vec<Vec<String>> = advice_report::constants(&advice)
        .into_iter()
        .map(Vec::from)
        .collect();
    out.table(&["CPU", "µs", "from"], &rows, false)?;
    for assumption in &advice.assumptions {
        out.paragraph(&format!("assumed of {assumption}"))?;
    }
    for warning in &advice.warnings {
        out.paragraph(&format!("note: {warning}"))?;
    }
    if let Some(path) = &args.options_file {
        out.line(&format!("RocksDB OPTIONS: {}", path.display()))?;
    }
    Ok(())
}

/// Refuses an output that would replace an input, or another output.
fn keeps_inputs(
    outputs: &[(&str, &Option<PathBuf>)],
    inputs: &[&Option<PathBuf>],
) -> Result<(), Failure> {
    let mut taken: Vec<PathBuf> = inputs
        .iter()
        .filter_map(|p| Some(isobath_files::resolve(p.as_deref()?)))
        .collect();
    for (option, path) in outputs {
        let Some(path) = path else { continue };
        let place = isobath_files::resolve(path);
        if taken.contains(&place) {
            return Err(Failure::Usage(format!(
                "{option} {} would replace another file of this command; name another one",
                path.display()
            )));
        }
        taken.push(place);
    }
    Ok(())
}

fn starred(name: &str, star: bool) -> String {
    format!("{name}{}", if star { " *" } else { "" })
}

fn dash() -> String {
    "-".to_owned()
}

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, |s| format!("{:.1}%", 100.0 * s))
}
