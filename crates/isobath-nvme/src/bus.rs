//! What lies between the driver and a controller: its registers, its view of memory, and time.
#![allow(unsafe_code)]

use std::time::Duration;

use crate::error::NvmeError;

/// Offsets of registers.
pub(crate) mod register {
    /// Capabilities, 64 bits.
    pub(crate) const CAP: u32 = 0x00;
    /// Configuration.
    pub(crate) const CC: u32 = 0x14;
    /// Status.
    pub(crate) const CSTS: u32 = 0x1c;
    /// Entries of the administration queues.
    pub(crate) const AQA: u32 = 0x24;
    /// Address of the administration submission queue, 64 bits.
    pub(crate) const ASQ: u32 = 0x28;
    /// Address of the administration completion queue, 64 bits.
    pub(crate) const ACQ: u32 = 0x30;
    /// The first doorbell.
    pub(crate) const DOORBELLS: u32 = 0x1000;

    /// CC: the controller is to run.
    pub(crate) const ENABLE: u32 = 1;
    /// CC: entries of 64 and 16 bytes, as powers of two.
    pub(crate) const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
    /// CSTS: the controller runs.
    pub(crate) const READY: u32 = 1;
    /// CSTS: it cannot go on without a reset.
    pub(crate) const FATAL: u32 = 2;
    /// What reading any register of a device gives that is gone.
    pub(crate) const GONE: u32 = u32::MAX;
}

/// One controller's registers, its view of memory, and the clock that timeouts are measured by. A
/// real drive behind VFIO, or a model.
///
/// # Safety
/// After [`cut_off`](Self::cut_off) returns, and after a write to the register CC has disabled the
/// controller and CSTS says so, memory is no longer accessed for commands given before.
pub unsafe trait Bus: Send + Sync {
    /// The drive's name in messages: its PCI address.
    fn name(&self) -> &str;

    /// Bytes of registers, doorbells included.
    fn register_bytes(&self) -> u64;

    /// Reads a register; all ones for a device that is gone, and beyond the end.
    fn read(&self, offset: u32) -> u32;

    /// Writes a register, after every write to memory before it. Beyond the end nothing happens.
    fn write(&self, offset: u32, value: u32);

    /// Makes memory reachable for the drive; answers the address that the drive has to use.
    ///
    /// # Safety
    /// The memory must stay allocated until [`unmap`](Self::unmap), or until the bus is dropped.
    ///
    /// # Errors
    /// [`NvmeError::Memory`].
    unsafe fn map(&self, start: *mut u8, bytes: usize) -> Result<u64, NvmeError>;

    /// Takes memory away from the drive that [`map`](Self::map) gave it at `address`.
    fn unmap(&self, address: u64, bytes: usize);

    /// Keeps the drive from accessing any memory, permanently.
    fn cut_off(&self);

    /// Time since some moment.
    fn now(&self) -> Duration;

    /// Lets time pass between two looks at a queue; `round` counts the looks in vain.
    fn pause(&self, round: u32);
}

/// The capabilities that a controller says it has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capabilities(pub(crate) u64);

impl Capabilities {
    /// Entries of the longest I/O queue.
    pub(crate) fn max_entries(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// The longest time that starting or stopping takes.
    pub(crate) fn ready_timeout(self) -> Duration {
        Duration::from_millis((self.0 >> 24 & 0xff).max(1) * 500)
    }

    /// Bytes from one doorbell to the next.
    pub(crate) fn doorbell_stride(self) -> u32 {
        4 << (self.0 >> 32 & 0xf)
    }

    pub(crate) fn has_nvm_commands(self) -> bool {
        self.0 >> 37 & 1 == 1
    }

    /// Bytes of the smallest page that it works with.
    pub(crate) fn min_page(self) -> u64 {
        1 << (12 + (self.0 >> 48 & 0xf))
    }
}
