//! The command line.

mod backup;
mod bench;
mod campaign;
mod data;
mod drive;
mod files;
mod nvme;
mod paper;
mod raw;
mod sim;
mod values;
mod vssd;
mod words;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use std::path::PathBuf;

pub(crate) use backup::{BackupArgs, FollowArgs, RestoreArgs, SalvageArgs};
pub(crate) use bench::{BenchArgs, BenchVerb, ChangeArgs, Durable, QuickstartArgs};
pub(crate) use campaign::{
    CampaignArgs, CaseArgs, CompareArgs, CostArgs, ReportArgs, RunArgs, SearchArgs, SelfTestArgs,
    SweepArgs,
};
pub(crate) use data::{
    CheckArgs, CompactArgs, DeleteArgs, ExportArgs, GetArgs, ImportArgs, InfoArgs, LoadArgs,
    LoadFrom, PutArgs, RecordFile, RecoverArgs, ScanArgs, StatsArgs, StatsFormat, TreesArgs,
    TreesVerb,
};
pub(crate) use drive::{AdviseArgs, ModelArgs, ProbeArgs};
pub(crate) use files::{FilesArgs, FilesImportArgs, FilesMountArgs, FilesVerb};
pub(crate) use nvme::{NvmeArgs, NvmeVerb};
pub(crate) use paper::PaperArgs;
pub(crate) use raw::{ModelName, RawArgs};
pub(crate) use sim::{
    DuplicatesName, Fills, PageSizesName, SimAnalysisArgs, SimArgs, SimCleanArgs, SimOverlayArgs,
    SimVerb,
};
pub(crate) use values::Size;
pub(crate) use vssd::{
    VssdArgs, VssdCreateArgs, VssdMountArgs, VssdPreconditionArgs, VssdServeArgs, VssdStatsArgs,
    VssdUmountArgs, VssdVerb,
};

const LONG_ABOUT: &str = "\
Isobath is an embedded, ordered key-value engine for NVMe SSDs. This command \
creates and fills stores, looks into them, verifies them, and measures them \
beside the drive's own limit.

Start with `isobath quickstart`: it stores your own files, verifies them, and \
shows how fast your drive answers random lookups.";

const AFTER_HELP: &str = "\
Keys and values are bytes. On the command line they are UTF-8, or hexadecimal \
with --hex; printed, control bytes appear as \\n, \\t and \\xNN.

A store is one file, or several that data is striped over; name them in the \
order of their creation: -s a.iso -s b.iso. ISOBATH_STORE names a store of one \
file for all verbs. A store that exists is understood without -s, too: \
isobath get my.iso KEY. Options go before or behind what they belong to.

Exit codes: 0 done; 1 problems were found, or the key is absent; 2 the command \
line is wrong; 3 the engine, the system or an input failed; 130 interrupted.

Examples:
  isobath quickstart
  isobath load -s my.iso --create directory ./photos
  isobath scan -s my.iso --prefix 2024/ --keys-only
  isobath get  -s my.iso 2024/beach.jpg --output beach.jpg
  isobath check -s my.iso";

/// An embedded key-value engine for NVMe SSDs: store, look up, verify, measure
#[derive(Debug, Parser)]
#[command(name = "isobath", version, long_about = LONG_ABOUT, after_help = AFTER_HELP)]
#[command(max_term_width = 100, propagate_version = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// Print JSON, one document per line, instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show no progress bars and no remarks
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Store your own files, verify them, and measure lookups beside your drive's limit
    Quickstart(QuickstartArgs),
    /// Load a directory, CSV, TSV, NDJSON, or lines of `key<TAB>value`
    Load(LoadArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Store a value under a key
    #[command(visible_alias = "set")]
    Put(PutArgs),
    /// Remove a key
    #[command(visible_aliases = ["del", "rm"])]
    Delete(DeleteArgs),
    /// List records in key order
    Scan(ScanArgs),
    /// Show what is in a store: trees, records, sizes, whether it is closed or in use
    Info(InfoArgs),
    /// List, create or drop the trees of a store
    Trees(TreesArgs),
    /// Show a store's counters and sizes
    Stats(StatsArgs),
    /// Read and verify everything in a store
    Check(CheckArgs),
    /// Complete a store that was not closed: what a killed process has left
    Recover(RecoverArgs),
    /// Give the file space back that removed records have left
    Compact(CompactArgs),
    /// Write trees to a file that any version can import
    Export(ExportArgs),
    /// Read an export file into a store
    Import(ImportArgs),
    /// Directory trees in a store: import, list, move, link, export, mount
    Files(FilesArgs),
    /// Copy a whole store into a backup file, or what has changed since an earlier one
    Backup(BackupArgs),
    /// Keep a copy of a store up to date while another process writes it
    Follow(FollowArgs),
    /// Make a store from backup files
    Restore(RestoreArgs),
    /// Copy whatever can be read out of a corrupt store into a new one
    Salvage(SalvageArgs),
    /// Measure the I/O layer and the drive alone
    Raw(RawArgs),
    /// Measure engines: Isobath and its rivals, beside the drive's own limit
    Bench(Box<BenchArgs>),
    /// Measure a drive: a profile for `model` and `advise`
    Probe(ProbeArgs),
    /// Fit cost models to a drive's profile, and say how good they are
    Model(ModelArgs),
    /// Settings for a workload on a profiled drive: Isobath's, RocksDB's, and which fits better
    Advise(AdviseArgs),
    /// Simulate cleaning of log-structured space, and say what it must cost
    Sim(SimArgs),
    /// A simulated SSD that any program runs on, and that counts what it writes to flash
    Vssd(VssdArgs),
    /// The papers' figures and tables: run them, and say which statements hold
    Paper(PaperArgs),
    /// NVMe drives: list them, ask them, take them from the kernel and give them back
    Nvme(NvmeArgs),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  isobath completions bash > ~/.local/share/bash-completion/completions/isobath"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Which store, and how it is opened.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// A file (or block device) of the store; repeat in the order of creation
    #[arg(short, long = "store", value_name = "PATH", required = true, env = "ISOBATH_STORE", value_hint = ValueHint::FilePath)]
    pub(crate) store: Vec<PathBuf>,
    /// Memory for the buffer pool, such as 64MiB or 4GiB [default: 64MiB for one key, 256MiB
    /// otherwise, at most a quarter of the memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool: Option<Size>,
    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<std::num::NonZeroUsize>,
    /// File or block device for the log of a new store, best on another drive than the data; or
    /// where the log of an existing store was moved to [default: the store's own files; where the
    /// store says]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) log_path: Option<PathBuf>,
    /// Through the page cache, without O_DIRECT [default: if the file system refuses O_DIRECT]
    #[arg(long)]
    pub(crate) buffered: bool,
    /// Wait so long to write to a store that another process writes, such as 10s or 2min [default:
    /// not at all]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<std::time::Duration>,
}

/// Which tree of a store.
#[derive(Debug, Args)]
pub(crate) struct TreeArgs {
    /// The tree
    #[arg(short, long, value_name = "NAME", default_value = "main")]
    pub(crate) tree: String,
}

/// Whether a missing tree may be made.
#[derive(Debug, Args)]
pub(crate) struct NewTreeArgs {
    /// Create the tree of --tree where the store has none of that name; `main`, and any tree of a
    /// new store, is created without this
    #[arg(long)]
    pub(crate) create_tree: bool,
}

/// Whether a missing store may be made.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Create the store if it does not exist yet
    #[arg(long)]
    pub(crate) create: bool,
    /// Most bytes that the store may grow to from now on, beside 64 KiB in front of each file, such
    /// as 10GiB [default: as it says; a new one has no limit]
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit: Option<Size>,
}

impl Cli {
    /// Checks that the parser cannot make, because an option may stand before or behind a verb's
    /// own verb.
    ///
    /// # Errors
    /// As the parser's.
    fn check(self) -> Result<Cli, clap::Error> {
        let (name, store) = match &self.verb {
            Verb::Load(args) => ("load", &args.store),
            Verb::Trees(args) => ("trees", &args.store),
            Verb::Files(args) if !matches!(args.verb, FilesVerb::Umount { .. }) => {
                ("files", &args.store)
            }
            _ => return Ok(self),
        };
        if !store.store.is_empty() {
            return Ok(self);
        }
        let mut command = Cli::command();
        command.build();
        let verb = command.find_subcommand_mut(name);
        let text = "the following required arguments were not provided:\n  --store <PATH>";
        Err(verb.map_or_else(
            || clap::Error::raw(ErrorKind::MissingRequiredArgument, text),
            |verb| verb.error(ErrorKind::MissingRequiredArgument, text),
        ))
    }
}
