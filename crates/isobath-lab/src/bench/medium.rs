//! The medium that holds a run's data.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::engine::{DriveProfile, EngineConfig, SimulatedDrive};
use crate::machine;

/// The medium of a run's data. Memory is no drive, whatever lies between it and the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Medium {
    /// Memory of this process.
    Memory,
    /// Files whose file system or block device lives in memory.
    MemoryFiles {
        /// That file system or device.
        name: String,
    },
    /// An SSD that is simulated in this process.
    Simulated(SimulatedDrive),
    /// A virtual SSD, on whose file system the files are.
    Virtual(SimulatedDrive),
    /// Files on a drive.
    Drive {
        /// Type of the file system.
        file_system: String,
        /// The block device, by name and model.
        device: String,
        /// The disk under it, by its model or name, if the system says.
        disk: Option<String>,
        /// Bytes of the region of the drive in which the files are, if they can be nowhere else.
        region_bytes: Option<u64>,
    },
}

/// The class of media that must be equal in runs that support one statement; drives of a class may
/// differ, since a sweep varies them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub(super) enum MediumClass {
    Memory,
    MemoryFiles { name: String },
    Simulated { levels_wear: bool },
    Virtual { levels_wear: bool },
    Drive { file_system: String, region: bool },
}

/// The kind of a drive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DriveKind {
    /// A simulated or virtual SSD.
    Profile(DriveProfile),
    /// A disk by its model or name; nothing if the system does not say, which is one kind
    /// whatever it is.
    Disk(Option<String>),
}

impl Medium {
    /// The medium under an engine of this configuration.
    pub(super) fn of(engine: &EngineConfig, region_bytes: Option<u64>) -> Medium {
        match (&engine.path, engine.simulated) {
            (Some(_), Some(drive)) => Medium::Virtual(drive),
            (None, Some(drive)) => Medium::Simulated(drive),
            (Some(path), None) => Medium::of_files(path, region_bytes),
            (None, None) => Medium::Memory,
        }
    }

    fn of_files(path: &Path, region_bytes: Option<u64>) -> Medium {
        if let Some(name) = machine::in_memory(path) {
            return Medium::MemoryFiles { name };
        }
        let mount = machine::mount_of(path);
        Medium::Drive {
            device: mount.device(),
            disk: mount.drive_kind().map(str::to_owned),
            file_system: mount.file_system,
            region_bytes,
        }
    }

    /// Whether it is a drive, real or not.
    #[must_use]
    pub fn is_drive(&self) -> bool {
        !matches!(self, Medium::Memory | Medium::MemoryFiles { .. })
    }

    /// The simulated or virtual SSD.
    #[must_use]
    pub fn modelled(&self) -> Option<&SimulatedDrive> {
        match self {
            Medium::Simulated(drive) | Medium::Virtual(drive) => Some(drive),
            _ => None,
        }
    }

    /// Over-provisioned share of the drive, where it is known.
    #[must_use]
    pub fn over_provisioning(&self) -> Option<f64> {
        self.modelled().map(|drive| drive.over_provisioning)
    }

    /// Bytes that the engine may write to, if that is known.
    #[must_use]
    pub fn capacity_bytes(&self) -> Option<u64> {
        match self {
            Medium::Drive { region_bytes, .. } => *region_bytes,
            _ => self.modelled().map(|drive| drive.capacity_bytes),
        }
    }

    /// The kind of the drive; nothing of memory.
    pub(super) fn drive_kind(&self) -> Option<DriveKind> {
        match self {
            Medium::Drive { disk, .. } => Some(DriveKind::Disk(disk.clone())),
            _ => Some(DriveKind::Profile(self.modelled()?.profile)),
        }
    }

    pub(super) fn class(&self) -> MediumClass {
        let levels_wear = |drive: &SimulatedDrive| drive.wear_difference_max.is_some();
        match self {
            Medium::Memory => MediumClass::Memory,
            Medium::MemoryFiles { name } => MediumClass::MemoryFiles { name: name.clone() },
            Medium::Simulated(drive) => MediumClass::Simulated {
                levels_wear: levels_wear(drive),
            },
            Medium::Virtual(drive) => MediumClass::Virtual {
                levels_wear: levels_wear(drive),
            },
            Medium::Drive {
                file_system,
                region_bytes,
                ..
            } => MediumClass::Drive {
                file_system: file_system.clone(),
                region: region_bytes.is_some(),
            },
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Medium::Memory => f.write_str("memory"),
            Medium::MemoryFiles { name } => write!(f, "{name}, which is memory"),
            Medium::Simulated(drive) => write!(f, "simulated {}", drive.profile.name()),
            Medium::Virtual(drive) => write!(f, "virtual SSD, {}", drive.profile.name()),
            Medium::Drive {
                file_system,
                device,
                region_bytes,
                ..
            } => {
                let region = if region_bytes.is_some() {
                    "one region; "
                } else {
                    ""
                };
                write!(f, "{region}{file_system} on {device}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_are_on_no_drive() {
        let shared = Medium::of_files(Path::new("/dev/shm/x"), None);
        if machine::mount_of(Path::new("/dev/shm")).file_system == "tmpfs" {
            assert!(
                !shared.is_drive() && shared.drive_kind().is_none(),
                "{shared}"
            );
            assert_eq!(shared.to_string(), "tmpfs, which is memory");
        }
        let drive = |file_system: &str, disk: &str| Medium::Drive {
            file_system: file_system.to_owned(),
            device: "/dev/x".to_owned(),
            disk: Some(disk.to_owned()),
            region_bytes: None,
        };
        // Another file system is no other drive.
        let (a, b) = (drive("ext4", "one"), drive("xfs", "one"));
        assert_eq!(a.drive_kind(), b.drive_kind());
        assert_ne!(a.class(), b.class());
        assert_eq!(a.class(), drive("ext4", "two").class());
    }
}
