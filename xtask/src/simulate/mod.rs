//! Whole stores in one thread, on a drive that fails, in an order that a seed
//! draws: and whether any correct store could have answered so.

mod backups;
mod beside;
pub(crate) mod canaries;
mod every_place;
mod exhaustive;
mod reopen;
mod run;
mod stream;
mod superblocks;
mod switching;
mod watch;

use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use isobath::Canary;
use run::{Failure, Report, run};
use switching::Wanted;

use crate::clients::plan::{FaultKind, Scenario, Shape};
use crate::clients::records::message;

/// Seeds of a campaign without a limit.
const DEFAULT_SEEDS: u64 = 100;
/// Most seeds that one process runs: each power cut leaves the stacks of tasks behind, which no
/// code can unwind.
const PART: u64 = 1000;

/// Options of `cargo xtask simulate`.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Args {
    /// How many seeds to run, 1,000 to a process; 100, or as many as `--minutes` allows
    #[arg(long)]
    seeds: Option<u64>,
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
    /// Cut the power of short runs at every I/O, and of recoveries too
    #[arg(long)]
    exhaustive: bool,
    /// Hold a worker or task back in short runs, for long, at every place in turn whose name
    /// contains this
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "")]
    every_place: Option<String>,
    /// With --exhaustive: cut every n-th recovery at each of its I/Os
    #[arg(long, default_value_t = 16)]
    interrupt_every: u64,
    /// What seeds are about; without it, and without switches, they do what they have always done
    #[arg(long, value_enum)]
    shape: Option<Shape>,
    /// Which seeds interrupt workers between two accesses to what they share
    #[arg(long, value_enum, default_value = "drawn")]
    switches: Wanted,
    /// Let clients do so many times as much
    #[arg(long, default_value_t = 1)]
    scale: u64,
    /// Run every n-th seed twice and compare the traces
    #[arg(long, default_value_t = 10)]
    repeat_every: u64,
}

impl Args {
    fn kinds(&self) -> Vec<FaultKind> {
        if self.no_faults {
            return Vec::new();
        }
        let all = FaultKind::value_variants();
        self.faults.clone().unwrap_or_else(|| all.to_vec())
    }
}

/// Runs the campaign; whether every seed passed.
pub(crate) fn campaign(args: &Args) -> bool {
    if args.exhaustive {
        // Every crash point of short runs.
        each_seed(args, |seed| {
            let coverage = exhaustive::every_io(seed, args.interrupt_every, None)?;
            Ok(format!(
                "{} I/Os, {} media after a cut, {} cuts during recovery",
                coverage.ios, coverage.images, coverage.interruptions
            ))
        })
    } else if let Some(filter) = &args.every_place {
        each_seed(args, |seed| {
            let runs = every_place::every_place(seed, filter)?;
            Ok(format!("{runs} runs, each with one long delay"))
        })
    } else if args.seed.is_none() && args.count() > PART {
        in_parts(args)
    } else {
        seeds(args)
    }
}

impl Args {
    /// Seeds to run: without a number, time alone ends a campaign that has a limit of time.
    fn count(&self) -> u64 {
        let without = self.minutes.map_or(DEFAULT_SEEDS, |_| u64::MAX);
        self.seeds.unwrap_or(without)
    }

    /// The first seed, and how many.
    fn range(&self) -> std::ops::Range<u64> {
        let (from, seeds) = self
            .seed
            .map_or((self.from, self.count()), |seed| (seed, 1));
        from..from.saturating_add(seeds)
    }

    /// The command that repeats one seed of this campaign, with all options that matter.
    fn command_of(&self, seed: u64) -> String {
        let mut words = vec![format!("cargo xtask simulate --seed {seed}")];
        let name = |value: clap::builder::PossibleValue| value.get_name().to_owned();
        if let Some(shape) = self.shape {
            words.extend(
                shape
                    .to_possible_value()
                    .map(|shape| format!("--shape {}", name(shape))),
            );
        }
        if let Some(faults) = &self.faults {
            let faults = faults.iter().filter_map(ValueEnum::to_possible_value);
            let faults: Vec<String> = faults.map(name).collect();
            words.push(format!("--faults {}", faults.join(",")));
        }
        if self.no_faults {
            words.push("--no-faults".to_owned());
        }
        if self.switches != Wanted::Drawn
            && let Some(switches) = self.switches.to_possible_value()
        {
            words.push(format!("--switches {}", name(switches)));
        }
        if self.scale != 1 {
            words.push(format!("--scale {}", self.scale));
        }
        words.join(" ")
    }
}

/// Does something long with each seed, and says what came of it; whether all went well.
fn each_seed(args: &Args, work: impl Fn(u64) -> Result<String, Failure>) -> bool {
    let mut failed = 0;
    for seed in args.range() {
        let begin = Instant::now();
        match work(seed) {
            Ok(what) => println!(
                "seed {seed}: {what}, in {:.1} s",
                begin.elapsed().as_secs_f64()
            ),
            Err(failure) => {
                println!("seed {seed} FAILED:\n{failure}\n");
                failed += 1;
            }
        }
    }
    failed == 0
}

/// Runs the seeds in processes of their own, a part in each; whether every seed passed.
fn in_parts(args: &Args) -> bool {
    let begin = Instant::now();
    let range = args.range();
    let mut passed = true;
    for first in range.clone().step_by(PART as usize) {
        let Ok(program) = std::env::current_exe() else {
            println!("this program's own file cannot be found");
            return false;
        };
        let count = PART.min(range.end - first);
        let mut part = Command::new(program);
        part.args(std::env::args_os().skip(1));
        part.args(["--from", &first.to_string(), "--seeds", &count.to_string()]);
        if let Some(minutes) = args.minutes {
            let left = minutes - begin.elapsed().as_secs_f64() / 60.0;
            if left <= 0.0 {
                break;
            }
            part.args(["--minutes", &left.to_string()]);
        }
        passed &= part.status().is_ok_and(|status| status.success());
    }
    passed
}

fn seeds(args: &Args) -> bool {
    let kinds = args.kinds();
    let begin = Instant::now();
    let limit = args.minutes.map(|m| Duration::from_secs_f64(60.0 * m));
    let mut total = Totals::default();
    for seed in args.range() {
        if limit.is_some_and(|limit| begin.elapsed() > limit) {
            break;
        }
        let mut scenario = Scenario::draw(seed, &kinds);
        scenario.operations *= args.scale.max(1);
        scenario = scenario.shaped(match args.shape {
            Some(shape) => shape,
            None if args.switches == Wanted::Off => Shape::Drawn,
            None => Shape::More,
        });
        if args.seed.is_some() {
            println!("{scenario:#?}");
        }
        let how = switching::draw(seed, args.switches);
        if args.seed.is_some() {
            println!("switches: {how:?}");
        }
        let done = switching::run_switching(scenario.clone(), None, how.clone());
        let (taken, outcome) = (done.taken(), done.outcome);
        total.switches += taken.len();
        if outcome.is_ok() && seed.is_multiple_of(args.repeat_every.max(1)) {
            let again = switching::run_switching(scenario.clone(), None, how).outcome;
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
                if !taken.is_empty() {
                    println!("{}\n", switching::explain(&scenario, None, taken));
                }
                total.failed.push(seed);
            }
        }
    }
    total.print(args, begin.elapsed());
    total.failed.is_empty()
}

/// Runs a scenario in a thread of its own, whose state is dropped with it.
#[cfg(test)]
fn isolated(scenario: Scenario) -> Result<Report, Failure> {
    in_thread(scenario.seed, None, move || run(scenario))
}

/// Does `work` in a thread of its own.
fn in_thread<T: Send + 'static>(
    seed: u64,
    canary: Option<Canary>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let thread = std::thread::Builder::new()
        .name(format!("seed {seed}"))
        .spawn(move || {
            if let Some(canary) = canary {
                canary.switch_on();
            }
            work()
        });
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Failure::of(format!("a panic: {}", message(&*panic)))),
        Err(error) => Err(Failure::of(format!("no thread for a seed: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<FaultKind> {
        FaultKind::value_variants().to_vec()
    }

    #[test]
    fn a_seed_repeats_its_run_and_another_seed_runs_otherwise() {
        let report = |seed| isolated(Scenario::draw(seed, &all())).unwrap();
        let first = report(5);
        assert!(first.counts.operations > 0 && first.counts.ios > 0);
        assert_eq!(first, report(5));
        assert_ne!(first.hash, report(6).hash);
    }

    fn args(words: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            args: Args,
        }
        let words = ["simulate"].iter().chain(words);
        <Words as clap::Parser>::try_parse_from(words).unwrap().args
    }

    #[test]
    fn what_is_said_of_a_failed_seed_repeats_it() {
        for words in [
            &[
                "--shape",
                "copied",
                "--faults",
                "power,slow",
                "--scale",
                "3",
            ][..],
            &["--no-faults", "--switches", "off"],
            &[],
        ] {
            let said = args(words).command_of(20_008);
            let again: Vec<&str> = said.split(' ').skip(3).collect();
            let again = args(&again);
            assert_eq!(again.seed, Some(20_008));
            let kept = |args: &Args| (args.shape, args.kinds(), args.switches, args.scale);
            assert_eq!(kept(&again), kept(&args(words)), "{said}");
        }
    }

    #[test]
    fn a_campaign_with_a_limit_of_time_does_not_end_after_a_hundred_seeds() {
        assert_eq!(args(&[]).count(), DEFAULT_SEEDS);
        assert_eq!(args(&["--minutes", "5"]).count(), u64::MAX);
        assert_eq!(args(&["--minutes", "5", "--seeds", "7"]).count(), 7);
    }

    #[test]
    fn shapes_make_backups_only_where_nothing_fails() {
        for seed in 20_000..20_040 {
            let scenario = Scenario::draw(seed, &all()).shaped(Shape::Copied);
            assert!(scenario.more.backups > 0);
            assert!(scenario.faults.io.is_none() && scenario.faults.corruption.is_none());
        }
    }

    #[test]
    fn some_seeds_pass_with_all_faults() {
        for seed in 1000..1020 {
            let outcome = isolated(Scenario::draw(seed, &all()));
            assert!(outcome.is_ok(), "seed {seed}:\n{}", outcome.unwrap_err());
        }
    }

    #[test]
    fn what_a_short_run_backs_up_is_restored_in_pages_as_small() {
        let runs = every_place::every_place(1, "at no place");
        assert_eq!(runs.unwrap_or_else(|failure| panic!("{failure}")), 0);
    }

    #[test]
    fn a_short_run_survives_a_cut_at_every_io() {
        let coverage = exhaustive::every_io(7, 20, None);
        let coverage = coverage.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(coverage.ios > 20 && coverage.images > 80 && coverage.interruptions > 0);
    }
}

/// Sums over a campaign.
#[derive(Default)]
struct Totals {
    passed: u64,
    failed: Vec<u64>,
    switches: usize,
    sum: Report,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.passed += 1;
        let sum = &mut self.sum;
        sum.counts.add(&report.counts);
        for (name, count) in &report.errors {
            *sum.errors.entry(name).or_default() += count;
        }
    }

    fn print(&self, args: &Args, took: Duration) {
        let seconds = took.as_secs_f64().max(1e-9);
        let all = self.passed + self.failed.len() as u64;
        println!(
            "{} seeds passed, {} failed, in {seconds:.1} s ({:.0} seeds per minute)",
            self.passed,
            self.failed.len(),
            all as f64 * 60.0 / seconds
        );
        let sum = &self.sum;
        println!("{}, {} switches", sum.counts.said(), self.switches);
        println!("expected errors: {:?}", sum.errors);
        if let [first, ..] = self.failed[..] {
            let again = args.command_of(first);
            println!("failed: {:?}; `{again}` repeats the first", self.failed);
        }
    }
}
