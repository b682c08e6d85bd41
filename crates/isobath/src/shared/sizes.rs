//! How long the segments of a volume are, and where they lie: a volume may begin with small ones,
//! so that a small store has a small file, and goes on with large ones (docs/decisions/0028).

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
/// Small segments that a volume begins with if nothing else is said: 16 MiB of them.
const SMALL_SEGMENTS: u32 = 256;

/// The sizes of a volume's segments. Fixed when the store is made.
///
/// While a volume has small segments only, it uses all of them. From its first large one on it has *outgrown*
/// the small ones: no one takes one of them any more, and what lies there stays until it is written
/// again or moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentSizes {
    /// Bytes of a large segment.
    pub(crate) large: u32,
    /// Segments with lower numbers are small.
    pub(crate) first_large: u32,
    /// Bytes of a small segment; any if there are none.
    small: u32,
}

impl SegmentSizes {
    /// Segments of `bytes` bytes, all of them.
    pub(crate) fn uniform(bytes: u32) -> SegmentSizes {
        SegmentSizes {
            large: bytes,
            first_large: 0,
            small: bytes,
        }
    }

    /// Small segments first, then segments of `large` bytes.
    pub(crate) fn small_first(large: u32) -> SegmentSizes {
        SegmentSizes {
            large,
            first_large: crate::small::first_segments().unwrap_or(SMALL_SEGMENTS),
            small: MIN_SEGMENT_BYTES,
        }
    }

    /// The sizes in a superblock; `None` if they are not valid.
    pub(crate) fn decode(large: u32, small: u32, first_large: u32) -> Option<SegmentSizes> {
        let is_sound = |bytes: u32| {
            (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes)
                && bytes.is_multiple_of(PAGE_SIZE as u32)
        };
        if !is_sound(large) {
            return None;
        }
        if (small, first_large) == (0, 0) {
            return Some(SegmentSizes::uniform(large));
        }
        let is_sound =
            is_sound(small) && small <= large && (1..MAX_SEGMENTS).contains(&first_large);
        is_sound.then_some(SegmentSizes {
            large,
            first_large,
            small,
        })
    }

    /// The small segments in a superblock: their bytes, and their number.
    pub(crate) fn small_words(&self) -> (u32, u32) {
        match self.first_large {
            0 => (0, 0),
            count => (self.small, count),
        }
    }

    /// Bytes of `segment`.
    #[inline]
    pub(crate) fn bytes_of(&self, segment: u32) -> u32 {
        if segment < self.first_large {
            self.small
        } else {
            self.large
        }
    }

    /// The offset of `segment` in the volume; the length of a volume of this many segments.
    #[inline]
    pub(crate) fn start_of(&self, segment: u32) -> u64 {
        let small = segment.min(self.first_large);
        u64::from(small) * u64::from(self.small)
            + u64::from(segment - small) * u64::from(self.large)
    }

    /// Whole segments of a volume of `bytes` bytes.
    pub(crate) fn whole_in(&self, bytes: u64) -> u32 {
        let all_small = self.start_of(self.first_large);
        let count = match bytes.checked_sub(all_small) {
            Some(rest) => u64::from(self.first_large) + rest / u64::from(self.large),
            None => bytes / u64::from(self.small),
        };
        count.min(u64::from(MAX_SEGMENTS)) as u32
    }

    /// Whether a volume of this many segments has large ones, and takes no small ones any more.
    #[inline]
    pub(crate) fn are_outgrown_by(&self, segments: u32) -> bool {
        segments > self.first_large
    }

    /// Segments that a volume of `segments` segments has for use.
    pub(crate) fn usable_of(&self, segments: u32) -> u32 {
        match self.are_outgrown_by(segments) {
            true => segments - self.first_large,
            false => segments,
        }
    }

    /// Bytes of a segment that a volume of `segments` segments takes for use.
    pub(crate) fn used_by(&self, segments: u32) -> u32 {
        match self.are_outgrown_by(segments) {
            true => self.large,
            false => self.small,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_lie_one_after_another() {
        let uniform = SegmentSizes::uniform(1 << 20);
        let mixed = SegmentSizes::decode(1 << 20, 64 << 10, 40).unwrap();
        for sizes in [uniform, mixed, SegmentSizes::small_first(2 << 20)] {
            for segment in 0..600 {
                let (start, end) = (sizes.start_of(segment), sizes.start_of(segment + 1));
                assert_eq!(end - start, u64::from(sizes.bytes_of(segment)));
                assert_eq!(sizes.whole_in(start), segment);
                assert_eq!(sizes.whole_in(end - 1), segment);
            }
            let (small, count) = sizes.small_words();
            assert_eq!(SegmentSizes::decode(sizes.large, small, count), Some(sizes));
        }
        assert!(uniform.are_outgrown_by(1));
        assert_eq!((uniform.usable_of(7), uniform.used_by(7)), (7, 1 << 20));
        assert_eq!((mixed.usable_of(40), mixed.used_by(40)), (40, 64 << 10));
        assert_eq!((mixed.usable_of(47), mixed.used_by(47)), (7, 1 << 20));
        for (small, count) in [(64 << 10, 0), (0, 5), (5000, 5), (2 << 20, 5)] {
            assert_eq!(SegmentSizes::decode(1 << 20, small, count), None);
        }
    }
}
