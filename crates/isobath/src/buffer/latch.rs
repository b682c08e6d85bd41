//! The latch of one frame: a word that is a version, a count of readers and a
//! writer's bit at once.
//!
//! Optimistic readers take no latch: they note the version, read, and ask
//! afterwards whether it still holds. Latches are held for short stretches of
//! code and never over a yield.

use crate::sync::modelled::{AtomicU64, Ordering, fence};

/// No thread holds the latch exclusively. Zero says that one does: so the headers of frames
/// that were never used need no initialisation, which would touch the memory of all of them.
const OPEN: u64 = 1 << 63;
const SHARED_ONE: u64 = 1 << 48;
const SHARED_MASK: u64 = 0x7fff << 48;
const VERSION_MASK: u64 = SHARED_ONE - 1;

/// A state of the page that an optimistic reader saw, [`OPEN`] included: changes with every
/// exclusive latching, and never repeats in a store's life (2⁴⁸ changes of one frame).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(u64);

/// A frame's latch word: bit 63 not held exclusively, bits 48–62 number of shared
/// holders, bits 0–47 version.
#[derive(Debug)]
pub(crate) struct Latch(AtomicU64);

impl Latch {
    /// A latch that is held exclusively, as that of a free frame is.
    #[cfg(all(test, loom))]
    pub(crate) fn new_exclusive() -> Latch {
        Latch(AtomicU64::new(0))
    }

    /// The version to validate against later, or `None` while a writer holds
    /// the latch.
    #[inline]
    pub(crate) fn optimistic(&self) -> Option<Version> {
        let word = self.0.load(Ordering::Acquire);
        (word & OPEN != 0).then_some(Version(word & (OPEN | VERSION_MASK)))
    }

    /// Whether everything read since `version` was taken was unchanged.
    #[inline]
    pub(crate) fn validate(&self, version: Version) -> bool {
        // The relaxed reads of the page must not sink below this load.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) & (OPEN | VERSION_MASK) == version.0
    }

    /// The whole word: as long as it stays the same, the frame holds the same
    /// page, in the same state.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Takes the latch shared unless a writer holds it.
    #[inline]
    pub(crate) fn try_shared(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & OPEN == 0 || word & SHARED_MASK == SHARED_MASK {
                return false;
            }
            match self.0.compare_exchange_weak(
                word,
                word + SHARED_ONE,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Gives a shared hold back.
    #[inline]
    pub(crate) fn unlock_shared(&self) {
        let before = self.0.fetch_sub(SHARED_ONE, Ordering::Release);
        debug_assert!(before & SHARED_MASK != 0, "shared latch released twice");
    }

    /// Takes the latch exclusively if it is free.
    #[inline]
    pub(crate) fn try_exclusive(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word & (OPEN | SHARED_MASK) == OPEN && self.upgrade_from(word)
    }

    /// Takes the latch exclusively if `version` still holds and no task holds
    /// the latch.
    #[inline]
    pub(crate) fn try_upgrade(&self, version: Version) -> bool {
        self.upgrade_from(version.0)
    }

    fn upgrade_from(&self, word: u64) -> bool {
        let won = self
            .0
            .compare_exchange(word, word & !OPEN, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if won {
            // The page's stores must not rise above the latching: an optimistic
            // reader that sees one of them has to see the latch as well.
            fence(Ordering::Release);
        }
        won
    }

    /// Ends an exclusive hold; every version taken before it is now invalid.
    #[inline]
    pub(crate) fn unlock_exclusive(&self) {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & OPEN == 0, "exclusive latch released twice");
        let version = (word + 1) & VERSION_MASK;
        self.0.store(version | OPEN, Ordering::Release);
    }

    /// Ends an exclusive hold under which nothing was changed; versions taken
    /// before it stay valid.
    #[inline]
    pub(crate) fn unlock_unchanged(&self) {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & OPEN == 0, "exclusive latch released twice");
        self.0.store(word & VERSION_MASK | OPEN, Ordering::Release);
    }
}
