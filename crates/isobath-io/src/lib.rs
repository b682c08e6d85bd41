//! One worker's way to the drives: volumes and channels.
//!
//! A [`Volume`] is one logical, growing range of bytes. It lies on one or several files or block
//! devices (striped RAID-0 in this crate), in memory, or on any in-process [`Device`]. Every worker
//! thread opens its own [`Channel`], which reaches *all* devices of the volume: the all-to-all
//! model of "What Modern NVMe Storage Can Do, And How To Exploit It" (Haas, Leis; section 3.4,
//! Figure 10c). There are no I/O threads, no messages and no shared locks.
//!
//! ```
//! use isobath_io::{AlignedBuf, ChannelOptions, Io, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = Volume::in_memory(1 << 20, None);
//! let mut channel = volume.channel(&ChannelOptions::default())?;
//! let mut page = AlignedBuf::new(4096);
//! page.as_mut_slice().fill(7);
//!
//! // SAFETY: `page` is neither moved, freed nor touched until the completion has arrived.
//! unsafe { channel.submit(Io::write(8192, page.as_mut_ptr(), 4096, 1))? };
//! let mut done = Vec::new();
//! channel.wait(1, None, &mut done)?;
//! assert_eq!(done[0].user_data, 1);
//! done[0].result.as_ref().map_err(Clone::clone)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Order and durability
//!
//! I/Os in flight together have no order. A write is durable when a [`Op::Flush`] that was
//! submitted *after* the write's completion was reaped has itself completed, or when it carried
//! [`Io::durable`]. After a failed flush nothing may be assumed about the writes before it: the
//! caller stops writing.

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("Isobath runs on Linux, on x86-64 and aarch64, and on nothing else");

mod aligned;
mod device;
mod error;
mod fault;
mod file;
mod input;
mod io;
mod memory;
mod options;
mod output;
mod overlay;
mod process;
mod sleep;
mod stats;
mod volume;
mod waker;
mod words;

pub use aligned::{AlignedBuf, HUGE_PAGE};
pub use device::{Channel, ChannelOptions, Device, LOG_OFFSET, Layout, QueueFull};
pub use error::{ChannelError, IoError, IoErrorKind, VolumeError};
pub use fault::{Fault, FaultDevice, FaultPlan, FaultRule, Survivors, Trigger};
pub use file::{ignore_file_size_signal, is_store_file};
pub use input::open_to_read;
pub use io::{Completion, Io, IoVec, Op};
pub use memory::MemoryDevice;
pub use options::{
    Access, Backend, BackendKind, BackendReport, DirectMode, MAX_MEMBERS, VolumeOptions,
};
pub use output::{OutputError, OutputFile, Protected, partial_path};
pub use overlay::OverlayDevice;
pub use process::generation;
pub use sleep::EventWake;
pub use stats::{ChannelStats, LatencyHistogram, OpStats};
pub use volume::Volume;
pub use waker::{Wake, Waker};
pub use words::{ByteSize, reason, two_sizes};
