//! The repository's own tools: `cargo xtask --help`.

mod data;
mod history;
mod random;
mod simulate;

use std::process::ExitCode;

use clap::Parser;

/// The repository's own tools.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask")]
enum Command {
    /// Run stores on a simulated drive that fails, and judge their answers
    Simulate(simulate::Args),
}

fn main() -> ExitCode {
    let passed = match Command::parse() {
        Command::Simulate(args) => simulate::campaign(&args),
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
