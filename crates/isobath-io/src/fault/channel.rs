//! A worker's channel to a faulty device.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Channel, ChannelOptions, QueueFull};
use crate::error::{ChannelError, IoError, IoErrorKind, VolumeError};
use crate::fault::FaultDevice;
use crate::fault::medium::{PageWrite, page_writes};
use crate::fault::state::{FaultState, Finished, Task};
use crate::io::{Completion, Io, IoVec, Op};
use crate::sleep::EventWake;
use crate::stats::ChannelStats;
use crate::waker::Waker;

/// An accepted I/O.
struct FaultySlot {
    io: Io,
    ranges: Vec<IoVec>,
    len: u64,
    start_us: u64,
}

struct FaultChannel {
    device: Arc<FaultDevice>,
    inbox: usize,
    depth: u32,
    in_flight: u32,
    slots: Vec<FaultySlot>,
    free: Vec<u32>,
    queued: VecDeque<u32>,
    ready: Vec<Completion>,
    wake: Arc<EventWake>,
    stats: ChannelStats,
}

pub(super) fn open(
    device: Arc<FaultDevice>,
    options: &ChannelOptions,
) -> Result<Box<dyn Channel>, VolumeError> {
    let wake = EventWake::new()
        .map_err(|e| VolumeError::Device(format!("cannot create an eventfd: {e}")))?;
    let inbox = device.lock().open_inbox();
    Ok(Box::new(FaultChannel {
        device,
        inbox,
        depth: options.depth,
        in_flight: 0,
        slots: Vec::new(),
        free: Vec::new(),
        queued: VecDeque::new(),
        ready: Vec::new(),
        wake: Arc::new(wake),
        stats: ChannelStats::default(),
    }))
}

impl FaultChannel {
    fn check(&self, state: &FaultState, io: &Io, ranges: &[IoVec]) -> Result<u64, IoError> {
        let block = self.device.plan.logical_block;
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
        if !ok {
            return Err(IoError::new(IoErrorKind::Misaligned, io.op, io.offset, len));
        }
        state.check(io.op, io.offset, len).map(|()| len)
    }

    /// Hands the queued I/Os to the device.
    fn hand_over(&mut self, state: &mut FaultState) {
        while let Some(token) = self.queued.pop_front() {
            let slot = &mut self.slots[token as usize];
            slot.start_us = state.now_us();
            let io = slot.io;
            let task = match io.op {
                Op::Read => Task::Read,
                Op::Flush => Task::Flush { log_too: false },
                Op::Discard => Task::Discard,
                Op::Write | Op::WriteV => Task::Write {
                    // SAFETY: the submitter keeps the memory valid until the completion.
                    parts: unsafe { take_data(&io, &slot.ranges) },
                    durable: io.durable,
                },
            };
            let what = (io.op, io.offset, slot.len);
            state.start((self.inbox, token), what, task, false);
            self.stats.device_requests += 1;
        }
    }

    /// Takes over finished I/Os.
    fn reap(&mut self, state: &mut FaultState, out: &mut Vec<Completion>) {
        while let Some(finished) = state.pop(self.inbox) {
            self.free.push(finished.slot);
            let slot = &self.slots[finished.slot as usize];
            if slot.io.op == Op::Read {
                // SAFETY: the submitter keeps the memory valid until it sees the completion pushed
                // below.
                unsafe { give_data(&finished, slot.io.buf) };
            }
            let error = |kind| IoError::new(kind, slot.io.op, slot.io.offset, slot.len);
            let result = finished.result.map_err(error);
            let us = state.now_us() - slot.start_us;
            let stats = self.stats.of_mut(slot.io.op);
            stats.record(result.is_ok(), slot.len, Duration::from_micros(us));
            self.in_flight -= 1;
            out.push(Completion {
                user_data: slot.io.user_data,
                result,
            });
        }
    }

    fn take_ready(&mut self, out: &mut Vec<Completion>) {
        self.in_flight -= self.ready.len() as u32;
        out.append(&mut self.ready);
    }
}

/// Copies a write's data.
///
/// # Safety
/// The contract of [`Channel::submit`], before the completion.
unsafe fn take_data(io: &Io, ranges: &[IoVec]) -> Vec<PageWrite> {
    let mut parts = Vec::new();
    if io.op == Op::Write {
        // SAFETY: by contract.
        let bytes = unsafe { std::slice::from_raw_parts(io.buf, io.len as usize) };
        page_writes(io.offset, bytes, &mut parts);
        return parts;
    }
    let mut all = Vec::new();
    for range in ranges {
        // SAFETY: by contract.
        all.extend_from_slice(unsafe { std::slice::from_raw_parts(range.buf, range.len) });
    }
    page_writes(io.offset, &all, &mut parts);
    parts
}

/// Copies what a read saw to the caller.
///
/// # Safety
/// `buf` must be valid for the read's length.
unsafe fn give_data(finished: &Finished, buf: *mut u8) {
    finished.copy_to(&mut |at, part| {
        // SAFETY: pieces lie within the read's length; the device's pages are private to it.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), buf.add(at), part.len()) };
    });
}

impl Channel for FaultChannel {
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull> {
        if self.in_flight >= self.depth {
            return Err(QueueFull);
        }
        self.in_flight += 1;
        self.stats.in_flight_max = self.stats.in_flight_max.max(self.in_flight);
        // SAFETY: by the caller's contract.
        let ranges = unsafe { io.copy_ranges() };
        let checked = self.check(&self.device.lock(), &io, &ranges);
        let len = match checked {
            Ok(len) => len,
            Err(error) => {
                self.stats.of_mut(io.op).count(false, 0);
                self.ready.push(Completion {
                    user_data: io.user_data,
                    result: Err(error),
                });
                return Ok(());
            }
        };
        let slot = FaultySlot {
            io,
            ranges,
            len,
            start_us: 0,
        };
        let token = match self.free.pop() {
            Some(token) => {
                self.slots[token as usize] = slot;
                token
            }
            None => {
                self.slots.push(slot);
                // At most `depth`.
                self.slots.len() as u32 - 1
            }
        };
        self.queued.push_back(token);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError> {
        let before = out.len();
        self.take_ready(out);
        let device = Arc::clone(&self.device);
        let mut state = device.lock();
        self.hand_over(&mut state);
        state.advance(1);
        self.reap(&mut state, out);
        Ok(out.len() - before)
    }

    fn wait(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError> {
        let before = out.len();
        let wanted = min.clamp(1, self.in_flight.max(1)) as usize;
        self.take_ready(out);
        let device = Arc::clone(&self.device);
        let mut state = device.lock();
        self.hand_over(&mut state);
        self.stats.sleeps += 1;
        let limit = timeout.map(|t| state.now_us().saturating_add(t.as_micros() as u64));
        state.advance(1);
        self.reap(&mut state, out);
        if self.in_flight == 0 && out.len() == before {
            if self.device.plan.sleeps {
                drop(state);
                let woken = self.wake.sleep(timeout).unwrap_or(false);
                self.stats.wakes += u64::from(woken);
                return Ok(0);
            }
            // No other thread would let the time pass that the caller is waiting for.
            state.advance_to(limit.unwrap_or(0));
        }
        let mut woken = self.wake.is_signalled();
        while out.len() - before < wanted && !woken {
            let Some(due) = state.next_due_us() else {
                break;
            };
            if limit.is_some_and(|l| due > l) {
                state.advance_to(limit.unwrap_or(0));
                break;
            }
            state.advance_to(due);
            self.reap(&mut state, out);
            woken = self.wake.is_signalled();
        }
        self.reap(&mut state, out);
        if woken {
            // Consumes the wake.
            self.wake.begin();
            self.wake.end();
            self.stats.wakes += 1;
        }
        Ok(out.len() - before)
    }

    unsafe fn register_buffers(&mut self, _regions: &[(*mut u8, usize)]) -> bool {
        true
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

impl Drop for FaultChannel {
    fn drop(&mut self) {
        self.device.lock().close_inbox(self.inbox);
    }
}
