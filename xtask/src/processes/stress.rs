//! Everything that a store offers, at once: stores with plans that are drawn.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use isobath::{Backend, Options, Store};

use super::case::{Case, Sum};
use super::plan::{Plan, Way, name};
use super::{Problem, watch};
use crate::random::Random;

/// Rounds of one store before the next is made.
const ROUNDS: u64 = 5;

/// Options of `cargo xtask stress`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long, about: the round that runs then is the last
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Operations until the store is closed or its process killed, about
    #[arg(long, default_value_t = 10_000)]
    operations: u64,
    /// The first store's seed; the next ones follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of data, about; suffixes K, M, G
    #[arg(long, default_value = "16M", value_parser = bytes)]
    size: u64,
    /// Fixes some drawn settings, as they are printed: backend=aio,threads=16
    #[arg(long, default_value = "")]
    mode: String,
    /// Directory of the stores; by default the system's temporary directory
    #[arg(long)]
    directory: Option<PathBuf>,
}

fn bytes(text: &str) -> Result<u64, Problem> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        other => return Err(format!("{other:?} is no unit")),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{e}"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| "too much".to_owned())
}

/// Stresses stores; whether all were as they should be.
pub(crate) fn campaign(args: &Args) -> bool {
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(args.minutes * 60.0);
    watch(|| 0);
    let (mut sum, mut refused) = (Sum::default(), Vec::new());
    let mut seed = args.seed;
    while Instant::now() < end {
        if let Err(problem) = one_store(args, seed, end, &mut refused, &mut sum) {
            println!("FAILED: seed {seed}, {problem}");
            println!(
                "again: cargo xtask stress --seed {seed} --size {} --operations {} --mode '{}'",
                args.size, args.operations, args.mode
            );
            return false;
        }
        seed += 1;
    }
    println!(
        "{} stores, {} rounds, {} operations acknowledged, {} open, {} copies restored, \
         {} readers: all as they should be; {:.0} s",
        sum.stores,
        sum.rounds,
        sum.acknowledged,
        sum.open,
        sum.copies,
        sum.readers,
        begin.elapsed().as_secs_f64()
    );
    true
}

fn one_store(
    args: &Args,
    seed: u64,
    end: Instant,
    refused: &mut Vec<Way>,
    sum: &mut Sum,
) -> Result<(), Problem> {
    let mut random = Random::new(seed);
    let mut draw = || Plan::draw(seed, args.size, args.operations, &mut random).fixed(&args.mode);
    let first = draw()?;
    let options = first.options()?.backend(Backend::Auto);
    let directory = args.directory.as_deref();
    let mut case = Case::new(directory, &first, options, Random::new(seed ^ 0x636173))?;
    sum.stores += 1;
    for round in 1..=ROUNDS {
        let mut plan = draw()?.on_store_of(&first).fixed(&args.mode)?;
        use_what_works(&mut plan, refused);
        println!("seed {seed}, round {round}: {plan}");
        case = case.round(&plan, &[], sum)?;
        if Instant::now() >= end {
            break;
        }
    }
    Ok(())
}

/// Another way to the kernel, if this machine refuses one.
fn use_what_works(plan: &mut Plan, refused: &mut Vec<Way>) {
    if !refused.contains(&plan.backend)
        && let Err(error) = probe(plan.backend)
    {
        println!("{}: {error}; pread instead", name(&plan.backend));
        refused.push(plan.backend);
    }
    if refused.contains(&plan.backend) {
        plan.backend = Way::Pread;
    }
}

/// Whether this machine has a way to the kernel.
pub(super) fn probe(way: Way) -> Result<(), Problem> {
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let options = Options::new().pool_bytes(4 << 20).workers(1);
    let options = options.backend(way.backend()).tasks_per_worker(8);
    let store = Store::create(&[place.path().join("probe.isobath")], &options);
    let store = store.map_err(|error| error.to_string())?;
    store.close().map_err(|error| error.to_string())
}
