//! quickstart.

use isobath_lab::Monitor;
use isobath_lab::bench::RunRecord;
use isobath_lab::quickstart::{self, Needs, Plan, Report};

use super::load::skipped;
use crate::args::{GlobalArgs, QuickstartArgs};
use crate::failure::Failure;
use crate::output::{Output, count, counted, size};
use crate::progress::Progress;

pub(crate) fn quickstart(
    args: &QuickstartArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    // Only a store that this run makes may be removed by a second Ctrl-C.
    let ours = if args.keep || args.store.exists() {
        Vec::new()
    } else {
        vec![args.store.clone()]
    };
    let progress = Progress::in_order(global, &ours)?;
    let plan = Plan {
        from: args.from.clone(),
        store: args.store.clone(),
        keep: args.keep,
        cap_bytes: args.cap.0,
        pool_bytes: args.pool.0,
        duration: args.duration,
    };
    let prepared = quickstart::prepare(plan, &progress)?;
    announce(args, prepared.needs(), &progress);
    let report = quickstart::start(prepared, &progress)?;
    progress.clear();
    if out.json() {
        return out.document(&report);
    }
    print_report(args, &report, out)?;
    next_steps(args, out)
}

fn announce(args: &QuickstartArgs, needs: &Needs, progress: &Progress) {
    progress.say(&format!(
        "Storing {} ({}) of {} and {} ({}) in {}.",
        counted(needs.files, "file"),
        size(needs.file_bytes),
        args.from.display(),
        counted(needs.records, "small record"),
        size(needs.record_bytes),
        args.store.display()
    ));
    progress.say(&format!(
        "This needs up to {} of disk space ({} are free) and about {} s. Ctrl-C stops it{}.",
        size(needs.disk_bytes),
        size(needs.free_bytes),
        needs.seconds,
        if args.keep { "" } else { " and cleans up" }
    ));
}

fn print_report(args: &QuickstartArgs, report: &Report, out: &mut Output) -> Result<(), Failure> {
    let row = |name: &str, value: String, note: String| vec![name.to_owned(), value, note];
    let seconds = |s: f64| format!("{s:.1} s");
    let mut rows = vec![
        row(
            "files stored",
            count(report.loaded.records),
            format!(
                "{} in {}",
                size(report.loaded.value_bytes),
                seconds(report.load_s)
            ),
        ),
        row(
            "files verified",
            count(report.verified.files),
            format!(
                "every byte of {}, after reopening, in {}",
                size(report.verified.bytes),
                seconds(report.verify_s)
            ),
        ),
        row(
            "prefix scanned",
            count(report.prefix_records),
            format!(
                "keys below `{}` in {}",
                report.prefix,
                seconds(report.prefix_s)
            ),
        ),
    ];
    let mut left_out = report.loaded.skipped.clone();
    left_out.unreadable = left_out.unreadable.max(report.verified.unreadable);
    if let Some(text) = skipped(&left_out) {
        rows.push(row("files left out", count(left_out.total()), text));
    }
    if report.verified.changed > 0 {
        rows.push(row(
            "files changed",
            count(report.verified.changed),
            "on disk while this ran; not compared".into(),
        ));
    }
    let lookups = report.lookups.record.as_ref();
    if let Some(load) = lookups.and_then(|record| record.load.as_ref()) {
        rows.push(row(
            "records loaded",
            count(load.records),
            format!(
                "{} in {}, ten times the pool of {}",
                size(load.bytes),
                seconds(load.seconds),
                args.pool
            ),
        ));
    }
    if let Some(lookups) = lookups {
        lookup_lines(lookups, &mut rows);
    }
    out.table(&[], &rows, false)
}

/// The lines that compare lookups with the drive.
fn lookup_lines(run: &RunRecord, rows: &mut Vec<Vec<String>>) {
    let mut push = |name: &str, value: String, note: String| {
        rows.push(vec![name.to_owned(), value, note]);
    };
    push(
        "random lookups",
        format!("{}/s", rate(run.operations_per_s)),
        format!(
            "over {:.0} s, {} at a time, half within {:.0} µs, 99% within {:.0} µs",
            run.duration_s, run.clients_count, run.latency_us_p50, run.latency_us_p99
        ),
    );
    push(
        "  reads of the drive",
        format!(
            "{}/s",
            rate(run.device_reads_per_operation * run.operations_per_s)
        ),
        format!("{:.2} per lookup", run.device_reads_per_operation),
    );
    if let (Some((before, after)), Some(ratio)) =
        (run.drive_reads_per_s, run.operations_per_drive_read())
    {
        push(
            "the drive's own limit",
            format!("{}/s", rate((before + after) / 2.0)),
            format!(
                "random 4 KiB reads of the same file: {}/s before, {}/s after",
                rate(before),
                rate(after)
            ),
        );
        push(
            "lookups / limit",
            format!("{ratio:.2}"),
            if ratio > 1.0 {
                "above 1 because the pool answers some".into()
            } else {
                String::new()
            },
        );
    }
    push(
        "CPU per lookup",
        format!("{:.1} µs", run.cpu_us_per_operation),
        run.drive_cpu_us_per_read.map_or_else(String::new, |us| {
            format!("of which the drive's reads alone cost {us:.1} µs each")
        }),
    );
}

/// A rate without false precision.
fn rate(per_second: f64) -> String {
    count(per_second.round().max(0.0) as u64)
}

fn next_steps(args: &QuickstartArgs, out: &mut Output) -> Result<(), Failure> {
    let me = std::env::args()
        .next()
        .unwrap_or_else(|| "isobath".to_owned());
    out.line("")?;
    out.line("Try next:")?;
    if args.keep {
        let store = args.store.display();
        out.line(&format!(
            "  {me} scan -s {store} -t files --keys-only --limit 10"
        ))?;
        out.line(&format!("  {me} check -s {store}"))?;
    } else {
        out.line(&format!(
            "  {me} load -s my.iso --create directory {}",
            args.from.display()
        ))?;
        out.line(&format!("  {me} scan -s my.iso --keys-only --limit 10"))?;
    }
    out.line(&format!("  {me} bench run --help"))
}
