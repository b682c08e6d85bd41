//! Linux native asynchronous I/O ("libaio"), by its system calls. For machines where io_uring is
//! forbidden.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::file::pread;
use crate::file::queue::{Done, Queue, Request, WaitFor};
use crate::io::Op;
use crate::sleep::{EventWake, timespec};

/// Marks the completion of the poll on the eventfd. Tokens have 32 bits.
const WAKE: u64 = u64::MAX;
/// Places beyond the depth: the wake poll, and parts of split I/Os.
const SPARE: u32 = 8;
/// How long a wake may be held back by a wait for several completions, of which it is only one.
const BATCH: Duration = Duration::from_micros(200);
/// Consecutive refusals of the wake's poll for lack of resources that are endured.
const STARVED: u32 = 100_000;
/// Events taken by one system call.
const EVENTS: usize = 64;
/// The kernel's mark of a completion ring that user space may read.
const RING_MAGIC: u32 = 0xa10a_10a1;

const CMD_PREAD: u16 = 0;
const CMD_PWRITE: u16 = 1;
const CMD_FDSYNC: u16 = 3;
const CMD_POLL: u16 = 5;
const CMD_PWRITEV: u16 = 8;

/// `struct iocb` of `linux/aio_abi.h`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Iocb {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: i32,
    #[cfg(target_endian = "big")]
    key: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// `struct aio_ring` of the kernel, which `aio_context_t` points to; the events follow it.
#[repr(C)]
struct Ring {
    id: u32,
    events: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    header_len: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);
const _: () = assert!(size_of::<Ring>() == 32);

pub(super) struct AioQueue {
    context: libc::c_ulong,
    fds: Vec<RawFd>,
    block_devices: Vec<bool>,
    /// Pushed and not yet taken by the kernel, in order.
    queued: Vec<Iocb>,
    /// Requests with the kernel.
    inside: u32,
    room: u32,
    executed: Vec<Done>,
    wake: Arc<EventWake>,
    /// Whether a poll on the eventfd is queued or with the kernel.
    wake_armed: bool,
    starved: u32,
}

impl AioQueue {
    pub(super) fn new(
        fds: Vec<RawFd>,
        block_devices: Vec<bool>,
        depth: u32,
        wake: Arc<EventWake>,
    ) -> io::Result<AioQueue> {
        let room = depth + SPARE;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes one handle to `context`, which must be (and is) zero before.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, room + 1, &raw mut context) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(AioQueue {
            context,
            fds,
            block_devices,
            queued: Vec::with_capacity(room as usize),
            inside: 0,
            room,
            executed: Vec::new(),
            wake,
            wake_armed: false,
            starved: 0,
        })
    }

    fn iocb(&self, r: &Request) -> Iocb {
        let (opcode, rw_flags) = match r.op {
            Op::Read => (CMD_PREAD, 0),
            Op::Write => (CMD_PWRITE, libc::RWF_DSYNC),
            Op::WriteV => (CMD_PWRITEV, libc::RWF_DSYNC),
            // Discards are executed by `push`.
            Op::Flush | Op::Discard => (CMD_FDSYNC, 0),
        };
        let flush = r.op == Op::Flush;
        Iocb {
            data: u64::from(r.token),
            rw_flags: if r.durable { rw_flags } else { 0 },
            opcode,
            // Descriptors are not negative.
            fd: self.fds[r.member as usize] as u32,
            buf: if flush {
                0
            } else {
                r.buf.expose_provenance() as u64
            },
            len: if flush { 0 } else { r.len },
            // Offsets on files are below 2^63.
            offset: r.offset as i64,
            ..Iocb::default()
        }
    }

    fn arm_wake(&mut self) {
        if !self.wake_armed {
            self.wake_armed = true;
            self.queued.push(Iocb {
                data: WAKE,
                opcode: CMD_POLL,
                fd: self.wake.fd() as u32,
                buf: libc::POLLIN as u64,
                ..Iocb::default()
            });
        }
    }

    /// Hands the queued requests to the kernel. Returns system calls made.
    fn hand_over(&mut self) -> io::Result<u32> {
        let mut calls = 0;
        let mut first = 0;
        while first < self.queued.len() {
            let rest = &mut self.queued[first..];
            let pointers: Vec<*mut Iocb> = rest.iter_mut().map(|i| &raw mut *i).collect();
            // SAFETY: an array of pointers to valid iocbs, which the kernel copies during the call.
            // The memory that they name stays valid by the contract of `push`.
            let n = unsafe {
                libc::syscall(
                    libc::SYS_io_submit,
                    self.context,
                    pointers.len(),
                    pointers.as_ptr(),
                )
            };
            calls += 1;
            if n > 0 {
                self.starved = 0;
                let taken = &self.queued[first..first + n as usize];
                self.inside += taken.iter().filter(|i| i.data != WAKE).count() as u32;
                first += n as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            if errno == libc::EAGAIN && self.inside > 0 {
                // Out of resources: completions give some back.
                break;
            }
            let refused = self.queued[first];
            if refused.data == WAKE && errno == libc::EAGAIN && self.starved < STARVED {
                self.starved += 1;
                break;
            }
            if refused.data == WAKE {
                self.queued.drain(..first);
                return Err(error);
            }
            self.executed.push(Done {
                token: refused.data as u32,
                result: -errno,
            });
            first += 1;
        }
        self.queued.drain(..first);
        Ok(calls)
    }

    fn take(&mut self, event: &Event, done: &mut Vec<Done>) -> bool {
        if event.data == WAKE {
            self.wake_armed = false;
            self.wake.drain();
            return true;
        }
        self.inside -= 1;
        done.push(Done {
            token: event.data as u32,
            // Transfers are at most 1 GiB.
            result: event.result as i32,
        });
        false
    }

    /// Takes completions from the ring that the kernel shares with us, without a system call.
    /// `None` when this kernel's ring may not be read.
    fn reap_ring(&mut self, done: &mut Vec<Done>) -> Option<bool> {
        let ring: *const Ring = std::ptr::with_exposed_provenance(self.context as usize);
        // SAFETY: the context is the address of a ring that the kernel mapped for us and that lives
        // as long as `self`.
        let header = unsafe { &*ring };
        if header.magic != RING_MAGIC || header.incompatible != 0 {
            return None;
        }
        let mut woken = false;
        let mut head = header.head.load(Ordering::Relaxed);
        // Acquire: the kernel writes an event before it moves the tail.
        let tail = header.tail.load(Ordering::Acquire);
        while head != tail {
            // SAFETY: `events` events follow the header, and `head` stays below that number.
            let event = unsafe { ring.add(1).cast::<Event>().add(head as usize).read() };
            woken |= self.take(&event, done);
            head = (head + 1) % header.events;
            // Release: the event has been read before its place is given back.
            header.head.store(head, Ordering::Release);
        }
        Some(woken)
    }

    /// `io_getevents`: at least `min` events, or as many as came within `timeout`.
    fn get_events(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        done: &mut Vec<Done>,
    ) -> io::Result<bool> {
        let mut events = [Event::default(); EVENTS];
        let spec = timeout.map(timespec);
        let spec = spec.as_ref().map_or(std::ptr::null(), |s| &raw const *s);
        // SAFETY: the array holds `EVENTS` events; the timespec outlives the call or is null
        // (endless).
        let n = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                i64::from(min).min(EVENTS as i64),
                EVENTS as i64,
                events.as_mut_ptr(),
                spec,
            )
        };
        if n < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        let mut woken = false;
        for event in &events[..n as usize] {
            woken |= self.take(event, done);
        }
        Ok(woken)
    }

    /// Takes completions. Returns system calls made and whether the wake poll was among it.
    fn reap(&mut self, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
        done.append(&mut self.executed);
        match self.reap_ring(done) {
            Some(woken) => Ok((0, woken)),
            None if self.inside == 0 && !self.wake_armed => Ok((0, false)),
            None => {
                let woken = self.get_events(0, Some(Duration::ZERO), done)?;
                Ok((1, woken))
            }
        }
    }

    /// Sleeps between `begin` and `end` of the wake.
    fn sleep(&mut self, wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
        let before = done.len();
        let (mut calls, mut woken) = self.reap(done)?;
        let got = (done.len() - before) as u32;
        if woken || got >= wait.min {
            return Ok((calls, woken));
        }
        let min = wait.min - got;
        let batching = min > 1 && wait.timeout.is_none_or(|t| t > BATCH);
        let timeout = if batching { Some(BATCH) } else { wait.timeout };
        woken = self.get_events(min, timeout, done)?;
        calls += 1;
        if batching && !woken && done.len() == before {
            let rest = wait.timeout.map(|t| t - BATCH);
            woken = self.get_events(1, rest, done)?;
            calls += 1;
        }
        Ok((calls, woken))
    }
}

impl Queue for AioQueue {
    const NAME: &'static str = "libaio";

    fn has_room(&mut self) -> bool {
        self.inside + (self.queued.len() as u32) < self.room
    }

    unsafe fn push(&mut self, request: &Request) {
        if request.op == Op::Discard {
            let member = request.member as usize;
            // SAFETY: a discard has no memory.
            let result =
                unsafe { pread::execute(request, self.fds[member], self.block_devices[member]) };
            self.executed.push(Done {
                token: request.token,
                result,
            });
            return;
        }
        let iocb = self.iocb(request);
        self.queued.push(iocb);
    }

    fn submit(&mut self, done: &mut Vec<Done>) -> io::Result<u32> {
        let calls = self.hand_over()?;
        let (more, _) = self.reap(done)?;
        Ok(calls + more)
    }

    fn wait(&mut self, wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
        self.arm_wake();
        let calls = self.hand_over()?;
        if !self.executed.is_empty() || !self.wake.begin() {
            let woken = self.executed.is_empty();
            return self.reap(done).map(|(more, _)| (calls + more, woken));
        }
        let wait = match self.queued.is_empty() {
            true => wait,
            // Not all is with the kernel, perhaps not even the wake: look again soon.
            false => WaitFor {
                timeout: Some(wait.timeout.map_or(BATCH, |t| t.min(BATCH))),
                ..wait
            },
        };
        let slept = self.sleep(wait, done);
        let woken = self.wake.end();
        slept.map(|(more, polled)| (calls + more, polled || woken))
    }

    unsafe fn register(&mut self, _regions: &[(*mut u8, usize)]) -> io::Result<bool> {
        Ok(false)
    }
}

impl Drop for AioQueue {
    fn drop(&mut self) {
        // SAFETY: the context is ours and not used afterwards. The kernel waits for what is inside
        // it.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
