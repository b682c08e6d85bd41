//! Whole stores in one thread, on a drive that fails, in an order that a seed
//! draws: and whether any correct store could have answered so.

mod actor;
mod canary;
pub(crate) mod plan;
mod recorder;
mod run;
mod state;

use std::time::{Duration, Instant};

use canary::{KNOWN, Known};
use isobath::Canary;
use plan::{FaultKind, Scenario};
use run::{Failure, Report, run};

/// Options of `cargo xtask simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Only this seed, and say what it does
    #[arg(long)]
    seed: Option<u64>,
    /// The kinds of faults that may occur; by default all
    #[arg(long, value_delimiter = ',')]
    faults: Option<Vec<FaultKind>>,
    /// No faults at all
    #[arg(long, conflicts_with = "faults")]
    no_faults: bool,
    /// Stop after this many minutes
    #[arg(long)]
    minutes: Option<f64>,
    /// Switch on a known bug, which must be found; `all` tries each of them
    #[arg(long, value_name = "NAME")]
    canary: Option<String>,
    /// Run every n-th seed twice and compare the traces
    #[arg(long, default_value_t = 10)]
    repeat_every: u64,
}

impl Args {
    fn kinds(&self) -> Vec<FaultKind> {
        if self.no_faults {
            return Vec::new();
        }
        let all = <FaultKind as clap::ValueEnum>::value_variants();
        self.faults.clone().unwrap_or_else(|| all.to_vec())
    }
}

/// Runs the campaign; whether every seed passed.
pub(crate) fn campaign(args: &Args) -> bool {
    match &args.canary {
        Some(name) => canaries(name, args.from),
        None => seeds(args),
    }
}

/// Looks for known bugs; whether all were found.
fn canaries(name: &str, from: u64) -> bool {
    if name == "all" {
        let missed = KNOWN.iter().filter(|known| !known.hunt(from)).count();
        return missed == 0;
    }
    let Some(known) = Known::named(name) else {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        println!(
            "no known bug has the name {name:?}; there are all, {}",
            names.join(", ")
        );
        return false;
    };
    known.hunt(from)
}

fn seeds(args: &Args) -> bool {
    let kinds = args.kinds();
    let (from, seeds) = args.seed.map_or((args.from, args.seeds), |seed| (seed, 1));
    let begin = Instant::now();
    let limit = args.minutes.map(|m| Duration::from_secs_f64(60.0 * m));
    let mut total = Totals::default();
    for seed in from..from.saturating_add(seeds) {
        if limit.is_some_and(|limit| begin.elapsed() > limit) {
            break;
        }
        let scenario = Scenario::draw(seed, &kinds);
        if args.seed.is_some() {
            println!("{scenario:#?}");
        }
        let outcome = isolated(scenario.clone());
        if outcome.is_ok() && seed.is_multiple_of(args.repeat_every.max(1)) {
            let again = isolated(scenario);
            if again.as_ref().ok() != outcome.as_ref().ok() {
                println!("seed {seed}: does not repeat itself:\n{outcome:?}\n{again:?}");
                total.failed.push(seed);
            }
        }
        match outcome {
            Ok(report) => {
                if args.seed.is_some() {
                    println!("seed {seed}: trace {:016x}\n{report:#?}", report.hash);
                }
                total.add(&report);
            }
            Err(failure) => {
                println!("seed {seed} FAILED:\n{failure}\n");
                total.failed.push(seed);
            }
        }
    }
    total.print(begin.elapsed());
    total.failed.is_empty()
}

/// Runs a scenario in a thread of its own, whose state dies with it.
fn isolated(scenario: Scenario) -> Result<Report, Failure> {
    isolated_with(scenario, None)
}

/// The same, with a known bug.
fn isolated_with(scenario: Scenario, canary: Option<Canary>) -> Result<Report, Failure> {
    let thread = std::thread::Builder::new()
        .name(format!("seed {}", scenario.seed))
        .spawn(move || {
            if let Some(canary) = canary {
                canary.switch_on();
            }
            run(scenario)
        });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Failure::of(format!("a panic: {}", run::message(&*panic)))),
        Err(error) => Err(Failure::of(format!("no thread for a seed: {error}"))),
    }
}

/// Sums over a campaign.
#[derive(Default)]
struct Totals {
    passed: u64,
    failed: Vec<u64>,
    sum: Report,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.passed += 1;
        let sum = &mut self.sum;
        sum.operations += report.operations;
        sum.ios += report.ios;
        sum.crashes += report.crashes;
        sum.interruptions += report.interruptions;
        sum.checks += report.checks;
        sum.refused += report.refused;
        sum.unreadable += report.unreadable;
        for (name, count) in &report.errors {
            *sum.errors.entry(name).or_default() += count;
        }
    }

    fn print(&self, took: Duration) {
        let seconds = took.as_secs_f64().max(1e-9);
        let all = self.passed + self.failed.len() as u64;
        println!(
            "{} seeds passed, {} failed, in {seconds:.1} s ({:.0} seeds per minute)",
            self.passed,
            self.failed.len(),
            all as f64 * 60.0 / seconds
        );
        let sum = &self.sum;
        println!(
            "{} operations, {} I/Os, {} power cuts and {} more during recovery, {} checks, \
             {} runs ended by detected damage, {} records unreadable",
            sum.operations,
            sum.ios,
            sum.crashes,
            sum.interruptions,
            sum.checks,
            sum.refused,
            sum.unreadable
        );
        println!("expected errors: {:?}", sum.errors);
        if !self.failed.is_empty() {
            println!(
                "failed: {:?}; `cargo xtask simulate --seed N` repeats one",
                self.failed
            );
        }
    }
}
