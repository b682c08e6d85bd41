//! The log device of a volume of files: one more member, which is not striped with the others.

use std::fs;
use std::path::Path;

use crate::error::VolumeError;
use crate::file::member::{Member, os};
use crate::file::{FileDevice, probe, sync_directories};

/// A log device that is in use.
pub(super) struct LogMember {
    pub(super) member: Member,
    /// Bytes of it, whole blocks of 4096.
    pub(super) len: u64,
}

impl FileDevice {
    /// See [`Device::create_log`](crate::Device::create_log).
    pub(super) fn create_log_member(&self, path: &Path, bytes: u64) -> Result<(), VolumeError> {
        if !bytes.is_multiple_of(4096) {
            return Err(VolumeError::BadOption {
                option: "bytes of the log device",
                must: "a multiple of 4096",
                found: bytes,
            });
        }
        self.may_take_log(path)?;
        let member = Member::create(path, &self.options)?;
        self.prepare_log(&member, bytes)?;
        self.take_log(member)?;
        if let Some(log) = self.log.get() {
            log.member.keep();
        }
        Ok(())
    }

    fn prepare_log(&self, member: &Member, bytes: u64) -> Result<(), VolumeError> {
        if member.block_device {
            if member.size()? < bytes {
                return Err(VolumeError::NoSpace {
                    path: member.path.clone(),
                    needed: bytes,
                });
            }
            return Ok(());
        }
        member.extend(0, bytes)?;
        sync_directories(std::iter::once(&*member.path))
    }

    /// See [`Device::open_log`](crate::Device::open_log).
    pub(super) fn open_log_member(&self, path: &Path) -> Result<(), VolumeError> {
        self.may_take_log(path)?;
        self.take_log(Member::open(path, &self.options)?)
    }

    /// Refuses a second log device, and a member of the volume as its own log.
    fn may_take_log(&self, path: &Path) -> Result<(), VolumeError> {
        if self.log.get().is_some() {
            return Err(VolumeError::LogRefused { path: path.into() });
        }
        let Ok(found) = fs::metadata(path) else {
            return Ok(());
        };
        for member in &self.members {
            if member
                .is(&found)
                .map_err(|e| os(&member.path, "look up", e))?
            {
                return Err(VolumeError::Duplicate {
                    a: member.path.clone(),
                    b: path.into(),
                });
            }
        }
        Ok(())
    }

    fn take_log(&self, member: Member) -> Result<(), VolumeError> {
        let len = member.size()? / 4096 * 4096;
        if len > 0 {
            probe::serves(&member, self.backend())?;
        }
        if member.direct_refused {
            self.note(super::no_direct(&member));
        }
        let path = member.path.clone();
        let log = LogMember { member, len };
        self.log
            .set(log)
            .map_err(|_| VolumeError::LogRefused { path })
    }
}
