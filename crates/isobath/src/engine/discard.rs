//! Discarding segments that hold nothing on the drive.

use super::WorkerState;
use crate::Error;

/// Segments that are kept from use at a time while they are discarded on the drive.
const AT_A_TIME: usize = 8;

impl WorkerState {
    /// Discards every free segment; answers how many bytes that were.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the device refuses or fails; the segments stay free. [`Error::ReadOnly`], [`Error::Poisoned`].
    pub(crate) fn discard_free(&self) -> Result<u64, Error> {
        let engine = &self.engine;
        engine.writable()?;
        let sizes = engine.config.sizes;
        let (mut cursor, mut bytes) = (0, 0);
        loop {
            let batch = engine.space.lock().take_spare(cursor, AT_A_TIME);
            if batch.is_empty() {
                return Ok(bytes);
            }
            let result = self.worker.io_scope(|io| {
                for &segment in &batch {
                    let (offset, length) = (sizes.start_of(segment), sizes.bytes_of(segment));
                    io.discard(offset, length);
                    bytes += u64::from(length);
                }
            });
            cursor += batch.len();
            engine.space.lock().give_spare(cursor, batch);
            engine.segment_waiters.wake_all();
            result.map_err(Error::Io)?;
        }
    }
}
