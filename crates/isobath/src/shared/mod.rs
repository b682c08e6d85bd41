//! What every part may know: sizes, addresses, counters.

mod address;
mod config;
mod counters;
mod health;
mod reserved;
mod run;
mod sizes;

pub(crate) use address::{
    Address, GRANULE, MAX_LENGTH, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MIN_SEGMENT_BYTES,
};
pub(crate) use config::Config;
pub(crate) use counters::Counters;
pub(crate) use reserved::ReservedWords;
pub(crate) use run::Run;
pub(crate) use sizes::SegmentSizes;

use isobath_io::Volume;

use crate::Error;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use health::Health;

/// What every part may know of the store.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counters: Counters,
    health: Health,
    /// Taken out when the store closes, so that its files are free for others
    /// whatever handles remain.
    volume: Mutex<Option<Volume>>,
    /// Present sequence number of every segment; what a page read must carry.
    seqs: ReservedWords,
}

impl Shared {
    pub(crate) fn new(config: Config, volume: Volume, seqs: ReservedWords) -> Shared {
        Shared {
            config,
            counters: Counters::default(),
            health: Health::new(),
            volume: Mutex::new(Some(volume)),
            seqs,
        }
    }

    /// The volume.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] once the store has been closed.
    pub(crate) fn volume(&self) -> Result<Volume, Error> {
        self.volume.lock().clone().ok_or(Error::Closed)
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
    pub(crate) fn writable(&self) -> Result<(), Error> {
        if self.config.read_only {
            return Err(Error::ReadOnly);
        }
        self.not_poisoned()
    }

    /// Refuses where a write has failed.
    #[inline]
    pub(crate) fn not_poisoned(&self) -> Result<(), Error> {
        self.health.check()
    }

    /// Whether a write has failed.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.health.cause().is_some()
    }

    /// The first failed write.
    pub(crate) fn poison_cause(&self) -> Option<&Error> {
        self.health.cause()
    }

    /// A write failed: no more changes; `false` if one had failed before. [`Engine::poison`] also wakes those who wait.
    ///
    /// [`Engine::poison`]: crate::engine::Engine::poison
    pub(crate) fn poison(&self, cause: Error) -> bool {
        self.health.poison(cause)
    }
}
