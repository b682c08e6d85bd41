//! Memory that the driver and the drive share.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use isobath_io::AlignedBuf;

use crate::bus::Bus;
use crate::error::NvmeError;
use crate::identify::PAGE;

/// Zeroed memory that the drive reaches, in whole pages.
pub(crate) struct DmaMemory {
    bus: Arc<dyn Bus>,
    memory: AlignedBuf,
    address: u64,
}

impl DmaMemory {
    pub(crate) fn new(bus: &Arc<dyn Bus>, bytes: usize) -> Result<DmaMemory, NvmeError> {
        let mut memory = AlignedBuf::new(bytes.next_multiple_of(PAGE));
        // SAFETY: the memory is unmapped in `drop`, before it is freed.
        let address = unsafe { bus.map(memory.as_mut_ptr(), memory.len())? };
        Ok(DmaMemory {
            bus: Arc::clone(bus),
            memory,
            address,
        })
    }

    /// Where the drive finds byte `at`.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.address + at as u64
    }

    /// The word at byte `at`, a multiple of 4. The drive writes such words, so all accesses are
    /// atomic.
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.memory.len());
        // SAFETY: in bounds and aligned, as just checked; the memory lives as long as `self`, and
        // is accessed only through atomics, by the drive's own accesses, and by the model's.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().cast_mut().add(at).cast()) }
    }

    pub(crate) fn load(&self, at: usize) -> u32 {
        u32::from_le(self.word(at).load(Ordering::Relaxed))
    }

    /// Loads a word; no later load is older than it.
    pub(crate) fn load_acquire(&self, at: usize) -> u32 {
        let word = u32::from_le(self.word(at).load(Ordering::Acquire));
        read_barrier();
        word
    }

    pub(crate) fn store(&self, at: usize, value: u32) {
        self.word(at).store(value.to_le(), Ordering::Relaxed);
    }

    pub(crate) fn store_u64(&self, at: usize, value: u64) {
        self.store(at, value as u32);
        self.store(at + 4, (value >> 32) as u32);
    }

    /// Fills `bytes` bytes, a multiple of 4, with zeros.
    pub(crate) fn clear(&self, at: usize, bytes: usize) {
        for word in (at..at + bytes).step_by(4) {
            self.store(word, 0);
        }
    }

    /// A copy of the page that begins at byte `at`.
    pub(crate) fn page(&self, at: usize) -> Box<[u8; PAGE]> {
        let mut page = Box::new([0; PAGE]);
        for (word, bytes) in page.chunks_exact_mut(4).enumerate() {
            bytes.copy_from_slice(&self.load(at + word * 4).to_le_bytes());
        }
        page
    }
}

impl Drop for DmaMemory {
    fn drop(&mut self) {
        self.bus.unmap(self.address, self.memory.len());
    }
}

/// Orders loads from memory that a device writes.
fn read_barrier() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no state. Rust's own fences order accesses between CPUs only.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}
