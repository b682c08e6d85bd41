//! Flushes: the bytes that are being written to the drive, and those that are there.
//!
//! Any worker flushes. A flush takes everything that is complete, padded to a
//! whole block; while one is in flight, completed records gather for the
//! next, which is all that group commit needs.

use std::collections::VecDeque;
use std::time::Duration;

use crate::canary::{self, Canary};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Flushes in flight at most, over all workers.
const MAX_FLUSHES: usize = 4;
/// Bytes that must wait before a flush starts beside another one, of the log or of chunks that it
/// names: at least two blocks, so that padding stays the smaller part.
const BESIDE_BYTES: u64 = 8 << 10;

/// A part of the log that one flush writes: whole blocks that was never written before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flush {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The work of a log writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// Nothing now; the end of a flush in flight, or a new request, asks again.
    Nothing,
    /// A writer on another thread is still copying.
    Later,
    /// Write this, then call [`super::Log::flushed`].
    Flush(Flush),
    /// More was appended than was reserved: nothing more can be written.
    Overrun,
}

struct Flight {
    flush: Flush,
    done: bool,
}

struct State {
    /// Flushes in flight, in order; all before the first are durable.
    flights: VecDeque<Flight>,
    running: usize,
    /// End of the padding that was taken for the next flush.
    padded_to: u64,
    /// The LSN at which flushes stop while the log leaves segments.
    pause_at: Option<u64>,
}

/// Numbers of the log since the store was opened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct LogCounters {
    /// Bytes of records and stamps.
    pub(crate) bytes: u64,
    /// Bytes written to the drive, whole blocks.
    pub(crate) bytes_written: u64,
    pub(crate) commits: u64,
    pub(crate) flushes: u64,
    pub(crate) flush_ns: u64,
    pub(crate) flush_ns_max: u64,
}

pub(super) struct Flushing {
    state: Mutex<State>,
    /// Everything that starts below this shall become durable.
    wanted: AtomicU64,
    /// Everything below this is durable or in flight.
    claimed: AtomicU64,
    durable: AtomicU64,
    running: AtomicUsize,
    /// [`State::pause_at`] is set, and all before it is claimed.
    paused: AtomicBool,
    failed: AtomicBool,
    overrun: AtomicBool,
    padding: AtomicU64,
    flushes: AtomicU64,
    bytes: AtomicU64,
    ns: AtomicU64,
    ns_max: AtomicU64,
}

impl Flushing {
    pub(super) fn new(next: u64) -> Flushing {
        Flushing {
            state: Mutex::new(State {
                flights: VecDeque::with_capacity(MAX_FLUSHES),
                running: 0,
                padded_to: next,
                pause_at: None,
            }),
            wanted: AtomicU64::new(next),
            claimed: AtomicU64::new(next),
            durable: AtomicU64::new(next),
            running: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            padding: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            ns: AtomicU64::new(0),
            ns_max: AtomicU64::new(0),
        }
    }

    // Sequentially consistent where two sides each write one word and look at
    // the other's: of a request and the end of a flush, or of the durable end and
    // a task that waits for it, one sees the other.

    #[inline]
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    #[inline]
    pub(super) fn durable_hint(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn request_flush(&self, below: u64) {
        if self.wanted.load(Ordering::Relaxed) < below {
            self.wanted.fetch_max(below, Ordering::SeqCst);
        }
    }

    /// Gives up: nothing more becomes durable.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    pub(super) fn overrun(&self) {
        self.overrun.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// Whether a log writer that looked now would find something to do. `next`
    /// is the log's end; `everything` asks for all of it. The flush would make
    /// about `chunk_bytes` bytes of chunks durable, too.
    pub(super) fn is_due(&self, next: u64, everything: bool, chunk_bytes: u64) -> bool {
        if self.failed.load(Ordering::Relaxed) {
            return false;
        }
        if self.overrun.load(Ordering::Relaxed) {
            return true;
        }
        if self.paused.load(Ordering::SeqCst) {
            return false;
        }
        let claimed = self.claimed.load(Ordering::SeqCst);
        let wanted = self.wanted.load(Ordering::SeqCst) > claimed || (everything && next > claimed);
        wanted
            && may_start(
                self.running.load(Ordering::SeqCst),
                next.saturating_sub(claimed) + chunk_bytes,
            )
    }

    /// No flush goes beyond the answer until [`Flushing::go_on`].
    pub(super) fn pause(&self) -> u64 {
        let mut state = self.state.lock();
        let claimed = self.claimed.load(Ordering::SeqCst);
        // A flush whose padding was taken already goes on: its blocks are given.
        let end = state.padded_to.max(claimed);
        state.pause_at = Some(end);
        self.paused.store(claimed >= end, Ordering::SeqCst);
        end
    }

    #[cfg(test)]
    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    pub(super) fn go_on(&self) {
        let mut state = self.state.lock();
        state.pause_at = None;
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Takes the next flush. `pad` fills the log up to a whole block, and
    /// returns the end; `complete` is up to where every writer has copied.
    pub(super) fn claim(
        &self,
        next: u64,
        everything: bool,
        chunk_bytes: u64,
        pad: impl FnOnce() -> (u64, u64),
        complete: impl FnOnce() -> u64,
    ) -> Claim {
        let mut state = self.state.lock();
        if self.overrun.load(Ordering::Relaxed) {
            return self.give_up();
        }
        if !self.is_due(next, everything, chunk_bytes) {
            return Claim::Nothing;
        }
        let start = self.claimed.load(Ordering::Relaxed);
        if state.padded_to <= start {
            let (from, to) = pad();
            self.padding.fetch_add(to - from, Ordering::Relaxed);
            state.padded_to = to;
        }
        let end = state.padded_to;
        if end <= start {
            return Claim::Nothing;
        }
        if complete() < end {
            return Claim::Later;
        }
        // Not before: a writer that finds no space sets this before it clears its mark.
        if self.overrun.load(Ordering::SeqCst) {
            return self.give_up();
        }
        self.claimed.store(end, Ordering::SeqCst);
        if state.pause_at.is_some_and(|at| end >= at) {
            self.paused.store(true, Ordering::SeqCst);
        }
        let flush = Flush { start, end };
        state.flights.push_back(Flight { flush, done: false });
        state.running += 1;
        self.running.store(state.running, Ordering::SeqCst);
        Claim::Flush(flush)
    }

    fn give_up(&self) -> Claim {
        if self.failed.swap(true, Ordering::SeqCst) {
            Claim::Nothing
        } else {
            Claim::Overrun
        }
    }

    /// The I/O of `flush` has ended, after `took`; returns whether more is durable than before.
    pub(super) fn flushed(&self, flush: Flush, succeeded: bool, took: Duration) -> bool {
        if !succeeded {
            self.fail();
        }
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.bytes
            .fetch_add(flush.end - flush.start, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.ns_max.fetch_max(ns, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.running -= 1;
        self.running.store(state.running, Ordering::SeqCst);
        if succeeded && let Some(flight) = state.flights.iter_mut().find(|f| f.flush == flush) {
            flight.done = true;
        }
        let mut advanced = false;
        if canary::is_on(Canary::PassFlights) {
            state.flights.retain(|flight| flight.flush.end > flush.end);
            self.durable.fetch_max(flush.end, Ordering::SeqCst);
            return true;
        }
        // A flush that failed stays, and with it all that come after it.
        while let Some(first) = state.flights.front()
            && first.done
        {
            self.durable.store(first.flush.end, Ordering::SeqCst);
            state.flights.pop_front();
            advanced = true;
        }
        advanced
    }

    pub(super) fn counters(&self, appended: u64, commits: u64) -> LogCounters {
        LogCounters {
            bytes: appended.saturating_sub(self.padding.load(Ordering::Relaxed)),
            bytes_written: self.bytes.load(Ordering::Relaxed),
            commits,
            flushes: self.flushes.load(Ordering::Relaxed),
            flush_ns: self.ns.load(Ordering::Relaxed),
            flush_ns_max: self.ns_max.load(Ordering::Relaxed),
        }
    }
}

/// Whether a flush of `pending` bytes may start beside `running` others. Alone
/// at once; beside others only with enough to do, because whatever waits for the
/// end of the one in flight costs no flush of its own.
fn may_start(running: usize, pending: u64) -> bool {
    running == 0 || (running < MAX_FLUSHES && pending >= BESIDE_BYTES)
}
