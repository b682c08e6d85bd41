//! The simulated SSD as a device of volumes, so that an engine runs on it unchanged and its flash
//! writes are counted.
//!
//! [`SimulatedSsd`] puts [`FlashDevice`], a page-mapped translation layer with any of the cleaning
//! policies, behind the [`Device`] trait. Reads, writes, discards and flushes of every channel
//! reach one drive, in the order in which the channels are polled. With a timing model the drive
//! has a clock of its own: it goes on to the next completion whenever a channel is polled that has
//! nothing finished, and never sleeps. Rates over that clock are *modelled*.

mod channel;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use isobath_flash::ftl::{FlashConfig, Smart, Timing};
use isobath_flash::ftl::{FlashDevice, FlashError, MemoryData};
use isobath_io::{
    BackendKind, BackendReport, Channel, ChannelOptions, Device, IoError, IoErrorKind, Op,
    VolumeError,
};

use crate::LabError;
use channel::SsdChannel;

/// Bytes of a page: what the drive reads and writes at least.
const PAGE: u64 = 4096;

/// The drive and its clock, behind one lock: a real drive too has one translation layer.
struct Drive {
    flash: FlashDevice<MemoryData>,
    /// Virtual time in nanoseconds.
    now: u64,
    /// Power is off: nothing answers.
    off: bool,
}

/// A simulated SSD; clones of its `Arc` and volumes on it are the same drive.
pub struct SimulatedSsd {
    drive: Mutex<Drive>,
    capacity: u64,
    /// Bytes that the volume on it has grown to.
    len: AtomicU64,
    /// Flushes are acknowledged and not done: what an engine without its barriers asks for. Durable
    /// writes are done.
    #[cfg(test)]
    forgets_flushes: std::sync::atomic::AtomicBool,
    /// Power fails at the first I/O once the host has written so many bytes.
    #[cfg(test)]
    cut_at: AtomicU64,
}

crate::names::opaque!(SimulatedSsd, "SimulatedSsd");

impl SimulatedSsd {
    /// A fresh, trimmed drive whose contents live in memory, as much as is written to it.
    ///
    /// # Errors
    /// [`LabError::Request`] if the configuration's numbers do not fit each other, or its pages are
    /// not 4 KiB.
    pub fn in_memory(config: FlashConfig) -> Result<Arc<SimulatedSsd>, LabError> {
        if u64::from(config.page_bytes) != PAGE {
            return Err(LabError::Request(format!(
                "a simulated SSD under a volume has pages of {PAGE} bytes, not {}",
                config.page_bytes
            )));
        }
        let capacity = config.user_bytes;
        let contents = MemoryData::new();
        let flash = FlashDevice::new(config, contents).map_err(|error| refused(&error))?;
        Ok(Arc::new(SimulatedSsd {
            drive: Mutex::new(Drive {
                flash,
                now: 0,
                off: false,
            }),
            capacity,
            len: AtomicU64::new(0),
            #[cfg(test)]
            forgets_flushes: std::sync::atomic::AtomicBool::new(false),
            #[cfg(test)]
            cut_at: AtomicU64::new(u64::MAX),
        }))
    }

    fn drive(&self) -> MutexGuard<'_, Drive> {
        self.drive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The drive's counters.
    pub fn smart(&self) -> Smart {
        self.drive().flash.smart()
    }

    /// Erases of each superblock.
    pub fn wear(&self) -> Vec<u32> {
        self.drive().flash.wear().to_vec()
    }

    /// The drive's own clock in nanoseconds; 0 without a timing model.
    pub fn modelled_ns(&self) -> u64 {
        self.drive().now
    }

    /// Paper 002's first state: everything trimmed.
    ///
    /// # Errors
    /// [`LabError::Request`] if cleaning finds no space.
    pub fn trim_all(&self) -> Result<(), LabError> {
        let mut drive = self.drive();
        drive.flash.trim_all().map_err(|error| refused(&error))
    }

    /// Paper 002's second state: filled in order, then `times` × capacity of random page writes
    /// (the paper: 2). What the drive held is zeros afterwards.
    ///
    /// # Errors
    /// [`LabError::Request`] if cleaning finds no space.
    pub fn precondition(&self, times: f64, seed: u64) -> Result<(), LabError> {
        let mut drive = self.drive();
        drive
            .flash
            .precondition(times, seed)
            .map_err(|error| refused(&error))
    }

    /// Neither state: about half of the pages, chosen at random, were written by other programs and
    /// still hold data.
    ///
    /// # Errors
    /// [`LabError::Request`] if cleaning finds no space.
    pub fn use_half(&self, seed: u64) -> Result<(), LabError> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut drive = self.drive();
        let (pages, zeros) = (page_of(self.capacity), [0; PAGE as usize]);
        for page in 0..pages {
            if random.bool() {
                let written = drive.flash.write(page, &zeros, 0);
                written.map_err(|error| refused(&error))?;
            }
        }
        Ok(())
    }

    /// Pages that hold data.
    pub fn valid_pages(&self) -> u64 {
        self.drive().flash.valid_pages()
    }

    /// Power fails: any subset of unflushed writes is left, and every I/O fails until
    /// [`power_on`](Self::power_on).
    ///
    /// # Errors
    /// [`LabError::Request`] if cleaning finds no space.
    pub fn power_cut(&self) -> Result<(), LabError> {
        let mut drive = self.drive();
        drive.off = true;
        drive.flash.power_cut().map_err(|error| refused(&error))
    }

    /// Power is back.
    pub fn power_on(&self) {
        self.drive().off = false;
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

    /// Reads whole pages.
    fn read_pages(&self, offset: u64, out: &mut [u8]) -> Result<u64, IoError> {
        let len = out.len() as u64;
        self.on_drive(Op::Read, offset, len, |drive, at| {
            let mut done = at;
            for (page, out) in (page_of(offset)..).zip(out.chunks_mut(PAGE as usize)) {
                done = done.max(drive.read(page, out, at)?);
            }
            Ok(done)
        })
    }

    /// Writes whole pages; `durable` ones, and no others, are on flash when this returns.
    fn write_pages(&self, offset: u64, from: &[u8], durable: bool) -> Result<u64, IoError> {
        let len = from.len() as u64;
        self.on_drive(Op::Write, offset, len, |drive, at| {
            let mut done = at;
            for (page, from) in (page_of(offset)..).zip(from.chunks(PAGE as usize)) {
                done = done.max(drive.write(page, from, at)?);
            }
            if durable {
                done = done.max(drive.persist(page_of(offset), page_of(len), at)?);
            }
            Ok(done)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<u64, IoError> {
        let pages = page_of(len);
        self.on_drive(Op::Discard, offset, len, |drive, at| {
            drive.trim(page_of(offset), pages, at)
        })
    }

    fn flush(&self) -> Result<u64, IoError> {
        self.on_drive(Op::Flush, 0, 0, |drive, at| match self.forgets_flushes() {
            true => Ok(at),
            false => drive.flush(at),
        })
    }

    #[cfg(test)]
    fn forgets_flushes(&self) -> bool {
        self.forgets_flushes.load(Ordering::Relaxed)
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, reason = "only tests have such drives")]
    const fn forgets_flushes(&self) -> bool {
        false
    }

    /// Does something on the drive now; when it is done in the drive's time.
    fn on_drive(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        work: impl FnOnce(&mut FlashDevice<MemoryData>, u64) -> Result<u64, FlashError>,
    ) -> Result<u64, IoError> {
        let fail = |kind| IoError::new(kind, op, offset, len);
        let mut drive = self.drive();
        #[cfg(test)]
        if drive.flash.smart().host_written_bytes >= self.cut_at.load(Ordering::Relaxed) {
            self.cut_at.store(u64::MAX, Ordering::Relaxed);
            drive.off = true;
            // The cost of that is not asked for.
            let _ = drive.flash.power_cut();
        }
        if drive.off {
            return Err(fail(IoErrorKind::Media));
        }
        let now = drive.now;
        work(&mut drive.flash, now).map_err(|error| {
            fail(match error {
                FlashError::OutOfRange { .. } => IoErrorKind::OutOfRange,
                FlashError::BufferSize { .. } => IoErrorKind::Misaligned,
                _ => IoErrorKind::Media,
            })
        })
    }

    /// The drive's time goes on to `until`, unless it is later already.
    fn advance(&self, until: u64) {
        let mut drive = self.drive();
        drive.now = drive.now.max(until);
    }
}

/// The page at a byte offset; a checked drive has fewer than 2³¹.
fn page_of(offset: u64) -> u32 {
    (offset / PAGE) as u32
}

fn refused(error: &FlashError) -> LabError {
    LabError::Request(format!("simulated SSD: {error}"))
}

impl Device for SimulatedSsd {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn limit(&self) -> Option<u64> {
        Some(self.capacity)
    }

    fn logical_block(&self) -> u32 {
        PAGE as u32
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        if !new_len.is_multiple_of(PAGE) {
            return Err(VolumeError::BadOption {
                option: "new_len",
                must: "a multiple of 4096",
                found: new_len,
            });
        }
        if new_len > self.capacity {
            return Err(VolumeError::Limit {
                limit: self.capacity,
                asked: new_len,
            });
        }
        self.len.fetch_max(new_len, Ordering::AcqRel);
        Ok(())
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        Ok(Box::new(SsdChannel::new(self, options.depth)))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.check(Op::Read, offset, buf.len() as u64, true)?;
        let first = offset / PAGE * PAGE;
        let end = (offset + buf.len() as u64).next_multiple_of(PAGE);
        let mut whole = vec![0; (end - first) as usize];
        let done = self.read_pages(first, &mut whole)?;
        self.advance(done);
        let start = (offset - first) as usize;
        buf.copy_from_slice(&whole[start..start + buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let aligned = (offset | buf.len() as u64).is_multiple_of(PAGE);
        self.check(Op::Write, offset, buf.len() as u64, aligned)?;
        let done = self.write_pages(offset, buf, false)?;
        self.advance(done);
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        let done = self.flush()?;
        self.advance(done);
        Ok(())
    }

    fn backend_report(&self) -> BackendReport {
        BackendReport {
            backend: BackendKind::InProcess("simulated SSD"),
            direct: true,
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
