//! Memory for the pool's next frames, taken before a read needs them (docs/decisions/0102).
//!
//! The kernel gives the pool's memory when it is touched first, and it touches a frame inside the call that starts the
//! read into it: for a huge page that takes half a millisecond, or several where a virtual machine's host has no memory at hand.
//! Meanwhile the worker's other tasks wait. So a thread touches frames before they are used. It ends once all have memory.
//!
//! The order of steps, and what each is for:
//!
//! | first | then | else |
//! | --- | --- | --- |
//! | memory given | [`Frames::has_memory_until`] says so | a worker takes a frame for ready that is not, and waits for it as before |
//! | `is_called` taken back | what is used looked at | the call for frames that are used in between is lost |
//! | thread ended | memory given back by closing | a closed store keeps memory until its last handle is dropped |
//!
//! Whether a frame has memory changes nothing but time: its bytes are the same in either case. The thread has ordinary priority: whoever
//! needs the lock of the pool's mapping, as `fork` does, waits until the kernel has cleared the page.

use std::thread::Thread;

use super::FrameId;
use super::frames::Frames;
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Frames that may have memory before they are used: 8 MiB. A full-speed drive fills as much in some 20 ms, within which
/// the thread gets a turn on a processor. Of a small store, no more than it uses: its memory at most doubles.
const AHEAD: u32 = 1 << 11;

/// Frames that should have memory while `used` of them are used.
fn wanted(frames: &Frames) -> FrameId {
    let used = frames.used();
    frames.count().min(used.saturating_add(used.min(AHEAD)))
}

/// Has the memory for the next frames taken; does nothing until it has a thread.
pub(super) struct MemoryAhead {
    thread: OnceLock<Thread>,
    /// The thread is awake, or will be.
    is_called: AtomicBool,
    is_over: AtomicBool,
}

impl MemoryAhead {
    pub(super) fn new() -> MemoryAhead {
        MemoryAhead {
            thread: OnceLock::new(),
            is_called: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// Calls the thread if frames that are about to be used have no memory.
    #[inline]
    pub(super) fn call(&self, frames: &Frames) {
        let Some(thread) = self.thread.get() else {
            return;
        };
        let has_all = frames.has_memory_until() >= wanted(frames);
        if !has_all && !self.is_called.swap(true, Ordering::AcqRel) {
            thread.unpark();
        }
    }

    /// From now on calls go to this thread.
    pub(super) fn set_thread(&self, thread: Thread) {
        // There is one; a second would come from a second start.
        let _ = self.thread.set(thread);
    }

    /// What the thread does: returns once all frames have memory, or after [`MemoryAhead::end`].
    pub(super) fn run(&self, frames: &Frames) {
        loop {
            self.is_called.swap(false, Ordering::AcqRel);
            while !self.is_over() && frames.has_memory_until() < wanted(frames) {
                frames.take_memory();
            }
            if self.is_over() || frames.has_memory_until() == frames.count() {
                return;
            }
            std::thread::park();
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Has the thread end soon, if there is one.
    pub(super) fn end(&self) {
        // Unparking makes it visible.
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code, reason = "the kernel's account of memory")]

    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::page::PAGE_SIZE;

    /// Whether the kernel has given memory for `frame`.
    fn is_resident(frames: &Frames, frame: FrameId) -> bool {
        let (base, _) = frames.region(frame..frame + 1);
        let mut state = 0_u8;
        // SAFETY: one page of a mapping that lives as long as `frames`, and a byte for the answer.
        let result = unsafe { libc::mincore(base.cast(), PAGE_SIZE, &raw mut state) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        state & 1 == 1
    }

    /// Page faults of this thread so far.
    fn faults() -> i64 {
        // SAFETY: all zeros are a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a place for the answer.
        let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        assert_eq!(result, 0);
        usage.ru_minflt + usage.ru_majflt
    }

    /// Runs the thread beside `work`, and ends it.
    fn beside(ahead: &MemoryAhead, frames: &Frames, work: impl FnOnce()) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| ahead.run(frames));
            ahead.set_thread(thread.thread().clone());
            // Also where `work` panics: the scope waits for the thread.
            let worked = catch_unwind(AssertUnwindSafe(work));
            ahead.end();
            if let Err(payload) = worked {
                resume_unwind(payload);
            }
        });
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn frames_have_memory_before_they_are_used_but_not_many_do() {
        let count = 8 * AHEAD;
        let frames = Frames::map(count).unwrap();
        let ahead = MemoryAhead::new();
        beside(&ahead, &frames, || {
            assert_eq!(frames.has_memory_until(), 0);
            for used in [1, 511, 512, 513, AHEAD, 3 * AHEAD + 5, count - 1] {
                let range = frames.use_more(used - frames.used());
                ahead.call(&frames);
                let wanted = count.min(used + used.min(AHEAD));
                wait_until("memory ahead", || frames.has_memory_until() >= wanted);
                assert!(is_resident(&frames, range.end - 1) && is_resident(&frames, wanted - 1));
                // Whole huge pages.
                let taken = frames.has_memory_until();
                assert!(taken < wanted + 512, "{taken} for {used}");
                assert!(
                    taken == count || !is_resident(&frames, taken),
                    "{taken} for {used}"
                );
            }
        });
    }

    #[test]
    fn what_uses_a_frame_waits_for_no_memory() {
        let frames = Frames::map(4 * AHEAD).unwrap();
        frames.use_more(2 * AHEAD);
        let ahead = MemoryAhead::new();
        beside(&ahead, &frames, || {
            wait_until("memory", || frames.has_memory_until() >= 3 * AHEAD);
        });
        let before = faults();
        for frame in 2 * AHEAD..3 * AHEAD {
            frames.words(frame).put_u16(8, 7);
        }
        let faults = faults() - before;
        // Of four huge pages; one may be the kernel's own, as when it moves a page.
        assert!(faults <= 1, "{faults}");
    }

    #[test]
    fn the_thread_ends_by_itself_once_all_frames_have_memory() {
        let frames = Frames::map(700).unwrap();
        let ahead = MemoryAhead::new();
        frames.use_more(350);
        ahead.run(&frames);
        assert_eq!(frames.has_memory_until(), 700);
        assert!((0..700).all(|frame| is_resident(&frames, frame)));
    }

    #[test]
    fn a_thread_that_is_to_end_takes_no_more_memory() {
        let frames = Frames::map(4 * AHEAD).unwrap();
        let ahead = MemoryAhead::new();
        frames.use_more(3 * AHEAD);
        ahead.end();
        ahead.run(&frames);
        assert_eq!(frames.has_memory_until(), 0);
        assert!(!is_resident(&frames, 0));
    }

    #[test]
    fn what_is_in_the_frames_stays() {
        let frames = Frames::map(4 * AHEAD).unwrap();
        frames.use_more(100);
        frames.words(70).put_u16(8, 7);
        frames.header(70).latch().unlock_exclusive();
        let ahead = MemoryAhead::new();
        beside(&ahead, &frames, || {
            wait_until("memory", || frames.has_memory_until() > 70);
        });
        assert_eq!(frames.words(70).u64_at(8), 7);
        assert!(frames.header(70).latch().optimistic().is_some());
        assert!(frames.header(71).latch().optimistic().is_none());
    }
}
