//! Whether the log should grow, and how far it has (docs/decisions/0028). The checkpointer makes
//! it longer.

use std::time::Duration;

use crate::error::{StorageError as Error, TransactionError};
use crate::log::{Log, LogTasks};
use crate::runtime::{Worker, clock};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How long a transaction that waits for a larger log sleeps between two looks.
const RETRY: Duration = Duration::from_millis(1);

/// How far the log has grown, and whether it should.
pub(crate) struct LogGrowth {
    /// Segments of its area, and of an extent in the making.
    segments: AtomicU32,
    /// Bytes that the area should have at least.
    wanted: AtomicU64,
    /// The volume had no room, since the store was opened.
    refused: AtomicBool,
    /// The log gets another extent, or leaves one.
    changing: AtomicBool,
}

impl LogGrowth {
    /// That of a log that lies in so many segments.
    pub(crate) fn new(segments: usize) -> LogGrowth {
        LogGrowth {
            segments: AtomicU32::new(segments as u32),
            wanted: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            changing: AtomicBool::new(false),
        }
    }

    /// The area should have `bytes` bytes at least; whether it was to have fewer so far.
    pub(super) fn request(&self, bytes: u64) -> bool {
        self.wanted.fetch_max(bytes, Ordering::SeqCst) < bytes
    }
}

impl LogTasks {
    /// Segments that the log has.
    pub(crate) fn segments(&self) -> u32 {
        self.growth.segments.load(Ordering::Relaxed)
    }

    /// Counts segments as the log's, before others can take them.
    pub(crate) fn count_segments(&self, count: u32) {
        self.growth.segments.fetch_add(count, Ordering::Relaxed);
    }

    /// The log does not lie in one of its segments, or no longer.
    pub(crate) fn discount_segment(&self) {
        self.growth.segments.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the log should be larger than it is, and may.
    #[inline]
    pub(crate) fn should_grow(&self) -> bool {
        let bytes = self.log.area_bytes();
        self.wanted_bytes() > bytes
            && bytes < self.log.max_area_bytes()
            && !self.growth.refused.load(Ordering::Relaxed)
    }

    /// Bytes that the area should have at least.
    pub(crate) fn wanted_bytes(&self) -> u64 {
        self.growth.wanted.load(Ordering::Relaxed)
    }

    /// The area should have `bytes` bytes at least.
    pub(crate) fn request_area(&self, bytes: u64) {
        self.growth.request(bytes);
    }

    /// The log need not be larger than it is, unless tasks wait for space in it. These are listed
    /// before they ask for a larger one: either they are seen here, or what they ask for comes
    /// after this.
    pub(crate) fn forget_wanted(&self) {
        let before = self.growth.wanted.swap(0, Ordering::SeqCst);
        if self.log.has_reservation_waiters() {
            self.growth.request(before);
        }
    }

    /// The volume has no room for a larger area.
    pub(crate) fn refuse_growth(&self) {
        self.growth.refused.store(true, Ordering::Relaxed);
    }

    /// Whether the log's area is being changed.
    pub(crate) fn is_changing(&self) -> bool {
        self.growth.changing.load(Ordering::SeqCst)
    }

    /// Says whether the log's area is being changed.
    pub(crate) fn set_changing(&self, is_changing: bool) {
        self.growth.changing.store(is_changing, Ordering::SeqCst);
    }

    /// Waits until the log has grown so far that a transaction's record of `bytes` bytes fits.
    ///
    /// # Errors
    ///
    /// [`TransactionError::TransactionTooLarge`]; [`Error::Poisoned`].
    pub(crate) fn wait_to_take(&self, worker: &Worker, bytes: u64) -> Result<(), TransactionError> {
        if !self.log.is_on() || bytes <= self.log.transaction_limit_now() {
            return Ok(());
        }
        let limit = self.log.transaction_limit();
        if bytes > limit {
            return Err(TransactionError::TransactionTooLarge { bytes, limit });
        }
        self.wait_to_hold(worker, bytes)
    }

    /// Waits until the log has grown so far that one record of `bytes` bytes fits.
    ///
    /// # Errors
    ///
    /// [`TransactionError::TransactionTooLarge`] if it cannot hold it, or the volume has no space
    /// for that; [`Error::Poisoned`].
    pub(crate) fn wait_to_hold(&self, worker: &Worker, bytes: u64) -> Result<(), TransactionError> {
        let limit = self.log.record_limit();
        if bytes > limit {
            return Err(TransactionError::TransactionTooLarge { bytes, limit });
        }
        let holds = || bytes <= self.log.record_limit_now();
        match self.wait_for_area(worker, Log::area_for(bytes), holds)? {
            true => Ok(()),
            false => Err(TransactionError::TransactionTooLarge {
                bytes,
                limit: self.log.record_limit_now(),
            }),
        }
    }

    /// Waits until the log has grown so far that one commit may split `leaves` leaves; whether it
    /// may.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`].
    pub(crate) fn wait_to_split(&self, worker: &Worker, leaves: u64) -> Result<bool, Error> {
        if leaves > self.log.split_limit() {
            return Ok(false);
        }
        let may_split = || leaves <= self.log.split_limit_now();
        self.wait_for_area(worker, Log::area_to_split(leaves), may_split)
    }

    /// Waits until the log's area is large enough, as `is_large` says, as it is with `wanted`
    /// bytes; `false` if the volume has no space for that.
    fn wait_for_area(
        &self,
        worker: &Worker,
        wanted: u64,
        is_large: impl Fn() -> bool,
    ) -> Result<bool, Error> {
        if is_large() {
            return Ok(true);
        }
        let since = clock::now();
        // Bound: growth ends, or is refused.
        while !is_large() {
            self.shared.writable()?;
            if self.growth.refused.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if self.growth.request(wanted) {
                self.workers.notify_all();
            }
            worker.sleep_until(clock::now() + RETRY);
        }
        self.shared.counters.stalled(clock::now() - since);
        Ok(true)
    }
}
