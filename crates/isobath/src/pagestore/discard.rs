//! Discarding segments that hold nothing on the drive.

use isobath_io::IoErrorKind;

use crate::Error;
use crate::canary::{self, Canary};
use crate::pagestore::PageStore;
use crate::runtime::Worker;

/// Segments that are kept from use at a time while they are discarded on the drive.
const AT_A_TIME: usize = 8;

impl PageStore {
    /// Has file systems take back what small segments take that hold nothing and that the volume
    /// has outgrown: no one writes there again. Answers how many bytes that were, 0 if a file
    /// system cannot do that.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the device fails; nothing is lost. [`Error::ReadOnly`],
    /// [`Error::Poisoned`].
    pub(crate) fn discard_outgrown(&self, worker: &Worker) -> Result<u64, Error> {
        self.lower.shared.writable()?;
        let sizes = self.lower.shared.config.sizes;
        let unused = self.space.lock().unused_outgrown();
        let mut bytes = 0;
        for batch in unused.chunks(AT_A_TIME) {
            let discarded = worker.io_scope(|io| {
                for &segment in batch {
                    let (offset, length) = (sizes.start_of(segment), sizes.bytes_of(segment));
                    io.discard(offset, length);
                    bytes += u64::from(length);
                }
            });
            match discarded {
                Ok(()) => {}
                Err(error) if error.kind() == IoErrorKind::Unsupported => return Ok(0),
                Err(error) => return Err(Error::Io(error)),
            }
        }
        Ok(bytes)
    }

    /// Discards every free segment; answers how many bytes that were.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the device refuses or fails; the segments stay free. [`Error::ReadOnly`],
    /// [`Error::Poisoned`].
    pub(crate) fn discard_free(&self, worker: &Worker) -> Result<u64, Error> {
        self.lower.shared.writable()?;
        let sizes = self.lower.shared.config.sizes;
        let (mut cursor, mut bytes) = (0, 0);
        loop {
            let batch = self.space.lock().take_spare(cursor, AT_A_TIME);
            if batch.is_empty() {
                return Ok(bytes + self.discard_outgrown(worker)?);
            }
            cursor += batch.len();
            let keeps = !canary::is_on(Canary::DiscardFreeSegments);
            if !keeps {
                self.space.lock().give_spare(cursor, batch.clone());
            }
            let result = worker.io_scope(|io| {
                for &segment in &batch {
                    let (offset, length) = (sizes.start_of(segment), sizes.bytes_of(segment));
                    io.discard(offset, length);
                    bytes += u64::from(length);
                }
            });
            if keeps {
                self.space.lock().give_spare(cursor, batch);
            }
            result.map_err(Error::Io)?;
        }
    }
}
