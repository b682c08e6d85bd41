//! Reading what does not lie on whole blocks of the device.
//!
//! Chunks are as long as the device's blocks were where they were written. A store may
//! have been copied since to a device of larger blocks: what it holds is then read by
//! the whole blocks around it.

#![allow(unsafe_code)]

use isobath_io::{AlignedBuf, Io};

use super::{Engine, WorkerState};
use crate::pagestore::Address;

/// A read of a stretch of one segment.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) start: Address,
    /// Bytes from there on.
    pub(crate) length: u32,
}

/// Whole blocks that were read because a stretch begins or ends within one.
struct Around {
    blocks: AlignedBuf,
    /// Bytes before the stretch.
    before: usize,
    /// Where in the target the stretch belongs.
    at: usize,
    length: usize,
}

/// Reads that do not go straight into their destination.
#[derive(Default)]
pub(crate) struct Detours(Vec<Around>);

impl Detours {
    /// Copies what was read to `into`, once all reads have ended.
    pub(crate) fn finish(&mut self, into: &mut [u8]) {
        for around in self.0.drain(..) {
            let bytes = &around.blocks.as_slice()[around.before..][..around.length];
            into[around.at..][..around.length].copy_from_slice(bytes);
        }
    }
}

impl Engine {
    /// Whether the device can read to, or write from, memory there.
    pub(crate) fn is_aligned(&self, memory: *const u8) -> bool {
        memory
            .addr()
            .is_multiple_of(self.config.block_bytes as usize)
    }
}

impl WorkerState {
    /// Starts reading `stretch` to byte `at` of `into`, straight or by a detour.
    ///
    /// # Safety
    ///
    /// `into` and `detours` live, and no other code uses `into`, until `wait_io` has returned.
    pub(crate) unsafe fn start_read(
        &self,
        stretch: Stretch,
        into: &mut [u8],
        at: usize,
        detours: &mut Detours,
    ) {
        let engine = &self.engine;
        let block = u64::from(engine.config.block_bytes);
        let length = stretch.length as usize;
        let memory = into[at..at + length].as_mut_ptr();
        let from = engine.offset_of(stretch.start);
        let to = from + u64::from(stretch.length);
        if (from | to).is_multiple_of(block) && engine.is_aligned(memory) {
            let io = Io::read(from, memory, stretch.length, 0);
            // SAFETY: the caller's.
            unsafe { self.worker.start_io(io) };
            return;
        }
        // A segment begins and ends at a block, so this stays within it.
        let first = from / block * block;
        let whole = (to.next_multiple_of(block) - first) as u32;
        let mut blocks = AlignedBuf::new(whole as usize);
        let io = Io::read(first, blocks.as_mut_ptr(), whole, 0);
        // SAFETY: the buffer's memory stays where it is; it lives as long as `detours`.
        unsafe { self.worker.start_io(io) };
        detours.0.push(Around {
            blocks,
            before: (from - first) as usize,
            at,
            length,
        });
    }
}
