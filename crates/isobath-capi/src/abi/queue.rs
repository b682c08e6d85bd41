//! Asynchronous calls: a queue of requests, whose completions are polled or passed to callbacks.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isobath::{Error, Transaction, Tree};

use super::bytes::isobath_bytes;
use super::status::{self, Failure, isobath_status};
use super::store::isobath_store;
use super::transaction::isobath_transaction;
use super::tree::isobath_tree;
use super::{bytes_of, guard, object, object_mut};
use crate::concurrency::{
    self, CompletionThread, Lane, Limits, Port, Refused, generation, in_callback,
};
use isobath_status::*;

/// What a request does.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum isobath_operation {
    /// Reads the value of `key`.
    ISOBATH_OP_GET = 0,
    /// Gives `key` the value `value`.
    ISOBATH_OP_PUT = 1,
    /// Removes `key`.
    ISOBATH_OP_DELETE = 2,
    /// Asks whether `key` has a value.
    ISOBATH_OP_CONTAINS = 3,
    /// Commits `transaction`, which has ended when this returns.
    ISOBATH_OP_COMMIT = 4,
}

/// Called with a completion, which is valid during the call; `value` is the library's there. Must
/// not close the store or free the queue; may submit.
pub type isobath_callback = Option<unsafe extern "C" fn(completion: *const isobath_completion)>;

/// A request. What it points to is copied when it is submitted.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_request {
    /// An isobath_operation.
    pub operation: i32,
    /// The tree of all but ISOBATH_OP_COMMIT.
    pub tree: *const isobath_tree,
    /// The transaction of ISOBATH_OP_COMMIT.
    pub transaction: *mut isobath_transaction,
    /// The key.
    pub key: *const c_void,
    /// Its bytes.
    pub key_length: usize,
    /// The value of ISOBATH_OP_PUT.
    pub value: *const c_void,
    /// Its bytes.
    pub value_length: usize,
    /// Given back with the completion.
    pub user_data: *mut c_void,
    /// Called with the completion; NULL: isobath_queue_poll returns it.
    pub callback: isobath_callback,
}

/// How a request went.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_completion {
    /// As given.
    pub user_data: *mut c_void,
    /// An isobath_operation.
    pub operation: i32,
    /// An isobath_status.
    pub status: i32,
    /// The value that ISOBATH_OP_GET has read. One from isobath_queue_poll is freed by
    /// isobath_bytes_free.
    pub value: isobath_bytes,
}

/// Numbers of a queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct isobath_queue_counters {
    /// Requests that were accepted.
    pub issued: u64,
    /// Of those, the ones that were not handed over yet.
    pub in_flight: u64,
    /// Requests that were handed over.
    pub completed: u64,
    /// Of those, the ones that failed.
    pub failed: u64,
    /// The most that ever were in flight.
    pub in_flight_max: u64,
    /// Bytes of values that were moved.
    pub bytes: u64,
}

enum Work {
    Get(Tree, Vec<u8>),
    Put(Tree, Vec<u8>, Vec<u8>),
    Delete(Tree, Vec<u8>),
    Contains(Tree, Vec<u8>),
    Commit(Option<Box<Transaction>>),
}

/// A request in flight.
struct Request {
    work: Work,
    operation: i32,
    status: isobath_status,
    value: Option<Vec<u8>>,
    bytes: u64,
    user_data: *mut c_void,
    callback: isobath_callback,
}

// SAFETY: the one pointer is handed through and never followed; one thread at a time has the
// request.
unsafe impl Send for Request {}

impl Request {
    fn perform(&mut self) -> Result<isobath_status, Error> {
        Ok(match &mut self.work {
            Work::Get(tree, key) => {
                self.value = tree.get(key)?;
                self.bytes = self.value.as_ref().map_or(0, Vec::len) as u64;
                super::found(self.value.is_some())
            }
            Work::Put(tree, key, value) => {
                tree.insert(key, &value)?;
                self.bytes = value.len() as u64;
                ISOBATH_OK
            }
            Work::Delete(tree, key) => super::found(tree.remove(key)?),
            Work::Contains(tree, key) => super::found(tree.contains(key)?),
            Work::Commit(transaction) => {
                if let Some(transaction) = transaction.take() {
                    transaction.commit()?;
                }
                ISOBATH_OK
            }
        })
    }

    fn completion(&mut self) -> isobath_completion {
        isobath_completion {
            user_data: self.user_data,
            operation: self.operation,
            status: self.status as i32,
            value: isobath_bytes::of(self.value.take()),
        }
    }

    /// Calls the request's callback, which it has.
    fn tell(mut self) {
        let completion = self.completion();
        if let Some(callback) = self.callback {
            // SAFETY: the program gave a function of this type.
            concurrency::run_callback(|| unsafe { callback(&completion) });
        }
        // SAFETY: made above.
        unsafe { super::bytes::isobath_bytes_free(completion.value) };
    }
}

impl concurrency::Request for Request {
    fn run(&mut self) {
        self.status = match self.perform() {
            Ok(status) => status,
            Err(error) => status::of(&error),
        };
    }

    fn fail(&mut self) {
        self.status = ISOBATH_PANIC;
    }

    fn refuse(&mut self) {
        self.status = ISOBATH_CLOSED;
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn has_failed(&self) -> bool {
        !matches!(self.status, ISOBATH_OK | ISOBATH_NOT_FOUND)
    }
}

/// Requests in flight and their completions. One thread at a time submits and polls;
/// isobath_queue_set_limits and isobath_queue_get_counters may be called from any thread. A program
/// has one for each thread.
pub struct isobath_queue {
    lane: Arc<Lane<Request>>,
    port: Arc<Port<Request>>,
    limits: Arc<Limits>,
    thread: Option<CompletionThread<Request>>,
    is_open: AtomicBool,
    /// Of the process that has made it.
    generation: u32,
}

impl isobath_queue {
    /// Whether the process that has made it has forked this one: requests in flight complete there.
    fn is_forked(&self) -> bool {
        self.generation != generation()
    }
}

/// Makes a queue of up to `depth` × `data_tasks` requests in flight (2048 at most), `data_tasks` of
/// which are worked on at a time. With `callback_thread`, a thread of the library calls the
/// callbacks of all requests, which then must have one; else isobath_queue_poll does. Freed by
/// isobath_queue_free. Any thread.
///
/// # Safety
///
/// As of all: objects are the library's and were not freed, or NULL; bytes can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_queue_new(
    store: *const isobath_store,
    depth: u32,
    data_tasks: u32,
    callback_thread: bool,
    out: *mut *mut isobath_queue,
) -> isobath_status {
    guard(|| {
        let store = given!(object(store)?).0.clone();
        crate::not_null(out)?;
        if depth == 0 || data_tasks == 0 {
            return Err(Failure::Argument("depth and data tasks are at least 1"));
        }
        let limits = Arc::new(Limits::new(depth, data_tasks));
        let thread = match callback_thread {
            false => None,
            true => Some(
                CompletionThread::start(Request::tell)
                    .map_err(|error| Failure::Status(ISOBATH_OTHER, error.to_string()))?,
            ),
        };
        let queue = isobath_queue {
            lane: Arc::new(Lane::new(store, Arc::clone(&limits))),
            port: Arc::new(Port::new(thread.as_ref().map(CompletionThread::ready))),
            limits,
            thread,
            is_open: AtomicBool::new(true),
            generation: generation(),
        };
        given!(super::give(out, queue));
        Ok(ISOBATH_OK)
    })
}

/// Sets the limits of isobath_queue_new again; requests in flight stay. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_queue_set_limits(
    queue: *const isobath_queue,
    depth: u32,
    data_tasks: u32,
) -> isobath_status {
    guard(|| {
        let queue = given!(object(queue)?);
        if depth == 0 || data_tasks == 0 {
            return Err(Failure::Argument("depth and data tasks are at least 1"));
        }
        queue.limits.set(depth, data_tasks);
        Ok(ISOBATH_OK)
    })
}

/// A request's work, with keys and values of its own.
///
/// # Safety
///
/// As of all.
unsafe fn work_of(request: &isobath_request) -> Result<Work, Failure> {
    if request.operation == isobath_operation::ISOBATH_OP_COMMIT as i32 {
        let transaction = given!(object_mut(request.transaction)?).take()?;
        return Ok(Work::Commit(Some(Box::new(transaction))));
    }
    let (tree, key) = given! {
        let tree = object(request.tree)?.0.clone();
        (tree, bytes_of(request.key, request.key_length)?.to_vec())
    };
    Ok(match request.operation {
        0 => Work::Get(tree, key),
        1 => {
            let value = given!(bytes_of(request.value, request.value_length)?);
            Work::Put(tree, key, value.to_vec())
        }
        2 => Work::Delete(tree, key),
        3 => Work::Contains(tree, key),
        _ => return Err(Failure::Argument("there is no such operation")),
    })
}

/// Submits a request, whose completion has the result. ISOBATH_QUEUE_FULL if as many are in
/// flight as may be: poll, and submit again. Inside a callback the limit does not count. One thread
/// at a time.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_queue_submit(
    queue: *const isobath_queue,
    request: *const isobath_request,
) -> isobath_status {
    guard(|| {
        let (queue, request) = given!((object(queue)?, object(request)?));
        if queue.is_forked() {
            return Err(Failure::Engine(Error::Forked));
        }
        if request.callback.is_none() && queue.thread.is_some() {
            return Err(Failure::Argument(
                "a queue with a callback thread needs callbacks",
            ));
        }
        let full = || {
            let reason = "as many requests are in flight as the queue may have".to_owned();
            Failure::Status(ISOBATH_QUEUE_FULL, reason)
        };
        let limit = match in_callback() {
            true => concurrency::MAX_IN_FLIGHT,
            false => queue.limits.in_flight(),
        };
        // Before the transaction of a commit is taken.
        if queue.port.in_flight() >= u64::from(limit) {
            queue.port.count_wait();
            return Err(full());
        }
        let submitted = Request {
            work: given!(work_of(request)?),
            operation: request.operation,
            status: ISOBATH_OTHER,
            value: None,
            bytes: 0,
            user_data: request.user_data,
            callback: request.callback,
        };
        let is_open = || queue.is_open.load(Ordering::SeqCst);
        match queue.lane.submit(&queue.port, submitted, is_open) {
            Ok(()) => Ok(ISOBATH_OK),
            Err(Refused::Full(_)) => Err(full()),
            Err(Refused::Closed) => Err(Failure::Engine(Error::Closed)),
        }
    })
}

/// Hands over completions: calls the callbacks of those that have one, and writes the others to
/// `completions`, at most `capacity`, which is at least 1. Waits up to `timeout_ms` milliseconds
/// for the first one, without a limit if that is negative; `count` says how many were written. Ends
/// when nothing is in flight. One thread at a time.
///
/// # Safety
///
/// As of all; `capacity` completions can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_queue_poll(
    queue: *const isobath_queue,
    completions: *mut isobath_completion,
    capacity: usize,
    timeout_ms: i64,
    count: *mut usize,
) -> isobath_status {
    guard(|| {
        let queue = given!(object(queue)?);
        if count.is_null() || completions.is_null() && capacity > 0 {
            return Err(Failure::Null);
        }
        given!(count.write(0));
        if queue.is_forked() {
            return Err(Failure::Engine(Error::Forked));
        }
        if capacity == 0 && queue.thread.is_none() {
            return Err(Failure::Argument("there must be space for a completion"));
        }
        let port = &queue.port;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        if queue.thread.is_none() && port.in_flight() > 0 {
            port.wait_until(timeout, || port.has_completions());
        }
        let mut written = 0;
        while written < capacity {
            let Some(mut request) = (match queue.thread {
                None => port.poll(),
                Some(_) => None,
            }) else {
                break;
            };
            if request.callback.is_some() {
                request.tell();
                continue;
            }
            // SAFETY: there is space for it.
            unsafe { completions.add(written).write(request.completion()) };
            written += 1;
        }
        given!(count.write(written));
        Ok(ISOBATH_OK)
    })
}

/// The numbers of a queue. Any thread.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_queue_get_counters(
    queue: *const isobath_queue,
    counters: *mut isobath_queue_counters,
) -> isobath_status {
    guard(|| {
        let queue = given!(object(queue)?);
        crate::not_null(counters)?;
        let numbers = queue.port.counters();
        let numbers = isobath_queue_counters {
            issued: numbers.issued,
            in_flight: numbers.in_flight,
            completed: numbers.completed,
            failed: numbers.failed,
            in_flight_max: numbers.in_flight_max,
            bytes: numbers.bytes,
        };
        given!(counters.write(numbers));
        Ok(ISOBATH_OK)
    })
}

/// Waits for requests in flight, calls the remaining callbacks, forgets other completions, and
/// frees the queue. NULL does nothing. No other thread may use the queue any more.
///
/// # Safety
///
/// As of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isobath_queue_free(queue: *mut isobath_queue) {
    if let Ok(queue) = given!(object_mut(queue)) {
        queue.is_open.store(false, Ordering::SeqCst);
        let port = &queue.port;
        while port.in_flight() > 0 && !queue.is_forked() {
            let pause = Some(Duration::from_millis(1));
            if queue.thread.is_some() {
                port.wait_until(pause, || port.in_flight() == 0);
                continue;
            }
            port.wait_until(pause, || port.has_completions());
            while let Some(request) = port.poll() {
                request.tell();
            }
        }
        if let Some(thread) = &mut queue.thread {
            thread.stop();
        }
    }
    given!(super::free(queue));
}
