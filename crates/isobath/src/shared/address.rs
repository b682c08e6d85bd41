//! A page's place on the volume: segment, byte offset and length in one word.

use std::fmt;

/// Addresses count in units of this many bytes, so that packed pages of any
/// compressed length can be addressed.
pub(crate) const GRANULE: u32 = 64;

const LENGTH_BITS: u32 = 14;
const OFFSET_BITS: u32 = 20;
const SEGMENT_BITS: u32 = 28;
const _: () = assert!(LENGTH_BITS + OFFSET_BITS + SEGMENT_BITS == 62);

/// Most bytes that one address can span: just under 1 MiB.
pub(crate) const MAX_LENGTH: u32 = ((1 << LENGTH_BITS) - 1) * GRANULE;
/// Most bytes that a segment can have: 64 MiB.
pub(crate) const MAX_SEGMENT_BYTES: u32 = (1 << OFFSET_BITS) * GRANULE;
/// Bytes of a segment at least.
pub(crate) const MIN_SEGMENT_BYTES: u32 = 64 << 10;
/// Most segments that a volume can have.
pub(crate) const MAX_SEGMENTS: u32 = 1 << SEGMENT_BITS;

/// A place in the page store, packed into 62 bits: segment (28), offset in the
/// segment in granules (20), length in granules (14). Segment 0 holds the
/// superblocks, so the word zero is no address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address(u64);

impl Address {
    /// No address: the page was never written.
    pub(crate) const NONE: Address = Address(0);

    /// Packs an address. `offset` and `length` are bytes, multiples of
    /// [`GRANULE`].
    pub(crate) fn new(segment: u32, offset: u32, length: u32) -> Address {
        debug_assert!(offset.is_multiple_of(GRANULE) && length.is_multiple_of(GRANULE));
        assert!(segment < MAX_SEGMENTS && offset < MAX_SEGMENT_BYTES && length <= MAX_LENGTH);
        Address(
            u64::from(segment) << (OFFSET_BITS + LENGTH_BITS)
                | u64::from(offset / GRANULE) << LENGTH_BITS
                | u64::from(length / GRANULE),
        )
    }

    /// The packed form; below 2⁶².
    #[inline]
    pub(crate) fn to_raw(self) -> u64 {
        self.0
    }

    /// The address that `to_raw` packed.
    #[inline]
    pub(crate) fn from_raw(raw: u64) -> Address {
        debug_assert!(raw < 1 << 62);
        Address(raw)
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn segment(self) -> u32 {
        (self.0 >> (OFFSET_BITS + LENGTH_BITS)) as u32
    }

    /// Byte offset within the segment.
    #[inline]
    pub(crate) fn offset(self) -> u32 {
        ((self.0 >> LENGTH_BITS) as u32 & ((1 << OFFSET_BITS) - 1)) * GRANULE
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn length(self) -> u32 {
        (self.0 as u32 & ((1 << LENGTH_BITS) - 1)) * GRANULE
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}:{}", self.segment(), self.offset(), self.length())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_every_field() {
        for segment in [1, 2, 77, MAX_SEGMENTS - 1] {
            for offset in [0, 64, 4096, MAX_SEGMENT_BYTES - 64] {
                for length in [64, 4096, MAX_LENGTH] {
                    let address = Address::new(segment, offset, length);
                    assert_eq!(
                        (address.segment(), address.offset(), address.length()),
                        (segment, offset, length)
                    );
                    assert_eq!(Address::from_raw(address.to_raw()), address);
                    assert!(!address.is_none());
                }
            }
        }
    }
}
