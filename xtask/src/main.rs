//! The repository's own tools: `cargo xtask --help`.

mod api;
mod capi;
mod crash;
mod data;
mod fuzz;
mod history;
mod random;
#[cfg(test)]
mod results;
mod sequences;
mod simulate;
mod stress;

use std::process::ExitCode;

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
    /// Say which campaign makes which call of the engine's interface
    Calls(api::Args),
    /// Kill processes that write, and judge what they leave
    Crash(crash::Args),
    /// Have system calls of processes that write fail, and judge what they leave
    Syscalls(crash::syscalls::Args),
    /// Take random sequences of commands and calls, each in a store opened anew
    Sequences(sequences::Args),
    /// Use everything at once with real threads and files, close or kill, and compare
    Stress(stress::Args),
    /// Feed mutated files to everything that reads files (`cargo xtask fuzz --help`)
    #[command(disable_help_flag = true)]
    Fuzz(fuzz::Args),
    /// Work until stopped or killed (what `stress` starts)
    #[command(hide = true)]
    StressWorker(stress::WorkerArgs),
    /// Read a store beside its writer (what `stress` starts)
    #[command(hide = true)]
    StressReader(stress::ReaderArgs),
    /// Write until killed (what `crash` starts)
    #[command(hide = true)]
    CrashWriter(crash::WriterArgs),
}

fn main() -> ExitCode {
    let passed = match Command::parse() {
        Command::Capi(args) => capi::run(&args),
        Command::Simulate(args) => simulate::campaign(&args),
        Command::Canaries(args) => simulate::canaries::campaign(&args),
        Command::Calls(args) => api::calls(&args),
        Command::Crash(args) => crash::campaign(&args),
        Command::Syscalls(args) => crash::syscalls::campaign(&args),
        Command::Sequences(args) => sequences::campaign(&args),
        Command::Stress(args) => stress::campaign(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::StressWorker(args) => stress::work(&args),
        Command::StressReader(args) => stress::read(&args),
        Command::CrashWriter(args) => crash::write(&args),
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
