//! Key groups: keys whose first bytes, masked, are a pattern.

use std::ops::Bound;

use super::types::{kvs_key_group_filter, limits::MAX_KEY_GROUP_BYTES};

/// A valid filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filter {
    mask: u32,
    pattern: u32,
}

impl Filter {
    /// Bits of the pattern that the mask has not do not count: programs leave them there, and
    /// key-value drives ignore them.
    pub(crate) fn new(filter: &kvs_key_group_filter) -> Filter {
        let (mask, pattern) = Filter::words(filter);
        Filter {
            mask,
            pattern: pattern & mask,
        }
    }

    /// `None` if there are such bits: taken literally no key could match, and what destroys must
    /// not guess.
    pub(crate) fn literal(filter: &kvs_key_group_filter) -> Option<Filter> {
        let (mask, pattern) = Filter::words(filter);
        (pattern & !mask == 0).then_some(Filter { mask, pattern })
    }

    /// Mask and pattern as numbers.
    fn words(filter: &kvs_key_group_filter) -> (u32, u32) {
        // As keys compare: the first byte counts most.
        let word = |bytes: [u8; MAX_KEY_GROUP_BYTES]| {
            bytes
                .iter()
                .fold(0, |word, byte| word << 8 | u32::from(*byte))
        };
        (word(filter.bitmask), word(filter.bit_pattern))
    }

    /// Whether a key, which has at least 4 bytes, belongs to the group.
    pub(crate) fn matches(&self, key: &[u8]) -> bool {
        let word = key
            .iter()
            .take(MAX_KEY_GROUP_BYTES)
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
        word & self.mask == self.pattern
    }

    /// The least range of keys that holds the group: the bits before the mask's first zero say
    /// where it is.
    pub(crate) fn range(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let bits = self.mask.leading_ones();
        let bytes = |word: u32| {
            (0..MAX_KEY_GROUP_BYTES)
                .map(|at| (word >> (24 - 8 * at)) as u8)
                .collect()
        };
        if bits == 0 {
            return (Bound::Unbounded, Bound::Unbounded);
        }
        let last = 1u32 << (32 - bits);
        let first = self.pattern & !(last - 1);
        let upper = match first.checked_add(last) {
            Some(next) => Bound::Excluded(bytes(next)),
            None => Bound::Unbounded,
        };
        (Bound::Included(bytes(first)), upper)
    }

    /// Whether every key of the range belongs to the group.
    pub(crate) fn is_range(&self) -> bool {
        self.mask.leading_ones() == self.mask.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(bitmask: [u8; 4], bit_pattern: [u8; 4]) -> kvs_key_group_filter {
        kvs_key_group_filter {
            bitmask,
            bit_pattern,
        }
    }

    #[test]
    #[allow(clippy::big_endian_bytes, reason = "as keys compare")]
    fn ranges_hold_the_keys_that_match() {
        let masks = [
            [0, 0, 0, 0],
            [0xff, 0, 0, 0],
            [0xff, 0xff, 0xff, 0xff],
            [0xf0, 0, 0, 0],
            [0xff, 0, 0xff, 0],
            [0, 0, 0, 0x01],
            [0x80, 0, 0, 0],
        ];
        let words = [
            0u32,
            1,
            0x6162_6364,
            0x7fff_ffff,
            0x8000_0000,
            0xff00_ff00,
            u32::MAX,
        ];
        for mask in masks {
            for pattern in words {
                let pattern = u32::from_be_bytes(mask) & pattern;
                let filter = Filter::literal(&raw(mask, pattern.to_be_bytes())).unwrap();
                let range = filter.range();
                for word in words
                    .iter()
                    .flat_map(|w| [*w, w.wrapping_add(1), w.wrapping_sub(1)])
                {
                    let key = word.to_be_bytes();
                    let is_inside =
                        std::ops::RangeBounds::<Vec<u8>>::contains(&range, &key.to_vec());
                    let matches = word & u32::from_be_bytes(mask) == pattern;
                    assert_eq!(filter.matches(&key), matches);
                    assert!(is_inside || !matches, "{mask:x?} {pattern:x} {word:x}");
                    assert!(
                        !filter.is_range() || is_inside == matches,
                        "{mask:x?} {pattern:x} {word:x}"
                    );
                }
            }
        }
    }

    #[test]
    fn bits_outside_the_mask_do_not_count() {
        let (more, exact) = (
            raw([0xff, 0xff, 0, 0], *b"0000"),
            raw([0xff, 0xff, 0, 0], [b'0', b'0', 0, 0]),
        );
        assert_eq!(Filter::new(&more), Filter::new(&exact));
        assert!(Filter::new(&more).matches(b"00zz") && !Filter::new(&more).matches(b"01zz"));
        assert_eq!(Filter::literal(&more), None);
        assert_eq!(Filter::literal(&exact), Some(Filter::new(&exact)));
    }
}
