//! How many pages may be dirty, and from when on they are written. If the whole store fits into the
//! pool no page has to leave it, so more may be dirty: docs/decisions/0005 derives the numbers.

use super::Buffer;
use crate::log::record::MAPPED_BYTES;
use crate::page::PAGE_SIZE;

/// Bytes of a writer's staging buffer: the largest single page write.
pub(crate) const STAGING_BYTES: usize = 256 << 10;
/// Share of the pool that may be dirty if the store is larger than it: one frame in this many. Most
/// frames are clean, so that a page can leave the pool quickly.
const DIRTY_SHARE: usize = 8;
/// Share of the log's area that writing all dirty pages may take: one part in this many.
/// Commits leave more than a quarter for that, but pages turn dirty during that.
const DIRTY_LOG_SHARE: u64 = 32;
/// If the volume cannot grow: share of the log's area that cleaning for all dirty pages may take.
const CLEANING_LOG_SHARE: u64 = 8;
/// Frames that may be dirty for every one that the store does not need.
const SPARE_WORTH: usize = 4;

/// Bytes of log for the new place of one dirty page at worst: a record for each batch, in a flushed
/// block of its own, and one more such flush before it.
fn dirty_log_bytes(segment_bytes: u32) -> u64 {
    (MAPPED_BYTES + 2 * PAGE_SIZE / batch_pages(segment_bytes)) as u64
}

/// Bytes of log for cleaning that gains a page, if it gains so many of each segment: a flushed
/// block for each batch that it moves, and one for what becomes free.
fn cleaning_log_bytes(segment_bytes: u32, gained_pages: u64) -> u64 {
    let pages = (segment_bytes as usize / PAGE_SIZE).max(1);
    let blocks = pages.div_ceil(batch_pages(segment_bytes)) + 1;
    (blocks * PAGE_SIZE) as u64 / gained_pages.max(1)
}

/// Pages that are written at a time.
fn batch_pages(segment_bytes: u32) -> usize {
    (STAGING_BYTES.min(segment_bytes as usize) / PAGE_SIZE).max(1)
}

/// The store's size on the volume, which the limits depend on.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    /// Bytes of all pages and chunks that exist, whether written yet or not.
    pub(crate) allocated_bytes: u64,
    /// Bytes of a segment that pages are written to.
    pub(crate) segment_bytes: u32,
    /// Pages that cleaning a segment gains on average, if the volume cannot grow.
    pub(crate) gained_pages: Option<u64>,
}

impl Buffer {
    /// Dirty frames above which changes wait.
    ///
    /// Where pages have to leave the pool, that is quick only for clean ones. While
    /// the pool holds all of them, a page is better left until a checkpoint needs it
    /// written: it is changed again during the write. The same holds during recovery, when
    /// no reader waits.
    pub(crate) fn dirty_limit(&self, stored: Stored) -> usize {
        let frames = self.page_frames();
        let most = frames / 8 * 7;
        if self.shared.is_recovering() {
            return most;
        }
        let pages = stored.allocated_bytes / PAGE_SIZE as u64;
        let spare = frames.saturating_sub(usize::try_from(pages).unwrap_or(usize::MAX));
        let logged = self.dirty_logged(stored);
        let useful = (SPARE_WORTH * spare).min(most).min(logged);
        useful.max(self.min_dirty_limit(stored))
    }

    /// Dirty frames whose new places fit into the log, with the cleaning that makes room for them.
    fn dirty_logged(&self, stored: Stored) -> usize {
        if !self.log.is_on() {
            return usize::MAX;
        }
        let (area, segment) = (self.log.area_bytes(), stored.segment_bytes);
        let most = area / DIRTY_LOG_SHARE / dirty_log_bytes(segment);
        let cleaned = stored
            .gained_pages
            .map(|gained| area / CLEANING_LOG_SHARE / cleaning_log_bytes(segment, gained).max(1));
        most.min(cleaned.unwrap_or(most)) as usize
    }

    /// The limit of a store that is larger than its pool.
    pub(crate) fn min_dirty_limit(&self, stored: Stored) -> usize {
        let share = self.page_frames() / DIRTY_SHARE;
        // A log that has not grown yet holds fewer, and one beside which each page is cleaned for.
        let grows = self.log.area_bytes() < self.log.max_area_bytes();
        share
            .min(if grows || stored.gained_pages.is_some() {
                self.dirty_logged(stored)
            } else {
                share
            })
            .max(8)
    }

    /// Dirty frames above which they are written back.
    pub(crate) fn dirty_target(&self, stored: Stored) -> usize {
        let limit = self.dirty_limit(stored);
        let least = self.min_dirty_limit(stored);
        if limit > 2 * least {
            limit - least
        } else {
            limit / 2
        }
    }

    /// `count` frames are no longer dirty nor being written: changes that wait
    /// for fewer dirty pages may go on. What is stored is asked for after they count no longer: a
    /// change that came to wait before that saw no higher limit.
    pub(crate) fn frames_written_back(&self, count: usize, stored: impl FnOnce() -> Stored) {
        self.pool.dirty.written(count);
        if self.pool.dirty.unwritten() <= self.dirty_limit(stored()) {
            self.dirty_waiters.wake_all();
        }
        let written = self.pool.dirty.written_back();
        self.changes.pages_written(written as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a log of 4 MiB, an eighth is for cleaning: in segments of 16 pages a batch and what
    /// becomes free take a block each, and gain so many pages.
    #[test]
    fn the_fewer_pages_cleaning_gains_the_fewer_are_dirty() {
        let pages = |gained| (4 << 20) / CLEANING_LOG_SHARE / cleaning_log_bytes(64 << 10, gained);
        assert_eq!([pages(0), pages(1), pages(2), pages(8)], [64, 64, 128, 512]);
        let large = cleaning_log_bytes(2 << 20, 64);
        assert_eq!(large, 9 * PAGE_SIZE as u64 / 64);
    }
}
