//! The repository's own tools: `cargo xtask --help`.

#[cfg(test)]
mod api;
mod capi;
mod clients;
mod fuzz;
mod history;
mod nvme;
mod processes;
mod random;
#[cfg(test)]
mod results;
mod sequences;
mod simulate;

use std::process::{self, ExitCode};

use clap::Parser;

/// The repository's own tools.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
enum Command {
    /// Build the libraries for C and C++, and install them
    Capi(capi::Args),
    /// Run stores on a simulated drive that fails, and judge their answers
    Simulate(simulate::Args),
    /// Plant known bugs one by one, and see whether each is found
    Canaries(simulate::canaries::Args),
    /// Kill processes that write, and judge what they leave
    Crash(processes::crash::Args),
    /// Have system calls of processes that write fail, and judge what they leave
    Syscalls(processes::syscalls::Args),
    /// Take random sequences of commands and calls, each in a store opened anew
    Sequences(sequences::Args),
    /// Use everything at once with real threads and files, close or kill, and compare
    Stress(processes::stress::Args),
    /// Feed mutated files to everything that reads files (`cargo xtask fuzz --help`)
    #[command(disable_help_flag = true)]
    Fuzz(fuzz::Args),
    /// Run the user-space NVMe driver in a virtual machine with emulated drives
    Nvme(nvme::Args),
    /// Work until told to close, or killed (what `stress`, `crash` and `syscalls` start)
    #[command(hide = true)]
    Work(processes::ProcessArgs),
    /// Read a store beside its writer (what that starts)
    #[command(hide = true)]
    Read(processes::ProcessArgs),
}

/// The cargo that runs this, or that of the path.
fn cargo() -> process::Command {
    process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a program to its end; whether it succeeds.
fn succeeds(program: &mut process::Command) -> bool {
    match program.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot start {program:?}: {error}");
            false
        }
    }
}

fn main() -> ExitCode {
    let passed = match Command::parse() {
        Command::Capi(args) => capi::run(&args),
        Command::Simulate(args) => simulate::campaign(&args),
        Command::Canaries(args) => simulate::canaries::campaign(&args),
        Command::Crash(args) => processes::crash::campaign(&args),
        Command::Syscalls(args) => processes::syscalls::campaign(&args),
        Command::Sequences(args) => sequences::campaign(&args),
        Command::Stress(args) => processes::stress::campaign(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Nvme(args) => nvme::run(&args),
        Command::Work(args) => processes::worker::work(&args),
        Command::Read(args) => processes::worker::read(&args),
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
