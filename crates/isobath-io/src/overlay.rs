//! A volume over another one: writes stay in this process, and the volume below never changes.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::device::{Channel, ChannelOptions, Device, LOG_OFFSET, Layout, QueueFull};
use crate::error::{ChannelError, IoError, IoErrorKind, VolumeError};
use crate::io::{Completion, Io, IoVec, Op};
use crate::memory::MemoryDevice;
use crate::options::BackendReport;
use crate::stats::ChannelStats;
use crate::volume::Volume;
use crate::waker::Waker;

/// Unit of writes: a page.
const BLOCK: u64 = 4096;
const BLOCK_BYTES: usize = BLOCK as usize;
/// The place of a block that holds zeros and takes no space.
const ZEROS: u32 = u32::MAX;

/// A volume that reads blocks that were not written to it from the volume below, and keeps what is
/// written to it: first in memory, and what is more than that in a temporary file without a name.
///
/// It can grow without limit. Flushes have nothing to do: all that was written goes with the
/// process.
pub struct OverlayDevice {
    below: Volume,
    len: AtomicU64,
    layer: RwLock<Layer>,
}

impl std::fmt::Debug for OverlayDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OverlayDevice").finish_non_exhaustive()
    }
}

/// The blocks that were written.
struct Layer {
    /// By offset in blocks: the place of its bytes, or [`ZEROS`].
    places: HashMap<u64, u32>,
    /// Places given out.
    taken: u32,
    /// The first places.
    memory: MemoryDevice,
    in_memory: u32,
    /// The others; made when the first one is needed.
    file: Option<File>,
}

impl Layer {
    /// Reads the block at `place`.
    fn read(&self, place: u32, into: &mut [u8; BLOCK_BYTES]) -> io::Result<()> {
        if place == ZEROS {
            into.fill(0);
            return Ok(());
        }
        match place.checked_sub(self.in_memory) {
            None => self
                .memory
                .read_at(u64::from(place) * BLOCK, into)
                .map_err(io::Error::other),
            Some(place) => match &self.file {
                Some(file) => file.read_exact_at(into, u64::from(place) * BLOCK),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }

    /// Gives the block `number` these bytes.
    fn write(&mut self, number: u64, bytes: &[u8; BLOCK_BYTES]) -> io::Result<()> {
        let place = match self.places.get(&number) {
            Some(&place) if place != ZEROS => place,
            _ if self.taken == ZEROS => return Err(io::ErrorKind::StorageFull.into()),
            _ => self.taken,
        };
        match place.checked_sub(self.in_memory) {
            None => {
                self.memory
                    .grow((u64::from(place) + 1) * BLOCK)
                    .and_then(|()| Ok(self.memory.write_at(u64::from(place) * BLOCK, bytes)?))
                    .map_err(io::Error::other)?;
            }
            Some(place) => {
                let file = match &mut self.file {
                    Some(file) => file,
                    none => none.insert(tempfile::tempfile()?),
                };
                file.write_all_at(bytes, u64::from(place) * BLOCK)?;
            }
        }
        if place == self.taken {
            self.taken += 1;
        }
        self.places.insert(number, place);
        Ok(())
    }
}

/// Cuts a range at the borders of blocks: (block, first byte in it, bytes).
fn blocks(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % BLOCK;
        let count = (BLOCK - within).min(end - at);
        let piece = (at / BLOCK, within as usize, count as usize);
        at += count;
        Some(piece)
    })
}

impl OverlayDevice {
    /// A volume over `below` that keeps the first `memory_bytes` bytes that are written to it in
    /// memory.
    pub fn new(below: Volume, memory_bytes: u64) -> OverlayDevice {
        let in_memory = (memory_bytes / BLOCK).min(u64::from(ZEROS - 1)) as u32;
        OverlayDevice {
            len: AtomicU64::new(below.len()),
            below,
            layer: RwLock::new(Layer {
                places: HashMap::new(),
                taken: 0,
                memory: MemoryDevice::new(0, None),
                in_memory,
                file: None,
            }),
        }
    }

    /// The volume below.
    pub fn below(&self) -> &Volume {
        &self.below
    }

    /// Bytes that were written or copied here, each block once.
    pub fn bytes_kept(&self) -> u64 {
        u64::from(self.shared().taken) * BLOCK
    }

    /// Copies a range of whole blocks from the volume below as it is now: what happens to it there
    /// is seen here no more.
    ///
    /// # Errors
    /// As a completion would give.
    pub fn keep(&self, offset: u64, len: u64) -> Result<(), IoError> {
        const STEP: u64 = 1 << 20;
        let mut buffer = vec![0; STEP.min(len) as usize];
        let mut done = 0;
        while done < len {
            let count = STEP.min(len - done);
            let bytes = &mut buffer[..count as usize];
            self.below.read_at(offset + done, bytes)?;
            self.write_at(offset + done, bytes)?;
            done += count;
        }
        Ok(())
    }

    /// Makes a range of whole blocks read as zeros.
    pub fn clear(&self, offset: u64, len: u64) {
        let mut layer = self.exclusive();
        for (number, _, count) in blocks(offset, len) {
            if count == BLOCK_BYTES {
                layer.places.insert(number, ZEROS);
            }
        }
    }

    fn shared(&self) -> RwLockReadGuard<'_, Layer> {
        self.layer.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, Layer> {
        self.layer.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, op: Op, offset: u64, len: u64, aligned: bool) -> Result<(), IoError> {
        let fail = |kind| Err(IoError::new(kind, op, offset, len));
        if !aligned {
            return fail(IoErrorKind::Misaligned);
        }
        let limit = match offset >= LOG_OFFSET {
            true => LOG_OFFSET + self.log_len(),
            false => self.len(),
        };
        match offset.checked_add(len) {
            Some(end) if end <= limit => Ok(()),
            _ => fail(IoErrorKind::OutOfRange),
        }
    }

    /// Whether the volume below has the block, if nothing was written over it.
    fn is_below(&self, number: u64) -> bool {
        let at = number * BLOCK;
        at >= LOG_OFFSET || at + BLOCK <= self.below.len()
    }

    /// Whether a part of the range is not the volume below's.
    fn has_part_of(&self, offset: u64, len: u64) -> bool {
        let layer = self.shared();
        blocks(offset, len)
            .any(|(number, _, _)| layer.places.contains_key(&number) || !self.is_below(number))
    }

    /// Reads a range that was checked.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let mut block = [0; BLOCK_BYTES];
        let mut rest = buf;
        for (number, within, count) in blocks(offset, rest.len() as u64) {
            let (now, later) = rest.split_at_mut(count);
            let at = number * BLOCK + within as u64;
            let layer = self.shared();
            match layer.places.get(&number) {
                Some(&place) => {
                    layer
                        .read(place, &mut block)
                        .map_err(|e| io_error(&e, Op::Read, at, count))?;
                    now.copy_from_slice(&block[within..within + count]);
                }
                None if self.is_below(number) => {
                    drop(layer);
                    self.below.read_at(at, now)?;
                }
                None => now.fill(0),
            }
            rest = later;
        }
        Ok(())
    }

    /// Writes a range that was checked.
    fn write(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let mut rest = buf;
        for (number, within, count) in blocks(offset, rest.len() as u64) {
            let (now, later) = rest.split_at(count);
            // Held from the reading of a block to its writing: another part of it may be written at
            // the same time.
            let mut layer = self.exclusive();
            let mut block = [0; BLOCK_BYTES];
            let at = number * BLOCK;
            let failed = |op| move |e: io::Error| io_error(&e, op, at, BLOCK_BYTES);
            if count < BLOCK_BYTES {
                match layer.places.get(&number) {
                    Some(&place) => layer.read(place, &mut block).map_err(failed(Op::Read))?,
                    None if self.is_below(number) => self.below.read_at(at, &mut block)?,
                    None => {}
                }
            }
            block[within..within + count].copy_from_slice(now);
            layer.write(number, &block).map_err(failed(Op::Write))?;
            rest = later;
        }
        Ok(())
    }

    /// Executes one I/O; `None` for a read that is the volume below's alone.
    ///
    /// # Safety
    /// The contract of [`Channel::submit`].
    unsafe fn execute(&self, io: &Io) -> Option<Result<(), IoError>> {
        let block = self.logical_block();
        let aligned = |bits: u64| bits.is_multiple_of(u64::from(block));
        let len = u64::from(io.len);
        let whole = aligned(io.offset | len | io.buf.addr() as u64) && len > 0;
        Some(match io.op {
            Op::Flush => Ok(()),
            Op::Discard => {
                let checked = self.check(io.op, io.offset, len, aligned(io.offset | len));
                checked.map(|()| self.clear(io.offset, len))
            }
            Op::Read => match self.check(io.op, io.offset, len, whole && len <= Io::MAX_LEN) {
                Ok(()) if !self.has_part_of(io.offset, len) => return None,
                // SAFETY: by contract, the memory is this I/O's alone.
                Ok(()) => self.read(io.offset, unsafe {
                    std::slice::from_raw_parts_mut(io.buf, io.len as usize)
                }),
                Err(error) => Err(error),
            },
            Op::Write => {
                let checked = self.check(io.op, io.offset, len, whole && len <= Io::MAX_LEN);
                // SAFETY: by contract, the memory does not change while the I/O is in flight.
                let bytes = || unsafe { std::slice::from_raw_parts(io.buf, io.len as usize) };
                checked.and_then(|()| self.write(io.offset, bytes()))
            }
            Op::WriteV => {
                // SAFETY: by contract.
                let ranges = unsafe { io.copy_ranges() };
                let (len, whole) = IoVec::total(&ranges, block);
                let checked = self.check(io.op, io.offset, len, whole && aligned(io.offset));
                let mut at = io.offset;
                checked.and_then(|()| {
                    ranges.iter().try_for_each(|range| {
                        // SAFETY: by contract, the memory does not change while the I/O is in
                        // flight.
                        let bytes = unsafe { std::slice::from_raw_parts(range.buf, range.len) };
                        at += range.len as u64;
                        self.write(at - range.len as u64, bytes)
                    })
                })
            }
        })
    }
}

fn io_error(error: &io::Error, op: Op, offset: u64, len: usize) -> IoError {
    let kind = match error.raw_os_error() {
        Some(errno) => IoErrorKind::from_errno(errno),
        None if error.kind() == io::ErrorKind::StorageFull => IoErrorKind::NoSpace,
        None => IoErrorKind::Media,
    };
    IoError::new(kind, op, offset, len as u64)
}

impl Device for OverlayDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn limit(&self) -> Option<u64> {
        None
    }

    fn logical_block(&self) -> u32 {
        self.below.logical_block()
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        if !new_len.is_multiple_of(BLOCK) || new_len > LOG_OFFSET {
            return Err(VolumeError::BadOption {
                option: "new_len",
                must: "a multiple of 4096 up to 2^62",
                found: new_len,
            });
        }
        self.len.fetch_max(new_len, Ordering::AcqRel);
        Ok(())
    }

    fn log_len(&self) -> u64 {
        self.below.log_len()
    }

    fn open_log(&self, path: &Path) -> Result<(), VolumeError> {
        self.below.open_log(path)
    }

    fn holds(&self, file: &std::fs::Metadata) -> bool {
        self.below.holds(file)
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        let below = self.below.channel(options)?;
        Ok(Box::new(OverlayChannel {
            device: self,
            below,
            done: Vec::new(),
        }))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let len = buf.len() as u64;
        self.check(Op::Read, offset, len, true)?;
        match self.has_part_of(offset, len) {
            true => self.read(offset, buf),
            false => self.below.read_at(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let len = buf.len() as u64;
        let block = u64::from(self.logical_block());
        self.check(Op::Write, offset, len, (offset | len).is_multiple_of(block))?;
        self.write(offset, buf)
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn layout(&self) -> Layout {
        self.below.layout()
    }

    fn backend_report(&self) -> BackendReport {
        self.below.backend_report()
    }
}

/// Hands the volume below what concerns it alone, and does the rest at once.
struct OverlayChannel {
    device: Arc<OverlayDevice>,
    below: Box<dyn Channel>,
    /// I/Os that were done at once and are not reaped yet.
    done: Vec<Completion>,
}

impl Channel for OverlayChannel {
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull> {
        if self.in_flight() >= self.depth() {
            return Err(QueueFull);
        }
        // SAFETY: by the caller's contract.
        match unsafe { self.device.execute(&io) } {
            // SAFETY: by the caller's contract.
            None => unsafe { self.below.submit(io) },
            Some(result) => {
                self.done.push(Completion {
                    user_data: io.user_data,
                    result,
                });
                Ok(())
            }
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError> {
        let done = self.done.len();
        out.append(&mut self.done);
        Ok(done + self.below.poll(out)?)
    }

    fn wait(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError> {
        match self.done.is_empty() {
            true => self.below.wait(min, timeout, out),
            false => self.poll(out),
        }
    }

    unsafe fn register_buffers(&mut self, regions: &[(*mut u8, usize)]) -> bool {
        // SAFETY: by the caller's contract.
        unsafe { self.below.register_buffers(regions) }
    }

    unsafe fn register_more(&mut self, region: (*mut u8, usize)) -> bool {
        // SAFETY: by the caller's contract.
        unsafe { self.below.register_more(region) }
    }

    fn waker(&self) -> Waker {
        self.below.waker()
    }

    fn in_flight(&self) -> u32 {
        self.below.in_flight() + self.done.len() as u32
    }

    fn depth(&self) -> u32 {
        self.below.depth()
    }

    fn stats(&self) -> &ChannelStats {
        self.below.stats()
    }
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
