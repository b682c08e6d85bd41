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

/// Reads of [`read_start`] before the answer of the last one counts.
const TRIES: usize = 8;

/// Reads the first `len` bytes of a member, to see whether the queue works. A read that was
/// interrupted or cut short is tried again, as later ones are, but only once it has ended: if no
/// answer comes, the buffer is leaked, since the kernel may still write to it.
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
    let start = Instant::now();
    let mut tries = 0;
    let answer = loop {
        // SAFETY: the buffer is freed below only after the last request is done; those before are.
        unsafe { queue.push(&request) };
        let answer = answer_of(queue, len, start, patience)?;
        tries += 1;
        if tries == TRIES || !answer.as_ref().is_err_and(is_brief) {
            break answer;
        }
    };
    drop(std::mem::ManuallyDrop::into_inner(buf));
    answer
}

/// Whether another try may end well.
fn is_brief(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, UnexpectedEof, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock | UnexpectedEof)
}

/// How the one request in flight, a read of `len` bytes, has ended.
///
/// # Errors
///
/// It has not, `patience` after `start`, or the queue fails.
fn answer_of<Q: Queue>(
    queue: &mut Q,
    len: usize,
    start: Instant,
    patience: Duration,
) -> io::Result<io::Result<()>> {
    let wait = WaitFor {
        min: 1,
        timeout: Some(patience),
    };
    let mut done = Vec::new();
    while done.is_empty() && start.elapsed() < patience {
        queue.wait(wait, &mut done)?;
    }
    let Some(Done { result, .. }) = done.first() else {
        return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
    };
    Ok(match usize::try_from(*result) {
        Ok(n) if n == len => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::from_raw_os_error(-result)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers that come one after another; an error is the queue's own.
    struct Answers {
        left: Vec<io::Result<i32>>,
        pushed: usize,
    }

    impl Queue for Answers {
        const NAME: &'static str = "answers";

        fn has_room(&mut self) -> bool {
            true
        }

        unsafe fn push(&mut self, _request: &Request) {
            self.pushed += 1;
        }

        fn submit(&mut self, _done: &mut Vec<Done>) -> io::Result<u32> {
            Ok(0)
        }

        fn wait(&mut self, _wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
            let result = self.left.remove(0)?;
            done.push(Done { token: 0, result });
            Ok((1, false))
        }

        unsafe fn register(&mut self, _regions: &[(*mut u8, usize)]) -> io::Result<bool> {
            Ok(false)
        }
    }

    /// The outcome, and how many reads were tried.
    fn read(left: Vec<io::Result<i32>>) -> (Result<(), io::ErrorKind>, usize) {
        let mut queue = Answers { left, pushed: 0 };
        let outcome = read_start(&mut queue, 0, 4096, Duration::from_secs(100));
        (outcome.map_err(|error| error.kind()), queue.pushed)
    }

    #[test]
    fn only_a_read_that_has_ended_is_tried_again() {
        let brief = || vec![Ok(-libc::EINTR), Ok(-libc::EAGAIN), Ok(512)];
        let and = |last| brief().into_iter().chain([last]).collect::<Vec<_>>();
        assert_eq!(read(and(Ok(4096))), (Ok(()), 4));
        let refused = read(and(Ok(-libc::EINVAL)));
        assert_eq!(refused, (Err(io::ErrorKind::InvalidInput), 4));
        // The queue has failed: the read may still be in flight.
        let failed = read(and(Err(io::ErrorKind::WouldBlock.into())));
        assert_eq!(failed, (Err(io::ErrorKind::WouldBlock), 4));
        let short = read((0..TRIES).map(|_| Ok(512)).collect());
        assert_eq!(short, (Err(io::ErrorKind::UnexpectedEof), TRIES));
    }
}
