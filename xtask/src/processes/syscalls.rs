//! Writers whose system calls fail: a library that is preloaded interrupts
//! them, cuts them short, has one fail, or loses what was not flushed and says
//! so once. What was acknowledged must be there when the store is opened
//! again without it.
//!
//! An io_uring makes no calls that a library could intercept, so the ways to
//! the kernel are libaio and blocking calls; lost writes need the latter.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::case::{Case, Sum};
use super::plan::{Calls, End, LogPlace, Way, name};
use super::{Problem, crash, tell, watch};
use crate::random::Random;

/// The library's source.
const SHIM: &str = include_str!("../../shim/syscalls.c");

/// The environment of a process that meets these faults.
fn environment(calls: Calls, random: &mut Random) -> Vec<(&'static str, String)> {
    let seed = ("FAULTS_SEED", (1 + random.below(1 << 30)).to_string());
    let fault = match calls {
        Calls::Sound => return Vec::new(),
        Calls::Soft => ("FAULTS_SOFT", 3 + random.below(40)),
        Calls::Error => ("FAULTS_EIO", 1 + random.below(400)),
        Calls::Lost => ("FAULTS_LOSE", 1 + random.below(200)),
    };
    vec![seed, (fault.0, fault.1.to_string())]
}

/// Options of `cargo xtask syscalls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Writers to start, for each way to the kernel and each kind of fault
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// Ways to the kernel; io_uring makes no calls that can be intercepted
    #[arg(long, value_delimiter = ',', default_value = "aio,pread")]
    backends: Vec<Way>,
    /// Faults of system calls; lost writes are for blocking calls only
    #[arg(long, value_delimiter = ',', default_value = "soft,error,lost")]
    faults: Vec<Calls>,
    /// Decides the writes and the calls that fail
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the stores; by default the system's temporary directory
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// Runs processes whose system calls fail; whether every store was as it should be.
pub(crate) fn campaign(args: &Args) -> bool {
    watch(|| 0);
    let parent = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let built = tempfile::Builder::new()
        .prefix("isobath-shim-")
        .tempdir_in(&parent)
        .map_err(|error| format!("{}: {error}", parent.display()))
        .and_then(|directory| {
            let library = build(directory.path())?;
            Ok(library.map(|library| (directory, library)))
        });
    let (_directory, library) = match built {
        Ok(Some((directory, library))) => (directory, library),
        Ok(None) => return true,
        Err(problem) => {
            println!("{problem}");
            return false;
        }
    };
    let mut sound = true;
    let ways = args.backends.iter().filter(|way| {
        if **way == Way::Uring {
            println!("uring: its calls cannot be intercepted; left out");
        }
        **way != Way::Uring
    });
    let cases = ways.flat_map(|&way| args.faults.iter().map(move |&faults| (way, faults)));
    for (way, faults) in cases.filter(|case| *case != (Way::Aio, Calls::Lost)) {
        let which = format!("{}, {} faults", name(&way), name(&faults));
        sound &= tell(
            &which,
            || one_case(args, &library, way, faults),
            |sum| format!("{} writers, {} of them stopped", args.rounds, sum.stopped),
        );
    }
    sound
}

/// Compiles the library; `None` if there is no compiler.
fn build(directory: &Path) -> Result<Option<PathBuf>, Problem> {
    let (source, library) = (directory.join("syscalls.c"), directory.join("syscalls.so"));
    std::fs::write(&source, SHIM).map_err(|error| error.to_string())?;
    let compiled = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .args(["-ldl", "-lpthread"])
        .status();
    match compiled {
        Ok(status) if status.success() => Ok(Some(library)),
        Ok(status) => Err(format!("cc cannot compile the library: {status}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!(
                "skipped: there is no C compiler (cc) here, and the faults are a library in C"
            );
            Ok(None)
        }
        Err(error) => Err(format!("cc: {error}")),
    }
}

fn one_case(args: &Args, library: &Path, way: Way, calls: Calls) -> Result<Sum, Problem> {
    let (mut random, mut sum) = (Random::new(args.seed), Sum::default());
    for round in 1..=args.rounds {
        // A store of its own each time, so that it has to grow.
        let mut plan = crash::plan(args.seed + round, way, LogPlace::Volume, calls);
        let directory = args.directory.as_deref();
        let case = Case::new(directory, &plan, plan.options()?, random.clone())?;
        let mut environment = environment(calls, &mut random);
        environment.push(("LD_PRELOAD", library.display().to_string()));
        crash::next(&mut plan, &mut random);
        if plan.may_end() && random.chance(50) {
            // A store that writes nothing more says so at the latest when it is closed.
            plan.end = End::Close;
        }
        case.round(&plan, &environment, &mut sum)?;
    }
    Ok(sum)
}
