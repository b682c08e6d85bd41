//! Chunks that tasks are freeing: taken out of the mapping table, the record of that not appended
//! yet.

use std::collections::BTreeSet;

use crate::canary::{self, Canary};
use crate::error::StorageError;
use crate::pagestore::PageStore;
use crate::runtime::Worker;

/// Tasks that take chunks out of the mapping table before their record is appended, by number.
#[derive(Default)]
pub(crate) struct ChunkFrees {
    begun: u64,
    open: BTreeSet<u64>,
}

/// From before the first chunk is taken out of the mapping table until the record of that is
/// appended.
pub(crate) struct Freeing<'e> {
    pagestore: &'e PageStore,
    number: u64,
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.pagestore.chunk_frees.lock().open.remove(&self.number);
    }
}

impl PageStore {
    /// Chunks are going to be taken out of the mapping table. The caller has reserved log space for
    /// the record that says so.
    pub(crate) fn begin_freeing(&self) -> Freeing<'_> {
        let mut frees = self.chunk_frees.lock();
        frees.begun += 1;
        let number = frees.begun;
        frees.open.insert(number);
        Freeing {
            pagestore: self,
            number,
        }
    }

    /// Whether chunks are being freed, and were when as many had begun as `begun`.
    fn frees_since(&self, begun: u64) -> bool {
        let frees = self.chunk_frees.lock();
        frees.open.first().is_some_and(|oldest| *oldest <= begun)
    }

    /// Waits until every chunk that the mapping table does not name any more has the record of its
    /// free appended. A task that copies the table waits for this, and then until that record is
    /// durable.
    ///
    /// # Errors
    ///
    /// [`StorageError::Poisoned`].
    pub(crate) fn wait_for_frees(&self, worker: &Worker) -> Result<(), StorageError> {
        let begun = self.chunk_frees.lock().begun;
        while self.frees_since(begun) && !canary::is_on(Canary::FreeBeforeRecord) {
            self.lower.shared.writable()?;
            worker.yield_now();
        }
        Ok(())
    }
}
