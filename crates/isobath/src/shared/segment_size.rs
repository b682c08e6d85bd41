//! How long the segments of a volume are, and where they lie.

use crate::page::PAGE_SIZE;
use crate::shared::{MAX_SEGMENT_BYTES, MAX_SEGMENTS, MIN_SEGMENT_BYTES};

/// Bytes of a segment that nothing else is known about: a small store has a small file.
pub(crate) const SEGMENT_BYTES: u32 = 256 << 10;
/// Most bytes of a segment that was not asked for.
const LARGE_SEGMENT_BYTES: u32 = 2 << 20;
/// Segments that a volume of known size should have: smaller ones leave more of it for data.
const MIN_SEGMENTS: u64 = 512;

/// Bytes of a segment of a volume of about so many bytes.
pub(crate) fn segment_bytes_for(volume: u64) -> u32 {
    let share = (volume / MIN_SEGMENTS).max(u64::from(MIN_SEGMENT_BYTES));
    (1 << share.ilog2().min(31)).min(LARGE_SEGMENT_BYTES)
}

/// The size of a volume's segments, which lie one after another. Fixed when the store is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentSize {
    /// Bytes of a segment.
    pub(crate) bytes: u32,
}

impl SegmentSize {
    /// Segments of `bytes` bytes.
    pub(crate) fn of(bytes: u32) -> SegmentSize {
        SegmentSize { bytes }
    }

    /// The size in a superblock; `None` if it is not valid.
    pub(crate) fn decode(bytes: u32) -> Option<SegmentSize> {
        let is_sound = (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes)
            && bytes.is_multiple_of(PAGE_SIZE as u32);
        is_sound.then_some(SegmentSize { bytes })
    }

    /// The offset of `segment` in the volume; the length of a volume of this many segments.
    #[inline]
    pub(crate) fn start_of(self, segment: u32) -> u64 {
        u64::from(segment) * u64::from(self.bytes)
    }

    /// Whole segments of a volume of `bytes` bytes.
    pub(crate) fn whole_in(self, bytes: u64) -> u32 {
        (bytes / u64::from(self.bytes)).min(u64::from(MAX_SEGMENTS)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_lie_one_after_another() {
        let sizes = SegmentSize::decode(1 << 20).unwrap();
        assert_eq!(sizes.start_of(3), 3 << 20);
        assert_eq!(
            (sizes.whole_in(3 << 20), sizes.whole_in((3 << 20) - 1)),
            (3, 2)
        );
        for bytes in [0, 5000, 128 << 20] {
            assert_eq!(SegmentSize::decode(bytes), None);
        }
    }
}
