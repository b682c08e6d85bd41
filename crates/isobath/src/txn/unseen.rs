//! Changes that are in the leaves, or about to be, and not visible yet.
//!
//! A commit notes its keys here before it changes a leaf, and takes the note back
//! once the watermark has passed it. A bulk load notes its tree and the bound above which
//! it alone has records, and takes that back once it is durable. A large commit notes its trees
//! before they get their new roots. Readers read the leaf first and look here afterwards: what they
//! find nothing noted of is visible.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::types::TreeId;

/// Counters of keys; keys that share one cost a look into the version store.
const COUNTERS: usize = 4096;

/// The commits and bulk loads that readers have to beware of.
#[repr(align(128))]
pub(crate) struct Unseen {
    /// How many there are of any kind.
    any: AtomicU64,
    /// Of these, those that leave no versions while their changes are applied one by
    /// one: their keys stay locked until then.
    parts: AtomicU64,
    /// Of these, bulk loads, with their trees and the keys from which on all records are theirs.
    loads: AtomicU64,
    loaded_from: Mutex<Vec<(TreeId, Box<[u8]>)>>,
    /// Trees of large commits, which count as in parts.
    swapped: Mutex<Vec<TreeId>>,
    /// For key numbers: how many commits that are not to be seen change such a key.
    keys: Box<[AtomicU32]>,
}

/// A commit in parts, until this is dropped.
pub(crate) struct InParts<'u>(&'u Unseen);

impl Drop for InParts<'_> {
    fn drop(&mut self) {
        self.0.parts.fetch_sub(1, Ordering::SeqCst);
        self.0.any.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A large commit whose trees get their new roots, and which is not visible until this is dropped.
pub(crate) struct UnseenSwap<'u> {
    unseen: &'u Unseen,
    trees: Vec<TreeId>,
}

impl UnseenSwap<'_> {
    /// It may never be visible.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnseenSwap<'_> {
    fn drop(&mut self) {
        // No other commit has any of them: they are closed.
        let mut swapped = self.unseen.swapped.lock();
        swapped.retain(|tree| !self.trees.contains(tree));
        drop(swapped);
        self.unseen.parts.fetch_sub(1, Ordering::SeqCst);
        self.unseen.any.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A bulk load that no reader sees, until this is dropped.
pub(crate) struct UnseenLoad<'u> {
    unseen: &'u Unseen,
    tree: TreeId,
}

impl UnseenLoad<'_> {
    /// The load may never be durable, so it stays as it is.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnseenLoad<'_> {
    fn drop(&mut self) {
        self.unseen
            .loaded_from
            .lock()
            .retain(|(tree, _)| *tree != self.tree);
        self.unseen.loads.fetch_sub(1, Ordering::SeqCst);
        self.unseen.any.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A commit whose keys are noted, until this is dropped.
pub(crate) struct Noted<'u> {
    unseen: &'u Unseen,
    numbers: Numbers,
}

enum Numbers {
    One(u64),
    Many(Box<[u64]>),
}

impl Noted<'_> {
    fn each(&self, mut with: impl FnMut(&AtomicU32)) {
        match &self.numbers {
            Numbers::One(number) => with(self.unseen.counter(*number)),
            Numbers::Many(numbers) => numbers.iter().for_each(|&n| with(self.unseen.counter(n))),
        }
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.each(|counter| {
            counter.fetch_sub(1, Ordering::Release);
        });
        self.unseen.any.fetch_sub(1, Ordering::Release);
    }
}

impl Unseen {
    pub(crate) fn new() -> Unseen {
        Unseen {
            any: AtomicU64::new(0),
            parts: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            loaded_from: Mutex::default(),
            swapped: Mutex::default(),
            keys: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Whether there is any. A reader of a changed leaf sees the commit, or finds
    /// that it may be seen.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::SeqCst) > 0
    }

    /// Whether there is a commit in parts.
    #[inline]
    pub(crate) fn is_in_parts(&self) -> bool {
        self.parts.load(Ordering::SeqCst) > 0
    }

    /// Whether there is a bulk load.
    #[inline]
    pub(crate) fn is_loading(&self) -> bool {
        self.loads.load(Ordering::SeqCst) > 0
    }

    /// The key from which on all records of `tree` are a bulk load's.
    pub(crate) fn loaded_from(&self, tree: TreeId) -> Option<Box<[u8]>> {
        if !self.is_loading() {
            return None;
        }
        let loads = self.loaded_from.lock();
        let load = loads.iter().find(|load| load.0 == tree);
        load.map(|(_, from)| from.clone())
    }

    /// Whether the record of `key` is a bulk load's.
    pub(crate) fn is_loaded(&self, tree: TreeId, key: &[u8]) -> bool {
        self.is_loading()
            && self
                .loaded_from
                .lock()
                .iter()
                .any(|(of, from)| *of == tree && **from <= *key)
    }

    /// Whether some commit changes a key of this number.
    #[inline]
    pub(crate) fn has(&self, number: u64) -> bool {
        self.counter(number).load(Ordering::Acquire) > 0
    }

    fn counter(&self, number: u64) -> &AtomicU32 {
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.keys[spread as usize % COUNTERS]
    }

    /// A commit that leaves no versions is about to be applied change by change.
    pub(crate) fn begin_parts(&self) -> InParts<'_> {
        self.any.fetch_add(1, Ordering::SeqCst);
        self.parts.fetch_add(1, Ordering::SeqCst);
        InParts(self)
    }

    /// A large commit is about to give `trees`, which it has closed, their new roots.
    pub(crate) fn begin_swap(&self, trees: Vec<TreeId>) -> UnseenSwap<'_> {
        self.swapped.lock().extend(&trees);
        self.any.fetch_add(1, Ordering::SeqCst);
        self.parts.fetch_add(1, Ordering::SeqCst);
        UnseenSwap {
            unseen: self,
            trees,
        }
    }

    /// Whether what was read of `tree` may be of a large commit that is not visible yet.
    pub(crate) fn is_swapped(&self, tree: TreeId) -> bool {
        self.is_in_parts() && self.swapped.lock().contains(&tree)
    }

    /// A bulk load is about to link records to `tree`, which has none from the key `from` on. At
    /// most one of a tree.
    pub(crate) fn begin_load(&self, tree: TreeId, from: &[u8]) -> UnseenLoad<'_> {
        self.loaded_from.lock().push((tree, from.into()));
        self.any.fetch_add(1, Ordering::SeqCst);
        self.loads.fetch_add(1, Ordering::SeqCst);
        UnseenLoad { unseen: self, tree }
    }

    /// Notes the keys of a commit that is about to be applied.
    pub(crate) fn note(&self, numbers: impl ExactSizeIterator<Item = u64>) -> Noted<'_> {
        let mut numbers = numbers;
        let one = if numbers.len() == 1 {
            numbers.next()
        } else {
            None
        };
        let numbers = one.map_or_else(|| Numbers::Many(numbers.collect()), Numbers::One);
        let noted = Noted {
            unseen: self,
            numbers,
        };
        self.any.fetch_add(1, Ordering::SeqCst);
        noted.each(|counter| {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_noted_while_their_commit_is_unseen() {
        let unseen = Unseen::new();
        assert!(!unseen.is_any() && !unseen.has(7));
        let one = unseen.note([7].into_iter());
        let more = unseen.note([7, 7 << 40, 9].into_iter());
        assert!(unseen.is_any() && !unseen.is_in_parts());
        drop(one);
        assert!([7, 7 << 40, 9].into_iter().all(|number| unseen.has(number)));
        drop(more);
        assert!(!unseen.is_any());
        assert!(![7, 7 << 40, 9].into_iter().any(|number| unseen.has(number)));
        let parts = unseen.begin_parts();
        assert!(unseen.is_any() && unseen.is_in_parts() && !unseen.has(7));
        drop(parts);
        assert!(!unseen.is_any() && !unseen.is_in_parts());
    }

    #[test]
    fn trees_are_noted_while_their_roots_are_swapped() {
        let (unseen, trees) = (Unseen::new(), [TreeId(5), TreeId(6), TreeId(7)]);
        let first = unseen.begin_swap(trees[..2].to_vec());
        let second = unseen.begin_swap(trees[2..].to_vec());
        assert!(unseen.is_any() && trees.iter().all(|&tree| unseen.is_swapped(tree)));
        drop(first);
        assert!(
            trees
                .iter()
                .map(|&tree| unseen.is_swapped(tree))
                .eq([false, false, true])
        );
        drop(second);
        assert!(!unseen.is_any() && !unseen.is_in_parts() && !unseen.is_swapped(trees[2]));
    }

    #[test]
    fn loads_are_noted_with_their_bound() {
        let (unseen, tree, other) = (Unseen::new(), TreeId(5), TreeId(6));
        let load = unseen.begin_load(tree, b"k");
        assert!(unseen.is_any() && unseen.is_loaded(tree, b"k") && unseen.is_loaded(tree, b"ka"));
        assert!(!unseen.is_loaded(tree, b"j") && !unseen.is_loaded(other, b"k"));
        assert_eq!(unseen.loaded_from(tree).as_deref(), Some(&b"k"[..]));
        drop(load);
        assert!(!unseen.is_any() && !unseen.is_loaded(tree, b"k"));
        assert_eq!(unseen.loaded_from(tree), None);
        unseen.begin_load(tree, b"").keep();
        assert!(unseen.is_any() && unseen.is_loaded(tree, b""));
    }
}
