//! model and advise.

use std::path::{Path, PathBuf};

use isobath_lab::accuracy::AccuracyPlan;
use isobath_lab::calibrate::{self, Calibration};
use isobath_lab::drive_model::{self, Beyond, Evaluation, JudgedModel, ModelRow};
use isobath_lab::{LabError, Monitor, Sheet, advice_report, model_report};
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
    fn beyond(row: &ModelRow, beyond: Beyond) -> String {
        let own = row.extrapolation.iter().find(|e| e.beyond == beyond);
        percent(own.and_then(|e| Some(e.error?.median)))
    }
    let fitted = report.rows.iter().filter(|row| row.failure.is_none());
    let fitted: Vec<&ModelRow> = fitted.collect();
    out.sheet(&Sheet::of(
        &fitted,
        &[
            ("model", |row| starred(&row.kind.to_string(), row.chosen)),
            ("R2", |row| {
                row.r_squared.map_or_else(dash, |r| format!("{r:.3}"))
            }),
            ("held out", |row| percent(row.held_out.map(|e| e.median))),
            ("p90", |row| percent(row.held_out.map(|e| e.p90))),
            ("largest k", |row| beyond(row, Beyond::Concurrency)),
            ("largest I/Os", |row| beyond(row, Beyond::IoPages)),
        ],
    ))?;
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
        out.line("")?;
        out.line(&format!("the {} model:", chosen.kind))?;
        out.sheet(&Sheet::of(
            &chosen.coefficients,
            &[
                ("coefficient", |c| c.name.to_string()),
                ("value", |c| format!("{:.4}", c.value)),
                ("unit", |c| c.unit.to_string()),
                ("for", |c| c.operation.map_or_else(dash, |o| o.to_string())),
            ],
        ))?;
    }
    match &args.html {
        Some(html) => out.line(&format!("report: {}", html.display())),
        None => Ok(()),
    }
}

fn print_evaluation(evaluation: &Evaluation, out: &mut Output) -> Result<(), Failure> {
    let judged = evaluation.models.iter().filter(|m| m.failure.is_none());
    let judged: Vec<&JudgedModel> = judged.collect();
    out.sheet(&Sheet::of(
        &judged,
        &[
            ("model", |m| starred(&m.kind.to_string(), m.chosen)),
            ("fitted to", |m| m.trained_on.to_string()),
            ("held out, median", |m| {
                percent(m.held_out.map(|e| e.median))
            }),
            ("as met, median", |m| percent(m.as_met.map(|e| e.median))),
            ("as met, p90", |m| percent(m.as_met.map(|e| e.p90))),
            ("at training's levels, median", |m| {
                percent(m.unseen.map(|e| e.median))
            }),
            ("at training's levels, p90", |m| {
                percent(m.unseen.map(|e| e.p90))
            }),
            ("reads, median", |m| {
                percent(m.unseen_reads.map(|e| e.median))
            }),
            ("writes, median", |m| {
                percent(m.unseen_writes.map(|e| e.median))
            }),
        ],
    ))?;
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
    let calibration = Calibration::of(records);
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
        return out.document(&json!({ "isobath": costs }));
    }
    let rows = [
        ("lookup in the pool", costs.hit_us),
        ("page miss beside its I/O", costs.miss_us),
        ("update in the pool", costs.write_us),
        ("record scanned", costs.scanned_record_us),
        ("wake after a flush", costs.synced.wake_us),
        ("synced commit", costs.synced.commit_us),
        ("page written beside its I/O", costs.page_written_us),
    ];
    let rows = rows.map(|(what, us)| (what, format!("{us:.5}")));
    out.facts(&["measured", "µs"], rows, true)?;
    out.line(&format!("written: {}", path.display()))
}

pub(crate) fn advise(
    args: &AdviseArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    if let Some(path) = &args.calibrate {
        return calibrate(path, args.records, global, out);
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
        let value = |setting, value| advice_report::readable(setting, value);
        let rows = reasons
            .iter()
            .map(|r| (r.setting, value(r.setting, &r.value)));
        out.line("")?;
        out.facts(&[engine, "value"], rows, false)?;
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
