//! bench run, sweep, cost, report, self-test and workloads.

use std::path::Path;
use std::time::Duration;

use isobath_lab::bench::{
    self, Campaign, Case, Caught, ChildProgram, Choice, FileWorkload, KeyOrder, Outcome, Pitfall,
    Plan, RunPlace, RunRecord, ScanLength, SearchPlan, VirtualSsdPlace, Workload,
};
use isobath_lab::drive_model::write_whole;
use isobath_lab::load::InputFile;
use isobath_lab::{
    Callers, DriveProfile, EngineConfig, EngineKind, LabError, Monitor, Sheet, Silent,
    SimulatedDrive, SpaceConfig, Tuning,
};

use super::records::{print, print_load};
use crate::args::{
    CaseArgs, ChangeArgs, CostArgs, Durable, GlobalArgs, ReportArgs, RunArgs, SearchArgs,
    SelfTestArgs, SweepArgs,
};
use crate::failure::Failure;
use crate::output::{Output, count, size};
use crate::progress::{Progress, TimeLeft};

/// Data of a campaign on files that says nothing else.
const DEFAULT_BYTES: u64 = 1 << 30;
/// Bytes of a pool at least.
const POOL_MIN: u64 = 8 << 20;
/// What a pool needs beside the records when it shall hold all.
const IN_POOL_FACTOR: f64 = 1.6;
const IN_POOL_SPARE: u64 = 64 << 20;
/// Bytes of a region that is made: so many times the data, and so many beside, for the file system
/// and an engine's log.
const REGION_SHARE: u64 = 3;
const REGION_SPARE: u64 = 512 << 20;
/// Tasks of a worker, and threads, if nothing is said.
pub(super) const CLIENTS: usize = 64;

/// The drive that one run is simulated on.
#[derive(Clone, Copy)]
pub(super) struct Drive {
    pub(super) profile: DriveProfile,
    pub(super) over_provisioning: f64,
}

pub(super) fn plan(
    kind: EngineKind,
    args: &CaseArgs,
    bytes: Option<u64>,
    drive: Drive,
    changes: &ChangeArgs,
) -> Result<Plan, Failure> {
    let (mut workload, file) = workload(&args.workload)?;
    change(&mut workload, changes)?;
    let half = args.simulated.map(|capacity| capacity.0 / 2);
    let bytes = bytes.or(args.bytes.map(|bytes| bytes.0)).or(half);
    let records = match (args.records, bytes, &file) {
        (Some(records), ..) => records,
        (None, Some(bytes), _) => bytes / workload.record_bytes(),
        (None, None, Some(file)) => file.records,
        (None, None, None) => DEFAULT_BYTES / workload.record_bytes(),
    };
    let data = records.saturating_mul(workload.record_bytes());
    let in_process = args.simulated.is_some() && args.vssd.is_none();
    if in_process && kind != EngineKind::Isobath {
        return Err(Failure::Usage(
            "only Isobath runs on a simulated SSD in this process; with --vssd DIR every engine runs on a virtual one"
                .into(),
        ));
    }
    if args.concurrency.depth == 0 {
        return Err(Failure::Usage("--depth must be at least 1".into()));
    }
    let clients = Clients::of(args, file.as_ref())?;
    let pool = args.pool.map(|pool| pool.0);
    let pool = pool.or(file.as_ref().map(|file| file.memory_bytes));
    let buffered_ms = match (args.durability, &file) {
        (Some(Durable::Synced), _) => None,
        (Some(Durable::Buffered), _) => Some(bench::BUFFERED_MS),
        (None, Some(file)) => file.buffered_ms,
        (Some(Durable::None), _) | (None, None) => Some(u32::MAX),
    };
    let simulated = args.simulated.map(|capacity| SimulatedDrive {
        profile: drive.profile,
        capacity_bytes: capacity.0,
        over_provisioning: drive.over_provisioning,
        state: args.state,
        wear_difference_max: args.wear_difference,
    });
    let callers = match (kind, changes.from) {
        (EngineKind::Isobath, None | Some(Callers::Tasks)) => Callers::Tasks,
        _ => Callers::Threads,
    };
    if changes.memory_device && kind != EngineKind::Isobath {
        let name = kind.name();
        return Err(Failure::Usage(format!(
            "{name} has no memory device; leave out --memory-device"
        )));
    }
    let has_file = !in_process && kind != EngineKind::Null && !changes.memory_device;
    let path = || args.path.clone().unwrap_or_else(|| kind.file_name().into());
    let pool_bytes = match changes.in_pool {
        true => (data as f64 * IN_POOL_FACTOR) as u64 + IN_POOL_SPARE,
        false => pool.unwrap_or((data / 10).max(POOL_MIN)),
    };
    let engine = EngineConfig {
        path: has_file.then(path),
        workers: clients.workers,
        tasks_per_worker: clients.tasks_per_worker,
        depth_per_worker: args.concurrency.depth,
        threads: clients.threads,
        callers,
        space: SpaceConfig {
            policy: changes.policy.map(|policy| policy.name().to_owned()),
            fill_factor: changes.fill_factor,
            log_path: changes.log_path.clone(),
            log_bytes: match args.log_off {
                true => Some(0),
                false => changes.log.map(|size| size.0),
            },
            segment_bytes: match args.segment {
                Some(segment) => Some(u32::try_from(segment.0).unwrap_or(u32::MAX)),
                None => simulated.and_then(|drive| drive.segment_bytes()),
            },
            buffered_ms,
            in_place: changes.in_place,
            trace: args.trace.clone().filter(|_| kind == EngineKind::Isobath),
        },
        simulated,
        tuning: tuning(args)?,
        ..EngineConfig::new(kind, pool_bytes)
    };
    Ok(Plan {
        in_pool: changes.in_pool,
        rate_per_s: args.rate,
        warm_up: args.warm_up,
        load_only: changes.load_only,
        keep: changes.keep,
        drive_depth: (has_file && simulated.is_none() && !args.no_drive && !changes.in_pool)
            .then(|| clients.reads_in_flight(callers, args.concurrency.depth)),
        drive_duration: Duration::from_secs(3).min(args.duration),
        until_steady: args.until_steady,
        components: args.components,
        seed: args.seed,
        ..Plan::new(engine, workload, records, args.duration)
    })
}

/// Changes a workload as the command line says.
fn change(workload: &mut Workload, args: &ChangeArgs) -> Result<(), Failure> {
    let is_changed = args.op.is_some()
        || args.zipf.is_some()
        || args.value_bytes.is_some()
        || args.batch.is_some()
        || args.scan_records.is_some();
    if workload.tpcc.is_some() && is_changed {
        return Err(Failure::Usage(
            "the TPC-C-derived workload has its own transactions; leave out --op, --zipf, --value-bytes, --batch and --scan-records"
                .into(),
        ));
    }
    if let Some(mix) = &args.op {
        workload.mix = mix.clone();
        if mix.inserts() {
            // New keys fall between those that are there.
            workload.key_order = KeyOrder::Hashed;
        }
    }
    if let Some(exponent) = args.zipf {
        workload.choice = Choice::Zipf(exponent);
    }
    if let Some(records) = args.scan_records {
        workload.scan = ScanLength::Fixed(records);
    }
    workload.value_bytes = args.value_bytes.unwrap_or(workload.value_bytes);
    workload.batch = args.batch.unwrap_or(workload.batch);
    Ok(())
}

/// How many clients there are, and who they are.
struct Clients {
    workers: Option<usize>,
    tasks_per_worker: usize,
    threads: usize,
}

impl Clients {
    /// Reads that these clients have in flight at most, if each worker has `depth`.
    fn reads_in_flight(&self, callers: Callers, depth: u32) -> u32 {
        let count = match callers {
            Callers::Threads => self.threads,
            Callers::Tasks => {
                let cores =
                    || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
                let workers = self.workers.unwrap_or_else(cores);
                workers.saturating_mul(depth as usize)
            }
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// As the command line says, then a workload file, then the defaults. The clients of a file are
    /// shared out evenly among as many workers as can.
    fn of(args: &CaseArgs, file: Option<&FileWorkload>) -> Result<Clients, Failure> {
        let get = std::num::NonZeroUsize::get;
        let (tasks, workers) = (args.concurrency.tasks, args.concurrency.workers);
        let threads = args.threads.map(get);
        let of_file = file.map(|file| file.clients);
        let (workers, tasks_per_worker) = match (tasks.map(get), workers.map(get), of_file) {
            (Some(tasks), workers, _) => (workers, tasks),
            (None, workers, None) => (workers, CLIENTS),
            (None, Some(workers), Some(clients)) if !clients.is_multiple_of(workers) => {
                return Err(Failure::Usage(format!(
                    "{workers} workers cannot share the {clients} clients of the workload file evenly; say how many each has with --tasks"
                )));
            }
            (None, Some(workers), Some(clients)) => (Some(workers), clients / workers),
            (None, None, Some(clients)) => {
                let cores = std::thread::available_parallelism().map_or(1, get);
                let mut workers = (1..=cores).rev();
                let workers = workers.find(|workers| clients.is_multiple_of(*workers));
                let workers = workers.unwrap_or(1);
                (Some(workers), clients / workers)
            }
        };
        Ok(Clients {
            workers,
            tasks_per_worker,
            threads: threads.or(of_file).unwrap_or(CLIENTS),
        })
    }
}

/// The place of each run's files.
pub(super) fn place(args: &CaseArgs) -> Result<Option<RunPlace>, Failure> {
    Ok(match (&args.region, &args.vssd) {
        (Some(region), _) => Some(RunPlace::Region(region.clone())),
        (None, Some(directory)) => Some(RunPlace::VirtualSsd(virtual_ssd(directory)?)),
        (None, None) => None,
    })
}

/// Virtual SSDs in a directory, served by this program.
pub(super) fn virtual_ssd(directory: &Path) -> Result<VirtualSsdPlace, Failure> {
    isobath_lab::vssd::host::check_machine(true)?;
    let program = std::env::current_exe().map_err(LabError::io("find", Path::new("isobath")))?;
    Ok(VirtualSsdPlace {
        directory: directory.to_path_buf(),
        serve: (program, vec!["vssd".to_owned(), "serve".to_owned()]),
    })
}

/// The program that runs an engine in a process of its own: this one.
pub(super) fn child() -> Result<ChildProgram, Failure> {
    let program = std::env::current_exe().map_err(LabError::io("find", Path::new("isobath")))?;
    Ok(ChildProgram {
        program,
        arguments: vec!["bench".to_owned(), "serve-run".to_owned()],
    })
}

fn tuning(args: &CaseArgs) -> Result<Tuning, Failure> {
    if args
        .write_share
        .is_some_and(|share| !(share > 0.0 && share < 1.0))
    {
        return Err(Failure::Usage(
            "--write-share is a share above 0 and below 1".into(),
        ));
    }
    Ok(Tuning {
        isolation: args.isolation,
        background_jobs: args.background_jobs.map(std::num::NonZeroUsize::get),
        write_share: args.write_share,
        block_align: args.block_align,
        rocksdb_options: args.rocksdb_options.clone(),
    })
}

/// A workload by its name or from its file, and what the file says of a run.
fn workload(name: &str) -> Result<(Workload, Option<FileWorkload>), Failure> {
    if !name.ends_with(".toml") {
        return Ok((Workload::named(name)?, None));
    }
    let path = Path::new(name);
    let text = InputFile::text(path, &Silent)?;
    let file = Workload::from_toml(name, &text)?;
    Ok((file.workload.clone(), Some(file)))
}

/// Makes the region of the cases, if they have one: of this many bytes, or as large as the largest
/// data ask for.
pub(super) fn make_region(
    region: Option<&Path>,
    bytes: Option<u64>,
    cases: &[Case],
    progress: &Progress,
) -> Result<(), Failure> {
    let Some(region) = region else {
        return Ok(());
    };
    let is_region = |case: &&Case| matches!(case.place, Some(RunPlace::Region(_)));
    let in_region = cases.iter().filter(is_region);
    let data = in_region.map(|case| {
        let plan = &case.plan;
        plan.records.saturating_mul(plan.workload.record_bytes())
    });
    let most = data.max().unwrap_or(0).saturating_mul(REGION_SHARE);
    bench::make_region(
        region,
        bytes.unwrap_or(most.saturating_add(REGION_SPARE)),
        progress,
    )?;
    Ok(())
}

/// Searches the settings of all cases, if that is asked for; equal cases share their trials.
pub(super) fn tune_all(
    campaign: &mut Campaign,
    cases: &mut [Case],
    args: &SearchArgs,
    seed: u64,
    progress: &Progress,
) -> Result<(), Failure> {
    let Some(trials) = args.search else {
        return Ok(());
    };
    let wanted = SearchPlan {
        trials: trials.get(),
        duration: args.search_time,
        seed,
    };
    let all = cases.len();
    for (at, case) in cases.iter_mut().enumerate() {
        campaign.tune(case, &wanted, progress)?;
        let best = case.search.as_ref().and_then(|s| s.trials.get(s.best));
        progress.say(&format!(
            "settings of run {} of {all}, {}: {}",
            at + 1,
            case.plan.engine.kind.name(),
            best.map_or_else(String::new, bench::Trial::text)
        ));
    }
    Ok(())
}

/// Searches the settings of the cases, if that is asked for, runs them in their order and prints
/// a line for each.
pub(super) fn run_all(
    cases: &mut [Case],
    args: &CaseArgs,
    global: &GlobalArgs,
    out: &Output,
    goes_on: bool,
) -> Result<Vec<RunRecord>, Failure> {
    run_and_then(cases, args, global, out, goes_on, |_, _| Vec::new()).map(|(records, _)| records)
}

/// The same, and then those cases that follow from the measurements; the records of both. If it
/// `goes_on`, a run that fails does not end the others: an engine may have too little room for the
/// largest data.
pub(super) fn run_and_then(
    cases: &mut [Case],
    args: &CaseArgs,
    global: &GlobalArgs,
    out: &Output,
    goes_on: bool,
    then: impl FnOnce(&[Case], &[RunRecord]) -> Vec<Case>,
) -> Result<(Vec<RunRecord>, Vec<RunRecord>), Failure> {
    let records_pages = |case: &Case| case.plan.engine.space.trace.is_some();
    if args.trace.is_some() && !cases.iter().any(records_pages) {
        return Err(Failure::Usage(
            "--trace records which pages Isobath writes, and no run is of Isobath".into(),
        ));
    }
    let plans = cases.iter().map(|case| &case.plan);
    let plans = plans.filter(|plan| !plan.keep).map(|plan| &plan.engine);
    let made = plans.flat_map(|engine| engine.path.iter().chain(&engine.space.log_path));
    let made: Vec<_> = made.filter(|path| !path.exists()).cloned().collect();
    let progress = Progress::in_order(global, &made)?;
    let mut campaign = match &args.out {
        Some(directory) => Campaign::open(directory)?,
        None => Campaign::in_memory(),
    }
    .with_child(child()?);
    let region_bytes = args.region_bytes.map(|bytes| bytes.0);
    make_region(args.region.as_deref(), region_bytes, cases, &progress)?;
    tune_all(&mut campaign, cases, &args.search, args.seed, &progress)?;
    let (records, mut failed) = run_in_order(&mut campaign, cases, goes_on, out, &progress)?;
    let then = then(cases, &records);
    let (more, _) = run_in_order(&mut campaign, &then, false, out, &progress)?;
    progress.clear();
    if records.is_empty() && !failed.is_empty() {
        // The first error is the answer; others are told if they say something else.
        let first = failed.remove(0).error;
        failed.retain(|other| other.error.to_string() != first.to_string());
        failed.iter().for_each(FailedRun::tell);
        return Err(first.into());
    }
    failed.iter().for_each(FailedRun::tell);
    if let Some(directory) = &args.out {
        bench::write_csv(directory, &[&records[..], &more].concat())?;
    }
    Ok((records, more))
}

/// A run that failed where the others go on.
pub(super) struct FailedRun {
    /// Which one.
    run: String,
    error: LabError,
}

impl FailedRun {
    pub(super) fn tell(&self) {
        let said = format!("{}: {}", self.run, self.error);
        eprintln!("isobath: {}", isobath_lab::escape(said.as_bytes()));
    }
}

/// The run in messages: its row if it has one, its engine, its data.
fn named(case: &Case) -> String {
    let plan = &case.plan;
    let engine = plan.engine.kind.name();
    match &case.row {
        Some(row) => format!("{row}, {engine}"),
        None => {
            let bytes = plan.records * plan.workload.record_bytes();
            format!("{engine}, {} of data", size(bytes))
        }
    }
}

/// The records of the runs, and the runs that failed while the others went on. The same command
/// tries these again later.
pub(super) fn run_in_order(
    campaign: &mut Campaign,
    cases: &[Case],
    goes_on: bool,
    out: &Output,
    progress: &Progress,
) -> Result<(Vec<RunRecord>, Vec<FailedRun>), Failure> {
    let (mut records, mut failed) = (Vec::new(), Vec::new());
    let mut time_left = TimeLeft::of(cases.len());
    for (at, case) in cases.iter().enumerate() {
        time_left.begin();
        let (record, how) = match campaign.run(case, progress) {
            Ok(Outcome::Ran(record)) => (record, time_left.ran()),
            Ok(Outcome::Known(record)) => {
                time_left.skip();
                (record, "from the earlier session".to_owned())
            }
            Err(error) if goes_on && !ends_all(&error) => {
                time_left.skip();
                let run = format!("run {} of {}, {}", at + 1, cases.len(), named(case));
                failed.push(FailedRun { run, error });
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if cases.len() > 1 && !out.json() {
            progress.say(&format!(
                "run {} of {}: {} {}, {} of data, {}: {} op/s, p99 {} µs; {how}",
                at + 1,
                cases.len(),
                record.side(),
                record.heading(),
                size(record.data_bytes),
                record.setting.medium,
                count(record.operations_per_s.round() as u64),
                count(record.latency_us_p99.round() as u64)
            ));
        }
        records.push(*record);
    }
    Ok((records, failed))
}

/// Whether an error would meet the other runs, too.
fn ends_all(error: &LabError) -> bool {
    matches!(
        error,
        LabError::Interrupted
            | LabError::Engine(isobath::Error::Interrupted)
            | LabError::NoSpace { .. }
            | LabError::NotBuilt { .. }
    )
}

pub(crate) fn run(args: &RunArgs, global: &GlobalArgs, out: &mut Output) -> Result<(), Failure> {
    let drive = Drive {
        profile: args.profile,
        over_provisioning: args.over_provisioning,
    };
    let plan = plan(args.engine, &args.case, None, drive, &args.change)?;
    if plan.load_only {
        let made = plan.engine.path.iter().chain(&plan.engine.space.log_path);
        let made = made.filter(|path| !path.exists());
        let ours: Vec<_> = made.filter(|_| !plan.keep).cloned().collect();
        let progress = Progress::in_order(global, &ours)?;
        let report = bench::run(&plan, &progress)?;
        progress.clear();
        let load = report.load.iter();
        return load.clone().try_for_each(|load| match out.json() {
            true => out.document(load),
            false => print_load(load, out),
        });
    }
    let case = Case {
        place: place(&args.case)?,
        ..Case::new(plan, 0, 0)
    };
    let records = run_all(&mut [case], &args.case, global, out, false)?;
    print(&records, out)
}

/// Adds the plan with each number of clients and each fill factor that is asked for.
fn vary(plan: &Plan, args: &SweepArgs, plans: &mut Vec<Plan>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let clients = args.clients.iter().map(|clients| Some(clients.get()));
    let clients: Vec<Option<usize>> = match args.clients.is_empty() {
        true => vec![None],
        false => clients.collect(),
    };
    let fills: Vec<Option<f64>> = match plan.engine.kind {
        EngineKind::Isobath if !args.fill_factors.is_empty() => {
            args.fill_factors.iter().copied().map(Some).collect()
        }
        _ => vec![None],
    };
    for &clients in &clients {
        for &fill in &fills {
            let mut plan = plan.clone();
            if let Some(clients) = clients {
                plan.engine.tasks_per_worker = clients;
                plan.engine.threads = clients * cores;
            }
            plan.engine.space.fill_factor = fill;
            plans.push(plan);
        }
    }
}

pub(crate) fn sweep(
    args: &SweepArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let whole = match (args.case.simulated, args.case.bytes) {
        (Some(capacity), _) => capacity.0,
        (None, bytes) => bytes.map_or(DEFAULT_BYTES, |bytes| bytes.0),
    };
    if args
        .sizes
        .iter()
        .any(|share| !(*share > 0.0 && *share <= 1.0))
    {
        return Err(Failure::Usage(
            "--sizes are shares above 0, at most 1".into(),
        ));
    }
    // Without a simulated drive there is nothing to set of it.
    let is_simulated = args.case.simulated.is_some();
    let mut drives = Vec::new();
    for &profile in &args.profiles {
        for &over_provisioning in &args.over_provisioning {
            drives.push(Drive {
                profile,
                over_provisioning,
            });
        }
    }
    drives.truncate(if is_simulated { drives.len() } else { 1 });
    let mut plans = Vec::new();
    for &engine in &args.engines {
        for share in &args.sizes {
            for &drive in &drives {
                let bytes = (whole as f64 * share) as u64;
                let changes = ChangeArgs::default();
                let plan = plan(engine, &args.case, Some(bytes), drive, &changes)?;
                vary(&plan, args, &mut plans);
            }
        }
    }
    // One cache for all sizes, as a machine has one memory: a cache that grows with the data makes
    // all of them the same.
    if args.case.pool.is_none() {
        let pool = plans.iter().map(|plan| plan.engine.pool_bytes).max();
        let pool = pool.unwrap_or(POOL_MIN);
        plans
            .iter_mut()
            .for_each(|plan| plan.engine.pool_bytes = pool);
    }
    let place = place(&args.case)?;
    let order = bench::schedule(plans.len(), 1, args.case.seed);
    let mut cases: Vec<Case> = order
        .into_iter()
        .map(|(round, side)| Case {
            place: place.clone(),
            ..Case::new(plans[side].clone(), side, round)
        })
        .collect();
    let records = run_all(&mut cases, &args.case, global, out, true)?;
    print(&records, out)?;
    match records.len() == cases.len() {
        true => Ok(()),
        false => Err(LabError::Verify(format!(
            "{} of {} runs failed; the same command tries them again",
            cases.len() - records.len(),
            cases.len()
        ))
        .into()),
    }
}

pub(crate) fn cost(args: &CostArgs, out: &mut Output) -> Result<(), Failure> {
    if !(args.rate.is_finite() && args.rate > 0.0 && args.data.0 > 0) {
        return Err(Failure::Usage(
            "--data and --rate are numbers above 0".to_owned(),
        ));
    }
    let records = Campaign::read(&args.campaign)?;
    let needs = bench::needs(&records, args.data.0 as f64, args.rate);
    if needs.is_empty() {
        return Err(Failure::Usage(
            "no engine ran as fast as it could in this campaign, so it does not say what a drive can serve".to_owned(),
        ));
    }
    out.sheet(&Sheet::of(
        &needs,
        &[
            ("row", |need| need.row.clone()),
            ("side", |need| need.side.clone()),
            ("drives needed (modelled)", |need| match need.drives {
                Some(drives) => count(drives),
                None if need.violated.is_empty() => "none is enough".to_owned(),
                None => format!("not known: {}", Pitfall::names(&need.violated)),
            }),
        ],
    ))?;
    match needs.iter().all(|need| !need.violated.is_empty()) {
        true => Err(Failure::Usage(
            "every row commits a pitfall, so no number of drives follows from this campaign; `isobath bench report` says what to do about each".to_owned(),
        )),
        false => Ok(()),
    }
}

pub(crate) fn report(args: &ReportArgs, out: &mut Output) -> Result<(), Failure> {
    let records = Campaign::read(&args.campaign)?;
    let mut jobs = Vec::new();
    for path in &args.fio {
        jobs.extend(bench::read_fio(path)?);
    }
    let failed = Campaign::read_failed(&args.campaign)?;
    write_whole(&args.html, &bench::html(&records, &jobs, &failed))?;
    if let Some(directory) = &args.charts {
        std::fs::create_dir_all(directory).map_err(LabError::io("make", directory))?;
        for (name, svg) in bench::svg_charts(&records) {
            write_whole(&directory.join(name + ".svg"), &svg)?;
        }
    }
    bench::write_csv(&args.campaign, &records)?;
    bench::write_summary(&args.campaign, &records)?;
    if let Some(left_out) = bench::fio_left_out(&jobs) {
        out.paragraph(&isobath_lab::escape(left_out.as_bytes()))?;
    }
    out.line(&format!(
        "{} runs in {}",
        records.len(),
        args.html.display()
    ))
}

/// Whether every pitfall was caught.
pub(crate) fn self_test(
    args: &SelfTestArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<bool, Failure> {
    let progress = Progress::in_order(global, &[])?;
    let caught = bench::self_test(args.longest, &progress)?;
    progress.clear();
    let all = caught.iter().filter(|one| one.is_caught).count();
    if out.json() {
        caught.iter().try_for_each(|one| out.document(one))?;
        return Ok(all == caught.len());
    }
    let row = |one: &Caught| {
        let is_caught = if one.is_caught { "caught" } else { "missed" }.to_owned();
        let how = format!("committed: {}; avoided: {}", one.verdict, one.control);
        vec![one.fault.to_owned(), is_caught, how]
    };
    out.table(&[], &caught.iter().map(row).collect::<Vec<_>>(), false)?;
    out.line(&format!("{all} of {} faults were caught", caught.len()))?;
    Ok(all == caught.len())
}

pub(crate) fn workloads(out: &mut Output) -> Result<(), Failure> {
    let all = Workload::all();
    if out.json() {
        return all.iter().try_for_each(|workload| out.document(workload));
    }
    let row = |of: Workload| {
        let bytes = format!("{} + {} B", of.key_format.bytes(), of.value_bytes);
        vec![of.name, bytes, of.about]
    };
    out.table(&[], &all.into_iter().map(row).collect::<Vec<_>>(), false)
}
