//! The blocking backend: every request is one blocking system call of the worker.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::file::queue::{Done, Queue, Request, WaitFor};
use crate::file::sys;
use crate::io::Op;
use crate::sleep::EventWake;

pub(super) struct PreadQueue {
    fds: Vec<RawFd>,
    block_devices: Vec<bool>,
    requests: Vec<Request>,
    wake: Arc<EventWake>,
}

impl PreadQueue {
    pub(super) fn new(fds: Vec<RawFd>, block_devices: Vec<bool>, wake: Arc<EventWake>) -> Self {
        PreadQueue {
            fds,
            block_devices,
            requests: Vec::new(),
            wake,
        }
    }
}

/// Executes a request with blocking calls. Returns bytes or a negative error number.
///
/// # Safety
/// The request's memory must be valid.
pub(super) unsafe fn execute(request: &Request, fd: RawFd, block_device: bool) -> i32 {
    let one = [libc::iovec {
        iov_base: request.buf.cast(),
        iov_len: request.len as usize,
    }];
    let write = request.op != Op::Read;
    let result = match request.op {
        // SAFETY: by contract.
        Op::Read | Op::Write => unsafe {
            sys::transfer(fd, write, &one, request.offset, request.durable)
        },
        Op::WriteV => {
            let first: *const libc::iovec = request.buf.cast_const().cast();
            // SAFETY: by contract, `buf` points to `len` iovecs.
            let vec = unsafe { std::slice::from_raw_parts(first, request.len as usize) };
            // SAFETY: by contract.
            unsafe { sys::transfer(fd, write, vec, request.offset, request.durable) }
        }
        Op::Flush => sys::sync(fd).map(|()| 0),
        Op::Discard if block_device => {
            sys::discard_blocks(fd, request.offset, request.len).map(|()| 0)
        }
        Op::Discard => sys::punch(fd, request.offset, request.len).map(|()| 0),
    };
    match result {
        // A transfer is at most 1 GiB.
        Ok(n) => n as i32,
        Err(e) => -e.raw_os_error().unwrap_or(libc::EIO),
    }
}

impl Queue for PreadQueue {
    const NAME: &'static str = "pread";

    fn has_room(&mut self) -> bool {
        true
    }

    unsafe fn push(&mut self, request: &Request) {
        self.requests.push(*request);
    }

    fn submit(&mut self, done: &mut Vec<Done>) -> io::Result<u32> {
        let calls = self.requests.len() as u32;
        for request in self.requests.drain(..) {
            let member = request.member as usize;
            // SAFETY: `push` was called with memory that is valid until the request is done.
            let result = unsafe { execute(&request, self.fds[member], self.block_devices[member]) };
            done.push(Done {
                token: request.token,
                result,
            });
        }
        Ok(calls)
    }

    fn wait(&mut self, wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
        if self.requests.is_empty() {
            return self.wake.sleep(wait.timeout).map(|woken| (1, woken));
        }
        self.submit(done).map(|calls| (calls, false))
    }

    unsafe fn call(&mut self, request: &Request) -> i32 {
        let member = request.member as usize;
        // SAFETY: by contract.
        unsafe { execute(request, self.fds[member], self.block_devices[member]) }
    }

    unsafe fn register(&mut self, _regions: &[(*mut u8, usize)]) -> io::Result<bool> {
        Ok(false)
    }
}
