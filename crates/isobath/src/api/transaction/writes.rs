//! Keys in their order with what they are going to have.

use std::cmp::Ordering;
use std::ops::Bound;

use super::write_set::Write;
use crate::txn::versions::Bounds;

/// Most keys of a block.
const BLOCK: usize = 128;

/// Changes by key: blocks in order, none of which is empty.
///
/// Ascending keys, as loops and scans give them, are added to the last block without a search.
#[derive(Default)]
pub(super) struct Writes {
    blocks: Vec<Vec<Entry>>,
}

struct Entry {
    /// See [`head`].
    head: u64,
    key: Vec<u8>,
    write: Write,
}

/// The first bytes of a key, as a number of the same order: most comparisons need no more, and so
/// no look at the key's own memory.
fn head(key: &[u8]) -> u64 {
    let bytes = key.iter().copied().chain(std::iter::repeat(0));
    bytes
        .take(8)
        .fold(0, |head, byte| head << 8 | u64::from(byte))
}

impl Entry {
    #[inline]
    fn cmp(&self, head: u64, key: &[u8]) -> Ordering {
        self.head.cmp(&head).then_with(|| (*self.key).cmp(key))
    }
}

/// Where a key is, or belongs: a block, and the index in that.
type At = (usize, Result<usize, usize>);

impl Writes {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    fn find(&self, key: &[u8]) -> At {
        let head = head(key);
        let last = self.blocks.last();
        if let Some((block, entry)) = last.and_then(|block| Some((block, block.last()?)))
            && entry.cmp(head, key) == Ordering::Less
        {
            return (self.blocks.len() - 1, Err(block.len()));
        }
        let is_below = |block: &Vec<Entry>| block[0].cmp(head, key) != Ordering::Greater;
        let at = self.blocks.partition_point(is_below).saturating_sub(1);
        let block = self.blocks.get(at).map_or(&[][..], Vec::as_slice);
        (at, block.binary_search_by(|entry| entry.cmp(head, key)))
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Write> {
        match self.find(key) {
            (block, Ok(at)) => Some(&self.blocks[block][at].write),
            _ => None,
        }
    }

    pub(super) fn contains_key(&self, key: &[u8]) -> bool {
        matches!(self.find(key), (_, Ok(_)))
    }

    /// Gives `key` a change; the one that it had.
    pub(super) fn insert<K: AsRef<[u8]> + Into<Vec<u8>>>(
        &mut self,
        key: K,
        write: Write,
    ) -> Option<Write> {
        let (block, at) = match self.find(key.as_ref()) {
            (block, Ok(at)) => {
                return Some(std::mem::replace(&mut self.blocks[block][at].write, write));
            }
            (block, Err(at)) => (block, at),
        };
        let (head, key) = (head(key.as_ref()), key.into());
        let entry = Entry { head, key, write };
        let Some(keys) = self.blocks.get_mut(block) else {
            self.blocks.push(vec![entry]);
            return None;
        };
        if keys.len() < BLOCK {
            keys.insert(at, entry);
            return None;
        }
        // Ascending keys leave full blocks behind; descending ones go to the block behind these.
        if at == BLOCK
            && let Some(next) = self.blocks.get_mut(block + 1)
            && next.len() < BLOCK
        {
            next.insert(0, entry);
            return None;
        }
        let keys = &mut self.blocks[block];
        let cut = if at == BLOCK { BLOCK } else { BLOCK / 2 };
        let mut second = Vec::with_capacity(BLOCK);
        second.extend(keys.drain(cut..));
        match at.checked_sub(cut) {
            Some(at) => second.insert(at, entry),
            None => keys.insert(at, entry),
        }
        self.blocks.insert(block + 1, second);
        None
    }

    /// Takes the change of `key` away.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Write> {
        let (block, Ok(at)) = self.find(key) else {
            return None;
        };
        let Entry { write, .. } = self.blocks[block].remove(at);
        let keys = &mut self.blocks[block];
        if keys.is_empty() {
            self.blocks.remove(block);
        } else if keys.len() < keys.capacity() / 4 {
            keys.shrink_to(2 * keys.len());
        }
        Some(write)
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = Write> {
        self.blocks.into_iter().flatten().map(|entry| entry.write)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &Write)> + Clone {
        self.range((Bound::Unbounded, Bound::Unbounded))
    }

    /// The changes of keys within `bounds`, in order.
    pub(super) fn range<'w>(
        &'w self,
        bounds: Bounds<'_>,
    ) -> impl DoubleEndedIterator<Item = (&'w [u8], &'w Write)> + Clone + use<'w> {
        let behind = |key: &[u8], is_passed: bool| match self.find(key) {
            (block, Ok(at)) => (block, at + usize::from(is_passed)),
            (block, Err(at)) => (block, at),
        };
        let from = match bounds.0 {
            Bound::Included(key) => behind(key, false),
            Bound::Excluded(key) => behind(key, true),
            Bound::Unbounded => (0, 0),
        };
        let to = match bounds.1 {
            Bound::Included(key) => behind(key, true),
            Bound::Excluded(key) => behind(key, false),
            Bound::Unbounded => (self.blocks.len(), 0),
        };
        let end = self.blocks.len().min(to.0 + 1);
        let blocks = self.blocks.get(from.0..end).unwrap_or_default();
        let keys = blocks.iter().enumerate().flat_map(move |(at, block)| {
            let first = if at == 0 { from.1 } else { 0 };
            let end = if from.0 + at == to.0 {
                to.1
            } else {
                block.len()
            };
            block.get(first..end).unwrap_or_default()
        });
        keys.map(|entry| (&entry.key[..], &entry.write))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn write(number: u8) -> Write {
        Write::Inline(Box::new([number]))
    }

    /// However runs of keys go, blocks are at least a quarter full on average.
    #[test]
    fn few_blocks_hold_ascending_and_descending_keys() {
        let mut writes = Writes::default();
        let mut count = 0;
        let mut insert = |number: u32| {
            let key = number.swap_bytes().to_le_bytes();
            assert_eq!(writes.insert(&key[..], write(1)), None);
            count += 1;
            assert!(writes.blocks.len() <= 2 + 4 * count / BLOCK, "{count}");
        };
        (0..8 * BLOCK as u32).for_each(&mut insert);
        (100_000..103_000).rev().for_each(&mut insert);
        (50_000..53_000).for_each(&mut insert);
        (60_000..63_000).rev().for_each(&mut insert);
    }

    proptest! {
        /// Few keys, so that blocks are split at all places, emptied, and keys met again.
        #[test]
        fn it_is_a_map(
            steps in prop::collection::vec((0u8..8, 0u16..2000), 0..1500),
            ranges in prop::collection::vec((0u16..2000, 0u16..2000, 0u8..9), 0..30),
            zeros in 0usize..10,
        ) {
            let key = |number: u16| {
                let mut key = vec![0; zeros];
                key.extend([(number >> 8) as u8, number as u8]);
                key
            };
            let (mut ours, mut model) = (Writes::default(), BTreeMap::new());
            let mut last = 0;
            for (kind, number) in steps {
                // Runs of ascending and descending keys, and others.
                last = match kind {
                    0..4 => last + number % 3,
                    4 => last.saturating_sub(number % 3),
                    _ => number,
                };
                let key = key(last);
                match kind {
                    7 => prop_assert_eq!(ours.remove(&key), model.remove(&key)),
                    _ => {
                        let new = write(number as u8);
                        prop_assert_eq!(ours.insert(&key[..], new.clone()), model.insert(key, new));
                    }
                }
                prop_assert_eq!(ours.is_empty(), model.is_empty());
            }
            for (from, to, kind) in ranges {
                let (from, to) = (key(from.min(to)), key(from.max(to)));
                prop_assert_eq!(ours.get(&from), model.get(&from));
                prop_assert_eq!(ours.contains_key(&to), model.contains_key(&to));
                let bound = |kind, key| match kind {
                    0 => Bound::Included(key),
                    1 => Bound::Excluded(key),
                    _ => Bound::Unbounded,
                };
                let bounds = (bound(kind / 3, &from[..]), bound(kind % 3, &to[..]));
                if from == to && kind / 3 == 1 && kind % 3 == 1 {
                    continue;
                }
                let expected = model.range::<[u8], _>(bounds);
                let expected: Vec<_> = expected.map(|(key, write)| (&key[..], write)).collect();
                prop_assert_eq!(ours.range(bounds).collect::<Vec<_>>(), expected.clone());
                let reversed: Vec<_> = expected.into_iter().rev().collect();
                prop_assert_eq!(ours.range(bounds).rev().collect::<Vec<_>>(), reversed);
            }
            let all: Vec<_> = model.iter().map(|(key, write)| (&key[..], write)).collect();
            prop_assert_eq!(ours.iter().collect::<Vec<_>>(), all);
            prop_assert!(ours.blocks.iter().all(|block| (1..=BLOCK).contains(&block.len())));
            prop_assert_eq!(ours.into_values().collect::<Vec<_>>(), model.into_values().collect::<Vec<_>>());
        }
    }
}
