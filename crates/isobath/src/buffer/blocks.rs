//! Reading what does not lie on whole blocks of the device.
//!
//! Chunks are as long as the device's blocks were when they were written. A store may
//! have been copied since to a device of larger blocks: what it holds is then read by
//! the whole blocks around it.

use super::Buffer;
use crate::runtime::IoScope;
use crate::shared::Address;

/// A read of a stretch of one segment.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub(crate) start: Address,
    /// Bytes from there on.
    pub(crate) length: u32,
}

impl Buffer {
    /// Whether the device can read to, or write from, memory there.
    pub(crate) fn is_aligned(&self, memory: *const u8) -> bool {
        memory
            .addr()
            .is_multiple_of(self.shared.config.block_bytes as usize)
    }

    /// Starts reading `stretch` to `into`, which is as long, straight or by way of the whole blocks
    /// around it.
    pub(crate) fn start_read<'scope>(
        &self,
        io: &'scope IoScope<'scope, '_>,
        stretch: Stretch,
        into: &'scope mut [u8],
    ) {
        let block = u64::from(self.shared.config.block_bytes);
        let from = self.shared.offset_of(stretch.start);
        let to = from + into.len() as u64;
        debug_assert_eq!(into.len(), stretch.length as usize);
        if (from | to).is_multiple_of(block) && self.is_aligned(into.as_ptr()) {
            io.read(from, into);
            return;
        }
        // A segment begins and ends at a block, so this stays within it.
        let first = from / block * block;
        let whole = to.next_multiple_of(block) - first;
        io.read_within(first, whole as usize, (from - first) as usize, into);
    }
}
