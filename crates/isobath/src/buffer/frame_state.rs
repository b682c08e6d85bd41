//! The life of a frame: its header, and every way from one state to the next.
//!
//! ```text
//!      start_load     loaded        changed       start_write       changed
//! free ────────▶ loading ────▶ clean ────▶ dirty ────────▶ writing ────▶ writing, dirty
//!                                ▲           ▲               │                  │
//!                                └───────────│── write_ended ┤                  │
//!                                            │  write_failed │   write_ended,   │
//!                                            ├───────────────┘   write_failed   │
//!                                            └──────────────────────────────────┘
//!
//! free ── start_new, changed ──▶ dirty     loading ── load failed ──▶ free     clean ── give_up ──▶ free
//!
//! clean, dirty ── free_page ──▶ freed ── take_unlisted, give_up ──▶ free
//! writing, with or without changes ── free_page ──▶ freed, writing ── write_ended, write_failed ──▶ freed
//! ```
//!
//! Which code may take which transition:
//!
//! - `start_load`, `start_new`, `loaded`: the one task that owns the free frame. Its latch is held
//!   exclusively.
//! - `changed`, `free_page`: the holder of the exclusive latch. A freed page's latch is never
//!   released: the frame leaves as a free frame does.
//! - `start_write`: holders of the shared latch; one of several wins. So no change happens between
//!   the start of a write and the end of its copy.
//! - `write_ended`, `write_failed`: the task whose `start_write` has won, once. No latch: changes
//!   go on during the write.
//! - `give_up`: a task that takes the latch exclusively and finds the frame clean.
//!
//! Beside its state a frame may be in two queues. `QUEUED` says that it is in the
//! [`super::DirtyQueue`], perhaps for a page that it held before, and that no writer has taken it.
//! One that was written out of turn is still listed there; without `QUEUED` writers pass it.
//! `UNLISTED` says that no replacement queue holds it, as that of a new page before its first
//! write. The task that takes `UNLISTED` away owns what follows: to list the frame, or to give it
//! back where the page was freed.

use isobath_flash::policy::History;

use super::latch::Latch;
use crate::canary::{self, Canary};
use crate::page::{Lsn, PageId};
use crate::shared::Address;
use crate::sync::modelled::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::modelled::{AtomicU8, AtomicU64};

/// The frame holds changes that no write has copied yet.
const DIRTY: u8 = 1;
/// A write of an earlier copy is in flight.
const WRITING: u8 = 2;
/// The frame is in the queue of frames to write.
const QUEUED: u8 = 4;
/// The page was freed.
const FREED: u8 = 8;
/// No replacement queue holds the frame.
const UNLISTED: u8 = 16;

/// An access count at which [`FrameHeader::touch`] stops counting, so that hot pages'
/// headers are read and not written.
const MAX_TOUCHES: u8 = 3;

/// The header of one frame; a cache line of its own. Zero bytes are a free frame's header.
#[repr(C, align(64))]
pub(crate) struct FrameHeader {
    latch: Latch,
    /// The page in the frame; meaningful while the latch's version holds.
    page_id: AtomicU64,
    /// Raw [`Address`] of the newest complete copy on the volume; 0 if the page was never written.
    address: AtomicU64,
    /// LSN of the newest change; what `is_durable` is asked about.
    lsn: AtomicU64,
    /// LSN of the oldest change that no complete copy on the volume contains.
    oldest_lsn: AtomicU64,
    /// Workers, one bit each, with tasks that wait for this frame's load.
    waiters: AtomicU64,
    /// The page's write history in the cleaning policy's encoding, for MDC its
    /// u_p2 (paper 003, section 5.2.2).
    history: AtomicU64,
    /// Accesses seen since the replacement strategy last looked, saturating.
    touches: AtomicU8,
    flags: AtomicU8,
}

#[cfg(not(loom))] // loom's atomics are larger
const _: () = assert!(std::mem::size_of::<FrameHeader>() == 64);

/// The result of changing a page.
pub(super) struct Changed {
    /// The frame was clean before.
    pub(super) turned_dirty: bool,
    /// The caller puts the frame into the queue of frames to write.
    pub(super) to_queue: bool,
}

/// Why a write of a frame does not start.
pub(crate) enum NotStarted {
    /// The page is latched, or an older copy is in flight: to be tried again.
    Later,
    /// There is nothing to write: the page is clean or gone.
    Never,
}

/// The result of ending a write.
pub(crate) struct WriteEnd {
    /// The page was freed during the write: the copy that was written is for nothing.
    pub(crate) freed: bool,
    /// The page was changed during the write and is in no queue: it is to be queued.
    pub(crate) changed: bool,
    /// No replacement queue held the frame: the caller lists it, or gives it back where the page
    /// was freed.
    pub(crate) unlisted: bool,
}

/// The result of freeing a page.
pub(crate) struct Freed {
    /// The page's newest complete copy.
    pub(crate) address: Address,
    /// A write of the page is in flight: the task that ends it frees the copies and gives the frame
    /// back.
    pub(crate) is_written: bool,
    /// The page had changes that are not written, and never will be.
    pub(crate) was_dirty: bool,
}

impl FrameHeader {
    // ---- what it says -------------------------------------------------------

    /// The page in the frame; it may be another one unless the caller keeps it from leaving.
    #[inline(always)]
    pub(crate) fn page(&self) -> PageId {
        PageId(self.page_id.load(Relaxed))
    }

    /// The newest complete copy of the page on the volume; nowhere before its first write.
    #[inline]
    pub(crate) fn address(&self) -> Address {
        Address::from_raw(self.address.load(Acquire))
    }

    /// Whether `page` is in the frame, and `address` is where its newest complete copy is.
    pub(crate) fn is_stored_at(&self, page: PageId, address: Address) -> bool {
        self.page() == page && self.address() == address
    }

    /// The LSN of the page's newest change, or a stamp above it.
    #[inline]
    pub(crate) fn version(&self) -> Lsn {
        Lsn(self.lsn.load(Acquire))
    }

    /// The page's write history, if it was kept in memory.
    pub(crate) fn history(&self) -> History {
        History(self.history.load(Relaxed))
    }

    /// The oldest change that no write has copied yet; none if the page is clean or freed.
    pub(crate) fn oldest_change(&self) -> Option<Lsn> {
        let flags = self.flags.load(Acquire);
        (flags & (DIRTY | FREED) == DIRTY).then(|| Lsn(self.oldest_lsn.load(Acquire)))
    }

    /// Whether the newest complete copy has all changes, and no other copy is being written.
    pub(crate) fn is_clean(&self) -> bool {
        self.flags.load(Acquire) & (DIRTY | WRITING) == 0
    }

    /// Whether a copy is being written.
    pub(crate) fn is_written(&self) -> bool {
        self.flags.load(Acquire) & WRITING != 0
    }

    /// Whether the page was freed.
    #[inline]
    pub(crate) fn is_freed(&self) -> bool {
        self.flags.load(Acquire) & FREED != 0
    }

    /// Whether no replacement queue holds the frame, and it has a page, or one that was freed while
    /// a copy of it is being written: the task that ends that write gives the frame back.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn is_unlisted(&self) -> bool {
        let flags = self.flags.load(Acquire);
        flags & UNLISTED != 0 && flags & (FREED | WRITING) != FREED
    }

    /// The latch of the page's holders.
    #[inline(always)]
    pub(crate) fn latch(&self) -> &Latch {
        &self.latch
    }

    // ---- accesses, for the replacement strategy ------------------------------

    /// Counts an access.
    #[inline(always)]
    pub(super) fn touch(&self) {
        let count = self.touches.load(Relaxed);
        if count < MAX_TOUCHES {
            self.touches.store(count + 1, Relaxed);
        }
    }

    /// Accesses counted, saturating.
    pub(super) fn touches(&self) -> u8 {
        self.touches.load(Relaxed)
    }

    /// The replacement strategy has looked; accesses that come at the same time may be forgotten.
    pub(super) fn set_touches(&self, count: u8) {
        self.touches.store(count, Relaxed);
    }

    // ---- tasks of other workers that wait for a load ---------------------------

    /// The worker with this number has tasks that wait for the frame's load. Numbers are modulo 64.
    pub(crate) fn add_waiter(&self, worker: usize) {
        self.waiters.fetch_or(1 << (worker % 64), AcqRel);
    }

    /// The workers that wait, one bit each; they no longer do.
    pub(crate) fn take_waiters(&self) -> u64 {
        self.waiters.swap(0, AcqRel)
    }

    // ---- free to clean ------------------------------------------------------

    /// Free → loading: the frame is for the copy of `page` at `address`.
    ///
    /// The waiters' bits stay: one that was set too late for the frame's last load costs a look,
    /// one cleared too early would lose a task.
    pub(crate) fn start_load(&self, page: PageId, address: Address) {
        self.page_id.store(page.0, Relaxed);
        self.address.store(address.to_raw(), Relaxed);
    }

    /// Loading → clean: the frame holds a sound copy, whose newest change is `version`. It can be
    /// read once the latch is released.
    pub(crate) fn loaded(&self, version: Lsn) {
        self.lsn.store(version.0, Relaxed);
        self.start_page(0);
    }

    /// Free → dirty, with the next [`FrameHeader::changed`]: `page` is new, nowhere on the volume
    /// and in no replacement queue.
    pub(super) fn start_new(&self, page: PageId) {
        self.page_id.store(page.0, Relaxed);
        self.address.store(Address::NONE.to_raw(), Relaxed);
        self.start_page(UNLISTED);
    }

    fn start_page(&self, flags: u8) {
        self.history.store(History::UNKNOWN.0, Relaxed);
        self.touches.store(0, Relaxed);
        // The frame may still be in the queue from an earlier page: its flag says so.
        self.flags.fetch_and(QUEUED, AcqRel);
        if flags != 0 {
            self.flags.fetch_or(flags, AcqRel);
        }
    }

    // ---- clean to dirty and back ---------------------------------------------

    /// Clean → dirty: the log record `record` has changed the page, whose version is `version` now.
    pub(super) fn changed(&self, record: Lsn, version: Lsn) -> Changed {
        self.lsn.store(version.0, Release);
        let mark = || self.flags.fetch_or(DIRTY | QUEUED, AcqRel);
        let early = canary::is_on(Canary::DirtyTooEarly).then(mark);
        // Before the flag: code that finds the frame dirty takes this for its oldest
        // change. No task copies the page until then, so none clears the flag.
        if early.unwrap_or_else(|| self.flags.load(Acquire)) & DIRTY == 0 {
            self.oldest_lsn.store(record.0, Release);
        } else {
            self.oldest_lsn.fetch_min(record.0, AcqRel);
        }
        let before = early.unwrap_or_else(mark);
        Changed {
            turned_dirty: before & DIRTY == 0,
            to_queue: before & QUEUED == 0,
        }
    }

    /// Notes that the frame is in the queue of frames to write; whether the caller has to put it
    /// there.
    pub(super) fn enter_queue(&self) -> bool {
        self.flags.fetch_or(QUEUED, AcqRel) & QUEUED == 0
    }

    /// Whether the frame is in the queue of frames to write, and no writer has taken it.
    pub(crate) fn is_queued(&self) -> bool {
        self.flags.load(Acquire) & QUEUED != 0
    }

    /// Notes that the frame has left the queue of frames to write; whether there is something to
    /// write now. If an older copy is in flight there is not: two at a time could land in either
    /// order, and the end of that write says that the page is to be queued again.
    pub(crate) fn leave_queue(&self) -> bool {
        let before = self.flags.fetch_and(!QUEUED, AcqRel);
        before & (DIRTY | WRITING | FREED) == DIRTY
    }

    /// Dirty → writing: `copy` takes the bytes of `page`, no task changes them during that, and
    /// `history` is its write history from now on. Before the frame says that it is clean, `hold`
    /// is told its oldest change; it may be told one if no write starts. Returns the version that
    /// was copied.
    pub(crate) fn start_write(
        &self,
        page: PageId,
        history: History,
        hold: impl FnOnce(Lsn),
        copy: impl FnOnce(),
    ) -> Result<Lsn, NotStarted> {
        if !self.latch.try_shared() {
            // A frame that was freed stays latched.
            return Err(match self.is_freed() {
                true => NotStarted::Never,
                false => NotStarted::Later,
            });
        }
        let same = self.page() == page;
        if same {
            hold(Lsn(self.oldest_lsn.load(Acquire)));
        }
        // Two writers may hold the frame shared: one of them wins the right to write.
        let started = self.flags.fetch_update(AcqRel, Acquire, |flags| {
            let can_start = flags & (DIRTY | WRITING | FREED) == DIRTY;
            (same && can_start).then_some(flags ^ (DIRTY | WRITING))
        });
        let version = self.version();
        if started.is_ok() {
            copy();
            self.history.store(history.0, Relaxed);
        }
        self.latch.unlock_shared();
        match started {
            Ok(_) => Ok(version),
            Err(flags) if same && flags & DIRTY != 0 => Err(NotStarted::Later),
            Err(_) => Err(NotStarted::Never),
        }
    }

    /// The copy that is being written is complete, at `address`; where the one before is. For the
    /// task that writes, before it ends the write.
    pub(crate) fn set_address(&self, address: Address) -> Address {
        Address::from_raw(self.address.swap(address.to_raw(), AcqRel))
    }

    /// Writing → clean, or dirty where the page was changed during the write, or freed.
    pub(crate) fn write_ended(&self) -> WriteEnd {
        let before = self.flags.fetch_and(!(WRITING | UNLISTED), AcqRel);
        WriteEnd {
            freed: before & FREED != 0,
            changed: before & (DIRTY | QUEUED | FREED) == DIRTY,
            unlisted: before & UNLISTED != 0,
        }
    }

    /// Writing → dirty, or freed: the write has failed. Whether it was without changes that came
    /// during the write, or the address of the newest complete copy of a page that was freed.
    pub(crate) fn write_failed(&self) -> Result<bool, Address> {
        let mut flags = self.flags.load(Acquire);
        loop {
            if flags & FREED != 0 {
                // Read before the write ends: from then on the frame may be given to another page.
                let address = self.address();
                self.flags.fetch_and(!WRITING, AcqRel);
                return Err(address);
            }
            let ended = flags & !WRITING | DIRTY;
            match self.flags.compare_exchange(flags, ended, AcqRel, Acquire) {
                Ok(_) => return Ok(flags & DIRTY == 0),
                Err(now) => flags = now,
            }
        }
    }

    /// The copy of `page` at `from` was moved to `to`; `false` if it is stored elsewhere, `None` if
    /// the page is latched or has left the frame. The shared latch keeps eviction from using the
    /// old address.
    pub(crate) fn copy_moved(&self, page: PageId, from: Address, to: Address) -> Option<bool> {
        if !self.latch.try_shared() {
            return None;
        }
        let moved = (self.page() == page).then(|| {
            self.address
                .compare_exchange(from.to_raw(), to.to_raw(), AcqRel, Acquire)
                .is_ok()
        });
        self.latch.unlock_shared();
        moved
    }

    // ---- back to free -------------------------------------------------------

    /// Clean → free, if no task holds the latch and `unmap` agrees that the page is at this address
    /// and no longer in the frame. The latch is held from then on.
    pub(super) fn give_up(&self, unmap: impl FnOnce(PageId, Address) -> bool) -> bool {
        let flags = self.flags.load(Acquire);
        if flags & FREED != 0 {
            // Its latch is held since the page was freed.
            return flags & WRITING == 0;
        }
        if flags & (DIRTY | WRITING) != 0 || !self.latch.try_exclusive() {
            return false;
        }
        let address = self.address();
        // Looked at again: the latch was free until now.
        let can_go = self.flags.load(Acquire) & (DIRTY | WRITING | FREED) == 0
            && !address.is_none()
            && unmap(self.page(), address);
        if !can_go {
            self.latch.unlock_unchanged();
        }
        can_go
    }

    /// Any → freed: the page has ended. The caller holds the latch, and never releases it.
    pub(crate) fn free_page(&self) -> Freed {
        let before = self.flags.fetch_or(FREED, AcqRel);
        Freed {
            address: self.address(),
            is_written: before & WRITING != 0,
            was_dirty: before & DIRTY != 0,
        }
    }

    /// Freed → free, if no replacement queue holds the frame and no write is in flight; the caller
    /// gives the frame back then. For the task that ends the frame's last use: freeing itself, or
    /// the end of a write. The frame may still be in the dirty queue, and be used again so.
    pub(crate) fn take_unlisted(&self) -> bool {
        let taken = self.flags.fetch_update(AcqRel, Acquire, |flags| {
            let mine = flags & (UNLISTED | WRITING | FREED) == UNLISTED | FREED;
            mine.then_some(flags & !UNLISTED)
        });
        taken.is_ok()
    }

    /// A free frame's header.
    #[cfg(all(test, loom))]
    pub(super) fn new_free() -> FrameHeader {
        FrameHeader {
            latch: Latch::new_exclusive(),
            page_id: AtomicU64::new(0),
            address: AtomicU64::new(0),
            lsn: AtomicU64::new(0),
            oldest_lsn: AtomicU64::new(0),
            waiters: AtomicU64::new(0),
            history: AtomicU64::new(0),
            touches: AtomicU8::new(0),
            flags: AtomicU8::new(0),
        }
    }
}
