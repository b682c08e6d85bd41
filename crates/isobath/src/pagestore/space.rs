//! The segment allocator behind its lock, and the tasks that wait for a free segment.
//!
//! A task waits while no segment is spare. Segments become spare in many ways: the last page in one
//! becomes obsolete, a reader in another process ends, the volume grows, a fence is lifted. So no
//! code that frees segments has to wake the waiters: each [`SpaceGuard`] compares the spare
//! segments when it locks and when it unlocks, and wakes all waiters if there were none and now are
//! some. No wake-up is lost, because a waiter lists itself before it looks under the lock: if it
//! finds no spare segment, the guard that makes the next one spare locks later, and finds it
//! listed.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::SegmentAllocator;
use crate::canary::{self, Canary};
use crate::runtime::{WaitQueue, Worker};
use crate::shared::Shared;
use crate::sync::{Mutex, MutexGuard};

/// Which segments are free, and who waits for one.
pub(crate) struct Space {
    allocator: Mutex<SegmentAllocator>,
    waiters: Arc<WaitQueue>,
}

/// The lock of the allocator; releasing it wakes the tasks that may go on.
pub(crate) struct SpaceGuard<'s> {
    had_spare: bool,
    // In this order: the lock is released before waiters are woken, who take it.
    allocator: MutexGuard<'s, SegmentAllocator>,
    wake: Wake<'s>,
}

/// Wakes the waiters when it is dropped, if that is due.
struct Wake<'s> {
    waiters: &'s WaitQueue,
    is_due: bool,
}

impl Space {
    /// The waiters are woken when the store is poisoned, too.
    pub(super) fn new(allocator: SegmentAllocator, shared: &Shared) -> Space {
        let waiters = Arc::new(WaitQueue::new());
        let woken = Arc::clone(&waiters);
        shared.on_poison(move || woken.wake_all());
        Space {
            allocator: Mutex::new(allocator),
            waiters,
        }
    }

    #[inline]
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn lock(&self) -> SpaceGuard<'_> {
        self.guard(self.allocator.lock())
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn try_lock(&self) -> Option<SpaceGuard<'_>> {
        self.allocator.try_lock().map(|locked| self.guard(locked))
    }

    #[inline]
    fn guard<'s>(&'s self, allocator: MutexGuard<'s, SegmentAllocator>) -> SpaceGuard<'s> {
        SpaceGuard {
            had_spare: allocator.spare_segments() > 0,
            allocator,
            wake: Wake {
                waiters: &self.waiters,
                is_due: false,
            },
        }
    }

    /// Parks the task until a segment is spare, or `is_over`; whether it was parked.
    pub(super) fn wait_for_spare(&self, worker: &Worker, is_over: impl FnOnce() -> bool) -> bool {
        self.waiters
            .wait(worker, 0, || self.lock().spare_segments() > 0 || is_over())
    }

    /// How many tasks wait for a segment.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(super) fn waiters(&self) -> usize {
        self.waiters.waiters()
    }

    /// Whether tasks wait for a segment.
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.has_waiters()
    }
}

impl Deref for SpaceGuard<'_> {
    type Target = SegmentAllocator;

    #[inline(always)]
    fn deref(&self) -> &SegmentAllocator {
        &self.allocator
    }
}

impl DerefMut for SpaceGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut SegmentAllocator {
        &mut self.allocator
    }
}

impl Drop for SpaceGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.wake.is_due = !self.had_spare
            && self.allocator.spare_segments() > 0
            && !canary::is_on(Canary::FreeWithoutWaking);
    }
}

impl Drop for Wake<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_due {
            self.waiters.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::engine::WorkerState;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::{Options, Store};

    /// Segments retained for readers become free when the cleaner looks, and then it has no reason
    /// to go on: tasks that wait for a segment have to be woken.
    #[test]
    fn a_task_goes_on_when_a_reader_lets_go_of_segments() {
        let options = Options::new()
            .pool_bytes(4 << 20)
            .workers(1)
            .segment_bytes(64 << 10);
        let store = Store::in_memory(&options).unwrap();
        let engine = Arc::clone(store.runtime().engine().unwrap());
        let is_pinned = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&is_pinned);
        let pagestore = &engine.pagestore;
        let mut space = pagestore.space().lock();
        space.retain_for_readers(1, Box::new(move |_| asked.load(Ordering::SeqCst)));
        while space.spare_segments() > 0 {
            let segment = space.take_system().unwrap();
            space.release_system(segment);
        }
        drop(space);
        let (begun, waits) = mpsc::channel();
        let (woken, went_on) = mpsc::channel();
        let task = store.spawn({
            let engine = Arc::clone(&engine);
            move || {
                WorkerState::with_current(&engine, |local| {
                    let worker = &local.unwrap().worker;
                    begun.send(()).unwrap();
                    engine.pagestore.space.wait_for_spare(worker, || false);
                });
                woken.send(()).unwrap();
            }
        });
        waits.recv().unwrap();
        while !pagestore.space.has_waiters() {
            std::thread::yield_now();
        }
        is_pinned.store(false, Ordering::SeqCst);
        pagestore.request_cleaning();
        let outcome = went_on.recv_timeout(Duration::from_secs(20));
        assert!(outcome.is_ok(), "it waits while segments are free");
        task.join().unwrap();
        store.close().unwrap();
    }
}
