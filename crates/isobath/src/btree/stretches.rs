//! Stretches of keys, and sets of them.
//!
//! The key `k` is followed by `k` with a zero byte behind it, so each range of keys can be written
//! as one that has its start and not its end.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Direction;

/// Bytes that a stretch of a set takes beside those of its ends.
const OVERHEAD: usize = 128;

/// The keys from `start` on that are below `end`, if there is one. It is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
}

/// What follows `key` at once.
fn behind(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// Whether `key` is below the end of a stretch.
fn is_below(key: &[u8], end: &Option<Vec<u8>>) -> bool {
    end.as_ref().is_none_or(|end| key < &end[..])
}

fn later(a: Option<Vec<u8>>, b: Option<Vec<u8>>) -> Option<Vec<u8>> {
    Some(a?.max(b?))
}

impl Stretch {
    /// The keys within `bounds`; `None` if these hold none.
    pub(crate) fn new(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Option<Stretch> {
        let start = match bounds.0 {
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => Vec::new(),
        };
        let end = match bounds.1 {
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        is_below(&start, &end).then_some(Stretch { start, end })
    }

    /// The same keys as bounds, each of which is a key that may exist.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let lower = match self.start.split_last() {
            None => Bound::Unbounded,
            Some((0, key)) => Bound::Excluded(key),
            Some(_) => Bound::Included(&self.start[..]),
        };
        let upper = self.end.as_ref().map(|end| match end.split_last() {
            Some((0, key)) => Bound::Included(key),
            _ => Bound::Excluded(&end[..]),
        });
        (lower, upper.unwrap_or(Bound::Unbounded))
    }

    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        *self.start <= *key && is_below(key, &self.end)
    }

    /// Whether it has one of the keys from `lower` on that are below `upper`, if that is given.
    pub(crate) fn meets(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        is_below(lower, &self.end) && upper.is_none_or(|upper| &self.start[..] < upper)
    }

    /// Whether it has all of them.
    pub(crate) fn covers_range(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        let ends_before = |end: &Vec<u8>| upper.is_none_or(|upper| &end[..] < upper);
        *self.start <= *lower && !self.end.as_ref().is_some_and(ends_before)
    }

    /// Both as one, if nothing lies between them.
    pub(crate) fn joined(self, other: &Stretch) -> Option<Stretch> {
        let touches = |first: &Stretch, second: &Stretch| {
            first.end.as_ref().is_none_or(|end| *end >= second.start)
        };
        (touches(&self, other) && touches(other, &self)).then(|| Stretch {
            start: self.start.min(other.start.clone()),
            end: later(self.end, other.end.clone()),
        })
    }

    /// What a walk in this direction has passed where it comes to `key`, which is in the stretch.
    pub(crate) fn up_to(&self, key: &[u8], direction: Direction) -> Stretch {
        match direction {
            Direction::Forward => Stretch {
                start: self.start.clone(),
                end: Some(behind(key)),
            },
            Direction::Reverse => Stretch {
                start: key.to_vec(),
                end: self.end.clone(),
            },
        }
    }

    /// What a walk in this direction has left once it has passed `part`, with which it began.
    pub(crate) fn past(self, part: &Stretch, direction: Direction) -> Option<Stretch> {
        let left = match direction {
            Direction::Forward => Stretch {
                start: part.end.clone()?,
                end: self.end,
            },
            Direction::Reverse => Stretch {
                start: self.start,
                end: Some(part.start.clone()),
            },
        };
        is_below(&left.start, &left.end).then_some(left)
    }
}

/// Keys, as stretches that neither overlap nor touch: their starts and ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stretches {
    map: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

impl Stretches {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn covers(&self, key: &[u8]) -> bool {
        let last = self.last_from(Bound::Included(key));
        last.is_some_and(|(_, end)| is_below(key, end))
    }

    /// Adds the keys of a stretch.
    pub(crate) fn add(&mut self, stretch: Stretch) {
        let Stretch { start, mut end } = stretch;
        // Bound: each round takes one that the new one reaches.
        loop {
            let from = (Bound::Included(&start[..]), Bound::Unbounded);
            let Some((next, _)) = self.map.range::<[u8], _>(from).next() else {
                break;
            };
            if end.as_ref().is_some_and(|end| next > end) {
                break;
            }
            let next = next.clone();
            if let Some(next_end) = self.map.remove(&next) {
                self.bytes -= stretch_bytes(&next, &next_end);
                end = later(end, next_end);
            }
        }
        let below = (Bound::Unbounded, Bound::Excluded(&start[..]));
        if let Some((_, before)) = self.map.range_mut::<[u8], _>(below).next_back()
            && before.as_ref().is_none_or(|before| *before >= start)
        {
            let length = |end: &Option<Vec<u8>>| end.as_ref().map_or(0, Vec::len);
            self.bytes -= length(before);
            *before = later(before.take(), end);
            self.bytes += length(before);
            return;
        }
        self.bytes += stretch_bytes(&start, &end);
        self.map.insert(start, end);
    }

    /// The first piece of `whole` on a walk in this direction that is covered altogether, or not at
    /// all; which of the two.
    pub(crate) fn piece(&self, whole: &Stretch, direction: Direction) -> (bool, Stretch) {
        let (start, end) = (&whole.start[..], &whole.end);
        match direction {
            Direction::Forward => {
                let covering = self.last_from(Bound::Included(start));
                let covering = covering.filter(|(_, covered)| is_below(start, covered));
                let behind = (Bound::Excluded(start), Bound::Unbounded);
                let ends = match covering {
                    Some((_, covered)) => covered.as_ref(),
                    None => (self.map.range::<[u8], _>(behind).next()).map(|(next, _)| next),
                };
                let ends = ends.filter(|ends| is_below(ends, end)).or(end.as_ref());
                (covering.is_some(), piece(start, ends))
            }
            Direction::Reverse => {
                let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                match self.last_from(upper) {
                    Some((_, Some(covered))) if is_below(covered, end) => {
                        (false, piece(start.max(covered), end.as_ref()))
                    }
                    Some((first, _)) => (true, piece(start.max(first), end.as_ref())),
                    None => (false, whole.clone()),
                }
            }
        }
    }

    /// The last one that starts up to there.
    fn last_from(&self, upper: Bound<&[u8]>) -> Option<(&Vec<u8>, &Option<Vec<u8>>)> {
        let before = (Bound::Unbounded, upper);
        self.map.range::<[u8], _>(before).next_back()
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Stretch> {
        self.map
            .iter()
            .map(|(start, end)| piece(start, end.as_ref()))
    }
}

fn piece(start: &[u8], end: Option<&Vec<u8>>) -> Stretch {
    Stretch {
        start: start.to_vec(),
        end: end.cloned(),
    }
}

fn stretch_bytes(start: &[u8], end: &Option<Vec<u8>>) -> usize {
    OVERHEAD + start.len() + end.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..3, 0..3)
    }

    fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
        prop_oneof![
            Just(Bound::Unbounded),
            key().prop_map(Bound::Included),
            key().prop_map(Bound::Excluded),
        ]
    }

    fn stretch((lower, upper): &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Option<Stretch> {
        let bounds = (
            lower.as_ref().map(Vec::as_slice),
            upper.as_ref().map(Vec::as_slice),
        );
        let stretch = Stretch::new(bounds)?;
        let same = Stretch::new(stretch.bounds());
        assert_eq!(same.as_ref(), Some(&stretch));
        Some(stretch)
    }

    /// All keys of up to three bytes that `key` makes, and those that follow them.
    fn all_keys() -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new()];
        for length in 0..3 {
            let longer = keys.clone().into_iter().filter(|key| key.len() == length);
            let longer: Vec<_> = longer
                .flat_map(|key| (0..4u8).map(move |byte| [&key[..], &[byte]].concat()))
                .collect();
            keys.extend(longer);
        }
        keys
    }

    proptest! {
        #[test]
        fn a_set_covers_what_was_added_and_its_pieces_make_up_a_whole(
            added in prop::collection::vec((bound(), bound()), 0..8),
            whole in (bound(), bound()),
            is_reverse in any::<bool>(),
        ) {
            let added: Vec<_> = added.iter().filter_map(stretch).collect();
            let mut set = Stretches::default();
            added.iter().for_each(|stretch| set.add(stretch.clone()));
            let is_covered = |key: &[u8]| added.iter().any(|stretch| stretch.covers(key));
            let keys = all_keys();
            for key in &keys {
                prop_assert_eq!(set.covers(key), is_covered(key));
            }
            let bytes: usize = set.map.iter().map(|(start, end)| stretch_bytes(start, end)).sum();
            prop_assert_eq!(set.bytes(), bytes);
            let all: Vec<_> = set.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].end.as_ref() < Some(&pair[1].start)));
            let Some(whole) = stretch(&whole) else { return Ok(()) };
            let meets = all.iter().any(|one| {
                is_below(&one.start, &whole.end) && is_below(&whole.start, &one.end)
            });
            let (start, end) = (&whole.start, whole.end.as_deref());
            prop_assert_eq!(all.iter().any(|one| one.meets(start, end)), meets);
            let direction = match is_reverse {
                true => Direction::Reverse,
                false => Direction::Forward,
            };
            let mut pieces = Vec::new();
            let mut left = Some(whole.clone());
            while let Some(rest) = left {
                let (is_hidden, piece) = set.piece(&rest, direction);
                left = rest.past(&piece, direction);
                pieces.push((is_hidden, piece));
            }
            for key in &keys {
                let holding: Vec<_> = pieces.iter().filter(|(_, piece)| piece.covers(key)).collect();
                prop_assert_eq!(holding.len(), usize::from(whole.covers(key)));
                prop_assert!(holding.iter().all(|(is_hidden, _)| *is_hidden == is_covered(key)));
            }
            prop_assert!(pieces.windows(2).all(|pair| pair[0].0 != pair[1].0));
        }
    }
}
