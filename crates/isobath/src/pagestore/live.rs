//! Finds the live pages of a segment: by its summary, or by the mapping table if the summary cannot
//! be read.

use isobath_io::AlignedBuf;

use crate::buffer::PagePlace;
use crate::error::StorageError;
use crate::page::PageId;
use crate::pagestore::{Entry, PageStore, summaries};
use crate::runtime::Worker;
use crate::shared::{Address, Counters};
use crate::sync::atomic::Ordering::Acquire;

/// Mapping words that are looked at between two looks at other tasks.
const SCAN_STEP: u64 = 1 << 16;

impl PageStore {
    /// Entries of the sealed segment `segment` that may be live. The caller has the segment pinned.
    pub(crate) fn entries_of(&self, worker: &Worker, segment: u32) -> Vec<Entry> {
        self.read_summary(worker, segment).unwrap_or_else(|_| {
            Counters::add(&self.lower.shared.counters.unreadable_summaries, 1);
            self.entries_from_mapping(worker, segment)
        })
    }

    /// The summary of the sealed segment `segment`, which the caller has pinned.
    ///
    /// # Errors
    ///
    /// [`StorageError::Io`], or [`StorageError::CorruptPage`].
    pub(crate) fn read_summary(
        &self,
        worker: &Worker,
        segment: u32,
    ) -> Result<Vec<Entry>, StorageError> {
        let space = self.space.lock();
        if let Some(entries) = space.unsummarized(segment) {
            return Ok(entries);
        }
        let at = space.summary_offset(segment);
        drop(space);
        let seqs = self.lower.shared.seqs();
        let seq = seqs.at(u64::from(segment)).load(Acquire);
        let length = self.lower.shared.config.sizes.bytes - at;
        let mut buffer = AlignedBuf::new(length as usize);
        let from = Address::new(segment, at, length);
        let offset = self.lower.shared.offset_of(from);
        let read = worker.read(offset, buffer.as_mut_slice());
        read.map_err(StorageError::Io)?;
        Counters::add(&self.lower.shared.counters.bytes_read, u64::from(length));
        summaries::decode(buffer.as_slice(), segment, seq).map_err(|corruption| {
            StorageError::CorruptPage {
                page: 1 << 63 | u64::from(segment),
                offset,
                corruption,
            }
        })
    }

    /// Entries of the mapping table in a sealed segment. No page is added to it during that; the
    /// caller finds pages that leave it elsewhere.
    fn entries_from_mapping(&self, worker: &Worker, segment: u32) -> Vec<Entry> {
        let high_water = self.ids.lock().high_water();
        let mut entries = Vec::new();
        for id in PageId::FIRST_FREE.0..high_water {
            if let PagePlace::Stored(address) =
                PagePlace::from_word(self.lower.buffer.stored_word(PageId(id)))
                && address.segment() == segment
            {
                entries.push(Entry {
                    page: PageId(id),
                    offset: address.offset(),
                    length: address.length(),
                });
            }
            if id % SCAN_STEP == 0 {
                worker.yield_now();
            }
        }
        entries
    }
}
