//! The log's next byte, and the end up to which every writer has copied.
//!
//! A writer publishes a low-water mark, takes its place with one atomic
//! operation, copies, and clears the mark. What lies below the next byte and
//! below every mark is complete.

use crate::sync::modelled::{AtomicU64, Ordering};

/// A mark that says "nothing is being copied".
const CLEAR: u64 = u64::MAX;

/// Keeps what one worker writes often out of the others' cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

impl Line {
    fn new(value: u64) -> Line {
        Line(AtomicU64::new(value))
    }
}

/// The next byte of the log, and one low-water mark per writer.
pub(super) struct InFlightLsns {
    next: Line,
    marks: Box<[Line]>,
}

impl InFlightLsns {
    pub(super) fn new(next: u64, writers: usize) -> InFlightLsns {
        InFlightLsns {
            next: Line::new(next),
            marks: (0..writers).map(|_| Line::new(CLEAR)).collect(),
        }
    }

    /// The position that the next unit gets at least.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next.0.load(Ordering::Acquire)
    }

    /// Takes `bytes` that will not be written.
    #[inline]
    pub(super) fn skip(&self, bytes: u64) -> u64 {
        self.next.0.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Announces that `writer` is about to take a place. No other task uses the
    /// same `writer` until its [`InFlightLsns::end`].
    #[inline]
    pub(super) fn begin(&self, writer: usize) {
        let mark = &self.marks[writer].0;
        debug_assert_eq!(mark.load(Ordering::Relaxed), CLEAR, "one unit at a time");
        // At or below whatever `take` returns: this thread cannot see the
        // counter go backwards. Release: a reader that sees this mark instead of the
        // end of the unit before sees that unit's bytes.
        mark.store(self.next.0.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Takes `bytes` after [`InFlightLsns::begin`]; their position.
    #[inline]
    pub(super) fn take(&self, bytes: u64) -> u64 {
        // Release: a reader of a counter beyond this place sees the mark. The
        // operations of others continue the release sequence.
        self.next.0.fetch_add(bytes, Ordering::AcqRel)
    }

    /// Takes everything up to the next multiple of `block`, after
    /// [`InFlightLsns::begin`]: where it starts, and where it ends.
    pub(super) fn take_to_multiple(&self, block: u64) -> (u64, u64) {
        let mut start = self.next.0.load(Ordering::Relaxed);
        loop {
            let end = start.next_multiple_of(block);
            match self
                .next
                .0
                .compare_exchange_weak(start, end, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return (start, end),
                Err(now) => start = now,
            }
        }
    }

    /// All bytes of the unit that `writer` took are in place.
    #[inline]
    pub(super) fn end(&self, writer: usize) {
        self.marks[writer].0.store(CLEAR, Ordering::Release);
    }

    /// Every unit that starts below this is in place, and its bytes are
    /// visible to the caller.
    pub(super) fn contiguous_lsn(&self) -> u64 {
        // The counter first: a unit below it has its mark set, or is done.
        let mut least = self.next();
        for mark in &self.marks {
            least = least.min(mark.0.load(Ordering::Acquire));
        }
        least
    }
}
