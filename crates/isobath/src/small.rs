//! Sizes that simulations make small, so that a few hundred records do what takes gigabytes
//! elsewhere. Builds without simulations have constants here.

/// Sizes of the stores that a thread simulates.
#[cfg(any(test, feature = "simulation"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Small {
    /// Words that a page of a checkpoint holds; a full page if there is none.
    /// A store opens only with the number that it was made with.
    pub words_per_page: Option<u64>,
    /// Bytes of log from one checkpoint to the next, at most.
    pub checkpoint_bytes: Option<u64>,
    /// Bytes from which on a transaction's changes go to a temporary file.
    pub spill_bytes: Option<u64>,
    /// Bytes of a memory of overlays; then any tree of more than one leaf gets overlays.
    pub overlay_bytes: Option<u64>,
}

#[cfg(any(test, feature = "simulation"))]
thread_local! {
    static CHOSEN: std::cell::Cell<Small> = const {
        std::cell::Cell::new(Small {
            words_per_page: None,
            checkpoint_bytes: None,
            spill_bytes: None,
            overlay_bytes: None,
        })
    };
}

#[cfg(any(test, feature = "simulation"))]
impl Small {
    /// Uses these sizes for the stores that this thread simulates from now on.
    pub fn switch_on(self) {
        CHOSEN.set(self);
    }

    /// The sizes that this thread uses.
    #[must_use]
    pub fn chosen() -> Small {
        CHOSEN.get()
    }
}

/// A worker's work, with the sizes and the planted bug of the thread that starts it.
#[cfg(any(test, feature = "simulation"))]
pub(crate) fn inherited<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let (sizes, bug) = (Small::chosen(), crate::canary::Canary::switched_on());
    move || {
        sizes.switch_on();
        if let Some(bug) = bug {
            bug.switch_on();
        }
        work()
    }
}

/// A worker's work.
#[cfg(not(any(test, feature = "simulation")))]
pub(crate) fn inherited<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    work
}

/// Words that a page of a checkpoint holds, where a full one holds `full`.
#[inline(always)]
pub(crate) fn words_per_page(full: u64) -> u64 {
    #[cfg(any(test, feature = "simulation"))]
    return CHOSEN.get().words_per_page.unwrap_or(full).clamp(4, full);
    #[cfg(not(any(test, feature = "simulation")))]
    full
}

/// Most pages that a store can have, where it is `full` elsewhere: with small
/// pages of the mapping table, the bookkeeping of each would be large.
#[inline(always)]
pub(crate) fn max_pages(full: u64) -> u64 {
    #[cfg(any(test, feature = "simulation"))]
    return CHOSEN
        .get()
        .words_per_page
        .map_or(full, |_| full.min(1 << 20));
    #[cfg(not(any(test, feature = "simulation")))]
    full
}

/// Segments that a checkpoint may need in a volume of `segments`, where it is `full`
/// elsewhere. A segment of a simulation has 16 pages, each with a word.
#[inline(always)]
pub(crate) fn checkpoint_segments(segments: u32, full: u32) -> u32 {
    #[cfg(any(test, feature = "simulation"))]
    if let Some(words) = CHOSEN.get().words_per_page {
        // Words of pages and segments, directory and what they replace.
        let words = words.clamp(4, u64::from(u32::MAX)) as u32;
        return full.max(3 * segments / words + 2);
    }
    let _ = segments;
    full
}

/// Frames that are looked at before other tasks have a turn, if they are `full` elsewhere.
#[inline(always)]
pub(crate) fn frames_at_once(full: u32) -> u32 {
    #[cfg(any(test, feature = "simulation"))]
    if CHOSEN.get().words_per_page.is_some() {
        return 16;
    }
    full
}

/// Pages that a load lists before it looks which of them are on the drive, if they are `full`
/// elsewhere.
#[inline(always)]
pub(crate) fn listed_pages(full: usize) -> usize {
    match cfg!(any(test, feature = "simulation")) {
        true => 16,
        false => full,
    }
}

/// Bytes of log after which a simulation requests a checkpoint.
#[inline(always)]
pub(crate) fn checkpoint_bytes() -> Option<u64> {
    #[cfg(any(test, feature = "simulation"))]
    return CHOSEN.get().checkpoint_bytes;
    #[cfg(not(any(test, feature = "simulation")))]
    None
}

/// Bytes from which on a transaction's changes go to a temporary file, if they are `full`
/// elsewhere.
#[inline(always)]
pub(crate) fn spill_bytes(full: u64) -> u64 {
    #[cfg(any(test, feature = "simulation"))]
    return CHOSEN.get().spill_bytes.unwrap_or(full).min(full);
    #[cfg(not(any(test, feature = "simulation")))]
    full
}

/// Bytes of a memory of overlays, where they are chosen.
#[inline(always)]
pub(crate) fn overlay_bytes() -> Option<u64> {
    #[cfg(any(test, feature = "simulation"))]
    return CHOSEN.get().overlay_bytes;
    #[cfg(not(any(test, feature = "simulation")))]
    None
}
