//! The verb that measures the I/O layer alone.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use isobath_lab::raw::RawBackend;

use super::Size;

/// Which threads use which drive (Haas and Leis, Figure 10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelName {
    /// Every thread uses all drives directly: what the engine does
    AllToAll,
    /// Threads send I/Os to I/O threads
    Dedicated,
    /// A thread uses one drive only
    Assigned,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --file, --memory or --scratch, a file of 1 GiB is made in the current \
directory, written in full, read once in full, measured, and removed.

--page, --read, --random, --depth, --threads, --backend and --model take lists; \
every combination becomes one row. The figures of \"What Modern NVMe Storage Can \
Do, And How To Exploit It\":

  Figure 2   isobath raw --read 0,10,30,50,70,90,100 --threads 2 --depth 64
  Figure 3   isobath raw --page 512,1KiB,2KiB,4KiB,8KiB,16KiB,32KiB,64KiB
  Figure 4   isobath raw --depth 1,2,4,8,16,32,64,128,256
  Figure 6   isobath raw --backend pread,libaio,io-uring,sqpoll --depth 128
  Figure 11  isobath raw --scratch /mnt/a/x --scratch /mnt/b/x --model all-to-all,dedicated,assigned --threads 2

Examples:
  isobath raw --file my.iso                        # reads a file that is there
  isobath raw --read 0 --durable --depth 1,4,16    # durable writes
  isobath raw --memory --depth 64                  # what the CPU alone allows")]
pub(crate) struct RawArgs {
    /// Read this existing file or device, as it is; repeat for several
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with_all = ["scratch", "memory"])]
    pub(crate) file: Vec<PathBuf>,
    /// Make this file, measure, remove it; repeat to stripe over several [default:
    /// isobath-raw.scratch]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "memory")]
    pub(crate) scratch: Vec<PathBuf>,
    /// Measure on memory instead of a drive
    #[arg(long)]
    pub(crate) memory: bool,
    /// Bytes used of the target [default: all of it; 1GiB of new files]
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<Size>,
    /// Bytes of one I/O
    #[arg(
        long,
        value_name = "SIZE,...",
        value_delimiter = ',',
        default_value = "4KiB"
    )]
    pub(crate) page: Vec<Size>,
    /// Share of reads, in percent; the rest are writes
    #[arg(
        long,
        value_name = "PERCENT,...",
        value_delimiter = ',',
        default_value = "100"
    )]
    pub(crate) read: Vec<u32>,
    /// Share of I/Os at random places, in percent; the rest are sequential
    #[arg(
        long,
        value_name = "PERCENT,...",
        value_delimiter = ',',
        default_value = "100"
    )]
    pub(crate) random: Vec<u32>,
    /// I/Os in flight per thread
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "128"
    )]
    pub(crate) depth: Vec<u32>,
    /// Threads
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    pub(crate) threads: Vec<u32>,
    /// How I/Os reach the kernel
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    pub(crate) backend: Vec<RawBackend>,
    /// Which threads use which drive
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all-to-all")]
    pub(crate) model: Vec<ModelName>,
    /// I/O threads of the model `dedicated`
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) io_threads: u32,
    /// Completions that a thread waits for at a time, at most half of the depth
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) wait_min: u32,
    /// Memory that the I/Os of all threads cycle through, like the pool of an engine [default: a
    /// page for each I/O in flight, which the processor's caches hold]
    #[arg(long, value_name = "SIZE")]
    pub(crate) buffers: Option<Size>,
    /// Bytes on one file before the next one follows
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    pub(crate) stripe_unit: Size,
    /// Every write is durable when it completes
    #[arg(long)]
    pub(crate) durable: bool,
    /// Through the page cache instead of O_DIRECT
    #[arg(long)]
    pub(crate) buffered: bool,
    /// Do not register buffers with the kernel
    #[arg(long)]
    pub(crate) unregistered: bool,
    /// Do not read existing files once in full before
    #[arg(long)]
    pub(crate) no_prepare: bool,
    /// How long to measure each row
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) duration: Duration,
    /// How long to run before measuring
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = humantime::parse_duration)]
    pub(crate) warm_up: Duration,
    /// Seed of the offsets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}
