//! Loads and stores of many objects by one compute thread, with as many data tasks as may be.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::concurrency::{MAX_IN_FLIGHT, Refused};
use crate::kvs::code::{self, Code};
use crate::kvs::device::{Device, ThreadQueues};
use crate::kvs::request::{Bytes, Operation, Request};
use crate::kvs::space::{Space, Store};
use crate::kvs::types::kvs_result::*;

/// Objects that a thread requests for each data task: one that is being read, one that waits to be worked on.
const AHEAD: u32 = 2;
/// How long a thread waits before it looks at the limits again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

thread_local! {
    /// Queues that this thread has used and does not use now; transfers within a callback of another one need their own.
    static IDLE: RefCell<Idle> = RefCell::default();
}

#[derive(Default)]
struct Idle(Vec<(usize, Arc<ThreadQueues>)>);

impl Drop for Idle {
    fn drop(&mut self) {
        for (_, queues) in &self.0 {
            queues.retire();
        }
    }
}

/// What a thread spent on a transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    /// Nanoseconds that the calling thread waited.
    pub(super) wait_ns: u64,
    /// Nanoseconds that data tasks worked on requests.
    pub(super) busy_ns: u64,
}

/// A transfer that runs.
struct Transfer<'s> {
    space: &'s Arc<Space>,
    queues: Arc<ThreadQueues>,
    submitted: usize,
    in_flight: usize,
    spent: Spent,
    failed: Option<Code>,
}

impl<'s> Transfer<'s> {
    fn new(space: &'s Arc<Space>) -> Transfer<'s> {
        let handle = space.device.handle;
        let idle = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            let at = idle.0.iter().position(|(device, _)| *device == handle);
            at.map(|at| idle.0.swap_remove(at).1)
        });
        let queues = idle.ok().flatten();
        Transfer {
            space,
            queues: queues.unwrap_or_else(|| space.device.adopt(true)),
            submitted: 0,
            in_flight: 0,
            spent: Spent::default(),
            failed: None,
        }
    }

    fn device(&self) -> &Arc<Device> {
        &self.space.device
    }

    /// Requests that may be in flight now.
    fn window(&self) -> usize {
        match self.device().is_serial() {
            true => 1,
            false => (self.device().limits.data_tasks() * AHEAD).min(MAX_IN_FLIGHT) as usize,
        }
    }

    /// Submits the request of the next index.
    fn submit(&mut self, operation: Operation) {
        let request = Request::numbered(Arc::clone(self.space), operation, self.submitted);
        self.submitted += 1;
        let device = self.device();
        match device
            .lane(&self.queues)
            .submit(&self.queues.port, request, || device.is_open())
        {
            Ok(()) => self.in_flight += 1,
            Err(Refused::Closed) => self.failed = Some(KVS_ERR_DEV_NOT_OPENED),
            // The window is never larger than the slot table.
            Err(Refused::Full(_)) => self.failed = Some(KVS_ERR_SYS_IO),
        }
    }

    /// Waits for the next completion; `None` if the limits are to be looked at again.
    fn complete(&mut self) -> Option<(usize, Request)> {
        let port = &self.queues.port;
        let request = match port.poll() {
            Some(request) => request,
            None => {
                let before = Instant::now();
                port.wait_until(Some(LOOK_AGAIN), || port.has_completions());
                self.spent.wait_ns += before.elapsed().as_nanos() as u64;
                port.poll()?
            }
        };
        self.in_flight -= 1;
        let index = request.index();
        self.spent.busy_ns += request.busy().as_nanos() as u64;
        self.spent.requests += 1;
        self.spent.bytes += crate::concurrency::Request::bytes(&request);
        Some((index, request))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        // What is in flight uses the program's memory. Bound: each round something completes, or is about to.
        while self.in_flight > 0 {
            self.complete();
        }
        let entry = (self.space.device.handle, Arc::clone(&self.queues));
        let kept = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            // Those of devices that were closed are of no use any more.
            idle.0.retain(|(_, queues)| Arc::strong_count(queues) > 1);
            idle.0.push(entry);
        });
        if kept.is_err() {
            self.queues.retire();
        }
    }
}

/// Loads objects, and calls `work` with the index and the value of each on the calling thread, in the order of the keys or as
/// they come. The first error ends it.
pub(super) fn load(
    space: &Arc<Space>,
    keys: &[Bytes],
    in_order: bool,
    mut work: impl FnMut(usize, &[u8]),
) -> (Spent, Result<(), Code>) {
    let mut transfer = Transfer::new(space);
    let mut spare: Vec<Vec<u8>> = Vec::new();
    let mut waiting: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let mut done = 0;
    // Bound: each round hands over a value, or waits for one that is in flight.
    while done < keys.len() && transfer.failed.is_none() {
        let next = transfer.submitted;
        // Values that wait for an earlier one count: memory is bounded by the window.
        if next < keys.len() && next - done < transfer.window() {
            let value = spare.pop().unwrap_or_default();
            let key = keys[next];
            transfer.submit(Operation::Load { key, value });
            continue;
        }
        let Some((index, request)) = transfer.complete() else {
            continue;
        };
        match request.into_loaded() {
            Ok(value) => {
                waiting.insert(index, value);
            }
            Err((code, reason)) => {
                // SAFETY: the program keeps its keys while it loads.
                let key = String::from_utf8_lossy(unsafe { keys[index].get() }).into_owned();
                transfer.failed = Some(code::because(code, format!("key {key:?}: {reason}")));
            }
        }
        // Refill before working: data tasks go on during the work.
        let next = transfer.submitted;
        if transfer.failed.is_none() && next < keys.len() && next - done < transfer.window() {
            let value = spare.pop().unwrap_or_default();
            let key = keys[next];
            transfer.submit(Operation::Load { key, value });
        }
        while let Some(entry) = waiting.first_entry()
            && (!in_order || *entry.key() == done)
        {
            let (index, value) = entry.remove_entry();
            work(index, &value);
            spare.push(value);
            done += 1;
        }
    }
    let result = transfer.failed.map_or(Ok(()), Err);
    drop(waiting);
    (finish(transfer), result)
}

/// Stores objects; all are acknowledged when it returns. The first error ends it: objects before and behind it may be stored.
pub(super) fn store(space: &Arc<Space>, pairs: &[(Bytes, Bytes)]) -> (Spent, Result<(), Code>) {
    let mut transfer = Transfer::new(space);
    let mut done = 0;
    // Bound: as for `load`.
    while done < pairs.len() && transfer.failed.is_none() {
        let next = transfer.submitted;
        if next < pairs.len() && transfer.in_flight < transfer.window() {
            let (key, value) = pairs[next];
            let how = Store::Post;
            transfer.submit(Operation::Store { key, value, how });
            continue;
        }
        let Some((index, request)) = transfer.complete() else {
            continue;
        };
        done += 1;
        if request.result() != KVS_SUCCESS {
            // SAFETY: the program keeps its keys while it stores.
            let key = String::from_utf8_lossy(unsafe { pairs[index].0.get() }).into_owned();
            let reason = format!("key {key:?}: {:?}", request.result());
            transfer.failed = Some(code::because(request.result(), reason));
        }
    }
    let result = transfer.failed.map_or(Ok(()), Err);
    (finish(transfer), result)
}

/// Waits for what is in flight after an error.
fn finish(mut transfer: Transfer<'_>) -> Spent {
    while transfer.in_flight > 0 {
        transfer.complete();
    }
    transfer.spent
}
