//! quickstart and bench.

use std::time::Duration;

use isobath_lab::bench::{
    Choice, KeyOrder, LoadRow, LookupPlan, LookupReport, Medium, Row, ScanLength, Workload,
};
use isobath_lab::quickstart::{self, Needs, Plan, Report};
use isobath_lab::{
    Callers, DriveLimit, EngineConfig, Monitor, Schema, SpaceConfig, Tuning, WriteLimit,
};

use super::campaign::{CLIENTS, default_path, kind};
use super::load::skipped;
use crate::args::{CallFrom, Durable, EngineName, GlobalArgs, LookupArgs, QuickstartArgs};
use crate::failure::Failure;
use crate::output::{Output, count, counted, size};
use crate::progress::Progress;

/// Space for what a pool needs beside the records when it shall hold all.
const IN_POOL_SLACK: f64 = 1.6;

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
    if let Some(load) = &report.lookups.load {
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
    if let Some(lookups) = report.lookups.rows.first() {
        lookup_lines(lookups, &mut rows);
    }
    out.table(&[], &rows, false)
}

/// The lines that compare lookups with the drive.
fn lookup_lines(row: &Row, rows: &mut Vec<Vec<String>>) {
    let mut push = |name: &str, value: String, note: String| {
        rows.push(vec![name.to_owned(), value, note]);
    };
    push(
        "random lookups",
        format!("{}/s", rate(row.operations_per_s)),
        format!(
            "over {:.0} s, {} at a time, half within {:.0} µs, 99% within {:.0} µs",
            row.setting.duration_s, row.setting.clients, row.latency_us_p50, row.latency_us_p99
        ),
    );
    push(
        "  reads of the drive",
        format!("{}/s", rate(row.device_reads_per_s)),
        format!("{:.2} per lookup", row.device_reads_per_operation),
    );
    if let (Some(before), Some(after), Some(ratio)) = (
        row.drive_reads_per_s_before,
        row.drive_reads_per_s_after,
        row.operations_per_drive_read,
    ) {
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
        format!("{:.1} µs", row.cpu_us_per_operation),
        row.drive_cpu_us_per_read.map_or_else(String::new, |us| {
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
    out.line(&format!("  {me} bench lookup --help"))
}

pub(crate) fn lookup(
    args: &LookupArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let plan = plan(args)?;
    let made = plan.engine.path.iter().chain(&plan.engine.space.log_path);
    let ours = match plan.keep {
        true => Vec::new(),
        false => made.filter(|path| !path.exists()).cloned().collect(),
    };
    let progress = Progress::in_order(global, &ours)?;
    let report = isobath_lab::bench::lookup(&plan, &progress)?;
    progress.clear();
    if out.json() {
        if let Some(load) = &report.load {
            out.document(load)?;
        }
        return report.rows.iter().try_for_each(|row| out.document(row));
    }
    print_lookup(&report, out)
}

fn plan(args: &LookupArgs) -> Result<LookupPlan, Failure> {
    let record_bytes = 8 + args.value_bytes as u64;
    let records = args.records.unwrap_or(args.bytes.0 / record_bytes);
    let data = records.saturating_mul(record_bytes);
    let pool_bytes = match (&args.pool, args.in_pool) {
        (Some(size), _) => size.0,
        (None, true) => (data as f64 * IN_POOL_SLACK) as u64 + (64 << 20),
        (None, false) => (data / 10).max(8 << 20),
    };
    let kind = kind(args.engine);
    let callers = match (args.engine, args.from) {
        (EngineName::Isobath, CallFrom::Tasks) => Callers::Tasks,
        _ => Callers::Threads,
    };
    let workers = args.concurrency.workers.map(std::num::NonZeroUsize::get);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let depth = match callers {
        Callers::Tasks => args
            .concurrency
            .depth
            .saturating_mul(u32::try_from(workers.unwrap_or(cores)).unwrap_or(1)),
        Callers::Threads => u32::try_from(args.threads).unwrap_or(u32::MAX),
    };
    if args.threads == 0 || args.concurrency.depth == 0 {
        return Err(Failure::Usage(
            "--threads and --depth must be at least 1".into(),
        ));
    }
    Ok(LookupPlan {
        engine: EngineConfig {
            kind,
            path: (!args.memory_device).then(|| {
                let path = args.path.clone();
                path.unwrap_or_else(|| default_path(args.engine))
            }),
            pool_bytes,
            workers,
            tasks_per_worker: args
                .concurrency
                .tasks
                .map_or(CLIENTS, std::num::NonZeroUsize::get),
            depth_per_worker: args.concurrency.depth,
            threads: args.threads,
            callers,
            space: SpaceConfig {
                policy: args.policy.map(|policy| policy.name().to_owned()),
                fill_factor: args.fill_factor,
                segment_bytes: args.segment.map(|s| u32::try_from(s.0).unwrap_or(u32::MAX)),
                log_bytes: if args.log_off {
                    Some(0)
                } else {
                    args.log.map(|size| size.0)
                },
                log_path: args.log_path.clone(),
                buffered_ms: match args.durability {
                    Durable::Synced => None,
                    Durable::Buffered => Some(10),
                    Durable::None => Some(u32::MAX),
                },
                trace: args.trace.clone(),
            },
            simulated: None,
            tuning: Tuning::default(),
            schema: Schema::default(),
        },
        latency_every: None,
        left_out: isobath_lab::bench::LeftOut::default(),
        virtual_ssd: None,
        region_bytes: None,
        in_pool: args.in_pool,
        records,
        workload: workload(args),
        rate_per_s: args.rate,
        warm_up: args.warm_up,
        duration: args.duration,
        load_only: args.load_only,
        keep: args.keep,
        drive_depth: (!args.no_drive && !args.in_pool).then_some(depth),
        sample_every: Duration::from_secs(1),
        until_steady: false,
        components: false,
        drive_duration: Duration::from_secs(5).min(args.duration),
        seed: args.seed,
    })
}

/// Random lookups with what the options change of them.
fn workload(args: &LookupArgs) -> Workload {
    let mix = args.op.clone();
    Workload {
        value_bytes: args.value_bytes,
        // New keys fall between those that are there.
        key_order: match mix.inserts() {
            true => KeyOrder::Hashed,
            false => KeyOrder::Sequential,
        },
        mix,
        choice: args.zipf.map_or(Choice::Uniform, Choice::Zipf),
        batch: args.batch,
        scan: ScanLength::Fixed(args.scan_records),
        ..Workload::lookup()
    }
}

fn print_lookup(report: &LookupReport, out: &mut Output) -> Result<(), Failure> {
    if let Some(load) = &report.load {
        print_load(load, out)?;
    }
    let Some(first) = report.rows.first() else {
        return Ok(());
    };
    out.line(&format!(
        "{}: {} of {} + {} bytes, pool {}, {} {} on {}",
        first.setting.engine,
        counted(first.setting.records, "record"),
        first.setting.key_bytes,
        first.setting.value_bytes,
        size(first.setting.pool_bytes),
        first.setting.clients,
        first.setting.callers.name(),
        first.setting.medium.short()
    ))?;
    let header = [
        "operation",
        "op/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs/op",
        "reads/op",
        "device reads/s",
    ];
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            vec![
                row.operation.clone(),
                rate(row.operations_per_s),
                format!("{:.0}", row.latency_us_p50),
                format!("{:.0}", row.latency_us_p99),
                format!("{:.0}", row.latency_us_p999),
                format!("{:.2}", row.cpu_us_per_operation),
                format!("{:.2}", row.device_reads_per_operation),
                rate(row.device_reads_per_s),
            ]
        })
        .collect();
    out.table(&header, &rows, true)?;
    if let Some(space) = first
        .space
        .as_ref()
        .filter(|s| s.page_writes_per_update > 0.0)
    {
        out.line(&format!(
            "pages written per update: {:.3}; the cleaner moved {:.3} pages for each (Wamp), at fill {:.3}; longest stall {:.0} ms",
            space.page_writes_per_update, space.wamp_ratio, space.fill_ratio, space.stall_ms_max
        ))?;
    }
    for (when, drive) in [
        ("before", &report.drive_before),
        ("after", &report.drive_after),
    ] {
        if let Some(drive) = drive {
            print_drive(when, drive, out)?;
        }
    }
    for (when, writes) in [
        ("before", &report.drive_writes_before),
        ("after", &report.drive_writes_after),
    ] {
        if let Some(writes) = writes {
            print_drive_writes(when, writes, out)?;
        }
    }
    if let Some(ratio) = first.operations_per_drive_read {
        out.line(&format!("operations / drive's limit of reads: {ratio:.2}"))?;
    }
    if let Medium::MemoryFiles { name } = &first.setting.medium {
        out.line(&format!(
            "the data are on {name}, which is memory: this says nothing of a drive"
        ))?;
    }
    out.line(&format!("state: {}, {}", first.steady, first.drive_state))
}

fn print_load(load: &LoadRow, out: &mut Output) -> Result<(), Failure> {
    out.line(&format!(
        "loaded {} ({}) in {:.1} s: {}/s, {:.2} µs of CPU per record, {} on disk",
        counted(load.records, "record"),
        size(load.bytes),
        load.seconds,
        size((load.megabytes_per_s * 1e6) as u64),
        load.cpu_us_per_record,
        size(load.space_bytes)
    ))
}

fn print_drive_writes(when: &str, writes: &WriteLimit, out: &mut Output) -> Result<(), Failure> {
    out.line(&format!(
        "the drive alone {when}: {} random 4 KiB writes/s at depth {}, {}/s flushed; sequential {} MB/s, {} MB/s flushed",
        rate(writes.random_writes_per_s),
        writes.depth,
        rate(writes.random_flushed_writes_per_s),
        rate(writes.sequential_mb_per_s),
        rate(writes.sequential_flushed_mb_per_s)
    ))
}

fn print_drive(when: &str, drive: &DriveLimit, out: &mut Output) -> Result<(), Failure> {
    out.line(&format!(
        "the drive alone {when}: {} random 4 KiB reads/s at depth {}, {:.2} µs of CPU each",
        rate(drive.reads_per_s),
        drive.depth,
        drive.cpu_us_per_read
    ))
}
