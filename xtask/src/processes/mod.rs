//! Clients as real threads of real processes, on real files: until the store is closed or the
//! process killed; then the store is judged by the process's journal, and so are backups and
//! readers of that time.

mod case;
pub(crate) mod crash;
pub(crate) mod journal;
mod plan;
pub(crate) mod stress;
pub(crate) mod syscalls;
pub(crate) mod worker;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A problem, in sentences.
pub(crate) type Problem = String;

/// Options of the processes that work on a store or read it.
#[derive(Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    round: u64,
    /// A plan, as it is printed
    #[arg(long)]
    plan: String,
}

/// This program as a process that works on a store or reads it.
fn this(verb: &str, directory: &Path, round: u64, plan: &plan::Plan) -> Result<Command, Problem> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut process = Command::new(this);
    process.arg(verb).arg("--directory").arg(directory);
    process.args(["--round", &round.to_string(), "--plan", &plan.to_string()]);
    Ok(process)
}

/// Runs a case; whether all was as it should be, which is said with `said` of its sums.
fn tell(
    which: &str,
    run: impl FnOnce() -> Result<case::Sum, Problem>,
    said: impl FnOnce(&case::Sum) -> String,
) -> bool {
    let begin = Instant::now();
    match run() {
        Ok(sum) => {
            let (acknowledged, open) = (sum.acknowledged, sum.open);
            let seconds = begin.elapsed().as_secs_f64();
            println!(
                "{which}: {}; {acknowledged} operations acknowledged, {open} open; {seconds:.1} s",
                said(&sum)
            );
            true
        }
        Err(problem) => {
            println!("{which} FAILED:\n{problem}");
            false
        }
    }
}

/// How long a process may go without progress.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Steps of this process outside clients.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// This process makes progress.
fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the process once neither `progress` nor the number of steps changes for long.
fn watch(progress: impl Fn() -> usize + Send + 'static) {
    std::thread::spawn(move || {
        let (mut last, mut since) = ((0, 0), Instant::now());
        while since.elapsed() < MAX_WAIT {
            std::thread::sleep(Duration::from_secs(1));
            let now = (progress(), STEPS.load(Ordering::Relaxed));
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        eprintln!("no progress for {} s", MAX_WAIT.as_secs());
        // A debugger, if there is one, says more.
        let process = std::process::id().to_string();
        let printed = Command::new("gdb")
            .args(["-p", &process, "-batch", "-ex", "thread apply all bt 16"])
            .status();
        if let Err(error) = printed {
            eprintln!("no debugger says where the threads stand: {error}");
        }
        std::process::exit(3)
    });
}
