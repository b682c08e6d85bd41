//! Feeds mutated inputs to everything that reads bytes of others: `cargo xtask fuzz --help`.
//!
//! A *target* is a reader with some valid inputs. A *case* is one of these inputs and a list of
//! mutations, both drawn from a number: the same number makes the same case. If the format has
//! checksums, a mutated piece is sealed again, so that the mutation gets past them. A case fails if
//! any thread panics, if it takes longer than [`MAX_SECONDS`], or if it allocates far more than the
//! valid input does. An error as the answer is a pass.

mod case;
mod guard;
mod piece;
mod targets;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use case::Case;
use clap::Parser;
use targets::{Input, Target};

#[global_allocator]
static HEAP: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

/// Seconds after which a case counts as hung.
const MAX_SECONDS: u64 = 120;
/// How many times the heap that the valid input takes a case may take, beside [`HEAP_SLACK`].
const HEAP_FACTOR: usize = 4;
/// Bytes of heap that any case may take.
const HEAP_SLACK: usize = 64 << 20;

/// Feed mutated files to everything that reads files
#[derive(Debug, Parser)]
#[command(name = "fuzz", bin_name = "cargo xtask fuzz")]
struct Args {
    /// What to fuzz [default: every target in turn]; `list` names them
    target: Option<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// First case's number; the following cases have the following numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cases of each target; without it as many as the time allows
    #[arg(long)]
    cases: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let all = targets::all();
    if args.target.as_deref() == Some("list") {
        for target in &all {
            println!("{:12} {}", target.name, target.about);
        }
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&Target> = all
        .iter()
        .filter(|target| args.target.as_ref().is_none_or(|name| name == target.name))
        .collect();
    if chosen.is_empty() {
        eprintln!("there is no such target; `list` names those that exist");
        return ExitCode::FAILURE;
    }
    guard::install();
    let mut passed = true;
    for target in chosen {
        passed &= fuzz(target, &args);
    }
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs cases of one target; whether all passed.
fn fuzz(target: &Target, args: &Args) -> bool {
    let inputs = (target.inputs)();
    let mut most = 0;
    for (number, input) in inputs.iter().enumerate() {
        match guard::run(target, &input.bytes, usize::MAX) {
            Ok(heap) => most = most.max(heap),
            Err(failure) => {
                eprintln!("{}: valid input {number}: {failure}", target.name);
                return false;
            }
        }
    }
    let limit = most * HEAP_FACTOR + HEAP_SLACK;
    let until = Instant::now() + Duration::from_secs_f64(args.seconds);
    let mut done = 0;
    while args
        .cases
        .map_or(Instant::now() < until, |cases| done < cases)
    {
        let number = args.seed.wrapping_add(done);
        let Some(case) = Case::of(number, &inputs) else {
            eprintln!("{}: no valid input", target.name);
            return false;
        };
        if let Err(failure) = run(target, &inputs, number, &case, limit) {
            let least = smallest(target, &inputs, number, case, limit);
            eprintln!(
                "{}: case {number} fails: {failure}\n{least:#?}\nagain: cargo xtask fuzz {} --seed {number} --cases 1",
                target.name, target.name
            );
            return false;
        }
        done += 1;
    }
    println!("{}: {done} cases passed", target.name);
    true
}

fn run(
    target: &Target,
    inputs: &[Input],
    number: u64,
    case: &Case,
    limit: usize,
) -> Result<usize, String> {
    let bytes = case.bytes(inputs);
    guard::begin(target.name, number);
    guard::run(target, &bytes, limit)
}

/// The case without the mutations that it fails without as well.
fn smallest(target: &Target, inputs: &[Input], number: u64, mut case: Case, limit: usize) -> Case {
    let mut at = 0;
    while at < case.mutations.len() {
        let mut shorter = case.clone();
        shorter.mutations.remove(at);
        if run(target, inputs, number, &shorter, limit).is_err() {
            case = shorter;
        } else {
            at += 1;
        }
    }
    case
}
