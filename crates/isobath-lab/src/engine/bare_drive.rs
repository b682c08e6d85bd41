//! The drive without an engine: one I/O for each operation by the client's own thread. A client's
//! waits there are those of the drive and the system; compared with an engine at the same rate they
//! show which waits are not the engine's.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use isobath_io::AlignedBuf;
use rustix::fs::OFlags;

use super::baseline::{Below, BelowIo};
use super::{EngineConfig, path_of};
use crate::LabError;
use crate::bench::Records;

/// Bytes of a page: what one operation reads or writes.
const PAGE: usize = 4096;
/// Pages that are written at a time while loading.
const LOAD_PAGES: u64 = 512;

/// A file of the drive that has a page for every record.
pub(super) struct DriveFile {
    path: PathBuf,
    file: File,
    is_synced: bool,
}

impl DriveFile {
    pub(super) fn open(config: &EngineConfig, create: bool) -> Result<DriveFile, LabError> {
        let path = path_of(config)?.clone();
        let is_synced = config.space.is_synced();
        let synced = if is_synced {
            OFlags::DSYNC
        } else {
            OFlags::empty()
        };
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(create);
            options.custom_flags((flags | synced).bits() as i32);
            options.open(&path)
        };
        // Some file systems in memory refuse direct I/O, and have made the file by then.
        let file = open(OFlags::DIRECT).or_else(|_| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.open(&path)
        });
        Ok(DriveFile {
            file: file.map_err(LabError::io("open", &path))?,
            path,
            is_synced,
        })
    }
}

/// Pages of a file that holds so many bytes.
fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64).max(1)
}

impl Below for DriveFile {
    const NAME: &'static str = "drive";
    type Io<'b> = DriveIo<'b>;

    fn settings(&self) -> Vec<(&'static str, &'static str)> {
        let writes = match self.is_synced {
            true => "of 4 KiB, durable before they end",
            false => "of 4 KiB",
        };
        vec![
            ("reads", "of 4 KiB at a record's place, direct I/O"),
            ("writes", writes),
        ]
    }

    fn load(&self, records: &Records) -> Result<(), LabError> {
        let pages = pages(records.bytes());
        let mut buffer = AlignedBuf::new(LOAD_PAGES as usize * PAGE);
        let mut random = fastrand::Rng::with_seed(1);
        let mut at = 0;
        while at < pages {
            // Hosts of virtual drives may store what repeats only once.
            random.fill(buffer.as_mut_slice());
            let now = (pages - at).min(LOAD_PAGES) as usize;
            let bytes = &buffer.as_mut_slice()[..now * PAGE];
            let written = self.file.write_all_at(bytes, at * PAGE as u64);
            written.map_err(LabError::io("write", &self.path))?;
            at += now as u64;
        }
        self.close()
    }

    fn io<'b>(&'b self, records: &'b Records) -> DriveIo<'b> {
        DriveIo {
            file: &self.file,
            path: &self.path,
            records_per_page: (PAGE as u64 / records.record_bytes()).max(1),
            pages: pages(records.bytes()),
            buffer: AlignedBuf::new(PAGE),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn close(&self) -> Result<(), LabError> {
        let synced = self.file.sync_all();
        synced.map_err(LabError::io("write", &self.path))
    }
}

pub(super) struct DriveIo<'d> {
    file: &'d File,
    path: &'d Path,
    records_per_page: u64,
    pages: u64,
    buffer: AlignedBuf,
}

impl DriveIo<'_> {
    /// The offset of a record's page.
    fn place(&self, index: u64) -> u64 {
        index / self.records_per_page % self.pages * PAGE as u64
    }
}

impl BelowIo for DriveIo<'_> {
    fn read(&mut self, index: u64, before: Option<u64>) -> Result<(), LabError> {
        let place = self.place(index);
        if before.map(|before| self.place(before)) == Some(place) {
            return Ok(());
        }
        let read = self.file.read_exact_at(self.buffer.as_mut_slice(), place);
        read.map_err(LabError::io("read", self.path))
    }

    fn write(&mut self, index: u64, value: &[u8]) -> Result<(), LabError> {
        let kept = value.len().min(PAGE);
        self.buffer.as_mut_slice()[..kept].copy_from_slice(&value[..kept]);
        let place = self.place(index);
        let written = self.file.write_all_at(self.buffer.as_mut_slice(), place);
        written.map_err(LabError::io("write", self.path))
    }
}
