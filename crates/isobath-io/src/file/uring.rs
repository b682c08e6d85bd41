//! The io_uring backend.
//!
//! Rings are set up for one issuer with deferred task work (Linux 6.1): completions are processed
//! by the worker itself, in its own system calls, in batches, and it is never interrupted for them.
//! Older kernels get the nearest mode.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::file::pread;
use crate::file::queue::{Done, Queue, Request, WaitFor};
use crate::file::sys;
use crate::io::Op;
use crate::sleep::EventWake;

/// Marks the completion of the poll on the eventfd. Tokens have 32 bits.
const WAKE: u64 = u64::MAX;
/// Marks the completion of the timeout that follows it.
const WAKE_END: u64 = u64::MAX - 1;
/// Idle time after which a submission-polling kernel thread sleeps, in ms: an unused store costs no
/// CPU.
const SQPOLL_IDLE_MS: u32 = 50;
/// The kernel's limits on registered regions: bytes of one, and their number.
const REGION_BYTES: usize = 1 << 30;
const REGIONS: usize = 1 << 14;
/// Places for regions that are registered one by one.
const PLACES: u16 = 1 << 13;
/// Entries beyond the depth: the wake poll, and parts of split I/Os.
const SPARE_ENTRIES: u32 = 8;
const MAX_ENTRIES: u32 = 32768;
/// Consecutive refusals of `io_uring_enter` for lack of resources that are endured.
const STARVED: u32 = 100_000;

/// Modes that the user chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UringModes {
    pub(super) iopoll: bool,
    pub(super) sqpoll: bool,
}

/// Registered memory: pieces of `unit` bytes each, but for the last, with consecutive indices.
struct Region {
    start: usize,
    end: usize,
    unit: usize,
    index: u16,
}

impl Region {
    /// The index of the piece that holds all of `start..end`.
    fn piece(&self, start: usize, end: usize) -> Option<u16> {
        let first = (start - self.start) / self.unit;
        let last = (end.max(start + 1) - 1 - self.start) / self.unit;
        // Memory far behind the region would have an index beyond all numbers.
        (end <= self.end && first == last).then(|| self.index + first as u16)
    }

    /// The index of a piece that would follow.
    fn next_index(&self) -> u16 {
        self.index + (self.end - self.start).div_ceil(self.unit) as u16
    }

    /// Whether a piece of `len` bytes at `start` can follow the others.
    fn is_followed_by(&self, start: usize, len: usize) -> bool {
        start == self.end && (start - self.start).is_multiple_of(self.unit) && len <= self.unit
    }
}

pub(super) struct UringQueue {
    ring: IoUring,
    fds: Vec<RawFd>,
    fixed_files: bool,
    /// Sorted by address.
    regions: Vec<Region>,
    /// Places taken of the table of regions that are registered one by one, once there is that.
    places: Option<u16>,
    iopoll: bool,
    sqpoll: bool,
    /// Requests that the kernel holds or that wait in the submission queue, the wake poll excluded.
    inside: u32,
    /// The most of them: so many completions always fit.
    inside_max: u32,
    wake: Arc<EventWake>,
    /// Whether a poll on the eventfd is with the kernel.
    wake_armed: bool,
    /// Zero; the kernel reads it while a wake is being armed.
    no_time: Box<Timespec>,
    /// Consecutive refusals for lack of resources, without any completion between them.
    starved: u32,
    /// Requests that a polled ring cannot take and that were therefore executed by blocking calls.
    executed: Vec<Done>,
    notes: Vec<String>,
}

/// A note for the report, and the flags that it goes with.
type Setup = (&'static str, fn(&mut io_uring::Builder));

/// Ways to set up a ring, from the best one down.
const SETUPS: [Setup; 4] = [
    ("", |b| {
        b.setup_single_issuer().setup_defer_taskrun();
        b.setup_taskrun_flag().setup_submit_all().setup_no_sqarray();
    }),
    ("", |b| {
        b.setup_single_issuer().setup_defer_taskrun();
        b.setup_taskrun_flag().setup_submit_all();
    }),
    (
        "io_uring: the kernel (older than Linux 6.1) does not defer task work; expect more CPU per I/O",
        |b| {
            b.setup_coop_taskrun()
                .setup_taskrun_flag()
                .setup_submit_all();
        },
    ),
    (
        "io_uring: the kernel (older than Linux 5.19) has no cooperative task work; expect more CPU per I/O",
        |_| {},
    ),
];

/// The same for submission polling, which has no task work to defer.
const SQPOLL_SETUPS: [Setup; 2] = [
    ("", |b| {
        b.setup_single_issuer().setup_submit_all();
    }),
    ("", |_| {}),
];

impl UringQueue {
    pub(super) fn new(
        fds: &[RawFd],
        depth: u32,
        modes: UringModes,
        wake: Arc<EventWake>,
    ) -> io::Result<UringQueue> {
        let entries = (depth + SPARE_ENTRIES).next_power_of_two();
        let (ring, note) = build(entries.min(MAX_ENTRIES), modes)?;
        let mut notes: Vec<String> = Vec::new();
        if !note.is_empty() {
            notes.push(note.to_owned());
        }
        let fixed_files = match ring.submitter().register_files(fds) {
            Ok(()) => true,
            Err(e) => {
                notes.push(format!("io_uring: files are not registered ({e})"));
                false
            }
        };
        let inside_max = ring.params().cq_entries() - SPARE_ENTRIES;
        Ok(UringQueue {
            ring,
            fds: fds.to_vec(),
            fixed_files,
            regions: Vec::new(),
            places: None,
            iopoll: modes.iopoll,
            sqpoll: modes.sqpoll,
            inside: 0,
            inside_max,
            wake,
            wake_armed: false,
            no_time: Box::new(Timespec::new()),
            starved: 0,
            executed: Vec::new(),
            notes,
        })
    }

    /// Features refused at set-up.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// The registered piece that holds all of a request's memory.
    fn region(&self, buf: *mut u8, len: u64) -> Option<u16> {
        let start = buf.addr();
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        let after = self.regions.partition_point(|r| r.start <= start);
        let region = self.regions.get(after.checked_sub(1)?)?;
        region.piece(start, end)
    }

    /// Makes the table of regions that are registered one by one; the places taken.
    fn table(&mut self) -> io::Result<u16> {
        if let Some(places) = self.places {
            return Ok(places);
        }
        if !self.regions.is_empty() {
            self.ring.submitter().unregister_buffers()?;
            self.regions.clear();
        }
        self.ring
            .submitter()
            .register_buffers_sparse(u32::from(PLACES))?;
        self.places = Some(0);
        Ok(0)
    }

    fn entry(&self, r: &Request) -> squeue::Entry {
        let member = r.member;
        // Splitting bounds reads and writes to 1 GiB.
        let len = r.len as u32;
        let rw_flags = if r.durable { libc::RWF_DSYNC } else { 0 };
        macro_rules! build {
            ($fd:ident => $op:expr) => {
                if self.fixed_files {
                    let $fd = Fixed(member);
                    $op.build()
                } else {
                    let $fd = Fd(self.fds[member as usize]);
                    $op.build()
                }
            };
        }
        let region = match r.op {
            Op::Read | Op::Write if !self.regions.is_empty() => self.region(r.buf, r.len),
            _ => None,
        };
        match (r.op, region) {
            (Op::Read, None) => build!(fd => opcode::Read::new(fd, r.buf, len).offset(r.offset)),
            (Op::Read, Some(index)) => {
                build!(fd => opcode::ReadFixed::new(fd, r.buf, len, index).offset(r.offset))
            }
            (Op::Write, None) => {
                build!(fd => opcode::Write::new(fd, r.buf, len).offset(r.offset).rw_flags(rw_flags))
            }
            (Op::Write, Some(index)) => build!(
                fd => opcode::WriteFixed::new(fd, r.buf, len, index).offset(r.offset).rw_flags(rw_flags)
            ),
            (Op::WriteV, _) => build!(
                fd => opcode::Writev::new(fd, r.buf.cast(), len).offset(r.offset).rw_flags(rw_flags)
            ),
            (Op::Flush, _) => build!(fd => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC)),
            (Op::Discard, _) => {
                build!(fd => opcode::Fallocate::new(fd, r.len).offset(r.offset).mode(sys::PUNCH))
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<Done>) -> bool {
        let mut woken = false;
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE => woken = true,
                WAKE_END => {}
                token => {
                    self.starved = 0;
                    self.inside -= 1;
                    done.push(Done {
                        // Tokens were widened from u32.
                        token: token as u32,
                        result: entry.result(),
                    });
                }
            }
        }
        done.append(&mut self.executed);
        if woken {
            self.wake_armed = false;
            self.wake.drain();
        }
        woken
    }

    /// Puts a poll on the eventfd into the submission queue unless one is with the kernel.
    /// `has_room` leaves the places.
    ///
    /// The poll's completion alone would not end a wait for several completions. So an expired
    /// timeout is linked to it: the completion of a timeout ends every wait.
    fn arm_wake(&mut self) {
        if self.wake_armed || self.iopoll {
            return;
        }
        let poll = opcode::PollAdd::new(Fd(self.wake.fd()), libc::POLLIN as u32)
            .build()
            .user_data(WAKE)
            .flags(squeue::Flags::IO_LINK);
        let expired = opcode::Timeout::new(&raw const *self.no_time)
            .build()
            .user_data(WAKE_END);
        // SAFETY: the eventfd lives as long as `self.wake`, and so does the boxed time; it is never
        // changed.
        let pushed = unsafe { self.ring.submission().push_multiple(&[poll, expired]) };
        self.wake_armed = pushed.is_ok();
    }

    /// One `io_uring_enter` that submits all and waits for `min` completions at most for `timeout`.
    fn enter(&mut self, min: u32, timeout: Option<Duration>) -> io::Result<()> {
        let result = match timeout {
            None => self.ring.submit_and_wait(min as usize),
            Some(timeout) => {
                let spec = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&spec);
                self.ring.submitter().submit_with_args(min as usize, &args)
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                // Out of resources for a moment, with the entries still queued. Completions give
                // some back.
                Some(libc::EAGAIN | libc::EBUSY) if self.starved < STARVED => {
                    self.starved += 1;
                    std::thread::yield_now();
                    Ok(())
                }
                _ => Err(e),
            },
        }
    }

    /// A polled ring has no wake: it spins in the kernel while something is in flight, and sleeps
    /// outside otherwise.
    fn wait_polled(&mut self, wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
        if self.inside == 0 && self.executed.is_empty() {
            return self.wake.sleep(wait.timeout).map(|woken| (1, woken));
        }
        let min = if self.executed.is_empty() { 1 } else { 0 };
        self.enter(min, wait.timeout)?;
        self.reap(done);
        let woken = self.wake.is_signalled() && !self.wake.begin();
        self.wake.end();
        Ok((1, woken))
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // The kernel takes rings down in the background; the files shall be closed when the volume
        // is. A failure only delays that.
        if self.fixed_files {
            // The ring goes with them otherwise.
            let _ = self.ring.submitter().unregister_files();
        }
    }
}

fn build(entries: u32, modes: UringModes) -> io::Result<(IoUring, &'static str)> {
    let setups: &[Setup] = match modes.sqpoll {
        true => &SQPOLL_SETUPS,
        false => &SETUPS,
    };
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for (note, setup) in setups {
        let mut builder = IoUring::builder();
        builder.setup_clamp();
        builder.dontfork();
        setup(&mut builder);
        if modes.iopoll {
            builder.setup_iopoll();
        }
        if modes.sqpoll {
            builder.setup_sqpoll(SQPOLL_IDLE_MS);
        }
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, note)),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => refusal = e,
            Err(e) => return Err(e),
        }
    }
    Err(refusal)
}

impl Queue for UringQueue {
    const NAME: &'static str = "io_uring";

    fn has_room(&mut self) -> bool {
        if self.inside >= self.inside_max {
            return false;
        }
        let queue = self.ring.submission();
        // Two places stay free for the wake.
        queue.len() + 2 < queue.capacity()
    }

    unsafe fn push(&mut self, request: &Request) {
        if self.iopoll && matches!(request.op, Op::Flush | Op::Discard) {
            let fd = self.fds[request.member as usize];
            // SAFETY: neither operation has memory.
            let result = unsafe { pread::execute(request, fd, false) };
            self.executed.push(Done {
                token: request.token,
                result,
            });
            return;
        }
        let entry = self.entry(request).user_data(u64::from(request.token));
        // SAFETY: by contract the memory stays valid until the request is done; descriptors live as
        // long as the volume, which the channel holds.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // `has_room` was asked before; report it as what it would be.
            self.executed.push(Done {
                token: request.token,
                result: -libc::EAGAIN,
            });
            return;
        }
        self.inside += 1;
    }

    fn submit(&mut self, done: &mut Vec<Done>) -> io::Result<u32> {
        let queue = self.ring.submission();
        // Deferred task work is announced by a flag; without either there is nothing to enter the
        // kernel for.
        let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        let poll_drive = self.iopoll && self.inside > 0;
        let mut calls = 0;
        if !idle || poll_drive {
            // With submission polling this is a system call only when the kernel's thread sleeps.
            let asleep = !self.sqpoll || self.ring.submission().need_wakeup();
            calls = u32::from(asleep);
            self.enter(0, None)?;
        }
        self.reap(done);
        Ok(calls)
    }

    fn wait(&mut self, wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
        if self.iopoll {
            return self.wait_polled(wait, done);
        }
        self.arm_wake();
        if !self.executed.is_empty() || !self.wake.begin() {
            let woken = self.executed.is_empty();
            return self.submit(done).map(|calls| (calls, woken));
        }
        let result = self.enter(wait.min, wait.timeout);
        let mut woken = self.reap(done);
        woken |= self.wake.end();
        result.map(|()| (1, woken))
    }

    unsafe fn register(&mut self, regions: &[(*mut u8, usize)]) -> io::Result<bool> {
        if !self.regions.is_empty() || self.places.is_some() {
            self.ring.submitter().unregister_buffers()?;
            self.regions.clear();
            self.places = None;
        }
        let mut vec = Vec::new();
        for (start, len) in regions {
            for skip in (0..*len).step_by(REGION_BYTES) {
                vec.push(libc::iovec {
                    iov_base: start.wrapping_add(skip).cast(),
                    iov_len: (*len - skip).min(REGION_BYTES),
                });
            }
        }
        vec.sort_by_key(|v| v.iov_base.addr());
        if vec.is_empty() {
            return Ok(true);
        }
        if vec.len() > REGIONS {
            return Err(io::Error::other(
                "more regions than the kernel registers (16384)",
            ));
        }
        // SAFETY: by contract the regions stay mapped while this ring lives.
        unsafe { self.ring.submitter().register_buffers(&vec)? };
        let numbered = vec.iter().zip(0u16..);
        self.regions = numbered
            .map(|(v, index)| Region {
                start: v.iov_base.addr(),
                end: v.iov_base.addr() + v.iov_len,
                unit: v.iov_len,
                index,
            })
            .collect();
        Ok(true)
    }

    unsafe fn register_more(&mut self, region: (*mut u8, usize)) -> io::Result<bool> {
        let (base, len) = region;
        let index = self.table()?;
        if len == 0 || len > REGION_BYTES || index == PLACES {
            return Ok(false);
        }
        let vec = libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        };
        let submitter = self.ring.submitter();
        // SAFETY: by contract the region stays mapped while this ring lives.
        unsafe { submitter.register_buffers_update(u32::from(index), &[vec], None)? };
        self.places = Some(index + 1);
        let start = base.addr();
        let at = self.regions.partition_point(|r| r.start <= start);
        let before = at.checked_sub(1).and_then(|at| self.regions.get_mut(at));
        match before {
            Some(r) if r.is_followed_by(start, len) && r.next_index() == index => {
                r.end = start + len
            }
            _ => {
                let region = Region {
                    start,
                    end: start + len,
                    unit: len,
                    index,
                };
                self.regions.insert(at, region);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waker::Wake;
    use std::time::Instant;

    #[test]
    fn memory_far_from_a_region_is_in_none_of_its_pieces() {
        let region = Region {
            start: 1 << 20,
            end: 2 << 20,
            unit: 1 << 16,
            index: 7,
        };
        assert_eq!(region.piece((1 << 20) + 4096, (1 << 20) + 8192), Some(7));
        let far = (1 << 20) + (usize::from(u16::MAX) << 16);
        assert_eq!(region.piece(far, far + 4096), None);
    }

    #[test]
    fn a_wake_ends_a_wait_for_many_completions() {
        let wake = Arc::new(EventWake::new().unwrap());
        for sqpoll in [false, true] {
            let modes = UringModes {
                iopoll: false,
                sqpoll,
            };
            let Ok(mut queue) = UringQueue::new(&[0], 32, modes, Arc::clone(&wake)) else {
                eprintln!("skipped: io_uring is not allowed here");
                return;
            };
            for i in 0..50 {
                let other = Arc::clone(&wake);
                let thread = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(i * 20));
                    other.wake();
                });
                let wait = WaitFor {
                    min: 16,
                    timeout: Some(Duration::from_secs(10)),
                };
                let start = Instant::now();
                let mut woken = false;
                while !woken {
                    woken = queue.wait(wait, &mut Vec::new()).unwrap().1;
                    assert!(start.elapsed() < Duration::from_secs(5), "{modes:?}");
                }
                thread.join().unwrap();
            }
        }
    }
}
