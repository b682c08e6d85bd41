//! Kills processes while they write, on each way to the kernel.

use std::path::PathBuf;

use super::case::{Case, Sum};
use super::plan::{Calls, End, LogPlace, Plan, Wait, Way, name};
use super::stress::probe;
use super::{Problem, tell, watch};
use crate::random::Random;

/// Most operations of a process before it is killed.
const LONGEST: u64 = 1000;

/// Options of `cargo xtask crash`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Writers to kill, for each way to the kernel
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Ways to the kernel; those that this machine refuses are named and left out
    #[arg(long, value_delimiter = ',', default_value = "uring,aio,pread")]
    backends: Vec<Way>,
    /// Decides the writes and when writers are killed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Place of the log
    #[arg(long, value_delimiter = ',', default_value = "volume,separate")]
    logs: Vec<LogPlace>,
    /// Directory of the stores; by default the system's temporary directory
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// A plan of short rounds that end by a kill, of a store in which everything happens often.
pub(super) fn plan(seed: u64, backend: Way, log: LogPlace, calls: Calls) -> Plan {
    Plan {
        log,
        backend,
        calls,
        files: 1,
        full: false,
        small: false,
        threads: 8,
        spills: false,
        workers: 2,
        pool_mib: 4,
        cores: 0,
        durability: Wait::Synced,
        end: End::Kill,
        ..Plan::draw(seed, 1 << 20, 0, &mut Random::new(seed))
    }
}

/// When the process of the next round is killed.
pub(super) fn next(plan: &mut Plan, random: &mut Random) {
    plan.operations = 1 + random.below(LONGEST);
    plan.end = match random.chance(15) {
        true => End::KillOpening,
        false => End::Kill,
    };
}

/// Kills writers; whether every store was as it should be.
pub(crate) fn campaign(args: &Args) -> bool {
    watch(|| 0);
    let mut sound = true;
    for &way in &args.backends {
        if let Err(error) = probe(way) {
            println!("{}: {error}; left out", name(&way));
            continue;
        }
        for &log in &args.logs {
            let which = format!("{}, log {}", name(&way), name(&log));
            sound &= tell(
                &which,
                || one_way(args, way, log),
                |sum| {
                    format!(
                        "{} writers killed, {} of them while opening; slowest opening {:.0} ms",
                        args.rounds,
                        sum.while_opening,
                        sum.slowest_opening.as_secs_f64() * 1e3
                    )
                },
            );
        }
    }
    sound
}

fn one_way(args: &Args, way: Way, log: LogPlace) -> Result<Sum, Problem> {
    let mut plan = plan(args.seed, way, log, Calls::Sound);
    let (mut random, mut sum) = (Random::new(args.seed), Sum::default());
    let directory = args.directory.as_deref();
    let mut case = Case::new(directory, &plan, plan.options()?, random.clone())?;
    for _ in 0..args.rounds {
        next(&mut plan, &mut random);
        case = case.round(&plan, &[], &mut sum)?;
    }
    Ok(sum)
}
