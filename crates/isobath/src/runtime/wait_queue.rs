//! Tasks that wait for a condition and look at it again when woken.
//!
//! The list behind every wait of one task for what any other thread does, except if something is
//! handed over in the order of waiting: locks on keys, and space in the log. No wake-up is lost, in
//! whatever way the two sides share the condition:
//!
//! - The waiter lists itself, and then looks whether its wait is over.
//! - The thread that changes something changes it, and then looks whether a waiter is listed.
//!
//! A sequentially consistent fence stands between the two steps on both sides, so one of them sees
//! the other. A waiter may be woken for no reason, and looks again.

use std::task::Waker;

use super::task::TaskRef;
use super::worker::Worker;
use crate::sync::modelled::Ordering::{Relaxed, SeqCst};
use crate::sync::modelled::{AtomicUsize, Mutex, fence};

/// A waiter that can be woken.
pub(crate) trait Wakes {
    /// Wakes it: its wait may be over.
    fn wake(&self);
}

impl Wakes for TaskRef {
    fn wake(&self) {
        self.unpark();
    }
}

/// Of a task or of a thread.
impl Wakes for Waker {
    fn wake(&self) {
        self.wake_by_ref();
    }
}

struct Waiter<W> {
    ticket: u64,
    until: u64,
    wakes: W,
}

struct List<W> {
    tickets: u64,
    waiters: Vec<Waiter<W>>,
}

/// Tasks that wait, each until a number that its wakers agree on has reached some value.
pub(crate) struct WaitQueue<W = TaskRef> {
    list: Mutex<List<W>>,
    /// How many are listed, for reading without the lock.
    count: AtomicUsize,
}

impl<W: Wakes> WaitQueue<W> {
    pub(crate) fn new() -> WaitQueue<W> {
        WaitQueue {
            list: Mutex::new(List {
                tickets: 0,
                waiters: Vec::new(),
            }),
            count: AtomicUsize::new(0),
        }
    }

    /// Whether there are waiters.
    pub(crate) fn has_waiters(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// How many wait, or are about to.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(crate) fn waiters(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Lists `waiter`, to be woken once `until` is reached, unless `is_over` says then that there
    /// is nothing to wait for. The ticket is for [`WaitQueue::leave`].
    pub(crate) fn enter(
        &self,
        until: u64,
        waiter: W,
        is_over: impl FnOnce() -> bool,
    ) -> Option<u64> {
        let mut list = self.list.lock();
        let ticket = list.tickets;
        list.tickets += 1;
        list.waiters.push(Waiter {
            ticket,
            until,
            wakes: waiter,
        });
        self.count.store(list.waiters.len(), Relaxed);
        drop(list);
        // Pairs with the one in `wake`.
        fence(SeqCst);
        if is_over() {
            self.leave(ticket);
            return None;
        }
        Some(ticket)
    }

    /// Takes the waiter with this ticket from the list, if it is there.
    pub(crate) fn leave(&self, ticket: u64) {
        if !self.has_waiters() {
            return;
        }
        let mut list = self.list.lock();
        list.waiters.retain(|waiter| waiter.ticket != ticket);
        self.count.store(list.waiters.len(), Relaxed);
    }

    /// Wakes the waiters for no more than `reached`. What they wait for has been changed before.
    pub(crate) fn wake(&self, reached: u64) {
        // Pairs with the one in `enter`.
        fence(SeqCst);
        if !self.has_waiters() {
            return;
        }
        let mut list = self.list.lock();
        let woken: Vec<_> = list
            .waiters
            .extract_if(.., |waiter| waiter.until <= reached)
            .collect();
        self.count.store(list.waiters.len(), Relaxed);
        drop(list);
        // Without the lock: waking takes the lock of an inbox.
        for waiter in woken {
            waiter.wakes.wake();
        }
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self) {
        self.wake(u64::MAX);
    }
}

impl WaitQueue {
    /// Parks the task that runs on `worker` until `until` is reached, or it is woken for another
    /// reason; not at all if `is_over` says, once others can see that it waits, that there is
    /// nothing to wait for. Whether it was parked; outside tasks it is not.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn wait(&self, worker: &Worker, until: u64, is_over: impl FnOnce() -> bool) -> bool {
        let Some(task) = worker.current_task() else {
            return false;
        };
        let Some(ticket) = self.enter(until, task, is_over) else {
            return false;
        };
        worker.park();
        self.leave(ticket);
        true
    }
}
