//! Verbs that know the drive.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::Size;

#[derive(Debug, Args)]
#[command(after_help = "\
The table shows every model with its error on points that it was not fitted to; \
the one with a star is the one that predictions should be made with.

Examples:
  isobath model isobath-profile.json --html drive.html
  isobath model train.json --evaluate test.json
  isobath model --accuracy /mnt/nvme --output accuracy")]
pub(crate) struct ModelArgs {
    /// A profile that `isobath probe` wrote
    #[arg(value_name = "PROFILE", required_unless_present = "accuracy", value_hint = ValueHint::FilePath)]
    pub(crate) profile: Option<PathBuf>,
    /// Write a report with figures
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
    /// Judge the models on the points of another run of the same drive
    #[arg(long, value_name = "PROFILE", value_hint = ValueHint::FilePath)]
    pub(crate) evaluate: Option<PathBuf>,
    /// Measure how well the models predict the drive under this directory: probes 20
    /// points, then 100 others in another run, then the paper's grid for MQSSD as printed
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["profile", "html", "evaluate"], value_hint = ValueHint::DirPath)]
    pub(crate) accuracy: Option<PathBuf>,
    /// With --accuracy: 30 test points and fewer repeats
    #[arg(long, requires = "accuracy")]
    pub(crate) quick: bool,
    /// With --accuracy: go on with the profiles that an interrupted experiment left
    #[arg(long, requires = "accuracy")]
    pub(crate) resume: bool,
    /// With --accuracy: where its profiles are written
    #[arg(long, value_name = "DIRECTORY", requires = "accuracy", default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
docs/workloads holds workload files to start from; docs/advise.md explains every \
field.

Examples:
  isobath advise isobath-profile.json docs/workloads/read-mostly.toml
  isobath advise isobath-profile.json my.toml --options-file OPTIONS --html advice.html
  isobath advise --calibrate costs.json
  isobath advise isobath-profile.json my.toml --calibration costs.json")]
pub(crate) struct AdviseArgs {
    /// A profile that `isobath probe` wrote
    #[arg(value_name = "PROFILE", required_unless_present = "calibrate", value_hint = ValueHint::FilePath)]
    pub(crate) profile: Option<PathBuf>,
    /// What you run, as TOML
    #[arg(value_name = "WORKLOAD.toml", required_unless_present = "calibrate", value_hint = ValueHint::FilePath)]
    pub(crate) workload: Option<PathBuf>,
    /// Measure what Isobath takes of this machine's CPU, in memory, and what synced commits take,
    /// in a new directory beside FILE, and write it to FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "workload", "calibration", "options_file", "html"], value_hint = ValueHint::FilePath)]
    pub(crate) calibrate: Option<PathBuf>,
    /// With --calibrate: records of 128 bytes
    #[arg(
        long,
        value_name = "N",
        requires = "calibrate",
        default_value_t = 8_000_000
    )]
    pub(crate) records: u32,
    /// What --calibrate wrote, in place of the reference machine's costs
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) calibration: Option<PathBuf>,
    /// Write RocksDB's settings as an OPTIONS file that RocksDB loads
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) options_file: Option<PathBuf>,
    /// Write the advice as a page
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
PATH may be
  a directory, or a file that does not exist: a test file is made there, written \
in full with incompressible data, and removed;
  a file that exists: it is read, never written;
  a block device: it is overwritten if it is empty. One that is not empty needs \
--destroy; one in use is always refused.

Ctrl-C keeps what was measured; --resume goes on from there.

Examples:
  isobath probe /mnt/nvme --quick
  isobath probe /mnt/nvme --output train.json --seed 1
  isobath probe /mnt/nvme --seeded 100 --seed 2 --output test.json
  isobath probe /mnt/nvme --output train.json --resume")]
pub(crate) struct ProbeArgs {
    /// What is probed
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// Where the profile is written
    #[arg(short, long, value_name = "FILE", default_value = "isobath-profile.json", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// Twenty points, under a minute
    #[arg(long, conflicts_with_all = ["paper", "seeded"])]
    pub(crate) quick: bool,
    /// The grid of the MQSSD paper: k from 1 to 128, r from 0.1% to 100%, reads and writes
    #[arg(long, conflicts_with = "seeded")]
    pub(crate) paper: bool,
    /// N points drawn from the seed: what models are judged on
    #[arg(long, value_name = "N")]
    pub(crate) seeded: Option<usize>,
    /// Bytes of the test file, or of the file or device that are used [default: 4GiB, 1GiB with --quick]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<Size>,
    /// Deepest queue tried
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_depth: u32,
    /// Half width of the 95% confidence interval that repeats aim at, in percent [default: 5, 10
    /// with --quick]
    #[arg(long, value_name = "PERCENT")]
    pub(crate) confidence: Option<f64>,
    /// How long one repeat of a point measures [default: 600ms, 400ms with --quick]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) slice: Option<Duration>,
    /// Most repeats of a point [default: 6, 3 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) repeats: Option<u32>,
    /// Seed of order, offsets and drawn points
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write twice the size at random first, so that writes are measured in steady state
    #[arg(long)]
    pub(crate) precondition: bool,
    /// Overwrite a block device that is not empty
    #[arg(long)]
    pub(crate) destroy: bool,
    /// Go on with an interrupted probe whose profile is at --output
    #[arg(long)]
    pub(crate) resume: bool,
    /// Say what would be done and how long it would take, and stop
    #[arg(long)]
    pub(crate) estimate: bool,
}
