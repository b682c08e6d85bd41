//! The channel of a file volume over any backend: checks, splits at stripe units, joins, finishes
//! short transfers, retries, counts and times.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{Channel, ChannelOptions, Device, QueueFull};
use crate::error::{ChannelError, IoError, IoErrorKind, VolumeError};
use crate::file::FileDevice;
use crate::file::aio::AioQueue;
use crate::file::member::os;
use crate::file::pread::PreadQueue;
use crate::file::probe;
use crate::file::queue::{Done, Queue, Request, WaitFor};
use crate::file::stripe::Piece;
use crate::file::sys;
use crate::file::uring::{UringModes, UringQueue};
use crate::io::{Completion, Io, IoVec, Op};
use crate::options::BackendKind;
use crate::sleep::EventWake;
use crate::stats::ChannelStats;
use crate::waker::Waker;

/// Retries after EAGAIN or EINTR before the error reaches the caller.
const RETRIES: u8 = 64;
/// "No parent": the request is a whole I/O.
const WHOLE: u32 = u32::MAX;

/// Opens a channel over the backend that the volume has chosen.
pub(super) fn open(
    device: Arc<FileDevice>,
    options: &ChannelOptions,
) -> Result<Box<dyn Channel>, VolumeError> {
    let wake = EventWake::new().map_err(|e| os(&device.members[0].path, "open", e))?;
    let wake = Arc::new(wake);
    let mut backend = device.backend();
    loop {
        let (name, refusal) = match open_over(&device, backend, &wake, options) {
            Ok(channel) => return Ok(channel),
            Err(refusal) => refusal,
        };
        backend = match device.fall_back(backend, &refusal) {
            Some(next) => next,
            None => {
                return Err(VolumeError::BackendRefused {
                    backend: name,
                    reason: probe::explain(&refusal),
                });
            }
        };
    }
}

/// Opens a channel over `backend`; its name and the reason where it is refused.
fn open_over(
    device: &Arc<FileDevice>,
    backend: BackendKind,
    wake: &Arc<EventWake>,
    options: &ChannelOptions,
) -> Result<Box<dyn Channel>, (&'static str, io::Error)> {
    let fds: Vec<i32> = device.all_members().map(|m| m.fd()).collect();
    let blocks = device.all_members().map(|m| m.block_device).collect();
    let (device, wake) = (Arc::clone(device), Arc::clone(wake));
    match backend {
        BackendKind::IoUring { iopoll, sqpoll } => {
            let modes = UringModes { iopoll, sqpoll };
            let queue = UringQueue::new(&fds, options.depth, modes, Arc::clone(&wake));
            let queue = queue.map_err(|e| (UringQueue::NAME, e))?;
            for note in queue.notes() {
                device.note(note);
            }
            Ok(Box::new(FileChannel::new(device, queue, wake, options)))
        }
        BackendKind::Libaio => {
            let queue = AioQueue::new(fds, blocks, options.depth, Arc::clone(&wake));
            let queue = queue.map_err(|e| (AioQueue::NAME, e))?;
            Ok(Box::new(FileChannel::new(device, queue, wake, options)))
        }
        _ => {
            let queue = PreadQueue::new(fds, blocks, Arc::clone(&wake));
            Ok(Box::new(FileChannel::new(device, queue, wake, options)))
        }
    }
}

/// A request on one member: a whole I/O, or a part of one.
struct IoSlot {
    op: Op,
    durable: bool,
    retries: u8,
    member: u32,
    /// Index in `parents`, or [`WHOLE`].
    parent: u32,
    /// Bytes done by earlier, short transfers.
    done: u32,
    /// Bytes in all.
    len: u64,
    /// Logical byte offset, for messages.
    logical: u64,
    /// Byte offset in the member.
    physical: u64,
    buf: *mut u8,
    user_data: u64,
    start: Instant,
    /// Ranges of a vectored write, without the part that is done.
    vec: Vec<libc::iovec>,
}

/// An I/O that was split.
struct Parent {
    op: Op,
    user_data: u64,
    len: u64,
    parts: u32,
    start: Instant,
    error: Option<IoError>,
}

struct FileChannel<Q: Queue> {
    device: Arc<FileDevice>,
    queue: Q,
    wake: Arc<EventWake>,
    depth: u32,
    /// The alignment that I/Os need.
    block: u32,
    latencies: bool,
    /// I/Os accepted and not yet reaped.
    in_flight: u32,
    /// Requests pushed to the queue and not yet done.
    pushed: u32,
    slots: Vec<IoSlot>,
    free: Vec<u32>,
    parents: Vec<Parent>,
    free_parents: Vec<u32>,
    /// Slots for which the queue had no free entry, or that are to be submitted again.
    backlog: VecDeque<u32>,
    /// Slots whose time starts at the next hand-over.
    unstamped: Vec<u32>,
    /// Answers that needed no device.
    ready: Vec<Completion>,
    done: Vec<Done>,
    stats: ChannelStats,
    epoch: Instant,
}

impl<Q: Queue> FileChannel<Q> {
    /// Whether memory was registered; notes a refusal.
    fn registered(&self, result: io::Result<bool>) -> bool {
        result.unwrap_or_else(|e| {
            self.device.note(format!(
                "{}: buffers are not registered ({e}); I/O goes on without",
                Q::NAME
            ));
            false
        })
    }

    fn new(
        device: Arc<FileDevice>,
        queue: Q,
        wake: Arc<EventWake>,
        options: &ChannelOptions,
    ) -> FileChannel<Q> {
        let depth = options.depth as usize;
        FileChannel {
            block: device.logical_block(),
            device,
            queue,
            wake,
            depth: options.depth,
            latencies: options.latencies,
            in_flight: 0,
            pushed: 0,
            slots: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            parents: Vec::new(),
            free_parents: Vec::new(),
            backlog: VecDeque::new(),
            unstamped: Vec::with_capacity(depth),
            ready: Vec::new(),
            done: Vec::with_capacity(depth),
            stats: ChannelStats::default(),
            epoch: Instant::now(),
        }
    }

    fn now(&self) -> Instant {
        if self.latencies {
            Instant::now()
        } else {
            self.epoch
        }
    }

    fn add_slot(&mut self, slot: IoSlot) -> u32 {
        match self.free.pop() {
            Some(token) => {
                self.slots[token as usize] = slot;
                token
            }
            None => {
                // At most depth × pieces of one I/O, far below 2^32.
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    fn add_parent(&mut self, io: &Io, len: u64, parts: u32) -> u32 {
        let parent = Parent {
            op: io.op,
            user_data: io.user_data,
            len,
            parts,
            start: self.epoch,
            error: None,
        };
        match self.free_parents.pop() {
            Some(index) => {
                self.parents[index as usize] = parent;
                index
            }
            None => {
                self.parents.push(parent);
                self.parents.len() as u32 - 1
            }
        }
    }

    /// Takes a slot and hands it to the queue, or to the backlog.
    fn start(&mut self, slot: IoSlot) {
        let token = self.add_slot(slot);
        if self.backlog.is_empty() && self.queue.has_room() {
            self.push(token);
        } else {
            self.backlog.push_back(token);
        }
    }

    fn push(&mut self, token: u32) {
        let slot = &mut self.slots[token as usize];
        let skip = u64::from(slot.done);
        let (buf, len) = match slot.op {
            Op::WriteV => (slot.vec.as_mut_ptr().cast(), slot.vec.len() as u64),
            // Without provenance checks at run time, and within the caller's buffer: `done` <
            // `len`.
            _ => (slot.buf.wrapping_add(slot.done as usize), slot.len - skip),
        };
        let request = Request {
            op: slot.op,
            member: slot.member,
            offset: slot.physical + skip,
            buf,
            len,
            durable: slot.durable,
            token,
        };
        // SAFETY: the submitter keeps the memory valid until the completion; the iovecs are the
        // slot's own, which is neither changed nor freed before the request is done (a moved `Vec`
        // keeps its heap memory in place).
        unsafe { self.queue.push(&request) };
        self.pushed += 1;
        self.stats.device_requests += 1;
        self.unstamped.push(token);
    }

    /// Moves the backlog to the queue as far as it has free entries, and starts the clocks.
    fn hand_over(&mut self) {
        while !self.backlog.is_empty() && self.queue.has_room() {
            if let Some(token) = self.backlog.pop_front() {
                self.push(token);
            }
        }
        if self.unstamped.is_empty() {
            return;
        }
        let now = self.now();
        for token in self.unstamped.drain(..) {
            let slot = &mut self.slots[token as usize];
            if slot.start == self.epoch {
                slot.start = now;
            }
            if slot.parent != WHOLE {
                let parent = &mut self.parents[slot.parent as usize];
                if parent.start == self.epoch {
                    parent.start = now;
                }
            }
        }
    }

    /// Checks an I/O's arguments; returns its length in bytes.
    fn check(&self, io: &Io, ranges: &[IoVec]) -> Result<u64, IoError> {
        let block = self.block;
        let aligned = |bits: u64| bits.is_multiple_of(u64::from(block));
        let len = u64::from(io.len);
        let (len, ok) = match io.op {
            Op::Flush => return Ok(0),
            Op::Discard => (len, aligned(io.offset | len) && len > 0),
            Op::Read | Op::Write => (
                len,
                aligned(io.offset | len | io.buf.addr() as u64) && len > 0 && len <= Io::MAX_LEN,
            ),
            Op::WriteV => {
                let (total, ok) = IoVec::total(ranges, block);
                (total, ok && aligned(io.offset))
            }
        };
        self.device.check(io.op, io.offset, len, ok).map(|()| len)
    }

    fn slot(&self, io: &Io, piece: Piece, logical: u64, parent: u32) -> IoSlot {
        IoSlot {
            op: io.op,
            durable: io.durable && io.op != Op::Read,
            retries: 0,
            member: piece.member,
            parent,
            done: 0,
            len: piece.len,
            logical,
            physical: piece.at,
            buf: io.buf,
            user_data: io.user_data,
            start: self.epoch,
            vec: Vec::new(),
        }
    }

    /// Starts a checked I/O: as one request, or as several with a parent that joins them.
    fn split(&mut self, io: &Io, ranges: &[IoVec], len: u64) {
        let map = self.device.map;
        let whole = match io.op {
            Op::Flush => map.members == 1,
            _ => len <= map.run(io.offset),
        };
        if whole {
            let (member, at) = match io.op {
                Op::Flush => (0, 0),
                _ => map.locate(io.offset),
            };
            let mut slot = self.slot(io, Piece { member, at, len }, io.offset, WHOLE);
            slot.vec = cut(ranges, 0, len);
            return self.start(slot);
        }
        let pieces: Vec<Piece> = match io.op {
            Op::Flush => (0..map.members)
                .map(|member| Piece {
                    member,
                    at: 0,
                    len: 0,
                })
                .collect(),
            Op::Discard => map.shares(io.offset, len).collect(),
            _ => map.pieces(io.offset, len).collect(),
        };
        let parent = self.add_parent(io, len, pieces.len() as u32);
        let mut before = 0;
        for piece in pieces {
            let mut slot = self.slot(io, piece, io.offset + before, parent);
            if matches!(io.op, Op::Read | Op::Write) {
                slot.buf = io.buf.wrapping_add(before as usize);
            }
            slot.vec = cut(ranges, before, piece.len);
            self.start(slot);
            before += piece.len;
        }
    }

    /// Takes over what the queue has done; completes I/Os, or submits the rest of them again.
    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.done.is_empty() {
            return;
        }
        let now = self.now();
        let mut done = std::mem::take(&mut self.done);
        for Done { token, result } in done.drain(..) {
            self.pushed -= 1;
            if let Some(result) = self.judge(token, result) {
                let slot = &self.slots[token as usize];
                let result = if slot.op == Op::Flush || slot.durable {
                    self.device.member(slot.member).flushed(result)
                } else {
                    result
                };
                self.finish(token, result, now, out);
            } else {
                self.stats.resubmitted += 1;
                self.backlog.push_back(token);
            }
        }
        self.done = done;
    }

    /// The result of a request, or `None` when (the rest of) it must be submitted again.
    fn judge(&mut self, token: u32, result: i32) -> Option<Result<(), IoErrorKind>> {
        let block = self.block;
        let slot = &mut self.slots[token as usize];
        if result < 0 {
            let again = matches!(-result, libc::EAGAIN | libc::EINTR);
            if again && slot.retries < RETRIES {
                slot.retries += 1;
                return None;
            }
            let member = self.device.member(slot.member);
            if slot.op == Op::Discard && result == -libc::EOPNOTSUPP && member.block_device {
                // The asynchronous way zeroes the range as well, which fewer drives can do than
                // discard.
                let (at, len) = (slot.physical, slot.len);
                let discarded = sys::discard_blocks(member.fd(), at, len);
                let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
                return Some(discarded.map_err(|e| IoErrorKind::from_errno(errno(e))));
            }
            return Some(Err(IoErrorKind::from_errno(-result)));
        }
        if matches!(slot.op, Op::Flush | Op::Discard) {
            return Some(Ok(()));
        }
        let got = result as u32;
        if u64::from(slot.done) + u64::from(got) >= slot.len {
            return Some(Ok(()));
        }
        // Only whole blocks count: the rest must start aligned. No progress means that there is no
        // more to get.
        let progress = got / block * block;
        if progress == 0 {
            let done = slot.done + got;
            return Some(Err(IoErrorKind::Short { done }));
        }
        slot.done += progress;
        advance(&mut slot.vec, progress as usize);
        None
    }

    fn finish(
        &mut self,
        token: u32,
        result: Result<(), IoErrorKind>,
        now: Instant,
        out: &mut Vec<Completion>,
    ) {
        let slot = &mut self.slots[token as usize];
        slot.vec = Vec::new();
        let (op, parent, len, user_data) = (slot.op, slot.parent, slot.len, slot.user_data);
        let (start, logical, member) = (slot.start, slot.logical, slot.member);
        self.free.push(token);
        let result = result.map_err(|kind| {
            IoError::new(kind, op, logical, len).on(&self.device.member(member).path)
        });
        if parent == WHOLE {
            return self.complete(op, user_data, len, start, now, result, out);
        }
        let joint = &mut self.parents[parent as usize];
        joint.parts -= 1;
        if let Err(error) = result {
            joint.error.get_or_insert(error);
        }
        if joint.parts > 0 {
            // The memory of the whole I/O is in use until its last part is done, also after an
            // error.
            return;
        }
        let result = match joint.error.take() {
            None => Ok(()),
            Some(error) => Err(error),
        };
        let (user_data, len, start) = (joint.user_data, joint.len, joint.start);
        let op = joint.op;
        self.free_parents.push(parent);
        self.complete(op, user_data, len, start, now, result, out);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one completion")]
    fn complete(
        &mut self,
        op: Op,
        user_data: u64,
        len: u64,
        start: Instant,
        now: Instant,
        result: Result<(), IoError>,
        out: &mut Vec<Completion>,
    ) {
        let latency = now.saturating_duration_since(start);
        let stats = self.stats.of_mut(op);
        if self.latencies {
            stats.record(result.is_ok(), len, latency);
        } else {
            stats.count(result.is_ok(), len);
        }
        self.in_flight -= 1;
        out.push(Completion { user_data, result });
    }

    fn fail(action: &'static str, source: io::Error) -> ChannelError {
        ChannelError {
            backend: Q::NAME,
            action,
            source,
        }
    }

    /// Submits and reaps once without blocking.
    fn pump(&mut self, out: &mut Vec<Completion>) -> Result<(), ChannelError> {
        self.hand_over();
        let calls = self.queue.submit(&mut self.done);
        let calls = calls.map_err(|e| Self::fail("submit", e));
        self.stats.system_calls += u64::from(*calls.as_ref().unwrap_or(&1));
        self.reap(out);
        calls.map(|_| ())
    }

    fn take_ready(&mut self, out: &mut Vec<Completion>) {
        if !self.ready.is_empty() {
            self.in_flight -= self.ready.len() as u32;
            out.append(&mut self.ready);
        }
    }
}

impl<Q: Queue> Channel for FileChannel<Q> {
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull> {
        if self.in_flight >= self.depth {
            return Err(QueueFull);
        }
        self.in_flight += 1;
        self.stats.in_flight_max = self.stats.in_flight_max.max(self.in_flight);
        // SAFETY: by the caller's contract.
        let ranges = unsafe { io.copy_ranges() };
        match self.check(&io, &ranges) {
            Ok(len) => self.split(&io, &ranges, len),
            Err(error) => {
                self.stats.of_mut(io.op).count(false, 0);
                self.ready.push(Completion {
                    user_data: io.user_data,
                    result: Err(error),
                });
            }
        }
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError> {
        let before = out.len();
        self.take_ready(out);
        let result = if self.pushed > 0 || !self.backlog.is_empty() {
            self.pump(out)
        } else {
            Ok(())
        };
        result.map(|()| out.len() - before)
    }

    fn wait(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError> {
        let before = out.len();
        self.take_ready(out);
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let wanted = min.clamp(1, self.in_flight.max(1)) as usize;
        loop {
            let got = out.len() - before;
            if got >= wanted {
                // Whatever is queued must reach the device all the same.
                if !self.unstamped.is_empty() || !self.backlog.is_empty() {
                    self.pump(out)?;
                }
                break;
            }
            self.hand_over();
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left.is_some_and(|l| l.is_zero()) {
                self.pump(out)?;
                break;
            }
            let wait = WaitFor {
                min: ((wanted - got) as u32).min(self.pushed.max(1)),
                timeout: left,
            };
            self.stats.sleeps += 1;
            let result = self.queue.wait(wait, &mut self.done);
            self.reap(out);
            let (calls, woken) = result.map_err(|e| Self::fail("wait", e))?;
            self.stats.system_calls += u64::from(calls);
            self.stats.wakes += u64::from(woken);
            let batch_over = out.len() > before && self.backlog.is_empty();
            if woken || batch_over {
                break;
            }
        }
        Ok(out.len() - before)
    }

    unsafe fn register_buffers(&mut self, regions: &[(*mut u8, usize)]) -> bool {
        // SAFETY: by the caller's contract.
        let result = unsafe { self.queue.register(regions) };
        self.registered(result)
    }

    unsafe fn register_more(&mut self, region: (*mut u8, usize)) -> bool {
        // SAFETY: by the caller's contract.
        let result = unsafe { self.queue.register_more(region) };
        self.registered(result)
    }

    fn waker(&self) -> Waker {
        Waker::new(self.wake.clone())
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn stats(&self) -> &ChannelStats {
        &self.stats
    }
}

impl<Q: Queue> Drop for FileChannel<Q> {
    fn drop(&mut self) {
        // The kernel's I/Os must end before the buffers may be freed.
        self.backlog.clear();
        let wait = WaitFor {
            min: 1,
            timeout: None,
        };
        while self.pushed > 0 {
            if let Err(e) = self.queue.wait(wait, &mut self.done) {
                // Returning would let the kernel write into memory that is about to be freed.
                eprintln!("{} channel cannot be drained: {e}", Q::NAME);
                std::process::abort();
            }
            self.pushed -= self.done.len() as u32;
            self.done.clear();
        }
    }
}

/// The part of some ranges from byte `skip` on, `len` bytes long.
fn cut(ranges: &[IoVec], skip: u64, len: u64) -> Vec<libc::iovec> {
    let mut vec = Vec::new();
    let (mut skip, mut len) = (skip as usize, len as usize);
    for range in ranges {
        if len == 0 {
            break;
        }
        if skip >= range.len {
            skip -= range.len;
            continue;
        }
        let take = (range.len - skip).min(len);
        vec.push(libc::iovec {
            iov_base: range.buf.wrapping_add(skip).cast_mut().cast(),
            iov_len: take,
        });
        len -= take;
        skip = 0;
    }
    vec
}

/// Cuts `done` bytes off the front of some ranges.
fn advance(vec: &mut Vec<libc::iovec>, mut done: usize) {
    while done > 0 && !vec.is_empty() {
        if vec[0].iov_len <= done {
            done -= vec[0].iov_len;
            vec.remove(0);
        } else {
            vec[0].iov_base = vec[0].iov_base.cast::<u8>().wrapping_add(done).cast();
            vec[0].iov_len -= done;
            done = 0;
        }
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
