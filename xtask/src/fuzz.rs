//! Starts the fuzzer, a program of its own: it depends on every crate that reads files.

use std::process::Command;

/// The fuzzer's options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A target, `list`, and options; `--help` names them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Builds and runs it; whether every case passed.
pub(crate) fn run(args: &Args) -> bool {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--profile", "checked", "--package"])
        .args(["isobath-fuzz", "--"])
        .args(&args.rest)
        .status();
    match status {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot start cargo: {error}");
            false
        }
    }
}
