//! One worker's way to a simulated SSD.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use isobath_io::{
    Channel, ChannelError, ChannelStats, Completion, Io, IoError, IoVec, Op, QueueFull, Wake, Waker,
};

use super::{PAGE, SimulatedSsd};

/// An I/O accepted by `submit`; the array of a vectored write is copied, as the contract says.
struct Queued {
    io: Io,
    ranges: Vec<IoVec>,
}

/// Ends a sleep: set until the sleeper has seen it.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

impl Bell {
    /// Sleeps until rung or `timeout`; whether it was rung.
    fn sleep(&self, timeout: Option<Duration>) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rung = match timeout {
            None => self
                .changed
                .wait_while(rung, |rung| !*rung)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                self.changed
                    .wait_timeout_while(rung, timeout, |rung| !*rung)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        std::mem::take(&mut rung)
    }
}

pub(super) struct SsdChannel {
    ssd: Arc<SimulatedSsd>,
    queue: VecDeque<Queued>,
    /// I/Os that the drive has done at a time that has not come yet, by that time and their number:
    /// those done at the same time complete in their order.
    pending: BTreeMap<(u64, u64), Completion>,
    sequence: u64,
    depth: u32,
    bell: Arc<Bell>,
    stats: ChannelStats,
}

impl SsdChannel {
    pub(super) fn new(ssd: Arc<SimulatedSsd>, depth: u32) -> SsdChannel {
        SsdChannel {
            ssd,
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
            sequence: 0,
            depth,
            bell: Arc::default(),
            stats: ChannelStats::default(),
        }
    }

    /// Bytes of an I/O, and when the drive has done it.
    ///
    /// # Safety
    /// The contract of [`Channel::submit`].
    unsafe fn execute(&self, queued: &Queued) -> (u64, Result<u64, IoError>) {
        let io = &queued.io;
        let len = u64::from(io.len);
        let whole = |bits: u64| bits.is_multiple_of(PAGE);
        match io.op {
            Op::Flush => (0, self.ssd.flush()),
            Op::Discard => {
                let checked = self
                    .ssd
                    .check(io.op, io.offset, len, whole(io.offset | len));
                (len, checked.and_then(|()| self.ssd.discard(io.offset, len)))
            }
            Op::Read | Op::Write => {
                let bits = io.offset | len | io.buf.addr() as u64;
                let aligned = whole(bits) && len > 0 && len <= Io::MAX_LEN;
                let done = self
                    .ssd
                    .check(io.op, io.offset, len, aligned)
                    .and_then(|()| {
                        if io.op == Op::Read {
                            // SAFETY: by contract the memory is valid for `len` bytes and no other
                            // code's until the completion.
                            let out =
                                unsafe { std::slice::from_raw_parts_mut(io.buf, len as usize) };
                            self.ssd.read_pages(io.offset, out)
                        } else {
                            // SAFETY: by contract the memory is valid for `len` bytes and not
                            // written until the completion.
                            let from = unsafe { std::slice::from_raw_parts(io.buf, len as usize) };
                            self.ssd.write_pages(io.offset, from, io.durable)
                        }
                    });
                (len, done)
            }
            Op::WriteV => {
                let (len, aligned) = IoVec::total(&queued.ranges, PAGE as u32);
                let aligned = aligned && whole(io.offset);
                let done = self
                    .ssd
                    .check(io.op, io.offset, len, aligned)
                    .and_then(|()| {
                        let (mut at, mut done) = (io.offset, 0);
                        for range in &queued.ranges {
                            // SAFETY: by contract every range is valid and not written until the
                            // completion.
                            let from = unsafe { std::slice::from_raw_parts(range.buf, range.len) };
                            done = self.ssd.write_pages(at, from, io.durable)?.max(done);
                            at += range.len as u64;
                        }
                        Ok(done)
                    });
                (len, done)
            }
            // Operations that later versions of the I/O layer may add.
            _ => {
                let kind = isobath_io::IoErrorKind::Unsupported;
                (0, Err(IoError::new(kind, io.op, io.offset, len)))
            }
        }
    }

    fn start_queued(&mut self) {
        while let Some(queued) = self.queue.pop_front() {
            // SAFETY: the submitter keeps the memory valid until it sees the completion, which
            // comes after this.
            let (bytes, result) = unsafe { self.execute(&queued) };
            let stats = self.stats.of_mut(queued.io.op);
            stats.completed += 1;
            match &result {
                Ok(_) => stats.bytes += bytes,
                Err(_) => stats.failed += 1,
            }
            self.stats.device_requests += 1;
            self.sequence += 1;
            let at = *result.as_ref().unwrap_or(&0);
            let completion = Completion {
                user_data: queued.io.user_data,
                result: result.map(drop),
            };
            self.pending.insert((at, self.sequence), completion);
        }
    }
}

impl Channel for SsdChannel {
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull> {
        if self.in_flight() >= self.depth {
            return Err(QueueFull);
        }
        // SAFETY: by the caller's contract.
        let ranges = unsafe { io.copy_ranges() };
        self.queue.push_back(Queued { io, ranges });
        self.stats.in_flight_max = self.stats.in_flight_max.max(self.in_flight());
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError> {
        self.start_queued();
        let Some((first, _)) = self.pending.first_key_value() else {
            return Ok(0);
        };
        // A caller that polls and finds nothing done waits until something is: in virtual time,
        // that is now.
        self.ssd.advance(first.0);
        let later = self.pending.split_off(&(self.ssd.modelled_ns(), u64::MAX));
        let done = std::mem::replace(&mut self.pending, later);
        let count = done.len();
        out.extend(done.into_values());
        Ok(count)
    }

    fn wait(
        &mut self,
        _min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError> {
        if self.in_flight() > 0 {
            return self.poll(out);
        }
        self.stats.sleeps += 1;
        let woken = self.bell.sleep(timeout);
        self.stats.wakes += u64::from(woken);
        Ok(0)
    }

    unsafe fn register_buffers(&mut self, _regions: &[(*mut u8, usize)]) -> bool {
        true
    }

    fn waker(&self) -> Waker {
        Waker::new(self.bell.clone())
    }

    fn in_flight(&self) -> u32 {
        (self.queue.len() + self.pending.len()) as u32
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn stats(&self) -> &ChannelStats {
        &self.stats
    }
}
