//! Writers whose system calls fail: a library that is preloaded interrupts
//! them, cuts them short, has one fail, or loses what was not flushed and says
//! so once. What was acknowledged must be there when the store is opened
//! again without it.
//!
//! An io_uring makes no calls that a library could intercept, so the ways to
//! the kernel are libaio and blocking calls; lost writes need the latter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use isobath::Store;

use super::{Life, Problem, Records, Sum, THREADS, Way, journal, judge, kill_one, options};
use crate::random::Random;

/// The library's source.
const SHIM: &str = include_str!("../../shim/syscalls.c");

/// Faults of a writer's system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Faults {
    /// Interrupted, EAGAIN, or short: no operation may fail
    Soft,
    /// One write or flush fails: nothing that was acknowledged is lost
    Error,
    /// Unflushed writes are lost, and each descriptor reports it once
    Lost,
}

impl Faults {
    fn name(self) -> &'static str {
        match self {
            Faults::Soft => "soft",
            Faults::Error => "error",
            Faults::Lost => "lost",
        }
    }

    /// The environment of a writer that meets them.
    fn environment(self, random: &mut Random) -> Vec<(&'static str, String)> {
        let seed = ("FAULTS_SEED", (1 + random.below(1 << 30)).to_string());
        let often = ("FAULTS_SOFT", (3 + random.below(40)).to_string());
        match self {
            Faults::Soft => vec![seed, often],
            Faults::Error => {
                let at = ("FAULTS_EIO", (1 + random.below(400)).to_string());
                vec![seed, at]
            }
            Faults::Lost => {
                let at = ("FAULTS_LOSE", (1 + random.below(200)).to_string());
                vec![seed, at]
            }
        }
    }
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
    faults: Vec<Faults>,
    /// Decides the writes and the calls that fail
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the stores; by default the system's temporary directory
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// Runs writers whose system calls fail; whether every store was as it should be.
pub(crate) fn campaign(args: &Args) -> bool {
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
    for (way, faults) in cases.filter(|case| *case != (Way::Aio, Faults::Lost)) {
        let begin = Instant::now();
        match one_case(args, &parent, &library, way, faults) {
            Ok((sum, stopped)) => println!(
                "{}, {} faults: {} writers, {stopped} of them stopped; {} commits acknowledged, {} open; {:.1} s",
                way.name(),
                faults.name(),
                args.rounds,
                sum.acknowledged,
                sum.open,
                begin.elapsed().as_secs_f64()
            ),
            Err(problem) => {
                println!(
                    "{}, {} faults FAILED:\n{problem}",
                    way.name(),
                    faults.name()
                );
                sound = false;
            }
        }
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

fn one_case(
    args: &Args,
    parent: &Path,
    library: &Path,
    way: Way,
    faults: Faults,
) -> Result<(Sum, u64), Problem> {
    let mut random = Random::new(args.seed);
    let (mut sum, mut stopped) = (Sum::default(), 0);
    for round in 1..=args.rounds {
        // A store of its own each time, so that it has to grow.
        let directory = tempfile::Builder::new()
            .prefix("isobath-syscalls-")
            .tempdir_in(parent)
            .map_err(|error| format!("{}: {error}", parent.display()))?;
        let path = directory.path().join("store.isobath");
        let store = Store::create(&[&path], &options(way));
        let store = store.map_err(|error| format!("creating: {error}"))?;
        let records = Records::new();
        let (mut known, mut created) = (BTreeMap::new(), BTreeMap::new());
        for (number, tree) in (1..).zip(&records.universe.trees) {
            store.create_tree(&tree.name).map_err(|e| e.to_string())?;
            known.insert(tree.existence, number);
            created.insert(tree.existence, vec![(number, None)]);
        }
        store.close().map_err(|error| format!("closing: {error}"))?;
        let mut environment = faults.environment(&mut random);
        environment.push(("LD_PRELOAD", library.display().to_string()));
        let life = Life {
            environment: &environment,
            may_end: faults != Faults::Soft,
        };
        let kept = |problem, directory: tempfile::TempDir| {
            let place = directory.keep();
            let how: Vec<String> = environment
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            let how = how.join(" ");
            format!(
                "round {round}: {problem}\n{how}\nthe store is in {}",
                place.display()
            )
        };
        let seed = args.seed;
        let killed = kill_one(
            directory.path(),
            &path,
            way,
            seed,
            round,
            &mut random,
            &life,
        );
        match killed {
            Ok(lived) => stopped += u64::from(lived.has_ended),
            Err(problem) => return Err(kept(problem, directory)),
        }
        keep_killed(directory.path())?;
        let history = journal::read(directory.path(), round, THREADS, known)?;
        sum.count(&history);
        if let Err(problem) = judge(&path, way, &records, &created, history, &mut sum) {
            return Err(kept(problem, directory));
        }
    }
    Ok((sum, stopped))
}

/// Copies the store and the journals as the kill has left them: judging opens the one and removes
/// the others.
fn keep_killed(directory: &Path) -> Result<(), Problem> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let killed = directory.join("killed");
    let files = std::fs::read_dir(directory).map_err(failed)?;
    let files: Vec<_> = files.collect::<Result<_, _>>().map_err(failed)?;
    std::fs::create_dir(&killed).map_err(failed)?;
    for file in files {
        std::fs::copy(file.path(), killed.join(file.file_name())).map_err(failed)?;
    }
    Ok(())
}
