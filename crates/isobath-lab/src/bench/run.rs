//! One run: load, warm, the drive's limit, the clients, the limit again.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::clients::{Arrivals, Shared};
use super::components::Profiler;
use super::keys::Records;
use super::plan::{Plan, check_plan};
use super::record::RunRecord;
use super::row::LoadRow;
use super::series::{Sampler, Series};
use super::tally::Results;
use super::tpcc::{self, Tpcc};
use crate::engine::{self, Counters, Engine, IsolationLevel};
use crate::machine::{device_bytes, steal_time};
use crate::read_limit::{self, DriveLimit};
use crate::write_limit::{self, WriteLimit};
use crate::{LabError, Monitor, Stage, Unit, cpu_time};

/// What a run has measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RunReport {
    /// The load, if the run ended with it.
    pub load: Option<LoadRow>,
    /// The record, unless it did.
    pub record: Option<RunRecord>,
    /// Latencies of all calls, nanoseconds.
    #[serde(skip)]
    pub latency_ns: Option<Histogram<u64>>,
}

/// Runs the plan.
///
/// # Errors
/// A plan that contradicts itself, an engine that is not built in, engine and
/// I/O errors, and every answer that differs from the stored value.
pub fn run(plan: &Plan, monitor: &dyn Monitor) -> Result<RunReport, LabError> {
    check_plan(plan)?;
    let exists = plan.engine.path.as_ref().is_some_and(|p| p.exists());
    // Never an earlier file: a block device, or a file that is in the way.
    let log = plan.engine.space.log_path.as_ref();
    let new_log = log.filter(|path| !path.exists());
    let data = if exists { Data::Present } else { Data::New };
    let result = run_on(plan, data, monitor);
    if let (false, Some(path)) = (plan.keep, &plan.engine.path)
        && !matches!(
            result,
            Err(LabError::Request(_) | LabError::NotBuilt { .. })
        )
    {
        engine::remove(plan.engine.kind, path)?;
        if let Some(log) = new_log {
            engine::remove(plan.engine.kind, log)?;
        }
    }
    result
}

/// The source of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    /// A new engine is made and loaded.
    New,
    /// They are loaded into an engine that exists.
    Added,
    /// They are there already.
    Present,
}

/// Runs the plan without looking whether it makes sense, and removes nothing.
pub(crate) fn run_on(
    plan: &Plan,
    data: Data,
    monitor: &dyn Monitor,
) -> Result<RunReport, LabError> {
    let mut plan = plan.clone();
    plan.engine.schema = plan.workload.schema(plan.records);
    let plan = &plan;
    let workload = &plan.workload;
    let (format, order) = (workload.key_format, workload.key_order);
    let isolation = plan.engine.tuning.isolation;
    let tpcc = workload
        .tpcc
        .map(|scale| Tpcc::new(scale, plan.records, isolation, plan.seed));
    let records = Arc::new(Records::new(
        plan.records,
        workload.value_bytes,
        format,
        order,
    ));
    let mut report = RunReport::default();
    // A memory device lives as long as its engine, so that one is kept open.
    let mut open: Option<Box<dyn Engine>> = None;
    if data != Data::Present {
        let (row, engine) = load(plan, &records, tpcc.as_deref(), data == Data::New, monitor)?;
        report.load = Some(row);
        open = engine;
    }
    if plan.load_only {
        return close(open).map(|()| report);
    }
    let files = match &open {
        Some(_) => Vec::new(),
        None => {
            let engine = engine::open(&plan.engine, false)?;
            let files = engine.files()?;
            engine.close()?;
            read_limit::warm(&files, monitor)?;
            files
        }
    };
    let drive_before = limit(plan, &files, monitor)?;
    let writes_before = write_limit(plan, monitor)?;
    let engine = match open {
        Some(engine) => engine,
        None => engine::open(&plan.engine, false)?,
    };
    engine.begin(&records);
    if plan.in_pool && tpcc.is_none() {
        fill_pool(plan, &*engine, &records, monitor)?;
    }
    engine.start_recording()?;
    let stolen = steal_time();
    let measured = measure(plan, &*engine, &records, tpcc.as_ref(), monitor);
    let steal_s = (steal_time() - stolen).as_secs_f64();
    let tpcc = match (&tpcc, measured.is_ok()) {
        (Some(tpcc), true) => Some(check(tpcc, &*engine, monitor)?),
        _ => None,
    };
    let setting = plan.setting(&engine.version(), engine.clients());
    let settings = engine.settings().into_iter();
    let settings = settings.map(|(name, value)| (name.to_owned(), value));
    let settings = settings.collect();
    engine.close()?;
    let mut measured = measured?;
    let components = measured.components.take().unwrap_or(Ok(Vec::new()))?;
    let latencies = measured.results.all_latencies();
    let mut record = RunRecord::of(plan, setting, measured, &components, &latencies);
    record.load = report.load.take();
    (record.settings, record.steal_s, record.tpcc) = (settings, steal_s, tpcc);
    record.space_bytes = total_bytes(&files);
    if let Some((before, after)) = drive_before.zip(limit(plan, &files, monitor)?) {
        record.drive_reads_per_s = Some((before.reads_per_s, after.reads_per_s));
        let cpu_us = (before.cpu_us_per_read + after.cpu_us_per_read) / 2.0;
        record.drive_cpu_us_per_read = Some(cpu_us);
    }
    record.drive_writes = writes_before.zip(write_limit(plan, monitor)?);
    report.record = Some(record);
    report.latency_ns = Some(latencies);
    Ok(report)
}

fn close(engine: Option<Box<dyn Engine>>) -> Result<(), LabError> {
    engine.map_or(Ok(()), Engine::close)
}

fn limit(
    plan: &Plan,
    files: &[PathBuf],
    monitor: &dyn Monitor,
) -> Result<Option<DriveLimit>, LabError> {
    match plan.drive_depth {
        // Memory has no limit that says anything of a drive.
        Some(depth) if !plan.in_pool && plan.medium().is_drive() => {
            let threads = drive_threads(plan, depth);
            let time = plan.drive_duration;
            // Of files smaller than a stripe the runner can read nothing, and the host of a few
            // small ones may hold all.
            if longest(files) >= DRIVE_FILE_MIN {
                return read_limit::random_reads(files, depth, threads, time, monitor).map(Some);
            }
            let Some(path) = &plan.engine.path else {
                return Ok(None);
            };
            let bytes = plan.records.saturating_mul(plan.workload.record_bytes());
            write_limit::reads_beside(path, bytes, depth, threads, time, monitor)
        }
        _ => Ok(None),
    }
}

/// Measures the drive's limit of writes, if the clients write to one.
fn write_limit(plan: &Plan, monitor: &dyn Monitor) -> Result<Option<WriteLimit>, LabError> {
    let (Some(depth), Some(path)) = (plan.drive_depth, &plan.engine.path) else {
        return Ok(None);
    };
    if !plan.workload.mix.writes() || !plan.medium().is_drive() {
        return Ok(None);
    }
    let bytes = plan.records.saturating_mul(plan.workload.record_bytes());
    let threads = drive_threads(plan, depth);
    write_limit::measure(path, bytes, depth, threads, plan.drive_duration, monitor)
}

/// Threads that measure the drive.
fn drive_threads(plan: &Plan, depth: u32) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = plan.engine.workers.unwrap_or(cores);
    u32::try_from(threads).unwrap_or(1).clamp(1, depth)
}

/// Bytes of the longest file at least where the drive's own limit is measured: files of half of it
/// are read, in stripes of 2 MiB.
const DRIVE_FILE_MIN: u64 = 4 << 20;

fn longest(files: &[PathBuf]) -> u64 {
    let lengths = files.iter().filter_map(|p| std::fs::metadata(p).ok());
    lengths.map(|m| m.len()).max().unwrap_or(0)
}

fn total_bytes(files: &[PathBuf]) -> u64 {
    files
        .iter()
        .filter_map(|p| std::fs::metadata(p).ok())
        .map(|m| m.len())
        .sum()
}

/// Loads all records in order. A memory device's engine stays open.
fn load(
    plan: &Plan,
    records: &Arc<Records>,
    tpcc: Option<&Tpcc>,
    create: bool,
    monitor: &dyn Monitor,
) -> Result<(LoadRow, Option<Box<dyn Engine>>), LabError> {
    // Sorting is no part of the load.
    let mut all = match tpcc {
        None => Some(records.sorted()),
        Some(_) => None,
    };
    let began = (Instant::now(), cpu_time(), device_bytes().1);
    let engine = engine::open(&plan.engine, create)?;
    engine.begin(records);
    let total = match tpcc {
        None => records.records,
        Some(tpcc) => tpcc::Table::ALL.map(|t| tpcc::count(tpcc, t)).iter().sum(),
    };
    monitor.begin(Stage {
        name: "loading records",
        total: Some(total),
        unit: Unit::Items,
    });
    if let Some(all) = all.take().filter(|_| !plan.workload.fill) {
        engine.load_sorted(0, &mut watched(all, monitor))?;
    }
    for table in tpcc.iter().flat_map(|_| tpcc::Table::ALL) {
        if let Some(tpcc) = tpcc {
            let rows = tpcc::rows(tpcc, table);
            engine.load_sorted(table as usize, &mut watched(rows, monitor))?;
        }
    }
    monitor.check()?;
    engine.finish_background_work()?;
    let version = engine.version();
    let (files, engine) = if plan.engine.path.is_some() {
        let files = engine.files()?;
        engine.close()?;
        (files, None)
    } else {
        (Vec::new(), Some(engine))
    };
    let seconds = began.0.elapsed().as_secs_f64();
    let bytes = records.bytes();
    let row = LoadRow {
        engine: version,
        records: records.records,
        bytes,
        seconds,
        records_per_s: records.records as f64 / seconds,
        megabytes_per_s: bytes as f64 / 1e6 / seconds,
        cpu_us_per_record: per(cpu_time().saturating_sub(began.1), records.records),
        device_bytes_written_per_byte: device_bytes().1.saturating_sub(began.2) as f64
            / bytes as f64,
        space_bytes: total_bytes(&files),
    };
    Ok((row, engine))
}

/// Bytes of values after which a load looks whether it should stop.
const WATCHED_BYTES: usize = 4 << 20;

/// The same records, counted by the monitor; none any more once it stops the run.
fn watched<'v: 'r, 'r>(
    records: Box<dyn Iterator<Item = (engine::Key, Cow<'v, [u8]>)> + Send + 'r>,
    monitor: &'r dyn Monitor,
) -> impl Iterator<Item = (engine::Key, Cow<'r, [u8]>)> + Send + 'r {
    let (mut pending, mut bytes) = (0u64, 0usize);
    records.map_while(move |(key, value)| {
        pending += 1;
        bytes += value.len();
        if pending == 4096 || bytes >= WATCHED_BYTES {
            monitor.advance(pending);
            (pending, bytes) = (0, 0);
            if monitor.cancelled() {
                return None;
            }
        }
        Some((key, value))
    })
}

/// Checks the consistency of all warehouses, with all clients.
fn check(
    tpcc: &Arc<Tpcc>,
    engine: &dyn Engine,
    monitor: &dyn Monitor,
) -> Result<tpcc::Report, LabError> {
    monitor.begin(Stage {
        name: "checking consistency",
        total: None,
        unit: Unit::Items,
    });
    let found = Arc::new(Mutex::new(tpcc::Checked::default()));
    let (clients, all, shared) = (engine.clients(), Arc::clone(&found), Arc::clone(tpcc));
    engine.run(Arc::new(move |index, session| {
        tpcc::check(&shared, index, clients, session, &all)
    }))?;
    let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    let report = tpcc.report(found);
    match report.violations.first() {
        Some(first) if tpcc.isolation() == IsolationLevel::Snapshot => {
            Err(LabError::Verify(first.clone()))
        }
        _ => Ok(report),
    }
}

pub(super) fn per(time: Duration, operations: u64) -> f64 {
    time.as_secs_f64() * 1e6 / operations.max(1) as f64
}

/// Reads everything once, so that it is in the pool.
fn fill_pool(
    plan: &Plan,
    engine: &dyn Engine,
    records: &Arc<Records>,
    monitor: &dyn Monitor,
) -> Result<(), LabError> {
    monitor.begin(Stage {
        name: "filling the pool",
        total: Some(records.records),
        unit: Unit::Items,
    });
    let clients = engine.clients() as u64;
    let records = Arc::clone(records);
    let span = plan.records.div_ceil(clients);
    engine.run(Arc::new(move |index, session| {
        let mut value = Vec::new();
        let from = index as u64 * span;
        // Hashed keys are read one by one: a scan of their order would need them sorted.
        (from..(from + span).min(records.records))
            .try_for_each(|at| session.get(0, &records.key(at), &mut value).map(|_| ()))
    }))
}

/// The measurement while the clients ran.
pub(super) struct Measured {
    pub(super) results: Results,
    pub(super) series: Series,
    pub(super) seconds: f64,
    pub(super) cpu: Duration,
    pub(super) device: (u64, u64),
    pub(super) counters: (Counters, Counters),
    pub(super) keys_drawn_before: Option<u64>,
    /// The CPU time by component, if that was asked for.
    components: Option<Result<Vec<(String, f64)>, LabError>>,
}

/// Keys that are drawn before a run in memory, by all clients together: 64 MiB with the numbers of
/// their records, so that neither they nor the records that they lead to stay in a processor's
/// caches. They are shared out, so that every engine's clients visit as many.
const KEYS_DRAWN: u64 = 1 << 20;
/// Of few records that many suffice.
const DRAWS_PER_RECORD: u64 = 8;

fn measure(
    plan: &Plan,
    engine: &dyn Engine,
    records: &Arc<Records>,
    tpcc: Option<&Arc<Tpcc>>,
    monitor: &dyn Monitor,
) -> Result<Measured, LabError> {
    let arrivals = plan.rate_per_s.map(|rate| Arrivals::new(rate, plan.seed));
    let mut shared = Shared::new(
        Arc::clone(records),
        &plan.workload,
        engine.clients(),
        arrivals,
        plan.seed,
    );
    shared.tpcc = tpcc.map(Arc::clone);
    shared.latency_every = plan.timed_one_in();
    if plan.in_pool {
        let keys = KEYS_DRAWN.min(plan.records.saturating_mul(DRAWS_PER_RECORD));
        shared.draw_keys(keys as usize / engine.clients().max(1));
    }
    let shared = Arc::new(shared);
    monitor.begin(Stage {
        name: "measuring",
        total: Some(millis(plan.warm_up + plan.duration)),
        unit: Unit::Milliseconds,
    });
    let mut measured = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(plan, engine, &shared, monitor));
        let run = Arc::clone(&shared);
        let ended = engine.run(Arc::new(move |index, session| run.client(index, session)));
        shared.stop();
        let measured = watcher
            .join()
            .map_err(|_| LabError::Verify("the measuring thread panicked".into()));
        ended.and(measured)
    })?;
    monitor.check()?;
    measured.results = shared.take_results();
    Ok(measured)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Lets the clients warm up, measures, and stops them.
fn watch(plan: &Plan, engine: &dyn Engine, shared: &Shared, monitor: &dyn Monitor) -> Measured {
    wait(plan.warm_up, shared, monitor);
    let profiler = plan.components.then(Profiler::start);
    let began = Instant::now();
    let (cpu, device, counters) = (cpu_time(), device_bytes(), engine.counters());
    shared.measure();
    let files = engine.files().unwrap_or_default();
    let mut sampler = Sampler::start(plan, engine, shared, &files);
    let mut looked = 0;
    while began.elapsed() < plan.duration && !shared.stopped() {
        let left = plan.duration.saturating_sub(began.elapsed());
        wait(left.min(plan.sample_every), shared, monitor);
        sampler.sample();
        // Each look costs a pass over the series: look when it has grown by a tenth.
        let samples = sampler.series.samples.len();
        if plan.until_steady && samples > looked + looked / 10 {
            looked = samples;
            if sampler.is_enough(plan) {
                break;
            }
        }
    }
    shared.stop();
    let (read, written) = device_bytes();
    let seconds = began.elapsed().as_secs_f64();
    let cpu = cpu_time().saturating_sub(cpu);
    Measured {
        results: Results::new(&plan.workload.mix),
        series: sampler.series,
        seconds,
        cpu,
        device: (
            read.saturating_sub(device.0),
            written.saturating_sub(device.1),
        ),
        counters: (counters, engine.counters()),
        keys_drawn_before: shared.keys_drawn_before(),
        components: profiler.map(|profiler| profiler.and_then(Profiler::end)),
    }
}

/// Sleeps in short steps, so that an interruption or a failed client ends it.
fn wait(time: Duration, shared: &Shared, monitor: &dyn Monitor) {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || shared.stopped() {
            return;
        }
        if monitor.cancelled() {
            shared.stop();
            return;
        }
        let step = left.min(Duration::from_millis(100));
        std::thread::sleep(step);
        monitor.advance(millis(step));
    }
}
