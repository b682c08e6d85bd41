//! State of one issuing thread: a slot table, a completion queue, counters.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::{Condvar, Mutex};

use super::thread::ReadyPorts;
use super::{Counters, MAX_IN_FLIGHT, Request};

/// One entry of the slot table. Its index belongs to one owner at a time: the list of free ones,
/// the issuing thread, a lane, a data task, the completion queue, the polling thread. So the lock
/// is never waited for.
struct CallSlot<R> {
    request: Mutex<Option<R>>,
    /// The issuing thread waits for this very request.
    is_awaited: AtomicBool,
    /// An awaited request has run.
    has_run: AtomicBool,
}

/// The slot table and its queues, made at the first request: a thread that only makes direct calls
/// has none.
struct Table<R> {
    slots: Box<[CallSlot<R>]>,
    free: ArrayQueue<u32>,
    completed: ArrayQueue<u32>,
}

impl<R> Table<R> {
    fn new() -> Table<R> {
        let free = ArrayQueue::new(MAX_IN_FLIGHT as usize);
        for slot in 0..MAX_IN_FLIGHT {
            // The ring has space for every index.
            let _ = free.push(slot);
        }
        let slots = (0..MAX_IN_FLIGHT).map(|_| CallSlot {
            request: Mutex::new(None),
            is_awaited: AtomicBool::new(false),
            has_run: AtomicBool::new(false),
        });
        Table {
            slots: slots.collect(),
            free,
            completed: ArrayQueue::new(MAX_IN_FLIGHT as usize),
        }
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Numbers {
    issued: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    in_flight_max: AtomicU64,
    waits: AtomicU64,
    bytes: AtomicU64,
}

/// The queues and counters of one issuing thread.
pub(crate) struct Port<R> {
    table: OnceLock<Table<R>>,
    numbers: Numbers,
    /// Threads that wait for a completion or a free slot.
    sleepers: AtomicU64,
    /// While the issuing thread waits for room: how few requests in flight wake it. Else any number
    /// does.
    room: AtomicU64,
    lock: Mutex<()>,
    wake: Condvar,
    /// The ports with completions, where a thread of the library runs the callbacks.
    ready: Option<Arc<ReadyPorts<R>>>,
    /// It is in the list of ready ports.
    pub(super) is_listed: AtomicBool,
    /// Its thread has ended; another one may take it over.
    pub(crate) is_orphan: AtomicBool,
}

impl<R: Request> Port<R> {
    pub(crate) fn new(ready: Option<Arc<ReadyPorts<R>>>) -> Port<R> {
        Port {
            table: OnceLock::new(),
            numbers: Numbers::default(),
            sleepers: AtomicU64::new(0),
            room: AtomicU64::new(u64::MAX),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            ready,
            is_listed: AtomicBool::new(false),
            is_orphan: AtomicBool::new(false),
        }
    }

    fn table(&self) -> &Table<R> {
        self.table.get_or_init(Table::new)
    }

    /// Requests that are accepted and not handed over.
    pub(crate) fn in_flight(&self) -> u64 {
        // In this order: a request is counted as issued first.
        let completed = self.numbers.completed.load(Ordering::Acquire);
        self.numbers.issued.load(Ordering::Acquire) - completed
    }

    pub(crate) fn counters(&self) -> Counters {
        let numbers = &self.numbers;
        let completed = numbers.completed.load(Ordering::Acquire);
        let issued = numbers.issued.load(Ordering::Acquire);
        Counters {
            issued,
            completed,
            failed: numbers.failed.load(Ordering::Relaxed),
            in_flight: issued - completed,
            in_flight_max: numbers.in_flight_max.load(Ordering::Relaxed),
            waits: numbers.waits.load(Ordering::Relaxed),
            bytes: numbers.bytes.load(Ordering::Relaxed),
        }
    }

    /// Counts a request as accepted.
    pub(crate) fn count_issued(&self) {
        self.numbers.issued.fetch_add(1, Ordering::AcqRel);
        let now = self.in_flight();
        if now > self.numbers.in_flight_max.load(Ordering::Relaxed) {
            self.numbers.in_flight_max.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Counts a request as handed over.
    pub(crate) fn count_completed(&self, has_failed: bool, bytes: u64) {
        if has_failed {
            self.numbers.failed.fetch_add(1, Ordering::Relaxed);
        }
        if bytes > 0 {
            self.numbers.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.numbers.completed.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn count_wait(&self) {
        self.numbers.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts a request into the slot table; gives it back if that is full.
    pub(super) fn occupy(&self, request: R, is_awaited: bool) -> Result<u32, R> {
        let table = self.table();
        let Some(index) = table.free.pop() else {
            return Err(request);
        };
        let slot = &table.slots[index as usize];
        slot.is_awaited.store(is_awaited, Ordering::Relaxed);
        slot.has_run.store(false, Ordering::Relaxed);
        *slot.request.lock() = Some(request);
        self.count_issued();
        Ok(index)
    }

    /// Runs the request in a slot; called by a data task, which leaves the slot to the completion
    /// queue.
    pub(super) fn execute(self: &Arc<Self>, index: u32) {
        self.finish(index, |request| {
            if catch_unwind(AssertUnwindSafe(|| request.run())).is_err() {
                request.fail();
            }
        });
    }

    /// Completes the request in a slot without running it: the store is closed.
    pub(super) fn refuse(self: &Arc<Self>, index: u32) {
        self.finish(index, Request::refuse);
    }

    fn finish(self: &Arc<Self>, index: u32, work: impl FnOnce(&mut R)) {
        let table = self.table();
        let slot = &table.slots[index as usize];
        let taken = slot.request.lock().take();
        let Some(mut request) = taken else { return };
        work(&mut request);
        *slot.request.lock() = Some(request);
        if slot.is_awaited.load(Ordering::Relaxed) {
            slot.has_run.store(true, Ordering::Release);
        } else {
            // The ring has space for every slot.
            let _ = table.completed.push(index);
            if let Some(ready) = &self.ready {
                ready.add(self);
            }
        }
        self.notify();
    }

    /// Takes the result out of a slot, and frees the slot.
    fn hand_over(&self, index: u32) -> Option<R> {
        let table = self.table();
        let request = table.slots[index as usize].request.lock().take();
        // The ring has space for every index.
        let _ = table.free.push(index);
        let request = request?;
        self.count_completed(request.has_failed(), request.bytes());
        Some(request)
    }

    /// Frees a slot whose request will not be run.
    pub(super) fn cancel(&self, index: u32) {
        // A cancelled request has no result.
        let _ = self.hand_over(index);
        self.notify();
    }

    /// The next result, in the order of completion.
    pub(crate) fn poll(&self) -> Option<R> {
        let index = self.table.get()?.completed.pop()?;
        let request = self.hand_over(index);
        // The issuing thread may wait for room. Pairs with the fence of `wait_until`, as `notify`
        // does.
        fence(Ordering::SeqCst);
        if self.in_flight() <= self.room.load(Ordering::Relaxed) {
            self.notify();
        }
        request
    }

    /// Whether results wait to be polled.
    pub(crate) fn has_completions(&self) -> bool {
        self.table
            .get()
            .is_some_and(|table| !table.completed.is_empty())
    }

    /// Waits for the request in a slot that only this caller awaits.
    pub(super) fn await_slot(&self, index: u32) -> Option<R> {
        let slot = &self.table().slots[index as usize];
        self.wait_until(None, || slot.has_run.load(Ordering::Acquire));
        self.hand_over(index)
    }

    /// Blocks the issuing thread until at most `in_flight` of its requests are left, or the time is
    /// over. It is woken once they are so few, not for each that completes.
    pub(crate) fn wait_for_room(&self, in_flight: u64, timeout: Duration) {
        self.room.store(in_flight, Ordering::Relaxed);
        self.wait_until(Some(timeout), || self.in_flight() <= in_flight);
        self.room.store(u64::MAX, Ordering::Relaxed);
    }

    fn notify(&self) {
        // Pairs with the fence of `wait_until`: either this sees the sleeper, or that one sees what
        // has happened.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            let _guard = self.lock.lock();
            self.wake.notify_all();
        }
    }

    /// Blocks the thread until `is_done` or the time is over; whether it is done.
    pub(crate) fn wait_until(&self, timeout: Option<Duration>, is_done: impl Fn() -> bool) -> bool {
        if is_done() {
            return true;
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut guard = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut done = is_done();
        while !done {
            let timed_out = match until {
                Some(until) => self.wake.wait_until(&mut guard, until).timed_out(),
                None => {
                    self.wake.wait(&mut guard);
                    false
                }
            };
            done = is_done();
            if timed_out {
                break;
            }
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        done
    }
}
