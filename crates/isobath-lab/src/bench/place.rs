//! Where an engine's files are for one run: in one region of a drive, or on a virtual SSD that is made for it.

use std::fs;
use std::path::{Path, PathBuf};

use isobath_flash::policy::PolicyKind as FlashPolicy;

use super::region::Region;
use crate::engine::{DriveProfile, DriveState, SimulatedDrive};
use crate::vssd::host::{self, MountRequest};
use crate::vssd::{DeclaredState, NewDrive, OpenAs, PAGE_BYTES, VirtualDrive};
use crate::{LabError, Monitor};

/// A place for the engine's files that is made anew for each run.
#[derive(Debug, Clone)]
pub enum Place {
    /// A file system in this file; see [`super::make_region`].
    Region(PathBuf),
    /// A virtual SSD with the shape and in the state that the plan's simulated drive has.
    VirtualSsd(VirtualSsdPlace),
}

/// Where virtual SSDs are made.
#[derive(Debug, Clone)]
pub struct VirtualSsdPlace {
    /// The directory in which each run makes its drive, and removes it again.
    pub directory: PathBuf,
    /// The program and its arguments that serve a drive; see [`MountRequest::serve`].
    pub serve: (PathBuf, Vec<String>),
}

/// Pages of the write cache, as the simulated drives in this process have.
const CACHE_PAGES: u64 = 64;
/// Pages of a superblock at least.
const SUPERBLOCK_PAGES_MIN: u64 = 64;

/// What a profile means for the shape of a drive: bytes of a superblock, and the policy by which the drive cleans.
pub(crate) fn shape(drive: &SimulatedDrive) -> (u32, FlashPolicy) {
    let (units, policy) = match drive.profile {
        DriveProfile::Tlc => (256, FlashPolicy::Greedy),
        DriveProfile::Qlc => (64, FlashPolicy::Age),
    };
    let pages = (drive.capacity_bytes / units / PAGE_BYTES).max(SUPERBLOCK_PAGES_MIN);
    (u32::try_from(pages * PAGE_BYTES).unwrap_or(1 << 30), policy)
}

/// A place that is ready for a run.
pub(super) enum Ready {
    Region(Region),
    VirtualSsd(MountedSsd),
}

impl Ready {
    pub(super) fn make(
        place: &Place,
        drive: Option<SimulatedDrive>,
        monitor: &dyn Monitor,
    ) -> Result<Ready, LabError> {
        match (place, drive) {
            (Place::Region(region), _) => Ok(Ready::Region(Region::mount(region)?)),
            (Place::VirtualSsd(place), Some(drive)) => {
                Ok(Ready::VirtualSsd(MountedSsd::mount(place, drive, monitor)?))
            }
            (Place::VirtualSsd(_), None) => Err(LabError::Request(
                "a virtual SSD needs a capacity; name it with --simulated".to_owned(),
            )),
        }
    }

    /// Where the engine's files go.
    pub(super) fn directory(&self) -> &Path {
        match self {
            Ready::Region(region) => region.directory(),
            Ready::VirtualSsd(ssd) => &ssd.mount_point,
        }
    }

    /// The directory of the virtual SSD, whose counters say what the drive wrote to flash.
    pub(super) fn virtual_ssd(&self) -> Option<&Path> {
        match self {
            Ready::Region(_) => None,
            Ready::VirtualSsd(ssd) => Some(&ssd.drive),
        }
    }

    /// Bytes of the region.
    pub(super) fn region_bytes(&self) -> Option<u64> {
        match self {
            Ready::Region(region) => Some(region.bytes()),
            Ready::VirtualSsd(_) => None,
        }
    }

    pub(super) fn take_away(self) -> Result<(), LabError> {
        match self {
            Ready::Region(region) => region.unmount(),
            Ready::VirtualSsd(mut ssd) => ssd.take_away(false),
        }
    }
}

/// A virtual SSD that is mounted for one run.
pub(super) struct MountedSsd {
    drive: PathBuf,
    mount_point: PathBuf,
    is_mounted: bool,
}

impl MountedSsd {
    fn mount(
        place: &VirtualSsdPlace,
        drive: SimulatedDrive,
        monitor: &dyn Monitor,
    ) -> Result<MountedSsd, LabError> {
        host::check_machine(true)?;
        fs::create_dir_all(&place.directory).map_err(LabError::io("make", &place.directory))?;
        let mut mounted = MountedSsd {
            drive: place.directory.join("drive"),
            mount_point: place.directory.join("mounted"),
            is_mounted: false,
        };
        mounted.clear_away()?;
        let (superblock_bytes, policy) = shape(&drive);
        let made = VirtualDrive::create(
            &mounted.drive,
            &NewDrive {
                capacity_bytes: drive.capacity_bytes / PAGE_BYTES * PAGE_BYTES,
                over_provisioning: drive.over_provisioning,
                superblock_bytes: Some(superblock_bytes),
                policy,
                cache_bytes: CACHE_PAGES * PAGE_BYTES,
                wear_difference_max: drive.wear_difference_max,
            },
        )?;
        let state = match drive.state {
            DriveState::Trimmed => DeclaredState::Trimmed,
            DriveState::Preconditioned => {
                made.precondition(PRECONDITION_TIMES, PRECONDITION_SEED, monitor)?;
                DeclaredState::Preconditioned
            }
            DriveState::Used => {
                return Err(LabError::Request(
                    "a virtual SSD begins trimmed or preconditioned".to_owned(),
                ));
            }
        };
        drop(made);
        let path = &mounted.mount_point;
        fs::create_dir_all(path).map_err(LabError::io("make", path))?;
        mounted.is_mounted = true;
        host::mount(
            &mounted.drive,
            &MountRequest {
                serve: place.serve.clone(),
                mount_point: Some(path),
                format: false,
                discard: false,
                // The drive's count of valid pages must be what this state implies, or it is refused.
                expect: Some(state),
                open_as: OpenAs::Declared,
            },
        )?;
        Ok(mounted)
    }

    /// Removes what a benchmark left that was killed.
    fn clear_away(&mut self) -> Result<(), LabError> {
        if self.drive.join("state").exists() {
            self.is_mounted = true;
            // It may not be mounted any more, which is no failure here.
            let _ = host::unmount(&self.drive, true);
            self.is_mounted = false;
            remove(&self.drive)?;
        }
        Ok(())
    }

    fn take_away(&mut self, force: bool) -> Result<(), LabError> {
        if std::mem::take(&mut self.is_mounted) {
            host::unmount(&self.drive, force)?;
        }
        remove(&self.drive)?;
        let path = &self.mount_point;
        fs::remove_dir(path).map_err(LabError::io("remove", path))
    }
}

impl Drop for MountedSsd {
    fn drop(&mut self) {
        // The error that ended the run is the one that is reported.
        if self.is_mounted || self.drive.exists() {
            let _ = self.take_away(true);
        }
    }
}

/// Random writes of a preconditioned drive, in capacities, and their seed, as those in this process have.
const PRECONDITION_TIMES: f64 = 2.0;
const PRECONDITION_SEED: u64 = 1;

fn remove(drive: &Path) -> Result<(), LabError> {
    fs::remove_dir_all(drive).map_err(LabError::io("remove", drive))
}
