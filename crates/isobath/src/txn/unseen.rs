//! Changes that are in the leaves, or about to be, and not visible yet.
//!
//! A commit that leaves versions notes its keys here before it changes a leaf, and takes the note
//! back once the watermark has passed it. A commit in parts counts itself. A bulk load notes its
//! tree and the key from which on all records are its own, before it links them. A large commit
//! notes its trees before they get their runs. Readers read the leaf first and look here
//! afterwards: if nothing is noted of what they have read, it is visible ([`super::visible`]).

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{HashSet, Mutex};
use crate::types::TreeId;

/// Counters of keys; keys that share one cost a look into the version store.
const COUNTERS: usize = 4096;

/// The commits and bulk loads that readers have to beware of.
#[repr(align(128))]
pub(crate) struct Unseen {
    /// How many there are of any kind.
    any: AtomicU64,
    /// Of these, commits whose changes are applied one by one, and may be seen so: their keys stay
    /// locked until then.
    parts: AtomicU64,
    /// Entries of `trees`.
    hidden: AtomicU64,
    /// Of each tree at most one: a load and a large commit have it to themselves.
    trees: Mutex<Vec<(TreeId, UnseenRecords)>>,
    /// For key numbers: how many commits that are not to be seen change such a key.
    keys: Box<[AtomicU32]>,
    has_failed: AtomicBool,
    /// Numbers of the keys of commits in parts that failed half-way: what the pages have of them is
    /// for the next recovery to complete.
    failed: Mutex<HashSet<u64>>,
}

/// A commit in parts, until this is dropped.
pub(crate) struct InParts<'u>(&'u Unseen);

impl Drop for InParts<'_> {
    fn drop(&mut self) {
        self.0.parts.fetch_sub(1, Ordering::SeqCst);
        self.0.any.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The records of a tree that are not visible yet.
pub(crate) enum UnseenRecords {
    /// A bulk load's: all from this key on.
    From(Box<[u8]>),
    /// A large commit's: any of them.
    All,
}

impl UnseenRecords {
    /// The key from which on all records are a bulk load's.
    pub(crate) fn from(&self) -> Option<&[u8]> {
        match self {
            UnseenRecords::From(from) => Some(from),
            UnseenRecords::All => None,
        }
    }
}

/// Trees of which records are not visible, until this is dropped.
pub(crate) struct UnseenTrees<'u> {
    unseen: &'u Unseen,
    trees: Vec<TreeId>,
}

impl UnseenTrees<'_> {
    /// They may never be visible.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnseenTrees<'_> {
    fn drop(&mut self) {
        let mut trees = self.unseen.trees.lock();
        trees.retain(|(tree, _)| !self.trees.contains(tree));
        drop(trees);
        let count = self.trees.len() as u64;
        self.unseen.hidden.fetch_sub(count, Ordering::SeqCst);
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
            hidden: AtomicU64::new(0),
            trees: Mutex::default(),
            keys: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
            has_failed: AtomicBool::new(false),
            failed: Mutex::default(),
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

    /// What `look` makes of the records of `tree` that are not visible, if there are any.
    #[inline]
    pub(crate) fn records<R>(
        &self,
        tree: TreeId,
        look: impl FnOnce(&UnseenRecords) -> R,
    ) -> Option<R> {
        if self.hidden.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let trees = self.trees.lock();
        let records = trees.iter().find(|(of, _)| *of == tree);
        records.map(|(_, records)| look(records))
    }

    /// Whether what was read of `tree` may be of a large commit that is not visible yet.
    pub(crate) fn has_tree(&self, tree: TreeId) -> bool {
        self.records(tree, |records| records.from().is_none()) == Some(true)
    }

    /// Whether a commit in parts has failed half-way.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Whether one that has failed half-way changes a key of this number.
    pub(crate) fn has_failed_at(&self, number: u64) -> bool {
        self.has_failed() && self.failed.lock().contains(&number)
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

    /// A commit of these keys that no version hides has failed half-way, and stays so. Its locks go
    /// later.
    pub(crate) fn fail(&self, numbers: impl Iterator<Item = u64>) {
        std::mem::forget(self.begin_parts());
        self.failed.lock().extend(numbers);
        self.has_failed.store(true, Ordering::SeqCst);
    }

    /// Records of these trees are about to be in the leaves: each tree at most once until the
    /// result is dropped.
    pub(crate) fn hide(&self, of: Vec<(TreeId, UnseenRecords)>) -> UnseenTrees<'_> {
        let trees: Vec<TreeId> = of.iter().map(|(tree, _)| *tree).collect();
        self.trees.lock().extend(of);
        self.any.fetch_add(1, Ordering::SeqCst);
        self.hidden.fetch_add(trees.len() as u64, Ordering::SeqCst);
        UnseenTrees {
            unseen: self,
            trees,
        }
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
    fn trees_are_noted_while_a_large_commit_or_a_load_is_not_visible() {
        let (unseen, [a, b, c]) = (Unseen::new(), [TreeId(5), TreeId(6), TreeId(7)]);
        let unseen_trees = || [a, b, c].map(|tree| unseen.has_tree(tree));
        let from = |tree| unseen.records(tree, |records| records.from().map(<[u8]>::to_vec));
        let two = unseen.hide(vec![(a, UnseenRecords::All), (b, UnseenRecords::All)]);
        let load = unseen.hide(vec![(c, UnseenRecords::From(b"k"[..].into()))]);
        assert!(unseen.is_any() && unseen_trees() == [true, true, false]);
        assert_eq!((from(a), from(c)), (Some(None), Some(Some(b"k".to_vec()))));
        drop(two);
        assert!(unseen.is_any() && unseen_trees() == [false; 3] && from(a).is_none());
        drop(load);
        assert!(!unseen.is_any() && from(c).is_none());
        unseen.hide(vec![(c, UnseenRecords::All)]).keep();
        assert!(unseen.is_any() && unseen.has_tree(c));
    }

    #[test]
    fn keys_stay_noted_of_a_commit_that_has_failed_half_way() {
        let unseen = Unseen::new();
        assert!(!unseen.has_failed() && !unseen.has_failed_at(7));
        unseen.fail([7, 9].into_iter());
        assert!(unseen.is_any() && unseen.is_in_parts() && unseen.has_failed());
        assert_eq!(
            [7, 8, 9].map(|n| unseen.has_failed_at(n)),
            [true, false, true]
        );
    }
}
