//! A submission queue and the data tasks that empty it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crossbeam_queue::ArrayQueue;
use isobath::Store;

use super::{Limits, MAX_IN_FLIGHT, Port, Request};

/// Requests that a data task serves before it lets other tasks of its worker run.
const SERVED_AT_ONCE: u32 = 16;

/// Why a request was not appended.
pub(crate) enum Refused<R> {
    /// No slot is free; the request.
    Full(R),
    /// Nothing more may be appended.
    Closed,
}

/// A submission queue.
pub(crate) struct Lane<R> {
    store: Store,
    limits: Arc<Limits>,
    queue: ArrayQueue<(Arc<Port<R>>, u32)>,
    /// Data tasks that run.
    running: AtomicU32,
}

/// A data task of a lane. The store drops it without running it once it is closed.
struct DataTask<R: Request>(Option<Arc<Lane<R>>>);

impl<R: Request> DataTask<R> {
    fn run(mut self) {
        if let Some(lane) = self.0.take() {
            lane.serve();
        }
    }
}

impl<R: Request> Drop for DataTask<R> {
    fn drop(&mut self) {
        if let Some(lane) = self.0.take() {
            lane.refuse();
        }
    }
}

impl<R: Request> Lane<R> {
    pub(crate) fn new(store: Store, limits: Arc<Limits>) -> Lane<R> {
        Lane {
            store,
            limits,
            queue: ArrayQueue::new(MAX_IN_FLIGHT as usize),
            running: AtomicU32::new(0),
        }
    }

    /// Appends a request of `port`, whose result the port will have. Gives it back where the slot
    /// table is full, or where `is_open` says that nothing more may be appended: asked after the
    /// request was counted as issued, so a thread that closes either sees the request, or the
    /// request is refused.
    pub(crate) fn submit(
        self: &Arc<Self>,
        port: &Arc<Port<R>>,
        request: R,
        is_open: impl Fn() -> bool,
    ) -> Result<(), Refused<R>> {
        let slot = self.occupy(port, request, false, is_open)?;
        self.append(port, slot);
        Ok(())
    }

    /// Appends a request as `submit` does, and waits for its result.
    pub(crate) fn call(
        self: &Arc<Self>,
        port: &Arc<Port<R>>,
        request: R,
        is_open: impl Fn() -> bool,
    ) -> Result<Option<R>, Refused<R>> {
        let slot = self.occupy(port, request, true, is_open)?;
        self.append(port, slot);
        Ok(port.await_slot(slot))
    }

    fn occupy(
        &self,
        port: &Arc<Port<R>>,
        request: R,
        is_awaited: bool,
        is_open: impl Fn() -> bool,
    ) -> Result<u32, Refused<R>> {
        let slot = port.occupy(request, is_awaited).map_err(Refused::Full)?;
        fence(Ordering::SeqCst);
        match is_open() {
            true => Ok(slot),
            false => {
                port.cancel(slot);
                Err(Refused::Closed)
            }
        }
    }

    fn append(self: &Arc<Self>, port: &Arc<Port<R>>, slot: u32) {
        let mut entry = (Arc::clone(port), slot);
        // Bound: a full ring (only of a lane that many ports share) is emptied by data tasks.
        while let Err(back) = self.queue.push(entry) {
            entry = back;
            self.start_task();
            std::thread::yield_now();
        }
        self.start_task();
    }

    /// Starts a data task unless as many run as may. After something was appended.
    fn start_task(self: &Arc<Self>) {
        // Pairs with the fence of `serve`: either this sees that a task has ended, or that one sees
        // what was appended.
        fence(Ordering::SeqCst);
        if self.enter() {
            let task = DataTask(Some(Arc::clone(self)));
            drop(self.store.spawn(move || task.run()));
        }
    }

    /// A data task that was counted does not run, because the store takes no tasks any more:
    /// nothing else would complete queued requests.
    fn refuse(&self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
        // As in `serve`: either this sees the appended request, or the thread that appended it
        // starts a task of its own.
        fence(Ordering::SeqCst);
        while let Some((port, slot)) = self.queue.pop() {
            port.refuse(slot);
        }
    }

    /// Counts one more data task, if there may be one.
    fn enter(&self) -> bool {
        let limit = self.limits.data_tasks();
        let more = |running: u32| (running < limit).then_some(running + 1);
        let entered = self
            .running
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        entered.is_ok()
    }

    /// Counts one data task less if there are more than may be.
    fn retire(&self) -> bool {
        let limit = self.limits.data_tasks();
        let less = |running: u32| (running > limit).then(|| running - 1);
        let retired = self
            .running
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        retired.is_ok()
    }

    /// A data task: serves one request after another until none is left or there are too many
    /// tasks.
    fn serve(self: Arc<Self>) {
        let mut served = 0;
        // Bound: each round serves a request, or is the last one.
        while !self.retire() {
            let Some((port, slot)) = self.queue.pop() else {
                self.running.fetch_sub(1, Ordering::AcqRel);
                fence(Ordering::SeqCst);
                if self.queue.is_empty() || !self.enter() {
                    return;
                }
                continue;
            };
            // The limit may have grown since the requests were appended.
            if !self.queue.is_empty() {
                self.start_task();
            }
            port.execute(slot);
            served += 1;
            if served % SERVED_AT_ONCE == 0 {
                isobath::yield_now();
            }
        }
    }
}
