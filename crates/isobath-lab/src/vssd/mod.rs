//! The virtual SSD: the simulated flash translation layer as a block device, on which any program
//! runs.
//!
//! A [`VirtualDrive`] is a directory. `image` holds the contents, a sparse file with every logical
//! page at its own place; `state` holds mapping and counters of the translation layer, which sees
//! every read, write, discard and flush but no contents. `serve` offers the drive as the file of a
//! FUSE file system; [`host`] puts a loop device over it and mounts an ordinary file system on
//! that.
//!
//! Counters and write frequencies are measurements. Times are not, unless a [`Profile`] paces
//! completions by the timing model; then they are *modelled*.
//!
//! A killed process loses nothing: the image has what was written, and a journal of operations
//! brings the translation layer to where it was. Only a crash of the whole machine may lose a
//! mounted drive, which its next opening refuses.

mod drive;
#[cfg(any(feature = "vssd", test))]
mod files;
pub mod host;
mod image;
mod journal;
#[cfg(any(feature = "vssd", test))]
mod pace;
mod profile;
#[cfg(feature = "vssd")]
mod serve;
mod state;
mod stats;

pub use drive::{NewDrive, OpenAs, VirtualDrive};
pub use isobath_flash::ftl::Smart;
pub use profile::Profile;
pub use state::DeclaredState;
pub use stats::{DriveStats, write_frequency_csv};

use std::path::{Path, PathBuf};

use crate::LabError;

/// Bytes of a logical page, and of a sector of the block device.
pub const PAGE_BYTES: u64 = 4096;

/// Serves a drive as a file system of FUSE until that is unmounted, then saves its state. `ready`
/// is called once the file system is there.
///
/// # Errors
/// As for [`VirtualDrive::open`]; [`LabError::Io`] if FUSE refuses; [`LabError::NotBuilt`]
/// without the feature `vssd`.
pub fn serve(
    directory: &Path,
    open_as: OpenAs,
    profile: Option<Profile>,
    ready: impl FnOnce(),
) -> Result<(), LabError> {
    #[cfg(feature = "vssd")]
    return serve::serve(directory, open_as, profile, ready);
    #[cfg(not(feature = "vssd"))]
    {
        let _ = (directory, open_as, profile, ready);
        check_built()
    }
}

/// Whether this build can mount drives.
///
/// # Errors
/// [`LabError::NotBuilt`] without the feature `vssd`.
pub fn check_built() -> Result<(), LabError> {
    if cfg!(feature = "vssd") {
        return Ok(());
    }
    Err(LabError::NotBuilt {
        what: "FUSE, which mounting a virtual SSD needs",
        cure: "build isobath-cli with --features vssd, which its default features contain",
    })
}

/// The mount point of a drive's FUSE file system.
fn fuse_directory(directory: &Path) -> PathBuf {
    directory.join("fuse")
}

/// A path inside the FUSE file system of a mounted drive.
fn fuse_file(directory: &Path, name: &str) -> PathBuf {
    fuse_directory(directory).join(name)
}

#[cfg(test)]
mod tests;
