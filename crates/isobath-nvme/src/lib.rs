//! NVMe drives without the kernel in between: a user-space driver whose namespaces are devices of
//! `isobath-io`.
//!
//! A [`Controller`] runs on a [`Bus`]: a drive behind VFIO ([`VfioBus`]), or the model of a
//! controller that the feature `model` has. An [`NvmeDevice`] is one of its namespaces. Each
//! channel has a queue pair of its own and polls it; nothing is shared between channels but the
//! administration queue, which they use when they are opened, closed, and after a failure.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use isobath_io::Volume;
//! use isobath_nvme::{Controller, ControllerOptions, Machine, NvmeDevice, VfioBus};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A drive that `isobath nvme bind` has taken from the kernel.
//! let bus = VfioBus::open(&Machine::this(), "0000:01:00.0")?;
//! let controller = Controller::open(Arc::new(bus), &ControllerOptions::default())?;
//! let volume = Volume::from_device(Arc::new(NvmeDevice::open(&controller, 1)?));
//! // `isobath::Store::create_on_volume(volume, &options)` makes a store on it.
//! println!("{} bytes", volume.len());
//! # Ok(())
//! # }
//! ```
//!
//! # Failures
//!
//! Every I/O ends with a result, and its memory is not accessed by the drive afterwards:
//!
//! - A command that takes longer than [`ControllerOptions::timeout`] is aborted. If the drive does
//!   not answer the abort, or the command does not end, the controller is reset.
//! - After a reset, commands that the drive has forgotten are given again, twice at most.
//! - A drive with a volatile write cache may have lost acknowledged writes in a reset: every I/O
//!   fails from then on, until the drive is opened again.
//! - A drive that cannot be restarted, or is gone, is cut off from memory; every I/O fails.
//! - A completion that belongs to nothing in flight is ignored. Ids carry a generation, so that one
//!   which comes twice is not taken for the next command's.

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("Isobath runs on Linux, on x86-64 and aarch64, and on nothing else");

mod bus;
mod channel;
mod command;
mod controller;
mod device;
mod dma;
mod error;
mod identify;
#[cfg(any(test, feature = "model"))]
mod model;
mod passthrough;
mod queue;
mod sysfs;
#[cfg(test)]
mod tests;
mod users;
mod vfio;

pub use bus::Bus;
pub use command::Status;
pub use controller::{Controller, ControllerOptions};
pub use device::NvmeDevice;
pub use error::NvmeError;
pub use identify::{ControllerInfo, NamespaceInfo, SmartLog};
#[cfg(any(test, feature = "model"))]
pub use model::{ModelController, ModelFault, ModelOptions};
pub use passthrough::KernelController;
pub use sysfs::{BlockDevice, Drive, Machine};
pub use users::Process;
pub use vfio::VfioBus;
