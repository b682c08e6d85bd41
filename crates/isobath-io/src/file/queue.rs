//! A backend's interface: it moves requests on single members to the kernel and back. Everything
//! else (striping, joining, short transfers, retries, statistics) is done once, in
//! [`super::channel`].

#![allow(unsafe_code)]

use std::io;
use std::time::{Duration, Instant};

use crate::aligned::AlignedBuf;
use crate::io::Op;

/// One request on one member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) member: u32,
    /// Byte offset in the member.
    pub(super) offset: u64,
    /// Memory, or for [`Op::WriteV`] an array of iovecs that stays valid until the request is done.
    pub(super) buf: *mut u8,
    /// Bytes; for [`Op::WriteV`] the number of iovecs. Discards can be longer than 4 GiB.
    pub(super) len: u64,
    pub(super) durable: bool,
    /// Returned in [`Done`].
    pub(super) token: u32,
}

/// The end of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) token: u32,
    /// Bytes transferred, or a negative error number.
    pub(super) result: i32,
}

/// How long [`Queue::wait`] sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitFor {
    /// Completions wished for, at least 1.
    pub(super) min: u32,
    /// When to give up; `None`: never.
    pub(super) timeout: Option<Duration>,
}

/// A backend's submission and completion queues.
pub(super) trait Queue {
    /// Its name in messages.
    const NAME: &'static str;

    /// Whether another request may be pushed.
    fn has_room(&mut self) -> bool;

    /// Queues a request. Called only when there is a free entry.
    ///
    /// # Safety
    /// The request's memory must stay valid until it is done.
    unsafe fn push(&mut self, request: &Request);

    /// Hands everything pushed to the kernel and appends completions, without blocking. Returns
    /// system calls made.
    fn submit(&mut self, done: &mut Vec<Done>) -> io::Result<u32>;

    /// Like `submit`, then sleeps until `min` requests are done, a wake, or the timeout. Returns
    /// system calls made and whether it was woken. May end early.
    fn wait(&mut self, wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)>;

    /// Registers memory with the kernel; false if the backend has no such thing.
    ///
    /// # Safety
    /// The regions must stay mapped as long as the queue lives.
    unsafe fn register(&mut self, regions: &[(*mut u8, usize)]) -> io::Result<bool>;

    /// Registers a region beside the others, whatever is in flight; false if the backend has no
    /// such thing, or no place for one more.
    ///
    /// # Safety
    /// As for [`register`](Self::register).
    unsafe fn register_more(&mut self, _region: (*mut u8, usize)) -> io::Result<bool> {
        Ok(false)
    }
}

/// Reads the first `buf.len()` bytes of a member, to see whether the queue works. When the answer
/// does not come, the buffer is leaked: the kernel may still write to it.
pub(super) fn read_start<Q: Queue>(
    queue: &mut Q,
    member: u32,
    len: usize,
    patience: Duration,
) -> io::Result<()> {
    let mut buf = std::mem::ManuallyDrop::new(AlignedBuf::new(len));
    let request = Request {
        op: Op::Read,
        member,
        offset: 0,
        buf: buf.as_mut_ptr(),
        len: len as u64,
        durable: false,
        token: 0,
    };
    // SAFETY: the buffer is freed below only after its request is done.
    unsafe { queue.push(&request) };
    let wait = WaitFor {
        min: 1,
        timeout: Some(patience),
    };
    let mut done = Vec::new();
    let start = Instant::now();
    while done.is_empty() && start.elapsed() < patience {
        queue.wait(wait, &mut done)?;
    }
    let Some(Done { result, .. }) = done.first() else {
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    };
    drop(std::mem::ManuallyDrop::into_inner(buf));
    match usize::try_from(*result) {
        Ok(n) if n == len => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::from_raw_os_error(-result)),
    }
}
