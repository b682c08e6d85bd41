//! The write-ahead log: one LSN space, appended to by every worker without waiting, flushed by any
//! worker.

mod area;
mod commits;
mod device;
mod flush;
mod growth;
mod hold;
mod in_flight;
#[cfg(all(test, loom))]
mod in_flight_loom;
mod layout;
mod log_tasks;
mod reader;
pub(crate) mod record;
mod reservation;
mod rewrite;
mod ring;
#[cfg(test)]
mod space_tests;
mod tasks;
#[cfg(test)]
mod tasks_tests;
#[cfg(test)]
mod testing;
mod unflushed;
mod volume_flush;

pub(crate) use area::LogArea;
pub(crate) use commits::{Slot, Tracker};
pub(crate) use device::{
    DEVICE_HEADER_BYTES, DEVICE_VERSION, DeviceHeader, HeaderError, is_log_device,
};
pub(crate) use flush::{Claim, Flush, LogCounters};
pub(crate) use layout::{BLOCK, HEADER_BYTES, OPEN_EPOCH_LIMIT};
pub(crate) use log_tasks::LogTasks;
pub(crate) use reader::{Entry as LogEntry, LogEnd, ReadError, Reader, next_epoch, seal_tail};
pub use reservation::MAX_TRANSACTION_BYTES;
pub(crate) use reservation::{
    LogReservation, ReservationClass, ReservationRequest, TRANSACTION_LIMIT,
};
pub(crate) use rewrite::Rewriter;
pub(crate) use tasks::LOG_WRITERS;

use std::sync::Arc;
use std::time::Duration;

use crate::page::Lsn;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use flush::Flushing;
use in_flight::InFlightLsns;
use layout::{Header, Seed, Skip, body_checksum, record_bytes, skip_word};
use record::Kind;
use reservation::{RING_PER_TRANSACTION, Reservations};
use ring::Ring;
use unflushed::Unflushed;

/// Least and most bytes of the ring.
pub(crate) const MIN_RING_BYTES: u64 = 512 << 10;
/// Without larger transactions than usual.
const USUAL_RING_BYTES: u64 = 16 << 20;
const MAX_RING_BYTES: u64 = 64 << 20;
/// Least bytes of the area.
pub(crate) const MIN_AREA_BYTES: u64 = 4 << 20;

/// The configuration of a log.
pub(crate) struct LogConfig {
    /// Its area.
    pub(crate) area: LogArea,
    /// Bytes that the area may grow to.
    pub(crate) max_bytes: u64,
    /// Bytes of the largest transaction's record, as far as the area allows.
    pub(crate) transaction_bytes: u64,
    /// Seeds the checksums, so that no other store's log is taken for this one's.
    pub(crate) store_id: [u8; 16],
    /// The oldest position that a recovery would read.
    pub(crate) start: Lsn,
    /// The LSN at which it continues: a multiple of [`BLOCK`], see [`seal_tail`].
    pub(crate) next: Lsn,
    /// One more than that of any opening before, below [`OPEN_EPOCH_LIMIT`].
    pub(crate) open_epoch: u32,
    /// Workers that append.
    pub(crate) writers: usize,
}

/// The parts of a log that is kept, other than the counter.
struct On {
    ring: Ring,
    area: Mutex<Arc<LogArea>>,
    /// Bytes that reservations may use: those of the area, or fewer while it is about to become
    /// smaller.
    area_bytes: AtomicU64,
    /// Bytes of the area.
    placed_bytes: AtomicU64,
    max_bytes: u64,
    transaction_bytes: u64,
    seed: Seed,
    open_epoch: u32,
    /// The first LSN of this opening.
    first: u64,
    flushing: Flushing,
    unflushed: Unflushed,
    reservations: Reservations,
    /// Commits, per writer.
    commits: Box<[Count]>,
}

#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicU64);

/// The LSN space, and the gate before page writes.
pub(crate) struct Log {
    in_flight: InFlightLsns,
    on: Option<Box<On>>,
}

impl Log {
    /// A log that keeps nothing: it gives out LSNs, and every page may be written.
    pub(crate) fn off(next: Lsn) -> Log {
        Log {
            in_flight: InFlightLsns::new(next.0.next_multiple_of(8).max(8), 0),
            on: None,
        }
    }

    /// A log that is kept in `config.area`.
    ///
    /// # Panics
    ///
    /// If the area is smaller than [`MIN_AREA_BYTES`], or a number is out of
    /// its range: opening the store has checked them.
    pub(crate) fn on(config: LogConfig) -> Log {
        let area_bytes = config.area.bytes();
        assert!(
            area_bytes >= MIN_AREA_BYTES,
            "a log area of {area_bytes} bytes"
        );
        assert!(config.open_epoch < OPEN_EPOCH_LIMIT, "too many openings");
        assert!(config.next.0.is_multiple_of(BLOCK) && config.next.0 > 0);
        assert!(config.start <= config.next);
        let max_bytes = config.max_bytes.max(area_bytes);
        let ring_bytes = (max_bytes / 8).clamp(MIN_RING_BYTES, USUAL_RING_BYTES);
        let mut ring_bytes = 1 << ring_bytes.ilog2();
        if config.transaction_bytes > MAX_TRANSACTION_BYTES {
            // No larger than what the area allows, either.
            let wanted = config.transaction_bytes * RING_PER_TRANSACTION;
            let wanted = wanted.next_power_of_two().min(MAX_RING_BYTES);
            ring_bytes = wanted.min(1 << (max_bytes / 8).ilog2()).max(ring_bytes);
        }
        let next = config.next.0;
        Log {
            in_flight: InFlightLsns::new(next, config.writers),
            on: Some(Box::new(On {
                ring: Ring::new(ring_bytes),
                area: Mutex::new(Arc::new(config.area)),
                area_bytes: AtomicU64::new(area_bytes),
                placed_bytes: AtomicU64::new(area_bytes),
                max_bytes,
                transaction_bytes: config.transaction_bytes,
                seed: Seed::of(&config.store_id),
                open_epoch: config.open_epoch,
                first: next,
                flushing: Flushing::new(next),
                unflushed: Unflushed::default(),
                reservations: Reservations::new(config.start.0),
                commits: (0..config.writers).map(|_| Count::default()).collect(),
            })),
        }
    }

    /// The LSN whose durability implies that of every record so far.
    pub(crate) fn newest_record(&self) -> Lsn {
        Lsn(self.next().0.saturating_sub(1))
    }

    /// The first LSN that this opening wrote.
    pub(crate) fn first(&self) -> Lsn {
        Lsn(self.on.as_ref().map_or(0, |on| on.first))
    }

    /// The oldest position that a recovery would read.
    pub(crate) fn start(&self) -> Lsn {
        Lsn(self
            .on
            .as_ref()
            .map_or(self.in_flight.next(), |on| on.reservations.start()))
    }

    /// The log's area, if it is kept.
    pub(crate) fn area(&self) -> Option<Arc<LogArea>> {
        self.on.as_ref().map(|on| Arc::clone(&on.area.lock()))
    }

    /// Bytes of the area; none if nothing is kept.
    pub(crate) fn area_bytes(&self) -> u64 {
        self.on.as_ref().map_or(0, |on| on.area_bytes())
    }

    /// Bytes that the area may grow to.
    pub(crate) fn max_area_bytes(&self) -> u64 {
        self.on.as_ref().map_or(0, |on| on.max_bytes)
    }

    // ---- growing ------------------------------------------------------------

    /// Stops flushes at the answer, the end of those that were begun: what lies behind it may go to
    /// another area. Ends with [`Log::go_on_in`], or with the log's failure.
    pub(crate) fn pause(&self) -> Lsn {
        Lsn(self.on.as_ref().map_or(0, |on| on.flushing.pause()))
    }

    /// Flushes go on, from where they were stopped on in `area`, which has the same place for all
    /// before, and is larger, or as large as reservations assume.
    pub(crate) fn go_on_in(&self, area: LogArea) {
        let Some(on) = &self.on else { return };
        let bytes = area.bytes();
        debug_assert!(bytes >= on.area_bytes());
        *on.area.lock() = Arc::new(area);
        on.placed_bytes.store(bytes, Ordering::SeqCst);
        on.area_bytes.store(bytes, Ordering::SeqCst);
        on.flushing.go_on();
        self.grant_reservations();
    }

    /// Whether flushes are stopped.
    #[cfg(test)]
    pub(crate) fn is_paused(&self) -> bool {
        self.on.as_ref().is_some_and(|on| on.flushing.is_paused())
    }

    /// Whether anything is kept.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// Appends one record whose body is `parts`, one after another, and calls
    /// `stamp` with its LSN before the record counts as complete: a task that reads
    /// the log's complete end finds every page below it stamped.
    ///
    /// `writer` is the worker; no two threads append with the same one at a
    /// time. Never waits: the caller has a reservation (see [`LogTasks::reserve`]).
    pub(crate) fn append(
        &self,
        writer: usize,
        kind: Kind,
        parts: &[&[u8]],
        stamp: impl FnOnce(Lsn),
    ) -> Lsn {
        let Some(on) = &self.on else {
            let lsn = Lsn(self.in_flight.skip(8));
            stamp(lsn);
            return lsn;
        };
        // As much as possible before the place is taken: others wait from then on.
        let bytes = record_bytes(parts);
        let body = body_checksum(on.seed, parts);
        self.in_flight.begin(writer);
        let lsn = self.in_flight.take(bytes as u64);
        if on.fits(lsn + bytes as u64) {
            let durable = on.flushing.durable_hint();
            let header = Header::new(bytes, lsn, on.open_epoch, kind, durable).encode(body);
            on.put_record(lsn, &header, parts, bytes);
        }
        stamp(Lsn(lsn));
        self.in_flight.end(writer);
        if kind == Kind::Commit {
            let count = &on.commits[writer].0;
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        Lsn(lsn)
    }

    /// A position in the log without a record: above every LSN given before,
    /// and no other's.
    pub(crate) fn stamp(&self, writer: usize) -> Lsn {
        self.stamp_pages(writer, |_| ())
    }

    /// As [`Log::stamp`], for pages that no record has. `mark` says in them that they have changed
    /// there; as for [`Log::append`], the position counts as complete once it has.
    pub(crate) fn stamp_pages(&self, writer: usize, mark: impl FnOnce(Lsn)) -> Lsn {
        let Some(on) = &self.on else {
            let lsn = Lsn(self.in_flight.skip(8));
            mark(lsn);
            return lsn;
        };
        self.in_flight.begin(writer);
        let lsn = self.in_flight.take(8);
        if on.fits(lsn + 8) {
            on.put_word(lsn, skip_word(on.seed, lsn, on.open_epoch, Skip::Word));
        }
        mark(Lsn(lsn));
        self.in_flight.end(writer);
        Lsn(lsn)
    }

    /// Fills the log up to a whole block: where the padding starts and ends.
    fn pad(&self, on: &On, writer: usize) -> (u64, u64) {
        self.in_flight.begin(writer);
        let (start, end) = self.in_flight.take_to_multiple(BLOCK);
        if start < end && on.fits(end) {
            on.put_word(start, skip_word(on.seed, start, on.open_epoch, Skip::Block));
            on.put_zeros(start + 8, end);
        }
        self.in_flight.end(writer);
        (start, end)
    }

    /// Every record that starts below this is durable, with the chunks that it names.
    pub(crate) fn durable(&self) -> Lsn {
        match &self.on {
            Some(on) => Lsn(on.flushing.durable()),
            None => self.next(),
        }
    }

    /// Whether a page whose newest change is `lsn` may be written to the volume:
    /// the record is durable.
    #[inline]
    pub(crate) fn is_durable(&self, lsn: Lsn) -> bool {
        self.on
            .as_ref()
            .is_none_or(|on| lsn.0 < on.flushing.durable_hint())
    }

    /// Every record that starts below this has been copied and its pages stamped.
    pub(crate) fn contiguous_lsn(&self) -> Lsn {
        Lsn(self.in_flight.contiguous_lsn())
    }

    /// The LSN that the next record will get at least.
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.in_flight.next())
    }

    // ---- flushing -----------------------------------------------------------

    /// Requests a flush up to the record at `lsn`. The caller wakes a log writer.
    pub(crate) fn request_flush(&self, lsn: Lsn) {
        if let Some(on) = &self.on {
            on.flushing
                .request_flush((lsn.0 + 1).min(self.in_flight.next()));
        }
    }

    /// Requests a flush of all that was appended so far.
    pub(crate) fn request_flush_of_all(&self) {
        if let Some(on) = &self.on {
            on.flushing.request_flush(self.in_flight.next());
        }
    }

    /// Whether a log writer would find something to do.
    pub(crate) fn flush_is_due(&self) -> bool {
        self.on.as_ref().is_some_and(|on| {
            on.flushing.is_due(
                self.in_flight.next(),
                on.reservations.has_waiters(),
                on.unflushed.bytes(),
            )
        })
    }

    /// Takes the next part of the log to write, for a log writer of worker `writer`.
    pub(crate) fn claim(&self, writer: usize) -> Claim {
        let Some(on) = &self.on else {
            return Claim::Nothing;
        };
        on.flushing.claim(
            self.in_flight.next(),
            on.reservations.has_waiters(),
            on.unflushed.bytes(),
            || self.pad(on, writer),
            || self.in_flight.contiguous_lsn(),
        )
    }

    /// The record at `lsn`, which is being appended, names `bytes` bytes of chunks that were
    /// written and not flushed. The flush that makes it durable makes them durable first.
    pub(crate) fn names_unflushed(&self, lsn: Lsn, bytes: u64) {
        if let Some(on) = &self.on {
            on.unflushed.add(lsn, bytes);
            if on.unflushed.is_much() {
                on.flushing.request_flush(lsn.0 + 1);
            }
        }
    }

    /// Whether `flush`, which was just taken, has to make the volume's completed writes durable,
    /// too.
    pub(crate) fn flushes_volume(&self, flush: Flush) -> bool {
        self.on.as_ref().is_some_and(|on| on.unflushed.is_in(flush))
    }

    /// The I/Os of a flush: (volume offset, first byte in memory, length).
    pub(crate) fn writes(&self, flush: Flush) -> Vec<(u64, *const u8, u32)> {
        let Some(on) = &self.on else {
            return Vec::new();
        };
        let mut writes = Vec::with_capacity(2);
        let area = Arc::clone(&on.area.lock());
        for (lsn, memory, length) in on.ring.pieces(flush.start, flush.end) {
            let mut done = 0;
            for (offset, count) in area.pieces(lsn, length) {
                writes.push((offset, memory.wrapping_add(done), count as u32));
                done += count as usize;
            }
        }
        writes
    }

    /// The I/Os of a flush have ended, after `took`. Returns whether more is
    /// durable than before; waiters for log space have been woken then.
    pub(crate) fn flushed(&self, flush: Flush, succeeded: bool, took: Duration) -> bool {
        let Some(on) = &self.on else { return false };
        let advanced = on.flushing.flushed(flush, succeeded, took);
        if advanced {
            self.grant_reservations();
        }
        advanced
    }

    /// Nothing more becomes durable: a write failed, of the log or of pages that its records name.
    pub(crate) fn fail(&self) {
        if let Some(on) = &self.on {
            on.flushing.fail();
            self.wake_reservation_waiters();
        }
    }

    /// Gives the ring's memory back: nothing is appended any more.
    pub(crate) fn discard(&self) {
        if let Some(on) = &self.on {
            on.ring.discard();
        }
    }

    /// The ring's memory, for registration with channels, once all of it was used.
    pub(crate) fn region(&self) -> Option<(*mut u8, usize)> {
        let on = self.on.as_ref()?;
        (self.in_flight.next() - on.first >= on.ring.bytes()).then(|| on.ring.region())
    }

    /// Numbers since the store was opened.
    pub(crate) fn counters(&self) -> LogCounters {
        self.on.as_ref().map_or_else(LogCounters::default, |on| {
            let read = |count: &Count| count.0.load(Ordering::Relaxed);
            let commits = on.commits.iter().map(read).sum();
            on.flushing
                .counters(self.in_flight.next() - on.first, commits)
        })
    }
}

impl On {
    #[inline]
    fn area_bytes(&self) -> u64 {
        self.area_bytes.load(Ordering::Acquire)
    }

    /// Bytes of the area up to which `class` may fill it.
    fn max_share_of_area(&self, class: ReservationClass) -> u64 {
        self.reservations
            .max_share_of_area(self.area_bytes(), class)
    }

    /// Whether the ring and the area have space up to `end`. If not, a writer
    /// has appended more than it had reserved; nothing is overwritten, and from
    /// here on nothing becomes durable.
    #[inline]
    fn fits(&self, end: u64) -> bool {
        let fits = end - self.flushing.durable_hint() <= self.ring.bytes()
            && end - self.reservations.start() <= self.placed_bytes.load(Ordering::Acquire);
        if !fits {
            self.flushing.overrun();
        }
        fits && !self.flushing.has_overrun()
    }
}

#[allow(unsafe_code)]
impl On {
    #[inline]
    fn put_record(&self, lsn: u64, header: &[u8], parts: &[&[u8]], bytes: usize) {
        let mut at = lsn;
        let zeros = &[0; 8][..];
        let body: usize = parts.iter().map(|part| part.len()).sum();
        let padding = &zeros[..bytes - header.len() - body];
        for part in [header].iter().chain(parts).chain([&padding]) {
            // SAFETY: the caller has taken `[lsn, lsn + bytes)`, has found that it
            // fits, and has not marked it complete.
            unsafe { self.ring.write(at, part) };
            at += part.len() as u64;
        }
    }

    #[inline]
    fn put_word(&self, lsn: u64, word: u64) {
        // SAFETY: as above, for 8 bytes.
        unsafe { self.ring.write(lsn, &word.to_le_bytes()) };
    }

    fn put_zeros(&self, start: u64, end: u64) {
        // SAFETY: as above; less than a block.
        unsafe {
            self.ring
                .write(start, &[0; BLOCK as usize][..(end - start) as usize])
        };
    }
}
