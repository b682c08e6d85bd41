//! Contents of flash pages in a sparse file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use isobath_flash::ftl::PageData;
use rustix::fs::{FallocateFlags, Mode, OFlags};

use crate::LabError;

/// Flash pages at their slot's place in a file without a name; erased pages become holes again.
///
/// The trait of flash contents knows no failures: the first one is kept for the caller that asks.
pub(super) struct FileData {
    file: File,
    page_bytes: u64,
    failure: Mutex<Option<io::Error>>,
}

impl FileData {
    pub(super) fn create(near: &Path, page_bytes: u64) -> Result<FileData, LabError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(near, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| LabError::io("make a file without a name in", near)(e.into()))?;
        Ok(FileData {
            file: file.into(),
            page_bytes,
            failure: Mutex::new(None),
        })
    }

    pub(super) fn take_failure(&mut self) -> Option<io::Error> {
        let slot = self.failure.get_mut();
        slot.unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, result: io::Result<()>) {
        if let Err(error) = result {
            let mut slot = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert(error);
        }
    }

    fn at(&self, slot: u32) -> u64 {
        u64::from(slot) * self.page_bytes
    }

    /// Reads a page; bytes beyond the end of the file are zeros.
    fn load(&self, slot: u32, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self
                .file
                .read_at(&mut out[done..], self.at(slot) + done as u64)
            {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        out[done..].fill(0);
        Ok(())
    }
}

impl PageData for FileData {
    fn read(&self, slot: u32, out: &mut [u8]) {
        self.note(self.load(slot, out));
    }

    fn write(&mut self, slot: u32, page: &[u8]) {
        self.note(self.file.write_all_at(page, self.at(slot)));
    }

    fn copy(&mut self, from: u32, to: u32) {
        let mut page = vec![0; self.page_bytes as usize];
        let copied = self
            .load(from, &mut page)
            .and_then(|()| self.file.write_all_at(&page, self.at(to)));
        self.note(copied);
    }

    fn erase(&mut self, slots: Range<u32>) {
        let (start, end) = (self.at(slots.start), self.at(slots.end));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system without holes only keeps more than it must: erased pages are not read
        // before it is written.
        let _ = rustix::fs::fallocate(&self.file, flags, start, end - start);
    }
}
