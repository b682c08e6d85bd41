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

use std::path::PathBuf;
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
        let printed = std::process::Command::new("gdb")
            .args(["-p", &process, "-batch", "-ex", "thread apply all bt 16"])
            .status();
        if let Err(error) = printed {
            eprintln!("no debugger says where the threads stand: {error}");
        }
        std::process::exit(3)
    });
}
