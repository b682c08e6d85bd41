//! Verbs that measure.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

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
    /// Random lookups, scans, updates, inserts and sorted loads of small records
    Lookup(LookupArgs),
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

/// Which engine is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// This engine
    Isobath,
    /// The distribution's RocksDB; needs a build with --features rocksdb
    Rocksdb,
    /// The distribution's WiredTiger (GPL); needs a build with --features wiredtiger
    Wiredtiger,
    /// LMDB; needs a build with --features lmdb
    Lmdb,
    /// The crate redb; needs a build with --features redb
    Redb,
    /// The crate fjall; needs a build with --features fjall
    Fjall,
    /// No engine: what the benchmark itself costs
    Null,
    /// No engine: one read or write of 4 KiB in a file for each operation
    Drive,
}

/// The callers of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CallFrom {
    /// Tasks on the store's workers
    Tasks,
    /// Ordinary threads
    Threads,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The drive's own limit is measured on the same files before and after, at the \
same depth; only ratios within one run mean much.

A drive's host may cache: the files are read once in full before.

--op takes weights: `get`, `get-many`, `scan`, `update`, `insert`; for instance \
`--op get` or `--op get:50,update:50`.

Examples:
  isobath bench lookup --path /mnt/nvme/bench.iso
  isobath bench lookup --path /mnt/nvme/rocks --engine rocksdb --threads 128
  isobath bench lookup --path /mnt/nvme/bench.iso --rate 60000     # latency, open loop
  isobath bench lookup --memory-device --bytes 1GiB                # the CPU's limit
  isobath bench lookup --in-pool --op get-many --bytes 1GiB        # no I/O at all
  isobath bench lookup --path /mnt/nvme/bench.iso --op scan --scan-records 100
  isobath bench lookup --memory-device --bytes 512MiB --op update --zipf 0.99 --log-off --trace t.trace")]
pub(crate) struct LookupArgs {
    /// The engine
    #[arg(long, value_enum, default_value = "isobath")]
    pub(crate) engine: EngineName,
    /// File of the store (a directory for rocksdb), made and removed again [default:
    /// isobath-bench.iso or isobath-bench.rocksdb]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) path: Option<PathBuf>,
    /// Keep the data, and use it where it is there already
    #[arg(long)]
    pub(crate) keep: bool,
    /// Records loaded [default: as many as --bytes holds]
    #[arg(long, value_name = "N", conflicts_with = "bytes")]
    pub(crate) records: Option<u64>,
    /// Data loaded, keys and values
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub(crate) bytes: Size,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 120)]
    pub(crate) value_bytes: usize,
    /// Buffer pool or block cache [default: a tenth of the data]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool: Option<Size>,
    /// The pool holds everything, and everything is read into it before
    #[arg(long, conflicts_with = "pool")]
    pub(crate) in_pool: bool,
    /// Keep the store on a memory device: no drive, the CPU's own limit
    #[arg(long, conflicts_with = "path")]
    pub(crate) memory_device: bool,
    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) duration: Duration,
    /// How long to run before measuring
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) warm_up: Duration,
    /// Operations and their weights
    #[arg(long, value_name = "OP[:WEIGHT],...", default_value = "get")]
    pub(crate) op: Mix,
    /// Choose records by a Zipf law with this exponent instead of uniformly
    #[arg(long, value_name = "EXPONENT")]
    pub(crate) zipf: Option<f64>,
    /// Record which pages Isobath writes while the clients run: a trace for `isobath sim clean`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
    /// Isobath's cleaning policy [default: the engine's own choice]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<isobath::PolicyKind>,
    /// Share of the volume that live data may fill, 0.1 to 0.9 [default: the engine's own choice]
    #[arg(long, value_name = "F")]
    pub(crate) fill_factor: Option<f64>,
    /// Size of Isobath's segments [default: the engine's own choice]
    #[arg(long, value_name = "SIZE")]
    pub(crate) segment: Option<Size>,
    /// Log nothing: a crash loses the store
    #[arg(long)]
    pub(crate) log_off: bool,
    /// Size of Isobath's log [default: a quarter of the pool]
    #[arg(long, value_name = "SIZE", conflicts_with = "log_off")]
    pub(crate) log: Option<Size>,
    /// File (made and removed again) or empty block device for Isobath's log [default: in the
    /// store's file]
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["log_off", "memory_device"],
        value_hint = ValueHint::FilePath
    )]
    pub(crate) log_path: Option<PathBuf>,
    /// Acknowledge Isobath's commits once they are durable, up to 10 ms before, or whenever
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "synced",
        conflicts_with = "log_off"
    )]
    pub(crate) durability: Durable,
    /// Keys per get-many
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) batch: usize,
    /// Records per scan
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) scan_records: usize,
    #[command(flatten)]
    pub(crate) concurrency: Concurrency,
    /// Threads that call a rival engine, or Isobath with --from threads
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) threads: usize,
    /// What calls Isobath
    #[arg(long, value_enum, default_value = "tasks")]
    pub(crate) from: CallFrom,
    /// Operations per second offered, at exponential distances, instead of as many as possible
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: Option<f64>,
    /// Measure how long the sorted load takes and stop there
    #[arg(long)]
    pub(crate) load_only: bool,
    /// Do not measure the drive's own limit
    #[arg(long)]
    pub(crate) no_drive: bool,
    /// Seed of keys and arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
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
