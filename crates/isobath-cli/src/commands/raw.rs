//! raw.

use std::time::Duration;

use isobath_lab::raw::{IoModel, LatencySummary, RawPlan, RawResult, RawTarget};
use isobath_lab::{Machine, Sheet, SheetColumn};

use crate::args::{GlobalArgs, ModelName, RawArgs, Size};
use crate::failure::Failure;
use crate::output::{Output, count, size};
use crate::progress::Progress;

/// Rows of one call at most; more is a slip of the keyboard.
const MAX_ROWS: usize = 10_000;

pub(crate) fn raw(args: &RawArgs, global: &GlobalArgs, out: &mut Output) -> Result<(), Failure> {
    let plans = plans(args)?;
    let ours = match plans.first().map(|plan| &plan.target) {
        Some(RawTarget::Scratch(paths)) => paths.iter().filter(|p| !p.exists()).cloned().collect(),
        _ => Vec::new(),
    };
    let progress = Progress::in_order(global, &ours)?;
    let machine = Machine::here(match plans.first().map(|plan| &plan.target) {
        Some(RawTarget::Scratch(paths) | RawTarget::Files(paths)) => {
            paths.first().map_or("/".as_ref(), |p| p)
        }
        _ => "/".as_ref(),
    });
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    isobath_lab::sweep(&plans, &progress, |plan, result| -> Result<(), Failure> {
        if out.json() {
            return out.document(&document(plan, result, &machine));
        }
        for note in &result.notes {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        rows.push((plan.clone(), result.clone()));
        Ok(())
    })?;
    progress.clear();
    if out.json() {
        return Ok(());
    }
    out.sheet(&Sheet::of(&rows, &COLUMNS))?;
    notes
        .iter()
        .try_for_each(|note| out.line(&format!("note: {note}")))
}

/// A measurement.
type Row = (RawPlan, RawResult);

const COLUMNS: [SheetColumn<Row>; 13] = [
    ("backend", |(_, result)| {
        let how = if result.direct { "" } else { " (buffered)" };
        format!("{}{how}", result.backend)
    }),
    ("model", |(plan, _)| match plan.model {
        IoModel::AllToAll => "all-to-all".to_owned(),
        IoModel::DedicatedThreads { io_threads } => format!("dedicated:{io_threads}"),
        IoModel::Assigned => "assigned".to_owned(),
    }),
    ("threads", |(plan, _)| plan.threads.to_string()),
    ("depth", |(plan, _)| plan.depth.to_string()),
    ("page", |(plan, _)| size(u64::from(plan.page_bytes))),
    ("read %", |(plan, _)| plan.read_percent.to_string()),
    ("random %", |(plan, _)| plan.random_percent.to_string()),
    ("I/Os/s", |(_, result)| {
        count(result.ios_per_s.round() as u64)
    }),
    ("MiB/s", |(_, result)| {
        format!("{:.0}", result.mb_per_s * 1e6 / f64::from(1 << 20))
    }),
    ("p50 µs", |row| format!("{:.0}", latency(row).p50_us)),
    ("p99 µs", |row| format!("{:.0}", latency(row).p99_us)),
    ("CPU µs/I/O", |(_, result)| {
        format!("{:.2}", result.cpu_us_per_io)
    }),
    ("in flight", |(_, result)| {
        format!("{:.0}", result.in_flight_mean)
    }),
];

/// The slower direction says more; a pure run has one.
fn latency((plan, result): &Row) -> &LatencySummary {
    match plan.read_percent > 0 {
        true => &result.read_latency,
        false => &result.write_latency,
    }
}

/// Plan, machine and result as one flat document.
fn document(plan: &RawPlan, result: &RawResult, machine: &Machine) -> serde_json::Value {
    let mut document = serde_json::json!({"isobath_version": env!("CARGO_PKG_VERSION")});
    for part in [
        serde_json::to_value(plan),
        serde_json::to_value(machine),
        serde_json::to_value(result),
    ] {
        if let (Ok(serde_json::Value::Object(part)), Some(all)) = (part, document.as_object_mut()) {
            all.extend(part);
        }
    }
    document
}

fn plans(args: &RawArgs) -> Result<Vec<RawPlan>, Failure> {
    let target = match (args.memory, args.file.is_empty(), args.scratch.is_empty()) {
        (true, _, _) => RawTarget::Memory,
        (_, false, _) => RawTarget::Files(args.file.clone()),
        (_, _, false) => RawTarget::Scratch(args.scratch.clone()),
        _ => RawTarget::Scratch(vec!["isobath-raw.scratch".into()]),
    };
    let base = RawPlan {
        target,
        bytes: args.bytes.map(|size| size.0),
        stripe_unit_bytes: small(args.stripe_unit, "--stripe-unit")?,
        durable: args.durable,
        buffer_bytes: args.buffers.map_or(0, |size| size.0),
        wait_min: args.wait_min,
        direct: !args.buffered,
        register_buffers: !args.unregistered,
        prepare: !args.no_prepare,
        warmup_ms: millis(args.warm_up),
        duration_ms: millis(args.duration),
        seed: args.seed,
        ..RawPlan::default()
    };
    let mut plans = vec![base];
    each(&mut plans, &args.model, |plan, model| {
        plan.model = match model {
            ModelName::AllToAll => IoModel::AllToAll,
            ModelName::Dedicated => IoModel::DedicatedThreads {
                io_threads: args.io_threads,
            },
            ModelName::Assigned => IoModel::Assigned,
        };
    })?;
    each(&mut plans, &args.backend, |plan, backend| {
        plan.backend = *backend;
    })?;
    let mut pages = Vec::new();
    for page in &args.page {
        pages.push(small(*page, "--page")?);
    }
    each(&mut plans, &pages, |plan, page| plan.page_bytes = *page)?;
    each(&mut plans, &args.read, |plan, read| {
        plan.read_percent = *read
    })?;
    each(&mut plans, &args.random, |plan, random| {
        plan.random_percent = *random
    })?;
    each(&mut plans, &args.threads, |plan, threads| {
        plan.threads = *threads
    })?;
    each(&mut plans, &args.depth, |plan, depth| plan.depth = *depth)?;
    Ok(plans)
}

/// Every plan so far with every value.
fn each<T>(
    plans: &mut Vec<RawPlan>,
    values: &[T],
    set: impl Fn(&mut RawPlan, &T),
) -> Result<(), Failure> {
    if plans.len().saturating_mul(values.len()) > MAX_ROWS {
        return Err(Failure::Usage(format!(
            "the lists make more than {MAX_ROWS} combinations; shorten them"
        )));
    }
    let before = std::mem::take(plans);
    for plan in before {
        for value in values {
            let mut plan = plan.clone();
            set(&mut plan, value);
            plans.push(plan);
        }
    }
    Ok(())
}

fn small(size: Size, option: &str) -> Result<u32, Failure> {
    u32::try_from(size.0).map_err(|_| Failure::Usage(format!("{option} {size} is too large")))
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
