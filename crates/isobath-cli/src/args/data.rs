//! Verbs that move and show data.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::{CreateArgs, NewTreeArgs, Size, StoreArgs, TreeArgs};

/// Allows an option of a verb with verbs of its own before and behind those. The parser knows no
/// required option of that kind; `Cli::check` asks for it.
pub(super) fn anywhere(arg: clap::Arg) -> clap::Arg {
    arg.required(false).global(true)
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  isobath load -s my.iso --create directory ./photos
  isobath load -s my.iso --create csv people.csv --key-column email
  isobath load -s my.iso csv export.csv --delimiter ';'
  isobath load -s my.iso tsv - --no-header --key-column 1 --value-column 2 < pairs.tsv
  isobath load -s my.iso ndjson events.ndjson --key-field id
  printf 'a\\t1\\nb\\t2\\n' | isobath load -s my.iso --create lines
  isobath scan -s my.iso | isobath load -s other.iso --create lines --escaped")]
#[command(mut_args(anywhere))]
#[command(override_usage = "isobath load --store <PATH> [OPTIONS] <COMMAND>")]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    #[command(flatten)]
    pub(crate) new_tree: NewTreeArgs,
    /// Leave out records that cannot be stored, and count them, instead of stopping
    #[arg(long)]
    pub(crate) skip_bad: bool,
    #[command(subcommand)]
    pub(crate) from: LoadFrom,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadFrom {
    /// Every regular file below a directory: path -> content; links are not followed
    #[command(visible_alias = "dir")]
    Directory {
        /// The directory
        #[arg(value_hint = ValueHint::DirPath)]
        path: PathBuf,
        /// Stop adding files at this total size
        #[arg(long, value_name = "SIZE")]
        cap: Option<Size>,
    },
    /// Comma-separated values
    Csv {
        #[command(flatten)]
        file: RecordFile,
        /// Character between columns, such as ';', or tab
        #[arg(long, value_name = "CHAR", default_value = ",", value_parser = delimiter)]
        delimiter: u8,
    },
    /// Tab-separated values
    Tsv(RecordFile),
    /// One JSON object per line; the value is the whole line
    Ndjson {
        /// The file; `-` is standard input
        #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// Field that becomes the key: a name, or a JSON pointer such as /user/id
        #[arg(long, value_name = "FIELD")]
        key_field: String,
    },
    /// Lines of `key<TAB>value`
    Lines {
        /// The file; `-` is standard input
        #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// Keys and values are given in hexadecimal, as `scan --hex` prints them
        #[arg(long)]
        hex: bool,
        /// Keys and values are given as `scan` prints them, with \n, \t, \r, \\ and \xNN for bytes
        #[arg(long, conflicts_with = "hex")]
        escaped: bool,
    },
}

/// The byte between the columns of a delimited file.
fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        _ if text.eq_ignore_ascii_case("tab") || text == "\\t" => Ok(b'\t'),
        [b'"' | b'\n' | b'\r'] => Err("it has a meaning of its own in such files".to_owned()),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("give one ASCII character, or tab".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct RecordFile {
    /// The file; `-` is standard input
    #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
    pub(crate) path: PathBuf,
    /// Column that becomes the key: a name of the header, or a number from 1
    #[arg(long, value_name = "COLUMN", default_value = "1")]
    pub(crate) key_column: String,
    /// Column that becomes the value [default: the whole row, as JSON]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) value_column: Option<String>,
    /// The first line is data, not the names of the columns
    #[arg(long)]
    pub(crate) no_header: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 1 where the key is absent.

Examples:
  isobath get -s my.iso etc/hosts
  isobath get -s my.iso photos/beach.jpg --output beach.jpg
  isobath get -s my.iso --hex 00ff --json")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// The key
    pub(crate) key: String,
    /// The key is given, and the value printed, in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
    /// Print the value's bytes exactly, without escapes and without a line end
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
    /// Write the value's bytes to a file, which is replaced where it exists
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "raw")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  isobath put -s my.iso --create greeting hello
  isobath put -s my.iso photos/beach.jpg --file beach.jpg
  isobath put -s my.iso --hex 00ff deadbeef
  isobath put -s my.iso -t colours --create-tree sky blue")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    #[command(flatten)]
    pub(crate) new_tree: NewTreeArgs,
    /// The key
    pub(crate) key: String,
    /// The value
    #[arg(required_unless_present = "file")]
    pub(crate) value: Option<String>,
    /// Key and value are given in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
    /// Take the value from a file; `-` is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "value", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 1 where the key was absent.

Example:
  isobath delete -s my.iso greeting")]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// The key
    pub(crate) key: String,
    /// The key is given in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Prints key<TAB>value lines; tabs and line ends inside them are escaped, as \
`load lines --escaped` reads them.

Examples:
  isobath scan -s my.iso --limit 10
  isobath scan -s my.iso --prefix photos/ --keys-only
  isobath scan -s my.iso --from a --to b --reverse
  isobath scan -s my.iso --json | jq .key")]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// First key, inclusive
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub(crate) from: Option<String>,
    /// End, exclusive
    #[arg(long, value_name = "KEY", conflicts_with = "prefix")]
    pub(crate) to: Option<String>,
    /// Only keys that start so
    #[arg(long, value_name = "KEY")]
    pub(crate) prefix: Option<String>,
    /// From the last key to the first
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Most records to print
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Print no values, and read no large ones
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Print only the number of records and their bytes; reads no large values
    #[arg(long, conflicts_with = "keys_only")]
    pub(crate) count: bool,
    /// Keys are given, keys and values printed, in hexadecimal
    #[arg(long)]
    pub(crate) hex: bool,
    /// Cut printed values after this many bytes [default: 160 on a terminal, none elsewhere]
    #[arg(long, value_name = "BYTES")]
    pub(crate) width: Option<usize>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Numbers with `~` are estimates, from some pages of a large tree. The store may be \
in use, or not closed: what is shown is what was committed when the verb began.

Examples:
  isobath info -s my.iso
  isobath info my.iso --json")]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
WA-A is what the store writes to its files per byte of keys and values that the \
user writes, by cause: changed pages, chunks of large values, pages that the \
cleaner moved, checkpoints, summaries of segments, the log.

A store that a process of yours has open for writing is shown as that process \
published it, at most a quarter of a second ago. Of any other one there are only \
sizes: counters begin when a store is opened. `isobath info` says what is in it. \
--watch follows such a store \
until it is closed: one line per interval, of what happened in it; `longest` is \
the longest stall since the store was opened.

Examples:
  isobath stats -s my.iso
  isobath stats -s my.iso --watch
  isobath stats -s my.iso --watch --every 10s --json >> my-stats.ndjson
  isobath stats -s my.iso --format openmetrics -o /var/lib/node_exporter/my.prom")]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Another form than a table; for JSON see --json
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["watch", "json"])]
    pub(crate) format: Option<StatsFormat>,
    /// Write to a file, which is replaced at once, instead of standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "format")]
    pub(crate) output: Option<PathBuf>,
    /// Follow a store that is in use
    #[arg(long)]
    pub(crate) watch: bool,
    /// Interval of --watch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration, requires = "watch")]
    pub(crate) every: std::time::Duration,
    /// Stop after this many intervals [default: when the store is closed]
    #[arg(long, value_name = "N", requires = "watch")]
    pub(crate) count: Option<u64>,
}

/// How statistics are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    /// A page for Prometheus and its kin
    Openmetrics,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Packs what is stored towards the beginning of the files and cuts off what is \
behind it. Files keep some segments at least, and a store with a limit a fifth \
of what its records take. A crash leaves every record as it was.

Example:
  isobath compact -s my.iso")]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads every page and every value, verifies checksums, page identities and the \
order of keys, and prints each problem. Exits with 1 where there is one. \
Changes nothing. The store may be in use: what is checked is its state when the \
verb began.

Example:
  isobath check -s my.iso && echo sound")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A process that was killed leaves its newest changes in the log. Verbs that only read \
replay it for themselves, each time; those that write recover the store first, and so \
does this one, which changes nothing else. A store that was closed is left as it is.

Example:
  isobath recover -s my.iso && isobath check -s my.iso")]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file appears under its name only when it is complete; FIFOs and devices are \
written to directly. A file of a store is never replaced. The format does not \
depend on the store's and is described in docs/export-format.md.

Examples:
  isobath export -s my.iso my.export
  isobath export -s my.iso - | zstd > my.export.zst")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Only this tree; can be repeated [default: all]
    #[arg(short, long = "tree", value_name = "NAME")]
    pub(crate) trees: Vec<String>,
    /// The file to write; `-` is standard output
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Replace the file where it exists
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  isobath import -s new.iso --create my.export
  zstd -d < my.export.zst | isobath import -s new.iso --create -")]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) create: CreateArgs,
    /// The export file; `-` is standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Write into trees that exist already; records of the same key are replaced
    #[arg(long)]
    pub(crate) merge: bool,
}

#[derive(Debug, Args)]
#[command(mut_args(anywhere))]
#[command(override_usage = "isobath trees --store <PATH> [OPTIONS] <COMMAND>")]
pub(crate) struct TreesArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// List with what each tree holds; from some of its pages if it is large (`~`)
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(subcommand)]
    pub(crate) verb: TreesVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TreesVerb {
    /// List the trees
    List,
    /// Create an empty tree
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        create: CreateArgs,
    },
    /// Drop a tree with all its records
    Drop {
        /// Its name
        name: String,
    },
}
