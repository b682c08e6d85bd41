//! Verbs that measure.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};

use isobath_lab::Callers;
use isobath_lab::bench::Mix;

use super::Size;
use super::campaign::{
    CampaignArgs, CompareArgs, CostArgs, ReportArgs, RunArgs, SelfTestArgs, SweepArgs,
};

/// When a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Durable {
    /// Once it is on the drive
    Synced,
    /// At once; it is on the drive 10 ms later
    Buffered,
    /// At once; it is on the drive some time later
    None,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  isobath quickstart --from ~/Documents --store /mnt/nvme/try.iso --keep")]
pub(crate) struct QuickstartArgs {
    /// Directory whose files are stored
    #[arg(long, value_name = "DIR", default_value = "/usr/share", value_hint = ValueHint::DirPath)]
    pub(crate) from: PathBuf,
    /// Where the store is made; put it on the drive to be measured
    #[arg(long, value_name = "PATH", default_value = "isobath-quickstart.iso", value_hint = ValueHint::FilePath)]
    pub(crate) store: PathBuf,
    /// Keep the store instead of removing it at the end
    #[arg(long)]
    pub(crate) keep: bool,
    /// Store at most this many bytes of files
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) cap: Size,
    /// Buffer pool; the lookups run over ten times as much data
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) pool: Size,
    /// How long the lookups run
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) duration: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) verb: BenchVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    /// One workload on one engine, with the seven verdicts
    Run(RunArgs),
    /// Two engines in interleaved repeats, and what may be said of their ratio
    Compare(CompareArgs),
    /// Dataset sizes, over-provisioning and kinds of drives
    Sweep(SweepArgs),
    /// The named rows of a campaign, each on every engine, with a report
    Campaign(CampaignArgs),
    /// Drives that a dataset and a rate need, from a campaign
    Cost(CostArgs),
    /// A campaign as one HTML page and CSV files
    Report(ReportArgs),
    /// Commit each pitfall, and faults that hide one, and see that they are caught
    SelfTest(SelfTestArgs),
    /// List the named workloads
    Workloads,
    /// Run the plan on standard input: what a run in a process of its own is
    #[command(hide = true)]
    ServeRun,
}

/// What one run may change of its workload and of the engine's store.
#[derive(Debug, Default, Args)]
pub(crate) struct ChangeArgs {
    /// Operations and their weights in place of the workload's: get, get-many, scan, update,
    /// insert; for instance get:50,update:50
    #[arg(long, value_name = "OP[:WEIGHT],...")]
    pub(crate) op: Option<Mix>,
    /// Choose records by a Zipf law with this exponent
    #[arg(long, value_name = "EXPONENT")]
    pub(crate) zipf: Option<f64>,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES")]
    pub(crate) value_bytes: Option<usize>,
    /// Keys per get-many
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<usize>,
    /// Records per scan
    #[arg(long, value_name = "N")]
    pub(crate) scan_records: Option<usize>,
    /// The pool holds everything, and everything is read into it before
    #[arg(long, conflicts_with = "pool")]
    pub(crate) in_pool: bool,
    /// Keep Isobath's store on a memory device: no drive, the CPU's own limit
    #[arg(long, conflicts_with_all = ["path", "region", "simulated"])]
    pub(crate) memory_device: bool,
    /// Keep the data, and use it where it is there already
    #[arg(long, conflicts_with_all = ["region", "simulated"])]
    pub(crate) keep: bool,
    /// Measure how long the sorted load takes and stop there
    #[arg(long, conflicts_with_all = ["region", "simulated", "out", "search", "trace"])]
    pub(crate) load_only: bool,
    /// Isobath's cleaning policy [default: the engine's own choice]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<isobath::PolicyKind>,
    /// Share of the volume that live data may fill, 0.1 to 0.9 [default: the engine's own choice]
    #[arg(long, value_name = "F")]
    pub(crate) fill_factor: Option<f64>,
    /// Size of Isobath's log [default: a quarter of the pool]
    #[arg(long, value_name = "SIZE", conflicts_with = "log_off")]
    pub(crate) log: Option<Size>,
    /// Have Isobath change large trees in their leaves, without overlays
    #[arg(long)]
    pub(crate) in_place: bool,
    /// File (made and removed again) or empty block device for Isobath's log [default: in the
    /// store's file]
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["log_off", "memory_device", "simulated"],
        value_hint = ValueHint::FilePath
    )]
    pub(crate) log_path: Option<PathBuf>,
    /// What calls Isobath [default: tasks]
    #[arg(long, value_enum)]
    pub(crate) from: Option<Callers>,
}

#[derive(Debug, Args)]
pub(crate) struct Concurrency {
    /// Workers of Isobath [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<std::num::NonZeroUsize>,
    /// Tasks per worker [default: 64; so many that there are as many clients as a workload file
    /// says]
    #[arg(long, value_name = "N")]
    pub(crate) tasks: Option<std::num::NonZeroUsize>,
    /// I/Os in flight per worker
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) depth: u32,
}
