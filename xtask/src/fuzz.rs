//! Starts the fuzzer, a program of its own: it depends on every crate that reads files.

/// The fuzzer's options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A target, `list`, and options; `--help` names them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Builds and runs it; whether every case passed.
pub(crate) fn run(args: &Args) -> bool {
    let mut fuzz = crate::cargo();
    fuzz.args(["run", "--quiet", "--profile", "checked", "--package"]);
    fuzz.args(["isobath-fuzz", "--"]).args(&args.rest);
    crate::succeeds(&mut fuzz)
}
