//! The life of a frame under loom, which runs every interleaving that the memory model allows, with
//! up to three threads that are interrupted up to [`INTERRUPTIONS`] times: `RUSTFLAGS="--cfg loom"
//! cargo test -p isobath --release --lib frame_state_loom`.

use isobath_flash::policy::History;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use loom::thread;

use super::frame_state::{FrameHeader, NotStarted};
use crate::page::{Lsn, PageId};
use crate::shared::Address;

/// Without a bound the header's many accesses have more interleavings than an hour has time for.
const INTERRUPTIONS: usize = 3;
const PAGE: PageId = PageId(7);

fn address(segment: u32) -> Address {
    Address::new(segment, 0, 4096)
}

/// A frame with one word of a page, and what others keep of it.
struct Frame {
    header: FrameHeader,
    /// The page's content: the LSN of its newest change.
    word: AtomicU64,
    /// How often the frame stands in the queue of frames to write.
    queued: AtomicU64,
    /// How often it was given back as a free frame.
    given_back: AtomicU64,
    /// Whether a replacement queue holds the frame.
    listed: AtomicU64,
    /// The content of the newest complete copy.
    stored: AtomicU64,
    /// Copies that were freed, one bit per segment.
    freed: AtomicU64,
}

impl Frame {
    /// A page that was loaded, with the change 1 in its copy in segment 1.
    fn loaded() -> Arc<Frame> {
        let frame = Frame::free();
        frame.header.start_load(PAGE, address(1));
        frame.word.store(1, Relaxed);
        frame.stored.store(1, Relaxed);
        frame.header.loaded(Lsn(1));
        frame.header.latch().unlock_exclusive();
        Arc::new(frame)
    }

    /// A new page with the change 1, which no copy has.
    fn new() -> Arc<Frame> {
        let frame = Frame::free();
        frame.header.start_new(PAGE);
        frame.word.store(1, Relaxed);
        frame.note_change(Lsn(1));
        frame.header.latch().unlock_exclusive();
        Arc::new(frame)
    }

    fn free() -> Frame {
        Frame {
            header: FrameHeader::new_free(),
            word: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }

    fn note_change(&self, lsn: Lsn) {
        if self.header.changed(lsn, lsn).to_queue {
            self.queued.fetch_add(1, AcqRel);
        }
    }

    fn queue(&self) {
        if self.header.enter_queue() {
            self.queued.fetch_add(1, AcqRel);
        }
    }

    fn free_copy(&self, address: Address) {
        if !address.is_none() {
            let bit = 1 << address.segment();
            let before = self.freed.fetch_or(bit, AcqRel);
            assert_eq!(before & bit, 0, "a copy was freed twice");
        }
    }

    fn retire(&self) {
        if self.header.take_unlisted() {
            self.given_back.fetch_add(1, AcqRel);
        }
    }

    /// Changes the page if its latch is free; whether it did.
    fn change(&self, lsn: u64) -> bool {
        if !self.header.latch().try_exclusive() {
            return false;
        }
        self.word.store(lsn, Relaxed);
        self.note_change(Lsn(lsn));
        self.header.latch().unlock_exclusive();
        true
    }

    /// Takes the frame from the queue, and writes it into `segment` if there is something to write;
    /// `fails` after the copy.
    fn write(&self, segment: u32, fails: bool) {
        if self.queued.swap(0, AcqRel) == 0 || !self.header.leave_queue() {
            return;
        }
        let mut copy = 0;
        let mut held = None;
        let started = self.header.start_write(
            PAGE,
            History(0),
            |oldest| held = Some(oldest),
            || copy = self.word.load(Relaxed),
        );
        let version = match started {
            Ok(version) => version,
            Err(NotStarted::Later) => return self.queue(),
            Err(NotStarted::Never) => return,
        };
        assert_eq!(version, Lsn(copy), "the copy is of another version");
        assert!(held.is_some_and(|oldest| oldest <= version));
        if fails {
            match self.header.write_failed() {
                Err(old) => {
                    self.free_copy(old);
                    self.retire();
                }
                Ok(_) => self.queue(),
            }
            return;
        }
        let old = self.header.set_address(address(segment));
        self.stored.store(copy, Relaxed);
        let end = self.header.write_ended();
        if end.changed {
            self.queue();
        }
        self.free_copy(old);
        if end.freed {
            self.free_copy(address(segment));
        }
        if end.unlisted {
            let what = match end.freed {
                true => &self.given_back,
                false => &self.listed,
            };
            what.fetch_add(1, AcqRel);
        }
    }

    /// Ends the page if its latch is free; whether it did.
    fn end(&self) -> bool {
        if !self.header.latch().try_exclusive() {
            return false;
        }
        let freed = self.header.free_page();
        if !freed.is_written {
            self.free_copy(freed.address);
            self.retire();
        }
        true
    }

    /// Nothing that was changed is in neither the copy nor the queue.
    fn assert_kept(&self) {
        let written = self.stored.load(Relaxed) == self.word.load(Relaxed);
        let queued = self.queued.load(Acquire);
        assert!(queued <= 1, "queued twice");
        assert!(!self.header.is_written());
        if !written {
            assert!(
                self.header.oldest_change().is_some(),
                "a change was forgotten"
            );
            assert_eq!(queued, 1, "a dirty frame is in no queue");
        }
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(INTERRUPTIONS);
    builder.check(run);
}

fn beside(frame: &Arc<Frame>, work: impl FnOnce(&Frame) + 'static) -> thread::JoinHandle<()> {
    let frame = Arc::clone(frame);
    thread::spawn(move || work(&frame))
}

#[test]
fn a_change_beside_a_write_is_written_again() {
    model(|| {
        let frame = Frame::new();
        let change = beside(&frame, |frame| {
            let _ = frame.change(2);
        });
        frame.write(2, false);
        change.join().unwrap();
        frame.assert_kept();
        frame.write(3, false);
        assert_eq!(
            frame.stored.load(Relaxed),
            frame.word.load(Relaxed),
            "the next write has everything"
        );
        assert!(frame.header.is_clean());
    });
}

#[test]
fn of_two_writers_one_writes() {
    model(|| {
        let frame = Frame::new();
        let other = beside(&frame, |frame| frame.write(2, false));
        let change = beside(&frame, |frame| {
            let _ = frame.change(2);
        });
        frame.write(3, false);
        other.join().unwrap();
        change.join().unwrap();
        frame.assert_kept();
    });
}

#[test]
fn a_page_that_ends_beside_its_write_leaves_nothing() {
    for fails in [false, true] {
        model(move || {
            let frame = Frame::new();
            let write = beside(&frame, move |frame| frame.write(2, fails));
            let ended = frame.end();
            write.join().unwrap();
            if ended {
                // A frame that a replacement queue holds is given back when its turn comes.
                let in_turn = u64::from(
                    frame.listed.load(Acquire) == 1 && frame.header.give_up(|_, _| false),
                );
                let given_back = frame.given_back.load(Acquire) + in_turn;
                assert_eq!(given_back, 1, "the frame is free once");
                let last = frame.header.address();
                let is_freed =
                    last.is_none() || frame.freed.load(Acquire) & 1 << last.segment() != 0;
                assert!(is_freed, "the last copy was not freed");
            } else {
                assert_eq!(frame.given_back.load(Acquire), 0);
                frame.assert_kept();
            }
        });
    }
}

#[test]
fn a_frame_that_is_given_up_has_no_changes() {
    model(|| {
        let frame = Frame::loaded();
        let change = beside(&frame, |frame| {
            if frame.change(2) {
                frame.write(2, false);
            }
        });
        let given_up = frame.header.give_up(|page, at| {
            assert_eq!(page, PAGE);
            let is_whole = frame.stored.load(Relaxed) == frame.word.load(Relaxed);
            assert!(is_whole, "the copy misses a change");
            assert_eq!(at, frame.header.address());
            true
        });
        change.join().unwrap();
        if given_up {
            assert!(frame.header.is_clean());
            assert!(
                !frame.header.latch().try_shared(),
                "a free frame is latched"
            );
        } else {
            frame.assert_kept();
        }
    });
}

#[test]
fn a_copy_that_is_moved_is_the_one_that_dies() {
    model(|| {
        let frame = Frame::loaded();
        let cleaner = beside(&frame, |frame| {
            match frame.header.copy_moved(PAGE, address(1), address(4)) {
                Some(true) => frame.free_copy(address(1)),
                // What was to be moved is not needed.
                Some(false) => frame.free_copy(address(4)),
                None => frame.free_copy(address(4)),
            }
        });
        if frame.change(2) {
            frame.write(2, false);
        }
        let ended = frame.end();
        cleaner.join().unwrap();
        let freed = frame.freed.load(Acquire);
        let last = 1 << frame.header.address().segment();
        assert_eq!(freed & last != 0, ended, "the last copy dies with its page");
        // All others that ever were are dead.
        assert_eq!(freed | last, freed | last | 1 << 1 | 1 << 4);
    });
}

#[test]
fn a_dirty_frame_shows_its_oldest_change() {
    model(|| {
        let frame = Frame::loaded();
        let change = beside(&frame, |frame| {
            let _ = frame.change(5);
            let _ = frame.change(6);
        });
        let oldest = frame.header.oldest_change();
        assert!(oldest.is_none_or(|lsn| lsn == Lsn(5)), "{oldest:?}");
        change.join().unwrap();
        assert_eq!(frame.header.oldest_change(), Some(Lsn(5)));
    });
}
