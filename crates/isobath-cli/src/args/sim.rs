//! Verbs that simulate.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::Size;

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    pub(crate) verb: SimVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SimVerb {
    /// Simulate cleaning: policies x workloads x fill factors, on laws or traces
    Clean(Box<SimCleanArgs>),
    /// What cleaning must cost: the analysis, Tables 1 and 2, and the bound for any workload
    Analysis(SimAnalysisArgs),
    /// Simulate what a tree of records writes and reads: in place, with overlays, deltas, as an LSM
    /// tree
    Overlay(SimOverlayArgs),
}

/// Sizes of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PageSizesName {
    /// All pages have --page bytes
    Fixed,
    /// From a quarter of --page to --page
    Spread,
}

/// The treatment of an older version that is still in the sort buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DuplicatesName {
    /// It is written too, as in the paper's numbers
    Written,
    /// The newer version replaces it, as an engine does
    Absorbed,
}

/// One fill factor, or several with equal distances: `0.8`, `0.5..0.95:0.05`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fills(pub(crate) Vec<f64>);

/// Most fill factors that one range may name.
const FILLS_MAX: f64 = 1000.0;

impl FromStr for Fills {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| part.trim().parse::<f64>().ok().filter(|x| x.is_finite());
        let wrong = || format!("`{text}` is no fill factor; write 0.8 or 0.5..0.95:0.05");
        let Some((low, rest)) = text.split_once("..") else {
            return number(text).map(|x| Fills(vec![x])).ok_or_else(wrong);
        };
        let (high, step) = rest.split_once(':').unwrap_or((rest, "0.05"));
        match (number(low), number(high), number(step)) {
            (Some(low), Some(high), Some(step))
                if step > 0.0 && low <= high && (high - low) / step < FILLS_MAX =>
            {
                let count = ((high - low) / step + 1e-9) as u32;
                // To six digits, so that reports say 0.6 and not 0.6000000000000001.
                let tidy = |x: f64| (x * 1e6).round() / 1e6;
                Ok(Fills(
                    (0..=count)
                        .map(|i| tidy(low + f64::from(i) * step))
                        .collect(),
                ))
            }
            _ => Err(wrong()),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Wamp is the paper's measure: pages that the cleaner moves per page that the user \
writes, (1-E)/E; write amplification elsewhere is 1 + Wamp. `steady` is the \
second half of a run, `bound` the fluid bound: what no policy beats on average \
that knows how often every page is updated, as long as updates are independent of \
each other; updates of a trace that come in order are found and count as free. E is \
the share of a segment that is dead when it is cleaned.

POLICIES: age, greedy, cost-benefit, multi-log, mdc, mdc-no-sep-user, \
mdc-no-sep-user-gc, life-table, and with exact knowledge of a law that does not \
change multi-log-opt and mdc-opt; `all` is every one.

WORKLOADS:
  uniform
  hot-cold:0.8           80% of the updates to 20% of the pages
  hot-cold:0.9:0.2       90% to 20%
  zipf:0.99              any exponent from 0 to 10
  shifting:0.8:0.2:5     hot-cold; the hot set jumps every 5 x pages updates
  sliding:0.8:0.2:10     hot-cold; the hot set slides once around in 10 x pages updates
  zipf-moving:0.99:20    Zipf; a page goes from hottest to coldest in 20 x pages updates
  sequential:0.5:0.4     half of the updates go round 40% of the pages in order, the rest is uniform

TRACES (--trace, --trace-format):
  csv       `W,page[,count]` or `T,page[,count]` per line, T being a trim; # starts a comment
  binary    the same in eight bytes per record: what `isobath bench run --trace` writes
  blkparse  the text that blkparse prints: queued writes and discards
  msr       MSR-Cambridge block traces
Without --device a trace's pages may have any number: they are renumbered, and the \
device is made so large that they fill it to --fill. With --device its page numbers must lie within the \
device x fill.

docs/cleaning.md says more, and how to read the report.

Examples:
  isobath sim clean --workload uniform,zipf:0.99 --fill 0.5..0.95:0.05 --html report.html
  isobath sim clean --policy all --workload hot-cold:0.8 --csv rows.csv
  isobath sim clean --policy mdc --workload zipf:0.99 --sort-buffer 0,1,2,4,8,16,32
  isobath sim clean --trace engine.trace --trace-format binary --policy greedy,mdc,life-table
  isobath sim clean --compare --device 1GiB --workload uniform,hot-cold:0.9,zipf:0.99
  isobath sim clean --policy greedy --device 100GB --writes 100      # the paper's full size")]
pub(crate) struct SimCleanArgs {
    /// Cleaning policies
    #[arg(
        long,
        value_name = "POLICY,...",
        value_delimiter = ',',
        default_value = "greedy,mdc,life-table"
    )]
    pub(crate) policy: Vec<String>,
    /// Laws that page writes follow [default: uniform, without --trace]
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    pub(crate) workload: Vec<String>,
    /// A recording of page writes; repeat for several
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Vec<PathBuf>,
    /// Format of the traces
    #[arg(long, value_name = "FORMAT", default_value = "csv", requires = "trace")]
    pub(crate) trace_format: String,
    /// Times that each trace is played; only one that is played once has a bound
    #[arg(long, value_name = "N", default_value_t = 1, requires = "trace")]
    pub(crate) repeat: u32,
    /// Fill factors: user data over the device, as numbers or ranges like 0.5..0.95:0.05
    #[arg(
        long,
        value_name = "F,...",
        value_delimiter = ',',
        default_value = "0.8"
    )]
    pub(crate) fill: Vec<Fills>,
    /// Size of the device [default: 4GiB; for a trace what its pages need]
    #[arg(long, value_name = "SIZE")]
    pub(crate) device: Option<Size>,
    /// Size of a segment, the unit of cleaning
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    pub(crate) segment: Size,
    /// Size of a page, the largest one with --page-sizes spread
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub(crate) page: Size,
    /// Whether pages vary in size
    #[arg(long, value_enum, default_value = "fixed")]
    pub(crate) page_sizes: PageSizesName,
    /// Free segments below which cleaning starts
    #[arg(long, value_name = "SEGMENTS", default_value_t = 32)]
    pub(crate) reserve: u32,
    /// Segments cleaned at a time [default: the policy's choice, mostly 64]
    #[arg(long, value_name = "SEGMENTS")]
    pub(crate) batch: Option<u32>,
    /// Segments that may be open at a time; pages of other streams join the nearest [default: one
    /// per stream of the policy]
    #[arg(long, value_name = "SEGMENTS")]
    pub(crate) open_segments: Option<std::num::NonZeroU32>,
    /// Segments beside the device [default: those that give it the paper's share of reserve]
    #[arg(long, value_name = "SEGMENTS")]
    pub(crate) spare: Option<u32>,
    /// Buffers in which user writes are sorted, for policies that sort
    #[arg(
        long,
        value_name = "SEGMENTS,...",
        value_delimiter = ',',
        default_value = "16"
    )]
    pub(crate) sort_buffer: Vec<u32>,
    /// Treatment of a page that is written again while it is in the sort buffer
    #[arg(long, value_enum, default_value = "written")]
    pub(crate) duplicates: DuplicatesName,
    /// Length of each run, in device sizes written by the user (the paper: 100)
    #[arg(long, value_name = "TIMES", default_value_t = 10.0)]
    pub(crate) writes: f64,
    /// Length of each run in page writes
    #[arg(long, value_name = "N", conflicts_with = "writes")]
    pub(crate) updates: Option<u64>,
    /// Compare policies under equal terms: batch 16 and the same share of idle space for all, first
    /// as an engine cleans (no sort buffer, duplicates absorbed), then as the paper does (sort
    /// buffer 16, duplicates written)
    #[arg(long, conflicts_with_all = ["batch", "spare", "sort_buffer", "duplicates"])]
    pub(crate) compare: bool,
    /// Simulations at a time [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Seed of the workloads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the rows as CSV
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) csv: Option<PathBuf>,
    /// Write a report with the paper's tables and figures
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without a workload: equation (4) for each fill factor (Table 1) and the cost of \
hot and cold data apart (Table 2), beside the paper's numbers.

With workloads or traces: the fluid bound, which says how the slack is divided at \
best between pages of different frequencies, and what cleaning then costs. It \
holds for updates that are independent of each other; policies that know the order \
of others can cost less. The \
frequencies behind a trace are estimated from its counts; updates that come in the \
order of earlier ones, as sequential and cyclic ones do, cost nothing.

Examples:
  isobath sim analysis
  isobath sim analysis --workload zipf:0.99,hot-cold:0.8 --fill 0.5..0.95:0.05 --csv bounds.csv
  isobath sim analysis --trace engine.trace --trace-format binary --fill 0.8")]
pub(crate) struct SimAnalysisArgs {
    /// Laws whose bound is asked for; as for `isobath sim clean`
    #[arg(long, value_name = "WORKLOAD,...", value_delimiter = ',')]
    pub(crate) workload: Vec<String>,
    /// Recordings whose bound is asked for
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Vec<PathBuf>,
    /// Format of the traces
    #[arg(long, value_name = "FORMAT", default_value = "csv", requires = "trace")]
    pub(crate) trace_format: String,
    /// Fill factors [default: those of Table 1; 0.8 for workloads]
    #[arg(long, value_name = "F,...", value_delimiter = ',')]
    pub(crate) fill: Vec<Fills>,
    /// Pages that a Zipf law ranks
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    pub(crate) pages: u32,
    /// Size of a page, for block traces
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub(crate) page: Size,
    /// Write the rows as CSV
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) csv: Option<PathBuf>,
    /// Write the tables as a page
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Ratios are per byte of upserted records, or per byte of the data; `written` is before cleaning, \
`cleaned` with what the cleaner moves on a volume of --space bytes per byte of data. The second half \
of a run is measured.

DESIGNS:
  in-place           leaves that are written out of place when their frames are wanted
  overlays:0.25      an overlay in memory, sealed as runs of a quarter of the leaves on average
  overlays:0.25:4    with at most 4 runs (8 unless given); 1 is a level
  whole-laps:0.25    a merge takes only runs sealed before its lap began
  cumulative:0.25    a delta per leaf, until a quarter of its records changed
  chained:4          up to 4 deltas per leaf
  lsm:10             a levelled LSM tree with fan-out 10, which nothing cleans

WORKLOADS: those of `isobath sim clean`, of records, sequential ones in key order; and order-mix, a \
synthetic mix after TPC-C's tables.

Examples:
  isobath sim overlay
  isobath sim overlay --design overlays:0.15,overlays:0.25,overlays:0.4 --workload zipf:0.99 --csv rows.csv")]
pub(crate) struct SimOverlayArgs {
    /// Designs
    #[arg(
        long,
        value_name = "DESIGN,...",
        value_delimiter = ',',
        default_value = "in-place,overlays:0.25,cumulative:0.25,chained:4,lsm:10"
    )]
    pub(crate) design: Vec<String>,
    /// Laws that upserts and lookups follow
    #[arg(
        long,
        value_name = "WORKLOAD,...",
        value_delimiter = ',',
        default_value = "uniform"
    )]
    pub(crate) workload: Vec<String>,
    /// Bytes of the volume per byte of data, as numbers or ranges
    #[arg(
        long,
        value_name = "RATIO,...",
        value_delimiter = ',',
        default_value = "1.45"
    )]
    pub(crate) space: Vec<Fills>,
    /// Records
    #[arg(long, value_name = "N", default_value_t = 500_000)]
    pub(crate) records: u32,
    /// Bytes of a record
    #[arg(long, value_name = "BYTES", default_value_t = 144)]
    pub(crate) record_bytes: u32,
    /// Memory per byte of data
    #[arg(long, value_name = "RATIO", default_value_t = 0.1)]
    pub(crate) memory: f64,
    /// Records of the overlay in memory per record
    #[arg(long, value_name = "RATIO", default_value_t = 0.05)]
    pub(crate) overlay: f64,
    /// Bits of a filter per record of a run
    #[arg(long, value_name = "BITS", default_value_t = 10.0)]
    pub(crate) filter_bits: f64,
    /// How the volume is cleaned
    #[arg(long, value_name = "POLICY", default_value = "mdc")]
    pub(crate) policy: String,
    /// Length of each run, in upserts per record
    #[arg(long, value_name = "TIMES", default_value_t = 8.0)]
    pub(crate) updates: f64,
    /// Lookups per upsert
    #[arg(long, value_name = "RATIO", default_value_t = 0.25)]
    pub(crate) lookups: f64,
    /// Simulations at a time [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Seed of the workloads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the rows as CSV
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) csv: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_factors_are_numbers_or_ranges() {
        assert_eq!("0.8".parse(), Ok(Fills(vec![0.8])));
        assert_eq!("0.5..0.6:0.05".parse(), Ok(Fills(vec![0.5, 0.55, 0.6])));
        let range: Fills = "0.5..0.95".parse().unwrap();
        assert_eq!((range.0.len(), range.0[2]), (10, 0.6));
        for wrong in [
            "",
            "x",
            "0.5..",
            "0.9..0.5",
            "0.1..0.9:0",
            "0.1..0.9:1e-9",
            "nan",
        ] {
            assert!(wrong.parse::<Fills>().is_err(), "{wrong}");
        }
    }
}
