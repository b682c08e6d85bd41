//! The contents of a drive: a sparse file with every logical page at its own place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::LabError;

pub(super) struct Image {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Image {
    /// Makes an image of zeros, which takes no space.
    pub(super) fn create(path: &Path, bytes: u64) -> Result<Image, LabError> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true);
        let file = options.open(path).map_err(LabError::io("create", path))?;
        file.set_len(bytes).map_err(LabError::io("size", path))?;
        Ok(Image {
            file,
            path: path.to_path_buf(),
            bytes,
        })
    }

    /// Opens an image, which must have its length.
    pub(super) fn open(path: &Path, bytes: u64) -> Result<Image, LabError> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(path);
        let file = file.map_err(LabError::io("open", path))?;
        let found = file.metadata().map_err(LabError::io("size", path))?.len();
        if found != bytes {
            return Err(LabError::input(
                path,
                format!(
                    "holds {found} bytes, and the drive has {bytes}; what is missing cannot be brought back: put the whole \
                     file back, or make a new drive"
                ),
            ));
        }
        Ok(Image {
            file,
            path: path.to_path_buf(),
            bytes,
        })
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, offset)
    }

    /// The range reads zeros from now on, and takes no space if the file system knows holes.
    pub(super) fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                self.write_zeros(offset, len)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn write_zeros(&self, mut offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; len.min(1 << 20) as usize];
        let end = offset + len;
        while offset < end {
            let part = (end - offset).min(zeros.len() as u64);
            self.write(offset, &zeros[..part as usize])?;
            offset += part;
        }
        Ok(())
    }

    /// Forgets all contents.
    pub(super) fn clear(&self) -> Result<(), LabError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.set_len(self.bytes))
            .map_err(LabError::io("clear", &self.path))
    }

    /// Makes all written data survive a crash of the machine.
    pub(super) fn sync(&self) -> Result<(), LabError> {
        self.file
            .sync_data()
            .map_err(LabError::io("sync", &self.path))
    }
}
