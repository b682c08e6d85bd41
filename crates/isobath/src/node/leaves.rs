//! An ordered map of records in memory: leaves that no page id names, under one list of separators.
//!
//! It has what an overlay takes in before that is a run. Nothing is ever removed.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{
    Block, Builder, Edit, Image, LeafEdit, LeafSplit, MalformedNode, Node, Pending, Source,
};
use crate::error::StorageError;
use crate::page::PAGE_SIZE;
use crate::types::{TreeId, ValueKind, ValueRef};

/// All leaves have it; no tree does.
const OWNER: TreeId = TreeId(u32::MAX);

/// The map.
#[derive(Default)]
pub(crate) struct Leaves {
    /// By the least key that each may have.
    leaves: BTreeMap<Box<[u8]>, Block>,
    records: u64,
}

/// A record of it.
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) kind: ValueKind,
    pub(crate) bytes: Vec<u8>,
}

impl Record {
    /// Its value.
    pub(crate) fn value(&self) -> ValueRef<'_> {
        ValueRef {
            kind: self.kind,
            bytes: &self.bytes,
        }
    }
}

impl From<MalformedNode> for StorageError {
    fn from(why: MalformedNode) -> StorageError {
        StorageError::Structure {
            page: 0,
            reason: why.0,
        }
    }
}

impl Leaves {
    /// Number of records.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Bytes that the leaves take.
    pub(crate) fn bytes(&self) -> u64 {
        (self.leaves.len() * PAGE_SIZE) as u64
    }

    /// Gives `key` this value, in a block of `lend` if there is no space for it.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: ValueRef<'_>,
        mut lend: impl FnMut() -> Block,
    ) -> Result<(), StorageError> {
        assert!(value.is_storable(key.len()), "an oversized value");
        if self.leaves.is_empty() {
            let leaf = Builder::new(OWNER, 0, &[], None).finish();
            self.add(&[], &leaf, lend());
        }
        // Bound: once the leaf is split there is space for the record.
        loop {
            let Some((lower, leaf)) = self.leaves.range_mut::<[u8], _>(up_to(key)).next_back()
            else {
                return Err(MalformedNode("the first leaf is gone").into());
            };
            let mut edit = LeafEdit::open(leaf.words(), OWNER)?;
            let suffix = edit.node().suffix_of(key)?;
            let (position, found) = edit.node().search(suffix)?;
            if edit.put(position, found, suffix, value)? == Edit::Done {
                self.records += u64::from(!found);
                return Ok(());
            }
            let image = Image::copy_of(leaf.words());
            let node = Node::open(&*image, OWNER)?;
            let pending = Pending {
                key,
                value_len: value.bytes.len(),
            };
            let split = LeafSplit::choose(node, pending)?;
            let (left, right) = split.build(node, OWNER, lower)?;
            leaf.words().store_all(left.bytes());
            self.add(split.separator(), &right, lend());
        }
    }

    fn add(&mut self, lower: &[u8], leaf: &Image, block: Block) {
        block.words().store_all(leaf.bytes());
        self.leaves.insert(lower.into(), block);
    }

    /// Whether there is a record of `key`.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn has(&self, key: &[u8]) -> Result<bool, StorageError> {
        let Some((_, leaf)) = self.leaves.range::<[u8], _>(up_to(key)).next_back() else {
            return Ok(false);
        };
        let node = Node::open(leaf.words(), OWNER)?;
        Ok(node.search(node.suffix_of(key)?)?.1)
    }

    /// Appends the value of `key` to `into`; its kind, if there is one.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn read(
        &self,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<ValueKind>, StorageError> {
        let Some((_, leaf)) = self.leaves.range::<[u8], _>(up_to(key)).next_back() else {
            return Ok(None);
        };
        let node = Node::open(leaf.words(), OWNER)?;
        let (position, found) = node.search(node.suffix_of(key)?)?;
        if !found {
            return Ok(None);
        }
        let value = node.value(position)?;
        node.append(value.at, value.len, into)?;
        Ok(Some(value.kind))
    }

    /// Up to `most` records within `bounds`, from their start or from their end on.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn within(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        is_forward: bool,
        most: usize,
    ) -> Result<Vec<Record>, StorageError> {
        let mut found = Vec::new();
        if is_empty(bounds) {
            return Ok(found);
        }
        let (lower, upper) = bounds;
        let first = match lower {
            Bound::Unbounded => None,
            Bound::Included(lower) | Bound::Excluded(lower) => {
                let from = self.leaves.range::<[u8], _>(up_to(lower)).next_back();
                from.map(|(separator, _)| &**separator)
            }
        };
        let from = first.map_or(Bound::Unbounded, Bound::Included);
        let mut leaves = self.leaves.range::<[u8], _>((from, upper));
        while found.len() < most
            && let Some((separator, leaf)) = match is_forward {
                true => leaves.next(),
                false => leaves.next_back(),
            }
        {
            let node = Node::open(leaf.words(), OWNER)?;
            let (start, end) = positions(node, bounds, first == Some(&**separator))?;
            for step in 0..(end - start).min(most - found.len()) {
                let position = match is_forward {
                    true => start + step,
                    false => end - 1 - step,
                };
                let (mut key, mut bytes) = (Vec::new(), Vec::new());
                node.key(position, &mut key)?;
                let value = node.value(position)?;
                node.append(value.at, value.len, &mut bytes)?;
                found.push(Record {
                    key,
                    kind: value.kind,
                    bytes,
                });
            }
        }
        Ok(found)
    }
}

/// The separators among which the last one is that of the leaf of `key`.
fn up_to(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}

/// The positions of the leaf's records within `bounds`, whose lower one is in its range if it
/// `is_first`, and below that if not; the upper one is not below it.
fn positions<S: Source>(
    node: Node<'_, S>,
    bounds: (Bound<&[u8]>, Bound<&[u8]>),
    is_first: bool,
) -> Result<(usize, usize), MalformedNode> {
    let start = match bounds.0 {
        Bound::Included(lower) if is_first => node.search(node.suffix_of(lower)?)?.0,
        Bound::Excluded(lower) if is_first => {
            let (below, found) = node.search(node.suffix_of(lower)?)?;
            below + usize::from(found)
        }
        _ => 0,
    };
    let mut fence = Vec::new();
    let has_fence = node.upper(&mut fence)?;
    let end = match bounds.1 {
        Bound::Included(upper) | Bound::Excluded(upper) if !has_fence || upper < &fence[..] => {
            let (below, found) = node.search(node.suffix_of(upper)?)?;
            let with_upper = matches!(bounds.1, Bound::Included(_));
            below + usize::from(found && with_upper)
        }
        _ => node.count(),
    };
    Ok((start.min(end), end))
}

/// Whether no key lies within the bounds; a map refuses some of those.
fn is_empty(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::*;

    fn bound(kind: u8, key: &[u8]) -> Bound<&[u8]> {
        match kind {
            0 => Bound::Unbounded,
            1 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    }

    proptest! {
        /// Keys with long common prefixes and none, values from nothing to a third of a page.
        #[test]
        fn are_a_map(
            puts in prop::collection::vec((0u8..3, 0u16..400, 0usize..1300, any::<bool>()), 1..400),
            scans in prop::collection::vec((0u8..3, 0u16..400, 0u8..3, 0u16..400, any::<bool>(), 1usize..80), 1..20),
        ) {
            let key = |prefix: u8, number: u16| {
                let mut key = vec![prefix; usize::from(prefix) * 300];
                key.extend_from_slice(number.to_string().as_bytes());
                key
            };
            let mut leaves = Leaves::default();
            let mut model = BTreeMap::new();
            for (prefix, number, length, is_extent) in puts {
                let key = key(prefix, number);
                let bytes = vec![number as u8; if is_extent { length % 8 } else { length }];
                let value = match is_extent {
                    true => ValueRef::extent(&bytes),
                    false => ValueRef::inline(&bytes),
                };
                if !value.is_storable(key.len()) {
                    continue;
                }
                leaves.put(&key, value, Block::own).unwrap();
                model.insert(key, (value.kind, bytes));
            }
            prop_assert_eq!(leaves.records(), model.len() as u64);
            for (key, (kind, value)) in &model {
                let mut into = vec![1];
                prop_assert_eq!(leaves.read(key, &mut into).unwrap(), Some(*kind));
                prop_assert!(leaves.has(key).unwrap());
                prop_assert_eq!(&into[1..], &value[..]);
            }
            prop_assert_eq!(leaves.read(b"none", &mut Vec::new()).unwrap(), None);
            prop_assert!(!leaves.has(b"none").unwrap());
            for (from, lower, to, upper, is_forward, most) in scans {
                let (lower, upper) = (key((lower % 3) as u8, lower), key((upper % 3) as u8, upper));
                let bounds = (bound(from, &lower), bound(to, &upper));
                let found = leaves.within(bounds, is_forward, most).unwrap();
                let found: Vec<_> = found.into_iter().map(|record| (record.key, (record.kind, record.bytes))).collect();
                let mut expected: Vec<_> = match is_empty(bounds) {
                    true => Vec::new(),
                    false => model.range::<[u8], _>(bounds).map(|(key, value)| (key.clone(), value.clone())).collect(),
                };
                if !is_forward {
                    expected.reverse();
                }
                expected.truncate(most);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
