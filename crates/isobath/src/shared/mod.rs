//! Types that every part uses: sizes, addresses, counters.

mod address;
mod config;
mod counters;
mod durability;
mod health;
mod reserved;
mod run;
mod segment_size;
mod uuid;

pub(crate) use address::{
    Address, GRANULE, MAX_LENGTH, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MIN_SEGMENT_BYTES,
};
pub(crate) use config::Config;
pub(crate) use counters::Counters;
pub use durability::Durability;
pub(crate) use reserved::ReservedWords;
pub(crate) use run::Run;
pub(crate) use segment_size::{SEGMENT_BYTES, SegmentSize, segment_bytes_for};
pub(crate) use uuid::uuid;

use isobath_io::Volume;

use crate::error::{Error, StorageError};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use health::Health;

/// State of the store that every part uses.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    health: Health,
    /// The superblocks do not say yet that the store is open, or what the log says is not all in
    /// the pages: no checkpoint may be written.
    recovering: AtomicBool,
    /// Tasks wait for space, in the log or on the volume: workers look whether they ever get some.
    space_awaited: AtomicBool,
    /// Taken out when the store closes, so that its files are free for others
    /// whatever handles remain.
    volume: Mutex<Option<Volume>>,
    /// Present sequence number of every segment; what a page read must carry.
    seqs: ReservedWords,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        volume: Volume,
        seqs: ReservedWords,
        recovering: bool,
    ) -> Shared {
        Shared {
            config,
            counters: Counters::default(),
            health: Health::new(),
            recovering: AtomicBool::new(recovering),
            space_awaited: AtomicBool::new(false),
            volume: Mutex::new(Some(volume)),
            seqs,
        }
    }

    /// The volume.
    ///
    /// # Errors
    ///
    /// [`StorageError::Closed`] once the store has been closed.
    pub(crate) fn volume(&self) -> Result<Volume, StorageError> {
        self.volume.lock().clone().ok_or(StorageError::Closed)
    }

    /// Releases the volume, whatever handles remain.
    pub(crate) fn release_volume(&self) {
        self.volume.lock().take();
    }

    /// The byte offset of `address` in the volume.
    pub(crate) fn offset_of(&self, address: Address) -> u64 {
        self.config.sizes.start_of(address.segment()) + u64::from(address.offset())
    }

    /// The present sequence number of the segment at `address`.
    pub(crate) fn seq_of(&self, address: Address) -> u64 {
        self.seqs
            .at(u64::from(address.segment()))
            .load(Ordering::Acquire)
    }

    /// The present sequence numbers of all segments.
    pub(crate) fn seqs(&self) -> &ReservedWords {
        &self.seqs
    }

    /// Refuses changes to a store that is read-only or whose writes failed.
    pub(crate) fn writable(&self) -> Result<(), StorageError> {
        if self.config.read_only {
            return Err(StorageError::ReadOnly);
        }
        self.not_poisoned()
    }

    /// Refuses where a write has failed.
    #[inline]
    pub(crate) fn not_poisoned(&self) -> Result<(), StorageError> {
        self.health.check()
    }

    /// Whether a write has failed.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.health.cause().is_some()
    }

    /// A write failed: no more changes from here on, with this as the reason. Tasks that wait wake
    /// and find it.
    pub(crate) fn poison(&self, cause: impl Into<Error>) {
        self.health.poison(cause.into());
    }

    /// Calls `wake` whenever a write fails, to wake tasks that wait for what does not come then.
    pub(crate) fn on_poison(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.health.on_poison(wake);
    }

    /// Tasks wait for space from now on, in the log or on the volume: workers look whether they
    /// ever get some.
    pub(crate) fn watch_for_space(&self) {
        self.space_awaited.store(true, Ordering::SeqCst);
    }

    /// Whether tasks wait for space.
    #[inline]
    pub(crate) fn awaits_space(&self) -> bool {
        self.space_awaited.load(Ordering::Relaxed)
    }

    /// No task waits for space.
    pub(crate) fn has_space(&self) {
        self.space_awaited.swap(false, Ordering::SeqCst);
    }

    /// Whether the log says more than what is in the pages.
    #[inline]
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.load(Ordering::Acquire)
    }

    /// The log is applied to the pages: from now on checkpoints are written.
    pub(crate) fn recovered(&self) {
        self.recovering.store(false, Ordering::Release);
    }

    /// As if a recovery were under way.
    #[cfg(test)]
    pub(crate) fn recover_again(&self) {
        self.recovering.store(true, Ordering::SeqCst);
    }
}
