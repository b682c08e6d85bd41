//! Which trees get overlays: those that are changed often once a page had to leave the pool, unless
//! a task keeps them out.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Overlays;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::types::{Tree, TreeId};

/// Bytes that the memory of each tree may take at least where one more gets overlays: each that is
/// sealed costs some commits and flushes, however little it has.
const MIN_TO_BEGIN: u64 = 1 << 20;
/// Changes of a tree after which it is asked whether it is to have overlays.
const LOOK_EVERY: u64 = 1024;
const SMALL_LOOK_EVERY: u64 = 8;

/// When trees get overlays.
pub(super) const NEVER: u64 = 0;
pub(super) const ONCE_FULL: u64 = 1;
pub(super) const NOW: u64 = 2;

/// Trees that may get overlays.
#[derive(Default)]
pub(super) struct Candidates {
    /// Changes of each since it was last looked at.
    changes: BTreeMap<TreeId, (Tree, u64)>,
    /// Trees that get none now, and how many tasks say so.
    kept_out: BTreeMap<TreeId, usize>,
    /// The tree that gets some right now.
    beginning: Option<TreeId>,
}

/// Until this is dropped the tree gets no overlays.
pub(crate) struct KeptOut {
    candidates: Arc<Mutex<Candidates>>,
    tree: TreeId,
}

impl Drop for KeptOut {
    fn drop(&mut self) {
        let mut candidates = self.candidates.lock();
        if let Some(count) = candidates.kept_out.get_mut(&self.tree) {
            *count -= 1;
            if *count == 0 {
                candidates.kept_out.remove(&self.tree);
            }
        }
    }
}

/// While this exists, those that keep the tree without overlays wait.
pub(crate) struct Beginning<'o>(&'o Overlays);

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        self.0.candidates.lock().beginning = None;
    }
}

impl Overlays {
    /// A page had to leave the pool for another one.
    #[inline]
    pub(crate) fn note_full_pool(&self) {
        if self.begins.load(Ordering::Relaxed) == ONCE_FULL {
            self.begins.store(NOW, Ordering::Relaxed);
        }
    }

    /// Whether trees get overlays.
    #[inline]
    pub(super) fn do_begin(&self) -> bool {
        self.begins.load(Ordering::Relaxed) == NOW
    }

    /// Whether trees get overlays, and the memories may take enough that one more pays.
    pub(crate) fn may_begin(&self) -> bool {
        let trees = 1 + self.any.load(Ordering::Relaxed);
        let pays =
            self.is_small() || self.memory_bytes.load(Ordering::Relaxed) / trees >= MIN_TO_BEGIN;
        self.do_begin() && pays
    }

    /// Changes of a tree after which it is asked whether it is to have overlays.
    fn look_every(&self) -> u64 {
        match self.is_small() {
            true => SMALL_LOOK_EVERY,
            false => LOOK_EVERY,
        }
    }

    /// A commit has changed `tree`, which has no overlays.
    #[inline]
    pub(crate) fn note_change(&self, tree: Tree) {
        if self.do_begin() {
            let mut candidates = self.candidates.lock();
            candidates.changes.entry(tree.id).or_insert((tree, 0)).1 += 1;
        }
    }

    /// Whether [`Overlays::next_candidate`] would find one.
    pub(crate) fn has_candidate(&self) -> bool {
        let every = self.look_every();
        let is_one = |(_, changes): &(Tree, u64)| *changes >= every;
        self.do_begin() && self.candidates.lock().changes.values().any(is_one)
    }

    /// A tree that was changed often since it was last looked at. It stays without overlays for
    /// those that [`Overlays::keep_out`] until the answer is dropped, who wait.
    pub(crate) fn next_candidate(&self) -> Option<(Tree, Beginning<'_>)> {
        let every = self.look_every();
        let mut candidates = self.candidates.lock();
        let Candidates {
            changes,
            kept_out,
            beginning,
        } = &mut *candidates;
        let mut found = None;
        for (tree, count) in changes.values_mut().filter(|(_, count)| *count >= every) {
            *count = 0;
            if !kept_out.contains_key(&tree.id) && beginning.is_none() {
                found = Some(*tree);
                break;
            }
        }
        let tree = found?;
        *beginning = Some(tree.id);
        Some((tree, Beginning(self)))
    }

    /// Keeps others from giving a tree overlays, or `tree` from being kept without some, until what
    /// this returns is dropped; `None` if someone does that already.
    pub(crate) fn begin_with(&self, tree: TreeId) -> Option<Beginning<'_>> {
        let mut candidates = self.candidates.lock();
        let is_free = candidates.beginning.is_none() && !candidates.kept_out.contains_key(&tree);
        is_free.then(|| {
            candidates.beginning = Some(tree);
            Beginning(self)
        })
    }

    /// Keeps `tree` from getting overlays; the caller waits while [`Overlays::is_beginning`].
    pub(crate) fn keep_out(&self, tree: TreeId) -> KeptOut {
        let mut candidates = self.candidates.lock();
        *candidates.kept_out.entry(tree).or_insert(0) += 1;
        KeptOut {
            candidates: Arc::clone(&self.candidates),
            tree,
        }
    }

    /// Whether a task is about to give `tree` overlays.
    pub(crate) fn is_beginning(&self, tree: TreeId) -> bool {
        self.candidates.lock().beginning == Some(tree)
    }

    /// The tree is gone.
    pub(crate) fn forget(&self, tree: TreeId) {
        self.candidates.lock().changes.remove(&tree);
    }
}
