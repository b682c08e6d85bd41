//! Random sequences of use, for as long as requested: the test `sequences` of `isobath-cli`, whose
//! package builds the command.

/// Options of `cargo xtask sequences`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long new sequences are tried; 0 for one alone
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The first sequence
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the stores; by default the system's temporary directory
    #[arg(long)]
    directory: Option<std::path::PathBuf>,
}

/// Runs sequences; whether all stores held what they should.
pub(crate) fn campaign(args: &Args) -> bool {
    let mut command = crate::cargo();
    command
        .args(["test", "--quiet", "--profile", "checked"])
        .args(["--package", "isobath-cli", "--test", "sequences"])
        .args(["--", "--nocapture", "sequences_leave"])
        .env("ISOBATH_SEQUENCES_MINUTES", args.minutes.to_string())
        .env("ISOBATH_SEQUENCES_SEED", args.seed.to_string());
    if let Some(directory) = &args.directory {
        command.env("ISOBATH_SEQUENCES_DIRECTORY", directory);
    }
    crate::succeeds(&mut command)
}
