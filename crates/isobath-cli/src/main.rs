//! The `isobath` command: parses arguments, calls `isobath-lab`, prints.

mod args;
mod commands;
mod explain;
mod failure;
mod interrupt;
mod output;
mod progress;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Cli;
use failure::Failure;

fn main() -> ExitCode {
    // A file that may not become longer is an error as others are.
    isobath_lab::ignore_file_size_signal();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come as "errors" that exit with 0.
            match error.use_stderr() && asks_for_json() {
                true => {
                    let told = error.to_string();
                    let told = told.trim_end().trim_start_matches("error: ");
                    let line = serde_json::json!({ "error": told, "exit_code": failure::USAGE });
                    eprintln!("{line}");
                }
                false => print(&error),
            }
            return ExitCode::from(if error.use_stderr() {
                failure::USAGE
            } else {
                0
            });
        }
    };
    let json = cli.global.json;
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure, json),
    }
}

/// Prints help, or the problem of the command line; characters that a terminal would act on
/// is escaped.
fn print(error: &clap::Error) {
    let is_harmless = |word: OsString| {
        let word = word.to_string_lossy();
        isobath_lab::escape_controls(&word) == word
    };
    if std::env::args_os().all(is_harmless) {
        // In colours, if possible.
        let _ = error.print();
        return;
    }
    for line in error.to_string().lines() {
        eprintln!("{}", isobath_lab::escape_controls(line));
    }
}

/// Whether a command line that cannot be understood has the option --json.
fn asks_for_json() -> bool {
    std::env::args_os()
        .take_while(|argument| argument != "--")
        .any(|argument| argument == "--json")
}

/// Prints why the command failed and answers its exit code.
fn report(failure: &Failure, json: bool) -> ExitCode {
    let code = failure.exit_code();
    match failure {
        // The reader of our output has enough: no failure.
        Failure::OutputClosed => return ExitCode::SUCCESS,
        Failure::Reported => {}
        other if json => {
            let line = serde_json::json!({ "error": other.to_string(), "exit_code": code });
            eprintln!("{line}");
        }
        other => eprintln!(
            "isobath: {}",
            isobath_lab::escape_controls(&other.to_string())
        ),
    }
    ExitCode::from(code)
}
