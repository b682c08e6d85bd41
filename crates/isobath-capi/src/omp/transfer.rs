//! Loads and stores of many objects by one compute thread, with as many data tasks as may be.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::budget::{MemoryBudget, Share};
use crate::concurrency::{MAX_IN_FLIGHT, Refused};
use crate::kvs::code::{self, Code};
use crate::kvs::device::{Device, ThreadQueues};
use crate::kvs::request::{Bytes, Operation, Request};
use crate::kvs::space::{Space, Store};
use crate::kvs::types::kvs_result::*;

/// Objects that a thread requests for each data task: one that is being read, one that waits to be
/// worked on.
const AHEAD: u32 = 2;
/// How long a thread waits before it looks at the limits again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

thread_local! {
    /// Queues that this thread has used and does not use now; transfers within a callback of
    /// another one need their own.
    static IDLE: RefCell<Idle> = RefCell::default();
}

#[derive(Default)]
struct Idle(Vec<(usize, Weak<ThreadQueues>)>);

impl Drop for Idle {
    fn drop(&mut self) {
        for queues in self.0.iter().filter_map(|(_, queues)| queues.upgrade()) {
            queues.retire();
        }
    }
}

/// A thread's time in a transfer.
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
            at.and_then(|at| idle.0.swap_remove(at).1.upgrade())
        });
        let queues = idle.ok().flatten();
        space.device.enter_transfer();
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

    /// The index and the value of the next key, if that is kept in memory and the limits allow
    /// another one: it needs no data task.
    fn take_cached(&mut self, keys: &[Bytes], done: usize) -> Option<(usize, Arc<[u8]>)> {
        let next = self.submitted;
        let device = self.device();
        let may_load = next < keys.len() && next - done < self.window();
        if !may_load || device.is_serial() || self.space.check_open().is_err() {
            return None;
        }
        // SAFETY: the program keeps its keys while it loads.
        let value = self.space.cached(unsafe { keys[next].get() })?;
        self.submitted += 1;
        let bytes = value.len() as u64;
        self.queues.port.count_issued();
        self.queues.port.count_completed(false, bytes);
        self.spent.requests += 1;
        self.spent.bytes += bytes;
        Some((next, value))
    }

    /// Submits the load of the next key where the limits, of which `done` is not part any more, and
    /// memory allow it; whether they do.
    fn submit_load(&mut self, keys: &[Bytes], done: usize, buffers: &mut Buffers<'_>) -> bool {
        let next = self.submitted;
        // Values that wait for an earlier one count: memory is bounded by the window.
        if next >= keys.len() || next - done >= self.window() {
            return false;
        }
        let Some(value) = buffers.next() else {
            return false;
        };
        let key = keys[next];
        self.submit(Operation::Load { key, value });
        true
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

/// A value that is loaded and not worked on.
enum Loaded {
    Read(Vec<u8>),
    Kept(Arc<[u8]>),
}

/// Memory for the values of a load.
struct Buffers<'r> {
    share: Share<'r>,
    spare: Vec<Vec<u8>>,
}

impl Buffers<'_> {
    /// Memory for one more value.
    fn next(&mut self) -> Option<Vec<u8>> {
        let spare = self.spare.pop();
        spare.or_else(|| self.share.grow().then(Vec::new))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        // Transfers in flight use the program's memory. Bound: each round something completes, or
        // is about to.
        while self.in_flight > 0 {
            self.complete();
        }
        Device::leave_transfer();
        let entry = (self.space.device.handle, Arc::downgrade(&self.queues));
        let kept = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            // Those of devices that were closed are gone.
            idle.0.retain(|(_, queues)| queues.strong_count() > 0);
            idle.0.push(entry);
        });
        if kept.is_err() {
            self.queues.retire();
        }
    }
}

/// Loads objects, and calls `work` with the index and the value of each on the calling thread, in
/// the order of the keys or as they come. The first error ends it. Values take memory of `budget`.
pub(super) fn load(
    space: &Arc<Space>,
    keys: &[Bytes],
    in_order: bool,
    budget: &MemoryBudget,
    mut work: impl FnMut(usize, &[u8]),
) -> (Spent, Result<(), Code>) {
    let mut buffers = Buffers {
        share: Share::new(budget),
        spare: Vec::new(),
    };
    // Dropped before the buffers' share of the memory is given back.
    let mut transfer = Transfer::new(space);
    let mut waiting: BTreeMap<usize, Loaded> = BTreeMap::new();
    let mut done = 0;
    // Bound: each round hands over a value, or waits for one that is in flight: without a buffer
    // all that there are are in flight, or wait for one that is.
    while done < keys.len() && transfer.failed.is_none() {
        if let Some((index, value)) = transfer.take_cached(keys, done) {
            waiting.insert(index, Loaded::Kept(value));
        } else {
            if transfer.submit_load(keys, done, &mut buffers) {
                continue;
            }
            let Some((index, request)) = transfer.complete() else {
                continue;
            };
            match request.into_loaded() {
                Ok(value) => {
                    budget.saw(value.len());
                    waiting.insert(index, Loaded::Read(value));
                }
                Err((code, reason)) => {
                    // SAFETY: the program keeps its keys while it loads.
                    let key = String::from_utf8_lossy(unsafe { keys[index].get() }).into_owned();
                    transfer.failed = Some(code::because(code, format!("key {key:?}: {reason}")));
                }
            }
            // Refill before working: data tasks go on during the work.
            if transfer.failed.is_none() {
                transfer.submit_load(keys, done, &mut buffers);
            }
        }
        while let Some(entry) = waiting.first_entry()
            && (!in_order || *entry.key() == done)
        {
            let (index, value) = entry.remove_entry();
            match value {
                Loaded::Read(value) => {
                    work(index, &value);
                    buffers.spare.push(value);
                }
                Loaded::Kept(value) => work(index, &value),
            }
            done += 1;
        }
    }
    let result = transfer.failed.map_or(Ok(()), Err);
    drop(waiting);
    (finish(transfer), result)
}

/// Stores objects; all are acknowledged when it returns. The first error ends it: objects before
/// and behind it may be stored. Values being written take memory of `budget`.
pub(super) fn store(
    space: &Arc<Space>,
    pairs: &[(Bytes, Bytes)],
    budget: &MemoryBudget,
) -> (Spent, Result<(), Code>) {
    let mut share = Share::new(budget);
    for (_, value) in pairs {
        budget.saw(value.length());
    }
    let mut transfer = Transfer::new(space);
    let mut done = 0;
    // Bound: as for `load`.
    while done < pairs.len() && transfer.failed.is_none() {
        let next = transfer.submitted;
        let in_flight = transfer.in_flight;
        let may_submit = next < pairs.len() && in_flight < transfer.window();
        if may_submit && (in_flight < share.values() || share.grow()) {
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

/// Waits for transfers in flight after an error.
fn finish(mut transfer: Transfer<'_>) -> Spent {
    while transfer.in_flight > 0 {
        transfer.complete();
    }
    transfer.spent
}
