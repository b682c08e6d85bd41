//! The virtual SSD.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use isobath_lab::vssd::DeclaredState;

use super::Size;

#[derive(Debug, Args)]
#[command(after_help = "\
A virtual SSD is a directory. Mounted, it is an ordinary file system on a block \
device behind which a simulated flash translation layer counts what a real one \
would write: the write amplification of any program, on any machine. Mounting \
needs root, FUSE and a loop device.

Example:
  isobath vssd create ssd --size 1GiB
  isobath vssd precondition ssd
  isobath vssd mount ssd /mnt/ssd
  isobath vssd stats ssd --watch
  isobath vssd umount ssd")]
pub(crate) struct VssdArgs {
    #[command(subcommand)]
    pub(crate) verb: VssdVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VssdVerb {
    /// Make a drive, trimmed
    Create(VssdCreateArgs),
    /// Mount a drive as a file system; a new one is formatted before
    Mount(VssdMountArgs),
    /// Show a drive's counters, mounted or not
    Stats(VssdStatsArgs),
    /// Bring a drive into a state to begin a run in; what it holds is lost
    Precondition(VssdPreconditionArgs),
    /// Unmount a drive and save it, also one whose process was killed
    Umount(VssdUmountArgs),
    /// Serve a drive: what `mount` starts
    #[command(hide = true)]
    Serve(VssdServeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
The contents take space as they are written, at most --size.

Examples:
  isobath vssd create ssd --size 1GiB
  isobath vssd create ssd --size 16GiB --over-provisioning 0.28 --policy greedy")]
pub(crate) struct VssdCreateArgs {
    /// Directory of the drive; a new one, or empty
    #[arg(value_name = "DRIVE", value_hint = ValueHint::DirPath)]
    pub(crate) drive: PathBuf,
    /// Bytes that the host sees, a multiple of 4096
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Size,
    /// Share of the flash that the host does not see
    #[arg(long, value_name = "SHARE", default_value_t = 0.125)]
    pub(crate) over_provisioning: f64,
    /// Bytes of a superblock, the unit of erasure [default: a 1,024th of the size, 256KiB to 8MiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) superblock: Option<Size>,
    /// The drive's cleaning policy
    #[arg(long, value_name = "POLICY", default_value = "greedy")]
    pub(crate) policy: isobath::PolicyKind,
    /// Bytes of the write cache
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub(crate) cache: Size,
    /// Static wear levelling: erases by which a superblock may lag behind the most worn one
    /// [default: none]
    #[arg(long, value_name = "ERASES")]
    pub(crate) wear_difference: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The first mount formats: ext4, with discard on a trimmed drive and without on a \
preconditioned one. It is refused where the number of pages that hold data is \
not what the drive's state implies.

--profile NAME paces I/O by a model of a drive's timing: enterprise-tlc, \
consumer-qlc, low-latency, or a JSON file. Rates are then those of the model, \
and without it they mean nothing.

Examples:
  isobath vssd mount ssd /mnt/ssd
  isobath vssd mount ssd /mnt/ssd --expect preconditioned --profile consumer-qlc
  isobath vssd mount ssd --raw")]
pub(crate) struct VssdMountArgs {
    /// Directory of the drive
    #[arg(value_name = "DRIVE", value_hint = ValueHint::DirPath)]
    pub(crate) drive: PathBuf,
    /// Where its file system appears: an empty directory
    #[arg(value_name = "MOUNTPOINT", required_unless_present = "raw", value_hint = ValueHint::DirPath)]
    pub(crate) mount_point: Option<PathBuf>,
    /// Only the block device, without a file system
    #[arg(long, conflicts_with_all = ["mount_point", "format", "discard"])]
    pub(crate) raw: bool,
    /// Make a new file system; what the drive holds is lost
    #[arg(long)]
    pub(crate) format: bool,
    /// Have the file system discard what it frees
    #[arg(long)]
    pub(crate) discard: bool,
    /// Pace I/O by a timing model
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Refuse a drive that was used since it was brought into this state
    #[arg(long, value_name = "STATE", value_enum)]
    pub(crate) expect: Option<DeclaredState>,
    /// Take a drive that is not in the state that it declares
    #[arg(long)]
    pub(crate) as_is: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
WA-D is the bytes written to flash per byte that the host wrote. Counters are \
given since the mark and over the drive's life. The drive's directory has \
history.csv, with a line for each second in which something changed.

Examples:
  isobath vssd stats ssd
  isobath vssd stats ssd --mark
  isobath vssd stats ssd --watch --every 5s
  isobath vssd stats ssd --cdf frequency.csv")]
pub(crate) struct VssdStatsArgs {
    /// Directory of the drive
    #[arg(value_name = "DRIVE", value_hint = ValueHint::DirPath)]
    pub(crate) drive: PathBuf,
    /// Set the mark, before a run that is to be counted
    #[arg(long, conflicts_with_all = ["watch", "cdf"])]
    pub(crate) mark: bool,
    /// Print a line per interval while the drive is mounted
    #[arg(long, conflicts_with = "cdf")]
    pub(crate) watch: bool,
    /// The interval of --watch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) every: Duration,
    /// End --watch after so many lines
    #[arg(long, value_name = "N", requires = "watch")]
    pub(crate) count: Option<u64>,
    /// Write the CDF of logical pages' write frequency since the mark as CSV; - is standard output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) cdf: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  isobath vssd precondition ssd
  isobath vssd precondition ssd --state trimmed --destroy")]
pub(crate) struct VssdPreconditionArgs {
    /// Directory of the drive, which is not mounted
    #[arg(value_name = "DRIVE", value_hint = ValueHint::DirPath)]
    pub(crate) drive: PathBuf,
    /// The state
    #[arg(long, value_enum, default_value = "preconditioned")]
    pub(crate) state: DeclaredState,
    /// Random writes after the sequential ones, in capacities
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    pub(crate) times: f64,
    /// Seed of the random writes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also a drive that was mounted: what it holds is lost
    #[arg(long)]
    pub(crate) destroy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  isobath vssd umount ssd
  isobath vssd umount /mnt/ssd")]
pub(crate) struct VssdUmountArgs {
    /// Directory of the drive, or where it is mounted
    #[arg(value_name = "DRIVE|MOUNTPOINT", value_hint = ValueHint::DirPath)]
    pub(crate) target: PathBuf,
    /// Also while programs use it, or its process hangs: they get errors
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VssdServeArgs {
    pub(crate) drive: PathBuf,
    #[arg(long)]
    pub(crate) profile: Option<String>,
    #[arg(long)]
    pub(crate) as_is: bool,
}
