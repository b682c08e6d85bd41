//! A volume in memory, for tests, and for measuring the CPU cost alone.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::aligned::AlignedBuf;
use crate::device::{Channel, ChannelOptions, Device, QueueFull};
use crate::error::{ChannelError, IoError, IoErrorKind, VolumeError};
use crate::io::{Completion, Io, IoVec, Op};
use crate::options::{BackendKind, BackendReport};
use crate::sleep::EventWake;
use crate::stats::ChannelStats;
use crate::waker::Waker;

/// Unit of allocation and locking: a huge page.
const CHUNK: u64 = 2 << 20;
const BLOCK: u32 = 512;

/// Zeros until first written; a discarded whole chunk gives its memory back.
///
/// The lock makes concurrent I/Os to one chunk atomic towards each other, so racing reads and
/// writes are no data race. Contention is rare because chunks are many.
type Chunk = RwLock<Option<AlignedBuf>>;

/// An in-process device whose bytes are in memory and vanish with it. I/Os complete in the order of
/// submission, at the next [`poll`](Channel::poll).
pub struct MemoryDevice {
    chunks: RwLock<Vec<Arc<Chunk>>>,
    len: AtomicU64,
    max: Option<u64>,
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryDevice").finish_non_exhaustive()
    }
}

impl MemoryDevice {
    /// A zeroed device of `bytes` bytes (rounded up to 4096) that may grow to `max` bytes.
    pub fn new(bytes: u64, max: Option<u64>) -> MemoryDevice {
        let device = MemoryDevice {
            chunks: RwLock::default(),
            len: AtomicU64::new(0),
            max: max.map(|m| m.max(bytes.next_multiple_of(4096))),
        };
        device.extend(bytes.next_multiple_of(4096));
        device
    }

    fn extend(&self, new_len: u64) {
        let mut chunks = self.chunks.write().unwrap_or_else(PoisonError::into_inner);
        let wanted = new_len.div_ceil(CHUNK) as usize;
        if wanted > chunks.len() {
            chunks.resize_with(wanted, Arc::default);
        }
        self.len.fetch_max(new_len, Ordering::Release);
    }

    fn chunk(&self, index: usize) -> Option<Arc<Chunk>> {
        let chunks = self.chunks.read().unwrap_or_else(PoisonError::into_inner);
        chunks.get(index).cloned()
    }

    fn check(&self, op: Op, offset: u64, len: u64, aligned: bool) -> Result<(), IoError> {
        let fail = |kind| Err(IoError::new(kind, op, offset, len));
        if !aligned {
            return fail(IoErrorKind::Misaligned);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => fail(IoErrorKind::OutOfRange),
        }
    }

    fn discard(&self, offset: u64, len: u64) {
        for (index, start, n) in pieces(offset, len) {
            let Some(chunk) = self.chunk(index) else {
                return;
            };
            let mut chunk = chunk.write().unwrap_or_else(PoisonError::into_inner);
            if n == CHUNK as usize {
                *chunk = None;
            } else if let Some(bytes) = chunk.as_mut() {
                bytes[start..start + n].fill(0);
            }
        }
    }
}

/// Cuts a range at chunk borders: (chunk, offset in it, bytes).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = at % CHUNK;
        let n = (CHUNK - start).min(end - at);
        let piece = ((at / CHUNK) as usize, start as usize, n as usize);
        at += n;
        Some(piece)
    })
}

/// Copies `n` bytes out of a chunk.
///
/// # Safety
/// `to` must be valid for `n` bytes of writing, and `start + n` at most [`CHUNK`].
unsafe fn copy_out(chunk: &Chunk, start: usize, to: *mut u8, n: usize) {
    let chunk = chunk.read().unwrap_or_else(PoisonError::into_inner);
    match chunk.as_ref() {
        Some(bytes) => {
            let from = &bytes[start..start + n];
            // SAFETY: `from` has `n` bytes, `to` too by contract; a caller's buffer cannot overlap
            // the private chunk.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, n) }
        }
        // SAFETY: by contract.
        None => unsafe { std::ptr::write_bytes(to, 0, n) },
    }
}

/// Copies `n` bytes into a chunk.
///
/// # Safety
/// `from` must be valid for `n` bytes of reading, and `start + n` at most [`CHUNK`].
unsafe fn copy_in(chunk: &Chunk, start: usize, from: *const u8, n: usize) {
    let mut chunk = chunk.write().unwrap_or_else(PoisonError::into_inner);
    let bytes = chunk.get_or_insert_with(|| AlignedBuf::new(CHUNK as usize));
    let to = &mut bytes[start..start + n];
    // SAFETY: `to` has `n` bytes, `from` too by contract; a caller's buffer cannot overlap the
    // private chunk.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n) }
}

impl Device for MemoryDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn limit(&self) -> Option<u64> {
        self.max
    }

    fn logical_block(&self) -> u32 {
        BLOCK
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        if !new_len.is_multiple_of(4096) {
            return Err(VolumeError::BadOption {
                option: "new_len",
                must: "a multiple of 4096",
                found: new_len,
            });
        }
        if let Some(limit) = self.max
            && new_len > limit
        {
            return Err(VolumeError::Limit {
                limit,
                asked: new_len,
            });
        }
        self.extend(new_len);
        Ok(())
    }

    fn can_shrink(&self) -> bool {
        true
    }

    fn shrink(&self, new_len: u64) -> Result<(), VolumeError> {
        if !new_len.is_multiple_of(4096) {
            return Err(VolumeError::BadOption {
                option: "new_len",
                must: "a multiple of 4096",
                found: new_len,
            });
        }
        let len = self.len();
        if new_len < len {
            self.len.store(new_len, Ordering::Release);
            // When the volume grows again, these bytes are zeros.
            self.discard(new_len, len - new_len);
        }
        Ok(())
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        let wake = EventWake::new()
            .map_err(|e| VolumeError::Device(format!("cannot create an eventfd: {e}")))?;
        Ok(Box::new(MemoryChannel {
            device: self,
            chunks: Vec::new(),
            queue: VecDeque::with_capacity(options.depth as usize),
            depth: options.depth,
            wake: Arc::new(wake),
            stats: ChannelStats::default(),
        }))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.check(Op::Read, offset, buf.len() as u64, true)?;
        let mut rest = buf;
        for (index, start, n) in pieces(offset, rest.len() as u64) {
            let (now, later) = rest.split_at_mut(n);
            if let Some(chunk) = self.chunk(index) {
                // SAFETY: `now` has `n` bytes, and pieces end within their chunk.
                unsafe { copy_out(&chunk, start, now.as_mut_ptr(), n) };
            }
            rest = later;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let aligned = is_aligned(offset | buf.len() as u64);
        self.check(Op::Write, offset, buf.len() as u64, aligned)?;
        let mut rest = buf;
        for (index, start, n) in pieces(offset, buf.len() as u64) {
            let (now, later) = rest.split_at(n);
            if let Some(chunk) = self.chunk(index) {
                // SAFETY: `now` has `n` bytes, and pieces end within their chunk.
                unsafe { copy_in(&chunk, start, now.as_ptr(), n) };
            }
            rest = later;
        }
        Ok(())
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.check(Op::Discard, offset, len, is_aligned(offset | len))?;
        self.discard(offset, len);
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn backend_report(&self) -> BackendReport {
        BackendReport {
            backend: BackendKind::InProcess("memory"),
            direct: true,
            notes: Vec::new(),
        }
    }
}

fn is_aligned(bits: u64) -> bool {
    bits.is_multiple_of(u64::from(BLOCK))
}

/// An I/O accepted by `submit`; the array of a vectored write is copied, as the contract says.
struct Queued {
    io: Io,
    ranges: Vec<IoVec>,
}

struct MemoryChannel {
    device: Arc<MemoryDevice>,
    /// A copy of the device's chunk list, refreshed when it is too short.
    chunks: Vec<Arc<Chunk>>,
    queue: VecDeque<Queued>,
    depth: u32,
    wake: Arc<EventWake>,
    stats: ChannelStats,
}

impl MemoryChannel {
    fn chunk(&mut self, index: usize) -> &Arc<Chunk> {
        if index >= self.chunks.len() {
            let all = self.device.chunks.read();
            self.chunks
                .clone_from(&all.unwrap_or_else(PoisonError::into_inner));
        }
        // `check` has compared the range with the device's length, for which `extend` made chunks.
        &self.chunks[index]
    }

    /// # Safety
    /// The contract of [`Channel::submit`].
    unsafe fn execute(&mut self, queued: &Queued) -> (u64, Result<(), IoError>) {
        let io = &queued.io;
        match io.op {
            Op::Flush => (0, Ok(())),
            Op::Discard => {
                let len = u64::from(io.len);
                let aligned = is_aligned(io.offset | len) && len > 0;
                let result = self.device.check(io.op, io.offset, len, aligned);
                if result.is_ok() {
                    self.device.discard(io.offset, len);
                }
                (len, result)
            }
            Op::Read | Op::Write => {
                let len = u64::from(io.len);
                let bits = io.offset | len | io.buf.addr() as u64;
                let aligned = is_aligned(bits) && len > 0 && len <= Io::MAX_LEN;
                let result = self.device.check(io.op, io.offset, len, aligned);
                if result.is_ok() {
                    // SAFETY: by contract; the range was checked.
                    unsafe { self.copy(io.op, io.offset, io.buf, len) };
                }
                (len, result)
            }
            Op::WriteV => {
                let (len, aligned) = IoVec::total(&queued.ranges, BLOCK);
                let aligned = aligned && is_aligned(io.offset);
                let result = self.device.check(io.op, io.offset, len, aligned);
                if result.is_ok() {
                    let mut at = io.offset;
                    for range in &queued.ranges {
                        let from = range.buf.cast_mut();
                        // SAFETY: by contract; the whole range was checked.
                        unsafe { self.copy(Op::Write, at, from, range.len as u64) };
                        at += range.len as u64;
                    }
                }
                (len, result)
            }
        }
    }

    /// # Safety
    /// `buf` must be valid for `len` bytes, and the range lie within the device.
    unsafe fn copy(&mut self, op: Op, offset: u64, buf: *mut u8, len: u64) {
        let mut at = buf;
        for (index, start, n) in pieces(offset, len) {
            let chunk = self.chunk(index);
            if op == Op::Read {
                // SAFETY: by contract; pieces end within their chunk.
                unsafe { copy_out(chunk, start, at, n) };
            } else {
                // SAFETY: as above.
                unsafe { copy_in(chunk, start, at, n) };
            }
            // SAFETY: stays within (or one past) the caller's `len` bytes.
            at = unsafe { at.add(n) };
        }
    }
}

impl Channel for MemoryChannel {
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull> {
        if self.queue.len() >= self.depth as usize {
            return Err(QueueFull);
        }
        // SAFETY: by the caller's contract.
        let ranges = unsafe { io.copy_ranges() };
        self.queue.push_back(Queued { io, ranges });
        self.stats.in_flight_max = self.stats.in_flight_max.max(self.queue.len() as u32);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError> {
        let n = self.queue.len();
        for _ in 0..n {
            let Some(queued) = self.queue.pop_front() else {
                break;
            };
            // SAFETY: the submitter keeps the memory valid until it sees the completion pushed
            // below.
            let (bytes, result) = unsafe { self.execute(&queued) };
            let stats = self.stats.of_mut(queued.io.op);
            stats.completed += 1;
            match &result {
                Ok(()) => stats.bytes += bytes,
                Err(_) => stats.failed += 1,
            }
            self.stats.device_requests += 1;
            out.push(Completion {
                user_data: queued.io.user_data,
                result,
            });
        }
        Ok(n)
    }

    fn wait(
        &mut self,
        _min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError> {
        if !self.queue.is_empty() {
            return self.poll(out);
        }
        self.stats.sleeps += 1;
        self.stats.system_calls += 1;
        let woken = self.wake.sleep(timeout).map_err(|source| ChannelError {
            backend: "memory",
            action: "sleep",
            source,
        })?;
        self.stats.wakes += u64::from(woken);
        Ok(0)
    }

    unsafe fn register_buffers(&mut self, _regions: &[(*mut u8, usize)]) -> bool {
        true
    }

    fn waker(&self) -> Waker {
        Waker::new(self.wake.clone())
    }

    fn in_flight(&self) -> u32 {
        self.queue.len() as u32
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn stats(&self) -> &ChannelStats {
        &self.stats
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
