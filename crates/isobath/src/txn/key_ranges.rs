//! A set of keys, as disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::versions::Bounds;

/// A place between two keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Cut {
    /// Before the key, or behind it.
    At(Vec<u8>, bool),
    /// Behind all keys.
    End,
}

impl Cut {
    fn is_behind(&self, key: &[u8]) -> bool {
        match self {
            Cut::At(cut, is_behind) => (key, false) < (&cut[..], *is_behind),
            Cut::End => true,
        }
    }

    /// As the lower bound of a range.
    fn as_lower(&self) -> Bound<&[u8]> {
        match self {
            Cut::At(key, true) => Bound::Excluded(key),
            Cut::At(key, false) => Bound::Included(key),
            // No map has a range that begins there.
            Cut::End => Bound::Unbounded,
        }
    }
}

/// The ranges: where each begins and ends. No two of them meet.
#[derive(Default, Debug)]
pub(crate) struct KeyRanges(BTreeMap<Cut, Cut>);

impl KeyRanges {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds all keys of a range; one that holds none says nothing.
    pub(crate) fn add(&mut self, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) {
        let mut from = match lower {
            Bound::Unbounded => Cut::At(Vec::new(), false),
            Bound::Included(key) => Cut::At(key, false),
            Bound::Excluded(key) => Cut::At(key, true),
        };
        let mut to = match upper {
            Bound::Unbounded => Cut::End,
            Bound::Included(key) => Cut::At(key, true),
            Bound::Excluded(key) => Cut::At(key, false),
        };
        if to <= from {
            return;
        }
        // Bound: each round takes a range out.
        while let Some((begin, end)) = self.0.range(..=&to).next_back()
            && *end >= from
        {
            if *begin <= from && *end >= to {
                return;
            }
            let begin = begin.clone();
            let end = self.0.remove(&begin);
            to = end.map_or(to.clone(), |end| end.max(to));
            from = begin.min(from);
        }
        self.0.insert(from, to);
    }

    pub(crate) fn add_key(&mut self, key: &[u8]) {
        self.add(Bound::Included(key.to_vec()), Bound::Included(key.to_vec()));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn sorted(&self) -> SortedRanges<'_> {
        SortedRanges(self.0.iter().collect())
    }
}

/// The position of a key.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Position {
    Within,
    /// Before the range of this index, behind the one before it.
    Before(usize),
}

/// Ranges in ascending order.
pub(crate) struct SortedRanges<'r>(Vec<(&'r Cut, &'r Cut)>);

impl SortedRanges<'_> {
    /// All keys from the range at `index` on.
    pub(crate) fn from(&self, index: usize) -> Option<Bounds<'_>> {
        let (lower, (_, upper)) = (self.0.get(index)?.0, self.0.last()?);
        let upper = match upper {
            Cut::End => Bound::Unbounded,
            Cut::At(key, true) => Bound::Included(&key[..]),
            Cut::At(key, false) => Bound::Excluded(&key[..]),
        };
        Some((lower.as_lower(), upper))
    }

    pub(crate) fn position(&self, key: &[u8]) -> Position {
        let next = self.0.partition_point(|(from, _)| !from.is_behind(key));
        match next.checked_sub(1) {
            Some(at) if self.0[at].1.is_behind(key) => Position::Within,
            _ => Position::Before(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
        prop_oneof![
            1 => Just(Bound::Unbounded),
            6 => (0..24_u8).prop_map(|key| Bound::Included(vec![key])),
            6 => (0..24_u8).prop_map(|key| Bound::Excluded(vec![key])),
        ]
    }

    proptest! {
        /// It holds the keys of all ranges, in as few as possible.
        #[test]
        fn they_hold_what_was_added(ranges in prop::collection::vec((bound(), bound()), 0..10)) {
            let mut all = KeyRanges::default();
            let mut holds = [false; 24_usize];
            for (lower, upper) in ranges {
                for key in 0..24_u8 {
                    let above = match &lower {
                        Bound::Unbounded => true,
                        Bound::Included(lower) => key >= lower[0],
                        Bound::Excluded(lower) => key > lower[0],
                    };
                    holds[usize::from(key)] |= above && match &upper {
                        Bound::Unbounded => true,
                        Bound::Included(upper) => key <= upper[0],
                        Bound::Excluded(upper) => key < upper[0],
                    };
                }
                all.add(lower, upper);
            }
            let sorted = all.sorted();
            for key in 0..24_u8 {
                let position = sorted.position(&[key]);
                prop_assert_eq!(position == Position::Within, holds[usize::from(key)]);
                if let Position::Before(next) = position {
                    let is_before = |index: usize| sorted.0[index].0.is_behind(&[key]);
                    prop_assert!(next == sorted.0.len() || is_before(next));
                    prop_assert!(next == 0 || !is_before(next - 1));
                }
            }
            prop_assert!(sorted.0.windows(2).all(|two| two[0].1 < two[1].0));
        }
    }
}
