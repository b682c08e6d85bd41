//! Verbs of the benchmark that judge their measurements.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use isobath_lab::{DriveProfile, DriveState, EngineKind, IsolationLevel};

use super::bench::{ChangeArgs, Concurrency};
use super::{Durable, Size};

/// How settings are searched for before anything is measured.
#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Search the settings of every engine by N short trials each: threads or tasks, background
    /// jobs, cache split; the fastest is measured
    #[arg(long, value_name = "N")]
    pub(crate) search: Option<std::num::NonZeroUsize>,
    /// How long a trial measures
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "search", value_parser = humantime::parse_duration)]
    pub(crate) search_time: Duration,
}

/// Options of every run of a campaign.
#[derive(Debug, Args)]
pub(crate) struct CaseArgs {
    /// Name of a workload (`isobath bench workloads` lists them), or a workload file of `isobath
    /// advise`
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "lookup")]
    pub(crate) workload: String,
    /// File that the engine makes and that is removed again (a directory for rocksdb) [default: by
    /// the engine's name]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) path: Option<PathBuf>,
    /// Give every run the same blocks of the drive: a file that is written in full first, with a
    /// loop device over it and a new file system for each run (takes root)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["path", "simulated"], value_hint = ValueHint::FilePath)]
    pub(crate) region: Option<PathBuf>,
    /// Bytes of that file where it is made [default: three times the data, and 512 MiB]
    #[arg(long, value_name = "SIZE", requires = "region")]
    pub(crate) region_bytes: Option<Size>,
    /// Run Isobath on a simulated SSD of this capacity in memory, which counts flash writes; with --vssd
    /// any engine on a virtual one
    #[arg(long, value_name = "SIZE", conflicts_with = "path")]
    pub(crate) simulated: Option<Size>,
    /// Mount that SSD as a virtual one, newly made for each run in this directory, so that every
    /// engine runs on it and its flash writes are counted (takes root)
    #[arg(long, value_name = "DIR", requires = "simulated", conflicts_with_all = ["path", "region"], value_hint = ValueHint::DirPath)]
    pub(crate) vssd: Option<PathBuf>,
    /// Static wear levelling of the simulated SSD: erases by which a superblock may lag behind the
    /// most worn one [default: none]
    #[arg(long, value_name = "ERASES", requires = "simulated")]
    pub(crate) wear_difference: Option<u32>,
    /// State of the simulated SSD before each load
    #[arg(long, value_enum, default_value = "preconditioned")]
    pub(crate) state: DriveState,
    /// Size of Isobath's segments [default: the engine's own choice; 256 KiB on a simulated SSD of
    /// less than 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) segment: Option<Size>,
    /// Records loaded; warehouses of the TPC-C-derived workload [default: as many as --bytes holds]
    #[arg(
        long,
        visible_alias = "warehouses",
        value_name = "N",
        conflicts_with = "bytes"
    )]
    pub(crate) records: Option<u64>,
    /// Data loaded, keys and values [default: 1 GiB, or half of the simulated SSD]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<Size>,
    /// Buffer pool or block cache of every engine [default: a tenth of the data, of the largest in
    /// a sweep; or the memory of a workload file]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool: Option<Size>,
    /// How long a run measures, at most with --until-steady
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) duration: Duration,
    /// End a run once throughput and write amplification are steady
    #[arg(long)]
    pub(crate) until_steady: bool,
    /// How long to run before measuring
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    pub(crate) warm_up: Duration,
    /// Threads that call a rival engine [default: 64, or the clients of a workload file]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    #[command(flatten)]
    pub(crate) concurrency: Concurrency,
    /// Operations per second offered, at exponential distances, instead of as many as possible
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: Option<f64>,
    /// Log nothing, in every engine: a crash loses the store
    #[arg(long)]
    pub(crate) log_off: bool,
    /// When commits are acknowledged, in every engine that has a choice [default: none, or what a
    /// workload file says]
    #[arg(long, value_name = "WHEN")]
    pub(crate) durability: Option<Durable>,
    /// What transactions are protected from, in every engine that has a choice
    #[arg(long, value_enum, default_value = "snapshot")]
    pub(crate) isolation: IsolationLevel,
    /// Background jobs of RocksDB and fjall, eviction threads of WiredTiger [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) background_jobs: Option<std::num::NonZeroUsize>,
    /// Share of the cache for data not written yet: memtables of RocksDB and fjall, WiredTiger's
    /// dirty pages [default: scaled with the data, 0.05]
    #[arg(long, value_name = "SHARE")]
    pub(crate) write_share: Option<f64>,
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// Align RocksDB's blocks to pages of the drive; `compare` runs it as a second row
    #[arg(long)]
    pub(crate) block_align: bool,
    /// RocksDB's options in its own text form, over all others: num_levels=2;max_subcompactions=4
    #[arg(long, value_name = "NAME=VALUE;...")]
    pub(crate) rocksdb_options: Option<String>,
    /// Record which pages Isobath writes while the clients run: a trace for `isobath sim clean`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
    /// Say where the CPU time goes, by component of the engine and of the kernel: `perf` samples
    /// the clients' run
    #[arg(long)]
    pub(crate) components: bool,
    /// Do not measure the drive's own limit
    #[arg(long)]
    pub(crate) no_drive: bool,
    /// Seed of keys, arrivals and the order of runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory of the campaign: records, CSV, latency log; an interrupted one is gone on with
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The drive's own limit is measured on the same files before and after, at the \
same depth; only ratios within one run mean much.

Examples:
  isobath bench run --workload ycsb-a --bytes 1GiB
  isobath bench run --path /mnt/nvme/bench.iso --bytes 4GiB --warm-up 5s
  isobath bench run --path /mnt/nvme/bench.iso --rate 60000       # latency, open loop
  isobath bench run --memory-device                               # the CPU's limit
  isobath bench run --in-pool --op get-many                       # no I/O at all
  isobath bench run --op update --zipf 0.99 --log-off --trace t.trace
  isobath bench run --workload update --simulated 512MiB --until-steady
  isobath bench run --workload tpcc --warehouses 10 --durability synced")]
pub(crate) struct RunArgs {
    /// The engine
    #[arg(long, value_enum, default_value = "isobath")]
    pub(crate) engine: EngineKind,
    /// Share of the simulated SSD's flash that the engine cannot write to
    #[arg(long, value_name = "SHARE", default_value_t = 0.125)]
    pub(crate) over_provisioning: f64,
    /// Kind of the simulated SSD
    #[arg(long, value_enum, default_value = "tlc")]
    pub(crate) profile: DriveProfile,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
    #[command(flatten)]
    pub(crate) case: CaseArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each round runs both engines once, in random order, and a second time with the \
least isolation where an engine has less. `above` or `below` is said only where \
the 95% interval of the ratio excludes 1.

Examples:
  isobath bench compare isobath redb --workload read-mostly --bytes 1GiB
  isobath bench compare isobath isobath --workload lookup    # must include 1
  isobath bench compare isobath redb --workload ycsb-a --search 8
  isobath bench compare isobath redb --workload mixed-small --half-rate")]
pub(crate) struct CompareArgs {
    /// The first engine
    #[arg(value_enum)]
    pub(crate) first: EngineKind,
    /// The engine that it is compared with
    #[arg(value_enum)]
    pub(crate) second: EngineKind,
    /// Rounds
    #[arg(long, value_name = "N", default_value = "5")]
    pub(crate) repeats: std::num::NonZeroUsize,
    /// Leave out the second rows: engines that have less isolation with the least that they have
    #[arg(long)]
    pub(crate) no_least: bool,
    /// Run everything once more at one rate for all: half of what the slowest side reached; p99.9
    /// and the longest stall
    #[arg(long, conflicts_with_all = ["rate", "simulated"])]
    pub(crate) half_rate: bool,
    #[command(flatten)]
    pub(crate) case: CaseArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  isobath bench sweep --workload update --simulated 512MiB --out sweep
  isobath bench sweep --workload update --simulated 512MiB --vssd drives --engines isobath,rocksdb --out both
  isobath bench sweep --workload lookup --bytes 4GiB --sizes 1 --clients 1,4,16,64 --out clients")]
pub(crate) struct SweepArgs {
    /// Engines
    #[arg(long, value_enum, value_delimiter = ',', default_value = "isobath")]
    pub(crate) engines: Vec<EngineKind>,
    /// Dataset sizes: shares of the simulated SSD, or of --bytes
    #[arg(
        long,
        value_name = "SHARE,...",
        value_delimiter = ',',
        default_value = "0.2,0.35,0.5"
    )]
    pub(crate) sizes: Vec<f64>,
    /// Over-provisioned shares of the simulated SSD
    #[arg(
        long,
        value_name = "SHARE,...",
        value_delimiter = ',',
        default_value = "0.125,0.3"
    )]
    pub(crate) over_provisioning: Vec<f64>,
    /// Kinds of the simulated SSD
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tlc,qlc")]
    pub(crate) profiles: Vec<DriveProfile>,
    /// Clients per core: tasks per worker of Isobath, threads per core of others [default: --tasks, --threads]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) clients: Vec<std::num::NonZeroUsize>,
    /// Shares of the volume that Isobath's live data may fill, 0.1 to 0.9 [default: the engine's
    /// own choice]
    #[arg(long, value_name = "F,...", value_delimiter = ',')]
    pub(crate) fill_factors: Vec<f64>,
    #[command(flatten)]
    pub(crate) case: CaseArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each row runs every engine in turn with the same data, cache, durability and \
clients. DIR gets records.jsonl, records.csv, series.csv, latencies.hlog, \
summary.json and report.html. An interrupted campaign goes on where it stopped.

Examples:
  isobath bench campaign --list
  isobath bench campaign --out first --region region
  isobath bench campaign --out long --full --repeats 5
  isobath bench campaign --out sizes --sizes 0.25,0.5,1 --rows lookup
  isobath bench campaign --out tails --half-rate --rows ycsb
  isobath bench campaign --out try --engines isobath --rows lookup,ycsb-a")]
pub(crate) struct CampaignArgs {
    /// The campaign that comes with this program, or a file like it
    #[arg(value_name = "first|FILE.toml", default_value = "first", value_hint = ValueHint::FilePath)]
    pub(crate) campaign: String,
    /// List its rows, and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Directory of the measurements, and of the engines' files while they run
    #[arg(long, value_name = "DIR", required_unless_present = "list", value_hint = ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Long runs: up to four minutes a row
    #[arg(long)]
    pub(crate) full: bool,
    /// Engines, in place of the campaign's
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) engines: Vec<EngineKind>,
    /// Rows whose names are or begin with one of these [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) rows: Vec<String>,
    /// Shares of a row's data with which it is run, with the cache of the whole: three, the largest
    /// at least twice the smallest, avoid the pitfall of one dataset size [default: 1]
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',')]
    pub(crate) sizes: Vec<f64>,
    /// Run RocksDB a second time with its blocks aligned to pages of the drive
    #[arg(long)]
    pub(crate) block_align: bool,
    /// Run each row once more at one rate for all engines: half of what the slowest reached; p99.9
    /// and the longest stall
    #[arg(long)]
    pub(crate) half_rate: bool,
    /// How often each engine runs each row; a ratio is judged from 5 on
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) repeats: std::num::NonZeroUsize,
    /// How long a run measures [default: what the campaign says]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// How long a run goes on before measuring [default: what the campaign says]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) warm_up: Option<Duration>,
    /// Data of every row, keys and values [default: what the campaign says]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<Size>,
    /// Directory in which engines make their files [default: the one of --out]
    #[arg(long, value_name = "DIR", conflicts_with = "region", value_hint = ValueHint::DirPath)]
    pub(crate) directory: Option<PathBuf>,
    /// Give every run the same blocks of the drive: a file that is written in full first, with a
    /// loop device over it and a new file system for each run (takes root)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) region: Option<PathBuf>,
    /// Bytes of that file where it is made [default: three times the data, and 512 MiB]
    #[arg(long, value_name = "SIZE", requires = "region")]
    pub(crate) region_bytes: Option<Size>,
    /// Run rows of simulated SSDs on virtual ones, each newly made in this directory, with every
    /// engine; without it only Isobath runs them (takes root)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) vssd: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    /// Do not measure the drive's own limit
    #[arg(long)]
    pub(crate) no_drive: bool,
    /// Seed of keys and of the order of runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  isobath bench cost sweep --data 4TB --rate 200000")]
pub(crate) struct CostArgs {
    /// Directory of a campaign
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) campaign: PathBuf,
    /// Data to be stored
    #[arg(long, value_name = "SIZE")]
    pub(crate) data: Size,
    /// Operations per second to be served
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: f64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  isobath bench report sweep --html report.html")]
pub(crate) struct ReportArgs {
    /// Directory of a campaign
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) campaign: PathBuf,
    /// The page that is written
    #[arg(long, value_name = "FILE", default_value = "report.html", value_hint = ValueHint::FilePath)]
    pub(crate) html: PathBuf,
    /// Write each chart of the page as an SVG file into this directory, too
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) charts: Option<PathBuf>,
    /// Results of `fio --output-format=json` to set beside
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) fio: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  isobath bench self-test")]
pub(crate) struct SelfTestArgs {
    /// How long each run of the control campaign may take to become steady
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) longest: Duration,
}
