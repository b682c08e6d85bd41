//! Why a drive cannot be used, and why a command failed.

use std::io;
use std::path::PathBuf;

use isobath_io::{IoErrorKind, VolumeError};

use crate::command::Status;

/// Why a drive cannot be found, taken over or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmeError {
    /// There is no PCI device of that address.
    #[error("there is no PCI device {address}: `isobath nvme list` shows the NVMe drives")]
    NoSuchDevice {
        /// The address given.
        address: String,
    },
    /// Not an address such as `0000:01:00.0`.
    #[error("{address:?} is not a PCI address: write one such as 0000:01:00.0")]
    BadAddress {
        /// What was given.
        address: String,
    },
    /// The PCI device is of another class.
    #[error("{address} is not an NVMe drive: its PCI class is {class:#08x}, not 0x010802")]
    NotNvme {
        /// Its address.
        address: String,
        /// Its class.
        class: u32,
    },
    /// The kernel or a user has data on the drive.
    #[error("{address} is in use: {}; stop using it first{}", reasons.join(", "), match forcible { true => ", or force it: what is on the drive may be lost", false => "" })]
    InUse {
        /// Its address.
        address: String,
        /// What is there.
        reasons: Vec<String>,
        /// Whether force helps.
        forcible: bool,
    },
    /// No driver of VFIO holds the drive.
    #[error(
        "{address} is bound to {driver}, not to vfio-pci: `isobath nvme bind {address}` takes it from the kernel"
    )]
    NotBound {
        /// Its address.
        address: String,
        /// The driver that has it.
        driver: String,
    },
    /// The drive could not be bound to vfio-pci; the driver that had it was asked to take it back.
    #[error("{cause}; {}{}", match driver { Some(driver) => format!("{driver} has {address} again"), None => format!("no driver has {address} now: `isobath nvme unbind {address}` gives it to the kernel's") }, failed.as_ref().map_or(String::new(), |failed| format!(" ({failed})")))]
    BindUndone {
        /// Its address.
        address: String,
        /// Why it could not be bound.
        cause: Box<NvmeError>,
        /// Why it could not be given back as it was.
        failed: Option<Box<NvmeError>>,
        /// The driver that has it.
        driver: Option<String>,
    },
    /// The machine has no IOMMU, or none that is on.
    #[error(
        "{address} has no IOMMU group: switch the IOMMU on (firmware, and intel_iommu=on or amd_iommu=on); without one the drive could write anywhere in memory, so the noiommu mode of VFIO is not used"
    )]
    NoIommu {
        /// Its address.
        address: String,
    },
    /// Another device in the same group has a driver of the kernel.
    #[error("IOMMU group {group} of {address} has other devices in use: {}; bind them to vfio-pci, too, or put the drive into another slot", others.join(", "))]
    GroupShared {
        /// The drive.
        address: String,
        /// The number of the group.
        group: u32,
        /// The others, each with its driver.
        others: Vec<String>,
    },
    /// Another process has the group open.
    #[error("{} is in use by another process: stop it first", path.display())]
    GroupBusy {
        /// The file of the group.
        path: PathBuf,
    },
    /// The system denies access.
    #[error("no permission to access {}: run as root, or give your user this file", path.display())]
    PermissionDenied {
        /// The file.
        path: PathBuf,
    },
    /// The kernel lacks a module.
    #[error("{} is missing: load the module first (modprobe {module})", path.display())]
    NoModule {
        /// The file that it would make.
        path: PathBuf,
        /// Its name.
        module: &'static str,
    },
    /// Memory cannot be made reachable for the drive.
    #[error(
        "the drive cannot be given {bytes} bytes of memory: {source}; raise the limit on locked memory (ulimit -l)"
    )]
    Memory {
        /// Bytes of the region.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system failed in another way.
    #[error("cannot {action} {}: {source}", path.display())]
    Os {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        action: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The drive does not answer any more.
    #[error("{drive} was removed, or lost its link")]
    Removed {
        /// Its name.
        drive: String,
    },
    /// The controller did not become ready, or did not stop, in the time that it names itself.
    #[error(
        "the controller of {drive} did not {action} within {seconds} s: power the drive off and on"
    )]
    NotReady {
        /// Its name.
        drive: String,
        /// What it had to do.
        action: &'static str,
        /// How long it had.
        seconds: u64,
    },
    /// The controller reports a fatal error.
    #[error(
        "the controller of {drive} reports a fatal error: power the drive off and on; replace it if that happens again"
    )]
    Fatal {
        /// Its name.
        drive: String,
    },
    /// The controller could not be restarted after a failure.
    #[error("the controller of {drive} could not be restarted: power the drive off and on")]
    Dead {
        /// Its name.
        drive: String,
    },
    /// The drive cannot be driven by this program.
    #[error("{drive} cannot be used: {reason}")]
    Unsupported {
        /// Its name.
        drive: String,
        /// Why.
        reason: String,
    },
    /// There is no namespace of that number.
    #[error(
        "{drive} has no namespace {namespace}: it has numbers up to {count}, some of which may be unused"
    )]
    NoNamespace {
        /// Its name.
        drive: String,
        /// The number asked for.
        namespace: u32,
        /// The largest one.
        count: u32,
    },
    /// All queue pairs are taken.
    #[error("{drive} has {queues} queue pairs, all in use: open the store with fewer workers")]
    NoQueue {
        /// Its name.
        drive: String,
        /// Pairs it has.
        queues: u16,
    },
    /// An administration command failed.
    #[error("{drive} refuses to {action}: {status}")]
    Command {
        /// Its name.
        drive: String,
        /// What was asked for.
        action: &'static str,
        /// Its answer.
        status: Status,
    },
    /// An administration command was not answered.
    #[error("{drive} did not {action} within {seconds} s")]
    Timeout {
        /// Its name.
        drive: String,
        /// What was asked for.
        action: &'static str,
        /// How long was waited.
        seconds: u64,
    },
}

impl From<NvmeError> for VolumeError {
    fn from(error: NvmeError) -> VolumeError {
        match error {
            NvmeError::NoQueue { .. } => VolumeError::BackendRefused {
                backend: "nvme",
                reason: error.to_string(),
            },
            error => VolumeError::Device(error.to_string()),
        }
    }
}

/// How a command ended that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The drive's answer.
    Status(Status),
    /// It did not answer, and was aborted or reset.
    TimedOut,
    /// It lost the command in a reset, several times.
    Reset,
    /// It was reset while its volatile cache may have held acknowledged writes.
    CacheLost,
    /// The drive is gone.
    Removed,
    /// The memory could not be made reachable.
    NoMemory,
    /// It has no such command.
    Unsupported,
}

impl Failed {
    pub(crate) fn kind(self) -> IoErrorKind {
        match self {
            Failed::Status(status) => status.kind(),
            Failed::TimedOut | Failed::Reset | Failed::CacheLost => IoErrorKind::Media,
            Failed::Removed => IoErrorKind::Os(libc::ENODEV),
            Failed::NoMemory => IoErrorKind::Os(libc::ENOMEM),
            Failed::Unsupported => IoErrorKind::Unsupported,
        }
    }
}
