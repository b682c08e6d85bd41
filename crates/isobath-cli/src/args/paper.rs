//! The verb that runs the papers' experiments.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use isobath_lab::paper::PaperSize;

#[derive(Debug, Args)]
#[command(after_help = "\
Without a paper, all experiments are listed, with what each needs and about how \
long it takes. `all` runs every paper. Rows are kept in DIR/rows.jsonl: a row that \
is there is not run again, so an interrupted call goes on where it stopped. DIR is \
on the drive to measure. The page shows the numbers that the paper prints, ours, \
and which of its statements hold.

Examples:
  isobath paper
  isobath paper 003 figure5
  isobath paper 003 --size machine -o /mnt/nvme/paper
  isobath paper all --size small -o try")]
pub(crate) struct PaperArgs {
    /// 000 to 004, or all
    #[arg(value_name = "PAPER")]
    pub(crate) paper: Option<String>,
    /// A figure or table of it, such as figure3 or table1 [default: all]
    #[arg(value_name = "FIGURE|TABLE")]
    pub(crate) experiment: Option<String>,
    /// How large the runs are
    #[arg(long, value_enum, default_value = "small")]
    pub(crate) size: PaperSize,
    /// Directory of the rows and the page, and of what the rows measure
    #[arg(short, long, value_name = "DIR", default_value = "isobath-paper", value_hint = ValueHint::DirPath)]
    pub(crate) out: PathBuf,
}
