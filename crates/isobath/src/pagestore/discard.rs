//! Discarding segments that hold nothing on the drive.

use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::pagestore::PageStore;
use crate::runtime::Worker;

/// Segments that are kept from use at a time while they are discarded on the drive.
const AT_A_TIME: usize = 8;

impl PageStore {
    /// Where free segments lie: offsets and lengths in bytes.
    pub(crate) fn free_extents(&self) -> Vec<(u64, u64)> {
        let sizes = self.lower.shared.config.sizes;
        let space = self.space.lock();
        let extent = |&segment: &u32| (sizes.start_of(segment), u64::from(sizes.bytes));
        space.free().iter().map(extent).collect()
    }

    /// Discards every free segment; answers how many bytes that were.
    ///
    /// # Errors
    ///
    /// [`StorageError::Io`] if the device refuses or fails; the segments stay free.
    /// [`StorageError::ReadOnly`], [`StorageError::Poisoned`].
    pub(crate) fn discard_free(&self, worker: &Worker) -> Result<u64, StorageError> {
        self.lower.shared.writable()?;
        let sizes = self.lower.shared.config.sizes;
        let (mut cursor, mut bytes) = (0, 0);
        loop {
            let batch = self.space.lock().take_spare(cursor, AT_A_TIME);
            if batch.is_empty() {
                return Ok(bytes);
            }
            cursor += batch.len();
            let keeps = !canary::is_on(Canary::DiscardFreeSegments);
            if !keeps {
                self.space.lock().give_spare(cursor, batch.clone());
            }
            let result = worker.io_scope(|io| {
                for &segment in &batch {
                    let (offset, length) = (sizes.start_of(segment), sizes.bytes);
                    io.discard(offset, length);
                    bytes += u64::from(length);
                }
            });
            if keeps {
                self.space.lock().give_spare(cursor, batch);
            }
            result.map_err(StorageError::Io)?;
        }
    }
}
