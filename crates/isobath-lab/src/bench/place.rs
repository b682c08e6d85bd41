//! The place of an engine's files for one run: a region of a drive, or a virtual SSD that is made
//! for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use isobath_flash::policy::PolicyKind as FlashPolicy;

use super::region::Region;
use crate::engine::{DriveProfile, DriveState, SimulatedDrive};
use crate::files::{locked, removed};
use crate::vssd::host::{self, MountRequest};
use crate::vssd::{DeclaredState, NewDrive, OpenAs, PAGE_BYTES, VirtualDrive};
use crate::{LabError, Monitor};

/// A place for the engine's files that is newly made for each run.
#[derive(Debug, Clone)]
pub enum RunPlace {
    /// A file system in this file; see [`super::make_region`].
    Region(PathBuf),
    /// A virtual SSD with the shape and in the state that the plan's simulated drive has.
    VirtualSsd(VirtualSsdPlace),
}

/// The directory of virtual SSDs. Runs in one directory take turns, and files that no run made
/// stay.
#[derive(Debug, Clone)]
pub struct VirtualSsdPlace {
    /// The directory in which each run makes its drive, and removes it again.
    pub directory: PathBuf,
    /// The program and its arguments that serve a drive; see [`MountRequest::serve`].
    pub serve: (PathBuf, Vec<String>),
}

/// Names in that directory: the drive, where it is mounted, and the file that says that both are a
/// benchmark's.
const DRIVE: &str = "drive";
const MOUNT_POINT: &str = "mounted";
const MARK: &str = "bench-drive";

/// Pages of the write cache, as the simulated drives in this process have.
const CACHE_PAGES: u64 = 64;
/// Pages of a superblock at least.
const SUPERBLOCK_PAGES_MIN: u64 = 64;

/// A profile's shape of a drive: bytes of a superblock, and the policy by which the drive cleans.
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
        place: &RunPlace,
        drive: Option<SimulatedDrive>,
        monitor: &dyn Monitor,
    ) -> Result<Ready, LabError> {
        match (place, drive) {
            (RunPlace::Region(region), _) => Ok(Ready::Region(Region::mount(region)?)),
            (RunPlace::VirtualSsd(place), Some(drive)) => {
                Ok(Ready::VirtualSsd(MountedSsd::mount(place, drive, monitor)?))
            }
            (RunPlace::VirtualSsd(_), None) => Err(LabError::Request(
                "a virtual SSD needs a capacity; name it with --simulated".to_owned(),
            )),
        }
    }

    /// The directory of the engine's files.
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
    mark: PathBuf,
    is_mounted: bool,
    is_gone: bool,
    /// The directory, locked against a second run in it.
    _lock: File,
}

impl MountedSsd {
    /// Takes the directory for one run: what a benchmark left in it that was killed is removed.
    fn claim(directory: &Path) -> Result<MountedSsd, LabError> {
        fs::create_dir_all(directory).map_err(LabError::io("make", directory))?;
        let lock = File::open(directory).map_err(LabError::io("open", directory))?;
        let taken = "another benchmark runs on a virtual SSD in it; wait for that, or name another directory";
        let lock = locked(lock, directory, taken)?;
        let mut claimed = MountedSsd {
            drive: directory.join(DRIVE),
            mount_point: directory.join(MOUNT_POINT),
            mark: directory.join(MARK),
            is_mounted: false,
            is_gone: true,
            _lock: lock,
        };
        if claimed.mark.exists() {
            claimed.is_mounted = true;
            claimed.take_away(true)?;
        }
        for path in [&claimed.drive, &claimed.mount_point] {
            if fs::symlink_metadata(path).is_ok() {
                return Err(LabError::input(
                    path,
                    "is there already, and no benchmark made it: it stays as it is; name another directory with --vssd",
                ));
            }
        }
        fs::write(&claimed.mark, "").map_err(LabError::io("write", &claimed.mark))?;
        claimed.is_gone = false;
        Ok(claimed)
    }

    fn mount(
        place: &VirtualSsdPlace,
        drive: SimulatedDrive,
        monitor: &dyn Monitor,
    ) -> Result<MountedSsd, LabError> {
        host::check_machine(true)?;
        let mut mounted = MountedSsd::claim(&place.directory)?;
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
        host::mount(
            &mounted.drive,
            &MountRequest {
                serve: place.serve.clone(),
                mount_point: Some(path),
                format: false,
                discard: false,
                // The drive's count of valid pages must be what this state implies, or it is
                // refused.
                expect: Some(state),
                open_as: OpenAs::Declared,
            },
        )?;
        mounted.is_mounted = true;
        Ok(mounted)
    }

    fn take_away(&mut self, force: bool) -> Result<(), LabError> {
        if self.is_mounted {
            let unmounted = host::unmount(&self.drive, force);
            // It may not be mounted any more; whatever stays of it is not removed below.
            if !force {
                unmounted?;
            }
            self.is_mounted = false;
        }
        removed(&self.drive, fs::remove_dir_all(&self.drive))?;
        removed(&self.mount_point, fs::remove_dir(&self.mount_point))?;
        // Last: without it nothing of this would be a benchmark's.
        removed(&self.mark, fs::remove_file(&self.mark))?;
        self.is_gone = true;
        Ok(())
    }
}

impl Drop for MountedSsd {
    fn drop(&mut self) {
        // The error that ended the run is the one that is reported.
        if !self.is_gone {
            // A drop has no one to tell.
            let _ = self.take_away(true);
        }
    }
}

/// Random writes of a preconditioned drive, in capacities, and their seed, as those in this process
/// have.
const PRECONDITION_TIMES: f64 = 2.0;
const PRECONDITION_SEED: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_benchmark_made_stays_where_virtual_ssds_are_made() {
        let place = tempfile::tempdir().unwrap();
        for name in [DRIVE, MOUNT_POINT] {
            let own = place.path().join(name);
            fs::create_dir(&own).unwrap();
            fs::write(own.join("state"), "mine").unwrap();
            let error = MountedSsd::claim(place.path()).err().unwrap().to_string();
            assert!(error.contains("no benchmark made it"), "{error}");
            assert!(error.contains(name), "{error}");
            assert_eq!(fs::read(own.join("state")).unwrap(), b"mine");
            fs::remove_dir_all(&own).unwrap();
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn runs_in_one_directory_take_turns_and_leave_nothing() {
        let place = tempfile::tempdir().unwrap();
        let first = MountedSsd::claim(place.path()).unwrap();
        let error = MountedSsd::claim(place.path()).err().unwrap().to_string();
        assert!(error.contains("another benchmark runs"), "{error}");
        assert!(first.mark.exists());
        drop(first);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        MountedSsd::claim(place.path()).unwrap();
    }

    #[test]
    fn what_a_killed_benchmark_left_is_removed_however_far_it_had_come() {
        let place = tempfile::tempdir().unwrap();
        for left in [
            vec![],
            vec![DRIVE],
            vec![DRIVE, MOUNT_POINT],
            vec![MOUNT_POINT],
        ] {
            fs::write(place.path().join(MARK), "").unwrap();
            for name in left {
                fs::create_dir(place.path().join(name)).unwrap();
            }
            // A drive that was killed in the making has no state.
            let _ = fs::write(place.path().join(DRIVE).join("image"), "");
            let claimed = MountedSsd::claim(place.path()).unwrap();
            assert!(!claimed.drive.exists() && !claimed.mount_point.exists());
        }
    }
}
