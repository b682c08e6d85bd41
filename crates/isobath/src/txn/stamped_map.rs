//! An ordered map that knows the newest stamp below each of its nodes, so that a look for the keys
//! of a range with a stamp at or above another passes over all the rest.
//!
//! A B-tree: each node but the root has [`MIN_ITEMS`] to [`MAX_ITEMS`] items, so the depth, and
//! with it every recursion here, is below 16. With `n` keys a change costs O(log n), and a visit
//! O(log n) for each key that it is shown, however many it passes over.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::versions::Bounds;
use crate::btree::Direction;

const MAX_ITEMS: usize = 32;
const MIN_ITEMS: usize = MAX_ITEMS / 4;

/// A value with a stamp.
pub(super) trait Stamped: Default {
    /// Its newest stamp.
    fn newest(&self) -> u64;
    /// Whether the map is to forget it.
    fn is_empty(&self) -> bool;
}

type Node<V> = Vec<Item<V>>;

struct Item<V> {
    /// The key, or the lowest one below.
    key: Arc<[u8]>,
    /// The newest stamp of the value, or of all below.
    newest: u64,
    content: Content<V>,
}

enum Content<V> {
    Value(V),
    Node(Node<V>),
}

/// The map.
pub(super) struct StampedMap<V> {
    root: Node<V>,
    /// Items that visits have looked at.
    #[cfg(test)]
    pub(super) visited: std::cell::Cell<u64>,
}

impl<V> Default for StampedMap<V> {
    fn default() -> StampedMap<V> {
        StampedMap {
            root: Vec::new(),
            #[cfg(test)]
            visited: std::cell::Cell::default(),
        }
    }
}

/// A visit's callback, with a key and its value.
pub(super) type Visitor<'v, V, B> = dyn FnMut(&Arc<[u8]>, &V) -> ControlFlow<B> + 'v;

impl<V: Stamped> StampedMap<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&V> {
        let mut node = &self.root;
        loop {
            let at = above(node, key).checked_sub(1)?;
            match &node[at].content {
                Content::Node(below) => node = below,
                Content::Value(value) => return (*node[at].key == *key).then_some(value),
            }
        }
    }

    /// Has `change` change what `key` has, the default if nothing. What is empty afterwards goes.
    pub(super) fn change<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&Arc<[u8]>, &mut V) -> R,
    ) -> R {
        let result = change_in(&mut self.root, key, change);
        if let Some(right) = split(&mut self.root) {
            let left = std::mem::take(&mut self.root);
            self.root
                .extend([left, right].into_iter().filter_map(as_item));
        }
        if let [
            Item {
                content: Content::Node(only),
                ..
            },
        ] = &mut self.root[..]
        {
            self.root = std::mem::take(only);
        }
        result
    }

    /// Shows the keys within `bounds` whose newest stamp is at or above `at`, until `visitor`
    /// breaks.
    pub(super) fn visit<B>(
        &self,
        bounds: Bounds<'_>,
        at: u64,
        direction: Direction,
        visitor: &mut Visitor<'_, V, B>,
    ) -> ControlFlow<B> {
        self.visit_in(&self.root, bounds, at, direction, visitor)
    }

    fn visit_in<B>(
        &self,
        node: &Node<V>,
        bounds: Bounds<'_>,
        at: u64,
        direction: Direction,
        visitor: &mut Visitor<'_, V, B>,
    ) -> ControlFlow<B> {
        let mut start = node.partition_point(|item| is_below(&item.key, bounds.0));
        let end = node.partition_point(|item| !is_above(&item.key, bounds.1));
        // A node's range begins with its lowest key, and holds the bound if that is higher.
        if let Some(before) = start.checked_sub(1)
            && matches!(node[before].content, Content::Node(_))
        {
            start = before;
        }
        let mut visit = |item: &Item<V>| {
            #[cfg(test)]
            self.visited.set(self.visited.get() + 1);
            if item.newest < at {
                return ControlFlow::Continue(());
            }
            match &item.content {
                Content::Value(value) => visitor(&item.key, value),
                Content::Node(below) => self.visit_in(below, bounds, at, direction, visitor),
            }
        };
        let mut items = node.get(start..end).unwrap_or_default().iter();
        match direction {
            Direction::Forward => items.try_for_each(&mut visit),
            Direction::Reverse => items.rev().try_for_each(&mut visit),
        }
    }

    /// Shows everything.
    pub(super) fn for_each(&self, mut visitor: impl FnMut(&V)) {
        let all = (Bound::Unbounded, Bound::Unbounded);
        // Nothing breaks it off.
        let _ = self.visit::<()>(all, 0, Direction::Forward, &mut |_, value| {
            visitor(value);
            ControlFlow::Continue(())
        });
    }
}

/// The first item whose key is above `key`.
fn above<V>(node: &Node<V>, key: &[u8]) -> usize {
    node.partition_point(|item| *item.key <= *key)
}

fn is_below(key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Unbounded => false,
        Bound::Included(lower) => key < lower,
        Bound::Excluded(lower) => key <= lower,
    }
}

fn is_above(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Unbounded => false,
        Bound::Included(upper) => key > upper,
        Bound::Excluded(upper) => key >= upper,
    }
}

fn as_item<V>(node: Node<V>) -> Option<Item<V>> {
    let newest = node.iter().map(|item| item.newest).max()?;
    let key = Arc::clone(&node.first()?.key);
    let content = Content::Node(node);
    Some(Item {
        key,
        newest,
        content,
    })
}

/// The upper half of a node that has too many items.
fn split<V>(node: &mut Node<V>) -> Option<Node<V>> {
    (node.len() > MAX_ITEMS).then(|| node.split_off(MAX_ITEMS / 2))
}

fn change_in<V: Stamped, R>(
    node: &mut Node<V>,
    key: &[u8],
    change: impl FnOnce(&Arc<[u8]>, &mut V) -> R,
) -> R {
    let above = above(node, key);
    let at = above.saturating_sub(1);
    match node.get_mut(at) {
        Some(Item {
            content: Content::Node(below),
            ..
        }) => {
            let result = change_in(below, key, change);
            balance(node, at);
            result
        }
        Some(Item {
            key: found,
            newest,
            content: Content::Value(value),
        }) if **found == *key => {
            let result = change(found, value);
            *newest = value.newest();
            if value.is_empty() {
                node.remove(at);
            }
            result
        }
        _ => {
            let (key, mut value) = (Arc::from(key), V::default());
            let result = change(&key, &mut value);
            if !value.is_empty() {
                let (newest, content) = (value.newest(), Content::Value(value));
                node.insert(
                    above,
                    Item {
                        key,
                        newest,
                        content,
                    },
                );
            }
            result
        }
    }
}

/// The node below the item at `at` has changed: splits it or merges it with a neighbour, if it has
/// too many items or too few, and says again what is below.
fn balance<V>(node: &mut Node<V>, at: usize) {
    let Content::Node(below) = &mut node[at].content else {
        return;
    };
    let mut changed = std::mem::take(below);
    let mut left = at;
    if changed.len() < MIN_ITEMS && node.len() > 1 {
        left = at.saturating_sub(1);
        let other = if at == left { at + 1 } else { left };
        if let Content::Node(beside) = node.remove(other).content {
            changed = if other < at {
                join(beside, changed)
            } else {
                join(changed, beside)
            };
        }
    }
    let right = split(&mut changed).and_then(as_item);
    match as_item(changed) {
        Some(item) => node[left] = item,
        None => drop(node.remove(left)),
    }
    if let Some(right) = right {
        node.insert(left + 1, right);
    }
}

fn join<V>(mut left: Node<V>, right: Node<V>) -> Node<V> {
    left.extend(right);
    left
}

#[cfg(test)]
#[allow(clippy::big_endian_bytes, reason = "keys in their order")]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Stamp(u64);

    impl Stamped for Stamp {
        fn newest(&self) -> u64 {
            self.0
        }

        fn is_empty(&self) -> bool {
            self.0 == 0
        }
    }

    fn set(map: &mut StampedMap<Stamp>, key: &[u8], stamp: u64) {
        map.change(key, |_, value| value.0 = stamp);
    }

    fn found(
        map: &StampedMap<Stamp>,
        bounds: Bounds<'_>,
        at: u64,
        direction: Direction,
    ) -> Vec<(Vec<u8>, u64)> {
        let mut found = Vec::new();
        let ended = map.visit::<()>(bounds, at, direction, &mut |key, value| {
            found.push((key.to_vec(), value.0));
            ControlFlow::Continue(())
        });
        assert!(ended.is_continue());
        found
    }

    /// Each node but the root has as many items as it must, and all leaves are as deep.
    fn check(node: &Node<Stamp>, is_root: bool) -> usize {
        assert!(node.len() <= MAX_ITEMS && (is_root || node.len() >= MIN_ITEMS));
        let depths = node.iter().map(|item| match &item.content {
            Content::Value(value) => {
                assert_eq!(item.newest, value.0);
                0
            }
            Content::Node(below) => {
                assert_eq!(
                    item.newest,
                    below.iter().map(|item| item.newest).max().unwrap()
                );
                assert_eq!(item.key, below[0].key);
                1 + check(below, false)
            }
        });
        let depths: Vec<usize> = depths.collect();
        assert!(depths.iter().all(|depth| *depth == depths[0]));
        depths.first().copied().unwrap_or(0)
    }

    fn bound(kind: u8, key: &[u8]) -> Bound<&[u8]> {
        match kind {
            0 => Bound::Unbounded,
            1 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_a_map_that_shows_what_is_new(
            keys in prop::collection::vec((0..600_u16, 0..4_u64), 1..3000),
            looks in prop::collection::vec((0..3_u8, 0..600_u16, 0..3_u8, 0..600_u16, 0..4_u64), 20),
        ) {
            let (mut map, mut model) = (StampedMap::default(), BTreeMap::new());
            for (key, stamp) in keys {
                let key = key.to_be_bytes().to_vec();
                set(&mut map, &key, stamp);
                prop_assert_eq!(map.get(&key).map(|value| value.0), (stamp > 0).then_some(stamp));
                match stamp {
                    0 => model.remove(&key),
                    _ => model.insert(key, stamp),
                };
            }
            check(&map.root, true);
            for (low_kind, low, high_kind, high, at) in looks {
                let (low, high) = (low.to_be_bytes(), high.to_be_bytes());
                let bounds = (bound(low_kind, &low), bound(high_kind, &high));
                let holds = |key: &[u8]| !is_below(key, bounds.0) && !is_above(key, bounds.1);
                let mut expected: Vec<_> = model
                    .iter()
                    .filter(|(key, stamp)| holds(key) && **stamp >= at)
                    .map(|(key, stamp)| (key.clone(), *stamp))
                    .collect();
                prop_assert_eq!(&found(&map, bounds, at, Direction::Forward), &expected);
                expected.reverse();
                prop_assert_eq!(found(&map, bounds, at, Direction::Reverse), expected);
            }
            for key in model.keys() {
                set(&mut map, key, 0);
            }
            prop_assert!(map.is_empty());
        }
    }

    #[test]
    fn what_is_old_costs_nothing() {
        let mut map = StampedMap::default();
        (0..100_000_u32).for_each(|n| set(&mut map, &n.to_be_bytes(), 1 + u64::from(n == 77_777)));
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert_eq!(found(&map, all, 3, Direction::Forward), []);
        assert!(
            map.visited.get() <= MAX_ITEMS as u64,
            "{}",
            map.visited.get()
        );
        assert_eq!(found(&map, all, 2, Direction::Reverse).len(), 1);
        let deep = 5 * MAX_ITEMS as u64;
        assert!(map.visited.get() <= deep, "{}", map.visited.get());
    }
}
